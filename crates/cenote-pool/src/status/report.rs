//! The vdev tree of a status: names, states, counters, space figures.

use std::sync::Arc;

use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::label;
use cenote_vdev::queue::QueueStats;
use cenote_vdev::{LeafStats, Tree, VdevAux, VdevState};

use crate::Pool;
use crate::accounting::{AllocationClass, Space, VdevFigures};
use crate::import::AuxDevice;
use crate::status::LeafProgress;

/// Device of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafDevice {
    /// Its size in bytes, in whole labels.
    pub size: u64,
    /// Bytes by which it has become longer, and that the vdev does not count.
    pub unused: u64,
    /// Log2 of its sector size.
    pub physical_ashift: u8,
}

/// A vdev and its children.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "facts that stand beside each other")]
pub struct VdevReport {
    /// Its kind.
    pub kind: VdevKind,
    /// Index among its parent's children.
    pub id: u64,
    /// Its guid.
    pub guid: u64,
    /// Path of a leaf, or its guid if the device is absent; kind and number of other vdevs.
    pub name: String,
    /// Path of a leaf; for an absent one its last path.
    pub path: Option<String>,
    /// Whether its device was not found.
    pub is_absent: bool,
    /// Its state.
    pub state: VdevState,
    /// Cause of the state.
    pub aux: VdevAux,
    /// Allocation class of a top-level vdev.
    pub class: Option<AllocationClass>,
    /// I/O and error counters since import.
    pub stats: LeafStats,
    /// Queue statistics of a leaf.
    pub queue: Option<Arc<QueueStats>>,
    /// Log2 of the sector size in use.
    pub ashift: u64,
    /// Device of a leaf, if there is one.
    pub device: Option<LeafDevice>,
    /// Space figures of a top-level vdev.
    pub figures: Option<VdevFigures>,
    /// Whether it is being removed.
    pub is_removing: bool,
    /// Whether new data is allocated elsewhere.
    pub is_non_allocating: bool,
    /// Whether it is a leaf in service that lacks data which a recorded resilver or rebuild covers.
    pub is_resilvering: bool,
    /// Whether its resilver is deferred until the running one ends.
    pub is_deferred: bool,
    /// Whether it is a healthy leaf with a nonempty dirty time log that no recorded resilver
    /// covers.
    pub needs_resilver: bool,
    /// Progress of trim of a leaf.
    pub trim: LeafProgress,
    /// Progress of initialize of a leaf.
    pub initialize: LeafProgress,
    /// Its children.
    pub children: Vec<Self>,
}

/// A hot spare or cache device.
#[derive(Debug, Clone)]
pub struct AuxReport {
    /// Its kind.
    pub kind: VdevKind,
    /// Its guid.
    pub guid: u64,
    /// Path, or name of a distributed spare.
    pub name: String,
    /// Its state.
    pub state: VdevState,
    /// Whether it replaces a device of this pool.
    pub is_in_use: bool,
    /// Whether it is at the recorded path.
    pub is_at_recorded_path: bool,
    /// Bytes of its device.
    pub device_size: Option<u64>,
}

impl AuxReport {
    pub(super) fn new(pool: &Pool, device: &AuxDevice) -> Self {
        let guid = device.config.guid;
        let path = device.config.leaf.path.as_ref().map(ToString::to_string);
        Self {
            kind: device.config.kind.clone(),
            guid,
            name: path.unwrap_or_else(|| guid.to_string()),
            state: device.state,
            is_in_use: pool.config().vdev_tree.find(guid).is_some(),
            is_at_recorded_path: device.is_at_recorded_path,
            device_size: device.device_size,
        }
    }
}

/// Returns the tree of an imported pool.
pub(super) fn of_pool(pool: &Pool, space: &Space) -> VdevReport {
    // A suspended pool retries failed writes: dirty time logs are not final before that.
    let retries_writes =
        super::progress::is_resilvering(pool) || pool.presence().suspended().is_some();
    let mut root = of_tree(&pool.config().vdev_tree, pool.tree(), retries_writes, pool.name());
    for top in &mut root.children {
        top.figures = space.vdev(top.id).cloned();
        top.class = top.figures.as_ref().map(|figures| figures.class);
        let unit = top.figures.as_ref().map_or(0, |figures| figures.metaslab_shift);
        round_unused(top, unit);
    }
    root
}

/// A vdev becomes larger by whole metaslabs.
fn round_unused(vdev: &mut VdevReport, metaslab_shift: u32) {
    if let Some(device) = &mut vdev.device {
        device.unused = device.unused >> metaslab_shift << metaslab_shift;
    }
    vdev.children.iter_mut().for_each(|child| round_unused(child, metaslab_shift));
}

/// Returns the vdevs of a config with the states and counters of a tree. With `retries_writes`,
/// failed writes will be retried, so that no resilver is suggested. Omits space figures. Reads no
/// device.
pub(super) fn of_tree(
    config: &VdevConfig,
    tree: &Tree,
    retries_writes: bool,
    name: &str,
) -> VdevReport {
    let mut root = report(config, &|config, report| {
        let vdev = match config.kind {
            VdevKind::Root => Some(tree.root()),
            VdevKind::Hole | VdevKind::Missing => None,
            _ => tree.vdev(config.guid),
        };
        let Some(vdev) = vdev else { return };
        (report.state, report.aux) = (vdev.state(), vdev.aux());
        report.ashift = u64::from(vdev.ashift());
        let Some(leaf) = vdev.leaf().map(|leaf| tree.leaf(leaf)) else { return };
        report.stats = leaf.stats();
        let is_stale = leaf.dtl().is_some_and(|missing| !missing.is_empty());
        let has_resilver = report.is_resilvering || report.is_deferred || retries_writes;
        let lacks_data = is_stale && report.state.is_readable();
        report.needs_resilver = lacks_data && !has_resilver;
        report.is_resilvering = lacks_data && has_resilver;
        report.queue = leaf.queue_stats().map(Arc::new);
        report.is_absent = leaf.device().is_none() && config.kind.is_leaf();
        report.device = leaf.device().map(|device| LeafDevice {
            size: label::usable_size(device.info().size),
            unused: leaf.unused_asize(),
            physical_ashift: device.info().physical_ashift,
        });
    });
    name.clone_into(&mut root.name);
    name_leaves(&mut root);
    root
}

