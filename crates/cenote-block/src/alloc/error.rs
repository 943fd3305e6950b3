//! Why space was not given, and what must never be.

use cenote_ranges::RangeError;
use cenote_rt::{Error, Kind};

use super::class::Class;

/// Why there is no space for a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// Nothing free is large enough, in this class and those it falls back to.
    #[error("no space for {copies} x {psize} bytes in class {class:?}")]
    NoSpace {
        /// The class asked for.
        class: Class,
        /// Bytes.
        psize: u64,
        /// DVAs.
        copies: u8,
    },
    /// A tunable makes some blocks gang.
    #[error("block of {psize} bytes is to gang (metaslab_force_ganging)")]
    ForcedGang {
        /// Bytes.
        psize: u64,
    },
    /// Not something that can be asked.
    #[error("cannot allocate {copies} x {psize} bytes")]
    Request {
        /// Bytes.
        psize: u64,
        /// DVAs.
        copies: u8,
    },
}

impl From<AllocError> for Error {
    fn from(error: AllocError) -> Self {
        let kind = match error {
            AllocError::Request { .. } => Kind::Invalid,
            _ => Kind::NoSpace,
        };
        Self::new(kind, error)
    }
}

/// Why a block of the intent log cannot be claimed (spec 05 §5.6).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The vdev is not there, or ends before (`ENXIO`).
    #[error("claim of vdev {vdev} [{offset:#x}, +{asize:#x}): beyond the vdev")]
    Beyond {
        /// Top-level vdev.
        vdev: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        asize: u64,
    },
    /// Not free: the block belongs to somebody else (`ENOENT`).
    #[error("claim of vdev {vdev} [{offset:#x}, +{asize:#x}): not free")]
    NotFree {
        /// Top-level vdev.
        vdev: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        asize: u64,
    },
}

impl From<ClaimError> for Error {
    fn from(error: ClaimError) -> Self {
        Self::new(Kind::NotFound, error)
    }
}

/// Something that must not be: a bug of ours, or space maps that contradict themselves. The pool
/// must not be written any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A set operation that does not fit what is there.
    #[error("vdev {vdev} metaslab {metaslab}: {what}: {cause}")]
    Set {
        /// Top-level vdev.
        vdev: u64,
        /// Metaslab.
        metaslab: u64,
        /// What was attempted.
        what: &'static str,
        /// What does not fit.
        #[source]
        cause: RangeError,
    },
    /// Not inside one metaslab, or not whole units of the vdev.
    #[error("vdev {vdev} [{offset:#x}, +{asize:#x}): not a range of one metaslab")]
    Place {
        /// Top-level vdev.
        vdev: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        asize: u64,
    },
    /// Sums that must be equal are not (spec 05 §5.7).
    #[error("vdev {vdev} metaslab {metaslab}: {what}: {found} bytes, expected {expected}")]
    Sum {
        /// Top-level vdev.
        vdev: u64,
        /// Metaslab.
        metaslab: u64,
        /// Which sum.
        what: &'static str,
        /// What it is.
        found: u64,
        /// What it must be.
        expected: u64,
    },
    /// A call out of order.
    #[error("{what} for txg {txg}, but txg {committed} is the last committed")]
    Order {
        /// The call.
        what: &'static str,
        /// Its txg.
        txg: u64,
        /// Last committed txg.
        committed: u64,
    },
}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Self {
        Self::new(Kind::Invariant, violation)
    }
}
