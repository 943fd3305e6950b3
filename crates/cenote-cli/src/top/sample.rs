//! Counters of the daemon at one time, and rates between two times.

use serde::{Deserialize, Serialize};

/// Most buckets of a histogram of times; bucket n begins at 2^n ns.
const BUCKETS: usize = 64;

/// An answer of the daemon.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Sample {
    /// The process of the daemon: counters of another one begin at zero.
    pub(super) process: u32,
    /// The daemon's clock.
    pub(super) at_ns: u64,
    pub(super) pools: Vec<PoolSample>,
}

/// Counters of a pool since it was opened.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct PoolSample {
    pub(super) name: String,
    pub(super) guid: String,
    pub(super) state: String,
    pub(super) space: Space,
    pub(super) txg: u64,
    pub(super) dirty: u64,
    pub(super) cache: CacheCounts,
    /// Time since its counters began.
    pub(super) age_ns: u64,
    pub(super) io: IoCounts,
    /// Name of each class, its active and its queued I/Os.
    pub(super) queues: Vec<(String, u64, u64)>,
    pub(super) scan: String,
    pub(super) leaves: Vec<LeafSample>,
    pub(super) datasets: Vec<DatasetSample>,
    /// Number of open datasets.
    pub(super) open: u64,
}

/// Space of a pool, in bytes, and its fragmentation in percent.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
pub(super) struct Space {
    pub(super) size: u64,
    pub(super) allocated: u64,
    pub(super) fragmentation: Option<u64>,
}

/// Counters of a block cache.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct CacheCounts {
    pub(super) hits: u64,
    pub(super) misses: u64,
}

/// Counters of both directions.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct IoCounts {
    pub(super) read: Counts,
    pub(super) write: Counts,
}

/// Counters of one direction.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Counts {
    pub(super) operations: u64,
    pub(super) bytes: u64,
    pub(super) times: Times,
}

/// A histogram of times: counts from the bucket `first` on.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Times {
    pub(super) first: usize,
    pub(super) counts: Vec<u64>,
}

/// Counters of a device.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct LeafSample {
    pub(super) name: String,
    pub(super) guid: String,
    pub(super) state: String,
    pub(super) io: IoCounts,
    pub(super) active: u64,
    pub(super) queued: u64,
}

/// Counters of an open dataset: object, bytes read, bytes written, commits of its intent log, times
/// of reads and of writes.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct DatasetSample(
    pub(super) u64,
    u64,
    u64,
    pub(super) u64,
    (usize, Vec<u64>),
    (usize, Vec<u64>),
);

impl DatasetSample {
    /// Returns its counters of reads and writes.
    pub(super) fn io(&self) -> IoCounts {
        let of = |bytes: u64, (first, counts): &(usize, Vec<u64>)| Counts {
            operations: counts.iter().fold(0, |sum, count| sum.saturating_add(*count)),
            bytes,
            times: Times { first: *first, counts: counts.clone() },
        };
        IoCounts { read: of(self.1, &self.4), write: of(self.2, &self.5) }
    }
}

/// Work of one direction in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Rate {
    /// Operations per second.
    pub(super) operations: f64,
    /// Bytes per second.
    pub(super) bytes: f64,
    /// The median of the times, and the time that 99 of 100 operations do not exceed; `None`
    /// without operations.
    pub(super) p50_ns: Option<u64>,
    pub(super) p99_ns: Option<u64>,
}

impl Rate {
    /// Returns the rates in an interval: `before` are the counters at its start.
    pub(super) fn between(before: Option<&Counts>, now: &Counts, seconds: f64) -> Self {
        // Counters that fell began anew.
        let before = before.filter(|before| before.operations <= now.operations);
        let (operations, bytes) = before.map_or((0, 0), |before| (before.operations, before.bytes));
        let per_second = |count: u64, before: u64| count.saturating_sub(before) as f64 / seconds;
        let mut counts = spread(&now.times);
        if let Some(before) = before {
            for (count, before) in counts.iter_mut().zip(spread(&before.times)) {
                *count = count.saturating_sub(before);
            }
        }
        Self {
            operations: per_second(now.operations, operations),
            bytes: per_second(now.bytes, bytes),
            p50_ns: quantile(&counts, 0.5),
            p99_ns: quantile(&counts, 0.99),
        }
    }
}

/// Returns the counts of all buckets.
fn spread(times: &Times) -> [u64; BUCKETS] {
    let mut all = [0; BUCKETS];
    for (bucket, count) in all.iter_mut().skip(times.first).zip(&times.counts) {
        *bucket = *count;
    }
    all
}

/// Returns the time below which a part of the operations is, in nanoseconds: times are taken as
/// evenly distributed in their bucket.
fn quantile(counts: &[u64; BUCKETS], part: f64) -> Option<u64> {
    let all: f64 = counts.iter().map(|count| *count as f64).sum();
    let wanted = all * part;
    let mut below = 0.0;
    for (bucket, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let count = *count as f64;
        if below + count >= wanted {
            let start = 2_f64.powi(bucket as i32);
            return Some((start + start * (wanted - below) / count) as u64);
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(first: usize, counts: &[u64]) -> Counts {
        let operations = counts.iter().sum();
        let times = Times { first, counts: counts.to_vec() };
        Counts { operations, bytes: operations * 100, times }
    }

    #[test]
    fn rates_are_differences_by_time() {
        let (before, now) = (counts(10, &[5, 1]), counts(10, &[5, 101, 0, 100]));
        let rate = Rate::between(Some(&before), &now, 2.0);
        assert_eq!((rate.operations, rate.bytes), (100.0, 10_000.0));
        // 100 in 2048..4096 and 100 in 8192..16384.
        assert_eq!((rate.p50_ns, rate.p99_ns), (Some(4096), Some(16_220)));
        let quiet = Rate::between(Some(&now), &now, 2.0);
        assert_eq!(quiet, Rate::default());
        // Counters that began anew are those of the interval.
        let anew = Rate::between(Some(&now), &before, 2.0);
        let first = Rate::between(None, &before, 3.0);
        assert_eq!((anew.operations, first.operations), (3.0, 2.0));
    }

    #[test]
    fn buckets_beyond_the_last_are_ignored() {
        let odd = Times { first: 63, counts: vec![1, 2, 3] };
        assert_eq!(spread(&odd)[63], 1);
        let far = Times { first: usize::MAX, counts: vec![1] };
        assert_eq!(spread(&far), [0; BUCKETS]);
    }
}
