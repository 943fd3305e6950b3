//! Extents: long reads of leaves that contain many blocks.
//!
//! An extent has what its leaf had when it was read. A RAID-Z that begins to expand afterwards
//! gives its blocks other places, which may lie in the extent, too: from then on blocks are read
//! alone.

use std::sync::atomic::AtomicBool;

use cenote_rt::lock::branch;
use cenote_rt::{BoxFuture, Buf, Result, tunables};
use cenote_vdev::queue::ScanKind;
use cenote_vdev::{ClassReader, IoClass, LeafId, LeafRange, LeafReader, Shape, Tree};
use futures_util::future::join_all;

/// Extents of leaves. Reads ranges from them, and other ranges from the leaves.
pub struct Extents<'t> {
    reader: ClassReader<'t>,
    /// Shape of the tree before the first read.
    shape: Shape,
    /// By leaf and offset, disjoint.
    sorted: Vec<Extent>,
}

struct Extent {
    leaf: LeafId,
    offset: u64,
    len: u64,
    /// `None` if it could not be read as a whole.
    data: Option<Buf>,
}

impl Extent {
    fn end(&self) -> u64 {
        self.offset + self.len
    }
}

impl<'t> Extents<'t> {
    /// Reads all of `ranges`, nearby ones together, as I/O of a scan.
    pub async fn read(tree: &'t Tree, mut ranges: Vec<LeafRange>) -> Self {
        let shape = tree.expansion().shape();
        ranges.sort_unstable();
        let mut extents = merge(tree, &ranges);
        let reader = ClassReader::new(tree, IoClass::Scrub);
        let read = join_all(extents.iter().map(|extent| read_extent(&reader, extent))).await;
        for (extent, data) in extents.iter_mut().zip(read) {
            extent.data = data;
        }
        Self { reader, shape, sorted: extents }
    }

    /// Reads the ranges of each block alone, once its delay is over.
    pub(super) async fn read_delayed<'r>(
        tree: &'t Tree,
        blocks: impl Iterator<Item = &'r [LeafRange]>,
        is_stopped: &AtomicBool,
    ) -> Self {
        let shape = tree.expansion().shape();
        let blocks = blocks.filter(|ranges| !ranges.is_empty()).map(|ranges| {
            branch(async move {
                let slot =
                    tree.load().pace(ScanKind::Scrub, tree.tops().count() as u64, is_stopped).await;
                let read = Self::read(tree, ranges.to_vec()).await;
                drop(slot);
                read.sorted
            })
        });
        let mut extents: Vec<_> = join_all(blocks).await.into_iter().flatten().collect();
        extents.sort_unstable_by_key(|extent| (extent.leaf, extent.offset));
        let reader = ClassReader::new(tree, IoClass::Scrub);
        Self { reader, shape, sorted: extents }
    }

    /// Returns the bytes of a range, if an extent has them.
    pub(super) fn get(&self, leaf: LeafId, offset: u64, len: u64) -> Option<&[u8]> {
        let (extent, start) = self.find(leaf, offset, len)?;
        extent.data.as_deref()?.get(start..start + len as usize)
    }

    fn find(&self, leaf: LeafId, offset: u64, len: u64) -> Option<(&Extent, usize)> {
        if !self.reader.tree().expansion().is_settled_since(self.shape) {
            return None;
        }
        let after =
            self.sorted.partition_point(|extent| (extent.leaf, extent.offset) <= (leaf, offset));
        let extent = self.sorted.get(after.checked_sub(1)?)?;
        let is_inside = extent.leaf == leaf && offset.checked_add(len)? <= extent.end();
        // An extent of another leaf may begin after the range.
        is_inside.then(|| (extent, (offset - extent.offset) as usize))
    }
}

/// Ranges outside of extents or in an unreadable extent are read alone, so that a failing sector
/// affects only its own block.
impl LeafReader for Extents<'_> {
    fn read_leaf(&self, leaf: LeafId, offset: u64, len: usize) -> BoxFuture<'_, Result<Buf>> {
        let found = self.find(leaf, offset, len as u64);
        let part =
            found.and_then(|(extent, start)| extent.data.as_ref()?.slice(start..start + len));
        match part {
            Some(part) => Box::pin(std::future::ready(Ok(part))),
            None => self.reader.read_leaf(leaf, offset, len),
        }
    }
}

/// Joins sorted ranges of one leaf that are close to each other, up to the size limit of a read.
fn merge(tree: &Tree, ranges: &[LeafRange]) -> Vec<Extent> {
    let gap = tunables::READ_GAP_LIMIT.get();
    let mut extents: Vec<Extent> = Vec::new();
    let (mut leaf, mut limit) = (None, 0);
    for range in ranges {
        if leaf.replace(range.leaf) != Some(range.leaf) {
            limit = tree.leaf(range.leaf).scan_extent_max();
        }
        let end = range.offset.saturating_add(range.len);
        match extents.last_mut() {
            Some(last)
                if last.leaf == range.leaf
                    && (end <= last.end()
                        || (range.offset <= last.end().saturating_add(gap)
                            && end - last.offset <= limit.max(range.len))) =>
            {
                last.len = last.len.max(end - last.offset);
            }
            _ => {
                let &LeafRange { leaf, offset, len } = range;
                extents.push(Extent { leaf, offset, len, data: None });
            }
        }
    }
    extents
}

async fn read_extent(reader: &ClassReader<'_>, extent: &Extent) -> Option<Buf> {
    let len = usize::try_from(extent.len).ok()?;
    reader.read_extent(extent.leaf, extent.offset, len).await
}
