//! Error rates of a leaf: whether there are too many errors.
//!
//! ```text
//!   checksum_n wrong blocks in checksum_t seconds        the leaf is DEGRADED
//!   io_n failed I/Os in io_t seconds                     the leaf is FAULTED
//!   slow_io_n slow I/Os in slow_io_t seconds, if set     the leaf is DEGRADED
//! ```
//!
//! In OpenZFS the daemon `zed` counts, from the events of the kernel; here the leaf counts itself,
//! so no daemon is needed. A rate that was exceeded is reported once, until the errors of the leaf
//! are cleared. An error at an offset that is counted already does not count again: a block that
//! many programs read is one error.
//!
//! Guarantees
//! * FD1  The number of errors in memory is at most the rate's count, and at most [`EVENTS_MAX`].
//!
//! Source: spec 06 §17.2.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::monotonic;
use cenote_rt::seeded::{Bug, is_on};

/// Largest count of a rate that can be exceeded; a rate with a larger count never is.
const EVENTS_MAX: u64 = 16_384;

/// Kind of an error of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Symptom {
    /// The device returned an error.
    Io,
    /// The device returned wrong bytes, and not to a scrub or resilver.
    Checksum,
    /// The device took longer than `zio_slow_io_ms`.
    SlowIo,
}

impl Symptom {
    const ALL: [Self; 3] = [Self::Io, Self::Checksum, Self::SlowIo];
}

/// A number of errors within a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorRate {
    /// Number of errors; 0 for a rate that is never exceeded.
    pub count: u64,
    /// Seconds.
    pub seconds: u64,
}

/// The error rates that the state of a leaf depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ErrorRates {
    /// Failed I/Os (`io_n`, `io_t`).
    pub io: ErrorRate,
    /// Wrong blocks (`checksum_n`, `checksum_t`).
    pub checksum: ErrorRate,
    /// Slow I/Os (`slow_io_n`, `slow_io_t`); `None` if they do not matter.
    pub slow_io: Option<ErrorRate>,
}

impl Default for ErrorRates {
    fn default() -> Self {
        let usual = ErrorRate { count: 10, seconds: 600 };
        Self { io: usual, checksum: usual, slow_io: None }
    }
}

impl ErrorRates {
    fn of(&self, symptom: Symptom) -> Option<ErrorRate> {
        let rate = match symptom {
            Symptom::Io => Some(self.io),
            Symptom::Checksum => Some(self.checksum),
            Symptom::SlowIo => self.slow_io,
        };
        rate.filter(|rate| (1..=EVENTS_MAX).contains(&rate.count))
    }
}

/// The errors of one kind within the time of their rate.
#[derive(Debug, Default)]
struct Window {
    /// Time and offset of each, the oldest first.
    errors: VecDeque<(Duration, Option<u64>)>,
    /// The rate was exceeded since the last reset.
    has_fired: bool,
}

impl Window {
    fn forget_before(&mut self, now: Duration, rate: ErrorRate) {
        let age = Duration::from_secs(rate.seconds);
        let is_old = |at: Duration| now.saturating_sub(at) > age && !is_on(Bug::ErrorsNeverAge);
        while self.errors.front().is_some_and(|(at, _)| is_old(*at)) {
            self.errors.pop_front();
        }
    }

    /// Adds an error. Returns whether the rate is now exceeded for the first time.
    fn record(&mut self, now: Duration, offset: Option<u64>, rate: ErrorRate) -> bool {
        if self.has_fired {
            return false;
        }
        self.forget_before(now, rate);
        if offset.is_some() && self.errors.iter().any(|(_, known)| *known == offset) {
            return false;
        }
        self.errors.push_back((now, offset));
        self.has_fired = self.errors.len() as u64 >= rate.count;
        // FD1: a rate that was lowered may be exceeded by fewer errors than are known.
        self.errors.truncate(rate.count as usize);
        self.has_fired
    }
}

#[derive(Debug, Default)]
struct State {
    rates: ErrorRates,
    windows: [Window; 3],
    /// Rates that were exceeded, and when.
    due: Vec<(Duration, Symptom)>,
}

/// The error rates of a leaf, and its recent errors.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    state: Mutex<State>,
    /// Whether rates were exceeded that the engine has not handled.
    is_due: AtomicBool,
}

impl Diagnosis {
    pub(super) fn new() -> Self {
        Self { state: Mutex::with_default(Rank::Diagnosis), is_due: AtomicBool::new(false) }
    }

    pub(super) fn rates(&self) -> ErrorRates {
        self.state.lock().rates
    }

