//! Data of queued writes, kept for their records when a later change replaces it.
//!
//! ```text
//!   write ── record, its data in the object ──────────── packed: read from the object
//!                     `── later change of these bytes ──> a copy, which is packed instead
//! ```
//!
//! A record must contain the bytes of its own operation, because later operations may not be in the
//! same commit. Otherwise a write that a rename had put into the log would be replayed as zeros if
//! the file had been truncated, or with bytes that were never made durable.
//!
//! Every change of bytes asks the log under the object set's lock which queued writes it overlaps,
//! reads the old bytes, and gives them to the records as its last step. The writer of the log reads
//! the object under the same lock.
//!
//! Invariants
//! * K1  The bytes of a record are those of its write, whenever it is packed.
//! * K2 The unfetched ranges of one object are disjoint.
//!
//! Guarantees
//! * K3 Copies take [`KEPT_MAX`] bytes at most. Beyond that the txg counts as unrecorded: commits
//!   use a sync.
//!
//! Concurrency: the table is part of the queue, under its mutex.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use cenote_dmu::{Tx, TxResult};
use cenote_rt::Buf;
use cenote_rt::seeded::{Bug, is_on};

use crate::zil::{Log, SyncMode};

/// Maximum bytes of copies in a log.
pub(super) const KEPT_MAX: u64 = 32 << 20;

/// Data of a write that is fetched when its record is packed.
#[derive(Debug)]
pub(super) struct LaterData {
    object: u64,
    range: Range<u64>,
    /// The bytes, if a later change has replaced them.
    kept: OnceLock<Buf>,
    /// The record is in a commit, even if its object is freed.
    is_pinned: AtomicBool,
}

impl LaterData {
    pub(super) fn new(object: u64, range: Range<u64>) -> Self {
        Self { object, range, kept: OnceLock::new(), is_pinned: AtomicBool::new(false) }
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    pub(super) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// Returns a part of the bytes, if they are kept.
    pub(super) fn kept(&self, part: &Range<u64>) -> Option<Buf> {
        let start = part.start.checked_sub(self.range.start)? as usize;
        let len = (part.end - part.start) as usize;
        self.kept.get()?.slice(start..start + len)
    }

    /// Includes the record in every commit from now on, or in one that is about to be written.
    pub(super) fn pin(&self) {
        self.is_pinned.store(true, Ordering::Relaxed);
    }

    fn is_pinned(&self) -> bool {
        self.is_pinned.load(Ordering::Relaxed)
    }
}

/// Bytes of an object that a change replaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChangedBytes {
    /// The object.
    pub object: u64,
    /// The bytes.
    pub range: Range<u64>,
    /// The object is freed: its records that are in no commit are dropped.
    pub is_freed: bool,
}

/// Old data that a change read for the records of earlier writes.
#[derive(Debug, Default)]
pub struct KeptData {
    copies: Vec<(Arc<LaterData>, Buf)>,
    freed: Vec<u64>,
    is_too_much: bool,
}

/// Data that is yet to be fetched.
#[derive(Debug, Default)]
pub(super) struct Unfetched {
    /// By object and first byte, with the txg of the record.
    by_place: BTreeMap<(u64, u64), (u64, Arc<LaterData>)>,
    /// Bytes of copies, by the txg of the change that made them.
    kept: BTreeMap<u64, u64>,
}

impl Unfetched {
    /// Adds the data of a record. Returns false if K2 would be violated: the change did not keep
    /// the bytes of another record.
    pub(super) fn add(&mut self, txg: u64, later: &Arc<LaterData>) -> bool {
        let mut is_disjoint = true;
        for other in self.overlapping(later.object, &later.range) {
            is_disjoint = false;
            self.by_place.remove(&(other.object, other.range.start));
        }
        let place = (later.object, later.range.start);
        let before = self.by_place.insert(place, (txg, Arc::clone(later)));
        // Checks K2.
        assert!(
            before.is_none_or(|(_, other)| other.range.is_empty()),
            "two writes of object {} wait for their data",
            later.object
        );
        is_disjoint
    }

