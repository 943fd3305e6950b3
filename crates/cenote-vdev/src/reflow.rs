//! Expansion of a RAID-Z vdev: its progress, and the order of the copies and all other I/O (spec 06
//! §5.3, §5.4).
//!
//! ```text
//!   sectors   0 ............ offset ............ next ............ end of the vdev
//!             new place      copied, but the     old place
//!             only           uberblock says old
//!   read      new            old                 old
//!   write     new            old and new         old
//! ```
//!
//! A row of a block moves as a whole: as long as one of its sectors lies at or behind `offset`, the
//! row is read at its old place. Writes then go to both places of the sectors before `next`,
//! because these are not copied again.
//!
//! Each I/O takes a [`Ticket`] before it looks for its vdev, and uses the progress in that ticket
//! to its end. A copy holds its range ([`Expansion::hold`]): it makes a new epoch of tickets, and
//! waits until every ticket of an earlier epoch is given back. Then
//! * no write of the range is in flight, and new ones wait for the copy;
//! * no I/O is in flight that uses an old place before `offset`, so the copy may overwrite it.
//!
//! The holder of a range waits only for requests of devices, never for a txg or an allocation, so
//! writes of a sync can wait for it.
//!
//! Invariants
//! * RF1  A sector is copied only over old places of rows that lie before the committed `offset`.
//! * RF2  No write is in flight in a range that is being copied.
//! * RF3  An I/O uses one state of the progress, and no copy overwrites what that state names.

mod copy;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::{Arc, Weak};

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Notify, Result, ensure};

pub use copy::FirstRows;

use crate::leaf::LeafId;
use crate::raidz::{Raidz, Reflow};
use crate::tree::{Layout, Tree};

/// Why sectors of an expanding vdev are not copied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReflowError {
    /// The vdev is not a RAID-Z that expands.
    #[error("vdev {0} does not expand")]
    NotExpanding(u64),
    /// A child is being replaced, or is out of service, or lacks data.
    #[error("a child of vdev {0} is not whole")]
    NotWhole(u64),
    /// The range would overwrite sectors that are still needed.
    #[error("sectors {start}..{end} of vdev {vdev} would overwrite sectors that are still needed")]
    Overlap {
        /// Id of the vdev.
        vdev: u64,
        /// First sector.
        start: u64,
        /// The sector behind the last one.
        end: u64,
    },
}

/// A shape of a tree. It differs from each later one, whatever changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Vdevs of all versions.
    versions: usize,
}

/// Ends when no I/O uses it any more.
#[derive(Debug)]
struct Epoch(Arc<Notify>);

impl Drop for Epoch {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

/// The progress that one I/O uses. Sectors that it names are not overwritten while it exists.
#[derive(Debug, Default)]
pub(crate) struct Ticket {
    pub(crate) reflow: Reflow,
    _epoch: Option<Arc<Epoch>>,
}

/// A range that is being copied.
#[derive(Debug)]
struct Held {
    vdev: u64,
    range: Range<u64>,
    excludes_reads: bool,
}

#[derive(Debug)]
struct Progress {
    reflow: Reflow,
    held: Option<Held>,
    epoch: Arc<Epoch>,
    /// Earlier epochs whose tickets may still be in use.
    earlier: Vec<Weak<Epoch>>,
}

/// Progress of the expansion, and the I/O in flight beside it.
#[derive(Debug)]
pub(crate) struct ReflowGate {
    progress: Mutex<Progress>,
    /// Notified when a range is released, and when an epoch ends.
    changed: Arc<Notify>,
}

impl Default for ReflowGate {
    fn default() -> Self {
        let changed = Arc::<Notify>::default();
        let progress = Progress {
            reflow: Reflow::default(),
            held: None,
            epoch: Arc::new(Epoch(Arc::clone(&changed))),
            earlier: Vec::new(),
        };
        Self { progress: Mutex::new(Rank::Reflow, progress), changed }
    }
}

impl ReflowGate {
    pub(crate) fn reflow(&self) -> Reflow {
        self.progress.lock().reflow
    }

    /// Whether a range is held for a copy.
    fn holds(&self, vdev: u64, range: &Range<u64>) -> bool {
        self.progress.lock().held.as_ref().is_some_and(|held| {
            held.vdev == vdev && held.range.start <= range.start && range.end <= held.range.end
        })
    }