    pub(super) fn set_rates(&self, rates: ErrorRates) {
        self.state.lock().rates = rates;
    }

    /// Records an error; with `offset`, errors at the same offset count once.
    pub(crate) fn record(&self, symptom: Symptom, offset: Option<u64>) {
        let mut state = self.state.lock();
        let Some(rate) = state.rates.of(symptom) else { return };
        let now = monotonic();
        if state.windows[symptom as usize].record(now, offset, rate) {
            state.due.push((now, symptom));
            self.is_due.store(true, Ordering::Release);
        }
    }

    pub(super) fn is_due(&self) -> bool {
        self.is_due.load(Ordering::Acquire)
    }

    /// Returns the kinds of errors whose rates were exceeded since the last call, and when.
    pub(super) fn take_due(&self) -> Vec<(Duration, Symptom)> {
        if !self.is_due() {
            return Vec::new();
        }
        let mut state = self.state.lock();
        self.is_due.store(false, Ordering::Release);
        std::mem::take(&mut state.due)
    }

    /// Whether there are errors of this kind within the time of their rate.
    pub(super) fn is_active(&self, symptom: Symptom) -> bool {
        let mut state = self.state.lock();
        let Some(rate) = state.rates.of(symptom) else { return false };
        let window = &mut state.windows[symptom as usize];
        window.forget_before(monotonic(), rate);
        !window.errors.is_empty()
    }

    /// Forgets the errors of one kind.
    pub(super) fn reset_one(&self, symptom: Symptom) {
        self.state.lock().windows[symptom as usize] = Window::default();
    }

    /// Forgets all errors.
    pub(crate) fn reset(&self) {
        let mut state = self.state.lock();
        for symptom in Symptom::ALL {
            state.windows[symptom as usize] = Window::default();
        }
        state.due.clear();
        self.is_due.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: ErrorRate = ErrorRate { count: 3, seconds: 10 };

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn errors_within_the_time_exceed_a_rate_once() {
        for (times, want) in [
            (&[0, 1, 2][..], Some(2)),
            (&[0, 5, 10], Some(2)),
            (&[0, 5, 11], None),
            (&[0, 5, 11, 12], Some(3)),
            (&[0, 20, 40, 60, 80], None),
            (&[0, 0, 0, 0, 0], Some(2)),
        ] {
            let mut window = Window::default();
            let fired: Vec<_> = times
                .iter()
                .enumerate()
                .filter(|(index, time)| window.record(at(**time), Some(*index as u64), RATE))
                .map(|(index, _)| index)
                .collect();
            assert_eq!(fired, want.into_iter().collect::<Vec<_>>(), "{times:?}");
            assert!(window.errors.len() <= 3);
        }
    }

    #[test]
    fn an_offset_counts_once() {
        let mut window = Window::default();
        for _ in 0..100 {
            assert!(!window.record(at(1), Some(4096), RATE));
        }
        assert!(!window.record(at(2), Some(8192), RATE));
        // I/Os without an offset are all different.
        assert!(window.record(at(2), None, RATE));
    }

    #[test]
    fn ten_thousand_errors_take_bounded_memory() {
        for (count, fires) in [(EVENTS_MAX, true), (EVENTS_MAX + 1, false), (0, false)] {
            let diagnosis = Diagnosis::new();
            let io = ErrorRate { count, seconds: u64::MAX };
            diagnosis.set_rates(ErrorRates { io, ..ErrorRates::default() });
            for _ in 0..EVENTS_MAX + 10_000 {
                diagnosis.record(Symptom::Io, None);
            }
            assert_eq!(diagnosis.is_due(), fires, "{count}");
            assert!(diagnosis.state.lock().windows[0].errors.len() as u64 <= EVENTS_MAX);
        }
    }

    #[test]
    fn slow_io_matters_only_if_its_rate_is_set() {
        let diagnosis = Diagnosis::new();
        let record = || (0..20).for_each(|_| diagnosis.record(Symptom::SlowIo, None));
        record();
        assert!(!diagnosis.is_due() && !diagnosis.is_active(Symptom::SlowIo));
        diagnosis.set_rates(ErrorRates { slow_io: Some(RATE), ..ErrorRates::default() });
        record();
        let due: Vec<_> = diagnosis.take_due().into_iter().map(|(_, symptom)| symptom).collect();
        assert_eq!(due, [Symptom::SlowIo]);
        assert!(diagnosis.take_due().is_empty());
        record();
        assert!(!diagnosis.is_due(), "it was reported already");
        diagnosis.reset();
        record();
        assert!(diagnosis.is_due());
    }
}
