//! Upper bound of the blocks that the changes of a txg will write, by size, for space admission.
//!
//! ```text
//!   data blocks             each once, however often it was changed in the txg
//!   indirect blocks         each once if a block below is changed or freed             (`Paths`)
//!   dnode blocks            each once if it has a changed dnode, and the indirect blocks above
//! ```
//!
//! Blocks that every txg writes are not counted: the root block, the path from it to the first
//! block of dnodes, the accounting objects.

use std::collections::BTreeSet;
use std::ops::{AddAssign, SubAssign};

use cenote_ondisk::dnode::DnodePhys;

/// Log2 of the smallest block.
const SHIFT_MIN: u32 = 9;
/// Number of size classes: powers of two from 512 to 16M.
const SIZES: usize = 16;
/// Log2 of the dnodes in a dnode block.
const DNODES_SHIFT: u32 = 5;
/// Log2 of the pointers in an indirect block of the meta-dnode.
const META_POINTERS_SHIFT: u32 = 10;
/// Levels above a dnode that are counted: dnode blocks, and indirect blocks above them.
const META_LEVELS: u32 = 2;
const DNODE_BLOCK_SHIFT: u32 = 14;
const META_INDIRECT_SHIFT: u32 = 17;

/// Blocks to be written, by size rounded up to a power of two.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Data blocks.
    data: [u32; SIZES],
    /// Metadata blocks, which may get an additional copy.
    meta: [u32; SIZES],
}

/// Number of blocks of one kind and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCount {
    /// Bytes of each.
    pub size: u64,
    /// Whether they are metadata.
    pub is_metadata: bool,
    /// Number of blocks.
    pub count: u64,
}

impl Footprint {
    /// The blocks, grouped by kind and size.
    pub fn blocks(&self) -> impl Iterator<Item = BlockCount> + '_ {
        let kinds = [(&self.data, false), (&self.meta, true)];
        kinds.into_iter().flat_map(|(counts, is_metadata)| {
            let counts = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            counts.map(move |(class, count)| BlockCount {
                size: 1 << (class as u32 + SHIFT_MIN),
                is_metadata,
                count: u64::from(*count),
            })
        })
    }

    /// Whether no count is smaller than that of `part`.
    pub(super) fn contains(&self, part: &Self) -> bool {
        let kinds = [(&self.data, &part.data), (&self.meta, &part.meta)];
        kinds.into_iter().all(|(all, part)| all.iter().zip(part).all(|(all, part)| all >= part))
    }

    /// The blocks in `self` that are not in `before`.
    pub(super) fn beyond(mut self, before: &Self) -> Self {
        self -= *before;
        self
    }

    fn kinds(&mut self) -> [&mut [u32; SIZES]; 2] {
        [&mut self.data, &mut self.meta]
    }
}

impl AddAssign for Footprint {
    fn add_assign(&mut self, mut other: Self) {
        for (counts, more) in self.kinds().into_iter().zip(other.kinds()) {
            counts.iter_mut().zip(more).for_each(|(count, more)| *count += *more);
        }
    }
}

impl SubAssign for Footprint {
    fn sub_assign(&mut self, mut other: Self) {
        for (counts, less) in self.kinds().into_iter().zip(other.kinds()) {
            counts.iter_mut().zip(less).for_each(|(count, less)| {
                *count = count.saturating_sub(*less);
            });
        }
    }
}

/// The size class of a block of `len` bytes.
fn class_of(len: u64) -> usize {
    let shift = len.max(1).next_power_of_two().ilog2();
    (shift.saturating_sub(SHIFT_MIN) as usize).min(SIZES - 1)
}

/// Indirect blocks that are written because a block below is. The set only grows: blocks that were
/// freed again count as long as their txg.
#[derive(Debug, Clone, Default)]
struct Paths {
    /// Block numbers at the lowest counted level.
    lowest: BTreeSet<u64>,
    /// Number of levels.
    levels: u32,
}

impl Paths {
    /// Counts a written block at the lowest level of a tree with `levels` levels and `1 << shift`
    /// blocks below each indirect block. Returns the number of blocks that were not counted before.
    fn touch(&mut self, number: u64, levels: u32, shift: u32) -> u32 {
        // A growing tree adds levels above its first block.
        let grown = levels.saturating_sub(self.levels);
        self.levels += grown;
        let new = match self.nearest(number) {
            _ if self.lowest.contains(&number) => return grown,
            [None, None] => return self.begin(number),
            nearest => {
                let above =
                    |number: u64, level: u32| number.checked_shr(level * shift).unwrap_or(0);
                let is_shared = |level: &u32| {
                    let nearest = nearest.iter().flatten();
                    nearest.into_iter().any(|near| above(*near, *level) == above(number, *level))
                };
                (0..self.levels).find(is_shared).unwrap_or(self.levels)
            }
        };
        self.lowest.insert(number);
        grown + new
    }

