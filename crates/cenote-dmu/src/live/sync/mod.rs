//! Writes a layer over the tree that the previous layer left: one pass of one object set.
//!
//!     each object:    its tree from the data up, its spill block          (`object`, `tree`)
//!                     -> its dnode, put into its block of dnodes          (`meta`)
//!     accounting:     changes of space by owner -> objects -1 .. -3       (`accounting`)
//!     meta-dnode:     its tree, with the changed blocks of dnodes as data (`tree`)
//!     root block:     meta-dnode, accounting dnodes, log header, flags
//!
//! The accounting is included in the root block that is written with the objects, while OpenZFS
//! writes the root twice; only the final root of the txg matters (spec 02 §12.2).
//!
//! Invariants, of which a violation stops the pool before the uberblock is written
//! * D1  A freed object's blocks add up to the space in its dnode, or to less if some were leaked.
//! * D2  The space in a dnode is the sum over its blocks: each replacement changes it by the
//!   difference, and it never goes below zero.
//! * D3  A written pointer has the requested level, size and birth; its fill is the sum of those
//!   below.
//! * D4  A layer changes an object only if the tree has it, and allocates it only if not.
//! * D5  Every changed block gets its pointer into the entry of its parent.
//! * D6  A dnode lies within its block, in slots that no other dnode has.
//! * D7  Each changed object of a layer is written once.
//!
//! At most [`IN_FLIGHT_MAX`] bytes of blocks are written at a time, or one longer block; of the
//! tree above them only the paths being processed are in memory.

mod accounting;
mod meta;
mod object;
mod tree;

use std::sync::Arc;

use cenote_block::policy::BlockSpec;
use cenote_block::{Draft, SealKeys, SentForm, WriteContext, WriteMethod, Written};
use cenote_codec::crypto::{ByteOrder, CryptError};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_OBJSET};
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::{
    GROUPUSED_OBJECT, ObjSetFlags, ObjSetPhys, ObjSetType, PROJECTUSED_OBJECT, USERUSED_OBJECT,
};
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, Error, Kind, Result, Semaphore, SemaphorePermit, ensure};

use super::blocks::Blocks;
use super::context::{Facts, Owner, Recount, SyncContext, Synced};
use super::error::LiveError;
use super::layer::{Head, Layer};
use super::set::Live;
use super::view::Tree;
use crate::objset::META_DNODE;

/// Most bytes of a set in flight: enough to aggregate small blocks into long writes.
const IN_FLIGHT_MAX: u64 = 16 << 20;
/// Unit in which they are counted.
const IN_FLIGHT_UNIT: u64 = 512;
/// The root block.
const ROOT: BlockSpec = BlockSpec::new(ObjectType::OBJSET, 0);

/// Shared state of one pass.
pub(super) struct SyncPass<'a> {
    pub(super) blocks: &'a dyn Blocks,
    pub(super) id: u64,
    pub(super) kind: ObjSetType,
    pub(super) context: &'a SyncContext<'a>,
    /// Whether the set is encrypted.
    is_encrypted: bool,
    /// Whether written objects lose the marks of being accounted.
    is_forgetting: bool,
    /// Its keys, if they are loaded.
    keys: Option<Arc<SealKeys>>,
    in_flight: Semaphore,
    facts: Mutex<Facts>,
}

/// An object before and after a pass.
pub(super) struct Change {
    pub(super) object: u64,
    pub(super) before: Option<DnodePhys>,
    pub(super) after: Option<DnodePhys>,
    pub(super) owner_before: Option<Owner>,
    pub(super) owner_after: Option<Owner>,
}

/// The kind of a block, and its new contents.
pub(super) struct Block {
    pub(super) data: Buf,
    pub(super) place: Bookmark,
    pub(super) spec: BlockSpec,
    pub(super) fill: u64,
}

/// Runs a pass.
pub(super) async fn run(live: &Live, context: &SyncContext<'_>) -> Result<Synced> {
    let Started { layer, tree, is_forgetting } = start(live, context.txg)?;
    let result = write(live, context, &layer, &tree, is_forgetting).await;
    let mut state = live.lock();
    state.is_syncing = false;
    let (synced, tree, changes) = result?;
    if synced.is_changed {
        state.synced = tree;
        state.synced_txg = Some(context.txg);
    }
    drop(layer);
    if is_on(Bug::DirtyDroppedEarly) {
        state.layers.retain(|entry| !entry.is_sealed);
    }
    for change in &changes {
        refresh(&mut state.layers, change)?;
    }
    Ok(synced)
}

/// What a pass writes.
struct Started {
    /// The changes since the last pass.
    layer: Arc<Layer>,
    /// The tree to write them over.
    tree: Tree,
    is_forgetting: bool,
}

