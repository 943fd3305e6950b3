//! Leaving a pool: exported, destroyed, left in use, or given up.
//!
//! ```text
//!   export, destroy:  work on leaves ends ─> logs end ─> sync ─> sync with the new state ─┐
//!   detach:                                              sync ────────────────────────────┤
//!   by force:         nothing is waited for: everybody who waits gets an error ───────────┤
//!                                                                                         v
//!                                          nothing is synced any more ─> the tree is closed
//! ```
//!
//! Closed means closed: when one of these returns, nothing of the engine writes to a device or
//! keeps it locked, whoever still holds the engine, a head or a view of it
//! ([`Tree::close`](cenote_vdev::Tree::close)). What they read then fails with `Kind::Closed`.
//!
//! An orderly closing takes as long as devices take, and fails if the pool is suspended: then
//! nothing has changed, and the pool can be cleared. A closing by force ends within seconds,
//! whatever devices do, and leaves on disk what a crash would: the last txg that was committed, and
//! the intent logs, which the next opening replays. It tells what was not written.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_ondisk::config::PoolState;
use cenote_rt::{Error, Kind, Result, stages, tunables};
use futures_util::future::{Either, select};

use crate::Health;
use crate::admin::events::{Event, PoolEvent};
use crate::txg::suspend::refusal;
use crate::{Engine, EngineError, Notice};

/// How long devices have to answer what they were asked before the tree is closed.
pub(crate) fn patience() -> Duration {
    Duration::from_millis(tunables::CLOSE_TIMEOUT_MS.get())
}

/// Devices that answer nothing for so long count as hanging.
fn stall() -> Duration {
    Duration::from_millis(tunables::CLOSE_STALL_MS.get())
}

/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// What was only in memory when a pool was closed by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unwritten {
    /// The first txg that is not on disk.
    pub first_txg: u64,
    /// The last one.
    pub last_txg: u64,
    /// Bytes of files and volumes that were changed in them, about.
    pub bytes: u64,
}

/// How a closing by force ended.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClosedByForce {
    /// What is lost; none if everything was on disk.
    pub unwritten: Option<Unwritten>,
    /// Paths of devices that did not answer: see [`Notice::SilentDevices`].
    pub silent: Vec<String>,
}

impl Engine {
    /// Leaves the pool in order: everything is written, the labels say that nobody has it
    /// (spec 01 §15), and its devices are closed.
    ///
    /// # Errors
    /// Those of a sync; [`EngineError::Suspended`] while the pool is suspended. It is open then as
    /// before.
    pub async fn export(&self) -> Result<()> {
        if self.is_read_only {
            self.stop("exported");
            self.close_tree().await;
            return Ok(());
        }
        self.close(PoolState::Exported).await
    }

    /// Marks the pool as destroyed, and closes its devices. Its data stays where it is.
    ///
    /// # Errors
    /// As [`export`](Self::export); `Kind::ReadOnly` if the pool was opened for reading.
    pub async fn destroy(&self) -> Result<()> {
        if self.is_read_only {
            return Err(Error::new(Kind::ReadOnly, EngineError::ReadOnly));
        }
        self.close(PoolState::Destroyed).await
    }

    async fn close(&self, state: PoolState) -> Result<()> {
        // Waiting for devices is for whoever keeps the pool, not for whoever wants to leave it.
        self.check_running()?;
        // Nobody touches free space any more: soon it is somebody else's.
        self.leaves().stop_all_work().await;
        // No log is left behind.
        self.intent_logs().freeze_all().await;
        stages::reach("close-logs-frozen");
        // What is open now goes to disk first, so that the last txg has little left to write.
        if let Err(error) = self.sync_unless_suspended().await {
            self.intent_logs().thaw_all();
            // As far as it was: what cannot go on now does with the next opening.
            drop(self.leaves().resume_work().await);
            return Err(error);
        }
        stages::reach("close-synced");
        self.txgs.is_closing.store(true, Ordering::Release);
        self.with_config(|config| {
            config.facts.state = state;
            config.touch();
        });
        self.sync().await?;
        stages::reach("close-marked");
        let is_destroyed = state == PoolState::Destroyed;
        let deed = if is_destroyed { PoolEvent::Destroyed } else { PoolEvent::Exported };
        self.health.damage.note(Event::Pool(deed));
        self.end().await;
        Ok(())
    }

    /// A sync that fails as soon as the pool is suspended. It goes on all the same once that is
    /// cleared.
    async fn sync_unless_suspended(&self) -> Result<()> {
        let sync = pin!(self.sync());
        match select(sync, pin!(self.health().until_suspended())).await {
            Either::Left((synced, _)) => synced.map(drop),
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

    /// Nothing is synced any more, and the devices are closed.
    async fn end(&self) {
        {
            // What somebody else has begun to sync meanwhile is written before this returns: then
            // the devices are whoever's.
            let _one = self.txgs.syncing.lock().await;
            self.stop(&EngineError::Closed.to_string());
        }
        self.close_tree().await;
    }

    async fn close_tree(&self) -> Vec<String> {
        let silent = self.tree.close(patience()).await;
        stages::reach("close-devices-closed");
        if !silent.is_empty() {
            self.health().add_notice(Notice::SilentDevices { paths: silent.clone() });
        }
        silent
    }

    /// Closes the pool within seconds, whatever devices do: who waits for it gets an error, nothing
    /// more is written, and on disk is what a crash would leave. What is lost is told here and
    /// among the [notices](crate::Health::take_notices).
    pub async fn close_by_force(&self) -> ClosedByForce {
        let unwritten = self.unwritten();
        self.stop("closed by force");
        // What waits for a device that hangs is cut off.
        let silent = self.close_tree().await;
        // A sync that was under way ends with an error, and may be what others wait for.
        drop(cenote_rt::until(patience(), self.txgs.syncing.lock()).await);
        self.health.damage.note(Event::Pool(PoolEvent::Exported));
        if let Some(unwritten) = unwritten {
            self.health().add_notice(Notice::NotWritten(unwritten));
        }
        ClosedByForce { unwritten, silent }
    }

    /// What is in memory only.
    fn unwritten(&self) -> Option<Unwritten> {
        let (first_txg, last_txg) = (self.uberblock().txg + 1, self.open_txg());
        let bytes = self.dirty_bytes();
        let is_syncing = self.txgs.syncing.try_lock().is_err();
        let is_clean = bytes == 0 && !is_syncing && !self.heads.is_dirty(last_txg);
        let is_waited_for = !self.state().tasks.is_empty();
        (!is_clean || is_waited_for).then_some(Unwritten { first_txg, last_txg, bytes })
    }
}

impl Health<'_> {
    /// Waits until the pool cannot be closed in order: it is suspended or stopped, or some leaf has
    /// answered nothing for long though it was asked. The other leaves may answer meanwhile: what
    /// waits for the one that hangs waits for ever. Never returns once the pool is closed.
    pub async fn until_stuck(self) {
        // Of each leaf what it has answered, and since when that has not changed.
        let mut last: Vec<(u64, Duration)> = Vec::new();
        loop {
            if self.engine.tree.is_closed() {
                // A pool that was closed while it was suspended counts as suspended for ever: a
                // wait for that would end at once, again and again.
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
