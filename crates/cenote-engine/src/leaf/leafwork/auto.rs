//! Trims freed space continuously (pool property `autotrim`).
//!
//! ```text
//!   commit ── ranges that can be used again ──> collected ── every 32 txgs ──> discarded
//!                                              by metaslab                   as far as still free
//! ```
//!
//! Nothing of it is stored: freed space that was not trimmed when the pool is closed stays so until
//! `zpool trim`.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_block::alloc::ReusableRanges;
use cenote_ranges::RangeSet;
use cenote_rt::lock::{AsyncMutex, Mutex, Rank};
use cenote_rt::{Kind, Result, tunables};
use cenote_vdev::Place;

use crate::Leaves;

/// Ranges by vdev and metaslab.
type Ranges = BTreeMap<(u64, u64), RangeSet>;

/// Freed ranges to be trimmed.
#[derive(Debug)]
pub(crate) struct AutoTrim {
    is_on: AtomicBool,
    is_stopped: AtomicBool,
    // Held for single reads and updates, never across I/O.
    waiting: Mutex<Ranges>,
    /// Held while a batch is trimmed.
    batch: AsyncMutex<()>,
}

impl Default for AutoTrim {
    fn default() -> Self {
        Self {
            is_on: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            waiting: Mutex::with_default(Rank::AutoTrimRanges),
            batch: AsyncMutex::with_default(Rank::AutoTrim),
        }
    }
}

impl AutoTrim {
    /// Sets the property.
    pub(crate) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Release);
    }

    /// Stops trimming, and waits for the running batch.
    pub(super) async fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        drop(self.batch.lock().await);
    }

    /// Permits trimming again after [`stop`](Self::stop).
    pub(super) fn resume(&self) {
        self.is_stopped.store(false, Ordering::Release);
    }

    fn is_active(&self) -> bool {
        self.is_on.load(Ordering::Acquire) && !self.is_stopped.load(Ordering::Acquire)
    }

    /// Adds the ranges freed with `txg`; returns the ranges to trim now.
    fn collect(&self, txg: u64, mature: Vec<ReusableRanges>) -> Ranges {
        let mut waiting = self.waiting.lock();
        if !self.is_active() {
            waiting.clear();
            return Ranges::new();
        }
        for ReusableRanges { vdev, metaslab, ranges } in mature {
            let set = waiting.entry((vdev, metaslab)).or_default();
            for range in ranges.iter() {
                set.add(range);
            }
        }
        let batch = tunables::TRIM_TXG_BATCH.get();
        let is_due = |(_, metaslab): &(u64, u64)| metaslab % batch == txg % batch;
        let (due, rest) =
            std::mem::take(&mut *waiting).into_iter().partition(|(key, _)| is_due(key));
        *waiting = rest;
        due
    }
}

impl Leaves<'_> {
    /// Adds the ranges that are reusable from `txg` on, which is committed.
    pub(crate) fn note_freed(self, txg: u64, mature: Vec<ReusableRanges>) {
        let due = self.engine.leaf.auto_trim.collect(txg, mature);
        if due.is_empty() {
            return;
        }
        let engine = Weak::clone(&self.engine.me);
        cenote_rt::spawn_background(async move {
            for (key, ranges) in due {
                let Some(engine) = engine.upgrade() else { return };
                let _one = engine.leaf.auto_trim.batch.lock().await;
                if !engine.leaf.auto_trim.is_active()
                    || engine.leaves().discard_freed(key, &ranges).await.is_err()
                {
                    // A failed trim has no consequences.
                    return;
                }
            }
        });
    }

    /// Trims those of the ranges that are still free.
    async fn discard_freed(self, key: (u64, u64), ranges: &RangeSet) -> Result<()> {
        let (vdev, metaslab) = key;
        let Some(paused) = self.engine.alloc.pause(vdev, metaslab).await? else { return Ok(()) };
        let (min, max) =
            (tunables::TRIM_EXTENT_BYTES_MIN.get(), tunables::TRIM_EXTENT_BYTES_MAX.get());
        for range in paused.free_of(ranges).iter() {
            let place = Place { vdev, offset: range.start };
            for part in self.engine.tree.translate(place, range.end - range.start) {
                if part.len < min {
                    continue;
                }
                for start in (0..part.len).step_by(usize::try_from(max).unwrap_or(usize::MAX)) {
                    let len = max.min(part.len - start);
                    let result =
                        self.engine.tree.discard_leaf(part.leaf, part.offset + start, len).await;
                    match result {
                        // Another leaf may support it.
                        Err(error) if error.kind() == Kind::Unsupported => break,
                        result => result?,
                    }
                    if self.engine.alloc.is_wanted() {
                        return Ok(());
                    }
                }
            }
        }
        Ok(())
    }
}
