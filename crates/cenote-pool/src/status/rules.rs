//! Rules that find the reason: the first one that applies (spec 06 §19.1).

use std::collections::BTreeSet;

use cenote_ondisk::config::{PoolState, VdevKind};
use cenote_ondisk::rebuild::{RebuildPhys, RebuildState};
use cenote_ondisk::scan::{ScanFunc, ScanState};
use cenote_vdev::{VdevAux, VdevState};

use super::{PoolStatus, Reason, VdevReport};
use crate::features::{self, FeatureState, FeatureTable};
use crate::import::Host;
use crate::pool::OpenError;

/// Input of the rules.
pub(super) struct Input<'a> {
    pub(super) status: &'a PoolStatus,
    pub(super) is_import: bool,
    pub(super) host: &'a Host,
    pub(super) failure: Option<&'a OpenError>,
    /// The pool's features, and those that its `compatibility` property allows (`None` if unknown).
    pub(super) features: Option<(&'a FeatureTable, Option<BTreeSet<&'static str>>)>,
}

pub(super) fn reason(input: &Input<'_>) -> Reason {
    let facts = &input.status.facts;
    if let Some(scan) = &input.status.scan
        && (scan.func, scan.state) == (ScanFunc::Resilver, ScanState::Scanning)
    {
        return Reason::Resilvering;
    }
    let rebuilds = || input.status.other_scans.rebuilds.iter().map(|rebuild| rebuild.phys);
    if rebuilds().any(|phys| phys.state == RebuildState::Active) {
        return Reason::Rebuilding;
    }
    // A scrub in progress verifies what was rebuilt.
    let scrubbed = match &input.status.scan {
        None => Some(0),
        Some(scan) if scan.state == ScanState::Finished => Some(scan.end_time),
        Some(_) => None,
    };
    let is_unverified =
        |phys: RebuildPhys| scrubbed.is_some_and(|scrubbed| phys.end_time > scrubbed);
    if rebuilds().any(|phys| phys.state == RebuildState::Complete && is_unverified(phys)) {
        return Reason::RebuildScrub;
    }
    if input.is_import {
        match input.failure {
            Some(OpenError::ActiveElsewhere) => return Reason::HostIdActive,
            Some(OpenError::NoHostId) => return Reason::HostIdRequired,
            _ => {}
        }
        let is_foreign = facts.hostid != 0 && facts.hostid != input.host.hostid;
        if is_foreign && facts.state == PoolState::Active {
            return Reason::HostIdMismatch;
        }
    }
    of_failure(input)
        .or_else(|| of_devices(input))
        .or_else(|| of_format(input))
        .unwrap_or(Reason::Ok)
}

/// Returns a reason why the whole pool cannot be used.
fn of_failure(input: &Input<'_>) -> Option<Reason> {
    match input.failure {
        Some(OpenError::Version { .. }) => return Some(Reason::VersionNewer),
        Some(OpenError::ReadOnlyFeatures(_)) => return Some(Reason::UnsupportedFeatureWrite),
        Some(OpenError::UnsupportedFeatures(_)) => return Some(Reason::UnsupportedFeatureRead),
        Some(OpenError::GuidSum { .. }) => return Some(Reason::BadGuidSum),
        _ => {}
    }
    if input.status.suspended.is_some() {
        return input.status.suspended;
    }
    if matches!(input.failure, Some(OpenError::MissingLog(_))) {
        return Some(Reason::BadLog);
    }
    let root = &input.status.root;
    if root.state != VdevState::CantOpen {
        return None;
    }
    let leaves = leaves(input);
    Some(match root.aux {
        VdevAux::BadGuidSum => Reason::BadGuidSum,
        VdevAux::BadLog => Reason::BadLog,
        _ if leaves.iter().any(|(state, _)| *state == VdevState::Faulted) => {
            Reason::FaultedNoReplicas
        }
        _ if leaves.contains(&(VdevState::CantOpen, VdevAux::OpenFailed)) => {
            Reason::MissingNoReplicas
        }
        _ if leaves.iter().any(|(state, _)| *state == VdevState::CantOpen) => {
            Reason::CorruptLabelNoReplicas
        }
        _ => Reason::CorruptPool,
    })
}

