//! A pool that is open for writing.
//!
//! ```text
//!   Engine::apply   changes to a head, in the open txg          many at once
//!   Engine::run     changes to the MOS: tasks of the next sync  one after the other
//!   Engine::sync    open txg ──close──> syncing txg ──passes, labels, uberblock──> committed
//! ```
//!
//! Everything that users do is a change of an object set in memory, in the txg that is open at
//! that moment; administrators' operations are tasks that change the MOS while a txg is synced.
//! Nothing of a txg counts before its uberblock is on disk, and then all of it does.
//!
//! Order of locks: `syncing` (held during a whole sync), then `config`, `state`, and the locks of
//! lower layers. Only `syncing` is held across I/O.
//!
//! Devices that fail in the middle of a sync suspend the pool, which goes on once it is cleared
//! (`suspend`). An invariant that does not hold stops it: no uberblock is written any more, what
//! was committed stays, and every later change is refused.
//!
//! Sources: spec 01 §14-§18, 04 §9-§20, 05 §4-§5.

mod activity;
pub mod admin;
mod birth;
mod checkpoint;
mod closing;
mod commit;
pub mod create;
mod damage;
mod destroy;
pub(crate) mod dsl;
mod dtl;
mod events;
mod heads;
mod import;
mod leafwork;
mod leaves;
mod ledger;
mod memory;
mod metaslabs;
mod multihost;
mod opened;
mod ops;
mod store;
pub(crate) mod suspend;
mod sync;
#[cfg(test)]
mod testing;
mod throttle;
mod view;
pub mod zil;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cenote_block::BlockStore;
use cenote_block::alloc::SpaceAllocator;
use cenote_block::policy::PoolPolicy;
use cenote_dmu::live::{LiveError, OwnerProbe};
use cenote_dmu::{Live, Step, Tx, TxResult};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::{PoolFacts, VdevConfig};
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::uberblock::Uberblock;
use cenote_pool::keys::KeyStore;
use cenote_rt::{AsyncMutex, BoxFuture, Error, Kind, Notify, Result, tunables};
use cenote_vdev::Tree;

pub use activity::{Activity, ActivityCounts};
pub use checkpoint::{CheckpointError, CheckpointState};
pub use closing::{ClosedByForce, Unwritten};
use dsl::Context;
pub use dsl::OpError;
pub use dsl::deleg::{Creator, GrantChange};
pub use dsl::settings::Change as PropertyChange;
pub use events::{Deed, Event, EventLog, NotedEvent, TrimTurn};
use heads::Heads;
pub use heads::{Head, Ownership};
pub use leafwork::{LeafWorkError, Stop, TrimOptions};
pub use opened::OpenSnapshot;
use ops::Admission;
pub use ops::{Charge, HeadSpace, NewDataset, Notice};
pub use suspend::{FailMode, Suspended};
use suspend::{Steady, Suspension};

/// Why a pool takes no changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Something that must hold does not.
    #[error("invariant: {0}")]
    Invariant(String),
    /// Devices fail; the pool goes on once it is cleared.
    #[error("pool I/O is currently suspended: {0}")]
    Suspended(String),
    /// A sync failed for good; nothing is written any more.
    #[error("pool is stopped: {0}")]
    Stopped(String),
    /// A leaf that the pool cannot do without does not answer.
    #[error("leaf {0} still fails")]
    StillFailing(u64),
    /// A leaf that must stay, since what it has is nowhere else.
    #[error("no valid replicas")]
    NoReplicas(u64),
    /// Nothing of that guid is a leaf.
    #[error("no such device in pool")]
    NoSuchLeaf(u64),
    /// A device with the labels of something else.
    #[error("device does not belong to leaf {0} of this pool")]
    WrongDevice(u64),
    /// Somebody else added vdevs since those to be added got their numbers.
    #[error("vdevs were added to the pool meanwhile")]
    VdevsAdded,
    /// The pool was closed.
    #[error("pool is closed")]
    Closed,
    /// The devices carried other labels once they were locked.
    #[error("pool {0} is not on its devices any more")]
    Gone(u64),
    /// The dataset was destroyed or rolled back since it was opened.
    #[error("dataset {0} is not what was opened any more")]
    HeadGone(u64),
    /// The dataset's intent log has operations of an earlier opening.
    #[error("the intent log of dataset {0} waits for its replay")]
    Unreplayed(u64),
    /// A pool from before feature flags.
    #[error("pools of version {0} are opened for reading only")]
    OldVersion(u64),
    /// The pool was imported for reading.
    #[error("pool is read-only")]
    ReadOnly,
    /// Features in use that are read and not kept.
    #[error("the pool uses features that are read only here: {}", .0.join(", "))]
    Unmaintained(Vec<String>),
}

