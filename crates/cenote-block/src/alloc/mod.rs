//! The allocator: which bytes of which vdev a block gets, and when bytes can be used again.
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
//! What a metaslab's ranges go through is in [`metaslab`](self), who gets what in `choose`, what a
//! txg records in `sync`, and which metaslabs take over from the logs in `flush`. All of it is
//! state in memory: reading maps is [`MetaslabStore`]'s, writing them the pool's. Which free range
//! is taken is a [`Policy`].
//!
//! Concurrency: one lock around everything, [`SpaceAllocator::lock`]. An operation is a few tree
//! steps, so the lock is held for microseconds; it is never held across an await, and no other lock
//! is taken inside. Loading a metaslab runs without it.
//!
//! Durability: nothing here is. A range is recorded by the txg that takes it ([`take_changes`
//! once per pass](SpaceAllocator::take_changes)) and becomes free again only in
//! [`sync_done`](SpaceAllocator::sync_done), which must not be called before the uberblock of its
//! txg is durable: that, and the deferral, is what keeps older uberblocks usable (spec 05 §5.4).

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
pub use guard::{Epoch, Guard, Standing};
pub use pause::Paused;
pub use pin::Pin;
pub use policy::Policy;
pub use request::{
    MetaslabSpec, MetaslabStore, Request, SpaceGeometry, StoredSpace, VdevHealth, VdevSpec,
};
pub use sync::{Mature, MetaslabChange};
pub use throttle::Reservation;
pub use tree::FreeTree;
pub use weight::Weight;

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_ondisk::blkptr::Dva;
use cenote_rt::{Result, tunables};

use choose::Attempt;
use load::Pins;
use pause::Pauses;
use state::State;
use throttle::Throttle;

/// What an allocator starts from.
#[derive(Clone)]
pub struct Options {
    /// Where metaslabs are loaded from.
    pub store: Arc<dyn MetaslabStore>,
    /// Sizes and health of vdevs.
    pub geometry: Arc<dyn SpaceGeometry>,
    /// Last committed txg.
    pub txg: u64,
    /// Whether changes go to log space maps.
    pub has_logs: bool,
    /// Streams of allocations per class; [`default_streams`] is OpenZFS's number.
    pub allocators: usize,
    /// Of the choices that are left to chance.
    pub seed: u64,
}

/// Streams of allocations per class on this machine.
#[must_use]
pub fn default_streams() -> usize {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let streams = cpus / tunables::CPUS_PER_ALLOCATOR.get_usize();
    streams.clamp(1, tunables::NUM_ALLOCATORS.get_usize())
}

/// The free space of a pool.
pub struct SpaceAllocator {
    store: Arc<dyn MetaslabStore>,
    state: Mutex<State>,
    throttle: Throttle,
    pauses: Pauses,
    /// The one of the state, for those who only ask.
    epoch: Arc<AtomicU64>,
}

impl std::fmt::Debug for SpaceAllocator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpaceAllocator").finish_non_exhaustive()
    }
}

