//! The queue of destroyed object sets to be freed in the background (spec 04 §12).

pub mod edit;

use std::sync::Arc;

use cenote_ondisk::bptree::{BPTREE_ENTRY_LEN, BptreeEntry, BptreePhys};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Error, Result};

use crate::array::expect_type;
use crate::dnode::Dnode;
use crate::error::DmuError;
use crate::objset::ObjSet;

/// An open bptree.
#[derive(Debug, Clone)]
pub struct Bptree {
    dnode: Arc<Dnode>,
    phys: BptreePhys,
}

impl Bptree {
    /// Opens the bptree of `object`.
    pub async fn open(set: &Arc<ObjSet>, object: u64) -> Result<Self> {
        let dnode = set.dnode(object).await?;
        expect_type(&dnode, ObjectType::UINT64_METADATA, "a bptree")?;
        let phys = BptreePhys::decode(dnode.bonus()?)
            .map_err(|error| dnode.locate(Error::corrupt(error)))?;
        let object_size = dnode.geometry().byte_count();
        let claimed = phys.end.saturating_mul(BPTREE_ENTRY_LEN as u64);
        if claimed > object_size {
            let cause = DmuError::Short { claimed, object_size };
            return Err(dnode.locate(Error::corrupt(cause)));
        }
        Ok(Self { dnode, phys })
    }

    /// The header.
    pub fn phys(&self) -> &BptreePhys {
        &self.phys
    }

    /// Returns the entry at `index`, which must be in `begin..end`.
    pub async fn entry(&self, index: u64) -> Result<BptreeEntry> {
        let offset = index.saturating_mul(BPTREE_ENTRY_LEN as u64);
        let bytes = self.dnode.read_at(offset, BPTREE_ENTRY_LEN).await?;
        BptreeEntry::decode(&bytes).map_err(|error| self.dnode.locate(Error::corrupt(error)))
    }
}
