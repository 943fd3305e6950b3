//! The gate that every request of a mount passes, so that all of them can be held up.
//!
//! A request is inside from before it looks at the file system until it is answered. Closing the
//! gate holds up those that come, and waits for those that are inside; how long is bounded, since a
//! request can wait for a device that does not answer.
//!
//! Concurrency: entering is two operations on atomics. A request is counted before it looks whether
//! the gate is closed, and the gate is closed before the requests are counted, both in one order
//! for all threads: either the request sees that it is closed, or it is waited for.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cenote_engine::OpError;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Notify, Result};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Gate {
    inside: AtomicUsize,
    is_closed: AtomicBool,
    /// Told when a request leaves a closed gate as the last.
    emptied: Notify,
    /// Told when the gate is opened.
    opened: Notify,
}

/// A request that is inside, until it is dropped.
#[derive(Debug)]
pub(super) struct Pass<'a>(&'a Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Gate {
    /// Lets a request in, as soon as the gate is open.
    pub(super) async fn enter(&self) -> Pass<'_> {
        loop {
            // Before the look: being told is not missed.
            let opened = self.opened.notified();
            self.inside.fetch_add(1, Ordering::SeqCst);
            if !self.is_closed.load(Ordering::SeqCst) || is_on(Bug::OpenGate) {
                return Pass(self);
            }
            self.leave();
            opened.await;
        }
    }

    fn leave(&self) {
        let before = self.inside.fetch_sub(1, Ordering::SeqCst);
        if before == 1 && self.is_closed.load(Ordering::SeqCst) {
            self.emptied.notify_one();
        }
    }

    /// Closes the gate, and waits until nobody is inside.
    ///
    /// # Errors
    /// [`OpError::Busy`] if somebody still is after `timeout`; the gate is open then.
    pub(super) async fn close(&self, timeout: Duration) -> Result<()> {
        self.is_closed.store(true, Ordering::SeqCst);
        let emptied = async {
            while self.inside.load(Ordering::SeqCst) > 0 {
                self.emptied.notified().await;
            }
        };
        if cenote_rt::until(timeout, emptied).await.is_none() {
            self.open();
            return Err(OpError::Busy.into());
        }
        Ok(())
    }

    /// Opens the gate.
    pub(super) fn open(&self) {
        self.is_closed.store(false, Ordering::SeqCst);
        self.opened.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cenote_rt::Kind;

    use super::*;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_mins(1);

    #[test]
    fn requests_inside_are_waited_for_and_others_wait() {
        let gate = Arc::new(Gate::default());
        cenote_rt::block_on(2, async {
            let pass = gate.enter().await;
            assert_eq!(gate.close(SHORT).await.expect_err("one is inside").kind(), Kind::Busy);
            // It is open again.
            drop(gate.enter().await);
            let closing = cenote_rt::spawn({
                let gate = Arc::clone(&gate);
                async move { gate.close(LONG).await.is_ok() }
            });
            while !gate.is_closed.load(Ordering::SeqCst) {
                cenote_rt::yield_now().await;
            }
            let late = cenote_rt::spawn({
                let gate = Arc::clone(&gate);
                async move { drop(gate.enter().await) }
            });
            drop(pass);
            assert!(closing.await.expect("runs"));
            assert!(!late.is_finished());
            gate.open();
            late.await.expect("let in");
        })
        .expect("a runtime");
    }
}
