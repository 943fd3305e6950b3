//! What a writable object set needs of the block store: a trait, so that tests can have their own.

use std::sync::Arc;

use cenote_block::{BlockStore, Draft, Grounds, ReadContext, Since, Written};
use cenote_ondisk::blkptr::{BlockPtr, SECTOR_SIZE};
use cenote_ondisk::bookmark::Bookmark;
use cenote_rt::{BoxFuture, Buf, Result};

use super::step::Missing;

/// Reads and writes blocks.
pub trait Blocks: Send + Sync {
    /// The block behind `pointer`, if it can be had without waiting.
    fn cached(&self, pointer: &BlockPtr, place: &Bookmark) -> Option<Buf>;

    /// The moment in which pointers are looked up, to be asked before that. `is_again`: a read was
    /// overtaken before.
    fn since(&self, _is_again: bool) -> Since {
        Since::default()
    }

    /// The block behind a pointer that was looked up.
    ///
    /// # Errors
    /// `Kind::Overtaken` if its space may have been given to another block since: the pointer is to
    /// be looked up again.
    fn read(&self, missing: Missing) -> BoxFuture<'_, Result<Buf>>;

    /// The block behind `pointer`, which is allocated: for a sync, which has nobody to tell of an
    /// error.
    fn read_for_sync(&self, pointer: BlockPtr, place: Bookmark) -> BoxFuture<'_, Result<Buf>> {
        self.read(Missing { pointer, place, since: self.since(true) })
    }

    /// Starts reading the block behind `pointer` into memory; false if too much of that is going
    /// on. Who cannot read ahead does nothing.
    fn prefetch(&self, _missing: &Missing) -> bool {
        true
    }

    /// Writes a block.
    fn write<'a>(&'a self, draft: &'a Draft) -> BoxFuture<'a, Result<Written>>;

    /// Writes several blocks that belong together; gives the outcomes in their order.
    fn write_all(&self, drafts: Arc<[Draft]>) -> BoxFuture<'_, Result<Vec<Result<Written>>>>;

    /// Bytes that the block is charged: its allocated sectors times the deflate ratio of their vdev
    /// (spec 04 §9.1).
    fn dsize(&self, pointer: &BlockPtr) -> u64;
}

impl Blocks for BlockStore {
    fn cached(&self, pointer: &BlockPtr, place: &Bookmark) -> Option<Buf> {
        Self::cached(self, pointer, &ReadContext { place: *place, ..ReadContext::default() })
    }

    fn since(&self, is_again: bool) -> Since {
        Self::since(self, is_again)
    }

    fn read(&self, missing: Missing) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(async move {
            let Missing { pointer, place, since } = missing;
            let grounds = &Grounds::Live(since);
            let context = ReadContext { place, grounds, ..ReadContext::default() };
            Self::read(self, &pointer, &context).await
        })
    }

    fn read_for_sync(&self, pointer: BlockPtr, place: Bookmark) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(async move {
            let grounds = &Grounds::Allocated;
            let context = ReadContext { place, grounds, ..ReadContext::default() };
            Self::read(self, &pointer, &context).await
        })
    }

    fn write<'a>(&'a self, draft: &'a Draft) -> BoxFuture<'a, Result<Written>> {
        let Draft { data, policy, old, context } = draft;
        Box::pin(Self::write(self, data.clone(), policy, Some(old), context))
    }

    fn write_all(&self, drafts: Arc<[Draft]>) -> BoxFuture<'_, Result<Vec<Result<Written>>>> {
        Box::pin(async move { Ok(Self::write_all(self, &drafts).await) })
    }

    fn dsize(&self, pointer: &BlockPtr) -> u64 {
        let charge = |dva: cenote_ondisk::blkptr::Dva| {
            let ratio = self.tree().deflate_ratio(dva.vdev.into()).unwrap_or(SECTOR_SIZE);
            (dva.asize / SECTOR_SIZE).saturating_mul(ratio)
        };
        pointer.dvas().map(charge).sum()
    }
}
