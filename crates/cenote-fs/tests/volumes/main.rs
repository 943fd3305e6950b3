//! Volumes that are written: contents, space, logs, and the state after a crash.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

mod ahead;
mod bytes;
mod crash;
mod field;
#[path = "../../../cenote-engine/tests/zil/images.rs"]
mod images;
mod log;
mod model;
mod pools;
mod records;
mod space;
