//! An object: its dnode, and reading its data.
//!
//! A [`Dnode`] is a snapshot of 512 to 16384 bytes of the meta-dnode's data together with their
//! object set; it never changes. Blocks are read through the store's cache; [`crate::tree`] walks
//! the block tree, [`crate::stream`] reads sequentially.
//!
//! In an encrypted object set, the dnode itself, its block pointers and sizes can be read without
//! keys; a bonus of an encrypted type cannot ([`Dnode::bonus`], spec 08 §9).

use std::ops::Range;
use std::sync::Arc;

use cenote_block::{ReadContext, StoredForm};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::dnode::DnodePhys;
use cenote_rt::{Buf, BufMut, Error, Kind, Op, Result};

use crate::error::DmuError;
use crate::geometry::Geometry;
use crate::live::TxResult;
use crate::objects::ReadObjects;
use crate::objset::Set;
use crate::stream::BlockStream;

/// Block number of the spill block in bookmarks.
pub const SPILL_BLKID: u64 = u64::MAX - 1;

/// An object.
#[derive(Debug)]
pub struct Dnode {
    set: Arc<Set>,
    object: u64,
    phys: DnodePhys,
    geometry: Geometry,
}

impl Dnode {
    pub(crate) fn new(set: Arc<Set>, object: u64, phys: DnodePhys) -> Self {
        let geometry = Geometry {
            levels: phys.nlevels,
            pointer_count: phys.blkptrs.len() as u8,
            indirect_shift: u32::from(phys.indblkshift),
            block_size: phys.data_block_size(),
            max_block: phys.maxblkid,
        };
        Self { set, object, phys, geometry }
    }

    /// Number of the object.
    pub fn object(&self) -> u64 {
        self.object
    }

    /// Number of the object set.
    pub fn objset(&self) -> u64 {
        self.set.id
    }

    /// The on-disk dnode.
    pub fn phys(&self) -> &DnodePhys {
        &self.phys
    }

    /// Shape of the block tree.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Number of data blocks that the object may have.
    pub fn block_count(&self) -> u64 {
        self.geometry.block_count()
    }

