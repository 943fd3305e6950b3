//! Traversal: visits every block of a pool, once for all snapshots and clones that share it.
//!
//!     MOS ── every dataset, by object number ── log chain
//!                                            |─ objects in order ── indirect blocks ── data
//!                                            `─ accounting objects
//!
//! A block belongs to the oldest dataset that references it: it was born after the previous
//! snapshot. So each dataset is walked only for births after `prev_snap_txg`; since a parent is
//! never older than its children, whole subtrees are skipped at their root (spec 04 §8). A block
//! shared by deduplication or cloning is in several trees and is visited in each.
//!
//! Verify, leak check and the freeing of destroyed datasets are visitors of this walk. They differ
//! in their processing of blocks, their minimum birth txg, and in whether parents come before or
//! after children. A visitor that has a budget ends the walk at a block, stores the block's
//! bookmark, and starts the next walk there. OpenZFS accepts stored bookmarks of level 0 and of
//! object sets only (spec 04 §12).
//!
//! Guarantees
//! * T1 Damage never ends the walk: the visitor is told of an unreadable block, and everything else
//!   is visited.
//! * T2 A walk that starts at a bookmark visits exactly the blocks that a whole walk visits from
//!   this block on. With parents last, the blocks below it were visited before it.
//! * T3 Memory does not grow with the pool: one block per level, the bounded prefetch, and the list
//!   of datasets.
//! * T4 Only blocks that are visited, or have such blocks below them, are read: others may have
//!   been freed by the visitor of an earlier walk.
//!
//! Metadata is read through the cache, with siblings prefetched. Keys are not needed.

mod log;
mod walk;

use std::future::Future;
use std::sync::Arc;

use cenote_block::{BlockStore, Grounds};
use cenote_dmu::ObjSet;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::bptree::BptreeEntry;
use cenote_ondisk::dsl::DatasetPhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Error, Result};

use crate::Pool;
use walk::Walk;

/// Object set number of the MOS.
pub const MOS: u64 = 0;
/// Object set number in bookmarks of destroyed object sets.
const DESTROYED: u64 = u64::MAX;

/// How the walk continues after a visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// With the next block.
    Continue,
    /// After everything below this block; the same as `Continue` with parents last.
    Skip,
    /// Ends here.
    Stop,
}

/// Order of parents and children.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Parents first, for checking.
    #[default]
    Down,
    /// Parents last, for freeing.
    Up,
}

/// Options of a walk.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Visit only blocks born after this txg.
    pub min_txg: u64,
    /// Order of parents and children.
    pub order: Order,
    /// First block to visit (T2), `None` for all.
    pub start: Option<Bookmark>,
}

/// An unreadable block or dnode.
#[derive(Debug)]
pub struct Damage {
    /// The block, or the object of an invalid dnode.
    pub place: Bookmark,
    /// The block pointer, if there is one.
    pub bp: Option<BlockPtr>,
    /// The cause.
    pub error: Error,
}

/// Receives the blocks of a walk.
pub trait Visitor: Send {
    /// Visits a block that is neither a hole nor redacted; its data may be embedded in the pointer.
    fn block(
        &mut self,
        bp: &BlockPtr,
        place: &Bookmark,
    ) -> impl Future<Output = Result<Flow>> + Send;

    /// Visits a block of an intent log that may never have been written: any block of an unclaimed
    /// log, and the last one of a claimed log.
    fn unwritten(
        &mut self,
        bp: &BlockPtr,
        place: &Bookmark,
    ) -> impl Future<Output = Result<Flow>> + Send {
        self.block(bp, place)
    }

    /// Reports that everything below a place is unreachable.
    fn damage(&mut self, damage: Damage);
}

