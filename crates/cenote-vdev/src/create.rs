//! Configs of new vdevs, for `zpool create` and `zpool add`.
//!
//!     CreateSpec { tops: [ raidz2 of 6, mirror of 2 (log) ], spares, caches }
//!        -> Created { root config, class of each top-level vdev, configs of spares and caches }
//!
//! Decisions that are made once and stored are made here: guids, ashift, sizes, metaslab shift. No
//! device is touched; the spec carries the sizes and sector sizes of the devices (spec 01 §1, §5,
//! §18).

use std::collections::{BTreeMap, BTreeSet};

use cenote_device::DeviceInfo;
use cenote_ondisk::config::{
    Draid as DraidKeys, LeafConfig, RaidZ, TopConfig, VdevConfig, VdevKind as ConfigKind,
};
use cenote_ondisk::nvlist::NvString;
use cenote_rt::Result;

use crate::layout;

/// Most children of a RAID-Z or dRAID vdev.
const CHILDREN_MAX: u64 = 255;
/// Most distributed spares of a dRAID.
const DRAID_SPARES_MAX: u64 = 100;
/// Default number of data columns of a dRAID group, if there are enough children.
const DRAID_DATA_DEFAULT: u64 = 8;

/// Why a spec does not describe valid vdevs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CreateError {
    /// A dRAID's name has the wrong syntax.
    #[error(
        "'{0}' is not a valid layout: expected draid[parity][:<data>d][:<children>c][:<spares>s]"
    )]
    Syntax(String),
    /// Too few or too many children.
    #[error("{redundancy} needs {least} to {most} devices, {count} given")]
    Children {
        /// The layout.
        redundancy: String,
        /// Least number that works.
        least: u64,
        /// Largest number that works.
        most: u64,
        /// Devices given.
        count: u64,
    },
    /// The number of children in the dRAID's name is not the number of devices given.
    #[error("{redundancy} names {said} devices, {count} given")]
    ChildrenSaid {
        /// The layout.
        redundancy: String,
        /// Children in the name.
        said: u64,
        /// Devices given.
        count: u64,
    },
    /// The dRAID's groups do not fill whole rows.
    #[error("{redundancy}: groups of {width} do not fit into {disks} devices")]
    Group {
        /// The layout.
        redundancy: String,
        /// Columns of a group.
        width: u64,
        /// Children without spares.
        disks: u64,
    },
    /// The allocation class does not allow this layout.
    #[error("a {class:?} vdev cannot be a {redundancy}")]
    Class {
        /// The class.
        class: VdevClass,
        /// The layout.
        redundancy: String,
    },
    /// The pool has no vdev for normal data.
    #[error("a pool needs at least one vdev for data")]
    NoData,
    /// A device is too small.
    #[error("{path} has {size} bytes, a device needs 64 MiB at least")]
    TooSmall {
        /// The device.
        path: String,
        /// Its size.
        size: u64,
    },
    /// A vdev would have less room than the smallest device.
    #[error("{redundancy} of devices of this size has no room for data")]
    NoRoom {
        /// The layout.
        redundancy: String,
    },
    /// No sector size is possible.
    #[error("no ashift from 9 to 16 fits both the devices and the requested ashift")]
    Ashift,
}

/// Allocation class of a top-level vdev (`allocation_bias`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VdevClass {
    /// Normal class: all data.
    Normal,
    /// Intent logs.
    Log,
    /// Metadata, and small blocks.
    Special,
    /// Deduplication tables.
    Dedup,
}

impl VdevClass {
    /// The value of the vdev's `allocation_bias` in its ZAP; `None` for normal vdevs.
    pub const fn bias(self) -> Option<&'static str> {
        match self {
            Self::Normal => None,
            Self::Log => Some("log"),
            Self::Special => Some("special"),
            Self::Dedup => Some("dedup"),
        }
    }
}

/// Redundancy of a top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Redundancy {
    /// None: one device.
    Single,
    /// Copies on all children.
    Mirror,
    /// RAID-Z with this many parity columns.
    Raidz(u64),
    /// dRAID; numbers that were not given are `None`.
    Draid {
        /// Parity columns.
        nparity: u64,
        /// Data columns of a group.
        ndata: Option<u64>,
        /// Children, used only to check the number of devices.
        children: Option<u64>,
        /// Distributed spares.
        nspares: u64,
    },
}

impl std::fmt::Display for Redundancy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Single => f.write_str("single device"),
            Self::Mirror => f.write_str("mirror"),
            Self::Raidz(nparity) => write!(f, "raidz{nparity}"),
            Self::Draid { nparity, ndata, children, nspares } => {
                write!(f, "draid{nparity}")?;
                if let Some(ndata) = ndata {
                    write!(f, ":{ndata}d")?;
                }
                if let Some(children) = children {
                    write!(f, ":{children}c")?;
                }
                write!(f, ":{nspares}s")
            }
        }
    }
}

