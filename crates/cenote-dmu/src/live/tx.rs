//! A closure's view of an object set: it sees all changes including its own, and writes to its own
//! overlay.
//!
//! This module reads; [`super::write`] changes bytes, [`super::object`] changes objects.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_ondisk::dnode::DnodePhys;
use cenote_rt::{Buf, Error};

use super::alloc::Cursor;
use super::context::Recount;
use super::layer::{Layer, ObjectLayer};
use super::set::Entry;
use super::stop::TxResult;
use super::view::View;
use crate::error::DmuError;
use crate::objects::read_bytes;

/// An object set as seen and changed by a closure.
pub struct Tx<'a> {
    pub(super) txg: u64,
    pub(super) source: Source<'a>,
    pub(super) overlay: Layer,
    pub(super) cursor: Cursor,
    /// Whether the cursor is behind a number that was allocated in this transaction.
    pub(super) has_found_number: bool,
}

/// The state below the overlay.
pub(super) struct Source<'a> {
    pub(super) blocks: &'a dyn super::Blocks,
    pub(super) id: u64,
    /// Log2 of the size of indirect blocks for objects that do not specify it; 0: the tunable.
    pub(super) indirect_shift: u8,
    /// Layers, from the oldest to the newest.
    pub(super) below: &'a VecDeque<Entry>,
    pub(super) base: &'a super::view::Tree,
    pub(super) fetched: &'a super::view::Fetched,
    /// Taken before the tree was looked at.
    pub(super) since: cenote_block::Since,
}

impl<'a> Tx<'a> {
    pub(super) fn new(txg: u64, source: Source<'a>, cursor: Cursor) -> Self {
        Self { txg, source, overlay: Layer::default(), cursor, has_found_number: false }
    }

    pub(super) fn view(&self) -> View<'_> {
        View {
            blocks: self.source.blocks,
            id: self.source.id,
            below: self.source.below,
            overlay: &self.overlay,
            base: self.source.base,
            fetched: self.source.fetched,
            since: self.source.since,
        }
    }

    /// The txg that the changes belong to.
    pub fn txg(&self) -> u64 {
        self.txg
    }

    /// Number of the object set.
    pub fn objset(&self) -> u64 {
        self.source.id
    }

    /// The present dnode of an object; `Kind::NotFound` if it is free. Space, pointers and levels
    /// are those of the last sync.
    pub fn dnode(&self, object: u64) -> TxResult<Arc<DnodePhys>> {
        self.find(object)?.ok_or_else(|| self.no_object(object).into())
    }

    /// The dnode of an object; `None` if it is free.
    pub fn find(&self, object: u64) -> TxResult<Option<Arc<DnodePhys>>> {
        match self.overlay.objects.get(&object) {
            Some(changes) => Ok(changes.alive().cloned()),
            None => self.view().find(object),
        }
    }

    /// Whether an object has changes that are not synced: space and pointers are those before them.
    pub fn is_pending(&self, object: u64) -> bool {
        self.view().layers().any(|layer| layer.objects.contains_key(&object))
    }

    /// Data block `blkid`; `None` if it is a hole or beyond the end.
    pub fn block(&self, object: u64, blkid: u64) -> TxResult<Option<Buf>> {
        if blkid > self.dnode(object)?.maxblkid {
            return Ok(None);
        }
        self.view().block(object, blkid)
    }

    /// Reads the bytes `offset .. offset + len`, zeros in holes and beyond the end. The caller
    /// limits `len`.
    pub fn read(&self, object: u64, offset: u64, len: usize) -> TxResult<Vec<u8>> {
        let size = self.dnode(object)?.data_block_size();
        read_bytes(size, offset, len, |blkid| self.block(object, blkid))
    }

    /// Like [`read`](Self::read), without the changes of this transaction.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_before(&self, object: u64, offset: u64, len: usize) -> TxResult<Vec<u8>> {
        let overlay = Layer::default();
        let view = View { overlay: &overlay, ..self.view() };
        let dnode = view.find(object)?.ok_or_else(|| self.no_object(object))?;
        read_bytes(dnode.data_block_size(), offset, len, |blkid| {
            if blkid > dnode.maxblkid { Ok(None) } else { view.block(object, blkid) }
        })
    }

    /// The used bytes of the bonus.
    pub fn bonus(&self, object: u64) -> TxResult<Vec<u8>> {
        Ok(self.dnode(object)?.bonus().to_vec())
    }

    /// The spill block, if there is one.
    pub fn spill(&self, object: u64) -> TxResult<Option<Buf>> {
        self.dnode(object)?;
        self.view().spill(object)
    }

    /// Starts reading a data block into memory, if it is not there.
    pub fn prefetch(&self, object: u64, blkid: u64) {
        if let Some(missing) = self.view().unread(object, blkid) {
            self.source.blocks.prefetch(&missing);
        }
    }

    /// Records that a directory got a name of more than 255 bytes, which activates the dataset's
    /// feature `longname`.
    pub fn note_long_name(&mut self) {
        self.overlay.has_long_name = true;
    }

    /// Number of allocated objects.
    pub fn object_count(&self) -> u64 {
        let below: i64 = self.source.below.iter().map(|below| below.layer.count_delta).sum();
        self.source.base.root.fill().saturating_add_signed(below + self.overlay.count_delta)
    }

    /// Writes the dnode of an object again, as it is.
    pub fn rewrite_dnode(&mut self, object: u64) -> TxResult<()> {
        self.touch(object)?;
        Ok(())
    }

    /// Takes a step of counting anew what each owner has, from this txg on.
    pub fn recount(&mut self, step: Recount) {
        self.overlay.recount = Some(step);
    }

    /// The changes of an object in the overlay.
    pub(super) fn touch(&mut self, object: u64) -> TxResult<&mut ObjectLayer> {
        let head = self.dnode(object)?;
        Ok(self.overlay.objects.entry(object).or_insert_with(|| ObjectLayer::of(head)))
    }

    /// The dnode of an object, to be changed.
    pub(super) fn head_mut(&mut self, object: u64) -> TxResult<&mut DnodePhys> {
        let missing = self.no_object(object);
        match &mut self.touch(object)?.head {
            super::layer::Head::Alive(head) => Ok(Arc::make_mut(head)),
            super::layer::Head::Freed { .. } => Err(missing.into()),
        }
    }

    pub(super) fn no_object(&self, object: u64) -> Error {
        Error::not_found(DmuError::NoObject { object }).in_object(self.source.id, object)
    }
}
