//! Reading bpobjs: lists of block pointers with sub-lists.
//!
//! Entries are visited in the order in which OpenZFS consumes them: own entries from the last to
//! the first, then the sub-lists from the last to the first, depth first. The sums in a header
//! include all sub-lists, so that totals cost one dnode.
//!
//! Sub-lists form a tree in valid pools. Every object is visited at most once, which bounds the
//! walk for any contents; a second visit is an error (spec 04 §11).

pub mod edit;
mod empty;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_ondisk::blkptr::{BLOCK_PTR_LEN, BlockPtr};
use cenote_ondisk::bpobj::{BpobjPhys, entries};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Error, Result};

use crate::array::{expect_type, read_words};
use crate::dnode::Dnode;
use crate::error::DmuError;
use crate::live::TxResult;
use crate::objects::{self, ReadObjects, corrupt};
use crate::objset::ObjSet;
use crate::space::Space;

/// Most sub-lists of one bpobj that are held in memory.
const SUBOBJS_MAX: u64 = 1 << 22;

/// The header.
pub fn header(objects: &mut dyn ReadObjects, object: u64) -> TxResult<BpobjPhys> {
    let dnode = objects::expect_type(objects, object, ObjectType::BPOBJ, "a bpobj")?;
    BpobjPhys::decode(&objects.bonus(object)?)
        .and_then(|phys| phys.check_size(dnode.data_len_max()).map(|()| phys))
        .map_err(|error| corrupt(object, error))
}

/// The sums, sub-lists included.
pub fn space(objects: &mut dyn ReadObjects, object: u64) -> TxResult<Space> {
    header(objects, object).map(Space::from)
}

/// Whether there is neither an entry nor a sub-list.
pub fn is_empty(objects: &mut dyn ReadObjects, object: u64) -> TxResult<bool> {
    header(objects, object).map(|phys| phys.is_empty())
}

/// An open bpobj.
#[derive(Debug, Clone)]
pub struct Bpobj {
    set: Arc<ObjSet>,
    dnode: Arc<Dnode>,
    phys: BpobjPhys,
}

impl Bpobj {
    /// Opens the bpobj of `object`.
    pub async fn open(set: &Arc<ObjSet>, object: u64) -> Result<Self> {
        let phys = set.read(|objects| header(objects, object)).await?;
        let dnode = set.dnode(object).await?;
        Ok(Self { set: Arc::clone(set), dnode, phys })
    }

    /// The header, whose sums include all sub-lists.
    pub fn phys(&self) -> &BpobjPhys {
        &self.phys
    }

    /// The object.
    pub fn dnode(&self) -> &Arc<Dnode> {
        &self.dnode
    }

    /// The object numbers of the sub-lists, in stored order.
    pub async fn subobjs(&self) -> Result<Vec<u64>> {
        if self.phys.subobjs == 0 || self.phys.num_subobjs == 0 {
            return Ok(Vec::new());
        }
        let list = self.set.dnode(self.phys.subobjs).await?;
        expect_type(&list, ObjectType::BPOBJ_SUBOBJ, "a list of bpobjs")?;
        read_words(&list, self.phys.num_subobjs, SUBOBJS_MAX).await
    }

    /// Calls `visit` for the own entries, last to first.
    pub async fn for_each_own(
        &self,
        visit: &mut (impl FnMut(&BlockPtr) -> Result<()> + Send),
    ) -> Result<()> {
        let entry_len = BLOCK_PTR_LEN as u64;
        let block_size = self.dnode.geometry().block_size;
        let mut end = self.phys.num_blkptrs.saturating_mul(entry_len);
        while end > 0 {
            // Blocks are read backwards; the block size is a multiple of the entry size.
            let blkid = (end - 1) / block_size;
            let start = blkid * block_size;
            if let Some(before) = blkid.checked_sub(1) {
                self.dnode.prefetch_block(0, before).await;
            }
            let block = self.dnode.read_at(start, (end - start) as usize).await?;
            for entry in entries(&block).rev() {
                visit(&entry)?;
            }
            end = start;
        }
        Ok(())
    }

    /// Calls `visit` for all entries, including those of sub-lists.
    pub async fn for_each(
        &self,
        mut visit: impl FnMut(&BlockPtr) -> Result<()> + Send,
    ) -> Result<()> {
        let mut seen = BTreeSet::from([self.dnode.object()]);
        // A stack: the last sub-list of a list comes first.
        let mut waiting = Vec::new();
        let mut next = Some(self.clone());
        while let Some(list) = next.take() {
            list.for_each_own(&mut visit).await?;
            for object in list.subobjs().await? {
                if !seen.insert(object) {
                    let cause = DmuError::Cycle { object };
                    return Err(list.dnode.locate(Error::corrupt(cause)));
                }
                waiting.push(object);
            }
            if let Some(object) = waiting.pop() {
                next = Some(Self::open(&self.set, object).await?);
            }
        }
        Ok(())
    }
}
