//! Guards: prove that a block is still where its pointer says, and keep it there for a while.
//!
//! A reader of an object set that is being changed looks a pointer up, and reads the block after
//! that. In between the block may be freed and its space reallocated. Then the bytes read match no
//! checksum, which says nothing about the devices; a "repair" would destroy the new block.
//!
//!     epoch() ── look the pointer up ── read ── mismatch ── guard(places, epoch) ── repair ── drop
//!                                                             `── Reused: look it up again
//!
//! The allocator increments an epoch each time that ranges may become free, and each metaslab
//! records the epoch in which one of its ranges last did. A block whose pointer was live in epoch
//! E, in a metaslab in which nothing has become free since, is in place: it was allocated then, and
//! its space can be reallocated only after becoming free. A guard keeps the metaslabs in that state
//! (M6), however short of space the pool is, until the repair is written.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_rt::seeded::{Bug, is_on};

use super::SpaceAllocator;
use super::metaslab::Metaslab;
use super::pin::Pin;
use super::state::State;

/// An epoch of the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Epoch(u64);

/// Whether ranges were reused since an epoch.
#[derive(Debug)]
pub enum GuardOutcome {
    /// No range became free, and none will while the guard exists.
    Unchanged(Guard),
    /// A range in the same metaslab became free: the space may belong to another block.
    Reused,
    /// A range lies outside of all metaslabs: no block was ever there.
    Outside,
}

/// Keeps all ranges of some metaslabs from becoming free until it is dropped.
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
                // Checks M6: a guard that is dropped was counted.
                assert!(metaslab.guards > 0, "vdev {vdev} metaslab {id} has no guards");
                metaslab.guards -= 1;
            }
        }
    }
}

impl SpaceAllocator {
    /// Returns the present epoch, to be read before a pointer is looked up.
    ///
    /// A commit publishes its roots, begins an epoch, and then lets ranges become free. So pointers
    /// that are looked up after an epoch was read come from its roots or later ones.
    #[must_use]
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::Acquire))
    }

    /// The last committed txg.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.lock().committed
    }

    /// Checks whether ranges, each on a vdev, are unchanged since the epoch `since`; if so, returns
    /// a guard that keeps them unchanged.
    #[must_use]
    pub fn guard(self: &Arc<Self>, places: &[(u64, Range<u64>)], since: Epoch) -> GuardOutcome {
        // LOCK state: the check and the guard are one step.
        let mut state = self.lock();
        let is_reused = |metaslab: &Metaslab, range: &Range<u64>| {
            // A range that is free now belongs to no block, whatever the pointer says.
            let loaded = metaslab.loaded.as_ref();
            let is_free =
                loaded.is_some_and(|loaded| loaded.free.ranges().overlap(range).is_some());
            (metaslab.matured > since.0 || is_free) && !is_on(Bug::ReuseUnnoticed)
        };
        self.take_guard(&mut state, places, is_reused)
    }

    /// Returns a guard of ranges that belong to the state that a pin keeps in place. Nothing of
    /// that state has been reused while the pin is valid, and from now on the guard keeps the
    /// ranges as they are, even if the pin is overtaken.
    #[must_use]
    pub(crate) fn guard_pinned(
        self: &Arc<Self>,
        places: &[(u64, Range<u64>)],
        pin: &Pin,
    ) -> GuardOutcome {
        // LOCK state: pins are overtaken under it, before ranges become free.
        let mut state = self.lock();
        if !pin.is_valid() {
            return GuardOutcome::Reused;
        }
        self.take_guard(&mut state, places, |_, _| false)
    }

    fn take_guard(
        self: &Arc<Self>,
        state: &mut State,
        places: &[(u64, Range<u64>)],
        is_reused: impl Fn(&Metaslab, &Range<u64>) -> bool,
    ) -> GuardOutcome {
        let mut held = Vec::with_capacity(places.len());
        for (vdev, range) in places {
            let Some(ids) = state.metaslabs_of(*vdev, range) else { return GuardOutcome::Outside };
            for id in ids {
                let Some(metaslab) = state.metaslab(*vdev, id) else {
                    return GuardOutcome::Outside;
                };
                if is_reused(metaslab, range) {
                    return GuardOutcome::Reused;
                }
                held.push((*vdev, id));
            }
        }
        for (vdev, id) in &held {
            if let Some(metaslab) = state.metaslab(*vdev, *id) {
                metaslab.guards += 1;
            }
        }
        GuardOutcome::Unchanged(Guard { space: Arc::clone(self), held })
    }
}

impl State {
    /// The metaslabs that a range overlaps; `None` if it lies outside of all metaslabs.
    fn metaslabs_of(&self, vdev: u64, range: &Range<u64>) -> Option<Range<usize>> {
        let vdev = self.vdevs.get(&vdev)?;
        let last = range.end.checked_sub(1).filter(|last| *last >= range.start)?;
        let number = |offset: u64| offset.checked_shr(vdev.spec.metaslab_shift).unwrap_or(0);
        let ids = number(range.start) as usize..number(last) as usize + 1;
        (ids.end <= vdev.metaslabs.len()).then_some(ids)
    }
}
