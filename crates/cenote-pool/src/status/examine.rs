//! Status of pools that can be imported: `zpool import` without a name.

use cenote_ondisk::config::VdevKind;
use cenote_rt::Error;
use cenote_vdev::{VdevAux, VdevState};

use super::{PoolStatus, report, rules};
use crate::features::compat;
use crate::import::{Candidate, Host};
use crate::pool::{OpenError, OpenOptions, Pool};

/// Opens the pool for reading, and returns its status or the reason why it cannot be imported.
pub async fn examine(candidate: &Candidate, host: &Host) -> PoolStatus {
    let options =
        OpenOptions { destroyed_ok: true, missing_log_ok: false, ..OpenOptions::default() };
    let opened = Pool::open(candidate, &options).await;
    let status = match &opened {
        Ok(pool) => pool.status().await.ok(),
        Err(_) => None,
    };
    let failure = opened.as_ref().err();
    let mut status = status.unwrap_or_else(|| of_labels(candidate));
    status.failure = failure.map(ToString::to_string);
    // Listings show the state in the labels; the MOS may lag behind them.
    status.facts.state = candidate.facts.state;
    let cause = failure.and_then(|error| error.cause::<OpenError>());
    let unwritable = opened.as_ref().map(|pool| pool.features().unwritable()).unwrap_or_default();
    let read_only = (!unwritable.is_empty()).then_some(OpenError::ReadOnlyFeatures(unwritable));
    if failure.is_some() && status.root.state.is_readable() {
        status.root.state = VdevState::CantOpen;
        status.root.aux = aux_of(cause);
    }
    // Listings report any feature that is not enabled, regardless of `compatibility`.
    let features = opened.as_ref().ok().map(|pool| (pool.features(), compat::allowed(None)));
    status.reason = rules::reason(&rules::Input {
        status: &status,
        is_import: true,
        host,
        failure: cause.or(read_only.as_ref()),
        features,
    });
    status
}

impl PoolStatus {
    /// Returns the status of a pool that this host uses, but could not open for this reason; `None`
    /// if none of its devices was found.
    pub fn of_unopened(candidate: &Candidate, failure: Option<&Error>) -> Self {
        let mut status = of_labels(candidate);
        let absent = || "none of its devices was found".to_owned();
        status.failure = Some(failure.map_or_else(absent, ToString::to_string));
        let cause = failure.and_then(|error| error.cause::<OpenError>());
        if status.root.state.is_readable() {
            (status.root.state, status.root.aux) = (VdevState::CantOpen, aux_of(cause));
        }
        status.reason = rules::reason(&rules::Input {
            status: &status,
            is_import: false,
            host: &Host::default(),
            failure: cause,
            features: None,
        });
        status
    }
}

fn aux_of(cause: Option<&OpenError>) -> VdevAux {
    match cause {
        Some(OpenError::GuidSum { .. }) => VdevAux::BadGuidSum,
        Some(OpenError::MissingLog(_)) => VdevAux::BadLog,
        Some(OpenError::MissingVdevs(_)) => VdevAux::NoReplicas,
        Some(OpenError::CorruptMos(_) | OpenError::NoUberblock { .. }) => VdevAux::CorruptData,
        _ => VdevAux::None,
    }
}

/// Returns a status from the labels alone.
fn of_labels(candidate: &Candidate) -> PoolStatus {
    let tree = cenote_vdev::Tree::build(
        &candidate.root,
        |leaf| candidate.device(leaf),
        &cenote_vdev::BuildOptions::default(),
    )
    .ok();
    let mut root = report::report(&candidate.root, &|config, report| {
        let vdev = match config.kind {
            VdevKind::Root => tree.as_ref().map(|tree| tree.root()),
            VdevKind::Hole | VdevKind::Missing => None,
            _ => tree.as_ref().and_then(|tree| tree.vdev(config.guid)),
        };
        if let Some(vdev) = vdev {
            (report.state, report.aux) = (vdev.state(), vdev.aux());
            report.is_absent = config.kind.is_leaf() && candidate.found(config.guid).is_none();
        }
    });
    candidate.name().clone_into(&mut root.name);
    report::name_leaves(&mut root);
    PoolStatus::of_devices(candidate.facts.clone(), root)
}
