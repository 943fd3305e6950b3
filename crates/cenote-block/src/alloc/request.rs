//! Interface of the allocator: requests, descriptions of vdevs, and the two traits it needs.

use std::sync::Arc;

use cenote_ondisk::spacemap::HISTOGRAM_BUCKETS;
use cenote_ranges::RangeSet;
use cenote_rt::{BoxFuture, Result};
use cenote_vdev::{Tree, VdevKind, VdevState};

use super::class::Class;

/// A request for the space of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The preferred class; [`Class::fallback`] names the next one.
    pub class: Class,
    /// Physical size in bytes; each vdev rounds it up to its own units.
    pub psize: u64,
    /// Number of copies, 1 to 3: on different vdevs if possible, else far apart.
    pub copies: u8,
    /// Txg in which the block is born.
    pub txg: u64,
    /// Owner of the block (an object, a ZIL): requests with equal numbers are placed together.
    pub stream: u64,
    /// Top-level vdev to try first: for gang members, that of the header.
    pub near: Option<u64>,
    /// Whether it is part of a gang block, header or member: `metaslab_force_ganging` does not
    /// apply.
    pub is_gang_part: bool,
    /// Whether it is metadata, which a policy may place apart from data.
    pub is_metadata: bool,
}

impl Request {
    /// A request for one copy of `psize` bytes of normal data.
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
            is_metadata: false,
        }
    }
}

/// Facts about vdevs that the allocator needs while the pool runs.
pub trait SpaceGeometry: Send + Sync {
    /// Bytes to allocate for `psize` bytes born in `txg`; `None` if there is no such vdev.
    fn asize_for(&self, vdev: u64, psize: u64, txg: u64) -> Option<u64>;

    /// Whether a vdev can take writes now.
    fn health(&self, vdev: u64) -> VdevHealth;
}

/// Whether a vdev can take writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum VdevHealth {
    /// Cannot be written.
    Unwritable,
    /// Degraded without redundancy: used only when no other vdev has space.
    Poor,
    /// Can be written.
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
    /// Space that the map leaves free: everything if there is no map. Log space maps are *not*
    /// applied; the allocator applies them.
    pub free: RangeSet,
    /// Txg of the commit as of which the map was read.
    pub txg: u64,
}

/// Source of metaslabs' space maps. Only the pool's sync writes there.
pub trait MetaslabStore: Send + Sync {
    /// Reads a metaslab's own space map as of the last commit. Must not wait for a sync: the sync
    /// may need the space.
    fn load(&self, vdev: u64, metaslab: u64) -> BoxFuture<'_, Result<StoredSpace>>;
}

impl<S: MetaslabStore + ?Sized> MetaslabStore for Arc<S> {
    fn load(&self, vdev: u64, metaslab: u64) -> BoxFuture<'_, Result<StoredSpace>> {
        (**self).load(vdev, metaslab)
    }
}

/// A top-level vdev as described by the config and its ZAPs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VdevSpec {
    /// Its id.
    pub id: u64,
    /// Its class: normal, log, special or dedup.
    pub class: Class,
    /// Log2 of its sector size.
    pub ashift: u8,
    /// Log2 of the size of its metaslabs.
    pub metaslab_shift: u32,
    /// Alignment of every allocation: a stripe for dRAID, else a sector.
    pub align: u64,
    /// Number of children.
    pub width: u64,
    /// Parity columns.
    pub nparity: u64,
    /// Deflate ratio: accounted bytes for each 512.
    pub deflate_ratio: u64,
    /// Smallest physical size that wastes no space: a sector; on dRAID, one sector of each data
    /// column.
    pub min_alloc: u64,
    /// Whether new blocks may be allocated there (property `allocating`).
    pub is_allocating: bool,
}

/// A metaslab as described by its headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaslabSpec {
    /// First byte.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated bytes of its own space map (`smp_alloc`).
    pub allocated: u64,
    /// Histogram of its own space map; `None` without map.
    pub histogram: Option<[u64; HISTOGRAM_BUCKETS]>,
    /// Whether it has a space map object.
    pub has_map: bool,
    /// First txg whose logs apply; 0 if it was never logged.
    pub unflushed_txg: u64,
}

impl MetaslabSpec {
    /// A metaslab that was never written.
    #[must_use]
    pub const fn empty(start: u64, size: u64) -> Self {
        Self { start, size, allocated: 0, histogram: None, has_map: false, unflushed_txg: 0 }
    }
}
