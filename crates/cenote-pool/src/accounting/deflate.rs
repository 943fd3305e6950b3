//! From raw vdev space to the space that datasets see (spec 04 §17.1, 05 §6.2-§6.4).
//!
//! RAID-Z parity counts in a vdev's size and not in a dataset's. The ratio between the two is
//! fixed per vdev by what a 128 KiB block takes on it, truncated once, so that sums of it agree
//! for the life of the pool.

use cenote_rt::tunables;

/// Ratio of a vdev without parity.
pub const RATIO_ONE: u64 = 512;
/// The pool keeps no more back than this.
const SLOP_MAX: u64 = 128 << 30;
/// And no less than this, or half of a tiny pool.
const SLOP_MIN: u64 = 128 << 20;

/// The ratio of a vdev on which a 128 KiB block takes `asize` bytes.
#[must_use]
pub fn ratio(asize: u64) -> u64 {
    131_072_u64.checked_div(asize >> 9).unwrap_or(RATIO_ONE)
}

/// `bytes` of raw space as datasets see it.
#[must_use]
pub fn deflate(bytes: u64, ratio: u64) -> u64 {
    (bytes >> 9).saturating_mul(ratio)
}

/// What the pool keeps back, of `rdspace` bytes of deflated normal space of which
/// `embedded_log` more are set aside for the intent log.
#[must_use]
pub fn slop(rdspace: u64, embedded_log: u64) -> u64 {
    if rdspace == 0 {
        return 0;
    }
    let mut slop = (rdspace >> tunables::SLOP_SHIFT.get()).min(SLOP_MAX);
    slop -= embedded_log.min(slop / 2);
    slop.max((rdspace / 2).min(SLOP_MIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_pools() {
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
