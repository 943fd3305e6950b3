//! Counters of the operations on an open head.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a head since it was opened.
#[derive(Debug, Default)]
pub struct Activity {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    written_bytes: AtomicU64,
    commits: AtomicU64,
    records: AtomicU64,
}

/// Values of the counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ActivityCounts {
    /// Read requests.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Commits of the intent log.
    pub commits: u64,
    /// Records of the intent log written by commits.
    pub records: u64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Activity {
    /// Counts a read.
    pub fn read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.read_bytes, bytes);
    }

    /// Counts a write.
    pub fn written(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.written_bytes, bytes);
    }

    /// Counts a commit with this number of records.
    pub(crate) fn committed(&self, records: u64) {
        add(&self.commits, 1);
        add(&self.records, records);
    }

    /// Returns the current values.
    pub fn counts(&self) -> ActivityCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ActivityCounts {
            reads: get(&self.reads),
            read_bytes: get(&self.read_bytes),
            writes: get(&self.writes),
            written_bytes: get(&self.written_bytes),
            commits: get(&self.commits),
            records: get(&self.records),
        }
    }
}
