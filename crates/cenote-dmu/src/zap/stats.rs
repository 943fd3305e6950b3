//! Statistics of a ZAP, as printed by `zdb -dddd`.
//!
//! Every histogram has ten buckets; the last one includes all larger values.

use cenote_ondisk::zap::leaf::{ARRAY_LEN, LeafEntry};
use cenote_ondisk::zap::{Cursor, FatHeader, Leaf};
use cenote_rt::Result;

use super::{Body, Zap};

/// Buckets of each histogram.
pub const HISTOGRAM_LEN: usize = 10;

/// Statistics of a ZAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ZapStats {
    /// Of a micro ZAP.
    Micro {
        /// Bytes of its block.
        block_size: u64,
        /// Entries.
        entry_count: u64,
    },
    /// Of a fat ZAP.
    Fat(Box<FatStats>),
}

/// Statistics of a fat ZAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FatStats {
    /// The header.
    pub header: FatHeader,
    /// Leaves by log2 of the number of pointers to them.
    pub leaves_by_pointers: [u64; HISTOGRAM_LEN],
    /// Leaves by number of entries, in steps of five.
    pub blocks_by_entries: [u64; HISTOGRAM_LEN],
    /// Leaves by tenths of the block used.
    pub blocks_by_fullness: [u64; HISTOGRAM_LEN],
    /// Entries by number of chunks.
    pub entries_by_chunks: [u64; HISTOGRAM_LEN],
    /// Slots of the leaves' hash tables by number of entries.
    pub buckets_by_entries: [u64; HISTOGRAM_LEN],
}

pub(super) async fn gather(zap: &Zap) -> Result<ZapStats> {
    let header = match &zap.body {
        Body::Micro(block) => {
            let (block_size, entry_count) = (block.len() as u64, zap.entry_count());
            return Ok(ZapStats::Micro { block_size, entry_count });
        }
        Body::Fat { header, .. } => *header,
    };
    let none = [0; HISTOGRAM_LEN];
    let mut stats = FatStats {
        header,
        leaves_by_pointers: none,
        blocks_by_entries: none,
        blocks_by_fullness: none,
        entries_by_chunks: none,
        buckets_by_entries: none,
    };
    let mut next = Some(Cursor::default());
    while let Some(Cursor { hash, .. }) = next {
        let (number, block) = zap.leaf_of(&header, hash).await?;
        let leaf = zap.decode_leaf(&header, &block, number, hash)?;
        next = Cursor::next_leaf(hash, leaf.header().prefix_len.into());
        stats.add_leaf(&leaf, block.len()).map_err(|error| zap.corrupt(error, number))?;
    }
    Ok(ZapStats::Fat(Box::new(stats)))
}

impl FatStats {
    fn add_leaf(
        &mut self,
        leaf: &Leaf<'_>,
        block_size: usize,
    ) -> Result<(), cenote_ondisk::zap::CorruptZap> {
        let header = leaf.header();
        let shift = self.header.table_shift.saturating_sub(header.prefix_len.into());
        count(&mut self.leaves_by_pointers, shift as usize);
        count(&mut self.blocks_by_entries, usize::from(header.entry_count) / 5);
        let free = usize::from(header.free_count) * (ARRAY_LEN + 1);
        count(&mut self.blocks_by_fullness, block_size.saturating_sub(free) * 10 / block_size);
        for slot in 0..block_size / 32 {
            let mut entries = 0;
            for entry in leaf.chain(slot) {
                count(&mut self.entries_by_chunks, chunks_of(&entry?));
                entries += 1;
            }
            count(&mut self.buckets_by_entries, entries);
        }
        Ok(())
    }
}

/// Number of chunks of an entry: its own, those of the key and those of the value.
fn chunks_of(entry: &LeafEntry) -> usize {
    let value_bytes = usize::from(entry.value_len) * usize::from(entry.integer_size);
    1 + usize::from(entry.key_len).div_ceil(ARRAY_LEN) + value_bytes.div_ceil(ARRAY_LEN)
}

fn count(histogram: &mut [u64; HISTOGRAM_LEN], bucket: usize) {
    histogram[bucket.min(HISTOGRAM_LEN - 1)] += 1;
}
