//! The walk over a dead tree: children before parents, up to a budget, and on from there.
//!
//! ```text
//!   objset ── meta-dnode ── blocks of dnodes ── objects ── indirect blocks ── data
//!     last                     after their objects           after what hangs on them
//! ```
//!
//! A tree is taken down from its leaves. Where a txg stops is kept as the place of the next block
//! to go: everything before it in this order is gone, everything below it too, and it is the first
//! to go when the walk goes on. Nothing in a dead tree changes, so that place is found again.
//!
//! The order and the meaning of that place are OpenZFS's (spec 04 §12): either can finish what the
//! other has begun. Its traversal takes only places of level 0 in object sets, data and blocks of
//! dnodes: so that is where a walk may stop, and an indirect block goes together with the last
//! block that hangs on it.

use std::sync::Arc;
use std::time::Duration;

use cenote_block::{BlockStore, Grounds};
use cenote_dmu::objset::META_DNODE;
use cenote_dmu::{Dnode, ObjSet, SPILL_BLKID};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_OBJSET};
use cenote_ondisk::bptree::BptreeEntry;
use cenote_rt::{BoxFuture, Error, Result};

/// Object set in the place of a tree that has no number any more.
const DESTROYED: u64 = u64::MAX;
/// Objects from here on are those of accounting.
const SPECIAL_MIN: u64 = u64::MAX - 2;
/// Indirect blocks that are read ahead of their turn.
const AHEAD: usize = 16;

/// How a walk ended.
#[derive(Debug)]
pub(super) enum End {
    /// Nothing is left.
    Done,
    /// This block is the next.
    At(Bookmark),
    /// This block cannot be read.
    Damaged(Bookmark, Error),
}

/// What a walk gave.
#[derive(Debug)]
pub(super) struct Harvest {
    /// Blocks to be freed.
    pub(super) blocks: Vec<BlockPtr>,
    /// How it ended.
    pub(super) end: End,
}

/// Takes at most `max` blocks off a tree; stops sooner when the time has come.
pub(super) async fn harvest(
    store: &Arc<BlockStore>,
    entry: &BptreeEntry,
    max: usize,
    deadline: Duration,
) -> Harvest {
    let resume = (entry.resume != Bookmark::default()).then_some(entry.resume);
    let mut walk =
        Walk { min_txg: entry.birth_txg, resume, max, deadline, blocks: Vec::new(), end: None };
    walk.objset(store, &entry.bp).await;
    let end = match walk.end.take() {
        Some(Stop::At(place)) => End::At(place),
        Some(Stop::Damage(error)) => End::Damaged(walk.step_back(), error),
        None => End::Done,
    };
    Harvest { blocks: walk.blocks.into_iter().map(|(block, _)| block).collect(), end }
}

/// Why a walk does not go on.
enum Stop {
    /// It has had enough.
    At(Bookmark),
    /// Something cannot be read.
    Damage(Error),
}

struct Walk {
    min_txg: u64,
    resume: Option<Bookmark>,
    max: usize,
    deadline: Duration,
    blocks: Vec<(BlockPtr, Bookmark)>,
    end: Option<Stop>,
}

/// A pointer and where it stands.
struct Spot<'a> {
    set: &'a Arc<ObjSet>,
    dnode: &'a Arc<Dnode>,
    bp: BlockPtr,
    level: u8,
    blkid: u64,
}

impl Spot<'_> {
    fn is_meta(&self) -> bool {
        self.dnode.object() == META_DNODE
    }

    fn place(&self) -> Bookmark {
        let (object, blkid) = (self.dnode.object(), self.blkid);
        Bookmark { objset: DESTROYED, object, level: i64::from(self.level), blkid }
    }

    fn has_children(&self) -> bool {
        self.level > 0 || self.is_meta()
    }
}

/// Whether two places are the same, whatever object set they name.
fn is_same(one: &Bookmark, other: &Bookmark) -> bool {
    (one.object, one.level, one.blkid) == (other.object, other.level, other.blkid)
}

impl Walk {
    async fn objset(&mut self, store: &Arc<BlockStore>, root: &BlockPtr) {
        if !self.is_wanted(root) {
            return;
        }
        let place = Bookmark { objset: DESTROYED, object: 0, level: LEVEL_OBJSET, blkid: 0 };
        if !self.resume.is_some_and(|resume| is_same(&resume, &place)) {
            let grounds = Grounds::Allocated;
            match ObjSet::open_on(Arc::clone(store), root, None, DESTROYED, grounds).await {
                Ok(set) => self.objects(&set).await,
                Err(error) => self.end = Some(Stop::Damage(error)),
            }
        }
        self.take(root, place);
    }

    async fn objects(&mut self, set: &Arc<ObjSet>) {
        // Objects of accounting come last: at one of them the rest is done.
        if self.resume.is_none_or(|resume| resume.object < SPECIAL_MIN) {
            self.object(set, set.meta_dnode()).await;
        }
        for dnode in [set.project_used(), set.group_used(), set.user_used()].into_iter().flatten() {
            self.object(set, &dnode).await;
        }
    }

