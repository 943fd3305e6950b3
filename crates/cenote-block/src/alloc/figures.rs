//! Space statistics: allocated, free, deferred, fragmentation (spec 05 §6).
//!
//! Values are those of the last commit and count deferred ranges as allocated, as OpenZFS does.

use cenote_ondisk::spacemap::HISTOGRAM_BUCKETS;

use super::class::Class;
use super::fragmentation;
use super::metaslab::Metaslab;
use super::state::State;
use super::weight::Weight;

/// Space of a class, a vdev, or a part of one, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceFigures {
    /// Capacity: sum of the metaslabs.
    pub space: u64,
    /// Allocated bytes, deferred frees included.
    pub allocated: u64,
    /// Bytes freed and not yet usable.
    pub deferred: u64,
    /// `space` after deflation, as charged to datasets.
    pub deflated_space: u64,
    /// `allocated` after deflation, as charged to datasets.
    pub deflated_allocated: u64,
}

impl SpaceFigures {
    fn add(&mut self, other: &Self) {
        self.space += other.space;
        self.allocated += other.allocated;
        self.deferred += other.deferred;
        self.deflated_space += other.deflated_space;
        self.deflated_allocated += other.deflated_allocated;
    }
}

/// Space of a top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VdevSpace {
    /// Id of the vdev.
    pub id: u64,
    /// Its allocation class.
    pub class: Class,
    /// Its space, including the embedded log's.
    pub space: SpaceFigures,
    /// Fragmentation in percent, without the embedded log.
    pub fragmentation: Option<u64>,
    /// The embedded log metaslab.
    pub embedded_log: Option<u64>,
    /// Number of metaslabs.
    pub metaslabs: u64,
    /// Number of loaded metaslabs.
    pub loaded: u64,
}

/// Space of a metaslab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaslabSpace {
    /// Top-level vdev.
    pub vdev: u64,
    /// Index in its vdev.
    pub id: u64,
    /// First byte.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// Allocated bytes according to space maps and logs, without deferred frees.
    pub allocated: u64,
    /// Bytes freed and not yet usable.
    pub deferred: u64,
    /// Bytes that can be allocated now.
    pub usable: u64,
    /// Weight when it was last computed.
    pub weight: Weight,
    /// Fragmentation in percent.
    pub fragmentation: Option<u64>,
    /// Histogram in the header of its space map.
    pub histogram: [u64; HISTOGRAM_BUCKETS],
    /// Whether it has a space map object, that is, was ever written.
    pub has_map: bool,
    /// First txg whose logs apply (`ms_unflushed_txg`).
    pub unflushed_txg: u64,
    /// Number of free segments, if loaded.
    pub segments: Option<u64>,
    /// Whether a stream allocates from it.
    pub is_open: bool,
    /// Whether its space map could not be read.
    pub is_broken: bool,
}

impl Metaslab {
    fn figures(&self) -> MetaslabSpace {
        MetaslabSpace {
            vdev: self.vdev,
            id: self.id,
            start: self.start,
            size: self.size,
            allocated: self.allocated,
            deferred: self.deferred(),
            usable: self.usable(),
            weight: self.weight,
            fragmentation: self.fragmentation,
            histogram: self.histogram,
            has_map: self.has_map,
            unflushed_txg: self.unflushed_txg,
            segments: self.loaded.is_some().then(|| self.loaded_segments()),
            is_open: self.activation.is_some(),
            is_broken: self.is_broken,
        }
    }
}

impl State {
    pub(super) fn class_figures(&self, class: Class) -> SpaceFigures {
        let mut sum = SpaceFigures::default();
        for (vdev, group) in self.groups(class) {
            sum.add(&group_figures(vdev, group));
        }
        sum
    }

    pub(super) fn vdev_figures(&self) -> Vec<VdevSpace> {
        let vdevs = self.vdevs.iter().map(|(id, vdev)| {
            let mut space = SpaceFigures::default();
            vdev.groups.iter().for_each(|group| space.add(&group_figures(vdev, group)));
            VdevSpace {
                id: *id,
                class: vdev.spec.class,
                space,
                fragmentation: vdev.groups[0].fragmentation,
                embedded_log: vdev.embedded_log.map(|id| id as u64),
                metaslabs: vdev.metaslabs.len() as u64,
                loaded: vdev.metaslabs.iter().filter(|m| m.loaded.is_some()).count() as u64,
            }
        });
        vdevs.collect()
    }

    pub(super) fn metaslab_figures(&self, vdev: u64) -> Vec<MetaslabSpace> {
        let metaslabs = self.vdevs.get(&vdev).map_or(&[][..], |vdev| &vdev.metaslabs);
        metaslabs.iter().map(Metaslab::figures).collect()
    }

    pub(super) fn metaslab_space(&self, vdev: u64, id: u64) -> Option<MetaslabSpace> {
        self.vdevs.get(&vdev)?.metaslabs.get(usize::try_from(id).ok()?).map(Metaslab::figures)
    }

    /// Deflated space of the normal vdevs that are `allocating`.
    pub(super) fn allocatable_space(&self) -> u64 {
        let groups = self.groups(Class::Normal).filter(|(vdev, _)| vdev.spec.is_allocating);
        groups.map(|(vdev, group)| group_figures(vdev, group).deflated_space).sum()
    }

    /// Fragmentation of the normal class, as `zpool list` shows it.
    pub(super) fn pool_fragmentation(&self) -> Option<u64> {
        let groups = self.groups(Class::Normal).map(|(vdev, group)| {
            let size = (vdev.metaslabs.len() as u64) << vdev.spec.metaslab_shift;
            (size, group.fragmentation)
        });
        fragmentation::of_class(groups, self.class_space(Class::Normal).0)
    }
}

fn group_figures(vdev: &super::group::Vdev, group: &super::group::Group) -> SpaceFigures {
    let deflated = |bytes: u64| (bytes / 512).saturating_mul(vdev.spec.deflate_ratio);
    SpaceFigures {
        space: group.space,
        allocated: group.allocated,
        deferred: group.deferred,
        deflated_space: deflated(group.space),
        deflated_allocated: deflated(group.allocated),
    }
}