/// Walks the whole pool, without the free queues, for which see [`crate::leaks`].
pub async fn pool(pool: &Arc<Pool>, options: Options, visitor: &mut impl Visitor) -> Result<()> {
    let start = options.start.unwrap_or_default();
    let mut walk = Walk::new(pool.store(), pool.grounds(), pool.txg(), options);
    if start.objset == MOS {
        let root = pool.uberblock().rootbp;
        if walk.objset(&root, MOS, options.min_txg, false, visitor).await? == Flow::Stop {
            return Ok(());
        }
    }
    for (object, phys) in datasets(pool).await.found {
        if object < start.objset {
            continue;
        }
        let min_txg = options.min_txg.max(phys.prev_snap_txg);
        let is_head = phys.num_children == 0;
        if walk.objset(&phys.bp, object, min_txg, is_head, visitor).await? == Flow::Stop {
            return Ok(());
        }
    }
    Ok(())
}

/// Walks the MOS, or the blocks of one dataset that were born after `min_txg`, and the log of a
/// head, whose blocks were born after `options.min_txg`. Returns [`Flow::Stop`] if the visitor
/// ended the walk.
pub async fn dataset(
    pool: &Arc<Pool>,
    (object, phys): (u64, Option<&DatasetPhys>),
    min_txg: u64,
    options: Options,
    visitor: &mut impl Visitor,
) -> Result<Flow> {
    let root = phys.map_or_else(|| pool.uberblock().rootbp, |phys| phys.bp);
    let is_head = phys.is_some_and(|phys| phys.num_children == 0);
    let mut walk = Walk::new(pool.store(), pool.grounds(), pool.txg(), options);
    walk.objset(&root, object, min_txg, is_head, visitor).await
}

/// Walks the blocks of one object set that were born after `options.min_txg`, regardless of
/// snapshots.
pub async fn tree(
    pool: &Arc<Pool>,
    root: &BlockPtr,
    objset: u64,
    options: Options,
    visitor: &mut impl Visitor,
) -> Result<()> {
    Walk::new(pool.store(), pool.grounds(), pool.txg(), options)
        .objset(root, objset, options.min_txg, false, visitor)
        .await
        .map(|_| ())
}

/// Walks the blocks of a destroyed object set that are not freed yet, with parents last.
pub async fn destroyed(
    store: &Arc<BlockStore>,
    grounds: &Grounds,
    entry: &BptreeEntry,
    visitor: &mut impl Visitor,
) -> Result<()> {
    let is_begun = entry.resume != Bookmark::default();
    let start = is_begun.then_some(Bookmark { objset: DESTROYED, ..entry.resume });
    let options = Options { min_txg: entry.birth_txg, order: Order::Up, start };
    Walk::new(store, grounds, u64::MAX, options)
        .objset(&entry.bp, DESTROYED, entry.birth_txg, false, visitor)
        .await
        .map(|_| ())
}

/// Walks the intent log of an object set, as far as it belongs to `txg`.
pub async fn log(set: &Arc<ObjSet>, txg: u64, visitor: &mut impl Visitor) -> Result<()> {
    let walk = Walk::new(set.store(), set.grounds(), txg, Options::default());
    walk.log(set, visitor).await.map(|_| ())
}

/// The datasets of a pool.
#[derive(Debug, Default)]
pub struct Datasets {
    /// By object number.
    pub found: Vec<(u64, DatasetPhys)>,
    /// Whether objects that may be datasets cannot be read.
    pub is_incomplete: bool,
}

/// Returns all datasets: every MOS object with a dataset in its bonus buffer. Damaged ones are
/// omitted here, and reported when the MOS itself is walked.
pub async fn datasets(pool: &Arc<Pool>) -> Datasets {
    let mut all = Datasets::default();
    let mut dnodes = pool.mos().dnodes(1);
    while let Some(dnode) = dnodes.next().await {
        let Ok(dnode) = dnode else {
            all.is_incomplete = true;
            continue;
        };
        if dnode.phys().bonus_type != ObjectType::DSL_DATASET {
            continue;
        }
        match DatasetPhys::decode(dnode.phys().bonus()) {
            Ok(phys) => all.found.push((dnode.object(), phys)),
            Err(_) => all.is_incomplete = true,
        }
    }
    all
}
