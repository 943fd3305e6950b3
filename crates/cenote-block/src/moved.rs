//! Frees of bytes that were moved from a vdev that was removed, or is being removed (spec 05 §11,
//! 08 §34).
//!
//! ```text
//!   free (vdev, range)
//!     an ordinary vdev         its metaslab
//!     one that is removed now  its metaslab; what was copied: the copy too, and obsolete there
//!     one that was removed     the copies, and obsolete there
//! ```
//!
//! A copy may lie on a vdev that was removed later, so the rules apply to each copy again. Obsolete
//! ranges are collected here, and the sync records them in the obsolete maps of their vdevs.
//!
//! The bytes of a vdev that is being removed are copied in ascending order. Those below the end of
//! its mapping have copies; nothing is allocated on it any more.
//!
//! Invariants
//! * MV1  Everything freed on a vdev that was removed, or below the end of the mapping of one that
//!   is being removed, has a copy.
//! * MV2  A range becomes obsolete once.
//! * MV3  One vdev is removed at a time.

use std::collections::BTreeMap;

use cenote_ondisk::blkptr::Dva;
use cenote_ondisk::indirect::{Mapping, MappingEntry, Piece};
use cenote_ranges::RangeSet;
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Result, ensure};
use cenote_vdev::{Tree, VdevKind};

use crate::alloc::SpaceAllocator;
use crate::error::BlockError;

/// Maximum number of removed vdevs between an address and its data.
const DEPTH_MAX: u32 = 64;

/// Moved bytes of a pool: the mapping of the vdev that is being removed, and what became obsolete.
#[derive(Debug)]
pub struct MovedBytes {
    // Held for a lookup or an update, never across I/O.
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    copying: Option<Copying>,
    /// Source ranges that became obsolete and are not recorded, by vdev.
    obsolete: BTreeMap<u64, RangeSet>,
}

/// The vdev that is being removed.
#[derive(Debug)]
struct Copying {
    vdev: u64,
    mapping: Mapping,
    /// Bytes freed before they were copied, and not taken yet.
    skipped: u64,
}

impl Default for MovedBytes {
    fn default() -> Self {
        Self { state: Mutex::with_default(Rank::MovedBytes) }
    }
}

/// A range to be freed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FreedRange {
    pub(crate) vdev: u64,
    pub(crate) offset: u64,
    pub(crate) asize: u64,
    /// Whether the checkpoint uses it.
    pub(crate) is_in_checkpoint: bool,
}

impl MovedBytes {
    /// Begins, or continues, to copy the bytes of a vdev, of which `mapping` were copied.
    ///
    /// # Errors
    /// `Kind::Invariant` if another vdev is being removed (MV3).
    pub fn begin(&self, vdev: u64, mapping: Mapping) -> Result<()> {
        let mut state = self.state.lock();
        let other = state.copying.as_ref().map(|copying| copying.vdev);
        ensure!("MV3", other.is_none(), "vdev {vdev} is removed beside {other:?}");
        state.copying = Some(Copying { vdev, mapping, skipped: 0 });
        Ok(())
    }

    /// Adds copies that the syncing txg has made.
    ///
    /// # Errors
    /// `Kind::Invariant` if they are not behind the last ones.
    pub fn add(&self, entries: &[MappingEntry]) -> Result<()> {
        let mut state = self.state.lock();
        let added = state.copying.as_mut().map(|copying| copying.mapping.append(entries));
        ensure!("MV1", matches!(added, Some(Ok(()))), "copies that do not follow: {added:?}");
        Ok(())
    }

    /// Returns the vdev that is being removed, and the end of what was copied.
    #[must_use]
    pub fn copied_up_to(&self) -> Option<(u64, u64)> {
        let state = self.state.lock();
        state.copying.as_ref().map(|copying| (copying.vdev, copying.mapping.end()))
    }

    /// Returns the places of the copies of a range below that end; `None` if a byte has no copy.
    #[must_use]
    pub fn copies(&self, offset: u64, size: u64) -> Option<Vec<Piece>> {
        self.state.lock().copying.as_ref()?.mapping.pieces(offset, size)
    }

    /// Ends the removal; returns the mapping.
    #[must_use]
    pub fn end(&self) -> Option<Mapping> {
        let mut state = self.state.lock();
        state.copying.take().map(|copying| copying.mapping)
    }

