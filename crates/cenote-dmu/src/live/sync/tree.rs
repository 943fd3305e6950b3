//! Writes the block tree of an object, from the changed blocks up to the pointers of the dnode.
//!
//! Each node returns its new pointer: a data block is written or freed; an indirect block gets the
//! new pointers of its changed children, and is written if one of them differs. Indirect blocks
//! below one are written together when all blocks below them are on disk, so that they are adjacent
//! and need few writes.
//!
//! * Freeing (spec 02 §9.5): a freed block leaves a hole with the birth of this txg; an existing
//!   hole keeps its birth. An indirect block whose entries are all holes becomes a hole itself,
//!   whose birth applies to all of them.
//! * Materialising: if an indirect block must be created in place of a hole with a birth, all of
//!   its entries start as holes with that birth. Otherwise incremental streams would miss them.
//! * Damage: a freed indirect block that cannot be read is freed alone, and the blocks below it are
//!   leaked. Elsewhere a change has read the block before (`readable`).
//! * Growth (§9.2): all old pointers of the dnode move together into one block of the first new
//!   level, where there was none before; each further level has only its first entry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_block::policy::BlockSpec;
use cenote_block::{Draft, Seal, SentForm};
use cenote_codec::compress::Compression;
use cenote_ondisk::blkptr::{BLOCK_PTR_LEN, BlockPtr};
use cenote_ondisk::dnode::{self, DnodePhys};
use cenote_ondisk::object_type::ObjectType;
use cenote_ranges::RangeSet;
use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Result, ensure};
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{Block, SyncPass, broken};
use crate::geometry::Geometry;
use crate::live::error::LiveError;
use crate::live::view::{check, geometry_of};
use crate::objset::META_DNODE;

/// Most indirect blocks below one that are freed concurrently, and least that may be written
/// concurrently.
const CHILDREN_MAX: usize = 32;
/// Bytes of indirect blocks below one that are written concurrently. Random changes are few below
/// each, and a queue that holds many of them can aggregate neighbours.
const CHILDREN_BYTES: u64 = 8 << 20;
const CHILDREN_WRITTEN_MAX: u64 = 512;
/// Bytes and number of data blocks that are prepared together: enough to justify a change of
/// thread, few enough to keep all threads busy.
const BATCH_BYTES: u64 = 512 << 10;
const BATCH_BLOCKS: u64 = 128;
/// Most batches of one indirect block that are processed concurrently.
const BATCHES_MAX: usize = 8;

/// Changes of a tree.
pub(super) struct TreeChange<'a> {
    pub(super) object: u64,
    /// The new dnode, with the present pointers and levels.
    pub(super) head: &'a DnodePhys,
    /// Numbers of freed data blocks.
    pub(super) frees: &'a RangeSet,
    /// Data blocks to write.
    pub(super) blocks: &'a BTreeMap<u64, Buf>,
    /// Forms in which blocks in `blocks` were sent.
    pub(super) forms: &'a BTreeMap<u64, SentForm>,
    /// Blocks in `blocks` that are already on disk.
    pub(super) early: &'a BTreeMap<u64, BlockPtr>,
    /// What protects blocks of dnodes in `blocks` that another pool has encrypted.
    pub(super) seals: &'a BTreeMap<u64, Seal>,
    /// Levels of the new tree, at least.
    pub(super) levels: u8,
    /// Highest data block that may exist in the old tree.
    pub(super) old_max: u64,
}

/// A written tree.
pub(super) struct WrittenTree {
    pub(super) blkptrs: Vec<BlockPtr>,
    pub(super) nlevels: u8,
    /// Change of space.
    pub(super) charged: i64,
}

/// A node of the tree being written.
#[derive(Clone, Copy)]
struct Node {
    level: u8,
    number: u64,
    old: BlockPtr,
}

/// Blocks that were freed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Freed {
    /// Space that was charged for them.
    pub(super) charged: i64,
    /// Whether blocks below unreadable ones were leaked.
    pub(super) has_leaks: bool,
}

impl Freed {
    pub(super) fn add(&mut self, more: Self) {
        self.charged += more.charged;
        self.has_leaks |= more.has_leaks;
    }
}

