//! What changes of objects are made through: the part of a [`Tx`](crate::Tx) that ZAPs, bpobjs,
//! space maps and the like need.
//!
//! A trait because there are two of them: the transaction on a writable object set, and the bare
//! model that the property tests of this crate run against, in which every block may turn out to be
//! missing, so that closures are run again at every possible point.
//!
//! All edits are functions over `&mut dyn Objects`, beside the reader of their structure. They see
//! the newest state, changes of the same transaction included, and end with [`Step::Need`] when a
//! block is not in memory; whoever runs them starts over with that block at hand. So an edit has no
//! effect but through this trait.

use std::sync::Arc;

use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Buf, Error, Kind};

use crate::error::DmuError;
use crate::live::{ObjectSpec, Step, Tx, TxResult};

#[cfg(test)]
pub(crate) mod model;

/// Objects that can be read and changed.
pub trait Objects {
    /// The dnode in its newest state; `Kind::NotFound` if there is none.
    fn dnode(&mut self, object: u64) -> TxResult<Arc<DnodePhys>>;

    /// Bytes of an object; holes and what lies past the end read as zeros.
    fn read(&mut self, object: u64, offset: u64, len: usize) -> TxResult<Vec<u8>>;

    /// A data block; `None` for a hole.
    fn block(&mut self, object: u64, blkid: u64) -> TxResult<Option<Buf>>;

    /// Writes bytes, which may straddle blocks.
    fn write(&mut self, object: u64, offset: u64, bytes: &[u8]) -> TxResult<()>;

    /// Writes a whole data block.
    fn write_block(&mut self, object: u64, blkid: u64, data: Buf) -> TxResult<()>;

    /// Frees bytes, up to the end without a length; pieces of blocks become zeros.
    fn free_range(&mut self, object: u64, offset: u64, len: Option<u64>) -> TxResult<()>;

    /// Makes an object.
    fn allocate(&mut self, spec: &ObjectSpec) -> TxResult<u64>;

    /// Frees an object with all its blocks.
    fn free(&mut self, object: u64) -> TxResult<()>;

    /// The bonus content.
    fn bonus(&mut self, object: u64) -> TxResult<Vec<u8>>;

    /// Replaces the bonus content; its length becomes that of `bytes`.
    fn set_bonus(&mut self, object: u64, bytes: &[u8]) -> TxResult<()>;

    /// Gives the object another type.
    fn set_object_type(&mut self, object: u64, object_type: ObjectType) -> TxResult<()>;

    /// Gives an object that has no other block than block 0 another block size. Block 0 keeps what
    /// fits.
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

/// The step that fails with a cause at an object.
pub(crate) fn failure(
    kind: Kind,
    object: u64,
    cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Step {
    Step::Fail(Error::new(kind, cause).with_at(|at| at.object = Some(object)))
}

/// The step that reports bytes a decoder refused.
pub(crate) fn corrupt(
    object: u64,
    cause: impl Into<Box<dyn std::error::Error + Send + Sync>>,
) -> Step {
    failure(Kind::Corrupt, object, cause)
}

/// An error unless the object has that type.
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
