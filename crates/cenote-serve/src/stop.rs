//! A wish to stop, which everybody can wait for.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use cenote_rt::Notify;

/// A wish to stop.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_wished: AtomicBool,
    wished: Notify,
}

impl Stop {
    pub(crate) fn wish(&self) {
        self.is_wished.store(true, Ordering::Release);
        self.wished.notify_waiters();
    }

    /// Whether it was wished.
    pub(crate) fn is_wished(&self) -> bool {
        self.is_wished.load(Ordering::Acquire)
    }

    /// Waits for the wish.
    pub(crate) async fn wished(&self) {
        self.or(std::future::pending::<()>()).await;
    }

    /// What `work` gives, or nothing if it is to stop before that.
    pub(crate) async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        // The wish to be woken is told before the look.
        let mut wished = pin!(self.wished.notified());
        wished.as_mut().enable();
        if self.is_wished() {
            return None;
        }
        first(wished, work).await
    }
}

/// What `work` gives, or nothing if `end` comes before that.
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
