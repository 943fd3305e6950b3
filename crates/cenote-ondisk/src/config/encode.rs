//! Encodes configurations as nvlists, for labels, the MOS and `zpool.cache`.
//!
//! The keys are in OpenZFS's order, so that a config that was decoded and not changed is encoded to
//! the same list. Labels omit facts that only the MOS has: the objects with the properties of vdevs
//! (spec 01 §4, §5).

use super::{Draid, LeafConfig, PoolFacts, TopConfig, VdevConfig, VdevKind};
use crate::nvlist::{NvList, NvString, NvValue};

/// Destination of a configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Audience {
    /// A leaf's label.
    Label,
    /// The MOS, or `zpool.cache`.
    Full,
}

/// The list in the label of the leaf `leaf_guid` below the top-level vdev `top`.
#[must_use]
pub fn label_list(facts: &PoolFacts, top: &VdevConfig, leaf_guid: u64) -> NvList {
    let mut list = facts.head();
    list.insert("top_guid", top.guid);
    list.insert("guid", leaf_guid);
    if top.find(leaf_guid).is_some_and(|leaf| leaf.leaf.is_spare) {
        list.insert("is_spare", 1_u64);
    }
    if top.top.is_log {
        list.insert("is_log", 1_u64);
    }
    facts.tail(&mut list, top.encode_at(Audience::Label, true));
    list
}

/// The list in the MOS, or for `zpool.cache`.
#[must_use]
pub fn pool_list(facts: &PoolFacts, root: &VdevConfig, has_per_vdev_zaps: bool) -> NvList {
    let mut list = facts.head();
    // Too long for labels.
    let mut split = NvList::new();
    if !facts.split_leaves.is_empty() {
        split.insert("guid_list", facts.split_leaves.clone());
    }
    optional(&mut split, "split_guid", facts.split_guid);
    if !split.pairs.is_empty() {
        list.insert("splitcfg", split);
    }
    facts.tail(&mut list, root.encode(Audience::Full));
    if has_per_vdev_zaps {
        list.insert("com.delphix:has_per_vdev_zaps", NvValue::Boolean);
    }
    list
}

impl PoolFacts {
    /// The pairs before the vdevs.
    fn head(&self) -> NvList {
        let mut list = NvList::new();
        list.insert("version", self.version);
        list.insert("name", self.name.as_str());
        list.insert("state", self.state.id());
        list.insert("txg", self.txg);
        list.insert("pool_guid", self.pool_guid);
        list.insert("errata", self.errata);
        optional(&mut list, "comment", self.comment.as_deref());
        optional(&mut list, "compatibility", self.compatibility.as_deref());
        // OpenZFS crashes on a hostid without a hostname.
        if self.hostid != 0 {
            list.insert("hostid", self.hostid);
            list.insert("hostname", self.hostname.as_deref().unwrap_or_default());
        }
        list
    }

    fn tail(&self, list: &mut NvList, tree: NvList) {
        if !self.hole_array.is_empty() {
            list.insert("hole_array", self.hole_array.clone());
        }
        optional(list, "vdev_children", self.vdev_children);
        optional(list, "split_guid", self.split_guid);
        list.insert("vdev_tree", tree);
        if let Some(features) = &self.features_for_read {
            let mut names = NvList::new();
            for name in features {
                names.insert(name.as_str(), NvValue::Boolean);
            }
            list.insert("features_for_read", names);
        }
    }
}

impl VdevConfig {
    /// Encodes this vdev and its descendants: a `vdev_tree`, if it is the root.
    #[must_use]
    pub fn encode(&self, audience: Audience) -> NvList {
        self.encode_at(audience, false)
    }

    /// Encodes the entry of a hot spare or a cache device in the list of these (spec 01 §10), which
    /// has no position in the tree.
    #[must_use]
    pub fn encode_aux(&self) -> NvList {
        let mut list = self.encode_at(Audience::Full, false);
        list.pairs.retain(|pair| pair.name != "id" && pair.name != "create_txg");
        if self.top.ashift != 0 {
            list.insert("ashift", self.top.ashift);
        }
        list
    }

