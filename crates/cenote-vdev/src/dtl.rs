//! Dirty time logs (DTLs): the transaction groups whose data a leaf may lack.
//!
//! A leaf that was out of service has none of the blocks written meanwhile; at their offsets it has
//! older data that looks valid. Blocks born in a txg of the log are read from this leaf last, and
//! used only if the checksum matches (spec 06 §8).
//!
//! | kind    | of a leaf                      | of an interior vdev                        |
//! |---------|--------------------------------|--------------------------------------------|
//! | missing | stored; grows by failed writes | in the outage of too many children         |
//! | partial | missing                        | in the partial of any child                |
//! | scrub   | what a scan does not repair    | -                                          |
//! | outage  | missing; all if not readable   | in the outage of too many children         |

use crate::leaf::LeafId;

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

    /// Whether `txg` is in the set.
    pub fn contains(&self, txg: u64) -> bool {
        let after = self.ranges.partition_point(|(start, _)| *start <= txg);
        after > 0 && txg < self.ranges[after - 1].1
    }

    /// The set of all txgs.
    pub fn all() -> Self {
        Self { ranges: vec![(0, u64::MAX)] }
    }

    /// Adds one txg.
    pub fn insert(&mut self, txg: u64) {
        // The txg is nearly always the last one, or follows it.
        match self.ranges.last_mut() {
            Some((start, end)) if (*start..*end).contains(&txg) => {}
            Some((_, end)) if *end == txg => *end += 1,
            Some((_, end)) if *end > txg => *self = self.union(&Self::of(txg)),
            _ => self.ranges.push((txg, txg.saturating_add(1))),
        }
    }

    /// The set of one txg.
    pub fn of(txg: u64) -> Self {
        Self::new([(txg, txg.saturating_add(1))])
    }

    /// The txgs in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self::new(self.iter().chain(other.iter()))
    }

    /// The txgs in at least `count` of `sets`.
    pub fn in_at_least<'a>(count: usize, sets: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut edges: Vec<(u64, i64)> = sets
            .into_iter()
            .flat_map(|set| set.iter().flat_map(|(start, end)| [(start, 1), (end, -1)]))
            .collect();
        edges.sort_unstable();
        let (mut depth, mut since, mut ranges) = (0_i64, 0, Vec::new());
        for (txg, step) in edges {
            if depth >= count as i64 && depth + step < count as i64 {
                ranges.push((since, txg));
            } else if depth < count as i64 && depth + step >= count as i64 {
                since = txg;
            }
            depth += step;
        }
        Self::new(ranges)
    }

    /// The txgs in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self::in_at_least(2, [self, other])
    }

    /// The txgs in this set and not in `other`.
    #[must_use]
    pub fn subtract(&self, other: &Self) -> Self {
        let mut left = Vec::new();
        for (mut start, end) in self.iter() {
            for (from, to) in other.iter() {
                if start < to && from < end {
                    left.push((start, from));
                    start = to;
                }
            }
            left.push((start, end));
        }
        Self::new(left)
    }

    /// Whether some txg is in both.
    pub fn intersects(&self, other: &Self) -> bool {
        self.iter().any(|(start, end)| other.iter().any(|(from, to)| from < end && start < to))
    }

    /// The highest txg.
    pub fn max(&self) -> Option<u64> {
        self.ranges.last().map(|(_, end)| end - 1)
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }
}

/// The dirty time logs of a vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DtlKind {
    /// Txgs whose data the vdev may lack.
    Missing,
    /// Txgs whose data some leaf below the vdev may lack.
    Partial,
    /// Missing txgs that a running scan does not repair; leaves only.
    Scrub,
    /// Txgs whose data cannot be read now.
    Outage,
    /// Txgs whose data could not be read even if every leaf were in service.
    PermanentOutage,
}

/// Data that the layout promises on a leaf, and that the leaf lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingRedundancy {
    /// The leaf.
    pub leaf: LeafId,
    /// Txgs whose data it may lack; all of them for an absent leaf.
    pub txgs: TxgRanges,
    /// Whether the leaf is absent or out of service.
    pub is_absent: bool,
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

    #[test]
    fn sets_behave_like_sets() {
        let mut rng = cenote_rt::Rng::seeded(11);
        for _ in 0..300 {
            let mut draw = || {
                let count = rng.below(5);
                let mut set = TxgRanges::default();
                let mut model = vec![false; 40];
                for _ in 0..count {
                    let (start, len) = (rng.below(36), rng.below(4) + 1);
                    for txg in start..start + len {
                        set.insert(txg);
                        model[txg as usize] = true;
                    }
                }
                (set, model)
            };
            let sets: Vec<_> = (0..3).map(|_| draw()).collect();
            let members =
                |set: &TxgRanges| (0..40).map(|txg| set.contains(txg)).collect::<Vec<_>>();
            let per_txg = |want: &dyn Fn(&[bool]) -> bool| {
                let row = |txg| sets.iter().map(|(_, model)| model[txg]).collect::<Vec<_>>();
                (0..40).map(|txg| want(&row(txg))).collect::<Vec<_>>()
            };
            for (set, model) in &sets {
                assert_eq!(members(set), *model);
                assert_eq!(set.max(), (0..40).rfind(|txg| model[*txg as usize]));
                assert_eq!(TxgRanges::new(set.iter()), *set);
            }
            let [(a, _), (b, _), _] = &sets[..] else { unreachable!() };
            assert_eq!(members(&a.union(b)), per_txg(&|row| row[0] || row[1]));
            assert_eq!(members(&a.subtract(b)), per_txg(&|row| row[0] && !row[1]));
            assert_eq!(a.intersects(b), per_txg(&|row| row[0] && row[1]).contains(&true));
            for count in 1..=3 {
                let got = TxgRanges::in_at_least(count, sets.iter().map(|(set, _)| set));
                let want = per_txg(&|row| row.iter().filter(|has| **has).count() >= count);
                assert_eq!(members(&got), want, "{count}");
            }
        }
        assert!(
            TxgRanges::all().contains(u64::MAX - 1)
                && TxgRanges::all().subtract(&TxgRanges::all()).is_empty()
        );
    }
}
