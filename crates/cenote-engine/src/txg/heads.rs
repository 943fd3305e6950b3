//! Heads that are open for writing: file systems and volumes.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use cenote_block::policy::{BlockSpec, DatasetPolicy, PoolPolicy, WritePolicy};
use cenote_dmu::Live;
use cenote_dmu::live::{OwnerProbe, PolicySource};
use cenote_rt::{Error, Kind, Result};

use crate::dsl::opened::Opened;
use crate::txg::activity::Activity;
use crate::zil::Log;

/// A head that is open for writing.
pub struct Head {
    object: u64,
    live: Arc<Live>,
    settings: RwLock<Settings>,
    probe: Option<Arc<dyn OwnerProbe>>,
    log: Log,
    /// It was destroyed or replaced: what is changed here now gets nowhere.
    is_gone: AtomicBool,
    /// Who has it open.
    owners: AtomicUsize,
    /// Counts the changes of properties.
    settings_count: AtomicU64,
    /// Bytes of changes in memory when they were counted last.
    pub(crate) dirty: AtomicU64,
    activity: Activity,
    /// What those who have it open share. Held for a look.
    shared: Mutex<Option<Weak<dyn Any + Send + Sync>>>,
}

/// Somebody's hold on a head: while there is one the dataset can be neither destroyed nor rolled
/// back.
#[derive(Debug)]
pub struct Ownership(Arc<Head>);

impl Drop for Ownership {
    fn drop(&mut self) {
        self.0.owners.fetch_sub(1, Ordering::AcqRel);
    }
}

/// How a head's blocks are written.
#[derive(Debug, Clone, Copy)]
struct Settings {
    pool: PoolPolicy,
    dataset: DatasetPolicy,
}

impl Head {
    /// A head over its object set.
    pub(crate) fn new(
        object: u64,
        live: Arc<Live>,
        pool: PoolPolicy,
        dataset: DatasetPolicy,
        probe: Option<Arc<dyn OwnerProbe>>,
    ) -> Arc<Self> {
        live.set_indirect_shift(dataset.indirect_shift);
        Arc::new(Self {
            object,
            live,
            settings: RwLock::new(Settings { pool, dataset }),
            probe,
            log: Log::default(),
            is_gone: AtomicBool::new(false),
            owners: AtomicUsize::new(0),
            settings_count: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            activity: Activity::default(),
            shared: Mutex::default(),
        })
    }

    /// Keeps the dataset from being destroyed or rolled back.
    #[must_use]
    pub fn own(self: &Arc<Self>) -> Ownership {
        self.owners.fetch_add(1, Ordering::AcqRel);
        Ownership(Arc::clone(self))
    }

    /// What everybody shares who has the head open: `mine`, or what somebody else has brought
    /// before and still has.
    pub fn share<T: Send + Sync + 'static>(&self, mine: Arc<T>) -> Arc<T> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let theirs = shared.as_ref().and_then(Weak::upgrade);
        if let Some(theirs) = theirs.and_then(|theirs| theirs.downcast().ok()) {
            return theirs;
        }
        let weak: Weak<T> = Arc::downgrade(&mine);
        *shared = Some(weak);
        mine
    }

    pub(crate) fn is_owned(&self) -> bool {
        self.owners.load(Ordering::Acquire) > 0
    }

    /// Whether the dataset was destroyed or rolled back: it must be opened again.
    pub fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Acquire)
    }

    pub(crate) fn mark_gone(&self) {
        self.is_gone.store(true, Ordering::Release);
        self.live.mark_gone();
        self.log.close();
    }

    /// Number of the dataset.
    pub fn object(&self) -> u64 {
        self.object
    }

    /// Its object set.
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Its intent log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// What is done with it: whoever reads and writes it counts that here.
    pub fn activity(&self) -> &Activity {
        &self.activity
    }

    /// Changes how blocks are written from now on.
    pub fn set_policy(&self, dataset: DatasetPolicy) {
        self.live.set_indirect_shift(dataset.indirect_shift);
        self.settings.write().unwrap_or_else(PoisonError::into_inner).dataset = dataset;
        self.log.mark_stale();
        self.settings_count.fetch_add(1, Ordering::AcqRel);
    }

    /// What the pool's features mean for blocks is another thing from now on.
    pub(crate) fn set_pool_policy(&self, pool: PoolPolicy) {
        self.settings.write().unwrap_or_else(PoisonError::into_inner).pool = pool;
    }

    /// Counts the times that properties may have changed: who keeps some of them looks here.
    pub fn settings_count(&self) -> u64 {
        self.settings_count.load(Ordering::Acquire)
    }

    pub(crate) fn policy(&self) -> HeadPolicy {
        HeadPolicy(*self.settings.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn probe(&self) -> Option<Arc<dyn OwnerProbe>> {
        self.probe.clone()
    }
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Head").field("object", &self.object).finish_non_exhaustive()
    }
}

