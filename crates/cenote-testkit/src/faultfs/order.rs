//! The messages between a test and its fault layer: one JSON value per line, each answered by one.

use std::ops::Range;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A kind of request that a fault applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    /// Reading bytes.
    Read,
    /// Writing bytes, and giving back space (`fallocate` with `PUNCH_HOLE`).
    Write,
    /// `fsync` and `fdatasync`.
    Flush,
}

/// The error that a failing request returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FaultError {
    /// EIO: the medium is bad.
    Io,
    /// ENXIO: the device does not answer.
    NoDevice,
    /// ENOSPC: the host has no room.
    NoSpace,
}

/// A rule that makes requests of a leaf fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub(super) op: Op,
    pub(super) error: FaultError,
    pub(super) range: Range<u64>,
    pub(super) every: u64,
    pub(super) is_torn: bool,
    pub(super) lasts: Option<Duration>,
}

impl Fault {
    /// Makes every request of this kind fail with EIO.
    #[must_use]
    pub fn all(op: Op) -> Self {
        let (error, range) = (FaultError::Io, 0..u64::MAX);
        Self { op, error, range, every: 1, is_torn: false, lasts: None }
    }

    /// Fails with another error than EIO.
    #[must_use]
    pub fn with(mut self, error: FaultError) -> Self {
        self.error = error;
        self
    }

    /// Fails only requests that touch these bytes. Flushes touch every byte.
    #[must_use]
    pub fn within(mut self, range: Range<u64>) -> Self {
        self.range = range;
        self
    }

    /// Fails only every `n`-th of the requests that match, beginning with the first.
    #[must_use]
    pub fn every(mut self, n: u64) -> Self {
        self.every = n.max(1);
        self
    }

    /// A failing write leaves its first sectors on the medium: how many is chosen by the seed.
    #[must_use]
    pub fn torn(mut self) -> Self {
        self.is_torn = true;
        self
    }

    /// The fault ends by itself after this time.
    #[must_use]
    pub fn lasting(mut self, time: Duration) -> Self {
        self.lasts = Some(time);
        self
    }
}

/// A power cut of all leaves at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerCut {
    /// Chooses the unflushed writes that survive.
    pub seed: u64,
    /// The share of unflushed writes that survive, in percent.
    pub kept_percent: u64,
    /// The share of the surviving writes of which only the first sectors survive, in percent.
    pub torn_percent: u64,
}

/// The number of requests that a leaf has seen since the layer was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
    /// Flush requests.
    pub flushes: u64,
    /// Requests of any kind that a fault made fail.
    pub failed: u64,
    /// Writes that no flush has made durable yet.
    pub unflushed: u64,
}

/// A line from the test to the layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// Adds a fault.
    Inject(usize, Fault),
    /// Removes all faults, delays, limits and lies of a leaf; a leaf that is gone is back.
    Heal(usize),
    /// Every request and every opening fails with ENXIO.
    Gone(usize),
    /// The leaf has no name in the folder any more, and every request fails with ENXIO.
    Absent(usize),
    /// Writes that need new space of the host fail with ENOSPC.
    Full(usize),
    /// The leaf ends here.
    Resize(usize, u64),
    /// Every request takes this much longer.
    Delay(usize, Duration),
    /// Requests are not answered until the leaf is healed.
    Hang(usize),
    /// Flushes succeed and make nothing durable.
    LyingFlush(usize),
    /// Keeps a copy of the leaf's bytes as they are.
    Remember(usize),
    /// Puts the remembered bytes back.
    Recall(usize),
    /// Cuts the power of all leaves.
    Cut(PowerCut),
    /// Gives all leaves their power back, without faults.
    PowerOn,
    /// Asks for the counts of a leaf.
    Count(usize),
}

/// A line from the layer to the test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The layer is mounted.
    Mounted,
    /// The layer cannot be mounted, and why.
    Refused(String),
    /// The order is carried out.
    Done,
    /// The order failed, and why.
    Failed(String),
    /// The counts that were asked for.
    Counts(Counts),
}
