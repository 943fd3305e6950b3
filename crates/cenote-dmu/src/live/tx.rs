//! A closure's hold on an object set: it sees everything up to its own changes, and changes an
//! overlay of its own.
//!
//! Reading is here and changing bytes in [`super::write`], changing objects in [`super::object`].

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_ondisk::dnode::DnodePhys;
use cenote_rt::{Buf, Error};

use super::alloc::Cursor;
use super::layer::{Layer, ObjectLayer};
use super::set::Entry;
use super::step::TxResult;
use super::view::View;
use crate::error::DmuError;

/// An object set as a closure sees and changes it.
pub struct Tx<'a> {
    pub(super) txg: u64,
    pub(super) source: Source<'a>,
    pub(super) overlay: Layer,
    pub(super) cursor: Cursor,
    /// Whether the cursor is behind a number that was given out here.
    pub(super) has_found_number: bool,
}

/// What is below the overlay.
pub(super) struct Source<'a> {
    pub(super) blocks: &'a dyn super::Blocks,
    pub(super) id: u64,
    /// For objects that do not say how large their indirect blocks are; 0: the tunable.
    pub(super) indirect_shift: u8,
    /// From the oldest to the newest.
    pub(super) below: &'a VecDeque<Entry>,
    pub(super) base: &'a super::view::Tree,
    pub(super) fetched: &'a super::view::Fetched,
    /// Before the tree was looked at.
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

    /// The dnode of an object as it is now; `Kind::NotFound` if it is free. Space, pointers and
    /// levels are those of the last sync.
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

    /// Whether changes of an object wait for a sync: space and pointers are those before them.
    pub fn is_pending(&self, object: u64) -> bool {
        self.view().layers().any(|layer| layer.objects.contains_key(&object))
    }

    /// Data block `blkid`; `None` if it is a hole or behind the end.
    pub fn block(&self, object: u64, blkid: u64) -> TxResult<Option<Buf>> {
        if blkid > self.dnode(object)?.maxblkid {
            return Ok(None);
        }
        self.view().block(object, blkid)
    }

    /// The bytes `offset .. offset + len`, zero in holes and behind the end. `len` is the caller's
    /// to bound.
    pub fn read(&self, object: u64, offset: u64, len: usize) -> TxResult<Vec<u8>> {
        let size = self.dnode(object)?.data_block_size();
        read_bytes(size, offset, len, |blkid| self.block(object, blkid))
    }

    /// The bytes as [`read`](Self::read) gives them before the changes of this transaction.
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

    /// The bonus bytes in use.
    pub fn bonus(&self, object: u64) -> TxResult<Vec<u8>> {
        Ok(self.dnode(object)?.bonus().to_vec())
    }

    /// The spill block, if there is one.
    pub fn spill(&self, object: u64) -> TxResult<Option<Buf>> {
        self.dnode(object)?;
        self.view().spill(object)
    }

    /// Notes that a directory got a name of more than 255 bytes, which not every reader of the
    /// dataset can be expected to know (feature `longname`).
    pub fn note_long_name(&mut self) {
        self.overlay.has_long_name = true;
    }

    /// Objects allocated now.
    pub fn object_count(&self) -> u64 {
        let below: i64 = self.source.below.iter().map(|below| below.layer.count_delta).sum();
        self.source.base.root.fill().saturating_add_signed(below + self.overlay.count_delta)
    }

    /// The changes of an object, to be added to.
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

/// The bytes `offset .. offset + len` of blocks of `size` bytes, zero in holes.
fn read_bytes(
    size: u64,
    offset: u64,
    len: usize,
    block: impl Fn(u64) -> TxResult<Option<Buf>>,
) -> TxResult<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        let at = offset.saturating_add(done as u64);
        let within = (at % size) as usize;
        let count = (len - done).min(size as usize - within);
        if let Some(block) = block(at / size)?
            && let (Some(target), Some(source)) =
                (bytes.get_mut(done..done + count), block.get(within..within + count))
        {
            target.copy_from_slice(source);
        }
        done += count;
    }
    Ok(bytes)
}
