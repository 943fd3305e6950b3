//! The walk down one object set after the other.

use std::ops::Range;
use std::sync::Arc;

use cenote_block::{BlockStore, Grounds};
use cenote_dmu::objset::META_DNODE;
use cenote_dmu::{Dnode, ObjSet, SPILL_BLKID};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_OBJSET};
use cenote_rt::{BoxFuture, Buf, Error, Kind, Result, tunables};

use super::{Damage, Flow, Mark, Options, Order, Visitor};

/// No array of pointers begins with a higher number, so that numbers in it do not overflow.
const FIRST_MAX: u64 = 1 << 62;

/// The state of a walk.
pub(super) struct Walk<'p> {
    pub(super) store: &'p Arc<BlockStore>,
    grounds: &'p Grounds,
    /// The last txg of which blocks count.
    pub(super) txg: u64,
    pub(super) options: Options,
    /// Where in the current object set the walk begins, as (object, data block).
    start: (u64, u64),
}

/// A block on the way: where its pointer stands, and in which object.
struct Spot<'a> {
    set: &'a Arc<ObjSet>,
    dnode: &'a Arc<Dnode>,
    bp: BlockPtr,
    level: u8,
    blkid: u64,
    min_txg: u64,
}

impl Spot<'_> {
    fn place(&self) -> Bookmark {
        let (objset, object) = (self.set.id(), self.dnode.object());
        Bookmark { objset, object, level: i64::from(self.level), blkid: self.blkid }
    }

    fn is_meta(&self) -> bool {
        self.dnode.object() == META_DNODE
    }

    /// What lies in or below the block, as positions in the object set.
    fn span(&self) -> Range<(u64, u64)> {
        let object = self.dnode.object();
        if self.blkid == SPILL_BLKID {
            return (object, u64::MAX)..(object.saturating_add(1), 0);
        }
        let shift = self.dnode.geometry().span(self.level);
        let (start, end) =
            (self.blkid.saturating_mul(shift), self.blkid.saturating_add(1).saturating_mul(shift));
        if self.is_meta() {
            let slots = self.set.slots_per_block();
            return (start.saturating_mul(slots), 0)..(end.saturating_mul(slots), 0);
        }
        (object, start)..(object, end)
    }
}

impl<'p> Walk<'p> {
    pub(super) fn new(
        store: &'p Arc<BlockStore>,
        grounds: &'p Grounds,
        txg: u64,
        options: Options,
    ) -> Self {
        Self { store, grounds, txg, options, start: (0, 0) }
    }

