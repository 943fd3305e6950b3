//! The gate that every request of a mount passes, so that all requests can be suspended.
//!
//! A request is inside from before it accesses the file system until it is answered. Closing the
//! gate blocks new requests, and waits for those inside. The wait is bounded, because a request can
//! wait for a device that does not answer.
//!
//! Concurrency: entering takes two atomic operations. A request is counted before it checks whether
//! the gate is closed, and the gate is closed before the requests are counted, both sequentially
//! consistent: either the request sees the closed gate, or the closer waits for it.
//!
//! Invariants
//! * G1  A request is counted while it is inside.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use cenote_engine::OpError;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Notify, Result};

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct Gate {
    inside: AtomicUsize,
    is_closed: AtomicBool,
    /// Notified when the last request leaves a closed gate.
    emptied: Notify,
    /// Notified when the gate is opened.
    opened: Notify,
}

/// A request inside the gate; dropping it leaves.
#[derive(Debug)]
pub(super) struct Pass<'a>(&'a Gate);

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Gate {
    /// Enters as soon as the gate is open.
    pub(super) async fn enter(&self) -> Pass<'_> {
        loop {
            // Registers before checking the state, so that no notification is missed.
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
        // Checks G1: otherwise the gate could never be closed again.
        assert!(before > 0, "a request left the gate twice");
        if before == 1 && self.is_closed.load(Ordering::SeqCst) {
            self.emptied.notify_one();
        }
    }

    /// Closes the gate, and waits until no request is inside.
    ///
    /// # Errors
    /// [`OpError::Busy`] if requests are still inside after `timeout`; the gate is then open.
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
    fn closing_waits_for_requests_inside_and_blocks_others() {
        let gate = Arc::new(Gate::default());
        cenote_rt::block_on(2, async {
            let pass = gate.enter().await;
            assert_eq!(gate.close(SHORT).await.expect_err("one is inside").kind(), Kind::Busy);
            // The gate is open again.
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
