//! Converts raw vdev space to the space that datasets see (spec 04 §17.1, 05 §6.2-§6.4).
//!
//! RAID-Z parity counts in a vdev's size and not in a dataset's. Each vdev has a fixed ratio
//! between the two: the allocated size of a 128 KiB block on it, truncated once, so that sums agree
//! for the life of the pool.

use cenote_rt::tunables;

/// Deflate ratio of a vdev without parity.
pub const RATIO_ONE: u64 = 512;
/// Largest slop space.
const SLOP_MAX: u64 = 128 << 30;

/// Returns the deflate ratio of a vdev on which a 128 KiB block allocates `asize` bytes.
#[must_use]
pub fn ratio(asize: u64) -> u64 {
    131_072_u64.checked_div(asize >> 9).unwrap_or(RATIO_ONE)
}

/// Returns the deflated size of `bytes` of raw space.
#[must_use]
pub fn deflate(bytes: u64, ratio: u64) -> u64 {
    (bytes >> 9).saturating_mul(ratio)
}

/// Returns the slop space of a pool with `rdspace` bytes of deflated normal space and another
/// `embedded_log` bytes reserved for the intent log.
#[must_use]
pub fn slop(rdspace: u64, embedded_log: u64) -> u64 {
    if rdspace == 0 {
        return 0;
    }
    let mut slop = (rdspace >> tunables::SLOP_SHIFT.get()).min(SLOP_MAX);
    slop -= embedded_log.min(slop / 2);
    slop.max((rdspace / 2).min(tunables::SLOP_MIN.get()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slop_space_and_deflate_ratios_equal_openzfs() {
        // Spec 04 §17.1, pools A and B.
        assert_eq!(slop(150_994_944, 0), 75_497_472);
        assert_eq!(ratio(196_608), 341);
        assert_eq!(deflate(369_098_752, 341), 245_825_536);
        assert_eq!(slop(245_825_536, 0), 122_912_768);
        // 4-disk RAID-Z1 of 512-byte sectors.
        assert_eq!(ratio(342 << 9), 383);
        assert_eq!(ratio(0), RATIO_ONE);
        assert_eq!(slop(100 << 40, 0), 128 << 30);
    }
}
