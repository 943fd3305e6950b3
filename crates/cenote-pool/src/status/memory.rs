//! Status of a pool from memory alone: for a suspended pool whose metadata cannot be read.

use std::sync::Arc;

use cenote_ondisk::config::{PoolFacts, VdevConfig};
use cenote_vdev::Tree;

use super::{PoolStatus, Reason, report, rules};
use crate::accounting::Space;
use crate::import::Host;

impl PoolStatus {
    /// Returns the states and errors of the devices, their space, and the reason of a suspension.
    /// Omits everything that is only on disk: scans, spares, cache devices, deduplication and the
    /// error log. Reads no device.
    #[must_use]
    pub fn from_memory(
        facts: PoolFacts,
        config: &VdevConfig,
        tree: &Tree,
        name: &str,
        space: Space,
        suspended: Option<Reason>,
    ) -> Self {
        let mut root = report::of_tree(config, tree, true, name);
        for top in &mut root.children {
            top.figures = space.vdev(top.id).cloned();
            top.class = top.figures.as_ref().map(|figures| figures.class);
        }
        let mut status = Self::of_devices(facts, root);
        status.space = Some(Arc::new(space));
        status.suspended = suspended;
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
