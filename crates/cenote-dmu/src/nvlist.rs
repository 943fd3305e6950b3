//! Objects that hold one packed nvlist: the pool's config, its lists of spares and cache devices.
//!
//! The bonus is the exact length; the data are whole blocks of 16 KiB, with zeros behind the list
//! (spec 01 §10).

use cenote_ondisk::nvlist::{Encoding, NvList};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::words;
use cenote_rt::{Kind, Result};

use crate::error::DmuError;
use crate::live::{ObjectSpec, TxResult};
use crate::objects::{Objects, ReadObjects, corrupt, expect_type, fail};
use crate::objset::ObjSet;

/// Largest list that is read. The largest in practice, the config of a pool with hundreds of disks,
/// has a few hundred KiB.
const LEN_MAX: u64 = 64 << 20;

/// Bytes of a data block.
pub const BLOCK_SIZE: u64 = 16 << 10;

/// Creates an object for a list; it is empty until [`write`].
pub fn create(tx: &mut dyn Objects) -> TxResult<u64> {
    let spec = ObjectSpec::new(ObjectType::PACKED_NVLIST, BLOCK_SIZE);
    tx.allocate(&spec.with_bonus(ObjectType::PACKED_NVLIST_SIZE, 8))
}

/// Replaces the list, in XDR.
pub fn write(tx: &mut dyn Objects, object: u64, list: &NvList) -> TxResult<()> {
    let dnode = expect_type(tx, object, ObjectType::PACKED_NVLIST, "a packed nvlist")?;
    let mut bytes = list.encode(Encoding::Xdr);
    let len = bytes.len() as u64;
    let whole = bytes.len().next_multiple_of(dnode.data_block_size() as usize);
    bytes.resize(whole, 0);
    tx.write(object, 0, &bytes)?;
    if dnode.data_len_max() > whole as u64 {
        tx.free_range(object, whole as u64, None)?;
    }
    tx.set_bonus(object, &len.to_le_bytes())
}

/// Reads the list.
pub fn read(objects: &mut dyn ReadObjects, object: u64) -> TxResult<NvList> {
    let dnode = expect_type(objects, object, ObjectType::PACKED_NVLIST, "a packed nvlist")?;
    let ([len], object_size) = (words::padded(&objects.bonus(object)?), dnode.data_len_max());
    if len > object_size {
        return Err(corrupt(object, DmuError::Short { claimed: len, object_size }));
    }
    if len > LEN_MAX {
        return fail(Kind::Limit, object, DmuError::TooLong { len, max: LEN_MAX });
    }
    for blkid in 0..len.div_ceil(dnode.data_block_size()) {
        objects.prefetch(object, blkid);
    }
    let bytes = objects.read(object, 0, len as usize)?;
    NvList::decode(&bytes).map_err(|error| corrupt(object, error))
}

/// Like [`read`], of a committed state.
pub async fn read_nvlist(set: &ObjSet, object: u64) -> Result<NvList> {
    set.read(|objects| read(objects, object)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objects::model::Model;

    #[test]
    fn lists_grow_and_shrink() {
        let mut model = Model::with_misses();
        let object = model.apply(|tx| create(tx)).unwrap();
        for (len, blocks) in [(10, 1), (40_000, 3), (20_000, 2), (3, 1)] {
            let mut list = NvList::default();
            list.insert("name", "x".repeat(len).as_str());
            model.apply(|tx| write(tx, object, &list)).unwrap();
            model.evict();
            assert_eq!(model.apply(|tx| read(tx, object)).unwrap(), list);
            assert_eq!(model.block_numbers(object).len(), blocks);
            let bonus = model.apply(|tx| tx.bonus(object)).unwrap();
            assert_eq!(bonus, (list.encode(Encoding::Xdr).len() as u64).to_le_bytes());
        }
    }
}
