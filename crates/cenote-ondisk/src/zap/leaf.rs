//! A leaf of a fat ZAP: a hash table of chains over 24-byte chunks (spec 03 §4).
//!
//! ```text
//!     0  type | 0 | prefix | magic u32, nfree, nentries, prefix_len, freelist u16 | flags u8 | 0
//!    48  hash table, 2^(bs-5) chunk numbers
//!        chunks, as many as fit:
//!
//!   entry  252 | int size u8 | next u16 | key chunk, key len | value chunk, value len | cd | hash
//!   array  251 | 21 bytes                                                     | next u16
//!   free   253 | 21 bytes of zero                                             | next u16
//! ```
//!
//! The link is at the end of array and free chunks but at offset 2 in entry chunks. Keys and values
//! are cut into pieces of 21 bytes; their integers are most significant byte first and may straddle
//! chunks. The chain for a hash is chosen by the bits right below the leaf's prefix.

use super::fat::block_shift;
use super::hash::high_bits;
use super::{BLOCK_LEAF, CorruptZap, Cursor, Entry, Key, KeyRef, Value};
use crate::words;

/// Magic of a leaf.
pub const LEAF_MAGIC: u32 = 0x02ab_1eaf;
/// Bytes of a chunk.
pub const CHUNK_LEN: usize = 24;
/// Data bytes of an array chunk.
pub const ARRAY_LEN: usize = 21;
/// Link that ends a chain.
pub const CHAIN_END: u16 = 0xffff;
/// Type byte of an array chunk.
pub const CHUNK_ARRAY: u8 = 251;
/// Type byte of an entry chunk.
pub const CHUNK_ENTRY: u8 = 252;
/// Type byte of a free chunk.
pub const CHUNK_FREE: u8 = 253;

/// Bytes of the header.
pub const HEADER_LEN: usize = 48;

/// Header of a leaf (`zap_leaf_header`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafHeader {
    /// The highest `prefix_len` bits of every hash in the leaf, right-aligned.
    pub prefix: u64,
    /// Chunks on the free list.
    pub free_count: u16,
    /// Entries.
    pub entry_count: u16,
    /// Bits of the prefix.
    pub prefix_len: u16,
    /// First free chunk.
    pub free_list: u16,
    /// Bit 0: every chain is sorted by cd.
    pub flags: u8,
}

/// An entry chunk; only its type is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeafEntry {
    /// Number of the chunk.
    pub chunk: u16,
    /// Bytes of one integer of the value.
    pub integer_size: u8,
    /// Next entry of the chain.
    pub next: u16,
    /// First chunk of the key.
    pub key_chunk: u16,
    /// Integers of the key; for a string bytes with NUL.
    pub key_len: u16,
    /// First chunk of the value.
    pub value_chunk: u16,
    /// Integers of the value.
    pub value_len: u16,
    /// Distinguishes entries with equal hash.
    pub cd: u32,
    /// Truncated hash.
    pub hash: u64,
}

/// A leaf's block, with header and geometry checked.
#[derive(Debug, Clone, Copy)]
pub struct Leaf<'a> {
    header: LeafHeader,
    block_shift: u32,
    slots: &'a [[u8; 2]],
    chunks: &'a [[u8; CHUNK_LEN]],
    has_word_keys: bool,
}

