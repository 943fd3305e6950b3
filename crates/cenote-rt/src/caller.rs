//! Work for which no caller waits, so that its I/O may be told from that of callers.

use std::cell::Cell;
use std::future::Future;

thread_local! {
    static HAS_CALLER: Cell<bool> = const { Cell::new(true) };
}

/// Restores what was said before.
struct Before(bool);

impl Drop for Before {
    fn drop(&mut self) {
        HAS_CALLER.set(self.0);
    }
}

/// Does work for which no caller waits. Tasks that the work starts are not part of it.
pub async fn without_caller<T>(work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    std::future::poll_fn(|context| {
        let _before = Before(HAS_CALLER.replace(false));
        work.as_mut().poll(context)
    })
    .await
}

/// Returns whether a caller may wait for the work that this thread is doing.
#[must_use]
pub fn has_caller() -> bool {
    HAS_CALLER.get()
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;
    use crate::task::{block_on, spawn, yield_now};

    #[test]
    fn work_without_a_caller_is_told_after_each_wait() {
        let seen = block_on(1, async {
            let mut inside = std::pin::pin!(without_caller(async {
                let first = has_caller();
                yield_now().await;
                let second = has_caller();
                let started = spawn(async { has_caller() }).await.expect("runs");
                [first, second, started]
            }));
            let mut context = Context::from_waker(Waker::noop());
            assert!(inside.as_mut().poll(&mut context).is_pending());
            let between = has_caller();
            (inside.await, between)
        });
        assert_eq!(seen.expect("a runtime"), ([false, false, true], true));
    }
}