/// How the blocks of a head are written in one sync: properties that change meanwhile count from
/// the next.
pub(crate) struct HeadPolicy(Settings);

impl HeadPolicy {
    /// Copies of users' data.
    pub(crate) const fn copies(&self) -> u8 {
        self.0.dataset.copies
    }
}

impl PolicySource for HeadPolicy {
    fn policy(&self, block: &BlockSpec) -> Result<WritePolicy> {
        policy_of(&self.0.pool, &self.0.dataset, block)
    }

    fn has_hole_births(&self) -> bool {
        self.0.pool.has_hole_birth
    }
}

/// The policy for a block; what an object's own settings ask for may mean nothing.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as the callers and the callee have them")]
pub(crate) fn policy_of(
    pool: &PoolPolicy,
    dataset: &DatasetPolicy,
    block: &BlockSpec,
) -> Result<WritePolicy> {
    WritePolicy::of(pool, dataset, block).ok_or_else(|| {
        Error::new(Kind::Unsupported, "an object asks for a compression or checksum unknown here")
    })
}

/// The heads that are open, by object.
#[derive(Default)]
pub(crate) struct Heads {
    // Held for a look-up, never across I/O.
    open: Mutex<BTreeMap<u64, Arc<Head>>>,
    /// Those that were taken out, as long as their logs have blocks to be freed.
    removed: Mutex<Vec<Arc<Head>>>,
    /// Snapshots that are open for reading.
    pub(crate) opened: Arc<Opened>,
    /// Tells the owners of objects. Set before heads are opened; held for a copy.
    pub(crate) owner_probe: Mutex<Option<Arc<dyn OwnerProbe>>>,
}

impl Heads {
    pub(crate) fn get(&self, object: u64) -> Option<Arc<Head>> {
        self.lock().get(&object).cloned()
    }

    /// Adds a head; the one that is there already stays.
    pub(crate) fn insert(&self, head: Arc<Head>) -> Arc<Head> {
        Arc::clone(self.lock().entry(head.object).or_insert(head))
    }

    pub(crate) fn remove(&self, object: u64) -> Option<Arc<Head>> {
        let head = self.lock().remove(&object)?;
        self.removed().push(Arc::clone(&head));
        Some(head)
    }

    /// Heads whose logs a sync has to look at.
    pub(crate) fn with_logs(&self) -> Vec<Arc<Head>> {
        let mut heads = self.all();
        heads.extend(self.removed().iter().cloned());
        heads
    }

    /// Forgets those that were taken out and have nothing left to free.
    pub(crate) fn forget_removed(&self) {
        self.removed().retain(|head| head.log.has_orphans());
    }

    fn removed(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Head>>> {
        self.removed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn all(&self) -> Vec<Arc<Head>> {
        self.lock().values().cloned().collect()
    }

    /// Those that `txg` changed, in the order of their numbers.
    pub(crate) fn dirty(&self, txg: u64) -> Vec<Arc<Head>> {
        self.lock().values().filter(|head| head.live.is_dirty(txg)).cloned().collect()
    }

    pub(crate) fn is_dirty(&self, txg: u64) -> bool {
        self.lock().values().any(|head| head.live.is_dirty(txg))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<Head>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
