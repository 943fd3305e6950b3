//! Groups of metaslabs of one vdev and class, and the vdevs themselves.
//!
//!     vdev 3 -- group 0: its own class         metaslabs by weight; each stream's open metaslabs
//!            `- group 1: embedded log          one metaslab, on large normal vdevs
//!
//! A group orders its metaslabs by weight and records the open metaslabs of each stream of
//! allocations: a primary one, and a secondary one for further copies (spec 05 §8.5).

use std::cmp::Reverse;
use std::collections::BTreeSet;

use cenote_rt::{ensure, tunables};

use super::area::MetadataArea;
use super::class::Class;
use super::error::Violation;
use super::fragmentation;
use super::metaslab::{Activation, Metaslab};
use super::policy::Policy;
use super::request::VdevSpec;
use super::weight::Weight;

/// The open metaslabs of one stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Open {
    pub(super) primary: Option<usize>,
    pub(super) secondary: Option<usize>,
    /// The secondary one before the present one.
    pub(super) former: Option<usize>,
}

impl Open {
    pub(super) fn of(&mut self, is_secondary: bool) -> &mut Option<usize> {
        if is_secondary { &mut self.secondary } else { &mut self.primary }
    }
}

/// The metaslabs of one vdev that serve one class.
#[derive(Debug, Default)]
pub(super) struct Group {
    /// Metaslabs by weight, best first.
    pub(super) order: BTreeSet<(Reverse<Weight>, usize)>,
    /// Open metaslabs of each stream, and last those for metadata apart from data.
    pub(super) open: Vec<Open>,
    pub(super) metadata: MetadataArea,
    /// Fragmentation in percent, if enough metaslabs have a value.
    pub(super) fragmentation: Option<u64>,
    /// Sum of the metaslabs' sizes in bytes.
    pub(super) space: u64,
    /// Bytes allocated or deferred, as of the last commit.
    pub(super) allocated: u64,
    /// Bytes deferred.
    pub(super) deferred: u64,
}

impl Group {
    /// Changes the sums of allocated and deferred bytes (A4).
    pub(super) fn change(&mut self, allocated: i64, deferred: i64) -> Result<(), Violation> {
        let before = (self.allocated, self.deferred);
        let sums =
            before.0.checked_add_signed(allocated).zip(before.1.checked_add_signed(deferred));
        let (now_allocated, now_deferred) = sums.unwrap_or((0, u64::MAX));
        ensure!(
            "A4",
            now_deferred <= now_allocated,
            "{before:?} bytes allocated and deferred change by {allocated} and {deferred}"
        );
        (self.allocated, self.deferred) = (now_allocated, now_deferred);
        Ok(())
    }

    /// Free space in percent.
    pub(super) fn free_percent(&self) -> u64 {
        percent(self.space.saturating_sub(self.allocated), self.space)
    }
}

/// `part` as a percentage of `whole`; 0 if `whole` is 0.
pub(super) fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100).checked_div(u128::from(whole)).unwrap_or(0) as u64
}

/// A top-level vdev.
#[derive(Debug)]
pub(super) struct Vdev {
    pub(super) spec: VdevSpec,
    pub(super) metaslabs: Vec<Metaslab>,
    pub(super) groups: [Group; 2],
    pub(super) embedded_log: Option<usize>,
}

impl Vdev {
    /// The group that serves a class, if any.
    pub(super) fn group_for(&self, class: Class) -> Option<usize> {
        match class {
            Class::EmbeddedLog => self.embedded_log.map(|_| 1),
            class => (class == self.spec.class).then_some(0),
        }
    }

    /// Chooses the emptiest metaslab as the embedded log, if the vdev is large enough (spec 05 §7).
    pub(super) fn choose_embedded_log(&mut self) {
        let least = tunables::EMBEDDED_SLOG_MIN_MS.get_usize();
        if self.spec.class != Class::Normal || self.metaslabs.len() <= least {
            return;
        }
        self.embedded_log =
            (0..self.metaslabs.len()).min_by_key(|id| self.metaslabs[*id].allocated);
        if let Some(id) = self.embedded_log {
            self.metaslabs[id].group = 1;
        }
    }

    /// Recomputes a metaslab's weight and its position in the order.
    pub(super) fn reweigh(&mut self, id: usize, policy: &dyn Policy) {
        let count = self.metaslabs.len() as u64;
        let metaslab = &mut self.metaslabs[id];
        let order = &mut self.groups[metaslab.group].order;
        order.remove(&(Reverse(metaslab.weight), id));
        metaslab.weight = metaslab.weigh(policy, count);
        order.insert((Reverse(metaslab.weight), id));
    }

    /// Makes a metaslab the open one of a stream.
    pub(super) fn activate(&mut self, id: usize, slot: usize, is_secondary: bool) {
        let metaslab = &mut self.metaslabs[id];
        metaslab.activation = Some(Activation { slot, is_secondary, weight: metaslab.weight });
        *self.groups[metaslab.group].open[slot].of(is_secondary) = Some(id);
    }

    /// Closes an open metaslab.
    pub(super) fn passivate(&mut self, id: usize, policy: &dyn Policy) {
        let metaslab = &mut self.metaslabs[id];
        if let Some(activation) = metaslab.activation.take() {
            let open = &mut self.groups[metaslab.group].open[activation.slot];
            *open.of(activation.is_secondary) = None;
        }
        self.reweigh(id, policy);
    }

    /// Recomputes the fragmentation of the groups.
    pub(super) fn update_fragmentation(&mut self) {
        for (index, group) in self.groups.iter_mut().enumerate() {
            let own = self.metaslabs.iter().filter(|metaslab| metaslab.group == index);
            let figures = own.map(|m| (m.size.saturating_sub(m.allocated), m.fragmentation));
            group.fragmentation = fragmentation::of_group(figures);
        }
    }

    /// Bytes to allocate from a group before the rotor advances: more if it is emptier than its
    /// class.
    pub(super) fn rotor_quota(
        &self,
        group: usize,
        class_free_percent: u64,
        policy: &dyn Policy,
    ) -> u64 {
        let aliquot = policy.aliquot(self.spec.width, self.spec.nparity);
        if tunables::BIAS_ENABLED.get() == 0 {
            return aliquot;
        }
        let own = self.groups[group].free_percent();
        (u128::from(aliquot) * u128::from((100 + own).saturating_sub(class_free_percent)) / 100)
            as u64
    }
}
