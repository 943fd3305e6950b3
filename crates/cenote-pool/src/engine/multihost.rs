//! Telling other hosts that the pool is in use: heartbeats (property `multihost`; spec 01 §17).
//!
//! ```text
//!   every zfs_multihost_interval / leaves:   the next leaf, any of its labels, last slot:
//!                                            the last uberblock with a new time and count
//!   none written for fail_intervals:         the pool is suspended: another host may take it
//!   the pool is left in order:               an uberblock that promises no heartbeats
//! ```
//!
//! A host that finds the promise in an uberblock watches before it imports the pool. So what must
//! never happen is that this one writes after its heartbeats were missing for that long: the commit
//! looks whether the pool is suspended before it writes labels and uberblocks.
//!
//! A pool that is suspended for this reason cannot be cleared, only opened again: somebody else
//! may have changed it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_ondisk::label::LABEL_COUNT;
use cenote_ondisk::uberblock::{MMP_MAGIC, Uberblock};
use cenote_rt::{Notify, Result, tunables};
use cenote_vdev::LeafId;

use super::{Engine, Suspended};

/// Bits of the word that tells of the interval: which of its parts mean something.
const CONFIG_VALID: u64 = 7;
/// Where the parts begin.
const CONFIG_INTERVAL: u32 = 8;
const CONFIG_SEQUENCE: u32 = 32;
const CONFIG_FAIL: u32 = 48;
/// How much of the mean the newest delay is.
const MEAN_WEIGHT: u64 = 128;

/// The heartbeats of a pool.
#[derive(Debug, Default)]
pub(super) struct Multihost {
    is_on: AtomicBool,
    /// The pool is about to be left.
    is_resting: AtomicBool,
    is_beating: AtomicBool,
    stopped: Arc<Notify>,
    /// Mean time between heartbeats, and never less than the last one took.
    delay_ns: AtomicU64,
    // Held for a look, never across I/O.
    beat: Mutex<Beat>,
}

#[derive(Debug, Default)]
struct Beat {
    /// When the last one was written.
    last: Duration,
    /// The second that the count is of, and the count.
    second: u64,
    sequence: u64,
    /// The next leaf.
    turn: usize,
}

fn interval() -> Duration {
    Duration::from_millis(tunables::MULTIHOST_INTERVAL.get())
}

/// What an uberblock says of the interval.
fn config_word(sequence: u64) -> u64 {
    let fail = tunables::MULTIHOST_FAIL_INTERVALS.get().min(0xffff);
    let interval = tunables::MULTIHOST_INTERVAL.get().min(0xff_ffff);
    CONFIG_VALID
        | interval << CONFIG_INTERVAL
        | (sequence & 0xffff) << CONFIG_SEQUENCE
        | fail << CONFIG_FAIL
}

impl Multihost {
    /// Whether slots and uberblocks are those of a pool with heartbeats.
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Fills in what an uberblock promises.
    pub(super) fn stamp(&self, uberblock: &mut Uberblock) {
        uberblock.mmp_magic = MMP_MAGIC;
        let promises = self.is_on() && !self.is_resting.load(Ordering::Acquire);
        (uberblock.mmp_delay, uberblock.mmp_config) = if promises {
            (self.delay_ns.load(Ordering::Acquire).max(1), config_word(0))
        } else {
            (0, 0)
        };
    }

    fn beat(&self) -> std::sync::MutexGuard<'_, Beat> {
        self.beat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The count of the next heartbeat, which begins anew each second.
    fn next_sequence(&self, second: u64) -> u64 {
        let mut beat = self.beat();
        beat.sequence = if beat.second == second { beat.sequence + 1 } else { 1 };
        beat.second = second;
        beat.sequence
    }

    /// Notes how a heartbeat went; tells since when none succeeded.
    fn note(&self, is_written: bool) -> Duration {
        let now = cenote_rt::monotonic();
        let mut beat = self.beat();
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
        if is_written {
            beat.last = now;
            return Duration::ZERO;
        }
        since
    }
}

