//! Fat ZAPs: finds the leaf of a hash and the entries in it. [`super::edit`] changes them.
//!
//!     header.table[hash >> (64 - shift)] = block of the leaf

use std::collections::BTreeMap;

use cenote_ondisk::zap::{
    CorruptZap, Cursor, Entry, FatHeader, KeyRef, Leaf, Value, ZapFlags, ZapHash,
};
use cenote_rt::{Buf, BufMut};

use super::ZapError;
use crate::live::TxResult;
use crate::objects::{ReadObjects, corrupt};

/// Leaves read ahead of a walk.
const LEAVES_AHEAD: u32 = 32;

/// A block of the ZAP, unchanged or changed.
pub(super) enum Block {
    Clean(Buf),
    Dirty(BufMut),
}

impl Block {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Clean(block) => block,
            Self::Dirty(block) => block,
        }
    }
}

/// A fat ZAP that is being read or, if `O` is [`Objects`](crate::Objects), changed.
pub(super) struct Fat<'t, O: ?Sized> {
    pub(super) tx: &'t mut O,
    pub(super) object: u64,
    pub(super) header: FatHeader,
    /// The header stored in block 0.
    pub(super) stored: FatHeader,
    pub(super) blocks: BTreeMap<u64, Block>,
}

impl<'t, O: ReadObjects + ?Sized> Fat<'t, O> {
    /// Opens a fat ZAP from its header block.
    pub(super) fn open(tx: &'t mut O, object: u64, block: Buf) -> TxResult<Self> {
        let header = FatHeader::decode(&block).map_err(|error| corrupt(object, error))?;
        let object_blocks = tx.dnode(object)?.maxblkid.saturating_add(1);
        let (first, count) = (header.table_block, header.table_block_count);
        if first.checked_add(count).is_none_or(|end| end > object_blocks) {
            let cause = ZapError::TableRange { block: first, count, object_blocks };
            return Err(corrupt(object, cause));
        }
        let blocks = BTreeMap::from([(0, Block::Clean(block))]);
        Ok(Self { tx, object, header, stored: header, blocks })
    }

    /// Salt, normalization and kind of keys.
    pub(super) fn hash(&self) -> ZapHash {
        self.header.hash()
    }

    /// Number of entries according to the header.
    pub(super) fn entry_count(&self) -> u64 {
        self.header.entry_count
    }

    /// The value of exactly this key.
    pub(super) fn lookup(&mut self, key: &KeyRef<'_>) -> TxResult<Option<Value>> {
        let hash = self.hash().key(key);
        let number = self.leaf_of(hash)?;
        let object = self.object;
        let leaf = self.leaf(number)?;
        let found = leaf.find(hash, key).and_then(|entry| match entry {
            Some(entry) => leaf.value(&entry).map(Some),
            None => Ok(None),
        });
        found.map_err(|error| corrupt(object, error))
    }

    /// The entries with a hash, in cursor order.
    pub(super) fn with_hash(&mut self, hash: u64) -> TxResult<Vec<Entry>> {
        let number = self.leaf_of(hash)?;
        let object = self.object;
        let leaf = self.leaf(number)?;
        let entries: Result<Vec<Entry>, CorruptZap> =
            leaf.with_hash(hash).map(|entry| leaf.entry(&entry?)).collect();
        let mut entries = entries.map_err(|error| corrupt(object, error))?;
        entries.sort_by_key(Entry::cursor);
        Ok(entries)
    }

    /// At most `max` entries of the leaf that contains a cursor position, from that position on,
    /// and where the next leaf begins.
    pub(super) fn leaf_entries(
        &mut self,
        from: Cursor,
        max: usize,
    ) -> TxResult<(Vec<Entry>, Option<Cursor>)> {
        let number = self.leaf_of(from.hash).inspect_err(|_| self.prefetch_behind(from.hash))?;
        let object = self.object;
        let leaf = self.leaf(number)?;
        let next = Cursor::next_leaf(from.hash, leaf.header().prefix_len.into());
        let entries = leaf.entries_from(from, max).map_err(|error| corrupt(object, error))?;
        Ok((entries, next))
    }

    /// Starts reading the leaves behind the leaf for a hash, as far as their pointers are in the
    /// same block of the table.
    fn prefetch_behind(&mut self, hash: u64) {
        let first = self.header.pointer_index(hash);
        let block = self.header.place(first).block;
        let (mut last, mut count) = (None, 0);
        for index in first..self.header.pointer_count() {
            let number = self.pointer(index).ok();
            if number.is_none() || self.header.place(index).block != block || count > LEAVES_AHEAD {
                return;
            }
            if last != number {
                (last, count) = (number, count + 1);
                self.tx.prefetch(self.object, number.unwrap_or(0));
            }
        }
    }

    /// The block of the leaf for a hash; the leaf's prefix is checked.
    pub(super) fn leaf_of(&mut self, hash: u64) -> TxResult<u64> {
        let number = self.pointer(self.header.pointer_index(hash))?;
        let (object, table_shift) = (self.object, self.header.table_shift);
        let leaf = self.leaf(number)?;
        let (prefix, prefix_len) = (leaf.header().prefix, leaf.header().prefix_len);
        if !leaf.owns(hash) || u32::from(prefix_len) > table_shift {
            let cause = ZapError::Leaf { block: number, prefix, prefix_len, hash };
            return Err(corrupt(object, cause));
        }
        Ok(number)
    }

    pub(super) fn pointer(&mut self, index: u64) -> TxResult<u64> {
        let (object, header) = (self.object, self.header);
        let table = self.block(header.place(index).block)?;
        header.pointer(table, index).map_err(|error| corrupt(object, error))
    }

    pub(super) fn leaf(&mut self, number: u64) -> TxResult<Leaf<'_>> {
        let (object, words) = (self.object, self.has_word_keys());
        Leaf::decode(self.block(number)?, words).map_err(|error| corrupt(object, error))
    }

    pub(super) fn has_word_keys(&self) -> bool {
        self.header.flags.contains(ZapFlags::UINT64_KEY)
    }

    pub(super) fn block(&mut self, number: u64) -> TxResult<&[u8]> {
        Ok(self.load(number)?.bytes())
    }

    pub(super) fn load(&mut self, number: u64) -> TxResult<&mut Block> {
        use std::collections::btree_map::Entry as Slot;
        match self.blocks.entry(number) {
            Slot::Occupied(slot) => Ok(slot.into_mut()),
            Slot::Vacant(slot) => match self.tx.block(self.object, number)? {
                Some(block) => Ok(slot.insert(Block::Clean(block))),
                None => Err(corrupt(self.object, ZapError::Hole { block: number })),
            },
        }
    }
}
