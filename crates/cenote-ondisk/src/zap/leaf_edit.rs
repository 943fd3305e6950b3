//! Changes a leaf in place (spec 03 §4.4, §5.4).
//!
//! ```text
//!   insert   entry chunk, then the key's chunks, then the value's, all from the free list
//!   remove   unlink from its chain; the chunks go back to the front of the free list
//!   split    the hash bit below the prefix tells which entries move to the new leaf
//! ```
//!
//! An edit works on a private copy of the block. Links are checked while they are followed, as in
//! [`Leaf`]; after an error the copy may be half changed and must be discarded.
//!
//! Invariants, beyond the rules of reading
//! * L1  Every chunk is an entry, part of an array, or free; the free list has `free_count`
//!   members.
//! * L2  `entry_count` is the number of entries on the chains; each is in the slot of its hash.
//! * L3  A chain is sorted by cd, and the cds of one hash differ.

use super::fat::block_shift;
use super::leaf::{
    ARRAY_LEN, CHAIN_END, CHUNK_ARRAY, CHUNK_ENTRY, CHUNK_FREE, CHUNK_LEN, HEADER_LEN, LeafEntry,
    LeafHeader, chunk_count,
};
use super::{CorruptZap, KeyRef, Leaf, Value};

/// Flag of a leaf whose chains are sorted by cd, as those of normalizing ZAPs are.
pub const FLAG_SORTED: u8 = 1;

/// A leaf's block being changed.
#[derive(Debug)]
pub struct LeafMut<'a> {
    block: &'a mut [u8],
    header: LeafHeader,
    block_shift: u32,
    has_word_keys: bool,
}

/// Number of chunks of an entry with such a key and value.
#[must_use]
pub const fn entry_cost(key_len: usize, value_len: usize) -> usize {
    key_len.div_ceil(ARRAY_LEN).saturating_add(value_len.div_ceil(ARRAY_LEN)).saturating_add(1)
}

/// The block of a leaf without entries; `is_sorted` for a ZAP that normalizes names.
#[must_use]
pub fn format(block_shift: u32, prefix: u64, prefix_len: u16, is_sorted: bool) -> Vec<u8> {
    let count = chunk_count(block_shift).min(usize::from(CHAIN_END)) as u16;
    let flags = if is_sorted { FLAG_SORTED } else { 0 };
    let header =
        LeafHeader { prefix, free_count: count, entry_count: 0, prefix_len, free_list: 0, flags };
    let mut block = Vec::with_capacity(1 << block_shift);
    block.extend(header.encode());
    block.resize(HEADER_LEN.saturating_add(2 << (block_shift - 5)), 0xff);
    for number in 1..=count {
        let next = if number == count { CHAIN_END } else { number };
        block.extend(tagged(CHUNK_FREE, &[], next));
    }
    block.resize(1 << block_shift, 0);
    block
}

/// An array or free chunk.
fn tagged(kind: u8, data: &[u8], next: u16) -> [u8; CHUNK_LEN] {
    let mut chunk = [0; CHUNK_LEN];
    let [first, room @ .., next0, next1] = &mut chunk;
    *first = kind;
    room.iter_mut().zip(data).for_each(|(byte, found)| *byte = *found);
    [*next0, *next1] = next.to_le_bytes();
    chunk
}

const fn link_of(chunk: &[u8; CHUNK_LEN]) -> u16 {
    let [.., low, high] = *chunk;
    u16::from_le_bytes([low, high])
}

impl<'a> LeafMut<'a> {
    /// A leaf of a ZAP whose keys are strings or, with `has_word_keys`, words.
    pub fn open(block: &'a mut [u8], has_word_keys: bool) -> Result<Self, CorruptZap> {
        let block_shift = block_shift(block.len())?;
        let header = *Leaf::decode(block, has_word_keys)?.header();
        Ok(Self { block, header, block_shift, has_word_keys })
    }

    /// The present header.
    #[must_use]
    pub const fn header(&self) -> &LeafHeader {
        &self.header
    }

