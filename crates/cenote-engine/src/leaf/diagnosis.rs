//! Leaves with too many errors leave service or are degraded, as OpenZFS's `zed` does it.
//!
//! ```text
//!   error rate exceeded ──next sync──> failed I/O:  FAULTED, if the others have its data
//!                                      wrong bytes: DEGRADED        (`too many errors`)
//!                                      slow I/O:    DEGRADED        (`too many slow I/Os`)
//!   zpool clear ──> ONLINE, and the rates are measured anew
//! ```
//!
//! The vdev layer measures the rates (`cenote_vdev::ErrorRates`); this module applies them. State
//! and cause (`err_exceeded`) are in the config of the txg in which they become known. An
//! [`Event::State`] with the cause [`StateCause::Diagnosis`] tells the host, which may call in a
//! hot spare. While `cenote_diagnosis_auto` is 0, errors are counted and no state changes, as in
//! OpenZFS while no `zed` runs; when it is set, the rates that were exceeded meanwhile are applied.
//!
//! Guarantees
//! * O4  A leaf that has the only copy of some data, or would have it if the devices that are being
//!   replaced failed, is degraded instead of faulted (O3), as in OpenZFS.
//!
//! Sources: spec 06 §17.2; the manual page vdevprops(7).

use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::zap::Value;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result, tunables};
use cenote_vdev::{ErrorRate, ErrorRates, Faults, Need, Symptom, Vdev, VdevAux, VdevState};

use crate::admin::events::StateCause;
use crate::{Config, EngineError, Leaves, Scope};

/// Values of the properties that set error rates, of a vdev or inherited; `None` for the default.
#[derive(Debug, Clone, Copy, Default)]
struct RateSettings([Option<u64>; 6]);

/// The properties of [`RateSettings`], in its order.
const RATE_PROPERTIES: [&str; 6] =
    ["io_n", "io_t", "checksum_n", "checksum_t", "slow_io_n", "slow_io_t"];

impl RateSettings {
    /// Returns the settings with those of a vdev below.
    fn with(mut self, stored: &[(String, Value)]) -> Self {
        for (slot, name) in self.0.iter_mut().zip(RATE_PROPERTIES) {
            let found = stored.iter().find(|(stored, _)| stored == name);
            // The largest number stands for no value (`none`).
            let number = found.and_then(|(_, value)| value.first()).filter(|n| *n != u64::MAX);
            *slot = number.or(*slot);
        }
        self
    }

    fn rates(self) -> ErrorRates {
        let default = ErrorRates::default();
        let [io_n, io_t, checksum_n, checksum_t, slow_n, slow_t] = self.0;
        let rate = |default: ErrorRate, count: Option<u64>, seconds: Option<u64>| ErrorRate {
            count: count.unwrap_or(default.count),
            seconds: seconds.unwrap_or(default.seconds),
        };
        ErrorRates {
            io: rate(default.io, io_n, io_t),
            checksum: rate(default.checksum, checksum_n, checksum_t),
            // As in OpenZFS, slow I/Os matter only if both properties are set.
            slow_io: slow_n.zip(slow_t).map(|(count, seconds)| ErrorRate { count, seconds }),
        }
    }
}

impl Leaves<'_> {
    /// Whether error rates were exceeded that the next sync applies.
    pub(crate) fn has_diagnoses(self) -> bool {
        tunables::DIAGNOSIS_AUTO.get() != 0 && Faults::of(&self.engine.tree).has_diagnoses()
    }

    /// Applies the error rates that were exceeded; in a sync, before its config is written.
    pub(crate) async fn diagnose(self, scope: &Scope<'_>) {
        if !self.has_diagnoses() {
            return;
        }
        let faults = Faults::of(&self.engine.tree);
        let _probing = self.lock_service().await;
        for (id, symptom) in faults.take_diagnoses() {
            let guid = self.engine.tree.leaf(id).guid();
            let is_fault = symptom == Symptom::Io;
            if let Some(state) = self.judge(guid, is_fault) {
                scope.change_config(|config| record(config, guid, state));
                self.note_state(guid, state, StateCause::Diagnosis(symptom));
            }
        }
    }

    /// Faults a leaf, if that is wanted and the others have its data; else degrades it. Returns its
    /// new state, or `None` if it stays as it is.
    fn judge(self, guid: u64, is_fault: bool) -> Option<VdevState> {
        let tree = &self.engine.tree;
        let before = tree.vdev(guid).map(Vdev::state)?;
        if !before.is_readable() {
            return None;
        }
        let aux = VdevAux::ErrExceeded;
        let is_forced = self.is_spare_log(guid) || is_on(Bug::LastReplicaFaulted);
        // O4.
        let goes = is_fault
            && if is_forced {
                tree.take_out_of_service(guid, VdevState::Faulted, aux)
            } else {
                tree.take_out_of_service_unless_needed(
                    guid,
                    VdevState::Faulted,
                    aux,
                    Need::ReplacementsToo,
                )
            };
        if goes {
            self.move_logs_off(guid);
            return Some(VdevState::Faulted);
        }
        (before == VdevState::Healthy).then(|| {
            tree.set_status(guid, VdevState::Degraded, aux);
            VdevState::Degraded
        })
    }

    /// Faults or degrades a leaf as if it had too many errors (`zinject -A`).
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such leaf; errors of a sync.
    pub async fn set_failing(self, guid: u64, is_fault: bool) -> Result<VdevState> {
        if self.engine.tree.leaf_of(guid).is_none() {
            return Err(Error::not_found(EngineError::NoSuchLeaf(guid)));
        }
        let state = {
            let _probing = self.lock_service().await;
            self.judge(guid, is_fault)
        };
        if let Some(state) = state {
            let changed = self.engine.admin().change(move |_, _, config| {
                record(config, guid, state);
                Ok(())
            });
            changed.await?;
            self.note_state(guid, state, StateCause::Request);
        }
        let now = self.engine.tree.vdev(guid).map(Vdev::state);
        Ok(now.unwrap_or(VdevState::Closed))
    }

    /// Reads the error rates of all leaves from the properties of vdevs, and applies them.
    ///
    /// # Errors
    /// Errors of a device.
    pub(crate) async fn apply_error_rates(self) -> Result<()> {
        let root = self.engine.with_config(|config| config.root.clone());
        let mut found = Vec::new();
        let mut todo = vec![(&root, RateSettings::default())];
        while let Some((vdev, inherited)) = todo.pop() {
            let stored = match self.engine.admin().properties_of(vdev).await {
                Ok(stored) => stored,
                Err(error) if matches!(error.kind(), Kind::Io | Kind::Closed) => return Err(error),
                // Damaged properties do not keep a pool from being opened.
                Err(_) => Vec::new(),
            };
            let settings = inherited.with(&stored);
            if vdev.kind.is_leaf() {
                found.push((vdev.guid, settings.rates()));
            }
            todo.extend(vdev.children.iter().map(|child: &VdevConfig| (child, settings)));
        }
        for (guid, rates) in found {
            if let Some(id) = self.engine.tree.leaf_of(guid) {
                self.engine.tree.leaf(id).set_error_rates(rates);
            }
        }
        Ok(())
    }
}

/// Records the state of a leaf that has, or is taken to have, too many errors.
pub(super) fn record(config: &mut Config, guid: u64, state: VdevState) {
    if let Some(vdev) = config.root.find_mut(guid) {
        vdev.leaf.faulted = state == VdevState::Faulted;
        vdev.leaf.degraded = state == VdevState::Degraded;
        vdev.leaf.aux_state = VdevAux::ErrExceeded.in_config().map(Into::into);
        config.touch();
    }
}
