//! Space figures of the pool and its vdevs, as `zpool list` and the datasets see them.
//!
//!     space map headers + log space maps ──> metaslab ──> vdev ──> class ──> pool
//!                                                           | deflate
//!                                                           v
//!                                        space of datasets, less slop, checkpoint, deferred frees
//!
//! Nothing of this is stored; it is computed on first use and cached with the pool, which is
//! immutable. OpenZFS's read-only imports ignore the logs; they are applied here, so the figures
//! are those of the imported pool. Damaged space maps make figures incomplete, never an error: data
//! can be read without them.
//!
//! Sources: spec 05 §3-§6, spec 04 §17.

pub mod deflate;
pub use cenote_block::alloc::fragmentation;
pub(crate) mod logs;
pub mod shared;
pub(crate) mod vdev;

pub use shared::{CloneStats, DedupStats};
pub(crate) use vdev::top_zap;
pub use vdev::{AllocationClass, MetaslabFigures, VdevFigures};
pub use vdev::{metaslab_range, row_size};

use std::sync::Arc;

use cenote_dmu::bpobj;
use cenote_ondisk::dsl::key;
use cenote_rt::Result;

use crate::dsl::{Dataset, Dir};
use crate::features::FeatureState;
use crate::{Pool, mos};

/// Figures of the whole pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Space {
    /// Every top-level vdev, by id; holes included.
    pub vdevs: Vec<VdevFigures>,
    /// Bytes of all classes except the log class.
    pub size: u64,
    /// Allocated bytes of all classes except the log class.
    pub allocated: u64,
    /// Percent, of the normal class.
    pub fragmentation: Option<u64>,
    /// Bytes of metaslabs that could be added to the vdevs of the normal class.
    pub expandable: u64,
    /// Bytes that a checkpoint holds; none without a checkpoint.
    pub checkpoint: Option<u64>,
    /// Deflated space of the normal class.
    pub rdspace: u64,
    /// Space available to datasets, including savings. (Releases after 2.3 add the allocations of
    /// special and dedup vdevs, for which their datasets are charged.)
    pub dspace: u64,
    /// Slop space.
    pub slop: u64,
    /// Deferred frees.
    pub deferred: u64,
    /// Deduplication.
    pub dedup: DedupStats,
    /// Block cloning.
    pub clones: CloneStats,
    /// Space of destroyed datasets that is yet to be freed.
    pub freeing: u64,
    /// Space that could not be freed.
    pub leaked: u64,
    /// Damage because of which the figures are incomplete.
    pub damage: Vec<String>,
}

