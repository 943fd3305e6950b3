//! Redaction lists: the blocks that a redacted stream leaves out (spec 08 §29).
//!
//! Header in the bonus (or, with many snapshots, in the spill block); data is an array of 32-byte
//! entries sorted by object and block. Both `last_*` are 2^64-1 once the list is complete.

use crate::bits::Bits;
use crate::words;

/// Bytes of an entry.
pub const REDACTION_ENTRY_LEN: usize = 32;
/// Most blocks of an entry.
pub const REDACTION_BLOCKS_MAX: u64 = 1 << 48;
/// Block size of a list's object.
pub const REDACTION_BLOCK_SIZE: u32 = 128 << 10;

const COUNT_MINUS_1: Bits<0, 48> = Bits;
const SIZE_SECTORS: Bits<48, 16> = Bits;

/// Why a redaction list's header is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptRedaction {
    /// Too short for its fixed part.
    #[error("redaction list: header of {len} bytes, expected at least 32")]
    Length {
        /// Bytes found.
        len: usize,
    },
    /// Names more snapshots than there are words.
    #[error("redaction list: {count} snapshots in a header of {len} bytes")]
    Snapshots {
        /// Number claimed.
        count: u64,
        /// Bytes found.
        len: usize,
    },
}

/// Header (`redaction_list_phys_t`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedactionPhys {
    /// Progress while being built.
    pub last_object: u64,
    /// Progress while being built.
    pub last_blkid: u64,
    /// Entries of the data.
    pub num_entries: u64,
    /// Guids of the redaction snapshots.
    pub guids: Vec<u64>,
}

impl RedactionPhys {
    /// Decodes the bonus buffer or spill block.
    pub fn decode(header: &[u8]) -> Result<Self, CorruptRedaction> {
        let len = header.len();
        let [last_object, last_blkid, num_entries, count] =
            words::exact(header).ok_or(CorruptRedaction::Length { len })?;
        let guids: Vec<u64> = header
            .get(32..)
            .map(words::iter)
            .into_iter()
            .flatten()
            .take(usize::try_from(count).unwrap_or(usize::MAX))
            .collect();
        if guids.len() as u64 != count {
            return Err(CorruptRedaction::Snapshots { count, len });
        }
        Ok(Self { last_object, last_blkid, num_entries, guids })
    }

    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let count = self.guids.len() as u64;
        let mut bytes =
            words::to_bytes(&[self.last_object, self.last_blkid, self.num_entries, count]);
        bytes.extend(words::to_bytes(&self.guids));
        bytes
    }

    /// Whether the list is complete.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.last_object == u64::MAX && self.last_blkid == u64::MAX
    }
}

/// A run of redacted blocks (`redact_block_phys_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RedactionEntry {
    /// Object.
    pub object: u64,
    /// First block.
    pub blkid: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Number of blocks.
    pub block_count: u64,
}

impl RedactionEntry {
    /// The number of the block behind the last one; `None` if it is beyond 2^64.
    #[must_use]
    pub const fn end(&self) -> Option<u64> {
        self.blkid.checked_add(self.block_count)
    }

    /// The entry's bytes; `None` if a number does not fit its field.
    #[must_use]
    pub fn encode(&self) -> Option<Vec<u8>> {
        let word = COUNT_MINUS_1.with(0, self.block_count.checked_sub(1)?)?;
        let word = SIZE_SECTORS.with(word, u64::from(self.block_size >> 9))?;
        Some(words::to_bytes(&[self.object, self.blkid, word, 0]))
    }
}

/// The entries in a piece of a list's data; a partial last one is ignored.
pub fn entries(data: &[u8]) -> impl ExactSizeIterator<Item = RedactionEntry> + '_ {
    let (entries, _partial) = data.as_chunks::<REDACTION_ENTRY_LEN>();
    entries.iter().map(|bytes| {
        let [object, blkid, size_count, _pad] = words::padded(bytes);
        RedactionEntry {
            object,
            blkid,
            block_size: (SIZE_SECTORS.get(size_count) as u32) << 9,
            block_count: COUNT_MINUS_1.get(size_count) + 1,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spec 08 §29.
    #[test]
    fn a_real_list() {
        let header = words::to_bytes(&[u64::MAX, u64::MAX, 36, 1, 0x77]);
        let phys = RedactionPhys::decode(&header).unwrap();
        assert!(phys.is_complete());
        assert_eq!((phys.num_entries, phys.guids.as_slice()), (36, &[0x77][..]));
        assert_eq!(phys.encode(), header);
        assert_eq!(
            RedactionPhys::decode(&words::to_bytes(&[0, 0, 0, 1])),
            Err(CorruptRedaction::Snapshots { count: 1, len: 32 })
        );
        let data = words::to_bytes(&[43, 0, 2048 << 48 | 1, 0]);
        let entry = entries(&data).next().unwrap();
        assert_eq!((entry.object, entry.block_size, entry.block_count), (43, 1 << 20, 2));
        assert_eq!(entry.encode(), Some(data));
        let huge = RedactionEntry { block_count: REDACTION_BLOCKS_MAX + 1, ..entry };
        assert_eq!(huge.encode(), None);
        assert_eq!(RedactionEntry { block_count: 0, ..entry }.encode(), None);
    }
}
