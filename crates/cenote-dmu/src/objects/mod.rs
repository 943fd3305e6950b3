//! The interfaces through which structures in objects are read and changed: the parts of a
//! [`Tx`](crate::Tx) that ZAPs, bpobjs, space maps and others need.
//!
//! [`ReadObjects`] has three implementations: the frozen object set ([`ObjSet::read`]), the
//! transaction on a writable object set, and the model for the property tests of this crate, in
//! which any block may be missing. So one function reads a structure of a committed state and of
//! the open one. [`Objects`] adds changes; a frozen object set has none.
//!
//! All functions over these traits see the present state, changes of the same transaction included,
//! and end with [`TxStop::Need`] if a block is not in memory; the caller runs them again with that
//! block in memory. So a function must have no effect except through these traits.
//!
//! [`ObjSet::read`]: crate::ObjSet::read

use std::sync::Arc;

use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Buf, Error, Kind, Op};

use crate::error::DmuError;
use crate::live::{ObjectSpec, Tx, TxResult, TxStop};

#[cfg(test)]
pub(crate) mod model;

/// Objects that can be read.
pub trait ReadObjects {
    /// The present dnode; `Kind::NotFound` if there is none.
    fn dnode(&mut self, object: u64) -> TxResult<Arc<DnodePhys>>;

    /// A data block; `None` for a hole.
    fn block(&mut self, object: u64, blkid: u64) -> TxResult<Option<Buf>>;

    /// The contents of the bonus.
    fn bonus(&mut self, object: u64) -> TxResult<Vec<u8>>;

    /// The spill block, if the object has one.
    fn spill(&mut self, object: u64) -> TxResult<Option<Buf>>;

    /// Starts reading a data block into memory, if it is not there. An error is left to the caller
    /// that needs the block.
    fn prefetch(&mut self, object: u64, blkid: u64);

    /// Reads bytes of an object; holes and bytes past the end are zeros. The caller limits `len`.
    fn read(&mut self, object: u64, offset: u64, len: usize) -> TxResult<Vec<u8>> {
        let size = self.dnode(object)?.data_block_size();
        read_bytes(size, offset, len, |blkid| self.block(object, blkid))
    }
}

/// Objects that can be read and changed.
pub trait Objects: ReadObjects {
    /// Writes bytes, which may span blocks.
    fn write(&mut self, object: u64, offset: u64, bytes: &[u8]) -> TxResult<()>;

    /// Writes a whole data block.
    fn write_block(&mut self, object: u64, blkid: u64, data: Buf) -> TxResult<()>;

    /// Frees `len` bytes, or all bytes up to the end; partly freed blocks are zeroed there.
    fn free_range(&mut self, object: u64, offset: u64, len: Option<u64>) -> TxResult<()>;

    /// Allocates an object.
    fn allocate(&mut self, spec: &ObjectSpec) -> TxResult<u64>;

    /// Frees an object with all its blocks.
    fn free(&mut self, object: u64) -> TxResult<()>;

    /// Replaces the bonus content; its length becomes that of `bytes`.
    fn set_bonus(&mut self, object: u64, bytes: &[u8]) -> TxResult<()>;

    /// Changes the type of an object.
    fn set_object_type(&mut self, object: u64, object_type: ObjectType) -> TxResult<()>;

    /// Changes the block size of an object that has no block other than block 0, which keeps the
    /// bytes that fit.
    fn set_block_size(&mut self, object: u64, size: u64) -> TxResult<()>;
}

impl ReadObjects for Tx<'_> {
    fn dnode(&mut self, object: u64) -> TxResult<Arc<DnodePhys>> {
        Tx::dnode(self, object)
    }

    fn block(&mut self, object: u64, blkid: u64) -> TxResult<Option<Buf>> {
        Tx::block(self, object, blkid)
    }

    fn bonus(&mut self, object: u64) -> TxResult<Vec<u8>> {
        Tx::bonus(self, object)
    }

    fn spill(&mut self, object: u64) -> TxResult<Option<Buf>> {
        Tx::spill(self, object)
    }

    fn prefetch(&mut self, object: u64, blkid: u64) {
        Tx::prefetch(self, object, blkid);
    }
}

impl Objects for Tx<'_> {
    fn write(&mut self, object: u64, offset: u64, bytes: &[u8]) -> TxResult<()> {
        Tx::write(self, object, offset, bytes)
    }

    fn write_block(&mut self, object: u64, blkid: u64, data: Buf) -> TxResult<()> {
        Tx::write_block(self, object, blkid, data)
    }

    fn free_range(&mut self, object: u64, offset: u64, len: Option<u64>) -> TxResult<()> {
        Tx::free_range(self, object, offset, len)
    }

    fn allocate(&mut self, spec: &ObjectSpec) -> TxResult<u64> {
        Tx::allocate(self, spec)
    }

    fn free(&mut self, object: u64) -> TxResult<()> {
        Tx::free(self, object)
    }

    fn set_bonus(&mut self, object: u64, bytes: &[u8]) -> TxResult<()> {
        Tx::set_bonus(self, object, bytes)
    }

    fn set_object_type(&mut self, object: u64, object_type: ObjectType) -> TxResult<()> {
        Tx::set_object_type(self, object, object_type)
    }

    fn set_block_size(&mut self, object: u64, size: u64) -> TxResult<()> {
        Tx::set_block_size(self, object, size)
    }
}

/// Reads the bytes `offset .. offset + len` of blocks of `size` bytes, zeros in holes.
pub(crate) fn read_bytes(
    size: u64,
    offset: u64,
    len: usize,
    mut block: impl FnMut(u64) -> TxResult<Option<Buf>>,
) -> TxResult<Vec<u8>> {
    cenote_rt::charge(Op::Copy, len as u64);
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

/// Fails with a cause at an object.
pub(crate) fn fail<T>(
    kind: Kind,
    object: u64,
    cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> TxResult<T> {
    Err(failure(kind, object, cause))
}

/// The failure with a cause at an object.
pub(crate) fn failure(
    kind: Kind,
    object: u64,
    cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> TxStop {
    TxStop::Fail(Error::new(kind, cause).with_at(|at| at.object = Some(object)))
}

/// The failure for bytes that a decoder refused.
pub(crate) fn corrupt(
    object: u64,
    cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> TxStop {
    failure(Kind::Corrupt, object, cause)
}

/// Returns an error unless the object has the wanted type.
pub(crate) fn expect_type(
    tx: &mut dyn ReadObjects,
    object: u64,
    wanted: ObjectType,
    expected: &'static str,
) -> TxResult<Arc<DnodePhys>> {
    let dnode = tx.dnode(object)?;
    if dnode.object_type == wanted {
        return Ok(dnode);
    }
    let found = dnode.object_type.0;
    Err(corrupt(object, DmuError::ObjectType { found, expected }))
}
