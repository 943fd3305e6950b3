//! Snapshots that somebody reads: one that is open cannot be destroyed.
//!
//! Counting a snapshot as open, and looking whether one is, both happen inside of closures over the
//! MOS, under its lock: either an opening finds the snapshot and its destruction sees the opening,
//! or the snapshot is gone for both.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cenote_block::{Grounds, Hold};
use cenote_dmu::ObjSet;
use cenote_rt::{Error, Kind, Result};

use crate::dsl;
use crate::dsl::{OpError, names};
use crate::{Engine, Head};

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

    fn add(&self, snapshot: u64) {
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
    contents: Arc<ObjSet>,
    _count: OpenCount,
}

#[derive(Debug)]
struct OpenCount {
    object: u64,
    opened: Arc<Opened>,
    hold: Arc<Hold>,
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

impl Engine {
    /// Opens a snapshot, `pool/dataset@name`, for reading.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such snapshot.
    pub async fn open_snapshot(&self, name: &str) -> Result<OpenSnapshot> {
        let found = self
            .mos
            .inspect(|tx| {
                let object = names::dataset(tx, name)?;
                let phys = dsl::get_dataset(tx, object)?;
                if !phys.is_snapshot() {
                    return Err(Error::new(Kind::Invalid, OpError::Name).into());
                }
                // Last: the closure runs again if it fails.
                self.opened.add(object);
                Ok((object, phys.bp))
            })
            .await;
        let (object, root) = found?;
        let hold = Arc::<Hold>::default();
        let (opened, grounds) = (Arc::clone(&self.opened), Grounds::Held(Arc::clone(&hold)));
        let count = OpenCount { object, opened, hold };
        let store = Arc::clone(&self.store);
        let contents = ObjSet::open_on(store, &root, None, object, grounds).await?;
        Ok(OpenSnapshot { contents, _count: count })
    }

    /// The snapshots of a head as (name, number), by number.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub async fn snapshots_of(&self, head: &Head) -> Result<Vec<(String, u64)>> {
        let mut found = self
            .mos
            .inspect(|tx| {
                let head = dsl::get_dataset(tx, head.object())?;
                names::snapshots(tx, &head)
            })
            .await?;
        found.sort_unstable_by_key(|(_, object)| *object);
        Ok(found)
    }

    /// The number of a head's snapshot of that name, as the file system compares names.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is none.
    pub async fn snapshot_of(&self, head: &Head, name: &str) -> Result<u64> {
        self.mos
            .inspect(|tx| {
                let head = dsl::get_dataset(tx, head.object())?;
                names::snapshot(tx, &head, name)
            })
            .await
    }
}
