//! The walk through object sets.

use std::ops::Range;
use std::sync::Arc;

use cenote_block::{BlockStore, Grounds};
use cenote_dmu::objset::META_DNODE;
use cenote_dmu::{Dnode, Geometry, ObjSet, SPILL_BLKID};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_OBJSET};
use cenote_ondisk::objset::PROJECTUSED_OBJECT;
use cenote_rt::{BoxFuture, Buf, Error, Result, tunables};

use super::{Damage, Flow, Options, Order, Visitor};

/// Maximum number of an array's first pointer, so that pointer numbers do not overflow.
const FIRST_MAX: u64 = 1 << 62;

/// State of a walk.
pub(super) struct Walk<'p> {
    pub(super) store: &'p Arc<BlockStore>,
    grounds: &'p Grounds,
    /// Last txg whose blocks count.
    pub(super) txg: u64,
    pub(super) options: Options,
    /// First block of the walk in the current object set, `None` for the whole set.
    start: Option<Bookmark>,
}

/// A position in an object set: object and data block. The spill block follows all data blocks.
type Position = (u64, u64);

/// A block pointer and its location.
struct Pointer<'a> {
    set: &'a Arc<ObjSet>,
    dnode: &'a Arc<Dnode>,
    bp: BlockPtr,
    level: u8,
    blkid: u64,
    min_txg: u64,
}

impl Pointer<'_> {
    fn place(&self) -> Bookmark {
        let (objset, object) = (self.set.id(), self.dnode.object());
        Bookmark { objset, object, level: i64::from(self.level), blkid: self.blkid }
    }

    fn is_meta(&self) -> bool {
        self.dnode.object() == META_DNODE
    }

    fn span(&self) -> Range<Position> {
        span(self.set, self.dnode.geometry(), &self.place())
    }
}

/// Returns the positions of the data blocks below a block, or of the objects below a block of
/// dnodes. `geometry` is that of its object.
fn span(set: &ObjSet, geometry: &Geometry, place: &Bookmark) -> Range<Position> {
    let &Bookmark { object, level, blkid, .. } = place;
    if blkid == SPILL_BLKID {
        return (object, u64::MAX)..(object.saturating_add(1), 0);
    }
    let count = geometry.span(u8::try_from(level).unwrap_or(0));
    let (start, end) = (blkid.saturating_mul(count), blkid.saturating_add(1).saturating_mul(count));
    if object == META_DNODE {
        let slots = set.slots_per_block();
        return (start.saturating_mul(slots), 0)..(end.saturating_mul(slots), 0);
    }
    (object, start)..(object, end)
}

impl<'p> Walk<'p> {
    pub(super) fn new(
        store: &'p Arc<BlockStore>,
        grounds: &'p Grounds,
        txg: u64,
        options: Options,
    ) -> Self {
        Self { store, grounds, txg, options, start: None }
    }

    /// Walks the object set of `root`, for births after `min_txg`.
    pub(super) async fn objset<V: Visitor>(
        &mut self,
        root: &BlockPtr,
        id: u64,
        min_txg: u64,
        is_head: bool,
        visitor: &mut V,
    ) -> Result<Flow> {
        // A log belongs to the head only, even if a snapshot shares the root block that names it.
        let is_new = root.allocation_birth() > min_txg;
        if root.is_hole() || !(is_new || is_head) {
            return Ok(Flow::Continue);
        }
        let start = self.options.start.filter(|start| start.objset == id);
        self.start = start.filter(|start| start.level >= 0);
        let place = Bookmark { objset: id, object: 0, level: LEVEL_OBJSET, blkid: 0 };
        let is_whole = self.start.is_none();
        if self.options.order == Order::Up && start == Some(place) && is_new {
            return Ok(visitor.block(root, &place).await?.past());
        }
        if self.options.order == Order::Down && is_whole && is_new {
            match visitor.block(root, &place).await? {
                Flow::Continue => {}
                Flow::Skip => return Ok(Flow::Continue),
                Flow::Stop => return Ok(Flow::Stop),
            }
        }
        let (store, grounds) = (Arc::clone(self.store), self.grounds.clone());
        match ObjSet::open_on(store, root, None, id, grounds).await {
            Ok(set) => {
                if is_head && is_whole && self.log(&set, visitor).await? == Flow::Stop {
                    return Ok(Flow::Stop);
                }
                if is_new && self.objects_of(&set, min_txg, visitor).await? == Flow::Stop {
                    return Ok(Flow::Stop);
                }
            }
            Err(error) if error.kind().is_interruption() => return Err(error),
            Err(error) => visitor.damage(Damage { place, bp: Some(*root), error }),
        }
        if !is_new {
            return Ok(Flow::Continue);
        }
        if self.options.order == Order::Up {
            return Ok(visitor.block(root, &place).await?.past());
        }
        Ok(Flow::Continue)
    }