impl Redundancy {
    /// Parses the name of a layout: `mirror`, `raidz`, `raidz1` to `raidz3`, `draid2:4d:11c:1s`.
    /// Returns `None` for any other name.
    ///
    /// # Errors
    /// [`CreateError::Syntax`] if the name begins with `draid` and the rest is malformed.
    pub fn parse(name: &str) -> Result<Option<Self>, CreateError> {
        Ok(Some(match name {
            "mirror" => Self::Mirror,
            "raidz" | "raidz1" => Self::Raidz(1),
            "raidz2" => Self::Raidz(2),
            "raidz3" => Self::Raidz(3),
            _ => match name.strip_prefix("draid") {
                Some(rest) => {
                    let syntax = || CreateError::Syntax(name.to_owned());
                    parse_draid(rest).ok_or_else(syntax)?
                }
                None => return Ok(None),
            },
        }))
    }
}

/// Parses the part of a dRAID's name after `draid`.
fn parse_draid(rest: &str) -> Option<Redundancy> {
    let mut fields = rest.split(':');
    let nparity = match fields.next()? {
        "" => 1,
        digits => digits.parse().ok().filter(|nparity| (1..=3).contains(nparity))?,
    };
    let (mut ndata, mut children, mut nspares) = (None, None, None);
    for field in fields {
        let (digits, unit) = field.split_at_checked(field.len().checked_sub(1)?)?;
        let slot = match unit {
            "d" => &mut ndata,
            "c" => &mut children,
            "s" => &mut nspares,
            _ => return None,
        };
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number: u64 = digits.parse().ok().filter(|_| is_number)?;
        if slot.replace(number).is_some() {
            return None;
        }
    }
    let is_possible = ndata != Some(0)
        && children.is_none_or(|count| count <= CHILDREN_MAX)
        && nspares.is_none_or(|count| count <= DRAID_SPARES_MAX);
    let nspares = nspares.unwrap_or(0);
    is_possible.then_some(Redundancy::Draid { nparity, ndata, children, nspares })
}

/// A device that will become a leaf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafSpec {
    /// Absolute path.
    pub path: NvString,
    /// Whether it is a block device.
    pub is_disk: bool,
    /// Whether ZFS owns the partition table of the disk.
    pub is_whole_disk: bool,
    /// Size in bytes.
    pub size: u64,
    /// Log2 of the logical sector size.
    pub logical_ashift: u64,
    /// Log2 of the physical sector size.
    pub physical_ashift: u64,
}

impl LeafSpec {
    /// Describes a whole open device.
    #[must_use]
    pub fn of(device: &DeviceInfo) -> Self {
        Self {
            path: device.path.as_str().into(),
            is_disk: device.is_block_device,
            is_whole_disk: false,
            size: device.size,
            logical_ashift: u64::from(device.logical_ashift),
            physical_ashift: u64::from(device.physical_ashift),
        }
    }
}

/// A new top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopSpec {
    /// Its redundancy.
    pub redundancy: Redundancy,
    /// Its allocation class.
    pub class: VdevClass,
    /// Its devices.
    pub leaves: Vec<LeafSpec>,
}

/// A new pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CreateSpec {
    /// Its top-level vdevs.
    pub tops: Vec<TopSpec>,
    /// Hot spares.
    pub spares: Vec<LeafSpec>,
    /// Cache devices.
    pub caches: Vec<LeafSpec>,
    /// Log2 of the sector size, if the administrator requested one.
    pub ashift: Option<u64>,
}

/// The configs of a new pool.
#[derive(Debug, Clone, PartialEq)]
pub struct Created {
    /// The tree; its guid is the pool's.
    pub root: VdevConfig,
    /// Allocation class of each top-level vdev.
    pub classes: Vec<VdevClass>,
    /// Hot spares, distributed ones included.
    pub spares: Vec<VdevConfig>,
    /// Cache devices.
    pub caches: Vec<VdevConfig>,
}

/// Generator of guids: random, never 0, never the same twice.
#[derive(Debug)]
pub struct Guids<R> {
    random: R,
    used: BTreeSet<u64>,
}

impl Guids<fn() -> Result<u64>> {
    /// Returns a generator that draws from the operating system's random numbers.
    pub fn unguessable() -> Self {
        Self::new(|| {
            let mut bytes = [0; 8];
            cenote_rt::secret_bytes(&mut bytes)?;
            Ok(u64::from_le_bytes(bytes))
        })
    }
}

