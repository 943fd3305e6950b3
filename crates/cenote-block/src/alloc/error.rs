//! Errors of the allocator: refused allocations and claims, and broken invariants.

use cenote_ranges::RangeError;
use cenote_rt::invariant::Broken;
use cenote_rt::{Error, Kind};

use super::class::Class;

/// Why no space was allocated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AllocError {
    /// No free range is large enough, in this class and its fallback classes.
    #[error("no space for {copies} x {psize} bytes in class {class:?}")]
    NoSpace {
        /// The requested class.
        class: Class,
        /// Physical size in bytes.
        psize: u64,
        /// Number of copies.
        copies: u8,
    },
    /// The tunable `metaslab_force_ganging` makes this block gang.
    #[error("block of {psize} bytes must gang (metaslab_force_ganging)")]
    ForcedGang {
        /// Physical size in bytes.
        psize: u64,
    },
    /// An invalid request.
    #[error("cannot allocate {copies} x {psize} bytes")]
    Request {
        /// Physical size in bytes.
        psize: u64,
        /// Number of copies.
        copies: u8,
    },
    /// The vdev was added before.
    #[error("vdev {vdev} has space already")]
    Added {
        /// Top-level vdev.
        vdev: u64,
    },
}

impl From<AllocError> for Error {
    fn from(error: AllocError) -> Self {
        let kind = match error {
            AllocError::Request { .. } => Kind::Invalid,
            AllocError::Added { .. } => Kind::Exists,
            AllocError::NoSpace { .. } | AllocError::ForcedGang { .. } => Kind::NoSpace,
        };
        Self::new(kind, error)
    }
}

/// Why a block of the intent log cannot be claimed (spec 05 §5.6).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClaimError {
    /// The vdev does not exist, or the range lies beyond its end (`ENXIO`).
    #[error("claim of vdev {vdev} [{offset:#x}, +{asize:#x}): beyond the vdev")]
    Beyond {
        /// Top-level vdev.
        vdev: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        asize: u64,
    },
    /// The range is not free: it belongs to another block (`ENOENT`).
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

/// A broken invariant: a bug in this program, or space maps that contradict themselves. The pool
/// must not be written any more.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An operation that contradicts the contents of a range set.
    #[error("vdev {vdev} metaslab {metaslab}: {what}: {cause}")]
    Set {
        /// Top-level vdev.
        vdev: u64,
        /// Metaslab.
        metaslab: u64,
        /// The operation.
        what: &'static str,
        /// The contradiction.
        #[source]
        cause: RangeError,
    },
    /// A range that is not inside one metaslab, or not whole units of the vdev.
    #[error("vdev {vdev} [{offset:#x}, +{asize:#x}): not a range of one metaslab")]
    Place {
        /// Top-level vdev.
        vdev: u64,
        /// First byte.
        offset: u64,
        /// Bytes.
        asize: u64,
    },
    /// Sums that must be equal differ (spec 05 §5.7).
    #[error("vdev {vdev} metaslab {metaslab}: {what}: {found} bytes, expected {expected}")]
    Sum {
        /// Top-level vdev.
        vdev: u64,
        /// Metaslab.
        metaslab: u64,
        /// The sum.
        what: &'static str,
        /// The value found.
        found: u64,
        /// The value expected.
        expected: u64,
    },
    /// A call in the wrong order.
    #[error("{what} for txg {txg}, but txg {committed} is the last committed")]
    Order {
        /// The call.
        what: &'static str,
        /// Txg of the call.
        txg: u64,
        /// Last committed txg.
        committed: u64,
    },
    /// Another invariant.
    #[error(transparent)]
    Invariant(#[from] Broken),
}

impl From<Violation> for Error {
    fn from(violation: Violation) -> Self {
        Self::new(Kind::Invariant, violation)
    }
}
