//! The interface of a writable object set to the block store: a trait, so that tests can replace
//! it.

use std::sync::Arc;

use cenote_block::{BlockStore, Draft, Grounds, ReadContext, SealKeys, Since, Written};
use cenote_ondisk::blkptr::{BlockPtr, SECTOR_SIZE};
use cenote_ondisk::bookmark::Bookmark;
use cenote_rt::{BoxFuture, Buf, Result};

use super::stop::Missing;

/// Reads blocks.
pub trait ReadBlocks: Send + Sync {
    /// Returns the block of `pointer` if that needs no I/O.
    fn cached(&self, pointer: &BlockPtr, place: &Bookmark) -> Option<Buf>;

    /// Reads the block of a pointer that was looked up.
    ///
    /// # Errors
    /// `Kind::Overtaken` if its space may have been reused since: the pointer must be looked up
    /// again.
    fn read(&self, missing: Missing) -> BoxFuture<'_, Result<Buf>>;

    /// Starts reading the block of `pointer` into memory; returns false if too many prefetches are
    /// in flight. The default implementation does nothing.
    fn prefetch(&self, _missing: &Missing) -> bool {
        true
    }
}

/// Reads and writes blocks.
pub trait Blocks: ReadBlocks {
    /// Returns the present moment, to be taken before pointers are looked up. `is_retry`: an
    /// earlier read was overtaken.
    fn since(&self, _is_retry: bool) -> Since {
        Since::default()
    }

    /// Reads the block of `pointer`, which is allocated, for a sync. A sync has no caller that
    /// could handle an error.
    fn read_for_sync(&self, pointer: BlockPtr, place: Bookmark) -> BoxFuture<'_, Result<Buf>> {
        self.read(Missing { pointer, place, since: self.since(true) })
    }

    /// The keys of the set, if it is encrypted and they are loaded.
    fn keys(&self) -> Option<Arc<SealKeys>> {
        None
    }

    /// Writes a block.
    fn write<'a>(&'a self, draft: &'a Draft) -> BoxFuture<'a, Result<Written>>;

    /// Writes several blocks as a batch; returns the outcomes in their order.
    fn write_all(&self, drafts: Arc<[Draft]>) -> BoxFuture<'_, Result<Vec<Result<Written>>>>;

    /// Bytes charged for the block: its allocated sectors times the deflate ratio of their vdev
    /// (spec 04 §9.1).
    fn dsize(&self, pointer: &BlockPtr) -> u64;
}

impl ReadBlocks for BlockStore {
    fn cached(&self, pointer: &BlockPtr, place: &Bookmark) -> Option<Buf> {
        Self::cached(self, pointer, &ReadContext { place: *place, ..ReadContext::default() })
    }

    fn read(&self, missing: Missing) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(async move {
            let Missing { pointer, place, since } = missing;
            let grounds = &Grounds::Live(since);
            let context = ReadContext { place, grounds, ..ReadContext::default() };
            Self::read(self, &pointer, &context).await
        })
    }
}

impl Blocks for BlockStore {
    fn since(&self, is_retry: bool) -> Since {
        Self::since(self, is_retry)
    }

    fn read_for_sync(&self, pointer: BlockPtr, place: Bookmark) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(async move {
            let grounds = &Grounds::Allocated;
            let context = ReadContext { place, grounds, ..ReadContext::default() };
            Self::read(self, &pointer, &context).await
        })
    }

    fn write<'a>(&'a self, draft: &'a Draft) -> BoxFuture<'a, Result<Written>> {
        Box::pin(Self::write_one(self, draft))
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
