//! Limits the rate of changes, and decides when they are written (spec 04 §19.1, §19.3).
//!
//! ```text
//!   dirty bytes  0 ......... 20 % ................. 60 % ............. 100 % of zfs_dirty_data_max
//!                            a sync is started      |                  |
//!                                  writers wait a bit, and ever longer ; for a sync
//! ```
//!
//! Between 60 % and the limit each change is delayed by `zfs_delay_scale` times the excess over the
//! former, divided by the distance to the latter, and changes are delayed one after the other: so
//! writers slow down to the speed of the devices, instead of reaching the limit and stopping.
//!
//! A pool with a sync task (`Engine::start_sync_task`) also syncs changes that are older than
//! `zfs_txg_timeout`. Without a sync task writers do not wait: a writer that reaches the limit
//! syncs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{Notify, Result, tunables};

use crate::leaf::deadman;
use crate::txg::admission::Admission;
use crate::{Engine, Head};

/// Maximum delay of a change at a time.
const DELAY_MAX: Duration = Duration::from_millis(100);
/// Shorter delays are accumulated: timers are not finer.
const DELAY_MIN: Duration = Duration::from_millis(1);

/// Delays of writers.
#[derive(Debug)]
pub(crate) struct Delay {
    /// When the last delayed writer continues.
    last: Mutex<Duration>,
    /// Notified when a sync has ended.
    drained: Notify,
}

impl Default for Delay {
    fn default() -> Self {
        Self { last: Mutex::with_default(Rank::WriteDelay), drained: Notify::new() }
    }
}

/// The size of the open txg, and when it is synced.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    delay: Delay,
    /// Bytes of changes in memory.
    dirty: AtomicU64,
    /// Wakes the sync task.
    pub(crate) wake: Arc<Notify>,
    /// Whether a sync task runs ([`Engine::start_sync_task`]).
    has_sync_task: AtomicBool,
    /// Charges of changes in flight.
    pub(crate) admission: Admission,
}

/// Returns the delay of a change with this much in memory; zero at the limit, where changes wait
/// for a sync instead.
fn delay(dirty: u64, max: u64) -> Duration {
    let percent = u128::from(tunables::DELAY_MIN_DIRTY_PERCENT.get());
    let min = (u128::from(max) * percent / 100) as u64;
    if dirty <= min || dirty >= max {
        return Duration::ZERO;
    }
    let (over, left) = (u128::from(dirty - min), u128::from(max - dirty));
    let ns = u128::from(tunables::DELAY_SCALE.get()) * over / left;
    Duration::from_nanos(u64::try_from(ns).unwrap_or(u64::MAX)).min(DELAY_MAX)
}

impl Engine {
    /// Returns the bytes of changes in memory, of all heads.
    pub fn dirty_bytes(&self) -> u64 {
        self.throttle.dirty.load(Ordering::Acquire)
    }

    /// Starts the task that syncs in the background until the pool is dropped, unless it runs.
    pub fn start_sync_task(self: &Arc<Self>) {
        if self.is_read_only || self.throttle.has_sync_task.swap(true, Ordering::AcqRel) {
            return;
        }
        deadman::start(self);
        let (engine, wake) = (Arc::downgrade(self), Arc::clone(&self.throttle.wake));
        cenote_rt::spawn_background(async move {
            let mut last = cenote_rt::monotonic();
            loop {
                let timeout = Duration::from_secs(tunables::TXG_TIMEOUT.get());
                let age = cenote_rt::monotonic().saturating_sub(last);
                let left = timeout.saturating_sub(age);
                let is_woken = cenote_rt::until(left, wake.notified()).await.is_some();
                // A writer that wakes the task counts changes that are being synced; the changes
                // since may be few, and many small txgs cost more than a large one.
                let is_early = |engine: Arc<Self>| {
                    let is_tight = engine.throttle.admission.take_tight();
                    !is_tight && !is_due(engine.dirty_bytes())
                };
                if is_woken && engine.upgrade().is_some_and(is_early) {
                    continue;
                }
                if !tick(&engine).await {
                    break;
                }
                last = cenote_rt::monotonic();
            }
        });
    }

    /// Waits while the pool is suspended, or there are too many changes in memory.
    pub(crate) async fn admit(&self) -> Result<()> {
        self.until_running().await?;
        let max = tunables::DIRTY_DATA_MAX.get();
        while self.dirty_bytes() >= max {
            if !self.throttle.has_sync_task.load(Ordering::Acquire) {
                self.sync().await?;
                continue;
            }
            // Before the check, so that later ends of a sync wake this task.
            let drained = self.throttle.delay.drained.notified();
            if self.dirty_bytes() < max {
                break;
            }
            self.throttle.wake.notify_one();
            // A stopped pool, or a suspended one that fails changes, ends no sync.
            cenote_rt::until(DELAY_MAX, drained).await;
            self.until_running().await?;
        }
        // Without a sync task waiting does not help.
        if self.throttle.has_sync_task.load(Ordering::Acquire) {
            self.slow_down(delay(self.dirty_bytes(), max)).await;
        }
        Ok(())
    }

