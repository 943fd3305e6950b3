//! Missing redundancy: bytes of blocks that stale or absent leaves do not have.
//!
//! A stale leaf is not read, since its old contents are no damage. Its bytes are counted instead,
//! so that verify also shows whether the pool has every copy and all parity of its layout.
//!
//! A device that is being replaced, or for which a hot spare is in use, may be absent without loss
//! of redundancy: below a replacing or spare vdev only bytes that all leaves miss count.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_block::BlockStore;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_vdev::{MissingRedundancy, Tree, TxgRanges};

use super::batch::WHOLE;

/// The bytes of blocks that one leaf misses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MissingBytes {
    /// Bytes of data and parity; of gang blocks only the headers.
    pub bytes: u64,
    /// Txgs in which they were written; all txgs for an absent leaf.
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

/// Counts missing bytes by leaf, using the dirty time logs at the start of the run.
#[derive(Debug)]
pub(super) struct MissingCounter {
    leaves: Vec<StaleLeaf>,
}

impl MissingCounter {
    pub(super) fn new(tree: &Tree) -> Self {
        let leaves = tree.missing_redundancy().into_iter().map(|missing| {
            let path = tree.leaf(missing.leaf).path().to_owned();
            StaleLeaf { path, missing, bytes: AtomicU64::new(0) }
        });
        Self { leaves: leaves.collect() }
    }

    /// Counts the copy of a block at DVA number `index`, or all copies of a gang header for
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

    /// Returns the leaves with missing bytes, by path.
    pub(super) fn result(&self) -> BTreeMap<String, MissingBytes> {
        let found = self.leaves.iter().filter_map(|leaf| {
            let bytes = leaf.bytes.load(Ordering::Relaxed);
            let (txgs, is_absent) = (leaf.missing.txgs.clone(), leaf.missing.is_absent);
            (bytes > 0).then(|| (leaf.path.clone(), MissingBytes { bytes, txgs, is_absent }))
        });
        found.collect()
    }
}
