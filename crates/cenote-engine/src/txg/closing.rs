//! Closes a pool: exported, destroyed, left active, or by force.
//!
//! ```text
//!   export, destroy:  work on leaves ends ─> logs end ─> sync ─> sync with the new state ─┐
//!   detach:                                              sync ────────────────────────────┤
//!   by force:         nothing is waited for: everybody who waits gets an error ───────────┤
//!                                                                                         v
//!                                          nothing is synced any more ─> the tree is closed
//! ```
//!
//! When one of these returns, nothing of the engine writes to a device or keeps it locked, even if
//! the engine, a head or a view of it is still referenced
//! ([`Tree::close`](cenote_vdev::Tree::close)). Their reads then fail with `Kind::Closed`.
//!
//! A regular close takes as long as the devices, and fails without changes if the pool is
//! suspended: it can then be cleared. If the pool is suspended during its last txg, the close waits
//! for the clear. A close by force ends within seconds, whatever the devices do, and leaves the
//! state of a crash on disk: the last committed txg, and the intent logs, which the next import
//! replays. It reports the lost changes.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use cenote_ondisk::config::PoolState;
use cenote_rt::{Error, Kind, Result, stages, tunables};
use futures_util::future::{Either, select};

use crate::Health;
use crate::admin::events::{Event, PoolEvent};
use crate::txg::suspend::refusal;
use crate::zil::FrozenLogs;
use crate::{Engine, EngineError, Notice};

/// Returns how long devices may take to finish requests before the tree is closed.
pub(crate) fn answer_timeout() -> Duration {
    Duration::from_millis(tunables::CLOSE_TIMEOUT_MS.get())
}

/// Returns how long a device may have unanswered requests before it counts as hanging.
fn stall() -> Duration {
    Duration::from_millis(tunables::CLOSE_STALL_MS.get())
}

/// Interval of checks for hanging devices.
const LOOK: Duration = Duration::from_millis(500);

/// Changes in memory that were lost when a pool was closed by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unwritten {
    /// The first lost txg.
    pub first_txg: u64,
    /// The last lost txg.
    pub last_txg: u64,
    /// Approximate bytes of their changes.
    pub bytes: u64,
}

/// Result of closing by force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClosedByForce {
    /// Lost changes; `None` if everything was on disk.
    pub unwritten: Option<Unwritten>,
    /// Paths of devices that did not answer: see [`Notice::SilentDevices`].
    pub silent: Vec<String>,
}

/// The pool writes its last txg. If this value is dropped before the pool is closed, the pool
/// continues as before.
struct LastTxg<'e> {
    engine: &'e Engine,
    _logs: FrozenLogs<'e>,
}

impl<'e> LastTxg<'e> {
    fn new(engine: &'e Engine, logs: FrozenLogs<'e>) -> Self {
        engine.txgs.is_closing.store(true, Ordering::Release);
        Self { engine, _logs: logs }
    }
}

impl Drop for LastTxg<'_> {
    fn drop(&mut self) {
        self.engine.txgs.is_closing.store(false, Ordering::Release);
    }
}

/// Whether the task that marks a pool as closed may do so: either it runs, or its caller withdraws
/// it. Otherwise a pool whose export has failed could be marked as exported later.
#[derive(Debug, Default)]
struct Mark(AtomicU8);

impl Mark {
    const IS_SET: u8 = 1;
    const WITHDRAWN: u8 = 2;

    /// Begins the change, which may be repeated.
    ///
    /// # Errors
    /// `Kind::Busy` if the caller has withdrawn it.
    fn set(&self) -> Result<()> {
        match self.0.compare_exchange(0, Self::IS_SET, Ordering::AcqRel, Ordering::Acquire) {
            Err(Self::WITHDRAWN) => Err(Error::new(Kind::Busy, EngineError::NotClosed)),
            _ => Ok(()),
        }
    }

