//! Transaction groups: what enters the open one, and how it gets to disk.
//!
//! ```text
//!   admission, throttle   may this change enter the open txg, and when
//!   heads, activity       the file systems and volumes that are open
//!   tasks                 changes of the MOS for the next sync
//!   sync, ledger, store   the passes of a sync, and where space maps are loaded from
//!   commit                labels and uberblock: the txg is durable
//!   suspend, multihost    devices fail; other hosts see that the pool is in use
//!   closing               the last txg
//! ```

pub(crate) mod activity;
pub(crate) mod admission;
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

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::uberblock::Uberblock;
use cenote_rt::{AsyncMutex, Error, Kind, Result, Rng, trace};

use crate::dsl::Context;
use crate::{Engine, EngineError};
use tasks::{Change, QueuedTask, Task, TaskQueue};

/// The open txg, the one being synced and the last committed one.
#[derive(Debug)]
pub(crate) struct TxgState {
    /// The txg that takes changes. Written under `syncing` only.
    pub(crate) open: AtomicU64,
    /// The uberblock that was written last. Held for a copy.
    pub(crate) uberblock: Mutex<Uberblock>,
    /// Tasks of the next sync. Held for a push, a take or a look.
    pub(crate) queue: Mutex<TaskQueue>,
    /// One sync at a time; held during the whole of it, across I/O.
    pub(crate) syncing: AsyncMutex<()>,
    /// The last txg is being written.
    pub(crate) is_closing: AtomicBool,
    // Held for one number.
    pub(crate) rng: Mutex<Rng>,
}

impl TxgState {
    pub(crate) fn new(open_txg: u64, uberblock: Uberblock, seed: u64) -> Self {
        Self {
            open: AtomicU64::new(open_txg),
            uberblock: Mutex::new(uberblock),
            queue: Mutex::default(),
            syncing: AsyncMutex::new(()),
            is_closing: AtomicBool::new(false),
            rng: Mutex::new(Rng::seeded(seed)),
        }
    }
}

impl Engine {
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
    pub(crate) async fn run_first(&self, task: Box<dyn Task>) -> Result<()> {
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
        let _one = self.txgs.syncing.lock().await;
        self.check_stopped()?;
        // Dropped before its time, as by a panic, it stops the pool.
        let mut stop = StopUnlessDone { engine: self, end: End::Never };
        let txg = self.open_txg();
        // From here on changes go to the next txg; one that still names this txg is refused by its
        // object set as soon as that is being synced.
        {
            // Blocks of logs that are being allocated in this txg are in before it is closed: its
            // maps could else be finished without them.
            let _gate = self.logs.gate.lock().await;
            self.txgs.open.store(txg + 1, Ordering::Release);
        }
        let mut tasks: Vec<_> =
            std::mem::take(&mut self.state().tasks).into_iter().map(|queued| queued.task).collect();
        for head in self.heads.all() {
            head.live().close(txg);
        }
        let span = trace::txg(|| self.name(), txg);
        let result = span.run(self.sync_txg(txg, &mut tasks)).await;
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
