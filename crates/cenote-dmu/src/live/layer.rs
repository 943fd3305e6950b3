//! Changes in memory: of an object, and of all objects in one txg (or one pass of it).
//!
//! An object that is touched at all has its dnode here as it is to become. Of that dnode the fields
//! that only writing determines (pointers, levels, space, the accounting flags) are those of the
//! tree that was synced last, and are taken from there again when it is synced.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::objset::{ObjSetFlags, ZIL_HEADER_LEN};
use cenote_ranges::RangeSet;
use cenote_rt::Buf;

use super::error::LiveError;
use super::footprint::{DnodeFootprint, Footprint, ObjectFootprint};

/// What a changed object counts beside its blocks.
const OBJECT_BYTES: u64 = 512;

/// What an object is at the end of a layer.
#[derive(Debug, Clone)]
pub(super) enum Head {
    /// Allocated.
    Alive(Arc<DnodePhys>),
    /// Free; it had so many slots.
    Freed {
        /// Slots that it took.
        slots: usize,
    },
}

/// What happened to the spill block.
#[derive(Debug, Clone, Default)]
pub(super) enum SpillChange {
    /// Nothing.
    #[default]
    Unchanged,
    /// It has this content.
    Set(Buf),
    /// It is gone.
    Removed,
}

/// The changes of an object.
#[derive(Debug, Clone)]
pub(super) struct ObjectLayer {
    /// What it is at the end.
    pub(super) head: Head,
    /// Whether it was allocated in this layer: nothing older shows through.
    pub(super) is_fresh: bool,
    /// Numbers of blocks that were freed before the writes.
    pub(super) frees: RangeSet,
    /// Blocks as they are to become.
    pub(super) blocks: BTreeMap<u64, Buf>,
    /// Those of `blocks` that are on disk already, as they are.
    pub(super) early: BTreeMap<u64, BlockPtr>,
    /// What becomes of blocks of the layer below: see [`Patch`].
    patches: BTreeMap<u64, Patch>,
    /// The spill block.
    pub(super) spill: SpillChange,
    /// Bytes of `blocks`.
    block_bytes: u64,
    footprint: ObjectFootprint,
}

/// Changes of an object set.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer {
    /// By object number.
    pub(super) objects: BTreeMap<u64, ObjectLayer>,
    /// The header of the intent log.
    pub(super) zil_header: Option<[u8; ZIL_HEADER_LEN]>,
    /// The flags of the set.
    pub(super) flags: Option<ObjSetFlags>,
    /// Objects allocated less objects freed.
    pub(super) count_delta: i64,
    /// Bytes that it keeps in memory.
    pub(super) dirty_bytes: u64,
    /// What syncing it writes.
    pub(super) footprint: Footprint,
    dnodes: DnodeFootprint,
    /// A directory got a name of more than 255 bytes.
    pub(super) has_long_name: bool,
}

impl ObjectLayer {
    /// An object that was not changed yet.
    pub(super) fn of(head: Arc<DnodePhys>) -> Self {
        Self {
            head: Head::Alive(head),
            is_fresh: false,
            frees: RangeSet::new(),
            blocks: BTreeMap::new(),
            early: BTreeMap::new(),
            patches: BTreeMap::new(),
            spill: SpillChange::Unchanged,
            block_bytes: 0,
            footprint: ObjectFootprint::default(),
        }
    }

    /// An object that is allocated here.
    pub(super) fn fresh(head: Arc<DnodePhys>) -> Self {
        Self { is_fresh: true, ..Self::of(head) }
    }

    /// A block as it is to become.
    pub(super) fn put_block(&mut self, blkid: u64, block: Buf) {
        self.block_bytes += block.len() as u64;
        self.footprint.put(block.len());
        self.early.remove(&blkid);
        self.patches.remove(&blkid);
        match self.blocks.insert(blkid, block) {
            Some(before) => self.forget(&before),
            None => self.touch(blkid),
        }
    }

    /// A block is no longer here.
    fn forget(&mut self, block: &Buf) {
        self.block_bytes -= block.len() as u64;
        self.footprint.take(block.len());
    }

    /// What is above a block changes.
    fn touch(&mut self, blkid: u64) {
        if let Head::Alive(head) = &self.head {
            self.footprint.touch(head, blkid);
        }
    }

    /// A block out of here, for whoever changes it and puts it back.
    pub(super) fn take_block(&mut self, blkid: u64) -> Option<Buf> {
        let block = self.blocks.remove(&blkid)?;
        self.forget(&block);
        Some(block)
    }

    /// Changes bytes of a block of `len` bytes that the layer below has, without a copy of it;
    /// false where that is not possible, or not worth it.
    pub(super) fn patch_block(&mut self, blkid: u64, len: usize, at: usize, bytes: &[u8]) -> bool {
        let is_own = self.is_fresh || self.blocks.contains_key(&blkid);
        let is_freed = self.frees.find(blkid).is_some();
        let before = self.patches.get(&blkid).map_or(0, |patch| patch.bytes);
        // Much of it costs more than the block.
        if is_own || is_freed || before + bytes.len() > len / 2 {
            return false;
        }
        self.patches.entry(blkid).or_default().add(at, bytes);
        true
    }