    /// Prevents the change. Returns false if it has begun.
    fn withdraw(&self) -> bool {
        let result =
            self.0.compare_exchange(0, Self::WITHDRAWN, Ordering::AcqRel, Ordering::Acquire);
        result.is_ok()
    }
}

impl Engine {
    /// Exports the pool: writes everything, marks it as exported in the labels (spec 01 §15), and
    /// closes its devices.
    ///
    /// # Errors
    /// Errors of a sync; [`EngineError::Suspended`] while the pool is suspended. It then stays
    /// open.
    pub async fn export(&self) -> Result<()> {
        if self.is_read_only {
            self.stop("exported");
            self.close_tree().await;
            return Ok(());
        }
        self.close(PoolState::Exported).await
    }

    /// Marks the pool as destroyed, and closes its devices. Its data is not overwritten.
    ///
    /// # Errors
    /// The errors of [`export`](Self::export); `Kind::ReadOnly` if the pool is open for reading
    /// only.
    pub async fn destroy(&self) -> Result<()> {
        if self.is_read_only {
            return Err(Error::new(Kind::ReadOnly, EngineError::ReadOnly));
        }
        self.close(PoolState::Destroyed).await
    }

    async fn close(&self, state: PoolState) -> Result<()> {
        // An export does not wait for devices of a suspended pool.
        self.check_running()?;
        let written = async {
            let last = self.unless_suspended(self.write_all()).await?;
            self.mark_closed(state).await?;
            Ok(last)
        };
        // Until the devices are closed, no log begins.
        let _last = match written.await {
            Ok(last) => last,
            Err(error) => {
                // Work that cannot be resumed now is resumed by the next import.
                drop(self.unless_suspended(self.leaves().resume_work()).await);
                drop(self.unless_suspended(self.scans().unsuspend()).await);
                self.removals().unsuspend().await;
                self.leaves().unsuspend_reflow();
                return Err(error);
            }
        };
        stages::reach("close-marked");
        let is_destroyed = state == PoolState::Destroyed;
        let event = if is_destroyed { PoolEvent::Destroyed } else { PoolEvent::Exported };
        self.health.damage.note(Event::Pool(event));
        self.end().await;
        Ok(())
    }

