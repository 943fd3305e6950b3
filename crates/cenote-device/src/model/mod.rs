//! Models of devices: pure state machines that compute when each command completes.
//!
//! ```text
//!   admit(now, command)      the device takes a command
//!   next_event()             when something may complete; None: no command is in flight
//!   advance(now, done)       time passes; completions in their order
//! ```
//!
//! A model holds no data and never waits: [`ModelDisk`](crate::ModelDisk) adds contents, faults and
//! a clock. Work that no command waits for (destaging a cache, programming flash) is computed when
//! time passes, and needs no event of its own.
//!
//! Results are the same on every machine: times are whole nanoseconds, and the arithmetic uses only
//! operations that IEEE 754 defines exactly (no `ln`, no `exp` of the system).
//!
//! | module | device |
//! |---|---|
//! | `rotating` | disks with a head, tags, a track buffer and a write cache |
//! | `flash` | SSDs: lanes, a buffer, garbage collection |
//! | `lun` | an array or a virtual machine's disk, seen from outside |
//! | `table` | the devices by name, with the sources of their figures |
//!
//! Sources: spec 09 §1.4, §2.

mod flash;
mod lun;
mod rotating;
pub mod table;
#[cfg(test)]
mod tests;

use std::fmt::Debug;

pub use flash::{Flash, FlashParams, amplification};
pub use lun::{Lun, LunParams};
pub use rotating::{Rotating, RotatingParams};
pub use table::Params;

/// Kind of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// Reads a range.
    Read,
    /// Writes a range.
    Write,
    /// Makes completed writes durable; offset and length are 0.
    Flush,
    /// Discards a range (TRIM).
    Discard,
}

/// A command to a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    /// Number that its completion repeats; unique among the commands in flight.
    pub id: u64,
    /// Kind of the command.
    pub op: Op,
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The completion of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// Number of the command.
    pub id: u64,
    /// Time of the completion.
    pub at_ns: u64,
}

/// Figures that a model counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ModelStats {
    /// Commands that completed.
    pub completed: u64,
    /// Time during which the medium worked: the head of a disk, the average lane of an SSD.
    pub busy_ns: u64,
    /// Part of `busy_ns` during which a head was moved or waited for its sector.
    pub positioning_ns: u64,
    /// Bytes that the medium wrote, including copies made by garbage collection.
    pub medium_bytes: u64,
}

/// A device's timing. Times never decrease from call to call.
pub trait DiskModel: Debug + Send {
    /// Takes a command. The caller has advanced the model to `now_ns`.
    fn admit(&mut self, now_ns: u64, command: Command);

    /// Returns a time at or before the next completion, and after the last call of
    /// [`advance`](Self::advance); `None` without commands in flight.
    fn next_event(&self) -> Option<u64>;

    /// Lets time pass until `now_ns`, and appends the completions to `done` in their order.
    fn advance(&mut self, now_ns: u64, done: &mut Vec<Completion>);

    /// Returns the figures so far.
    fn stats(&self) -> ModelStats;

    /// Forgets all commands and the contents of caches, as when power is lost.
    fn reset(&mut self);

    /// Whether the medium rotates.
    fn is_rotational(&self) -> bool {
        false
    }

    /// Whether the device takes discards.
    fn takes_discard(&self) -> bool {
        true
    }
}

/// Nanoseconds that `bytes` take at `rate` bytes per nanosecond, or any sum of such times, as a
/// whole number.
fn whole_ns(ns: f64) -> u64 {
    (ns + 0.5) as u64
}

/// Bytes per nanosecond of a rate in megabytes (10^6 bytes) per second.
fn rate_of_mb(mb: f64) -> f64 {
    mb / 1e3
}
