//! The shape of an object's block tree (arithmetic only).
//!
//!     level L-1   the dnode's 1..3 pointers
//!     level l     block b points at blocks b << e .. (b+1) << e of level l-1, e = log2(pointers)
//!     level 0     block b holds bytes b * block_size ..
//!
//! All numbers come from disk: shifts of 64 and more give zero, sums saturate (spec 02 §9.1).

/// Log2 of the size of a block pointer.
const BLOCK_PTR_SHIFT: u32 = 7;

/// Shape of a block tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Number of levels; 1 means that the dnode points at data.
    pub levels: u8,
    /// Number of pointers in the dnode.
    pub pointer_count: u8,
    /// Log2 of the size of an indirect block.
    pub indirect_shift: u32,
    /// Bytes of a data block.
    pub block_size: u64,
    /// Highest data block that may exist.
    pub max_block: u64,
}

impl Geometry {
    /// Log2 of the number of pointers in an indirect block.
    #[must_use]
    pub const fn entry_shift(&self) -> u32 {
        self.indirect_shift.saturating_sub(BLOCK_PTR_SHIFT)
    }

    /// Bytes of an indirect block.
    #[must_use]
    pub const fn indirect_size(&self) -> u64 {
        match 1_u64.checked_shl(self.indirect_shift) {
            Some(size) => size,
            None => 0,
        }
    }

    /// Bytes of a block at `level`.
    #[must_use]
    pub const fn size_at(&self, level: u8) -> u64 {
        if level == 0 { self.block_size } else { self.indirect_size() }
    }

    /// Number of the block at `to`, the higher level, above block `number` of `from`.
    #[must_use]
    pub const fn ancestor(&self, number: u64, from: u8, to: u8) -> u64 {
        let shift = self.entry_shift().saturating_mul(to.saturating_sub(from) as u32);
        if shift >= 64 { 0 } else { number >> shift }
    }

    /// Index in its parent of the pointer to block `number`.
    #[must_use]
    pub const fn index_in_parent(&self, number: u64) -> usize {
        (number & ((1 << self.entry_shift()) - 1)) as usize
    }

    /// Number of data blocks below one block of `level`.
    #[must_use]
    pub const fn span(&self, level: u8) -> u64 {
        let shift = self.entry_shift().saturating_mul(level as u32);
        if shift >= 64 { u64::MAX } else { 1 << shift }
    }

    /// The data blocks below block `number` of `level`, up to the end of the object.
    #[must_use]
    pub fn span_of(&self, level: u8, number: u64) -> std::ops::Range<u64> {
        let span = self.span(level);
        let start = number.saturating_mul(span).min(self.block_count());
        start..start.saturating_add(span).min(self.block_count())
    }

    /// Number of data blocks that the object may have: up to the highest one, within the range that
    /// the tree can address.
    #[must_use]
    pub fn block_count(&self) -> u64 {
        self.max_block.saturating_add(1).min(self.capacity())
    }

    /// Number of data blocks that the tree can address.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        self.span(self.levels.saturating_sub(1)).saturating_mul(self.pointer_count as u64)
    }

    /// Number of bytes that the object may have.
    #[must_use]
    pub fn byte_count(&self) -> u64 {
        self.block_count().saturating_mul(self.block_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(levels: u8, indirect_shift: u32, max_block: u64) -> Geometry {
        Geometry { levels, pointer_count: 3, indirect_shift, block_size: 512, max_block }
    }

    #[test]
    fn a_walk_down_finds_every_index() {
        let tree = tree(3, 17, 5_000_000);
        let number = 2 * (1 << 20) + 7 * 1024 + 5;
        assert_eq!(tree.ancestor(number, 0, 2), 2);
        assert_eq!(tree.index_in_parent(tree.ancestor(number, 0, 1)), 7);
        assert_eq!(tree.index_in_parent(number), 5);
        assert_eq!(tree.span_of(1, 1), 1024..2048);
        assert_eq!(tree.block_count(), 3 << 20);
    }

    #[test]
    fn absurd_numbers_stay_numbers() {
        let deep = tree(32, 17, u64::MAX);
        assert_eq!(deep.span(31), u64::MAX);
        assert_eq!(deep.ancestor(u64::MAX, 0, 31), 0);
        assert_eq!(deep.block_count(), u64::MAX);
        assert_eq!(deep.byte_count(), u64::MAX);
        assert_eq!(deep.span_of(31, 5), u64::MAX..u64::MAX);
        assert_eq!(tree(1, 12, 9).block_count(), 3);
    }
}