    fn change(&self, change: impl FnOnce(&mut Reflow)) {
        change(&mut self.progress.lock().reflow);
    }

    fn try_enter(&self, vdev: u64, range: &Range<u64>, is_write: bool) -> Option<Ticket> {
        let progress = self.progress.lock();
        let is_held = progress.held.as_ref().is_some_and(|held| {
            let overlaps = held.range.start < range.end && range.start < held.range.end;
            held.vdev == vdev && overlaps && (is_write || held.excludes_reads)
        });
        // Keeps RF2.
        if is_held && !is_on(Bug::ReflowCopiesBesideWrites) {
            return None;
        }
        Some(Ticket { reflow: progress.reflow, _epoch: Some(Arc::clone(&progress.epoch)) })
    }

    /// Takes a ticket for I/O in a range of a top-level vdev, as soon as no copy excludes it.
    pub(crate) async fn enter(&self, vdev: u64, range: Range<u64>, is_write: bool) -> Ticket {
        if let Some(ticket) = self.try_enter(vdev, &range, is_write) {
            return ticket;
        }
        loop {
            // Registered before the check, so that no release after it is missed.
            let changed = self.changed.notified();
            if let Some(ticket) = self.try_enter(vdev, &range, is_write) {
                return ticket;
            }
            changed.await;
        }
    }

    /// Waits until all tickets that were taken before are given back.
    async fn drain(&self) {
        {
            let mut progress = self.progress.lock();
            let new = Arc::new(Epoch(Arc::clone(&self.changed)));
            let old = std::mem::replace(&mut progress.epoch, new);
            progress.earlier.push(Arc::downgrade(&old));
        }
        loop {
            let changed = self.changed.notified();
            {
                let mut progress = self.progress.lock();
                progress.earlier.retain(|epoch| epoch.strong_count() > 0);
                if progress.earlier.is_empty() || is_on(Bug::ReflowCopiesBesideWrites) {
                    return;
                }
            }
            changed.await;
        }
    }
}

/// A range in which no write is in flight until this is dropped (RF2).
#[derive(Debug)]
pub struct HeldRange<'t> {
    tree: &'t Tree,
    range: Range<u64>,
    vdev: u64,
}

impl HeldRange<'_> {
    /// Records that the range was copied: from now on writes to it go to both places.
    pub fn note_copied(&self) {
        let end = self.range.end;
        self.tree.gate.change(|reflow| reflow.next = reflow.next.max(end));
    }

    /// Returns the children of the vdev, all of which are whole leaves, with the generations of
    /// their service.
    ///
    /// # Errors
    /// A [`ReflowError`] of `Kind::Busy`.
    pub fn children(&self) -> Result<Vec<(LeafId, u64)>> {
        self.tree.expansion().children(self.vdev)
    }
}

impl Drop for HeldRange<'_> {
    fn drop(&mut self) {
        self.tree.gate.progress.lock().held = None;
        self.tree.gate.changed.notify_waiters();
    }
}

/// Returns the sector before which sectors can be copied when `offset` bytes have been moved: their
/// new places are old places of rows before `offset` (RF1). At least `offset` itself.
#[must_use]
pub fn copy_limit(offset: u64, ashift: u32, old_width: u64) -> u64 {
    let moved = offset >> ashift;
    if is_on(Bug::ReflowOverwritesUnmoved) {
        return (moved + moved / old_width.max(1) + (64 << 20 >> ashift)) << ashift;
    }
    let limit = (moved + moved / old_width.max(1)).saturating_sub(old_width);
    limit.max(moved) << ashift
}

/// The expansion of a RAID-Z vdev of a tree: its progress, and its copies. From
/// [`Tree::expansion`].
#[derive(Debug, Clone, Copy)]
pub struct Expansion<'t> {
    tree: &'t Tree,
}

impl<'t> Expansion<'t> {
    /// Sets the progress of an expansion: the reflow word of the last committed uberblock.
    pub fn set_progress(self, word: u64) {
        let now = Reflow::from_word(word);
        self.tree
            .gate
            .change(|reflow| *reflow = Reflow { next: now.offset.max(reflow.next), ..now });
    }

    /// Returns the progress of an expansion.
    pub fn progress(self) -> Reflow {
        self.tree.gate.reflow()
    }