/// A node whose children are written.
enum Step {
    /// Its pointer, and the change of space.
    Done(BlockPtr, i64),
    /// The block to write in its place, and the change of space below it.
    Block(Block, i64),
}

/// The state of writing one tree.
struct TreeWriter<'a> {
    pass: &'a SyncPass<'a>,
    change: &'a TreeChange<'a>,
    /// Shape with the new number of levels.
    shape: Geometry,
    old_levels: u8,
}

impl SyncPass<'_> {
    /// Writes the changes of a tree.
    pub(super) async fn write_tree(&self, change: &TreeChange<'_>) -> Result<WrittenTree> {
        let head = change.head;
        let mut shape = geometry_of(head);
        shape.levels = shape.levels.max(change.levels);
        while shape.capacity() <= head.maxblkid {
            shape.levels += 1;
        }
        let tree = TreeWriter { pass: self, change, shape, old_levels: head.nlevels };
        let top = shape.levels - 1;
        let grown = shape.levels > head.nlevels;
        let mut blkptrs = head.blkptrs.clone();
        if grown {
            blkptrs.fill(BlockPtr::HOLE);
        }
        let mut numbers = tree.changed(top, 0..shape.capacity());
        if grown {
            numbers.insert(0);
        }
        let mut charged = 0;
        for number in numbers {
            // Numbers beyond the pointers have no blocks to free.
            let Some(pointer) = blkptrs.get_mut(number as usize) else {
                let has_writes = change.blocks.range(tree.span_of(top, number)).next().is_some();
                let object = change.object;
                ensure!("D5", !has_writes, "blocks of object {object} are beyond its pointers");
                continue;
            };
            let node = Node { level: top, number, old: *pointer };
            let (new, more) = tree.write_node(node).await?;
            *pointer = new;
            charged += more;
        }
        Ok(WrittenTree { blkptrs, nlevels: shape.levels, charged })
    }

    /// A data block of the tree of `phys`; `None` if it is a hole or outside.
    pub(super) async fn read_tree_block(
        &self,
        object: u64,
        phys: &DnodePhys,
        blkid: u64,
    ) -> Result<Option<Buf>> {
        let shape = geometry_of(phys);
        let top = shape.levels.saturating_sub(1);
        if blkid > shape.max_block {
            return Ok(None);
        }
        let root = shape.ancestor(blkid, 0, top) as usize;
        let mut pointer = phys.blkptrs.get(root).copied().unwrap_or(BlockPtr::HOLE);
        for level in (1..=top).rev() {
            let number = shape.ancestor(blkid, 0, level);
            if pointer.is_hole() {
                return Ok(None);
            }
            let block = self.read_node(object, &shape, level, number, &pointer).await?;
            let index = shape.index_in_parent(shape.ancestor(blkid, 0, level - 1));
            pointer = BlockPtr::at(&block, index * BLOCK_PTR_LEN).unwrap_or(BlockPtr::HOLE);
        }
        if pointer.is_hole() {
            return Ok(None);
        }
        self.read_node(object, &shape, 0, blkid, &pointer).await.map(Some)
    }

    async fn read_node(
        &self,
        object: u64,
        shape: &Geometry,
        level: u8,
        number: u64,
        pointer: &BlockPtr,
    ) -> Result<Buf> {
        let place = self.place(object, level, number);
        check(pointer, shape, level).map_err(|cause| {
            Error::corrupt(cause).in_object(self.id, object).in_block(level, number)
        })?;
        self.blocks.read_for_sync(*pointer, place).await
    }

    /// Frees a block and all blocks below it. Blocks below an unreadable one are leaked.
    pub(super) fn free_subtree<'b>(
        &'b self,
        object: u64,
        phys: &'b DnodePhys,
        level: u8,
        number: u64,
        pointer: BlockPtr,
    ) -> BoxFuture<'b, Result<Freed>> {
        Box::pin(async move {
            let mut freed = Freed::default();
            if pointer.is_hole() {
                return Ok(freed);
            }
            if level > 0 {
                let shape = geometry_of(phys);
                let read = self.read_node(object, &shape, level, number, &pointer).await;
                let Some(block) = self.or_leak(read)? else {
                    return Ok(Freed { charged: self.kill(&pointer), has_leaks: true });
                };
                let first = number << shape.entry_shift();
                let mut work = FuturesUnordered::new();
                let children = BlockPtr::all_in(&block).enumerate();
                for (index, child) in children.filter(|(_, child)| !child.is_hole()) {
                    if level == 1 {
                        freed.charged += self.kill(&child);
                        continue;
                    }
                    if work.len() >= CHILDREN_MAX
                        && let Some(result) = work.next().await
                    {
                        freed.add(result?);
                    }
                    let number = first + index as u64;
                    work.push(self.free_subtree(object, phys, level - 1, number, child));
                }
                while let Some(result) = work.next().await {
                    freed.add(result?);
                }
            }
            freed.charged += self.kill(&pointer);
            Ok(freed)
        })
    }

    /// Returns the block; `None` if it is damaged, which is reported as a leak. A sync that frees
    /// a file must go on without the blocks below.
    fn or_leak(&self, read: Result<Buf>) -> Result<Option<Buf>> {
        match read {
            Err(error) if is_damage(&error) => {
                self.context.sink.leaked(&error);
                Ok(None)
            }
            read => read.map(Some),
        }
    }
}

