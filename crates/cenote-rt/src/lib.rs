//! Clock, tasks, CPU pool, locks, spans, seeded randomness, host names, buffers, errors and
//! tunables.
//!
//! This is the floor that every layer stands on, and the only crate that knows which runtime
//! drives the tasks and whose time it is. The layers above take time, tasks and randomness from
//! here, so that the same engine can run on a virtual clock (`docs/architecture.md`).

mod alarm;
pub mod buf;
mod caller;
mod counter;
pub mod error;
mod inline_wait;
pub mod invariant;
mod join;
pub mod lock;
pub mod net;
pub mod random;
mod recycle;
pub mod seeded;
mod simulation;
pub mod stages;
pub mod task;
pub mod trace;
pub mod tunables;
mod uts;

pub use alarm::Alarm;
pub use buf::{Buf, BufMut};
pub use caller::{has_caller, without_caller};
pub use counter::Counter;
pub use error::{At, Error, Kind, Result};
pub use inline_wait::{blocking_here, side_by_side, start, take_inline_wait};
pub use random::{Rng, secret_bytes};
pub use simulation::{
    Costs, Op, Process, Stuck, World, charge, simulate, take_precedence, task_report,
};
pub use task::{
    BoxFuture, JoinError, JoinHandle, Notify, OwnRuntime, OwnedSemaphorePermit, Runtime, Semaphore,
    SemaphorePermit, begin_blocking, block_on, blocking, cpu, monotonic, oneshot, poll_first,
    processors, sleep, spawn, spawn_background, until, wall_clock, yield_now,
};
pub use uts::Uts;

/// A hash map with a fixed hasher, so that its order is the same in every run.
pub type FixedMap<K, V> = rustc_hash::FxHashMap<K, V>;
/// A hash set with a fixed hasher, so that its order is the same in every run.
pub type FixedSet<K> = rustc_hash::FxHashSet<K>;
