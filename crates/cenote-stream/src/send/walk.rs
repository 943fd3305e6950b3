//! The walk: visits what an increment has to send, in the order of the stream (spec 07 B5.1, B5.2).
//!
//! ```text
//!   meta-dnode ── indirect blocks ── block of dnodes ──> ObjectRange
//!                                         `── slot ──> Free, Object ── pointers ──> Block, Hole
//! ```
//!
//! A block is skipped with everything below it if its logical birth is not after the source of the
//! increment. A hole is skipped only if it has a birth: one without may be new in an object whose
//! number was used before. Metadata is read through the cache, with siblings prefetched; data
//! blocks are left to the caller.

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::objset::META_DNODE;
use cenote_dmu::{Dnode, ObjSet, SPILL_BLKID};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dnode::{self, DNODE_SHIFT};
use cenote_rt::{Buf, Result, tunables};

use crate::ResumePoint;

/// A step of the walk.
#[derive(Debug)]
pub(super) enum Step {
    /// A block of dnodes: its pointer and its first object.
    ObjectRange { bp: BlockPtr, first: u64, slots: u64 },
    /// Objects that do not exist.
    FreeObjects { first: u64, count: u64 },
    /// An object, and the pointer to the block of its dnode.
    Object { dnode: Arc<Dnode>, bp: BlockPtr },
    /// Blocks of an object that are a hole or were left out when the dataset was received. They
    /// may be behind the end of the object.
    Absent { dnode: Arc<Dnode>, blocks: Range<u64>, is_redacted: bool },
    /// A part of an object that is left out.
    Redacted { object: u64, offset: u64, len: u64 },
    /// A data block, or the spill block.
    Block { dnode: Arc<Dnode>, bp: BlockPtr, blkid: u64 },
}

/// Pointers to visit, on the stack of the walk.
struct Pointers {
    dnode: Arc<Dnode>,
    array: Array,
    /// Level of the blocks that the pointers lead to.
    level: u8,
    /// Number of the first block.
    first: u64,
    next: usize,
    /// Pointers before this index are prefetched.
    prefetched: usize,
}

enum Array {
    Few(Vec<BlockPtr>),
    Block(Buf),
}

impl Array {
    fn get(&self, index: usize) -> Option<BlockPtr> {
        match self {
            Self::Few(pointers) => pointers.get(index).copied(),
            Self::Block(block) => BlockPtr::at(block, index.checked_mul(128)?),
        }
    }
}

/// A slot of a block of dnodes.
enum Slot {
    Free(u64),
    Object(Arc<Dnode>),
}

enum Frame {
    Pointers(Pointers),
    Dnodes { bp: BlockPtr, slots: std::vec::IntoIter<Slot> },
}

/// A walk through an object set.
pub(super) struct Walk {
    set: Arc<ObjSet>,
    from_txg: u64,
    resume: Option<Place>,
    stack: Vec<Frame>,
    prefetch_blocks: usize,
}

/// Where a resumed walk begins: an object, and a data block in it.
#[derive(Debug, Clone, Copy)]
struct Place {
    object: u64,
    blkid: u64,
}

impl Walk {
    /// A walk over what was born after `from_txg`.
    ///
    /// # Errors
    /// Errors of reading the object in which a resumed walk begins.
    pub(super) async fn new(
        set: &Arc<ObjSet>,
        from_txg: u64,
        resume: Option<ResumePoint>,
    ) -> Result<Self> {
        let resume = match resume {
            None => None,
            Some(ResumePoint { object, offset }) => {
                let block_size = set.dnode(object).await?.geometry().block_size;
                Some(Place { object, blkid: offset / block_size.max(1) })
            }
        };
        let meta = pointers_of(set.meta_dnode());
        let prefetch_blocks = tunables::TRAVERSE_PREFETCH_BLOCKS.get_usize();
        let set = Arc::clone(set);
        Ok(Self { set, from_txg, resume, stack: vec![meta], prefetch_blocks })
    }

    /// Where it begins: an object, and a data block in it.
    pub(super) fn begin(&self) -> (u64, u64) {
        self.resume.map_or((0, 0), |resume| (resume.object, resume.blkid))
    }

