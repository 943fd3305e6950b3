//! Header block of a fat ZAP, and its pointer table (spec 03 §3).
//!
//! ```text
//!          0  type, magic, table {blk, numblks, shift, nextblk, blks_copied},
//!             freeblk, num_leafs, num_entries, salt, normflags, flags
//!   2^(bs-1)  embedded table: 2^(bs-4) block numbers
//! ```
//!
//! The table maps the highest `shift` bits of a hash to the block number of a leaf. It lies in the
//! second half of the header block (`numblks == 0`) or in `numblks` blocks from `blk` on. While a
//! table is being doubled (`nextblk != 0`) the old one stays authoritative for readers.

use super::hash::pointer_index;
use super::{BLOCK_HEADER, CorruptZap, HashBits, NormFlags, ZapFlags, ZapHash};
use crate::words;

/// Magic of the header.
pub const FAT_MAGIC: u64 = 0x2_f52a_b2ab;
/// Words of the header.
pub const HEADER_WORDS: usize = 13;
/// Smallest block of a fat ZAP, as log2.
pub const BLOCK_SHIFT_MIN: u32 = 9;
/// Largest block of a fat ZAP, as log2: the largest block there is.
pub const BLOCK_SHIFT_MAX: u32 = 24;

/// Header of a fat ZAP (`zap_phys_t`), checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FatHeader {
    /// Log2 of the size of every block of the object.
    pub block_shift: u32,
    /// First block of an external table, 0 = embedded.
    pub table_block: u64,
    /// Blocks of an external table, 0 = embedded.
    pub table_block_count: u64,
    /// Log2 of the number of pointers.
    pub table_shift: u32,
    /// First block of a doubled table under construction, else 0.
    pub next_table_block: u64,
    /// Blocks of the old table already copied.
    pub table_blocks_copied: u64,
    /// Blocks from here on were never used.
    pub free_block: u64,
    /// Leaves.
    pub leaf_count: u64,
    /// Entries in all leaves.
    pub entry_count: u64,
    /// Salt of the hash.
    pub salt: u64,
    /// Normalization of names.
    pub normflags: NormFlags,
    /// Kind of keys.
    pub flags: ZapFlags,
}

/// Location of a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PointerPlace {
    /// Block of the object; 0 is the header block.
    pub block: u64,
    /// Word of that block.
    pub word: usize,
}

impl FatHeader {
    /// Decodes the header block, whose length is the block size.
    pub fn decode(block: &[u8]) -> Result<Self, CorruptZap> {
        let block_shift = block_shift(block.len())?;
        let w: [u64; HEADER_WORDS] =
            words::exact(block).ok_or(CorruptZap::BlockSize { len: block.len() })?;
        if w[0] != BLOCK_HEADER {
            return Err(CorruptZap::BlockType { found: w[0] });
        }
        if w[1] != FAT_MAGIC {
            return Err(CorruptZap::Magic { found: w[1], expected: FAT_MAGIC });
        }
        let header = Self {
            block_shift,
            table_block: w[2],
            table_block_count: w[3],
            table_shift: u32::try_from(w[4]).unwrap_or(u32::MAX),
            next_table_block: w[5],
            table_blocks_copied: w[6],
            free_block: w[7],
            leaf_count: w[8],
            entry_count: w[9],
            salt: w[10],
            normflags: NormFlags::from_bits_retain(w[11]),
            flags: ZapFlags::from_bits_retain(w[12]),
        };
        header.check_table(w[4])?;
        Ok(header)
    }

    /// Checks shift, block count and block of the table for consistency.
    fn check_table(&self, shift: u64) -> Result<(), CorruptZap> {
        let bad = CorruptZap::PointerTable {
            shift,
            blocks: self.table_block_count,
            block_shift: self.block_shift,
        };
        if self.table_shift > HashBits::of(self.flags) as u32 {
            return Err(bad);
        }
        let fits = if self.is_embedded() {
            self.table_block == 0 && self.table_shift == self.block_shift - 4
        } else {
            let per_block = self.block_shift - 3;
            self.table_block != 0
                && self.table_shift >= per_block
                && self.table_block_count == 1 << (self.table_shift - per_block)
        };
        if fits { Ok(()) } else { Err(bad) }
    }