impl Engine {
    /// Follows the property.
    pub(super) fn set_multihost(&self, is_on: bool) {
        let multihost = &self.multihost;
        if multihost.is_on.swap(is_on, Ordering::AcqRel) == is_on {
            return;
        }
        // The next uberblock says so on every device.
        if !is_on {
            multihost.stopped.notify_waiters();
            return;
        }
        let ns = u64::try_from(interval().as_nanos()).unwrap_or(u64::MAX);
        multihost.delay_ns.store(ns, Ordering::Release);
        multihost.beat().last = cenote_rt::monotonic();
        if multihost.is_beating.swap(true, Ordering::AcqRel) {
            return;
        }
        let engine = self.me.clone();
        let stopped = Arc::clone(&multihost.stopped);
        cenote_rt::spawn(async move {
            loop {
                // The engine is not held while nothing is done.
                let Some(pause) = engine.upgrade().map(|engine| engine.pause()) else { return };
                let told = stopped.notified();
                cenote_rt::until(pause, told).await;
                let Some(engine) = engine.upgrade() else { return };
                if !engine.beat_once().await {
                    engine.multihost.is_beating.store(false, Ordering::Release);
                    return;
                }
            }
        });
    }

    /// Time between two heartbeats, such that each leaf gets one in an interval.
    fn pause(&self) -> Duration {
        let leaves = self.tree.leaves().filter(|(_, leaf)| leaf.is_writable()).count();
        interval() / u32::try_from(leaves.max(1)).unwrap_or(u32::MAX)
    }

    /// Writes one heartbeat. False if there are to be none any more.
    async fn beat_once(&self) -> bool {
        let multihost = &self.multihost;
        let is_over = self.check_stopped().is_err() || multihost.is_resting.load(Ordering::Acquire);
        if !multihost.is_on() || is_over {
            return false;
        }
        let written = match self.next_leaf() {
            Some(leaf) => self.write_beat(leaf).await.is_ok(),
            None => false,
        };
        let since = multihost.note(written);
        let fails = tunables::MULTIHOST_FAIL_INTERVALS.get();
        if fails > 0 && since > interval().saturating_mul(u32::try_from(fails).unwrap_or(u32::MAX))
        {
            let cause = format!("no heartbeat was written for {} ms", since.as_millis());
            self.suspension.suspend(Suspended::Multihost(cause));
        }
        true
    }

    fn next_leaf(&self) -> Option<LeafId> {
        let leaves: Vec<_> =
            self.tree.leaves().filter(|(_, leaf)| leaf.is_writable()).map(|(id, _)| id).collect();
        let mut beat = self.multihost.beat();
        beat.turn = (beat.turn + 1) % leaves.len().max(1);
        leaves.get(beat.turn).copied()
    }

    async fn write_beat(&self, leaf: LeafId) -> Result<()> {
        let second = cenote_rt::wall_clock().as_secs();
        let sequence = self.multihost.next_sequence(second);
        let last = self.uberblock();
        let uberblock = Uberblock {
            timestamp: second.max(last.timestamp),
            mmp_magic: MMP_MAGIC,
            mmp_delay: self.multihost.delay_ns.load(Ordering::Acquire).max(1),
            mmp_config: config_word(sequence),
            ..last
        };
        let label = {
            let mut rng = self.rng.lock().unwrap_or_else(PoisonError::into_inner);
            rng.below(LABEL_COUNT as u64) as usize
        };
        self.tree.write_heartbeat(leaf, &uberblock, label).await
    }

    /// Leaves the pool as it is, without anybody who keeps it: it stays in use by this host, and
    /// its uberblock promises no heartbeats.
    ///
    /// # Errors
    /// Those of a sync.
    pub async fn rest(&self) -> Result<u64> {
        if !self.multihost.is_on() {
            return self.sync().await;
        }
        self.multihost.is_resting.store(true, Ordering::Release);
        self.multihost.stopped.notify_waiters();
        self.administer(|_, _, config| {
            config.touch();
            Ok(())
        })
        .await?;
        Ok(self.uberblock().txg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_is_that_of_real_pools() {
        assert_eq!(config_word(0), 0x000a_0000_0003_e807);
        assert_eq!(config_word(1), 0x000a_0001_0003_e807);
    }

    #[test]
    fn counts_begin_anew_each_second() {
        let multihost = Multihost::default();
        let counts: Vec<_> = [5, 5, 5, 6, 6].map(|at| multihost.next_sequence(at)).into();
        assert_eq!(counts, [1, 2, 3, 1, 2]);
    }
}
