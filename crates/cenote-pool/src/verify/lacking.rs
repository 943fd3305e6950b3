//! Redundancy that is missing: parts of blocks that leaves lack, because they are stale or absent.
//!
//! A stale leaf is not read, since what it has is no damage. Its parts are counted instead, so that
//! a verified pool is known to have every copy and all parity that its layout promises.
//!
//! A device that is being replaced, or for which a hot spare stands in, may be absent without loss
//! of redundancy: what counts for the leaves below a replacing or spare vdev is what all of them
//! lack.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_block::BlockStore;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_vdev::{MissingRedundancy, Tree, TxgRanges};

use super::batch::WHOLE;

/// The part of a pool's blocks that one leaf lacks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lacking {
    /// Bytes of blocks and parity; of gang blocks only the headers are counted.
    pub bytes: u64,
    /// Txgs in which those bytes were written; all txgs for an absent leaf.
    pub txgs: TxgRanges,
    /// Whether the device is absent or out of service.
    pub is_absent: bool,
}

/// A leaf with missing data, and the bytes counted so far.
#[derive(Debug)]
struct StaleLeaf {
    path: String,
    missing: MissingRedundancy,
    bytes: AtomicU64,
}

/// Counts what leaves lack. The dirty time logs are those of the beginning of the run.
#[derive(Debug)]
pub(super) struct LackingCounter {
    leaves: Vec<StaleLeaf>,
}

impl LackingCounter {
    pub(super) fn new(tree: &Tree) -> Self {
        let leaves = tree.missing_redundancy().into_iter().map(|missing| {
            let path = tree.leaf(missing.leaf).path().to_owned();
            StaleLeaf { path, missing, bytes: AtomicU64::new(0) }
        });
        Self { leaves: leaves.collect() }
    }

    /// Counts the copy of a block at DVA number `index`; all copies of a gang block's header for
    /// [`WHOLE`].
    pub(super) fn count(&self, store: &BlockStore, bp: &BlockPtr, index: u8) {
        let birth = bp.physical_birth();
        if !self.leaves.iter().any(|leaf| leaf.missing.txgs.contains(birth)) {
            return;
        }
        let index = (index != WHOLE).then_some(usize::from(index));
        for range in store.layout_ranges(bp, index) {
            let stale = self.leaves.iter().find(|leaf| leaf.missing.leaf == range.leaf);
            if let Some(leaf) = stale.filter(|leaf| leaf.missing.txgs.contains(birth)) {
                leaf.bytes.fetch_add(range.len, Ordering::Relaxed);
            }
        }
    }

    /// Returns the leaves that lack a part of some block, by path.
    pub(super) fn result(&self) -> BTreeMap<String, Lacking> {
        let found = self.leaves.iter().filter_map(|leaf| {
            let bytes = leaf.bytes.load(Ordering::Relaxed);
            let (txgs, is_absent) = (leaf.missing.txgs.clone(), leaf.missing.is_absent);
            (bytes > 0).then(|| (leaf.path.clone(), Lacking { bytes, txgs, is_absent }))
        });
        found.collect()
    }
}
