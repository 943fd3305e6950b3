//! Guards: proof that a block is where its pointer says, and that it stays there for a while.
//!
//! Whoever reads a set that is being changed looks a pointer up, and reads the block after that. In
//! between the block may be freed and its space given to another. What was read then matches no
//! checksum, and says nothing about the devices; a "repair" would destroy the new block.
//!
//!     epoch() ── look the pointer up ── read ── mismatch ── guard(places, epoch) ── repair ── drop
//!                                                             `── Reused: look it up again
//!
//! The allocator counts an epoch each time that ranges may become free, and each metaslab remembers
//! the epoch in which ranges of it did last. A block whose pointer was live in epoch E, in a
//! metaslab of which nothing has become free since, is in place: it was allocated then, and the
//! only way to another block leads through the free ranges. A guard holds the metaslabs in that
//! state (M6), however short of space the pool is, until the repair is written.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SpaceAllocator;
use super::state::State;

/// A moment in the life of the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

/// What became of ranges since an epoch.
#[derive(Debug)]
pub enum Standing {
    /// None of them became free, and none will while the guard is there.
    Unchanged(Guard),
    /// Something near one of them became free: another block may lie there.
    Reused,
    /// A range lies in no metaslab: no block was ever there.
    Outside,
}

/// Keeps ranges of some metaslabs from becoming free until it is dropped.
pub struct Guard {
    space: Arc<SpaceAllocator>,
    held: Vec<(u64, usize)>,
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Guard").field(&self.held).finish()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // LOCK state: short.
        let mut state = self.space.lock();
        for (vdev, id) in &self.held {
            if let Some(metaslab) = state.metaslab(*vdev, *id) {
                metaslab.guards = metaslab.guards.saturating_sub(1);
            }
        }
    }
}

impl SpaceAllocator {
    /// The epoch that a pointer is looked up in: to be asked before that.
    ///
    /// A commit publishes its roots, begins an epoch, and then lets ranges become free. So the
    /// pointers that are looked up after an epoch was read are those of its roots or later ones.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// The last committed txg.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.lock().committed
    }

    /// Whether ranges, each on a vdev, are what they were in the epoch `since`; if so they stay it.
    #[must_use]
    pub fn guard(self: &Arc<Self>, places: &[(u64, Range<u64>)], since: Epoch) -> Standing {
        // LOCK state: the look and the hold are one step.
        let mut state = self.lock();
        let mut held = Vec::with_capacity(places.len());
        for (vdev, range) in places {
            let Some(ids) = state.metaslabs_of(*vdev, range) else { return Standing::Outside };
            for id in ids {
                let Some(metaslab) = state.metaslab(*vdev, id) else { return Standing::Outside };
                // A range that is free now belongs to no block, whatever the pointer says.
                let is_free = metaslab
                    .loaded
                    .as_ref()
                    .is_some_and(|loaded| loaded.free.ranges().overlap(range).is_some());
                if metaslab.matured > since.0 || is_free {
                    return Standing::Reused;
                }
                held.push((*vdev, id));
            }
        }
        for (vdev, id) in &held {
            if let Some(metaslab) = state.metaslab(*vdev, *id) {
                metaslab.guards += 1;
            }
        }
        Standing::Unchanged(Guard { space: Arc::clone(self), held })
    }
}

impl State {
    /// The metaslabs that a range touches; `None` if it lies outside of them.
    fn metaslabs_of(&self, vdev: u64, range: &Range<u64>) -> Option<Range<usize>> {
        let vdev = self.vdevs.get(&vdev)?;
        let last = range.end.checked_sub(1).filter(|last| *last >= range.start)?;
        let number = |offset: u64| offset.checked_shr(vdev.spec.metaslab_shift).unwrap_or(0);
        let ids = number(range.start) as usize..number(last) as usize + 1;
        (ids.end <= vdev.metaslabs.len()).then_some(ids)
    }
}
