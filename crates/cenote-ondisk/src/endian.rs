//! Byte order of stored data.
//!
//! Every structure records its own order: a block in its pointer's B bit, labels, gang headers and
//! log blocks in the trailer magic, the uberblock in its own magic, an nvlist in its second byte
//! (spec 02 §2).

/// A byte order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Endian {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl Endian {
    /// A u16 in this order.
    #[must_use]
    pub const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    /// A u32 in this order.
    #[must_use]
    pub const fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    /// A u64 in this order.
    #[must_use]
    pub const fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    /// The bytes of a u16 in this order.
    #[must_use]
    pub const fn bytes16(self, value: u16) -> [u8; 2] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// The bytes of a u32 in this order.
    #[must_use]
    pub const fn bytes32(self, value: u32) -> [u8; 4] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// The bytes of a u64 in this order.
    #[must_use]
    pub const fn bytes64(self, value: u64) -> [u8; 8] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    /// The byte order in which eight bytes equal `magic`, if either does.
    #[must_use]
    pub fn of_magic(bytes: [u8; 8], magic: u64) -> Option<Self> {
        [Self::Little, Self::Big].into_iter().find(|order| order.u64(bytes) == magic)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_orders() {
        assert_eq!(Endian::Little.u16([1, 2]), 0x201);
        assert_eq!(Endian::Big.u32([1, 2, 3, 4]), 0x0102_0304);
        assert_eq!(Endian::Big.bytes64(1), [0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(Endian::of_magic([1, 0, 0, 0, 0, 0, 0, 0], 1), Some(Endian::Little));
        assert_eq!(Endian::of_magic([0, 0, 0, 0, 0, 0, 0, 1], 1), Some(Endian::Big));
        assert_eq!(Endian::of_magic([0; 8], 1), None);
    }
}
