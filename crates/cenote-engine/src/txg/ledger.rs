//! What a sync pass made of blocks: sums of what came, a list of what went.
//!
//! Sums are enough for blocks that are born: accounting is linear. A killed block is needed itself,
//! for its space or for a deadlist.

use std::sync::{Arc, Mutex, PoisonError};

use cenote_dmu::live::BlockSink;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_vdev::Tree;

use crate::dsl::space::Sizes;

/// The blocks of one object set in one pass.
#[derive(Debug)]
pub(crate) struct Ledger {
    tree: Arc<Tree>,
    // Held for a few instructions, never across I/O.
    entries: Mutex<Entries>,
}

/// What was noted.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// Sum over the blocks that were born.
    pub(crate) born: Sizes,
    /// Blocks that the set does not hold any more.
    pub(crate) killed: Vec<BlockPtr>,
}

impl Ledger {
    /// An empty one.
    pub(crate) fn new(tree: Arc<Tree>) -> Self {
        Self { tree, entries: Mutex::default() }
    }

    /// What was noted since the last time.
    pub(crate) fn take(&self) -> Entries {
        std::mem::take(&mut self.entries.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl BlockSink for Ledger {
    fn born(&self, block: &BlockPtr) {
        let sizes = Sizes::of(block, &self.tree);
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).born += sizes;
    }

    fn killed(&self, block: &BlockPtr) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).killed.push(*block);
    }
}