impl Space {
    /// Returns the free bytes.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.size.saturating_sub(self.allocated)
    }

    /// Returns the allocated space in percent.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        (u128::from(self.allocated) * 100).checked_div(u128::from(self.size)).unwrap_or(0) as u64
    }

    /// Returns the space that datasets can use: without slop space.
    #[must_use]
    pub fn usable(&self) -> u64 {
        self.dspace
            .saturating_sub(self.checkpoint.unwrap_or(0))
            .saturating_sub(self.deferred)
            .saturating_sub(self.slop)
    }

    /// Returns the figures of a top-level vdev.
    #[must_use]
    pub fn vdev(&self, id: u64) -> Option<&VdevFigures> {
        self.vdevs.iter().find(|vdev| vdev.id == id)
    }

    /// Computes the figures.
    pub(crate) async fn compute(pool: &Pool) -> Result<Self> {
        let mos = pool.mos();
        let mut space = Self::default();
        // A checkpoint that is being discarded counts, too.
        let is_checkpointed = pool.features().is_active("zpool_checkpoint");
        let has_histograms = pool.features().state("spacemap_histogram") != FeatureState::Disabled;
        for config in &pool.config().vdev_tree.children {
            let ratio = pool.vdevs().deflate_ratio(config.id);
            let mut vdev = VdevFigures::read(mos, config, ratio, is_checkpointed).await?;
            vdev.set_expandable(pool.tree(), config);
            if !has_histograms {
                vdev.clear_fragmentation();
            }
            space.vdevs.push(vdev);
        }
        if let Err(error) = logs::apply(pool, &mut space.vdevs).await {
            space.damage.push(error.to_string());
        }
        let mut held = 0_u64;
        for vdev in &mut space.vdevs {
            vdev.sum_up();
            held = held.wrapping_add(vdev.checkpoint);
            space.damage.extend(vdev.damage.clone());
        }
        space.checkpoint = is_checkpointed.then_some(held);
        space.read_shared(pool).await;
        space.sum_up();
        pool.check_valid()?;
        Ok(space)
    }

    async fn read_shared(&mut self, pool: &Pool) {
        let mos = pool.mos();
        let directory = pool.directory();
        match shared::dedup(mos, directory).await {
            Ok(stats) => self.dedup = stats,
            Err(error) => self.damage.push(error.to_string()),
        }
        match shared::clones(mos, directory).await {
            Ok(stats) => self.clones = stats,
            Err(error) => self.damage.push(error.to_string()),
        }
        let deferred = mos.read(|objects| match mos::directory_object(objects, key::SYNC_BPOBJ)? {
            Some(object) => bpobj::space(objects, object),
            None => Ok(cenote_dmu::Space::default()),
        });
        match deferred.await {
            Ok(sum) => self.deferred = sum.used,
            Err(error) => self.damage.push(error.to_string()),
        }
        for (figure, dir) in [(&mut self.freeing, key::FREE_DIR), (&mut self.leaked, key::LEAK_DIR)]
        {
            match internal_used(pool, dir).await {
                Ok(used) => *figure = used,
                Err(error) => self.damage.push(error.to_string()),
            }
        }
    }

    /// Sums up the classes and computes the space that datasets see.
    fn sum_up(&mut self) {
        let mut embedded = 0_u64;
        let mut class_size = 0_u64;
        for vdev in &self.vdevs {
            if vdev.class == AllocationClass::Log {
                continue;
            }
            self.size = self.size.wrapping_add(vdev.size);
            self.allocated = self.allocated.wrapping_add(vdev.allocated);
            if vdev.class != AllocationClass::Normal {
                continue;
            }
            self.expandable = self.expandable.saturating_add(vdev.expandable);
            let log = vdev.embedded_log.map_or(0, |id| vdev.metaslabs[id].size);
            embedded = embedded.wrapping_add(deflate::deflate(log, vdev.ratio));
            class_size = class_size.wrapping_add(vdev.size - log);
            if vdev.is_allocating {
                let space = deflate::deflate(vdev.size - log, vdev.ratio);
                self.rdspace = self.rdspace.wrapping_add(space);
            }
        }
        self.slop = deflate::slop(self.rdspace, embedded);
        self.dspace = self.rdspace.wrapping_add(self.dedup.saved()).wrapping_add(self.clones.saved);
        let normal = self.vdevs.iter().filter(|vdev| {
            vdev.class == AllocationClass::Normal && vdev.is_concrete && vdev.is_allocating
        });
        let groups = normal.map(|vdev| {
            let size = (vdev.metaslabs.len() as u64) << vdev.metaslab_shift;
            (size, vdev.fragmentation)
        });
        self.fragmentation = fragmentation::of_class(groups, class_size);
    }
}

/// Returns the used bytes of one of the pool's internal dirs, 0 if it does not exist.
async fn internal_used(pool: &Pool, name: &str) -> Result<u64> {
    let mos = pool.mos();
    match mos::u64(mos, pool.root_dir().phys.child_dir_zapobj, name).await? {
        Some(object) => Ok(Dir::load(mos, object, name).await?.phys.used_bytes),
        None => Ok(0),
    }
}

/// Returns the available space of a dataset: the minimum over the quotas above it and the pool's
/// free space, with reservations counted for the datasets that own them (spec 04 §17.5).
pub(crate) async fn available(dataset: &Dataset, space: &Arc<Space>) -> Result<u64> {
    let mos = dataset.mos();
    let mut dirs = vec![Dir::clone(dataset.dir())];
    while let Some(parent) = dirs.last().and_then(|dir| crate::dsl::name::parent(&dir.name)) {
        let Some(object) = dirs.last().map(|dir| dir.phys.parent_obj) else { break };
        let parent = Dir::load(mos, object, parent).await?;
        dirs.push(parent);
    }
    let mut available = u64::MAX;
    for (depth, dir) in dirs.iter().rev().enumerate() {
        let phys = &dir.phys;
        let mut quota = if phys.quota == 0 { u64::MAX } else { phys.quota };
        if depth == 0 {
            quota = quota.min(space.usable());
        } else {
            available = available.saturating_add(phys.reserved.saturating_sub(phys.used_bytes));
        }
        available = match quota.checked_sub(phys.used_bytes) {
            Some(left) => available.min(left),
            None => 0,
        };
    }
    Ok(available)
}
