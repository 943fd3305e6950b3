//! The condition of a pool: the first of these reasons that applies (spec 06 §19.1).
//!
//! The commands turn a reason into text. Import listings and the status of imported pools share the
//! reasons; the rules in [`crate::status`] decide which of them apply to both.

/// The condition of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A resilver is running.
    Resilvering,
    /// A sequential rebuild is running.
    Rebuilding,
    /// A sequential rebuild ended after the last scrub.
    RebuildScrub,
    /// The pool is imported on another host.
    HostIdActive,
    /// `multihost` is on and this host has no hostid.
    HostIdRequired,
    /// The pool was last used by another host.
    HostIdMismatch,
    /// Written by newer software.
    VersionNewer,
    /// A feature that writing needs is not supported.
    UnsupportedFeatureWrite,
    /// A feature that reading needs is not supported.
    UnsupportedFeatureRead,
    /// The vdev guids do not add up.
    BadGuidSum,
    /// Suspended because multihost heartbeats failed.
    IoFailureMmp,
    /// Suspended: writes fail, reads work.
    IoFailureContinue,
    /// Suspended: all I/O waits.
    IoFailureWait,
    /// Stopped by an error that would only occur again: nothing is written until the pool is
    /// closed and imported again.
    Stopped,
    /// A log device cannot be read.
    BadLog,
    /// Faulted devices, and not enough replicas.
    FaultedNoReplicas,
    /// Missing devices, and not enough replicas.
    MissingNoReplicas,
    /// Unusable labels, and not enough replicas.
    CorruptLabelNoReplicas,
    /// The pool's metadata is damaged.
    CorruptPool,
    /// Files are damaged.
    CorruptData,
    /// Data cannot be read: only missing devices have it.
    MissingData,
    /// Faulted devices, and enough replicas.
    FaultedReplicated,
    /// Missing devices, and enough replicas.
    MissingReplicated,
    /// Unusable labels, and enough replicas.
    CorruptLabelReplicated,
    /// A device has had errors.
    FailingDevice,
    /// A device was taken offline.
    OfflineDevice,
    /// A device was removed.
    RemovedDevice,
    /// The dirty time log of a device in use is not empty, and no resilver runs.
    NeedsResilver,
    /// A device is used with sectors smaller than its own.
    NonNativeAshift,
    /// Known damage by old releases.
    Errata(u64),
    /// A version from before feature flags.
    VersionOlder,
    /// The `compatibility` property names files that cannot be read.
    CompatibilityError,
    /// A feature that could be enabled is not.
    FeaturesDisabled,
    /// A feature is enabled that `compatibility` excludes.
    IncompatibleFeature,
    /// None of the others.
    Ok,
}

impl Reason {
    /// Returns the message id (without `ZFS-8000-`); many reasons have none.
    #[must_use]
    pub fn message_id(self) -> Option<&'static str> {
        Some(match self {
            Self::HostIdActive | Self::HostIdRequired | Self::HostIdMismatch => "EY",
            Self::VersionNewer => "A5",
            Self::BadGuidSum => "6X",
            Self::IoFailureMmp => "MM",
            Self::IoFailureContinue => "JQ",
            Self::IoFailureWait => "HC",
            Self::BadLog => "K4",
            Self::MissingNoReplicas => "3C",
            Self::CorruptLabelNoReplicas => "5E",
            Self::CorruptPool => "72",
            Self::CorruptData => "8A",
            Self::MissingReplicated => "2Q",
            Self::CorruptLabelReplicated => "4J",
            Self::FailingDevice => "9P",
            Self::Errata(_) => "ER",
            _ => return None,
        })
    }

    /// Whether `zpool status -x` omits a pool with this reason.
    #[must_use]
    pub fn is_healthy(self) -> bool {
        matches!(
            self,
            Self::Ok
                | Self::VersionOlder
                | Self::FeaturesDisabled
                | Self::CompatibilityError
                | Self::IncompatibleFeature
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_ids_and_health() {
        assert_eq!(Reason::MissingReplicated.message_id(), Some("2Q"));
        assert_eq!(Reason::VersionOlder.message_id(), None);
        assert!(Reason::VersionOlder.is_healthy());
        assert!(!Reason::OfflineDevice.is_healthy());
    }
}
