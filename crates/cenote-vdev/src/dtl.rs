//! Dirty time logs: the transaction groups whose data a leaf may lack.
//!
//! A leaf that was away has nothing of what was written meanwhile; what it has at those places is
//! older, and looks like data. Blocks born inside its log are read from it last, and only
//! believed with a checksum (spec 06 §8).

/// A set of half-open ranges of txgs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TxgRanges {
    /// Sorted, disjoint, not touching, none empty.
    ranges: Vec<(u64, u64)>,
}

impl TxgRanges {
    /// The set of the ranges `start..end`, in any order.
    pub fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut given: Vec<_> = ranges.into_iter().filter(|(start, end)| start < end).collect();
        given.sort_unstable();
        let mut ranges: Vec<(u64, u64)> = Vec::with_capacity(given.len());
        for (start, end) in given {
            match ranges.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => ranges.push((start, end)),
            }
        }
        Self { ranges }
    }

    /// Whether it has that txg.
    pub fn contains(&self, txg: u64) -> bool {
        let after = self.ranges.partition_point(|(start, _)| *start <= txg);
        after > 0 && txg < self.ranges[after - 1].1
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_are_half_open() {
        let set = TxgRanges::new([(20, 30), (4, 10), (10, 12), (25, 40), (9, 9)]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(4, 12), (20, 40)]);
        let inside = |txg| set.contains(txg);
        assert_eq!(
            [3, 4, 11, 12, 19, 20, 39, 40].map(inside),
            [false, true, true, false, false, true, true, false]
        );
        assert!(TxgRanges::default().is_empty() && !set.is_empty());
    }
}
