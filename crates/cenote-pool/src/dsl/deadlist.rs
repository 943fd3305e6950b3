//! Deadlists: sums of the space that died between a snapshot and the next one.
//!
//! The sum over a range of birth txgs comes from the headers of the bpobjs between two keys,
//! without reading any entry. A deadlist without keys (pools before version 26) is walked (spec 04
//! §10).

use std::ops::{Add, AddAssign};
use std::sync::Arc;

use cenote_dmu::{Bpobj, ObjSet};
use cenote_ondisk::bpobj::BpobjPhys;
use cenote_ondisk::deadlist::{DeadlistPhys, entries_of_range};
use cenote_ondisk::dsl::key;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::Result;

use crate::accounting::deflate;
use crate::mos;

/// Allocated (deflated), physical and logical bytes of a set of blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpaceSum {
    /// Allocated bytes, as datasets are charged.
    pub used: u64,
    /// Physical bytes.
    pub compressed: u64,
    /// Logical bytes.
    pub uncompressed: u64,
}

impl Add for SpaceSum {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            used: self.used.wrapping_add(other.used),
            compressed: self.compressed.wrapping_add(other.compressed),
            uncompressed: self.uncompressed.wrapping_add(other.uncompressed),
        }
    }
}

impl AddAssign for SpaceSum {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl From<BpobjPhys> for SpaceSum {
    fn from(phys: BpobjPhys) -> Self {
        Self { used: phys.bytes, compressed: phys.comp, uncompressed: phys.uncomp }
    }
}

impl From<DeadlistPhys> for SpaceSum {
    fn from(phys: DeadlistPhys) -> Self {
        Self { used: phys.used, compressed: phys.comp, uncompressed: phys.uncomp }
    }
}

/// A deadlist: its total, and its bpobjs by birth txg.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Deadlist {
    /// One bpobj for each range of birth txgs.
    Keyed {
        /// The total.
        total: SpaceSum,
        /// Ascending (key, bpobj).
        entries: Vec<(u64, u64)>,
    },
    /// One bpobj for all blocks.
    Plain {
        /// The total.
        total: SpaceSum,
        /// The bpobj.
        object: u64,
    },
}

impl Deadlist {
    /// Reads the deadlist in `object`; 0 means an empty one.
    pub async fn load(mos: &Arc<ObjSet>, object: u64) -> Result<Self> {
        if object == 0 {
            return Ok(Self::Keyed { total: SpaceSum::default(), entries: Vec::new() });
        }
        if mos::object_type(mos, object).await? != ObjectType::DEADLIST {
            let total = bpobj_sum(mos, object).await?;
            return Ok(Self::Plain { total, object });
        }
        let (_, bonus) = mos::bonus(mos, object).await?;
        let total = DeadlistPhys::decode(&bonus).map_err(mos::corrupt(object))?.into();
        let mut entries: Vec<_> = mos::entries(mos, object)
            .await?
            .into_iter()
            .filter_map(|(name, value)| Some((key::to_number(name.as_bytes())?, value.first()?)))
            .collect();
        entries.sort_unstable();
        Ok(Self::Keyed { total, entries })
    }

    /// Returns the total.
    #[must_use]
    pub fn total(&self) -> SpaceSum {
        match self {
            Self::Keyed { total, .. } | Self::Plain { total, .. } => *total,
        }
    }

    /// Returns the sum over blocks with `min < birth <= max`; both must be keys, or 0 and 2^64-1.
    pub async fn space_range(&self, mos: &Arc<ObjSet>, min: u64, max: u64) -> Result<SpaceSum> {
        match self {
            Self::Keyed { entries, .. } => {
                let keys: Vec<u64> = entries.iter().map(|(key, _)| *key).collect();
                let mut sum = SpaceSum::default();
                for (_, object) in &entries[entries_of_range(&keys, min, max)] {
                    sum += bpobj_sum(mos, *object).await?;
                }
                Ok(sum)
            }
            Self::Plain { total, .. } if min == 0 && max == u64::MAX => Ok(*total),
            Self::Plain { object, .. } => walk(mos, *object, min, max).await,
        }
    }
}

/// Reads all entries of a bpobj and sums up those with `min < birth <= max`.
async fn walk(mos: &Arc<ObjSet>, object: u64, min: u64, max: u64) -> Result<SpaceSum> {
    let tree = mos.store().tree();
    let mut sum = SpaceSum::default();
    let list = Bpobj::open(mos, object).await?;
    list.for_each(|pointer| {
        if pointer.birth() > min && pointer.birth() <= max {
            let dvas = pointer.dvas();
            let used = dvas.map(|dva| {
                let ratio = tree.deflate_ratio(u64::from(dva.vdev)).unwrap_or(deflate::RATIO_ONE);
                deflate::deflate(dva.asize, ratio)
            });
            let is_metadata = pointer.level() > 0 || pointer.object_type().is_metadata();
            let logical = if is_metadata { pointer.psize() } else { pointer.lsize() };
            sum += SpaceSum {
                used: used.fold(0, u64::wrapping_add),
                compressed: pointer.psize(),
                uncompressed: logical,
            };
        }
        Ok(())
    })
    .await?;
    Ok(sum)
}

/// Returns the sum in a bpobj's header, sub-objects included; 0 means an empty bpobj.
pub(crate) async fn bpobj_sum(mos: &Arc<ObjSet>, object: u64) -> Result<SpaceSum> {
    if object == 0 {
        return Ok(SpaceSum::default());
    }
    let (_, bonus) = mos::bonus(mos, object).await?;
    BpobjPhys::decode(&bonus).map(SpaceSum::from).map_err(mos::corrupt(object))
}
