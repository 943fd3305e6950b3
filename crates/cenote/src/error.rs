//! Causes of errors of the library itself.

/// Why the library refuses a request, as the cause of an [`Error`](crate::Error).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The file is not open for reading.
    #[error("the file is not open for reading")]
    NotReadable,
    /// The file is not open for writing.
    #[error("the file is not open for writing")]
    NotWritable,
    /// The volume is a snapshot.
    #[error("the volume is open for reading only")]
    ReadOnlyVolume,
    /// The options of opening a file permit nothing, or creating without writing.
    #[error("the options allow nothing, or need writing")]
    Options,
    /// The path is the root, or ends with `..`.
    #[error("the path names no entry")]
    NoEntry,
    /// The devices have no pool.
    #[error("no pool is on these devices")]
    NoPool,
    /// The devices have several pools, and none is named.
    #[error("more than one pool is on these devices")]
    SeveralPools,
    /// The pool was closed.
    #[error("the pool was closed")]
    PoolClosed,
    /// The name is not one of a snapshot.
    #[error("the name of a snapshot has an '@'")]
    NotASnapshot,
    /// The name is one of a snapshot or bookmark.
    #[error("the name of a snapshot or bookmark is no dataset")]
    NotADataset,
    /// The dataset would be encrypted.
    #[error("encryption is not supported by this version of cenote")]
    Encryption,
    /// No property has this name.
    #[error("invalid property '{0}'")]
    NoProperty(String),
    /// A property that a clone has from its origin, or that is set on the clone.
    #[error("'{0}' cannot be set while cloning")]
    OfOrigin(String),
}
