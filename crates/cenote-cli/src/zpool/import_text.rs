//! The status and action texts of an import listing, in OpenZFS's words, since people and scripts
//! search for them. `|` marks a line break whose continuation is indented.

use cenote_pool::Reason;
use cenote_pool::status::VdevState;

/// Returns the `status:` text; none if there is nothing to report.
pub(super) fn status(reason: Reason) -> Option<String> {
    Some(match reason {
        Reason::MissingReplicated | Reason::MissingNoReplicas | Reason::BadGuidSum => {
            "One or more devices are missing from the system.".into()
        }
        Reason::CorruptLabelReplicated | Reason::CorruptLabelNoReplicas => {
            "One or more devices contains corrupted data.".into()
        }
        Reason::MissingData => {
            "One or more devices are missing that have data which no other device has.".into()
        }
        Reason::NeedsResilver => {
            "One or more devices are missing data that was written while they were offline.".into()
        }
        Reason::CorruptData => "The pool data is corrupted.".into(),
        Reason::OfflineDevice => "One or more devices are offlined.".into(),
        Reason::CorruptPool => "The pool metadata is corrupted.".into(),
        Reason::VersionOlder => "The pool is formatted using a legacy on-disk version.".into(),
        Reason::VersionNewer => "The pool is formatted using an incompatible version.".into(),
        Reason::FeaturesDisabled => "Some supported features are not enabled on the pool.|\
             (Note that they may be intentionally disabled if the|\
             'compatibility' property is set.)"
            .into(),
        Reason::CompatibilityError => {
            "Error reading or parsing the file(s) indicated by the 'compatibility'|property.".into()
        }
        Reason::IncompatibleFeature => {
            "One or more features are enabled on the pool despite not being|\
             requested by the 'compatibility' property."
                .into()
        }
        Reason::UnsupportedFeatureRead => {
            "The pool uses the following feature(s) not supported on this system:".into()
        }
        Reason::UnsupportedFeatureWrite => {
            "The pool can only be accessed in read-only mode on this system. It|\
             cannot be accessed in read-write mode because it uses the following|\
             feature(s) not supported on this system:"
                .into()
        }
        Reason::HostIdActive => "The pool is currently imported by another system.".into(),
        Reason::HostIdRequired => "The pool has the multihost property on.  It cannot|\
             be safely imported when the system hostid is not set."
            .into(),
        Reason::HostIdMismatch => "The pool was last accessed by another system.".into(),
        Reason::FaultedReplicated | Reason::FaultedNoReplicas => {
            "One or more devices are faulted.".into()
        }
        Reason::BadLog => "An intent log record cannot be read.".into(),
        Reason::Resilvering | Reason::Rebuilding => {
            "One or more devices were being resilvered.".into()
        }
        Reason::Errata(number) => format!("Errata #{number} detected."),
        Reason::NonNativeAshift => {
            "One or more devices are configured to use a non-native block size.|\
             Expect reduced performance."
                .into()
        }
        _ => return None,
    })
}

/// Returns the `action:` text, by the state of the pool.
pub(super) fn action(reason: Reason, state: VdevState, host: (&str, u64)) -> String {
    match state {
        VdevState::Healthy | VdevState::Degraded if reason == Reason::MissingData => {
            "Attach the missing devices and try again.  The pool can be imported|\
             without them, but data that only they have cannot be read."
                .to_owned()
        }
        VdevState::Healthy => when_healthy(reason).to_owned(),
        VdevState::Degraded => "The pool can be imported despite missing or damaged devices.  The|\
             fault tolerance of the pool may be compromised if imported."
            .to_owned(),
        _ => when_unavailable(reason, host),
    }
}

fn when_healthy(reason: Reason) -> &'static str {
    match reason {
        Reason::VersionOlder | Reason::FeaturesDisabled => {
            "The pool can be imported using its name or numeric identifier, though|\
             some features will not be available without an explicit 'zpool upgrade'."
        }
        Reason::CompatibilityError => {
            "The pool can be imported using its name or numeric|\
             identifier, though the file(s) indicated by its 'compatibility'|\
             property cannot be parsed at this time."
        }
        Reason::HostIdMismatch => {
            "The pool can be imported using its name or numeric identifier and|the '-f' flag."
        }
        Reason::Errata(1) => {
            "The pool can be imported using its name or numeric identifier,|\
             however there is a compatibility issue which should be corrected|\
             by running 'zpool scrub'"
        }
        Reason::Errata(2) => {
            "The pool cannot be imported with this version of ZFS due to|\
             an active asynchronous destroy. Revert to an earlier version|\
             and allow the destroy to complete before updating."
        }
        Reason::Errata(3) => {
            "Existing encrypted datasets contain an on-disk incompatibility, which|\
             needs to be corrected. Backup these datasets to new encrypted datasets|\
             and destroy the old ones."
        }
        Reason::Errata(4) => {
            "Existing encrypted snapshots and bookmarks contain an on-disk|\
             incompatibility. This may cause on-disk corruption if they are used|\
             with 'zfs recv'. To correct the issue, enable the bookmark_v2 feature.|\
             No additional action is needed if there are no encrypted snapshots or|\
             bookmarks. If preserving the encrypted snapshots and bookmarks is|\
             required, use a non-raw send to backup and restore them. Alternately,|\
             they may be removed to resolve the incompatibility."
        }
        _ => "The pool can be imported using its name or numeric identifier.",
    }
}

fn when_unavailable(reason: Reason, (hostname, hostid): (&str, u64)) -> String {
    let text = match reason {
        Reason::VersionNewer => {
            "The pool cannot be imported.  Access the pool on a system running newer|\
             software, or recreate the pool from backup."
        }
        Reason::UnsupportedFeatureRead => {
            "The pool cannot be imported. Access the pool on a system that supports|\
             the required feature(s), or recreate the pool from backup."
        }
        Reason::UnsupportedFeatureWrite => {
            "The pool cannot be imported in read-write mode. Import the pool with|\
             '-o readonly=on', access the pool on a system that supports the|\
             required feature(s), or recreate the pool from backup."
        }
        Reason::MissingReplicated | Reason::MissingNoReplicas | Reason::BadGuidSum => {
            "The pool cannot be imported. Attach the missing|devices and try again."
        }
        Reason::HostIdActive => {
            return format!(
                "The pool must be exported from {hostname} (hostid={hostid:x})|\
                 before it can be safely imported."
            );
        }
        Reason::HostIdRequired => "Set a unique system hostid with the zgenhostid(8) command.",
        _ => "The pool cannot be imported due to damaged devices or data.",
    };
    text.to_owned()
}
