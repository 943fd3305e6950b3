//! Limits of a leaf's queue: a snapshot of the tunables, and the load of the pool.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cenote_rt::tunables::{self, Tunable};

use super::plug::Plugs;
use super::throttle::ScanThrottle;
use super::{CLASSES, IoClass};
use crate::fault::LeafObserver;

/// Longest aggregated I/O, whatever the limit (the format's largest block).
pub(super) const SPAN_MAX: u64 = 16 << 20;

/// Pool-wide state that its queues consult: the amount of dirty data, and the throttle of scans.
#[derive(Debug, Default)]
pub struct Load {
    dirty_bytes: AtomicU64,
    dirty_max: AtomicU64,
    has_sync_task: AtomicBool,
    pub(super) plugs: Plugs,
    observer: OnceLock<Arc<dyn LeafObserver>>,
    pub(super) scan: ScanThrottle,
}

impl Load {
    /// Sets the bytes of dirty data, and the maximum (`zfs_dirty_data_max`).
    pub fn set_dirty(&self, bytes: u64, max: u64) {
        self.dirty_bytes.store(bytes, Ordering::Relaxed);
        self.dirty_max.store(max, Ordering::Relaxed);
    }

    /// Sets whether a sync task waits for the transaction group.
    pub fn set_sync_task(&self, is_pending: bool) {
        self.has_sync_task.store(is_pending, Ordering::Relaxed);
    }

    /// Receiver of events of the pool's leaves.
    pub(crate) fn observer(&self) -> Option<&Arc<dyn LeafObserver>> {
        self.observer.get()
    }

    /// Sets the receiver of events, unless there is one.
    pub(crate) fn set_observer(&self, observer: Arc<dyn LeafObserver>) {
        self.observer.get_or_init(|| observer);
    }

    /// The throttle of the pool's scans.
    pub fn scan(&self) -> &ScanThrottle {
        &self.scan
    }

    /// Whether there is more dirty data than a percentage of its maximum, or a sync task waits.
    pub(super) fn is_dirty_above(&self, percent: u64) -> bool {
        let dirty = u128::from(self.dirty_bytes.load(Ordering::Relaxed));
        let limit = u128::from(self.dirty_max.load(Ordering::Relaxed));
        self.has_sync_task.load(Ordering::Relaxed)
            || limit > 0 && dirty * 100 >= limit * u128::from(percent)
    }

    /// Most async writes in flight (spec 06 §11.3): the minimum while there is little dirty data,
    /// to disturb reads little; from there it rises linearly to the maximum.
    fn async_writes(&self, min: u64, max: u64) -> u64 {
        let dirty = u128::from(self.dirty_bytes.load(Ordering::Relaxed));
        let limit = u128::from(self.dirty_max.load(Ordering::Relaxed));
        let from = limit * u128::from(tunables::ASYNC_WRITE_MIN_DIRTY.get()) / 100;
        let to = limit * u128::from(tunables::ASYNC_WRITE_MAX_DIRTY.get()) / 100;
        // Without a maximum there is no information about the pool.
        if self.has_sync_task.load(Ordering::Relaxed) || dirty > to {
            max
        } else if dirty < from || from >= to {
            min
        } else {
            let more = (dirty - from) * u128::from(max.saturating_sub(min)) / (to - from);
            min + more as u64
        }
    }
}

/// The limits in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Limits {
    /// Most I/Os in flight, of all classes.
    pub(super) max_active: u64,
    /// By class: I/Os admitted before other classes get more than their minimum.
    pub(super) min: [u64; CLASSES],
    /// By class: most I/Os in flight.
    pub(super) max: [u64; CLASSES],
    /// Most scan reads in flight; `None` where credits decide.
    pub(super) scans: Option<u64>,
    /// Most bytes of an aggregate of scan reads, if fewer than those of others.
    pub(super) scan_len_max: Option<u64>,
    pub(super) nia_credit: u64,
    pub(super) nia_delay: u64,
    /// Most bytes of an aggregate; 0 turns aggregation off.
    pub(super) aggregation: u64,
    pub(super) read_gap: u64,
    pub(super) write_gap: u64,
    /// Whether optional I/Os count against the limit, as they did before illumos #8005.
    pub(super) is_optional_limited: bool,
}