impl<'a> Leaf<'a> {
    /// Decodes a leaf of a ZAP whose keys are strings or, with `has_word_keys`, words.
    pub fn decode(block: &'a [u8], has_word_keys: bool) -> Result<Self, CorruptZap> {
        let block_shift = block_shift(block.len())?;
        let size = CorruptZap::BlockSize { len: block.len() };
        let (header, rest) = block.split_first_chunk::<HEADER_LEN>().ok_or(size)?;
        let header = LeafHeader::decode(header)?;
        let slot_count = 1_usize << (block_shift - 5);
        let (slots, chunks) = rest.split_at_checked(slot_count * 2).ok_or(size)?;
        let (chunks, _tail) = chunks.as_chunks::<CHUNK_LEN>();
        let chunk_count = chunk_count(block_shift);
        let chunks = chunks.get(..chunk_count).ok_or(size)?;
        Ok(Self { header, block_shift, slots: slots.as_chunks().0, chunks, has_word_keys })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &LeafHeader {
        &self.header
    }

    /// Number of chunks of any kind.
    #[must_use]
    pub const fn chunk_count(&self) -> u16 {
        // At most 2^24 / 24, but links are u16: a larger leaf cannot be addressed completely.
        let count = self.chunks.len();
        if count < CHAIN_END as usize { count as u16 } else { CHAIN_END }
    }

    /// Whether a hash belongs to this leaf.
    #[must_use]
    pub const fn owns(&self, hash: u64) -> bool {
        high_bits(hash, self.header.prefix_len as u32) == self.header.prefix
    }

    /// Hash slot: the bits right below the prefix.
    #[must_use]
    pub const fn slot_of(&self, hash: u64) -> usize {
        let below_prefix = match hash.checked_shl(self.header.prefix_len as u32) {
            Some(bits) => bits,
            None => 0,
        };
        high_bits(below_prefix, self.block_shift - 5) as usize
    }

    /// The entries with this hash, in chain order.
    pub fn with_hash(&self, hash: u64) -> impl Iterator<Item = Result<LeafEntry, CorruptZap>> {
        self.chain(self.slot_of(hash)).filter(move |entry| match entry {
            Ok(entry) => entry.hash == hash,
            Err(_) => true,
        })
    }

    /// The entries of one slot of the hash table.
    pub fn chain(&self, slot: usize) -> Chain<'_, 'a> {
        let next = self.slots.get(slot).map_or(CHAIN_END, |link| u16::from_le_bytes(*link));
        Chain { leaf: self, next, left: self.chunks.len() }
    }

    /// Finds the entry with exactly this name.
    pub fn get(&self, hash: u64, name: &[u8]) -> Result<Option<Entry>, CorruptZap> {
        for entry in self.with_hash(hash) {
            let entry = entry?;
            if usize::from(entry.key_len).checked_sub(1) == Some(name.len()) {
                let entry = self.entry(&entry)?;
                if entry.key.name() == Some(name) {
                    return Ok(Some(entry));
                }
            }
        }
        Ok(None)
    }

    /// Finds the entry with exactly these words as its key.
    pub fn get_words(&self, hash: u64, key: &[u64]) -> Result<Option<Entry>, CorruptZap> {
        for entry in self.with_hash(hash) {
            let entry = self.entry(&entry?)?;
            if entry.key.words() == Some(key) {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// Finds the entry of exactly this key; its `chunk` is its location.
    pub fn find(&self, hash: u64, key: &KeyRef<'_>) -> Result<Option<LeafEntry>, CorruptZap> {
        for entry in self.with_hash(hash) {
            let entry = entry?;
            if usize::from(entry.key_len) == key.integer_count()
                && KeyRef::from(&self.key(&entry)?) == *key
            {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }

    /// All entries reachable from the hash table, in cursor order, without keys and values.
    pub fn entry_chunks(&self) -> Result<Vec<LeafEntry>, CorruptZap> {
        let mut entries =
            Vec::with_capacity(usize::from(self.header.entry_count).min(self.chunks.len()));
        for slot in 0..self.slots.len() {
            for entry in self.chain(slot) {
                let entry = entry?;
                // Chains that join would return an entry twice, and all of them many times over.
                if entries.len() >= self.chunks.len() {
                    return Err(CorruptZap::Loop { chunk: entry.chunk });
                }
                entries.push(entry);
            }
        }
        entries.sort_by_key(|entry| (entry.hash, entry.cd));
        Ok(entries)
    }

    /// All entries in cursor order.
    pub fn entries(&self) -> Result<Vec<Entry>, CorruptZap> {
        self.entries_from(Cursor::default(), usize::MAX)
    }

    /// At most `max` entries from a position on, in cursor order. Keys and values of others are not
    /// read.
    pub fn entries_from(&self, from: Cursor, max: usize) -> Result<Vec<Entry>, CorruptZap> {
        let chunks = self.entry_chunks()?;
        let mut cost = 0_usize;
        for entry in &chunks {
            cost = cost.saturating_add(self.cost(entry));
        }
        if cost > self.chunks.len() {
            return Err(CorruptZap::Overlap { cost, count: self.chunk_count() });
        }
        let first = chunks.partition_point(|entry| (entry.hash, entry.cd) < (from.hash, from.cd));
        chunks.iter().skip(first).take(max).map(|entry| self.entry(entry)).collect()
    }

    /// Number of chunks that an entry occupies.
    fn cost(&self, entry: &LeafEntry) -> usize {
        let key_integer = if self.has_word_keys { 8 } else { 1 };
        let key = usize::from(entry.key_len).saturating_mul(key_integer);
        let integer = usize::from(entry.integer_size);
        let value = usize::from(entry.value_len).saturating_mul(integer);
        key.div_ceil(ARRAY_LEN).saturating_add(value.div_ceil(ARRAY_LEN)).saturating_add(1)
    }

    /// Reads key and value of an entry.
    pub fn entry(&self, entry: &LeafEntry) -> Result<Entry, CorruptZap> {
        let (hash, cd) = (entry.hash, entry.cd);
        Ok(Entry { hash, cd, key: self.key(entry)?, value: self.value(entry)? })
    }

    /// Reads the key of an entry.
    pub fn key(&self, entry: &LeafEntry) -> Result<Key, CorruptZap> {
        let bad = CorruptZap::KeyEnd { chunk: entry.chunk, len: entry.key_len };
        let len = usize::from(entry.key_len);
        if self.has_word_keys {
            let bytes = self.array(entry.key_chunk, len.saturating_mul(8))?;
            let (words, _none) = bytes.as_chunks::<8>();
            if words.is_empty() {
                return Err(bad);
            }
            return Ok(Key::Words(words.iter().map(|word| u64::from_be_bytes(*word)).collect()));
        }
        let mut name = self.array(entry.key_chunk, len)?;
        if name.pop() != Some(0) {
            return Err(bad);
        }
        Ok(Key::Name(name))
    }

    /// Reads the value of an entry.
    pub fn value(&self, entry: &LeafEntry) -> Result<Value, CorruptZap> {
        let size = entry.integer_size;
        if !matches!(size, 1 | 2 | 4 | 8) {
            return Err(CorruptZap::IntegerSize { chunk: entry.chunk, size });
        }
        if (size, entry.value_len) == (8, 1) {
            let mut word = [0; 8];
            self.fill(entry.value_chunk, &mut word)?;
            return Ok(Value::U64(u64::from_be_bytes(word)));
        }
        let len = usize::from(entry.value_len).saturating_mul(usize::from(size));
        Ok(Value::Array { integer_size: size, bytes: self.array(entry.value_chunk, len)? })
    }

    /// Reads an array of `len` bytes, which must not exceed the size of the leaf.
    pub(super) fn array(&self, first: u16, len: usize) -> Result<Vec<u8>, CorruptZap> {
        if len > self.chunks.len().saturating_mul(ARRAY_LEN) {
            return Err(CorruptZap::ArrayLength { len, found: 0 });
        }
        let mut bytes = vec![0; len];
        self.fill(first, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads an array from its chunks; each chunk is used once, so a loop ends with the length.
    fn fill(&self, first: u16, bytes: &mut [u8]) -> Result<(), CorruptZap> {
        let len = bytes.len();
        let (mut link, mut found) = (first, 0_usize);
        for piece in bytes.chunks_mut(ARRAY_LEN) {
            if link == CHAIN_END {
                return Err(CorruptZap::ArrayLength { len, found });
            }
            let [_, data @ .., next0, next1] = self.chunk(link, CHUNK_ARRAY)?;
            found = found.saturating_add(piece.len());
            piece.iter_mut().zip(data).for_each(|(byte, stored)| *byte = *stored);
            link = u16::from_le_bytes([*next0, *next1]);
        }
        Ok(())
    }

    pub(super) fn chunk(
        &self,
        number: u16,
        expected: u8,
    ) -> Result<&'a [u8; CHUNK_LEN], CorruptZap> {
        let Some(chunk) = self.chunks.get(usize::from(number)) else {
            return Err(CorruptZap::ChunkNumber { chunk: number, count: self.chunk_count() });
        };
        let [found, ..] = *chunk;
        if found != expected {
            return Err(CorruptZap::ChunkType { chunk: number, found, expected });
        }
        Ok(chunk)
    }

    pub(super) fn entry_chunk(&self, number: u16) -> Result<LeafEntry, CorruptZap> {
        let [_, integer_size, n0, n1, k0, k1, l0, l1, v0, v1, w0, w1, c0, c1, c2, c3, hash @ ..] =
            *self.chunk(number, CHUNK_ENTRY)?;
        Ok(LeafEntry {
            chunk: number,
            integer_size,
            next: u16::from_le_bytes([n0, n1]),
            key_chunk: u16::from_le_bytes([k0, k1]),
            key_len: u16::from_le_bytes([l0, l1]),
            value_chunk: u16::from_le_bytes([v0, v1]),
            value_len: u16::from_le_bytes([w0, w1]),
            cd: u32::from_le_bytes([c0, c1, c2, c3]),
            hash: u64::from_le_bytes(hash),
        })
    }
}

impl LeafEntry {
    /// The bytes of the chunk.
    pub(super) fn encode(&self) -> [u8; CHUNK_LEN] {
        let [n0, n1] = self.next.to_le_bytes();
        let [k0, k1] = self.key_chunk.to_le_bytes();
        let [l0, l1] = self.key_len.to_le_bytes();
        let [v0, v1] = self.value_chunk.to_le_bytes();
        let [w0, w1] = self.value_len.to_le_bytes();
        let [c0, c1, c2, c3] = self.cd.to_le_bytes();
        let [h0, h1, h2, h3, h4, h5, h6, h7] = self.hash.to_le_bytes();
        let size = self.integer_size;
        [
            CHUNK_ENTRY,
            size,
            n0,
            n1,
            k0,
            k1,
            l0,
            l1,
            v0,
            v1,
            w0,
            w1,
            c0,
            c1,
            c2,
            c3,
            h0,
            h1,
            h2,
            h3,
            h4,
            h5,
            h6,
            h7,
        ]
    }
}

impl LeafHeader {
    /// The bytes of the header.
    pub(super) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        let head = words::to_bytes(&[BLOCK_LEAF, 0, self.prefix]);
        let shorts = [self.free_count, self.entry_count, self.prefix_len, self.free_list];
        let fields = head
            .into_iter()
            .chain(LEAF_MAGIC.to_le_bytes())
            .chain(shorts.into_iter().flat_map(u16::to_le_bytes))
            .chain([self.flags]);
        bytes.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        bytes
    }

    fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, CorruptZap> {
        let [kind, _zero, prefix] = words::padded(bytes);
        if kind != BLOCK_LEAF {
            return Err(CorruptZap::BlockType { found: kind });
        }
        let magic = words::u32_at(bytes, 24).unwrap_or(0);
        if magic != LEAF_MAGIC {
            return Err(CorruptZap::Magic { found: magic.into(), expected: LEAF_MAGIC.into() });
        }
        let short = |offset| words::u16_at(bytes, offset).unwrap_or(0);
        let header = Self {
            prefix,
            free_count: short(28),
            entry_count: short(30),
            prefix_len: short(32),
            free_list: short(34),
            flags: bytes[36],
        };
        let len = header.prefix_len;
        if len > 48 || prefix.checked_shr(len.into()).unwrap_or(0) != 0 {
            return Err(CorruptZap::Prefix { prefix, len });
        }
        Ok(header)
    }
}

/// Chunks of a leaf of `2^block_shift` bytes.
#[must_use]
pub const fn chunk_count(block_shift: u32) -> usize {
    let slot_count = 1_usize << (block_shift - 5);
    ((1_usize << block_shift) - 2 * slot_count) / CHUNK_LEN - 2
}

/// Walks a chain of entry chunks; ends after an error.
#[derive(Debug, Clone)]
pub struct Chain<'leaf, 'a> {
    leaf: &'leaf Leaf<'a>,
    next: u16,
    left: usize,
}

impl Iterator for Chain<'_, '_> {
    type Item = Result<LeafEntry, CorruptZap>;

    fn next(&mut self) -> Option<Self::Item> {
        let chunk = self.next;
        if chunk == CHAIN_END {
            return None;
        }
        let entry = match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                self.leaf.entry_chunk(chunk)
            }
            None => Err(CorruptZap::Loop { chunk }),
        };
        self.next = entry.map_or(CHAIN_END, |entry| entry.next);
        Some(entry)
    }
}

#[cfg(test)]
#[path = "leaf_tests.rs"]
mod tests;
