//! Pauses allocation from a metaslab, so that its free space stays free and can be trimmed or
//! initialized (spec 05 §9).
//!
//! An allocation that finds no space elsewhere waits for the paused metaslabs that could serve it.
//! A task pauses a metaslab only for moments, and yields to waiting allocations
//! ([`SpaceAllocator::is_wanted`]): while one waits, no further metaslab is paused. So the wait
//! ends, however many leaves are trimmed or initialized: each paused metaslab is resumed, and then
//! there is space or there is none. A task that has paused a metaslab must not pause another one at
//! the same time.
//!
//! Invariants
//! * D1  The number of all pauses is the sum over the metaslabs.
//! * D2  Waiting allocations are counted: no metaslab is paused while there are any.
//! * D3  A paused metaslab stays loaded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_ranges::RangeSet;
use cenote_rt::{Notify, Result};

use super::SpaceAllocator;
use super::state::State;

/// Coordination of pauses with waiting allocations.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// Notified when a metaslab is resumed.
    pub(super) enabled: Notify,
    /// Notified when no allocation waits any more.
    settled: Notify,
    /// Number of waiting allocations. Incremented only under the lock of the state.
    waiting: AtomicU64,
}

impl Pauses {
    /// Counts a waiting allocation until the result is dropped. LOCK state: held by the caller, so
    /// that no metaslab is paused between the caller's search and this call.
    pub(super) fn wait(&self) -> WaitingAllocation<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        WaitingAllocation(self)
    }
}

/// A metaslab from which nothing is allocated until this is dropped.
pub struct Paused {
    space: Arc<SpaceAllocator>,
    vdev: u64,
    metaslab: u64,
}

impl Paused {
    /// Returns at most `count` free ranges from `start` on: not used by the open and syncing txgs
    /// or the last two uberblocks. They stay free, and more may become free.
    #[must_use]
    pub fn free(&self, start: u64, count: usize) -> RangeSet {
        self.look(|free| free.within(&(start..u64::MAX)).take(count).collect())
    }

    /// Returns the parts of `ranges` that are free in the metaslab.
    #[must_use]
    pub fn free_of(&self, ranges: &RangeSet) -> RangeSet {
        self.look(|free| free.intersection(ranges))
    }

    fn look(&self, part: impl FnOnce(&RangeSet) -> RangeSet) -> RangeSet {
        // LOCK state: for the duration of `part`. A paused metaslab stays loaded.
        let mut state = self.space.lock();
        let metaslab = state.metaslab(self.vdev, self.metaslab as usize);
        let is_unloaded = metaslab.as_ref().is_some_and(|metaslab| metaslab.loaded.is_none());
        // Checks D3: free ranges that are not known would not be trimmed.
        assert!(!is_unloaded, "metaslab {} was unloaded while it was paused", self.metaslab);
        let loaded = metaslab.and_then(|metaslab| metaslab.loaded.as_ref());
        loaded.map(|loaded| part(loaded.free.ranges())).unwrap_or_default()
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        {
            // LOCK state: short.
            let mut state = self.space.lock();
            // Checks D1.
            assert!(state.disabled > 0, "no metaslab is paused");
            state.disabled -= 1;
            if let Some(metaslab) = state.metaslab(self.vdev, self.metaslab as usize) {
                // Checks D1.
                assert!(metaslab.disabled > 0, "metaslab {} is not paused", self.metaslab);
                metaslab.disabled -= 1;
            }
        }
        self.space.pauses.enabled.notify_waiters();
    }
}

impl SpaceAllocator {
    /// Pauses a metaslab. Returns `None` if there is no such metaslab. At most a few at a time, and
    /// for moments.
    pub async fn pause(self: &Arc<Self>, vdev: u64, metaslab: u64) -> Result<Option<Paused>> {
        let id = metaslab as usize;
        loop {
            // Registered before the check, so that no notification after it is missed.
            let settled = self.pauses.settled.notified();
            self.load(vdev, id).await?;
            let outcome = {
                // LOCK state: free space stays free from here on.
                let mut state = self.lock();
                if self.is_wanted() { Outcome::Wanted } else { state.disable(vdev, id) }
            };
            match outcome {
                Outcome::Done => {
                    return Ok(Some(Paused { space: Arc::clone(self), vdev, metaslab }));
                }
                Outcome::Absent => return Ok(None),
                Outcome::Unloaded => {}
                Outcome::Wanted => settled.await,
            }
        }
    }

    /// Whether an allocation waits for a paused metaslab.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.pauses.waiting.load(Ordering::Acquire) > 0
    }
}

/// Result of pausing a metaslab.
enum Outcome {
    Done,
    /// There is no such metaslab.
    Absent,
    /// It was unloaded again.
    Unloaded,
    /// An allocation is waiting.
    Wanted,
}

impl State {
    fn disable(&mut self, vdev: u64, id: usize) -> Outcome {
        let policy = self.policy.clone();
        let Some(found) = self.vdevs.get_mut(&vdev) else { return Outcome::Absent };
        let Some(there) = found.metaslabs.get_mut(id) else { return Outcome::Absent };
        if there.loaded.is_none() {
            return Outcome::Unloaded;
        }
        there.disabled += 1;
        found.passivate(id, policy.as_ref());
        self.disabled += 1;
        Outcome::Done
    }
}

/// A waiting allocation.
pub(super) struct WaitingAllocation<'a>(&'a Pauses);

impl Drop for WaitingAllocation<'_> {
    fn drop(&mut self) {
        let waiting = self.0.waiting.fetch_sub(1, Ordering::AcqRel);
        // Checks D2.
        assert!(waiting > 0, "no allocation waits");
        if waiting == 1 {
            self.0.settled.notify_waiters();
        }
    }
}
