//! Changes in memory: of one object, and of all objects in one txg (or one pass of it).
//!
//! A changed object has its new dnode here. The fields that are determined by writing (pointers,
//! levels, space, the accounting flags) are those of the tree that was synced last, and are taken
//! from there again when the dnode is synced.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_block::{Seal, SentForm};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::objset::{ObjSetFlags, ZIL_HEADER_LEN};
use cenote_ranges::RangeSet;
use cenote_rt::Buf;
use cenote_rt::seeded::{Bug, is_on};

use super::SentRoot;
use super::context::Recount;
use super::error::LiveError;
use super::footprint::{DnodeFootprint, Footprint, ObjectFootprint};

/// Bytes counted for a changed object in addition to its blocks.
const OBJECT_BYTES: u64 = 512;

/// State of an object at the end of a layer.
#[derive(Debug, Clone)]
pub(super) enum Head {
    /// Allocated.
    Alive(Arc<DnodePhys>),
    /// Free.
    Freed {
        /// Number of slots that it had.
        slots: usize,
    },
}

/// Change of the spill block.
#[derive(Debug, Clone, Default)]
pub(super) enum SpillChange {
    /// No change.
    #[default]
    Unchanged,
    /// New contents, and the form in which they were sent.
    Set(Buf, Option<SentForm>),
    /// Removed.
    Removed,
}

/// Changes of an object.
#[derive(Debug, Clone)]
pub(super) struct ObjectLayer {
    /// State at the end.
    pub(super) head: Head,
    /// Whether it was allocated in this layer, so that older layers and the tree are ignored.
    pub(super) is_fresh: bool,
    /// Numbers of blocks that were freed before the writes.
    pub(super) frees: RangeSet,
    /// New contents of blocks.
    pub(super) blocks: BTreeMap<u64, Buf>,
    /// Forms in which blocks in `blocks` were sent, and are stored.
    pub(super) forms: BTreeMap<u64, SentForm>,
    /// Blocks in `blocks` that were already written to disk (see [`early`](super::early)).
    pub(super) early: BTreeMap<u64, BlockPtr>,
    /// Partial changes of blocks of the layer below: see [`Patch`].
    patches: BTreeMap<u64, Patch>,
    /// Change of the spill block.
    pub(super) spill: SpillChange,
    /// Total length of `blocks` and `forms` in bytes.
    block_bytes: u64,
    footprint: ObjectFootprint,
}

/// Changes of an object set.
#[derive(Debug, Clone, Default)]
pub(super) struct Layer {
    /// By object number.
    pub(super) objects: BTreeMap<u64, ObjectLayer>,
    /// New header of the intent log.
    pub(super) zil_header: Option<[u8; ZIL_HEADER_LEN]>,
    /// New flags of the set.
    pub(super) flags: Option<ObjSetFlags>,
    /// Step of counting anew what each owner has.
    pub(super) recount: Option<Recount>,
    /// What a stream says of the root of a set that is received without its keys.
    pub(super) sent_root: Option<SentRoot>,
    /// What protects blocks of dnodes that another pool has encrypted, by their number.
    pub(super) seals: BTreeMap<u64, Seal>,
    /// Number of objects allocated minus number freed.
    pub(super) count_delta: i64,
    /// Bytes kept in memory.
    pub(super) dirty_bytes: u64,
    /// Blocks that syncing this layer will write.
    pub(super) footprint: Footprint,
    dnodes: DnodeFootprint,
    /// Whether a directory got a name of more than 255 bytes.
    pub(super) has_long_name: bool,
}

impl ObjectLayer {
    /// An object without changes.
    pub(super) fn of(head: Arc<DnodePhys>) -> Self {
        Self {
            head: Head::Alive(head),
            is_fresh: false,
            frees: RangeSet::new(),
            blocks: BTreeMap::new(),
            forms: BTreeMap::new(),
            early: BTreeMap::new(),
            patches: BTreeMap::new(),
            spill: SpillChange::Unchanged,
            block_bytes: 0,
            footprint: ObjectFootprint::default(),
        }
    }

    /// An object that is allocated in this layer.
    pub(super) fn fresh(head: Arc<DnodePhys>) -> Self {
        Self { is_fresh: true, ..Self::of(head) }
    }

