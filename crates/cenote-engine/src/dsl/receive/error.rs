//! Reasons to refuse a receive that other operations do not have (spec 07 B9.2).

use cenote_dmu::TxStop;
use cenote_rt::{Error, Kind};

/// Reasons to refuse a receive.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveRefusal {
    /// The stream has features that no receiver knows.
    #[error("the stream has unknown features: {0:#x}")]
    UnknownFeatures(u64),
    /// The stream needs a feature that is not enabled on the pool.
    #[error("the stream needs the pool feature {0}, which is not enabled")]
    FeatureDisabled(&'static str),
    /// The stream needs something that this program does not receive.
    #[error("{0} cannot be received here yet")]
    NotSupported(&'static str),
    /// The stream is neither one of a file system nor one of a volume.
    #[error("object set of type {0} cannot be received")]
    Kind(u64),
    /// The stream is one of a clone, and no origin is known.
    #[error("the stream is an increment from another dataset, whose snapshot is not known here")]
    NeedsOrigin,
    /// An origin is given, and the target exists.
    #[error("the destination exists, and cannot become a clone")]
    OriginForExisting,
    /// A full stream that does not say which objects are free cannot become a clone.
    #[error("the stream does not say which objects are free: it cannot become a clone")]
    NoFreeRecords,
    /// No snapshot of the target is the source of the increment.
    #[error("no snapshot of the destination is the source of the increment, guid {guid:#x}")]
    NoSource {
        /// The guid of the source.
        guid: u64,
    },
    /// The given origin is not the source of the increment.
    #[error("the origin has guid {found:#x}, not that of the source of the increment, {guid:#x}")]
    WrongOrigin {
        /// The guid of the source.
        guid: u64,
        /// The guid of the origin.
        found: u64,
    },
    /// The target has changed since its latest snapshot.
    #[error("the destination has been modified since its most recent snapshot")]
    Modified,
    /// The target exists, and a full stream would replace it.
    #[error("the destination exists")]
    TargetExists,
    /// The target of an increment does not exist.
    #[error("the destination does not exist")]
    TargetMissing,
    /// A volume stream would replace a dataset with children.
    #[error("a volume cannot replace a dataset with children")]
    VolumeWithChildren,
    /// The source has blocks of more than 128 KiB, and the stream splits them.
    #[error("the source of the increment has large blocks, and the stream does not (send with -L)")]
    LargeBlockMismatch,
    /// The stream lacks the guids of its redaction snapshots.
    #[error("the stream is redacted, and does not say with respect to which snapshots")]
    NoRedactionSnapshots,
    /// The source was received redacted, and the increment needs blocks that it does not have.
    #[error("the source of the increment is redacted, and the stream is not one for it")]
    RedactedSource,
    /// The saved state is of another stream, or there is none.
    #[error("no saved state of this stream: {0}")]
    ResumeMismatch(&'static str),
    /// Saved state of a full stream would be replaced.
    #[error("the destination has a partially received full stream")]
    ResumeExists,
    /// The dataset is not being received.
    #[error("there is no partially received state")]
    NothingSaved,
}

impl ReceiveRefusal {
    const fn kind(&self) -> Kind {
        match self {
            Self::UnknownFeatures(_) | Self::FeatureDisabled(_) | Self::NotSupported(_) => {
                Kind::Unsupported
            }
            Self::NoSource { .. } | Self::TargetMissing | Self::NothingSaved => Kind::NotFound,
            Self::Modified | Self::ResumeExists => Kind::Busy,
            Self::TargetExists => Kind::Exists,
            Self::Kind(_)
            | Self::NeedsOrigin
            | Self::OriginForExisting
            | Self::NoFreeRecords
            | Self::WrongOrigin { .. }
            | Self::VolumeWithChildren
            | Self::LargeBlockMismatch
            | Self::NoRedactionSnapshots
            | Self::RedactedSource
            | Self::ResumeMismatch(_) => Kind::Invalid,
        }
    }
}

impl From<ReceiveRefusal> for Error {
    fn from(refusal: ReceiveRefusal) -> Self {
        Self::new(refusal.kind(), refusal)
    }
}

impl From<ReceiveRefusal> for TxStop {
    fn from(refusal: ReceiveRefusal) -> Self {
        Self::Fail(refusal.into())
    }
}
