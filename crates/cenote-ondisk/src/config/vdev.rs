//! A vdev of the tree, with its descendants (spec 01 §5).

use super::{ASHIFT_MAX, ASHIFT_MIN, CorruptConfig, VDEV_DEPTH_MAX, flag, need, ranged, text};
use crate::indirect::{CONFIG_BIRTHS, CONFIG_MAPPING, CONFIG_PREV};
use crate::nvlist::{NvList, NvString};
use crate::vdev_zap::{CONFIG_LEAF, CONFIG_ROOT, CONFIG_TOP};

/// RAID-Z parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaidZ {
    /// Parity columns, 1 to 3.
    pub nparity: u64,
    /// Whether an expansion is running: the last child is being added.
    pub expanding: bool,
    /// The txg of each expansion that was completed, ascending.
    pub expand_txgs: Vec<u64>,
}

/// dRAID parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draid {
    /// Parity columns, 1 to 3.
    pub nparity: u64,
    /// Data columns of a redundancy group.
    pub ndata: u64,
    /// Distributed spares.
    pub nspares: u64,
    /// Redundancy groups in a slice.
    pub ngroups: u64,
    /// Children of a failure domain (2.4.99 with `draid_failure_domains` only).
    pub nchildren: Option<u64>,
}

/// The type of a vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VdevKind {
    /// The root; its children are the top-level vdevs.
    Root,
    /// Copies on all children.
    Mirror,
    /// A mirror of the old (first) and the new (last) device.
    Replacing,
    /// A mirror of the original and the spares that stand in for it.
    Spare,
    /// RAID-Z.
    RaidZ(RaidZ),
    /// dRAID.
    Draid(Draid),
    /// A distributed spare of a dRAID: a leaf without device or labels.
    DraidSpare {
        /// Guid of the dRAID.
        top_guid: u64,
        /// Index among its spares.
        spare_id: u64,
    },
    /// A regular file.
    File,
    /// A block device.
    Disk,
    /// A top-level slot that a removed log left empty.
    Hole,
    /// A top-level slot for which no configuration was found.
    Missing,
    /// A removed top-level vdev: offsets are mapped to other vdevs.
    Indirect,
}

impl VdevKind {
    /// The type's name in a configuration.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Mirror => "mirror",
            Self::Replacing => "replacing",
            Self::Spare => "spare",
            Self::RaidZ(_) => "raidz",
            Self::Draid(_) => "draid",
            Self::DraidSpare { .. } => "dspare",
            Self::File => "file",
            Self::Disk => "disk",
            Self::Hole => "hole",
            Self::Missing => "missing",
            Self::Indirect => "indirect",
        }
    }

    /// Whether it has a device; a distributed spare counts as one.
    #[must_use]
    pub const fn is_leaf(&self) -> bool {
        matches!(self, Self::File | Self::Disk | Self::DraidSpare { .. })
    }

    /// Whether it has a device of its own.
    #[must_use]
    pub const fn is_real_leaf(&self) -> bool {
        matches!(self, Self::File | Self::Disk)
    }

    /// Whether data can be stored on it: neither hole, missing nor indirect.
    #[must_use]
    pub const fn is_concrete(&self) -> bool {
        !matches!(self, Self::Hole | Self::Missing | Self::Indirect)
    }

    fn decode(list: &NvList) -> Result<Self, CorruptConfig> {
        let name = list.string("type").ok_or(CorruptConfig::Missing { key: "type" })?;
        Ok(match name.as_bytes() {
            b"root" => Self::Root,
            b"mirror" => Self::Mirror,
            b"replacing" => Self::Replacing,
            b"spare" => Self::Spare,
            b"raidz" => Self::RaidZ(RaidZ {
                // Before double parity existed, the number was not stored.
                nparity: ranged(list, "nparity", 1, 1..=3)?,
                expanding: flag(list, "raidz_expanding"),
                expand_txgs: list.u64_array("raidz_expand_txgs").unwrap_or_default().to_vec(),
            }),
            b"draid" => Self::Draid(Draid {
                nparity: ranged(list, "nparity", 0, 1..=3)?,
                ndata: ranged(list, "draid_ndata", 0, 1..=255)?,
                nspares: ranged(list, "draid_nspares", u64::MAX, 0..=100)?,
                ngroups: ranged(list, "draid_ngroups", 0, 1..=255)?,
                nchildren: list.u64("draid_nchildren"),
            }),
            b"dspare" => Self::DraidSpare {
                top_guid: need(list, "top_guid")?,
                spare_id: need(list, "spareid")?,
            },
            b"file" => Self::File,
            b"disk" => Self::Disk,
            b"hole" => Self::Hole,
            b"missing" => Self::Missing,
            b"indirect" => Self::Indirect,
            _ => return Err(CorruptConfig::VdevType { kind: name.to_string() }),
        })
    }

    /// The least number of children, if the kind has children.
    fn children_needed(&self) -> Option<u64> {
        match self {
            Self::Root => Some(0),
            Self::Mirror | Self::Replacing | Self::Spare => Some(1),
            Self::RaidZ(raidz) => Some(raidz.nparity + 1),
            Self::Draid(draid) => Some(draid.ndata + draid.nparity + draid.nspares),
            _ => None,
        }
    }
}

