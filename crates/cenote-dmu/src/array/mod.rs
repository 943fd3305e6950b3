//! Objects whose data are one array: u64s, packed nvlists, and anything read in one piece.
//!
//! The number of valid bytes comes from the bonus or from the caller; the object only limits it.
//! Nothing is allocated before the length was checked against the object and the limit.

pub mod edit;

use std::sync::Arc;

use cenote_ondisk::nvlist::NvList;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::words;
use cenote_rt::{Buf, Error, Kind, Result};

use crate::dnode::Dnode;
use crate::error::DmuError;
use crate::objset::ObjSet;

/// Largest packed nvlist that is read. The largest in practice, the config of a pool with hundreds
/// of disks, has a few hundred KiB.
const NVLIST_LEN_MAX: u64 = 64 << 20;

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

/// A packed nvlist, whose length is in the bonus.
pub async fn read_nvlist(set: &Arc<ObjSet>, object: u64) -> Result<NvList> {
    let dnode = set.dnode(object).await?;
    expect_type(&dnode, ObjectType::PACKED_NVLIST, "a packed nvlist")?;
    let [len] = words::padded(dnode.bonus()?);
    let bytes = read_bytes(&dnode, len, NVLIST_LEN_MAX).await?;
    NvList::decode(&bytes).map_err(|error| dnode.locate(Error::corrupt(error)))
}

/// Returns an error unless the object has the wanted type.
pub(crate) fn expect_type(dnode: &Dnode, wanted: ObjectType, expected: &'static str) -> Result<()> {
    let found = dnode.phys().object_type;
    if found == wanted {
        return Ok(());
    }
    Err(dnode.locate(Error::corrupt(DmuError::ObjectType { found: found.0, expected })))
}
