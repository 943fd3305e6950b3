//! Giving back the space of what was destroyed, a part in each txg (spec 04 §12).
//!
//! Blocks that nobody holds any more wait on `free_bpobj` and are charged to `$FREE`. Each sync
//! takes some of them off and frees them in the same txg, so that a crash in between finds either
//! both or neither.

use cenote_dmu::bpobj::edit as bpobj;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dsl::key;
use cenote_rt::{Result, tunables};

use super::Engine;
use super::dsl::space::{self, Sizes, Use};
use super::dsl::{get_dir, need_directory_object};

impl Engine {
    /// Takes blocks off the queue, as many as one txg may have, and gives them to be freed.
    pub(super) async fn destroy_some(&self, txg: u64) -> Result<Vec<BlockPtr>> {
        let max = tunables::ASYNC_BLOCK_MAX_BLOCKS.get_usize();
        let tree = &self.tree;
        self.mos_apply(txg, |tx| {
            // A MOS that is only just being made has no queue.
            if tx.find(crate::mos::DIRECTORY)?.is_none() {
                return Ok(Vec::new());
            }
            let queue = need_directory_object(tx, key::FREE_BPOBJ)?;
            let taken = bpobj::take(tx, queue, max, &|block| space::dsize(block, tree))?;
            if taken.blocks.is_empty() {
                return Ok(taken.blocks);
            }
            // Exactly what the queue's own sums lost, whatever the blocks themselves say.
            let sizes = Sizes::from(taken.space).negated();
            let root = need_directory_object(tx, key::ROOT_DATASET)?;
            let children = get_dir(tx, root)?.child_dir_zapobj;
            let free_dir = zap::require_u64(tx, children, key::FREE_DIR)?;
            space::did_use(tx, free_dir, Use::Head, sizes)?;
            Ok(taken.blocks)
        })
        .await
    }
}
