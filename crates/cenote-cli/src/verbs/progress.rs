//! Progress of a long command on standard error: bytes done, rate, time to go.
//!
//!     1.25G of 4.00G  31%  312M/s  0:09 to go
//!
//! On a terminal one line is rewritten in place; otherwise, if progress was requested, a line is
//! printed now and then. The rate covers the last seconds, so that the estimate follows the present
//! speed.

use std::collections::VecDeque;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use crate::nicenum;

/// Interval between lines on a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_millis(250);
/// Interval between lines elsewhere.
const LOG_INTERVAL: Duration = Duration::from_secs(5);
/// Period that the rate is averaged over.
const RATE_WINDOW: Duration = Duration::from_secs(5);

/// Reports the progress of a command.
#[derive(Debug)]
pub struct Progress {
    is_wanted: bool,
    is_shown: bool,
    is_terminal: bool,
    total: Option<u64>,
    done: u64,
    last_line: Duration,
    /// Times, and the bytes done by then.
    samples: VecDeque<(Duration, u64)>,
    line_len: usize,
}

impl Progress {
    /// Returns a progress that shows on a terminal, and elsewhere if requested; `total` bytes in
    /// all, if known.
    pub fn new(is_wanted: bool, total: Option<u64>) -> Self {
        let is_terminal = std::io::stderr().is_terminal();
        let now = cenote_rt::monotonic();
        Self {
            is_wanted,
            is_shown: is_wanted || is_terminal,
            is_terminal,
            total,
            done: 0,
            last_line: now,
            samples: VecDeque::from([(now, 0)]),
            line_len: 0,
        }
    }

    /// Whether progress was requested.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Returns the bytes done so far.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Counts `bytes` as done, and updates the display when it is time.
    pub fn add(&mut self, bytes: u64, err: &mut (dyn Write + Send)) -> std::io::Result<()> {
        self.done += bytes;
        if !self.is_shown {
            return Ok(());
        }
        let now = cenote_rt::monotonic();
        let interval = if self.is_terminal { TERMINAL_INTERVAL } else { LOG_INTERVAL };
        if now.saturating_sub(self.last_line) < interval {
            return Ok(());
        }
        self.last_line = now;
        self.samples.push_back((now, self.done));
        while self.samples.len() > 2 && now.saturating_sub(self.samples[0].0) > RATE_WINDOW {
            self.samples.pop_front();
        }
        let line = line(self.done, self.total, self.rate());
        if !self.is_terminal {
            return writeln!(err, "{line}");
        }
        let width = self.line_len.max(line.len());
        self.line_len = line.len();
        write!(err, "\r{line:width$}")?;
        err.flush()
    }

    /// Erases the line, so that something else can be printed.
    pub fn clear(&mut self, err: &mut (dyn Write + Send)) -> std::io::Result<()> {
        let width = std::mem::take(&mut self.line_len);
        if width > 0 { write!(err, "\r{:width$}\r", "") } else { Ok(()) }
    }

    /// Returns the bytes per second over the last samples.
    fn rate(&self) -> u64 {
        let (Some((start, before)), Some((end, after))) =
            (self.samples.front(), self.samples.back())
        else {
            return 0;
        };
        let seconds = end.saturating_sub(*start).as_secs_f64();
        if seconds > 0.0 { ((after - before) as f64 / seconds) as u64 } else { 0 }
    }
}

fn line(done: u64, total: Option<u64>, rate: u64) -> String {
    let mut line = nicenum::bytes_b(done);
    if let Some(total) = total.filter(|total| *total > 0) {
        // The total may be an estimate: never show 100 percent before the end.
        let percent = (u128::from(done) * 100 / u128::from(total)).min(99);
        line = format!("{line} of {}  {percent}%", nicenum::bytes_b(total));
    }
    line = format!("{line}  {}/s", nicenum::bytes_b(rate));
    match total.and_then(|total| total.checked_sub(done)?.checked_div(rate)) {
        Some(seconds) => {
            let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
            let hours =
                if hours > 0 { format!("{hours}:{minutes:02}") } else { minutes.to_string() };
            format!("{line}  {hours}:{:02} to go", seconds % 60)
        }
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        for (done, total, rate, want) in [
            (0, None, 0, "0B  0B/s"),
            (1 << 30, Some(4 << 30), 256 << 20, "1G of 4G  25%  256M/s  0:12 to go"),
            (1 << 30, Some(1 << 40), 1 << 20, "1G of 1T  0%  1M/s  290:59:12 to go"),
            (5 << 30, Some(4 << 30), 1 << 20, "5G of 4G  99%  1M/s"),
        ] {
            assert_eq!(line(done, total, rate), want);
        }
    }
}
