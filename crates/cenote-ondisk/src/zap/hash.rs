//! The hash of a key and what is derived from it (spec 03 §5.1, §5.2, §6.2).
//!
//! CRC-64 (ECMA polynomial, reflected, no final inversion) that starts from the ZAP's salt, of
//! which the *high* 28 or 48 bits are kept. Words of a u64 key are hashed low byte first, although
//! they are stored high byte first.

use super::{KeyRef, NormFlags, ZapFlags, normalize};

/// Polynomial of the CRC, reflected.
pub const CRC64_POLY: u64 = 0xc96c_5795_d787_0f42;

/// Contribution of a byte to the CRC, by the number of bytes that follow it in its word of eight.
static TABLES: [[u64; 256]; 8] = tables();

#[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "both are below their lengths"))]
const fn tables() -> [[u64; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut at = 0;
    while at < 8 * 256 {
        let (behind, byte) = (at / 256, at % 256);
        // Shifts by one more byte of zeros.
        let mut crc = if behind == 0 { byte as u64 } else { tables[behind - 1][byte] };
        let mut bit = 0;
        while bit < 8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { CRC64_POLY } else { 0 };
            bit += 1;
        }
        tables[behind][byte] = crc;
        at += 1;
    }
    tables
}

/// Continues a CRC over more bytes.
#[must_use]
#[cfg_attr(not(test), expect(clippy::indexing_slicing, reason = "a byte is below 256"))]
pub fn crc64(start: u64, bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    // Eight independent look-ups: an insertion hashes all names of a directory.
    let crc = words.iter().fold(start, |crc, word| {
        let word = (crc ^ u64::from_le_bytes(*word)).to_le_bytes();
        let added =
            word.iter().zip(TABLES.iter().rev()).map(|(byte, table)| table[usize::from(*byte)]);
        added.fold(0, |crc, added| crc ^ added)
    });
    rest.iter().fold(crc, |crc, byte| crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)])
}

/// Number of hash bits that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HashBits {
    /// Micro ZAPs, and fat ones without [`ZapFlags::HASH64`].
    B28 = 28,
    /// With the flag.
    B48 = 48,
}

impl HashBits {
    /// Bits of a fat ZAP with these flags.
    #[must_use]
    pub const fn of(flags: ZapFlags) -> Self {
        if flags.contains(ZapFlags::HASH64) { Self::B48 } else { Self::B28 }
    }

    /// Keeps the high bits.
    #[must_use]
    pub const fn mask(self, hash: u64) -> u64 {
        hash & (!0 << (64 - self as u32))
    }
}

/// The hash function of one ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ZapHash {
    /// Start of the CRC.
    pub salt: u64,
    /// Normalization of names before hashing.
    pub normflags: NormFlags,
    /// Kind of keys and width of the hash.
    pub flags: ZapFlags,
}

impl ZapHash {
    /// Bits kept.
    #[must_use]
    pub const fn bits(&self) -> HashBits {
        HashBits::of(self.flags)
    }

    /// Hash of a string key, given without NUL and not yet normalized.
    #[must_use]
    pub fn name(&self, name: &[u8]) -> u64 {
        self.bits().mask(crc64(self.salt, &normalize(name, self.normflags)))
    }

    /// Hash of a key of either kind.
    #[must_use]
    pub fn key(&self, key: &KeyRef<'_>) -> u64 {
        match key {
            KeyRef::Name(name) => self.name(name),
            KeyRef::Words(words) => self.words(words),
        }
    }

    /// Hash of a u64 key.
    #[must_use]
    pub fn words(&self, key: &[u64]) -> u64 {
        let hash = if self.flags.contains(ZapFlags::PRE_HASHED_KEY) {
            key.first().copied().unwrap_or(0)
        } else {
            key.iter().fold(self.salt, |crc, word| crc64(crc, &word.to_le_bytes()))
        };
        self.bits().mask(hash)
    }
}

/// Index in a pointer table of `2^shift` entries.
#[must_use]
pub const fn pointer_index(hash: u64, shift: u32) -> u64 {
    high_bits(hash, shift)
}

/// The `count` highest bits of a hash, right-aligned; 0 for none.
#[must_use]
pub const fn high_bits(hash: u64, count: u32) -> u64 {
    match 64_u32.checked_sub(count) {
        Some(64) => 0,
        Some(shift) => hash >> shift,
        None => hash,
    }
}

/// A position in the order of a ZAP's entries: the first entry at or after (hash, cd).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cursor {
    /// Truncated hash.
    pub hash: u64,
    /// Collision differentiator.
    pub cd: u32,
}

impl Cursor {
    /// Serialized form of "no more entries".
    pub const END: u64 = u64::MAX;

    /// The cookie of this position.
    #[must_use]
    pub const fn serialize(self, bits: HashBits) -> u64 {
        self.hash >> (64 - bits as u32) | (self.cd as u64) << bits as u32
    }