/// A broken invariant inside a transaction.
pub(crate) fn invariant(what: String) -> Step {
    Step::Fail(invariant_error(what))
}

/// A broken invariant.
pub(crate) fn invariant_error(what: String) -> Error {
    Error::new(Kind::Invariant, EngineError::Invariant(what))
}

/// The config, and what is still to be told of it.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// The pool.
    pub(crate) facts: PoolFacts,
    /// The name on disk, where the pool has another one for the time being.
    pub(crate) stored_name: Option<String>,
    /// Whether vdevs have objects for their properties.
    pub(crate) has_vdev_zaps: bool,
    /// The vdevs.
    pub(crate) root: VdevConfig,
    /// The MOS has an older one.
    is_unrecorded: bool,
    /// Labels have an older one.
    is_dirty: bool,
}

impl Config {
    /// The facts as they are on disk.
    pub(crate) fn stored(&self) -> PoolFacts {
        let mut facts = self.facts.clone();
        if let Some(name) = &self.stored_name {
            facts.name.clone_from(name);
        }
        facts
    }

    /// Notes that it was changed.
    pub(crate) fn touch(&mut self) {
        self.is_unrecorded = true;
        self.is_dirty = true;
    }

    fn take_unrecorded(&mut self) -> bool {
        std::mem::take(&mut self.is_unrecorded)
    }
}

/// What a task sees of the sync that runs it.
pub(crate) struct Scope<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) context: Context,
}

/// An operation on the MOS in syncing context. An error is the pool's: what is wrong with the
/// request is told to whoever made it.
pub(crate) trait Task: Send {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>>;
}

/// The txgs.
#[derive(Debug, Default)]
struct State {
    /// Tasks for the next sync, with whom to tell.
    tasks: Vec<QueuedTask>,
    /// Why nothing is written any more.
    stopped: Option<String>,
}

struct QueuedTask {
    task: Box<dyn Task>,
}

impl std::fmt::Debug for QueuedTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QueuedTask")
    }
}

/// A pool that is open for writing.
pub struct Engine {
    /// Itself: what must come to its end runs in tasks of its own.
    me: Weak<Self>,
    suspension: Arc<Suspension>,
    leaf_service: leaves::Service,
    delay: throttle::Delay,
    multihost: multihost::Multihost,
    tree: Arc<Tree>,
    store: Arc<BlockStore>,
    alloc: Arc<SpaceAllocator>,
    mos: Arc<Live>,
    /// The dir `$MOS`, which is charged for the MOS; 0 until the MOS of a new pool is made.
    mos_dir: AtomicU64,
    heads: Heads,
    /// Snapshots that are being read.
    opened: Arc<opened::Opened>,
    config: Mutex<Config>,
    state: Mutex<State>,
    uberblock: Mutex<Uberblock>,
    /// What the pool's features mean for blocks. Held for a copy.
    policy: Mutex<PoolPolicy>,
    /// The txg that takes changes. Written under `syncing` only.
    open_txg: AtomicU64,
    is_closing: AtomicBool,
    /// Damage that was met.
    damage: Arc<damage::Damage>,
    /// Bytes of changes in memory.
    dirty: AtomicU64,
    /// Wakes whoever keeps the pool going.
    wake: Arc<Notify>,
    /// Whether somebody does.
    is_kept: AtomicBool,
    /// One sync at a time.
    syncing: AsyncMutex<()>,
    /// Held while a log block is allocated in the open txg, and while that changes.
    log_gate: AsyncMutex<()>,
    /// Who replays logs.
    replayers: Mutex<Vec<(ObjSetType, Arc<dyn zil::Replayer>)>>,
    rng: Mutex<cenote_rt::Rng>,
    /// Metaslab arrays of top-level vdevs, as the store of metaslabs finds them.
    maps: Arc<store::Maps>,
    /// Who tells the owners of objects. Set before heads are opened; held for a copy.
    probe: Mutex<Option<Arc<dyn OwnerProbe>>>,
    /// What changes that are under way may cost.
    admission: Admission,
    /// What whoever works with the pool should be told.
    notices: Mutex<Vec<Notice>>,
    /// Heads whose intent logs could not be looked at when the pool was opened, each with the last
    /// txg before that.
    unread_logs: Mutex<BTreeMap<u64, u64>>,
    /// Roots of dead trees that cannot be read.
    stalled: Mutex<Vec<BlockPtr>>,
    /// The pool's checkpoint.
    checkpoint: checkpoint::Checkpoint,
    /// Trim and initialize that are under way.
    leaf_works: leafwork::LeafWorks,
    /// What has become free and is to be discarded.
    auto_trim: leafwork::AutoTrim,
    /// How readers see it.
    views: view::Views,
    /// Nothing is ever written.
    is_read_only: bool,
}