    /// The leaf, for reading.
    pub fn view(&self) -> Result<Leaf<'_>, CorruptZap> {
        Leaf::decode(self.block, self.has_word_keys)
    }

    /// Whether an entry of `cost` chunks fits.
    #[must_use]
    pub fn has_room(&self, cost: usize) -> bool {
        cost <= usize::from(self.header.free_count)
    }

    /// Adds an entry whose key must not exist; without a `cd` it gets the lowest free one of its
    /// hash. Returns `None` and changes nothing if it does not fit.
    pub fn insert(
        &mut self,
        hash: u64,
        cd: Option<u32>,
        key: &KeyRef<'_>,
        value: &Value,
    ) -> Result<Option<u32>, CorruptZap> {
        let (key_bytes, value_bytes) = (key.stored(), value.stored());
        if !self.has_room(entry_cost(key_bytes.len(), value_bytes.len())) {
            return Ok(None);
        }
        let cd = match cd {
            Some(cd) => cd,
            None => self.free_cd(hash)?,
        };
        let lens = (key.integer_count() as u16, value.count() as u16);
        let entry = LeafEntry {
            chunk: CHAIN_END,
            integer_size: value.integer_size(),
            next: CHAIN_END,
            key_chunk: CHAIN_END,
            key_len: lens.0,
            value_chunk: CHAIN_END,
            value_len: lens.1,
            cd,
            hash,
        };
        self.store(entry, &key_bytes, &value_bytes)?;
        self.flush();
        Ok(Some(cd))
    }

    /// Changes the value of an entry; returns false and changes nothing if it does not fit.
    pub fn update(&mut self, entry: &LeafEntry, value: &Value) -> Result<bool, CorruptZap> {
        let bytes = value.stored();
        let integer = usize::from(entry.integer_size);
        let old = usize::from(entry.value_len).saturating_mul(integer).div_ceil(ARRAY_LEN);
        let room = usize::from(self.header.free_count).saturating_add(old);
        if bytes.len().div_ceil(ARRAY_LEN) > room {
            return Ok(false);
        }
        self.free_array(entry.value_chunk)?;
        let value_chunk = self.put_array(&bytes)?;
        let (integer_size, value_len) = (value.integer_size(), value.count() as u16);
        let changed = LeafEntry { integer_size, value_chunk, value_len, ..*entry };
        *self.chunk_mut(entry.chunk, CHUNK_ENTRY)? = changed.encode();
        self.flush();
        Ok(true)
    }

    /// Removes an entry that [`Leaf::find`] returned.
    pub fn remove(&mut self, entry: &LeafEntry) -> Result<(), CorruptZap> {
        self.unlink(entry)?;
        self.free_entry(entry)?;
        let count = self.header.entry_count;
        let none = CorruptZap::ChunkNumber { chunk: entry.chunk, count: 0 };
        // Checks L2.
        self.header.entry_count = count.checked_sub(1).ok_or(none)?;
        self.flush();
        Ok(())
    }

    /// Splits the leaf: gives it one more prefix bit, and returns the block of the leaf with that
    /// bit set.
    pub fn split(&mut self) -> Result<Vec<u8>, CorruptZap> {
        let (prefix, len) = (self.header.prefix << 1, self.header.prefix_len.saturating_add(1));
        let is_sorted = self.header.flags & FLAG_SORTED != 0;
        let mut block = format(self.block_shift, prefix | 1, len, is_sorted);
        let mut sibling = LeafMut::open(&mut block, self.has_word_keys)?;
        self.header.prefix = prefix;
        self.header.prefix_len = len;
        self.header.entry_count = 0;
        self.flush();
        let slots = self.block.get_mut(HEADER_LEN..self.chunks_start()).unwrap_or(&mut []);
        slots.fill(0xff);
        let bit = 1_u64.checked_shl(64_u32.saturating_sub(len.into())).unwrap_or(0);
        for number in 0..self.view()?.chunk_count() {
            let view = self.view()?;
            let Ok(entry) = view.entry_chunk(number) else { continue };
            if entry.hash & bit == 0 {
                self.link(entry)?;
                self.header.entry_count = self.header.entry_count.saturating_add(1);
            } else {
                let integer = usize::from(entry.integer_size);
                let key_integer = if self.has_word_keys { 8 } else { 1 };
                let key_len = usize::from(entry.key_len).saturating_mul(key_integer);
                let value_len = usize::from(entry.value_len).saturating_mul(integer);
                let key = view.array(entry.key_chunk, key_len)?;
                let value = view.array(entry.value_chunk, value_len)?;
                sibling.store(entry, &key, &value)?;
                self.free_entry(&entry)?;
            }
        }
        sibling.flush();
        self.flush();
        Ok(block)
    }

    /// Changes the prefix of the leaf, which must be empty.
    pub fn set_prefix(&mut self, prefix: u64, prefix_len: u16) {
        self.header.prefix = prefix;
        self.header.prefix_len = prefix_len;
        self.flush();
    }

    /// The lowest cd that no entry with this hash has.
    fn free_cd(&self, hash: u64) -> Result<u32, CorruptZap> {
        let view = self.view()?;
        let taken: Result<Vec<u32>, _> =
            view.with_hash(hash).map(|entry| entry.map(|entry| entry.cd)).collect();
        Ok(lowest_free(taken?))
    }

    /// Allocates the chunks of an entry, fills them, and links the entry.
    fn store(&mut self, entry: LeafEntry, key: &[u8], value: &[u8]) -> Result<(), CorruptZap> {
        let chunk = self.take_chunk()?;
        // The chunk must not be of type free while arrays are allocated.
        *self.chunk_mut(chunk, CHUNK_FREE)? = entry.encode();
        let key_chunk = self.put_array(key)?;
        let value_chunk = self.put_array(value)?;
        self.link(LeafEntry { chunk, key_chunk, value_chunk, ..entry })?;
        self.header.entry_count = self.header.entry_count.saturating_add(1);
        Ok(())
    }

    /// Inserts an entry into the chain of its slot, before the first one with a larger cd.
    fn link(&mut self, mut entry: LeafEntry) -> Result<(), CorruptZap> {
        let view = self.view()?;
        let slot = self.slot_of(entry.hash);
        let mut before = None;
        entry.next = CHAIN_END;
        for other in view.chain(slot) {
            let other = other?;
            // Checks L3.
            if other.cd == entry.cd && other.hash == entry.hash {
                let count = view.chunk_count();
                return Err(CorruptZap::ChunkNumber { chunk: other.chunk, count });
            }
            if other.cd > entry.cd {
                entry.next = other.chunk;
                break;
            }
            before = Some(other);
        }
        *self.chunk_mut(entry.chunk, CHUNK_ENTRY)? = entry.encode();
        self.set_next(slot, before, entry.chunk)
    }

    fn unlink(&mut self, entry: &LeafEntry) -> Result<(), CorruptZap> {
        let view = self.view()?;
        let slot = self.slot_of(entry.hash);
        let mut before = None;
        for other in view.chain(slot) {
            let other = other?;
            if other.chunk == entry.chunk {
                return self.set_next(slot, before, other.next);
            }
            before = Some(other);
        }
        // Checks L2.
        Err(CorruptZap::ChunkNumber { chunk: entry.chunk, count: view.chunk_count() })
    }

    /// Makes the entry `before`, or the slot itself, link to `next`.
    fn set_next(
        &mut self,
        slot: usize,
        before: Option<LeafEntry>,
        next: u16,
    ) -> Result<(), CorruptZap> {
        if let Some(before) = before {
            let changed = LeafEntry { next, ..before };
            *self.chunk_mut(before.chunk, CHUNK_ENTRY)? = changed.encode();
            return Ok(());
        }
        let at = HEADER_LEN.saturating_add(slot.saturating_mul(2));
        if let Some(link) = self.block.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
            *link = next.to_le_bytes();
        }
        Ok(())
    }

    /// Slot according to the prefix in `self`, which may be ahead of the block's.
    fn slot_of(&self, hash: u64) -> usize {
        let below_prefix = hash.checked_shl(self.header.prefix_len.into()).unwrap_or(0);
        super::hash::high_bits(below_prefix, self.block_shift - 5) as usize
    }

    fn free_entry(&mut self, entry: &LeafEntry) -> Result<(), CorruptZap> {
        self.free_array(entry.key_chunk)?;
        self.free_array(entry.value_chunk)?;
        let next = self.header.free_list;
        *self.chunk_mut(entry.chunk, CHUNK_ENTRY)? = tagged(CHUNK_FREE, &[], next);
        self.header.free_list = entry.chunk;
        self.header.free_count = self.header.free_count.saturating_add(1);
        Ok(())
    }

    /// Allocates the first chunk of the free list; its bytes stay as they are.
    fn take_chunk(&mut self) -> Result<u16, CorruptZap> {
        let number = self.header.free_list;
        let next = link_of(self.chunk_mut(number, CHUNK_FREE)?);
        self.header.free_list = next;
        let none = CorruptZap::ChunkNumber { chunk: number, count: 0 };
        // Checks L1.
        self.header.free_count = self.header.free_count.checked_sub(1).ok_or(none)?;
        Ok(number)
    }

    /// Stores bytes; returns the first chunk, or the end mark if there are none.
    fn put_array(&mut self, bytes: &[u8]) -> Result<u16, CorruptZap> {
        let (mut first, mut last) = (CHAIN_END, None);
        for piece in bytes.chunks(ARRAY_LEN) {
            let number = self.take_chunk()?;
            *self.chunk_mut(number, CHUNK_FREE)? = tagged(CHUNK_ARRAY, piece, CHAIN_END);
            match last {
                None => first = number,
                Some(last) => self.set_link(last, CHUNK_ARRAY, number)?,
            }
            last = Some(number);
        }
        Ok(first)
    }

    /// Puts the chunks of an array at the front of the free list, in their order. A cyclic chain
    /// ends at a chunk that was freed just before.
    fn free_array(&mut self, first: u16) -> Result<(), CorruptZap> {
        let mut number = first;
        while number != CHAIN_END {
            let chunk = self.chunk_mut(number, CHUNK_ARRAY)?;
            let next = link_of(chunk);
            *chunk = tagged(CHUNK_FREE, &[], next);
            self.header.free_count = self.header.free_count.saturating_add(1);
            if next == CHAIN_END {
                let rest = self.header.free_list;
                self.set_link(number, CHUNK_FREE, rest)?;
                self.header.free_list = first;
            }
            number = next;
        }
        Ok(())
    }

    fn set_link(&mut self, number: u16, kind: u8, next: u16) -> Result<(), CorruptZap> {
        let [.., low, high] = self.chunk_mut(number, kind)?;
        [*low, *high] = next.to_le_bytes();
        Ok(())
    }

    fn chunks_start(&self) -> usize {
        HEADER_LEN.saturating_add(2 << (self.block_shift - 5))
    }

    fn chunk_mut(&mut self, number: u16, expected: u8) -> Result<&mut [u8; CHUNK_LEN], CorruptZap> {
        let count = chunk_count(self.block_shift).min(usize::from(CHAIN_END)) as u16;
        let at = usize::from(number).saturating_mul(CHUNK_LEN);
        let at = self.chunks_start().saturating_add(at);
        let chunk = self.block.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<CHUNK_LEN>());
        let Some(chunk) = chunk.filter(|_| number < count) else {
            return Err(CorruptZap::ChunkNumber { chunk: number, count });
        };
        let [found, ..] = *chunk;
        if found != expected {
            return Err(CorruptZap::ChunkType { chunk: number, found, expected });
        }
        Ok(chunk)
    }

    /// Writes the header into the block.
    fn flush(&mut self) {
        if let Some(bytes) = self.block.first_chunk_mut() {
            *bytes = self.header.encode();
        }
    }
}

/// The lowest number that is not in the list.
pub(super) fn lowest_free(mut taken: Vec<u32>) -> u32 {
    taken.sort_unstable();
    let mut lowest = 0_u32;
    for cd in taken {
        if cd == lowest {
            lowest = lowest.saturating_add(1);
        }
    }
    lowest
}

#[cfg(test)]
#[path = "leaf_edit_tests.rs"]
mod tests;
