//! Tasks and time: spawn, blocking work, CPU work, clocks. On tokio, or on the executor of the
//! simulation that the thread is in ([`crate::simulate`]).
//!
//! Dropping a [`JoinHandle`] detaches the task and never aborts it: device I/O must end before its
//! buffers are freed.

#![expect(clippy::disallowed_methods, reason = "this is the module behind the facade")]

use std::any::type_name;
use std::future::Future;
use std::panic::Location;
use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use rustix::process::getpid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
pub use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, SemaphorePermit, oneshot};

pub use crate::join::{JoinError, JoinHandle};
use crate::lock::{check_block_on, tracked};
use crate::{Error, Kind, Result, inline_wait, recycle, simulation, trace};

/// A boxed future, the return type of the engine's object-safe traits.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// CPU work above this estimate leaves the task's thread, so that it does not delay I/O.
const INLINE_CPU_NS: u64 = 300_000;

/// Runs `future` to its end on a runtime of `threads` worker threads (0: one per processor), or on
/// the runtime that was lent to this thread ([`Runtime::lend`]).
pub fn block_on<T>(threads: usize, future: impl Future<Output = T>) -> Result<T> {
    check_block_on();
    if simulation::is_here() {
        return Err(Error::new(Kind::Invalid, "a blocking call inside of a simulation"));
    }
    let future = tracked(future);
    if let Ok(lent) = tokio::runtime::Handle::try_current() {
        return Ok(lent.block_on(boxed(future)));
    }
    Ok(build(threads)?.block_on(boxed(future)))
}

/// Hides the type of a future that is polled from its start to its end: tokio's executor is
/// compiled once for each type, and there are hundreds.
fn boxed<'a, T>(future: impl Future<Output = T> + 'a) -> Pin<Box<dyn Future<Output = T> + 'a>> {
    Box::pin(future)
}

/// A thread that is started by one with a processor of its own is not bound to that: it may run
/// where the main thread may.
fn unbind() {
    let (own, of_main) = (sched_getaffinity(None), sched_getaffinity(Some(getpid())));
    if let (Ok(own), Ok(of_main)) = (own, of_main)
        && own != of_main
    {
        // Otherwise it works more slowly.
        let _ = sched_setaffinity(None, &of_main);
    }
}

fn build(threads: usize) -> Result<tokio::runtime::Runtime> {
    let threads = match threads {
        0 => processors(),
        n => n,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .max_blocking_threads(32)
        .on_thread_start(unbind)
        .enable_all()
        .build()
        .map_err(|error| Error::new(Kind::Io, error))?;
    runtime.spawn(recycle::tend());
    Ok(runtime)
}

/// A runtime that belongs to an object instead of a call, for callers without `async`. When it is
/// dropped its threads end in the background.
#[derive(Debug)]
pub struct OwnRuntime(Option<tokio::runtime::Runtime>);

impl OwnRuntime {
    /// Starts a runtime of `threads` worker threads (0: one per processor).
    ///
    /// # Errors
    /// `Kind::Io` if no threads can be started.
    pub fn new(threads: usize) -> Result<Self> {
        Ok(Self(Some(build(threads)?)))
    }

    /// Runs `future` to its end, and blocks this thread meanwhile.
    ///
    /// # Errors
    /// `Kind::Invalid` on a thread that runs asynchronous code, which must not be blocked.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        match &self.0 {
            Some(runtime) if !is_asynchronous() => {
                check_block_on();
                Ok(runtime.block_on(boxed(tracked(future))))
            }
            _ => Err(Error::new(Kind::Invalid, "a blocking call inside of asynchronous code")),
        }
    }

    /// Runs `future` to its end, and blocks this thread meanwhile, even one with asynchronous code:
    /// for destructors.
    pub fn finish(&self, future: impl Future<Output = ()> + Send + 'static) {
        let Some(runtime) = &self.0 else { return };
        let future = tracked(future);
        if !is_asynchronous() {
            return runtime.block_on(future);
        }
        // A thread that runs asynchronous code cannot block on a future, but on a thread.
        let handle = runtime.handle().clone();
        let ended = std::thread::Builder::new().spawn(move || handle.block_on(future));
        drop(ended.map(std::thread::JoinHandle::join));
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Whether this thread runs asynchronous code.
fn is_asynchronous() -> bool {
    simulation::is_here() || tokio::runtime::Handle::try_current().is_ok()
}

/// A handle of a runtime, for threads outside of it; in a simulation, of the simulation.
#[derive(Debug, Clone)]
pub struct Runtime(Option<tokio::runtime::Handle>);

impl Runtime {
    /// Returns the runtime of this task.
    #[must_use]
    pub fn here() -> Self {
        Self((!simulation::is_here()).then(tokio::runtime::Handle::current))
    }

    /// Runs blocking `work` on this thread, which starts its tasks on this runtime.
    pub fn lend<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = self.0.as_ref().map(tokio::runtime::Handle::enter);
        work()
    }

    /// Begins work on this thread, and makes it a task only if it has to wait. Work that does not
    /// wait is done when this returns, without waking a thread.
    #[track_caller]
    pub fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _entered = self.0.as_ref().map(tokio::runtime::Handle::enter);
        begin(work);
    }

    /// Starts work as a task, for which no caller waits.
    #[track_caller]
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.lend(|| drop(spawn(work)));
    }

    /// Like [`begin`](Self::begin), and this thread also does this number of blocking system calls
    /// of the work. Only for threads that others can replace meanwhile.
    pub fn begin_with_inline_waits(
        &self,
        waits: u32,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        inline_wait::with(waits, || self.begin(work));
    }
}

