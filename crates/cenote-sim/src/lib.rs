//! Simulation of whole pools: the engine in virtual time on modelled disks, with many tasks and
//! faults by seed, and a model of what was acknowledged.
//!
//! ```text
//!   seed ──draw──> plan ──history──> life, life, ... ──> closing life ──> verdict
//!                    ^                 | create or import, compare with the model
//!                    |                 | tasks, faults of disks, readers of old states
//!                    |                 `─ export, forced close, kill, power cut
//!                    `── shrink: a smaller plan that fails as well
//! ```
//!
//! A history fails if anything that was acknowledged is lost, if a byte is wrong, if an error is
//! reported that the faults do not explain, if an invariant of the engine is broken, if an
//! operation does not end, or if the space of the pool is not what its blocks take. Faults stay
//! within what the redundancy of the layout allows, so that nothing may be lost.
//!
//! Everything is determined by the plan, and the plan by the seed: `sim SEED` repeats a history
//! exactly.
//!
//! The rooms:
//! ```text
//!   plan     what is to happen, as data
//!   disks    disks with a write cache and faults
//!   world    one life of a process
//!   model    what was done, and what may be found
//!   tasks    operations, and their effects on the model
//!   look     reads an actor's directory
//!   check    after each import, and at the end; hot_spares, allocating: what they look at
//!   history  runs a plan; shrink makes it smaller; batch runs many
//!   bugs     searches for seeded mistakes
//! ```

mod allocating;
pub mod batch;
pub mod bugs;
mod check;
mod disks;
mod encryption;
mod history;
mod hot_spares;
mod look;
mod model;
mod plan;
mod shrink;
pub mod tally;
mod tasks;
mod world;
