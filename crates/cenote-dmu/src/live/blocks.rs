//! What a writable object set needs of the block store: a trait, so that tests can have their own.

use super::standin::{WriteContext, WritePolicy, Written};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_rt::{BoxFuture, Buf, Result};

/// Reads and writes blocks.
pub trait Blocks: Send + Sync {
    /// The block behind `pointer`, if it can be had without waiting.
    fn cached(&self, pointer: &BlockPtr, place: &Bookmark) -> Option<Buf>;

    /// The block behind `pointer`.
    fn read(&self, pointer: BlockPtr, place: Bookmark) -> BoxFuture<'_, Result<Buf>>;

    /// Writes a block; `old` is the pointer that the new one will replace.
    fn write(
        &self,
        data: Buf,
        policy: WritePolicy,
        old: BlockPtr,
        context: WriteContext,
    ) -> BoxFuture<'_, Result<Written>>;

    /// Bytes that the block is charged: its allocated sectors times the deflate ratio of their vdev
    /// (spec 04 §9.1).
    fn dsize(&self, pointer: &BlockPtr) -> u64;
}
