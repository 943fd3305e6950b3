//! The intent log: header, chain of blocks, records (spec 07 A2-A7).
//!
//! ```text
//!   objset + 512  header, 192 bytes --> block 1 --> block 2 --> … --> a block never written
//!
//!   slim block    0 chain (184 bytes: 0, next bp, nused, trailer) | records … nused
//!   full block    records | … | chain in the last 184 bytes                  (old pools)
//! ```
//!
//! The chain ends at the first block that does not verify, which is normal: the next block is
//! allocated before it is written. The checksum words of a log block's pointer are an identity, not
//! a checksum: (id, id, objset, seq), and the next block must have seq + 1. The checksum itself is
//! in the trailer; the layer that reads the block verifies it.
//!
//! A foreign block arrives swapped as u64 from end to end, names and file data included; see
//! [`Body::decode`] for how those are decoded.

mod encode;
pub mod record;
pub mod setattr;
pub mod xvattr;

pub use record::{Body, LoggedAcl, NewObject, Record, RecordKind};
pub use setattr::SetMask;
pub use xvattr::{XvAttrs, XvMask};

pub use crate::objset::ZIL_HEADER_LEN;

use crate::blkptr::BlockPtr;
use crate::checksum_type::ChecksumType;
use crate::words;
use bitflags::bitflags;

/// Bytes of the chain structure in each block.
pub const ZIL_CHAIN_LEN: usize = 184;
/// Magic of the trailer.
pub const ZIL_TRAILER_MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Offset in the chain structure of the pointer to the next block.
const NEXT_AT: usize = 8;
/// Offset in the chain structure of the number of used bytes, after the pointer.
const USED_AT: usize = 136;
/// Offset in the chain structure of the trailer's magic.
const MAGIC_AT: usize = 144;

/// Why bytes of an intent log are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptZil {
    /// The header is too short.
    #[error("intent log: header of {len} bytes, expected 192")]
    HeaderLength {
        /// Bytes found.
        len: usize,
    },
    /// The block is too short for its chain structure.
    #[error("intent log: block of {len} bytes")]
    BlockLength {
        /// Bytes found.
        len: usize,
    },
    /// The trailer's magic: usually the end of the log.
    #[error("intent log: trailer magic {found:#x}")]
    Magic {
        /// Value found.
        found: u64,
    },
    /// The used bytes do not fit the block.
    #[error("intent log: {used} bytes used in a block of {len}")]
    Used {
        /// Bytes claimed.
        used: u64,
        /// Bytes of the block.
        len: usize,
    },
    /// The next block's identity does not follow this one's.
    #[error("intent log: next block has sequence {found}, expected {expected}")]
    Successor {
        /// Sequence found.
        found: u64,
        /// Sequence expected.
        expected: u64,
    },
    /// The length of a record is invalid.
    #[error("intent log: record of {len} bytes at {offset}, {left} bytes left")]
    RecordLength {
        /// Where it starts among the records.
        offset: usize,
        /// Length claimed.
        len: u64,
        /// Bytes left.
        left: usize,
    },
    /// A record is too short for its type, or a name in it is not terminated.
    #[error("intent log: record {seq} of type {kind} is cut off after {len} bytes")]
    RecordBody {
        /// Sequence number.
        seq: u64,
        /// Type number.
        kind: u64,
        /// Its length.
        len: usize,
    },
}

bitflags! {
    /// Flags of the header.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct ZilFlags: u64 {
        /// Records are to be replayed.
        const REPLAY_NEEDED = 1;
        /// `claim_lr_seq` is valid.
        const CLAIM_LR_SEQ_VALID = 2;
        const _ = !0;
    }
}

/// Header of a log (`zil_header_t`), inside the object set block. A snapshot's has no meaning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZilHeader {
    /// Txg of the claim, 0 = not claimed.
    pub claim_txg: u64,
    /// Highest record already replayed.
    pub replay_seq: u64,
    /// First block; a hole = no chain.
    pub log: BlockPtr,
    /// Highest block claimed.
    pub claim_blk_seq: u64,
    /// State.
    pub flags: ZilFlags,
    /// Highest record seen when claiming.
    pub claim_lr_seq: u64,
    /// Zero; kept as found.
    pub pad: [u64; 3],
}