/// Seals the layer with the changes since the last pass.
fn start(live: &Live, txg: u64) -> Result<Started> {
    let mut state = live.lock();
    let is_older = |e: &super::set::Entry| e.txg < txg;
    let found = match state.synced_txg {
        _ if state.is_syncing => Some("another pass is under way"),
        Some(synced) if synced != txg => Some("another txg is not committed"),
        _ if state.layers.iter().any(is_older) => Some("an older txg is not committed"),
        _ => None,
    };
    // Checks V1.
    if let Some(found) = found {
        return Err(live.broken(LiveError::SyncOrder { txg, found }));
    }
    let open = state.layers.iter_mut().find(|entry| entry.is_open(txg));
    let layer = open.map(|entry| {
        entry.is_sealed = true;
        Arc::clone(&entry.layer)
    });
    let layer = layer.unwrap_or_default();
    match layer.recount {
        Some(Recount::Forget) => state.is_forgetting = true,
        Some(Recount::Begin | Recount::End) => state.is_forgetting = false,
        None => {}
    }
    state.is_syncing = true;
    Ok(Started { layer, tree: state.synced.clone(), is_forgetting: state.is_forgetting })
}

async fn write(
    live: &Live,
    context: &SyncContext<'_>,
    layer: &Layer,
    tree: &Tree,
    is_forgetting: bool,
) -> Result<(Synced, Tree, Vec<Change>)> {
    if layer.is_empty() && !tree.root.is_hole() {
        let facts = Facts::default();
        let flags = tree.phys.flags;
        let synced = Synced { root: tree.root, is_changed: false, facts, flags };
        return Ok((synced, tree.clone(), Vec::new()));
    }
    let pass = SyncPass {
        blocks: &*live.blocks,
        id: live.id,
        kind: tree.phys.kind,
        context,
        is_encrypted: context.policy.policy(&ROOT)?.is_encrypted,
        is_forgetting,
        keys: live.blocks.keys(),
        in_flight: Semaphore::new((IN_FLIGHT_MAX / IN_FLIGHT_UNIT) as usize),
        facts: Mutex::with_default(Rank::PassFacts),
    };
    pass.note(Facts { has_long_name: layer.has_long_name, ..Facts::default() });
    let mut phys = (*tree.phys).clone();
    if let Some(root) = &layer.sent_root {
        root.apply(&mut phys);
    }
    let (meta_dnode, changes) = pass.write_objects(layer, &phys.meta_dnode).await?;
    phys.meta_dnode = meta_dnode;
    phys.flags = layer.flags.unwrap_or(phys.flags);
    pass.account(tree, &mut phys, &changes, layer.recount).await?;
    phys.zil_header = layer.zil_header.unwrap_or(phys.zil_header);
    phys.len = phys.len.max(context.policy.root_len());
    pass.authenticate(&mut phys)?;
    let root = pass.write_root(&phys, &tree.root).await?;
    let facts = *pass.facts.lock();
    let synced = Synced { root, is_changed: true, facts, flags: phys.flags };
    Ok((synced, Tree::new(root, phys), changes))
}

/// Copies the fields that writing determined to newer layers of the object.
fn refresh(
    layers: &mut std::collections::VecDeque<super::set::Entry>,
    change: &Change,
) -> Result<()> {
    let Some(after) = &change.after else { return Ok(()) };
    for entry in layers.iter_mut().filter(|entry| !entry.is_sealed) {
        let (txg, layer) = (entry.txg, Arc::get_mut(&mut entry.layer));
        ensure!("V1", layer.is_some(), "the open layer of txg {txg} is shared");
        let Some(layer) = layer else { continue };
        let Some(changes) = layer.objects.get_mut(&change.object) else { continue };
        if let Head::Alive(head) = &mut changes.head
            && !changes.is_fresh
        {
            object::take_written(Arc::make_mut(head), after);
        }
    }
    Ok(())
}