impl<R: FnMut() -> Result<u64>> Guids<R> {
    /// Returns a generator that draws from `random`.
    pub fn new(random: R) -> Self {
        Self { random, used: BTreeSet::from([0]) }
    }

    /// Returns the next guid.
    ///
    /// # Errors
    /// An error of the source of random numbers.
    pub fn next_guid(&mut self) -> Result<u64> {
        loop {
            let guid = (self.random)()?;
            if self.used.insert(guid) {
                return Ok(guid);
            }
        }
    }
}

/// Returns the configs of a pool whose vdevs are born in `txg`.
///
/// # Errors
/// `Kind::Invalid` with a [`CreateError`], or an error of the source of guids.
pub fn pool(
    spec: &CreateSpec,
    txg: u64,
    guids: &mut Guids<impl FnMut() -> Result<u64>>,
) -> Result<Created> {
    if !spec.tops.iter().any(|top| top.class != VdevClass::Log) {
        return Err(invalid(CreateError::NoData));
    }
    let pool_guid = guids.next_guid()?;
    let (mut tops, mut spares, mut distributed) = (Vec::new(), Vec::new(), Vec::new());
    for (id, top) in (0..).zip(&spec.tops) {
        let config = self::top(top, id, spec.ashift, txg, guids)?;
        distributed.extend(distributed_spares(&config, guids)?);
        tops.push(config);
    }
    for leaf in &spec.spares {
        spares.push(spare(leaf, guids)?);
    }
    // In OpenZFS's order, in which spares are called in.
    spares.extend(distributed);
    let mut caches = Vec::new();
    for leaf in &spec.caches {
        caches.push(cache(leaf, spec.ashift, guids)?);
    }
    let mut root = VdevConfig::root(pool_guid, tops);
    root.create_txg = txg;
    let classes = spec.tops.iter().map(|top| top.class).collect();
    Ok(Created { root, classes, spares, caches })
}

/// Returns the config of the top-level vdev with id `id`.
///
/// # Errors
/// As [`pool`].
pub fn top(
    spec: &TopSpec,
    id: u64,
    wanted_ashift: Option<u64>,
    txg: u64,
    guids: &mut Guids<impl FnMut() -> Result<u64>>,
) -> Result<VdevConfig> {
    let kind = kind_of(spec).map_err(invalid)?;
    let ashifts: Vec<_> =
        spec.leaves.iter().map(|leaf| (leaf.logical_ashift, leaf.physical_ashift)).collect();
    let ashift =
        layout::ashift(wanted_ashift, &ashifts).ok_or_else(|| invalid(CreateError::Ashift))?;
    let mut config = match kind {
        Some(kind) => {
            let guid = guids.next_guid()?;
            let mut children = Vec::with_capacity(spec.leaves.len());
            for (child, leaf) in (0..).zip(&spec.leaves) {
                children.push(self::leaf(leaf, child, txg, guids)?);
            }
            VdevConfig { kind, guid, create_txg: txg, children, ..VdevConfig::missing(id) }
        }
        None => leaf(&spec.leaves[0], id, txg, guids)?,
    };
    let sizes: BTreeMap<u64, u64> =
        config.leaves().zip(&spec.leaves).map(|(leaf, spec)| (leaf.guid, spec.size)).collect();
    let size_of = |leaf: &VdevConfig| sizes.get(&leaf.guid).copied();
    let asize = layout::asize(&config, ashift as u32, &size_of).unwrap_or(0);
    let metaslab_shift = layout::metaslab_shift(asize);
    if asize < layout::ASIZE_MIN {
        let redundancy = spec.redundancy.to_string();
        return Err(invalid(CreateError::NoRoom { redundancy }));
    }
    config.top = TopConfig {
        metaslab_shift: u64::from(metaslab_shift),
        ashift,
        asize,
        is_log: spec.class == VdevClass::Log,
        ..TopConfig::default()
    };
    Ok(config)
}

/// Returns the config of a leaf.
///
/// # Errors
/// `Kind::Invalid` if the device is too small, or an error of the source of guids.
pub fn leaf(
    spec: &LeafSpec,
    id: u64,
    txg: u64,
    guids: &mut Guids<impl FnMut() -> Result<u64>>,
) -> Result<VdevConfig> {
    if layout::leaf_asize(spec.size).is_none() {
        let path = spec.path.to_string_lossy().into_owned();
        return Err(invalid(CreateError::TooSmall { path, size: spec.size }));
    }
    let path = Some(spec.path.clone());
    Ok(VdevConfig {
        kind: if spec.is_disk { ConfigKind::Disk } else { ConfigKind::File },
        guid: guids.next_guid()?,
        create_txg: txg,
        leaf: LeafConfig { path, whole_disk: spec.is_whole_disk, ..LeafConfig::default() },
        ..VdevConfig::missing(id)
    })
}

