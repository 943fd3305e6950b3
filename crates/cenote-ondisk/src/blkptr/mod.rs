//! The block pointer: the address of a block, its size, and how to check and decode it.
//!
//! ```text
//!     64      56      48      40      32      24      16      8       0
//!     +-------+-------+-------+-------+-------+-------+-------+-------+
//!   0 |  pad  |          vdev         |  grid |         asize         |   DVA 0
//!   1 |G|                           offset                            |
//!   2 |  pad  |          vdev         |  grid |         asize         |   DVA 1
//!   3 |G|                           offset                            |
//!   4 |  pad  |          vdev         |  grid |         asize         |   DVA 2; encrypted: salt
//!   5 |G|                           offset                            |   ..   ; encrypted: IV
//!     +-------+-------+-------+-------+-------+-------+-------+-------+
//!   6 |BDX| lvl | type  | cksum |E| comp|     psize     |     lsize     |
//!   7 |R|                           zero                              |
//!   8 |                             zero                              |
//!   9 |                    physical birth, 0 = same                   |
//!   a |                         logical birth                         |
//!   b |                  fill (encrypted: IV | fill)                  |
//!   c |                          checksum 0                           |
//!   d |                          checksum 1                           |
//!   e |                 checksum 2; under X: MAC                      |
//!   f |                 checksum 3; under X: MAC                      |
//!     +-------+-------+-------+-------+-------+-------+-------+-------+
//! ```
//!
//! A [`BlockPtr`] is sixteen uninterpreted words: any bytes make one, and no accessor can panic.
//! The meaning of a word depends on the kind of pointer, which is determined in this order: E
//! (embedded, redacted), hole, gang. [`BlockPtr::validate`] checks the words; the vdev layer also
//! checks that its addresses exist.
//!
//! The words are those of a little-endian parent: a parent of foreign byte order was swapped as a
//! whole when it was read. The B bit describes the block pointed to, and salt, IV and MAC, which
//! are byte strings, are extracted from their words in that order (spec 02 §14).
//!
//! Sources: spec 02 §1, §14; spec 08 §6.

mod build;
mod display;
mod dva;
mod embedded;
#[cfg(test)]
mod tests;

pub use build::{NewBlock, NewProtection};
pub use display::{Compact, Verbose};
pub use dva::Dva;
pub use embedded::{EMBEDDED_MAX, EmbeddedPayload, EmbeddedType};

use crate::bits::Bits;
use crate::checksum_type::ChecksumType;
use crate::compression_type::CompressionType;
use crate::endian::Endian;
use crate::object_type::ObjectType;
use crate::words;

/// Bytes of a block pointer.
pub const BLOCK_PTR_LEN: usize = 128;
/// Log2 of the bytes of a block pointer.
pub const BLOCK_PTR_SHIFT: u32 = 7;
/// Addresses in a block pointer.
pub const DVAS_PER_BLOCK_PTR: usize = 3;
/// Largest block.
pub const BLOCK_SIZE_MAX: u64 = 1 << 24;
/// Bytes of a block, at most, without the feature `large_blocks`.
pub const SMALL_BLOCK_MAX: u64 = 128 << 10;
/// Smallest block, and the unit of sizes and offsets.
pub const SECTOR_SIZE: u64 = 512;

const LSIZE: Bits<0, 16> = Bits;
const PSIZE: Bits<16, 16> = Bits;
const COMPRESSION: Bits<32, 7> = Bits;
const IS_EMBEDDED: Bits<39, 1> = Bits;
const CHECKSUM: Bits<40, 8> = Bits;
const TYPE: Bits<48, 8> = Bits;
const LEVEL: Bits<56, 5> = Bits;
const IS_PROTECTED: Bits<61, 1> = Bits;
const IS_DEDUP: Bits<62, 1> = Bits;
const IS_LITTLE_ENDIAN: Bits<63, 1> = Bits;

const IS_REWRITTEN: Bits<63, 1> = Bits;

const ENCRYPTED_FILL: Bits<0, 32> = Bits;
const ENCRYPTED_IV2: Bits<32, 32> = Bits;