/// Polls work once, and makes it a task if it has to wait.
#[track_caller]
pub(crate) fn begin<F: Future<Output = ()> + Send + 'static>(work: F) {
    let mut work: BoxFuture<'static, ()> = trace::inherit(Box::pin(tracked(work)));
    // This poll wakes no task: the task polls again before it waits.
    if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        drop(spawn_boxed(work, type_name::<F>(), Location::caller()));
    }
}

/// Starts a task. Its events belong to the current span ([`crate::trace`]), which ends after the
/// task.
#[track_caller]
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    // One form of the runtime's task for all futures with this output: see [`boxed`].
    let boxed: BoxFuture<'static, F::Output> = Box::pin(tracked(future));
    spawn_boxed(trace::inherit(boxed), type_name::<F>(), Location::caller())
}

/// Starts a task that runs on after the work that starts it, for example until the pool is closed.
/// It belongs to no span.
#[track_caller]
pub fn spawn_background<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    spawn_boxed(Box::pin(tracked(future)), type_name::<F>(), Location::caller())
}

/// Starts a task with the name of its future and the place in the code that starts it.
fn spawn_boxed<T: Send + 'static>(
    future: BoxFuture<'static, T>,
    name: &'static str,
    place: &'static Location<'static>,
) -> JoinHandle<T> {
    if simulation::is_here() {
        return JoinHandle::simulated(simulation::spawn(future, name, place));
    }
    JoinHandle::of_tokio(tokio::spawn(future))
}

/// Runs blocking work, away from the tasks.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    if simulation::is_here() {
        return simulation::blocking(work).await.map_err(|error| Error::new(Kind::Io, error));
    }
    tokio::task::spawn_blocking(work).await.map_err(|error| Error::new(Kind::Io, error))
}

/// Starts blocking work, away from the tasks, and does not wait for it. If no thread is left, the
/// work is dropped.
pub fn begin_blocking(work: impl FnOnce() + Send + 'static) {
    if simulation::is_here() {
        return drop(simulation::blocking(work));
    }
    drop(tokio::task::spawn_blocking(work));
}

/// Runs CPU work of about `estimate_ns`: inline if short, on the blocking pool if long. In a
/// simulation in which work takes time, on a processor of it.
pub async fn cpu<T: Send + 'static>(
    estimate_ns: u64,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    if simulation::has_costs() {
        return Ok(simulation::cpu(estimate_ns, work).await);
    }
    if estimate_ns <= INLINE_CPU_NS { Ok(work()) } else { blocking(work).await }
}

