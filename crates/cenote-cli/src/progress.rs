//! The progress of an activity for which a command waits (`zpool wait`, `-w`), as a person at a
//! terminal sees it: a line that is written anew.
//!
//! ```text
//!   scrub: 1.21G left, 210M/s, 00:00:06 to go
//! ```
//!
//! The daemon knows what is left. The process of the person asks for that again and again, and so
//! knows how fast it becomes less.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::time::Duration;

use crate::nicenum;
use crate::zpool::scan::duration;

/// Begin of an answer that has what is left of activities: a name and bytes in each further line.
const MARK: &str = "progress\n";
/// Answers from which a rate is computed, at most.
const SAMPLES: usize = 15;

/// Returns an answer with what is left of activities, in bytes; 1 if that is not known.
pub(crate) fn answer<'a>(left: impl IntoIterator<Item = (&'a str, u64)>) -> String {
    left.into_iter().fold(MARK.to_owned(), |mut text, (name, bytes)| {
        let _ = writeln!(text, "{name}\t{bytes}");
        text
    })
}

/// The progress of activities: bytes that were left at the last answers.
#[derive(Debug, Default)]
pub struct Progress {
    samples: BTreeMap<String, VecDeque<(Duration, u64)>>,
}

impl Progress {
    /// Whether an answer of the daemon has what is left of activities.
    #[must_use]
    pub fn is_in(answer: &str) -> bool {
        answer.starts_with(MARK)
    }

    /// Takes in an answer at a time of any clock, and returns the line that shows it, without its
    /// end: the activity that has the most to do. `None` if nothing goes on.
    pub fn line(&mut self, answer: &str, now: Duration) -> Option<String> {
        let left = answer.strip_prefix(MARK)?.lines().filter_map(|line| {
            let (name, bytes) = line.split_once('\t')?;
            Some((name, bytes.parse::<u64>().ok()?))
        });
        // A line of a terminal is short.
        let (name, bytes) = left.max_by_key(|(_, bytes)| *bytes)?;
        self.samples.retain(|known, _| name == known);
        Some(self.part(name, bytes, now))
    }

    fn part(&mut self, name: &str, left: u64, now: Duration) -> String {
        let samples = self.samples.entry(name.to_owned()).or_default();
        // It began anew.
        if samples.back().is_some_and(|(_, before)| *before < left) {
            samples.clear();
        }
        samples.push_back((now, left));
        if samples.len() > SAMPLES {
            samples.pop_front();
        }
        if left <= 1 {
            return name.to_owned();
        }
        let mut text = format!("{name}: {} left", nicenum::bytes(left));
        let Some((begin, first)) = samples.front() else { return text };
        let took = now.saturating_sub(*begin).as_secs_f64();
        let rate = if took > 0.0 { first.saturating_sub(left) as f64 / took } else { 0.0 };
        if rate >= 1.0 {
            let (speed, seconds) = (nicenum::bytes(rate as u64), (left as f64 / rate) as u64);
            let _ = write!(text, ", {speed}/s, {} to go", duration(seconds));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_show_rates() {
        let mut progress = Progress::default();
        let mut at = |seconds: u64, left: &[(&str, u64)]| {
            let text = answer(left.iter().copied());
            assert!(Progress::is_in(&text));
            progress.line(&text, Duration::from_secs(seconds))
        };
        assert_eq!(at(5, &[]), None);
        assert_eq!(at(6, &[("scrub", 4 << 30)]).unwrap(), "scrub: 4G left");
        let line = at(8, &[("scrub", 3 << 30), ("free", 1)]).unwrap();
        assert_eq!(line, "scrub: 3G left, 512M/s, 00:00:06 to go");
        // The oldest answers are forgotten.
        for seconds in 9..40 {
            at(seconds, &[("scrub", (3 << 30) - ((seconds - 8) << 20))]);
        }
        let line = at(40, &[("scrub", (3 << 30) - (32 << 20))]).unwrap();
        assert_eq!(line, "scrub: 2.97G left, 1M/s, 00:50:40 to go");
        // Another scrub has begun, or none goes on.
        assert_eq!(at(41, &[("scrub", 4 << 30)]).unwrap(), "scrub: 4G left");
        assert_eq!(at(41, &[("scrub", 4 << 30)]).unwrap(), "scrub: 4G left");
        assert_eq!(at(42, &[]), None);
        assert_eq!(at(43, &[("trim", 0)]).unwrap(), "trim");
        assert_eq!(Progress::default().line("waiting for the daemon\n", Duration::ZERO), None);
        let odd = "progress\nscrub\tmany\n\nx\ny\t18446744073709551616\n";
        assert_eq!(Progress::default().line(odd, Duration::ZERO), None);
    }
}
