//! Streams that OpenZFS sent are received into new pools. The contents are those that the kernel
//! has after receiving the same streams, and OpenZFS accepts the pools.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod broken;
mod crash;
mod fixture;
mod forms;
mod heal;
mod hostile;
mod partial;
mod raw;
mod whole;
