//! The interface through which structures in objects are changed: the part of a [`Tx`](crate::Tx)
//! that ZAPs, bpobjs, space maps and others need.
//!
//! There are two implementations: the transaction on a writable object set,
//! and the model for the property tests of this crate, in which any block may be missing, so that
//! closures are run again at every possible point.
//!
//! All edits are functions over `&mut dyn Objects`, beside the reader of their structure. They see
//! the present state, changes of the same transaction included, and end with [`TxStop::Need`] if a
//! block is not in memory; the caller runs them again with that block in memory. So an edit must
//! have no effect except through this trait.

use std::sync::Arc;

use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Buf, Error, Kind};

use crate::error::DmuError;
use crate::live::{ObjectSpec, Tx, TxResult, TxStop};

#[cfg(test)]
pub(crate) mod model;

/// Objects that can be read and changed.
pub trait Objects {
    /// The present dnode; `Kind::NotFound` if there is none.
    fn dnode(&mut self, object: u64) -> TxResult<Arc<DnodePhys>>;

    /// Reads bytes of an object; holes and bytes past the end are zeros.
    fn read(&mut self, object: u64, offset: u64, len: usize) -> TxResult<Vec<u8>>;

    /// A data block; `None` for a hole.
    fn block(&mut self, object: u64, blkid: u64) -> TxResult<Option<Buf>>;

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

    /// The contents of the bonus.
    fn bonus(&mut self, object: u64) -> TxResult<Vec<u8>>;

    /// Replaces the bonus content; its length becomes that of `bytes`.
    fn set_bonus(&mut self, object: u64, bytes: &[u8]) -> TxResult<()>;

    /// Changes the type of an object.
    fn set_object_type(&mut self, object: u64, object_type: ObjectType) -> TxResult<()>;

    /// Changes the block size of an object that has no block other than block 0, which keeps the
    /// bytes that fit.
    fn set_block_size(&mut self, object: u64, size: u64) -> TxResult<()>;
}

impl Objects for Tx<'_> {
    fn dnode(&mut self, object: u64) -> TxResult<Arc<DnodePhys>> {
        Tx::dnode(self, object)
    }

    fn read(&mut self, object: u64, offset: u64, len: usize) -> TxResult<Vec<u8>> {
        Tx::read(self, object, offset, len)
    }

    fn block(&mut self, object: u64, blkid: u64) -> TxResult<Option<Buf>> {
        Tx::block(self, object, blkid)
    }

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

    fn bonus(&mut self, object: u64) -> TxResult<Vec<u8>> {
        Tx::bonus(self, object)
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
    tx: &mut dyn Objects,
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
