//! Faults of a leaf: slow and hanging I/O, error rates, and faults that are injected for tests.
//!
//! ```text
//!   queue ──> Injector ──> device          injected errors, delays and wrong bytes
//!     │
//!     └ ended, failed ──> LeafWatch ──> counters, error rates ──> the engine: DEGRADED, FAULTED
//!                             └──> LeafObserver: events, a limited number per second
//! ```
//!
//! A leaf and the queues of its devices share one [`LeafWatch`]. Labels and probes bypass the
//! injector, as in OpenZFS: a leaf with injected faults is diagnosed by its error rate, and its
//! labels stay valid.
//!
//! Concurrency: each lock is held for a few instructions, never across I/O or together with
//! another one. Observers are called without a lock.
//!
//! Sources: spec 06 §17; the manual pages zinject(8), vdevprops(7).

mod diagnosis;
mod injection;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{Error, Kind, monotonic, tunables};

use crate::leaf::{Leaf, LeafId};
use crate::queue::Load;
use crate::tree::Tree;
pub(crate) use diagnosis::Diagnosis;
pub use diagnosis::{ErrorRate, ErrorRates, Symptom};
pub use injection::{FaultEffect, FaultSpec, InjectedLeafFault, Injection};
pub(crate) use injection::{Injections, Injector};

/// Type of an I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum IoKind {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Flush of the device's write cache.
    Flush,
    /// Discard (TRIM).
    Discard,
}

/// An I/O of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeafIo {
    /// Guid of the leaf.
    pub leaf: u64,
    /// Its type.
    pub kind: IoKind,
    /// Byte on the device; 0 for a flush.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub len: u64,
}

/// Receives what happens on the leaves of a pool; a limited number of I/Os per second and leaf.
pub trait LeafObserver: Debug + Send + Sync {
    /// An I/O took longer than `zio_slow_io_ms`.
    fn slow(&self, io: &LeafIo, took: Duration);

    /// An I/O took longer than `zfs_deadman_ziotime_ms`, or is in flight for longer.
    fn hung(&self, io: &LeafIo, age: Duration);

    /// Whether this read or write failed a short time ago, too: then neither its error is counted
    /// nor is it reported.
    fn is_repeated(&self, io: &LeafIo) -> bool;

    /// A read, write or flush failed.
    fn failed(&self, io: &LeafIo, error: &Error);
}

/// Number of events in the current second.
#[derive(Debug, Default)]
struct Limiter {
    second: u64,
    count: u64,
}

impl Limiter {
    /// Whether another event is permitted now.
    fn admits(&mut self, limit: u64) -> bool {
        let second = monotonic().as_secs();
        if second != self.second {
            *self = Self { second, count: 0 };
        }
        self.count += 1;
        self.count <= limit
    }
}

/// State of a leaf that its queues share.
#[derive(Debug)]
pub(crate) struct LeafWatch {
    /// That of its leaf, which may change.
    guid: AtomicU64,
    load: Arc<Load>,
    slow_ios: AtomicU64,
    /// A scan writes to it what it lacks.
    is_filled: AtomicBool,
    /// Start of the running flush; 0 if none runs.
    flush_since_ns: AtomicU64,
    pub(crate) diagnosis: Diagnosis,
    pub(crate) injections: Arc<Injections>,
    /// Limits for events of slow, of failed and of hanging I/O.
    limiters: Mutex<[Limiter; 3]>,
}

impl LeafWatch {
    pub(crate) fn new(guid: u64, load: &Arc<Load>) -> Arc<Self> {
        Arc::new(Self {
            guid: AtomicU64::new(guid),
            load: Arc::clone(load),
            slow_ios: AtomicU64::new(0),
            is_filled: AtomicBool::new(false),
            flush_since_ns: AtomicU64::new(0),
            diagnosis: Diagnosis::new(),
            injections: Injections::new(),
            limiters: Mutex::with_default(Rank::LeafLimits),
        })
    }

    /// That of the pool.
    pub(crate) fn load(&self) -> &Arc<Load> {
        &self.load
    }

    fn guid(&self) -> u64 {
        self.guid.load(Ordering::Relaxed)
    }

    pub(crate) fn set_guid(&self, guid: u64) {
        self.guid.store(guid, Ordering::Relaxed);
    }

    /// Whether a scan writes to it what it lacks.
    pub(crate) fn is_filled(&self) -> bool {
        self.is_filled.load(Ordering::Relaxed)
    }

    pub(crate) fn set_filled(&self, is_filled: bool) {
        self.is_filled.store(is_filled, Ordering::Relaxed);
    }

