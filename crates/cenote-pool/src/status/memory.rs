//! The status of a pool from memory alone: for a suspended pool whose metadata cannot be read,
//! because its devices are away or hang and the cache does not have it.

use super::{PoolStatus, report, rules};
use crate::engine::Engine;
use crate::import::Host;

impl Engine {
    /// The states and errors of the devices, and why the pool is suspended. Space, scans, spares,
    /// cache devices and the error log are on disk, and left out. Reads no device.
    #[must_use]
    pub fn status_from_memory(&self) -> PoolStatus {
        let root = report::of_tree(&self.vdev_config(), self.tree(), true, &self.name());
        let mut status = PoolStatus::of_devices(self.config().facts, root);
        status.suspended = self.presence().suspended();
        status.reason = rules::reason(&rules::Input {
            status: &status,
            is_import: false,
            host: &Host::default(),
            failure: None,
            features: None,
        });
        status
    }
}