/// Returns the states of leaves and cache devices.
fn leaves(input: &Input<'_>) -> Vec<(VdevState, VdevAux)> {
    let leaves = input.status.root.leaves_outside_replacements();
    let mut states: Vec<_> = leaves.iter().map(|leaf| (leaf.state, leaf.aux)).collect();
    // An import searches cache devices at the paths in the config only.
    let is_missing = |cache: &&super::AuxReport| {
        cache.state == VdevState::CantOpen || (input.is_import && !cache.is_at_recorded_path)
    };
    let missing = input.status.caches.iter().filter(is_missing);
    states.extend(missing.map(|_| (VdevState::CantOpen, VdevAux::OpenFailed)));
    states
}

/// Returns problems of devices that the pool can work without.
fn of_devices(input: &Input<'_>) -> Option<Reason> {
    if !input.is_import && input.status.error_count != 0 {
        return Some(Reason::CorruptData);
    }
    if !input.status.unreadable.is_empty() {
        return Some(Reason::MissingData);
    }
    let leaves = leaves(input);
    let any = |state| leaves.iter().any(|(found, _)| *found == state);
    if any(VdevState::Faulted) {
        return Some(Reason::FaultedReplicated);
    }
    if leaves.contains(&(VdevState::CantOpen, VdevAux::OpenFailed)) {
        return Some(Reason::MissingReplicated);
    }
    if any(VdevState::CantOpen) {
        return Some(Reason::CorruptLabelReplicated);
    }
    let has_errors = |leaf: &VdevReport| {
        leaf.state == VdevState::Degraded
            || leaf.stats.read_errors != 0
            || leaf.stats.write_errors != 0
            || leaf.stats.checksum_errors != 0
    };
    let at_rest = input.status.root.leaves_outside_replacements();
    if !input.is_import && at_rest.iter().any(|leaf| has_errors(leaf)) {
        return Some(Reason::FailingDevice);
    }
    if any(VdevState::Offline) {
        return Some(Reason::OfflineDevice);
    }
    if any(VdevState::Removed) {
        return Some(Reason::RemovedDevice);
    }
    if input.status.stale_leaf_count() > 0 {
        return Some(Reason::NeedsResilver);
    }
    let is_too_small = |leaf: &VdevReport| {
        leaf.kind == VdevKind::Disk
            && leaf.device.is_some_and(|device| leaf.ashift < u64::from(device.physical_ashift))
    };
    (!input.is_import && at_rest.iter().any(|leaf| is_too_small(leaf)))
        .then_some(Reason::NonNativeAshift)
}

/// Returns problems of version, features and known old damage.
fn of_format(input: &Input<'_>) -> Option<Reason> {
    const VERSION_FEATURES: u64 = 5000;
    let facts = &input.status.facts;
    if (1..=4).contains(&facts.errata) {
        return Some(Reason::Errata(facts.errata));
    }
    if facts.version < VERSION_FEATURES {
        let is_meant = facts.compatibility.as_deref() == Some("legacy");
        return (!is_meant).then_some(Reason::VersionOlder);
    }
    let (table, allowed) = input.features.as_ref()?;
    let Some(allowed) = allowed else { return Some(Reason::CompatibilityError) };
    for feature in features::identity() {
        let is_enabled = table.state(feature.name) != FeatureState::Disabled;
        match (allowed.contains(feature.name), is_enabled) {
            (true, false) => return Some(Reason::FeaturesDisabled),
            (false, true) => return Some(Reason::IncompatibleFeature),
            _ => {}
        }
    }
    None
}