    /// `is_top`: the vdev is a child of the root.
    fn encode_at(&self, audience: Audience, is_top: bool) -> NvList {
        let mut list = NvList::new();
        list.insert("type", self.kind.name());
        list.insert("id", self.id);
        list.insert("guid", self.guid);
        self.leaf.encode_names(&mut list);
        self.encode_kind(&mut list);
        // OpenZFS has it on disks, and on vdevs that were created in a running pool.
        let has_whole_disk = match self.kind {
            VdevKind::Disk
            | VdevKind::Hole
            | VdevKind::Indirect
            | VdevKind::Replacing
            | VdevKind::Spare => true,
            _ => self.leaf.whole_disk,
        };
        if has_whole_disk {
            list.insert("whole_disk", u64::from(self.leaf.whole_disk));
        }
        flag(&mut list, "not_present", self.leaf.not_present);
        flag(&mut list, "is_spare", self.leaf.is_spare);
        if is_top {
            self.top.encode(&mut list);
        }
        optional(&mut list, "DTL", self.leaf.dtl_object);
        self.top.encode_removal(&mut list);
        if self.create_txg != 0 {
            list.insert("create_txg", self.create_txg);
        }
        if audience == Audience::Full {
            if self.leaf.resilver_defer {
                list.insert("com.datto:resilver_defer", NvValue::Boolean);
            }
            optional(&mut list, "com.delphix:vdev_zap_leaf", self.leaf.zap_leaf);
            optional(&mut list, "com.delphix:vdev_zap_top", self.top.zap_top);
            optional(&mut list, "com.klarasystems:vdev_zap_root", self.zap_root);
        }
        let has_children = matches!(self.kind, VdevKind::Indirect) || !self.children.is_empty();
        if has_children {
            let is_root = self.kind == VdevKind::Root;
            let children: Vec<NvList> =
                self.children.iter().map(|child| child.encode_at(audience, is_root)).collect();
            list.insert("children", children);
        }
        self.leaf.encode_state(&mut list);
        flag(&mut list, "is_hole", self.kind == VdevKind::Hole);
        list
    }

    fn encode_kind(&self, list: &mut NvList) {
        match &self.kind {
            VdevKind::RaidZ(raidz) => {
                list.insert("nparity", raidz.nparity);
                if raidz.expanding {
                    list.insert("raidz_expanding", NvValue::Boolean);
                }
                if !raidz.expand_txgs.is_empty() {
                    list.insert("raidz_expand_txgs", raidz.expand_txgs.clone());
                }
            }
            VdevKind::Draid(Draid { nparity, ndata, nspares, ngroups, nchildren }) => {
                list.insert("nparity", *nparity);
                list.insert("draid_ndata", *ndata);
                list.insert("draid_nspares", *nspares);
                list.insert("draid_ngroups", *ngroups);
                optional(list, "draid_nchildren", *nchildren);
            }
            VdevKind::DraidSpare { top_guid, spare_id } => {
                list.insert("top_guid", *top_guid);
                list.insert("spareid", *spare_id);
            }
            _ => {}
        }
    }
}

impl TopConfig {
    fn encode(&self, list: &mut NvList) {
        list.insert("metaslab_array", self.metaslab_array);
        list.insert("metaslab_shift", self.metaslab_shift);
        list.insert("ashift", self.ashift);
        list.insert("asize", self.asize);
        list.insert("is_log", u64::from(self.is_log));
        flag(list, "non_allocating", self.non_allocating);
        flag(list, "removing", self.removing);
    }

    fn encode_removal(&self, list: &mut NvList) {
        optional(list, "com.delphix:indirect_object", self.indirect_object);
        optional(list, "com.delphix:indirect_births", self.indirect_births);
        optional(list, "com.delphix:prev_indirect_vdev", self.prev_indirect_vdev);
    }
}

impl LeafConfig {
    fn encode_names(&self, list: &mut NvList) {
        for (key, text) in [
            ("path", &self.path),
            ("devid", &self.devid),
            ("phys_path", &self.phys_path),
            ("vdev_enc_sysfs_path", &self.enclosure_path),
            ("fru", &self.fru),
        ] {
            optional::<NvString>(list, key, text.clone());
        }
    }

    fn encode_state(&self, list: &mut NvList) {
        flag(list, "offline", self.offline);
        optional(list, "resilver_txg", self.resilver_txg);
        optional(list, "rebuild_txg", self.rebuild_txg);
        flag(list, "faulted", self.faulted);
        flag(list, "degraded", self.degraded);
        flag(list, "removed", self.removed);
        flag(list, "unspare", self.unspare);
        optional(list, "aux_state", self.aux_state.as_deref());
        optional(list, "orig_guid", self.orig_guid);
    }
}

fn optional<T: Into<NvValue>>(list: &mut NvList, key: &str, value: Option<T>) {
    if let Some(value) = value {
        list.insert(key, value);
    }
}

/// A flag is present if it is set.
fn flag(list: &mut NvList, key: &str, is_set: bool) {
    if is_set {
        list.insert(key, 1_u64);
    }
}