    /// Takes the number of bytes freed before they were copied.
    #[must_use]
    pub fn take_skipped(&self) -> u64 {
        let mut state = self.state.lock();
        state.copying.as_mut().map_or(0, |copying| std::mem::take(&mut copying.skipped))
    }

    /// Takes the ranges that became obsolete, by vdev.
    #[must_use]
    pub fn take_obsolete(&self) -> BTreeMap<u64, RangeSet> {
        std::mem::take(&mut self.state.lock().obsolete)
    }

    /// Whether [`take_obsolete`](Self::take_obsolete) or [`take_skipped`](Self::take_skipped) has
    /// anything.
    #[must_use]
    pub fn has_changes(&self) -> bool {
        let state = self.state.lock();
        !state.obsolete.is_empty() || state.copying.as_ref().is_some_and(|c| c.skipped > 0)
    }

    fn note_obsolete(&self, vdev: u64, range: std::ops::Range<u64>) -> Result<()> {
        if is_on(Bug::ObsoleteNotRecorded) {
            return Ok(());
        }
        let mut state = self.state.lock();
        let added = state.obsolete.entry(vdev).or_default().try_add(range);
        ensure!("MV2", added.is_ok(), "vdev {vdev}: {added:?}");
        Ok(())
    }

    /// Returns the copies of the part of a range that was copied, and its end; counts the rest as
    /// skipped.
    fn note_freed(&self, freed: FreedRange) -> Result<Option<(u64, Vec<Piece>)>> {
        let FreedRange { vdev, offset, asize, .. } = freed;
        let mut state = self.state.lock();
        let Some(copying) = state.copying.as_mut().filter(|copying| copying.vdev == vdev) else {
            return Ok(None);
        };
        let end = copying.mapping.end().clamp(offset, offset.saturating_add(asize));
        copying.skipped += offset.saturating_add(asize) - end;
        if end == offset {
            return Ok(None);
        }
        let pieces = copying.mapping.pieces(offset, end - offset);
        ensure!("MV1", pieces.is_some(), "{offset:#x} to {end:#x} of vdev {vdev} has no copy");
        Ok(pieces.map(|pieces| (end, pieces)))
    }

    /// Frees a range of a block in the syncing txg, and its copies.
    pub(crate) fn free(
        &self,
        (tree, space): (&Tree, &SpaceAllocator),
        freed: FreedRange,
        txg: u64,
    ) -> Result<()> {
        let mut left = vec![(freed, 0)];
        while let Some((freed, depth)) = left.pop() {
            let FreedRange { vdev, offset, asize, .. } = freed;
            let top = tree.top(vdev);
            let no_vdev = || Error::corrupt(BlockError::Vdev { vdev: vdev as u32 });
            let top = top.ok_or_else(no_vdev)?;
            ensure!("MV1", depth < DEPTH_MAX, "vdev {vdev} was removed {depth} times");
            let (end, pieces) = if top.kind() == VdevKind::Indirect {
                let map = tree.indirect(vdev);
                let pieces = map.and_then(|map| map.pieces(offset, asize));
                ensure!("MV1", pieces.is_some(), "{offset:#x} of vdev {vdev} has no copy");
                (offset.saturating_add(asize), pieces.unwrap_or_default())
            } else {
                free_here(space, freed, txg)?;
                match self.note_freed(freed)? {
                    Some(copied) if !is_on(Bug::CopyNotFreed) => copied,
                    _ => continue,
                }
            };
            self.note_obsolete(vdev, offset..end)?;
            left.extend(pieces.into_iter().map(|piece| {
                let (vdev, offset, asize) = (piece.vdev.into(), piece.vdev_offset, piece.size);
                (FreedRange { vdev, offset, asize, ..freed }, depth + 1)
            }));
        }
        Ok(())
    }
}

/// Frees a range in its own metaslab.
fn free_here(space: &SpaceAllocator, freed: FreedRange, txg: u64) -> Result<()> {
    let FreedRange { vdev, offset, asize, is_in_checkpoint } = freed;
    if is_in_checkpoint {
        return space
            .free_checkpointed(&Dva { vdev: vdev as u32, offset, asize, gang: false }, txg);
    }
    space.free_range(vdev, offset, asize, txg)
}