impl SpaceAllocator {
    /// An allocator without vdevs.
    #[must_use]
    pub fn new(options: Options) -> Arc<Self> {
        let state = State::new(&options);
        let epoch = Arc::clone(&state.epoch);
        let (throttle, pauses) = Default::default();
        Arc::new(Self { store: options.store, state: Mutex::new(state), throttle, pauses, epoch })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic inside is a bug that a test shows; sets are checked again with each operation.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds space for a block: an address for each copy, with its asize. `Kind::NoSpace` when
    /// nothing fits: a larger block may still gang.
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
            // Before the attempt, so that none that comes back into use after it is missed.
            let enabled = self.pauses.enabled.notified();
            let attempt = {
                // LOCK state: one attempt from begin to end, so that copies are all or none.
                let mut state = self.lock();
                let attempt = state.attempt(request)?;
                if matches!(attempt, Attempt::Paused) {
                    waits.get_or_insert_with(|| self.pauses.wait());
                }
                attempt
            };
            match attempt {
                Attempt::Found(dvas) => return Ok(dvas),
                // Space that is only out of use for a moment is worth waiting for.
                Attempt::Paused => enabled.await,
                Attempt::NoSpace => {
                    // LOCK state: short. New blocks go before readers of committed states.
                    if !self.lock().release_overdue()? {
                        return Err(AllocError::NoSpace { class, psize, copies }.into());
                    }
                }
                // One that cannot be read is passed over in the next attempt.
                Attempt::Load(vdev, id) => drop(pins.load(vdev, id).await),
            }
        }
    }

    /// Takes back an allocation of `txg` whose write failed. If a pass has recorded it, it is freed
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

    /// Frees a block's address in `txg`, the syncing one. That of a gang block covers its header.
    pub fn free(&self, dva: &Dva, txg: u64) -> Result<()> {
        // LOCK state.
        let mut state = self.lock();
        let (id, range) = state.locate_dva(dva, txg)?;
        Ok(state.free_range(u64::from(dva.vdev), id, range, txg)?)
    }

    /// Frees a range of one metaslab in `txg`, the syncing one.
    pub fn free_range(&self, vdev: u64, offset: u64, asize: u64, txg: u64) -> Result<()> {
        // LOCK state.
        let mut state = self.lock();
        let (id, range) = state.locate(vdev, offset, asize)?;
        Ok(state.free_range(vdev, id, range, txg)?)
    }

    /// Frees what the pool's checkpoint keeps: it stays allocated and is told as held.
    pub fn free_held(&self, dva: &Dva, txg: u64) -> Result<()> {
        // LOCK state.
        let mut state = self.lock();
        let (id, range) = state.locate_dva(dva, txg)?;
        let vdev = u64::from(dva.vdev);
        state.check_syncing("free", txg)?;
        if let Some(metaslab) = state.metaslab(vdev, id) {
            metaslab.hold(range, txg)?;
            state.mark(txg, vdev, id);
        }
        Ok(())
    }

    /// Says which txg the pool's checkpoint is of, if there is one. From now on blocks that it
    /// reaches are not freed but held.
    pub fn set_checkpoint(&self, txg: Option<u64>) {
        self.lock().checkpoint = txg;
    }

    /// Whether the checkpoint keeps a block of that physical birth that is freed in `txg`: what was
    /// freed up to the checkpoint's own txg it does not reach (spec 05 §10).
    #[must_use]
    pub fn is_kept(&self, birth: u64, txg: u64) -> bool {
        self.lock().checkpoint.is_some_and(|checkpoint| birth <= checkpoint && checkpoint < txg)
    }

    /// Takes the space of a log block that was written after the last commit, for `txg`, the first
    /// one (spec 05 §5.6). A dry run only looks. The cause of a refusal is a [`ClaimError`].
    pub async fn claim(&self, dva: &Dva, txg: u64, is_dry_run: bool) -> Result<()> {
        let (vdev, offset, asize) = (u64::from(dva.vdev), dva.offset, dva.asize);
        let place = self.lock().locate_dva(dva, txg);
        let (id, range) = place.map_err(|_| ClaimError::Beyond { vdev, offset, asize })?;
        let mut pins = Pins::new(self);
        loop {
            pins.load(vdev, id).await?;
            // LOCK state: whether it is free and taking it are one step.
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

    /// The class that a block should go to, as space is now (spec 05 §7).
    #[must_use]
    pub fn preferred_class(&self, placement: &Placement) -> Class {
        self.lock().preferred_class(placement)
    }

    /// Begins the flushing of `txg`, in its first pass and before anything is recorded. At export
    /// all metaslabs are flushed.
    pub fn start_flush(&self, txg: u64, is_export: bool) -> Result<()> {
        Ok(self.lock().start_flush(txg, is_export)?)
    }

    /// The next metaslab to flush in this txg.
    pub fn next_flush(&self) -> Result<Option<Flush>> {
        Ok(self.lock().next_flush()?)
    }

    /// Whether changes go to log space maps, as it was decided when the pool was opened.
    #[must_use]
    pub fn has_logs(&self) -> bool {
        self.lock().has_logs
    }

    /// Logs of txgs before this one hold nothing any more; none at all if no metaslab is logged.
    #[must_use]
    pub fn oldest_unflushed(&self) -> Option<u64> {
        self.lock().flush.order.first().map(|(txg, ..)| *txg)
    }

    /// Says how many blocks the log of `txg` has: at import, and after each txg.
    pub fn note_log(&self, txg: u64, blocks: u64) {
        self.lock().flush.logs.insert(txg, blocks);
    }

    /// Logs of txgs before this one were removed.
    pub fn forget_logs_before(&self, txg: u64) {
        let mut state = self.lock();
        state.flush.logs = state.flush.logs.split_off(&txg);
    }

    /// Whether a metaslab's map should be rewritten. Only in the first pass.
    #[must_use]
    pub fn should_condense(&self, vdev: u64, metaslab: u64, map: &MapFigures) -> bool {
        let mut state = self.lock();
        let metaslab = state.metaslab(vdev, metaslab as usize);
        metaslab.is_some_and(|metaslab| metaslab.should_condense(map))
    }

    /// Takes a metaslab's map as rewritten in `txg`, and says with what. Only in the first pass,
    /// before anything is recorded; nothing if the metaslab is not in memory.
    pub fn condense(&self, vdev: u64, metaslab: u64, txg: u64) -> Result<Option<Condense>> {
        Ok(self.lock().condense(vdev, metaslab, txg)?)
    }

    /// Metaslabs that have something to record for `txg`, as (vdev, metaslab).
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

    /// What this pass of `txg` records, metaslab by metaslab.
    pub fn take_changes(&self, txg: u64) -> Result<Vec<MetaslabChange>> {
        // LOCK state: all metaslabs in one step. What is taken or freed later is the next pass's.
        Ok(self.lock().take_changes(txg)?)
    }

    /// `txg` is durable. With `slop` bytes or less free, nothing is deferred. Says what has become
    /// usable again.
    pub fn sync_done(&self, txg: u64, slop: u64) -> Result<Vec<Mature>> {
        // LOCK state. The uberblock of `txg` must be on disk by now: what two older ones refer to
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

    /// Every top-level vdev, by id.
    #[must_use]
    pub fn vdev_figures(&self) -> Vec<VdevSpace> {
        self.lock().vdev_figures()
    }

    /// The metaslabs of a vdev.
    #[must_use]
    pub fn metaslab_figures(&self, vdev: u64) -> Vec<MetaslabSpace> {
        self.lock().metaslab_figures(vdev)
    }

    /// One of them.
    #[must_use]
    pub fn metaslab_space(&self, vdev: u64, metaslab: u64) -> Option<MetaslabSpace> {
        self.lock().metaslab_space(vdev, metaslab)
    }

    /// Deflated space that datasets share, before what the pool keeps back: normal vdevs that new
    /// blocks may go to (spec 05 §6.3).
    #[must_use]
    pub fn normal_space(&self) -> u64 {
        self.lock().allocatable_space()
    }

    /// Deflated space of the embedded log, which lowers the slop (spec 05 §6.4).
    #[must_use]
    pub fn embedded_log_space(&self) -> u64 {
        self.lock().class_figures(Class::EmbeddedLog).deflated_space
    }

    /// Fragmentation of the pool, percent.
    #[must_use]
    pub fn fragmentation(&self) -> Option<u64> {
        self.lock().pool_fragmentation()
    }

    /// (least, granularity): physical sizes below the first waste space on some vdev, and should be
    /// multiples of the second (spec 05 §8.1).
    #[must_use]
    pub fn alloc_granularity(&self) -> (u64, u64) {
        self.lock().alloc_granularity()
    }
}

#[cfg(test)]
mod tests;
