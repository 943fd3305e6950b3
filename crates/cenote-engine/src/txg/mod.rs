//! Transaction groups: how changes enter the open one, and how it is written.
//!
//! ```text
//!   apply                 what a change of a file system or volume is charged and logged
//!   admission, throttle   may this change enter the open txg, and when
//!   heads, activity       the file systems and volumes that are open
//!   accesses              a recording of their reads and writes
//!   tasks                 changes of the MOS for the next sync
//!   sync, ledger, store   the passes of a sync, and where space maps are loaded from
//!   commit                labels and uberblock: the txg is durable
//!   suspend, multihost    devices fail; other hosts see that the pool is in use
//!   closing               the last txg
//! ```
//!
//! Invariants
//! * T1  One txg is synced at a time, in ascending order, and the txg of the uberblock only grows.
//! * T2  When a txg is committed, nothing of it is left to write, to free or to record, and its MOS
//!   is of that txg.
//! * T3  The passes of a sync converge.
//! * T4  Each task is run by one sync, before its caller gets the answer.
//! * T5  A metaslab is loaded only as of a commit that has its vdev.

pub(crate) mod accesses;
pub(crate) mod activity;
pub(crate) mod admission;
pub(crate) mod apply;
pub(crate) mod closing;
pub(crate) mod commit;
pub(crate) mod heads;
pub(crate) mod ledger;
pub(crate) mod multihost;
pub(crate) mod store;
pub(crate) mod suspend;
mod sync;
pub(crate) mod tasks;
pub(crate) mod throttle;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::uberblock::Uberblock;
use cenote_rt::lock::{AsyncMutex, Mutex, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result, Rng, ensure, trace, without_caller};
use futures_util::future::{Either, select};

use crate::dsl::Context;
use crate::dsl::deleg::FirstCreator;
use crate::{Engine, EngineError};
use tasks::{Change, QueuedTask, Scope, Task, TaskQueue};

/// The open txg, the one being synced and the last committed one.
#[derive(Debug)]
pub(crate) struct TxgState {
    /// The open txg. Written under `syncing` only.
    pub(crate) open: AtomicU64,
    /// The last written uberblock. Held for a copy.
    pub(crate) uberblock: Mutex<Uberblock>,
    /// Tasks of the next sync. Held for single reads and updates.
    pub(crate) queue: Mutex<TaskQueue>,
    /// Serializes syncs; held during the whole of a sync, across I/O.
    pub(crate) syncing: AsyncMutex<()>,
    /// Start of the running sync, nanoseconds; 0 if none runs.
    sync_since: AtomicU64,
    /// The last txg is being written.
    pub(crate) is_closing: AtomicBool,
    // Held for one number.
    pub(crate) rng: Mutex<Rng>,
    /// For a seeded bug.
    pub(crate) first_creator: Arc<FirstCreator>,
}

impl TxgState {
    pub(crate) fn new(open_txg: u64, uberblock: Uberblock, seed: u64) -> Self {
        Self {
            open: AtomicU64::new(open_txg),
            uberblock: Mutex::new(Rank::Uberblock, uberblock),
            queue: Mutex::with_default(Rank::TaskQueue),
            syncing: AsyncMutex::with_default(Rank::Syncing),
            sync_since: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
            rng: Mutex::new(Rank::EngineRng, Rng::seeded(seed)),
            first_creator: Arc::default(),
        }
    }

    /// Returns the start of the running sync, if one runs.
    pub(crate) fn sync_since(&self) -> Option<Duration> {
        let since = self.sync_since.load(Ordering::Acquire);
        (since != 0).then(|| Duration::from_nanos(since))
    }
}

impl Engine {
    /// Runs a transaction on the MOS, in syncing context only.
    pub(crate) async fn mos_apply<T>(
        &self,
        txg: u64,
        change: impl FnMut(&mut Tx<'_>) -> TxResult<T>,
    ) -> Result<T> {
        self.mos.apply(txg, change).await
    }

    /// Runs `change` on the MOS in the next sync, and waits for the commit.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        change: impl FnMut(&mut Tx<'_>, &Context) -> TxResult<T> + Send + 'static,
    ) -> Result<T> {
        let (task, answer) = Change::with_answer(change);
        self.run_task(task).await?;
        answer.take()
    }

    /// Runs a task in the next sync, and waits for the commit.
    pub(crate) async fn run_task(&self, task: Box<dyn Task>) -> Result<()> {
        self.until_running().await?;
        self.state().tasks.push(QueuedTask { task });
        // A caller waits for this txg: leaf queues give it priority.
        self.tree.load().set_sync_task(true);
        self.sync_to_end().await.map(drop)
    }

