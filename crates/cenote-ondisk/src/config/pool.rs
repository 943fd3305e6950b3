//! Facts about the pool as a whole in labels and the MOS (spec 01 §4).

use super::{CorruptConfig, VdevConfig, VdevKind, flag, need, text};
use crate::nvlist::NvList;

/// Whether a pool is in use; also marks devices that belong to no pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolState {
    /// In use, or its host went down.
    Active,
    /// Exported.
    Exported,
    /// Destroyed; the data is still there.
    Destroyed,
    /// Not a pool: a hot spare.
    Spare,
    /// Not a pool: a cache device.
    L2Cache,
}

impl PoolState {
    /// The state with this number.
    #[must_use]
    pub const fn from_id(id: u64) -> Option<Self> {
        Some(match id {
            0 => Self::Active,
            1 => Self::Exported,
            2 => Self::Destroyed,
            3 => Self::Spare,
            4 => Self::L2Cache,
            _ => return None,
        })
    }

    /// Its number.
    #[must_use]
    pub const fn id(self) -> u64 {
        match self {
            Self::Active => 0,
            Self::Exported => 1,
            Self::Destroyed => 2,
            Self::Spare => 3,
            Self::L2Cache => 4,
        }
    }

    fn decode(list: &NvList) -> Result<Self, CorruptConfig> {
        let value = need(list, "state")?;
        Self::from_id(value).ok_or(CorruptConfig::Value { key: "state", value })
    }
}

/// Facts about the pool in both kinds of configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolFacts {
    /// Pool version; 5000 with feature flags, else 1 to 28.
    pub version: u64,
    /// Name of the pool.
    pub name: String,
    /// Whether it is in use.
    pub state: PoolState,
    /// The txg in which this was written; 0: not a member, or no longer.
    pub txg: u64,
    /// Guid of the pool.
    pub pool_guid: u64,
    /// Number of a known defect in the pool's history; 0 = none.
    pub errata: u64,
    /// The administrator's comment.
    pub comment: Option<String>,
    /// The property `compatibility`: names of feature sets.
    pub compatibility: Option<String>,
    /// Id of the host that used it last; 0 = none.
    pub hostid: u64,
    /// Name of that host.
    pub hostname: Option<String>,
    /// Top-level slots, holes and indirect ones included; absent on ancient pools.
    pub vdev_children: Option<u64>,
    /// Ids of the slots that are holes.
    pub hole_array: Vec<u64>,
    /// Active features without which the MOS cannot be read; absent before feature flags.
    pub features_for_read: Option<Vec<String>>,
    /// Guid of the pool from which this one is being split.
    pub split_guid: Option<u64>,
    /// Guids of the leaves that are being split off to another pool, by top-level vdev; 0 for those
    /// without. Empty when no split is in progress.
    pub split_leaves: Vec<u64>,
}

impl PoolFacts {
    fn decode(list: &NvList) -> Result<Self, CorruptConfig> {
        let features = list.list("features_for_read");
        Ok(Self {
            version: need(list, "version")?,
            name: text(list, "name").ok_or(CorruptConfig::Missing { key: "name" })?,
            state: PoolState::decode(list)?,
            txg: need(list, "txg")?,
            pool_guid: need(list, "pool_guid")?,
            errata: list.u64("errata").unwrap_or(0),
            comment: text(list, "comment"),
            compatibility: text(list, "compatibility"),
            hostid: list.u64("hostid").unwrap_or(0),
            hostname: text(list, "hostname"),
            vdev_children: list.u64("vdev_children"),
            hole_array: list.u64_array("hole_array").unwrap_or_default().to_vec(),
            features_for_read: features
                .map(|list| list.iter().map(|(name, _)| name.to_string()).collect()),
            split_guid: list.u64("split_guid"),
            split_leaves: list
                .list("splitcfg")
                .and_then(|split| split.u64_array("guid_list"))
                .unwrap_or_default()
                .to_vec(),
        })
    }
}

/// The configuration in the MOS, or an entry of `zpool.cache`.
#[derive(Debug, Clone, PartialEq)]
pub struct PoolConfig {
    /// The pool.
    pub facts: PoolFacts,
    /// Whether every vdev has a ZAP with its properties, listed in the pool directory.
    pub has_per_vdev_zaps: bool,
    /// The tree from the root.
    pub vdev_tree: VdevConfig,
    /// The whole nvlist as stored.
    pub raw: NvList,
}

impl PoolConfig {
    /// Decodes the full configuration.
    pub fn decode(raw: NvList) -> Result<Self, CorruptConfig> {
        let tree = raw.list("vdev_tree").ok_or(CorruptConfig::Missing { key: "vdev_tree" })?;
        let vdev_tree = VdevConfig::decode(tree)?;
        if vdev_tree.kind != VdevKind::Root {
            return Err(CorruptConfig::VdevType { kind: vdev_tree.kind.name().into() });
        }
        Ok(Self {
            facts: PoolFacts::decode(&raw)?,
            has_per_vdev_zaps: flag(&raw, "com.delphix:has_per_vdev_zaps"),
            vdev_tree,
            raw,
        })
    }
}

/// Facts in the label of a pool's member, beyond those of the pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberConfig {
    /// The pool.
    pub facts: PoolFacts,
    /// Guid of the top-level vdev above the leaf.
    pub top_guid: u64,
    /// Whether the leaf is a hot spare in use.
    pub is_spare: bool,
    /// Whether the leaf belongs to a log vdev.
    pub is_log: bool,
    /// The top-level vdev.
    pub vdev_tree: VdevConfig,
}

/// The configuration in a leaf's label.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelConfig {
    /// State of the pool, or kind of the device.
    pub state: PoolState,
    /// Pool version.
    pub version: u64,
    /// Guid of the leaf.
    pub guid: u64,
    /// The txg in which the label was written; 0 = not a member, and for spares and caches.
    pub txg: u64,
    /// Log2 of the sector size, which decides the slots of the uberblock ring: that of the
    /// top-level vdev, or of a cache device itself; 0 if absent.
    pub ashift: u64,
    /// The pool and the tree; `None` for an idle spare and for a cache device.
    pub member: Option<MemberConfig>,
    /// The whole nvlist as stored.
    pub raw: NvList,
}

impl LabelConfig {
    /// Decodes a label's list.
    pub fn decode(raw: NvList) -> Result<Self, CorruptConfig> {
        let state = PoolState::decode(&raw)?;
        let member = match state {
            PoolState::Spare | PoolState::L2Cache => None,
            _ => Some(MemberConfig::decode(&raw)?),
        };
        let ashift = match &member {
            Some(member) => member.vdev_tree.top.ashift,
            None => raw.u64("ashift").unwrap_or(0),
        };
        Ok(Self {
            state,
            version: need(&raw, "version")?,
            guid: need(&raw, "guid")?,
            txg: raw.u64("txg").unwrap_or(0),
            ashift,
            member,
            raw,
        })
    }
}

impl MemberConfig {
    fn decode(raw: &NvList) -> Result<Self, CorruptConfig> {
        let tree = raw.list("vdev_tree").ok_or(CorruptConfig::Missing { key: "vdev_tree" })?;
        Ok(Self {
            facts: PoolFacts::decode(raw)?,
            top_guid: need(raw, "top_guid")?,
            is_spare: flag(raw, "is_spare"),
            is_log: flag(raw, "is_log"),
            vdev_tree: VdevConfig::decode(tree)?,
        })
    }
}
