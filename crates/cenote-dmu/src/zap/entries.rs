//! Iterates over a ZAP in cursor order with bounded memory.
//!
//! One leaf is decoded at a time; meanwhile the next leaves are fetched into the block cache. The
//! table's pointers to one leaf are consecutive, so the leaf's own prefix tells where the next one
//! begins.

use std::collections::VecDeque;

use cenote_ondisk::zap::{Cursor, Entry, FatHeader, MicroZap};
use cenote_rt::{Error, Result};

use super::{Body, Zap, ZapError};

/// Leaves fetched ahead of the walk.
const LEAVES_AHEAD: usize = 8;
/// Damaged leaves after which a walk ends.
const DAMAGED_LEAVES_MAX: u32 = 64;

/// An iterator over the entries of a ZAP.
#[derive(Debug)]
pub struct Entries {
    zap: Zap,
    /// Entries of the current leaf that were not returned yet.
    ready: VecDeque<Entry>,
    /// Position of the next leaf; `None` at the end.
    next_leaf: Option<Cursor>,
    /// Position behind the last returned entry.
    place: Option<Cursor>,
    /// First pointers of the leaves that were fetched ahead.
    ahead: VecDeque<u64>,
    /// Last pointer that was prefetched.
    scanned: u64,
    damaged: u32,
}

impl Entries {
    pub(super) fn new(zap: Zap, place: Option<Cursor>) -> Self {
        let (ready, ahead) = (VecDeque::new(), VecDeque::new());
        Self { zap, ready, next_leaf: place, place, ahead, scanned: 0, damaged: 0 }
    }

    /// Returns the next entry; `None` at the end.
    ///
    /// After an error, the next call continues behind the damaged leaf.
    pub async fn next(&mut self) -> Result<Option<Entry>> {
        loop {
            if let Some(entry) = self.ready.pop_front() {
                self.place = Some(entry.cursor().next());
                return Ok(Some(entry));
            }
            let Some(from) = self.next_leaf else {
                self.place = None;
                return Ok(None);
            };
            self.load(from).await?;
        }
    }

    /// The cookie with which a later walk continues behind the last returned entry.
    pub fn cookie(&self) -> u64 {
        self.place.map_or(Cursor::END, |place| place.serialize(self.zap.hash().bits()))
    }

    /// Loads the entries of one leaf from `from` on.
    async fn load(&mut self, from: Cursor) -> Result<()> {
        let header = match &self.zap.body {
            Body::Micro(block) => {
                self.next_leaf = None;
                let zap = MicroZap::decode(block).map_err(|error| self.zap.corrupt(error, 0))?;
                self.ready = zap.entries().into();
                self.ready.retain(|entry| entry.cursor() >= from);
                return Ok(());
            }
            Body::Fat { header, .. } => *header,
        };
        let result = self.load_leaf(&header, from).await;
        if result.is_err() {
            self.damaged += 1;
            if self.damaged >= DAMAGED_LEAVES_MAX {
                self.next_leaf = None;
                let cause = ZapError::TooDamaged { count: self.damaged };
                return Err(self.zap.dnode.locate(Error::corrupt(cause)));
            }
        }
        result
    }

    async fn load_leaf(&mut self, header: &FatHeader, from: Cursor) -> Result<()> {
        let index = header.pointer_index(from.hash);
        // Until the leaf is known, the walk continues at the next pointer.
        self.next_leaf = Cursor::next_leaf(from.hash, header.table_shift);
        let number = self.zap.pointer(header, index).await?;
        self.prefetch(header, index).await;
        let block = match self.zap.require_block(number).await {
            Ok(block) => block,
            Err(error) => {
                self.skip_leaf(header, index, number).await;
                return Err(error);
            }
        };
        let leaf = self.zap.decode_leaf(header, &block, number, from.hash)?;
        self.next_leaf = Cursor::next_leaf(from.hash, leaf.header().prefix_len.into());
        let entries = leaf.entries_from(from, usize::MAX);
        self.ready = entries.map_err(|error| self.zap.corrupt(error, number))?.into();
        Ok(())
    }

    /// Moves behind the consecutive pointers to a leaf that cannot be read, as far as they are in
    /// one block of the table.
    async fn skip_leaf(&mut self, header: &FatHeader, index: u64, number: u64) {
        let place = header.place(index);
        let Ok(table) = self.zap.table_block(place.block).await else { return };
        let mut last = index;
        while let Some(next) = next_in_block(header, last, place.block) {
            if header.pointer(&table, next).ok() != Some(number) {
                break;
            }
            last = next;
        }
        let hash = last.checked_shl(64_u32.wrapping_sub(header.table_shift)).unwrap_or(0);
        self.next_leaf = Cursor::next_leaf(hash, header.table_shift);
    }

    /// Fetches the leaves behind the pointer `index`, as far as they are in its table block.
    async fn prefetch(&mut self, header: &FatHeader, index: u64) {
        while self.ahead.front().is_some_and(|first| *first <= index) {
            self.ahead.pop_front();
        }
        let block = header.place(index).block;
        let Ok(table) = self.zap.table_block(block).await else { return };
        self.scanned = self.scanned.max(index);
        let mut last = header.pointer(&table, self.scanned).ok();
        while self.ahead.len() < LEAVES_AHEAD {
            let Some(next) = next_in_block(header, self.scanned, block) else { break };
            let Ok(number) = header.pointer(&table, next) else { break };
            self.scanned = next;
            if last != Some(number) {
                last = Some(number);
                self.ahead.push_back(next);
                self.zap.dnode.prefetch_block(0, number).await;
            }
        }
    }
}

/// The pointer behind `index`, if it is also in table block `block`.
fn next_in_block(header: &FatHeader, index: u64, block: u64) -> Option<u64> {
    let next = index.checked_add(1).filter(|next| *next < header.pointer_count())?;
    (header.place(next).block == block).then_some(next)
}
