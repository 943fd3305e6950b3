//! Frees the space of destroyed datasets and snapshots, a part in each txg (spec 04 §12).
//!
//! ```text
//!   free_bpobj   blocks of destroyed snapshots      taken from the end
//!   bptree_obj   roots of destroyed heads           walked, from where the last txg stopped
//! ```
//!
//! Queued space is charged to `$FREE`. Each sync removes a part from the queue and the charge, and
//! frees it in the same txg, so that a crash leaves all or nothing. The part is limited in blocks
//! and in time, since callers wait for the txg.
//!
//! A tree is freed from its leaves up, in the order of [`traverse`]. Where a txg stops, the
//! bookmark of the next block is stored: everything before it in this order is freed, and
//! everything below it. A destroyed tree does not change, so that the next walk finds the block
//! again. The order and the meaning of the bookmark are OpenZFS's (spec 04 §12), so that either
//! implementation can continue what the other began. OpenZFS accepts only bookmarks of level 0 in
//! object sets, of data and of blocks of dnodes: a walk stops only there, and an indirect block is
//! freed together with its last child.

use std::sync::Arc;
use std::time::Duration;

use cenote_block::{BlockStore, Grounds};
use cenote_dmu::bpobj::edit as bpobj;
use cenote_dmu::bptree::edit as bptree;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Space, Tx, TxResult};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::bptree::BptreeEntry;
use cenote_ondisk::dsl::key;
use cenote_pool::mos::DIRECTORY;
use cenote_pool::traverse::{self, Damage, Flow, Visitor};
use cenote_rt::{Error, Result, tunables};

use crate::CheckpointState;
use crate::Notice;
use crate::SpaceManager;
use crate::dsl::space;
use crate::dsl::space::{Sizes, Use};
use crate::dsl::{directory_object, features, need_directory_object, snapshot};

/// How the walk of a destroyed tree ended.
#[derive(Debug)]
enum End {
    /// The tree is freed completely.
    Done,
    /// This block is the next.
    At(Bookmark),
    /// This block, or one between it and the next of level 0, cannot be read.
    Damaged(Bookmark, Error),
}

/// Collects the next blocks of a destroyed tree, up to a number and a deadline.
struct Collector {
    max: usize,
    deadline: Duration,
    blocks: Vec<(BlockPtr, Bookmark)>,
    /// The block at which the budget was used up.
    next: Option<Bookmark>,
    damage: Option<Error>,
}

impl Visitor for Collector {
    async fn block(&mut self, bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
        if self.damage.is_some() {
            return Ok(Flow::Stop);
        }
        let is_late = !self.blocks.is_empty() && cenote_rt::monotonic() >= self.deadline;
        if place.level == 0 && (self.blocks.len() >= self.max || is_late) {
            self.next = Some(*place);
            return Ok(Flow::Stop);
        }
        self.blocks.push((*bp, *place));
        Ok(Flow::Continue)
    }

    fn damage(&mut self, damage: Damage) {
        self.damage.get_or_insert(damage.error);
    }
}

/// Returns at most `max` blocks of a destroyed tree to be freed, fewer after the deadline.
async fn next_blocks(
    store: &Arc<BlockStore>,
    entry: &BptreeEntry,
    max: usize,
    deadline: Duration,
) -> (Vec<BlockPtr>, End) {
    let mut found = Collector { max, deadline, blocks: Vec::new(), next: None, damage: None };
    let walked = traverse::destroyed(store, &Grounds::Allocated, entry, &mut found).await;
    let Collector { mut blocks, next, damage, .. } = found;
    let end = match (damage.or(walked.err()), next) {
        (Some(error), _) => {
            // Back to the last block at which a walk may stop.
            let last = blocks.iter().rposition(|(_, place)| place.level == 0);
            let place = last.map_or(entry.resume, |last| blocks[last].1);
            blocks.truncate(last.unwrap_or(0));
            End::Damaged(place, error)
        }
        (None, Some(place)) => End::At(place),
        (None, None) => End::Done,
    };
    (blocks.into_iter().map(|(block, _)| block).collect(), end)
}

