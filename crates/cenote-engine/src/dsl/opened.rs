//! Snapshots that somebody reads: one that is open cannot be destroyed.
//!
//! Counting a snapshot as open, and looking whether one is, both happen inside of closures over the
//! MOS, under its lock: either an opening finds the snapshot and its destruction sees the opening,
//! or the snapshot is gone for both.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cenote_block::Hold;
use cenote_dmu::ObjSet;

/// How often each snapshot is open, by number.
#[derive(Debug, Default)]
pub(crate) struct Opened(
    // Held for a look-up. Taken under the MOS's lock, and nothing is locked under it.
    Mutex<BTreeMap<u64, usize>>,
);

impl Opened {
    /// Whether somebody has it open. To be asked in the transaction that destroys it.
    pub(crate) fn has(&self, snapshot: u64) -> bool {
        self.lock().contains_key(&snapshot)
    }

    pub(crate) fn add(&self, snapshot: u64) {
        *self.lock().entry(snapshot).or_default() += 1;
    }

    fn remove(&self, snapshot: u64) {
        let mut opened = self.lock();
        match opened.get_mut(&snapshot) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                opened.remove(&snapshot);
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A snapshot that is open for reading: as long as this is there it cannot be destroyed.
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
        // Before the snapshot may be destroyed: nobody who still has its contents may take the next
        // blocks there for damage.
        self.hold.release();
        self.opened.remove(self.object);
    }
}

impl OpenSnapshot {
    /// Its contents, which can be read as long as this is there: later reads fail with
    /// `Kind::Overtaken`.
    pub fn contents(&self) -> &Arc<ObjSet> {
        &self.contents
    }

    /// Number of the dataset.
    pub fn object(&self) -> u64 {
        self.contents.id()
    }
}
