//! Changes fat ZAPs: changes, splits and joins leaves.
//!
//! The blocks that an edit changes are held here and written together by [`Fat::finish`]; an edit
//! that fails writes none. Splitting repeats until the entry fits; when a leaf has as many prefix
//! bits as the table, the table doubles first (spec 03 §5.4-§5.6).
//!
//! Invariants
//! * F1  A split makes the prefix of a leaf one bit longer, so that splitting ends.
//! * F2  A new leaf takes a block that the edit does not use.
//! * F3  An edit writes only blocks that it has changed, each of the size of the ZAP's blocks.
//! * F4  The table has room for the prefix of each leaf.
//!
//! A table that OpenZFS left half doubled is completed before any pointer changes, so pointers are
//! only ever written to one table.

use std::collections::BTreeMap;

use cenote_ondisk::words;
use cenote_ondisk::zap::fat_edit::{doubled_block, doubled_embedded, fill_span};
use cenote_ondisk::zap::leaf::LeafEntry;
use cenote_ondisk::zap::leaf_edit::entry_cost;
use cenote_ondisk::zap::{CorruptZap, Entry, FatHeader, KeyRef, LeafMut, Value};
use cenote_rt::{Kind, ensure};

use super::{Present, exists};
use crate::live::{TxResult, TxStop};
use crate::objects::{Objects, corrupt, fail};
use crate::zap::ZapError;
use crate::zap::fat::{Block, Fat};

