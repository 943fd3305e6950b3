//! Readers of a committed txg, who need its blocks to stay as they are.
//!
//! What is freed waits two txgs before it is given out again, which keeps the uberblocks before
//! whole. Somebody who reads what is committed while txgs go on needs it for longer: while there is
//! a pin, nothing that waits becomes free. Readers are commands and last for moments; when so
//! little space is left that nothing waits at all, they are not waited for either, and meet blocks
//! whose checksums do not hold.

use std::sync::Arc;

use super::SpaceAllocator;

/// Keeps what is committed from being overwritten until it is dropped.
pub struct Pin {
    space: Arc<SpaceAllocator>,
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pin")
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // LOCK state: short.
        let mut state = self.space.lock();
        state.pins = state.pins.saturating_sub(1);
    }
}

impl SpaceAllocator {
    /// Keeps what is committed. Taken before the uberblock is looked at, so that no txg in between
    /// lets go of what it leads to.
    #[must_use]
    pub fn pin(self: &Arc<Self>) -> Pin {
        // LOCK state: short. A commit holds it while it lets ranges become free.
        self.lock().pins += 1;
        Pin { space: Arc::clone(self) }
    }
}
