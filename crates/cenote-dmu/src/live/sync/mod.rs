//! Writing a layer over the tree that the layer before it left: one pass of one object set.
//!
//!     each object:    its tree from the data up, its spill block          (`object`, `tree`)
//!                     -> its dnode, put into its block of dnodes          (`meta`)
//!     accounting:     what owners have more and less -> objects -1 .. -3  (`accounting`)
//!     meta-dnode:     its tree, with the changed blocks of dnodes as data (`tree`)
//!     root block:     meta-dnode, accounting dnodes, log header, flags
//!
//! Accounting is put into the root that is written with the objects, where OpenZFS writes the root
//! twice; what counts is that the root of the txg has it (spec 02 §12.2).
//!
//! Invariants, checked in release builds: a broken one is an error of `Kind::Invariant`, upon which
//! the pool is suspended before the uberblock.
//! * D1  A freed object's blocks add up to what its dnode is charged.
//! * D2  What a dnode is charged is the sum over its blocks: each replacement moves it by the
//!   difference, and it never goes below zero.
//! * D3  A written pointer has the level, the size and the birth that were asked for; its fill is
//!   the sum of those below.
//! * D4  A layer changes an object only if the tree has it, and allocates it only if not.
//!
//! Blocks of at most [`IN_FLIGHT_MAX`] bytes are being written at a time, and one if it is longer;
//! the tree above them is in memory only along the paths in work.

mod accounting;
mod meta;
mod object;
mod tree;

use std::sync::{Arc, Mutex, PoisonError};

use cenote_block::policy::BlockSpec;
use cenote_block::{Draft, How, WriteContext, Written};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_OBJSET};
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::{
    GROUPUSED_OBJECT, ObjSetPhys, ObjSetType, PROJECTUSED_OBJECT, USERUSED_OBJECT,
};
use cenote_rt::{Buf, Error, Kind, Result, Semaphore, SemaphorePermit};

use super::blocks::Blocks;
use super::context::{Facts, Owner, SyncContext, Synced};
use super::error::LiveError;
use super::layer::{Head, Layer};
use super::set::Live;
use super::view::Tree;
use crate::objset::META_DNODE;

/// Bytes of a set that are being written at a time: enough to join small blocks to long writes.
const IN_FLIGHT_MAX: u64 = 16 << 20;
/// What they are counted in.
const IN_FLIGHT_UNIT: u64 = 512;

/// What one pass needs everywhere.
pub(super) struct Job<'a> {
    pub(super) blocks: &'a dyn Blocks,
    pub(super) id: u64,
    pub(super) kind: ObjSetType,
    pub(super) context: &'a SyncContext<'a>,
    in_flight: Semaphore,
    facts: Mutex<Facts>,
}

/// An object before and after.
pub(super) struct Change {
    pub(super) object: u64,
    pub(super) before: Option<DnodePhys>,
    pub(super) after: Option<DnodePhys>,
    pub(super) owner_before: Option<Owner>,
    pub(super) owner_after: Option<Owner>,
}

/// What a block is, and the bytes that it is to have.
pub(super) struct Block {
    pub(super) data: Buf,
    pub(super) place: Bookmark,
    pub(super) spec: BlockSpec,
    pub(super) fill: u64,
}

/// Runs a pass.
pub(super) async fn run(live: &Live, context: &SyncContext<'_>) -> Result<Synced> {
    let (layer, tree) = start(live, context.txg)?;
    let result = write(live, context, &layer, &tree).await;
    let mut state = live.lock();
    state.is_syncing = false;
    let (synced, tree, changes) = result?;
    if synced.is_changed {
        state.synced = tree;
        state.synced_txg = Some(context.txg);
    }
    drop(layer);
    for change in &changes {
        refresh(&mut state.layers, change);
    }
    Ok(synced)
}