    async fn object(&mut self, set: &Arc<ObjSet>, dnode: &Arc<Dnode>) {
        let level = dnode.geometry().levels.saturating_sub(1);
        for (blkid, bp) in (0..).zip(dnode.pointers()) {
            self.subtree(Spot { set, dnode, bp, level, blkid }).await;
        }
        if let Some(bp) = dnode.phys().spill() {
            self.subtree(Spot { set, dnode, bp: *bp, level: 0, blkid: SPILL_BLKID }).await;
        }
    }

    fn is_wanted(&self, bp: &BlockPtr) -> bool {
        self.end.is_none()
            && !bp.is_hole()
            && !bp.is_redacted()
            && bp.allocation_birth() > self.min_txg
    }

    /// Whether the block and all below it went before.
    fn is_gone(&self, spot: &Spot<'_>) -> bool {
        let Some(resume) = self.resume else { return false };
        let object = spot.dnode.object();
        let slots = spot.set.slots_per_block();
        let span = |dnode: &Dnode, level: i64| {
            let level = u8::try_from(level).unwrap_or(0);
            dnode.geometry().span(level)
        };
        if spot.is_meta() {
            let end = spot.blkid.saturating_add(1);
            let end = end.saturating_mul(span(spot.dnode, i64::from(spot.level)));
            let next = if resume.object == META_DNODE {
                let start = resume.blkid.saturating_mul(span(spot.dnode, resume.level));
                start.saturating_mul(slots)
            } else {
                resume.object
            };
            return end.saturating_mul(slots) <= next;
        }
        if object != resume.object {
            return resume.object != META_DNODE && object < resume.object;
        }
        if resume.blkid == SPILL_BLKID || spot.blkid == SPILL_BLKID {
            return spot.blkid != SPILL_BLKID;
        }
        let end = spot.blkid.saturating_add(1);
        let end = end.saturating_mul(span(spot.dnode, i64::from(spot.level)));
        end <= resume.blkid.saturating_mul(span(spot.dnode, resume.level))
    }

    /// Takes a block after what hangs on it.
    fn subtree<'a>(&'a mut self, spot: Spot<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if !self.is_wanted(&spot.bp) || self.is_gone(&spot) {
                return;
            }
            let place = spot.place();
            // What hangs on the block where the walk stopped is gone already.
            let is_resumed = self.resume.is_some_and(|resume| is_same(&resume, &place));
            if spot.has_children()
                && !is_resumed
                && let Err(error) = self.children(&spot).await
            {
                self.end.get_or_insert(Stop::Damage(error));
            }
            self.take(&spot.bp, place);
        })
    }

    async fn children(&mut self, spot: &Spot<'_>) -> Result<()> {
        let block = spot.dnode.read_pointer(&spot.bp, spot.level, spot.blkid, false).await?;
        let &Spot { set, dnode, .. } = spot;
        if spot.level == 0 {
            let first = spot.blkid.saturating_mul(set.slots_per_block());
            let dnodes: Result<Vec<_>> = set.dnodes_of_block(&block, first).collect();
            for dnode in dnodes? {
                self.object(set, &dnode).await;
            }
            return Ok(());
        }
        let level = spot.level - 1;
        let first = spot.blkid.saturating_mul(dnode.geometry().span(1));
        let pointers: Vec<_> = BlockPtr::all_in(&block).collect();
        let has_children = level > 0 || spot.is_meta();
        for (index, bp) in pointers.iter().enumerate() {
            if self.end.is_some() {
                return Ok(());
            }
            if has_children && index % AHEAD == 0 {
                let ahead = pointers.iter().enumerate().skip(index).take(AHEAD);
                for (index, bp) in ahead.filter(|(_, bp)| self.is_wanted(bp)) {
                    dnode.prefetch_pointer(bp, level, first.saturating_add(index as u64));
                }
            }
            let blkid = first.saturating_add(index as u64);
            self.subtree(Spot { set, dnode, bp: *bp, level, blkid }).await;
        }
        Ok(())
    }

    fn take(&mut self, bp: &BlockPtr, place: Bookmark) {
        if self.end.is_some() {
            return;
        }
        let is_late = !self.blocks.is_empty() && cenote_rt::monotonic() >= self.deadline;
        if place.level == 0 && (self.blocks.len() >= self.max || is_late) {
            self.end = Some(Stop::At(place));
        } else {
            self.blocks.push((*bp, place));
        }
    }

    /// Before damage: gives back what was taken since the last place where a walk may stop, and
    /// that one.
    fn step_back(&mut self) -> Bookmark {
        while let Some((_, place)) = self.blocks.pop() {
            if place.level == 0 {
                return place;
            }
        }
        self.resume.unwrap_or_default()
    }
}
