//! The engine: the parts of a pool that is open for writing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cenote_block::BlockStore;
use cenote_block::alloc::SpaceAllocator;
use cenote_block::policy::PoolPolicy;
use cenote_dmu::Live;
use cenote_dmu::live::OwnerProbe;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::uberblock::Uberblock;
use cenote_pool::keys::KeyStore;
use cenote_rt::{AsyncMutex, Error, Kind, Notify, Result, tunables};
use cenote_vdev::Tree;

use crate::admin::{damage, view};
use crate::config::Config;
use crate::dsl::opened;
use crate::dsl::{self, Context};
use crate::error::EngineError;
use crate::leaf::{leafwork, leaves};
use crate::space::checkpoint;
use crate::txg::admission::Admission;
use crate::txg::heads::{Head, Heads};
use crate::txg::suspend::{self, FailMode, Suspended, Suspension};
use crate::txg::tasks::State;
use crate::txg::{multihost, store, throttle};
use crate::{Notice, zil};

/// A pool that is open for writing.
pub struct Engine {
    /// Itself: what must come to its end runs in tasks of its own.
    pub(crate) me: Weak<Self>,
    pub(crate) suspension: Arc<Suspension>,
    pub(crate) leaf_service: leaves::Service,
    pub(crate) delay: throttle::Delay,
    pub(crate) multihost: multihost::Multihost,
    pub(crate) tree: Arc<Tree>,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) alloc: Arc<SpaceAllocator>,
    pub(crate) mos: Arc<Live>,
    /// The dir `$MOS`, which is charged for the MOS; 0 until the MOS of a new pool is made.
    pub(crate) mos_dir: AtomicU64,
    pub(crate) heads: Heads,
    /// Snapshots that are being read.
    pub(crate) opened: Arc<opened::Opened>,
    pub(crate) config: Mutex<Config>,
    pub(crate) state: Mutex<State>,
    pub(crate) uberblock: Mutex<Uberblock>,
    /// What the pool's features mean for blocks. Held for a copy.
    pub(crate) policy: Mutex<PoolPolicy>,
    /// The txg that takes changes. Written under `syncing` only.
    pub(crate) open_txg: AtomicU64,
    pub(crate) is_closing: AtomicBool,
    /// Damage that was met.
    pub(crate) damage: Arc<damage::Damage>,
    /// Bytes of changes in memory.
    pub(crate) dirty: AtomicU64,
    /// Wakes the sync task.
    pub(crate) wake: Arc<Notify>,
    /// Whether the sync task was started.
    pub(crate) has_sync_task: AtomicBool,
    /// One sync at a time.
    pub(crate) syncing: AsyncMutex<()>,
    /// Held while a log block is allocated in the open txg, and while that changes.
    pub(crate) log_gate: AsyncMutex<()>,
    /// Who replays logs.
    pub(crate) replayers: Mutex<Vec<(ObjSetType, Arc<dyn zil::Replayer>)>>,
    pub(crate) rng: Mutex<cenote_rt::Rng>,
    /// Metaslab arrays of top-level vdevs, as the store of metaslabs finds them.
    pub(crate) maps: Arc<store::Maps>,
    /// Who tells the owners of objects. Set before heads are opened; held for a copy.
    pub(crate) probe: Mutex<Option<Arc<dyn OwnerProbe>>>,
    /// What changes that are under way may cost.
    pub(crate) admission: Admission,
    /// What whoever works with the pool should be told.
    pub(crate) notices: Mutex<Vec<Notice>>,
    /// Heads whose intent logs could not be looked at when the pool was opened, each with the last
    /// txg before that.
    pub(crate) unread_logs: Mutex<BTreeMap<u64, u64>>,
    /// Roots of dead trees that cannot be read.
    pub(crate) stalled: Mutex<Vec<BlockPtr>>,
    /// The pool's checkpoint.
    pub(crate) checkpoint: checkpoint::Checkpoint,
    /// Trim and initialize that are under way.
    pub(crate) leaf_works: leafwork::LeafWorks,
    /// What has become free and is to be discarded.
    pub(crate) auto_trim: leafwork::AutoTrim,
    /// Datasets that changed, for a host that mounts them.
    pub(crate) changes: crate::dsl::changed::ChangeLog,
    /// How readers see it.
    pub(crate) views: view::Views,
    /// Nothing is ever written.
    pub(crate) is_read_only: bool,
}

/// What an engine is put together from.
pub(crate) struct Parts {
    pub(crate) tree: Arc<Tree>,
    pub(crate) store: Arc<BlockStore>,
    pub(crate) alloc: Arc<SpaceAllocator>,
    pub(crate) mos: Arc<Live>,
    pub(crate) suspension: Arc<Suspension>,
    pub(crate) mos_dir: u64,
    pub(crate) config: Config,
    /// Every txg up to it is taken: the uberblock's, or after a rewind the last one given up.
    pub(crate) base_txg: u64,
    pub(crate) uberblock: Uberblock,
    pub(crate) policy: PoolPolicy,
    pub(crate) maps: Arc<store::Maps>,
    pub(crate) keys: Arc<KeyStore>,
    pub(crate) seed: u64,
    pub(crate) is_read_only: bool,
}

