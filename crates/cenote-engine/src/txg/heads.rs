//! Open heads: file systems and volumes open for writing.
//!
//! Invariants
//! * H1  A head counts its owners: it is not closed while it has one.
//! * H2  A head that was destroyed or rolled back is not changed, and its log not committed.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use cenote_block::SealKeys;
use cenote_block::policy::{BlockSpec, DatasetPolicy, PoolPolicy, WritePolicy};
use cenote_dmu::Live;
use cenote_dmu::live::{OwnerProbe, PolicySource};
use cenote_rt::lock::{Mutex, MutexGuard, Rank, RwLock};
use cenote_rt::{Error, Kind, OwnedSemaphorePermit, Result, Semaphore};

use crate::EngineError;
use crate::dsl::opened::Opened;
use crate::dsl::receive::ReceivePoints;
use crate::txg::activity::Activity;
use crate::txg::suspend::HeadKeys;
use crate::zil::Log;

/// A head that is open for writing.
pub struct Head {
    object: u64,
    live: Arc<Live>,
    settings: RwLock<Settings>,
    probe: Option<Arc<dyn OwnerProbe>>,
    log: Log,
    /// It was destroyed or replaced: changes have no effect any more.
    is_gone: AtomicBool,
    /// Number of owners.
    owners: AtomicUsize,
    /// Number of changes of properties.
    settings_count: AtomicU64,
    /// Bytes of changes in memory at the last count.
    pub(crate) dirty: AtomicU64,
    activity: Arc<Activity>,
    /// Points up to which it was received.
    received: ReceivePoints,
    keys: HeadKeys,
    /// The right to count anew what each owner has.
    recount: Arc<Semaphore>,
    /// State shared by all owners. Held for single reads and updates.
    shared: Mutex<Option<Weak<dyn Any + Send + Sync>>>,
}

/// Ownership of a head: the dataset can be neither destroyed nor rolled back meanwhile.
#[derive(Debug)]
pub struct Ownership(Arc<Head>);

impl Drop for Ownership {
    fn drop(&mut self) {
        let owners = self.0.owners.fetch_sub(1, Ordering::AcqRel);
        // Checks H1.
        assert!(owners > 0, "head {} has no owners", self.0.object);
    }
}

/// Block policy of a head.
#[derive(Debug, Clone, Copy)]
struct Settings {
    pool: PoolPolicy,
    dataset: DatasetPolicy,
}

impl Head {
    /// Returns a head of this object set, which has the same keys.
    pub(crate) fn new(
        (object, keys): (u64, HeadKeys),
        live: Arc<Live>,
        pool: PoolPolicy,
        dataset: DatasetPolicy,
        probe: Option<Arc<dyn OwnerProbe>>,
    ) -> Arc<Self> {
        live.set_indirect_shift(dataset.indirect_shift);
        Arc::new(Self {
            object,
            live,
            settings: RwLock::new(Rank::HeadSettings, Settings { pool, dataset }),
            probe,
            log: Log::default(),
            is_gone: AtomicBool::new(false),
            owners: AtomicUsize::new(0),
            settings_count: AtomicU64::new(0),
            dirty: AtomicU64::new(0),
            activity: Arc::default(),
            received: ReceivePoints::default(),
            keys,
            recount: Arc::new(Semaphore::new(1)),
            shared: Mutex::with_default(Rank::HeadShared),
        })
    }

    /// Prevents the dataset from being destroyed or rolled back.
    #[must_use]
    pub fn own(self: &Arc<Self>) -> Ownership {
        self.owners.fetch_add(1, Ordering::AcqRel);
        Ownership(Arc::clone(self))
    }

    /// Returns the state that all owners of the head share: `mine`, or that of an earlier owner
    /// which is still referenced.
    pub fn share<T: Send + Sync + 'static>(&self, mine: Arc<T>) -> Arc<T> {
        let mut shared = self.shared.lock();
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

    /// Returns the dataset object.
    pub fn object(&self) -> u64 {
        self.object
    }

    /// Returns its object set.
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// Whether it is encrypted.
    pub fn is_encrypted(&self) -> bool {
        !matches!(self.keys, HeadKeys::Plain)
    }

    /// Whether it is encrypted, and open without its keys: no user may read or change it.
    pub(crate) fn is_locked(&self) -> bool {
        matches!(self.keys, HeadKeys::Locked)
    }

    /// Returns its keys, if it is encrypted and they are loaded.
    pub(crate) fn seal_keys(&self) -> Option<Arc<SealKeys>> {
        self.keys.loaded().cloned()
    }

    /// Checks that blocks may be encrypted with its keys.
    ///
    /// # Errors
    /// `Kind::ReadOnly` if the format of the keys is too old.
    pub(crate) fn check_key_version(&self) -> Result<()> {
        self.keys.loaded().map_or(Ok(()), |keys| keys.check_version())
    }

