//! Condensing: when a space map is rewritten, and with which contents (spec 05 §2.9).
//!
//! A space map is a log that grows with every change. Once it is far longer than a list of the free
//! segments would be, it is replaced by ALLOC of the whole metaslab and FREE of the space that was
//! free at the end of the last txg. That is the usable space, plus deferred frees, plus allocations
//! by uncommitted txgs: moving a range between these sets does not change their sum, so allocations
//! may go on meanwhile.
//!
//! Invariants
//! * N1  A map is condensed before the first pass of its txg records changes of the metaslab.
//! * N2  A condensed map leaves exactly the space free that was not allocated at the last commit.

use std::ops::Range;

use cenote_ranges::RangeSet;
use cenote_rt::{ensure, tunables};

use super::error::Violation;
use super::metaslab::Metaslab;
use super::state::State;

/// Properties of a metaslab's own space map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MapFigures {
    /// Length in bytes.
    pub length: u64,
    /// Block size of its object.
    pub block_size: u64,
    /// Whether feature spacemap_v2 is active.
    pub has_v2: bool,
    /// Whether it must be rewritten because its header has no histogram.
    pub must_upgrade: bool,
}

/// Contents of a condensed map: ALLOC of `whole`, then FREE of `free`; nothing of the syncing txg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condense {
    /// The whole metaslab.
    pub whole: Range<u64>,
    /// Space that was free at the end of the last txg.
    pub free: RangeSet,
    /// New entry in the vdev's array of unflushed txgs, if the metaslab has one.
    pub unflushed_txg: Option<u64>,
}

/// Length in bytes of a map that lists only these free segments.
fn estimate(histogram: &[u64; 64], ashift: u8, map: &MapFigures) -> u64 {
    let one_word_last = 14 + usize::from(ashift);
    let two_words_last = 35 + usize::from(ashift);
    let mut bytes = 0_u64;
    for (log2, count) in histogram.iter().enumerate() {
        let size = match (log2, map.has_v2) {
            (log2, _) if log2 <= one_word_last => 8,
            (log2, true) if log2 <= two_words_last => 16,
            (log2, true) => 16 << (log2 - two_words_last),
            (log2, false) => 8 << (log2 - one_word_last),
        };
        bytes = bytes.saturating_add(count.saturating_mul(size));
    }
    if map.has_v2 {
        // At worst, each block has one word of padding.
        bytes = bytes.saturating_add((bytes / map.block_size.max(1) + 1) * 8);
    }
    bytes
}

impl Metaslab {
    /// Whether the map should be condensed.
    pub(super) fn should_condense(&self, map: &MapFigures) -> bool {
        let Some(loaded) = &self.loaded else { return false };
        if loaded.free.ranges().is_empty() || map.must_upgrade {
            return true;
        }
        let best = estimate(loaded.free.histogram(), self.ashift, map);
        let bound = u128::from(best) * u128::from(tunables::CONDENSE_PCT.get()) / 100;
        u128::from(map.length) >= bound && map.length > 4 * map.block_size.max(1 << self.ashift)
    }

    fn free_at_commit(&self) -> Option<RangeSet> {
        let mut free = self.loaded.as_ref()?.free.ranges().clone();
        for set in self.waiting().chain(&self.allocating) {
            free.union(set);
        }
        Some(free)
    }
}

impl State {
    /// Records that the metaslab's map is rewritten in `txg`; returns its new contents.
    pub(super) fn condense(
        &mut self,
        vdev: u64,
        number: u64,
        txg: u64,
    ) -> Result<Option<Condense>, Violation> {
        self.check_syncing("condense", txg)?;
        let has_logs = self.has_logs;
        let id = number as usize;
        let Some(metaslab) = self.metaslab(vdev, id) else { return Ok(None) };
        let Some(free) = metaslab.free_at_commit() else { return Ok(None) };
        // Checks N1.
        if !metaslab.recorded.is_empty() || !metaslab.freed.is_empty() {
            // The sets add up to the state of the last commit only before the first pass records
            // changes.
            let committed = self.committed;
            return Err(Violation::Order { what: "condense", txg, committed });
        }
        let whole = metaslab.range();
        let (bytes, allocated, size) = (free.bytes(), metaslab.allocated, metaslab.size);
        ensure!("N2", bytes + allocated == size, "{bytes} free, {allocated} allocated of {size}");
        metaslab.map_pending = Some(txg);
        metaslab.has_map = true;
        let was_dirty = std::mem::take(&mut metaslab.is_dirty);
        let segments = if was_dirty { metaslab.unflushed.segments() } else { 0 };
        let is_logged = has_logs && metaslab.unflushed_txg != 0;
        self.flush.change_segments(-(segments as i64))?;
        self.mark(txg, vdev, id);
        if is_logged {
            self.set_unflushed(vdev, id, txg)?;
        }
        Ok(Some(Condense { whole, free, unflushed_txg: is_logged.then_some(txg) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_by_size_of_segment() {
        let map = MapFigures { length: 0, block_size: 4096, has_v2: true, must_upgrade: false };
        let mut histogram = [0; 64];
        histogram[12] = 100;
        assert_eq!(estimate(&histogram, 9, &map), 800 + 8);
        histogram[24] = 1000;
        assert_eq!(estimate(&histogram, 9, &map), 16_800 + 5 * 8);
        let old = MapFigures { has_v2: false, ..map };
        assert_eq!(estimate(&histogram, 9, &old), 800 + 16_000);
        assert_eq!(estimate(&[0; 64], 9, &old), 0);
    }
}
