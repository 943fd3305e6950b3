//! Sets of half-open ranges of u64: bytes of a vdev, or txgs.
//!
//!     [0x1000, 0x3000)   [0x8000, 0x8200)   [0x9000, 0xf000)        disjoint, never touching
//!
//! Allocated, free, deferred, unflushed and dirty space are such sets. Ranges are kept by start in
//! a B-tree, so that a million of them take about 30 MB and every operation costs a few comparisons
//! more than the logarithm; sums are maintained, never recounted.
//!
//! Additions and removals come in two forms. The strict ones ([`RangeSet::try_add`],
//! [`RangeSet::try_remove`]) are for sets in which an overlap or a gap is an error: they change
//! nothing then, and return where. The tolerant ones ([`RangeSet::add`], [`RangeSet::remove`]) do
//! as much as possible and return whether the range was as expected.
//!
//! Invariants
//! * R1  Ranges are not empty, do not overlap and do not touch.
//! * R2  `bytes` is the sum of their lengths.

use std::collections::BTreeMap;
use std::ops::Range;

/// Why a strict operation was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RangeError {
    /// The range to add overlaps a range of the set.
    #[error("[{:#x}, {:#x}) overlaps [{:#x}, {:#x})", range.start, range.end, other.start, other.end)]
    Overlap {
        /// The range to add.
        range: Range<u64>,
        /// The first range that it overlaps.
        other: Range<u64>,
    },
    /// The range to remove is not entirely in the set.
    #[error("[{:#x}, {:#x}) is not entirely in the set", range.start, range.end)]
    Missing {
        /// The range to remove.
        range: Range<u64>,
    },
    /// The end is not greater than the start.
    #[error("[{:#x}, {:#x}) is empty", range.start, range.end)]
    Empty {
        /// The range.
        range: Range<u64>,
    },
}

/// Disjoint ranges that never touch, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// End of each range, by start.
    ends: BTreeMap<u64, u64>,
    bytes: u64,
}

