//! Checks of the lock order, for builds with debug assertions.
//!
//! ```text
//!   thread  ──> ranks of the locks it holds            (Mutex, RwLock)
//!      └──────> task it polls ──> ranks of the locks the task holds      (AsyncMutex)
//!                    └──────────> parent, for a branch of a task
//! ```
//!
//! A lock's rank must be above the rank of every lock that the thread or its task holds. A lock of
//! a thread must be released before the poll ends that took the lock: a task that waits with such a
//! lock blocks a thread of the runtime in every other task that needs the lock.
//!
//! Guarantees, which builds with debug assertions check
//! * L1  A thread or task takes locks in ascending order of their ranks.
//! * L2  No [`super::Mutex`] and no [`super::RwLock`] is held across an await.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use super::Rank;

thread_local! {
    /// Locks that this thread holds, in the order in which it took them.
    static OF_THREAD: RefCell<Vec<Rank>> = const { RefCell::new(Vec::new()) };
    /// The task that this thread polls.
    static TASK: RefCell<Option<Arc<TaskLocks>>> = const { RefCell::new(None) };
}

/// The rank of a lock, as the lock stores it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place(Rank);

impl Place {
    pub(super) const fn new(rank: Rank) -> Self {
        Self(rank)
    }

    /// Checks the order (L1) before a lock is taken that may block.
    #[track_caller]
    pub(super) fn check(self) {
        if let Some(held) = highest().filter(|held| *held >= self.0) {
            broken(&format!(
                "the lock `{}` is taken while the lock `{}` is held: see docs/design/locks.md",
                self.0.name(),
                held.name()
            ));
        }
    }

    /// Checks that this thread holds no lock, before its task waits for an [`super::AsyncMutex`].
    #[track_caller]
    pub(super) fn check_wait(self) {
        if let Some(held) = of_thread().last() {
            broken(&format!(
                "the lock `{}` is taken by an await while the lock `{}` is held",
                self.0.name(),
                held.name()
            ));
        }
    }

    /// Notes that this thread holds the lock.
    pub(super) fn enter(self) -> Entered {
        let _ = OF_THREAD.try_with(|held| held.borrow_mut().push(self.0));
        Entered(self.0)
    }

    /// Notes that the task which this thread polls holds the lock.
    pub(super) fn enter_task(self) -> EnteredTask {
        let task = current();
        if let Some(task) = &task {
            task.held().push(self.0);
        }
        EnteredTask(self.0, task)
    }
}

/// A lock that a thread holds.
#[derive(Debug)]
pub(super) struct Entered(Rank);

impl Drop for Entered {
    fn drop(&mut self) {
        let _ = OF_THREAD.try_with(|held| remove_last(&mut held.borrow_mut(), self.0));
    }
}

/// A lock that a task holds, on whichever thread the task runs.
#[derive(Debug)]
pub(super) struct EnteredTask(Rank, Option<Arc<TaskLocks>>);

impl Drop for EnteredTask {
    fn drop(&mut self) {
        if let Some(task) = &self.1 {
            remove_last(&mut task.held(), self.0);
        }
    }
}

/// The locks that a task holds across awaits.
#[derive(Debug, Default)]
struct TaskLocks {
    held: Mutex<Vec<Rank>>,
    /// The task that polls this branch.
    parent: Option<Arc<TaskLocks>>,
}

impl TaskLocks {
    fn held(&self) -> MutexGuard<'_, Vec<Rank>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn highest(&self) -> Option<Rank> {
        let here = self.held().iter().max().copied();
        here.max(self.parent.as_ref().and_then(|parent| parent.highest()))
    }
}

/// A task, or a branch of one, whose locks are checked.
#[derive(Debug)]
pub(crate) struct Tracked<F> {
    future: Pin<Box<F>>,
    locks: Arc<TaskLocks>,
}

/// Returns `future` as a task of its own.
pub(crate) fn tracked<F: Future>(future: F) -> Tracked<F> {
    Tracked { future: Box::pin(future), locks: Arc::default() }
}

/// Returns `future` as a branch of the current task, for branches that are polled concurrently.
/// Locks of tasks that one branch holds are not compared with those that another branch takes.
pub fn branch<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let locks = Arc::new(TaskLocks { parent: current(), ..TaskLocks::default() });
    Tracked { future: Box::pin(future), locks }
}

impl<F: Future> Future for Tracked<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let before = of_thread().len();
        let polled = {
            let _polling = Polling::begin(&this.locks);
            this.future.as_mut().poll(context)
        };
        if polled.is_pending()
            && let Some(held) = of_thread().get(before)
        {
            broken(&format!("the lock `{}` is held across an await", held.name()));
        }
        polled
    }
}

/// Makes a task the one that this thread polls, and the task before it again when dropped.
struct Polling(Option<Arc<TaskLocks>>);

impl Polling {
    fn begin(locks: &Arc<TaskLocks>) -> Self {
        Self(TASK.with(|task| task.replace(Some(Arc::clone(locks)))))
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        let before = self.0.take();
        let _ = TASK.try_with(|task| task.replace(before));
    }
}

/// Checks that this thread holds no lock, before the thread waits for the end of a task.
#[track_caller]
pub(crate) fn check_block_on() {
    if let Some(held) = of_thread().last() {
        broken(&format!("a task is waited for while the lock `{}` is held", held.name()));
    }
}

fn of_thread() -> Vec<Rank> {
    OF_THREAD.try_with(|held| held.borrow().clone()).unwrap_or_default()
}

fn current() -> Option<Arc<TaskLocks>> {
    TASK.try_with(|task| task.borrow().clone()).ok().flatten()
}

fn highest() -> Option<Rank> {
    let of_thread = OF_THREAD.try_with(|held| held.borrow().iter().max().copied()).ok().flatten();
    of_thread.max(current().and_then(|task| task.highest()))
}

fn remove_last(held: &mut Vec<Rank>, rank: Rank) {
    if let Some(index) = held.iter().rposition(|held| *held == rank) {
        held.remove(index);
    }
}

/// Panics, unless this thread is panicking already: destructors that a panic runs may take locks.
#[track_caller]
fn broken(what: &str) {
    assert!(std::thread::panicking(), "{what}");
}
