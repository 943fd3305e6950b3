//! The engine: a pool that is open for writing.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use cenote_block::BlockStore;
use cenote_block::alloc::SpaceAllocator;
use cenote_block::policy::PoolPolicy;
use cenote_dmu::{Live, Tx, TxResult};
use cenote_ondisk::uberblock::Uberblock;
use cenote_pool::dsl::deleg::Requester;
use cenote_pool::keys::KeyStore;
use cenote_rt::lock::MutexGuard;
use cenote_rt::{Error, Kind, Result, tunables};
use cenote_vdev::{Faults, Tree};

use crate::admin::Admin;
use crate::admin::damage::Damage;
use crate::admin::health::{Health, HealthState};
use crate::admin::told_history::ToldHistory;
use crate::admin::view::Views;
use crate::config::{Config, ConfigChanger, ConfigState};
use crate::dsl::Context;
use crate::dsl::api::bookmarks::Bookmarks;
use crate::dsl::api::datasets::Datasets;
use crate::dsl::api::properties::Properties;
use crate::dsl::api::receives::Receives;
use crate::dsl::api::snapshots::Snapshots;
use crate::dsl::changed::ChangedDatasets;
use crate::dsl::create::TXG_INITIAL;
use crate::error::EngineError;
use crate::leaf::{LeafState, Leaves};
use crate::removal::Removals;
use crate::scan::Scans;
use crate::space::{SpaceManager, SpaceState};
use crate::txg::TxgState;
use crate::txg::heads::{Head, Heads};
use crate::txg::store::Maps;
use crate::txg::suspend::{self, FailMode, Suspension};
use crate::txg::tasks::TaskQueue;
use crate::txg::throttle::Throttle;
use crate::zil::{IntentLogs, LogState};

/// The user of requests that name none.
static ROOT: Requester = Requester::ROOT;

/// A pool that is open for writing.
///
/// A handle over parts that own their state: [`datasets`](Engine::datasets),
/// [`snapshots`](Engine::snapshots), [`bookmarks`](Engine::bookmarks),
/// [`properties`](Engine::properties), [`intent_logs`](Engine::intent_logs),
/// [`leaves`](Engine::leaves), [`space`](Engine::space), [`admin`](Engine::admin) and
/// [`health`](Engine::health). The engine itself opens and closes the pool and runs its txgs.
pub struct Engine {
    /// Itself: tasks that must run to the end own the engine.
    pub(crate) me: Weak<Self>,
    pub(crate) tree: Arc<Tree>,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) alloc: Arc<SpaceAllocator>,
    pub(crate) mos: Arc<Live>,
    pub(crate) config: ConfigState,
    pub(crate) txgs: TxgState,
    pub(crate) throttle: Throttle,
    pub(crate) heads: Heads,
    pub(crate) logs: LogState,
    pub(crate) space: SpaceState,
    pub(crate) leaf: LeafState,
    pub(crate) health: HealthState,
    pub(crate) views: Views,
    /// The pool is open for reading only.
    pub(crate) is_read_only: bool,
}

/// The parts of an engine.
pub(crate) struct Parts {
    pub(crate) tree: Arc<Tree>,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) alloc: Arc<SpaceAllocator>,
    pub(crate) mos: Arc<Live>,
    pub(crate) suspension: Arc<Suspension>,
    pub(crate) mos_dir: u64,
    pub(crate) config: Config,
    /// The txg before the first open one: that of the uberblock, or after a rewind the last
    /// discarded one.
    pub(crate) base_txg: u64,
    pub(crate) uberblock: Uberblock,
    pub(crate) policy: PoolPolicy,
    pub(crate) maps: Arc<Maps>,
    pub(crate) keys: Arc<KeyStore>,
    pub(crate) seed: u64,
    pub(crate) is_read_only: bool,
    pub(crate) history: ToldHistory,
}