    fn overlapping(&self, object: u64, range: &Range<u64>) -> Vec<Arc<LaterData>> {
        let before = self.by_place.range((object, 0)..(object, range.start)).next_back();
        let within = self.by_place.range((object, range.start)..(object, range.end));
        let found = before.into_iter().chain(within).map(|(_, (_, later))| later);
        found.filter(|later| later.range.end > range.start).cloned().collect()
    }

    /// Removes data that was fetched, or is not needed any more.
    pub(super) fn remove(&mut self, later: &Arc<LaterData>) {
        let place = (later.object, later.range.start);
        if self.by_place.get(&place).is_some_and(|(_, found)| Arc::ptr_eq(found, later)) {
            self.by_place.remove(&place);
        }
    }

    fn kept_bytes(&self) -> u64 {
        self.kept.values().sum()
    }

    fn keep(&mut self, txg: u64, later: &Arc<LaterData>, copy: Buf) {
        self.remove(later);
        *self.kept.entry(txg).or_default() += copy.len() as u64;
        // Checks K1.
        assert_eq!(copy.len() as u64, later.len(), "a copy of other bytes than the write");
        // A concurrent change has kept the same bytes.
        let _ = later.kept.set(copy);
    }

    /// Forgets the copies of `txg`, which is on disk.
    pub(super) fn committed(&mut self, txg: u64) {
        self.by_place.retain(|_, (of, _)| *of > txg);
        self.kept = self.kept.split_off(&(txg + 1));
    }

    /// Forgets data whose records are gone.
    pub(super) fn sweep(&mut self) {
        self.by_place.retain(|_, (_, later)| Arc::strong_count(later) > 1);
    }
}

impl Log {
    /// Reads the old data of unfetched earlier writes that a change in `tx` replaces. Call it in
    /// the closure that makes the change, and pass the result to [`give`](Self::give) when the
    /// change takes effect.
    ///
    /// # Errors
    /// Errors of the transaction.
    pub fn keep(&self, tx: &Tx<'_>, changed: &[ChangedBytes]) -> TxResult<KeptData> {
        let mut kept = KeptData::default();
        if changed.is_empty() || self.mode() == SyncMode::Disabled || is_on(Bug::NewerDataInLog) {
            return Ok(kept);
        }
        let mut found: Vec<Arc<LaterData>> = Vec::new();
        {
            let queue = self.queue();
            for part in changed {
                let of_part = queue.unfetched.overlapping(part.object, &part.range);
                let wanted =
                    of_part.into_iter().filter(|later| !part.is_freed || later.is_pinned());
                for later in wanted {
                    if !found.iter().any(|other| Arc::ptr_eq(other, &later)) {
                        found.push(later);
                    }
                }
            }
            let bytes: u64 = found.iter().map(|later| later.len()).sum();
            kept.is_too_much = bytes > 0 && queue.unfetched.kept_bytes() + bytes > KEPT_MAX;
        }
        kept.freed.extend(changed.iter().filter(|part| part.is_freed).map(|part| part.object));
        if kept.is_too_much {
            return Ok(kept);
        }
        for later in found {
            let len = later.len() as usize;
            let copy = Buf::from(tx.read_before(later.object, later.range.start, len)?);
            kept.copies.push((later, copy));
        }
        Ok(kept)
    }

    /// Gives old data to the records of the earlier writes. Call it at the end of the closure that
    /// makes the change, when nothing can fail any more, before its own records are added.
    pub fn give(&self, txg: u64, kept: KeptData) {
        if kept.is_too_much {
            // First: a task that finds the queue without the records also finds this.
            self.note_unrecorded(txg);
            self.queue().drop_queued();
        }
        let mut queue = self.queue();
        for (later, copy) in kept.copies {
            queue.unfetched.keep(txg, &later, copy);
        }
        for object in kept.freed {
            for later in queue.unfetched.overlapping(object, &(0..u64::MAX)) {
                queue.unfetched.remove(&later);
                if later.is_pinned() {
                    // A commit took the record since the change read it, and has not fetched its
                    // data: it ends with a sync.
                    self.note_unrecorded(txg);
                }
            }
        }
    }
}