impl SyncPass<'_> {
    /// Writes a block in place of `old`, and reports births and deaths to the sink. Returns the
    /// pointer and the change of space.
    pub(super) async fn write_block(
        &self,
        block: Block,
        old: &BlockPtr,
    ) -> Result<(BlockPtr, i64)> {
        self.write_sent(block, None, old).await
    }

    /// Like [`write_block`](Self::write_block), for a block that was sent in another form.
    pub(super) async fn write_sent(
        &self,
        block: Block,
        sent: Option<SentForm>,
        old: &BlockPtr,
    ) -> Result<(BlockPtr, i64)> {
        let _room = self.room(block.data.len() as u64).await?;
        let draft = Draft { sent, ..self.draft(block, *old)? };
        let written = self.blocks.write(&draft).await?;
        self.finish_write(&draft, written)
    }

    /// Whether the set is encrypted, and its keys are not loaded.
    pub(super) fn is_locked(&self) -> bool {
        self.is_encrypted && self.keys.is_none()
    }

    /// Sets the MACs of an encrypted set (spec 08 §11). Without keys the first is what a stream
    /// says, and the second must be absent if the accounting is incomplete.
    fn authenticate(&self, phys: &mut ObjSetPhys) -> Result<()> {
        if !self.is_encrypted {
            return Ok(());
        }
        let is_accounted = phys.flags.contains(ObjSetFlags::USERACCOUNTING_COMPLETE);
        let Some(keys) = &self.keys else {
            if !is_accounted {
                phys.local_mac = [0; 32];
            }
            return Ok(());
        };
        let (block, keys) = (phys.encode(), keys.keys());
        let invalid = |error: CryptError| {
            Error::new(Kind::Invariant, error).with_at(|at| at.objset = Some(self.id))
        };
        phys.portable_mac = keys.portable_mac(ByteOrder::Little, &block).map_err(invalid)?;
        phys.local_mac = keys.local_mac(ByteOrder::Little, &block).map_err(invalid)?;
        Ok(())
    }

    /// Waits until `bytes` more may be in flight. A caller that holds a permit must not wait for
    /// another one.
    pub(super) async fn room(&self, bytes: u64) -> Result<SemaphorePermit<'_>> {
        let units = bytes.min(IN_FLIGHT_MAX).div_ceil(IN_FLIGHT_UNIT) as u32;
        self.in_flight.acquire_many(units).await.map_err(|error| Error::new(Kind::Io, error))
    }

    /// Prepares a block to be written in place of `old`.
    pub(super) fn draft(&self, block: Block, old: BlockPtr) -> Result<Draft> {
        let Block { data, place, spec, fill } = block;
        let policy = self.context.policy.policy(&spec)?;
        let (keys, context) = (self.keys.clone(), self.write_context(place, fill));
        Ok(Draft { data, policy, sent: None, old, keys, context })
    }

    /// Checks the result of a write, and reports births and deaths to the sink. Returns the same as
    /// [`write_block`](Self::write_block).
    pub(super) fn finish_write(&self, draft: &Draft, written: Written) -> Result<(BlockPtr, i64)> {
        let Draft { data, policy, old, context, .. } = draft;
        let lsize = data.len() as u64;
        let txg = context.txg;
        let new = written.bp;
        let is_as_asked = match written.method {
            WriteMethod::Kept => new == *old,
            WriteMethod::Hole => new.is_hole(),
            _ => new.birth() == txg && new.level() == policy.level && new.lsize() == lsize,
        };
        // Checks D3.
        if !is_as_asked {
            let (level, birth, lsize) = (new.level(), new.birth(), new.lsize());
            return Err(broken(&context.place, LiveError::WrittenShape { level, birth, lsize }));
        }
        if matches!(written.method, WriteMethod::New | WriteMethod::InPlace) {
            let (found, fill) = (new.fill(), context.fill);
            ensure!("D3", found == fill, "fill {found} of {:?}, expected {fill}", context.place);
        }
        Ok((new, self.replaced(old, &new, written.method)))
    }

    pub(super) fn write_context(&self, place: Bookmark, fill: u64) -> WriteContext {
        let SyncContext { txg, pass, .. } = *self.context;
        WriteContext { fill, ..WriteContext::new(txg, pass, place) }
    }

    /// Uses a block that was written before this sync, in its txg; returns the change of space.
    pub(super) fn adopt(&self, old: &BlockPtr, new: &BlockPtr) -> Result<i64> {
        // Checks D3.
        if new.birth() != self.context.txg {
            let (level, birth, lsize) = (new.level(), new.birth(), new.lsize());
            let place = self.place(0, level, 0);
            return Err(broken(&place, LiveError::WrittenShape { level, birth, lsize }));
        }
        Ok(self.replaced(old, new, WriteMethod::New))
    }

    /// Reports to the sink that a pointer replaced another; returns the change of space.
    fn replaced(&self, old: &BlockPtr, new: &BlockPtr, method: WriteMethod) -> i64 {
        if !method.replaces() {
            return 0;
        }
        let freed = self.kill(old);
        if new.is_hole() {
            return -freed;
        }
        self.context.sink.born(new);
        let mut facts = self.facts.lock();
        *facts = facts.and(Facts::of_block(new));
        self.blocks.dsize(new) as i64 - freed
    }

    /// Reports to the sink that a block is killed; returns the space that was charged for it.
    pub(super) fn kill(&self, old: &BlockPtr) -> i64 {
        if old.is_hole() {
            return 0;
        }
        self.context.sink.killed(old);
        self.blocks.dsize(old) as i64
    }

    /// The birth of a hole punched in this txg.
    pub(super) fn hole_birth(&self) -> u64 {
        if self.context.policy.has_hole_births() { self.context.txg } else { 0 }
    }

    pub(super) fn note(&self, facts: Facts) {
        let mut all = self.facts.lock();
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
            spec: ROOT,
            fill: phys.meta_dnode.blkptrs.iter().map(BlockPtr::fill).sum(),
        };
        Ok(self.write_block(block, old).await?.0)
    }
}

/// An error for a broken invariant.
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
