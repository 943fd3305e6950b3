//! The writable object set.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use cenote_block::Since;
use cenote_ondisk::blkptr::{BlockPtr, SECTOR_SIZE};
use cenote_ondisk::dnode::{BLKPTRS_MAX, DNODE_BLOCK_LEN, DNODE_SLOTS_MAX, DnodePhys, OBJECT_MAX};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::{OBJSET_V3_LEN, ObjSetFlags, ObjSetPhys, ObjSetType, ZIL_HEADER_LEN};
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{Error, Kind, Result, ensure};

use super::alloc::Cursor;
use super::blocks::Blocks;
use super::context::{SyncContext, Synced};
use super::error::LiveError;
use super::footprint::Footprint;
use super::layer::Layer;
use super::object::new_dnode;
use super::stop::{ObjectSpec, TxResult, TxStop};
use super::tx::{Source, Tx};
use super::view::{Fetched, Tree};
use crate::geometry::Geometry;
use crate::objset::ObjSet;

/// Log2 of the number of objects that the meta-dnode of a new set can address.
const OBJECTS_SHIFT: u32 = 48;
/// Number of times that an apply starts over because the tree was replaced.
pub(super) const REPLACED_MAX: usize = 16;

/// A layer with its txg.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) txg: u64,
    /// Whether it is being or was synced: it accepts no more changes.
    pub(super) is_sealed: bool,
    pub(super) layer: Arc<Layer>,
}

impl Entry {
    /// Whether it accepts changes of `txg`.
    pub(super) fn is_open(&self, txg: u64) -> bool {
        self.txg == txg && !self.is_sealed
    }
}

/// The state of a set, under its mutex.
#[derive(Debug)]
pub(super) struct State {
    /// The committed tree, from which reads are answered (V4).
    pub(super) base: Tree,
    /// The tree left by the last sync pass.
    pub(super) synced: Tree,
    /// Txg of that tree, unless it is the committed one.
    pub(super) synced_txg: Option<u64>,
    /// Whether a pass is running.
    pub(super) is_syncing: bool,
    /// Layers, from the oldest to the newest.
    pub(super) layers: VecDeque<Entry>,
    pub(super) cursor: Cursor,
    /// Whether written objects lose the marks of being accounted ([`Recount::Forget`]).
    pub(super) is_forgetting: bool,
    /// The highest closed txg: it and earlier ones accept no changes.
    pub(super) closed: u64,
    /// Counts changes of the layers, and of the committed tree.
    pub(super) changes: u64,
}

/// A writable object set.
pub struct Live {
    pub(super) blocks: Arc<dyn Blocks>,
    pub(super) id: u64,
    /// Whether the set is encrypted, and has no keys: see [`open_locked`](Self::open_locked).
    is_locked: bool,
    /// Log2 of the size of indirect blocks of new objects; 0: the tunable.
    indirect_shift: AtomicU8,
    pub(super) state: Mutex<State>,
    /// Whether the dataset was destroyed or rolled back, so that its blocks may have been reused.
    is_gone: AtomicBool,
}

/// Result of running a closure once.
enum Attempt<T> {
    Done(T, Footprint),
    Need(Box<super::Missing>),
}

impl Live {
    /// Creates a new set, which is written to disk by its first sync. `id` is the number of its
    /// dataset, 0 for the MOS.
    pub fn create(blocks: Arc<dyn Blocks>, id: u64, kind: ObjSetType) -> Arc<Self> {
        let phys = new_root(kind);
        let base = Tree::new(BlockPtr::HOLE, phys);
        Self::over(blocks, id, base, Cursor::of_new_set(), false)
    }

    /// Like [`create`](Self::create), for an encrypted set that is received without its keys.
    pub fn create_locked(
        blocks: Arc<dyn Blocks>,
        id: u64,
        kind: ObjSetType,
        root: &SentRoot,
    ) -> Arc<Self> {
        let mut phys = new_root(kind);
        phys.meta_dnode.nlevels = root.levels;
        phys.meta_dnode.data_block_sectors = (root.block_size / SECTOR_SIZE) as u16;
        phys.meta_dnode.indblkshift = root.indirect_shift;
        root.apply(&mut phys);
        Self::over(blocks, id, Tree::new(BlockPtr::HOLE, phys), Cursor::of_new_set(), true)
    }

