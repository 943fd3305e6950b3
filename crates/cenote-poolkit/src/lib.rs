//! Pools for tests: builders, workloads, and judges of what was written.
//!
//! ```text
//!   builder   creates a pool of any layout on any devices
//!   pools     pools in files and in memory: open, write, check by cenote and by OpenZFS
//!   audit     recomputes the sums and sets of the dataset layer
//!   crash     random histories, cut at every flush, compared with a model
//!   records   records of intent logs, as cenote and as OpenZFS read them
//!   frozen    the golden pool `g-zil` with a log that was not claimed
//! ```
//!
//! A test on a new pool reads like this:
//!
//!     let (engine, devices) = PoolBuilder::of("raidz1", 3).create_in_memory().await;
//!     ...
//!     engine.export().await?;
//!     pools::judge_images(&pools::images_of(&devices));
//!
//! What needs no engine is in `cenote-testkit`. This crate is for integration tests only: the unit
//! tests of a crate below would link that crate twice. It panics on every error that a test cannot
//! continue after.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

pub mod audit;
pub mod builder;
pub mod crash;
pub mod frozen;
pub mod pools;
pub mod records;

pub use builder::PoolBuilder;
