//! Fragmentation from a stored histogram (spec 05 §6.5).
//!
//! The figure is the mean of a table by size of the free segment, weighted by bytes: 100 for
//! 512-byte crumbs, 0 from 512 MiB on. A metaslab without a space map is 0; one whose header has
//! no histogram has no figure, which prints as `-`. The table changed once (about 2.2/2.3); this is
//! the current one.

use super::HISTOGRAM_BUCKETS;

/// Percent of fragmentation by log2 of the segment size, from 512 bytes up.
pub const FRAGMENTATION_TABLE: [u8; 21] =
    [100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1, 0];

/// Fragmentation in percent of a histogram whose bucket 0 counts segments of `2^shift` bytes.
/// Segments too large for their sum to fit 64 bits weigh the maximum.
#[must_use]
pub fn fragmentation(histogram: &[u64; HISTOGRAM_BUCKETS], shift: u8) -> u64 {
    let (mut total, mut weighted) = (0_u128, 0_u128);
    for (bucket, count) in histogram.iter().enumerate() {
        let log2 = (bucket as u32).saturating_add(u32::from(shift)).min(63);
        let bytes = u128::from(*count).saturating_mul(1 << log2);
        let row = (log2.saturating_sub(9) as usize).min(FRAGMENTATION_TABLE.len() - 1);
        let percent = FRAGMENTATION_TABLE.get(row).copied().unwrap_or(0);
        total = total.saturating_add(bytes);
        weighted = weighted.saturating_add(bytes.saturating_mul(u128::from(percent)));
    }
    weighted.checked_div(total).unwrap_or(0) as u64
}

/// Bucket of a free segment of `size` bytes in the stored form and how often it counts there: what
/// is larger than the last bucket counts as several segments of that size (spec 05 §2.8).
#[must_use]
pub const fn bucket(size: u64, shift: u8) -> Option<(usize, u64)> {
    let Some(log2) = size.checked_ilog2() else { return None };
    let Some(index) = log2.checked_sub(shift as u32) else { return None };
    let last = HISTOGRAM_BUCKETS as u32 - 1;
    if index <= last {
        return Some((index as usize, 1));
    }
    Some((last as usize, 1 << (index - last)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_untouched_metaslab_of_16_mib_is_23_percent() {
        let mut histogram = [0; 32];
        histogram[24 - 9] = 1;
        assert_eq!(fragmentation(&histogram, 9), 17);
        histogram = [0; 32];
        histogram[23 - 9] = 1;
        assert_eq!(fragmentation(&histogram, 9), 23);
        assert_eq!(fragmentation(&[0; 32], 9), 0);
        assert_eq!(fragmentation(&[u64::MAX; 32], 255), 0);
    }

    #[test]
    fn buckets() {
        for (size, want) in [
            (0, None),
            (511, None),
            (512, Some((0, 1))),
            (1023, Some((0, 1))),
            (1 << 40, Some((31, 1))),
            (1 << 42, Some((31, 4))),
        ] {
            assert_eq!(bucket(size, 9), want, "{size}");
        }
    }
}