    /// Opens a set for writing.
    ///
    /// # Errors
    /// `Kind::KeyUnavailable` if it is encrypted, and `blocks` has no keys.
    pub fn open(blocks: Arc<dyn Blocks>, set: &ObjSet) -> Result<Arc<Self>> {
        if set.is_encrypted() && blocks.keys().is_none() {
            let error = Error::new(Kind::KeyUnavailable, LiveError::Locked);
            return Err(error.with_at(|at| at.objset = Some(set.id())));
        }
        Ok(Self::open_locked(blocks, set))
    }

    /// Like [`open`](Self::open), for a caller that only reads, or that changes an encrypted set
    /// without its keys: what needs none (the header of its log), and what another pool has
    /// encrypted.
    pub fn open_locked(blocks: Arc<dyn Blocks>, set: &ObjSet) -> Arc<Self> {
        let base = Tree::new(*set.root(), set.phys().clone());
        let is_locked = set.is_encrypted() && blocks.keys().is_none();
        Self::over(blocks, set.id(), base, Cursor::default(), is_locked)
    }

    fn over(
        blocks: Arc<dyn Blocks>,
        id: u64,
        base: Tree,
        cursor: Cursor,
        is_locked: bool,
    ) -> Arc<Self> {
        let state = State {
            synced: base.clone(),
            base,
            synced_txg: None,
            is_syncing: false,
            layers: VecDeque::new(),
            cursor,
            is_forgetting: false,
            closed: 0,
            changes: 0,
        };
        let indirect_shift = AtomicU8::new(0);
        let is_gone = AtomicBool::new(false);
        Arc::new(Self {
            blocks,
            id,
            is_locked,
            indirect_shift,
            state: Mutex::new(Rank::ObjectSet, state),
            is_gone,
        })
    }