/// Facts of top-level vdevs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopConfig {
    /// MOS object with the space map of each metaslab; 0 = none yet.
    pub metaslab_array: u64,
    /// Log2 of the size of a metaslab.
    pub metaslab_shift: u64,
    /// Log2 of the sector size; 0 on holes.
    pub ashift: u64,
    /// Bytes of the vdev's data area, parity included.
    pub asize: u64,
    /// Whether it is a log vdev.
    pub is_log: bool,
    /// Whether no new blocks are allocated on it.
    pub non_allocating: bool,
    /// Whether it is being removed.
    pub removing: bool,
    /// MOS object with the mapping of a (partly) removed vdev.
    pub indirect_object: Option<u64>,
    /// MOS object with the births of that mapping.
    pub indirect_births: Option<u64>,
    /// Id of the vdev removed before this one.
    pub prev_indirect_vdev: Option<u64>,
    /// MOS object with the vdev's properties.
    pub zap_top: Option<u64>,
}

/// Facts of leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "that is what is stored")]
pub struct LeafConfig {
    /// Path of the device when this was written.
    pub path: Option<NvString>,
    /// The operating system's identity of a disk.
    pub devid: Option<NvString>,
    /// Physical location.
    pub phys_path: Option<NvString>,
    /// Directory of its enclosure in sysfs.
    pub enclosure_path: Option<NvString>,
    /// Field-replaceable unit.
    pub fru: Option<NvString>,
    /// Whether ZFS owns the disk's partition table.
    pub whole_disk: bool,
    /// Space map object with the txgs missing on it.
    pub dtl_object: Option<u64>,
    /// Taken offline by the administrator.
    pub offline: bool,
    /// Faulted by the administrator or by diagnosis.
    pub faulted: bool,
    /// Degraded by diagnosis.
    pub degraded: bool,
    /// Pulled out.
    pub removed: bool,
    /// A spare that becomes a member when its resilver ends.
    pub unspare: bool,
    /// Whether it was missing when this was written.
    pub not_present: bool,
    /// A hot spare in use.
    pub is_spare: bool,
    /// Why it is faulted or degraded: "external" or "err_exceeded".
    pub aux_state: Option<String>,
    /// A resilver up to this txg is in progress.
    pub resilver_txg: Option<u64>,
    /// A sequential rebuild up to this txg is in progress.
    pub rebuild_txg: Option<u64>,
    /// Whether its resilver is deferred until the running one ends.
    pub resilver_defer: bool,
    /// Guid before a split.
    pub orig_guid: Option<u64>,
    /// MOS object with the vdev's properties.
    pub zap_leaf: Option<u64>,
}

/// A vdev with its descendants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VdevConfig {
    /// The type, with its parameters.
    pub kind: VdevKind,
    /// Index in the parent's children.
    pub id: u64,
    /// Unique in the pool; 0 for holes and missing ones.
    pub guid: u64,
    /// The txg in which it was added; 0 if unknown.
    pub create_txg: u64,
    /// Facts of a top-level vdev; all zero for others.
    pub top: TopConfig,
    /// Facts of a leaf; empty for others.
    pub leaf: LeafConfig,
    /// MOS object with the root's properties.
    pub zap_root: Option<u64>,
    /// The children.
    pub children: Vec<Self>,
}

impl VdevConfig {
    /// The MOS object with the properties that are set on the vdev: that of the root, else of the
    /// top-level vdev, else of the leaf. `None` if it has none.
    #[must_use]
    pub fn properties_object(&self) -> Option<u64> {
        let object = self.zap_root.or(self.top.zap_top).or(self.leaf.zap_leaf);
        object.filter(|object| *object != 0)
    }

    /// Decodes a `vdev_tree`, or the entry of a spare or cache device.
    pub fn decode(list: &NvList) -> Result<Self, CorruptConfig> {
        Self::decode_at(list, 0)
    }

    fn decode_at(list: &NvList, depth: usize) -> Result<Self, CorruptConfig> {
        if depth >= VDEV_DEPTH_MAX {
            return Err(CorruptConfig::Depth);
        }
        let kind = VdevKind::decode(list)?;
        let guid = match kind {
            VdevKind::Hole | VdevKind::Missing => list.u64("guid").unwrap_or(0),
            _ => match need(list, "guid")? {
                0 => return Err(CorruptConfig::Value { key: "guid", value: 0 }),
                guid => guid,
            },
        };
        let lists = list.list_array("children").unwrap_or_default();
        let children = match kind.children_needed() {
            Some(needed) if (lists.len() as u64) < needed => {
                return Err(CorruptConfig::Children { guid, count: lists.len(), needed });
            }
            Some(_) => decode_children(lists, guid, depth)?,
            None => Vec::new(),
        };
        let top = TopConfig::decode(list, &kind)?;
        let leaf = LeafConfig::decode(list);
        Ok(Self {
            id: list.u64("id").unwrap_or(0),
            guid,
            create_txg: list.u64("create_txg").unwrap_or(0),
            top,
            leaf,
            zap_root: list.u64(CONFIG_ROOT),
            children,
            kind,
        })
    }

