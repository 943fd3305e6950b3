//! Walks the block tree of an object.
//!
//! Every step down checks the pointer against the dnode: the pointer has the expected level, the
//! block has the size that the dnode specifies for its level, and every index is inside its block.
//! Blocks past the highest one, and pointers below a hole, are holes (spec 02 §9.1).

use std::ops::Range;

use cenote_ondisk::blkptr::{BLOCK_PTR_LEN, BlockPtr};
use cenote_rt::{Buf, Error, Result};

use crate::dnode::Dnode;
use crate::error::DmuError;

/// Consecutive data blocks whose pointers are in one array, or that are all holes.
#[derive(Debug, Clone)]
pub struct Run {
    blocks: Range<u64>,
    pointers: Pointers,
}

#[derive(Debug, Clone)]
enum Pointers {
    Hole,
    /// The pointers in the dnode, at most three.
    Dnode(Vec<BlockPtr>),
    /// The pointers in a level-1 block.
    Block(Buf),
}

/// Data blocks that cannot be reached because a block above them cannot be read.
#[derive(Debug)]
pub(crate) struct LostRun {
    pub(crate) blocks: Range<u64>,
    pub(crate) error: Error,
}

/// Where a walk down the tree ended.
enum Reached {
    /// At the requested pointer.
    Pointer(BlockPtr),
    /// At a hole of this level, one above the requested level or higher.
    Hole { level: u8 },
}

impl Run {
    /// The data blocks of the run.
    #[must_use]
    pub fn blocks(&self) -> Range<u64> {
        self.blocks.clone()
    }

    /// Whether the whole run is a hole.
    #[must_use]
    pub fn is_hole(&self) -> bool {
        matches!(self.pointers, Pointers::Hole)
    }

    /// The pointer to data block `blkid` of the run.
    #[must_use]
    pub fn pointer(&self, blkid: u64) -> BlockPtr {
        let index = blkid.saturating_sub(self.blocks.start) as usize;
        match &self.pointers {
            Pointers::Hole => BlockPtr::HOLE,
            Pointers::Dnode(pointers) => pointers.get(index).copied().unwrap_or(BlockPtr::HOLE),
            Pointers::Block(block) => entry(block, index).unwrap_or(BlockPtr::HOLE),
        }
    }
}

/// The pointer at `index` of an indirect block.
fn entry(block: &[u8], index: usize) -> Option<BlockPtr> {
    BlockPtr::at(block, index.checked_mul(BLOCK_PTR_LEN)?)
}

impl Dnode {
    /// The pointer to block `blkid` of `level`; `None` for holes and outside of the object.
    pub async fn block_pointer(&self, level: u8, blkid: u64) -> Result<Option<BlockPtr>> {
        match self.walk(level, blkid).await.map_err(|lost| lost.error)? {
            Reached::Pointer(pointer) if !pointer.is_hole() => Ok(Some(pointer)),
            Reached::Pointer(_) | Reached::Hole { .. } => Ok(None),
        }
    }

    /// The pointer to block `blkid` of `level` as stored, even if it is a hole with a birth; an
    /// empty one below a hole.
    pub async fn stored_pointer(&self, level: u8, blkid: u64) -> Result<BlockPtr> {
        match self.walk(level, blkid).await.map_err(|lost| lost.error)? {
            Reached::Pointer(pointer) => Ok(pointer),
            Reached::Hole { .. } => Ok(BlockPtr::HOLE),
        }
    }

    /// Reads block `blkid` of `level`; `None` for holes and outside of the object.
    pub async fn read_block(&self, level: u8, blkid: u64) -> Result<Option<Buf>> {
        match self.block_pointer(level, blkid).await? {
            Some(pointer) => self.read_pointer(&pointer, level, blkid, false).await.map(Some),
            None => Ok(None),
        }
    }

    /// The run of pointers that contains data block `blkid`.
    pub(crate) async fn run_at(&self, blkid: u64) -> Result<Run, LostRun> {
        let tree = self.geometry();
        if tree.levels <= 1 {
            let pointers = Pointers::Dnode(self.pointers().collect());
            return Ok(Run { blocks: 0..tree.block_count(), pointers });
        }
        let parent = tree.ancestor(blkid, 0, 1);
        let pointer = match self.walk(1, parent).await? {
            Reached::Pointer(pointer) if !pointer.is_hole() => pointer,
            Reached::Pointer(_) => return Ok(self.hole_run(1, blkid)),
            Reached::Hole { level } => return Ok(self.hole_run(level, blkid)),
        };
        let blocks = tree.span_of(1, parent);
        match self.read_pointer(&pointer, 1, parent, false).await {
            Ok(block) => Ok(Run { blocks, pointers: Pointers::Block(block) }),
            Err(error) => Err(LostRun { blocks, error }),
        }
    }

    fn hole_run(&self, level: u8, blkid: u64) -> Run {
        let tree = self.geometry();
        let blocks = tree.span_of(level, tree.ancestor(blkid, 0, level));
        Run { blocks, pointers: Pointers::Hole }
    }

    /// Walks from the dnode down to the pointer of block `blkid` of `level`.
    async fn walk(&self, level: u8, blkid: u64) -> Result<Reached, LostRun> {
        let tree = self.geometry();
        let top = tree.levels.saturating_sub(1);
        if level > top || blkid > tree.ancestor(tree.max_block, 0, level) {
            return Ok(Reached::Hole { level });
        }
        let root = tree.ancestor(blkid, level, top);
        let Some(mut pointer) = usize::try_from(root).ok().and_then(|i| self.pointers().nth(i))
        else {
            return Ok(Reached::Hole { level: top });
        };
        for at in (level + 1..=top).rev() {
            if pointer.is_hole() {
                return Ok(Reached::Hole { level: at });
            }
            let number = tree.ancestor(blkid, level, at);
            let index = tree.index_in_parent(tree.ancestor(blkid, level, at - 1));
            let child = match self.read_pointer(&pointer, at, number, false).await {
                Ok(block) => entry(&block, index).ok_or_else(|| {
                    let cause = DmuError::Index { index, len: block.len() };
                    self.locate(Error::corrupt(cause)).in_block(at, number)
                }),
                Err(error) => Err(error),
            };
            match child {
                Ok(child) => pointer = child,
                Err(error) => {
                    return Err(LostRun { blocks: tree.span_of(at, number), error });
                }
            }
        }
        Ok(Reached::Pointer(pointer))
    }
}
