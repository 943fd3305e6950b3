//! Creates and grows the header and pointer table of a fat ZAP (spec 03 §3, §5.5).
//!
//! ```text
//!   embedded   half of the header block      -> one block of its own      2^(bs-4) -> 2^(bs-3)
//!   external   n blocks from `table_block`   -> 2n blocks elsewhere; the old ones become holes
//! ```
//!
//! Entry i of a table becomes entries 2i and 2i+1 of the doubled one. OpenZFS doubles an external
//! table block by block over many changes, so that a table may be found half copied
//! (`next_table_block`); the blocks of the copy are reserved then, and only the old table is valid.
//! Here growth is always completed at once, from the start.

use super::{FatHeader, HashBits, ZapHash};
use crate::words;
use std::ops::Range;

/// The words of one table block that hold a run of pointers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableSpan {
    /// Block of the object; 0 is the header block.
    pub block: u64,
    /// Words of that block.
    pub words: Range<usize>,
}

/// The plan of doubling a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doubling {
    /// The new header.
    pub header: FatHeader,
    /// Number of blocks of the old table; 0: it was in the header block.
    pub old_count: u64,
    /// First block of the old table.
    pub old_block: u64,
    /// First block of the new table, which has `max(2 * old_count, 1)`.
    pub new_block: u64,
}

impl FatHeader {
    /// Header of a ZAP with one leaf, block 1.
    #[must_use]
    pub const fn fresh(block_shift: u32, hash: ZapHash) -> Self {
        Self {
            block_shift,
            table_block: 0,
            table_block_count: 0,
            table_shift: block_shift - 4,
            next_table_block: 0,
            table_blocks_copied: 0,
            free_block: 2,
            leaf_count: 1,
            entry_count: 0,
            salt: hash.salt,
            normflags: hash.normflags,
            flags: hash.flags,
        }
    }

    /// The header block of a fresh ZAP: every pointer leads to block 1.
    #[must_use]
    pub fn fresh_block(&self) -> Vec<u8> {
        let half = self.block_size() / 2;
        let mut block = self.encode();
        block.resize(half, 0);
        block.extend(std::iter::repeat_n(1_u64.to_le_bytes(), half / 8).flatten());
        block
    }

    /// Writes the header itself into its block.
    pub fn store(&self, block: &mut [u8]) {
        block.iter_mut().zip(self.encode()).for_each(|(byte, field)| *byte = field);
    }

    /// Whether the table may double.
    #[must_use]
    pub const fn can_grow(&self) -> bool {
        self.table_shift < HashBits::of(self.flags) as u32 - 2
    }

    /// Plans the doubling of the table; `None` at its limit.
    #[must_use]
    pub fn double(&self) -> Option<Doubling> {
        if !self.can_grow() {
            return None;
        }
        let count = if self.is_embedded() { 1 } else { self.table_block_count.checked_mul(2)? };
        // The blocks of a copy that OpenZFS began are already reserved.
        let reserved = !self.is_embedded() && self.next_table_block != 0;
        let new_block = if reserved { self.next_table_block } else { self.free_block };
        let free_block =
            if reserved { self.free_block } else { self.free_block.checked_add(count)? };
        let header = Self {
            table_block: new_block,
            table_block_count: count,
            table_shift: self.table_shift.checked_add(1)?,
            next_table_block: 0,
            table_blocks_copied: 0,
            free_block,
            ..*self
        };
        let (old_count, old_block) = (self.table_block_count, self.table_block);
        Some(Doubling { header, old_count, old_block, new_block })
    }

    /// Pointers that lead to a leaf with this prefix.
    #[must_use]
    pub const fn pointers_of(&self, prefix: u64, prefix_len: u32) -> Range<u64> {
        let below = self.table_shift.saturating_sub(prefix_len);
        let start = match prefix.checked_shl(below) {
            Some(start) => start,
            None => 0,
        };
        let len = match 1_u64.checked_shl(below) {
            Some(len) => len,
            None => 1,
        };
        start..start.saturating_add(len)
    }

    /// The locations of a run of pointers, by block.
    pub fn spans(&self, pointers: Range<u64>) -> impl Iterator<Item = TableSpan> + use<> {
        let header = *self;
        let per_block =
            if self.is_embedded() { self.block_size() / 16 } else { self.block_size() / 8 };
        let mut index = pointers.start;
        std::iter::from_fn(move || {
            if index >= pointers.end {
                return None;
            }
            let place = header.place(index);
            let in_block = index % (per_block as u64).max(1);
            let run = (per_block as u64).saturating_sub(in_block).max(1);
            let run = run.min(pointers.end.saturating_sub(index));
            index = index.saturating_add(run);
            let end = place.word.saturating_add(run as usize);
            Some(TableSpan { block: place.block, words: place.word..end })
        })
    }
}