impl ZilHeader {
    /// Decodes the 192 bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, CorruptZil> {
        let short = CorruptZil::HeaderLength { len: bytes.len() };
        let w: [u64; 24] = words::exact(bytes).ok_or(short)?;
        let log = words::array_at::<128>(bytes, 16).ok_or(short)?;
        Ok(Self {
            claim_txg: w[0],
            replay_seq: w[1],
            log: BlockPtr::from_bytes(&log),
            claim_blk_seq: w[18],
            flags: ZilFlags::from_bits_retain(w[19]),
            claim_lr_seq: w[20],
            pad: [w[21], w[22], w[23]],
        })
    }

    /// The 192 bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = words::to_bytes(&[self.claim_txg, self.replay_seq]);
        bytes.extend_from_slice(&self.log.to_bytes());
        let flags = self.flags.bits();
        bytes.extend(words::to_bytes(&[self.claim_blk_seq, flags, self.claim_lr_seq]));
        bytes.extend(words::to_bytes(&self.pad));
        bytes
    }

    /// Whether the log was claimed at import.
    #[must_use]
    pub const fn is_claimed(&self) -> bool {
        self.claim_txg != 0
    }

    /// Highest block and record that belong to the log.
    #[must_use]
    pub const fn limits(&self) -> (u64, u64) {
        let records = self.is_claimed() && self.flags.contains(ZilFlags::CLAIM_LR_SEQ_VALID);
        (
            if self.is_claimed() { self.claim_blk_seq } else { u64::MAX },
            if records { self.claim_lr_seq } else { u64::MAX },
        )
    }
}

/// Sequence number of a log block, from its pointer.
#[must_use]
pub const fn block_seq(bp: &BlockPtr) -> u64 {
    bp.checksum()[3]
}

/// A log block, with its structure checked (its checksum is not).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogBlock<'a> {
    /// Pointer to the next block.
    pub next: BlockPtr,
    /// Used bytes as stored: with the chain structure in a slim block, without in a full one.
    pub used: u64,
    /// The records, back to back.
    pub records: &'a [u8],
}

impl<'a> LogBlock<'a> {
    /// Decodes the block at `bp`; the pointer's checksum type distinguishes slim from full blocks.
    pub fn decode(block: &'a [u8], bp: &BlockPtr) -> Result<Self, CorruptZil> {
        let size = CorruptZil::BlockLength { len: block.len() };
        let is_slim = bp.checksum_type() != Some(ChecksumType::Zilog);
        let (chain, records) = if is_slim {
            block.split_at_checked(ZIL_CHAIN_LEN)
        } else {
            let at = block.len().checked_sub(ZIL_CHAIN_LEN);
            at.and_then(|at| block.split_at_checked(at)).map(|(records, chain)| (chain, records))
        }
        .ok_or(size)?;
        let next = BlockPtr::from_bytes(&words::array_at(chain, NEXT_AT).ok_or(size)?);
        let used = words::u64_at(chain, USED_AT).ok_or(size)?;
        let found = words::u64_at(chain, MAGIC_AT).ok_or(size)?;
        if found != ZIL_TRAILER_MAGIC {
            return Err(CorruptZil::Magic { found });
        }
        let header = if is_slim { ZIL_CHAIN_LEN as u64 } else { 0 };
        let records = used
            .checked_sub(header)
            .and_then(|len| records.get(..usize::try_from(len).ok()?))
            .ok_or(CorruptZil::Used { used, len: block.len() })?;
        let [id0, id1, objset, seq] = bp.checksum();
        let expected = seq.wrapping_add(1);
        if next.checksum() != [id0, id1, objset, expected] {
            return Err(CorruptZil::Successor { found: block_seq(&next), expected });
        }
        Ok(Self { next, used, records })
    }

    /// Fills an empty slim block with the pointer to the next block, the number of used bytes and
    /// the records. Magic and checksum are added when the block is written. Returns `None` if the
    /// records do not fit.
    pub fn fill_slim(block: &mut [u8], next: &BlockPtr, records: &[u8]) -> Option<()> {
        let (chain, room) = block.split_at_mut_checked(ZIL_CHAIN_LEN)?;
        room.get_mut(..records.len())?.copy_from_slice(records);
        chain.get_mut(NEXT_AT..USED_AT)?.copy_from_slice(&next.to_bytes());
        let used = ZIL_CHAIN_LEN.checked_add(records.len())? as u64;
        chain.get_mut(USED_AT..MAGIC_AT)?.copy_from_slice(&used.to_le_bytes());
        Some(())
    }

    /// Returns the number of used bytes of a slim block in this machine's byte order, as stored.
    #[must_use]
    pub fn used_of_slim(block: &[u8]) -> Option<u64> {
        words::u64_at(block, USED_AT)
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
