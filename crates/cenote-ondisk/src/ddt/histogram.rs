//! Statistics of a store: 64 buckets by log2 of the references (spec 08 §23).

use super::CorruptDdt;

/// Words of a histogram.
pub const DDT_HISTOGRAM_WORDS: usize = 512;

/// Sums over entries; the `ref_` half counts each entry once per reference.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DdtStat {
    /// Blocks.
    pub blocks: u64,
    /// Logical bytes.
    pub lsize: u64,
    /// Physical bytes.
    pub psize: u64,
    /// Deflated allocated bytes.
    pub dsize: u64,
    /// Referenced blocks.
    pub ref_blocks: u64,
    /// Referenced logical bytes.
    pub ref_lsize: u64,
    /// Referenced physical bytes.
    pub ref_psize: u64,
    /// Referenced allocated bytes.
    pub ref_dsize: u64,
}

impl DdtStat {
    /// Adds another sum.
    pub const fn add(&mut self, other: &Self) {
        self.blocks = self.blocks.wrapping_add(other.blocks);
        self.lsize = self.lsize.wrapping_add(other.lsize);
        self.psize = self.psize.wrapping_add(other.psize);
        self.dsize = self.dsize.wrapping_add(other.dsize);
        self.ref_blocks = self.ref_blocks.wrapping_add(other.ref_blocks);
        self.ref_lsize = self.ref_lsize.wrapping_add(other.ref_lsize);
        self.ref_psize = self.ref_psize.wrapping_add(other.ref_psize);
        self.ref_dsize = self.ref_dsize.wrapping_add(other.ref_dsize);
    }
}

/// The value of an entry of `DDT-statistics`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DdtHistogram(pub [DdtStat; 64]);

impl Default for DdtHistogram {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl DdtHistogram {
    /// An empty one.
    pub const EMPTY: Self = Self(
        [DdtStat {
            blocks: 0,
            lsize: 0,
            psize: 0,
            dsize: 0,
            ref_blocks: 0,
            ref_lsize: 0,
            ref_psize: 0,
            ref_dsize: 0,
        }; 64],
    );

    /// Decodes the words of the value.
    pub fn decode(words: &[u64]) -> Result<Self, CorruptDdt> {
        if words.len() != DDT_HISTOGRAM_WORDS {
            return Err(CorruptDdt::Statistics { count: words.len() });
        }
        let mut histogram = Self::EMPTY;
        let (rows, _none) = words.as_chunks::<8>();
        for (stat, row) in histogram.0.iter_mut().zip(rows) {
            let [blocks, lsize, psize, dsize, ref_blocks, ref_lsize, ref_psize, ref_dsize] = *row;
            *stat = DdtStat {
                blocks,
                lsize,
                psize,
                dsize,
                ref_blocks,
                ref_lsize,
                ref_psize,
                ref_dsize,
            };
        }
        Ok(histogram)
    }

    /// The words of the value.
    #[must_use]
    pub fn encode(&self) -> Vec<u64> {
        let row = |s: &DdtStat| {
            [
                s.blocks,
                s.lsize,
                s.psize,
                s.dsize,
                s.ref_blocks,
                s.ref_lsize,
                s.ref_psize,
                s.ref_dsize,
            ]
        };
        self.0.iter().flat_map(row).collect()
    }

    /// Adds another histogram, bucket by bucket.
    pub fn add(&mut self, other: &Self) {
        for (stat, more) in self.0.iter_mut().zip(&other.0) {
            stat.add(more);
        }
    }

    /// The sum of all buckets.
    #[must_use]
    pub fn total(&self) -> DdtStat {
        let mut total = DdtStat::default();
        for stat in &self.0 {
            total.add(stat);
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spec 08 §23.
    #[test]
    fn a_real_bucket() {
        let row = [20, 2_061_312, 811_520, 811_520, 60, 6_183_936, 2_434_560, 2_434_560];
        let mut words = vec![0; 512];
        words[8..16].copy_from_slice(&row);
        let mut histogram = DdtHistogram::decode(&words).unwrap();
        assert_eq!(histogram.0[1].ref_blocks, 60);
        assert_eq!(histogram.encode(), words);
        histogram.add(&histogram.clone());
        assert_eq!(histogram.total().lsize, 2 * 2_061_312);
        assert_eq!(DdtHistogram::decode(&words[1..]), Err(CorruptDdt::Statistics { count: 511 }));
    }
}