impl Limits {
    /// Reads the tunables.
    pub(super) fn now(load: &Load, is_rotational: bool) -> Self {
        let table: [(&Tunable, &Tunable); CLASSES] = [
            (&tunables::SYNC_READ_MIN_ACTIVE, &tunables::SYNC_READ_MAX_ACTIVE),
            (&tunables::SYNC_WRITE_MIN_ACTIVE, &tunables::SYNC_WRITE_MAX_ACTIVE),
            (&tunables::ASYNC_READ_MIN_ACTIVE, &tunables::ASYNC_READ_MAX_ACTIVE),
            (&tunables::ASYNC_WRITE_MIN_ACTIVE, &tunables::ASYNC_WRITE_MAX_ACTIVE),
            (&tunables::SCRUB_MIN_ACTIVE, &tunables::SCRUB_MAX_ACTIVE),
            (&tunables::REMOVAL_MIN_ACTIVE, &tunables::REMOVAL_MAX_ACTIVE),
            (&tunables::INITIALIZING_MIN_ACTIVE, &tunables::INITIALIZING_MAX_ACTIVE),
            (&tunables::TRIM_MIN_ACTIVE, &tunables::TRIM_MAX_ACTIVE),
            (&tunables::REBUILD_MIN_ACTIVE, &tunables::REBUILD_MAX_ACTIVE),
        ];
        let min = table.map(|(min, _)| min.get());
        let mut max = table.map(|(_, max)| max.get());
        let writes = IoClass::AsyncWrite as usize;
        max[writes] = load.async_writes(min[writes], max[writes]);
        let aggregation = if is_rotational {
            &tunables::AGGREGATION_LIMIT
        } else {
            &tunables::AGGREGATION_LIMIT_NON_ROTATING
        };
        Self {
            max_active: tunables::VDEV_MAX_ACTIVE.get(),
            min,
            max,
            scans: None,
            scan_len_max: None,
            nia_credit: tunables::NONINTERACTIVE_CREDIT.get(),
            nia_delay: tunables::NONINTERACTIVE_DELAY.get(),
            aggregation: aggregation.get().min(SPAN_MAX),
            read_gap: tunables::READ_GAP_LIMIT.get(),
            write_gap: tunables::WRITE_GAP_LIMIT.get(),
            is_optional_limited: tunables::OPTIONAL_IS_LIMITED.get() == 1,
        }
    }

    /// Admits as many async writes as the device takes, however little dirty data there is: those
    /// of a resilver are not dirty data, and the leaf has few reads that they could disturb.
    pub(super) fn hurry_writes(&mut self) {
        self.max[IoClass::AsyncWrite as usize] = tunables::ASYNC_WRITE_MAX_ACTIVE.get();
    }

    /// Most bytes of an aggregate of this class.
    pub(super) fn aggregation_of(&self, class: IoClass) -> u64 {
        let scan_max = self.scan_len_max.filter(|_| class == IoClass::Scrub);
        scan_max.map_or(self.aggregation, |max| max.min(self.aggregation))
    }

    /// Admits no I/O of this class.
    pub(super) fn hold_back(&mut self, class: IoClass) {
        (self.min[class as usize], self.max[class as usize]) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn async_writes_follow_the_dirty_data() {
        let load = Load::default();
        for (dirty, has_task, want) in [
            (0, false, 2),
            (299, false, 2),
            (300, false, 2),
            (375, false, 4),
            (450, false, 6),
            (599, false, 9),
            (600, false, 10),
            (601, false, 10),
            (0, true, 10),
        ] {
            load.set_dirty(dirty, 1000);
            load.set_sync_task(has_task);
            assert_eq!(load.async_writes(2, 10), want, "{dirty} {has_task}");
        }
        assert_eq!(Load::default().async_writes(2, 10), 2);
    }

    #[test]
    fn writes_of_a_resilver_are_not_held_back() {
        let load = Load::default();
        load.set_dirty(0, 1000);
        let mut limits = Limits::now(&load, false);
        let writes = IoClass::AsyncWrite as usize;
        assert_eq!(limits.max[writes], tunables::ASYNC_WRITE_MIN_ACTIVE.get());
        limits.hurry_writes();
        assert_eq!(limits.max[writes], tunables::ASYNC_WRITE_MAX_ACTIVE.get());
    }
}