    /// The bytes of the header itself, to be put at the start of its block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        words::to_bytes(&[
            BLOCK_HEADER,
            FAT_MAGIC,
            self.table_block,
            self.table_block_count,
            u64::from(self.table_shift),
            self.next_table_block,
            self.table_blocks_copied,
            self.free_block,
            self.leaf_count,
            self.entry_count,
            self.salt,
            self.normflags.bits(),
            self.flags.bits(),
        ])
    }

    /// Whether the table is in the header block.
    #[must_use]
    pub const fn is_embedded(&self) -> bool {
        self.table_block_count == 0
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_size(&self) -> usize {
        1 << self.block_shift
    }

    /// The hash function.
    #[must_use]
    pub const fn hash(&self) -> ZapHash {
        ZapHash { salt: self.salt, normflags: self.normflags, flags: self.flags }
    }

    /// Number of pointers.
    #[must_use]
    pub const fn pointer_count(&self) -> u64 {
        1 << self.table_shift
    }

    /// Index of the pointer for a hash.
    #[must_use]
    pub const fn pointer_index(&self, hash: u64) -> u64 {
        pointer_index(hash, self.table_shift)
    }

    /// Location of a pointer; `index` must be less than [`Self::pointer_count`].
    #[must_use]
    pub const fn place(&self, index: u64) -> PointerPlace {
        let per_block_shift = self.block_shift - 3;
        if self.is_embedded() {
            let half = 1 << (self.block_shift - 4);
            return PointerPlace { block: 0, word: half + (index & (half as u64 - 1)) as usize };
        }
        let block = self.table_block.wrapping_add(index >> per_block_shift);
        PointerPlace { block, word: (index & ((1 << per_block_shift) - 1)) as usize }
    }

    /// Reads a pointer from the block that [`Self::place`] returned, and checks that the block
    /// number can be a leaf's.
    pub fn pointer(&self, block: &[u8], index: u64) -> Result<u64, CorruptZap> {
        let word = self.place(index).word;
        let found = words::u64_at(block, word.saturating_mul(8))
            .ok_or(CorruptZap::BlockSize { len: block.len() })?;
        if found == 0 || found >= self.free_block {
            let free_block = self.free_block;
            return Err(CorruptZap::Pointer { index, block: found, free_block });
        }
        Ok(found)
    }
}

/// Log2 of the size of a fat ZAP's block.
pub(super) fn block_shift(len: usize) -> Result<u32, CorruptZap> {
    let shift = len.checked_ilog2().unwrap_or(0);
    if len.is_power_of_two() && (BLOCK_SHIFT_MIN..=BLOCK_SHIFT_MAX).contains(&shift) {
        return Ok(shift);
    }
    Err(CorruptZap::BlockSize { len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fresh() -> FatHeader {
        FatHeader {
            block_shift: 14,
            table_block: 0,
            table_block_count: 0,
            table_shift: 10,
            next_table_block: 0,
            table_blocks_copied: 0,
            free_block: 2,
            leaf_count: 1,
            entry_count: 0,
            salt: 5,
            normflags: NormFlags::empty(),
            flags: ZapFlags::empty(),
        }
    }

    fn block(header: &FatHeader) -> Vec<u8> {
        let mut block = header.encode();
        block.resize(header.block_size(), 0);
        block
    }

    #[test]
    fn embedded_table() {
        let header = fresh();
        let mut block = block(&header);
        assert_eq!(FatHeader::decode(&block), Ok(header));
        let index = header.pointer_index(0x9b7d_62f0_0000_0000);
        assert_eq!(index, 0x9b7d_62f0 >> 22);
        let place = header.place(index);
        assert_eq!(place, PointerPlace { block: 0, word: 1024 + 621 });
        assert!(header.pointer(&block, index).is_err(), "0 is no leaf");
        block[place.word * 8] = 1;
        assert_eq!(header.pointer(&block, index), Ok(1));
        block[place.word * 8] = 2;
        assert!(header.pointer(&block, index).is_err(), "2 was never used");
    }

    #[test]
    fn external_table() {
        let header = FatHeader { table_block: 7, table_block_count: 4, table_shift: 13, ..fresh() };
        assert_eq!(FatHeader::decode(&block(&header)), Ok(header));
        assert_eq!(header.place(0), PointerPlace { block: 7, word: 0 });
        assert_eq!(header.place(8191), PointerPlace { block: 10, word: 2047 });
    }

    #[test]
    fn tables_that_do_not_fit() {
        for (blk, count, shift) in [
            (1, 0, 10),
            (0, 0, 9),
            (0, 0, 11),
            (0, 1, 11),
            (7, 3, 13),
            (7, 4, 12),
            (7, 1 << 18, 29),
        ] {
            let header = FatHeader {
                table_block: blk,
                table_block_count: count,
                table_shift: shift,
                ..fresh()
            };
            let got = FatHeader::decode(&block(&header));
            assert!(matches!(got, Err(CorruptZap::PointerTable { .. })), "{blk} {count} {shift}");
        }
    }

    proptest! {
        #[test]
        fn random_headers_never_panic(fields: [u64; 11], shift in 9_u32..18, index: u64) {
            let mut block = words::to_bytes(&[BLOCK_HEADER, FAT_MAGIC]);
            block.extend(words::to_bytes(&fields));
            block.resize(1 << shift, 0xa5);
            if let Ok(header) = FatHeader::decode(&block) {
                prop_assert_eq!(&block[..13 * 8], header.encode());
                let _ = header.pointer(&block, index);
            }
        }
    }
}
