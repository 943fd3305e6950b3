//! Fragmentation: how small the segments of free space are, in percent (spec 05 §6.5).
//!
//! A metaslab's fragmentation is the table's percentage averaged over its free segments, which are
//! counted in power-of-two buckets; a vdev's is the mean of its metaslabs by free space; the pool's
//! is the mean of the normal vdevs by size. Each step uses integers, in this order, so that the
//! results equal OpenZFS's. OpenZFS changed the table once (about 2.2/2.3); this is the current
//! one.

/// Percent by size of a free segment: 512 bytes, 1 KiB, ... 512 MiB and larger.
const PERCENT: [u64; 21] =
    [100, 99, 97, 93, 88, 83, 77, 71, 64, 57, 50, 43, 36, 29, 23, 17, 12, 7, 3, 1, 0];

/// Fragmentation of a metaslab, from its space map's histogram; bucket `i` counts segments of at
/// least `2^(i + shift)` bytes.
#[must_use]
pub fn of_metaslab(histogram: &[u64; 32], shift: u8) -> u64 {
    let (mut weighted, mut total) = (0_u128, 0_u128);
    for (bucket, count) in histogram.iter().enumerate() {
        let log = bucket + usize::from(shift);
        let (Some(row), true) = (log.checked_sub(9), log < 64) else { continue };
        let bytes = u128::from(*count) << log;
        total = total.saturating_add(bytes);
        let percent = PERCENT[row.min(PERCENT.len() - 1)];
        weighted = weighted.saturating_add(bytes.saturating_mul(u128::from(percent)));
    }
    weighted.checked_div(total).unwrap_or(0) as u64
}

/// Fragmentation of a vdev, from (free bytes, fragmentation) of each of its metaslabs; `None`
/// unless more than half of the metaslabs have a value.
#[must_use]
pub fn of_group(metaslabs: impl IntoIterator<Item = (u64, Option<u64>)>) -> Option<u64> {
    let (mut weighted, mut free, mut valid, mut count) = (0_u128, 0_u128, 0_u64, 0_u64);
    for (bytes, figure) in metaslabs {
        count += 1;
        if let Some(figure) = figure {
            valid += 1;
            weighted += u128::from(figure) * u128::from(bytes);
            free += u128::from(bytes);
        }
    }
    if valid <= count / 2 {
        return None;
    }
    Some(weighted.checked_div(free).unwrap_or(0) as u64)
}

/// Fragmentation of the pool, from (size, fragmentation) of each normal vdev and the size of the
/// normal class.
#[must_use]
pub fn of_class(
    vdevs: impl IntoIterator<Item = (u64, Option<u64>)>,
    class_size: u64,
) -> Option<u64> {
    let mut weighted = 0_u128;
    for (size, figure) in vdevs {
        weighted += u128::from(figure?) * u128::from(size);
    }
    weighted.checked_div(u128::from(class_size)).map(|figure| figure as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_metaslab_of_16_mib_is_23_percent() {
        let mut histogram = [0; 32];
        // 16 MiB free in one segment, minus the labels' share: the 8 MiB bucket.
        histogram[23 - 9] = 1;
        assert_eq!(of_metaslab(&histogram, 9), 23);
        histogram.swap(23 - 9, 24 - 9);
        assert_eq!(of_metaslab(&histogram, 9), 17);
        assert_eq!(of_metaslab(&[0; 32], 9), 0);
        // Buckets beyond 64 bits are ignored.
        assert_eq!(of_metaslab(&[u64::MAX; 32], 60), 0);
    }

    #[test]
    fn most_metaslabs_must_have_a_figure() {
        assert_eq!(of_group([(10, Some(20)), (30, Some(40))]), Some(35));
        assert_eq!(of_group([(10, None), (10, Some(1))]), None);
        assert_eq!(of_group([(0, Some(1))]), Some(0));
        assert_eq!(of_group([]), None);
        assert_eq!(of_class([(1, Some(10)), (3, Some(20))], 4), Some(17));
        assert_eq!(of_class([(1, None)], 4), None);
    }
}
