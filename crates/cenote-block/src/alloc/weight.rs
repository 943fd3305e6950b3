//! The weight of a metaslab: one comparable number (spec 05 §8.4).
//!
//! ```text
//!   63       62         61     60    59      54 53                     0
//!  +-------+---------+------+------+-----------+------------------------+
//!  | 0     | 0       | 0    | 0    |   index   |   segments of that     | by segments
//!  +-------+---------+------+------+-----------+------------------------+
//!  | prim. | second. | claim| 1    |               free bytes           | by space
//!  | 0     | 0       | 1    |  mean run, sectors |     free, sectors     | by runs
//!  +-------+---------+------+------+------------------------------------+
//! ```
//!
//! `index` is the logarithm of the largest segment size. Weights by runs are this engine's own.
//! Bits 63 to 61 of the others say how the metaslab is used; here that is stored beside the weight,
//! and the bits are set for display only.

use cenote_ondisk::spacemap::HISTOGRAM_BUCKETS;

const BY_SPACE: u64 = 1 << 60;
const BY_RUNS: u64 = 1 << 61;
/// Log2 of the unit of weights by runs, and of the place of the mean run.
const SECTOR_SHIFT: u32 = 9;
const RUN_SHIFT: u32 = 36;
const RUN_MAX: u64 = (1 << 24) - 1;
const INDEX_SHIFT: u32 = 54;
const COUNT_MAX: u64 = (1 << INDEX_SHIFT) - 1;

/// A metaslab's weight; larger is better, 0 means that it has no space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Weight(u64);

impl Weight {
    /// No space.
    pub const ZERO: Self = Self(0);

    /// Weight by the largest segments: `count` of at least `2^index` bytes.
    #[must_use]
    pub fn of_segments(index: u32, count: u64) -> Self {
        Self(u64::from(index.min(63)) << INDEX_SHIFT | count.min(COUNT_MAX))
    }

    /// Weight by free bytes.
    #[must_use]
    pub fn of_space(bytes: u64) -> Self {
        if bytes < 512 { Self::ZERO } else { Self(BY_SPACE | bytes.min(BY_SPACE - 1)) }
    }

    /// Weight by the mean length of free segments; of equal ones, by free bytes.
    #[must_use]
    pub fn of_runs(free: u64, segments: u64) -> Self {
        if free < 1 << SECTOR_SHIFT {
            return Self::ZERO;
        }
        let sectors = free >> SECTOR_SHIFT;
        let run = (sectors / segments.max(1)).min(RUN_MAX);
        Self(BY_RUNS | run << RUN_SHIFT | sectors.min((1 << RUN_SHIFT) - 1))
    }

    /// Weight from an in-core histogram, by log2 of bytes. Segments beyond the stored histogram's
    /// last bucket count as several of that size.
    #[must_use]
    pub fn of_free(histogram: &[u64; 64], shift: u8) -> Self {
        let last = (HISTOGRAM_BUCKETS - 1 + usize::from(shift)).min(63);
        let mut folded = 0_u64;
        for log2 in (0..64).rev() {
            let count = histogram[log2];
            if log2 >= last {
                folded = folded.saturating_add(count << (log2 - last));
                if log2 == last && folded > 0 {
                    return Self::of_segments(last as u32, folded);
                }
            } else if count > 0 {
                return Self::of_segments(log2 as u32, count);
            }
        }
        Self::ZERO
    }

    /// Weight from a stored histogram, minus the segments that cannot be used yet.
    #[must_use]
    pub fn of_stored(
        stored: &[u64; HISTOGRAM_BUCKETS],
        unusable: &[u64; HISTOGRAM_BUCKETS],
        shift: u8,
    ) -> Self {
        let counts = stored.iter().zip(unusable).map(|(all, not)| all.saturating_sub(*not));
        let found = counts.enumerate().rev().find(|(_, count)| *count > 0);
        found.map_or(Self::ZERO, |(bucket, count)| {
            Self::of_segments(bucket as u32 + u32::from(shift), count)
        })
    }

    /// The number itself.
    #[must_use]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Log2 of the size of the largest segments, if it is a weight by segments.
    #[must_use]
    pub const fn index(self) -> Option<u32> {
        if self.0 == 0 || self.0 & (BY_SPACE | BY_RUNS) != 0 {
            return None;
        }
        Some((self.0 >> INDEX_SHIFT) as u32)
    }

    /// Whether a request of `size` bytes may fit.
    #[must_use]
    pub const fn may_satisfy(self, size: u64) -> bool {
        if self.0 == 0 {
            return false;
        }
        match self.index() {
            Some(index) => index >= 63 || size < 2 << index,
            None if self.0 & BY_RUNS != 0 => {
                let sectors = self.0 & ((1 << RUN_SHIFT) - 1);
                sectors == (1 << RUN_SHIFT) - 1 || size >> SECTOR_SHIFT <= sectors
            }
            None => size <= self.0 & !BY_SPACE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_format() {
        // One largest segment, of 8 to 16 MiB (spec 05 §8.4).
        let mut histogram = [0; 64];
        histogram[23] = 1;
        histogram[12] = 900;
        let weight = Weight::of_free(&histogram, 9);
        assert_eq!(weight.bits(), 0x05c0_0000_0000_0001);
        assert!(weight.may_satisfy((16 << 20) - 1) && !weight.may_satisfy(16 << 20));
        let mut stored = [0; 32];
        stored[14] = 3;
        let mut unusable = [0; 32];
        unusable[14] = 2;
        assert_eq!(Weight::of_stored(&stored, &unusable, 9), weight);
    }

    #[test]
    fn space_and_segments() {
        let space = Weight::of_space(1 << 20);
        assert!(space.may_satisfy(1 << 20) && !space.may_satisfy((1 << 20) + 1));
        assert_eq!((space.index(), Weight::of_space(511)), (None, Weight::ZERO));
        assert!(Weight::of_segments(20, 1) > Weight::of_segments(19, 50));
        assert!(!Weight::ZERO.may_satisfy(512));
        let (long, short) = (Weight::of_runs(1 << 20, 8), Weight::of_runs(2 << 20, 64));
        assert!(long > short && short > Weight::of_runs(1 << 20, 32));
        assert!(long.may_satisfy(1 << 20) && !long.may_satisfy((1 << 20) + 512));
        assert_eq!((long.index(), Weight::of_runs(511, 1)), (None, Weight::ZERO));
        // Beyond the last bucket, each step doubles the count of a segment.
        let mut histogram = [0; 64];
        histogram[42] = 1;
        assert_eq!(Weight::of_free(&histogram, 9), Weight::of_segments(40, 4));
        assert_eq!(Weight::of_free(&[0; 64], 9), Weight::ZERO);
    }
}
