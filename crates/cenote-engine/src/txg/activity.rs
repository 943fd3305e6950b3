//! Counters and latencies of the operations on an open head.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_pool::figures::{BUCKETS, Histogram};

use super::accesses::{Accesses, Recording};

/// Counters of a head since it was opened.
#[derive(Debug, Default)]
pub struct Activity {
    read_bytes: AtomicU64,
    read_times: Times,
    written_bytes: AtomicU64,
    write_times: Times,
    records: AtomicU64,
    commit_times: Times,
    accesses: Accesses,
}

/// Values of the counters. Times are in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ActivityCounts {
    /// How long read requests took.
    pub read_times: Histogram,
    /// Bytes read.
    pub read_bytes: u64,
    /// How long write requests took, without waiting for the intent log.
    pub write_times: Histogram,
    /// Bytes written.
    pub written_bytes: u64,
    /// How long commits of the intent log took.
    pub commit_times: Histogram,
    /// Records of the intent log written by commits.
    pub records: u64,
}

/// A histogram that is counted by several threads.
#[derive(Debug)]
struct Times {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for Times {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], sum_ns: AtomicU64::new(0) }
    }
}

impl Times {
    /// Counts an operation that began at `since` of the monotonic clock.
    fn add(&self, since: Duration) {
        let ns = cenote_rt::monotonic().saturating_sub(since).as_nanos() as u64;
        add(&self.counts[Histogram::bucket(ns)], 1);
        add(&self.sum_ns, ns);
    }

    fn get(&self) -> Histogram {
        let counts = std::array::from_fn(|bucket| get(&self.counts[bucket]));
        Histogram::of(counts, get(&self.sum_ns))
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Activity {
    /// Counts a read of `len` bytes of an object that began at `since` of the monotonic clock.
    pub fn read(&self, object: u64, offset: u64, len: u64, since: Duration) {
        self.read_times.add(since);
        add(&self.read_bytes, len);
        self.accesses.record(false, object, offset, len);
    }

    /// Counts a write of `len` bytes of an object that began at `since` of the monotonic clock.
    pub fn written(&self, object: u64, offset: u64, len: u64, since: Duration) {
        self.write_times.add(since);
        add(&self.written_bytes, len);
        self.accesses.record(true, object, offset, len);
    }

    /// Begins a recording of reads and writes; `None` if there is one already.
    pub fn record(&self) -> Option<Recording<'_>> {
        self.accesses.start()
    }

    /// Counts a commit with this number of records.
    pub(crate) fn committed(&self, records: u64, since: Duration) {
        self.commit_times.add(since);
        add(&self.records, records);
    }

    /// Returns the current values.
    pub fn counts(&self) -> ActivityCounts {
        ActivityCounts {
            read_times: self.read_times.get(),
            read_bytes: get(&self.read_bytes),
            write_times: self.write_times.get(),
            written_bytes: get(&self.written_bytes),
            commit_times: self.commit_times.get(),
            records: get(&self.records),
        }
    }
}
