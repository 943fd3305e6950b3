//! Open snapshots, which cannot be destroyed.
//!
//! Opening a snapshot, and checking whether it is open, both happen in closures over the MOS, under
//! its lock: either the destruction sees that the snapshot is open, or the opening fails.
//!
//! Invariants
//! * OP1  A snapshot is counted as open until its last opening is dropped.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_block::Hold;
use cenote_dmu::ObjSet;
use cenote_rt::lock::{Mutex, MutexGuard, Rank};

/// Number of openings of each snapshot.
#[derive(Debug)]
pub(crate) struct Opened(
    // Held for a lookup. Taken under the MOS's lock, and no lock is taken under it.
    Mutex<BTreeMap<u64, usize>>,
);

impl Default for Opened {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::OpenSnapshots))
    }
}

impl Opened {
    /// Whether it is open. Called in the transaction that destroys it.
    pub(crate) fn has(&self, snapshot: u64) -> bool {
        self.lock().contains_key(&snapshot)
    }

    pub(crate) fn add(&self, snapshot: u64) {
        *self.lock().entry(snapshot).or_default() += 1;
    }

    fn remove(&self, snapshot: u64) {
        let mut opened = self.lock();
        // Checks OP1.
        let count = opened.get_mut(&snapshot).expect("an open snapshot");
        *count -= 1;
        if *count == 0 {
            opened.remove(&snapshot);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, usize>> {
        self.0.lock()
    }
}

/// A snapshot that is open for reading, and cannot be destroyed until this is dropped.
#[derive(Debug)]
pub struct OpenSnapshot {
    pub(crate) contents: Arc<ObjSet>,
    pub(crate) _count: OpenCount,
}

#[derive(Debug)]
pub(crate) struct OpenCount {
    pub(crate) object: u64,
    pub(crate) opened: Arc<Opened>,
    pub(crate) hold: Arc<Hold>,
}

impl Drop for OpenCount {
    fn drop(&mut self) {
        // Released before the snapshot may be destroyed: readers of its contents must not report
        // later blocks there as damage.
        self.hold.release();
        self.opened.remove(self.object);
    }
}

impl OpenSnapshot {
    /// Returns its contents, which can be read until this is dropped: later reads fail with
    /// `Kind::Overtaken`.
    pub fn contents(&self) -> &Arc<ObjSet> {
        &self.contents
    }

    /// Returns the dataset object.
    pub fn object(&self) -> u64 {
        self.contents.id()
    }
}
