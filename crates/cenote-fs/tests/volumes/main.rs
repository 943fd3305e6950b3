//! Volumes that are written: their bytes, their space, their logs, and what a crash leaves.

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
mod space;
mod told;
