//! Inline waits: threads that may block instead of passing blocking work to other threads.
//!
//! Blocking work normally runs away from the tasks ([`blocking`]), with a change of thread there
//! and back, each of which can take as long as the work. A thread that no other work depends on
//! does it itself: it gets a number of *inline waits*, which the work that it runs uses up.
//!
//! Code that starts several concurrent operations disables inline waits ([`side_by_side`]).

use std::cell::Cell;
use std::future::Future;

use crate::Result;
use crate::task::{begin, blocking, spawn};

thread_local! {
    static LEFT: Cell<u32> = const { Cell::new(0) };
}

/// Restores the previous number of inline waits.
struct Before(u32);

impl Drop for Before {
    fn drop(&mut self) {
        LEFT.set(self.0);
    }
}

/// Runs `work` with this number of inline waits.
pub(crate) fn with<T>(waits: u32, work: impl FnOnce() -> T) -> T {
    let _before = Before(LEFT.replace(waits));
    work()
}

/// Returns whether this thread has an inline wait, and uses it up.
#[must_use]
pub fn take_inline_wait() -> bool {
    let left = LEFT.get();
    LEFT.set(left.saturating_sub(1));
    left > 0
}

/// Runs blocking work: on this thread, if it has an inline wait, otherwise away.
pub async fn blocking_here<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if take_inline_wait() { Ok(work()) } else { blocking(work).await }
}

/// Starts a task for which no caller waits. A thread with inline waits begins it immediately, and
/// finishes what it can without another thread.
#[track_caller]
pub fn start(work: impl Future<Output = ()> + Send + 'static) {
    if LEFT.get() == 0 {
        drop(spawn(work));
        return;
    }
    begin(work);
}

/// Waits for concurrent operations without inline waits.
pub async fn side_by_side<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| with(0, || work.as_mut().poll(context))).await
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};
    use std::thread::{ThreadId, current};

    use super::*;
    use crate::task::{block_on, oneshot};

    /// Returns the threads on which a task with two waits blocks, and whether it was finished
    /// immediately.
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
    fn thread_blocks_for_each_of_its_inline_waits() {
        let here = current().id();
        assert_eq!(threads(2), (vec![here, here], true));
        assert_eq!(threads(5), (vec![here, here], true));
        let (threads_of_none, is_at_once) = threads(0);
        assert!(!threads_of_none.contains(&here) && !is_at_once);
    }

    #[test]
    fn concurrent_operations_use_no_inline_waits() {
        let here = current().id();
        let (inside, after) = block_on(1, async {
            let mut both = std::pin::pin!(async {
                let inside = side_by_side(blocking_here(|| current().id())).await;
                (inside.expect("runs"), take_inline_wait())
            });
            // Only the first poll has inline waits: later ones run after a wake-up.
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