    /// Sets the new contents of a block.
    pub(super) fn put_block(&mut self, blkid: u64, block: Buf) {
        self.block_bytes += block.len() as u64;
        self.footprint.put(block.len());
        if !is_on(Bug::EarlyBlockOutdated) {
            self.early.remove(&blkid);
        }
        self.patches.remove(&blkid);
        self.drop_form(blkid);
        match self.blocks.insert(blkid, block) {
            Some(before) => self.forget(&before),
            None => self.touch(blkid),
        }
    }

    /// Whether all of its new contents are in the form in which another pool has stored them.
    fn is_sealed(&self) -> bool {
        let is_sent = |form: Option<&SentForm>| form.is_some_and(|form| form.seal.is_some());
        let spill = match &self.spill {
            SpillChange::Set(_, form) => is_sent(form.as_ref()),
            SpillChange::Unchanged | SpillChange::Removed => true,
        };
        let mut blocks = self.blocks.keys();
        spill && self.patches.is_empty() && blocks.all(|blkid| is_sent(self.forms.get(blkid)))
    }

    /// Sets the form in which a block that has just been put is stored.
    pub(super) fn set_form(&mut self, blkid: u64, form: SentForm) {
        self.drop_form(blkid);
        self.block_bytes += form.bytes.len() as u64;
        self.forms.insert(blkid, form);
    }

    /// Forgets the form of a block whose contents change.
    fn drop_form(&mut self, blkid: u64) {
        if let Some(form) = self.forms.remove(&blkid) {
            let len = form.bytes.len() as u64;
            // Checks V8.
            self.block_bytes = self.block_bytes.checked_sub(len).expect("a part");
        }
    }

    /// Removes a block from the totals.
    fn forget(&mut self, block: &Buf) {
        // Checks V8.
        self.block_bytes = self.block_bytes.checked_sub(block.len() as u64).expect("a part");
        self.footprint.take(block.len());
    }

    /// Counts the indirect blocks above a changed block.
    fn touch(&mut self, blkid: u64) {
        if let Head::Alive(head) = &self.head {
            self.footprint.touch(head, blkid);
        }
    }

    /// Removes and returns a block, for a caller that changes it and puts it back.
    pub(super) fn take_block(&mut self, blkid: u64) -> Option<Buf> {
        let block = self.blocks.remove(&blkid)?;
        self.drop_form(blkid);
        self.forget(&block);
        Some(block)
    }

    /// Changes bytes of a block of `len` bytes in the layer below, without copying it; returns
    /// false if that is not possible, or not worth it.
    pub(super) fn patch_block(&mut self, blkid: u64, len: usize, at: usize, bytes: &[u8]) -> bool {
        let is_own = self.is_fresh || self.blocks.contains_key(&blkid);
        let is_freed = self.frees.find(blkid).is_some();
        let before = self.patches.get(&blkid).map_or(0, |patch| patch.bytes);
        // A large patch costs more than the block.
        if is_own || is_freed || before + bytes.len() > len / 2 {
            return false;
        }
        self.patches.entry(blkid).or_default().add(at, bytes);
        true
    }

    /// The patch for a block of the layer below.
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

    /// Number of slots that the object has or had.
    pub(super) fn slots(&self) -> usize {
        match &self.head {
            Head::Alive(head) => head.slots(),
            Head::Freed { slots } => *slots,
        }
    }

    /// Drops changed blocks of a range, and frees the blocks below the layer.
    pub(super) fn free(&mut self, blocks: std::ops::Range<u64>) {
        let freed: Vec<u64> = self.blocks.range(blocks.clone()).map(|(blkid, _)| *blkid).collect();
        for blkid in freed {
            self.early.remove(&blkid);
            self.drop_form(blkid);
            if let Some(before) = self.blocks.remove(&blkid) {
                self.forget(&before);
            }
        }
        self.patches.retain(|blkid, _| !blocks.contains(blkid));
        // Indirect blocks of the range are freed as well, except at its edges.
        if !blocks.is_empty() {
            self.touch(blocks.start);
            self.touch(blocks.end - 1);
        }
        self.frees.add(blocks);
    }

