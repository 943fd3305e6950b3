//! A stop request that any number of tasks can wait for.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use cenote_rt::Notify;

/// A stop request.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_requested: AtomicBool,
    requested: Notify,
}

impl Stop {
    pub(crate) fn request(&self) {
        self.is_requested.store(true, Ordering::Release);
        self.requested.notify_waiters();
    }

    /// Whether stopping was requested.
    pub(crate) fn is_requested(&self) -> bool {
        self.is_requested.load(Ordering::Acquire)
    }

    /// Waits for the request.
    pub(crate) async fn requested(&self) {
        self.or(std::future::pending::<()>()).await;
    }

    /// Returns the result of `work`, or `None` if stopping is requested first.
    pub(crate) async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        // Registers for wakeups before checking the state.
        let mut requested = pin!(self.requested.notified());
        requested.as_mut().enable();
        if self.is_requested() {
            return None;
        }
        first(requested, work).await
    }
}

/// Returns the result of `work`, or `None` if `end` completes first.
pub(crate) async fn first<T>(
    end: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let (mut end, mut work) = (pin!(end), pin!(work));
    std::future::poll_fn(|context| {
        if let Poll::Ready(value) = work.as_mut().poll(context) {
            return Poll::Ready(Some(value));
        }
        end.as_mut().poll(context).map(|()| None)
    })
    .await
}
