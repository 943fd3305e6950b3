//! Simulation: a machine whose time, tasks and randomness a seed determines.
//!
//! ```text
//!   simulate(World, future)
//!     World      seed, processors, tunables, seeded bug, order of tasks
//!     clock      virtual nanoseconds; a timer that ends moves it, and nothing else does
//!     tasks      one thread; a task is polled when it was woken, in the order of the wake-ups
//!     processes  groups of tasks with tunables of their own, which can be killed
//! ```
//!
//! The layers above are unaware of it: they get time, tasks, randomness, tunables and the number of
//! processors from the world of their thread, through the functions that they use otherwise. On
//! devices in memory, two runs with one seed write the same bytes at the same times in the same
//! order, whatever else the process does: a world shares nothing with other worlds, and each thread
//! can run one.
//!
//! The executor polls tasks that can run until none is left, then ends the earliest timer; timers
//! for one moment end in the order in which they were set. So a second of waiting takes no time,
//! and two tasks that sleep at the same time sleep concurrently. When no task can run and no timer
//! is set, the tasks wait for each other forever: the simulation ends with a report of all tasks
//! ([`Stuck`]).
//!
//! Work takes no time, unless the world has a table of costs: then each task pays for its work with
//! time of a processor ([`charge`]).
//!
//! tokio's locks and channels run unchanged on this executor; its timers, sockets and files do not.

mod costs;
mod executor;
mod process;
mod processors;
mod state;
#[cfg(test)]
mod tests;
mod timer;
mod watchdog;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use costs::{Costs, Op, charge, take_precedence};
pub(crate) use executor::{Joined, spawn, text_of};
pub use process::Process;
pub use state::Stuck;
use state::{State, with};
pub(crate) use timer::{sleep, until};

use crate::lock::tracked;
use crate::seeded::Bug;
use crate::task::{JoinHandle, spawn_background, yield_now};
use crate::tunables::Tunable;
use crate::{Error, Kind, Result};

/// Start of every simulation, seconds since 1970.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// Whether this program has begun a simulation. Programs without one pay a load and a branch.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// A simulated machine.
///
/// Tunables have their defaults unless `tunables` has other values: the values that the program has
/// set do not apply, and changes inside of the simulation end with it.
#[derive(Debug, Clone)]
pub struct World {
    /// Determines everything that is random.
    pub seed: u64,
    /// Number of processors.
    pub processors: usize,
    /// Processor times of work; `None`: work takes no time.
    pub costs: Option<Costs>,
    /// Speed of a processor, percent of the one that the costs are of.
    pub speed_percent: u32,
    /// Number of threads for blocking work.
    pub blocking_threads: usize,
    /// Seed of the order in which tasks run that can run at the same time; `None` for the order in
    /// which they were woken.
    pub interleave: Option<u64>,
    /// Tunables with other values than their defaults.
    pub tunables: Vec<(&'static Tunable, u64)>,
    /// A mistake in the engine.
    pub bug: Option<Bug>,
    /// Polls without time passing after which the simulation ends with [`Stuck::Livelock`].
    pub polls_max: u64,
    /// Processor time of one poll after which the program ends with a message that names the task,
    /// because nothing else can stop an endless loop. `None` for no limit, where devices answer at
    /// once and one poll may do the work of minutes.
    pub poll_time_max: Option<Duration>,
}

impl World {
    /// Returns a machine with four processors whose work takes no time, without limits for long
    /// polls.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            processors: 4,
            costs: None,
            speed_percent: 100,
            blocking_threads: 32,
            interleave: None,
            tunables: Vec::new(),
            bug: None,
            polls_max: 100_000_000,
            poll_time_max: None,
        }
    }
}

impl From<u64> for World {
    fn from(seed: u64) -> Self {
        Self::new(seed)
    }
}

/// Ends the simulation of this thread: its tasks are dropped.
struct Entered;

impl Drop for Entered {
    fn drop(&mut self) {
        executor::drop_tasks();
        state::leave();
    }
}