    /// What becomes of a block of the layer below.
    pub(super) fn patch(&self, blkid: u64) -> Option<&Patch> {
        self.patches.get(&blkid)
    }

    /// The dnode, if the object is allocated.
    pub(super) fn alive(&self) -> Option<&Arc<DnodePhys>> {
        match &self.head {
            Head::Alive(head) => Some(head),
            Head::Freed { .. } => None,
        }
    }

    /// Slots that the object takes or took.
    pub(super) fn slots(&self) -> usize {
        match &self.head {
            Head::Alive(head) => head.slots(),
            Head::Freed { slots } => *slots,
        }
    }

    /// Forgets changed blocks of a range, and frees what is below.
    pub(super) fn free(&mut self, blocks: std::ops::Range<u64>) {
        let freed: Vec<u64> = self.blocks.range(blocks.clone()).map(|(blkid, _)| *blkid).collect();
        for blkid in freed {
            self.early.remove(&blkid);
            if let Some(before) = self.blocks.remove(&blkid) {
                self.forget(&before);
            }
        }
        self.patches.retain(|blkid, _| !blocks.contains(blkid));
        // What is above goes as well, but at the edges.
        if !blocks.is_empty() {
            self.touch(blocks.start);
            self.touch(blocks.end - 1);
        }
        self.frees.add(blocks);
    }

    /// The object is freed.
    pub(super) fn set_freed(&mut self) {
        self.head = Head::Freed { slots: self.slots() };
        self.frees.clear();
        self.blocks.clear();
        self.early.clear();
        self.patches.clear();
        self.block_bytes = 0;
        self.footprint = ObjectFootprint::default();
        self.spill = SpillChange::Unchanged;
    }

    fn spill_len(&self) -> Option<usize> {
        match &self.spill {
            SpillChange::Set(block) => Some(block.len()),
            SpillChange::Unchanged | SpillChange::Removed => None,
        }
    }

    fn bytes(&self) -> u64 {
        OBJECT_BYTES + self.spill_len().unwrap_or(0) as u64 + self.block_bytes
    }

    fn footprint(&self) -> Footprint {
        self.footprint.total(self.alive().map(|head| &**head), self.spill_len())
    }

    /// Puts later changes of the same object on top.
    fn merge(&mut self, later: Self) -> Result<(), LiveError> {
        if later.is_fresh {
            *self = later;
            return Ok(());
        }
        if let Head::Freed { .. } = later.head {
            self.set_freed();
            return Ok(());
        }
        self.head = later.head;
        for range in later.frees.iter() {
            self.free(range);
        }
        for (blkid, block) in later.blocks {
            self.put_block(blkid, block);
        }
        for (blkid, patch) in later.patches {
            let block = self.take_block(blkid);
            let block = block.ok_or(LiveError::Layer("a block that was changed is not there"))?;
            self.put_block(blkid, patch.applied(block));
        }
        if !matches!(later.spill, SpillChange::Unchanged) {
            self.spill = later.spill;
        }
        Ok(())
    }
}

/// Bytes of a block that the layer has on which a transaction's changes come to lie. Whoever
/// changes a few of them need not copy all of it, though he may give up in the middle: they are
/// changed in place when he is done.
#[derive(Debug, Clone, Default)]
pub(super) struct Patch {
    /// By their places, in the order of writing.
    pieces: Vec<(usize, Vec<u8>)>,
    bytes: usize,
}

impl Patch {
    fn add(&mut self, at: usize, bytes: &[u8]) {
        self.bytes += bytes.len();
        self.pieces.push((at, bytes.to_vec()));
    }

    /// The block with these bytes: the same one, if nobody else holds it.
    pub(super) fn applied(&self, block: Buf) -> Buf {
        let mut block = block.into_mut();
        for (at, bytes) in &self.pieces {
            if let Some(target) = block.get_mut(*at..*at + bytes.len()) {
                target.copy_from_slice(bytes);
            }
        }
        block.freeze()
    }
}

impl Layer {
    /// Whether nothing was changed.
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.zil_header.is_none() && self.flags.is_none()
    }

    /// Puts later changes on top.
    pub(super) fn merge(&mut self, later: Self) -> Result<(), LiveError> {
        for (object, changes) in later.objects {
            self.footprint += self.dnodes.touch(object);
            match self.objects.entry(object) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    if !changes.patches.is_empty() {
                        return Err(LiveError::Layer("an object that was changed is not there"));
                    }
                    self.dirty_bytes += changes.bytes();
                    self.footprint += changes.footprint();
                    entry.insert(changes);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    let before = entry.get().bytes();
                    self.footprint -= entry.get().footprint();
                    entry.get_mut().merge(changes)?;
                    self.footprint += entry.get().footprint();
                    self.dirty_bytes = self.dirty_bytes + entry.get().bytes() - before;
                }
            }
        }
        self.zil_header = later.zil_header.or(self.zil_header);
        self.flags = later.flags.or(self.flags);
        self.count_delta += later.count_delta;
        self.has_long_name |= later.has_long_name;
        Ok(())
    }
}
