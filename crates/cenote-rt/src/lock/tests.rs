use std::sync::Arc;

use super::*;
use crate::task::{block_on, oneshot, spawn, yield_now};

fn panic_of(work: impl FnOnce() + Send + 'static) -> String {
    let panic = std::thread::spawn(work).join().expect_err("panics");
    panic.downcast_ref::<String>().cloned().expect("a message")
}

#[test]
fn locks_in_order_are_taken() {
    let (set, allocator) = (Mutex::new(Rank::ObjectSet, 1), RwLock::new(Rank::Allocator, 2));
    let guard = set.lock();
    assert_eq!(*guard + *allocator.read(), 3);
    *allocator.write() = 3;
    drop(guard);
    // Locks that are not held together may be taken in any order.
    assert_eq!(*allocator.read(), 3);
    assert_eq!(*set.lock(), 1);
}

#[cfg(debug_assertions)]
#[test]
fn wrong_order_panics_with_both_names() {
    let text = panic_of(|| {
        let (set, allocator) = (Mutex::new(Rank::ObjectSet, ()), RwLock::new(Rank::Allocator, ()));
        let _allocator = allocator.write();
        let _set = set.lock();
    });
    assert!(text.contains("`object set`") && text.contains("`allocator`"), "{text}");
    // Two locks of one rank have no order between them.
    let text = panic_of(|| {
        let (one, other) = (Mutex::new(Rank::ObjectSet, ()), Mutex::new(Rank::ObjectSet, ()));
        let _held = (one.lock(), other.lock());
    });
    assert!(text.contains("`object set` is taken while the lock `object set`"), "{text}");
}

#[cfg(debug_assertions)]
#[expect(clippy::await_holding_invalid_type, reason = "the test breaks this rule")]
#[test]
fn lock_held_across_an_await_panics() {
    let text = panic_of(|| {
        let set = Mutex::new(Rank::ObjectSet, ());
        let wait = async {
            let _set = set.lock();
            yield_now().await;
        };
        block_on(1, wait).expect("a runtime");
    });
    assert_eq!(text, "the lock `object set` is held across an await");
    let text = panic_of(|| {
        let set = Mutex::new(Rank::ObjectSet, ());
        let _set = set.lock();
        block_on(1, async {}).expect("a runtime");
    });
    assert_eq!(text, "a task is waited for while the lock `object set` is held");
}

#[cfg(debug_assertions)]
#[test]
fn task_locks_are_checked_on_every_thread_of_the_task() {
    let ends = block_on(2, async {
        let batch = Arc::new(AsyncMutex::new(Rank::BlockBatch, ()));
        let flush = Arc::new(AsyncMutex::new(Rank::LeafFlush, ()));
        let in_order = {
            let (batch, flush) = (Arc::clone(&batch), Arc::clone(&flush));
            spawn(async move {
                let _batch = batch.lock().await;
                yield_now().await;
                let _flush = flush.lock().await;
            })
        };
        in_order.await.expect("no panic");
        let inverted = spawn(async move {
            let _flush = flush.lock().await;
            yield_now().await;
            let _batch = batch.lock().await;
        });
        inverted.await.expect_err("a panic").to_string()
    });
    let text = ends.expect("a runtime");
    assert!(text.contains("`batch of block writes`") && text.contains("`leaf flush`"), "{text}");
}

#[cfg(debug_assertions)]
#[test]
fn branches_of_a_task_have_locks_of_their_own() {
    let result = block_on(1, async {
        let (one, other) =
            (AsyncMutex::new(Rank::LeafFlush, ()), AsyncMutex::new(Rank::LeafFlush, ()));
        let (done, ready) = oneshot::channel();
        let mut first = std::pin::pin!(branch(async {
            let _one = one.lock().await;
            ready.await.expect("told");
        }));
        let mut second = std::pin::pin!(branch(async {
            let _other = other.lock().await;
            let _ = done.send(());
        }));
        let is_waiting = crate::until(std::time::Duration::ZERO, first.as_mut()).await.is_none();
        second.as_mut().await;
        first.await;
        is_waiting
    });
    assert!(result.expect("a runtime"));
}

#[test]
fn poison_does_not_spread() {
    let lock = Arc::new(Mutex::new(Rank::ObjectSet, 1));
    let shared = Arc::new(RwLock::new(Rank::ObjectSet, 1));
    let (its, its_shared) = (Arc::clone(&lock), Arc::clone(&shared));
    let work = move || {
        *its_shared.write() = 2;
        let _shared = its_shared.read();
        panic!("{}", "with a lock held");
    };
    assert_eq!(panic_of(work), "with a lock held");
    let work = move || {
        let mut guard = its.lock();
        *guard = 2;
        panic!("{}", "with a lock held");
    };
    assert_eq!(panic_of(work), "with a lock held");
    assert_eq!(*lock.lock(), 2);
    assert_eq!(*shared.read(), 2);
    // Locks that the panicking thread held are free again.
    *shared.write() = 3;
    assert_eq!(Arc::into_inner(lock).expect("the last").into_inner(), 2);
}
