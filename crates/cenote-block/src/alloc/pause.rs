//! Metaslabs that are out of use for a while: nothing is allocated from them, so that what is free
//! in them stays free and can be discarded or filled (spec 05 §9).
//!
//! Who finds no space elsewhere waits for those that could serve; who keeps one out of use does so
//! for moments, and lets those who wait go first ([`SpaceAllocator::is_wanted`]). While somebody
//! waits no other is taken out of use. So the wait has an end, however many leaves are worked on:
//! each that is out of use comes back, and then there is space or there is none. Who has one out
//! of use must not ask for another meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_ranges::RangeSet;
use cenote_rt::{Notify, Result};

use super::SpaceAllocator;
use super::state::State;

/// Who waits for whom.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// A metaslab is back in use.
    pub(super) enabled: Notify,
    /// No allocation waits any more.
    settled: Notify,
    /// Allocations that wait. Counted up under the lock of the state only.
    waiting: AtomicU64,
}

impl Pauses {
    /// Counts an allocation that waits, until this is dropped. LOCK state: held by the caller, so
    /// that nothing is taken out of use between what it saw and this.
    pub(super) fn wait(&self) -> Waits<'_> {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        Waits(self)
    }
}

/// A metaslab that is out of use until this is dropped.
pub struct Paused {
    space: Arc<SpaceAllocator>,
    vdev: u64,
    metaslab: u64,
}

impl Paused {
    /// What is free in it from `start` on, at most that many ranges: by no txg that is open,
    /// syncing or among the last two in use. It stays free, and may become more.
    #[must_use]
    pub fn free(&self, start: u64, count: usize) -> RangeSet {
        self.look(|free| free.within(&(start..u64::MAX)).take(count).collect())
    }

    /// What of the ranges is free in it.
    #[must_use]
    pub fn free_of(&self, ranges: &RangeSet) -> RangeSet {
        self.look(|free| free.intersection(ranges))
    }

    fn look(&self, part: impl FnOnce(&RangeSet) -> RangeSet) -> RangeSet {
        // LOCK state: as long as the part asked for. Out of use it stays in memory.
        let mut state = self.space.lock();
        let metaslab = state.metaslab(self.vdev, self.metaslab as usize);
        let loaded = metaslab.and_then(|metaslab| metaslab.loaded.as_ref());
        loaded.map(|loaded| part(loaded.free.ranges())).unwrap_or_default()
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        {
            // LOCK state: short.
            let mut state = self.space.lock();
            state.disabled = state.disabled.saturating_sub(1);
            if let Some(metaslab) = state.metaslab(self.vdev, self.metaslab as usize) {
                metaslab.disabled = metaslab.disabled.saturating_sub(1);
            }
        }
        self.space.pauses.enabled.notify_waiters();
    }
}

impl SpaceAllocator {
    /// Takes a metaslab out of use, and gives what is free in it. None if there is no such
    /// metaslab. At most a few at a time, and for moments.
    pub async fn pause(self: &Arc<Self>, vdev: u64, metaslab: u64) -> Result<Option<Paused>> {
        let id = metaslab as usize;
        loop {
            // Before the look, so that nothing that settles after it is missed.
            let settled = self.pauses.settled.notified();
            self.load(vdev, id).await?;
            let outcome = {
                // LOCK state: what is free stays so from here on.
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

    /// Whether an allocation waits for a metaslab that is out of use.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.pauses.waiting.load(Ordering::Acquire) > 0
    }
}

/// What came of taking a metaslab out of use.
enum Outcome {
    Done,
    /// There is none.
    Absent,
    /// It has left memory again.
    Unloaded,
    /// An allocation waits.
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

/// An allocation that waits.
pub(super) struct Waits<'a>(&'a Pauses);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.settled.notify_waiters();
        }
    }
}