impl SpaceManager<'_> {
    /// Removes as many blocks from the queues as one txg may free, and returns them to be freed.
    pub(crate) async fn free_some(self, txg: u64) -> Result<Vec<BlockPtr>> {
        let max = tunables::ASYNC_BLOCK_MAX_BLOCKS.get_usize();
        let time = Duration::from_millis(tunables::FREE_MIN_TIME_MS.get());
        let deadline = cenote_rt::monotonic().saturating_add(time);
        let (mut freed, is_empty) = self.take_queued(txg, max).await?;
        // Dead trees follow when the list is empty.
        while is_empty && freed.len() < max && cenote_rt::monotonic() < deadline {
            let left = max - freed.len();
            let Some(blocks) = self.free_from_tree(txg, left, deadline).await? else { break };
            freed.extend(blocks);
        }
        Ok(freed)
    }

    /// Whether space of destroyed datasets is yet to be freed.
    pub async fn has_pending_frees(self) -> Result<bool> {
        self.engine
            .mos
            .inspect(|tx| {
                let list = need_directory_object(tx, key::FREE_BPOBJ)?;
                Ok(!bpobj::is_empty(tx, list)? || directory_object(tx, key::BPTREE_OBJ)?.is_some())
            })
            .await
    }

    /// Whether the next txg will free space in the background: of destroyed datasets with readable
    /// trees, or of a discarded checkpoint.
    pub async fn has_background_work(self) -> bool {
        if self.checkpoint_state() == CheckpointState::Discarding {
            return true;
        }
        let stalled = self.stalled_trees();
        let found = self.engine.mos.inspect(|tx| {
            // A new MOS has no queue yet.
            let Some(list) = directory_object(tx, key::FREE_BPOBJ)? else { return Ok(false) };
            Ok(!bpobj::is_empty(tx, list)? || next_entry(tx, &stalled)?.is_some())
        });
        found.await.unwrap_or(false)
    }

    /// Removes blocks from the list; also returns whether it is empty.
    async fn take_queued(self, txg: u64, max: usize) -> Result<(Vec<BlockPtr>, bool)> {
        let tree = &self.engine.tree;
        self.engine
            .mos_apply(txg, |tx| {
                // A new MOS has no queue yet.
                if tx.find(DIRECTORY)?.is_none() {
                    return Ok((Vec::new(), false));
                }
                let queue = need_directory_object(tx, key::FREE_BPOBJ)?;
                let taken = bpobj::take(tx, queue, max, &|block| space::dsize(block, tree))?;
                if taken.blocks.is_empty() {
                    return Ok((taken.blocks, true));
                }
                // Exactly the decrease of the queue's own sums, whatever the sizes of the blocks
                // are.
                charge_less(tx, Sizes::from(taken.space))?;
                Ok((taken.blocks, taken.is_empty))
            })
            .await
    }

    /// Removes blocks from a dead tree; returns `None` if there is no readable tree.
    async fn free_from_tree(
        self,
        txg: u64,
        max: usize,
        deadline: Duration,
    ) -> Result<Option<Vec<BlockPtr>>> {
        let stalled = self.stalled_trees();
        let found = self.engine.mos.inspect(|tx| next_entry(tx, &stalled)).await?;
        let Some((queue, index, entry)) = found else { return Ok(None) };
        let (blocks, end) = next_blocks(&self.engine.store, &entry, max, deadline).await;
        let mut freed = Sizes::default();
        for block in &blocks {
            freed += Sizes::of(block, &self.engine.tree);
        }
        self.engine
            .mos_apply(txg, |tx| {
                bptree::subtract(tx, queue, to_space(freed))?;
                charge_less(tx, freed)?;
                match &end {
                    End::Done => finish(tx, queue, index),
                    End::At(place) | End::Damaged(place, _) => {
                        bptree::suspend(tx, queue, index, *place)
                    }
                }
            })
            .await?;
        if let End::Damaged(_, error) = end {
            // Everything before the damage is freed; the rest stays allocated and queued.
            self.add_stalled_tree(entry.bp);
            self.engine.health().add_notice(Notice::DeadTreeDamaged { cause: error.to_string() });
        }
        Ok(Some(blocks))
    }

    fn stalled_trees(self) -> Vec<BlockPtr> {
        self.engine.space.stalled.lock().clone()
    }

    fn add_stalled_tree(self, root: BlockPtr) {
        self.engine.space.stalled.lock().push(root);
    }

    /// Returns all blocks of a tree born after `min_txg`, for pools without the queue of dead
    /// trees.
    pub(crate) async fn whole_tree(self, root: &BlockPtr, min_txg: u64) -> Result<Vec<BlockPtr>> {
        let entry = BptreeEntry { bp: *root, birth_txg: min_txg, resume: Bookmark::default() };
        let (blocks, end) =
            next_blocks(&self.engine.store, &entry, usize::MAX, Duration::MAX).await;
        match end {
            End::Damaged(_, error) => Err(error),
            End::Done | End::At(_) => Ok(blocks),
        }
    }
}

fn to_space(sizes: Sizes) -> Space {
    Space {
        used: sizes.used as u64,
        comp: sizes.compressed as u64,
        uncomp: sizes.uncompressed as u64,
    }
}

/// Reduces the charge of `$FREE`.
fn charge_less(tx: &mut Tx<'_>, sizes: Sizes) -> TxResult<()> {
    if sizes == Sizes::default() {
        return Ok(());
    }
    let dir = snapshot::free_dir(tx)?;
    space::did_use(tx, dir, Use::Head, sizes.negated())
}

/// Returns the first readable dead tree, with the queue and its index there.
fn next_entry(tx: &mut Tx<'_>, stalled: &[BlockPtr]) -> TxResult<Option<(u64, u64, BptreeEntry)>> {
    let Some(queue) = directory_object(tx, key::BPTREE_OBJ)? else { return Ok(None) };
    let header = bptree::header(tx, queue)?;
    for index in header.begin..header.end {
        let entry = bptree::entry(tx, queue, index)?;
        if !entry.is_done() && !stalled.contains(&entry.bp) {
            return Ok(Some((queue, index, entry)));
        }
    }
    Ok(None)
}

/// Removes a freed tree; the queue and its feature are removed with the last.
fn finish(tx: &mut Tx<'_>, queue: u64, index: u64) -> TxResult<()> {
    bptree::finish(tx, queue, index)?;
    if bptree::is_empty(tx, queue)? {
        bptree::free(tx, queue)?;
        zap::remove(tx, DIRECTORY, key::BPTREE_OBJ)?;
        features::add(tx, "async_destroy", -1)?;
    }
    Ok(())
}
