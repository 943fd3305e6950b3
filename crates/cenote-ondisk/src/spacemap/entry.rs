//! The words of a space map (spec 05 §2.3).
//!
//! ```text
//!   63 62 61    60 59          50 49                                  0
//!  +-----+--------+--------------+------------------------------------+
//!  | 1 0 | action |     pass     |   txg (0 = padding)                | debug
//!  +-----+--------+--------------+------------------------------------+
//!   63 62                    16 15  14            0
//!  +---+-----------------------+----+--------------+
//!  | 0 |   offset, 47 bits     | F  |  run - 1     |                     one-word entry
//!  +---+-----------------------+----+--------------+
//!   63 62 61 60 59                  24 23         0
//!  +-----+-----+----------------------+------------+
//!  | 1 1 | 0 0 |  run - 1, 36 bits    |    vdev    |                     two-word entry, first
//!  +-----+-----+----------------------+------------+
//!  | F |   offset, 63 bits                         |                     second
//!  +---+-------------------------------------------+
//! ```
//!
//! Offsets and runs are in the map's units. The second word of a pair has no mark of its own, so a
//! stream can only be read forward from a known start. A pair never spans data blocks (the writer
//! pads); so a [`Decoder`] is fed block by block and keeps only the stamp between blocks. An
//! all-zero word is a valid entry: ALLOC of one unit at 0.

use super::CorruptSpaceMap;
use crate::bits::Bits;
use crate::words;

const CLASS: Bits<62, 2> = Bits;
const ONE_OFFSET: Bits<16, 47> = Bits;
const ONE_IS_FREE: Bits<15, 1> = Bits;
const ONE_RUN_MINUS_1: Bits<0, 15> = Bits;
const TWO_RUN_MINUS_1: Bits<24, 36> = Bits;
const TWO_VDEV: Bits<0, 24> = Bits;
const TWO_IS_FREE: Bits<63, 1> = Bits;
const TWO_OFFSET: Bits<0, 63> = Bits;
const DEBUG_IS_FREE: Bits<60, 2> = Bits;
const DEBUG_PASS: Bits<50, 10> = Bits;
const DEBUG_TXG: Bits<0, 50> = Bits;

/// Largest run of a one-word entry.
pub const ONE_WORD_RUN_MAX: u64 = 1 << 15;
/// First offset that a one-word entry cannot hold.
pub const ONE_WORD_OFFSET_END: u64 = 1 << 47;
/// Largest run of a two-word entry.
pub const TWO_WORD_RUN_MAX: u64 = 1 << 36;
/// A debug word without contents.
pub const PADDING: u64 = 2 << 62;

/// Effect of an entry on its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// The range becomes allocated.
    Alloc,
    /// The range becomes free.
    Free,
}

impl Action {
    const fn of(is_free: bool) -> Self {
        if is_free { Self::Free } else { Self::Alloc }
    }
}

/// The owner's knowledge of a map: its offset, size and unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// First byte (or txg) that the map covers.
    pub start: u64,
    /// Bytes covered.
    pub size: u64,
    /// Log2 of the unit.
    pub shift: u8,
}

impl Geometry {
    /// Geometry of the pool's log space maps.
    pub const LOG: Self = Self { start: 0, size: u64::MAX, shift: super::LOG_SPACEMAP_SHIFT };
    /// Geometry of a DTL: units are txgs.
    pub const DTL: Self = Self { start: 0, size: u64::MAX, shift: 0 };

    /// Scales a segment to bytes and checks that it lies inside; `None` otherwise.
    fn segment(&self, offset: u64, units: u64) -> Option<(u64, u64)> {
        let shift = u32::from(self.shift);
        let scale = |value: u64| value.checked_shl(shift).filter(|&v| v >> shift == value);
        let (relative, size) = (scale(offset)?, scale(units)?);
        let end = relative.checked_add(size)?;
        let start = self.start.checked_add(relative)?;
        start.checked_add(size)?;
        (end <= self.size).then_some((start, size))
    }
}

/// Debug word with a txg: the origin of the entries that follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Kind of the entries that follow.
    pub action: Action,
    /// Sync pass.
    pub pass: u16,
    /// Txg, low 50 bits.
    pub txg: u64,
}

/// One range, in bytes from the start of the vdev (or in txgs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Allocates or frees.
    pub action: Action,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
    /// Vdev of a two-word entry. Meaningful in log maps only.
    pub vdev: Option<u32>,
}

/// An item of a space map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// A debug word.
    Stamp(Stamp),
    /// A padding word.
    Padding,
    /// A range.
    Entry(Entry),
}

/// Reads the data blocks of one map in order.
#[derive(Debug, Clone)]
pub struct Decoder {
    geometry: Geometry,
    index: u64,
}

impl Decoder {
    /// A decoder at the start of a map.
    #[must_use]
    pub const fn new(geometry: Geometry) -> Self {
        Self { geometry, index: 0 }
    }