    /// Marks the object as freed.
    pub(super) fn set_freed(&mut self) {
        self.head = Head::Freed { slots: self.slots() };
        self.frees.clear();
        self.blocks.clear();
        self.forms.clear();
        self.early.clear();
        self.patches.clear();
        self.block_bytes = 0;
        self.footprint = ObjectFootprint::default();
        self.spill = SpillChange::Unchanged;
    }

    fn spill_len(&self) -> Option<usize> {
        match &self.spill {
            SpillChange::Set(block, _) => Some(block.len()),
            SpillChange::Unchanged | SpillChange::Removed => None,
        }
    }

    fn bytes(&self) -> u64 {
        OBJECT_BYTES + self.spill_len().unwrap_or(0) as u64 + self.block_bytes
    }

    fn footprint(&self) -> Footprint {
        self.footprint.total(self.alive().map(|head| &**head), self.spill_len())
    }

    /// Merges later changes of the same object into this one.
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
        for (blkid, form) in later.forms {
            self.set_form(blkid, form);
        }
        for (blkid, patch) in later.patches {
            let block = self.take_block(blkid);
            // Checks V6.
            let block = block.ok_or(LiveError::Layer("a patched block is missing"))?;
            self.put_block(blkid, patch.applied(block));
        }
        if !matches!(later.spill, SpillChange::Unchanged) {
            self.spill = later.spill;
        }
        Ok(())
    }
}

/// Changes of a few bytes of a block in the layer below. A transaction that changes a few bytes
/// does not copy the whole block, though it may still be dropped: the bytes are changed in place
/// when its overlay is merged.
#[derive(Debug, Clone, Default)]
pub(super) struct Patch {
    /// Changed bytes with their offsets, in the order of writing.
    pieces: Vec<(usize, Vec<u8>)>,
    bytes: usize,
}

impl Patch {
    fn add(&mut self, at: usize, bytes: &[u8]) {
        self.bytes += bytes.len();
        self.pieces.push((at, bytes.to_vec()));
    }

    /// Returns the block with these changes: the same buffer, if it is not shared.
    pub(super) fn applied(&self, block: Buf) -> Buf {
        let mut block = block.into_mut();
        for (at, bytes) in &self.pieces {
            // Checks V6: the block has the size for which the patch was made.
            let target = block.get_mut(*at..*at + bytes.len()).expect("a part of the block");
            target.copy_from_slice(bytes);
        }
        block.freeze()
    }
}

impl Layer {
    /// Returns an object that has new contents which another pool has not encrypted.
    pub(super) fn unsealed(&self) -> Option<u64> {
        let object = self.objects.iter().find(|(_, object)| !object.is_sealed());
        object.map(|(number, _)| *number)
    }

    /// Whether nothing was changed.
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty()
            && self.zil_header.is_none()
            && self.flags.is_none()
            && self.recount.is_none()
            && self.sent_root.is_none()
    }

    /// Merges later changes into this layer.
    pub(super) fn merge(&mut self, later: Self) -> Result<(), LiveError> {
        for (object, changes) in later.objects {
            self.footprint += self.dnodes.touch(object);
            match self.objects.entry(object) {
                std::collections::btree_map::Entry::Vacant(entry) => {
                    // Checks V6.
                    if !changes.patches.is_empty() {
                        return Err(LiveError::Layer("a changed object is missing"));
                    }
                    self.dirty_bytes += changes.bytes();
                    self.footprint += changes.footprint();
                    entry.insert(changes);
                }
                std::collections::btree_map::Entry::Occupied(mut entry) => {
                    let before = entry.get().bytes();
                    let part = entry.get().footprint();
                    // Checks V8.
                    if before > self.dirty_bytes || !self.footprint.contains(&part) {
                        return Err(LiveError::Layer("an object has more than its layer"));
                    }
                    self.footprint -= part;
                    entry.get_mut().merge(changes)?;
                    self.footprint += entry.get().footprint();
                    self.dirty_bytes = self.dirty_bytes + entry.get().bytes() - before;
                }
            }
        }
        self.zil_header = later.zil_header.or(self.zil_header);
        self.flags = later.flags.or(self.flags);
        self.recount = later.recount.or(self.recount);
        self.sent_root = later.sent_root.or(self.sent_root);
        self.seals.extend(later.seals);
        self.count_delta += later.count_delta;
        self.has_long_name |= later.has_long_name;
        Ok(())
    }
}
