//! Locks on ranges of bytes, so that a request of several transactions appears atomic to others.
//!
//! Shared locks are compatible with each other, exclusive locks with none. Overlapping requests are
//! served in the order of arrival: readers do not starve a writer.
//!
//! Invariants
//! * R1  A request is in the table from its arrival until its guard is dropped.
//! * R2  Requests that wait are counted.
//! * R3  A write changes only bytes within the range that it has locked.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_rt::Notify;
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::seeded::{Bug, is_on};

/// The locks of a file or volume.
#[derive(Debug)]
pub struct RangeLocks {
    // LOCK: held for a lookup, never across I/O.
    held: Mutex<Held>,
    freed: Notify,
}

impl Default for RangeLocks {
    fn default() -> Self {
        Self { held: Mutex::with_default(Rank::RangeLocks), freed: Notify::new() }
    }
}

#[derive(Debug, Default)]
struct Held {
    /// Locks that are held or waited for, in the order of arrival.
    locks: BTreeMap<u64, Lock>,
    last: u64,
    /// Number of waiting tasks.
    waiting: u64,
}

#[derive(Debug)]
struct Lock {
    range: Range<u64>,
    is_shared: bool,
}

/// A lock, or a position in the queue for one, until it is dropped.
#[derive(Debug)]
pub struct RangeGuard<'a> {
    locks: &'a RangeLocks,
    number: u64,
    range: Range<u64>,
}

impl RangeGuard<'_> {
    /// Whether the lock covers `len` bytes from `offset` on.
    pub(crate) fn covers(&self, offset: u64, len: u64) -> bool {
        self.range.start <= offset && offset.saturating_add(len) <= self.range.end
    }
}

impl RangeLocks {
    /// Waits until `range` has no exclusive lock.
    pub async fn shared(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.lock(range, true).await
    }

    /// Waits until `range` has no other lock.
    pub async fn exclusive(&self, range: Range<u64>) -> RangeGuard<'_> {
        self.lock(range, false).await
    }

    async fn lock(&self, range: Range<u64>, is_shared: bool) -> RangeGuard<'_> {
        let number = {
            let mut held = self.held();
            held.last += 1;
            let number = held.last;
            held.locks.insert(number, Lock { range: range.clone(), is_shared });
            if held.is_first(number) {
                return RangeGuard { locks: self, number, range };
            }
            held.waiting += 1;
            number
        };
        // If this future is dropped while waiting, the guard leaves the queue.
        let guard = RangeGuard { locks: self, number, range };
        let _waiting = Waiting(self);
        loop {
            // Registers for wakeups before checking the state.
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if self.held().is_first(number) {
                return guard;
            }
            freed.await;
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock()
    }
}

impl Held {
    /// Whether no earlier lock conflicts.
    fn is_first(&self, number: u64) -> bool {
        // Checks R1.
        let lock = self.locks.get(&number).expect("a request that has not ended");
        self.locks.range(..number).all(|(_, before)| {
            let is_apart =
                before.range.end <= lock.range.start || lock.range.end <= before.range.start;
            is_apart || before.is_shared && lock.is_shared
        })
    }
}

/// Counts a waiting task.
struct Waiting<'a>(&'a RangeLocks);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut held = self.0.held();
        // Checks R2: otherwise a request would not be woken.
        assert!(held.waiting > 0, "no request waits for a range");
        held.waiting -= 1;
    }
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        let mut held = self.locks.held();
        let lock = held.locks.remove(&self.number);
        // Checks R1.
        assert!(lock.is_some(), "the lock of a range was released twice");
        let forgotten = u64::from(is_on(Bug::LastWaiterForgotten));
        if held.waiting > forgotten {
            drop(held);
            self.locks.freed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};

    use cenote_rt::{Rng, block_on};

    use super::*;

    #[test]
    fn exclusive_locks_exclude_all_others() {
        block_on(2, async {
            let locks = Arc::new(RangeLocks::default());
            // Per byte: number of readers, or -1000 for a writer.
            let bytes: Arc<Vec<AtomicI64>> = Arc::new((0..32).map(|_| AtomicI64::new(0)).collect());
            let tasks: Vec<_> = (0..8_u64)
                .map(|task| {
                    let (locks, bytes) = (Arc::clone(&locks), Arc::clone(&bytes));
                    cenote_rt::spawn(async move {
                        let mut rng = Rng::seeded(task);
                        for _ in 0..200 {
                            let start = rng.below(32);
                            let end = start + 1 + rng.below(32 - start);
                            let is_shared = rng.below(2) == 0;
                            let guard = if is_shared {
                                locks.shared(start..end).await
                            } else {
                                locks.exclusive(start..end).await
                            };
                            let weight = if is_shared { 1 } else { -1000 };
                            for at in start..end {
                                let before = bytes[at as usize].fetch_add(weight, Ordering::SeqCst);
                                assert!(before >= 0 && (is_shared || before == 0));
                            }
                            cenote_rt::sleep(std::time::Duration::from_micros(rng.below(20))).await;
                            for at in start..end {
                                bytes[at as usize].fetch_sub(weight, Ordering::SeqCst);
                            }
                            drop(guard);
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await.unwrap();
            }
            assert!(locks.held().locks.is_empty());
        })
        .unwrap();
    }

    #[test]
    fn dropped_waiters_leave_the_queue() {
        block_on(1, async {
            let locks = RangeLocks::default();
            let first = locks.exclusive(0..10).await;
            let soon = std::time::Duration::from_millis(1);
            assert!(cenote_rt::until(soon, locks.shared(5..6)).await.is_none());
            drop(first);
            let _second = locks.exclusive(0..10).await;
        })
        .unwrap();
    }
}
