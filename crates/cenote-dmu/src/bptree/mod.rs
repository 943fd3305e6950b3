//! The queue of destroyed object sets to be freed in the background (spec 04 §12).

pub mod edit;

use std::sync::Arc;

use cenote_ondisk::bptree::{BPTREE_ENTRY_LEN, BptreeEntry, BptreePhys};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::Result;

use crate::error::DmuError;
use crate::live::TxResult;
use crate::objects::{ReadObjects, corrupt, expect_type};
use crate::objset::ObjSet;

const ENTRY_LEN: u64 = BPTREE_ENTRY_LEN as u64;

/// The header.
pub fn header(objects: &mut dyn ReadObjects, object: u64) -> TxResult<BptreePhys> {
    let dnode = expect_type(objects, object, ObjectType::UINT64_METADATA, "a bptree")?;
    let bonus = objects.bonus(object)?;
    let phys = BptreePhys::decode(&bonus).map_err(|error| corrupt(object, error))?;
    let (claimed, object_size) = (phys.end.saturating_mul(ENTRY_LEN), dnode.data_len_max());
    if claimed > object_size {
        return Err(corrupt(object, DmuError::Short { claimed, object_size }));
    }
    Ok(phys)
}

/// The entry at `index`, which must be in `begin..end`.
pub fn entry(objects: &mut dyn ReadObjects, object: u64, index: u64) -> TxResult<BptreeEntry> {
    let bytes = objects.read(object, index.saturating_mul(ENTRY_LEN), BPTREE_ENTRY_LEN)?;
    BptreeEntry::decode(&bytes).map_err(|error| corrupt(object, error))
}

/// An open bptree.
#[derive(Debug, Clone)]
pub struct Bptree {
    set: Arc<ObjSet>,
    object: u64,
    phys: BptreePhys,
}

impl Bptree {
    /// Opens the bptree of `object`.
    pub async fn open(set: &Arc<ObjSet>, object: u64) -> Result<Self> {
        let phys = set.read(|objects| header(objects, object)).await?;
        Ok(Self { set: Arc::clone(set), object, phys })
    }

    /// The header.
    pub fn phys(&self) -> &BptreePhys {
        &self.phys
    }

    /// Returns the entry at `index`, which must be in `begin..end`.
    pub async fn entry(&self, index: u64) -> Result<BptreeEntry> {
        self.set.read(|objects| entry(objects, self.object, index)).await
    }
}