    /// Returns its intent log.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Returns its counters, which its readers and writers update.
    pub fn activity(&self) -> &Arc<Activity> {
        &self.activity
    }

    /// Returns the points up to which it was received.
    pub fn received(&self) -> &ReceivePoints {
        &self.received
    }

    /// Waits until nobody counts anew what each owner has ([`Recount`](cenote_dmu::live::Recount)),
    /// and takes the right to do so until the permit is dropped.
    ///
    /// # Errors
    /// None: the semaphore is never closed.
    pub async fn recount_permit(&self) -> Result<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.recount).acquire_owned().await;
        permit.map_err(|error| Error::new(Kind::Closed, error))
    }

    /// Sets the dataset's block policy from now on.
    pub fn set_policy(&self, dataset: DatasetPolicy) {
        self.live.set_indirect_shift(dataset.indirect_shift);
        self.settings.write().dataset = dataset;
        self.log.mark_stale();
        self.settings_count.fetch_add(1, Ordering::AcqRel);
    }

    /// Sets the pool's block policy from now on.
    pub(crate) fn set_pool_policy(&self, pool: PoolPolicy) {
        self.settings.write().pool = pool;
    }

    /// Returns the number of possible changes of properties, for callers that cache some.
    pub fn settings_count(&self) -> u64 {
        self.settings_count.load(Ordering::Acquire)
    }

    pub(crate) fn policy(&self) -> HeadPolicy {
        HeadPolicy(*self.settings.read())
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

/// The block policy of a head in one sync: changed properties apply from the next sync on.
pub(crate) struct HeadPolicy(Settings);

impl HeadPolicy {
    /// Returns the number of copies of user data.
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

/// Returns the policy for a block; invalid settings of an object are ignored.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "as the callers and the callee have them")]
pub(crate) fn policy_of(
    pool: &PoolPolicy,
    dataset: &DatasetPolicy,
    block: &BlockSpec,
) -> Result<WritePolicy> {
    let policy = WritePolicy::of(pool, dataset, block);
    policy.ok_or_else(|| Error::new(Kind::Unsupported, EngineError::UnknownPolicy))
}

/// The open heads, by object.
pub(crate) struct Heads {
    // Held for a lookup, never across I/O.
    open: Mutex<BTreeMap<u64, Arc<Head>>>,
    /// Removed heads whose logs still have blocks to be freed.
    removed: Mutex<Vec<Arc<Head>>>,
    /// Open snapshots.
    pub(crate) opened: Arc<Opened>,
    /// Finds the owners of objects. Set before heads are opened; held for a copy.
    pub(crate) owner_probe: Mutex<Option<Arc<dyn OwnerProbe>>>,
}

impl Default for Heads {
    fn default() -> Self {
        Self {
            open: Mutex::with_default(Rank::HeadsOpen),
            removed: Mutex::with_default(Rank::HeadsRemoved),
            opened: Arc::default(),
            owner_probe: Mutex::new(Rank::OwnerProbe, None),
        }
    }
}

impl Heads {
    pub(crate) fn get(&self, object: u64) -> Option<Arc<Head>> {
        self.lock().get(&object).cloned()
    }

    /// Adds a head, unless it is open already; returns the open one.
    pub(crate) fn insert(&self, head: Arc<Head>) -> Arc<Head> {
        Arc::clone(self.lock().entry(head.object).or_insert(head))
    }

    pub(crate) fn remove(&self, object: u64) -> Option<Arc<Head>> {
        let head = self.lock().remove(&object)?;
        self.removed().push(Arc::clone(&head));
        Some(head)
    }

    /// Returns the heads whose logs a sync must process.
    pub(crate) fn with_logs(&self) -> Vec<Arc<Head>> {
        let mut heads = self.all();
        heads.extend(self.removed().iter().cloned());
        heads
    }

    /// Forgets removed heads with nothing left to free.
    pub(crate) fn forget_removed(&self) {
        self.removed().retain(|head| head.log.has_orphans());
    }

    fn removed(&self) -> MutexGuard<'_, Vec<Arc<Head>>> {
        self.removed.lock()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Head>> {
        self.lock().values().cloned().collect()
    }

    /// Returns the heads that `txg` changed, by number.
    pub(crate) fn dirty(&self, txg: u64) -> Vec<Arc<Head>> {
        self.lock().values().filter(|head| head.live.is_dirty(txg)).cloned().collect()
    }

    pub(crate) fn is_dirty(&self, txg: u64) -> bool {
        self.lock().values().any(|head| head.live.is_dirty(txg))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<Head>>> {
        self.open.lock()
    }
}
