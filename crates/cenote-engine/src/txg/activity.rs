//! What is done with the contents of an open head, counted for whoever watches.

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

/// Their values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ActivityCounts {
    /// Requests to read.
    pub reads: u64,
    /// Bytes that they got.
    pub read_bytes: u64,
    /// Requests to write.
    pub writes: u64,
    /// Bytes that they wrote.
    pub written_bytes: u64,
    /// Times that what was recorded was made durable.
    pub commits: u64,
    /// Records of the intent log that were written for that.
    pub records: u64,
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

impl Activity {
    /// Somebody read so many bytes.
    pub fn read(&self, bytes: u64) {
        add(&self.reads, 1);
        add(&self.read_bytes, bytes);
    }

    /// Somebody wrote so many bytes.
    pub fn written(&self, bytes: u64) {
        add(&self.writes, 1);
        add(&self.written_bytes, bytes);
    }

    /// So many records went into the log.
    pub(crate) fn committed(&self, records: u64) {
        add(&self.commits, 1);
        add(&self.records, records);
    }

    /// The counts now.
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
