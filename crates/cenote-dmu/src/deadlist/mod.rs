//! Reads deadlists and livelists: bpobjs keyed by the birth of their blocks.
//!
//! A deadlist is either a ZAP from txg to bpobj with the sums in its bonus, or, in pools older than
//! version 26, one bpobj. A livelist has the first format (spec 04 §10, §13).
//!
//! Invariants
//! * K1  The keys of a deadlist cover the births of all blocks that are added: there is a key below
//!   each birth, and a removed key has a lower one.

pub mod edit;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::deadlist::DeadlistPhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Kind, Result};

use crate::bpobj::{self, Bpobj};
use crate::error::DmuError;
use crate::live::TxResult;
use crate::objects::{ReadObjects, corrupt, fail};
use crate::objset::ObjSet;
use crate::space::Space;
use crate::zap::edit as zap;

/// Deflate ratios are in bytes per sector of 512.
const SECTOR_SHIFT: u32 = 9;

/// The bpobjs by key, the txg after which their blocks were born; `None` for the old format.
pub fn keys(objects: &mut dyn ReadObjects, object: u64) -> TxResult<Option<BTreeMap<u64, u64>>> {
    match objects.dnode(object)?.object_type {
        ObjectType::BPOBJ => Ok(None),
        ObjectType::DEADLIST => Ok(Some(zap::numbers(objects, object)?.into_iter().collect())),
        found => {
            let cause = DmuError::ObjectType { found: found.0, expected: "a deadlist" };
            Err(corrupt(object, cause))
        }
    }
}

/// The sums over all blocks.
pub fn space(objects: &mut dyn ReadObjects, object: u64) -> TxResult<Space> {
    if objects.dnode(object)?.object_type == ObjectType::BPOBJ {
        return bpobj::space(objects, object);
    }
    let phys = DeadlistPhys::decode(&objects.bonus(object)?);
    phys.map(Space::from).map_err(|error| corrupt(object, error))
}

/// The sums over the blocks born in `(min, max]`; both are keys, `max` may be `u64::MAX`.
///
/// `Kind::Unsupported` for the old format, which must be walked.
pub fn space_range(
    objects: &mut dyn ReadObjects,
    object: u64,
    min: u64,
    max: u64,
) -> TxResult<Space> {
    let Some(keys) = keys(objects, object)? else {
        return fail(Kind::Unsupported, object, DmuError::OldDeadlist);
    };
    sum_of(objects, &keys, min, max)
}

/// The sums of the bpobjs with keys in `min..max`.
fn sum_of(
    objects: &mut dyn ReadObjects,
    bpobjs: &BTreeMap<u64, u64>,
    min: u64,
    max: u64,
) -> TxResult<Space> {
    let mut sum = Space::default();
    for (_, object) in bpobjs.iter().filter(|(key, _)| (min..max).contains(*key)) {
        sum += bpobj::space(objects, *object)?;
    }
    Ok(sum)
}

/// An open deadlist.
#[derive(Debug, Clone)]
pub struct Deadlist {
    set: Arc<ObjSet>,
    object: u64,
    sums: Space,
    /// `None` for the old format.
    bpobjs: Option<BTreeMap<u64, u64>>,
}

impl Deadlist {
    /// Opens the deadlist of `object`.
    pub async fn open(set: &Arc<ObjSet>, object: u64) -> Result<Self> {
        let opened = set.read(|objects| Ok((space(objects, object)?, keys(objects, object)?)));
        let (sums, bpobjs) = opened.await?;
        Ok(Self { set: Arc::clone(set), object, sums, bpobjs })
    }

    /// Sums over all blocks.
    pub fn sums(&self) -> Space {
        self.sums
    }

    /// The bpobjs by key, the txg after which their blocks were born; `None` for the old format.
    pub fn entries(&self) -> Option<&BTreeMap<u64, u64>> {
        self.bpobjs.as_ref()
    }

    /// Sums over the blocks born in `(min, max]`; both should be keys, `max` may be `u64::MAX`.
    pub async fn range_sums(&self, min: u64, max: u64) -> Result<Space> {
        if let Some(bpobjs) = &self.bpobjs {
            return self.set.read(|objects| sum_of(objects, bpobjs, min, max)).await;
        }
        let mut sums = Space::default();
        self.for_each(|bp| {
            if bp.allocation_birth() > min && bp.allocation_birth() <= max {
                sums += Space::of(bp, self.charged(bp));
            }
            Ok(())
        })
        .await?;
        Ok(sums)
    }

    /// Bytes charged for a block: its allocated size without parity.
    fn charged(&self, bp: &BlockPtr) -> u64 {
        let tree = self.set.store().tree();
        bp.dvas().fold(0, |sum, dva| {
            let ratio = tree.deflate_ratio(dva.vdev.into()).unwrap_or(1 << SECTOR_SHIFT);
            sum.wrapping_add((dva.asize >> SECTOR_SHIFT).wrapping_mul(ratio))
        })
    }

    /// Calls `visit` for every entry, by ascending key.
    pub async fn for_each(
        &self,
        mut visit: impl FnMut(&BlockPtr) -> Result<()> + Send,
    ) -> Result<()> {
        let whole = self.bpobjs.is_none().then_some(&self.object);
        for object in self.bpobjs.iter().flat_map(BTreeMap::values).chain(whole) {
            Bpobj::open(&self.set, *object).await?.for_each(&mut visit).await?;
        }
        Ok(())
    }
}