    fn begin(&mut self, number: u64) -> u32 {
        self.lowest.insert(number);
        self.levels
    }

    fn nearest(&self, number: u64) -> [Option<u64>; 2] {
        let before = self.lowest.range(..number).next_back().copied();
        [before, self.lowest.range(number..).next().copied()]
    }
}

/// Blocks to be written for an object.
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectFootprint {
    blocks: [u32; SIZES],
    indirect: u32,
    paths: Paths,
}

impl ObjectFootprint {
    /// Counts a new data block in memory.
    pub(super) fn put(&mut self, len: usize) {
        self.blocks[class_of(len as u64)] += 1;
    }

    /// Counts a data block that was removed from memory.
    pub(super) fn take(&mut self, len: usize) {
        let count = &mut self.blocks[class_of(len as u64)];
        // Checks V8.
        *count = count.checked_sub(1).expect("a counted block");
    }

    /// Counts the indirect blocks above data block `blkid`, which is changed.
    pub(super) fn touch(&mut self, head: &DnodePhys, blkid: u64) {
        let shift = head.indirect_ptrs_shift();
        let pointers = head.nblkptr().max(1) as u64;
        let last = head.maxblkid.max(blkid);
        let mut levels = u32::from(head.nlevels.saturating_sub(1));
        while last.checked_shr(shift * levels).unwrap_or(0) >= pointers {
            levels += 1;
        }
        self.indirect += self.paths.touch(blkid >> shift, levels, shift);
    }

    /// The whole footprint, with a spill block of `spill` bytes.
    pub(super) fn total(&self, head: Option<&DnodePhys>, spill: Option<usize>) -> Footprint {
        let mut total = Footprint::default();
        let Some(head) = head else { return total };
        let is_metadata = head.object_type.is_metadata();
        let counts = if is_metadata { &mut total.meta } else { &mut total.data };
        *counts = self.blocks;
        total.meta[class_of(1 << head.indblkshift)] += self.indirect;
        if let Some(len) = spill {
            total.meta[class_of(len as u64)] += 1;
        }
        total
    }
}

/// Dnode blocks to be written.
#[derive(Debug, Clone, Default)]
pub(super) struct DnodeFootprint {
    paths: Paths,
}

impl DnodeFootprint {
    /// Counts the dnode of a changed object. Returns the added footprint.
    pub(super) fn touch(&mut self, object: u64) -> Footprint {
        let mut added = Footprint::default();
        let new = self.paths.touch(object >> DNODES_SHIFT, META_LEVELS, META_POINTERS_SHIFT);
        if new > 0 {
            added.meta[class_of(1 << DNODE_BLOCK_SHIFT)] += 1;
            added.meta[class_of(1 << META_INDIRECT_SHIFT)] += new - 1;
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts all indirect blocks, one by one.
    fn all(numbers: &[u64], levels: u32, shift: u32) -> usize {
        let at = |level: u32| {
            let above = numbers.iter().map(|number| number >> (level * shift));
            above.collect::<BTreeSet<u64>>().len()
        };
        (0..levels).map(at).sum()
    }

    #[test]
    fn each_indirect_block_counts_once() {
        let mut rng = cenote_rt::Rng::seeded(1);
        for (levels, shift, range) in [(3, 2, 64), (4, 3, 5000), (1, 5, 100), (2, 10, 1 << 20)] {
            let (mut paths, mut numbers, mut sum) = (Paths::default(), Vec::new(), 0);
            for _ in 0..300 {
                numbers.push(rng.below(range));
                sum += paths.touch(numbers[numbers.len() - 1], levels, shift) as usize;
                assert_eq!(sum, all(&numbers, levels, shift));
            }
        }
    }

    #[test]
    fn a_tree_may_grow() {
        let (mut paths, mut numbers, mut sum) = (Paths::default(), Vec::new(), 0);
        for (number, levels) in [(0, 0), (0, 1), (1, 2), (3, 2), (17, 3), (5, 3), (64, 4)] {
            numbers.push(number);
            sum += paths.touch(number, levels, 2) as usize;
            assert_eq!(sum, all(&numbers, levels, 2), "{number}");
        }
    }

    #[test]
    fn sizes_are_rounded_up() {
        let sizes = [1, 512, 513, 1024, 9000, 128 << 10, 16 << 20];
        assert_eq!(sizes.map(class_of), [0, 0, 1, 1, 5, 8, 15]);
    }
}