    /// Stops everything that writes besides syncs, and writes all changes, so that the last txg is
    /// small.
    async fn write_all(&self) -> Result<LastTxg<'_>> {
        // An expansion that ends starts a scrub, and work on free space.
        self.leaves().suspend_reflow().await;
        // Work on free space ends first: the devices may soon have another owner.
        self.leaves().stop_all_work().await;
        self.scans().suspend().await;
        self.removals().suspend().await;
        // No log remains.
        let logs = self.intent_logs().freeze_all().await?;
        stages::reach("close-logs-frozen");
        self.sync().await?;
        stages::reach("close-synced");
        Ok(LastTxg::new(self, logs))
    }

    /// Marks the pool as closed in the labels: a task of a sync, like every change of the config
    /// (C1). If the pool is suspended before the task has run, the mark is withdrawn; afterwards
    /// the last txg waits until the pool is cleared.
    async fn mark_closed(&self, state: PoolState) -> Result<()> {
        let mark = Arc::<Mark>::default();
        let of_task = Arc::clone(&mark);
        let change = self.admin().change(move |_, _, config| {
            of_task.set()?;
            config.facts.state = state;
            config.touch();
            Ok(())
        });
        match select(pin!(change), pin!(self.health().until_suspended())).await {
            Either::Left((done, _)) => done,
            Either::Right((cause, _)) if mark.withdraw() => Err(refusal(&cause)),
            Either::Right((_, change)) => change.await,
        }
    }

    /// Returns the result of `work`, or an error as soon as the pool is suspended. A sync itself
    /// continues after a clear.
    async fn unless_suspended<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        match select(pin!(work), pin!(self.health().until_suspended())).await {
            Either::Left((done, _)) => done,
            Either::Right((cause, _)) => Err(refusal(&cause)),
        }
    }

    /// Closes the pool but leaves it active: everything is written, the pool stays marked as in use
    /// by this host, its uberblock promises no heartbeats, and its devices are closed. Returns the
    /// last txg.
    ///
    /// # Errors
    /// The errors of [`sync`](Self::sync); the pool then stays open.
    pub async fn detach_and_keep_active(&self) -> Result<u64> {
        if !self.is_read_only {
            self.end_heartbeats().await?;
        }
        self.end().await;
        Ok(self.uberblock().txg)
    }

    /// Stops syncing and closes the devices.
    async fn end(&self) {
        {
            // A concurrent sync ends before this returns: then the devices may have another owner.
            let _one = self.txgs.syncing.lock().await;
            self.stop(&EngineError::Closed.to_string());
        }
        self.close_tree().await;
    }

    async fn close_tree(&self) -> Vec<String> {
        let silent = self.tree.close(answer_timeout()).await;
        // A device that hangs keeps no pool open.
        let _ = cenote_rt::until(answer_timeout(), self.leaves().until_labels_are_written()).await;
        stages::reach("close-devices-closed");
        if !silent.is_empty() {
            self.health().add_notice(Notice::SilentDevices { paths: silent.clone() });
        }
        silent
    }

    /// Closes the pool within seconds, whatever devices do: waiting callers get an error, nothing
    /// more is written, and the state of a crash is on disk. Lost changes are returned and added to
    /// the [notices](crate::Health::take_notices).
    pub async fn close_by_force(&self) -> ClosedByForce {
        let unwritten = self.unwritten();
        self.stop("closed by force");
        // Requests that wait for hanging devices end.
        let silent = self.close_tree().await;
        // A running sync ends with an error, and may be what others wait for.
        drop(cenote_rt::until(answer_timeout(), self.txgs.syncing.lock()).await);
        self.health.damage.note(Event::Pool(PoolEvent::Exported));
        if let Some(unwritten) = unwritten {
            self.health().add_notice(Notice::NotWritten(unwritten));
        }
        ClosedByForce { unwritten, silent }
    }

    /// Returns the changes in memory.
    fn unwritten(&self) -> Option<Unwritten> {
        let (first_txg, last_txg) = (self.uberblock().txg + 1, self.open_txg());
        let bytes = self.dirty_bytes();
        let is_syncing = self.txgs.syncing.is_locked();
        let is_clean = bytes == 0 && !is_syncing && !self.heads.is_dirty(last_txg);
        let is_waited_for = !self.state().tasks.is_empty();
        (!is_clean || is_waited_for).then_some(Unwritten { first_txg, last_txg, bytes })
    }
}

impl Health<'_> {
    /// Waits until the pool cannot be closed regularly: it is suspended or stopped, or a leaf has
    /// answered no request for long. Other leaves may answer meanwhile, but requests to the hanging
    /// one wait forever. Never returns once the pool is closed.
    pub async fn until_stuck(self) {
        // For each leaf the number of answers, and the time of its last change.
        let mut last: Vec<(u64, Duration)> = Vec::new();
        loop {
            if self.engine.tree.is_closed() {
                // A pool that was closed while suspended counts as suspended forever: waiting for
                // that would end immediately, again and again.
                cenote_rt::sleep(LOOK).await;
                continue;
            }
            if self.engine.check_running().is_err() {
                return;
            }
            let (now, activity) = (cenote_rt::monotonic(), self.engine.tree.activity());
            last.resize(activity.len(), (0, now));
            for ((in_flight, answered), last) in activity.into_iter().zip(&mut last) {
                if in_flight == 0 || answered != last.0 {
                    *last = (answered, now);
                } else if now.saturating_sub(last.1) >= stall() {
                    return;
                }
            }
            cenote_rt::until(LOOK, self.until_suspended()).await;
        }
    }
}