    /// Walks the object set behind `root`, where blocks were born after `min_txg`.
    pub(super) async fn objset<V: Visitor>(
        &mut self,
        root: &BlockPtr,
        id: u64,
        min_txg: u64,
        is_head: bool,
        visitor: &mut V,
    ) -> Result<Flow> {
        // A log belongs to the head alone, also where the root block that names it is a snapshot's.
        let is_new = root.allocation_birth() > min_txg;
        if root.is_hole() || !(is_new || is_head) {
            return Ok(Flow::Continue);
        }
        self.start = match self.options.start {
            Some(Mark { objset, object, blkid }) if objset == id => (object, blkid),
            _ => (0, 0),
        };
        let place = Bookmark { objset: id, object: 0, level: LEVEL_OBJSET, blkid: 0 };
        let is_whole = self.start == (0, 0);
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
            Err(error) if error.kind() == Kind::Overtaken => return Err(error),
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
        if self.object(set, set.meta_dnode(), min_txg, visitor).await? == Flow::Stop {
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

    /// Walks everything that a dnode points at.
    async fn object<V: Visitor>(
        &mut self,
        set: &Arc<ObjSet>,
        dnode: &Arc<Dnode>,
        min_txg: u64,
        visitor: &mut V,
    ) -> Result<Flow> {
        let top = dnode.geometry().levels.saturating_sub(1);
        for (blkid, bp) in (0..).zip(dnode.pointers()) {
            let spot = Spot { set, dnode, bp, level: top, blkid, min_txg };
            if self.subtree(spot, visitor).await? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        if let Some(bp) = dnode.phys().spill() {
            let spot = Spot { set, dnode, bp: *bp, level: 0, blkid: SPILL_BLKID, min_txg };
            return self.leaf(&spot, visitor).await;
        }
        Ok(Flow::Continue)
    }

    /// Whether there is anything for this walk at or below the block.
    fn is_wanted(&self, spot: &Spot<'_>) -> bool {
        !spot.bp.is_hole()
            && !spot.bp.is_redacted()
            && spot.bp.allocation_birth() > spot.min_txg
            && spot.span().end > self.start
    }

    /// Visits a block that nothing hangs on.
    async fn leaf<V: Visitor>(&self, spot: &Spot<'_>, visitor: &mut V) -> Result<Flow> {
        if !self.is_wanted(spot) {
            return Ok(Flow::Continue);
        }
        Ok(visitor.block(&spot.bp, &spot.place()).await?.past())
    }

    /// Visits a block and what hangs on it.
    fn subtree<'a, V: Visitor>(
        &'a mut self,
        spot: Spot<'a>,
        visitor: &'a mut V,
    ) -> BoxFuture<'a, Result<Flow>> {
        Box::pin(async move {
            if spot.level == 0 && !spot.is_meta() {
                return self.leaf(&spot, visitor).await;
            }
            if !self.is_wanted(&spot) {
                return Ok(Flow::Continue);
            }
            // Started in its middle, it has been visited before (T2).
            let is_new = spot.span().start >= self.start;
            let place = spot.place();
            if self.options.order == Order::Down && is_new {
                match visitor.block(&spot.bp, &place).await? {
                    Flow::Continue => {}
                    Flow::Skip => return Ok(Flow::Continue),
                    Flow::Stop => return Ok(Flow::Stop),
                }
            }
            match spot.dnode.read_pointer(&spot.bp, spot.level, spot.blkid, false).await {
                Ok(block) if spot.level == 0 => {
                    if self.dnodes(&spot, &block, visitor).await? == Flow::Stop {
                        return Ok(Flow::Stop);
                    }
                }
                Ok(block) => {
                    if self.children(&spot, &block, visitor).await? == Flow::Stop {
                        return Ok(Flow::Stop);
                    }
                }
                Err(error) if error.kind() == Kind::Overtaken => return Err(error),
                Err(error) => visitor.damage(Damage { place, bp: Some(spot.bp), error }),
            }
            if self.options.order == Order::Up {
                return Ok(visitor.block(&spot.bp, &place).await?.past());
            }
            Ok(Flow::Continue)
        })
    }

    /// Goes through the pointers of an indirect block.
    async fn children<V: Visitor>(
        &mut self,
        spot: &Spot<'_>,
        block: &Buf,
        visitor: &mut V,
    ) -> Result<Flow> {
        let level = spot.level - 1;
        // Saturated only by a dnode of absurd depth, whose blocks are beyond the object anyway.
        let first = spot.blkid.saturating_mul(spot.dnode.geometry().span(1)).min(FIRST_MAX);
        let last = spot.dnode.geometry().ancestor(spot.dnode.geometry().max_block, 0, level);
        let is_read = level > 0 || spot.is_meta();
        let mut ahead = Ahead::new(block);
        for (blkid, bp) in (first..).zip(BlockPtr::all_in(block)) {
            if blkid > last && bp.is_hole() {
                break;
            }
            let &Spot { set, dnode, min_txg, .. } = spot;
            let child = Spot { set, dnode, bp, level, blkid, min_txg };
            let flow = if is_read {
                ahead.prefetch(&child, first);
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

    /// Goes through the objects of a block of dnodes.
    async fn dnodes<V: Visitor>(
        &mut self,
        spot: &Spot<'_>,
        block: &Buf,
        visitor: &mut V,
    ) -> Result<Flow> {
        let set = spot.set;
        let first = spot.blkid.saturating_mul(set.slots_per_block());
        let mut dnodes = Vec::new();
        for dnode in set.dnodes_of_block(block, first) {
            match dnode {
                Ok(dnode) => {
                    prefetch_roots(&dnode, spot.min_txg);
                    dnodes.push(dnode);
                }
                Err(error) => visitor.damage(object_damage(spot, error)),
            }
        }
        for dnode in dnodes {
            if dnode.object() < self.start.0 {
                continue;
            }
            if self.object(set, &dnode, spot.min_txg, visitor).await? == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::Continue)
    }
}

impl Flow {
    /// After a block that nothing is skipped below.
    fn past(self) -> Self {
        if self == Self::Skip { Self::Continue } else { self }
    }
}

/// A dnode that makes no sense, in a block that could be read.
fn object_damage(spot: &Spot<'_>, error: Error) -> Damage {
    let object = error.at().object.unwrap_or(META_DNODE);
    let place = Bookmark { objset: spot.set.id(), object, level: 0, blkid: 0 };
    Damage { place, bp: None, error }
}

/// Starts reading the indirect blocks that a dnode points at.
fn prefetch_roots(dnode: &Dnode, min_txg: u64) {
    let top = dnode.geometry().levels.saturating_sub(1);
    if top == 0 {
        return;
    }
    for (blkid, bp) in (0..).zip(dnode.pointers()) {
        if bp.allocation_birth() > min_txg {
            dnode.prefetch_pointer(&bp, top, blkid);
        }
    }
}

/// Reads siblings ahead of their turn.
struct Ahead<'b> {
    block: &'b Buf,
    next: usize,
    window: usize,
}

impl<'b> Ahead<'b> {
    fn new(block: &'b Buf) -> Self {
        Self { block, next: 0, window: tunables::TRAVERSE_PREFETCH_BLOCKS.get_usize() }
    }

    /// Lets the blocks behind `spot`, whose array begins with number `first`, be read.
    fn prefetch(&mut self, spot: &Spot<'_>, first: u64) {
        let turn = (spot.blkid - first) as usize;
        self.next = self.next.max(turn + 1);
        while self.next <= turn.saturating_add(self.window) {
            let Some(bp) = BlockPtr::at(self.block, self.next * 128) else { return };
            if !bp.is_hole() && bp.allocation_birth() > spot.min_txg {
                spot.dnode.prefetch_pointer(&bp, spot.level, first + self.next as u64);
            }
            self.next += 1;
        }
    }
}