/// What an engine is put together from.
struct Parts {
    tree: Arc<Tree>,
    store: Arc<BlockStore>,
    alloc: Arc<SpaceAllocator>,
    mos: Arc<Live>,
    suspension: Arc<Suspension>,
    mos_dir: u64,
    config: Config,
    /// Every txg up to it is taken: the uberblock's, or after a rewind the last one given up.
    base_txg: u64,
    uberblock: Uberblock,
    policy: PoolPolicy,
    maps: Arc<store::Maps>,
    keys: Arc<KeyStore>,
    seed: u64,
    is_read_only: bool,
}

impl Engine {
    fn assemble(parts: Parts) -> Arc<Self> {
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
            is_kept: AtomicBool::new(false),
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

    fn pool_policy(&self) -> PoolPolicy {
        *self.policy.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Acquire)
    }

    fn replayers(&self) -> std::sync::MutexGuard<'_, Vec<(ObjSetType, Arc<dyn zil::Replayer>)>> {
        self.replayers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn context(&self, txg: u64) -> Context {
        let seed = self.rng.lock().unwrap_or_else(PoisonError::into_inner).next_u64();
        let now = cenote_rt::wall_clock().as_secs();
        Context { txg, now, seed }
    }

    /// Refuses everything while the pool is suspended, and once it is stopped.
    fn check_running(&self) -> Result<()> {
        self.check_stopped()?;
        match self.suspension.cause() {
            Some(cause) => Err(suspend::refusal(&cause)),
            None => Ok(()),
        }
    }

    fn check_stopped(&self) -> Result<()> {
        match &self.state().stopped {
            Some(_) if self.tree.is_closed() => Err(Error::new(Kind::Closed, EngineError::Closed)),
            Some(cause) => Err(Error::new(Kind::Io, EngineError::Stopped(cause.clone()))),
            None => Ok(()),
        }
    }