impl Engine {
    pub(crate) fn assemble(parts: Parts) -> Arc<Self> {
        parts.alloc.set_memory(tunables::ALLOCATOR_MEMORY.get());
        let open_txg = (parts.base_txg + 1).max(dsl::create::TXG_INITIAL);
        let facts = &parts.config.facts;
        let damage = Arc::new(damage::Damage::new(&facts.name, facts.pool_guid));
        // A store that was read from before reports to whoever asked first, and keeps to that.
        parts.store.set_reporter(Arc::<damage::Damage>::clone(&damage));
        parts.suspension.watch(&parts.tree);
        let views = view::Views { keys: parts.keys, ..view::Views::default() };
        if !parts.is_read_only {
            views.presence.set_writable();
            views.presence.set_suspension_probe(Arc::<Suspension>::clone(&parts.suspension));
        }
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            suspension: parts.suspension,
            leaf_service: leaves::Service::default(),
            delay: throttle::Delay::default(),
            multihost: multihost::Multihost::default(),
            tree: parts.tree,
            store: parts.store,
            alloc: parts.alloc,
            mos: parts.mos,
            mos_dir: AtomicU64::new(parts.mos_dir),
            heads: Heads::default(),
            opened: Arc::default(),
            config: Mutex::new(parts.config),
            state: Mutex::default(),
            uberblock: Mutex::new(parts.uberblock),
            policy: Mutex::new(parts.policy),
            open_txg: AtomicU64::new(open_txg),
            is_closing: AtomicBool::new(false),
            damage,
            dirty: AtomicU64::new(0),
            wake: Arc::default(),
            has_sync_task: AtomicBool::new(false),
            syncing: AsyncMutex::new(()),
            log_gate: AsyncMutex::new(()),
            replayers: Mutex::default(),
            rng: Mutex::new(cenote_rt::Rng::seeded(parts.seed)),
            maps: parts.maps,
            probe: Mutex::new(None),
            admission: Admission::default(),
            notices: Mutex::default(),
            unread_logs: Mutex::default(),
            stalled: Mutex::default(),
            checkpoint: checkpoint::Checkpoint::default(),
            leaf_works: leafwork::LeafWorks::default(),
            auto_trim: leafwork::AutoTrim::default(),
            changes: crate::dsl::changed::ChangeLog::default(),
            views,
            is_read_only: parts.is_read_only,
        })
    }

    /// The heads that are open.
    pub fn open_heads(&self) -> Vec<Arc<Head>> {
        self.heads.all()
    }

    /// Acts by tunables of which the pool keeps copies: the bounds of memory.
    pub fn retune(&self) {
        self.alloc.set_memory(tunables::ALLOCATOR_MEMORY.get());
        self.store.set_cache_capacity(tunables::BLOCK_CACHE_BYTES.get());
    }

    /// The vdevs.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The blocks.
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.store
    }

    /// The space.
    pub fn allocator(&self) -> &Arc<SpaceAllocator> {
        &self.alloc
    }

    /// The uberblock that was written last.
    pub fn uberblock(&self) -> Uberblock {
        *self.uberblock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the pool was opened for reading only.
    pub fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    /// The txg that takes changes now.
    pub fn open_txg(&self) -> u64 {
        self.open_txg.load(Ordering::Acquire)
    }

    pub(crate) fn config(&self) -> Config {
        self.config.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn with_config<T>(&self, change: impl FnOnce(&mut Config) -> T) -> T {
        change(&mut self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn pool_policy(&self) -> PoolPolicy {
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    pub(crate) fn replayers(
        &self,
    ) -> std::sync::MutexGuard<'_, Vec<(ObjSetType, Arc<dyn zil::Replayer>)>> {
        self.replayers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn context(&self, txg: u64) -> Context {
        let seed = self.rng.lock().unwrap_or_else(PoisonError::into_inner).next_u64();
        let now = cenote_rt::wall_clock().as_secs();
        Context { txg, now, seed }
    }

    /// Refuses everything while the pool is suspended, and once it is stopped.
    pub(crate) fn check_running(&self) -> Result<()> {
        self.check_stopped()?;
        match self.suspension.cause() {
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

    /// Waits while the pool is suspended, or refuses at once: as `failmode` says.
    pub(crate) async fn until_running(&self) -> Result<()> {
        if self.is_read_only {
            return Err(Error::new(Kind::ReadOnly, EngineError::ReadOnly));
        }
        self.check_stopped()?;
        let Some(cause) = self.suspension.cause() else { return Ok(()) };
        if self.suspension.mode() == FailMode::Continue || !self.suspension.pass().await {
            return Err(suspend::refusal(&cause));
        }
        self.check_stopped()
    }

    /// Why the pool is suspended, if it is.
    pub fn suspended(&self) -> Option<Suspended> {
        self.suspension.cause()
    }

    /// Waits until the pool is suspended.
    pub async fn until_suspended(&self) -> Suspended {
        self.suspension.until_suspended().await
    }

    /// What happens while the pool is suspended (property `failmode`).
    pub fn failmode(&self) -> FailMode {
        self.suspension.mode()
    }

    /// Failures of devices stop the pool from now on, instead of suspending it: for whoever has it
    /// open alone and could clear it from nowhere.
    pub fn stop_at_failures(&self) {
        self.suspension.disarm();
    }

    /// Nothing is written any more.
    pub(crate) fn stop(&self, cause: &str) {
        self.state().stopped.get_or_insert_with(|| cause.to_owned());
        self.suspension.abandon();
    }

    /// Space that is kept back (spec 04 §17.1).
    pub(crate) fn slop(&self) -> u64 {
        cenote_pool::accounting::deflate::slop(
            self.alloc.normal_space(),
            self.alloc.embedded_log_space(),
        )
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("open_txg", &self.open_txg()).finish_non_exhaustive()
    }
}

/// A number that nobody can foresee, from which an engine's own are drawn.
pub(crate) fn random_seed() -> Result<u64> {
    let mut bytes = [0; 8];
    cenote_rt::secret_bytes(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}