    async fn objects_of<V: Visitor>(
        &mut self,
        set: &Arc<ObjSet>,
        min_txg: u64,
        visitor: &mut V,
    ) -> Result<Flow> {
        let is_in_accounting = self.start.is_some_and(|start| start.object >= PROJECTUSED_OBJECT);
        if !is_in_accounting
            && self.object(set, set.meta_dnode(), min_txg, visitor).await? == Flow::Stop
        {
            return Ok(Flow::Stop);
        }
        let special = [set.project_used(), set.group_used(), set.user_used()];
        for dnode in special.into_iter().flatten() {
            if self.object(set, &dnode, min_txg, visitor).await? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::Continue)
    }

    /// Walks all blocks of a dnode.
    async fn object<V: Visitor>(
        &mut self,
        set: &Arc<ObjSet>,
        dnode: &Arc<Dnode>,
        min_txg: u64,
        visitor: &mut V,
    ) -> Result<Flow> {
        let top = dnode.geometry().levels.saturating_sub(1);
        for (blkid, bp) in (0..).zip(dnode.pointers()) {
            let pointer = Pointer { set, dnode, bp, level: top, blkid, min_txg };
            if self.subtree(pointer, visitor).await? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        if let Some(bp) = dnode.phys().spill() {
            let pointer = Pointer { set, dnode, bp: *bp, level: 0, blkid: SPILL_BLKID, min_txg };
            return self.leaf(&pointer, visitor).await;
        }
        Ok(Flow::Continue)
    }

    /// Whether the walk visits the block or a block below it.
    fn is_wanted(&self, pointer: &Pointer<'_>) -> bool {
        !pointer.bp.is_hole()
            && !pointer.bp.is_redacted()
            && pointer.bp.allocation_birth() > pointer.min_txg
            && self.start_position(pointer).is_none_or(|start| pointer.span().end > start)
    }

    /// Returns the position of the walk's first block, to be compared with those of `pointer`. In
    /// another object than that of `pointer`, only the object of the position is meaningful.
    fn start_position(&self, pointer: &Pointer<'_>) -> Option<Position> {
        let start = self.start?;
        let is_meta = start.object == META_DNODE;
        let dnode = if is_meta { pointer.set.meta_dnode() } else { pointer.dnode };
        Some(span(pointer.set, dnode.geometry(), &start).start)
    }

    /// Whether the walk starts below the block, which therefore comes before its start with
    /// parents first.
    fn starts_below(&self, pointer: &Pointer<'_>) -> bool {
        let (Some(start), Some(position)) = (self.start, self.start_position(pointer)) else {
            return false;
        };
        let own_start = pointer.span().start;
        let height = (pointer.is_meta(), i64::from(pointer.level));
        own_start < position
            || own_start == position && height > (start.object == META_DNODE, start.level)
    }

    /// Visits a block without children.
    async fn leaf<V: Visitor>(&self, pointer: &Pointer<'_>, visitor: &mut V) -> Result<Flow> {
        if !self.is_wanted(pointer) {
            return Ok(Flow::Continue);
        }
        Ok(visitor.block(&pointer.bp, &pointer.place()).await?.past())
    }

    /// Visits a block and its children.
    fn subtree<'a, V: Visitor>(
        &'a mut self,
        pointer: Pointer<'a>,
        visitor: &'a mut V,
    ) -> BoxFuture<'a, Result<Flow>> {
        Box::pin(async move {
            if pointer.level == 0 && !pointer.is_meta() {
                return self.leaf(&pointer, visitor).await;
            }
            if !self.is_wanted(&pointer) {
                return Ok(Flow::Continue);
            }
            let place = pointer.place();
            // T2: the blocks below were visited by an earlier walk.
            if self.options.order == Order::Up && self.start == Some(place) {
                return Ok(visitor.block(&pointer.bp, &place).await?.past());
            }
            if self.options.order == Order::Down && !self.starts_below(&pointer) {
                match visitor.block(&pointer.bp, &place).await? {
                    Flow::Continue => {}
                    Flow::Skip => return Ok(Flow::Continue),
                    Flow::Stop => return Ok(Flow::Stop),
                }
            }
            match pointer.dnode.read_pointer(&pointer.bp, pointer.level, pointer.blkid, false).await
            {
                Ok(block) if pointer.level == 0 => {
                    if self.dnodes(&pointer, &block, visitor).await? == Flow::Stop {
                        return Ok(Flow::Stop);
                    }
                }
                Ok(block) => {
                    if self.children(&pointer, &block, visitor).await? == Flow::Stop {
                        return Ok(Flow::Stop);
                    }
                }
                Err(error) if error.kind().is_interruption() => return Err(error),
                Err(error) => visitor.damage(Damage { place, bp: Some(pointer.bp), error }),
            }
            if self.options.order == Order::Up {
                return Ok(visitor.block(&pointer.bp, &place).await?.past());
            }
            Ok(Flow::Continue)
        })
    }

    /// Walks the pointers of an indirect block.
    async fn children<V: Visitor>(
        &mut self,
        pointer: &Pointer<'_>,
        block: &Buf,
        visitor: &mut V,
    ) -> Result<Flow> {
        let level = pointer.level - 1;
        // Saturates only for a dnode of absurd depth, whose blocks are outside of the object
        // anyway.
        let first = pointer.blkid.saturating_mul(pointer.dnode.geometry().span(1)).min(FIRST_MAX);
        let last = pointer.dnode.geometry().ancestor(pointer.dnode.geometry().max_block, 0, level);
        let is_read = level > 0 || pointer.is_meta();
        let mut prefetcher = Prefetcher::new(block);
        for (blkid, bp) in (first..).zip(BlockPtr::all_in(block)) {
            if blkid > last && bp.is_hole() {
                break;
            }
            let &Pointer { set, dnode, min_txg, .. } = pointer;
            let child = Pointer { set, dnode, bp, level, blkid, min_txg };
            let flow = if is_read {
                prefetcher.prefetch(self, &child, first);
                self.subtree(child, visitor).await?
            } else {
                self.leaf(&child, visitor).await?
            };
            if flow == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::Continue)
    }

    /// Walks the objects of a block of dnodes.
    async fn dnodes<V: Visitor>(
        &mut self,
        pointer: &Pointer<'_>,
        block: &Buf,
        visitor: &mut V,
    ) -> Result<Flow> {
        let set = pointer.set;
        let first = pointer.blkid.saturating_mul(set.slots_per_block());
        let start = self.start_position(pointer).map_or(0, |(object, _)| object);
        let mut dnodes = Vec::new();
        for dnode in set.dnodes_of_block(block, first) {
            match dnode {
                Ok(dnode) if dnode.object() < start => {}
                Ok(dnode) => {
                    self.prefetch_roots(set, &dnode, pointer.min_txg);
                    dnodes.push(dnode);
                }
                Err(error) => visitor.damage(object_damage(pointer, error)),
            }
        }
        for dnode in dnodes {
            if self.object(set, &dnode, pointer.min_txg, visitor).await? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::Continue)
    }

    /// Prefetches the top indirect blocks of a dnode.
    fn prefetch_roots(&self, set: &Arc<ObjSet>, dnode: &Arc<Dnode>, min_txg: u64) {
        let level = dnode.geometry().levels.saturating_sub(1);
        if level == 0 {
            return;
        }
        for (blkid, bp) in (0..).zip(dnode.pointers()) {
            if self.is_wanted(&Pointer { set, dnode, bp, level, blkid, min_txg }) {
                dnode.prefetch_pointer(&bp, level, blkid);
            }
        }
    }
}

