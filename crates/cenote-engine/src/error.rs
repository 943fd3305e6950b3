//! Errors of the engine, and reasons that stop a pool.

use cenote_dmu::TxStop;
use cenote_dmu::live::LiveError;
use cenote_rt::{Error, Kind};

/// Reasons to refuse a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    /// An invariant is broken.
    #[error("invariant: {0}")]
    Invariant(String),
    /// Devices fail; the pool continues after `zpool clear`.
    #[error("pool I/O is currently suspended: {0}")]
    Suspended(String),
    /// A sync failed permanently; nothing is written any more.
    #[error("pool is stopped: {0}")]
    Stopped(String),
    /// A required leaf does not answer.
    #[error("leaf {0} still fails")]
    StillFailing(u64),
    /// The leaf has the only copy of some data.
    #[error("no valid replicas")]
    NoReplicas(u64),
    /// There is no leaf with this guid.
    #[error("no such device in pool")]
    NoSuchLeaf(u64),
    /// The vdev has no object for properties.
    #[error("vdev has no object for properties: the pool needs feature vdev_zaps_v2")]
    NoVdevZap(u64),
    /// No blocks are allocated on the vdev by itself: it is no top-level vdev for data.
    #[error("operation not supported on this type of vdev")]
    NoAllocations(u64),
    /// Blocks could be allocated on no other vdev.
    #[error("invalid argument for this pool operation")]
    LastAllocating(u64),
    /// The device has the labels of another one.
    #[error("device does not belong to leaf {0} of this pool")]
    WrongDevice(u64),
    /// The path of the leaf's open device leads to another device, or to none.
    #[error("device '{path}' of leaf {leaf} cannot be opened: it was removed or replaced")]
    NotAtPath {
        /// The guid of the leaf.
        leaf: u64,
        /// The path in the config.
        path: String,
    },
    /// Another request added vdevs concurrently; the planned vdev ids are taken.
    #[error("vdevs were added to the pool meanwhile")]
    VdevsAdded,
    /// The pool is closed.
    #[error("pool is closed")]
    Closed,
    /// The devices had other labels after they were locked.
    #[error("pool {0} is not on its devices any more")]
    Gone(u64),
    /// The dataset was destroyed or rolled back since it was opened.
    #[error("dataset {0} is not what was opened any more")]
    HeadGone(u64),
    /// The dataset's intent log has operations to be replayed.
    #[error("the intent log of dataset {0} waits for its replay")]
    Unreplayed(u64),
    /// The pool has no feature flags.
    #[error("pools of version {0} are opened for reading only")]
    OldVersion(u64),
    /// The pool is open for reading only.
    #[error("pool is read-only")]
    ReadOnly,
    /// Active features that this engine does not maintain.
    #[error("the pool uses features that are read only here: {}", .0.join(", "))]
    Unmaintained(Vec<String>),
    /// The space maps of a vdev are damaged, or its other figures.
    #[error("space of vdev {vdev}: {damage}")]
    SpaceMaps {
        /// Id of the top-level vdev.
        vdev: u64,
        /// The damage.
        damage: String,
    },
    /// An object asks for a compression or checksum that is unknown here.
    #[error("an object asks for a compression or checksum unknown here")]
    UnknownPolicy,
    /// The pool was to be closed, and stays open.
    #[error("the pool is not closed")]
    NotClosed,
}

/// Why an intent log cannot be written, claimed or replayed. After a failed write the caller waits
/// for a sync instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ZilError {
    /// The task that wrote the queued records was cancelled.
    #[error("the task that wrote the intent log was cancelled")]
    WriterGone,
    /// A leaf left service while blocks were written, and was not flushed.
    #[error("a device left service while the intent log was written")]
    LeafLeft,
    /// The chain accepts no more blocks.
    #[error("the intent log accepts no more blocks")]
    ChainGone,
    /// A block is from a txg that cannot have been reached.
    #[error("intent log block of txg {birth}, far after {first_txg}")]
    Birth {
        /// The txg of the block.
        birth: u64,
        /// The first txg after the import.
        first_txg: u64,
    },
    /// A claimed block cannot be read.
    #[error("block {seq} of the intent log cannot be read")]
    Unreadable {
        /// Sequence number of the block.
        seq: u64,
    },
    /// A record writes a hole larger than a block.
    #[error("intent log record with a hole of {len} bytes")]
    Hole {
        /// Length in bytes.
        len: u64,
    },
    /// A record clones blocks. Each would need a reference in the block reference table, which is
    /// not written here.
    #[error("a log has clones of blocks")]
    ClonedBlocks,
    /// A record that its replayer does not know.
    #[error("a log of {of} has records of type {kind}")]
    RecordKind {
        /// The kind of object set.
        of: &'static str,
        /// The stored type.
        kind: u64,
    },
}

/// Returns the error of a broken invariant inside a transaction.
pub(crate) fn invariant(what: String) -> TxStop {
    TxStop::Fail(invariant_error(what))
}

/// Returns the error of a broken invariant.
pub(crate) fn invariant_error(what: String) -> Error {
    Error::new(Kind::Invariant, EngineError::Invariant(what))
}

pub(crate) fn is_txg_passed(error: &Error) -> bool {
    matches!(error.cause(), Some(LiveError::TxgPassed { .. }))
}

/// Whether an error is one of the pool, and not of the request.
pub(crate) fn is_fatal(error: &Error) -> bool {
    let kinds = [Kind::Invariant, Kind::Io, Kind::Checksum, Kind::Corrupt, Kind::Closed];
    kinds.contains(&error.kind())
}
