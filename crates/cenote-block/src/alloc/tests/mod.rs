//! The allocator against a model: plain sets of ranges, and the maps and logs of a pool.

use std::sync::Arc;

use super::{Class, SpaceAllocator};

mod broken;
mod disk;
mod model;
mod rows;

/// A pool of one small vdev.
pub(super) fn plain_pool() -> Arc<SpaceAllocator> {
    let vdevs = [disk::TestVdev::plain(Class::Normal, 16, 2)];
    disk::Disk { txg: 4, ..disk::Disk::default() }.import(&vdevs, true, 0).0
}