    /// The block pointers in the dnode.
    pub fn pointers(&self) -> impl Iterator<Item = BlockPtr> + '_ {
        self.phys.blkptrs.iter().copied()
    }

    /// The used bytes of the bonus; `Kind::KeyUnavailable` if they are encrypted and no key was
    /// given.
    pub fn bonus(&self) -> Result<&[u8]> {
        if self.set.is_locked() && self.phys.bonus_type.is_encrypted() && self.phys.bonus_len != 0 {
            let error = Error::new(Kind::KeyUnavailable, cenote_block::BlockError::NoKey);
            return Err(self.locate(error));
        }
        Ok(self.phys.bonus())
    }

    /// The spill block, if the object has one.
    pub async fn spill(&self) -> Result<Option<Buf>> {
        match self.phys.spill() {
            Some(pointer) if !pointer.is_hole() => {
                let context = self.context(0, SPILL_BLKID, false);
                self.set.store.read(pointer, &context).await.map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Reads the bytes `offset .. offset + len`, zeros in holes and past the end. The caller limits
    /// `len`.
    pub async fn read_at(self: &Arc<Self>, offset: u64, len: usize) -> Result<Buf> {
        let size = self.geometry.block_size;
        let (blkid, within) = (offset / size, offset % size);
        if within + len as u64 <= size {
            return match self.read_block(0, blkid).await? {
                Some(block) => Ok(block
                    .slice(within as usize..within as usize + len)
                    .unwrap_or_else(|| BufMut::zeroed(len).freeze())),
                None => Ok(BufMut::zeroed(len).freeze()),
            };
        }
        cenote_rt::charge(Op::Copy, len as u64);
        let mut all = BufMut::zeroed(len);
        let mut stream = self.stream(offset..offset.saturating_add(len as u64));
        while let Some(extent) = stream.next().await {
            let extent = extent?;
            let start = (extent.offset - offset) as usize;
            if let Some(data) = &extent.data
                && let Some(target) = all.get_mut(start..start + data.len())
            {
                target.copy_from_slice(data);
            }
        }
        Ok(all.freeze())
    }

    /// Reads a byte range sequentially, with prefetch.
    pub fn stream(self: &Arc<Self>, bytes: Range<u64>) -> BlockStream {
        BlockStream::new(Arc::clone(self), bytes)
    }

    /// The first byte at or after `offset` that lies in a data block; `None` if only holes follow.
    pub async fn next_data(&self, offset: u64) -> Result<Option<u64>> {
        self.seek(offset, true).await
    }

    /// The first byte at or after `offset` that lies in a hole; the end of the object counts as
    /// one.
    pub async fn next_hole(&self, offset: u64) -> Result<Option<u64>> {
        let end = self.geometry.byte_count();
        if offset >= end {
            return Ok(None);
        }
        Ok(Some(self.seek(offset, false).await?.unwrap_or(end)))
    }

    async fn seek(&self, offset: u64, wants_data: bool) -> Result<Option<u64>> {
        let size = self.geometry.block_size;
        let mut blkid = offset / size;
        while blkid < self.block_count() {
            let run = self.run_at(blkid).await.map_err(|lost| lost.error)?;
            let end = run.blocks().end;
            let found = if run.is_hole() {
                (!wants_data).then_some(blkid)
            } else {
                (blkid..end).find(|number| run.pointer(*number).is_hole() != wants_data)
            };
            if let Some(number) = found {
                return Ok(Some(number.saturating_mul(size).max(offset)));
            }
            blkid = end;
        }
        Ok(None)
    }

    /// Reads the block of `pointer`, which is stored at (`level`, `blkid`), and checks that the
    /// pointer matches that place. The block is cached unless `bypass_cache` is set.
    pub async fn read_pointer(
        &self,
        pointer: &BlockPtr,
        level: u8,
        blkid: u64,
        bypass_cache: bool,
    ) -> Result<Buf> {
        self.check(pointer, level)
            .map_err(|cause| self.locate(Error::corrupt(cause)).in_block(level, blkid))?;
        self.set.store.read(pointer, &self.context(level, blkid, bypass_cache)).await
    }

    /// Reads the stored bytes of a data block of the object, or of its spill block (number
    /// [`SPILL_BLKID`]), past the cache; checks that the pointer matches that place.
    ///
    /// # Errors
    /// As [`read_pointer`](Self::read_pointer); `Kind::Corrupt` for a hole and for an embedded
    /// pointer.
    pub async fn read_stored(
        &self,
        pointer: &BlockPtr,
        blkid: u64,
        form: StoredForm,
    ) -> Result<Buf> {
        if blkid != SPILL_BLKID {
            self.check(pointer, 0)
                .map_err(|cause| self.locate(Error::corrupt(cause)).in_block(0, blkid))?;
        }
        self.set.store.read_stored(pointer, form, &self.context(0, blkid, true)).await
    }

    /// Starts reading a block into the cache, if it is not cached.
    pub async fn prefetch_block(&self, level: u8, blkid: u64) {
        if let Ok(Some(pointer)) = self.block_pointer(level, blkid).await
            && self.check(&pointer, level).is_ok()
        {
            self.set.store.prefetch(&pointer, &self.context(level, blkid, false));
        }
    }

    /// Starts reading the block of `pointer` into the cache, if it is not cached.
    pub fn prefetch_pointer(&self, pointer: &BlockPtr, level: u8, blkid: u64) {
        if self.check(pointer, level).is_ok() {
            self.set.store.prefetch(pointer, &self.context(level, blkid, false));
        }
    }

    /// Returns the block of `pointer` if it is cached.
    pub(crate) fn cached(&self, pointer: &BlockPtr) -> Option<Buf> {
        self.set.store.cached(pointer, &self.context(0, 0, false))
    }

    fn check(&self, pointer: &BlockPtr, level: u8) -> Result<(), DmuError> {
        if pointer.level() != level {
            return Err(DmuError::Level { found: pointer.level(), expected: level });
        }
        let (found, expected) = (pointer.lsize(), self.geometry.size_at(level));
        if found != expected && !pointer.is_redacted() {
            return Err(DmuError::BlockSize { found, expected });
        }
        Ok(())
    }

    fn context(&self, level: u8, blkid: u64, bypass_cache: bool) -> ReadContext<'_> {
        let place =
            Bookmark { objset: self.set.id, object: self.object, level: level.into(), blkid };
        ReadContext { place, bypass_cache, ..self.set.context() }
    }

    /// Reads the object set: runs `look` until it has all blocks that it needs.
    pub(crate) async fn read_set<T>(
        &self,
        look: impl FnMut(&mut dyn ReadObjects) -> TxResult<T>,
    ) -> Result<T> {
        self.set.read(look).await
    }

    /// Adds the object to an error.
    pub fn locate(&self, error: Error) -> Error {
        error.in_object(self.set.id, self.object)
    }
}
