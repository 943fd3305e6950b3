//! Blocks written to pools in memory and read back: stored form, location, refusals.
//!
//! `round_trip` covers every compression, checksum, size and layout; `decisions` the decisions of
//! the write path; `gang` gang blocks; `failures` failing devices and self-healing; `logs` intent
//! log blocks; `batches` batched writes; `costs` the processor time in a simulation.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod batches;
mod bench;
mod costs;
mod decisions;
mod failures;
mod gang;
mod logs;
mod round_trip;
