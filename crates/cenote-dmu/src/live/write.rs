//! Changes the bytes of an object: writes, frees ranges, sets block sizes.

use std::sync::Arc;

use cenote_block::SentForm;
use cenote_ondisk::blkptr::{BLOCK_SIZE_MAX, SECTOR_SIZE};
use cenote_ondisk::dnode::DnodePhys;
use cenote_rt::{Buf, BufMut, Error, Kind, Op};

use super::error::LiveError;
use super::stop::{TxResult, TxStop};
use super::tx::Tx;

impl Tx<'_> {
    /// Writes bytes. Blocks that are overwritten entirely are not read first.
    pub fn write(&mut self, object: u64, offset: u64, bytes: &[u8]) -> TxResult<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        cenote_rt::charge(Op::Copy, bytes.len() as u64);
        let head = self.dnode(object)?;
        let size = head.data_block_size();
        let last = (bytes.len() as u64 - 1).checked_add(offset);
        self.check_end(&head, object, offset, last.map(|last| last / size))?;
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (blkid, within) = (at / size, (at % size) as usize);
            let count = rest.len().min(size as usize - within);
            let (part, behind) = rest.split_at(count);
            if count as u64 == size {
                let mut block = BufMut::for_filling(count);
                block.copy_from_slice(part);
                self.put(object, blkid, block.freeze())?;
            } else if !self.patch(object, blkid, size, within, part)? {
                let mut block = self.block_to_change(object, blkid, size)?;
                if let Some(target) = block.get_mut(within..within + count) {
                    target.copy_from_slice(part);
                }
                self.put(object, blkid, block.freeze())?;
            }
            (at, rest) = (at + count as u64, behind);
        }
        Ok(())
    }

    /// Writes the whole data block `blkid`.
    pub fn write_block(&mut self, object: u64, blkid: u64, block: Buf) -> TxResult<()> {
        let head = self.dnode(object)?;
        let expected = head.data_block_size();
        if block.len() as u64 != expected {
            return Err(self.refuse(object, LiveError::BlockLength { len: block.len(), expected }));
        }
        self.check_end(&head, object, blkid.saturating_mul(expected), Some(blkid))?;
        self.put(object, blkid, block)
    }

    /// Writes the whole data block `blkid`, like [`write_block`](Self::write_block), and has it
    /// stored in the form in which it was sent.
    ///
    /// The caller has expanded the form to `block`.
    pub fn write_sent_block(
        &mut self,
        object: u64,
        blkid: u64,
        block: Buf,
        form: SentForm,
    ) -> TxResult<()> {
        self.write_block(object, blkid, block)?;
        self.touch(object)?.set_form(blkid, form);
        Ok(())
    }

    /// Frees `len` bytes from `offset` on; without `len`, frees everything from there on and lowers
    /// the highest block. Blocks that are freed in part are zeroed there, if they exist.
    pub fn free_range(&mut self, object: u64, offset: u64, len: Option<u64>) -> TxResult<()> {
        let head = self.dnode(object)?;
        let (size, block_count) = (head.data_block_size(), head.maxblkid.saturating_add(1));
        let object_end = block_count.saturating_mul(size);
        let end = len.map_or(object_end, |len| offset.saturating_add(len)).min(object_end);
        if offset >= end && (len.is_some() || offset > 0) {
            return Ok(());
        }
        let (start_block, end_block) = (offset.div_ceil(size), end / size);
        if offset / size == end / size && !end.is_multiple_of(size) {
            return self.zero(object, offset, end, size);
        }
        self.zero(object, offset, (start_block * size).min(end), size)?;
        self.zero(object, end_block * size, end, size)?;
        if start_block < end_block {
            let freed = start_block..end_block;
            self.need_path(object, freed.start, &freed)?;
            self.need_path(object, freed.end - 1, &freed)?;
            self.touch(object)?.free(freed);
        }
        if len.is_none() {
            self.head_mut(object)?.maxblkid = start_block.saturating_sub(1);
        }
        Ok(())
    }

    /// Changes the size of data blocks, rounded up to sectors; only while there is at most one
    /// block.
    pub fn set_block_size(&mut self, object: u64, size: u64) -> TxResult<()> {
        let head = self.dnode(object)?;
        let size = size.max(1).next_multiple_of(SECTOR_SIZE);
        if size > BLOCK_SIZE_MAX {
            return Err(self.refuse(object, LiveError::BlockSize { size }));
        }
        if size == head.data_block_size() {
            return Ok(());
        }
        if head.maxblkid != 0 {
            let blocks = head.maxblkid.saturating_add(1);
            return Err(self.refuse(object, LiveError::FixedBlockSize { blocks }));
        }
        let block = self.block(object, 0)?;
        self.head_mut(object)?.data_block_sectors = (size / SECTOR_SIZE) as u16;
        if let Some(block) = block {
            let mut resized = BufMut::zeroed(size as usize);
            let len = block.len().min(resized.len());
            if let (Some(target), Some(source)) = (resized.get_mut(..len), block.get(..len)) {
                target.copy_from_slice(source);
            }
            self.put(object, 0, resized.freeze())?;
        }
        Ok(())
    }

    /// Changes the size of indirect blocks; only while there are none.
    pub fn set_indirect_shift(&mut self, object: u64, shift: u8) -> TxResult<()> {
        let head = self.dnode(object)?;
        if shift == head.indblkshift {
            return Ok(());
        }
        // Unsynced changes may still add levels to the tree.
        let grows = self.source.below.iter().any(|below| {
            let head = below.layer.objects.get(&object).and_then(|changes| changes.alive());
            head.is_some_and(|head| head.maxblkid >= head.nblkptr() as u64)
        });
        if !(12..=17).contains(&shift) || head.nlevels > 1 || head.maxblkid != 0 || grows {
            return Err(self.refuse(object, LiveError::IndirectShift { shift }));
        }
        self.head_mut(object)?.indblkshift = shift;
        Ok(())
    }

    /// Changes some bytes of a block that earlier transactions of this txg have changed; returns
    /// false if the block must be changed as a whole.
    fn patch(
        &mut self,
        object: u64,
        blkid: u64,
        size: u64,
        within: usize,
        bytes: &[u8],
    ) -> TxResult<bool> {
        let open = self.source.below.back().filter(|below| below.is_open(self.txg));
        let block = open.and_then(|open| open.layer.objects.get(&object)?.blocks.get(&blkid));
        let Some(len) = block.map(|block| block.len()).filter(|len| *len as u64 == size) else {
            return Ok(false);
        };
        Ok(self.touch(object)?.patch_block(blkid, len, within, bytes))
    }

    /// Returns a block's bytes, zeros if it is a hole, to be changed and put back. A block that
    /// this transaction has changed before is not shared, so that appending little by little does
    /// not copy it each time.
    fn block_to_change(&mut self, object: u64, blkid: u64, size: u64) -> TxResult<BufMut> {
        let own = self.overlay.objects.get_mut(&object).and_then(|own| own.take_block(blkid));
        if let Some(block) = own {
            return Ok(block.into_mut());
        }
        let block = self.block(object, blkid)?;
        Ok(block.map_or_else(|| BufMut::zeroed(size as usize), Buf::into_mut))
    }

    /// Zeroes bytes within one block, if it exists.
    fn zero(&mut self, object: u64, start: u64, end: u64, size: u64) -> TxResult<()> {
        if start >= end {
            return Ok(());
        }
        let blkid = start / size;
        let Some(block) = self.block(object, blkid)? else { return Ok(()) };
        let inside = (start % size) as usize..(end - blkid * size) as usize;
        if block.get(inside.clone()).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0)) {
            return Ok(());
        }
        let mut block = block.into_mut();
        if let Some(bytes) = block.get_mut(inside) {
            bytes.fill(0);
        }
        self.put(object, blkid, block.freeze())
    }

    fn put(&mut self, object: u64, blkid: u64, block: Buf) -> TxResult<()> {
        self.need_path(object, blkid, &(0..0))?;
        if self.dnode(object)?.maxblkid < blkid {
            self.head_mut(object)?.maxblkid = blkid;
        }
        self.touch(object)?.put_block(blkid, block);
        Ok(())
    }

    /// Refuses a last block that the object cannot have: a block size that is no power of two
    /// allows only one block, and the tree has a maximum.
    fn check_end(
        &self,
        head: &Arc<DnodePhys>,
        object: u64,
        offset: u64,
        last: Option<u64>,
    ) -> TxResult<()> {
        let size = head.data_block_size();
        let end = last.and_then(|last| last.checked_add(1)?.checked_mul(size));
        let is_single = !size.is_power_of_two();
        match (end, last) {
            (Some(_), Some(last)) if last == 0 || !is_single => Ok(()),
            _ => Err(self.refuse(object, LiveError::Offset { offset })),
        }
    }

    /// An error for an invalid request.
    pub(super) fn refuse(&self, object: u64, cause: LiveError) -> TxStop {
        Error::new(Kind::Invalid, cause).in_object(self.source.id, object).into()
    }
}
