//! The allocator: assigns space on vdevs to blocks, and decides when freed space is reused.
//!
//! ```text
//!   SpaceAllocator -- vdev -- group (class) -- metaslab -- sets of ranges
//!        |                                        ^
//!        | allocate, free, claim                  | loaded on demand through MetaslabStore
//!        |
//!   pool's sync:  start_flush, next_flush, condense      pass 1
//!                 take_changes                           every pass
//!                 sync_done, preload                     after the uberblock
//! ```
//!
//! The life of a range is in [`metaslab`](self), the choice of a range in `choose`, the changes
//! that a txg records in `sync`, and flushing of log space maps in `flush`. All of it is state in
//! memory: reading maps is done by [`MetaslabStore`], writing them by the pool. The choice among
//! free ranges is a [`Policy`].
//! Concurrency: one lock around all state, [`SpaceAllocator::lock`]. An operation takes a few tree
//! steps, so the lock is held for microseconds; it is never held across an await, and no other lock
//! is taken inside. Loading a metaslab runs without it.
//!
//! Durability: nothing here is durable. A range is recorded by the txg that allocates it
//! ([`take_changes` once per pass](SpaceAllocator::take_changes)) and becomes free again only in
//! [`sync_done`](SpaceAllocator::sync_done), which must not be called before the uberblock of its
//! txg is durable: that, and the deferral, keeps older uberblocks usable (spec 05 §5.4).

mod area;
mod choose;
mod class;
mod condense;
mod error;
mod figures;
mod flush;
pub mod fragmentation;
mod group;
mod guard;
mod load;
mod metaslab;
mod occupied;
mod pause;
mod pin;
pub mod policy;
mod request;
mod state;
mod sync;
mod throttle;
mod tree;
mod vdevs;
mod weight;

pub use class::{Class, Placement};
pub use condense::{Condense, MapFigures};
pub use error::{AllocError, ClaimError, Violation};
pub use figures::{MetaslabSpace, SpaceFigures, VdevSpace};
pub use flush::Flush;
pub use guard::{Epoch, Guard, GuardOutcome};
pub use occupied::Occupied;
pub use pause::Paused;
pub use pin::Pin;
pub use policy::Policy;
pub use request::{
    MetaslabSpec, MetaslabStore, Request, SpaceGeometry, StoredSpace, VdevHealth, VdevSpec,
};
pub use sync::{MetaslabChange, ReusableRanges};
pub use throttle::Reservation;
pub use tree::FreeTree;
pub use weight::Weight;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use cenote_ondisk::blkptr::Dva;
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Op, Result, ensure};

use choose::Attempt;
use load::Pins;
use pause::Pauses;
use state::State;
use throttle::Throttle;

/// Parameters of a new allocator.
#[derive(Clone)]
pub struct Options {
    /// Source of the metaslabs' space maps.
    pub store: Arc<dyn MetaslabStore>,
    /// Allocated sizes and health of vdevs.
    pub geometry: Arc<dyn SpaceGeometry>,
    /// Last committed txg.
    pub txg: u64,
    /// Whether changes go to log space maps.
    pub has_logs: bool,
    /// Streams of allocations per class.
    pub allocators: usize,
    /// Seed of random choices.
    pub seed: u64,
}

/// The free space of a pool.
pub struct SpaceAllocator {
    store: Arc<dyn MetaslabStore>,
    state: Mutex<State>,
    throttle: Throttle,
    pauses: Pauses,
    /// The epoch of the state, readable without the lock.
    epoch: Arc<AtomicU64>,
}

impl std::fmt::Debug for SpaceAllocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpaceAllocator").finish_non_exhaustive()
    }
}

