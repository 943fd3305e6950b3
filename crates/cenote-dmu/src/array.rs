//! Objects whose data are one array: u64s, and anything read in one piece.
//!
//! The number of valid bytes comes from the bonus or from the caller; the object only limits it.
//! Nothing is allocated before the length was checked against the object and the limit.

use std::sync::Arc;

use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::words;
use cenote_rt::{Buf, Error, Kind, Result};

use crate::dnode::Dnode;
use crate::error::DmuError;
use crate::live::TxResult;
use crate::objects::{Objects, ReadObjects};

/// The word at `index`; 0 if it was never written.
pub fn word(objects: &mut dyn ReadObjects, object: u64, index: u64) -> TxResult<u64> {
    let bytes = objects.read(object, index.saturating_mul(8), 8)?;
    Ok(words::u64_at(&bytes, 0).unwrap_or(0))
}

/// Writes the word at `index`.
pub fn set_word(tx: &mut dyn Objects, object: u64, index: u64, word: u64) -> TxResult<()> {
    tx.write(object, index.saturating_mul(8), &word.to_le_bytes())
}

/// The first `len` bytes of an object, at most `max`.
pub async fn read_bytes(dnode: &Arc<Dnode>, len: u64, max: u64) -> Result<Buf> {
    let object_size = dnode.geometry().byte_count();
    if len > object_size {
        let cause = DmuError::Short { claimed: len, object_size };
        return Err(dnode.locate(Error::corrupt(cause)));
    }
    if len > max {
        return Err(dnode.locate(Error::new(Kind::Limit, DmuError::TooLong { len, max })));
    }
    dnode.read_at(0, len as usize).await
}

/// The first `count` words of an object.
pub async fn read_words(dnode: &Arc<Dnode>, count: u64, max: u64) -> Result<Vec<u64>> {
    let len = count.saturating_mul(8);
    let bytes = read_bytes(dnode, len, max.saturating_mul(8)).await?;
    Ok(words::iter(&bytes).collect())
}

/// Returns an error unless the object has the wanted type.
pub(crate) fn expect_type(dnode: &Dnode, wanted: ObjectType, expected: &'static str) -> Result<()> {
    let found = dnode.phys().object_type;
    if found == wanted {
        return Ok(());
    }
    Err(dnode.locate(Error::corrupt(DmuError::ObjectType { found: found.0, expected })))
}