impl RangeSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { ends: BTreeMap::new(), bytes: 0 }
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.ends.iter().map(|(start, end)| *start..*end)
    }

    /// The ranges that start at `offset` or later, ascending.
    pub fn iter_from(&self, offset: u64) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        self.ends.range(offset..).map(|(start, end)| *start..*end)
    }

    /// Number of ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Sum of the lengths of all ranges.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The lowest range.
    #[must_use]
    pub fn first(&self) -> Option<Range<u64>> {
        self.ends.first_key_value().map(|(start, end)| *start..*end)
    }

    /// The highest range.
    #[must_use]
    pub fn last(&self) -> Option<Range<u64>> {
        self.ends.last_key_value().map(|(start, end)| *start..*end)
    }

    /// The range that contains `offset`.
    #[must_use]
    pub fn find(&self, offset: u64) -> Option<Range<u64>> {
        self.at_or_before(offset).filter(|range| range.end > offset)
    }

    /// The last range that starts at `offset` or before.
    fn at_or_before(&self, offset: u64) -> Option<Range<u64>> {
        self.ends.range(..=offset).next_back().map(|(start, end)| *start..*end)
    }

    /// The range that ends exactly at `offset`.
    #[must_use]
    pub fn ending_at(&self, offset: u64) -> Option<Range<u64>> {
        let (start, end) = self.ends.range(..offset).next_back()?;
        (*end == offset).then_some(*start..*end)
    }

    /// The range that starts exactly at `offset`.
    #[must_use]
    pub fn starting_at(&self, offset: u64) -> Option<Range<u64>> {
        self.ends.get(&offset).map(|end| offset..*end)
    }

    /// Whether the whole `range` is in the set.
    #[must_use]
    pub fn contains(&self, range: &Range<u64>) -> bool {
        self.find(range.start).is_some_and(|found| found.end >= range.end)
    }

    /// The first range that overlaps `range`.
    #[must_use]
    pub fn overlap(&self, range: &Range<u64>) -> Option<Range<u64>> {
        if range.is_empty() {
            return None;
        }
        self.find(range.start).or_else(|| {
            let (start, end) = self.ends.range(range.start..range.end).next()?;
            Some(*start..*end)
        })
    }

    /// Number of bytes of `range` in the set.
    #[must_use]
    pub fn bytes_within(&self, range: &Range<u64>) -> u64 {
        self.within(range).map(|part| part.end - part.start).sum()
    }

    /// The parts of `range` in the set, ascending.
    pub fn within(&self, range: &Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let Range { start, end } = range.clone();
        let first = self.find(start).map_or(start, |found| found.start);
        // The bounds of an empty range would be in the wrong order.
        let parts = self.ends.range(first..end.max(first));
        parts.map(move |(&other, &other_end)| other.max(start)..other_end.min(end))
    }

    /// Adds a range that must not overlap the set; otherwise changes nothing and returns an error.
    pub fn try_add(&mut self, range: Range<u64>) -> Result<(), RangeError> {
        // Checks R1.
        if range.is_empty() {
            return Err(RangeError::Empty { range });
        }
        let Range { mut start, mut end } = range.clone();
        let before = self.at_or_before(end);
        // Only the last range that starts at or before the end can overlap, or the one before that
        // if the last one begins exactly at the end.
        let below = match before {
            Some(above) if above.start == end => {
                end = above.end;
                let below = self.ends.range(..range.end).next_back();
                below.map(|(start, end)| *start..*end)
            }
            below => below,
        };
        if let Some(below) = below {
            // Checks R1.
            if below.end > start {
                return Err(RangeError::Overlap { range, other: below });
            }
            if below.end == start {
                start = below.start;
            }
        }
        if end != range.end {
            self.ends.remove(&range.end);
        }
        self.ends.insert(start, end);
        self.bytes += range.end - range.start;
        Ok(())
    }

    /// Removes a range that must be entirely in the set; otherwise changes nothing and returns an
    /// error.
    pub fn try_remove(&mut self, range: Range<u64>) -> Result<(), RangeError> {
        // Checks R1.
        if range.is_empty() {
            return Err(RangeError::Empty { range });
        }
        // Checks R1.
        let Some(found) = self.find(range.start).filter(|found| found.end >= range.end) else {
            return Err(RangeError::Missing { range });
        };
        if found.start == range.start {
            self.ends.remove(&found.start);
        } else {
            self.ends.insert(found.start, range.start);
        }
        if found.end > range.end {
            self.ends.insert(range.end, found.end);
        }
        // Checks R2.
        self.bytes = self.bytes.checked_sub(range.end - range.start).expect("a part of the sum");
        Ok(())
    }

    /// Adds a range; returns true if no part of it was in the set.
    pub fn add(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        let Range { mut start, mut end } = range;
        let (mut is_new, mut gone) = (true, 0);
        // Ranges that touch it are merged into it.
        while let Some((&other, &other_end)) = self.ends.range(..=end).next_back() {
            if other_end < start {
                break;
            }
            is_new &= other_end == start || other == end;
            start = start.min(other);
            end = end.max(other_end);
            self.ends.remove(&other);
            gone += other_end - other;
        }
        self.ends.insert(start, end);
        self.bytes += end - start - gone;
        is_new
    }

    /// Removes a range; returns true if all of it was in the set.
    pub fn remove(&mut self, range: Range<u64>) -> bool {
        if range.is_empty() {
            return true;
        }
        let mut found = 0;
        while let Some((&other, &other_end)) = self.ends.range(..range.end).next_back() {
            if other_end <= range.start {
                break;
            }
            self.ends.remove(&other);
            if other_end > range.end {
                self.ends.insert(range.end, other_end);
            }
            if other < range.start {
                self.ends.insert(other, range.start);
            }
            found += other_end.min(range.end) - other.max(range.start);
        }
        // Checks R2.
        self.bytes = self.bytes.checked_sub(found).expect("a part of the sum");
        found == range.end - range.start
    }

    /// Adds all ranges of another set, which may overlap this one.
    pub fn union(&mut self, other: &Self) {
        if self.is_empty() {
            self.clone_from(other);
            return;
        }
        for range in other.iter() {
            self.add(range);
        }
    }

    /// Adds all ranges of another set, none of which may overlap. After an error some are added.
    pub fn try_union(&mut self, other: &Self) -> Result<(), RangeError> {
        if self.is_empty() {
            self.clone_from(other);
            return Ok(());
        }
        other.iter().try_for_each(|range| self.try_add(range))
    }

    /// Removes all ranges of another set.
    pub fn subtract(&mut self, other: &Self) {
        for range in other.iter() {
            self.remove(range);
        }
    }

    /// Removes all ranges of another set, which must be in this one. After an error some are
    /// removed.
    pub fn try_subtract(&mut self, other: &Self) -> Result<(), RangeError> {
        other.iter().try_for_each(|range| self.try_remove(range))
    }

    /// The intersection of both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (few, many) = if self.len() <= other.len() { (self, other) } else { (other, self) };
        few.iter().flat_map(|range| many.within(&range).collect::<Vec<_>>()).collect()
    }

    /// The ranges in this set and not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut left = self.clone();
        left.subtract(other);
        left
    }

    /// Number of ranges by log2 of their length: `[i]` counts `2^i <= len < 2^(i+1)`.
    #[must_use]
    pub fn histogram(&self) -> [u64; 64] {
        let mut counts = [0; 64];
        for range in self.iter() {
            counts[(range.end - range.start).ilog2() as usize] += 1;
        }
        counts
    }

    /// Removes all ranges.
    pub fn clear(&mut self) {
        self.ends.clear();
        self.bytes = 0;
    }

    /// Removes all ranges and returns them.
    #[must_use]
    pub fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}

/// Collects ranges in any order, which may overlap.
impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::new();
        for range in ranges {
            set.add(range);
        }
        set
    }
}

impl From<Range<u64>> for RangeSet {
    fn from(range: Range<u64>) -> Self {
        std::iter::once(range).collect()
    }
}

#[cfg(test)]
mod tests;