    /// Returns the next step, `None` at the end.
    ///
    /// # Errors
    /// Errors of reading metadata: what is below it would be missing.
    pub(super) async fn next(&mut self) -> Result<Option<Step>> {
        loop {
            let step = match self.stack.last_mut() {
                None => return Ok(None),
                Some(Frame::Dnodes { bp, slots }) => {
                    let (bp, slot) = (*bp, slots.next());
                    match slot {
                        None => {
                            self.stack.pop();
                            None
                        }
                        Some(Slot::Free(first)) => Some(Step::FreeObjects { first, count: 1 }),
                        Some(Slot::Object(dnode)) => {
                            self.push_object(&dnode);
                            Some(Step::Object { dnode, bp })
                        }
                    }
                }
                Some(Frame::Pointers(_)) => self.next_pointer().await?,
            };
            if let Some(step) = step {
                return Ok(Some(step));
            }
        }
    }

    /// Pushes the pointers of an object, the spill pointer to be visited last.
    fn push_object(&mut self, dnode: &Arc<Dnode>) {
        if let Some(bp) = dnode.phys().spill() {
            self.stack.push(Frame::Pointers(Pointers {
                dnode: Arc::clone(dnode),
                array: Array::Few(vec![*bp]),
                level: 0,
                first: SPILL_BLKID,
                next: 0,
                prefetched: 1,
            }));
        }
        self.stack.push(pointers_of(dnode));
    }

    /// Visits the next pointer of the top of the stack.
    async fn next_pointer(&mut self) -> Result<Option<Step>> {
        let Some(Frame::Pointers(top)) = self.stack.last_mut() else { return Ok(None) };
        let index = top.next;
        let Some(bp) = top.array.get(index) else {
            self.stack.pop();
            return Ok(None);
        };
        top.next += 1;
        let Some(blkid) = top.first.checked_add(index as u64) else { return Ok(None) };
        let (dnode, level) = (Arc::clone(&top.dnode), top.level);
        if self.is_skipped(&dnode, &bp, level, blkid) {
            return Ok(None);
        }
        if bp.is_hole() || bp.is_redacted() {
            let more = if bp.is_hole() { self.pass_holes() } else { 0 };
            let end = blkid.saturating_add(1).saturating_add(more);
            return Ok(absent_step(&dnode, &bp, level, blkid..end));
        }
        let is_meta = dnode.object() == META_DNODE;
        if level == 0 && !is_meta {
            return Ok(Some(Step::Block { dnode, bp, blkid }));
        }
        self.prefetch_siblings(index);
        let block = dnode.read_pointer(&bp, level, blkid, false).await?;
        if level == 0 {
            return self.push_dnodes(bp, &block, blkid).map(Some);
        }
        let first = blkid.saturating_mul(dnode.geometry().span(1));
        let array = Array::Block(block);
        let level = level - 1;
        let frame = Pointers { dnode, array, level, first, next: 0, prefetched: 0 };
        self.stack.push(Frame::Pointers(frame));
        Ok(None)
    }

    /// Passes the holes that come next on the top of the stack, up to the end of the object, and
    /// returns their number: a meta-dnode has a thousand in a block of pointers.
    fn pass_holes(&mut self) -> u64 {
        let Some(Frame::Pointers(top)) = self.stack.last() else { return 0 };
        let (level, dnode) = (top.level, &top.dnode);
        let last = dnode.geometry().max_block / dnode.geometry().span(level).max(1);
        let is_passed = |index: usize| {
            let blkid = top.first.saturating_add(index as u64);
            (blkid <= last || dnode.object() == META_DNODE)
                && top
                    .array
                    .get(index)
                    .is_some_and(|bp| bp.is_hole() && !self.is_skipped(dnode, &bp, level, blkid))
        };
        let end = (top.next..usize::MAX).find(|index| !is_passed(*index)).unwrap_or(top.next);
        let count = end.saturating_sub(top.next);
        if let Some(Frame::Pointers(top)) = self.stack.last_mut() {
            top.next = end;
        }
        count as u64
    }