/// Makes the pointers of a span point to a leaf.
pub fn fill_span(block: &mut [u8], span: &TableSpan, leaf: u64) {
    let bytes = span.words.start.saturating_mul(8)..span.words.end.saturating_mul(8);
    let (pointers, _none) = block.get_mut(bytes).unwrap_or(&mut []).as_chunks_mut::<8>();
    pointers.fill(leaf.to_le_bytes());
}

/// The table block with the doubled contents of a header block's embedded table.
#[must_use]
pub fn doubled_embedded(header_block: &[u8]) -> Vec<u8> {
    let half = header_block.len() / 2;
    doubled(header_block.get(half..).unwrap_or(&[]))
}

/// The two table blocks with the doubled contents of one.
#[must_use]
pub fn doubled_block(block: &[u8]) -> [Vec<u8>; 2] {
    let (low, high) = block.split_at_checked(block.len() / 2).unwrap_or((block, &[]));
    [doubled(low), doubled(high)]
}

fn doubled(pointers: &[u8]) -> Vec<u8> {
    words::iter(pointers).flat_map(|pointer| [pointer.to_le_bytes(); 2]).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zap::{NormFlags, ZapFlags};

    fn fresh() -> FatHeader {
        let hash = ZapHash { salt: 5, normflags: NormFlags::empty(), flags: ZapFlags::empty() };
        FatHeader::fresh(14, hash)
    }

    #[test]
    fn a_fresh_zap_has_one_leaf() {
        let block = fresh().fresh_block();
        assert_eq!(block.len(), 16 << 10);
        let header = FatHeader::decode(&block).unwrap();
        assert_eq!(header, fresh());
        assert!((0..1024).all(|index| header.pointer(&block, index) == Ok(1)));
    }

    #[test]
    fn embedded_becomes_external_becomes_longer() {
        let doubling = fresh().double().unwrap();
        let header = doubling.header;
        assert_eq!((doubling.old_count, doubling.new_block), (0, 2));
        assert_eq!((header.table_block, header.table_block_count, header.table_shift), (2, 1, 11));
        assert_eq!(header.free_block, 3);
        let mut block = fresh().fresh_block();
        block[8192..8200].copy_from_slice(&7_u64.to_le_bytes());
        let table = doubled_embedded(&block);
        assert_eq!(table.len(), 16 << 10);
        assert_eq!(words::iter(&table).take(3).collect::<Vec<_>>(), [7, 7, 1]);

        let again = header.double().unwrap();
        assert_eq!((again.old_block, again.old_count, again.new_block), (2, 1, 3));
        assert_eq!((again.header.table_block_count, again.header.free_block), (2, 5));
        let [low, high] = doubled_block(&table);
        assert_eq!((low.len(), high.len()), (16 << 10, 16 << 10));
        assert_eq!(words::iter(&low).take(5).collect::<Vec<_>>(), [7, 7, 7, 7, 1]);
        header.store(&mut block);
        assert_eq!(FatHeader::decode(&block), Ok(header));

        let half =
            FatHeader { next_table_block: 9, table_blocks_copied: 0, free_block: 30, ..header };
        let finished = half.double().unwrap();
        assert_eq!((finished.new_block, finished.header.free_block), (9, 30));
        let full = FatHeader { table_shift: 26, table_block_count: 1 << 15, ..header };
        assert_eq!(full.double(), None);
    }

    #[test]
    fn spans_cover_the_pointers_of_a_leaf() {
        let header = fresh();
        assert_eq!(header.pointers_of(0, 0), 0..1024);
        assert_eq!(header.pointers_of(3, 2), 768..1024);
        let spans: Vec<_> = header.spans(768..1024).collect();
        assert_eq!(spans, [TableSpan { block: 0, words: 1024 + 768..2048 }]);
        let wide = FatHeader { table_block: 4, table_block_count: 4, table_shift: 13, ..header };
        let spans: Vec<_> = wide.spans(2000..6145).collect();
        assert_eq!(
            spans,
            [
                TableSpan { block: 4, words: 2000..2048 },
                TableSpan { block: 5, words: 0..2048 },
                TableSpan { block: 6, words: 0..2048 },
                TableSpan { block: 7, words: 0..1 },
            ]
        );
        let mut block = vec![0; 16 << 10];
        fill_span(&mut block, &spans[0], 3);
        assert_eq!(words::iter(&block).filter(|word| *word == 3).count(), 48);
    }
}