/// Why a block pointer is invalid (spec 02 §1.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptBlockPtr {
    /// The object type is unknown.
    #[error("block pointer: object type {0} is unknown")]
    ObjectType(u8),
    /// The compression function is unknown.
    #[error("block pointer: compression {0} is unknown")]
    Compression(u8),
    /// The checksum function is unknown.
    #[error("block pointer: checksum {0} is unknown")]
    Checksum(u8),
    /// The logical size is above 16 MiB.
    #[error("block pointer: logical size {0} is above 16777216")]
    LogicalSize(u64),
    /// The physical size is above 16 MiB.
    #[error("block pointer: physical size {0} is above 16777216")]
    PhysicalSize(u64),
    /// The embedded type is reserved.
    #[error("block pointer: embedded type {0} is unknown")]
    EmbeddedType(u8),
    /// The payload does not fit.
    #[error("block pointer: embedded payload of {0} bytes, at most 112 fit")]
    EmbeddedSize(u64),
    /// Neither hole nor embedded, and the first address is empty.
    #[error("block pointer: first address has no size")]
    NoAddress,
    /// An offset in bytes exceeds 64 bits.
    #[error("block pointer: address {index} at sector {sector:#x} is out of range")]
    Offset {
        /// Index of the address.
        index: usize,
        /// Its offset in sectors.
        sector: u64,
    },
}

/// The meaning of the X bit for a pointer (spec 08 §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protection {
    /// No X bit.
    Unencrypted,
    /// Level 0 of an encrypted type: ciphertext, with salt, IV and MAC.
    Encrypted,
    /// Level 0 of another type: plaintext with a MAC.
    Authenticated,
    /// Indirect: a MAC over the MACs below.
    IndirectMac,
}

/// A block pointer (`blkptr_t`); uninterpreted words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct BlockPtr {
    words: [u64; 16],
}

impl BlockPtr {
    /// A hole that was never written.
    pub const HOLE: Self = Self { words: [0; 16] };

    /// From sixteen words.
    #[must_use]
    pub const fn from_words(words: [u64; 16]) -> Self {
        Self { words }
    }

    /// The sixteen words.
    #[must_use]
    pub const fn words(&self) -> &[u64; 16] {
        &self.words
    }