impl<'t> Fat<'t, dyn Objects + 't> {
    /// Creates a fat ZAP with one leaf.
    pub(super) fn fresh(
        tx: &'t mut (dyn Objects + 't),
        object: u64,
        header: FatHeader,
        leaf: Vec<u8>,
    ) -> Self {
        let head = Block::Dirty(header.fresh_block().into());
        let blocks = BTreeMap::from([(0, head), (1, Block::Dirty(leaf.into()))]);
        Self { tx, object, header, stored: header, blocks }
    }

    /// Adds an entry, or changes the value of an existing one.
    pub(super) fn put(
        &mut self,
        key: &KeyRef<'_>,
        value: &Value,
        present: Present,
    ) -> TxResult<()> {
        let cost = entry_cost(key.stored_len(), value.stored().len());
        let hash = self.hash().key(key);
        loop {
            let number = self.leaf_of(hash)?;
            let (found, count) = self.find(number, hash, key)?;
            if cost > count {
                let cause = ZapError::EntryCost { cost, count };
                return fail(Kind::Invalid, self.object, cause);
            }
            match (&found, present) {
                (Some(_), Present::Refuse) => return Err(exists(self.object, key)),
                (Some(entry), Present::Replace) => {
                    if self.edit_leaf(number, |leaf| leaf.update(entry, value))? {
                        return Ok(());
                    }
                }
                (None, _) => {
                    if self.has_room(number, cost)? {
                        self.edit_leaf(number, |leaf| leaf.insert(hash, None, key, value))?;
                        self.header.entry_count = self.header.entry_count.wrapping_add(1);
                        return Ok(());
                    }
                }
            }
            self.split(number)?;
        }
    }

    /// Adds an entry with its existing differentiator (`le_cd`).
    pub(super) fn restore(&mut self, entry: &Entry) -> TxResult<()> {
        let key = KeyRef::from(&entry.key);
        let cost = entry_cost(key.stored_len(), entry.value.stored().len());
        loop {
            let number = self.leaf_of(entry.hash)?;
            if self.has_room(number, cost)? {
                let Entry { hash, cd, value, .. } = entry;
                self.edit_leaf(number, |leaf| leaf.insert(*hash, Some(*cd), &key, value))?;
                self.header.entry_count = self.header.entry_count.wrapping_add(1);
                return Ok(());
            }
            self.split(number)?;
        }
    }

    /// Removes an entry if it is there.
    pub(super) fn remove(&mut self, key: &KeyRef<'_>) -> TxResult<Option<Value>> {
        let hash = self.hash().key(key);
        let number = self.leaf_of(hash)?;
        let (Some(entry), _) = self.find(number, hash, key)? else { return Ok(None) };
        let value = self.edit_leaf(number, |leaf| {
            let value = leaf.view()?.value(&entry)?;
            leaf.remove(&entry)?;
            Ok(value)
        })?;
        self.header.entry_count = self.header.entry_count.saturating_sub(1);
        self.join(number)?;
        Ok(Some(value))
    }

    /// Writes all changed blocks.
    pub(super) fn finish(mut self) -> TxResult<()> {
        if self.header != self.stored || matches!(self.blocks.get(&0), Some(Block::Dirty(_))) {
            if let Some(Block::Dirty(block)) = self.blocks.get_mut(&0) {
                self.header.store(block);
            } else {
                self.tx.write(self.object, 0, &self.header.encode())?;
            }
        }
        for (number, block) in self.blocks {
            if let Block::Dirty(block) = block {
                let (len, shift) = (block.len(), self.header.block_shift);
                ensure!("F3", len == 1 << shift, "{len} bytes for a block of the ZAP, 2^{shift}");
                self.tx.write_block(self.object, number, block.freeze())?;
            }
        }
        Ok(())
    }

    /// Splits a leaf: gives it one more prefix bit, and a sibling.
    fn split(&mut self, number: u64) -> TxResult<()> {
        let prefix_len = self.leaf(number)?.header().prefix_len;
        while self.header.next_table_block != 0 || u32::from(prefix_len) >= self.header.table_shift
        {
            self.double_table()?;
        }
        let sibling_number = self.header.free_block;
        let Some(free_block) = sibling_number.checked_add(1) else {
            return Err(self.full());
        };
        let (sibling, own) = self.edit_leaf(number, |leaf| Ok((leaf.split()?, *leaf.header())))?;
        let (before, now) = (prefix_len, own.prefix_len);
        ensure!("F1", now == before + 1, "the prefix of a leaf grows from {before} to {now} bits");
        let shift = self.header.table_shift;
        ensure!("F4", u32::from(now) <= shift, "a prefix of {now} bits, the table has {shift}");
        self.header.free_block = free_block;
        self.header.leaf_count = self.header.leaf_count.wrapping_add(1);
        let other = self.blocks.insert(sibling_number, Block::Dirty(sibling.into()));
        ensure!("F2", other.is_none(), "block {sibling_number} of the ZAP is in use");
        self.point(own.prefix | 1, own.prefix_len, sibling_number)
    }

    /// Makes all pointers of a prefix point to a leaf.
    fn point(&mut self, prefix: u64, prefix_len: u16, leaf: u64) -> TxResult<()> {
        let pointers = self.header.pointers_of(prefix, prefix_len.into());
        for span in self.header.spans(pointers) {
            fill_span(self.block_mut(span.block)?, &span, leaf);
        }
        Ok(())
    }

    /// Doubles the pointer table; the blocks of the old one become holes.
    fn double_table(&mut self) -> TxResult<()> {
        let Some(doubling) = self.header.double() else { return Err(self.full()) };
        if doubling.old_count == 0 {
            let table = doubled_embedded(self.block(0)?);
            self.blocks.insert(doubling.new_block, Block::Dirty(table.into()));
        }
        for index in 0..doubling.old_count {
            let old = doubling.old_block.wrapping_add(index);
            let [low, high] = doubled_block(self.block(old)?);
            let new = doubling.new_block.wrapping_add(index.wrapping_mul(2));
            self.blocks.insert(new, Block::Dirty(low.into()));
            self.blocks.insert(new.wrapping_add(1), Block::Dirty(high.into()));
        }
        if doubling.old_count != 0 {
            self.free_blocks(doubling.old_block, Some(doubling.old_count))?;
        }
        self.header = doubling.header;
        Ok(())
    }

    /// Joins an empty leaf with its sibling, as long as both are empty.
    fn join(&mut self, number: u64) -> TxResult<()> {
        let mut number = number;
        while self.header.next_table_block == 0 {
            let own = *self.leaf(number)?.header();
            let (prefix, len) = (own.prefix ^ 1, own.prefix_len);
            if own.entry_count != 0 || len == 0 {
                return Ok(());
            }
            let sibling_number = self.pointer(self.header.pointers_of(prefix, len.into()).start)?;
            let sibling = *self.leaf(sibling_number)?.header();
            let is_pair = (sibling.prefix, sibling.prefix_len) == (prefix, len);
            if !is_pair || sibling.entry_count != 0 || sibling_number == number {
                return Ok(());
            }
            let upper = (own.prefix | 1, len);
            let (kept, freed) = if own.prefix & 1 == 0 {
                (number, sibling_number)
            } else {
                (sibling_number, number)
            };
            self.point(upper.0, upper.1, kept)?;
            self.edit_leaf(kept, |leaf| {
                leaf.set_prefix(own.prefix >> 1, len.saturating_sub(1));
                Ok(())
            })?;
            self.header.leaf_count = self.header.leaf_count.saturating_sub(1);
            self.free_blocks(freed, Some(1))?;
            if freed.checked_add(1) == Some(self.header.free_block) {
                self.trim()?;
            }
            number = kept;
        }
        Ok(())
    }

    /// Lowers the first unused block to the one behind the last used one.
    fn trim(&mut self) -> TxResult<()> {
        let header = self.header;
        let mut last =
            header.table_block.saturating_add(header.table_block_count.saturating_sub(1));
        for span in header.spans(0..header.pointer_count()) {
            let pointers = words::iter(self.block(span.block)?);
            let pointers = pointers.skip(span.words.start).take(span.words.len());
            last = last.max(pointers.max().unwrap_or(0));
        }
        self.header.free_block = last.saturating_add(1);
        self.free_blocks(self.header.free_block, None)
    }

    /// Frees blocks.
    fn free_blocks(&mut self, first: u64, count: Option<u64>) -> TxResult<()> {
        let end = count.map_or(u64::MAX, |count| first.saturating_add(count));
        self.blocks.retain(|number, _| !(first..end).contains(number));
        let shift = self.header.block_shift;
        let len = count.map(|count| count << shift);
        self.tx.free_range(self.object, first << shift, len)
    }

    /// The entry of a key in its leaf, and the number of chunks in a leaf.
    fn find(
        &mut self,
        number: u64,
        hash: u64,
        key: &KeyRef<'_>,
    ) -> TxResult<(Option<LeafEntry>, usize)> {
        let object = self.object;
        let leaf = self.leaf(number)?;
        let found = leaf.find(hash, key).map_err(|error| corrupt(object, error))?;
        Ok((found, leaf.chunk_count().into()))
    }

    fn has_room(&mut self, number: u64, cost: usize) -> TxResult<bool> {
        Ok(cost <= usize::from(self.leaf(number)?.header().free_count))
    }

    fn edit_leaf<T>(
        &mut self,
        number: u64,
        edit: impl FnOnce(&mut LeafMut<'_>) -> Result<T, CorruptZap>,
    ) -> TxResult<T> {
        let (object, words) = (self.object, self.has_word_keys());
        LeafMut::open(self.block_mut(number)?, words)
            .and_then(|mut leaf| edit(&mut leaf))
            .map_err(|error| corrupt(object, error))
    }

    fn block_mut(&mut self, number: u64) -> TxResult<&mut [u8]> {
        let block = self.load(number)?;
        if let Block::Clean(clean) = block {
            *block = Block::Dirty(clean.clone().into_mut());
        }
        match block {
            Block::Dirty(block) => Ok(block),
            Block::Clean(_) => Ok(&mut []),
        }
    }

    fn full(&self) -> TxStop {
        let shift = self.header.table_shift;
        crate::objects::failure(Kind::NoSpace, self.object, ZapError::TableFull { shift })
    }
}
