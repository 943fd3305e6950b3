//! The status and action texts of `zpool status`, in OpenZFS's words, since people and scripts
//! search for them. `|` marks a line break whose continuation is indented.

use cenote_pool::Reason;

/// Returns status and action; none if there is nothing to report.
pub(super) fn texts(reason: Reason) -> Option<(&'static str, &'static str)> {
    devices(reason).or_else(|| data(reason)).or_else(|| format(reason))
}

/// Texts about devices that are missing, faulted, or resilvering.
fn devices(reason: Reason) -> Option<(&'static str, &'static str)> {
    Some(match reason {
        Reason::MissingReplicated => (
            "One or more devices could not be opened.  Sufficient replicas exist for|\
             the pool to continue functioning in a degraded state.",
            "Attach the missing device and online it using 'zpool online'.",
        ),
        Reason::MissingNoReplicas => (
            "One or more devices could not be opened.  There are insufficient|\
             replicas for the pool to continue functioning.",
            "Attach the missing device and online it using 'zpool online'.",
        ),
        Reason::MissingData => (
            "One or more devices could not be opened, and other devices lack what was|\
             written while they were away.  That data cannot be read.",
            "Attach the missing device and online it using 'zpool online'.",
        ),
        Reason::NeedsResilver => (
            "One or more devices are missing data that was written while they were offline|\
             or failing.  The pool continues to function with less redundancy than|\
             its layout has.",
            "Keep the other devices of the pool in service, and bring these up to date|\
             with 'zpool resilver'.  'cenote verify' tells how much is missing.",
        ),
        Reason::CorruptLabelReplicated => (
            "One or more devices could not be used because the label is missing or|\
             invalid.  Sufficient replicas exist for the pool to continue|\
             functioning in a degraded state.",
            "Replace the device using 'zpool replace'.",
        ),
        Reason::CorruptLabelNoReplicas => (
            "One or more devices could not be used because the label is missing |\
             or invalid.  There are insufficient replicas for the pool to continue|functioning.",
            "Destroy and re-create the pool from|a backup source.",
        ),
        Reason::FailingDevice => (
            "One or more devices has experienced an unrecoverable error.  An|\
             attempt was made to correct the error.  Applications are unaffected.",
            "Determine if the device needs to be replaced, and clear the errors|\
             using 'zpool clear' or replace the device with 'zpool replace'.",
        ),
        Reason::OfflineDevice => (
            "One or more devices has been taken offline by the administrator.|\
             Sufficient replicas exist for the pool to continue functioning in a|degraded state.",
            "Online the device using 'zpool online' or replace the device with|'zpool replace'.",
        ),
        Reason::RemovedDevice => (
            "One or more devices has been removed by the administrator.|\
             Sufficient replicas exist for the pool to continue functioning in a|degraded state.",
            "Online the device using zpool online' or replace the device with|'zpool replace'.",
        ),
        Reason::Resilvering | Reason::Rebuilding => (
            "One or more devices is currently being resilvered.  The pool will|\
             continue to function, possibly in a degraded state.",
            "Wait for the resilver to complete.",
        ),
        Reason::RebuildScrub => (
            "One or more devices have been sequentially resilvered, scrubbing|\
             the pool is recommended.",
            "Use 'zpool scrub' to verify all data checksums.",
        ),
        Reason::FaultedReplicated => (
            "One or more devices are faulted in response to persistent errors.|\
             Sufficient replicas exist for the pool to continue functioning in a|degraded state.",
            "Replace the faulted device, or use 'zpool clear' to mark the device|repaired.",
        ),
        Reason::FaultedNoReplicas => (
            "One or more devices are faulted in response to persistent errors.  There are \
             insufficient replicas for the pool to|continue functioning.",
            "Destroy and re-create the pool from a backup source.  Manually marking the device|\
             repaired using 'zpool clear' may allow some data to be recovered.",
        ),
        Reason::NonNativeAshift => (
            "One or more devices are configured to use a non-native block size.|\
             Expect reduced performance.",
            "Replace affected devices with devices that support the|\
             configured block size, or migrate data to a properly configured|pool.",
        ),
        _ => return None,
    })
}