/// Returns the config of a hot spare.
///
/// # Errors
/// As [`leaf`].
pub fn spare(
    spec: &LeafSpec,
    guids: &mut Guids<impl FnMut() -> Result<u64>>,
) -> Result<VdevConfig> {
    let mut config = leaf(spec, 0, 0, guids)?;
    config.leaf.is_spare = true;
    Ok(config)
}

/// Returns the config of a cache device.
///
/// # Errors
/// As [`leaf`].
pub fn cache(
    spec: &LeafSpec,
    wanted_ashift: Option<u64>,
    guids: &mut Guids<impl FnMut() -> Result<u64>>,
) -> Result<VdevConfig> {
    let mut config = leaf(spec, 0, 0, guids)?;
    let ashifts = [(spec.logical_ashift, spec.physical_ashift)];
    let ashift = layout::ashift(wanted_ashift, &ashifts);
    config.top.ashift = ashift.ok_or_else(|| invalid(CreateError::Ashift))?;
    Ok(config)
}

/// Returns the distributed spares of a dRAID, as entries of the pool's list of spares (spec 06
/// §6.6).
///
/// # Errors
/// An error of the source of guids.
pub fn distributed_spares(
    top: &VdevConfig,
    guids: &mut Guids<impl FnMut() -> Result<u64>>,
) -> Result<Vec<VdevConfig>> {
    let ConfigKind::Draid(draid) = &top.kind else { return Ok(Vec::new()) };
    let mut spares = Vec::new();
    for spare_id in 0..draid.nspares {
        let name = format!("draid{}-{}-{spare_id}", draid.nparity, top.id);
        let path = NvString::from_bytes(name.as_bytes());
        let mut config = VdevConfig {
            kind: ConfigKind::DraidSpare { top_guid: top.guid, spare_id },
            guid: guids.next_guid()?,
            leaf: LeafConfig { path, whole_disk: true, is_spare: true, ..LeafConfig::default() },
            ..VdevConfig::missing(0)
        };
        config.top.ashift = top.top.ashift;
        spares.push(config);
    }
    Ok(spares)
}

/// The kind of an interior vdev with its numbers; `None` for a single device.
fn kind_of(spec: &TopSpec) -> Result<Option<ConfigKind>, CreateError> {
    let count = spec.leaves.len() as u64;
    let redundancy = spec.redundancy.to_string();
    let is_striped = matches!(spec.redundancy, Redundancy::Raidz(_) | Redundancy::Draid { .. });
    let is_draid = matches!(spec.redundancy, Redundancy::Draid { .. });
    if (spec.class == VdevClass::Log && is_striped) || (spec.class != VdevClass::Normal && is_draid)
    {
        return Err(CreateError::Class { class: spec.class, redundancy });
    }
    let (least, most) = match spec.redundancy {
        Redundancy::Single => (1, 1),
        Redundancy::Mirror => (2, u64::MAX),
        Redundancy::Raidz(nparity) => (nparity + 1, CHILDREN_MAX),
        Redundancy::Draid { nparity, ndata, nspares, .. } => {
            (nparity + ndata.unwrap_or(1) + nspares, CHILDREN_MAX)
        }
    };
    if !(least..=most).contains(&count) {
        return Err(CreateError::Children { redundancy, least, most, count });
    }
    Ok(match spec.redundancy {
        Redundancy::Single => None,
        Redundancy::Mirror => Some(ConfigKind::Mirror),
        Redundancy::Raidz(nparity) => {
            let (expanding, expand_txgs) = (false, Vec::new());
            Some(ConfigKind::RaidZ(RaidZ { nparity, expanding, expand_txgs }))
        }
        Redundancy::Draid { nparity, ndata, children, nspares } => {
            if let Some(said) = children.filter(|said| *said != count) {
                return Err(CreateError::ChildrenSaid { redundancy, said, count });
            }
            let disks = count - nspares;
            let ndata = ndata.unwrap_or((disks - nparity).min(DRAID_DATA_DEFAULT));
            let width = ndata + nparity;
            // Whole groups must fill whole rows.
            let ngroups = (1..=CHILDREN_MAX).find(|n| (n * width).is_multiple_of(disks));
            let ngroups = ngroups.filter(|_| width <= disks);
            let ngroups = ngroups.ok_or(CreateError::Group { redundancy, width, disks })?;
            Some(ConfigKind::Draid(DraidKeys { nparity, ndata, nspares, ngroups, nchildren: None }))
        }
    })
}

fn invalid(error: CreateError) -> cenote_rt::Error {
    cenote_rt::Error::new(cenote_rt::Kind::Invalid, error)
}

#[cfg(test)]
mod tests;
