//! Why an engine refuses a request, and what stops a pool.

use cenote_dmu::TxStop;
use cenote_dmu::live::LiveError;
use cenote_rt::{Error, Kind};

/// Why a pool takes no changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// Something that must hold does not.
    #[error("invariant: {0}")]
    Invariant(String),
    /// Devices fail; the pool goes on once it is cleared.
    #[error("pool I/O is currently suspended: {0}")]
    Suspended(String),
    /// A sync failed for good; nothing is written any more.
    #[error("pool is stopped: {0}")]
    Stopped(String),
    /// A leaf that the pool cannot do without does not answer.
    #[error("leaf {0} still fails")]
    StillFailing(u64),
    /// A leaf that must stay, since what it has is nowhere else.
    #[error("no valid replicas")]
    NoReplicas(u64),
    /// Nothing of that guid is a leaf.
    #[error("no such device in pool")]
    NoSuchLeaf(u64),
    /// A device with the labels of something else.
    #[error("device does not belong to leaf {0} of this pool")]
    WrongDevice(u64),
    /// Somebody else added vdevs since those to be added got their numbers.
    #[error("vdevs were added to the pool meanwhile")]
    VdevsAdded,
    /// The pool was closed.
    #[error("pool is closed")]
    Closed,
    /// The devices carried other labels once they were locked.
    #[error("pool {0} is not on its devices any more")]
    Gone(u64),
    /// The dataset was destroyed or rolled back since it was opened.
    #[error("dataset {0} is not what was opened any more")]
    HeadGone(u64),
    /// The dataset's intent log has operations of an earlier opening.
    #[error("the intent log of dataset {0} waits for its replay")]
    Unreplayed(u64),
    /// A pool from before feature flags.
    #[error("pools of version {0} are opened for reading only")]
    OldVersion(u64),
    /// The pool was imported for reading.
    #[error("pool is read-only")]
    ReadOnly,
    /// Features in use that are read and not kept.
    #[error("the pool uses features that are read only here: {}", .0.join(", "))]
    Unmaintained(Vec<String>),
}

/// A broken invariant inside a transaction.
pub(crate) fn invariant(what: String) -> TxStop {
    TxStop::Fail(invariant_error(what))
}

/// A broken invariant.
pub(crate) fn invariant_error(what: String) -> Error {
    Error::new(Kind::Invariant, EngineError::Invariant(what))
}

pub(crate) fn is_txg_passed(error: &Error) -> bool {
    matches!(error.cause(), Some(LiveError::TxgPassed { .. }))
}

/// Whether an error says that the pool is wrong, and not the request.
pub(crate) fn is_fatal(error: &Error) -> bool {
    let kinds = [Kind::Invariant, Kind::Io, Kind::Checksum, Kind::Corrupt, Kind::Closed];
    kinds.contains(&error.kind())
}
