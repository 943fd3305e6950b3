//! A lock that a task holds across awaits.
//!
//! Tasks get the lock in the order in which they called [`AsyncMutex::lock`]. Its rank is below the
//! ranks of all locks of threads: a task that holds a lock of a thread never waits, so it never
//! waits for an `AsyncMutex`.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::{Rank, held};

/// A lock that one task holds at a time, across awaits.
pub struct AsyncMutex<T> {
    place: held::Place,
    inner: tokio::sync::Mutex<T>,
}

impl<T> AsyncMutex<T> {
    /// Returns a lock with its place in the order.
    pub const fn new(rank: Rank, value: T) -> Self {
        // Checks L3.
        assert!(rank.is_of_tasks(), "a Mutex has this rank");
        Self { place: held::Place::new(rank), inner: tokio::sync::Mutex::const_new(value) }
    }

    /// Waits until no other task holds the lock, and takes it.
    pub async fn lock(&self) -> AsyncMutexGuard<'_, T> {
        self.place.check_wait();
        self.place.check();
        let inner = self.inner.lock().await;
        AsyncMutexGuard { inner, _held: self.place.enter_task() }
    }

    /// Returns true if a task holds the lock at this moment.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.inner.try_lock().is_err()
    }
}

/// An [`AsyncMutex`] that this task holds.
#[must_use = "the lock is released when the guard is dropped"]
pub struct AsyncMutexGuard<'a, T> {
    inner: tokio::sync::MutexGuard<'a, T>,
    _held: held::EnteredTask,
}

locks! { AsyncMutex }
guards! { AsyncMutexGuard exclusive }
