//! Suspension of a pool whose devices fail, until it is cleared.
//!
//! ```text
//!   sync ── write, flush, read ──fails──> hold ──────────> waits, with everything that it has done
//!                  ^                       |  `failmode=panic`: the pool is stopped
//!                  `───── again ── clear <─'
//! ```
//!
//! A sync cannot be restarted, because half of it is in memory. But it need not be: each failed I/O
//! is held, and repeated once the pool is cleared. A block that was not written is written
//! elsewhere; data that a device accepted and may have lost is rewritten by the leaf before its
//! next flush; the commit is repeated as a whole, since it writes the same contents each time. So
//! the interrupted txg is the one that is committed, and all later ones wait for it.
//!
//! Only failures caused by devices are held. The errors of a sync:
//!
//! | error of a write, flush or read of a sync           | what becomes of the pool               |
//! |------------------------------------------------------|---------------------------------------|
//! | `Io`: too few devices answer, or took the write      | suspended                             |
//! | `Checksum` while a leaf is away or has just failed   | suspended: it may have the right bytes|
//! | `Checksum` with every leaf in service                | stopped: no device has the block      |
//! | `Corrupt`: a block verifies and makes no sense       | stopped                               |
//! | `NoSpace`: not even the slop was enough              | stopped                               |
//! | `Invariant`: this program is wrong                   | stopped                               |
//!
//! An error that stops a pool would only occur again. Old bytes on a leaf that misses the block's
//! txg do not count as wrong while a leaf that may have the block is absent (`cenote_vdev`).
//!
//! Invariants
//! * S1  An error stops the pool only if the operation began after the last resume. The devices
//!   that were away during an earlier operation may be back since, so the operation is repeated,
//!   and its next error is judged by the leaves that are there then.
//! * S2  A batch of writes ends, and with one outcome for each block.
//!
//! While a pool is being created or imported nothing is held: the caller gets the error.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cenote_block::{BlockStore, Draft, Grounds, ReadContext, SealKeys, Since, Written};
use cenote_dmu::live::{Blocks, Missing, ReadBlocks};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_pool::{Reason, SuspensionProbe};
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{BoxFuture, Buf, Error, Kind, Notify, Result, ensure, stages};
use cenote_vdev::Tree;
use futures_util::future::{Either, select};

use crate::EngineError;
use crate::admin::events::{Event, EventLog};

/// Behaviour of a suspended pool (property `failmode`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FailMode {
    /// Requests wait.
    #[default]
    Wait,
    /// New changes fail; accepted ones wait.
    Continue,
    /// The pool is stopped instead of suspended.
    Panic,
}

impl FailMode {
    /// Converts the property's value.
    pub(crate) const fn of(value: u64) -> Self {
        match value {
            1 => Self::Continue,
            2 => Self::Panic,
            _ => Self::Wait,
        }
    }
}

/// Why a pool is suspended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suspended {
    /// Devices fail.
    Io(String),
    /// Heartbeats were not written in time: another host may have imported the pool.
    Multihost(String),
}

impl std::fmt::Display for Suspended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Io(cause) | Self::Multihost(cause) => f.write_str(cause),
        }
    }
}

#[derive(Debug, Default)]
struct Inner {
    is_armed: bool,
    is_abandoned: bool,
    /// The pool was stopped by an error, and not because it is being closed.
    is_failed: bool,
    suspended: Option<Suspended>,
    /// Number of resumes.
    resume_count: u64,
}

/// State of the suspension of a pool.
#[derive(Debug)]
pub(crate) struct Suspension {
    // Held for single reads and updates, never across I/O.
    inner: Mutex<Inner>,
    changed: Notify,
    mode: AtomicU64,
    /// Records the events of suspensions.
    events: OnceLock<Arc<EventLog>>,
    /// The vdev tree, whose leaves may be absent.
    tree: OnceLock<Arc<Tree>>,
}

impl Default for Suspension {
    fn default() -> Self {
        Self {
            inner: Mutex::with_default(Rank::Suspension),
            changed: Notify::new(),
            mode: AtomicU64::new(0),
            events: OnceLock::new(),
            tree: OnceLock::new(),
        }
    }
}

