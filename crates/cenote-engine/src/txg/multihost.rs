//! Heartbeats that show other hosts that the pool is in use (property `multihost`; spec 01 §17).
//!
//! ```text
//!   every zfs_multihost_interval / leaves:   the next leaf, any of its labels, last slot:
//!                                            the last uberblock with a new time and count
//!   none written for fail_intervals:         the pool is suspended: another host may take it
//!   the pool is left in order:               an uberblock that promises no heartbeats
//! ```
//!
//! A host that finds the promise in an uberblock watches before it imports the pool. So this host
//! must not write after its heartbeats were missing for that long. To detect this without waiting
//! for a device, each heartbeat is a separate task, and the age of the last one is checked
//! periodically and again directly before a commit writes labels and uberblocks
//! ([`Engine::check_host`]). A heartbeat that ends too late does not count.
//!
//! A pool suspended for this reason cannot be cleared, only imported again: another host may have
//! changed it.
//!
//! Invariants
//! * MH1  A leaf has at most one heartbeat in flight, which is answered once: when the pool is
//!   closed, no heartbeat follows the last uberblock.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_ondisk::label::LABEL_COUNT;
use cenote_ondisk::uberblock::{MMP_SEQUENCE_MAX, Mmp, Uberblock};
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{Notify, Result, tunables};
use cenote_vdev::LeafId;

use crate::Engine;
use crate::txg::suspend::{Suspended, refusal};

/// Weight of the mean relative to the newest delay.
const MEAN_WEIGHT: u64 = 128;

/// State of a pool's heartbeats.
#[derive(Debug)]
pub(crate) struct Multihost {
    /// Changed under the lock of `beat` only.
    is_on: AtomicBool,
    /// The pool is about to be closed. Changed under that lock as well.
    is_ending: AtomicBool,
    stopped: Arc<Notify>,
    /// Mean time between heartbeats, and at least that of the last one.
    delay_ns: AtomicU64,
    // Held for single reads and updates, never across I/O.
    beat: Mutex<Beat>,
    /// A heartbeat has ended.
    ended: Notify,
}

