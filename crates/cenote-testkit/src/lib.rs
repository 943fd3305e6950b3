//! Golden pools, damage, byte-order rewriting, models for tests.
//!
//! A test on a whole pool reads like this:
//!
//!     let Some(golden) = cenote_testkit::golden("g-basic") else { return };
//!     let devices = golden.images();                  // shared by all tests, read-only
//!     let wanted = golden.manifest("lz4@one");        // what OpenZFS's kernel module showed
//!     compare::assert_entries("lz4@one", &ours, &wanted);
//!
//! `golden` reports when the pool is not available, and counts the skipped test. A test that
//! damages a pool uses `golden.private_copy()` instead, a seeded generator from [`rng::seeded`],
//! and the tools of [`damage`].
//!
//! This crate is for tests only: it panics on every error that a test cannot continue after, with a
//! message that names the file.

pub mod bugs;
pub mod compare;
pub mod cuts;
pub mod damage;
pub mod edit;
pub mod faultfs;
pub mod foreign;
pub mod golden;
pub mod limited;
pub mod manifest;
pub mod overlay;
pub mod place;
pub mod rng;
pub mod shrink;
pub mod skip;
pub mod streams;
pub mod tables;
pub mod unpack;
pub mod wording;

pub use golden::{Golden, PrivateCopy, golden, golden_names};
pub use limited::Limited;
pub use manifest::{Entry, EntryKind, RawPath, VolumeSum};
pub use wording::wordings;
