//! A task in the background that can be asked to stop, and waited for: scans, removals,
//! expansions, trim and initialize.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{Error, Notify, Result};

/// The state that a task in the background shares with those who stop it or wait for it.
#[derive(Debug)]
pub(crate) struct Background {
    is_stopped: Arc<AtomicBool>,
    has_ended: AtomicBool,
    end: Mutex<Result<()>>,
    /// Notified when it is to stop, and when it has ended.
    changed: Notify,
}

impl Default for Background {
    fn default() -> Self {
        Self {
            is_stopped: Arc::default(),
            has_ended: AtomicBool::new(false),
            end: Mutex::new(Rank::BackgroundEnd, Ok(())),
            changed: Notify::new(),
        }
    }
}

impl Background {
    /// Asks it to stop.
    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Returns what tells parts of its work that it is to stop.
    pub(crate) fn stop_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_stopped)
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Waits, unless it is to stop.
    pub(crate) async fn rest(&self, time: Duration) {
        // Registered before the check, so that no stop after it is missed.
        let changed = self.changed.notified();
        if !self.is_stopped() {
            cenote_rt::until(time, changed).await;
        }
    }

    /// Waits for its end. The first caller gets the error that ended it.
    pub(crate) async fn wait(&self) -> Result<()> {
        loop {
            let changed = self.changed.notified();
            if self.has_ended() {
                return std::mem::replace(&mut *self.end.lock(), Ok(()));
            }
            changed.await;
        }
    }

    /// Does the work. If it panics, or its process ends, it has ended with `cut`.
    pub(crate) async fn run(&self, work: impl Future<Output = Result<()>>, cut: Error) {
        let mut ending = Ending { of: self, end: Err(cut) };
        ending.end = work.await;
    }

    /// It has ended.
    pub(crate) fn finish(&self, end: Result<()>) {
        *self.end.lock() = end;
        self.has_ended.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }
}

/// Ends a task when it is dropped.
struct Ending<'b> {
    of: &'b Background,
    end: Result<()>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.of.finish(std::mem::replace(&mut self.end, Ok(())));
    }
}
