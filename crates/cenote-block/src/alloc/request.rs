//! What the allocator is asked and told: requests, vdevs, the two traits it leans on.

use std::sync::Arc;

use cenote_ondisk::spacemap::HISTOGRAM_BUCKETS;
use cenote_ranges::RangeSet;
use cenote_rt::{BoxFuture, Result};
use cenote_vdev::{Tree, VdevKind, VdevState};

use super::class::Class;

/// A block that needs space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Where it should go. What does not fit there goes where [`Class::fallback`] says.
    pub class: Class,
    /// Physical size, bytes; rounded up by each vdev as its layout wants.
    pub psize: u64,
    /// DVAs wanted, 1 to 3: on different vdevs where possible, else far apart.
    pub copies: u8,
    /// Txg that the block will be born in.
    pub txg: u64,
    /// What the block belongs to (an object, a ZIL): equal numbers are kept together.
    pub stream: u64,
    /// Top-level vdev to begin with: that of the gang header for its children.
    pub near: Option<u64>,
    /// Part of a gang block, header or child: never made to gang for the sake of tests.
    pub is_gang_part: bool,
}

impl Request {
    /// One copy of `psize` bytes of ordinary data.
    #[must_use]
    pub const fn data(psize: u64, txg: u64) -> Self {
        Self {
            class: Class::Normal,
            psize,
            copies: 1,
            txg,
            stream: 0,
            near: None,
            is_gang_part: false,
        }
    }
}

/// What the allocator must know of vdevs while the pool runs.
pub trait SpaceGeometry: Send + Sync {
    /// Bytes to allocate for `psize` bytes born in `txg`; `None` if there is no such vdev.
    fn asize_for(&self, vdev: u64, psize: u64, txg: u64) -> Option<u64>;

    /// How well a vdev can take writes now.
    fn health(&self, vdev: u64) -> VdevHealth;
}

/// How well a vdev can take writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum VdevHealth {
    /// Not at all.
    Unwritable,
    /// Without redundancy, and not well: only when nothing else is there.
    Poor,
    /// Well enough.
    Good,
}

impl SpaceGeometry for Tree {
    fn asize_for(&self, vdev: u64, psize: u64, txg: u64) -> Option<u64> {
        Self::asize_for(self, vdev, psize, txg)
    }

    fn health(&self, vdev: u64) -> VdevHealth {
        let Some(top) = self.top(vdev) else { return VdevHealth::Unwritable };
        let is_concrete =
            !matches!(top.kind(), VdevKind::Indirect | VdevKind::Hole | VdevKind::Missing);
        match top.state() {
            VdevState::Degraded if is_concrete && top.leaf().is_some() => VdevHealth::Poor,
            VdevState::Healthy | VdevState::Degraded if is_concrete => VdevHealth::Good,
            _ => VdevHealth::Unwritable,
        }
    }
}

/// Free space of a metaslab according to its own space map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSpace {
    /// What the map leaves free: everything if there is no map. Log space maps are *not* applied;
    /// the allocator has what they say.
    pub free: RangeSet,
    /// The txg whose commit the map was read as of.
    pub txg: u64,
}

/// Where metaslabs are loaded from. Only the pool's sync writes there.
pub trait MetaslabStore: Send + Sync {
    /// Reads a metaslab's own space map as of the last commit. Must not wait for a sync: a sync
    /// may be what needs the space.
    fn load(&self, vdev: u64, metaslab: u64) -> BoxFuture<'_, Result<StoredSpace>>;
}

impl<S: MetaslabStore + ?Sized> MetaslabStore for Arc<S> {
    fn load(&self, vdev: u64, metaslab: u64) -> BoxFuture<'_, Result<StoredSpace>> {
        (**self).load(vdev, metaslab)
    }
}

/// A top-level vdev as the config and its ZAPs have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VdevSpec {
    /// Its id.
    pub id: u64,
    /// What it is for: normal, log, special or dedup.
    pub class: Class,
    /// Log2 of its sector.
    pub ashift: u8,
    /// Log2 of the distance of its metaslabs.
    pub metaslab_shift: u32,
    /// Every allocation starts at a multiple of this: a row for dRAID, else a sector.
    pub align: u64,
    /// Children and those of them that hold parity: how wide a stripe is.
    pub width: u64,
    /// Parity columns.
    pub nparity: u64,
    /// Deflate ratio: accounted bytes for each 512.
    pub deflate_ratio: u64,
    /// Smallest physical size that wastes nothing: a sector, on dRAID one of each data column.
    pub min_alloc: u64,
    /// Whether new blocks may go there (property `allocating`).
    pub is_allocating: bool,
}

/// A metaslab as its headers have it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaslabSpec {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Allocated bytes of its own space map (`smp_alloc`).
    pub allocated: u64,
    /// Histogram of its own space map; `None` without map.
    pub histogram: Option<[u64; HISTOGRAM_BUCKETS]>,
    /// Whether it has a space map object.
    pub has_map: bool,
    /// From which txg on the logs apply; 0 if never logged.
    pub unflushed_txg: u64,
}

impl MetaslabSpec {
    /// One that was never touched.
    #[must_use]
    pub const fn empty(start: u64, size: u64) -> Self {
        Self { start, size, allocated: 0, histogram: None, has_map: false, unflushed_txg: 0 }
    }
}
