//! Volumes that are written: contents, space, logs, and the state after a crash.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

mod ahead;
mod bytes;
mod crash;
mod field;
mod log;
mod model;
mod space;
