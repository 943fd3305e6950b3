//! Space of blocks: the three sums that bpobjs, deadlists, bptrees and datasets keep.
//!
//! Sources: spec 04 §9.1.

use std::ops::{AddAssign, SubAssign};

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bpobj::BpobjPhys;
use cenote_ondisk::deadlist::DeadlistPhys;

/// Sums over blocks. They wrap, as those on disk do: FREE entries of a livelist are subtracted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Space {
    /// Allocated bytes without parity (`dsize`).
    pub used: u64,
    /// Physical bytes.
    pub comp: u64,
    /// Logical bytes; for metadata the physical ones.
    pub uncomp: u64,
}

impl Space {
    /// The space of one block; `dsize` depends on the vdevs that hold it.
    #[must_use]
    pub fn of(bp: &BlockPtr, dsize: u64) -> Self {
        if bp.is_hole() || bp.is_redacted() {
            return Self::default();
        }
        let is_metadata = bp.level() > 0 || bp.object_type().is_metadata();
        let uncomp = if is_metadata { bp.psize() } else { bp.lsize() };
        Self { used: dsize, comp: bp.psize(), uncomp }
    }

    /// Subtracts `other`, down to zero at most.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self {
            used: self.used.saturating_sub(other.used),
            comp: self.comp.saturating_sub(other.comp),
            uncomp: self.uncomp.saturating_sub(other.uncomp),
        }
    }
}

impl From<BpobjPhys> for Space {
    fn from(phys: BpobjPhys) -> Self {
        Self { used: phys.bytes, comp: phys.comp, uncomp: phys.uncomp }
    }
}

impl From<DeadlistPhys> for Space {
    fn from(phys: DeadlistPhys) -> Self {
        Self { used: phys.used, comp: phys.comp, uncomp: phys.uncomp }
    }
}

impl AddAssign for Space {
    fn add_assign(&mut self, other: Self) {
        self.used = self.used.wrapping_add(other.used);
        self.comp = self.comp.wrapping_add(other.comp);
        self.uncomp = self.uncomp.wrapping_add(other.uncomp);
    }
}

impl SubAssign for Space {
    fn sub_assign(&mut self, other: Self) {
        self.used = self.used.wrapping_sub(other.used);
        self.comp = self.comp.wrapping_sub(other.comp);
        self.uncomp = self.uncomp.wrapping_sub(other.uncomp);
    }
}
