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
use cenote_rt::{Error, Result};

use crate::bpobj::Bpobj;
use crate::dnode::Dnode;
use crate::error::DmuError;
use crate::objset::ObjSet;
use crate::zap::Zap;

/// Deflate ratios are in bytes per sector of 512.
const SECTOR_SHIFT: u32 = 9;

/// An open deadlist.
#[derive(Debug, Clone)]
pub struct Deadlist {
    set: Arc<ObjSet>,
    dnode: Arc<Dnode>,
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    Old(Bpobj),
    Keyed { sums: DeadlistPhys, bpobjs: BTreeMap<u64, u64> },
}

impl Deadlist {
    /// Opens the deadlist of `object`.
    pub async fn open(set: &Arc<ObjSet>, object: u64) -> Result<Self> {
        let dnode = set.dnode(object).await?;
        let form = match dnode.phys().object_type {
            ObjectType::BPOBJ => Form::Old(Bpobj::open(set, object).await?),
            ObjectType::DEADLIST => {
                let sums = DeadlistPhys::decode(dnode.bonus()?)
                    .map_err(|error| dnode.locate(Error::corrupt(error)))?;
                Form::Keyed { sums, bpobjs: keyed(&dnode).await? }
            }
            found => {
                let cause = DmuError::ObjectType { found: found.0, expected: "a deadlist" };
                return Err(dnode.locate(Error::corrupt(cause)));
            }
        };
        Ok(Self { set: Arc::clone(set), dnode, form })
    }

    /// The object.
    pub fn dnode(&self) -> &Arc<Dnode> {
        &self.dnode
    }

    /// Sums over all blocks.
    pub fn sums(&self) -> DeadlistPhys {
        match &self.form {
            Form::Old(bpobj) => sums_of(bpobj),
            Form::Keyed { sums, .. } => *sums,
        }
    }

    /// The bpobjs by key, the txg after which their blocks were born; `None` for the old format.
    pub fn entries(&self) -> Option<&BTreeMap<u64, u64>> {
        match &self.form {
            Form::Old(_) => None,
            Form::Keyed { bpobjs, .. } => Some(bpobjs),
        }
    }

    /// Sums over the blocks born in `(min, max]`; both should be keys, `max` may be `u64::MAX`.
    pub async fn range_sums(&self, min: u64, max: u64) -> Result<DeadlistPhys> {
        let mut sums = DeadlistPhys::default();
        match &self.form {
            Form::Keyed { bpobjs, .. } if min < max => {
                for object in bpobjs.range(min..max).map(|(_, object)| *object) {
                    let part = sums_of(&Bpobj::open(&self.set, object).await?);
                    sums.used = sums.used.wrapping_add(part.used);
                    sums.comp = sums.comp.wrapping_add(part.comp);
                    sums.uncomp = sums.uncomp.wrapping_add(part.uncomp);
                }
            }
            Form::Keyed { .. } => {}
            Form::Old(bpobj) => {
                bpobj
                    .for_each(|bp| {
                        if bp.allocation_birth() > min && bp.allocation_birth() <= max {
                            sums.used = sums.used.wrapping_add(self.charged(bp));
                            sums.comp = sums.comp.wrapping_add(bp.psize());
                            sums.uncomp = sums.uncomp.wrapping_add(bp.lsize());
                        }
                        Ok(())
                    })
                    .await?;
            }
        }
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
        match &self.form {
            Form::Old(bpobj) => bpobj.for_each(visit).await,
            Form::Keyed { bpobjs, .. } => {
                for object in bpobjs.values() {
                    Bpobj::open(&self.set, *object).await?.for_each(&mut visit).await?;
                }
                Ok(())
            }
        }
    }
}

async fn keyed(dnode: &Arc<Dnode>) -> Result<BTreeMap<u64, u64>> {
    let mut bpobjs = BTreeMap::new();
    let zap = Zap::of(Arc::clone(dnode)).await?;
    let mut entries = zap.entries();
    while let Some(entry) = entries.next().await? {
        let txg = entry.key.name().and_then(|name| std::str::from_utf8(name).ok());
        let txg = txg.and_then(|name| u64::from_str_radix(name, 16).ok());
        match (txg, entry.value.single()) {
            (Some(txg), Some(object)) => bpobjs.insert(txg, object),
            _ => return Err(dnode.locate(Error::corrupt(DmuError::DeadlistKey))),
        };
    }
    Ok(bpobjs)
}

fn sums_of(bpobj: &Bpobj) -> DeadlistPhys {
    let phys = bpobj.phys();
    DeadlistPhys { used: phys.bytes, comp: phys.comp, uncomp: phys.uncomp }
}
