//! The metadata area: metaslabs of a group that hold metadata and no new data (spec 09 §4.1).
//!
//! ```text
//!   data      ──> metaslabs outside of the area
//!   metadata  ──> metaslabs of the area      live + 2 txgs deferred + 3 txgs free
//! ```
//!
//! Only a policy that separates metadata has areas ([`Policy::separates_metadata`]), and only
//! groups of the normal class with enough metaslabs. Nothing on disk records an area: after an
//! import it is empty, and grows with the first allocations. Blocks of the other kind in its
//! metaslabs stay where they are until they are freed.
//!
//! After each commit the area is sized so that the next three txgs find room: it grows by the best
//! metaslab outside, and gives back the fullest ones. Separation ends for a while when data finds
//! no other metaslab, and while too little of the group is free: every metaslab serves all blocks
//! then. Hard effort ignores areas, so that they refuse no allocation.

use std::collections::BTreeSet;

use super::class::Class;
use super::group::{Group, Vdev};
use super::metaslab::Metaslab;
use super::policy::Policy;

/// Smallest group that has an area.
const METASLABS_MIN: usize = 16;
/// Free space of a group, in percent, below which it has no area.
const FREE_PERCENT_MIN: u64 = 3;
/// Txgs of metadata for which the area has free space after a commit.
const TXGS_AHEAD: u64 = 3;
/// Txgs without an area after data needed its metaslabs.
const REST_TXGS: u64 = 16;

/// The metadata area of a group.
#[derive(Debug, Default)]
pub(super) struct MetadataArea {
    members: BTreeSet<usize>,
    /// Bytes allocated for metadata since the last commit.
    allocated: u64,
    /// Bytes that a txg allocates for metadata: the last one, or a part of earlier ones.
    per_txg: u64,
    /// Txgs until there may be an area again.
    rest: u64,
}

/// Metaslabs that an allocation may use, by their membership in the area.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// All metaslabs.
    Any,
    /// Metaslabs in the area.
    Metadata,
    /// Metaslabs outside of the area.
    Data,
}

impl MetadataArea {
    /// Whether a metaslab is on a side.
    pub(super) fn has(&self, side: Side, id: usize) -> bool {
        match side {
            Side::Any => true,
            Side::Metadata => self.members.contains(&id),
            Side::Data => !self.members.contains(&id),
        }
    }

    /// Counts an allocation of metadata.
    pub(super) fn note(&mut self, bytes: u64) {
        self.allocated += bytes;
    }

    /// Ends the area.
    pub(super) fn dissolve(&mut self, rest: u64) {
        self.members.clear();
        self.rest = rest;
    }
}

impl Group {
    /// Whether blocks of this group are separated now.
    fn is_separated(&self) -> bool {
        self.order.len() >= METASLABS_MIN
            && self.metadata.rest == 0
            && self.free_percent() >= FREE_PERCENT_MIN
    }
}

impl Vdev {
    /// Returns the side of a group that serves an allocation.
    pub(super) fn side(&self, group: usize, is_metadata: bool, policy: &dyn Policy) -> Side {
        let is_normal = self.spec.class == Class::Normal && group == 0;
        if !is_normal || !policy.separates_metadata() || !self.groups[group].is_separated() {
            Side::Any
        } else if is_metadata {
            Side::Metadata
        } else {
            Side::Data
        }
    }

    /// Makes room on a side that could not serve an allocation: the area grows, or ends. Returns
    /// the side to search now; `None` if nothing changes.
    pub(super) fn widen(&mut self, group: usize, side: Side) -> Option<Side> {
        match side {
            Side::Any => None,
            Side::Metadata => self.grow_area(group).then_some(side),
            Side::Data => {
                let area = &mut self.groups[group].metadata;
                let is_useful = !area.members.is_empty();
                area.dissolve(REST_TXGS);
                is_useful.then_some(Side::Any)
            }
        }
    }

    /// Adds the best metaslab to the area; false if there is none.
    fn grow_area(&mut self, group: usize) -> bool {
        let own = &self.groups[group];
        let is_suitable = |id: usize| {
            let metaslab = &self.metaslabs[id];
            own.metadata.has(Side::Data, id)
                && metaslab.activation.is_none()
                && metaslab.disabled == 0
                && metaslab.new_in.is_none()
                && !metaslab.is_broken
                && metaslab.usable() > 0
        };
        let best = own.order.iter().map(|(_, id)| *id).find(|id| is_suitable(*id));
        best.is_some_and(|id| self.groups[group].metadata.members.insert(id))
    }

    /// Sizes the area after a commit.
    pub(super) fn resize_area(&mut self, policy: &dyn Policy) {
        let area = &mut self.groups[0].metadata;
        area.per_txg = area.allocated.max(area.per_txg - area.per_txg / 8);
        area.allocated = 0;
        area.rest = area.rest.saturating_sub(1);
        if self.side(0, true, policy) != Side::Metadata {
            self.groups[0].metadata.members.clear();
            return;
        }
        let wanted = self.groups[0].metadata.per_txg.saturating_mul(TXGS_AHEAD);
        while self.area_usable() < wanted && self.grow_area(0) {}
        // Less than what a txg writes is no reason to change members.
        let most = wanted + self.groups[0].metadata.per_txg;
        while let Some((usable, id)) = self.fullest_member()
            && self.area_usable().saturating_sub(usable) > most
        {
            self.groups[0].metadata.members.remove(&id);
        }
    }

    fn area_usable(&self) -> u64 {
        let members = self.groups[0].metadata.members.iter();
        members.map(|id| self.metaslabs[*id].usable()).sum()
    }

    /// Returns the member with the least usable bytes that no stream has open.
    fn fullest_member(&self) -> Option<(u64, usize)> {
        let members = self.groups[0].metadata.members.iter();
        let closed = members.filter(|id| self.metaslabs[**id].activation.is_none());
        closed.map(|id| (Metaslab::usable(&self.metaslabs[*id]), *id)).min()
    }
}