    /// Records that the dataset was destroyed or rolled back. To be called before that txg is
    /// committed: from then on this set's tree is not updated, and a checksum mismatch is no sign
    /// of damage.
    pub fn mark_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
    }

    /// The moment of looking at the tree, to be taken before that.
    pub(super) fn since(&self, is_retry: bool) -> Since {
        if self.is_gone.load(Ordering::Acquire) {
            return Since::default();
        }
        self.blocks.since(is_retry)
    }

    /// Number of the dataset; 0 for the MOS.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Sets the size of indirect blocks, `1 << shift` bytes, of new objects that do not request
    /// one; 0: use `zfs_default_ibs`.
    pub fn set_indirect_shift(&self, shift: u8) {
        self.indirect_shift.store(shift, Ordering::Relaxed);
    }

    /// Type of the object set.
    pub fn kind(&self) -> ObjSetType {
        self.lock().base.phys.kind
    }

    /// The block store.
    pub fn blocks(&self) -> &Arc<dyn Blocks> {
        &self.blocks
    }

    /// The pointer to the committed root block; a hole before the first commit.
    pub fn root(&self) -> BlockPtr {
        self.lock().base.root
    }

    /// Closes `txg` and earlier ones for changes: a closure that ran under the lock before is
    /// included, a later one must use a later txg.
    pub fn close(&self, txg: u64) {
        let mut state = self.lock();
        state.closed = state.closed.max(txg);
    }

    /// Bytes of memory used by the changes of a txg.
    pub fn dirty_bytes(&self, txg: u64) -> u64 {
        let state = self.lock();
        let layers = state.layers.iter().filter(|entry| entry.txg == txg);
        layers.map(|entry| entry.layer.dirty_bytes).sum()
    }

    /// Whether a sync of this txg has changes to write.
    pub fn is_dirty(&self, txg: u64) -> bool {
        let state = self.lock();
        let is_new = state.synced.root.is_hole();
        let mut layers = state.layers.iter().filter(|entry| entry.is_open(txg));
        is_new || layers.any(|entry| !entry.layer.is_empty())
    }

    /// Whether any txg has changes that are not committed yet.
    pub fn has_changes(&self) -> bool {
        self.lock().layers.iter().any(|entry| !entry.layer.is_empty())
    }

    /// Changes the set in `txg`: runs `change` until it has all blocks that it needs. Either all of
    /// its changes are made or, if it fails, none.
    ///
    /// # Errors
    /// Errors of the closure; `Kind::Busy` with [`LiveError::TxgPassed`] if a later txg already
    /// changed the set, in which case the caller retries in a later txg.
    pub async fn apply<T>(
        &self,
        txg: u64,
        mut change: impl FnMut(&mut Tx<'_>) -> TxResult<T>,
    ) -> Result<T> {
        Ok(self.run(Some(txg), &mut change).await?.0)
    }

    /// Like [`apply`](Self::apply), and returns the blocks that syncing the txg writes in addition
    /// because of this change.
    ///
    /// # Errors
    /// As [`apply`](Self::apply).
    pub async fn apply_measured<T>(
        &self,
        txg: u64,
        mut change: impl FnMut(&mut Tx<'_>) -> TxResult<T>,
    ) -> Result<(T, Footprint)> {
        self.run(Some(txg), &mut change).await
    }

    /// Reads the present state of the set. Changes by the closure are dropped.
    pub async fn inspect<T>(&self, mut look: impl FnMut(&mut Tx<'_>) -> TxResult<T>) -> Result<T> {
        Ok(self.run(None, &mut look).await?.0)
    }

    async fn run<T>(
        &self,
        txg: Option<u64>,
        change: &mut impl FnMut(&mut Tx<'_>) -> TxResult<T>,
    ) -> Result<(T, Footprint)> {
        let mut fetched = Fetched::default();
        let mut replaced = 0;
        loop {
            // Before the tree is looked at.
            let since = self.since(replaced > 0);
            let missing = match self.attempt(txg, &fetched, since, change)? {
                Attempt::Done(value, added) => return Ok((value, added)),
                Attempt::Need(missing) => missing,
            };
            match self.blocks.read(*missing).await {
                Ok(block) => {
                    fetched.insert(missing.pointer, block);
                }
                // The tree was replaced meanwhile, and the space of the block reused.
                Err(error) if error.kind() == Kind::Overtaken && replaced < REPLACED_MAX => {
                    replaced += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs a closure once.
    fn attempt<T>(
        &self,
        txg: Option<u64>,
        fetched: &Fetched,
        since: Since,
        change: &mut impl FnMut(&mut Tx<'_>) -> TxResult<T>,
    ) -> Result<Attempt<T>> {
        let mut state = self.lock();
        if let Some(txg) = txg {
            self.check_txg(&state, txg)?;
        }
        let source = self.source((&state.layers, &state.base), fetched, since);
        let mut tx = Tx::new(txg.unwrap_or(u64::MAX), source, state.cursor);
        let result = change(&mut tx);
        let (overlay, cursor, has_found) = (tx.overlay, tx.cursor, tx.has_found_number);
        match result {
            Ok(value) => {
                let mut added = Footprint::default();
                if let Some(txg) = txg {
                    self.check_sealed(&overlay)?;
                    state.cursor = cursor;
                    added = self.merge(&mut state, txg, overlay)?;
                }
                Ok(Attempt::Done(value, added))
            }
            Err(TxStop::Need(missing)) => {
                if !has_found {
                    // Numbers found to be allocated need not be examined again.
                    state.cursor.next = cursor.next;
                }
                Ok(Attempt::Need(missing))
            }
            Err(TxStop::Fail(error)) => Err(error),
        }
    }

    /// Checks that no later txg has changes.
    pub(super) fn check_txg(&self, state: &State, txg: u64) -> Result<()> {
        let newest = state.layers.back().map_or(0, |entry| entry.txg);
        let newest = newest.max(state.closed.saturating_add(1));
        // Checks V2.
        if newest > txg {
            return Err(self.locate(Error::new(Kind::Busy, LiveError::TxgPassed { txg, newest })));
        }
        Ok(())
    }

    /// Checks that a sync can write an overlay: without keys, only what others have encrypted.
    pub(super) fn check_sealed(&self, overlay: &Layer) -> Result<()> {
        if self.is_locked
            && let Some(object) = overlay.unsealed()
        {
            return Err(self.locate(Error::new(Kind::Invalid, LiveError::Keyless { object })));
        }
        Ok(())
    }

    /// The state below an overlay: layers, and the committed tree.
    pub(super) fn source<'a>(
        &'a self,
        (below, base): (&'a VecDeque<Entry>, &'a Tree),
        fetched: &'a Fetched,
        since: Since,
    ) -> Source<'a> {
        let (blocks, id) = (&*self.blocks, self.id);
        let indirect_shift = self.indirect_shift.load(Ordering::Relaxed);
        Source { blocks, id, indirect_shift, below, base, fetched, since }
    }

    /// Merges an overlay into the layer of its txg; returns the footprint that this adds.
    pub(super) fn merge(&self, state: &mut State, txg: u64, overlay: Layer) -> Result<Footprint> {
        if overlay.is_empty() {
            return Ok(Footprint::default());
        }
        state.changes += 1;
        if !state.layers.back().is_some_and(|entry| entry.is_open(txg)) {
            let newest = state.layers.back().map_or(0, |entry| entry.txg);
            ensure!("V1", newest <= txg, "a layer of txg {txg} after one of txg {newest}");
            let layer = Arc::new(Layer::default());
            state.layers.push_back(Entry { txg, is_sealed: false, layer });
        }
        let layer = state.layers.back_mut().and_then(|entry| Arc::get_mut(&mut entry.layer));
        // Checks V1: an unsealed layer is not shared.
        let layer = layer.ok_or_else(|| self.broken(LiveError::Layer("layer is shared")))?;
        let before = layer.footprint;
        // Checks V6 and V8.
        layer.merge(overlay).map_err(|cause| self.broken(cause))?;
        Ok(layer.footprint.beyond(&before))
    }

    /// Sets the header of the intent log from `txg` on; unlike other changes this is allowed in a
    /// txg after later txgs changed the set.
    pub fn set_zil_header(&self, txg: u64, header: [u8; ZIL_HEADER_LEN]) -> Result<()> {
        self.change_root(txg, |layer| layer.zil_header = Some(header))
    }

    /// Sets what a stream says of the root of an encrypted set that is received without its keys,
    /// from `txg` on. Its accounting is no longer complete: owners are not known.
    ///
    /// # Errors
    /// `Kind::Invalid` if the meta-dnode has another shape than the sender's.
    pub fn set_sent_root(&self, txg: u64, root: SentRoot) -> Result<()> {
        if !root.fits(&self.lock().base.phys.meta_dnode) {
            return Err(self.locate(Error::new(Kind::Invalid, LiveError::OtherRoot)));
        }
        let flags = self.flags().difference(ObjSetFlags::USERACCOUNTING_COMPLETE);
        self.change_root(txg, |layer| {
            layer.sent_root = Some(root);
            layer.flags = Some(flags);
        })
    }

    /// The newest header of the intent log.
    pub fn zil_header(&self) -> [u8; ZIL_HEADER_LEN] {
        let state = self.lock();
        let newest = state.layers.iter().rev().find_map(|entry| entry.layer.zil_header);
        newest.unwrap_or(state.base.phys.zil_header)
    }

    /// Sets the flags of the set from `txg` on.
    pub fn set_flags(&self, txg: u64, flags: ObjSetFlags) -> Result<()> {
        self.change_root(txg, |layer| layer.flags = Some(flags))
    }

    /// The newest flags.
    pub fn flags(&self) -> ObjSetFlags {
        let state = self.lock();
        let newest = state.layers.iter().rev().find_map(|entry| entry.layer.flags);
        newest.unwrap_or(state.base.phys.flags)
    }

    fn change_root(&self, txg: u64, change: impl FnOnce(&mut Layer)) -> Result<()> {
        let mut state = self.lock();
        state.changes += 1;
        let behind = state.layers.iter().take_while(|entry| entry.txg <= txg).count();
        let open = behind.checked_sub(1).and_then(|index| state.layers.get(index));
        if !open.is_some_and(|entry| entry.is_open(txg)) {
            let layer = Arc::new(Layer::default());
            state.layers.insert(behind, Entry { txg, is_sealed: false, layer });
        }
        let entries = &mut state.layers;
        let newest = entries.iter_mut().rev().find(|entry| entry.is_open(txg));
        let layer = newest.and_then(|entry| Arc::get_mut(&mut entry.layer));
        // Checks V1.
        change(layer.ok_or_else(|| self.broken(LiveError::Layer("layer is shared")))?);
        Ok(())
    }

    /// Writes the changes of the syncing txg since the last pass; returns the new root. No change
    /// may be made in that txg while this runs.
    pub async fn sync(&self, context: &SyncContext<'_>) -> Result<Synced> {
        super::sync::run(self, context).await
    }

    /// Drops the changes of `txg`, whose uberblock is on disk; they are in the committed tree now.
    pub fn committed(&self, txg: u64) -> Result<()> {
        let mut state = self.lock();
        let unsynced = state.layers.iter().any(|entry| entry.txg <= txg && !entry.is_sealed);
        let found = match state.synced_txg {
            _ if unsynced => Some("changes are not synced"),
            _ if state.is_syncing => Some("a pass is under way"),
            Some(synced) if synced > txg => Some("a later txg was synced"),
            _ => None,
        };
        // Checks V1.
        if let Some(found) = found {
            return Err(self.broken(LiveError::SyncOrder { txg, found }));
        }
        if state.synced_txg.take().is_some() {
            let birth = state.synced.root.birth();
            ensure!("V9", birth == txg, "the root of txg {txg} was born in txg {birth}");
            state.base = state.synced.clone();
            state.changes += 1;
        }
        state.layers.retain(|entry| entry.txg > txg);
        Ok(())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// A broken invariant.
    pub(super) fn broken(&self, cause: LiveError) -> Error {
        self.locate(Error::new(Kind::Invariant, cause))
    }

    pub(super) fn locate(&self, error: Error) -> Error {
        error.with_at(|at| at.objset = Some(self.id))
    }
}

impl std::fmt::Debug for Live {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Live").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What a raw stream says of the root of its object set. All of it is authenticated, so it must be
/// as at the sender (spec 07 B10).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentRoot {
    /// MAC of the root.
    pub portable_mac: [u8; 32],
    /// Number of the checksum function of the meta-dnode.
    pub checksum: u8,
    /// Number of its compression function.
    pub compression: u8,
    /// Levels of its tree.
    pub levels: u8,
    /// Size of blocks of dnodes in bytes.
    pub block_size: u64,
    /// Log2 of the size of its indirect blocks.
    pub indirect_shift: u8,
    /// Its highest block.
    pub max_block: u64,
}

impl SentRoot {
    /// Whether such an object set can exist here: blocks of dnodes have one size, and levels are
    /// never added.
    #[must_use]
    pub fn is_possible(&self) -> bool {
        let tree = Geometry {
            levels: self.levels,
            pointer_count: BLKPTRS_MAX as u8,
            indirect_shift: self.indirect_shift.into(),
            block_size: self.block_size,
            max_block: self.max_block,
        };
        self.block_size == DNODE_BLOCK_LEN as u64
            && self.max_block < OBJECT_MAX / DNODE_SLOTS_MAX as u64
            && self.max_block < tree.capacity()
    }

    /// Whether an increment with this root can be received on an object set with this meta-dnode.
    #[must_use]
    pub fn fits(&self, meta: &DnodePhys) -> bool {
        (meta.nlevels, meta.data_block_size(), meta.indblkshift)
            == (self.levels, self.block_size, self.indirect_shift)
    }

    /// Sets the fields that may change.
    pub(super) fn apply(&self, phys: &mut ObjSetPhys) {
        let meta = &mut phys.meta_dnode;
        (meta.checksum, meta.compress) = (self.checksum, self.compression);
        meta.maxblkid = meta.maxblkid.max(self.max_block);
        phys.portable_mac = self.portable_mac;
    }
}

/// The root block of a set without objects.
fn new_root(kind: ObjSetType) -> ObjSetPhys {
    let spec = ObjectSpec {
        indirect_shift: 17,
        ..ObjectSpec::new(ObjectType::DNODE, DNODE_BLOCK_LEN as u64)
    };
    let mut meta_dnode = new_dnode(&spec, 1).expect("the parameters are constants that can be");
    if kind != ObjSetType::Meta {
        // OpenZFS never raises the number of levels of a dataset's meta-dnode (spec 02 §10.2).
        let objects_per_block = OBJECTS_SHIFT - 5;
        let shift = meta_dnode.indirect_ptrs_shift();
        let pointers = meta_dnode.blkptrs.len() as u64;
        while pointers << (shift * u32::from(meta_dnode.nlevels - 1)) < 1 << objects_per_block {
            meta_dnode.nlevels += 1;
        }
    }
    ObjSetPhys {
        meta_dnode,
        zil_header: [0; ZIL_HEADER_LEN],
        kind,
        flags: ObjSetFlags::empty(),
        portable_mac: [0; 32],
        local_mac: [0; 32],
        userused_dnode: None,
        groupused_dnode: None,
        projectused_dnode: None,
        len: OBJSET_V3_LEN,
    }
}