    /// Runs a task before all other tasks of the next sync.
    pub(crate) async fn run_first(&self, task: Box<dyn Task>) -> Result<()> {
        self.until_running().await?;
        self.state().tasks.insert(0, QueuedTask { task });
        self.tree.load().set_sync_task(true);
        self.sync_to_end().await.map(drop)
    }

    /// Closes the open txg and commits it, with all earlier changes. Returns the last committed
    /// txg.
    pub async fn sync(&self) -> Result<u64> {
        self.until_running().await?;
        if is_on(Bug::RunningSyncJoined) && self.txgs.syncing.is_locked() {
            while self.txgs.syncing.is_locked() {
                cenote_rt::sleep(Duration::from_millis(1)).await;
            }
            return Ok(self.uberblock().txg);
        }
        self.sync_to_end().await
    }

    /// Waits for the commit of all changes of the given datasets. Does nothing if they have none.
    /// Does not wait for a suspended pool, which writes them once it is cleared.
    pub async fn write_out(&self, objects: &[u64]) -> Result<()> {
        let has_changes =
            |object: &u64| self.heads.get(*object).is_some_and(|head| head.live().has_changes());
        if !objects.iter().any(has_changes) {
            return Ok(());
        }
        match select(pin!(self.sync()), pin!(self.health().until_suspended())).await {
            Either::Left((synced, _)) => synced.map(drop),
            Either::Right(_) => Ok(()),
        }
    }

    /// A sync runs to its end even if no caller waits: it may be suspended for long, and cannot be
    /// restarted in the middle.
    async fn sync_to_end(&self) -> Result<u64> {
        let closed = || Error::new(Kind::Io, EngineError::Closed);
        let engine = self.me.upgrade().ok_or_else(closed)?;
        let task = cenote_rt::spawn(async move {
            cenote_rt::take_precedence();
            engine.sync_here().await
        });
        task.await.map_err(|error| Error::new(Kind::Io, error))?
    }

    async fn sync_here(&self) -> Result<u64> {
        let _one = self.txgs.syncing.lock().await;
        self.check_stopped()?;
        // If it is dropped early, for example by a panic, it stops the pool.
        let mut stop = StopUnlessDone { engine: self, end: End::Never };
        let txg = self.open_txg();
        // From here on changes go to the next txg; a change for this txg is refused by its object
        // set as soon as that is being synced.
        {
            // Allocations of log blocks in this txg finish before it is closed: otherwise its maps
            // could be completed without them.
            let _gate = self.logs.gate.lock().await;
            let before = self.txgs.open.swap(txg + 1, Ordering::AcqRel);
            ensure!("T1", before == txg, "txg {before} was opened beside the sync of {txg}");
        }
        let mut tasks: Vec<_> =
            std::mem::take(&mut self.state().tasks).into_iter().map(|queued| queued.task).collect();
        for head in self.heads.all().iter().filter(|_| !is_on(Bug::ClosedTxgChanged)) {
            head.live().close(txg);
        }
        let span = trace::txg(|| self.name(), txg);
        let now = cenote_rt::monotonic().as_nanos() as u64;
        self.txgs.sync_since.store(now.max(1), Ordering::Release);
        let result = span.run(without_caller(self.sync_txg(txg, &mut tasks))).await;
        self.txgs.sync_since.store(0, Ordering::Release);
        self.tree.load().set_sync_task(!self.state().tasks.is_empty());
        stop.end = match &result {
            Ok(()) => End::Good,
            Err(error) => End::Bad(error.to_string()),
        };
        result.map(|()| txg)
    }

    async fn sync_txg(&self, txg: u64, tasks: &mut [Box<dyn Task>]) -> Result<()> {
        let scope = Scope { engine: self, context: self.context(txg) };
        if let Some(root) = self.sync_passes(&scope, tasks).await? {
            // While what the txg has written is in memory.
            let events = self.new_history().await;
            self.commit(&scope, &root).await?;
            for event in events {
                self.health.damage.note(event);
            }
        }
        // Before space is reused: later lookups of a pointer find the trees of this txg, and not
        // blocks that it has freed (`cenote_block::alloc::SpaceAllocator::epoch`).
        self.mos.committed(txg)?;
        for head in self.heads.all() {
            head.live().committed(txg)?;
        }
        // Space freed by this txg may be reused from here on, according to spec 05 §5.4.
        let mature = self.alloc.sync_done(txg, self.space().slop())?;
        self.leaves().note_freed(txg, mature);
        self.intent_logs().committed(txg).await?;
        self.throttle.admission.synced(txg);
        self.recount_dirty();
        self.alloc.preload().await;
        Ok(())
    }
}

/// How a sync ended.
enum End {
    Good,
    Bad(String),
    Never,
}

/// Stops the pool unless a sync ended successfully.
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
        // Waiting callers get an error.
        self.engine.fail(cause);
    }
}
