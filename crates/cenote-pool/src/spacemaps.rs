//! What the space maps say: the allocated ranges of a metaslab, exactly.
//!
//!     own map (changes before txg U) ──replay──> ranges <──replay── logs of txg >= U
//!
//! Entries apply strictly in stream order. An ALLOC of what is allocated, or a FREE of what is
//! free, is a fault of the maps: it is told, and the rest of the entry counts (spec 05 §2.5, §4).

use cenote_dmu::SpaceMap;
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::spacemap::{Action, Entry, Geometry, Item};
use cenote_rt::{FixedMap, Result};

use crate::Pool;
use crate::accounting::{MetaslabFigures, VdevFigures, top_zap};

pub use crate::accounting::logs::list as logs;
pub use cenote_ranges::RangeSet;

/// An entry that does not fit what came before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Top-level vdev.
    pub vdev: u64,
    /// What the entry does.
    pub action: Action,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Txg of the log; none in the metaslab's own map.
    pub log_txg: Option<u64>,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = match self.action {
            Action::Alloc => "ALLOC of allocated space",
            Action::Free => "FREE of free space",
        };
        let &Self { vdev, offset, size, .. } = self;
        write!(f, "{what}: vdev {vdev}, offset {offset:#x}, size {size:#x}")?;
        match self.log_txg {
            Some(txg) => write!(f, ", log of txg {txg}"),
            None => Ok(()),
        }
    }
}

/// Entries of the logs that metaslabs have not taken over yet.
#[derive(Debug, Default)]
pub struct Unflushed {
    by_metaslab: FixedMap<(u64, u64), Vec<(u64, Entry)>>,
}

impl Unflushed {
    /// Reads all logs, for the vdevs and offsets that `wanted` says.
    pub async fn load(
        pool: &Pool,
        vdevs: &[VdevFigures],
        wanted: impl Fn(u64, u64) -> bool + Send + Sync,
    ) -> Result<Self> {
        let mut unflushed = Self::default();
        for (txg, object) in logs(pool).await? {
            let map = SpaceMap::open(pool.mos(), object).await?;
            map.for_each(Geometry::LOG, |item| {
                let Item::Entry(entry) = item else { return Ok(()) };
                let Some(id) = entry.vdev.map(u64::from) else { return Ok(()) };
                let Some(vdev) = vdevs.iter().find(|vdev| vdev.id == id && vdev.is_concrete) else {
                    return Ok(());
                };
                let number = entry.offset >> vdev.metaslab_shift;
                let metaslab = vdev.metaslabs.get(number as usize);
                let is_live =
                    metaslab.is_some_and(|m| m.unflushed_txg != 0 && txg >= m.unflushed_txg);
                if is_live && wanted(id, number) {
                    unflushed.by_metaslab.entry((id, number)).or_default().push((txg, entry));
                }
                Ok(())
            })
            .await?;
        }
        Ok(unflushed)
    }
}

/// The allocated ranges of metaslab `number` of a vdev, and what does not fit.
pub async fn allocated(
    pool: &Pool,
    vdev: &VdevFigures,
    number: u64,
    unflushed: &Unflushed,
) -> Result<(RangeSet, Vec<Fault>)> {
    let (mut ranges, mut faults) = (RangeSet::default(), Vec::new());
    let Some(metaslab) = vdev.metaslabs.get(number as usize) else { return Ok((ranges, faults)) };
    let mut apply = |entry: &Entry, log_txg: Option<u64>| {
        let &Entry { action, offset, size, .. } = entry;
        let range = offset..offset.saturating_add(size);
        let fits = match action {
            Action::Alloc => ranges.add(range),
            Action::Free => ranges.remove(range),
        };
        if !fits {
            faults.push(Fault { vdev: vdev.id, action, offset, size, log_txg });
        }
    };
    if metaslab.space_map != 0 {
        let map = SpaceMap::open(pool.mos(), metaslab.space_map).await?;
        map.for_each(geometry(pool, vdev, metaslab), |item| {
            if let Item::Entry(entry) = item {
                apply(&entry, None);
            }
            Ok(())
        })
        .await?;
    }
    for (txg, entry) in unflushed.by_metaslab.get(&(vdev.id, number)).into_iter().flatten() {
        apply(entry, Some(*txg));
    }
    Ok((ranges, faults))
}

/// An object that the ZAP of a top-level vdev names, if it does.
pub async fn vdev_zap(pool: &Pool, config: &VdevConfig, key: &str) -> Result<Option<u64>> {
    Ok(top_zap(pool.mos(), config, key).await?.filter(|object| *object != 0))
}

/// Where the map of a metaslab lies and in which units.
pub fn geometry(pool: &Pool, vdev: &VdevFigures, metaslab: &MetaslabFigures) -> Geometry {
    let ashift = pool.tree().top(vdev.id).map_or(9, cenote_vdev::Vdev::ashift);
    Geometry { start: metaslab.start, size: metaslab.size, shift: ashift as u8 }
}
