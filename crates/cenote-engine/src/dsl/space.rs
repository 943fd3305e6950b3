//! Charges dirs for space (spec 04 §17.2).
//!
//! ```text
//!   used = HEAD + SNAP + CHILD + CHILD_RSRV + REFRSRV          (each dir, always)
//!   a dir's share in its parent = max(used, reserved)
//! ```
//!
//! A change of `used` goes up the tree as a change of the dir's charge: the part covered by a
//! reservation moves between CHILD_RSRV and CHILD of the parent and does not change the parent's
//! own use.

use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dsl::{DirPhys, SpaceUse};
use cenote_vdev::Tree;

use crate::dsl::{get_dir, put_dir};
use crate::invariant;

/// The three accounted sizes: allocated (deflated), physical, logical.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    /// Allocated bytes, deflated.
    pub(crate) used: i64,
    /// Physical bytes.
    pub(crate) compressed: i64,
    /// Logical bytes.
    pub(crate) uncompressed: i64,
}

impl Sizes {
    /// Returns the sizes of a block (spec 04 §9.1).
    pub(crate) fn of(bp: &BlockPtr, tree: &Tree) -> Self {
        if bp.is_hole() || bp.is_redacted() {
            return Self::default();
        }
        let is_metadata = bp.level() > 0 || bp.object_type().is_metadata();
        if bp.is_embedded() {
            let uncompressed = if is_metadata { 0 } else { bp.lsize() as i64 };
            return Self { used: 0, compressed: 0, uncompressed };
        }
        let psize = bp.psize() as i64;
        let uncompressed = if is_metadata { psize } else { bp.lsize() as i64 };
        Self { used: dsize(bp, tree) as i64, compressed: psize, uncompressed }
    }

    /// Returns the negated sizes.
    pub(crate) fn negated(self) -> Self {
        Self { used: -self.used, compressed: -self.compressed, uncompressed: -self.uncompressed }
    }
}

impl From<cenote_dmu::Space> for Sizes {
    fn from(space: cenote_dmu::Space) -> Self {
        Self {
            used: space.used as i64,
            compressed: space.comp as i64,
            uncompressed: space.uncomp as i64,
        }
    }
}

impl std::ops::AddAssign for Sizes {
    fn add_assign(&mut self, other: Self) {
        self.used += other.used;
        self.compressed += other.compressed;
        self.uncompressed += other.uncompressed;
    }
}

impl std::ops::SubAssign for Sizes {
    fn sub_assign(&mut self, other: Self) {
        self.used -= other.used;
        self.compressed -= other.compressed;
        self.uncompressed -= other.uncompressed;
    }
}

/// Returns the allocated bytes of all copies, deflated.
pub(crate) fn dsize(bp: &BlockPtr, tree: &Tree) -> u64 {
    if bp.is_hole() || bp.is_embedded() || bp.is_redacted() {
        return 0;
    }
    // The third address of an encrypted block holds its salt and IV.
    let copies = if bp.is_encrypted() { 2 } else { 3 };
    (0..copies)
        .filter_map(|copy| bp.dva(copy))
        .map(|dva| (dva.asize >> 9) * tree.deflate_ratio(u64::from(dva.vdev)).unwrap_or(512))
        .sum()
}

/// A word of a dir's space breakdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Blocks of the head.
    Head,
    /// Blocks that only snapshots hold.
    Snap,
    /// Space used by children.
    Child,
    /// Space reserved by children beyond their use.
    ChildReserved,
    /// Space reserved by the head beyond its own blocks.
    RefReserved,
}

fn word(breakdown: &mut SpaceUse, which: Use) -> &mut u64 {
    match which {
        Use::Head => &mut breakdown.head,
        Use::Snap => &mut breakdown.snap,
        Use::Child => &mut breakdown.child,
        Use::ChildReserved => &mut breakdown.child_reserved,
        Use::RefReserved => &mut breakdown.refreserved,
    }
}

fn add(value: &mut u64, delta: i64, what: &'static str) -> TxResult<()> {
    // Checks SZ1.
    *value = value
        .checked_add_signed(delta)
        .ok_or_else(|| invariant(format!("{what}: {value} changed by {delta} leaves the range")))?;
    Ok(())
}

fn share(dir: &DirPhys) -> u64 {
    dir.used_bytes.max(dir.reserved)
}

fn add_sizes(dir: &mut DirPhys, sizes: Sizes) -> TxResult<()> {
    add(&mut dir.used_bytes, sizes.used, "used of a dir")?;
    add(&mut dir.compressed_bytes, sizes.compressed, "compressed of a dir")?;
    add(&mut dir.uncompressed_bytes, sizes.uncompressed, "uncompressed of a dir")
}

/// Charges `sizes` to the dir as `kind`, and the change to its ancestors.
pub(crate) fn did_use(tx: &mut Tx<'_>, object: u64, kind: Use, sizes: Sizes) -> TxResult<()> {
    let mut dir = get_dir(tx, object)?;
    let before = share(&dir);
    add_sizes(&mut dir, sizes)?;
    if dir.has_breakdown() {
        add(word(&mut dir.breakdown, kind), sizes.used, "breakdown of a dir")?;
    }
    put_dir(tx, object, &dir)?;
    charge_parent(tx, &dir, before, sizes)
}

/// Charges `sizes` to the dir while `moved` bytes become `to`, of which `moved - sizes.used` were
/// accounted as `from` before.
pub(crate) fn transfer(
    tx: &mut Tx<'_>,
    object: u64,
    sizes: Sizes,
    moved: i64,
    from: Use,
    to: Use,
) -> TxResult<()> {
    let mut dir = get_dir(tx, object)?;
    let before = share(&dir);
    add_sizes(&mut dir, sizes)?;
    if dir.has_breakdown() {
        add(word(&mut dir.breakdown, from), sizes.used - moved, "breakdown of a dir")?;
        add(word(&mut dir.breakdown, to), moved, "breakdown of a dir")?;
    }
    put_dir(tx, object, &dir)?;
    charge_parent(tx, &dir, before, sizes)
}

fn charge_parent(tx: &mut Tx<'_>, dir: &DirPhys, before: u64, sizes: Sizes) -> TxResult<()> {
    if dir.parent_obj == 0 || sizes == Sizes::default() {
        return Ok(());
    }
    let delta = share(dir) as i64 - before as i64;
    let above = Sizes { used: delta, ..sizes };
    transfer(tx, dir.parent_obj, above, sizes.used, Use::ChildReserved, Use::Child)
}

/// Moves `bytes` of the dir from `from` to `to`; its ancestors do not change.
pub(crate) fn reclassify(
    tx: &mut Tx<'_>,
    object: u64,
    bytes: i64,
    from: Use,
    to: Use,
) -> TxResult<()> {
    if bytes == 0 {
        return Ok(());
    }
    let mut dir = get_dir(tx, object)?;
    if dir.has_breakdown() {
        add(word(&mut dir.breakdown, from), -bytes, "breakdown of a dir")?;
        add(word(&mut dir.breakdown, to), bytes, "breakdown of a dir")?;
        put_dir(tx, object, &dir)?;
    }
    Ok(())
}