    /// Waits while the pool is suspended, or refuses at once: as `failmode` says.
    async fn until_running(&self) -> Result<()> {
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
    fn stop(&self, cause: &str) {
        self.state().stopped.get_or_insert_with(|| cause.to_owned());
        self.suspension.abandon();
    }

    /// A transaction on the MOS, in syncing context only.
    pub(crate) async fn mos_apply<T>(
        &self,
        txg: u64,
        change: impl FnMut(&mut Tx<'_>) -> TxResult<T>,
    ) -> Result<T> {
        self.mos.apply(txg, change).await
    }

    /// Runs `change` on the MOS in the next sync, and waits until that is committed.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        change: impl FnMut(&mut Tx<'_>, &Context) -> TxResult<T> + Send + 'static,
    ) -> Result<T> {
        let (task, answer) = Change::with_answer(change);
        self.run_task(task).await?;
        answer.take()
    }

    /// Runs a task in the next sync, and waits until that is committed.
    pub(crate) async fn run_task(&self, task: Box<dyn Task>) -> Result<()> {
        self.until_running().await?;
        self.state().tasks.push(QueuedTask { task });
        // Somebody waits for this txg: leaves need not spare anybody else.
        self.tree.load().set_sync_task(true);
        self.sync_in_turn().await.map(drop)
    }

    /// The same before all other tasks of that sync.
    async fn run_first(&self, task: Box<dyn Task>) -> Result<()> {
        self.until_running().await?;
        self.state().tasks.insert(0, QueuedTask { task });
        self.tree.load().set_sync_task(true);
        self.sync_in_turn().await.map(drop)
    }

    /// Closes the open txg and commits it, with everything that was changed before this call.
    /// Gives the txg that was committed last.
    pub async fn sync(&self) -> Result<u64> {
        self.until_running().await?;
        self.sync_in_turn().await
    }

    /// A sync comes to its end, whether or not somebody waits for it: it may be suspended for long,
    /// and one that ended half way could not be taken up again.
    async fn sync_in_turn(&self) -> Result<u64> {
        let closed = || Error::new(Kind::Io, EngineError::Closed);
        let engine = self.me.upgrade().ok_or_else(closed)?;
        let task = cenote_rt::spawn(async move { engine.sync_here().await });
        task.await.map_err(|error| Error::new(Kind::Io, error))?
    }

    async fn sync_here(&self) -> Result<u64> {
        let _one = self.syncing.lock().await;
        self.check_stopped()?;
        // Dropped before its time, as by a panic, it stops the pool.
        let mut stop = StopUnlessDone { engine: self, end: End::Never };
        let txg = self.open_txg();
        // From here on changes go to the next txg; one that still names this txg is refused by its
        // object set as soon as that is being synced.
        {
            // Blocks of logs that are being allocated in this txg are in before it is closed: its
            // maps could else be finished without them.
            let _gate = self.log_gate.lock().await;
            self.open_txg.store(txg + 1, Ordering::Release);
        }
        let mut tasks: Vec<_> =
            std::mem::take(&mut self.state().tasks).into_iter().map(|queued| queued.task).collect();
        for head in self.heads.all() {
            head.live().close(txg);
        }
        let result = self.sync_txg(txg, &mut tasks).await;
        self.tree.load().set_sync_task(!self.state().tasks.is_empty());
        stop.end = match &result {
            Ok(()) => End::Good,
            Err(error) => End::Bad(error.to_string()),
        };
        result.map(|()| txg)
    }

    async fn sync_txg(&self, txg: u64, tasks: &mut [Box<dyn Task>]) -> Result<()> {
        if let Some(root) = self.sync_passes(txg, tasks).await? {
            self.commit(txg, &root).await?;
        }
        // Before space is reused: whoever looks a pointer up after that finds the trees of this
        // txg, and not blocks that it has freed (`cenote_block::alloc::SpaceAllocator::epoch`).
        self.mos.committed(txg)?;
        for head in self.heads.all() {
            head.live().committed(txg)?;
        }
        // What this txg freed may be reused from here on as spec 05 §5.4 says: not before.
        let mature = self.alloc.sync_done(txg, self.slop())?;
        self.note_free(txg, mature);
        self.logs_committed(txg).await?;
        self.admission.synced(txg);
        self.recount_dirty();
        self.alloc.preload().await;
        Ok(())
    }

    /// Space that is kept back (spec 04 §17.1).
    fn slop(&self) -> u64 {
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

/// How a sync ended.
enum End {
    Good,
    Bad(String),
    Never,
}

/// Stops the pool unless a sync came to its end, and that was a good one.
struct StopUnlessDone<'a> {
    engine: &'a Engine,
    end: End,
}

impl Drop for StopUnlessDone<'_> {
    fn drop(&mut self) {
        let cause = match &self.end {
            End::Good => return,
            End::Bad(cause) => cause,
            End::Never => "a sync did not come to its end",
        };
        // Nobody is to wait for a pool that does not come back.
        self.engine.stop(cause);
    }
}

fn is_txg_passed(error: &Error) -> bool {
    matches!(error.cause(), Some(LiveError::TxgPassed { .. }))
}

/// A task made of one transaction on the MOS.
struct Change<F, T> {
    change: F,
    answer: Arc<Answer<T>>,
}

/// Where the result of a task is put.
pub(crate) struct Answer<T>(Mutex<Option<Result<T>>>);

impl<T> Answer<T> {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(None)))
    }

    fn put(&self, result: Result<T>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
    }

    fn take(&self) -> Result<T> {
        let result = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        result.unwrap_or_else(|| Err(invariant_error("a task was not run".into())))
    }
}

impl<F, T> Change<F, T>
where
    F: FnMut(&mut Tx<'_>, &Context) -> TxResult<T> + Send + 'static,
    T: Send + 'static,
{
    fn with_answer(change: F) -> (Box<dyn Task>, Arc<Answer<T>>) {
        let answer = Answer::new();
        (Box::new(Self { change, answer: Arc::clone(&answer) }), answer)
    }
}

impl<F, T> Task for Change<F, T>
where
    F: FnMut(&mut Tx<'_>, &Context) -> TxResult<T> + Send,
    T: Send,
{
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let change = &mut self.change;
            let result = engine.mos_apply(context.txg, |tx| change(tx, context)).await;
            match result {
                Err(error) if is_fatal(&error) => Err(error),
                result => {
                    self.answer.put(result);
                    Ok(())
                }
            }
        })
    }
}

/// A number that nobody can foresee, from which an engine's own are drawn.
fn random_seed() -> Result<u64> {
    let mut bytes = [0; 8];
    cenote_rt::secret_bytes(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Whether an error says that the pool is wrong, and not the request.
pub(crate) fn is_fatal(error: &Error) -> bool {
    let kinds = [Kind::Invariant, Kind::Io, Kind::Checksum, Kind::Corrupt, Kind::Closed];
    kinds.contains(&error.kind())
}