impl SuspensionProbe for Suspension {
    fn reason(&self) -> Option<Reason> {
        let Some(cause) = self.cause() else { return self.is_failed().then_some(Reason::Stopped) };
        Some(match (cause, self.mode()) {
            (Suspended::Multihost(_), _) => Reason::IoFailureMmp,
            (Suspended::Io(_), FailMode::Continue) => Reason::IoFailureContinue,
            (Suspended::Io(_), _) => Reason::IoFailureWait,
        })
    }
}

impl Suspension {
    /// Records suspensions in these events from now on.
    pub(crate) fn tell(&self, events: &Arc<EventLog>) {
        self.events.get_or_init(|| Arc::clone(events));
    }

    /// Judges errors by the states of this tree's leaves from now on.
    pub(crate) fn watch(&self, tree: &Arc<Tree>) {
        self.tree.get_or_init(|| Arc::clone(tree));
    }

    /// Whether an operation with this error may succeed later, when unavailable devices are back.
    fn may_pass(&self, error: &Error) -> bool {
        match error.kind() {
            Kind::Io => true,
            Kind::Checksum => self.tree.get().is_some_and(|tree| tree.has_unavailable_leaves()),
            _ => false,
        }
    }

    /// Suspends the pool, unless it is suspended.
    fn set(&self, inner: &mut Inner, cause: Suspended) {
        if inner.suspended.is_none() {
            if let Some(events) = self.events.get() {
                events.note(Event::Suspended(cause.to_string()));
            }
            inner.suspended = Some(cause);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Holds failures from now on.
    pub(crate) fn arm(&self) {
        self.lock().is_armed = true;
    }

    /// Returns failures immediately and stops the pool, because it cannot be cleared.
    pub(crate) fn disarm(&self) {
        self.lock().is_armed = false;
    }

    pub(crate) fn set_mode(&self, failmode: u64) {
        self.mode.store(failmode, Ordering::Release);
    }

    pub(crate) fn mode(&self) -> FailMode {
        FailMode::of(self.mode.load(Ordering::Acquire))
    }

    pub(crate) fn cause(&self) -> Option<Suspended> {
        self.lock().suspended.clone()
    }

    /// Returns the number of resumes, for [`hold`](Self::hold).
    pub(crate) fn resume_count(&self) -> u64 {
        self.lock().resume_count
    }

    /// Suspends the pool because of `error` and waits until it is resumed: then the caller repeats
    /// the failed operation. Returns the error if it is permanent. An operation that began before
    /// the last resume (`since`) may have failed for an old reason, and is repeated immediately.
    pub(crate) async fn hold(&self, since: u64, error: Error) -> Result<()> {
        // Without the lock, because it asks the tree.
        let may_pass = self.may_pass(&error);
        {
            let mut inner = self.lock();
            if !inner.is_armed || inner.is_abandoned || !is_of_device(&error) {
                return Err(error);
            }
            let count = inner.resume_count;
            ensure!("S1", since <= count, "an operation of resume {since}, the last is {count}");
            // S1. Before the leaves are judged: what was away may be back since the operation.
            if inner.resume_count != since {
                return Ok(());
            }
            if !may_pass || self.mode() == FailMode::Panic {
                return Err(error);
            }
            self.set(&mut inner, Suspended::Io(error.to_string()));
        }
        self.changed.notify_waiters();
        stages::reach("suspend-held");
        if self.wait(|inner| inner.resume_count != since).await { Ok(()) } else { Err(error) }
    }

    /// Waits while the pool is suspended. Returns false if it was abandoned.
    pub(crate) async fn pass(&self) -> bool {
        self.wait(|inner| inner.suspended.is_none()).await
    }

    /// Waits until the pool is suspended.
    pub(crate) async fn until_suspended(&self) -> Suspended {
        loop {
            let changed = self.changed.notified();
            if let Some(cause) = self.cause() {
                return cause;
            }
            changed.await;
        }
    }

    async fn wait(&self, is_over: impl Fn(&Inner) -> bool) -> bool {
        loop {
            // Before the check, so that later changes wake this task.
            let changed = self.changed.notified();
            {
                let inner = self.lock();
                if inner.is_abandoned {
                    return false;
                }
                if is_over(&inner) {
                    return true;
                }
            }
            changed.await;
        }
    }

    /// Suspends the pool without a failed I/O. Another host takes precedence over other causes, and
    /// stays one even if the devices work.
    pub(crate) fn suspend(&self, cause: Suspended) {
        {
            let mut inner = self.lock();
            if inner.suspended.is_some() && matches!(cause, Suspended::Multihost(_)) {
                inner.suspended = Some(cause);
            } else {
                self.set(&mut inner, cause);
            }
            // A pool that cannot be cleared is abandoned.
            inner.is_abandoned |= !inner.is_armed;
        }
        self.changed.notify_waiters();
    }

    /// Repeats everything that is held.
    ///
    /// # Errors
    /// `Kind::Io` if another host may have imported the pool, which is permanent, even if it
    /// happened during the check of the devices.
    pub(crate) fn resume(&self) -> Result<()> {
        {
            let mut inner = self.lock();
            if let Some(cause @ Suspended::Multihost(_)) = &inner.suspended {
                return Err(refusal(cause));
            }
            inner.suspended = None;
            inner.resume_count += 1;
        }
        stages::reach("suspend-resumed");
        self.changed.notify_waiters();
        Ok(())
    }

    /// Records that the pool was stopped by an error.
    pub(crate) fn set_failed(&self) {
        self.lock().is_failed = true;
    }

    /// Whether the pool was stopped by an error.
    pub(crate) fn is_failed(&self) -> bool {
        self.lock().is_failed
    }

    /// Returns the result of `work`, or an error once the pool is abandoned. For waits that another
    /// thread ends: it may be blocked in the kernel, by a device that does not answer.
    pub(crate) async fn unless_abandoned<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        match select(pin!(work), pin!(self.wait(|_| false))).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => Err(abandoned_error()),
        }
    }

