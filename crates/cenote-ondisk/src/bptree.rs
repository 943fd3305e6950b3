//! The bptree: roots of destroyed object sets to be freed in the background (spec 04 §12).
//!
//! Header in a 40-byte bonus; entry i lies at byte `i * 168` of the data, so entries span blocks:
//! the reader of the object passes 168 bytes at a time.

use crate::blkptr::BlockPtr;
use crate::bookmark::Bookmark;
use crate::words;

/// Bytes of the header.
pub const BPTREE_PHYS_LEN: usize = 40;
/// Bytes of an entry.
pub const BPTREE_ENTRY_LEN: usize = 168;

/// Why a bptree is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptBptree {
    /// The bonus is too short.
    #[error("bptree: bonus of {len} bytes, expected 40")]
    Length {
        /// Bytes found.
        len: usize,
    },
    /// The queue ends before it begins.
    #[error("bptree: entries {begin}..{end}")]
    Range {
        /// First live entry.
        begin: u64,
        /// Past the last.
        end: u64,
    },
    /// An entry was cut off.
    #[error("bptree: entry of {len} bytes, expected 168")]
    EntryLength {
        /// Bytes found.
        len: usize,
    },
}

/// Header (`bptree_phys_t`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BptreePhys {
    /// First entry that is not done.
    pub begin: u64,
    /// Past the last entry.
    pub end: u64,
    /// Allocated bytes still to free.
    pub bytes: u64,
    /// Physical bytes.
    pub comp: u64,
    /// Logical bytes.
    pub uncomp: u64,
}

impl BptreePhys {
    /// Decodes the bonus buffer.
    pub fn decode(bonus: &[u8]) -> Result<Self, CorruptBptree> {
        let [begin, end, bytes, comp, uncomp] =
            words::exact(bonus).ok_or(CorruptBptree::Length { len: bonus.len() })?;
        if begin > end {
            return Err(CorruptBptree::Range { begin, end });
        }
        Ok(Self { begin, end, bytes, comp, uncomp })
    }

    /// The bonus buffer.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        words::to_bytes(&[self.begin, self.end, self.bytes, self.comp, self.uncomp])
    }
}

/// One destroyed tree (`bptree_entry_phys_t`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BptreeEntry {
    /// Root of the object set.
    pub bp: BlockPtr,
    /// Only blocks born after this are freed.
    pub birth_txg: u64,
    /// Where an interrupted run resumes.
    pub resume: Bookmark,
}

impl BptreeEntry {
    /// `birth_txg` of an entry all of whose blocks are freed.
    pub const DONE: u64 = u64::MAX;

    /// Whether all blocks of the tree are freed; the entry waits for earlier ones.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.birth_txg == Self::DONE
    }

    /// Decodes 168 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CorruptBptree> {
        let short = CorruptBptree::EntryLength { len: bytes.len() };
        let w: [u64; 21] = words::exact(bytes).ok_or(short)?;
        let bp = words::array_at::<128>(bytes, 0).ok_or(short)?;
        Ok(Self {
            bp: BlockPtr::from_bytes(&bp),
            birth_txg: w[16],
            resume: Bookmark::from_words([w[17], w[18], w[19], w[20]]),
        })
    }

    /// The 168 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = self.bp.to_bytes().to_vec();
        bytes.extend_from_slice(&self.birth_txg.to_le_bytes());
        bytes.extend(words::to_bytes(&self.resume.to_words()));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_and_entry_round_trip() {
        let phys = BptreePhys { begin: 1, end: 3, bytes: 4, comp: 5, uncomp: 6 };
        assert_eq!(BptreePhys::decode(&phys.encode()), Ok(phys));
        let bad = BptreePhys { begin: 4, ..phys }.encode();
        assert_eq!(BptreePhys::decode(&bad), Err(CorruptBptree::Range { begin: 4, end: 3 }));
        let bytes: Vec<u8> = (0..168).collect();
        assert_eq!(BptreeEntry::decode(&bytes).unwrap().encode(), bytes);
        assert!(BptreeEntry::decode(&bytes[..167]).is_err());
    }
}
