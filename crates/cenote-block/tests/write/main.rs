//! Blocks written to pools in memory and read back: what is stored, where, and what is refused.
//!
//! `round_trip` has every compression, checksum, size and layout; `decisions` what the write path
//! decides; `gang` split blocks; `failures` devices that fail and damage that heals; `logs` blocks
//! of the intent log; `batches` blocks that are written together.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod batches;
mod bench;
mod decisions;
mod failures;
mod gang;
mod logs;
mod round_trip;