    /// Fails everything that is held; nothing is held any more.
    pub(crate) fn abandon(&self) {
        self.lock().is_abandoned = true;
        stages::reach("suspend-abandoned");
        self.changed.notify_waiters();
    }
}

/// Whether an error depends on the devices that answered.
fn is_of_device(error: &Error) -> bool {
    matches!(error.kind(), Kind::Io | Kind::Checksum)
}

/// Returns the error for callers that do not wait.
pub(crate) fn refusal(cause: &Suspended) -> Error {
    Error::new(Kind::Io, EngineError::Suspended(cause.to_string()))
}

/// Returns the error for callers that waited for an abandoned pool.
pub(crate) fn abandoned_error() -> Error {
    Error::new(Kind::Io, EngineError::Suspended("given up".into()))
}

/// Whether an open head is encrypted, and its keys.
#[derive(Debug, Clone)]
pub(crate) enum HeadKeys {
    /// The head is not encrypted.
    Plain,
    /// The head is open without its keys: for its intent log, or for a receive that writes what
    /// another pool has encrypted.
    Locked,
    /// The head is open with its keys.
    Loaded(Arc<SealKeys>),
}

impl HeadKeys {
    /// Returns the keys, if it is encrypted and open with them.
    pub(crate) fn loaded(&self) -> Option<&Arc<SealKeys>> {
        match self {
            Self::Loaded(keys) => Some(keys),
            Self::Plain | Self::Locked => None,
        }
    }
}

/// Blocks of a live object set in a store, with suspension of the pool on failures.
pub(crate) struct SuspendAwareStore {
    store: Arc<BlockStore>,
    suspension: Arc<Suspension>,
    keys: HeadKeys,
    /// The MOS is read in syncing context, where no caller could handle an error.
    is_mos: bool,
}

impl SuspendAwareStore {
    /// Returns the store of the MOS.
    pub(crate) fn mos(store: &Arc<BlockStore>, suspension: &Arc<Suspension>) -> Arc<Self> {
        Self::new(store, suspension, HeadKeys::Plain, true)
    }

