//! Reads an object set with its uncommitted changes, without waiting.
//!
//! A block is looked up in the layers from the newest to the oldest, then in the committed tree,
//! whose blocks must be in memory: in the store's cache, or among the blocks read for this closure.
//! A missing block ends the closure with [`TxStop::Need`]. Blocks read for a closure are kept until
//! it succeeds, so that a small cache cannot make it run for ever.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_block::Since;
use cenote_ondisk::blkptr::{BLOCK_PTR_LEN, BlockPtr};
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::dnode::{self, DNODE_SLOT_LEN, DnodePhys, OBJECT_MAX, Slot};
use cenote_ondisk::objset::{ObjSetPhys, PROJECTUSED_OBJECT};
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{Buf, Error, FixedMap, Kind};

use super::blocks::ReadBlocks;
use super::layer::{Layer, Patch};
use super::set::Entry;
use super::stop::{Missing, TxResult, TxStop};
use crate::dnode::SPILL_BLKID;
use crate::error::DmuError;
use crate::geometry::Geometry;
use crate::objset::META_DNODE;

/// Blocks that were read for a closure.
pub(super) type Fetched = FixedMap<BlockPtr, Buf>;

/// A tree on disk: the root block and its pointer.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub(crate) root: BlockPtr,
    pub(crate) phys: Arc<ObjSetPhys>,
    dnodes: Arc<Dnodes>,
    pointers: Arc<Pointers>,
}

impl Tree {
    pub(crate) fn new(root: BlockPtr, phys: ObjSetPhys) -> Self {
        Self { root, phys: Arc::new(phys), dnodes: Arc::default(), pointers: Arc::default() }
    }

    /// Whether a lowest indirect block was looked up before.
    pub(super) fn has_pointers(&self, object: u64, number: u64) -> bool {
        self.pointers.get(object, number).is_some()
    }

    /// Keeps a lowest indirect block that was looked up.
    pub(super) fn keep_pointers(&self, object: u64, number: u64, block: &Buf) {
        self.pointers.put(object, number, block);
    }
}

/// Most decoded dnodes that are kept per tree.
const DNODES_MAX: usize = 1 << 12;

/// Decoded dnodes of a tree. A dnode look-up passes seven levels of cached blocks, and every
/// operation on a file does it several times. A tree never changes, so entries never expire.
#[derive(Debug)]
struct Dnodes(Mutex<FixedMap<u64, Arc<DnodePhys>>>);

impl Default for Dnodes {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::TreeDnodes))
    }
}

impl Dnodes {
    // Held for a look-up; taken under a writable object set's lock, by a sync, or by a
    // reader of a frozen set.
    fn lock(&self) -> MutexGuard<'_, FixedMap<u64, Arc<DnodePhys>>> {
        self.0.lock()
    }

    fn get(&self, object: u64) -> Option<Arc<DnodePhys>> {
        self.lock().get(&object).cloned()
    }

    fn put(&self, object: u64, dnode: &Arc<DnodePhys>) {
        let mut dnodes = self.lock();
        if dnodes.len() >= DNODES_MAX {
            dnodes.clear();
        }
        dnodes.insert(object, Arc::clone(dnode));
    }
}

/// The lowest indirect blocks of a tree that were looked up last. A random reader uses the same few
/// of them again and again, and each level costs a cache look-up.
#[derive(Debug)]
struct Pointers(Mutex<Vec<Option<(u64, u64, Buf)>>>);

/// Number of places; each object and number maps to one.
const POINTERS: usize = 64;

impl Default for Pointers {
    fn default() -> Self {
        Self(Mutex::new(Rank::TreePointers, vec![None; POINTERS]))
    }
}

impl Pointers {
    // Held for a look-up; taken under a writable object set's lock, by a sync, or by a
    // reader of a frozen set.
    fn get(&self, object: u64, number: u64) -> Option<Buf> {
        let places = self.0.lock();
        match places.get(place_of(object, number))? {
            Some((of, at, block)) if (*of, *at) == (object, number) => Some(block.clone()),
            _ => None,
        }
    }

    fn put(&self, object: u64, number: u64, block: &Buf) {
        let mut places = self.0.lock();
        if let Some(place) = places.get_mut(place_of(object, number)) {
            *place = Some((object, number, block.clone()));
        }
    }
}

fn place_of(object: u64, number: u64) -> usize {
    (object.wrapping_mul(7).wrapping_add(number) % POINTERS as u64) as usize
}