    /// I/Os that took longer than `zio_slow_io_ms`.
    pub(crate) fn slow_ios(&self) -> u64 {
        self.slow_ios.load(Ordering::Relaxed)
    }

    pub(crate) fn clear(&self) {
        self.slow_ios.store(0, Ordering::Relaxed);
        self.diagnosis.reset();
    }

    /// Records the time that an I/O took.
    #[inline]
    pub(crate) fn served(&self, kind: IoKind, offset: u64, len: u64, ns: u64) {
        let io = || LeafIo { leaf: self.guid(), kind, offset, len };
        if ns >= tunables::SLOW_IO_MS.get().saturating_mul(1_000_000) {
            self.note_slow(io(), Duration::from_nanos(ns));
        }
        // The checks for I/Os that hang may all have been before this one was late.
        let is_hung = ns > tunables::DEADMAN_ZIOTIME_MS.get().saturating_mul(1_000_000);
        if is_hung && tunables::DEADMAN_ENABLED.get() == 1 {
            self.note_hung(&io(), Duration::from_nanos(ns));
        }
    }

    fn note_hung(&self, io: &LeafIo, age: Duration) {
        let Some(observer) = self.load.observer() else { return };
        let limit = tunables::DEADMAN_EVENTS_PER_SECOND.get();
        if self.limiters.lock()[2].admits(limit) {
            observer.hung(io, age);
        }
    }

    fn note_slow(&self, io: LeafIo, took: Duration) {
        self.slow_ios.fetch_add(1, Ordering::Relaxed);
        // Every slow I/O counts, also at an offset that was slow before.
        self.diagnosis.record(Symptom::SlowIo, None);
        let Some(observer) = self.load.observer() else { return };
        let limit = tunables::SLOW_IO_EVENTS_PER_SECOND.get();
        if self.limiters.lock()[0].admits(limit) {
            observer.slow(&io, took);
        }
    }

    /// Records an error of a device. Returns whether it counts: a closed pool is no error of the
    /// device, and as in OpenZFS an error that is repeated does not count.
    pub(crate) fn failed(&self, kind: IoKind, offset: u64, len: u64, error: &Error) -> bool {
        if error.kind() == Kind::Closed {
            return false;
        }
        self.diagnosis.record(Symptom::Io, (kind != IoKind::Flush).then_some(offset));
        let Some(observer) = self.load.observer() else { return true };
        let io = LeafIo { leaf: self.guid(), kind, offset, len };
        if matches!(kind, IoKind::Read | IoKind::Write) && observer.is_repeated(&io) {
            return false;
        }
        let limit = tunables::CHECKSUM_EVENTS_PER_SECOND.get();
        if self.limiters.lock()[1].admits(limit) {
            observer.failed(&io, error);
        }
        true
    }

    /// Records the start of a flush; the guard records its end.
    pub(crate) fn begin_flush(&self) -> RunningFlush<'_> {
        let since_ns = (monotonic().as_nanos() as u64).max(1);
        self.flush_since_ns.store(since_ns, Ordering::Release);
        RunningFlush { watch: self, since_ns }
    }
}

/// A flush in flight.
#[derive(Debug)]
pub(crate) struct RunningFlush<'a> {
    watch: &'a LeafWatch,
    since_ns: u64,
}

impl Drop for RunningFlush<'_> {
    fn drop(&mut self) {
        self.watch.flush_since_ns.store(0, Ordering::Release);
        let ns = (monotonic().as_nanos() as u64).saturating_sub(self.since_ns);
        self.watch.served(IoKind::Flush, 0, 0, ns);
    }
}

impl Leaf {
    /// The oldest I/O in flight on its device, and its age.
    pub fn oldest_io(&self) -> Option<(LeafIo, Duration)> {
        let leaf = self.guid();
        let queued = self.queue().and_then(|queue| queue.oldest_in_flight());
        let queued = queued
            .map(|(since_ns, kind, offset, len)| (since_ns, LeafIo { leaf, kind, offset, len }));
        let flush = match self.watch.flush_since_ns.load(Ordering::Acquire) {
            0 => None,
            since_ns => Some((since_ns, LeafIo { leaf, kind: IoKind::Flush, offset: 0, len: 0 })),
        };
        let oldest = queued.into_iter().chain(flush).min_by_key(|(since_ns, _)| *since_ns);
        let now_ns = monotonic().as_nanos() as u64;
        oldest.map(|(since, io)| (io, Duration::from_nanos(now_ns.saturating_sub(since))))
    }