    /// Returns the store of a head: its users get read errors, its syncs wait.
    pub(crate) fn head(
        store: &Arc<BlockStore>,
        suspension: &Arc<Suspension>,
        keys: HeadKeys,
    ) -> Arc<Self> {
        Self::new(store, suspension, keys, false)
    }

    fn new(
        store: &Arc<BlockStore>,
        suspension: &Arc<Suspension>,
        keys: HeadKeys,
        is_mos: bool,
    ) -> Arc<Self> {
        let (store, suspension) = (Arc::clone(store), Arc::clone(suspension));
        Arc::new(Self { store, suspension, keys, is_mos })
    }

    fn context<'a>(&'a self, place: &Bookmark, grounds: &'a Grounds) -> ReadContext<'a> {
        let keys = self.keys.loaded().map(|keys| keys.keys());
        let (place, is_encrypted) = (*place, !matches!(self.keys, HeadKeys::Plain));
        ReadContext { place, keys, is_encrypted, grounds, ..ReadContext::default() }
    }

    /// Reads in a context where temporary errors cannot be returned.
    async fn read_held(
        &self,
        pointer: BlockPtr,
        place: Bookmark,
        grounds: &Grounds,
    ) -> Result<Buf> {
        loop {
            let resume_count = self.suspension.resume_count();
            let context = self.context(&place, grounds);
            match self.store.read(&pointer, &context).await {
                Err(error) => self.suspension.hold(resume_count, error).await?,
                block => return block,
            }
        }
    }
}

impl ReadBlocks for SuspendAwareStore {
    fn cached(&self, pointer: &BlockPtr, place: &Bookmark) -> Option<Buf> {
        self.store.cached(pointer, &self.context(place, &Grounds::Offline))
    }

    fn read(&self, missing: Missing) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(async move {
            let Missing { pointer, place, since } = missing;
            let grounds = Grounds::Live(since);
            if self.is_mos {
                return self.read_held(pointer, place, &grounds).await;
            }
            self.store.read(&pointer, &self.context(&place, &grounds)).await
        })
    }

    fn prefetch(&self, missing: &Missing) -> bool {
        let grounds = Grounds::Live(missing.since);
        self.store.prefetch(&missing.pointer, &self.context(&missing.place, &grounds))
    }
}

impl Blocks for SuspendAwareStore {
    fn since(&self, is_retry: bool) -> Since {
        self.store.since(is_retry)
    }

    fn read_for_sync(&self, pointer: BlockPtr, place: Bookmark) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(self.read_held(pointer, place, &Grounds::Allocated))
    }

    fn keys(&self) -> Option<Arc<SealKeys>> {
        self.keys.loaded().cloned()
    }

    fn write<'a>(&'a self, draft: &'a Draft) -> BoxFuture<'a, Result<Written>> {
        Box::pin(async move {
            loop {
                let resume_count = self.suspension.resume_count();
                // Nothing remains of a failed write: its space was freed.
                match Blocks::write(&*self.store, draft).await {
                    Err(error) => self.suspension.hold(resume_count, error).await?,
                    written => return written,
                }
            }
        })
    }

    /// A batch is a separate task, so that several use all processors.
    fn write_all(&self, drafts: Arc<[Draft]>) -> BoxFuture<'_, Result<Vec<Result<Written>>>> {
        Box::pin(async move {
            if let [draft] = &*drafts {
                return Ok(vec![self.write(draft).await]);
            }
            let resume_count = self.suspension.resume_count();
            let (store, batch) = (Arc::clone(&self.store), Arc::clone(&drafts));
            let task = cenote_rt::spawn(async move { store.write_all(&batch).await });
            // Checks S2.
            let outcomes = task.await.map_err(|error| Error::new(Kind::Invariant, error))?;
            let (count, wanted) = (outcomes.len(), drafts.len());
            ensure!("S2", count == wanted, "{count} of {wanted} blocks of a batch were written");
            let mut results = Vec::with_capacity(outcomes.len());
            for (draft, outcome) in drafts.iter().zip(outcomes) {
                results.push(match outcome {
                    Err(error) => match self.suspension.hold(resume_count, error).await {
                        Ok(()) => self.write(draft).await,
                        Err(error) => Err(error),
                    },
                    written => written,
                });
            }
            Ok(results)
        })
    }

    fn dsize(&self, pointer: &BlockPtr) -> u64 {
        Blocks::dsize(&*self.store, pointer)
    }
}

