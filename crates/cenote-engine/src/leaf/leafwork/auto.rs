//! Discarding what becomes free, as it becomes free (pool property `autotrim`).
//!
//! ```text
//!   commit ── ranges that can be used again ──> collected ── every 32 txgs ──> discarded
//!                                              by metaslab                   as far as still free
//! ```
//!
//! Nothing of it is stored: what was not discarded when the pool is left stays as it is until
//! somebody trims the whole pool.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, Weak};

use cenote_block::alloc::ReusableRanges;
use cenote_ranges::RangeSet;
use cenote_rt::{AsyncMutex, Kind, Result, tunables};
use cenote_vdev::Place;

use crate::Leaves;

/// Ranges by vdev and metaslab.
type Ranges = BTreeMap<(u64, u64), RangeSet>;

/// What waits to be discarded.
#[derive(Debug, Default)]
pub(crate) struct AutoTrim {
    is_on: AtomicBool,
    is_stopped: AtomicBool,
    // Held for a look, never across I/O.
    waiting: Mutex<Ranges>,
    /// Held while a batch is discarded.
    batch: AsyncMutex<()>,
}

impl AutoTrim {
    /// What the property says from now on.
    pub(crate) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Release);
    }

    /// Discards nothing any more, and waits for what is under way.
    pub(super) async fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        drop(self.batch.lock().await);
    }

    fn is_active(&self) -> bool {
        self.is_on.load(Ordering::Acquire) && !self.is_stopped.load(Ordering::Acquire)
    }

    /// Takes up what became free with `txg`; gives what is due.
    fn collect(&self, txg: u64, mature: Vec<ReusableRanges>) -> Ranges {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
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
    /// Takes up what can be used again from `txg` on, which is committed.
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
                    // What a device did not take stays as it is.
                    return;
                }
            }
        });
    }

    /// Discards what of the ranges is still free.
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
                        // Another leaf may be able to.
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
