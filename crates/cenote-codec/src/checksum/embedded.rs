//! Embedded checksums, stored in the block itself: labels, gang headers and log blocks.
//!
//!     label, gang header, zilog:   | ............................... | magic | 4 words |
//!     zilog2:   | pad 8 | next 128 | nused 8 | magic | 4 words | records up to nused | ... |
//!                                            144     152       184
//!
//! While the checksum is computed, its own four words hold a *verifier*: the address of the block.
//! So an intact block in the wrong place fails. The magic reveals the byte order of the host that
//! wrote the block, before anything else in it is known.
//!
//! A check never writes to the block. SHA-256 hashes the bytes before the field, the verifier, and
//! the bytes after it. fletcher4 and fletcher2 work on a copy; log blocks are read rarely.
//!
//! Sources: spec 02 §3.4, §3.5.

use std::ops::Range;

use sha2::{Digest, Sha256};

use super::{ChecksumAlgorithm, words};
use crate::fletcher;

/// First word of the trailer.
pub const MAGIC: u64 = 0x0210_da7a_b10c_7a11;

/// Bytes of the trailer: magic and four words.
pub const TRAILER_LEN: usize = 40;

/// Offset of the trailer of a [`Embedded::Zilog2`] block.
const ZILOG2_TRAILER: usize = 144;

/// Offset of the field in such a block with the number of used bytes.
const ZILOG2_NUSED: usize = 136;

/// Alignment to which the used part is rounded up for the checksum.
const ZILOG2_ROUND: usize = 4096;

/// The kind of block, and its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Embedded {
    /// Part of a vdev label or an uberblock.
    Label {
        /// Bytes from the start of the leaf device.
        offset: u64,
    },
    /// A gang header.
    GangHeader {
        /// Top-level vdev of DVA 0 of the leader, whichever copy this is.
        vdev: u64,
        /// Byte offset of DVA 0 of the leader.
        offset: u64,
        /// Physical birth of the leader.
        birth: u64,
    },
    /// A log block of a pool before version 23.
    Zilog {
        /// Checksum words of the pointer to this block.
        pointer: [u64; 4],
    },
    /// A log block.
    Zilog2 {
        /// Checksum words of the pointer to this block.
        pointer: [u64; 4],
    },
}

/// Why a block with an embedded checksum is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EmbeddedError {
    /// The block is too short for a trailer.
    #[error("a block of {len} bytes has no room for a checksum")]
    Short {
        /// Bytes of the block.
        len: usize,
    },
    /// Never written, or not a block of this kind.
    #[error("magic {found:#018x}, expected {MAGIC:#018x} in either byte order")]
    Magic {
        /// The word found, read in little-endian order.
        found: u64,
    },
    /// A log block claims more bytes than its size.
    #[error("{used} bytes used of a log block of {len} bytes")]
    Used {
        /// Used bytes according to the block.
        used: u64,
        /// Bytes of the block.
        len: usize,
    },
    /// The block is damaged or in the wrong place.
    #[error("checksum {computed:016x?}, stored {stored:016x?}")]
    Mismatch {
        /// The checksum of the bytes and the verifier.
        computed: [u64; 4],
        /// The checksum in the trailer.
        stored: [u64; 4],
    },
}

/// The byte order that a block was written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    pub(crate) fn word(self, bytes: [u8; 8]) -> u64 {
        match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        }
    }

    pub(crate) fn bytes(self, word: u64) -> [u8; 8] {
        match self {
            Self::Little => word.to_le_bytes(),
            Self::Big => word.to_be_bytes(),
        }
    }

    fn read(self, block: &[u8], at: usize) -> u64 {
        let bytes = block.get(at..).and_then(|rest| rest.first_chunk::<8>());
        self.word(bytes.copied().unwrap_or_default())
    }
}

impl Embedded {
    /// The function that a block pointer to it would name.
    pub fn algorithm(&self) -> ChecksumAlgorithm {
        match self {
            Self::Label { .. } => ChecksumAlgorithm::Label,
            Self::GangHeader { .. } => ChecksumAlgorithm::GangHeader,
            Self::Zilog { .. } => ChecksumAlgorithm::Zilog,
            Self::Zilog2 { .. } => ChecksumAlgorithm::Zilog2,
        }
    }

    fn verifier(&self) -> [u64; 4] {
        match *self {
            Self::Label { offset } => [offset, 0, 0, 0],
            Self::GangHeader { vdev, offset, birth } => [vdev, offset, birth, 0],
            Self::Zilog { pointer } | Self::Zilog2 { pointer } => pointer,
        }
    }