    /// Whether the source of the increment has the block and everything below it, or a resumed walk
    /// begins behind it.
    fn is_skipped(&self, dnode: &Dnode, bp: &BlockPtr, level: u8, blkid: u64) -> bool {
        if bp.birth() != 0 && bp.birth() <= self.from_txg {
            return true;
        }
        let Some(resume) = self.resume else { return false };
        let end = blkid.saturating_add(1).saturating_mul(dnode.geometry().span(level));
        if dnode.object() == META_DNODE {
            return end.saturating_mul(self.set.slots_per_block()) <= resume.object;
        }
        blkid != SPILL_BLKID && dnode.object() == resume.object && end <= resume.blkid
    }

    /// Prefetches the blocks behind the one at `index` of the top of the stack.
    fn prefetch_siblings(&mut self, index: usize) {
        let (from_txg, window) = (self.from_txg, self.prefetch_blocks);
        let Some(Frame::Pointers(top)) = self.stack.last_mut() else { return };
        top.prefetched = top.prefetched.max(index + 1);
        while top.prefetched <= index.saturating_add(window) {
            let Some(bp) = top.array.get(top.prefetched) else { return };
            if !bp.is_hole() && !bp.is_redacted() && bp.birth() > from_txg {
                let blkid = top.first.saturating_add(top.prefetched as u64);
                top.dnode.prefetch_pointer(&bp, top.level, blkid);
            }
            top.prefetched += 1;
        }
    }

    /// Pushes the dnodes of a block.
    fn push_dnodes(&mut self, bp: BlockPtr, block: &Buf, blkid: u64) -> Result<Step> {
        let per_block = self.set.slots_per_block();
        let first = blkid.saturating_mul(per_block);
        let begin = self.resume.map_or(1, |resume| resume.object.max(1));
        let mut slots = Vec::with_capacity(per_block as usize);
        let mut next = first;
        for (slot, bytes) in dnode::slots(block) {
            let object = first.saturating_add(slot as u64);
            slots.extend((next.max(begin)..object).map(Slot::Free));
            next = object.saturating_add((bytes.len() >> DNODE_SHIFT) as u64);
            let decoded = self.set.dnodes_of_block(bytes, object).next();
            if let Some(dnode) = decoded.transpose()?
                && object >= begin
            {
                self.prefetch_roots(&dnode);
                slots.push(Slot::Object(dnode));
            }
        }
        slots.extend((next.max(begin)..first.saturating_add(per_block)).map(Slot::Free));
        self.stack.push(Frame::Dnodes { bp, slots: slots.into_iter() });
        Ok(Step::ObjectRange { bp, first, slots: per_block })
    }

    /// Prefetches the top indirect blocks of an object.
    fn prefetch_roots(&self, dnode: &Arc<Dnode>) {
        let top = dnode.geometry().levels.saturating_sub(1);
        for (blkid, bp) in (0..).zip(dnode.pointers()) {
            if top > 0 && !bp.is_hole() && bp.birth() > self.from_txg {
                dnode.prefetch_pointer(&bp, top, blkid);
            }
        }
    }
}

fn pointers_of(dnode: &Arc<Dnode>) -> Frame {
    let level = dnode.geometry().levels.saturating_sub(1);
    let array = Array::Few(dnode.pointers().collect());
    let dnode = Arc::clone(dnode);
    Frame::Pointers(Pointers { dnode, array, level, first: 0, next: 0, prefetched: 0 })
}

/// Returns the step of holes or of a redacted pointer, `None` if it is behind 2^64 blocks.
fn absent_step(dnode: &Arc<Dnode>, bp: &BlockPtr, level: u8, at: Range<u64>) -> Option<Step> {
    let span = dnode.geometry().span(level);
    let start = at.start.checked_mul(span)?;
    // Blocks behind 2^64 do not exist: the range ends there.
    let blocks = start..at.end.saturating_mul(span);
    if blocks.is_empty() {
        return None;
    }
    if dnode.object() == META_DNODE {
        let slots = dnode.geometry().block_size >> DNODE_SHIFT;
        let first = start.checked_mul(slots)?;
        let count = blocks.end.saturating_mul(slots).saturating_sub(first);
        return Some(Step::FreeObjects { first, count });
    }
    Some(Step::Absent { dnode: Arc::clone(dnode), blocks, is_redacted: bp.is_redacted() })
}