    /// The position of a cookie; `None` at the end. An invalid differentiator reads as 0.
    #[must_use]
    pub const fn deserialize(cookie: u64, bits: HashBits) -> Option<Self> {
        if cookie == Self::END {
            return None;
        }
        let cd = cookie >> bits as u32;
        let max = match bits {
            HashBits::B28 => u32::MAX as u64,
            HashBits::B48 => (1 << 16) - 1,
        };
        let cd = if cd >= max { 0 } else { cd as u32 };
        Some(Self { hash: cookie << (64 - bits as u32), cd })
    }

    /// The position right behind an entry at this position.
    #[must_use]
    pub const fn next(self) -> Self {
        Self { hash: self.hash, cd: self.cd.saturating_add(1) }
    }

    /// The first position behind the leaf that owns `hash` with a prefix of `prefix_len` bits;
    /// `None` behind the last leaf.
    #[must_use]
    pub const fn next_leaf(hash: u64, prefix_len: u32) -> Option<Self> {
        let below = match 1_u64.checked_shl(64_u32.saturating_sub(prefix_len)) {
            Some(bit) => bit - 1,
            None => u64::MAX,
        };
        match (hash | below).checked_add(1) {
            Some(hash) => Some(Self { hash, cd: 0 }),
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Spec 03 §17.
    #[test]
    fn hashes_of_real_pools() {
        assert_eq!(TABLES[0][1], 0xb32e_4cbe_03a7_5f6f);
        assert_eq!(TABLES[0][128], CRC64_POLY);
        for (salt, key, want28, want48) in [
            (0xf_c121_5fc9, "2", 0x9b7d_62f0_0000_0000, 0x9b7d_62f7_9429_0000_u64),
            (0xf_c121_5fc9, "3", 0x2853_2e40_0000_0000, 0x2853_2e49_978e_0000),
            (0x2_c794_b917, "ZPL_MODE", 0xcc73_4be0_0000_0000, 0xcc73_4be3_99c6_0000),
            (1, "foo", 0x4dde_58a0_0000_0000, 0x4dde_58a0_9a1a_0000),
        ] {
            let normflags = NormFlags::empty();
            let mut hash = ZapHash { salt, normflags, flags: ZapFlags::empty() };
            assert_eq!(hash.name(key.as_bytes()), want28, "{key}");
            hash.flags = ZapFlags::HASH64;
            assert_eq!(hash.name(key.as_bytes()), want48, "{key}");
        }
    }

    #[test]
    fn keys_of_words() {
        let normflags = NormFlags::empty();
        let hash = ZapHash { salt: 7, normflags, flags: ZapFlags::all() };
        assert_eq!(hash.words(&[0x0123_4567_89ab_cdef, 1]), 0x0123_4567_89ab_0000);
        let hash = ZapHash { flags: ZapFlags::UINT64_KEY | ZapFlags::HASH64, ..hash };
        let bytes = hash.bits().mask(crc64(7, &[1, 0, 0, 0, 0, 0, 0, 0]));
        assert_eq!(hash.words(&[1]), bytes);
    }

    #[test]
    fn a_real_cookie() {
        let place = Cursor { hash: 0x09bc_2ff0_0000_0000, cd: 0 };
        assert_eq!(place.serialize(HashBits::B28), 0x9b_c2ff);
        assert_eq!(Cursor::deserialize(0x9b_c2ff, HashBits::B28), Some(place));
        assert_eq!(Cursor::deserialize(u64::MAX, HashBits::B48), None);
    }

    #[test]
    fn indexes_at_the_edges() {
        assert_eq!(pointer_index(u64::MAX, 0), 0);
        assert_eq!(pointer_index(u64::MAX, 10), 1023);
        assert_eq!(high_bits(5, 64), 5);
        assert_eq!(Cursor::next_leaf(0, 0), None);
        assert_eq!(Cursor::next_leaf(1 << 63, 1), None);
        assert_eq!(Cursor::next_leaf(0, 1), Some(Cursor { hash: 1 << 63, cd: 0 }));
        assert_eq!(Cursor::next_leaf(4, 64), Some(Cursor { hash: 5, cd: 0 }));
    }

    proptest! {
        #[test]
        fn words_of_bytes_go_on_as_bytes_do(start: u64, bytes: Vec<u8>) {
            let by_byte = bytes.iter().fold(start, |crc, byte| crc64(crc, &[*byte]));
            prop_assert_eq!(crc64(start, &bytes), by_byte);
        }

        #[test]
        fn cookies_round_trip(hash: u64, cd in 0_u32..65534, wide: bool) {
            let bits = if wide { HashBits::B48 } else { HashBits::B28 };
            let place = Cursor { hash: bits.mask(hash), cd };
            prop_assert_eq!(Cursor::deserialize(place.serialize(bits), bits), Some(place));
        }
    }
}
