//! Reasons why a pool cannot be opened (spec 01 §16.2).

use crate::features::UnknownFeature;

/// Reasons why a pool cannot be opened. An import listing derives the pool's state from them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No device has a valid uberblock within the limit.
    #[error("no device has a valid uberblock of txg {max_txg} or before")]
    NoUberblock {
        /// The largest permitted txg.
        max_txg: u64,
    },
    /// A RAID-Z expansion progressed between the uberblock and the newest one.
    #[error("a RAID-Z expansion went on after txg {txg}: it cannot be rewound")]
    ReflowProgress {
        /// The uberblock's txg.
        txg: u64,
    },
    /// The version is not supported.
    #[error("pool version {version} is not supported")]
    Version {
        /// The pool's version.
        version: u64,
    },
    /// Unsupported features that reading needs.
    #[error("pool uses unsupported features: {}", names(.0))]
    UnsupportedFeatures(Vec<UnknownFeature>),
    /// Unsupported features that only writing needs.
    #[error("pool uses features that are supported read-only: {}", names(.0))]
    ReadOnlyFeatures(Vec<UnknownFeature>),
    /// Too few devices of these top-level vdevs are available.
    #[error("{} top-level vdevs are missing", .0.len())]
    MissingVdevs(Vec<u64>),
    /// A log vdev cannot be read.
    #[error("log device {0} cannot be read")]
    MissingLog(u64),
    /// The sum of the vdev guids is wrong.
    #[error("vdev guid sum {found:#x} does not match uberblock guid sum {expected:#x}")]
    GuidSum {
        /// Sum over the config.
        found: u64,
        /// Sum in the uberblock.
        expected: u64,
    },
    /// The meta object set, or a required object in it, cannot be read.
    #[error("the pool metadata is corrupted: {0}")]
    CorruptMos(String),
    /// Another host used the pool last and did not export it.
    #[error("pool was last used by host '{hostname}' (hostid {hostid:#x})")]
    ForeignHost {
        /// Its hostid.
        hostid: u64,
        /// Its name.
        hostname: String,
    },
    /// Another host has the pool imported.
    #[error("pool is imported on another host, which is writing to it")]
    ActiveElsewhere,
    /// `multihost` is on, and this host has no hostid.
    #[error("pool has multihost set, and this host has no hostid")]
    NoHostId,
    /// The pool has no checkpoint.
    #[error("pool has no checkpoint")]
    NoCheckpoint,
    /// The pool was destroyed; opening it must be requested explicitly.
    #[error("pool was destroyed")]
    Destroyed,
}

fn names(features: &[UnknownFeature]) -> String {
    features.iter().map(|feature| feature.guid.as_str()).collect::<Vec<_>>().join(", ")
}