/// Seals what changed since the last pass, and gives it with the tree to write it over.
fn start(live: &Live, txg: u64) -> Result<(Arc<Layer>, Tree)> {
    let mut state = live.lock();
    let is_older = |e: &super::set::Entry| e.txg < txg;
    let found = match state.synced_txg {
        _ if state.is_syncing => Some("another pass is under way"),
        Some(synced) if synced != txg => Some("another txg is not committed"),
        _ if state.layers.iter().any(is_older) => Some("an older txg is not committed"),
        _ => None,
    };
    if let Some(found) = found {
        return Err(live.broken(LiveError::SyncOrder { txg, found }));
    }
    let open = state.layers.iter_mut().find(|entry| entry.is_open(txg));
    let layer = open.map(|entry| {
        entry.is_sealed = true;
        Arc::clone(&entry.layer)
    });
    state.is_syncing = true;
    Ok((layer.unwrap_or_default(), state.synced.clone()))
}

async fn write(
    live: &Live,
    context: &SyncContext<'_>,
    layer: &Layer,
    tree: &Tree,
) -> Result<(Synced, Tree, Vec<Change>)> {
    if layer.is_empty() && !tree.root.is_hole() {
        let facts = Facts::default();
        let flags = tree.phys.flags;
        let synced = Synced { root: tree.root, is_changed: false, facts, flags };
        return Ok((synced, tree.clone(), Vec::new()));
    }
    let job = Job {
        blocks: &*live.blocks,
        id: live.id,
        kind: tree.phys.kind,
        context,
        in_flight: Semaphore::new((IN_FLIGHT_MAX / IN_FLIGHT_UNIT) as usize),
        facts: Mutex::default(),
    };
    job.note(Facts { has_long_name: layer.has_long_name, ..Facts::default() });
    let (meta_dnode, changes) = job.write_objects(layer, &tree.phys.meta_dnode).await?;
    let mut phys = ObjSetPhys { meta_dnode, ..(*tree.phys).clone() };
    job.account(tree, &mut phys, &changes).await?;
    phys.zil_header = layer.zil_header.unwrap_or(phys.zil_header);
    phys.flags = layer.flags.unwrap_or(phys.flags);
    phys.len = phys.len.max(context.policy.root_len());
    let root = job.write_root(&phys, &tree.root).await?;
    let facts = *job.facts.lock().unwrap_or_else(PoisonError::into_inner);
    let synced = Synced { root, is_changed: true, facts, flags: phys.flags };
    Ok((synced, Tree::new(root, phys), changes))
}

/// Gives newer layers the fields of an object that writing determined.
fn refresh(layers: &mut std::collections::VecDeque<super::set::Entry>, change: &Change) {
    let Some(after) = &change.after else { return };
    for entry in layers.iter_mut().filter(|entry| !entry.is_sealed) {
        let Some(layer) = Arc::get_mut(&mut entry.layer) else { continue };
        let Some(changes) = layer.objects.get_mut(&change.object) else { continue };
        if let Head::Alive(head) = &mut changes.head
            && !changes.is_fresh
        {
            object::take_written(Arc::make_mut(head), after);
        }
    }
}