    /// A placeholder for a top-level vdev for which no configuration was found.
    #[must_use]
    pub fn missing(id: u64) -> Self {
        Self::placeholder(VdevKind::Missing, id)
    }

    /// A top-level slot left by a removed log.
    #[must_use]
    pub fn hole(id: u64) -> Self {
        Self::placeholder(VdevKind::Hole, id)
    }

    fn placeholder(kind: VdevKind, id: u64) -> Self {
        Self {
            kind,
            id,
            guid: 0,
            create_txg: 0,
            top: TopConfig::default(),
            leaf: LeafConfig::default(),
            zap_root: None,
            children: Vec::new(),
        }
    }

    /// A root over top-level vdevs, for importing from labels.
    #[must_use]
    pub fn root(guid: u64, children: Vec<Self>) -> Self {
        Self { guid, children, ..Self::placeholder(VdevKind::Root, 0) }
    }

    /// This vdev and all its descendants, parents first.
    pub fn walk(&self) -> impl Iterator<Item = &Self> {
        let mut todo = vec![self];
        std::iter::from_fn(move || {
            let next = todo.pop()?;
            todo.extend(next.children.iter().rev());
            Some(next)
        })
    }

    /// All leaves, in order.
    pub fn leaves(&self) -> impl Iterator<Item = &Self> {
        self.walk().filter(|vdev| vdev.kind.is_leaf())
    }

    /// The vdev with this guid, among this one and its descendants.
    #[must_use]
    pub fn find(&self, guid: u64) -> Option<&Self> {
        self.walk().find(|vdev| vdev.guid == guid)
    }

    /// Like [`find`](Self::find), mutable.
    pub fn find_mut(&mut self, guid: u64) -> Option<&mut Self> {
        if self.guid == guid {
            return Some(self);
        }
        self.children.iter_mut().find_map(|child| child.find_mut(guid))
    }

    /// The wrapping sum of all guids, which the uberblock holds (spec 01 §7).
    #[must_use]
    pub fn guid_sum(&self) -> u64 {
        self.walk().fold(0, |sum, vdev| sum.wrapping_add(vdev.guid))
    }
}

fn decode_children(
    lists: &[NvList],
    parent: u64,
    depth: usize,
) -> Result<Vec<VdevConfig>, CorruptConfig> {
    let mut children = Vec::new();
    for (position, list) in lists.iter().enumerate() {
        let child = VdevConfig::decode_at(list, depth.saturating_add(1))?;
        if child.id != position as u64 {
            return Err(CorruptConfig::ChildId { parent, position, id: child.id });
        }
        children.push(child);
    }
    Ok(children)
}

impl TopConfig {
    fn decode(list: &NvList, kind: &VdevKind) -> Result<Self, CorruptConfig> {
        let shifts = match kind {
            VdevKind::Hole | VdevKind::Missing => 0..=ASHIFT_MAX,
            _ => ASHIFT_MIN..=ASHIFT_MAX,
        };
        Ok(Self {
            metaslab_array: list.u64("metaslab_array").unwrap_or(0),
            metaslab_shift: ranged(list, "metaslab_shift", 0, 0..=63)?,
            // Present only on top-level vdevs and on cache and spare devices.
            ashift: match list.u64("ashift") {
                None => 0,
                Some(_) => ranged(list, "ashift", 0, shifts)?,
            },
            asize: list.u64("asize").unwrap_or(0),
            is_log: flag(list, "is_log"),
            non_allocating: flag(list, "non_allocating"),
            removing: flag(list, "removing"),
            indirect_object: list.u64(CONFIG_MAPPING),
            indirect_births: list.u64(CONFIG_BIRTHS),
            prev_indirect_vdev: list.u64(CONFIG_PREV),
            zap_top: list.u64(CONFIG_TOP),
        })
    }
}

impl LeafConfig {
    fn decode(list: &NvList) -> Self {
        Self {
            path: list.string("path").cloned(),
            devid: list.string("devid").cloned(),
            phys_path: list.string("phys_path").cloned(),
            enclosure_path: list.string("vdev_enc_sysfs_path").cloned(),
            fru: list.string("fru").cloned(),
            whole_disk: flag(list, "whole_disk"),
            dtl_object: list.u64("DTL"),
            offline: flag(list, "offline"),
            faulted: flag(list, "faulted"),
            degraded: flag(list, "degraded"),
            removed: flag(list, "removed"),
            unspare: flag(list, "unspare"),
            not_present: flag(list, "not_present"),
            is_spare: flag(list, "is_spare"),
            aux_state: text(list, "aux_state"),
            resilver_txg: list.u64("resilver_txg"),
            rebuild_txg: list.u64("rebuild_txg"),
            resilver_defer: flag(list, "com.datto:resilver_defer"),
            orig_guid: list.u64("orig_guid"),
            zap_leaf: list.u64(CONFIG_LEAF),
        }
    }
}
