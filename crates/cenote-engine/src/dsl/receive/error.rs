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
    /// The payload of a raw stream lacks the keys, or they are invalid.
    #[error("the stream is raw, and has no valid {0}")]
    RawWithout(&'static str),
    /// The keys are of a format that is only read.
    #[error("the stream has keys of version {0}")]
    KeyVersion(u64),
    /// The cipher suite is unknown.
    #[error("the cipher suite {0} of the stream is unknown")]
    Suite(u64),
    /// A raw stream is no increment of a dataset without encryption.
    #[error("the destination is not encrypted, and the stream is raw")]
    RawOntoPlain,
    /// A full stream does not replace an encrypted dataset, and no raw one replaces any.
    #[error("an encrypted dataset cannot be replaced, and cannot replace one")]
    ReplacesEncrypted,
    /// Encrypted datasets have no embedded blocks.
    #[error("the stream has embedded blocks, which an encrypted dataset cannot have")]
    EmbeddedOntoEncrypted,
    /// A stream that is not raw is encrypted with the key of the destination.
    #[error("the key of the destination is not loaded")]
    KeyNotLoaded,
    /// The destination has another key.
    #[error("the destination has another encryption key than the stream")]
    OtherKey,
    /// The source of a raw increment, or the stream, does not identify its IVs.
    #[error("the source of the increment has no IV set guid")]
    NoIvSet,
    /// The source of a raw increment was not received raw from the same snapshot.
    #[error("the source of the increment has another IV set guid than at the sender")]
    OtherIvSet,
    /// Raw streams of early releases do not say which objects keep their spill blocks.
    #[error(
        "the stream is raw, and was made by a release that did not send spill blocks correctly"
    )]
    NoSpillFlags,
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
            Self::UnknownFeatures(_)
            | Self::FeatureDisabled(_)
            | Self::NotSupported(_)
            | Self::KeyVersion(_)
            | Self::Suite(_) => Kind::Unsupported,
            Self::KeyNotLoaded => Kind::KeyUnavailable,
            Self::OtherKey => Kind::WrongKey,
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
            | Self::RawWithout(_)
            | Self::RawOntoPlain
            | Self::ReplacesEncrypted
            | Self::EmbeddedOntoEncrypted
            | Self::NoIvSet
            | Self::OtherIvSet
            | Self::NoSpillFlags
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