impl Engine {
    pub(crate) fn assemble(parts: Parts) -> Arc<Self> {
        parts.alloc.set_memory(tunables::ALLOCATOR_MEMORY.get());
        let open_txg = (parts.base_txg + 1).max(TXG_INITIAL);
        let facts = &parts.config.facts;
        let damage = Arc::new(Damage::new(&facts.name, facts.pool_guid));
        // A store keeps the first reporter that it was given.
        parts.store.set_reporter(Arc::<Damage>::clone(&damage));
        Faults::of(&parts.tree).observe(Arc::<Damage>::clone(&damage));
        parts.suspension.watch(&parts.tree);
        let views = Views { keys: parts.keys, ..Views::default() };
        if !parts.is_read_only {
            views.presence.set_writable();
            views.presence.set_suspension_probe(Arc::<Suspension>::clone(&parts.suspension));
        }
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            tree: parts.tree,
            store: parts.store,
            alloc: parts.alloc,
            mos: parts.mos,
            config: ConfigState::new(parts.config, parts.policy, parts.mos_dir),
            txgs: TxgState::new(open_txg, parts.uberblock, parts.seed),
            throttle: Throttle::default(),
            heads: Heads::default(),
            logs: LogState::default(),
            space: SpaceState::new(parts.maps),
            leaf: LeafState::default(),
            health: HealthState::new(parts.suspension, damage, parts.history),
            views,
            is_read_only: parts.is_read_only,
        })
    }

    /// Returns the operations on file systems, volumes and clones, as requested by the superuser.
    pub fn datasets(&self) -> Datasets<'_> {
        Datasets { engine: self, requester: &ROOT }
    }

    /// Returns the operations on snapshots, as requested by the superuser.
    pub fn snapshots(&self) -> Snapshots<'_> {
        Snapshots { engine: self, requester: &ROOT }
    }

    /// Returns the operations on bookmarks.
    pub fn bookmarks(&self) -> Bookmarks<'_> {
        Bookmarks { engine: self }
    }

    /// Returns the properties of datasets and snapshots.
    pub fn properties(&self) -> Properties<'_> {
        Properties { engine: self }
    }

    /// Returns the operations that receive.
    pub fn receives(&self) -> Receives<'_> {
        Receives { engine: self }
    }

    /// Returns the intent logs.
    pub fn intent_logs(&self) -> IntentLogs<'_> {
        IntentLogs { engine: self }
    }

    /// Returns the leaves: the devices and the work on their free space.
    pub fn leaves(&self) -> Leaves<'_> {
        Leaves { engine: self }
    }

    /// Returns scrub and resilver.
    pub fn scans(&self) -> Scans<'_> {
        Scans { engine: self }
    }

    /// Returns the removal of vdevs with data.
    pub fn removals(&self) -> Removals<'_> {
        Removals { engine: self }
    }

    /// Returns the checkpoint and the space of destroyed datasets.
    pub fn space(&self) -> SpaceManager<'_> {
        SpaceManager { engine: self }
    }

    /// Returns the operations on the pool itself: its properties, name, guid and vdevs.
    pub fn admin(&self) -> Admin<'_> {
        Admin { engine: self }
    }

    /// Returns the pool's health: suspension, events and notices.
    pub fn health(&self) -> Health<'_> {
        Health { engine: self }
    }

    /// Returns this engine for a task that may outlive the caller.
    ///
    /// # Errors
    /// `Kind::Closed` if only its last user is left.
    pub(crate) fn shared(&self) -> Result<Arc<Self>> {
        self.me.upgrade().ok_or_else(|| Error::new(Kind::Closed, EngineError::Closed))
    }

    /// Does work that goes on if the caller is gone: what it changes in memory and on devices
    /// follows what it changed in the pool.
    pub(crate) async fn even_alone<T, F>(&self, work: impl FnOnce(Arc<Self>) -> F) -> Result<T>
    where
        F: Future<Output = Result<T>> + Send + 'static,
        T: Send + 'static,
    {
        let task = cenote_rt::spawn(work(self.shared()?));
        task.await.map_err(|error| Error::new(Kind::Io, error))?
    }

    /// Returns the open heads.
    pub fn open_heads(&self) -> Vec<Arc<Head>> {
        self.heads.all()
    }

    /// Applies tunables that the pool has copies of: memory limits.
    pub fn retune(&self) {
        self.alloc.set_memory(tunables::ALLOCATOR_MEMORY.get());
        self.store.set_cache_capacity(tunables::BLOCK_CACHE_BYTES.get());
    }

    /// Returns the vdev tree.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Returns the block store.
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.store
    }

    /// Returns the allocator.
    pub fn allocator(&self) -> &Arc<SpaceAllocator> {
        &self.alloc
    }

    /// Returns the last written uberblock.
    pub fn uberblock(&self) -> Uberblock {
        *self.txgs.uberblock.lock()
    }

    /// Whether the pool is open for reading only.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// Returns the open txg.
    pub fn open_txg(&self) -> u64 {
        self.txgs.open.load(Ordering::Acquire)
    }

    pub(crate) fn config(&self) -> Config {
        self.config.get()
    }

    pub(crate) fn with_config<T>(&self, inspect: impl FnOnce(&Config) -> T) -> T {
        self.config.with(inspect)
    }

    /// Changes the config while no sync runs (C1).
    pub(crate) async fn change_config_between_syncs(&self, change: impl FnOnce(&mut Config)) {
        // A running sync has copies of the config.
        let syncing = self.txgs.syncing.lock().await;
        self.config.change(ConfigChanger::between_syncs(&syncing), change);
    }

    pub(crate) fn pool_policy(&self) -> PoolPolicy {
        self.config.policy()
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.txgs.is_closing.load(Ordering::Acquire)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, TaskQueue> {
        self.txgs.queue.lock()
    }

    pub(crate) fn context(&self, txg: u64) -> Context {
        let seed = self.txgs.rng.lock().next_u64();
        let clock = cenote_rt::wall_clock();
        let (now, now_nanoseconds) = (clock.as_secs(), clock.subsec_nanos().into());
        Context { txg, now, now_nanoseconds, seed }
    }

    /// Fails while the pool is suspended, and after it was stopped.
    pub(crate) fn check_running(&self) -> Result<()> {
        self.check_stopped()?;
        match self.health.suspension.cause() {
            Some(cause) => Err(suspend::refusal(&cause)),
            None => Ok(()),
        }
    }

    pub(crate) fn check_stopped(&self) -> Result<()> {
        match &self.state().stopped {
            Some(_) if self.tree.is_closed() => Err(Error::new(Kind::Closed, EngineError::Closed)),
            Some(cause) => Err(Error::new(Kind::Io, EngineError::Stopped(cause.clone()))),
            None => Ok(()),
        }
    }

    /// Waits while the pool is suspended, or fails immediately: according to `failmode`.
    pub(crate) async fn until_running(&self) -> Result<()> {
        if self.is_read_only {
            return Err(Error::new(Kind::ReadOnly, EngineError::ReadOnly));
        }
        self.check_stopped()?;
        let Some(cause) = self.health.suspension.cause() else { return Ok(()) };
        if self.health.suspension.mode() == FailMode::Continue
            || !self.health.suspension.pass().await
        {
            return Err(suspend::refusal(&cause));
        }
        self.check_stopped()
    }

    /// Changes the MOS in the next sync without any check, which can damage the pool. For
    /// experiments and tests.
    pub async fn tamper<T: Send + 'static>(
        &self,
        mut change: impl FnMut(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
    ) -> Result<T> {
        let done = self.run(move |tx, _| change(tx)).await;
        self.views.changes.note(self.uberblock().txg, &ChangedDatasets::All);
        done
    }

    /// Stops all writes of a pool that is being closed. Returns true if they were not stopped yet.
    pub(crate) fn stop(&self, cause: &str) -> bool {
        let is_first = {
            let mut state = self.state();
            let is_first = state.stopped.is_none();
            state.stopped.get_or_insert_with(|| cause.to_owned());
            is_first
        };
        self.health.suspension.abandon();
        is_first
    }

    /// Stops all writes because of an error that would only occur again; the pool stays open for
    /// reading until it is closed, see [`Health::stopped`](crate::Health::stopped).
    pub(crate) fn fail(&self, cause: &str) {
        if self.stop(cause) {
            self.health.suspension.set_failed();
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("open_txg", &self.open_txg()).finish_non_exhaustive()
    }
}

/// Returns an unpredictable seed for the engine's random numbers.
pub(crate) fn random_seed() -> Result<u64> {
    let mut bytes = [0; 8];
    cenote_rt::secret_bytes(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
