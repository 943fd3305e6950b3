//! The vdevs of an open pool, by guid or config: raw bytes, dirty time logs, extents of blocks.
//!
//! Commands see the vdev tree only through [`Vdevs`]. Its shape is that of
//! [`Pool::config`](crate::Pool::config).

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::zap::Zap;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::indirect::Mapping;
use cenote_ondisk::label::LABEL_START_LEN;
use cenote_ondisk::zap::{Entry, Value};
use cenote_rt::{Buf, Error, Kind, Result};
use cenote_vdev::{LeafReader, Place, Tree, TxgRanges, Vdev};

use crate::Pool;
use crate::accounting::deflate::RATIO_ONE;

/// The vdevs of an open pool; made by [`Pool::vdevs`].
#[derive(Debug, Clone, Copy)]
pub struct Vdevs<'p> {
    pool: &'p Pool,
}

/// Contents of an extent of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Data, which a read of a healthy block may use.
    Data,
    /// Parity.
    Parity,
    /// A gang header.
    Gang,
}

/// A range of a leaf that belongs to a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafExtent {
    /// Path of the leaf.
    pub path: String,
    /// First byte on the device, labels included.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// Its contents.
    pub kind: ExtentKind,
}

/// The device of a vdev is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device is not there")]
pub struct DeviceMissing;

/// Returns the vdev that is being removed, and the mapping of what was copied; `None` if there is
/// no such vdev.
///
/// # Errors
/// Errors of reading the mapping.
pub async fn mapping_of_removing(pool: &Pool) -> Result<Option<(u64, Mapping)>> {
    crate::pool::indirect::of_removing(pool.mos(), &pool.config().vdev_tree).await
}

impl Pool {
    /// Returns the vdevs.
    pub fn vdevs(&self) -> Vdevs<'_> {
        Vdevs { pool: self }
    }
}

impl<'p> Vdevs<'p> {
    fn tree(self) -> &'p Tree {
        &self.pool.tree
    }

    fn find(self, config: &VdevConfig) -> Option<&'p Vdev> {
        self.top(config).or_else(|| self.tree().vdev(config.guid))
    }

    /// Returns the top-level vdev of a config, `None` for vdevs below one.
    fn top(self, config: &VdevConfig) -> Option<&'p Vdev> {
        self.tree().top(config.id).filter(|top| top.guid() == config.guid)
    }

    /// Reads `len` bytes at `offset` of the data area of a vdev. No checksum verifies them. From a
    /// vdev below a top-level one, they are the bytes at that offset of its first leaf.
    ///
    /// # Errors
    /// `Kind::NotFound` with [`DeviceMissing`], `Kind::Io` if devices fail, `Kind::Corrupt` if the
    /// range leaves a top-level vdev.
    pub async fn read(self, config: &VdevConfig, offset: u64, len: u64) -> Result<Buf> {
        let tree = self.tree();
        if self.top(config).is_some() {
            let place = Place { vdev: config.id, offset };
            return Ok(tree.read(place, len, 0, &|_: &[u8]| true).await?.data);
        }
        let missing = || Error::new(Kind::NotFound, DeviceMissing);
        let mut vdev = self.find(config).ok_or_else(missing)?;
        // Each child of a mirror within a top-level vdev has the same bytes.
        while vdev.leaf().is_none() {
            vdev = tree.children(vdev).next().ok_or_else(missing)?;
        }
        let leaf = vdev.leaf().filter(|leaf| tree.leaf(*leaf).device().is_some());
        let (leaf, offset) = (leaf.ok_or_else(missing)?, offset.saturating_add(LABEL_START_LEN));
        tree.read_leaf(leaf, offset, len as usize).await
    }

    /// Returns the entries of the object with the properties of a vdev, which has other entries as
    /// well; none if it has no such object.
    ///
    /// # Errors
    /// Errors of reading the object.
    pub async fn properties(self, config: &VdevConfig) -> Result<Vec<(String, Value)>> {
        let Some(object) = config.properties_object() else { return Ok(Vec::new()) };
        let entries = Zap::open(self.pool.mos(), object).await?.to_vec().await?;
        let pair = |entry: Entry| {
            Some((String::from_utf8_lossy(entry.key.name()?).into_owned(), entry.value))
        };
        Ok(entries.into_iter().filter_map(pair).collect())
    }

    /// Returns the txgs in the dirty time log of the leaf with this guid; none if there is no such
    /// leaf, or its log was not loaded.
    pub fn missing_txgs(self, guid: u64) -> TxgRanges {
        let leaf = self.tree().leaves().find(|(_, leaf)| leaf.guid() == guid);
        leaf.and_then(|(_, leaf)| leaf.dtl()).unwrap_or_default()
    }

    /// Whether the vdev with this guid exists and cannot be read.
    pub fn is_unreadable(self, guid: u64) -> bool {
        self.tree().vdev(guid).is_some_and(|vdev| !vdev.state().is_readable())
    }

    /// Returns the mapping of the removed top-level vdev with this id, if it has one.
    pub fn mapping(self, id: u64) -> Option<Arc<Mapping>> {
        self.tree().indirect(id)
    }

    /// Returns the deflate ratio of a top-level vdev; [`RATIO_ONE`] on pools without deflation.
    pub fn deflate_ratio(self, id: u64) -> u64 {
        if !self.pool.is_deflated {
            return RATIO_ONE;
        }
        self.tree().deflate_ratio(id).unwrap_or(RATIO_ONE)
    }

    /// Returns the paths of all leaves.
    pub fn leaf_paths(self) -> impl Iterator<Item = &'p str> {
        self.tree().leaves().map(|(_, leaf)| leaf.path())
    }

    /// Returns the extents of a block on the leaves: first data and gang headers, then parity. All
    /// sides of a mirror count as data. Leaves that are absent or may be stale are left out.
    pub fn extents(self, pointer: &BlockPtr) -> Vec<LeafExtent> {
        let (tree, birth) = (self.tree(), pointer.physical_birth());
        let ranges = |dva| tree.data_ranges(dva, pointer.psize(), birth);
        let data: BTreeSet<_> = pointer.dvas().flat_map(ranges).collect();
        let extent = |range| {
            let kind = match (pointer.is_gang(), data.contains(&range)) {
                (true, _) => ExtentKind::Gang,
                (false, true) => ExtentKind::Data,
                (false, false) => ExtentKind::Parity,
            };
            let path = tree.leaf(range.leaf).path().to_owned();
            LeafExtent { path, offset: range.offset, len: range.len, kind }
        };
        let mut extents: Vec<_> =
            self.pool.store.leaf_ranges(pointer).into_iter().map(extent).collect();
        extents.sort_by_key(|extent| extent.kind == ExtentKind::Parity);
        extents
    }
}