/// The shape of the block tree of an object.
pub(super) fn geometry_of(phys: &DnodePhys) -> Geometry {
    Geometry {
        levels: phys.nlevels,
        pointer_count: phys.blkptrs.len() as u8,
        indirect_shift: u32::from(phys.indblkshift),
        block_size: phys.data_block_size(),
        max_block: phys.maxblkid,
    }
}

/// The sources of a read.
pub(super) struct View<'a> {
    pub(super) blocks: &'a dyn ReadBlocks,
    pub(super) id: u64,
    /// Layers, from the oldest to the newest.
    pub(super) below: &'a VecDeque<Entry>,
    /// The overlay above them.
    pub(super) overlay: &'a Layer,
    pub(super) base: &'a Tree,
    pub(super) fetched: &'a Fetched,
    /// Taken before any pointer was looked up.
    pub(super) since: Since,
}

impl<'a> View<'a> {
    /// All layers, from the newest to the oldest.
    pub(super) fn layers(&self) -> impl Iterator<Item = &'a Layer> {
        std::iter::once(self.overlay).chain(self.below.iter().rev().map(|below| &*below.layer))
    }

    /// Returns the block of `pointer`.
    pub(super) fn fetch(
        &self,
        pointer: &BlockPtr,
        object: u64,
        level: u8,
        blkid: u64,
    ) -> TxResult<Buf> {
        if let Some(block) = self.fetched.get(pointer) {
            return Ok(block.clone());
        }
        let place = Bookmark { objset: self.id, object, level: level.into(), blkid };
        if let Some(block) = self.blocks.cached(pointer, &place) {
            Ok(block)
        } else {
            let (pointer, since) = (*pointer, self.since);
            Err(TxStop::Need(Box::new(Missing { pointer, place, since })))
        }
    }

    /// The pointer to a block in the tree of `phys`; an empty one below holes and outside.
    pub(super) fn pointer(
        &self,
        object: u64,
        phys: &DnodePhys,
        level: u8,
        blkid: u64,
    ) -> TxResult<BlockPtr> {
        let tree = geometry_of(phys);
        let top = tree.levels.saturating_sub(1);
        if level > top || blkid > tree.ancestor(tree.max_block, 0, level) {
            return Ok(BlockPtr::HOLE);
        }
        // Only committed dnodes have valid pointers.
        let is_lowest = level == 0 && top > 0;
        let parent = tree.ancestor(blkid, level, level + 1);
        if is_lowest && let Some(block) = self.base.pointers.get(object, parent) {
            return self.child(object, &block, tree.index_in_parent(blkid));
        }
        let root = tree.ancestor(blkid, level, top) as usize;
        let mut pointer = phys.blkptrs.get(root).copied().unwrap_or(BlockPtr::HOLE);
        for at in (level + 1..=top).rev() {
            if pointer.is_hole() {
                return Ok(BlockPtr::HOLE);
            }
            let number = tree.ancestor(blkid, level, at);
            let block = self.fetch_checked(&pointer, object, &tree, at, number)?;
            if is_lowest && at == 1 {
                self.base.pointers.put(object, number, &block);
            }
            let index = tree.index_in_parent(tree.ancestor(blkid, level, at - 1));
            pointer = self.child(object, &block, index)?;
        }
        Ok(pointer)
    }

    /// The pointer at `index` of an indirect block.
    pub(super) fn child(&self, object: u64, block: &Buf, index: usize) -> TxResult<BlockPtr> {
        BlockPtr::at(block, index * BLOCK_PTR_LEN)
            .ok_or_else(|| self.corrupt(object, DmuError::Index { index, len: block.len() }))
    }

    pub(super) fn fetch_checked(
        &self,
        pointer: &BlockPtr,
        object: u64,
        tree: &Geometry,
        level: u8,
        blkid: u64,
    ) -> TxResult<Buf> {
        check(pointer, tree, level).map_err(|cause| self.corrupt(object, cause))?;
        self.fetch(pointer, object, level, blkid)
    }

    /// The dnode in the committed tree.
    pub(super) fn base_dnode(&self, object: u64) -> TxResult<Option<Arc<DnodePhys>>> {
        if object >= PROJECTUSED_OBJECT || object == META_DNODE {
            return Ok(self.base.phys.special_dnode(object).cloned().map(Arc::new));
        }
        if let Some(dnode) = self.base.dnodes.get(object) {
            return Ok(Some(dnode));
        }
        let Some((block, slot)) = self.meta_block(object)? else { return Ok(None) };
        if !matches!(dnode::slot(&block, slot), Slot::Head { .. }) {
            return Ok(None);
        }
        let bytes = block.get(slot * DNODE_SLOT_LEN..).unwrap_or(&[]);
        match DnodePhys::decode(bytes) {
            Ok(phys) => {
                let dnode = phys.map(Arc::new);
                if let Some(dnode) = &dnode {
                    self.base.dnodes.put(object, dnode);
                }
                Ok(dnode)
            }
            Err(error) => Err(TxStop::Fail(Error::corrupt(error).in_object(self.id, object))),
        }
    }

    /// The committed dnode block that contains `object`, and its slot there.
    pub(super) fn meta_block(&self, object: u64) -> TxResult<Option<(Buf, usize)>> {
        let meta = &self.base.phys.meta_dnode;
        let slots = (meta.data_block_size() / DNODE_SLOT_LEN as u64).max(1);
        let pointer = self.pointer(META_DNODE, meta, 0, object / slots)?;
        if pointer.is_hole() {
            return Ok(None);
        }
        let tree = geometry_of(meta);
        let block = self.fetch_checked(&pointer, META_DNODE, &tree, 0, object / slots)?;
        Ok(Some((block, (object % slots) as usize)))
    }

    /// The present dnode; `None` if it is free.
    pub(super) fn find(&self, object: u64) -> TxResult<Option<Arc<DnodePhys>>> {
        let is_special = object >= PROJECTUSED_OBJECT;
        if object == META_DNODE || object >= OBJECT_MAX && !is_special {
            let cause = DmuError::ObjectNumber { object };
            return Err(Error::new(Kind::Invalid, cause).in_object(self.id, object).into());
        }
        for layer in self.layers() {
            if let Some(changes) = layer.objects.get(&object) {
                return Ok(changes.alive().cloned());
            }
        }
        self.base_dnode(object)
    }

    /// The present data block; `None` if it is a hole or outside. The object must be allocated.
    pub(super) fn block(&self, object: u64, blkid: u64) -> TxResult<Option<Buf>> {
        let mut patch: Option<&Patch> = None;
        for layer in self.layers() {
            let Some(changes) = layer.objects.get(&object) else { continue };
            if let Some(block) = changes.blocks.get(&blkid) {
                let block = block.clone();
                return Ok(Some(match patch {
                    Some(patch) => patch.applied(block),
                    None => block,
                }));
            }
            patch = patch.or_else(|| changes.patch(blkid));
            if changes.is_fresh || changes.frees.find(blkid).is_some() {
                return Ok(None);
            }
        }
        let Some(phys) = self.base_dnode(object)? else { return Ok(None) };
        let pointer = self.pointer(object, &phys, 0, blkid)?;
        if pointer.is_hole() {
            return Ok(None);
        }
        self.fetch_checked(&pointer, object, &geometry_of(&phys), 0, blkid).map(Some)
    }

    /// A data block that is stored and not in memory, if its pointer is in memory.
    pub(super) fn unread(&self, object: u64, blkid: u64) -> Option<Box<Missing>> {
        match self.block(object, blkid) {
            Err(TxStop::Need(missing)) => {
                let is_block = (missing.place.object, missing.place.level) == (object, 0);
                is_block.then_some(missing)
            }
            _ => None,
        }
    }

    /// The present spill block.
    pub(super) fn spill(&self, object: u64) -> TxResult<Option<Buf>> {
        use super::layer::SpillChange;
        for layer in self.layers() {
            let Some(changes) = layer.objects.get(&object) else { continue };
            match &changes.spill {
                SpillChange::Set(block, _) => return Ok(Some(block.clone())),
                SpillChange::Removed => return Ok(None),
                SpillChange::Unchanged if changes.is_fresh => return Ok(None),
                SpillChange::Unchanged => {}
            }
        }
        match self.base_dnode(object)?.and_then(|phys| phys.spill) {
            Some(pointer) if !pointer.is_hole() => {
                self.fetch(&pointer, object, 0, SPILL_BLKID).map(Some)
            }
            _ => Ok(None),
        }
    }

    fn corrupt(&self, object: u64, cause: DmuError) -> TxStop {
        Error::corrupt(cause).in_object(self.id, object).into()
    }
}

/// Checks that a pointer matches its place.
pub(super) fn check(pointer: &BlockPtr, tree: &Geometry, level: u8) -> Result<(), DmuError> {
    if pointer.level() != level {
        return Err(DmuError::Level { found: pointer.level(), expected: level });
    }
    let (found, expected) = (pointer.lsize(), tree.size_at(level));
    if found != expected && !pointer.is_redacted() {
        return Err(DmuError::BlockSize { found, expected });
    }
    Ok(())
}