/// Texts about data that is damaged or cannot be read.
fn data(reason: Reason) -> Option<(&'static str, &'static str)> {
    Some(match reason {
        Reason::CorruptData => (
            "One or more devices has experienced an error resulting in data|\
             corruption.  Applications may be affected.",
            "Restore the file in question if possible.  Otherwise restore the|\
             entire pool from backup.",
        ),
        Reason::CorruptPool => (
            "The pool metadata is corrupted and the pool cannot be opened.",
            "Destroy and re-create the pool from|a backup source.",
        ),
        Reason::IoFailureMmp => (
            "The pool is suspended because multihost writes failed or were delayed;|\
             another system could import the pool undetected.",
            "Make sure the pool's devices are connected, then reboot your system and|\
             import the pool or run 'zpool clear' to resume the pool.",
        ),
        Reason::IoFailureWait | Reason::IoFailureContinue => (
            "One or more devices are faulted in response to IO failures.",
            "Make sure the affected devices are connected, then run 'zpool clear'.",
        ),
        Reason::Stopped => (
            "The pool was stopped by an error that would only occur again.  Nothing is|\
             written any more; what was synced before is kept.",
            "Export the pool with 'zpool export', then import it again.",
        ),
        Reason::BadLog => (
            "An intent log record could not be read.|\
             Waiting for administrator intervention to fix the faulted pool.",
            "Either restore the affected device(s) and run 'zpool online',|\
             or ignore the intent log records by running 'zpool clear'.",
        ),
        Reason::HostIdMismatch => (
            "Mismatch between pool hostid and system hostid on imported pool.|\
             This pool was previously imported into a system with a different hostid,|\
             and then was verbatim imported into this system.",
            "Export this pool on all systems on which it is imported.|\
             Then import it to correct the mismatch.",
        ),
        _ => return None,
    })
}

/// Texts about version, features and errata.
fn format(reason: Reason) -> Option<(&'static str, &'static str)> {
    Some(match reason {
        Reason::VersionOlder => (
            "The pool is formatted using a legacy on-disk format.  The pool can|\
             still be used, but some features are unavailable.",
            "Upgrade the pool using 'zpool upgrade'.  Once this is done, the|\
             pool will no longer be accessible on software that does not support|feature flags.",
        ),
        Reason::VersionNewer => (
            "The pool has been upgraded to a newer, incompatible on-disk version.|\
             The pool cannot be accessed on this system.",
            "Access the pool from a system running more recent software, or|\
             restore the pool from backup.",
        ),
        Reason::FeaturesDisabled => (
            "Some supported and requested features are not enabled on the pool.|\
             The pool can still be used, but some features are unavailable.",
            "Enable all features using 'zpool upgrade'. Once this is done,|\
             the pool may no longer be accessible by software that does not support|\
             the features. See zpool-features(7) for details.",
        ),
        Reason::CompatibilityError => (
            "This pool has a compatibility list specified, but it could not be|\
             read/parsed at this time. The pool can still be used, but this|should be investigated.",
            "Check the value of the 'compatibility' property against the|\
             appropriate file in /etc/zfs/compatibility.d or /usr/share/zfs/compatibility.d.",
        ),
        Reason::IncompatibleFeature => (
            "One or more features are enabled on the pool despite not being|\
             requested by the 'compatibility' property.",
            "Consider setting 'compatibility' to an appropriate value, or|\
             adding needed features to the relevant file in|\
             /etc/zfs/compatibility.d or /usr/share/zfs/compatibility.d.",
        ),
        Reason::Errata(1) => ("Errata #1 detected.", "To correct the issue run 'zpool scrub'."),
        Reason::Errata(3) => (
            "Errata #3 detected.|Existing encrypted datasets contain an on-disk incompatibility| \
             which needs to be corrected.",
            "To correct the issue backup existing encrypted datasets to new|\
             encrypted datasets and destroy the old ones. 'zfs mount -o ro' can|\
             be used to temporarily mount existing encrypted datasets readonly.",
        ),
        Reason::Errata(4) => (
            "Errata #4 detected.|Existing encrypted snapshots and bookmarks contain an on-disk|\
             incompatibility. This may cause on-disk corruption if they are used|\
             with 'zfs recv'.",
            "To correct theissue, enable the bookmark_v2 feature. No additional|\
             action is needed if there are no encrypted snapshots or bookmarks.|\
             If preservingthe encrypted snapshots and bookmarks is required, use|\
             a non-raw send to backup and restore them. Alternately, they may be|\
             removed to resolve the incompatibility.",
        ),
        _ => return None,
    })
}
