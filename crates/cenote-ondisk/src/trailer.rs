//! Checksums that live in the block they guard: labels, gang headers, log blocks.
//!
//! ```text
//!   0x0210da7ab10c7a11   checksum 0   checksum 1   checksum 2   checksum 3     40 bytes
//! ```
//!
//! The checksum is made with a *verifier* in its place: four words that say where the block
//! belongs, so that a block in the wrong place does not pass. Which words, which function and where
//! the trailer lies depend on the kind ([`Trailer`] takes all three); the magic tells the writer's
//! byte order, in which the verifier is placed and the stored words are read. Folding under
//! encryption (spec 02 §3.5) is the function's business.
//!
//! The function is an argument because this crate computes no checksums.
//!
//! Sources: spec 01 §2, spec 02 §3.4.

use crate::endian::Endian;
use crate::words;

/// First word of a trailer.
pub const TRAILER_MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Bytes of a trailer.
pub const TRAILER_LEN: usize = 40;

/// Every way in which a trailer does not answer for its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptTrailer {
    /// The block has no room for it.
    #[error("trailer: block of {len} bytes has none at {at}")]
    Length {
        /// Bytes of the block.
        len: usize,
        /// Where the trailer was expected.
        at: usize,
    },
    /// The magic is wrong in both byte orders.
    #[error("trailer: magic {found:#x}, expected 0x210da7ab10c7a11")]
    Magic {
        /// The word found, read little-endian.
        found: u64,
    },
    /// The checksum does not match.
    #[error("trailer: stored checksum {stored:x?}, computed {computed:x?}")]
    Checksum {
        /// In the block.
        stored: [u64; 4],
        /// Of the block.
        computed: [u64; 4],
    },
}

/// Where a block keeps its trailer, and what makes it belong there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trailer {
    /// Byte offset of the trailer in the block.
    pub at: usize,
    /// Words that stand for the checksum while it is computed.
    pub verifier: [u64; 4],
}

impl Trailer {
    /// In the last 40 bytes of a block of `len` bytes.
    #[must_use]
    pub const fn at_end(len: usize, verifier: [u64; 4]) -> Self {
        Self { at: len.saturating_sub(TRAILER_LEN), verifier }
    }

    /// Checks a block, and tells its writer's byte order. `checksum` gets the bytes with the
    /// verifier in place, and that order; SHA-256's digest is four big-endian words.
    pub fn verify(
        self,
        block: &[u8],
        checksum: impl FnOnce(&[u8], Endian) -> [u64; 4],
    ) -> Result<Endian, CorruptTrailer> {
        let short = CorruptTrailer::Length { len: block.len(), at: self.at };
        let trailer = words::array_at::<TRAILER_LEN>(block, self.at).ok_or(short)?;
        let ([magic, stored @ ..], _none) = trailer.as_chunks::<8>() else {
            return Err(short);
        };
        let endian = Endian::of_magic(*magic, TRAILER_MAGIC)
            .ok_or(CorruptTrailer::Magic { found: u64::from_le_bytes(*magic) })?;
        let mut found = [0; 4];
        found.iter_mut().zip(stored).for_each(|(word, bytes)| *word = endian.u64(*bytes));
        let mut copy = block.to_vec();
        self.place(&mut copy, self.verifier, endian).ok_or(short)?;
        let computed = checksum(&copy, endian);
        if computed == found {
            Ok(endian)
        } else {
            Err(CorruptTrailer::Checksum { stored: found, computed })
        }
    }

    /// Puts magic and checksum into a block, in the given byte order.
    pub fn seal(
        self,
        block: &mut [u8],
        endian: Endian,
        checksum: impl FnOnce(&[u8], Endian) -> [u64; 4],
    ) -> Result<(), CorruptTrailer> {
        let short = CorruptTrailer::Length { len: block.len(), at: self.at };
        self.place(block, self.verifier, endian).ok_or(short)?;
        let computed = checksum(block, endian);
        self.place(block, computed, endian).ok_or(short)
    }

    fn place(self, block: &mut [u8], words: [u64; 4], endian: Endian) -> Option<()> {
        let trailer = block.get_mut(self.at..)?.first_chunk_mut::<TRAILER_LEN>()?;
        let (chunks, _none) = trailer.as_chunks_mut::<8>();
        for (chunk, word) in chunks.iter_mut().zip([TRAILER_MAGIC].into_iter().chain(words)) {
            *chunk = endian.bytes64(word);
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stands for a checksum: sums of the words by position.
    fn sums(bytes: &[u8], endian: Endian) -> [u64; 4] {
        let mut sums = [0_u64; 4];
        for (index, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            sums[index % 4] = sums[index % 4].wrapping_add(endian.u64(*word) ^ index as u64);
        }
        sums
    }

    #[test]
    fn sealed_blocks_pass_in_their_place_only() {
        for endian in [Endian::Little, Endian::Big] {
            let mut block: Vec<u8> = (0..=255).cycle().take(512).collect();
            let trailer = Trailer::at_end(512, [0x4000, 0, 0, 0]);
            trailer.seal(&mut block, endian, sums).unwrap();
            assert_eq!(block[472..480], endian.bytes64(TRAILER_MAGIC));
            assert_eq!(trailer.verify(&block, sums), Ok(endian));
            let elsewhere = Trailer::at_end(512, [0x44000, 0, 0, 0]);
            assert!(matches!(elsewhere.verify(&block, sums), Err(CorruptTrailer::Checksum { .. })));
            block[0] ^= 1;
            assert!(matches!(trailer.verify(&block, sums), Err(CorruptTrailer::Checksum { .. })));
            block[472] ^= 1;
            assert!(matches!(trailer.verify(&block, sums), Err(CorruptTrailer::Magic { .. })));
            assert!(matches!(
                trailer.verify(&block[..511], sums),
                Err(CorruptTrailer::Length { .. })
            ));
        }
    }

    #[test]
    fn a_trailer_in_front() {
        let mut block = vec![7; 4096];
        let trailer = Trailer { at: 144, verifier: [1, 2, 3, 4] };
        trailer.seal(&mut block, Endian::Little, sums).unwrap();
        assert_eq!(trailer.verify(&block, sums), Ok(Endian::Little));
        assert!(Trailer { at: usize::MAX, verifier: [0; 4] }.verify(&block, sums).is_err());
    }
}