/// Runs `future` to its end in a simulation, then drops the tasks that it started. A panic of a
/// task that nobody waits for is passed on.
///
/// # Errors
/// `Kind::Limit` with [`Stuck`] if the tasks make no progress; `Kind::Invalid` inside of another
/// simulation, or if a tunable is out of range.
pub fn simulate<T>(world: impl Into<World>, future: impl Future<Output = T>) -> Result<T> {
    let world = world.into();
    for (tunable, value) in &world.tunables {
        tunable.check(*value).map_err(|error| Error::new(Kind::Invalid, error))?;
    }
    IS_USED.store(true, Ordering::Relaxed);
    if !state::enter(&world) {
        return Err(Error::new(Kind::Invalid, "a simulation inside of a simulation"));
    }
    let _entered = Entered;
    let watch = world.poll_time_max.map(|max| watchdog::watch(world.seed, max)).transpose()?;
    with(|state| state.set_pulse(watch.as_ref().map(watchdog::Watch::pulse)));
    executor::run(Box::pin(tracked(future)))
}

/// Whether this thread is in a simulation.
#[inline]
pub(crate) fn is_here() -> bool {
    with(|_| ()).is_some()
}

/// Whether this program has begun a simulation.
#[inline]
pub(crate) fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// Returns the time since the simulation began.
pub(crate) fn elapsed() -> Option<Duration> {
    with(|state| Duration::from_nanos(state.clock.now_ns))
}

/// Returns the time of day, by the clock of the process.
pub(crate) fn wall_clock() -> Option<Duration> {
    with(|state| {
        let offset = state.process().clock_offset_s;
        let now = EPOCH + Duration::from_nanos(state.clock.now_ns);
        let jump = Duration::from_secs(offset.unsigned_abs());
        if offset < 0 { now.saturating_sub(jump) } else { now + jump }
    })
}

/// Fills `bytes` from the seed. Returns false outside of a simulation.
pub(crate) fn fill(bytes: &mut [u8]) -> bool {
    with(|state| state.rng.fill(bytes)).is_some()
}

/// Returns the number of processors.
pub(crate) fn processors() -> Option<usize> {
    with(|state| state.processors)
}

/// Returns the value of the tunable with this index.
pub(crate) fn tunable(index: usize) -> Option<u64> {
    with(|state| state.process().tunables[index])
}

/// Sets the value of the tunable with this index, for this process. Returns false outside of a
/// simulation.
pub(crate) fn set_tunable(index: usize, value: u64) -> bool {
    with(|state| state.process_mut().tunables[index] = value).is_some()
}

/// Whether this process has this bug. `None` outside of a simulation.
pub(crate) fn has_bug(bug: Bug) -> Option<bool> {
    with(|state| state.process().bug == Some(bug))
}

/// Sets the bug of this process. Returns false outside of a simulation.
pub(crate) fn set_bug(bug: Option<Bug>) -> bool {
    with(|state| state.process_mut().bug = bug).is_some()
}

/// Returns the next number of a counter of this process.
pub(crate) fn count(counter: &'static str) -> Option<u64> {
    with(|state| {
        let last = state.process_mut().counters.entry(counter).or_insert(0);
        *last += 1;
        *last
    })
}

/// Whether this thread is in a simulation in which work takes time.
pub(crate) fn has_costs() -> bool {
    is_used() && with(|state| state.has_costs()) == Some(true)
}

/// Runs work of the current task, which has taken its time when this ends: what the work charges,
/// or the estimate if it charges nothing.
pub(crate) async fn cpu<T>(estimate_ns: u64, work: impl FnOnce() -> T) -> T {
    let debt = || with(|state| state.debt_of_poll()).unwrap_or(0);
    let before = debt();
    let done = work();
    if debt() == before {
        with(|state| state.charge_ns(estimate_ns));
    }
    if with(State::owes) == Some(true) {
        yield_now().await;
    }
    done
}

/// Runs blocking work on a simulated thread, also if the handle is dropped.
#[track_caller]
pub(crate) fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> JoinHandle<T> {
    let threads = with(|state| Arc::clone(&state.blocking));
    spawn_background(async move {
        let _thread = match &threads {
            Some(threads) => threads.acquire().await.ok(),
            None => None,
        };
        work()
    })
}

/// Returns the tasks of the simulation, a line each: number, process, name, and where it was
/// started. `None` outside of a simulation.
#[must_use]
pub fn task_report() -> Option<String> {
    with(|state| state.report())
}