/// Waits.
pub async fn sleep(duration: Duration) {
    if simulation::is_here() {
        return simulation::sleep(duration).await;
    }
    tokio::time::sleep(duration).await;
}

/// Lets other tasks run, on any executor.
pub async fn yield_now() {
    let mut has_yielded = false;
    std::future::poll_fn(move |context| {
        if std::mem::replace(&mut has_yielded, true) {
            return std::task::Poll::Ready(());
        }
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Waits for `future`, at most for `timeout`; returns `None` after that.
pub async fn until<T>(timeout: Duration, future: impl Future<Output = T>) -> Option<T> {
    let future = std::pin::pin!(future);
    if simulation::is_here() {
        return simulation::until(timeout, future).await;
    }
    tokio::time::timeout(timeout, future).await.ok()
}

/// Waits for `future`, and calls `then` after its first poll, without running other tasks before:
/// everything that the future begins in that poll, it begins together.
pub async fn poll_first<T>(future: impl Future<Output = T>, then: impl FnOnce()) -> T {
    let (mut future, mut then) = (std::pin::pin!(future), Some(then));
    tokio::task::unconstrained(std::future::poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if let Some(then) = then.take() {
            then();
        }
        polled
    }))
    .await
}

/// Returns the time since some fixed moment, which never decreases.
#[must_use]
pub fn monotonic() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    if let Some(elapsed) = simulation::elapsed() {
        return elapsed;
    }
    START.get_or_init(std::time::Instant::now).elapsed()
}

/// Returns the number of processors.
#[must_use]
pub fn processors() -> usize {
    let simulated = simulation::processors();
    simulated.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Returns the time since 1970-01-01 UTC.
#[must_use]
pub fn wall_clock() -> Duration {
    if let Some(now) = simulation::wall_clock() {
        return now;
    }
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rustix::thread::CpuSet;

    use super::*;

    #[test]
    fn threads_started_by_a_bound_thread_are_not_bound() {
        let here = || sched_getaffinity(None).expect("known").count();
        let all = here();
        block_on(1, async move {
            let runtime = Runtime::here();
            let (told, count) = oneshot::channel();
            std::thread::spawn(move || {
                let processors = sched_getaffinity(None).expect("known");
                let first = (0..CpuSet::MAX_CPU).find(|number| processors.is_set(*number));
                let mut one = CpuSet::new();
                one.set(first.expect("one"));
                sched_setaffinity(None, &one).expect("bound");
                runtime.lend(|| begin_blocking(move || told.send(here()).expect("awaited")));
                here()
            })
            .join()
            .map(|bound| assert_eq!(bound, 1))
            .expect("runs");
            assert_eq!(count.await.expect("told"), all);
        })
        .expect("a runtime");
    }

    #[test]
    fn work_without_waits_is_done_immediately() {
        block_on(1, async {
            let runtime = Runtime::here();
            let (count, wait) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
            let (done, ready) = oneshot::channel();
            let (counted, waited) = (Arc::clone(&count), Arc::clone(&wait));
            std::thread::spawn(move || {
                let at_once = Arc::clone(&counted);
                runtime.begin(async move {
                    at_once.fetch_add(1, Ordering::Relaxed);
                });
                assert_eq!(counted.load(Ordering::Relaxed), 1);
                runtime.begin(async move {
                    waited.notified().await;
                    sleep(Duration::from_millis(1)).await;
                    counted.fetch_add(1, Ordering::Relaxed);
                    let _ = done.send(());
                });
            })
            .join()
            .expect("runs");
            assert_eq!(count.load(Ordering::Relaxed), 1);
            wait.notify_one();
            ready.await.expect("told");
            assert_eq!(count.load(Ordering::Relaxed), 2);
        })
        .expect("a runtime");
    }
}
