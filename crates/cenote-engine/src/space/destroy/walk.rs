//! The walk through a dead tree: children before parents, with a budget, and resumable.
//!
//! ```text
//!   objset ── meta-dnode ── blocks of dnodes ── objects ── indirect blocks ── data
//!     last                     after their objects           after what hangs on them
//! ```
//!
//! A tree is freed from its leaves up. Where a txg stops, the place of the next block is stored:
//! everything before it in this order is freed, and everything below it, and it is the first when
//! the walk is resumed. A dead tree does not change, so that the place is found again.
//!
//! The order and the meaning of the place are OpenZFS's (spec 04 §12), so that either can continue
//! what the other began. Its traversal accepts only places of level 0 in object sets, data and
//! blocks of dnodes: so a walk may stop only there, and an indirect block is freed together with
//! its last child.

use std::sync::Arc;
use std::time::Duration;

use cenote_block::{BlockStore, Grounds};
use cenote_dmu::objset::META_DNODE;
use cenote_dmu::{Dnode, ObjSet, SPILL_BLKID};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_OBJSET};
use cenote_ondisk::bptree::BptreeEntry;
use cenote_rt::{BoxFuture, Error, Result};

/// Object set number in the places of a tree without a number.
const DESTROYED: u64 = u64::MAX;
/// First of the accounting objects.
const SPECIAL_MIN: u64 = u64::MAX - 2;
/// Number of indirect blocks to prefetch.
const AHEAD: usize = 16;

/// How a walk ended.
#[derive(Debug)]
pub(super) enum End {
    /// The tree is freed completely.
    Done,
    /// This block is the next.
    At(Bookmark),
    /// This block cannot be read.
    Damaged(Bookmark, Error),
}

/// Result of a walk.
#[derive(Debug)]
pub(super) struct Harvest {
    /// Blocks to be freed.
    pub(super) blocks: Vec<BlockPtr>,
    /// How the walk ended.
    pub(super) end: End,
}

/// Removes at most `max` blocks from a tree; stops earlier at the deadline.
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

/// Why a walk stops.
enum Stop {
    /// The budget is used up.
    At(Bookmark),
    /// A block cannot be read.
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

/// A block pointer and its location.
struct Pointer<'a> {
    set: &'a Arc<ObjSet>,
    dnode: &'a Arc<Dnode>,
    bp: BlockPtr,
    level: u8,
    blkid: u64,
}

impl Pointer<'_> {
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

/// Whether two places are equal, ignoring object sets.
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
        // Accounting objects come last: if the walk stopped in one, all others are freed.
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
            self.subtree(Pointer { set, dnode, bp, level, blkid }).await;
        }
        if let Some(bp) = dnode.phys().spill() {
            self.subtree(Pointer { set, dnode, bp: *bp, level: 0, blkid: SPILL_BLKID }).await;
        }
    }

    fn is_wanted(&self, bp: &BlockPtr) -> bool {
        self.end.is_none()
            && !bp.is_hole()
            && !bp.is_redacted()
            && bp.allocation_birth() > self.min_txg
    }

    /// Whether the block and everything below it was freed before.
    fn is_gone(&self, pointer: &Pointer<'_>) -> bool {
        let Some(resume) = self.resume else { return false };
        let object = pointer.dnode.object();
        let slots = pointer.set.slots_per_block();
        let span = |dnode: &Dnode, level: i64| {
            let level = u8::try_from(level).unwrap_or(0);
            dnode.geometry().span(level)
        };
        if pointer.is_meta() {
            let end = pointer.blkid.saturating_add(1);
            let end = end.saturating_mul(span(pointer.dnode, i64::from(pointer.level)));
            let next = if resume.object == META_DNODE {
                let start = resume.blkid.saturating_mul(span(pointer.dnode, resume.level));
                start.saturating_mul(slots)
            } else {
                resume.object
            };
            return end.saturating_mul(slots) <= next;
        }
        if object != resume.object {
            return resume.object != META_DNODE && object < resume.object;
        }
        if resume.blkid == SPILL_BLKID || pointer.blkid == SPILL_BLKID {
            return pointer.blkid != SPILL_BLKID;
        }
        let end = pointer.blkid.saturating_add(1);
        let end = end.saturating_mul(span(pointer.dnode, i64::from(pointer.level)));
        end <= resume.blkid.saturating_mul(span(pointer.dnode, resume.level))
    }

    /// Frees a block after its children.
    fn subtree<'a>(&'a mut self, pointer: Pointer<'a>) -> BoxFuture<'a, ()> {
        Box::pin(async move {
            if !self.is_wanted(&pointer.bp) || self.is_gone(&pointer) {
                return;
            }
            let place = pointer.place();
            // The children of the block where the walk stopped are already freed.
            let is_resumed = self.resume.is_some_and(|resume| is_same(&resume, &place));
            if pointer.has_children()
                && !is_resumed
                && let Err(error) = self.children(&pointer).await
            {
                self.end.get_or_insert(Stop::Damage(error));
            }
            self.take(&pointer.bp, place);
        })
    }

    async fn children(&mut self, pointer: &Pointer<'_>) -> Result<()> {
        let block =
            pointer.dnode.read_pointer(&pointer.bp, pointer.level, pointer.blkid, false).await?;
        let &Pointer { set, dnode, .. } = pointer;
        if pointer.level == 0 {
            let first = pointer.blkid.saturating_mul(set.slots_per_block());
            let dnodes: Result<Vec<_>> = set.dnodes_of_block(&block, first).collect();
            for dnode in dnodes? {
                self.object(set, &dnode).await;
            }
            return Ok(());
        }
        let level = pointer.level - 1;
        let first = pointer.blkid.saturating_mul(dnode.geometry().span(1));
        let pointers: Vec<_> = BlockPtr::all_in(&block).collect();
        let has_children = level > 0 || pointer.is_meta();
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
            self.subtree(Pointer { set, dnode, bp: *bp, level, blkid }).await;
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

    /// Before damage: returns the blocks since the last place where a walk may stop, and that
    /// place.
    fn step_back(&mut self) -> Bookmark {
        while let Some((_, place)) = self.blocks.pop() {
            if place.level == 0 {
                return place;
            }
        }
        self.resume.unwrap_or_default()
    }
}
