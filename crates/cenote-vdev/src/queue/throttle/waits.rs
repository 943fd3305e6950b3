//! For how long ordinary I/O held the reads of a scan back, over the last seconds.
//!
//! Each queue adds the times in which it had scan reads: held, if none of them was in flight
//! because of ordinary I/O; at work otherwise. The gate of the delays adds the time that blocks
//! spend there. Times are summed by second, so that the answer follows a change of a tunable.

use cenote_rt::lock::{Mutex, Rank};

use super::ThrottleModel;

const SECOND_NS: u64 = 1_000_000_000;
/// Seconds of which the sums are kept: the answer is about the last of them.
const SECONDS: usize = 6;

/// What a queue did with the reads of a scan.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(in crate::queue) enum ScanWork {
    /// There were none.
    #[default]
    Absent,
    /// Some were in flight.
    Reading,
    /// All of them waited for ordinary I/O.
    Held,
}

/// How much a scan was held back lately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanWait {
    /// Percent of the time with scan reads in which ordinary I/O held them back.
    pub percent: u8,
    /// The model that held them back.
    pub model: ThrottleModel,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    second: u64,
    held_ns: u64,
    all_ns: u64,
}

/// The sums of the last seconds.
#[derive(Debug)]
pub(super) struct Waits(Mutex<[Sums; SECONDS]>);

impl Default for Waits {
    fn default() -> Self {
        Self(Mutex::new(Rank::ScanWaits, [Sums::default(); SECONDS]))
    }
}

impl Waits {
    /// Adds the time between two moments.
    pub(super) fn add(&self, work: ScanWork, from_ns: u64, to_ns: u64) {
        if work == ScanWork::Absent || from_ns >= to_ns {
            return;
        }
        let mut sums = self.0.lock();
        // Older sums are not kept.
        let oldest = (to_ns / SECOND_NS).saturating_sub(SECONDS as u64 - 1) * SECOND_NS;
        let mut from_ns = from_ns.max(oldest);
        while from_ns < to_ns {
            let second = from_ns / SECOND_NS;
            let end_ns = to_ns.min((second + 1) * SECOND_NS);
            let sum = &mut sums[(second % SECONDS as u64) as usize];
            if sum.second != second {
                *sum = Sums { second, ..Sums::default() };
            }
            sum.all_ns += end_ns - from_ns;
            if work == ScanWork::Held {
                sum.held_ns += end_ns - from_ns;
            }
            from_ns = end_ns;
        }
    }

    /// Returns the part of the time of the last seconds in which scan reads were held back.
    pub(super) fn waited(&self, now_ns: u64) -> ScanWait {
        let now = now_ns / SECOND_NS;
        let sums = self.0.lock();
        let recent = sums.iter().filter(|sum| sum.second + SECONDS as u64 > now);
        let (held, all) =
            recent.fold((0, 0), |(held, all), sum| (held + sum.held_ns, all + sum.all_ns));
        let percent = (held * 100).checked_div(all).unwrap_or(0) as u8;
        ScanWait { percent, model: ThrottleModel::now() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_seconds_count() {
        let waits = Waits::default();
        let percent = |now| waits.waited(now * SECOND_NS).percent;
        assert_eq!(percent(0), 0);
        waits.add(ScanWork::Absent, 0, 9 * SECOND_NS);
        waits.add(ScanWork::Held, 0, 3 * SECOND_NS);
        waits.add(ScanWork::Reading, 3 * SECOND_NS, 4 * SECOND_NS);
        assert_eq!(percent(4), 75);
        // Of a long time only its end is kept.
        waits.add(ScanWork::Reading, 4 * SECOND_NS, 20 * SECOND_NS);
        assert_eq!(percent(20), 0);
        waits.add(ScanWork::Held, 20 * SECOND_NS, 25 * SECOND_NS);
        assert_eq!(percent(25), 100);
        assert_eq!(percent(40), 0);
    }
}