    /// Decodes the bytes of a little-endian parent.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; BLOCK_PTR_LEN]) -> Self {
        Self { words: words::padded(bytes) }
    }

    /// From the bytes of a little-endian parent; infallible, see [`Self::validate`].
    #[must_use]
    pub fn decode(bytes: &[u8; BLOCK_PTR_LEN]) -> Self {
        Self::from_bytes(bytes)
    }

    /// Decodes bytes of a structure that has its own byte order (uberblock, gang header, log
    /// block).
    #[must_use]
    pub fn from_bytes_in(bytes: &[u8; BLOCK_PTR_LEN], endian: Endian) -> Self {
        let (chunks, _none) = bytes.as_chunks::<8>();
        let mut words = [0; 16];
        for (word, chunk) in words.iter_mut().zip(chunks) {
            *word = endian.u64(*chunk);
        }
        Self { words }
    }

    /// The pointer at byte `offset` of a little-endian block.
    #[must_use]
    pub fn at(block: &[u8], offset: usize) -> Option<Self> {
        words::array_at(block, offset).map(|bytes| Self::from_bytes(&bytes))
    }

    /// The bytes, little-endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; BLOCK_PTR_LEN] {
        let mut bytes = [0; BLOCK_PTR_LEN];
        let (chunks, _none) = bytes.as_chunks_mut::<8>();
        for (chunk, word) in chunks.iter_mut().zip(self.words) {
            *chunk = word.to_le_bytes();
        }
        bytes
    }

    /// All pointers of a little-endian indirect block.
    pub fn all_in(block: &[u8]) -> impl ExactSizeIterator<Item = Self> + '_ {
        block.as_chunks::<BLOCK_PTR_LEN>().0.iter().map(Self::from_bytes)
    }

    const fn property(&self) -> u64 {
        self.words[6]
    }

    /// Whether sizes, functions, type, level and byte order of both pointers are equal.
    #[must_use]
    pub const fn has_same_properties(&self, other: &Self) -> bool {
        self.property() == other.property()
    }

    /// Whether the pointer is embedded data or a redaction (E bit).
    #[must_use]
    pub const fn is_embedded(&self) -> bool {
        IS_EMBEDDED.is_set(self.property())
    }

    /// Whether the pointer embeds data.
    #[must_use]
    pub const fn is_embedded_data(&self) -> bool {
        matches!(self.embedded_type(), Some(EmbeddedType::Data))
    }

    /// Whether the block was left out of a redacted stream.
    #[must_use]
    pub const fn is_redacted(&self) -> bool {
        matches!(self.embedded_type(), Some(EmbeddedType::Redacted))
    }

    /// Whether it is a hole, which reads as zeros.
    #[must_use]
    pub const fn is_hole(&self) -> bool {
        !self.is_embedded() && self.words[0] == 0 && self.words[1] == 0
    }

    /// Whether the addresses are those of gang headers.
    #[must_use]
    pub const fn is_gang(&self) -> bool {
        !self.is_embedded() && Dva::is_gang_word(self.words[1])
    }

    /// The meaning of the X bit for this pointer.
    #[must_use]
    pub fn protection(&self) -> Protection {
        match (IS_PROTECTED.is_set(self.property()), self.level()) {
            (false, _) => Protection::Unencrypted,
            (true, 0) if self.object_type().is_encrypted() => Protection::Encrypted,
            (true, 0) => Protection::Authenticated,
            (true, _) => Protection::IndirectMac,
        }
    }

    /// Whether the X bit is set: the block belongs to an encrypted object set.
    #[must_use]
    pub const fn is_protected(&self) -> bool {
        IS_PROTECTED.is_set(self.property())
    }

    /// Whether the block is ciphertext; words 4 and 5 are then salt and IV.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.protection() == Protection::Encrypted
    }

    /// Whether words e and f are a MAC, so that the checksum is two words (spec 08 §6.1).
    #[must_use]
    pub fn has_short_checksum(&self) -> bool {
        self.is_protected() && self.object_type() != ObjectType::OBJSET
    }

    /// Logical size in bytes; 0 if redacted, as in OpenZFS.
    #[must_use]
    pub const fn lsize(&self) -> u64 {
        match self.embedded_type_id() {
            None => (LSIZE.get(self.property()) + 1) * SECTOR_SIZE,
            Some(0) => self.embedded_lsize(),
            Some(_) => 0,
        }
    }

    /// Physical size in bytes, without parity; 0 if embedded. Undefined for a hole.
    #[must_use]
    pub const fn psize(&self) -> u64 {
        if self.is_embedded() { 0 } else { (PSIZE.get(self.property()) + 1) * SECTOR_SIZE }
    }

    /// Level in the tree of the object, 0 = data.
    #[must_use]
    pub const fn level(&self) -> u8 {
        LEVEL.get(self.property()) as u8
    }

    /// Type of the object.
    #[must_use]
    pub const fn object_type(&self) -> ObjectType {
        ObjectType(TYPE.get(self.property()) as u8)
    }

    /// Number of the checksum function, known or not; for E it is the embedded type.
    #[must_use]
    pub const fn checksum_id(&self) -> u8 {
        CHECKSUM.get(self.property()) as u8
    }

    /// Checksum function; none if embedded.
    #[must_use]
    pub fn checksum_type(&self) -> Option<ChecksumType> {
        if self.is_embedded() { None } else { ChecksumType::from_id(self.checksum_id()) }
    }

    /// Number of the compression function, known or not.
    #[must_use]
    pub const fn compression_id(&self) -> u8 {
        COMPRESSION.get(self.property()) as u8
    }

    /// Compression function.
    #[must_use]
    pub const fn compression(&self) -> Option<CompressionType> {
        CompressionType::from_id(self.compression_id())
    }

    /// Whether the block is, or was, in the dedup table.
    #[must_use]
    pub const fn is_dedup(&self) -> bool {
        IS_DEDUP.is_set(self.property())
    }

    /// Whether the block was rewritten without a logical change (R bit).
    #[must_use]
    pub const fn is_rewritten(&self) -> bool {
        !self.is_embedded() && IS_REWRITTEN.is_set(self.words[7])
    }

    /// Byte order of the block pointed to. Undefined for a hole, which has the bit of big-endian.
    #[must_use]
    pub const fn endian(&self) -> Endian {
        if IS_LITTLE_ENDIAN.is_set(self.property()) { Endian::Little } else { Endian::Big }
    }

    /// Logical birth: the txg in which the contents were written here.
    #[must_use]
    pub const fn birth(&self) -> u64 {
        self.words[10]
    }

    /// Physical birth: the txg in which the bytes were written; 0 if embedded.
    #[must_use]
    pub const fn physical_birth(&self) -> u64 {
        match (self.is_embedded(), self.words[9]) {
            (true, _) => 0,
            (false, 0) => self.words[10],
            (false, birth) => birth,
        }
    }

    /// The birth that decides which snapshot owns the block (spec 02 §1.4).
    #[must_use]
    pub const fn allocation_birth(&self) -> u64 {
        if self.is_rewritten() { self.physical_birth() } else { self.birth() }
    }

    /// Number of blocks (or, for dnode blocks, dnodes) below; 1 if embedded.
    #[must_use]
    pub fn fill(&self) -> u64 {
        if self.is_embedded() {
            1
        } else if self.is_encrypted() {
            ENCRYPTED_FILL.get(self.words[11])
        } else {
            self.words[11]
        }
    }

    /// The address in slot `index`, if the slot is used for an address.
    #[must_use]
    pub fn dva(&self, index: usize) -> Option<Dva> {
        let (words, _none) = self.words.as_chunks::<2>();
        if index >= self.dva_slots() {
            return None;
        }
        words.get(index).map(|words| Dva::from_words(*words)).filter(Dva::is_valid)
    }

    /// The addresses in use, in slot order.
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + '_ {
        (0..DVAS_PER_BLOCK_PTR).filter_map(|index| self.dva(index))
    }

    /// Number of addresses in use.
    #[must_use]
    pub fn dva_count(&self) -> usize {
        self.dvas().count()
    }

    /// Bytes allocated by all addresses, parity included.
    #[must_use]
    pub fn asize_total(&self) -> u64 {
        self.dvas().map(|dva| dva.asize).sum()
    }

    /// Number of slots that can hold addresses.
    fn dva_slots(&self) -> usize {
        if self.is_embedded() {
            0
        } else if self.is_encrypted() {
            2
        } else {
            DVAS_PER_BLOCK_PTR
        }
    }

    /// The four checksum words as stored.
    #[must_use]
    pub const fn checksum(&self) -> [u64; 4] {
        let [.., a, b, c, d] = self.words;
        [a, b, c, d]
    }

    /// The salt of an encrypted block.
    #[must_use]
    pub fn salt(&self) -> [u8; 8] {
        self.endian().bytes64(self.words[4])
    }

    /// The IV of an encrypted block.
    #[must_use]
    pub fn iv(&self) -> [u8; 12] {
        let head = self.endian().bytes64(self.words[5]);
        let tail = self.endian().bytes32(ENCRYPTED_IV2.get(self.words[11]) as u32);
        let mut iv = [0; 12];
        for (byte, found) in iv.iter_mut().zip(head.into_iter().chain(tail)) {
            *byte = found;
        }
        iv
    }

    /// The MAC of a block under the X bit (not of an object set's own block).
    #[must_use]
    pub fn mac(&self) -> [u8; 16] {
        let halves = [self.words[14], self.words[15]].map(|word| self.endian().bytes64(word));
        let mut mac = [0; 16];
        for (byte, found) in mac.iter_mut().zip(halves.into_iter().flatten()) {
            *byte = found;
        }
        mac
    }

    /// Checks everything that can be checked without other structures (spec 02 §1.7).
    pub fn validate(&self) -> Result<(), CorruptBlockPtr> {
        if !self.object_type().is_valid() {
            return Err(CorruptBlockPtr::ObjectType(self.object_type().0));
        }
        if self.compression().is_none() {
            return Err(CorruptBlockPtr::Compression(self.compression_id()));
        }
        if self.is_embedded() {
            return self.validate_embedded();
        }
        if self.lsize() > BLOCK_SIZE_MAX {
            return Err(CorruptBlockPtr::LogicalSize(self.lsize()));
        }
        if self.is_hole() {
            return Ok(());
        }
        if self.checksum_type().is_none() {
            return Err(CorruptBlockPtr::Checksum(self.checksum_id()));
        }
        if self.psize() > BLOCK_SIZE_MAX {
            return Err(CorruptBlockPtr::PhysicalSize(self.psize()));
        }
        if self.dva(0).is_none() {
            return Err(CorruptBlockPtr::NoAddress);
        }
        (0..self.dva_slots()).try_for_each(|index| self.validate_dva(index))
    }

    fn validate_dva(&self, index: usize) -> Result<(), CorruptBlockPtr> {
        match self.dva(index) {
            Some(dva) if dva.offset.checked_add(dva.asize).is_none() => {
                Err(CorruptBlockPtr::Offset { index, sector: dva.offset / SECTOR_SIZE })
            }
            _ => Ok(()),
        }
    }
}
