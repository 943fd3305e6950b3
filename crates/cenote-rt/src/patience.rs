//! Threads that may wait themselves.
//!
//! What blocks is done away from the tasks ([`blocking`]): one change of thread to get there and
//! one to come back, each of which can take as long as the work. A thread that nobody else waits
//! for does it itself. It is given *patience* for so many waits, which what it runs spends.
//!
//! Who begins several things that are to wait side by side does so without ([`side_by_side`]).

use std::cell::Cell;
use std::future::Future;
use std::task::{Context, Waker};

use crate::lock::tracked;
use crate::task::{BoxFuture, blocking, spawn, spawn_tracked};
use crate::{Result, trace};

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(0) };
}

/// Gives the patience back that a thread had before.
struct Before(u32);

impl Drop for Before {
    fn drop(&mut self) {
        LEFT.set(self.0);
    }
}

/// Runs `work` with patience for so many waits.
pub(crate) fn with<T>(waits: u32, work: impl FnOnce() -> T) -> T {
    let _before = Before(LEFT.replace(waits));
    work()
}

/// Whether this thread may wait once. If so, that is spent.
#[must_use]
pub fn take_inline_wait() -> bool {
    let left = LEFT.get();
    LEFT.set(left.saturating_sub(1));
    left > 0
}

/// Runs something that blocks the thread: here, if this thread has the patience, or else away.
pub async fn blocking_here<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if take_inline_wait() { Ok(work()) } else { blocking(work).await }
}

/// Starts a task that nobody has to wait for. A thread that has patience begins it at once, and
/// what it gets done there needs no other.
pub fn start(work: impl Future<Output = ()> + Send + 'static) {
    if LEFT.get() == 0 {
        drop(spawn(work));
        return;
    }
    let mut work: BoxFuture<'static, ()> = trace::inherit(Box::pin(tracked(work)));
    // Nobody is woken by this poll: the task polls again before it waits.
    if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        spawn_tracked(work);
    }
}

/// Waits for what is to wait side by side: no part of it does so on this thread.
pub async fn side_by_side<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| with(0, || work.as_mut().poll(context))).await
}

#[cfg(test)]
mod tests {
    use std::thread::{ThreadId, current};

    use super::*;
    use crate::task::{block_on, oneshot};

    /// On which threads a task waits that waits twice, and whether it was done at once.
    fn threads(waits: u32) -> (Vec<ThreadId>, bool) {
        block_on(1, async {
            let (done, mut ready) = oneshot::channel();
            let begin = || {
                start(async {
                    let first = blocking_here(|| current().id()).await.expect("runs");
                    let second = blocking_here(|| current().id()).await.expect("runs");
                    let _ = done.send(vec![first, second]);
                });
            };
            with(waits, begin);
            match ready.try_recv() {
                Ok(threads) => (threads, true),
                Err(_) => (ready.await.expect("told"), false),
            }
        })
        .expect("a runtime")
    }

    #[test]
    fn a_thread_waits_as_often_as_it_has_the_patience() {
        let here = current().id();
        assert_eq!(threads(2), (vec![here, here], true));
        assert_eq!(threads(5), (vec![here, here], true));
        let (threads_of_none, is_at_once) = threads(0);
        assert!(!threads_of_none.contains(&here) && !is_at_once);
    }

    #[test]
    fn side_by_side_nothing_waits_here() {
        let here = current().id();
        let (inside, after) = block_on(1, async {
            let mut both = std::pin::pin!(async {
                let inside = side_by_side(blocking_here(|| current().id())).await;
                (inside.expect("runs"), take_inline_wait())
            });
            // Only the first poll has patience: the rest of it comes when somebody is woken.
            let begun = with(1, || {
                both.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending()
            });
            assert!(begun);
            both.await
        })
        .expect("a runtime");
        assert!(inside != here && !after);
        with(1, || assert_eq!((take_inline_wait(), take_inline_wait()), (true, false)));
        assert!(!take_inline_wait());
    }
}
