//! The free space of a loaded metaslab, by offset and by size.
//!
//!     by offset   every segment                     neighbours, first fit
//!     by size     segments of at least `floor`      best fit, the largest
//!     histogram   every segment, by log2 of bytes   weight, condense estimate
//!
//! There are many small segments and best fit seldom needs them, so the tree by size leaves them
//! out until it runs empty; then it is filled once and stays complete (spec 05 §8.6).
//!
//! Invariants
//! * F1  The tree by size holds exactly the segments of at least `floor` bytes.
//! * F2  The histogram counts every segment.

use std::collections::BTreeSet;
use std::ops::Range;

use cenote_ranges::{RangeError, RangeSet};

/// Free segments of a metaslab.
#[derive(Debug, Clone)]
pub struct FreeTree {
    by_offset: RangeSet,
    /// (bytes, start).
    by_size: BTreeSet<(u64, u64)>,
    floor: u64,
    histogram: [u64; 64],
}

impl FreeTree {
    /// Builds the tree of `free` space; segments below `floor` bytes are not found by size at
    /// first.
    #[must_use]
    pub fn new(free: RangeSet, floor: u64) -> Self {
        let mut tree =
            Self { histogram: free.histogram(), by_offset: free, by_size: BTreeSet::new(), floor };
        tree.fill_by_size();
        tree
    }

    fn fill_by_size(&mut self) {
        let sizes = self.by_offset.iter().map(|range| (range.end - range.start, range.start));
        self.by_size = sizes.filter(|(size, _)| *size >= self.floor).collect();
    }

    /// The tree by size, completed if it would be empty otherwise.
    fn by_size(&mut self) -> &BTreeSet<(u64, u64)> {
        if self.by_size.is_empty() && !self.by_offset.is_empty() {
            self.floor = 0;
            self.fill_by_size();
        }
        &self.by_size
    }

    /// All segments.
    #[must_use]
    pub const fn ranges(&self) -> &RangeSet {
        &self.by_offset
    }

    /// Free bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.by_offset.bytes()
    }

    /// Number of segments by log2 of their bytes.
    #[must_use]
    pub const fn histogram(&self) -> &[u64; 64] {
        &self.histogram
    }

    /// Bytes of the largest segment, 0 if there is none.
    pub fn largest(&mut self) -> u64 {
        self.by_size().last().map_or(0, |(size, _)| *size)
    }

    /// The largest segment; of several, the one with the highest start.
    pub fn largest_segment(&mut self) -> Option<Range<u64>> {
        self.by_size().last().map(|(size, start)| *start..start + size)
    }

    /// Segments of at least `size` bytes, smallest and lowest first, as far as they are in the tree
    /// by size.
    pub fn at_least(&mut self, size: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        self.by_size().range((size, 0)..).map(|(size, start)| *start..start + size)
    }

    /// Segments from the one that contains `offset` or follows it.
    pub fn from(&self, offset: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        let containing = self.by_offset.find(offset).map(|found| offset..found.end);
        let inside = containing.clone().filter(|part| !part.is_empty());
        let next = containing.map_or(offset, |part| part.end);
        inside.into_iter().chain(self.by_offset.iter_from(next))
    }

    fn count(&mut self, range: &Range<u64>) {
        let size = range.end - range.start;
        self.histogram[size.ilog2() as usize] += 1;
        if size >= self.floor {
            self.by_size.insert((size, range.start));
        }
    }

    fn uncount(&mut self, range: &Range<u64>) -> Result<(), RangeError> {
        let size = range.end - range.start;
        let bucket = &mut self.histogram[size.ilog2() as usize];
        let missing = || RangeError::Missing { range: range.clone() };
        // Checks F2.
        *bucket = bucket.checked_sub(1).ok_or_else(missing)?;
        // Checks F1.
        if self.by_size.remove(&(size, range.start)) != (size >= self.floor) {
            return Err(missing());
        }
        Ok(())
    }

    /// Frees a range no part of which may be free already.
    pub fn try_add(&mut self, range: Range<u64>) -> Result<(), RangeError> {
        let before = self.by_offset.ending_at(range.start);
        let after = self.by_offset.starting_at(range.end);
        self.by_offset.try_add(range.clone())?;
        let mut joined = range;
        for neighbour in before.into_iter().chain(after) {
            joined = joined.start.min(neighbour.start)..joined.end.max(neighbour.end);
            self.uncount(&neighbour)?;
        }
        self.count(&joined);
        Ok(())
    }

    /// Allocates a range that must be entirely free.
    pub fn try_remove(&mut self, range: Range<u64>) -> Result<(), RangeError> {
        let found = self.by_offset.find(range.start);
        self.by_offset.try_remove(range.clone())?;
        // The removal succeeded, so the segment around the range was found.
        let Some(found) = found else { return Err(RangeError::Missing { range }) };
        self.uncount(&found)?;
        for rest in [found.start..range.start, range.end..found.end] {
            if !rest.is_empty() {
                self.count(&rest);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_rt::Rng;

    fn check(tree: &mut FreeTree) {
        assert_eq!(*tree.histogram(), tree.ranges().histogram());
        let floor = tree.floor;
        let want: BTreeSet<_> = tree
            .ranges()
            .iter()
            .map(|range| (range.end - range.start, range.start))
            .filter(|(size, _)| *size >= floor)
            .collect();
        assert_eq!(tree.by_size, want);
        let largest = tree.ranges().iter().map(|range| range.end - range.start).max();
        assert_eq!(tree.largest(), largest.unwrap_or(0));
    }

    #[test]
    fn both_orders_and_the_histogram_agree() {
        for (seed, floor) in [(1, 0), (2, 16), (3, 1 << 20)] {
            let mut rng = Rng::seeded(seed);
            let mut tree = FreeTree::new(RangeSet::from(0..4096), floor);
            for _ in 0..4000 {
                let start = rng.below(4095);
                let range = start..start + 1 + rng.below((4095 - start).min(60));
                if rng.below(2) == 0 {
                    let is_new = tree.ranges().overlap(&range).is_none();
                    assert_eq!(tree.try_add(range).is_ok(), is_new);
                } else {
                    let is_there = tree.ranges().contains(&range);
                    assert_eq!(tree.try_remove(range).is_ok(), is_there);
                }
                check(&mut tree);
            }
        }
    }

    #[test]
    fn segments_follow_an_offset() {
        let tree = FreeTree::new([10..20, 30..40].into_iter().collect(), 0);
        assert_eq!(tree.from(15).collect::<Vec<_>>(), [15..20, 30..40]);
        assert!(tree.from(20).eq(std::iter::once(30..40)));
        assert_eq!(tree.from(0).collect::<Vec<_>>(), [10..20, 30..40]);
        assert_eq!(tree.from(40).count(), 0);
    }
}
