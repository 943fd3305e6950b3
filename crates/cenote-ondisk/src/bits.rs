//! Bit fields of on-disk words.
//!
//! Shifts and masks occur only in the file that declares a word, as constants of this type below a
//! picture; all other code uses [`Bits::get`] and [`Bits::with`].

/// A field of `WIDTH` bits that starts at bit `SHIFT` of an on-disk word.
#[derive(Debug, Clone, Copy)]
pub struct Bits<const SHIFT: u32, const WIDTH: u32>;

impl<const SHIFT: u32, const WIDTH: u32> Bits<SHIFT, WIDTH> {
    /// The largest value of the field.
    pub const MAX: u64 = {
        assert!(WIDTH >= 1 && SHIFT + WIDTH <= 64);
        u64::MAX >> (64 - WIDTH)
    };

    /// The field's value in `word`.
    #[must_use]
    pub const fn get(self, word: u64) -> u64 {
        (word >> SHIFT) & Self::MAX
    }

    /// Whether any bit of the field is set in `word`.
    #[must_use]
    pub const fn is_set(self, word: u64) -> bool {
        self.get(word) != 0
    }

    /// `word` with the field set to `value`; `None` if `value` needs more than `WIDTH` bits.
    #[must_use]
    pub const fn with(self, word: u64, value: u64) -> Option<u64> {
        if value > Self::MAX { None } else { Some(word & !(Self::MAX << SHIFT) | value << SHIFT) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_fields_are_read_and_set() {
        const MIDDLE: Bits<4, 8> = Bits;
        const ALL: Bits<0, 64> = Bits;
        const TOP: Bits<63, 1> = Bits;
        assert_eq!(MIDDLE.get(0xabcd), 0xbc);
        assert_eq!(MIDDLE.with(0xffff, 0), Some(0xf00f));
        assert_eq!(MIDDLE.with(0, 0x100), None);
        assert_eq!(ALL.with(0, u64::MAX), Some(u64::MAX));
        assert!(TOP.is_set(1 << 63) && !TOP.is_set(u64::MAX >> 1));
    }
}
