//! The status of a pool from memory alone.

use cenote_pool::PoolStatus;

use crate::Engine;

impl Engine {
    /// Returns the states and errors of the devices, and why the pool is suspended. Leaves out
    /// what is on disk only: space, scans, spares, cache devices and the error log. Reads no
    /// device.
    #[must_use]
    pub fn status_from_memory(&self) -> PoolStatus {
        let suspended = self.presence().suspended();
        let (facts, root) = (self.config().facts, self.vdev_config());
        PoolStatus::from_memory(facts, &root, self.tree(), &self.name(), suspended)
    }
}
