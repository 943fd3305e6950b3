//! The traversal: every block of a pool, each once across snapshots and clones.
//!
//!     MOS ── every dataset, by object number ── log chain
//!                                            |─ objects in order ── indirect blocks ── data
//!                                            `─ accounting objects
//!
//! A block belongs to the oldest dataset that holds it: its birth lies after the snapshot before.
//! So each dataset is walked only where births are later than `prev_snap_txg`, and since a parent
//! is never older than what it points at, whole subtrees are left out with one look (spec 04 §8).
//! A block that is shared by deduplication or cloning stands in several trees and is met in each.
//!
//! Verify, leak check, scrub, destroy and send are visitors of this one walk. They differ in what
//! they do with a block, from which birth on they want blocks, and in whether parents come before
//! or after children.
//!
//! Invariants
//! * T1  Damage never ends the walk: what cannot be read is told to the visitor, and everything
//!   beside it is visited.
//! * T2  A walk started at a [`Mark`] visits just those blocks that a whole walk visits from there
//!   on, with its parents not visited again (parents first) or visited later (parents last).
//! * T3  Memory does not grow with the pool: one block per level, the bounded prefetch, and the
//!   list of datasets.
//!
//! Metadata is read through the cache, siblings ahead of their turn. Keys are not needed.

mod log;
mod walk;

use std::future::Future;
use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::dsl::DatasetPhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Error, Result};

use crate::Pool;
use walk::Walk;

/// Number of the MOS as an object set.
pub const MOS: u64 = 0;

/// How the walk goes on after a visit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    /// To the next block.
    Continue,
    /// Past everything below this block; the same as `Continue` where parents come last.
    Skip,
    /// Not at all.
    Stop,
}

/// Whether parents come before or after what they point at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Order {
    /// Parents first, as for checking.
    #[default]
    Down,
    /// Parents last, as for freeing.
    Up,
}

/// A position between two blocks: blocks of data and dnodes from here on are still to be visited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mark {
    /// Object set.
    pub objset: u64,
    /// Object in it.
    pub object: u64,
    /// Data block of the object.
    pub blkid: u64,
}

/// What the walk is to do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Only blocks that were born after this.
    pub min_txg: u64,
    /// Order of parents and children.
    pub order: Order,
    /// Where to begin; none: at the start.
    pub start: Option<Mark>,
}

/// A place where the walk could not go down.
#[derive(Debug)]
pub struct Damage {
    /// The block, or the object if its dnode makes no sense.
    pub place: Bookmark,
    /// Its pointer, where there is one.
    pub bp: Option<BlockPtr>,
    /// Why.
    pub error: Error,
}

/// Who the blocks are shown to.
pub trait Visitor: Send {
    /// Shows a block that is neither a hole nor redacted; its data may lie in the pointer itself.
    fn block(
        &mut self,
        bp: &BlockPtr,
        place: &Bookmark,
    ) -> impl Future<Output = Result<Flow>> + Send;

    /// Tells that nothing below a place can be reached.
    fn damage(&mut self, damage: Damage);
}

/// A dataset as the traversal sees it.
#[derive(Debug, Clone)]
struct Member {
    object: u64,
    bp: BlockPtr,
    prev_snap_txg: u64,
    is_head: bool,
}

/// Walks the whole pool. Free queues are not part of it: see [`crate::leaks`].
pub async fn pool(pool: &Arc<Pool>, options: Options, visitor: &mut impl Visitor) -> Result<()> {
    let start = options.start.unwrap_or_default();
    let mut walk = Walk::new(pool.store(), pool.grounds(), pool.txg(), options);
    if start.objset == MOS {
        let root = pool.uberblock().rootbp;
        if walk.objset(&root, MOS, options.min_txg, false, visitor).await? == Flow::Stop {
            return Ok(());
        }
    }
    for member in members(pool).await {
        if member.object < start.objset {
            continue;
        }
        let min_txg = options.min_txg.max(member.prev_snap_txg);
        let Member { object, bp, is_head, .. } = member;
        if walk.objset(&bp, object, min_txg, is_head, visitor).await? == Flow::Stop {
            return Ok(());
        }
    }
    Ok(())
}

/// Walks one object set: of blocks born after `options.min_txg`, without regard to what snapshots
/// hold.
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

/// Walks the intent log of an object set, as far as it belongs to `txg`.
pub async fn log(set: &Arc<ObjSet>, txg: u64, visitor: &mut impl Visitor) -> Result<()> {
    let walk = Walk::new(set.store(), set.grounds(), txg, Options::default());
    walk.log(set, visitor).await.map(|_| ())
}

/// All datasets, by object number: whatever in the MOS has a dataset in its bonus buffer. What is
/// damaged is left out here, and told when the MOS itself is walked.
async fn members(pool: &Arc<Pool>) -> Vec<Member> {
    let mut members = Vec::new();
    let mut dnodes = pool.mos().dnodes(1);
    while let Some(dnode) = dnodes.next().await {
        let Ok(dnode) = dnode else { continue };
        if dnode.phys().bonus_type != ObjectType::DSL_DATASET {
            continue;
        }
        let Ok(phys) = DatasetPhys::decode(dnode.phys().bonus()) else { continue };
        members.push(Member {
            object: dnode.object(),
            bp: phys.bp,
            prev_snap_txg: phys.prev_snap_txg,
            is_head: phys.num_children == 0,
        });
    }
    members
}