    /// Index of the next word in the stream.
    #[must_use]
    pub const fn index(&self) -> u64 {
        self.index
    }

    /// Decodes the next data block, the last one cut off at the map's length. After an error the
    /// iterator is exhausted.
    pub fn block<'a>(&'a mut self, data: &'a [u8]) -> Items<'a, impl Iterator<Item = u64> + 'a> {
        Items { decoder: self, words: words::iter(data), failed: false }
    }
}

/// Iterator over the items of a data block.
#[derive(Debug)]
pub struct Items<'a, W> {
    decoder: &'a mut Decoder,
    words: W,
    failed: bool,
}

impl<W: Iterator<Item = u64>> Items<'_, W> {
    fn take_word(&mut self) -> Option<u64> {
        let word = self.words.next()?;
        self.decoder.index = self.decoder.index.wrapping_add(1);
        Some(word)
    }

    fn decode(&mut self, first: u64, index: u64) -> Result<Item, CorruptSpaceMap> {
        let (offset, run_minus_1, is_free, vdev) = match CLASS.get(first) {
            0 | 1 => {
                let (offset, run) = (ONE_OFFSET.get(first), ONE_RUN_MINUS_1.get(first));
                (offset, run, ONE_IS_FREE.is_set(first), None)
            }
            2 => return Ok(debug_item(first)),
            _ => {
                let second = self.take_word().ok_or(CorruptSpaceMap::Straddle { index })?;
                let vdev = TWO_VDEV.get(first) as u32;
                let (offset, run) = (TWO_OFFSET.get(second), TWO_RUN_MINUS_1.get(first));
                (offset, run, TWO_IS_FREE.is_set(second), Some(vdev))
            }
        };
        let (units, action) = (run_minus_1 + 1, Action::of(is_free));
        let (offset, size) = self
            .decoder
            .geometry
            .segment(offset, units)
            .ok_or(CorruptSpaceMap::OutOfRange { index, offset, units })?;
        Ok(Item::Entry(Entry { action, offset, size, vdev }))
    }
}

fn debug_item(word: u64) -> Item {
    let txg = DEBUG_TXG.get(word);
    if txg == 0 {
        return Item::Padding;
    }
    let pass = DEBUG_PASS.get(word) as u16;
    Item::Stamp(Stamp { action: Action::of(DEBUG_IS_FREE.is_set(word)), pass, txg })
}

impl<W: Iterator<Item = u64>> Iterator for Items<'_, W> {
    type Item = Result<Item, CorruptSpaceMap>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let index = self.decoder.index;
        let first = self.take_word()?;
        let item = self.decode(first, index);
        self.failed = item.is_err();
        Some(item)
    }
}

/// Encodes entries as words, padding so that no pair spans data blocks (spec 05 §2.6).
#[derive(Debug, Clone)]
pub struct Writer {
    shift: u8,
    words_per_block: u64,
    /// Words before the first one of `words`, for the padding rule.
    position: u64,
    words: Vec<u64>,
}

impl Writer {
    /// A writer that continues at byte `length` of a map with data blocks of `block_size` bytes.
    #[must_use]
    pub const fn new(shift: u8, block_size: u64, length: u64) -> Self {
        Self { shift, words_per_block: block_size / 8, position: length / 8, words: Vec::new() }
    }

    /// The words so far.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Appends a debug word.
    pub fn stamp(&mut self, stamp: Stamp) {
        let action = u64::from(stamp.action == Action::Free);
        let pass = u64::from(stamp.pass & 0x3ff);
        self.words.push(PADDING | action << 60 | pass << 50 | stamp.txg & ((1 << 50) - 1));
    }

    /// Appends one range; `offset` is relative to the map's start, both are multiples of the unit.
    /// With `two_word` (feature spacemap_v2), pairs are used where a single word is not enough.
    pub fn range(&mut self, entry: Entry, two_word: bool) {
        let (mut offset, mut units) = (entry.offset >> self.shift, entry.size >> self.shift);
        let pair = two_word
            && (entry.vdev.is_some() || units > ONE_WORD_RUN_MAX || offset >= ONE_WORD_OFFSET_END);
        let free = u64::from(entry.action == Action::Free);
        while units > 0 {
            let run = units.min(if pair { TWO_WORD_RUN_MAX } else { ONE_WORD_RUN_MAX });
            if pair {
                self.pad_for_pair();
                let vdev = u64::from(entry.vdev.unwrap_or(0) & 0xff_ffff);
                self.words.push(3 << 62 | (run - 1) << 24 | vdev);
                self.words.push(free << 63 | offset);
            } else {
                self.words.push(offset << 16 | free << 15 | (run - 1));
            }
            offset += run;
            units -= run;
        }
    }

    fn pad_for_pair(&mut self) {
        let next = self.position + self.words.len() as u64;
        if self.words_per_block != 0 && next % self.words_per_block == self.words_per_block - 1 {
            self.words.push(PADDING);
        }
    }
}

#[cfg(test)]
#[path = "entry_tests.rs"]
mod tests;