    /// Returns the shape that the tree has now, for [`is_settled_since`](Self::is_settled_since).
    pub fn shape(self) -> Shape {
        Shape { versions: self.tree.vdevs.len() }
    }

    /// Whether each block has been at one place on its leaves since the tree had this shape: no
    /// vdev got another version, and none expands.
    pub fn is_settled_since(self, shape: Shape) -> bool {
        // A version that expands may have been in the arena, but not below the root, when the shape
        // was taken: it is found by the second check.
        self.shape() == shape && !self.tree.is_moving()
    }

    /// Copying begins again behind the committed progress, because a copy failed.
    pub fn retry(self) {
        self.tree.gate.change(|reflow| reflow.next = reflow.offset);
    }

    /// Records that nothing is to be copied before byte `next`. The caller has made sure that
    /// nothing is allocated there ([`Paused`] metaslabs of the allocator).
    ///
    /// [`Paused`]: https://docs.rs/cenote-block
    pub fn skip_to(self, next: u64) {
        self.tree.gate.change(|reflow| reflow.next = reflow.next.max(next));
    }

    /// Forgets the last expansion, before another one begins: waits for all I/O that uses its
    /// progress. No vdev expands.
    pub async fn reset(self) {
        self.tree.gate.drain().await;
        self.tree.gate.change(|reflow| *reflow = Reflow::default());
    }

    /// Waits for all writes to a range of a top-level vdev, and lets no other begin until the
    /// result is dropped; with `excludes_reads` no reads either. One range at a time.
    ///
    /// # Errors
    /// `Kind::Busy` if another range is held.
    pub async fn hold(
        self,
        vdev: u64,
        range: Range<u64>,
        excludes_reads: bool,
    ) -> Result<HeldRange<'t>> {
        {
            let mut progress = self.tree.gate.progress.lock();
            let is_free = progress.held.is_none();
            ensure!("RF2", is_free, "two ranges are copied at once");
            progress.held = Some(Held { vdev, range: range.clone(), excludes_reads });
        }
        let held = HeldRange { tree: self.tree, range, vdev };
        self.tree.gate.drain().await;
        Ok(held)
    }

    /// The geometry of the expanding vdev with this id, and its arena index.
    fn expanding(self, vdev: u64) -> Result<(&'t Raidz, usize)> {
        let none = || Error::new(Kind::Invalid, ReflowError::NotExpanding(vdev));
        let top = self.tree.top_index(vdev).ok_or_else(none)?;
        match &self.tree.vdevs[top].layout {
            Layout::Raidz(raidz) if raidz.is_expanding => Ok((raidz, top)),
            _ => Err(none()),
        }
    }

    /// Returns the children of an expanding vdev, with the generations of their service, if all are
    /// leaves in service that lack nothing.
    ///
    /// # Errors
    /// A [`ReflowError`] of `Kind::Busy`.
    pub fn children(self, vdev: u64) -> Result<Vec<(LeafId, u64)>> {
        let (_, top) = self.expanding(vdev)?;
        let children = self.tree.vdevs[top].children.iter().map(|child| {
            let Layout::Leaf(id) = self.tree.vdevs[*child].layout else { return None };
            let generation = self.tree.leaf(id).generation();
            (self.tree.leaf(id).is_whole() || is_on(Bug::ReflowIgnoresMissing))
                .then_some((id, generation))
        });
        let children: Option<Vec<_>> = children.collect();
        children.ok_or_else(|| Error::new(Kind::Busy, ReflowError::NotWhole(vdev)))
    }
}

impl Tree {
    /// Returns the expansion of a RAID-Z vdev, of which there is at most one at a time.
    pub fn expansion(&self) -> Expansion<'_> {
        Expansion { tree: self }
    }

    /// Returns the progress of an expansion, for I/O that has no ticket.
    pub(crate) fn reflow(&self) -> Reflow {
        self.gate.reflow()
    }

    /// Whether a vdev expands that can be written, so that sectors may move.
    pub(crate) fn is_moving(&self) -> bool {
        let is_expanding = |top: &crate::Vdev| match &top.layout {
            Layout::Raidz(raidz) => raidz.is_expanding,
            _ => false,
        };
        self.is_writable() && self.tops().any(is_expanding)
    }
}
