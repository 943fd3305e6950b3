//! A pool that can be imported: the merged labels of its devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_device::Device;
use cenote_ondisk::config::{MemberConfig, PoolConfig, PoolFacts, PoolState, VdevConfig};
use cenote_ondisk::uberblock::Uberblock;

use super::device::Found;
use super::mmp::LastUse;

/// Maximum number of top-level vdevs; more come from a damaged label.
const SLOTS_MAX: u64 = 1 << 16;

/// A pool as described by its labels.
#[derive(Debug, Clone)]
pub struct Candidate {
    /// Facts about the pool, from the newest label.
    pub facts: PoolFacts,
    /// The vdev tree: top-level configs of the highest txg, holes, and `missing` for unknown ones.
    pub root: VdevConfig,
    /// Its devices, by path.
    pub devices: Vec<Arc<Found>>,
    /// Devices that claim the guid of a leaf for which a better device was found.
    pub duplicates: Vec<Arc<Found>>,
    /// Idle spares and cache devices of any pool that were found by the same scan.
    pub others: Vec<Arc<Found>>,
}

impl Candidate {
    /// Merges the devices of one pool.
    pub(super) fn merge(devices: Vec<Arc<Found>>, others: Vec<Arc<Found>>) -> Option<Self> {
        let (devices, duplicates) = without_duplicates(devices);
        let newest = devices.iter().max_by_key(|found| found.config.txg)?;
        let facts = newest.config.member.as_ref()?.facts.clone();
        let mut tops: BTreeMap<u64, (u64, &MemberConfig)> = BTreeMap::new();
        for found in &devices {
            let Some(member) = &found.config.member else { continue };
            let (txg, best) = tops.entry(member.top_guid).or_insert((found.config.txg, member));
            if found.config.txg > *txg {
                (*txg, *best) = (found.config.txg, member);
            }
        }
        let mut tops: Vec<_> = tops.into_values().collect();
        // Older configs first, so that newer ones replace them.
        tops.sort_by_key(|(txg, member)| (*txg, member.top_guid));
        let root = root_of(&facts, tops.iter().map(|(_, member)| &member.vdev_tree));
        let mut candidate = Self { facts, root, devices, duplicates, others };
        let mut root = candidate.root.clone();
        candidate.set_paths(&mut root);
        candidate.root = root;
        Some(candidate)
    }

    /// Returns a pool as a cache file describes it (spec 01 §17), without any of its devices.
    pub fn recorded(config: PoolConfig) -> Self {
        let (devices, duplicates, others) = (Vec::new(), Vec::new(), Vec::new());
        Self { facts: config.facts, root: config.vdev_tree, devices, duplicates, others }
    }

    /// The pool's guid.
    pub fn guid(&self) -> u64 {
        self.facts.pool_guid
    }

    /// The pool's name.
    pub fn name(&self) -> &str {
        &self.facts.name
    }

    /// Whether the pool was destroyed.
    pub fn is_destroyed(&self) -> bool {
        self.facts.state == PoolState::Destroyed
    }

    /// Returns the host that used it last.
    pub fn last_use(&self) -> LastUse {
        let is_released = matches!(self.facts.state, PoolState::Exported | PoolState::Destroyed);
        LastUse { hostid: self.facts.hostid, is_released }
    }

    /// Returns every valid uberblock of its devices.
    pub fn uberblocks(&self) -> Vec<Uberblock> {
        self.devices.iter().flat_map(|found| found.uberblocks.iter().copied()).collect()
    }

    /// Returns the device of the leaf `guid`, of the top-level vdev with this guid that became a
    /// leaf, or of the leaf with this guid that got, or was about to get, the guid of its mirror.
    pub fn found(&self, guid: u64) -> Option<&Arc<Found>> {
        if guid == 0 {
            return None;
        }
        let as_leaf = self.devices.iter().find(|found| found.guid() == guid);
        as_leaf.or_else(|| {
            let is_top = |found: &&Arc<Found>| {
                found.config.member.as_ref().is_some_and(|member| {
                    // Only a leaf can take the place of its top-level vdev.
                    member.top_guid == guid && member.vdev_tree.children.is_empty()
                })
            };
            let was_leaf = |found: &&Arc<Found>| found.other_leaves.contains(&guid);
            // By a split.
            let had_guid = |found: &&Arc<Found>| {
                found.config.member.as_ref().is_some_and(|member| {
                    let vdev = &member.vdev_tree;
                    vdev.children.is_empty() && vdev.leaf.orig_guid == Some(guid)
                })
            };
            let find = |is_it: &dyn Fn(&&Arc<Found>) -> bool| self.devices.iter().find(is_it);
            find(&is_top).or_else(|| find(&was_leaf)).or_else(|| find(&had_guid))
        })
    }

    /// Returns the device of a leaf of a config.
    pub fn device(&self, leaf: &VdevConfig) -> Option<Arc<dyn Device>> {
        self.found(leaf.guid).map(|found| Arc::clone(&found.device))
    }

    /// Returns the idle spare or cache device with this guid, or a spare in use.
    pub fn other(&self, guid: u64) -> Option<&Arc<Found>> {
        self.others.iter().chain(&self.devices).find(|found| found.guid() == guid)
    }

    /// Replaces the paths in a config by those at which the devices were found.
    pub(crate) fn set_paths(&self, config: &mut VdevConfig) {
        if config.kind.is_leaf()
            && let Some(found) = self.found(config.guid)
        {
            config.leaf.path = Some(found.path.as_str().into());
            config.leaf.not_present = false;
        }
        for child in &mut config.children {
            self.set_paths(child);
        }
    }
}

/// Keeps the best of the devices with the same guid; also returns the others.
fn without_duplicates(mut devices: Vec<Arc<Found>>) -> (Vec<Arc<Found>>, Vec<Arc<Found>>) {
    devices.sort_by(|a, b| b.rank().cmp(&a.rank()).then_with(|| a.path.cmp(&b.path)));
    let (mut best, mut rest): (Vec<Arc<Found>>, _) = (Vec::new(), Vec::new());
    for found in devices {
        let is_known = best.iter().any(|other| other.guid() == found.guid());
        if is_known { rest.push(found) } else { best.push(found) }
    }
    best.sort_by(|a, b| a.path.cmp(&b.path));
    (best, rest)
}

/// Builds a root vdev of the top-level configs.
fn root_of<'a>(facts: &PoolFacts, tops: impl Iterator<Item = &'a VdevConfig>) -> VdevConfig {
    let mut slots: Vec<Option<VdevConfig>> = Vec::new();
    let limit = facts.vdev_children.unwrap_or(SLOTS_MAX).min(SLOTS_MAX);
    for top in tops.filter(|top| top.id < limit) {
        let slot = top.id as usize;
        if slots.len() <= slot {
            slots.resize(slot + 1, None);
        }
        slots[slot] = Some(top.clone());
    }
    let count = facts.vdev_children.map_or(slots.len(), |count| count.min(SLOTS_MAX) as usize);
    slots.resize(count.max(1), None);
    let fill = |(id, slot): (usize, Option<VdevConfig>)| {
        let id = id as u64;
        match slot {
            _ if facts.hole_array.contains(&id) => VdevConfig::hole(id),
            Some(top) => top,
            None => VdevConfig::missing(id),
        }
    };
    VdevConfig::root(facts.pool_guid, slots.into_iter().enumerate().map(fill).collect())
}
