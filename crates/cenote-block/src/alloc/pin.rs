//! Pins: keep the blocks of a committed state in place for a reader.
//!
//!     pin ──> valid ──> dropped: the ranges that only this pin kept back become free
//!               |
//!               `──> overtaken: the space is needed, or the deadline has passed
//!
//! A freed range is deferred for two txgs, which keeps the blocks of the previous uberblocks. A
//! reader of a committed state needs them for longer: a range that was freed after the state of a
//! valid pin does not become free (M5). Two events end a pin against the reader's will: the pool
//! needs the space, or the pin's deadline has passed while it keeps ranges back. Then the pin is
//! *overtaken*: it is marked first, under the allocator's lock, and only then may ranges that it
//! protected become free. So a reader that finds its pin valid **after** a read knows that the
//! space was not reused, and a mismatch is damage; a reader that finds it overtaken knows nothing,
//! and starts again with a new state.
//!
//! A pin refers to the txg that was committed when it was taken. Roots are published before
//! [`SpaceAllocator::sync_done`], so a root that is looked up under the pin is of that txg or a
//! later one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result, tunables};

use super::SpaceAllocator;
use super::state::State;
use crate::error::BlockError;

/// The allocator's state of a pin.
#[derive(Debug)]
pub(super) struct PinState {
    is_overtaken: AtomicBool,
    /// Last committed txg when the pin was taken.
    pub(super) txg: u64,
    /// Time of the monotonic clock from which the pin may be overtaken although space is not short.
    pub(super) deadline: Duration,
}

/// Keeps the blocks of committed states in place until it is dropped or overtaken.
pub struct Pin {
    space: Arc<SpaceAllocator>,
    number: u64,
    loan: Arc<PinState>,
    is_of_scan: bool,
    may_repair: bool,
}

impl std::fmt::Debug for Pin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pin").field(&self.loan).finish()
    }
}

impl Pin {
    /// Whether every block of the pinned state is still in place.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        !self.loan.is_overtaken.load(Ordering::Acquire)
    }

    /// Checks that the pin is still valid.
    ///
    /// # Errors
    /// `Kind::Overtaken` if blocks of the pinned state may have been reused.
    pub fn check(&self) -> Result<()> {
        // Checks M5.
        if self.is_valid() {
            return Ok(());
        }
        Err(Error::new(Kind::Overtaken, BlockError::Overtaken))
    }

    /// Overtakes all pins: a vdev is about to go, with blocks that only pinned states have.
    pub fn overtake_all(space: &SpaceAllocator) {
        // LOCK state: short.
        space.lock().overtake(|_| true);
    }

    /// Marks the pin as that of a reader of the whole pool: its reads are I/O of scans, for which
    /// no caller waits.
    #[must_use]
    pub fn of_scan(self) -> Self {
        let mut pin = self;
        pin.is_of_scan = true;
        pin
    }

    /// Whether its reads are I/O of scans.
    pub(crate) fn is_of_scan(&self) -> bool {
        self.is_of_scan
    }

    /// Lets reads repair bad copies.
    #[must_use]
    pub fn repairing(self) -> Self {
        let mut pin = self;
        pin.may_repair = true;
        pin
    }

    /// Whether reads repair bad copies.
    pub(crate) fn may_repair(&self) -> bool {
        self.may_repair
    }

    /// Time until the deadline.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.loan.deadline.saturating_sub(cenote_rt::monotonic())
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // LOCK state: short.
        self.space.lock().pins.remove(&self.number);
    }
}

impl SpaceAllocator {
    /// Pins the last committed state. To be called before the uberblock is read, so that no txg in
    /// between frees blocks of the state.
    #[must_use]
    pub fn pin(self: &Arc<Self>) -> Pin {
        self.pin_for(Duration::from_millis(tunables::PIN_DEADLINE_MS.get()))
    }

    /// Like [`pin`](Self::pin), with a deadline after `time`.
    #[must_use]
    pub fn pin_for(self: &Arc<Self>, time: Duration) -> Pin {
        let deadline = cenote_rt::monotonic().saturating_add(time);
        // LOCK state: short. A commit holds it while ranges become free.
        let mut state = self.lock();
        let is_overtaken = AtomicBool::new(false);
        let loan = Arc::new(PinState { is_overtaken, txg: state.committed, deadline });
        let number = state.next_pin;
        state.next_pin += 1;
        state.pins.insert(number, Arc::clone(&loan));
        Pin { space: Arc::clone(self), number, loan, is_of_scan: false, may_repair: false }
    }
}

impl State {
    /// Marks the pins selected by `which` as overtaken. They keep no ranges back any more.
    pub(super) fn overtake(&mut self, which: impl Fn(&PinState) -> bool) {
        self.pins.retain(|_, loan| {
            if !which(loan) {
                return true;
            }
            if !is_on(Bug::PinNotOvertaken) {
                loan.is_overtaken.store(true, Ordering::Release);
            }
            false
        });
    }

    /// Txg of the oldest pin; `u64::MAX` without pins.
    pub(super) fn oldest_pin(&self) -> u64 {
        self.pins.values().map(|loan| loan.txg).min().unwrap_or(u64::MAX)
    }
}
