//! Counts by powers of two.

/// Number of buckets: the last begins at 2^47, which is more than a day in nanoseconds.
pub const BUCKETS: usize = 48;

/// Number of values in `2^i .. 2^(i+1)`, for each `i`; zeros count as ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Histogram {
    counts: [u64; BUCKETS],
    sum: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [0; BUCKETS], sum: 0 }
    }
}

impl Histogram {
    /// Returns the bucket of a value.
    #[must_use]
    pub fn bucket(value: u64) -> usize {
        (value.max(1).ilog2() as usize).min(BUCKETS - 1)
    }

    /// Returns the histogram with these counts and this sum of the values.
    #[must_use]
    pub fn of(counts: [u64; BUCKETS], sum: u64) -> Self {
        Self { counts, sum }
    }

    /// Counts a value.
    pub fn add(&mut self, value: u64) {
        self.counts[Self::bucket(value)] += 1;
        self.sum = self.sum.saturating_add(value);
    }

    /// Counts by bucket.
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Number of values.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of the values.
    pub fn sum(&self) -> u64 {
        self.sum
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count += more;
        }
        self.sum = self.sum.saturating_add(other.sum);
    }

    /// The counts added since the snapshot `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = *self;
        for (count, before) in since.counts.iter_mut().zip(earlier.counts) {
            *count = count.saturating_sub(before);
        }
        since.sum = self.sum.saturating_sub(earlier.sum);
        since
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two() {
        let mut histogram = Histogram::default();
        for value in [0, 1, 2, 3, 4, 511, 512, u64::MAX] {
            histogram.add(value);
        }
        let filled: Vec<_> =
            histogram.counts().iter().enumerate().filter(|(_, n)| **n > 0).collect();
        assert_eq!(filled, [(0, &2), (1, &2), (2, &1), (8, &1), (9, &1), (47, &1)]);
        let mut twice = histogram;
        twice.merge(&histogram);
        assert_eq!((histogram.count(), twice.count()), (8, 16));
        let mut two = Histogram::default();
        two.add(5);
        two.add(9);
        let mut four = two;
        four.add(1);
        four.add(5);
        assert_eq!((four.since(&two).count(), four.since(&two).sum()), (2, 6));
        assert_eq!(four.since(&two).since(&four), Histogram::default());
    }
}
