//! Metaslabs that are out of use for a while: nothing is allocated from them, so that what is free
//! in them stays free and can be discarded or filled (spec 05 §9).
//!
//! Who finds no space elsewhere waits for them; who keeps one out of use does so for moments, and
//! lets those who wait go first ([`SpaceAllocator::is_wanted`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_ranges::RangeSet;
use cenote_rt::{Notify, Result};

use super::SpaceAllocator;

/// How long an allocation waits before it looks again.
const WAIT: Duration = Duration::from_millis(50);

/// Who waits for whom.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    enabled: Notify,
    /// Allocations that wait.
    waiting: AtomicU64,
}

/// A metaslab that is out of use until this is dropped.
pub struct Paused {
    space: Arc<SpaceAllocator>,
    vdev: u64,
    metaslab: u64,
    free: RangeSet,
}

impl Paused {
    /// What is free in it: by no txg that is open, syncing or among the last two in use.
    #[must_use]
    pub fn free(&self) -> &RangeSet {
        &self.free
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
            self.load(vdev, id).await?;
            // LOCK state: what is free stays so from here on.
            let mut state = self.lock();
            let policy = state.policy.clone();
            let Some(found) = state.vdevs.get_mut(&vdev) else { return Ok(None) };
            let Some(there) = found.metaslabs.get_mut(id) else { return Ok(None) };
            // It has left memory again.
            let Some(loaded) = &there.loaded else { continue };
            let free = loaded.free.ranges().clone();
            there.disabled += 1;
            found.passivate(id, policy.as_ref());
            state.disabled += 1;
            return Ok(Some(Paused { space: Arc::clone(self), vdev, metaslab, free }));
        }
    }

    /// Whether an allocation waits for a metaslab that is out of use.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.pauses.waiting.load(Ordering::Acquire) > 0
    }

    /// Waits a moment for metaslabs that are out of use; false if there are none.
    pub(super) async fn wait_for_enabled(&self) -> bool {
        if self.lock().disabled == 0 {
            return false;
        }
        self.pauses.waiting.fetch_add(1, Ordering::AcqRel);
        let _waits = Waits(self);
        cenote_rt::until(WAIT, self.pauses.enabled.notified()).await;
        true
    }
}

/// Counts an allocation that waits.
struct Waits<'a>(&'a SpaceAllocator);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.pauses.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
