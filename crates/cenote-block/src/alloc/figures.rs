//! Figures: what is allocated, free, deferred and how fragmented (spec 05 §6).
//!
//! Sums are those of the last commit and count deferred ranges as allocated, as OpenZFS shows
//! them.

use cenote_ondisk::spacemap::HISTOGRAM_BUCKETS;

use super::class::Class;
use super::fragmentation;
use super::metaslab::Metaslab;
use super::state::State;
use super::weight::Weight;

/// Space of a class, a vdev, or a part of one; bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SpaceFigures {
    /// Sum of the metaslabs.
    pub space: u64,
    /// Allocated, deferred included.
    pub allocated: u64,
    /// Freed and not usable yet.
    pub deferred: u64,
    /// `space` as datasets are charged.
    pub deflated_space: u64,
    /// `allocated` as datasets are charged.
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

/// A top-level vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VdevSpace {
    /// Its id.
    pub id: u64,
    /// Its class.
    pub class: Class,
    /// Its space, the embedded log's included.
    pub space: SpaceFigures,
    /// Percent, without the embedded log.
    pub fragmentation: Option<u64>,
    /// The metaslab that serves the intent log.
    pub embedded_log: Option<u64>,
    /// Metaslabs.
    pub metaslabs: u64,
    /// Those in memory.
    pub loaded: u64,
}

/// A metaslab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaslabSpace {
    /// Top-level vdev.
    pub vdev: u64,
    /// Its number.
    pub id: u64,
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub size: u64,
    /// Allocated as maps and logs have it, without what is deferred.
    pub allocated: u64,
    /// Freed and not usable yet.
    pub deferred: u64,
    /// Bytes that can be taken now.
    pub usable: u64,
    /// Weight as of the last time it was computed.
    pub weight: Weight,
    /// Percent.
    pub fragmentation: Option<u64>,
    /// As its map's header has it.
    pub histogram: [u64; HISTOGRAM_BUCKETS],
    /// Whether anything of it was ever used.
    pub has_map: bool,
    /// From which txg on logs apply.
    pub unflushed_txg: u64,
    /// Free segments, if loaded.
    pub segments: Option<u64>,
    /// Whether a stream allocates from it.
    pub is_open: bool,
    /// Its map could not be read.
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

    /// Deflated space of the normal vdevs that are allocated from.
    pub(super) fn allocatable_space(&self) -> u64 {
        let groups = self.groups(Class::Normal).filter(|(vdev, _)| vdev.spec.is_allocating);
        groups.map(|(vdev, group)| group_figures(vdev, group).deflated_space).sum()
    }

    /// Of the normal class, as `zpool list` shows it.
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