/// Whether a block was read and is wrong. Errors of devices are no damage: the devices may return.
pub(super) fn is_damage(error: &Error) -> bool {
    matches!(error.kind(), Kind::Checksum | Kind::Corrupt)
}

impl TreeWriter<'_> {
    /// Numbers of nodes of `level` above the data blocks `span` that have changes below.
    fn changed(&self, level: u8, span: std::ops::Range<u64>) -> BTreeSet<u64> {
        let mut numbers = BTreeSet::new();
        let shift = self.shape.entry_shift() * u32::from(level);
        let number_of = |blkid: u64| blkid.checked_shr(shift).unwrap_or(0);
        let mut at = span.start;
        while let Some((blkid, _)) = self.change.blocks.range(at..span.end.max(at)).next() {
            let number = number_of(*blkid);
            numbers.insert(number);
            at = (number + 1).saturating_mul(self.shape.span(level));
        }
        // Beyond the old end there are no blocks to free, and the tree may not reach so far.
        let there = span.start..span.end.min(self.change.old_max.saturating_add(1));
        let freed = self.change.frees.within(&there).filter(|_| !there.is_empty());
        for freed in freed {
            numbers.extend(number_of(freed.start)..=number_of(freed.end - 1));
        }
        numbers
    }

    /// The data blocks below a node.
    fn span_of(&self, level: u8, number: u64) -> std::ops::Range<u64> {
        let span = self.shape.span(level);
        let start = number.saturating_mul(span);
        start..start.saturating_add(span)
    }

    /// Whether all data blocks of a span that may exist in the old tree are freed.
    fn is_freed(&self, span: &std::ops::Range<u64>) -> bool {
        let there = span.start..span.end.min(self.change.old_max.saturating_add(1));
        there.is_empty() || self.change.frees.contains(&there)
    }

    async fn write_node(&self, node: Node) -> Result<(BlockPtr, i64)> {
        match self.write_below(node).await? {
            Step::Done(new, charged) => Ok((new, charged)),
            Step::Block(block, charged) => {
                let (new, more) = self.pass.write_block(block, &node.old).await?;
                Ok((new, charged + more))
            }
        }
    }

    /// Writes the blocks below a node, or a data block.
    fn write_below(&self, node: Node) -> BoxFuture<'_, Result<Step>> {
        Box::pin(async move {
            let span = self.span_of(node.level, node.number);
            let is_new_level = node.level >= self.old_levels && node.number == 0;
            let has_writes = self.change.blocks.range(span.clone()).next().is_some();
            if node.level == 0 {
                let written = self.write_batch(vec![node]).await?;
                let count = written.len();
                ensure!("D5", count == 1, "{count} pointers of block {}", node.number);
                let done = written.first().map_or((node.old, 0), |(_, new, more)| (*new, *more));
                return Ok(Step::Done(done.0, done.1));
            }
            if !has_writes && !is_new_level {
                if node.old.is_hole() {
                    return Ok(Step::Done(node.old, 0));
                }
                if self.is_freed(&span) {
                    let (hole, charged) = self.punch(node).await?;
                    return Ok(Step::Done(hole, charged));
                }
            }
            self.write_below_indirect(node, is_new_level).await
        })
    }

    /// Writes or frees data blocks.
    async fn write_batch(&self, nodes: Vec<Node>) -> Result<Vec<(Node, BlockPtr, i64)>> {
        let mut written = Vec::with_capacity(nodes.len());
        let (mut kept, mut drafts) = (Vec::new(), Vec::new());
        for node in nodes {
            let (new, more) = match self.change.early.get(&node.number) {
                Some(new) => {
                    let blkid = node.number;
                    let len = self.change.blocks.get(&blkid).map_or(0, |block| block.len() as u64);
                    let object = self.change.object;
                    ensure!("V7", len != 0, "block {blkid} of object {object} is not in its layer");
                    let (lsize, level) = (new.lsize(), new.level());
                    ensure!("D3", lsize == len && level == 0, "{lsize} of {len} bytes, {level}");
                    (*new, self.pass.adopt(&node.old, new)?)
                }
                None => match self.draft(&node)? {
                    Some(draft) => {
                        kept.push(node);
                        drafts.push(draft);
                        continue;
                    }
                    None => self.punch(node).await?,
                },
            };
            written.push((node, new, more));
        }
        written.extend(self.write_drafts(kept, drafts).await?);
        Ok(written)
    }

    /// Writes the block of each node. All blocks are of one level.
    async fn write_drafts(
        &self,
        nodes: Vec<Node>,
        drafts: Vec<Draft>,
    ) -> Result<Vec<(Node, BlockPtr, i64)>> {
        let bytes = drafts.iter().map(|draft| draft.data.len() as u64).sum();
        let _room = self.pass.room(bytes).await?;
        let drafts: Arc<[Draft]> = drafts.into();
        let results = self.pass.blocks.write_all(Arc::clone(&drafts)).await?;
        // Checks D5.
        if results.len() != drafts.len() {
            // A missing block would be taken for a hole.
            let cause = LiveError::Layer("not all blocks of a batch were written");
            return Err(broken(&self.pass.place(self.change.object, 0, 0), cause));
        }
        let mut written = Vec::with_capacity(nodes.len());
        for ((node, draft), result) in nodes.into_iter().zip(&*drafts).zip(results) {
            let (new, more) = self.pass.finish_write(draft, result?)?;
            written.push((node, new, more));
        }
        Ok(written)
    }

    /// The block to write in place of a node; `None` if it becomes a hole.
    fn draft(&self, node: &Node) -> Result<Option<Draft>> {
        let TreeChange { object, head, blocks, forms, .. } = self.change;
        let is_meta = head.object_type == ObjectType::DNODE;
        let data = blocks.get(&node.number);
        let is_left = |data: &&Buf| !is_meta || data.iter().any(|byte| *byte != 0);
        let Some(data) = data.filter(is_left) else { return Ok(None) };
        let fill = if is_meta { dnode::slots(data).count() as u64 } else { 1 };
        let place = self.pass.place(*object, 0, node.number);
        let block = Block { data: data.clone(), place, spec: self.spec(0), fill };
        let draft = self.pass.draft(block, node.old)?;
        let sent = if is_meta && self.pass.is_locked() {
            Some(self.sealed_dnodes(node, data)?)
        } else {
            forms.get(&node.number).cloned()
        };
        Ok(Some(Draft { sent, ..draft }))
    }

    /// The form of a block of dnodes that another pool has encrypted. What its stream did not seal
    /// anew keeps its seal: then other parts of the block follow.
    fn sealed_dnodes(&self, node: &Node, data: &Buf) -> Result<SentForm> {
        let old = Some(&node.old).filter(|old| !old.is_hole());
        let seal = self.change.seals.get(&node.number).copied();
        let seal = seal.or_else(|| old.map(|old| Seal::from_words(old.words())));
        let place = self.pass.place(META_DNODE, 0, node.number);
        let seal = seal.ok_or_else(|| broken(&place, LiveError::Unsealed))?;
        let (bytes, compression) = (data.clone(), Compression::Off);
        Ok(SentForm { bytes, compression, is_embedded: false, seal: Some(seal) })
    }

    /// Frees a block and all blocks below it, and leaves a hole.
    async fn punch(&self, node: Node) -> Result<(BlockPtr, i64)> {
        if node.old.is_hole() {
            return Ok((node.old, 0));
        }
        let TreeChange { object, head, .. } = *self.change;
        let Node { level, number, old } = node;
        let freed = self.pass.free_subtree(object, head, level, number, old).await?;
        Ok((self.hole(level, self.pass.hole_birth())?, -freed.charged))
    }

    /// A hole in the place of a node of `level`.
    fn hole(&self, level: u8, birth: u64) -> Result<BlockPtr> {
        let lsize = self.shape.size_at(level);
        // Checks D3.
        BlockPtr::punched(lsize, self.change.head.object_type, level, birth).ok_or_else(|| {
            let place = self.pass.place(self.change.object, level, 0);
            broken(&place, LiveError::BlockSize { size: lsize })
        })
    }

    fn spec(&self, level: u8) -> BlockSpec {
        let head = self.change.head;
        BlockSpec {
            dnode_compression: head.compress,
            dnode_checksum: head.checksum,
            ..BlockSpec::new(head.object_type, level)
        }
    }

    /// Writes the blocks below an indirect block.
    async fn write_below_indirect(&self, node: Node, is_new_level: bool) -> Result<Step> {
        let Node { level, number, old } = node;
        let mut entries = self.load(node, is_new_level).await?;
        let mut children = self.changed(level - 1, self.span_of(level, number));
        if is_new_level && level > self.old_levels {
            children.insert(0);
        }
        let (charged, is_changed) = self.write_children(&mut entries, level, children).await?;
        if !is_changed && !is_new_level {
            return Ok(Step::Done(old, charged));
        }
        if entries.iter().all(BlockPtr::is_hole) {
            // One hole for all of them, with a birth if any of them, or the block, had one.
            let had_birth = old.birth() != 0 || is_new_level && entries.iter().any(has_birth);
            let birth = if had_birth { self.pass.hole_birth() } else { 0 };
            return Ok(Step::Done(self.hole(level, birth)?, charged - self.pass.kill(&old)));
        }
        let mut data = BufMut::for_filling(entries.len() * BLOCK_PTR_LEN);
        let (targets, _none) = data.as_chunks_mut::<BLOCK_PTR_LEN>();
        for (target, entry) in targets.iter_mut().zip(&entries) {
            *target = entry.to_bytes();
        }
        let fill = entries.iter().map(BlockPtr::fill).sum();
        let place = self.pass.place(self.change.object, level, number);
        let block = Block { data: data.freeze(), place, spec: self.spec(level), fill };
        Ok(Step::Block(block, charged))
    }

    /// The present entries of an indirect block.
    async fn load(&self, node: Node, is_new_level: bool) -> Result<Vec<BlockPtr>> {
        let Node { level, number, old } = node;
        let count = 1 << self.shape.entry_shift();
        if is_new_level {
            let mut entries = vec![BlockPtr::HOLE; count];
            if level == self.old_levels {
                entries.iter_mut().zip(&self.change.head.blkptrs).for_each(|(e, old)| *e = *old);
            }
            return Ok(entries);
        }
        if old.is_hole() {
            let entry = match old.birth() {
                0 => BlockPtr::HOLE,
                birth => self.hole(level - 1, birth)?,
            };
            return Ok(vec![entry; count]);
        }
        let object = self.change.object;
        let mut read =
            self.pass.read_node(object, &self.shape, level, number, &old).await.map(Some);
        if self.is_freed(&self.span_of(level, number)) {
            // Freed before it is written again.
            read = read.or_else(|error| self.pass.or_leak(Err(error)));
        }
        let Some(block) = read? else {
            return Ok(vec![self.hole(level - 1, self.pass.hole_birth())?; count]);
        };
        let entries: Vec<_> = BlockPtr::all_in(&block).collect();
        let len = entries.len();
        ensure!("D5", len == count, "{len} entries in a block of level {level}, not {count}");
        Ok(entries)
    }

    /// Writes children and stores their new pointers in `entries`; returns the change of space, and
    /// whether any pointer changed.
    async fn write_children(
        &self,
        entries: &mut [BlockPtr],
        level: u8,
        children: BTreeSet<u64>,
    ) -> Result<(i64, bool)> {
        let nodes: Vec<Node> = children
            .into_iter()
            .map(|number| {
                let index = self.shape.index_in_parent(number);
                let old = entries.get(index).copied().unwrap_or(BlockPtr::HOLE);
                Node { level: level - 1, number, old }
            })
            .collect();
        let (mut charged, mut is_changed, mut count) = (0, false, 0);
        let mut store = |written: Vec<(Node, BlockPtr, i64)>| {
            for (node, new, more) in written {
                charged += more;
                if let Some(entry) = entries.get_mut(self.shape.index_in_parent(node.number)) {
                    is_changed |= *entry != new;
                    *entry = new;
                    count += 1;
                }
            }
        };
        if level == 1 {
            let batch = (BATCH_BYTES / self.shape.size_at(0)).clamp(1, BATCH_BLOCKS);
            let mut batches = nodes.chunks(batch as usize);
            let mut work = FuturesUnordered::new();
            loop {
                while work.len() < BATCHES_MAX {
                    let Some(batch) = batches.next() else { break };
                    work.push(self.write_batch(batch.to_vec()));
                }
                let Some(result) = work.next().await else { break };
                store(result?);
            }
        } else {
            let most = CHILDREN_BYTES / self.shape.size_at(level - 1).max(1);
            let most = (most.min(CHILDREN_WRITTEN_MAX) as usize).max(CHILDREN_MAX);
            for nodes in nodes.chunks(most) {
                store(self.write_indirects(nodes).await?);
            }
        }
        let all = nodes.len();
        ensure!("D5", count == all, "{count} pointers of {all} blocks below level {level}");
        Ok((charged, is_changed))
    }

    /// Writes indirect blocks of one level: first all blocks below them, then the blocks themselves
    /// in the order of their numbers.
    async fn write_indirects(&self, nodes: &[Node]) -> Result<Vec<(Node, BlockPtr, i64)>> {
        let below = |node: Node| async move { (node, self.write_below(node).await) };
        let mut work: FuturesUnordered<_> = nodes.iter().copied().map(below).collect();
        let (mut written, mut due) = (Vec::with_capacity(nodes.len()), Vec::new());
        while let Some((node, step)) = work.next().await {
            match step? {
                Step::Done(new, charged) => written.push((node, new, charged)),
                Step::Block(block, charged) => due.push((node, block, charged)),
            }
        }
        due.sort_by_key(|(node, ..)| node.number);
        let bytes = nodes.first().map_or(1, |node| self.shape.size_at(node.level)).max(1);
        let batch = (BATCH_BYTES / bytes).clamp(1, BATCH_BLOCKS) as usize;
        let (mut drafts, mut kept) = (Vec::with_capacity(due.len()), Vec::with_capacity(due.len()));
        for (node, block, charged) in due {
            drafts.push(self.pass.draft(block, node.old)?);
            kept.push((node, charged));
        }
        let mut work = FuturesUnordered::new();
        for (nodes, drafts) in kept.chunks(batch).zip(drafts.chunks(batch)) {
            let nodes = nodes.iter().map(|(node, _)| *node).collect();
            work.push(self.write_drafts(nodes, drafts.to_vec()));
        }
        let below: BTreeMap<u64, i64> =
            kept.iter().map(|(node, charged)| (node.number, *charged)).collect();
        while let Some(result) = work.next().await {
            let result = result?.into_iter().map(|(node, new, more)| {
                let charged = below.get(&node.number).copied().unwrap_or(0);
                (node, new, more + charged)
            });
            written.extend(result);
        }
        Ok(written)
    }
}

fn has_birth(pointer: &BlockPtr) -> bool {
    pointer.birth() != 0
}
