//! Every way in which a pool cannot be opened (spec 01 §16.2).

use crate::features::UnknownFeature;

/// Why a pool was not opened. What an import listing says of the pool follows from it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// No device has a valid uberblock that may be used.
    #[error("no device has a valid uberblock of txg {max_txg} or before")]
    NoUberblock {
        /// The largest txg that was allowed.
        max_txg: u64,
    },
    /// An expansion went on between the uberblock and the newest one.
    #[error("a RAID-Z expansion went on after txg {txg}: it cannot be rewound")]
    ReflowProgress {
        /// The uberblock's txg.
        txg: u64,
    },
    /// Written by software of another time.
    #[error("pool version {version} is not supported")]
    Version {
        /// The pool's version.
        version: u64,
    },
    /// Features that reading needs.
    #[error("pool uses unsupported features: {}", names(.0))]
    UnsupportedFeatures(Vec<UnknownFeature>),
    /// Features that only writing needs.
    #[error("pool uses features that are supported read-only: {}", names(.0))]
    ReadOnlyFeatures(Vec<UnknownFeature>),
    /// Too few devices of top-level vdevs.
    #[error("{} top-level vdevs are missing", .0.len())]
    MissingVdevs(Vec<u64>),
    /// A log device cannot be read.
    #[error("log device {0} cannot be read")]
    MissingLog(u64),
    /// The guids do not add up.
    #[error("vdev guid sum {found:#x} does not match uberblock guid sum {expected:#x}")]
    GuidSum {
        /// Sum over the config.
        found: u64,
        /// The uberblock's.
        expected: u64,
    },
    /// The meta object set, or something in it that every pool has, cannot be read.
    #[error("the pool metadata is corrupted: {0}")]
    CorruptMos(String),
    /// The pool belongs to another host.
    #[error("pool was last used by host '{hostname}' (hostid {hostid:#x})")]
    ForeignHost {
        /// Its hostid.
        hostid: u64,
        /// Its name.
        hostname: String,
    },
    /// The pool is in use.
    #[error("pool is imported on another host, which is writing to it")]
    ActiveElsewhere,
    /// `multihost` needs a hostid here.
    #[error("pool has multihost set, and this host has no hostid")]
    NoHostId,
    /// There is no checkpoint to open.
    #[error("pool has no checkpoint")]
    NoCheckpoint,
    /// It was destroyed, which must be asked for.
    #[error("pool was destroyed")]
    Destroyed,
}

fn names(features: &[UnknownFeature]) -> String {
    features.iter().map(|feature| feature.guid.as_str()).collect::<Vec<_>>().join(", ")
}
