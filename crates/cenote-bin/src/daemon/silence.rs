//! Daemons that do not answer: how long clients wait, and the resulting error.
//!
//! A daemon that opens its pools may take long but makes progress. One that is stopped (SIGSTOP),
//! that was killed and cannot end, or that uses no processor time for a minute will not answer:
//! clients get an error, and do nothing to that daemon.

use std::io::{Error, ErrorKind, Result};
use std::time::Duration;

use cenote_rt::monotonic;

/// Interval between two checks.
const INTERVAL: Duration = Duration::from_secs(1);
/// Checks in a row that must find a process stopped, or a zombie: debugging tools stop a process
/// for a moment.
const HALTED_MAX: u32 = 3;
/// Process that creates the socket of a daemon and starts it for the first client; it need not make
/// progress.
const INIT: i32 = 1;
/// How long a process may use no processor time.
const IDLE_MAX: Duration = Duration::from_mins(1);

/// Observations of a daemon that has not answered yet.
#[derive(Debug)]
pub(super) struct Silence {
    process: i32,
    last_look: Duration,
    /// Checks in a row that found it stopped, or a zombie.
    halted_count: u32,
    /// Its processor time in ticks, and when this value was seen first.
    used: (u64, Duration),
}

/// State of a process, from the kernel.
#[derive(Debug, PartialEq, Eq)]
struct Look {
    state: char,
    /// Processor time in ticks, user and kernel.
    ticks: u64,
}

impl Look {
    /// Parses `/proc/PID/stat`.
    fn parse(text: &str) -> Option<Self> {
        const UTIME_INDEX: usize = 11;
        let (_, fields) = text.rsplit_once(") ")?;
        let mut fields = fields.split(' ');
        let state = fields.next()?.chars().next()?;
        let mut ticks = fields.skip(UTIME_INDEX - 1).map_while(|field| field.parse::<u64>().ok());
        Some(Self { state, ticks: ticks.next()?.saturating_add(ticks.next()?) })
    }
}

impl Silence {
    /// Starts waiting for a process.
    pub(super) fn of(process: i32) -> Self {
        let now = monotonic();
        Self { process, last_look: now, halted_count: 0, used: (0, now) }
    }

    /// Checks the process again, at most once a second.
    ///
    /// # Errors
    /// `TimedOut` for a process that will not answer, with the reason. A process that has ended is
    /// no error.
    pub(super) fn check(&mut self) -> Result<()> {
        let now = monotonic();
        if now.saturating_sub(self.last_look) < INTERVAL {
            return Ok(());
        }
        self.last_look = now;
        let text = std::fs::read_to_string(format!("/proc/{}/stat", self.process));
        match text.ok().as_deref().and_then(Look::parse) {
            Some(look) => self.judge(&look, now),
            None => Ok(()),
        }
    }

    fn judge(&mut self, look: &Look, now: Duration) -> Result<()> {
        let process = self.process;
        let is_halted = matches!(look.state, 'T' | 'Z');
        self.halted_count = if is_halted { self.halted_count + 1 } else { 0 };
        if self.used.0 != look.ticks {
            self.used = (look.ticks, now);
        }
        let why = match look.state {
            // A process that ends regularly is a zombie for a moment, too.
            'Z' if self.halted_count >= HALTED_MAX => format!(
                "it was killed (process {process}), and the kernel does not let it end: it waits \
                 for its own mounts. As root, 'mount -t fusectl none /sys/fs/fuse/connections', \
                 and write 1 to the file 'abort' of each of its connections there"
            ),
            _ if self.halted_count >= HALTED_MAX => {
                format!("it is stopped (process {process}); 'kill -CONT {process}' lets it go on")
            }
            _ if now.saturating_sub(self.used.1) > IDLE_MAX && process != INIT => {
                format!("it neither answers nor does anything (process {process})")
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::TimedOut, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(state: char, ticks: u64) -> Look {
        Look { state, ticks }
    }

    #[test]
    fn proc_stat_is_parsed() {
        let text = "71 (a) b) S 1 71 71 0 -1 4194560 9 0 0 0 12 30 0 0 20 0 9 0 55\n";
        assert_eq!(Look::parse(text), Some(look('S', 42)));
        assert_eq!(Look::parse("71 (x"), None);
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(Look::parse(&own).is_some());
    }

    #[test]
    fn busy_daemon_is_waited_for() {
        let mut silence = Silence::of(7);
        let at = |seconds| silence.used.1 + Duration::from_secs(seconds);
        let (start, times) = (at(0), [at(1), at(59), at(118), at(180)]);
        assert!(silence.judge(&look('S', 5), start).is_ok());
        // An occasional tick is progress.
        for (ticks, now) in [6, 7, 8].into_iter().zip(times) {
            assert!(silence.judge(&look('S', ticks), now).is_ok());
        }
        let error = silence.judge(&look('D', 8), times[3]).unwrap_err();
        assert!(error.to_string().contains("neither answers nor does anything"), "{error}");
    }

    #[test]
    fn stopped_daemon_does_not_answer() {
        let mut silence = Silence::of(7);
        let now = silence.used.1;
        for state in ['T', 'T', 'S', 'T', 'T'] {
            assert!(silence.judge(&look(state, 1), now).is_ok());
        }
        let error = silence.judge(&look('T', 1), now).unwrap_err();
        assert!(error.to_string().contains("kill -CONT 7"), "{error}");
        assert!(silence.judge(&look('Z', 1), now).is_err());
        assert!(Silence::of(7).judge(&look('Z', 1), now).is_ok(), "it may be ending");
    }
}