#[cfg(test)]
mod tests {
    use cenote_rt::simulate;

    use super::*;

    fn broken() -> Error {
        Error::new(Kind::Io, "broken")
    }

    #[test]
    fn suspended_operations_continue_after_resume() {
        simulate(1, async {
            let suspension = Arc::new(Suspension::default());
            let events = Arc::new(EventLog::new("t", 7));
            suspension.tell(&events);
            // Not before the pool is armed.
            assert!(suspension.hold(0, broken()).await.is_err());
            suspension.arm();
            assert!(suspension.hold(0, Error::new(Kind::Invariant, "wrong")).await.is_err());
            assert!(suspension.pass().await);
            let held = Arc::clone(&suspension);
            let task = cenote_rt::spawn(async move { held.hold(0, broken()).await });
            assert_eq!(suspension.until_suspended().await, Suspended::Io("broken".into()));
            suspension.resume().expect("only devices");
            task.await.expect("no panic").expect("resumed");
            assert_eq!(suspension.cause(), None);
            // A late failure.
            suspension.hold(0, broken()).await.expect("resumed meanwhile");
            assert_eq!(suspension.cause(), None);
            let told: Vec<_> = events.after(0).into_iter().map(|noted| noted.event).collect();
            assert_eq!(told, [Event::Suspended("broken".into())]);
        })
        .expect("runtime");
    }

    /// Devices that work again do not clear a suspension by another host.
    #[test]
    fn suspension_by_another_host_cannot_be_resumed() {
        simulate(1, async {
            let suspension = Arc::new(Suspension::default());
            suspension.arm();
            let held = Arc::clone(&suspension);
            let task = cenote_rt::spawn(async move { held.hold(0, broken()).await });
            suspension.until_suspended().await;
            let other = Suspended::Multihost("another host".into());
            suspension.suspend(other.clone());
            suspension.suspend(Suspended::Io("broken".into()));
            assert_eq!(suspension.cause(), Some(other.clone()));
            suspension.resume().expect_err("refused");
            assert_eq!((suspension.cause(), suspension.resume_count()), (Some(other), 0));
            assert!(!task.is_finished());
            suspension.abandon();
            task.await.expect("no panic").expect_err("given up");
        })
        .expect("runtime");
    }

    #[test]
    fn abandoned_pool_holds_no_operation() {
        simulate(1, async {
            let suspension = Arc::new(Suspension::default());
            suspension.arm();
            let held = Arc::clone(&suspension);
            let task = cenote_rt::spawn(async move { held.hold(0, broken()).await });
            suspension.until_suspended().await;
            suspension.abandon();
            task.await.expect("no panic").expect_err("given up");
            assert!(!suspension.pass().await);
            suspension.set_mode(2);
            assert_eq!(suspension.mode(), FailMode::Panic);
        })
        .expect("runtime");
    }

    /// A read that began before the resume got wrong bytes from one device while another was away,
    /// and ends when all are back: it is repeated (S1). Only a new failure is permanent.
    #[test]
    fn checksum_error_from_before_a_resume_is_repeated() {
        simulate(1, async {
            let engine = crate::testing::pool().await;
            let suspension = Suspension::default();
            suspension.watch(&engine.tree);
            suspension.arm();
            let wrong = || Error::new(Kind::Checksum, "wrong bytes");
            suspension.suspend(Suspended::Io("a device is away".into()));
            suspension.resume().expect("the devices are back");
            assert!(!engine.tree.has_unavailable_leaves());
            suspension.hold(0, wrong()).await.expect("repeated");
            suspension.hold(0, broken()).await.expect("repeated");
            suspension.hold(1, wrong()).await.expect_err("no device has the block");
            suspension.hold(0, Error::new(Kind::Corrupt, "")).await.expect_err("permanent");
            assert_eq!(suspension.cause(), None);
        })
        .expect("runtime");
    }
}
