//! Locks with a name and a place in one order.
//!
//! ```text
//!   Mutex, RwLock    held for a few instructions by a thread, never across an await
//!   AsyncMutex       held by a task, across awaits
//!   Rank             name and place in the order of all locks: one table, in `rank`
//! ```
//!
//! Two threads that take two locks in opposite orders can deadlock, but a test fails only if both
//! threads do so at the same moment. So every lock has a [`Rank`], and in a build with debug
//! assertions a thread that takes a lock out of order panics with the names of both locks, even if
//! no other thread wants them. A task that waits while it holds a [`Mutex`] or [`RwLock`] panics as
//! well. A release build has only the locks of `std` and tokio.
//!
//! A thread that panics with a lock held does not poison the lock: the next holder finds the value
//! as the panicking thread left it. The engine checks its invariants where it relies on them, and a
//! broken invariant stops the pool; a poisoned lock does not.
//!
//! Invariants
//! * L3  The rank of a lock of a task is one of tasks, that of a lock of a thread one of threads.
//!
//! Guarantees: L1 and L2 of `checked`.

#[macro_use]
mod impls;

#[cfg(debug_assertions)]
mod checked;
pub mod rank;
mod task;
#[cfg(test)]
mod tests;
#[cfg(not(debug_assertions))]
mod unchecked;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::PoisonError;

#[cfg(debug_assertions)]
use checked as held;
#[cfg(not(debug_assertions))]
use unchecked as held;

pub use held::branch;
pub(crate) use held::{check_block_on, tracked};
pub use rank::Rank;
pub use task::{AsyncMutex, AsyncMutexGuard};

const _: () = assert!(
    cfg!(debug_assertions)
        || size_of::<Mutex<u64>>() == size_of::<std::sync::Mutex<u64>>()
            && size_of::<RwLock<u64>>() == size_of::<std::sync::RwLock<u64>>()
            && size_of::<MutexGuard<'_, u64>>() == size_of::<std::sync::MutexGuard<'_, u64>>()
            && size_of::<AsyncMutex<u64>>() == size_of::<tokio::sync::Mutex<u64>>(),
    "a release build pays for ranks"
);

/// A lock that one thread holds at a time.
pub struct Mutex<T> {
    place: held::Place,
    inner: std::sync::Mutex<T>,
}

impl<T> Mutex<T> {
    /// Returns a lock with its place in the order.
    pub const fn new(rank: Rank, value: T) -> Self {
        // Checks L3.
        assert!(!rank.is_of_tasks(), "an AsyncMutex has this rank");
        Self { place: held::Place::new(rank), inner: std::sync::Mutex::new(value) }
    }

    /// Waits until no other thread holds the lock, and takes it.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.place.check();
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { inner, _held: self.place.enter() }
    }

    /// Returns the value without locking: the caller has the only reference to the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Consumes the lock and returns its value.
    pub fn into_inner(self) -> T {
        self.inner.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A [`Mutex`] that this thread holds.
#[must_use = "the lock is released when the guard is dropped"]
pub struct MutexGuard<'a, T> {
    inner: std::sync::MutexGuard<'a, T>,
    _held: held::Entered,
}

/// A lock that many threads hold for reading, or one thread for writing.
pub struct RwLock<T> {
    place: held::Place,
    inner: std::sync::RwLock<T>,
}

impl<T> RwLock<T> {
    /// Returns a lock with its place in the order.
    pub const fn new(rank: Rank, value: T) -> Self {
        // Checks L3.
        assert!(!rank.is_of_tasks(), "an AsyncMutex has this rank");
        Self { place: held::Place::new(rank), inner: std::sync::RwLock::new(value) }
    }

    /// Waits until no thread holds the lock for writing, and takes it for reading. A thread that
    /// holds the lock must not take it again: a writer that waits in between would block both.
    #[track_caller]
    pub fn read(&self) -> ReadGuard<'_, T> {
        self.place.check();
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner);
        ReadGuard { inner, _held: self.place.enter() }
    }

    /// Waits until no other thread holds the lock, and takes it for writing.
    #[track_caller]
    pub fn write(&self) -> WriteGuard<'_, T> {
        self.place.check();
        let inner = self.inner.write().unwrap_or_else(PoisonError::into_inner);
        WriteGuard { inner, _held: self.place.enter() }
    }
}

/// A [`RwLock`] that this thread holds for reading.
#[must_use = "the lock is released when the guard is dropped"]
pub struct ReadGuard<'a, T> {
    inner: std::sync::RwLockReadGuard<'a, T>,
    _held: held::Entered,
}

/// A [`RwLock`] that this thread holds for writing.
#[must_use = "the lock is released when the guard is dropped"]
pub struct WriteGuard<'a, T> {
    inner: std::sync::RwLockWriteGuard<'a, T>,
    _held: held::Entered,
}

locks! { Mutex RwLock }
guards! { MutexGuard exclusive ReadGuard shared WriteGuard exclusive }
