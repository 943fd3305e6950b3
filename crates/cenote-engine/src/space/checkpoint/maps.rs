//! The checkpoint space maps of top-level vdevs: freed ranges that the checkpoint holds (spec 05
//! §10). One map for each vdev, with FREE entries only; the vdev's ZAP names it while it is not
//! empty.

use std::ops::Range;

use cenote_dmu::spacemap::edit as spacemap;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::spacemap::{Action, Geometry};
use cenote_ondisk::vdev_zap::POOL_CHECKPOINT_SM;
use cenote_ranges::RangeSet;

use crate::dsl::features;
use crate::invariant;
use crate::space::metaslabs;

/// Block size of a map.
const BLOCK: u64 = 128 << 10;

/// Returns the geometry of the whole vdev, in its sectors.
fn geometry(top: &VdevConfig) -> Geometry {
    Geometry { start: 0, size: top.top.asize, shift: top.top.ashift as u8 }
}

fn zap_of(top: &VdevConfig) -> TxResult<u64> {
    let zap = top.top.zap_top;
    // Checks SM1.
    zap.ok_or_else(|| invariant(format!("vdev {} has no object for its checkpoint map", top.id)))
}

/// Adds ranges of a vdev to its map.
pub(crate) fn hold(
    tx: &mut Tx<'_>,
    top: &VdevConfig,
    ranges: &RangeSet,
    stamp: spacemap::Stamp,
) -> TxResult<()> {
    let zap_top = zap_of(top)?;
    let map = if let Some(map) = zap::lookup_u64(tx, zap_top, POOL_CHECKPOINT_SM)? {
        map
    } else {
        let has_histogram = features::is_enabled(tx, "spacemap_histogram")?;
        let form = spacemap::MapFormat { block_size: BLOCK, has_histogram };
        let map = metaslabs::new_map(tx, &form)?;
        zap::insert(tx, zap_top, POOL_CHECKPOINT_SM, map)?;
        map
    };
    let has_v2 = features::is_active(tx, "spacemap_v2")?;
    let words = spacemap::EntryFormat { geometry: geometry(top), has_v2, vdev: None };
    spacemap::append(tx, map, &words, Action::Free, ranges.iter(), stamp)
}

/// Entries removed from a map.
#[derive(Debug)]
pub(super) struct RemovedRanges {
    /// Ranges to be freed.
    pub(super) ranges: Vec<Range<u64>>,
    /// Bytes of the removed entries.
    pub(super) words: u64,
    /// The map was removed.
    pub(super) is_empty: bool,
}

/// Removes ranges from the end of a vdev's map, at most `budget` bytes of entries except for one
/// block; removes the map with the last. Returns `None` if the vdev has no map.
pub(super) fn take_some(
    tx: &mut Tx<'_>,
    top: &VdevConfig,
    budget: u64,
) -> TxResult<Option<RemovedRanges>> {
    let Some(zap_top) = top.top.zap_top else { return Ok(None) };
    let Some(map) = zap::lookup_u64(tx, zap_top, POOL_CHECKPOINT_SM)? else { return Ok(None) };
    let (before, _) = spacemap::length(tx, map)?;
    let entries = spacemap::take_last(tx, map, &geometry(top), budget)?;
    // Checks CP1.
    if let Some(entry) = entries.iter().find(|entry| entry.action != Action::Free) {
        return Err(invariant(format!("checkpoint map of vdev {} has {entry:?}", top.id)));
    }
    let (after, _) = spacemap::length(tx, map)?;
    if after == 0 {
        metaslabs::free_map(tx, map)?;
        zap::remove(tx, zap_top, POOL_CHECKPOINT_SM)?;
    }
    let ranges = entries.iter().map(|entry| entry.offset..entry.offset + entry.size).collect();
    Ok(Some(RemovedRanges { ranges, words: before - after, is_empty: after == 0 }))
}
