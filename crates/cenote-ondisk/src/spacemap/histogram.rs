//! The buckets of a stored histogram (spec 05 §2.8).

use super::HISTOGRAM_BUCKETS;

/// Bucket of a free segment of `size` bytes in the stored histogram, and its count there: a segment
/// larger than the last bucket's size counts as several of that size.
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
