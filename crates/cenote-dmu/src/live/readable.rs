//! Finds unreadable indirect blocks before a change is made.
//!
//! A sync reads the indirect blocks above every block that it writes or frees, and has no caller
//! that could get an error: a damaged one would stop the pool. So a change reads the lowest
//! indirect block above the blocks that it changes, which includes all blocks on the way there,
//! and fails with the error of that read while nothing is changed yet. Usually the block is in the
//! cache, and the sync needs it there anyway.
//!
//! Freed ranges are the exception: an indirect block all of whose blocks are freed need not be
//! readable. The sync frees what it can read and leaks the rest (`sync::tree`), so that damaged
//! files can be removed and truncated to nothing.

use std::ops::Range;

use cenote_ondisk::blkptr::BlockPtr;

use super::stop::TxResult;
use super::tx::Tx;
use super::view::{View, geometry_of};

impl Tx<'_> {
    /// Reads the indirect blocks above data block `blkid` that a sync will change. `freed` are
    /// blocks that this change frees.
    ///
    /// # Errors
    /// Errors of reading, for example `Kind::Checksum`.
    pub(super) fn need_path(&self, object: u64, blkid: u64, freed: &Range<u64>) -> TxResult<()> {
        self.view().need_path(object, blkid, freed)
    }
}

impl View<'_> {
    fn need_path(&self, object: u64, blkid: u64, freed: &Range<u64>) -> TxResult<()> {
        let mut changes = self.layers().filter_map(|layer| layer.objects.get(&object));
        if changes.any(|changes| changes.is_fresh) {
            return Ok(());
        }
        let Some(phys) = self.base_dnode(object)? else { return Ok(()) };
        let tree = geometry_of(&phys);
        let top = tree.levels.saturating_sub(1);
        if top == 0 || self.base.has_pointers(object, tree.ancestor(blkid, 0, 1)) {
            return Ok(());
        }
        let root = tree.ancestor(blkid, 0, top) as usize;
        // Without a pointer the tree grows above it.
        let mut pointer = phys.blkptrs.get(root).copied().unwrap_or(BlockPtr::HOLE);
        for level in (1..=top).rev() {
            let number = tree.ancestor(blkid, 0, level);
            if pointer.is_hole() || self.is_freed(object, &tree.span_of(level, number), freed) {
                return Ok(());
            }
            let block = self.fetch_checked(&pointer, object, &tree, level, number)?;
            if level == 1 {
                self.base.keep_pointers(object, number, &block);
                return Ok(());
            }
            let index = tree.index_in_parent(tree.ancestor(blkid, 0, level - 1));
            pointer = self.child(object, &block, index)?;
        }
        Ok(())
    }

    /// Whether all of these blocks are freed, by this change or by an uncommitted one.
    fn is_freed(&self, object: u64, span: &Range<u64>, freed: &Range<u64>) -> bool {
        let is_in = |range: &Range<u64>| range.start <= span.start && span.end <= range.end;
        let mut changes = self.layers().filter_map(|layer| layer.objects.get(&object));
        !span.is_empty() && (is_in(freed) || changes.any(|changes| changes.frees.contains(span)))
    }
}