/// Returns the tree of a config; `fill` completes each vdev.
pub(super) fn report(
    config: &VdevConfig,
    fill: &dyn Fn(&VdevConfig, &mut VdevReport),
) -> VdevReport {
    let leaf = &config.leaf;
    let mut report = VdevReport {
        kind: config.kind.clone(),
        id: config.id,
        guid: config.guid,
        name: name(config),
        path: leaf.path.as_ref().map(ToString::to_string),
        is_absent: false,
        state: VdevState::Healthy,
        aux: VdevAux::None,
        class: None,
        stats: LeafStats::default(),
        queue: None,
        ashift: config.top.ashift,
        device: None,
        figures: None,
        is_removing: config.top.removing,
        is_non_allocating: config.top.non_allocating,
        is_resilvering: leaf.resilver_txg.is_some() || leaf.rebuild_txg.is_some(),
        is_deferred: leaf.resilver_defer,
        needs_resilver: false,
        trim: LeafProgress::default(),
        initialize: LeafProgress::default(),
        children: config.children.iter().map(|child| self::report(child, fill)).collect(),
    };
    if report.is_non_allocating && !report.is_removing {
        report.set_non_allocating();
    }
    if matches!(config.kind, VdevKind::Missing) {
        (report.state, report.aux) = (VdevState::CantOpen, VdevAux::OpenFailed);
    }
    fill(config, &mut report);
    report
}

/// Names leaves with absent devices by guid.
pub(super) fn name_leaves(report: &mut VdevReport) {
    let is_absent = report.is_absent && !matches!(report.kind, VdevKind::DraidSpare { .. });
    // A device that was removed by an administrator keeps its name.
    if is_absent && report.state == VdevState::CantOpen {
        report.name = report.guid.to_string();
    }
    report.children.iter_mut().for_each(name_leaves);
}

/// Returns the name of a vdev: the path of a leaf, else its kind with parameters and its number.
#[must_use]
pub fn name(config: &VdevConfig) -> String {
    let id = config.id;
    match &config.kind {
        VdevKind::File | VdevKind::Disk | VdevKind::DraidSpare { .. } => {
            let path = config.leaf.path.as_ref().map(ToString::to_string);
            path.unwrap_or_else(|| config.guid.to_string())
        }
        VdevKind::RaidZ(raidz) => format!("raidz{}-{id}", raidz.nparity),
        VdevKind::Draid(draid) => {
            let (parity, data, spares) = (draid.nparity, draid.ndata, draid.nspares);
            let children = config.children.len();
            format!("draid{parity}:{data}d:{children}c:{spares}s-{id}")
        }
        VdevKind::Root => "root".to_owned(),
        kind => format!("{}-{id}", kind.name()),
    }
}

impl VdevReport {
    /// Marks this vdev and its descendants, whose top-level vdev gets no new blocks.
    fn set_non_allocating(&mut self) {
        self.is_non_allocating = true;
        self.children.iter_mut().for_each(Self::set_non_allocating);
    }

    /// Iterates over this vdev and its descendants, parents first.
    pub fn walk(&self) -> impl Iterator<Item = &Self> {
        let mut todo = vec![self];
        std::iter::from_fn(move || {
            let next = todo.pop()?;
            todo.extend(next.children.iter().rev());
            Some(next)
        })
    }

    /// Returns the sum of the queue statistics of its leaves.
    #[must_use]
    pub fn io(&self) -> QueueStats {
        let mut io = QueueStats::default();
        for queue in self.walk().filter_map(|vdev| vdev.queue.as_ref()) {
            io.merge(queue);
        }
        io
    }

    /// Returns the leaves that are not part of a running replacement.
    pub(super) fn leaves_outside_replacements(&self) -> Vec<&Self> {
        match self.kind {
            VdevKind::Replacing => Vec::new(),
            _ if self.children.is_empty() => match self.kind {
                VdevKind::Hole | VdevKind::Indirect | VdevKind::Root => Vec::new(),
                _ => vec![self],
            },
            _ => self.children.iter().flat_map(Self::leaves_outside_replacements).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_ondisk::config::{Draid, RaidZ};

    #[test]
    fn vdev_names() {
        let mut config = VdevConfig::missing(3);
        for (kind, want) in [
            (VdevKind::Mirror, "mirror-3"),
            (
                VdevKind::RaidZ(RaidZ { nparity: 2, expanding: false, expand_txgs: vec![] }),
                "raidz2-3",
            ),
            (
                VdevKind::Draid(Draid {
                    nparity: 2,
                    ndata: 4,
                    nspares: 1,
                    ngroups: 3,
                    nchildren: None,
                }),
                "draid2:4d:0c:1s-3",
            ),
            (VdevKind::Indirect, "indirect-3"),
        ] {
            config.kind = kind;
            assert_eq!(name(&config), want);
        }
        config.kind = VdevKind::Disk;
        config.leaf.path = Some("/dev/sda1".into());
        assert_eq!(name(&config), "/dev/sda1");
    }
}
