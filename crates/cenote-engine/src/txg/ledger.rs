//! The block changes of a sync pass: sums of born blocks, and a list of killed ones.
//!
//! Sums suffice for born blocks, because accounting is linear. Killed blocks themselves are needed
//! to be freed or put on a deadlist.

use std::sync::Arc;

use cenote_dmu::live::BlockSink;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::Error;
use cenote_rt::lock::{Mutex, Rank};
use cenote_vdev::Tree;

use crate::dsl::space::Sizes;

/// The block changes of one object set in one pass.
#[derive(Debug)]
pub(crate) struct Ledger {
    tree: Arc<Tree>,
    // Held for a few instructions, never across I/O.
    entries: Mutex<Entries>,
}

/// Recorded block changes.
#[derive(Debug, Default)]
pub(crate) struct Entries {
    /// Sum over the born blocks.
    pub(crate) born: Sizes,
    /// Blocks that the object set does not reference any more.
    pub(crate) killed: Vec<BlockPtr>,
    /// Errors of indirect blocks that were freed without the blocks below them.
    pub(crate) leaks: Vec<String>,
}

impl Ledger {
    /// Returns an empty ledger.
    pub(crate) fn new(tree: Arc<Tree>) -> Self {
        Self { tree, entries: Mutex::with_default(Rank::Ledger) }
    }

    /// Takes the changes since the last call.
    pub(crate) fn take(&self) -> Entries {
        std::mem::take(&mut self.entries.lock())
    }
}

impl BlockSink for Ledger {
    fn born(&self, block: &BlockPtr) {
        let sizes = Sizes::of(block, &self.tree);
        self.entries.lock().born += sizes;
    }

    fn killed(&self, block: &BlockPtr) {
        self.entries.lock().killed.push(*block);
    }

    fn leaked(&self, cause: &Error) {
        let cause = cause.to_string();
        self.entries.lock().leaks.push(cause);
    }
}
