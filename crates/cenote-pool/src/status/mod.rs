//! Status of pools, for `zpool status`, `zpool list -v` and `zpool import`.
//!
//!     config + tree's states + space figures ──> VdevReport (tree)
//!     scan, removal, checkpoint, expansion   ──> PoolStatus
//!                                            ──> Reason, the first that applies
//!
//! The status of a pool that can be imported is found by opening it for reading ([`examine`]). If
//! that fails, it consists of the labels and the reason of the failure.
//!
//! Sources: spec 06 §19.

mod errata;
mod examine;
mod leaf_work;
mod memory;
mod progress;
mod reason;
mod report;
mod rules;

pub use examine::examine;
pub use leaf_work::LeafProgress;
pub use progress::{Checkpoint, Expansion, ExpansionState, OtherScans, Rebuild, Removal};
pub use reason::Reason;
pub use report::{AuxReport, LeafDevice, VdevReport, name as vdev_name};

use std::sync::Arc;

use cenote_ondisk::config::PoolFacts;
use cenote_ondisk::scan::ScanPhys;
use cenote_rt::Result;
use cenote_vdev::DtlKind;
/// States of vdevs, their causes, and sets of the txgs that vdevs miss.
pub use cenote_vdev::{TxgRanges, VdevAux, VdevState};

use crate::accounting::Space;
use crate::features::compat;
use crate::{Pool, import::Host};

/// Status of a pool.
#[derive(Debug, Clone)]
pub struct PoolStatus {
    /// Facts from the config; the errata as found in the pool, if it could be opened.
    pub facts: PoolFacts,
    /// The most important condition of the pool.
    pub reason: Reason,
    /// The vdevs.
    pub root: VdevReport,
    /// Hot spares.
    pub spares: Vec<AuxReport>,
    /// Cache devices.
    pub caches: Vec<AuxReport>,
    /// The last or running scrub or resilver.
    pub scan: Option<ScanPhys>,
    /// What scans there were besides.
    pub other_scans: OtherScans,
    /// The last or running device removal.
    pub removal: Option<Removal>,
    /// The checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// The RAID-Z expansions, by vdev.
    pub expansions: Vec<Expansion>,
    /// Txgs whose data cannot be read, because too many leaves of a vdev miss it or are absent.
    pub unreadable: TxgRanges,
    /// Number of damaged objects in the error log.
    pub error_count: u64,
    /// Whether the error log could be read.
    pub is_error_log_read: bool,
    /// Space figures, `None` if the pool could not be opened.
    pub space: Option<Arc<Space>>,
    /// Why it could not be opened.
    pub failure: Option<String>,
    /// Why it is suspended.
    pub suspended: Option<Reason>,
}

impl Pool {
    /// Returns the pool's health as `zpool list` shows it.
    #[must_use]
    pub fn health_name(&self) -> &'static str {
        let root = self.tree().root();
        health_name(self.presence().suspended(), root.state(), root.aux())
    }

    /// Returns the status of the pool.
    pub async fn status(self: &Arc<Self>) -> Result<PoolStatus> {
        let space = self.space().await?;
        let mut root = report::of_pool(self, &space);
        leaf_work::complete(self, &mut root).await;
        let aux = |devices: &[crate::import::AuxDevice]| {
            devices.iter().map(|device| AuxReport::new(self, device)).collect::<Vec<_>>()
        };
        let (scan, error_scrub) = progress::scans(self);
        let errors = self.error_log().await;
        let is_error_log_read = errors.is_ok();
        let errors = errors.unwrap_or_default();
        let mut objects: Vec<_> =
            errors.iter().map(|block| (block.place.objset, block.place.object)).collect();
        objects.dedup();
        let mut facts = self.config().facts.clone();
        facts.errata = errata::of_pool(self).await?;
        let mut status = PoolStatus {
            facts,
            reason: Reason::Ok,
            root,
            spares: aux(self.spares()),
            caches: aux(self.caches()),
            scan,
            other_scans: OtherScans { error_scrub, rebuilds: progress::rebuilds(self).await },
            removal: progress::removal(self),
            checkpoint: progress::checkpoint(self, &space),
            expansions: progress::expansions(self, &space).await,
            unreadable: unreadable(self),
            error_count: objects.len() as u64,
            is_error_log_read,
            space: Some(space),
            failure: None,
            suspended: self.presence().suspended(),
        };
        let compatibility = status.facts.compatibility.clone();
        let allowed = compat::allowed(compatibility.as_deref());
        status.reason = rules::reason(&rules::Input {
            status: &status,
            is_import: false,
            host: &Host::default(),
            failure: None,
            features: Some((self.features(), allowed)),
        });
        Ok(status)
    }
}

/// Returns the txgs whose data cannot be read without the absent leaves: in some top-level vdev
/// more leaves miss them or are absent than its redundancy permits, and fewer would miss them if
/// the absent leaves were present. Txgs that all leaves may miss do not count: a dirty time log
/// names whole txgs of which only a part failed, and stale leaves are read as a last resort. Log
/// vdevs do not count either: intent logs were read at import.
fn unreadable(pool: &Pool) -> TxgRanges {
    let tree = pool.tree();
    let tops = tree.tops().filter(|top| !top.is_log());
    let outages = tops.filter_map(|top| {
        let outage = tree.dtl(top.guid(), DtlKind::Outage)?;
        Some(outage.subtract(&tree.dtl(top.guid(), DtlKind::PermanentOutage)?))
    });
    outages.fold(TxgRanges::default(), |all, outage| all.union(&outage))
}

impl PoolStatus {
    /// Returns a status with the devices only.
    fn of_devices(facts: PoolFacts, root: VdevReport) -> Self {
        Self {
            facts,
            reason: Reason::Ok,
            root,
            spares: Vec::new(),
            caches: Vec::new(),
            scan: None,
            other_scans: OtherScans::default(),
            removal: None,
            checkpoint: None,
            expansions: Vec::new(),
            unreadable: TxgRanges::default(),
            error_count: 0,
            is_error_log_read: false,
            space: None,
            failure: None,
            suspended: None,
        }
    }

    /// Returns the number of healthy leaves with a nonempty dirty time log that no recorded
    /// resilver covers.
    #[must_use]
    pub fn stale_leaf_count(&self) -> usize {
        self.root.walk().filter(|vdev| vdev.needs_resilver).count()
    }

    /// Returns the pool's state.
    #[must_use]
    pub fn health(&self) -> VdevState {
        self.root.state
    }

    /// Returns the pool's health as tables show it.
    #[must_use]
    pub fn health_name(&self) -> &'static str {
        health_name(self.suspended, self.root.state, self.root.aux)
    }
}

/// Returns the word for a pool's health; a pool can be suspended although its devices are healthy
/// again.
fn health_name(suspended: Option<Reason>, state: VdevState, aux: VdevAux) -> &'static str {
    if suspended.is_some() { "SUSPENDED" } else { state_name(state, aux) }
}

/// Returns the word for a state in tables; some causes have their own words.
#[must_use]
pub fn state_name(state: VdevState, aux: VdevAux) -> &'static str {
    match (state, aux) {
        (VdevState::Closed | VdevState::Offline, _) => "OFFLINE",
        (VdevState::Removed, _) => "REMOVED",
        (VdevState::Faulted, _) | (VdevState::CantOpen, VdevAux::CorruptData | VdevAux::BadLog) => {
            "FAULTED"
        }
        (VdevState::CantOpen, _) => "UNAVAIL",
        (VdevState::Degraded, _) => "DEGRADED",
        (VdevState::Healthy, _) => "ONLINE",
    }
}
