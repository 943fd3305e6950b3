//! Reads the exact allocated ranges of metaslabs from space maps.
//!
//!     own map (changes before txg U) ──replay──> ranges <──replay── logs of txg >= U
//!
//! Entries are applied strictly in order. An ALLOC of allocated space or a FREE of free space is a
//! fault: it is reported, and the rest of the entry is applied (spec 05 §2.5, §4).

use cenote_dmu::SpaceMap;
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::spacemap::{Action, Entry, Geometry, Item};
use cenote_rt::{FixedMap, Result};

use crate::Pool;
use crate::accounting::{MetaslabFigures, VdevFigures, top_zap};

pub use crate::accounting::logs::list as logs;
pub use cenote_ranges::RangeSet;

/// An entry that contradicts earlier entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Top-level vdev.
    pub vdev: u64,
    /// ALLOC or FREE.
    pub action: Action,
    /// Offset on the vdev.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// Txg of the log, `None` for the metaslab's own space map.
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

/// Log entries that were not flushed to the metaslabs' own space maps.
#[derive(Debug, Default)]
pub struct Unflushed {
    by_metaslab: FixedMap<(u64, u64), Vec<(u64, Entry)>>,
}

impl Unflushed {
    /// Reads all logs, restricted to the vdevs and offsets for which `wanted` is true.
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

/// Returns the allocated ranges of metaslab `number` of a vdev, and the faults.
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

/// Returns an object that the ZAP of a top-level vdev names.
pub async fn vdev_zap(pool: &Pool, config: &VdevConfig, key: &str) -> Result<Option<u64>> {
    Ok(top_zap(pool.mos(), config, key).await?.filter(|object| *object != 0))
}

/// Returns the location and the unit of a metaslab's space map.
pub fn geometry(pool: &Pool, vdev: &VdevFigures, metaslab: &MetaslabFigures) -> Geometry {
    let ashift = pool.tree().top(vdev.id).map_or(9, cenote_vdev::Vdev::ashift);
    Geometry { start: metaslab.start, size: metaslab.size, shift: ashift as u8 }
}