    /// Waits until `pause` after the previous delayed writer.
    async fn slow_down(&self, pause: Duration) {
        if pause.is_zero() {
            return;
        }
        let wait = {
            let now = cenote_rt::monotonic();
            let mut last = self.throttle.delay.last.lock();
            // Accumulated delays are caught up.
            *last = (*last).max(now.saturating_sub(DELAY_MIN)) + pause;
            last.saturating_sub(now)
        };
        if wait >= DELAY_MIN {
            cenote_rt::sleep(wait).await;
        }
    }

    /// Counts the additional bytes of a change of `head` in `txg`, and starts a sync if they are
    /// enough.
    pub(crate) fn note_dirty(&self, head: &Head, txg: u64) {
        let now = head.live().dirty_bytes(txg);
        let before = head.dirty.swap(now, Ordering::AcqRel);
        // A decrease means that this is the head's first change in a new txg.
        let added = now.checked_sub(before).unwrap_or(now);
        let dirty = self.throttle.dirty.fetch_add(added, Ordering::AcqRel) + added;
        let max = tunables::DIRTY_DATA_MAX.get();
        self.tree.load().set_dirty(dirty, max);
        if is_due(dirty) {
            self.throttle.wake.notify_one();
        }
    }

    /// Counts again after a commit: the rest belongs to the open txg.
    pub(crate) fn recount_dirty(&self) {
        let open = self.open_txg();
        let left = self.heads.all().iter().map(|head| head.live().dirty_bytes(open)).sum();
        self.throttle.dirty.store(left, Ordering::Release);
        self.tree.load().set_dirty(left, tunables::DIRTY_DATA_MAX.get());
        self.throttle.delay.drained.notify_waiters();
    }
}

/// Whether so many bytes of changes are enough for a sync.
fn is_due(dirty: u64) -> bool {
    let percent = u128::from(tunables::DIRTY_DATA_SYNC_PERCENT.get());
    u128::from(dirty) * 100 >= u128::from(tunables::DIRTY_DATA_MAX.get()) * percent
}

/// One round of the sync task. Returns false when the pool is gone.
async fn tick(engine: &Weak<Engine>) -> bool {
    let Some(engine) = engine.upgrade() else { return false };
    // A sync probes failed leaves.
    let has_background = engine.space().has_background_work().await;
    // The count may miss changes made during a recount: actual changes decide.
    let is_clean = engine.dirty_bytes() == 0
        && !engine.heads.is_dirty(engine.open_txg())
        && !engine.health.damage.has_lost();
    let has_bad_leaves = engine.tree.has_failed() || engine.leaves().has_diagnoses();
    if is_clean && !has_bad_leaves && !has_background {
        return engine.check_stopped().is_ok();
    }
    // A failed sync stops the pool, and all callers get the reason. A suspended sync is waited for
    // elsewhere, so that the pool can be closed meanwhile.
    if engine.health().suspended().is_none() {
        drop(engine.sync().await);
    }
    // Background frees continue without a pause, a part with each txg, while the pool is in use.
    while Arc::strong_count(&engine) > 1
        && engine.check_running().is_ok()
        && engine.space().has_background_work().await
    {
        drop(engine.sync().await);
    }
    engine.check_stopped().is_ok()
}

#[cfg(test)]
mod tests {
    use cenote_dmu::live::ObjectSpec;
    use cenote_ondisk::object_type::ObjectType;
    use cenote_rt::block_on;

    use super::*;
    use crate::testing;
    use crate::txg::apply::ApplyOptions;

    /// A change made during a recount is not counted, but is synced even if nothing else changes.
    #[test]
    fn zfs_txg_timeout_syncs_uncounted_changes() {
        block_on(1, async {
            let engine = testing::pool().await;
            let head = engine.head("t").await.expect("there");
            let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, 512);
            let (_, txg) = engine
                .apply(&head, ApplyOptions::new(), |tx| tx.allocate(&spec))
                .await
                .expect("room");
            engine.throttle.dirty.store(0, Ordering::Release);
            assert!(tick(&Arc::downgrade(&engine)).await);
            assert!(engine.uberblock().txg >= txg, "changes are never written");
            // An idle pool writes nothing.
            let open = engine.open_txg();
            assert!(tick(&Arc::downgrade(&engine)).await && engine.open_txg() == open);
        })
        .expect("runtime");
    }

    #[test]
    fn zfs_delay_scale_delays_writers() {
        let max = 1000 << 20;
        let at = |permille: u64| delay(max / 1000 * permille, max);
        assert_eq!(at(0), Duration::ZERO);
        assert_eq!(at(600), Duration::ZERO);
        // Half way: exactly the scale.
        assert_eq!(at(800), Duration::from_micros(500));
        assert_eq!(at(900), Duration::from_micros(1500));
        assert_eq!(at(999), DELAY_MAX);
        assert_eq!(at(1000), Duration::ZERO);
        let mut last = Duration::ZERO;
        for permille in 600..1000 {
            assert!(at(permille) >= last);
            last = at(permille);
        }
    }
}
