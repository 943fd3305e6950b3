//! Throttles of scans: how scrub and resilver leave room for ordinary I/O.
//!
//! ```text
//!   cenote_scan_throttle
//!     0 OpenZFS 2.3   limits and credits of the class, in `schedule`
//!     1 delays        before each block, for the whole pool: `delays`
//!     2 share         of each leaf, by feedback: `share`, asked by the leaf's queue
//!
//!   waits             what scan reads were held back for, for `zpool status`
//! ```
//!
//! The model, like each of its tunables, may change while a scan runs: every wait of a scan ends
//! or looks at the tunables again after [`LOOK_NS`] at the latest. While a scan is being stopped,
//! nothing holds its reads back ([`ScanThrottle::lift`]), so that stopping it takes as long as the
//! reads in flight.
//!
//! Ordinary I/O are reads and writes for which a caller waits or soon will, except those of labels:
//! not the reads and writes of a transaction group, and not the reads of a scan itself, including
//! those of the metadata that it walks through.
//!
//! Sources: spec 06 §11.4, §16; spec 09 §3.2, §4.2.

mod delays;
mod share;
#[cfg(test)]
mod tests;
mod waits;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use cenote_rt::Notify;
use cenote_rt::lock::{AsyncMutex, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::tunables::{self, Tunable};

use super::IoClass;
use delays::Gate;
pub use delays::ScanSlot;
pub(super) use share::{LeafUse, Share};
pub use waits::ScanWait;
pub(super) use waits::ScanWork;
use waits::Waits;

/// Nanoseconds after which a wait looks at the tunables again.
pub(super) const LOOK_NS: u64 = 100_000_000;

/// How scans are held back; the values of `cenote_scan_throttle`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThrottleModel {
    /// Limits and credits of the queue class, as in OpenZFS 2.3.
    OpenZfs,
    /// A delay before each block while the pool is in use, as before 2018.
    Delays,
    /// A share of each leaf's time, which feedback adapts.
    Share,
}

impl ThrottleModel {
    /// Returns the model in force.
    #[must_use]
    pub fn now() -> Self {
        match tunables::SCAN_THROTTLE.get() {
            0 => Self::OpenZfs,
            1 => Self::Delays,
            _ => Self::Share,
        }
    }
}

/// The scan that a read belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanKind {
    /// A scrub.
    Scrub,
    /// A resilver.
    Resilver,
}

impl ScanKind {
    /// Returns the tunable with which an operator makes a scan faster or slower.
    #[must_use]
    pub fn tunable(self, model: ThrottleModel) -> &'static Tunable {
        match (model, self) {
            (ThrottleModel::OpenZfs, _) => &tunables::NONINTERACTIVE_CREDIT,
            (ThrottleModel::Delays, Self::Scrub) => &tunables::SCRUB_DELAY,
            (ThrottleModel::Delays, Self::Resilver) => &tunables::RESILVER_DELAY,
            (ThrottleModel::Share, _) => &tunables::SCRUB_SLOWDOWN_PCT,
        }
    }
}

/// Whether a caller waits for I/O of this class, or soon will.
pub(super) fn is_ordinary(class: IoClass) -> bool {
    matches!(class, IoClass::SyncRead | IoClass::SyncWrite | IoClass::AsyncRead)
}

/// What the throttles of a pool's scans share.
#[derive(Debug)]
pub struct ScanThrottle {
    /// One more than the time of the last ordinary I/O; 0 if there was none.
    ordinary_ns: AtomicU64,
    /// Number of guards that lift the throttle.
    lifted: AtomicUsize,
    gate: AsyncMutex<Gate>,
    /// Blocks that passed the gate and are being read.
    in_flight: AtomicU64,
    /// Notified when such a block has been read.
    ended: Notify,
    waits: Waits,
}

impl Default for ScanThrottle {
    fn default() -> Self {
        Self {
            ordinary_ns: AtomicU64::new(0),
            lifted: AtomicUsize::new(0),
            gate: AsyncMutex::new(Rank::ScanGate, Gate::default()),
            in_flight: AtomicU64::new(0),
            ended: Notify::new(),
            waits: Waits::default(),
        }
    }
}

/// Lifts the throttle until it is dropped.
#[derive(Debug)]
pub struct Lifted<'a>(&'a ScanThrottle);

impl Drop for Lifted<'_> {
    fn drop(&mut self) {
        self.0.lifted.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ScanThrottle {
    /// Lets scan reads pass as fast as devices are until the guard is dropped, for scans that are
    /// being stopped.
    pub fn lift(&self) -> Lifted<'_> {
        self.lifted.fetch_add(1, Ordering::AcqRel);
        Lifted(self)
    }

    /// The model that holds the scan back now; `None` while the throttle is lifted.
    pub(super) fn model(&self) -> Option<ThrottleModel> {
        (self.lifted.load(Ordering::Acquire) == 0).then(ThrottleModel::now)
    }

    /// An ordinary I/O was submitted.
    pub(super) fn note_ordinary(&self, now_ns: u64) {
        if !is_on(Bug::OrdinaryIoUnnoticed) {
            self.ordinary_ns.fetch_max(now_ns.saturating_add(1), Ordering::Relaxed);
        }
    }

    /// Adds time of a leaf's queue in which it had reads of a scan.
    pub(super) fn add_work(&self, work: ScanWork, from_ns: u64, to_ns: u64) {
        self.waits.add(work, from_ns, to_ns);
    }

    /// Returns for how much of the last seconds' work a scan was held back by ordinary I/O.
    pub fn waited(&self) -> ScanWait {
        self.waits.waited(super::now_ns())
    }
}