impl Default for Multihost {
    fn default() -> Self {
        Self {
            is_on: AtomicBool::new(false),
            is_ending: AtomicBool::new(false),
            stopped: Arc::default(),
            delay_ns: AtomicU64::new(0),
            beat: Mutex::with_default(Rank::Heartbeat),
            ended: Notify::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Beat {
    /// Whether a task writes heartbeats.
    has_task: bool,
    /// When the last one was written.
    last: Duration,
    /// The second of the count, and the count.
    second: u64,
    sequence: u64,
    /// Index of the next leaf.
    next_index: usize,
    /// Leaves whose last heartbeat is unanswered.
    pending: BTreeSet<LeafId>,
}

fn interval() -> Duration {
    Duration::from_millis(tunables::MULTIHOST_INTERVAL.get())
}

/// Whether a gap of this length means that another host may have imported the pool.
fn is_too_long(since: Duration) -> bool {
    let fails = tunables::MULTIHOST_FAIL_INTERVALS.get();
    fails > 0 && since > interval().saturating_mul(u32::try_from(fails).unwrap_or(u32::MAX))
}

impl Multihost {
    /// Whether slots and uberblocks are those of a pool with heartbeats.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Sets the promise in an uberblock.
    pub(crate) fn stamp(&self, uberblock: &mut Uberblock) {
        let promises = self.is_on() && !self.is_ending();
        uberblock.set_mmp(if promises { self.promise(0) } else { Mmp::default() });
    }

    fn promise(&self, sequence: u64) -> Mmp {
        Mmp {
            delay_ns: self.delay_ns.load(Ordering::Acquire).max(1),
            interval_ms: Some(tunables::MULTIHOST_INTERVAL.get()),
            sequence: Some(sequence & MMP_SEQUENCE_MAX),
            fail_intervals: Some(tunables::MULTIHOST_FAIL_INTERVALS.get()),
        }
    }

    fn beat(&self) -> MutexGuard<'_, Beat> {
        self.beat.lock()
    }

    /// Applies the property. Returns whether the caller must start the heartbeat task.
    fn switch(&self, is_on: bool) -> bool {
        let mut beat = self.beat();
        if self.is_on.swap(is_on, Ordering::AcqRel) == is_on || !is_on {
            return false;
        }
        let ns = u64::try_from(interval().as_nanos()).unwrap_or(u64::MAX);
        self.delay_ns.store(ns, Ordering::Release);
        beat.last = cenote_rt::monotonic();
        !std::mem::replace(&mut beat.has_task, true)
    }

    /// Whether the heartbeat task must end. Atomic with [`switch`](Self::switch), which then either
    /// finds a running task or starts one.
    fn ends(&self, is_stopped: bool) -> bool {
        let mut beat = self.beat();
        beat.has_task = self.is_on() && !self.is_ending() && !is_stopped;
        !beat.has_task
    }

    /// Returns the count of the next heartbeat, which restarts each second.
    fn next_sequence(&self, second: u64) -> u64 {
        let mut beat = self.beat();
        beat.sequence = if beat.second == second { beat.sequence + 1 } else { 1 };
        beat.second = second;
        beat.sequence
    }

    /// Returns the leaf of the next heartbeat: round robin, without leaves that have not answered.
    fn next_leaf(&self, leaves: &[LeafId]) -> Option<LeafId> {
        let mut beat = self.beat();
        if self.is_ending() {
            return None;
        }
        for _ in leaves {
            beat.next_index = (beat.next_index + 1) % leaves.len();
            let leaf = leaves.get(beat.next_index).copied()?;
            if beat.pending.insert(leaf) {
                return Some(leaf);
            }
        }
        None
    }

    /// Records the result of a heartbeat. One that was written too late does not count.
    fn note(&self, leaf: LeafId, is_written: bool) {
        {
            let mut beat = self.beat();
            // Checks MH1: otherwise a heartbeat could follow the last uberblock.
            assert!(beat.pending.remove(&leaf), "{leaf:?} has no heartbeat in flight");
            let now = cenote_rt::monotonic();
            let since = now.saturating_sub(beat.last);
            let ns = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
            let mean = self.delay_ns.load(Ordering::Acquire);
            let delay = if ns > mean {
                ns
            } else if is_written {
                (ns + mean.saturating_mul(MEAN_WEIGHT - 1)) / MEAN_WEIGHT
            } else {
                mean
            };
            self.delay_ns.store(delay, Ordering::Release);
            if is_written && !is_too_long(since) {
                beat.last = now;
            }
        }
        self.ended.notify_waiters();
    }

    /// Returns the time since the last heartbeat, if that is too long.
    fn overdue(&self) -> Option<Duration> {
        if !self.is_on() || self.is_ending() {
            return None;
        }
        let since = cenote_rt::monotonic().saturating_sub(self.beat().last);
        is_too_long(since).then_some(since)
    }

    /// Starts no more heartbeats, and waits for those in flight, so that none follows the next
    /// write.
    async fn end_beats(&self) {
        {
            let _beat = self.beat();
            self.is_ending.store(true, Ordering::Release);
        }
        self.stopped.notify_waiters();
        loop {
            let ended = self.ended.notified();
            if self.beat().pending.is_empty() {
                return;
            }
            ended.await;
        }
    }
}

impl Engine {
    /// Applies the property.
    pub(crate) fn set_multihost(&self, is_on: bool) {
        let is_needed = self.health.multihost.switch(is_on);
        // Without heartbeats, the next uberblock says so on every device.
        self.health.multihost.stopped.notify_waiters();
        if !is_needed {
            return;
        }
        let engine = Weak::clone(&self.me);
        let stopped = Arc::clone(&self.health.multihost.stopped);
        cenote_rt::spawn_background(async move {
            loop {
                // The engine is not held while sleeping.
                let Some(pause) = engine.upgrade().map(|engine| engine.pause()) else { return };
                let told = stopped.notified();
                cenote_rt::until(pause, told).await;
                let Some(engine) = engine.upgrade() else { return };
                if engine.health.multihost.ends(engine.check_stopped().is_err()) {
                    return;
                }
                engine.begin_beat();
            }
        });
    }

    /// Returns the time between two heartbeats, such that each leaf gets one in an interval.
    fn pause(&self) -> Duration {
        let leaves = self.tree.leaves().filter(|(_, leaf)| leaf.is_writable()).count();
        interval() / u32::try_from(leaves.max(1)).unwrap_or(u32::MAX)
    }

    /// Checks that this host may write labels and uberblocks. Suspends the pool if its heartbeats
    /// were missing for so long that another host may have imported it.
    ///
    /// # Errors
    /// A permanent `Kind::Io`.
    pub(crate) fn check_host(&self) -> Result<()> {
        if let Some(since) = self.health.multihost.overdue() {
            let cause = format!("no heartbeat was written for {} ms", since.as_millis());
            self.health.suspension.suspend(Suspended::Multihost(cause));
        }
        match self.health.suspension.cause() {
            Some(cause @ Suspended::Multihost(_)) => Err(refusal(&cause)),
            _ => Ok(()),
        }
    }

    /// Checks the age of the last heartbeat, and starts the next one.
    fn begin_beat(&self) {
        // Nothing is written to a pool that another host may have imported.
        if self.check_host().is_err() {
            return;
        }
        let leaves = self.tree.leaves().filter(|(_, leaf)| leaf.is_writable());
        let leaves: Vec<_> = leaves.map(|(id, _)| id).collect();
        let Some(leaf) = self.health.multihost.next_leaf(&leaves) else { return };
        let uberblock = self.heartbeat();
        let label = {
            let mut rng = self.txgs.rng.lock();
            rng.below(LABEL_COUNT as u64) as usize
        };
        let (tree, engine) = (Arc::clone(&self.tree), Weak::clone(&self.me));
        cenote_rt::spawn(async move {
            let written = tree.write_heartbeat(leaf, &uberblock, label).await;
            if let Some(engine) = engine.upgrade() {
                engine.health.multihost.note(leaf, written.is_ok());
                drop(engine.check_host());
            }
        });
    }

    /// Returns the last uberblock with a new time and count.
    fn heartbeat(&self) -> Uberblock {
        let second = cenote_rt::wall_clock().as_secs();
        let mut uberblock = self.uberblock();
        uberblock.timestamp = second.max(uberblock.timestamp);
        uberblock
            .set_mmp(self.health.multihost.promise(self.health.multihost.next_sequence(second)));
        uberblock
    }

    /// Writes everything, and an uberblock without a promise of heartbeats; none follows it.
    ///
    /// # Errors
    /// Errors of a sync.
    pub(crate) async fn end_heartbeats(&self) -> Result<()> {
        if !self.health.multihost.is_on() {
            return self.sync().await.map(drop);
        }
        self.health.multihost.end_beats().await;
        self.admin()
            .change(|_, _, config| {
                config.touch();
                Ok(())
            })
            .await
    }
}

#[cfg(test)]
mod tests {
    use cenote_device::{Device, Image, ImageDevice};
    use cenote_rt::{simulate, sleep};
    use cenote_vdev::create::Redundancy;
    use cenote_vdev::{BuildOptions, Tree};

    use super::*;
    use crate::testing;

    /// Returns two leaves.
    fn bench_leaves() -> Vec<LeafId> {
        let device: Arc<dyn Device> = Arc::new(ImageDevice::new("d", Image::zeroed(64 << 20)));
        let root = testing::vdevs(Redundancy::Mirror, &[Arc::clone(&device), device]).root;
        let tree = Tree::build(&root, |_| None, &BuildOptions::default()).expect("tree");
        tree.leaves().map(|(id, _)| id).collect()
    }

    /// The heartbeat task ends only if heartbeats are off: while they are on there is always
    /// exactly one task.
    #[test]
    fn multihost_has_exactly_one_heartbeat_task() {
        let multihost = Multihost::default();
        assert!(!multihost.switch(false) && multihost.switch(true) && !multihost.switch(true));
        // Off and on again while the task sleeps.
        assert!(!multihost.switch(false) && !multihost.switch(true));
        assert!(!multihost.ends(false));
        // Off when the task checks.
        multihost.switch(false);
        assert!(multihost.ends(false) && multihost.switch(true));
        assert!(multihost.ends(true) && !multihost.switch(true));
    }

    #[test]
    fn multihost_skips_leaves_with_a_pending_heartbeat() {
        let multihost = Multihost::default();
        multihost.switch(true);
        let leaves: Vec<LeafId> = bench_leaves();
        let first = multihost.next_leaf(&leaves).expect("all are free");
        let second = multihost.next_leaf(&leaves).expect("one is free");
        assert!(first != second && multihost.next_leaf(&leaves).is_none());
        multihost.note(first, false);
        assert_eq!(multihost.next_leaf(&leaves), Some(first));
    }

    #[test]
    #[should_panic(expected = "has no heartbeat in flight")]
    fn multihost_answer_without_a_heartbeat_is_found() {
        let (multihost, leaves) = (Multihost::default(), bench_leaves());
        multihost.switch(true);
        let leaf = multihost.next_leaf(&leaves).expect("free");
        multihost.note(leaf, true);
        multihost.note(leaf, true);
    }

    /// A late heartbeat does not make up for missing ones.
    #[test]
    fn multihost_ignores_late_heartbeats() {
        simulate(1, async {
            let multihost = Multihost::default();
            multihost.switch(true);
            let leaves = bench_leaves();
            let leaf = multihost.next_leaf(&leaves).expect("free");
            sleep(interval() * 2).await;
            assert_eq!(multihost.overdue(), None);
            multihost.note(leaf, true);
            let fails = u32::try_from(tunables::MULTIHOST_FAIL_INTERVALS.get()).expect("few");
            sleep(interval() * (fails + 1)).await;
            assert!(multihost.overdue().is_some());
            let leaf = multihost.next_leaf(&leaves).expect("free");
            multihost.note(leaf, true);
            assert!(multihost.overdue().is_some());
            multihost.end_beats().await;
            assert_eq!(multihost.overdue(), None);
        })
        .expect("runtime");
    }

    #[test]
    fn multihost_sequence_restarts_each_second() {
        let multihost = Multihost::default();
        let counts: Vec<_> = [5, 5, 5, 6, 6].map(|at| multihost.next_sequence(at)).into();
        assert_eq!(counts, [1, 2, 3, 1, 2]);
    }
}
