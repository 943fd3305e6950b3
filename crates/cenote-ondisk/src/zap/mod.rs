//! ZAP: maps from names (or arrays of u64) to arrays of integers, stored in an object.
//!
//! ```text
//!   first u64 of block 0:  …03  micro: this one block is a header and 64-byte slots   (`micro`)
//!                          …01  fat: header, pointer table                            (`fat`)
//!                                 |  table[hash >> (64 - shift)] = block number
//!                                 v
//!                          …00  leaf: hash table of chains, 24-byte chunks            (`leaf`)
//! ```
//!
//! Everything here works on one block at a time: the layer that can read an object's blocks finds
//! the leaf's number with [`FatHeader::place`] and [`ZapHash`], and gets [`Entry`]s from
//! [`MicroZap`] and [`Leaf`]. A name is stored as the caller gave it; its hash is computed over the
//! name normalized with the ZAP's flags ([`normalize`]), so that all spellings of a name are in one
//! chain.
//!
//! Changes are also made to one block at a time: [`LeafMut`], `fat_edit` and `micro_edit` change
//! the bytes of a block; the object's owner decides which blocks are read and written.
//!
//! Order: entries are visited by ascending (hash, cd), in micro and fat ZAPs alike ([`Cursor`]).
//! The collision differentiator (cd) distinguishes entries with the same truncated hash.
//!
//! Rules that decoding checks, each an error with a name (spec 03 §6.9)
//! * Z1  A chain link names a chunk of the leaf; array links lead to array chunks, entry links to
//!   entry chunks.
//! * Z2  No chain is longer than the leaf has chunks, so loops end.
//! * Z3  A string key has at least its NUL and ends with it.
//! * Z4  The entries of a leaf together claim no more chunks than it has, which also bounds what
//!   decoding allocates.
//!
//! Sources: spec 03 §1-§7.

pub mod case;
pub mod entry;
pub mod fat;
pub mod fat_edit;
pub mod hash;
pub mod leaf;
pub mod leaf_edit;
pub mod micro;
pub mod micro_edit;
pub mod normalize;

pub use entry::{Entry, Key, KeyRef, Value};
pub use fat::{FatHeader, PointerPlace};
pub use hash::{Cursor, HashBits, ZapHash};
pub use leaf::Leaf;
pub use leaf_edit::LeafMut;
pub use micro::{MicroEntry, MicroZap};
pub use normalize::{MatchKind, NormFlags, matches, normalize};

use crate::words;
use bitflags::bitflags;

/// First word of a micro ZAP.
pub const BLOCK_MICRO: u64 = 1 << 63 | 3;
/// First word of a fat ZAP's header.
pub const BLOCK_HEADER: u64 = 1 << 63 | 1;
/// First word of a leaf.
pub const BLOCK_LEAF: u64 = 1 << 63;

/// Bytes of a key, with its NUL, in any object but directories.
pub const KEY_LEN_MAX: usize = 256;
/// Bytes of a key in a directory with long names.
pub const LONG_KEY_LEN_MAX: usize = 1024;
/// Words of a key.
pub const KEY_WORDS_MAX: usize = 32;
/// Bytes of a value.
pub const VALUE_LEN_MAX: usize = 8192;

/// Format of a ZAP object, determined by its first block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZapKind {
    /// One block of slots.
    Micro,
    /// Header of pointer table and leaves.
    Fat,
}

impl ZapKind {
    /// Determines the format from the first word of block 0.
    pub fn of(block: &[u8]) -> Result<Self, CorruptZap> {
        match words::u64_at(block, 0) {
            Some(BLOCK_MICRO) => Ok(Self::Micro),
            Some(BLOCK_HEADER) => Ok(Self::Fat),
            found => Err(CorruptZap::BlockType { found: found.unwrap_or(0) }),
        }
    }
}

bitflags! {
    /// Flags of a fat ZAP, header offset 0x60; unknown bits are kept.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct ZapFlags: u64 {
        /// 48 bits of the hash are kept, not 28.
        const HASH64 = 1;
        /// Keys are arrays of u64.
        const UINT64_KEY = 2;
        /// The first word of the key is its hash.
        const PRE_HASHED_KEY = 4;
        const _ = !0;
    }
}

/// Why the bytes of a ZAP are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptZap {
    /// The first word is not a valid block type for this position.
    #[error("zap: block type {found:#x}")]
    BlockType {
        /// First word of the block.
        found: u64,
    },
    /// The block is too small, or its size is not that of a ZAP block.
    #[error("zap: block of {len} bytes")]
    BlockSize {
        /// Bytes of the block.
        len: usize,
    },
    /// Magic of a fat header or of a leaf.
    #[error("zap: magic {found:#x}, expected {expected:#x}")]
    Magic {
        /// Value found.
        found: u64,
        /// Value expected.
        expected: u64,
    },
    /// The pointer table's shift does not match the block size or the hash.
    #[error("zap: pointer table of 2^{shift} entries, {blocks} blocks of 2^{block_shift} bytes")]
    PointerTable {
        /// Log2 of the number of entries.
        shift: u64,
        /// Blocks of an external table, 0 = embedded.
        blocks: u64,
        /// Log2 of the block size.
        block_shift: u32,
    },
    /// A table entry is not the number of a leaf block.
    #[error("zap: pointer {index} is {block}, first free block is {free_block}")]
    Pointer {
        /// Index in the table.
        index: u64,
        /// Block number found.
        block: u64,
        /// Blocks from here on were never used.
        free_block: u64,
    },
    /// A leaf's prefix is longer than the hash, or has bits above its length.
    #[error("zap leaf: prefix {prefix:#x} of {len} bits")]
    Prefix {
        /// Prefix found.
        prefix: u64,
        /// Its bits.
        len: u16,
    },
    /// A link leads outside of the leaf (Z1).
    #[error("zap leaf: chunk {chunk} of {count}")]
    ChunkNumber {
        /// Number found.
        chunk: u16,
        /// Chunks of the leaf.
        count: u16,
    },
    /// A link leads to a chunk of another type (Z1).
    #[error("zap leaf: chunk {chunk} has type {found}, expected {expected}")]
    ChunkType {
        /// Number of the chunk.
        chunk: u16,
        /// Type byte found.
        found: u8,
        /// Type byte expected.
        expected: u8,
    },
    /// A chain has more links than the leaf has chunks (Z2).
    #[error("zap leaf: chain at chunk {chunk} does not end")]
    Loop {
        /// Chunk at which counting stopped.
        chunk: u16,
    },
    /// The entries claim more chunks than the leaf has, so they share some (Z4).
    #[error("zap leaf: entries take {cost} chunks of {count}")]
    Overlap {
        /// Chunks claimed.
        cost: usize,
        /// Chunks of the leaf.
        count: u16,
    },
    /// An array ends before its length.
    #[error("zap leaf: array of {len} bytes ends after {found}")]
    ArrayLength {
        /// Bytes that the entry claims.
        len: usize,
        /// Bytes found.
        found: usize,
    },
    /// Integer size of a value.
    #[error("zap leaf: entry {chunk} has integers of {size} bytes")]
    IntegerSize {
        /// Chunk of the entry.
        chunk: u16,
        /// Size found.
        size: u8,
    },
    /// A string key without its NUL (Z3), or a key of no words.
    #[error("zap leaf: entry {chunk} has a key of {len} without end")]
    KeyEnd {
        /// Chunk of the entry.
        chunk: u16,
        /// Integers of the key.
        len: u16,
    },
}
