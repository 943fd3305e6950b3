//! A device virtual address: top-level vdev, offset, allocated size (spec 02 §1.2).
//!
//! ```text
//!   63    56 55                    32 31    24 23                     0
//!  +--------+------------------------+--------+------------------------+
//!  |  zero  |          vdev          |  grid  |    asize, sectors      |
//!  +-+------+------------------------+--------+------------------------+
//!  |G|                        offset, sectors                          |
//!  +-+-----------------------------------------------------------------+
//! ```
//!
//! The offset counts from the start of the vdev's data, 4 MiB into each leaf. The asize carries no
//! bias: zero means that the slot is empty. The grid byte was never used.

use crate::bits::Bits;
use crate::blkptr::SECTOR_SIZE;

const ASIZE: Bits<0, 24> = Bits;
const VDEV: Bits<32, 24> = Bits;
const OFFSET: Bits<0, 63> = Bits;
const IS_GANG: Bits<63, 1> = Bits;

/// An address on a top-level vdev (`dva_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dva {
    /// Id of the top-level vdev.
    pub vdev: u32,
    /// Byte offset in its data area; saturated if the stored sectors exceed 64 bits of bytes.
    pub offset: u64,
    /// Bytes allocated there, parity and padding included.
    pub asize: u64,
    /// Whether it addresses a gang header.
    pub gang: bool,
}

impl Dva {
    /// From its two words.
    #[must_use]
    pub const fn from_words([first, second]: [u64; 2]) -> Self {
        Self {
            vdev: VDEV.get(first) as u32,
            offset: OFFSET.get(second).saturating_mul(SECTOR_SIZE),
            asize: ASIZE.get(first) * SECTOR_SIZE,
            gang: IS_GANG.is_set(second),
        }
    }

    /// Its two words; `None` if a part does not fit or is not whole sectors.
    #[must_use]
    pub fn to_words(self) -> Option<[u64; 2]> {
        if !(self.offset.is_multiple_of(SECTOR_SIZE) && self.asize.is_multiple_of(SECTOR_SIZE)) {
            return None;
        }
        let first = ASIZE.with(0, self.asize / SECTOR_SIZE)?;
        let second = OFFSET.with(0, self.offset / SECTOR_SIZE)?;
        Some([VDEV.with(first, u64::from(self.vdev))?, IS_GANG.with(second, u64::from(self.gang))?])
    }

    /// Whether the slot is in use.
    #[must_use]
    pub const fn is_valid(&self) -> bool {
        self.asize != 0
    }

    pub(super) const fn is_gang_word(second: u64) -> bool {
        IS_GANG.is_set(second)
    }
}

/// `vdev:offset:asize` in the hexadecimal of zdb.
impl std::fmt::Display for Dva {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{:x}:{:x}", self.vdev, self.offset, self.asize)
    }
}
