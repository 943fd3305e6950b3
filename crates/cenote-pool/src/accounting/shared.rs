//! Space saved by sharing blocks: deduplication and block cloning (spec 08 §21, §23, §27).
//!
//! Both subsystems keep totals in the MOS, so no table is walked here.

use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_ondisk::brt::{BRT_KEY_PREFIX, BrtPhys};
use cenote_ondisk::ddt::{DDT_STATISTICS, DdtHistogram, DdtStat};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::Value;
use cenote_rt::Result;

use crate::mos;

/// Prefix of the names of dedup tables in the pool directory.
const DDT_PREFIX: &str = "DDT-";

/// Totals of the dedup tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DedupStats {
    /// Blocks stored and referenced, with their sizes.
    pub total: DdtStat,
    /// Totals by refcount.
    pub histogram: Box<DdtHistogram>,
    /// Bytes of the tables themselves.
    pub table_bytes: u64,
}

impl DedupStats {
    /// Returns referenced over stored bytes, in hundredths.
    #[must_use]
    pub fn ratio(&self) -> u64 {
        ratio(self.total.ref_dsize, self.total.dsize)
    }

    /// Returns the bytes that deduplication saves.
    #[must_use]
    pub fn saved(&self) -> u64 {
        self.total.ref_dsize.saturating_sub(self.total.dsize)
    }
}

/// Totals of the block reference tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CloneStats {
    /// Allocated bytes of blocks with more than one reference.
    pub used: u64,
    /// Bytes that cloning saves.
    pub saved: u64,
}

impl CloneStats {
    /// Returns referenced over stored bytes, in hundredths.
    #[must_use]
    pub fn ratio(&self) -> u64 {
        ratio(self.used.wrapping_add(self.saved), self.used)
    }
}

fn ratio(referenced: u64, stored: u64) -> u64 {
    match (u128::from(referenced) * 100).checked_div(u128::from(stored)) {
        Some(ratio) if referenced != 0 => ratio as u64,
        _ => 100,
    }
}

/// Reads the totals of the dedup tables.
pub(crate) async fn dedup(mos: &Arc<ObjSet>, directory: &[(String, Value)]) -> Result<DedupStats> {
    let mut stats = DedupStats::default();
    for (name, value) in directory.iter().filter(|(name, _)| name.starts_with(DDT_PREFIX)) {
        let Some(object @ 1..) = value.first() else { continue };
        if name != DDT_STATISTICS {
            stats.table_bytes = stats.table_bytes.wrapping_add(table_bytes(mos, object).await?);
            continue;
        }
        for (_, histogram) in mos::entries(mos, object).await? {
            let histogram =
                DdtHistogram::decode(&histogram.words()).map_err(mos::corrupt(object))?;
            stats.histogram.add(&histogram);
        }
    }
    stats.total = stats.histogram.total();
    Ok(stats)
}

/// Returns the bytes of a table's store object, or of all stores in its directory.
async fn table_bytes(mos: &Arc<ObjSet>, object: u64) -> Result<u64> {
    let dnode = mos.dnode(object).await?;
    if dnode.phys().object_type == ObjectType::DDT_ZAP {
        return Ok(dnode.phys().used_bytes());
    }
    let mut bytes = 0_u64;
    for (name, value) in mos::entries(mos, object).await? {
        if let (true, Some(store)) = (name.starts_with(DDT_PREFIX), value.first()) {
            bytes = bytes.wrapping_add(mos.dnode(store).await?.phys().used_bytes());
        }
    }
    Ok(bytes)
}

/// Reads the totals of the block reference tables.
pub(crate) async fn clones(mos: &Arc<ObjSet>, directory: &[(String, Value)]) -> Result<CloneStats> {
    let mut stats = CloneStats::default();
    for (name, value) in directory {
        if let (true, Some(object @ 1..)) = (name.starts_with(BRT_KEY_PREFIX), value.first()) {
            let (_, bonus) = mos::bonus(mos, object).await?;
            let table = BrtPhys::decode(&bonus).map_err(mos::corrupt(object))?;
            stats.used = stats.used.wrapping_add(table.used_space);
            stats.saved = stats.saved.wrapping_add(table.saved_space);
        }
    }
    Ok(stats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dedupratio_and_bcloneratio_in_hundredths() {
        assert_eq!(DedupStats::default().ratio(), 100);
        let clones = CloneStats { used: 787_456, saved: 1_578_496 };
        assert_eq!(clones.ratio(), 300);
        let total = DdtStat { dsize: 811_520, ref_dsize: 2_434_560, ..DdtStat::default() };
        let stats = DedupStats { total, ..DedupStats::default() };
        assert_eq!((stats.ratio(), stats.saved()), (300, 1_623_040));
    }
}