impl Flow {
    /// Returns how to continue after a block without children or whose children were visited.
    fn past(self) -> Self {
        if self == Self::Skip { Self::Continue } else { self }
    }
}

/// Returns the damage of an invalid dnode in a readable block.
fn object_damage(pointer: &Pointer<'_>, error: Error) -> Damage {
    let object = error.at().object.unwrap_or(META_DNODE);
    let place = Bookmark { objset: pointer.set.id(), object, level: 0, blkid: 0 };
    Damage { place, bp: None, error }
}

/// Prefetches siblings.
struct Prefetcher<'b> {
    block: &'b Buf,
    next: usize,
    window: usize,
}

impl<'b> Prefetcher<'b> {
    fn new(block: &'b Buf) -> Self {
        Self { block, next: 0, window: tunables::TRAVERSE_PREFETCH_BLOCKS.get_usize() }
    }

    /// Prefetches the blocks after `pointer`, whose array begins with block number `first`.
    fn prefetch(&mut self, walk: &Walk<'_>, pointer: &Pointer<'_>, first: u64) {
        let index = (pointer.blkid - first) as usize;
        self.next = self.next.max(index + 1);
        while self.next <= index.saturating_add(self.window) {
            let Some(bp) = BlockPtr::at(self.block, self.next * 128) else { return };
            let sibling = Pointer { bp, blkid: first + self.next as u64, ..*pointer };
            if walk.is_wanted(&sibling) {
                sibling.dnode.prefetch_pointer(&bp, sibling.level, sibling.blkid);
            }
            self.next += 1;
        }
    }
}