    /// Where the trailer starts.
    fn trailer(&self, block: &[u8]) -> Result<usize, EmbeddedError> {
        let len = block.len();
        let start = match self {
            Self::Zilog2 { .. } => Some(ZILOG2_TRAILER),
            _ => len.checked_sub(TRAILER_LEN),
        };
        start.filter(|start| start + TRAILER_LEN <= len).ok_or(EmbeddedError::Short { len })
    }

    /// Number of bytes from the start that the checksum covers.
    fn extent(&self, block: &[u8], order: ByteOrder) -> Result<usize, EmbeddedError> {
        let len = block.len();
        let Self::Zilog2 { .. } = self else { return Ok(len) };
        let used = order.read(block, ZILOG2_NUSED);
        let extent =
            usize::try_from(used).ok().and_then(|n| n.checked_next_multiple_of(ZILOG2_ROUND));
        extent.filter(|&extent| extent <= len).ok_or(EmbeddedError::Used { used, len })
    }

    /// The checksum of `block`, whose checksum field is at `field`, with the verifier there.
    fn compute(
        &self,
        block: &[u8],
        field: Range<usize>,
        order: ByteOrder,
    ) -> Result<[u64; 4], EmbeddedError> {
        let extent = self.extent(block, order)?;
        let mut verifier = [0; 32];
        for (bytes, word) in verifier.as_chunks_mut::<8>().0.iter_mut().zip(self.verifier()) {
            *bytes = order.bytes(word);
        }
        if let Self::Label { .. } | Self::GangHeader { .. } = self {
            let mut hash = Sha256::new();
            hash.update(block.get(..field.start).unwrap_or_default());
            hash.update(verifier);
            hash.update(block.get(field.end..extent).unwrap_or_default());
            return Ok(words(&hash.finalize().into(), true));
        }
        let mut copy = block.get(..extent).unwrap_or_default().to_vec();
        // An empty chain header claims no bytes, and then the field is outside of the covered part.
        if let Some(place) = copy.get_mut(field) {
            place.copy_from_slice(&verifier);
        }
        Ok(match (self, order) {
            (Self::Zilog { .. }, ByteOrder::Little) => fletcher::fletcher2(&copy),
            (Self::Zilog { .. }, ByteOrder::Big) => fletcher::fletcher2_be(&copy),
            (_, ByteOrder::Little) => fletcher::fletcher4(&copy),
            (_, ByteOrder::Big) => fletcher::fletcher4_be(&copy),
        })
    }
}

/// Verifies the block and returns the byte order in which it was written.
///
/// `folded`: the block pointer is an encrypted one, and the trailer holds two words (spec 02 §3.5).
pub fn verify(kind: Embedded, block: &[u8], folded: bool) -> Result<ByteOrder, EmbeddedError> {
    let trailer = kind.trailer(block)?;
    let order = match ByteOrder::Little.read(block, trailer) {
        MAGIC => ByteOrder::Little,
        found if found == MAGIC.swap_bytes() => ByteOrder::Big,
        found => return Err(EmbeddedError::Magic { found }),
    };
    let field = trailer + 8..trailer + TRAILER_LEN;
    let stored = std::array::from_fn(|i| order.read(block, field.start + 8 * i));
    let computed = kind.compute(block, field, order)?;
    if kind.algorithm().matches(computed, stored, folded) {
        Ok(order)
    } else {
        Err(EmbeddedError::Mismatch { computed, stored })
    }
}

/// Writes the trailer of a finished block, in little-endian order.
///
/// `folded`: only two words are written; the other two, which hold the MAC, are left as they are.
pub fn seal(kind: Embedded, block: &mut [u8], folded: bool) -> Result<(), EmbeddedError> {
    let order = ByteOrder::Little;
    let trailer = kind.trailer(block)?;
    let field = trailer + 8..trailer + TRAILER_LEN;
    if let Some(magic) = block.get_mut(trailer..field.start) {
        magic.copy_from_slice(&order.bytes(MAGIC));
    }
    let computed = kind.compute(block, field.clone(), order)?;
    let [a, b] = if folded { kind.algorithm().fold(computed) } else { [computed[0], computed[1]] };
    let stored = [a, b, computed[2], computed[3]];
    let count = if folded { 2 } else { 4 };
    let places = block.get_mut(field).unwrap_or_default().as_chunks_mut::<8>().0;
    for (place, word) in places.iter_mut().zip(stored).take(count) {
        *place = order.bytes(word);
    }
    Ok(())
}