    /// Reports an I/O of this leaf that hangs: `zfs_deadman_events_per_second` at most.
    pub fn report_hung(&self, io: &LeafIo, age: Duration) {
        self.watch.note_hung(io, age);
    }

    /// Sets the error rates that its state depends on.
    pub fn set_error_rates(&self, rates: ErrorRates) {
        self.watch.diagnosis.set_rates(rates);
    }

    /// The error rates that its state depends on.
    pub fn error_rates(&self) -> ErrorRates {
        self.watch.diagnosis.rates()
    }
}

/// Faults of the leaves of a tree: diagnosed ones, and injected ones.
#[derive(Debug, Clone, Copy)]
pub struct Faults<'t> {
    tree: &'t Tree,
}

impl<'t> Faults<'t> {
    /// Returns the faults of a tree.
    pub fn of(tree: &'t Tree) -> Self {
        Self { tree }
    }

    /// Reports events of leaves to `observer`. A tree keeps the first observer.
    pub fn observe(self, observer: Arc<dyn LeafObserver>) {
        self.tree.load.set_observer(observer);
    }

    /// Whether an error rate of some leaf was exceeded since
    /// [`take_diagnoses`](Self::take_diagnoses).
    pub fn has_diagnoses(self) -> bool {
        self.tree.leaves().any(|(_, leaf)| leaf.watch.diagnosis.is_due())
    }

    /// The leaves with an error rate that was exceeded since the last call. Left out are those with
    /// a sibling that has such errors as well: the cause is then what they have in common, such as
    /// a cable or a controller, and their rates are measured anew.
    ///
    /// As in OpenZFS's `zed`, which handles one event after the other, rates that were exceeded
    /// later are judged without the errors that were just forgotten. So of two siblings that fail
    /// at the same time, one goes, and the other one once it has failed again as often.
    pub fn take_diagnoses(self) -> Vec<(LeafId, Symptom)> {
        let mut due = Vec::new();
        for (id, leaf) in self.tree.leaves() {
            let exceeded = leaf.watch.diagnosis.take_due().into_iter();
            due.extend(exceeded.map(|(at, symptom)| (at, id, symptom)));
        }
        due.sort_by_key(|(at, ..)| *at);
        let mut own = Vec::new();
        for (_, id, symptom) in due {
            if self.has_suspect_sibling(id, symptom) {
                self.tree.leaf(id).watch.diagnosis.reset_one(symptom);
            } else {
                own.push((id, symptom));
            }
        }
        own
    }

    fn has_suspect_sibling(self, id: LeafId, symptom: Symptom) -> bool {
        let vdevs = &self.tree.vdevs;
        let index = self.tree.index_of(self.tree.leaf(id).guid());
        let parent = index.and_then(|index| vdevs[index].parent);
        let Some(parent) = parent else { return false };
        let siblings = self.tree.child_indices(&vdevs[parent]);
        let leaves = siblings.filter_map(|sibling| vdevs[sibling].leaf());
        leaves
            .filter(|sibling| *sibling != id)
            .any(|sibling| self.tree.leaf(sibling).watch.diagnosis.is_active(symptom))
    }

    /// Injects a fault into the leaf with this guid, and returns the fault's number; `None` if
    /// there is no such leaf.
    pub fn inject(self, guid: u64, spec: FaultSpec) -> Option<u64> {
        let leaf = self.tree.leaf(self.tree.leaf_of(guid)?);
        Some(leaf.watch.injections.add(guid, spec, None))
    }

    /// Injects a fault into ranges of leaves, by guid; returns the fault's number. Offsets are
    /// those on the device.
    pub fn inject_into(self, spec: FaultSpec, ranges: BTreeMap<u64, Vec<Range<u64>>>) -> u64 {
        let id = injection::next_number();
        for (guid, ranges) in ranges {
            if let Some(leaf) = self.tree.leaf_of(guid) {
                self.tree.leaf(leaf).watch.injections.add_as(id, guid, spec, Some(ranges));
            }
        }
        id
    }

    /// The injected faults, by number.
    pub fn injections(self) -> Vec<Injection> {
        let leaves = self.tree.leaves();
        let mut all: Vec<_> =
            leaves.flat_map(|(_, leaf)| leaf.watch.injections.list(leaf.guid())).collect();
        all.sort_by_key(|injection| injection.id);
        all
    }

    /// Removes an injected fault. Returns false if there is none with this number.
    pub fn cancel(self, id: u64) -> bool {
        // A fault of ranges may be on several leaves.
        let cancel = |(_, leaf): (_, &Leaf)| leaf.watch.injections.cancel(id);
        self.tree.leaves().map(cancel).filter(|was_there| *was_there).count() > 0
    }
}