impl SpaceAllocator {
    /// Returns an allocator without vdevs.
    #[must_use]
    pub fn new(options: Options) -> Arc<Self> {
        let state = State::new(&options);
        let epoch = Arc::clone(&state.epoch);
        let (throttle, pauses) = Default::default();
        Arc::new(Self {
            store: options.store,
            state: Mutex::new(Rank::Allocator, state),
            throttle,
            pauses,
            epoch,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // After a panic the data may still be used: sets are checked again with each operation.
        self.state.lock()
    }

    /// Allocates space for a block: an address for each copy, with its asize. `Kind::NoSpace` when
    /// nothing fits: the caller may still write a gang block.
    pub async fn allocate(&self, request: &Request) -> Result<Vec<Dva>> {
        let &Request { class, psize, copies, .. } = request;
        if psize == 0 || !(1..=3).contains(&copies) {
            return Err(AllocError::Request { psize, copies }.into());
        }
        let forced = self.lock().forced_gang(request);
        if let Some(error) = forced {
            return Err(error.into());
        }
        let mut pins = Pins::new(self);
        let mut waits = None;
        loop {
            // Registered before the attempt, so that no metaslab that is resumed after it is
            // missed.
            let enabled = self.pauses.enabled.notified();
            let attempt = {
                // LOCK state: one attempt from begin to end, so that either all copies get space or
                // none.
                let mut state = self.lock();
                let attempt = state.attempt(request)?;
                if matches!(attempt, Attempt::Paused) {
                    waits.get_or_insert_with(|| self.pauses.wait());
                }
                attempt
            };
            match attempt {
                Attempt::Found(dvas) => {
                    for _ in &dvas {
                        cenote_rt::charge(Op::Space, 0);
                    }
                    let found = dvas.len();
                    ensure!("P3", found == usize::from(copies), "{found} of {copies} copies");
                    return Ok(dvas);
                }
                // A paused metaslab comes back soon, so the allocation waits.
                Attempt::Paused => enabled.await,
                Attempt::NoSpace => {
                    // LOCK state: short. New blocks take precedence over readers of committed
                    // states.
                    if !self.lock().release_overdue()? {
                        return Err(AllocError::NoSpace { class, psize, copies }.into());
                    }
                }
                // A metaslab that cannot be read is skipped in the next attempt.
                Attempt::Load(vdev, id) => drop(pins.load(vdev, id).await),
            }
        }
    }

    /// Undoes an allocation of `txg` whose write failed. If a pass has recorded it, it is freed
    /// like any block.
    pub fn unallocate(&self, dva: &Dva, txg: u64) -> Result<()> {
        // LOCK state.
        let mut state = self.lock();
        let (id, range) = state.locate_dva(dva, txg)?;
        let vdev = u64::from(dva.vdev);
        state.check_open("undo", txg)?;
        let epoch = state.next_epoch();
        let Some(metaslab) = state.metaslab(vdev, id) else { return Ok(()) };
        if metaslab.give_back(range.clone(), txg)? {
            metaslab.matured = epoch;
        } else {
            state.free_range(vdev, id, range, txg)?;
        }
        Ok(())
    }

    /// Frees a block's address in the syncing txg `txg`. The address of a gang block covers its
    /// header only.
    pub fn free(&self, dva: &Dva, txg: u64) -> Result<()> {
        cenote_rt::charge(Op::Space, 0);
        // LOCK state.
        let mut state = self.lock();
        let (id, range) = state.locate_dva(dva, txg)?;
        Ok(state.free_range(u64::from(dva.vdev), id, range, txg)?)
    }

    /// Frees a range of one metaslab in the syncing txg `txg`.
    pub fn free_range(&self, vdev: u64, offset: u64, asize: u64, txg: u64) -> Result<()> {
        cenote_rt::charge(Op::Space, 0);
        // LOCK state.
        let mut state = self.lock();
        let (id, range) = state.locate(vdev, offset, asize)?;
        Ok(state.free_range(vdev, id, range, txg)?)
    }

    /// Frees a block that the pool's checkpoint still uses: it stays allocated and is reported as
    /// `held`.
    pub fn free_checkpointed(&self, dva: &Dva, txg: u64) -> Result<()> {
        // LOCK state.
        let mut state = self.lock();
        let (id, range) = state.locate_dva(dva, txg)?;
        let vdev = u64::from(dva.vdev);
        state.check_syncing("free", txg)?;
        let has_checkpoint = state.checkpoint.is_some_and(|checkpoint| checkpoint < txg);
        ensure!("A7", has_checkpoint, "{dva:?} would be held for a checkpoint that does not exist");
        if let Some(metaslab) = state.metaslab(vdev, id) {
            metaslab.free_checkpointed(range, txg)?;
            state.mark(txg, vdev, id);
        }
        Ok(())
    }

    /// Sets the txg of the pool's checkpoint, if there is one. From now on, blocks that the
    /// checkpoint uses stay allocated when freed.
    ///
    /// # Errors
    /// `Kind::Invariant` if the syncing txg has freed space before (A8).
    pub fn set_checkpoint(&self, txg: Option<u64>) -> Result<()> {
        let mut state = self.lock();
        let syncing = state.freeing_txg;
        let is_first = txg.is_none() || syncing.is_none();
        ensure!("A8", is_first, "txg {syncing:?} frees before it takes a checkpoint");
        state.checkpoint = txg;
        Ok(())
    }

    /// Whether the checkpoint uses a block of this physical birth that is freed in `txg`. It does
    /// not use blocks that were freed up to its own txg (spec 05 §10).
    #[must_use]
    pub fn is_in_checkpoint(&self, birth: u64, txg: u64) -> bool {
        let checkpoint = self.lock().checkpoint.filter(|_| !is_on(Bug::CheckpointIgnored));
        checkpoint.is_some_and(|checkpoint| birth <= checkpoint && checkpoint < txg)
    }

    /// Claims the space of a log block that was written after the last commit, for `txg`, the first
    /// txg after import (spec 05 §5.6). A dry run only checks. The cause of a refusal is a
    /// [`ClaimError`].
    pub async fn claim(&self, dva: &Dva, txg: u64, is_dry_run: bool) -> Result<()> {
        let (vdev, offset, asize) = (u64::from(dva.vdev), dva.offset, dva.asize);
        let place = self.lock().locate_dva(dva, txg);
        let (id, range) = place.map_err(|_| ClaimError::Beyond { vdev, offset, asize })?;
        let mut pins = Pins::new(self);
        loop {
            pins.load(vdev, id).await?;
            // LOCK state: the check and the allocation are one step.
            let mut state = self.lock();
            state.check_open("claim", txg)?;
            let Some(metaslab) = state.metaslab(vdev, id) else {
                return Err(ClaimError::Beyond { vdev, offset, asize }.into());
            };
            let Some(loaded) = &metaslab.loaded else { continue };
            if !loaded.free.ranges().contains(&range) {
                return Err(ClaimError::NotFree { vdev, offset, asize }.into());
            }
            if !is_dry_run {
                metaslab.take(range, txg)?;
                state.mark(txg, vdev, id);
            }
            return Ok(());
        }
    }

    /// The class that a block should use, given the present free space (spec 05 §7).
    #[must_use]
    pub fn preferred_class(&self, placement: &Placement) -> Class {
        self.lock().preferred_class(placement)
    }

    /// Begins flushing in `txg`, in its first pass and before changes are recorded. At export all
    /// metaslabs are flushed.
    pub fn start_flush(&self, txg: u64, is_export: bool) -> Result<()> {
        Ok(self.lock().start_flush(txg, is_export)?)
    }

    /// Returns the next metaslab to flush in this txg.
    pub fn next_flush(&self) -> Result<Option<Flush>> {
        Ok(self.lock().next_flush()?)
    }

    /// Whether changes go to log space maps, as decided at import.
    #[must_use]
    pub fn has_logs(&self) -> bool {
        self.lock().has_logs
    }

    /// Oldest txg whose log is still needed; `None` if no metaslab is logged.
    #[must_use]
    pub fn oldest_unflushed(&self) -> Option<u64> {
        self.lock().flush.order.first().map(|(txg, ..)| *txg)
    }

    /// Records the number of blocks of the log of `txg`: at import, and after each txg.
    pub fn note_log(&self, txg: u64, blocks: u64) {
        self.lock().flush.logs.insert(txg, blocks);
    }

    /// Records that the logs of txgs before this one were removed.
    ///
    /// # Errors
    /// `Kind::Invariant` if a metaslab still needs one of them (U3).
    pub fn forget_logs_before(&self, txg: u64) -> Result<()> {
        Ok(self.lock().forget_logs_before(txg)?)
    }

    /// Whether a metaslab's map should be condensed. Only in the first pass.
    #[must_use]
    pub fn should_condense(&self, vdev: u64, metaslab: u64, map: &MapFigures) -> bool {
        let mut state = self.lock();
        let metaslab = state.metaslab(vdev, metaslab as usize);
        metaslab.is_some_and(|metaslab| metaslab.should_condense(map))
    }

    /// Records that a metaslab's map is condensed in `txg`; returns its new contents. Only in the
    /// first pass, before changes are recorded; `None` if the metaslab is not loaded.
    pub fn condense(&self, vdev: u64, metaslab: u64, txg: u64) -> Result<Option<Condense>> {
        Ok(self.lock().condense(vdev, metaslab, txg)?)
    }

    /// Metaslabs that have changes to record for `txg`, as (vdev, metaslab).
    #[must_use]
    pub fn changed(&self, txg: u64) -> Vec<(u64, u64)> {
        let state = self.lock();
        let marked = state.dirty.get(&txg).into_iter().flatten();
        let changed = marked.filter(|(vdev, id)| {
            let metaslab = state.vdevs.get(vdev).and_then(|vdev| vdev.metaslabs.get(*id));
            metaslab.is_some_and(|metaslab| metaslab.has_changes(txg))
        });
        changed.map(|(vdev, id)| (*vdev, *id as u64)).collect()
    }

    /// Returns the changes to record in this pass of `txg`, by metaslab.
    pub fn take_changes(&self, txg: u64) -> Result<Vec<MetaslabChange>> {
        // LOCK state: all metaslabs in one step. Later allocations and frees belong to the next
        // pass.
        Ok(self.lock().take_changes(txg)?)
    }

    /// Ends `txg`, whose uberblock is durable. With `slop` bytes or less free, frees are not
    /// deferred. Returns the ranges that became usable.
    pub fn sync_done(&self, txg: u64, slop: u64) -> Result<Vec<ReusableRanges>> {
        // LOCK state. The uberblock of `txg` must be on disk by now: blocks of the two older ones
        // may be overwritten from here on.
        Ok(self.lock().sync_done(txg, slop)?)
    }
}

impl SpaceAllocator {
    /// Space of a class.
    #[must_use]
    pub fn class_figures(&self, class: Class) -> SpaceFigures {
        self.lock().class_figures(class)
    }

    /// Space of every top-level vdev, by id.
    #[must_use]
    pub fn vdev_figures(&self) -> Vec<VdevSpace> {
        self.lock().vdev_figures()
    }

    /// Space of the metaslabs of a vdev.
    #[must_use]
    pub fn metaslab_figures(&self, vdev: u64) -> Vec<MetaslabSpace> {
        self.lock().metaslab_figures(vdev)
    }

    /// Space of one metaslab.
    #[must_use]
    pub fn metaslab_space(&self, vdev: u64, metaslab: u64) -> Option<MetaslabSpace> {
        self.lock().metaslab_space(vdev, metaslab)
    }

    /// Deflated space that datasets share, before the slop is deducted: all normal vdevs that are
    /// `allocating` (spec 05 §6.3).
    #[must_use]
    pub fn normal_space(&self) -> u64 {
        self.lock().allocatable_space()
    }

    /// Deflated space of the embedded logs, which reduces the slop (spec 05 §6.4).
    #[must_use]
    pub fn embedded_log_space(&self) -> u64 {
        self.lock().class_figures(Class::EmbeddedLog).deflated_space
    }

    /// Fragmentation of the pool, percent.
    #[must_use]
    pub fn fragmentation(&self) -> Option<u64> {
        self.lock().pool_fragmentation()
    }

    /// (minimum, granularity): physical sizes below the first waste space on some vdev, and sizes
    /// should be multiples of the second (spec 05 §8.1).
    #[must_use]
    pub fn alloc_granularity(&self) -> (u64, u64) {
        self.lock().alloc_granularity()
    }
}

#[cfg(test)]
mod tests;
