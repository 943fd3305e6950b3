//! Reads an object set that does not change with the functions that also read a writable one.
//!
//! ```text
//!   ObjSet::read ── function over ReadObjects ──> result
//!        ^                    | Need: a block is not in memory
//!        `── the block <──────'
//! ```
//!
//! A frozen set is a committed tree without layers of changes above it, so its blocks are found by
//! the [`View`] of a writable set. The function runs again for each block that was missing, with
//! all blocks that it needed before; those that a ZAP's walk will need are read at the same time.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_block::{ReadContext, Since};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::dnode::DnodePhys;
use cenote_rt::{BoxFuture, Buf, Error, Kind, Result};
use futures_util::future::{join, join_all};

use super::blocks::ReadBlocks;
use super::layer::Layer;
use super::stop::{Missing, TxResult, TxStop};
use super::view::{Fetched, View};
use crate::error::DmuError;
use crate::objects::ReadObjects;
use crate::objset::{ObjSet, Set};

impl ReadBlocks for Set {
    fn cached(&self, pointer: &BlockPtr, place: &Bookmark) -> Option<Buf> {
        self.store.cached(pointer, &ReadContext { place: *place, ..self.context() })
    }

    fn read(&self, missing: Missing) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(async move {
            let context = ReadContext { place: missing.place, ..self.context() };
            self.store.read(&missing.pointer, &context).await
        })
    }
}

/// The objects of a frozen set.
struct Frozen<'a> {
    set: &'a Set,
    view: View<'a>,
    /// Blocks that will be needed, to be read with the next missing one.
    ahead: &'a mut Vec<Missing>,
}

impl ReadObjects for Frozen<'_> {
    fn dnode(&mut self, object: u64) -> TxResult<Arc<DnodePhys>> {
        self.view.find(object)?.ok_or_else(|| {
            let error = Error::not_found(DmuError::NoObject { object });
            error.in_object(self.set.id, object).into()
        })
    }

    fn block(&mut self, object: u64, blkid: u64) -> TxResult<Option<Buf>> {
        if blkid > self.dnode(object)?.maxblkid {
            return Ok(None);
        }
        self.view.block(object, blkid)
    }

    fn bonus(&mut self, object: u64) -> TxResult<Vec<u8>> {
        let dnode = self.dnode(object)?;
        if self.set.is_locked() && dnode.bonus_type.is_encrypted() && dnode.bonus_len != 0 {
            let error = Error::new(Kind::KeyUnavailable, cenote_block::BlockError::NoKey);
            return Err(error.in_object(self.set.id, object).into());
        }
        Ok(dnode.bonus().to_vec())
    }

    fn spill(&mut self, object: u64) -> TxResult<Option<Buf>> {
        self.view.spill(object)
    }

    fn prefetch(&mut self, object: u64, blkid: u64) {
        self.ahead.extend(self.view.unread(object, blkid).map(|missing| *missing));
    }
}

impl Set {
    pub(crate) async fn read<T>(
        &self,
        mut look: impl FnMut(&mut dyn ReadObjects) -> TxResult<T>,
    ) -> Result<T> {
        let (mut fetched, mut ahead) = (Fetched::default(), Vec::new());
        loop {
            let missing = match self.attempt(&fetched, &mut ahead, &mut look) {
                Ok(value) => return Ok(value),
                Err(TxStop::Fail(error)) => {
                    return Err(error.with_at(|at| at.objset = Some(self.id)));
                }
                Err(TxStop::Need(missing)) => *missing,
            };
            ahead.retain(|other| other.pointer != missing.pointer);
            let (block, others) = join(
                ReadBlocks::read(self, missing),
                join_all(ahead.iter().map(|missing| ReadBlocks::read(self, *missing))),
            )
            .await;
            fetched.insert(missing.pointer, block?);
            // The error of another block is found when the block is needed.
            let others = ahead.drain(..).zip(others);
            fetched.extend(others.filter_map(|(other, block)| Some((other.pointer, block.ok()?))));
        }
    }

    fn attempt<T>(
        &self,
        fetched: &Fetched,
        ahead: &mut Vec<Missing>,
        look: &mut impl FnMut(&mut dyn ReadObjects) -> TxResult<T>,
    ) -> TxResult<T> {
        let (below, overlay, since) = (&VecDeque::new(), &Layer::default(), Since::default());
        let (id, base) = (self.id, &self.tree);
        let view = View { blocks: self, id, below, overlay, base, fetched, since };
        look(&mut Frozen { set: self, view, ahead })
    }
}

impl ObjSet {
    /// Reads the set: runs `look` until it has all blocks that it needs.
    ///
    /// # Errors
    /// Errors of the closure, and of reading blocks.
    pub async fn read<T>(
        &self,
        look: impl FnMut(&mut dyn ReadObjects) -> TxResult<T>,
    ) -> Result<T> {
        self.set().read(look).await
    }
}
