//! Upper bounds of the space that a block may take, however fragmented free space is.
//!
//! A block for which no range is long enough is split in three, and its parts again (`layout`): in
//! the worst case into single sectors, or stripes of them on dRAID, with three headers for every
//! four parts. Compressed data never gets longer.

use cenote_vdev::{Tree, VdevKind};

use super::Units;
use crate::store::BlockStore;

/// Most addresses of a block.
const COPIES_MAX: u64 = 3;
/// OpenZFS's worst-case factor per byte (spec 04 §19.2): the limit where vdevs differ so much that
/// the bound below would be higher.
const INFLATION: u64 = 24;

/// Space of the smallest part of a block, on the vdev where it takes the most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceBound {
    /// Bytes of the smallest part.
    unit: u64,
    /// Deflated space that it takes.
    space: u64,
}

impl SpaceBound {
    /// Bound for a block of `size` bytes in `copies` copies.
    #[must_use]
    pub fn of_block(&self, size: u64, copies: u8) -> u64 {
        let copies = u64::from(copies).clamp(1, COPIES_MAX);
        let parts = size.div_ceil(self.unit).max(1);
        let headers = if parts == 1 { 0 } else { parts * 3 / 4 };
        let split = parts * copies + headers * (copies + 1).min(COPIES_MAX);
        let most = size.max(self.unit).saturating_mul(INFLATION).saturating_mul(copies);
        split.saturating_mul(self.space).min(most)
    }

    /// Bound for `bytes` that are never split, such as those of a log.
    #[must_use]
    pub fn of_whole(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.unit).saturating_mul(self.space)
    }

    /// Bound for `bytes` that are a part of a longer block.
    #[must_use]
    pub fn of_share(&self, bytes: u64) -> u64 {
        bytes.saturating_mul(self.space) / self.unit
    }
}

impl BlockStore {
    /// The bound for blocks that are written from now on.
    #[must_use]
    pub fn space_bound(&self) -> SpaceBound {
        let Units { min, gcd } = self.units();
        let tree = self.tree();
        let takes_blocks =
            |kind| !matches!(kind, VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect);
        let tops = tree.tops().filter(|top| !top.is_log() && takes_blocks(top.kind()));
        let space = tops.filter_map(|top| deflated(tree, top.id(), min)).max();
        SpaceBound { unit: gcd, space: space.unwrap_or(min) }
    }
}

/// Deflated space that `psize` bytes take on a vdev, rounded up.
fn deflated(tree: &Tree, vdev: u64, psize: u64) -> Option<u64> {
    let sectors = tree.asize_for(vdev, psize, 0)? >> 9;
    Some(sectors.saturating_mul(tree.deflate_ratio(vdev)?.saturating_add(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of parts and headers of a block that is split as often as possible.
    fn split(parts: u64) -> (u64, u64) {
        if parts == 1 {
            return (1, 0);
        }
        let (mut left, mut sum) = (parts, (0, 1));
        for slots in (1..=3).rev() {
            let share = u64::div_ceil(left, slots);
            if share > 0 {
                let (parts, headers) = split(share);
                sum = (sum.0 + parts, sum.1 + headers);
            }
            left -= share;
        }
        sum
    }

    #[test]
    fn split_blocks_stay_within_the_bound() {
        let bound = SpaceBound { unit: 4096, space: 4096 };
        for parts in 1..=4096 {
            let (all, headers) = split(parts);
            assert_eq!(all, parts);
            for copies in 1..=3_u8 {
                let header = u64::from(copies + 1).min(3);
                let space = (parts * u64::from(copies) + headers * header) * 4096;
                assert!(space <= bound.of_block(parts * 4096, copies), "{parts} in {copies}");
            }
        }
        assert_eq!(bound.of_block(512, 1), 4096);
        assert_eq!(bound.of_block(8192, 1), 4 * 4096);
        assert_eq!(bound.of_whole(8193), 3 * 4096);
    }
}
