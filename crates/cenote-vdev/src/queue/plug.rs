//! Plugs: hold back a pool's async writes for a moment, so that they are aggregated.
//!
//! A task that writes many blocks submits them one after the other, and an idle device would start
//! the first write before there is a second one to aggregate it with. While a [`Plug`] exists,
//! queues issue no async writes; when the last one is dropped, the deferred queues continue.
//!
//! Invariants
//! * P1  Plugs are counted until they are dropped: the deferred queues continue after the last one.
//!
//! Lock order: a queue's lock, then the lock of [`Plugs`] (`Rank::Queue`, `Rank::Plugs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Load, Shared};
use cenote_rt::lock::{Mutex, MutexGuard, Rank};

/// The plugs of a pool.
#[derive(Debug)]
pub(super) struct Plugs {
    /// Number of plugs; changed with `due` locked.
    count: AtomicUsize,
    /// Deferred queues, each once.
    due: Mutex<Vec<Arc<Shared>>>,
}

impl Default for Plugs {
    fn default() -> Self {
        Self { count: AtomicUsize::new(0), due: Mutex::with_default(Rank::Plugs) }
    }
}

/// Holds back the async writes of a pool. It must be dropped without waiting for anything, least of
/// all for such a write.
#[derive(Debug)]
pub struct Plug {
    load: Arc<Load>,
}

impl Plugs {
    fn due(&self) -> MutexGuard<'_, Vec<Arc<Shared>>> {
        self.due.lock()
    }

    /// Whether a plug exists, without the lock: the answer may be outdated; [`defer`](Self::defer)
    /// checks again.
    pub(super) fn is_any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Defers a queue until no plug is left; false if there is none.
    pub(super) fn defer(&self, queue: &Arc<Shared>) -> bool {
        if !self.is_any() {
            return false;
        }
        let mut due = self.due();
        if self.is_any() {
            due.push(Arc::clone(queue));
        }
        self.is_any()
    }
}

impl Plug {
    pub(crate) fn new(load: &Arc<Load>) -> Self {
        let due = load.plugs.due();
        load.plugs.count.fetch_add(1, Ordering::Relaxed);
        drop(due);
        Self { load: Arc::clone(load) }
    }
}

impl Drop for Plug {
    fn drop(&mut self) {
        let mut due = self.load.plugs.due();
        let count = self.load.plugs.count.fetch_sub(1, Ordering::Relaxed);
        // Checks P1.
        assert!(count > 0, "a plug was dropped twice");
        let queues = if count == 1 { std::mem::take(&mut *due) } else { Vec::new() };
        drop(due);
        for queue in queues {
            Shared::pump_due(&queue);
        }
    }
}