impl Job<'_> {
    /// Writes a block in the place of `old`, and tells who accounts. Gives the pointer and the
    /// bytes that are charged on top.
    pub(super) async fn write_block(
        &self,
        block: Block,
        old: &BlockPtr,
    ) -> Result<(BlockPtr, i64)> {
        let _room = self.room(block.data.len() as u64).await?;
        let draft = self.draft(block, *old)?;
        let written = self.blocks.write(&draft).await?;
        self.settle(&draft, written)
    }

    /// Waits until so many bytes more may be on their way. Who has room waits for no more of it.
    pub(super) async fn room(&self, bytes: u64) -> Result<SemaphorePermit<'_>> {
        let units = bytes.min(IN_FLIGHT_MAX).div_ceil(IN_FLIGHT_UNIT) as u32;
        self.in_flight.acquire_many(units).await.map_err(|error| Error::new(Kind::Io, error))
    }

    /// A block that is to be written in the place of `old`.
    pub(super) fn draft(&self, block: Block, old: BlockPtr) -> Result<Draft> {
        let Block { data, place, spec, fill } = block;
        let policy = self.context.policy.policy(&spec)?;
        Ok(Draft { data, policy, old, context: self.write_context(place, fill) })
    }

    /// Looks at what became of a draft, and tells who accounts. Gives what
    /// [`write_block`](Self::write_block) gives.
    pub(super) fn settle(&self, draft: &Draft, written: Written) -> Result<(BlockPtr, i64)> {
        let Draft { data, policy, old, context } = draft;
        let lsize = data.len() as u64;
        let txg = context.txg;
        let new = written.bp;
        let is_as_asked = match written.how {
            How::Kept => new == *old,
            How::Hole => new.is_hole(),
            _ => new.birth() == txg && new.level() == policy.level && new.lsize() == lsize,
        };
        if !is_as_asked {
            let (level, birth, lsize) = (new.level(), new.birth(), new.lsize());
            return Err(broken(&context.place, LiveError::WrittenShape { level, birth, lsize }));
        }
        Ok((new, self.replaced(old, &new, written.how)))
    }

    pub(super) fn write_context(&self, place: Bookmark, fill: u64) -> WriteContext {
        let SyncContext { txg, pass, .. } = *self.context;
        WriteContext { fill, ..WriteContext::new(txg, pass, place) }
    }

    /// Takes a block that was written before this sync, in its txg; gives the bytes that are
    /// charged on top.
    pub(super) fn adopt(&self, old: &BlockPtr, new: &BlockPtr) -> Result<i64> {
        if new.birth() != self.context.txg {
            let (level, birth, lsize) = (new.level(), new.birth(), new.lsize());
            let place = self.place(0, level, 0);
            return Err(broken(&place, LiveError::WrittenShape { level, birth, lsize }));
        }
        Ok(self.replaced(old, new, How::New))
    }

    /// Tells who accounts that a pointer took the place of another; gives the difference in space.
    fn replaced(&self, old: &BlockPtr, new: &BlockPtr, how: How) -> i64 {
        if !how.replaces() {
            return 0;
        }
        let freed = self.kill(old);
        if new.is_hole() {
            return -freed;
        }
        self.context.sink.born(new);
        let mut facts = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        *facts = facts.and(Facts::of_block(new));
        self.blocks.dsize(new) as i64 - freed
    }

    /// Tells who accounts that a block is gone; gives the bytes that it was charged.
    pub(super) fn kill(&self, old: &BlockPtr) -> i64 {
        if old.is_hole() {
            return 0;
        }
        self.context.sink.killed(old);
        self.blocks.dsize(old) as i64
    }

    /// The birth of a hole punched now.
    pub(super) fn hole_birth(&self) -> u64 {
        if self.context.policy.has_hole_births() { self.context.txg } else { 0 }
    }

    pub(super) fn note(&self, facts: Facts) {
        let mut all = self.facts.lock().unwrap_or_else(PoisonError::into_inner);
        *all = all.and(facts);
    }

    pub(super) fn place(&self, object: u64, level: u8, blkid: u64) -> Bookmark {
        Bookmark { objset: self.id, object, level: level.into(), blkid }
    }

    async fn write_root(&self, phys: &ObjSetPhys, old: &BlockPtr) -> Result<BlockPtr> {
        let place = Bookmark { objset: self.id, object: 0, level: LEVEL_OBJSET, blkid: 0 };
        let block = Block {
            data: Buf::from(phys.encode()),
            place,
            spec: BlockSpec::new(ObjectType::OBJSET, 0),
            fill: phys.meta_dnode.blkptrs.iter().map(BlockPtr::fill).sum(),
        };
        Ok(self.write_block(block, old).await?.0)
    }
}

/// A broken invariant.
pub(super) fn broken(place: &Bookmark, cause: LiveError) -> Error {
    let error = Error::new(Kind::Invariant, cause).in_object(place.objset, place.object);
    match u8::try_from(place.level) {
        Ok(level) => error.in_block(level, place.blkid),
        Err(_) => error,
    }
}

/// The dnode of an accounting object in the root block.
pub(super) fn special_mut(phys: &mut ObjSetPhys, object: u64) -> Option<&mut Option<DnodePhys>> {
    match object {
        USERUSED_OBJECT => Some(&mut phys.userused_dnode),
        GROUPUSED_OBJECT => Some(&mut phys.groupused_dnode),
        PROJECTUSED_OBJECT => Some(&mut phys.projectused_dnode),
        META_DNODE.. => None,
    }
}
