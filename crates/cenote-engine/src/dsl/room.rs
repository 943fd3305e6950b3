//! Available space (spec 04 §17.1, §17.5, §20).

use cenote_dmu::bpobj::edit as bpobj;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::{DirPhys, key};
use cenote_pool::dsl::dir;

use crate::dsl::{Env, OpError, directory_object, get_dir, need_directory_object};

/// Charge for a changed MOS block: three copies of this size.
const BLOCK_CHARGE: u64 = 3 * (16 << 10);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct PoolSpace {
    /// Deflated space of the normal class.
    pub(crate) rdspace: u64,
    /// Space for datasets, including other classes.
    pub(crate) dspace: u64,
    /// Slop space.
    pub(crate) slop: u64,
    /// Deferred frees: freed in recent txgs and not usable yet.
    pub(crate) deferred: u64,
    /// Freed space that the checkpoint holds.
    pub(crate) checkpoint: u64,
}

/// The part of the slop space that an operation may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// None, for operations that use space.
    Normal,
    /// Half, for administrative work.
    Half,
    /// Three quarters, for operations that free space.
    Most,
}

impl PoolSpace {
    /// Returns the space for datasets; `parked` bytes are on the list of deferred frees.
    pub(crate) fn usable(&self, reserve: Reserve, parked: u64) -> u64 {
        let kept = match reserve {
            Reserve::Normal => self.slop,
            Reserve::Half => self.slop / 2,
            Reserve::Most => self.slop / 4,
        };
        self.usable_but(kept, parked)
    }

    /// Returns the limit for changes that use space, with their worst-case cost: the rest is for
    /// administrative work, and for changes that free space.
    pub(crate) fn ceiling(&self, parked: u64) -> u64 {
        self.usable_but(self.slop / 2 + self.slop / 8, parked)
    }

    fn usable_but(&self, kept: u64, parked: u64) -> u64 {
        let space = self.dspace.saturating_sub(self.checkpoint);
        space.saturating_sub(parked).saturating_sub(kept)
    }
}

/// Returns the bytes on the list of deferred frees.
pub(crate) fn parked(tx: &mut Tx<'_>) -> TxResult<u64> {
    match directory_object(tx, key::SYNC_BPOBJ)? {
        Some(list) => Ok(bpobj::space(tx, list)?.used),
        None => Ok(0),
    }
}

/// Refuses an operation that changes `blocks` of the MOS if the pool is too full.
pub(crate) fn check_pool(
    tx: &mut Tx<'_>,
    env: &Env,
    reserve: Reserve,
    blocks: u64,
) -> TxResult<()> {
    if blocks == 0 {
        return Ok(());
    }
    let root = need_directory_object(tx, key::ROOT_DATASET)?;
    let used = get_dir(tx, root)?.used_bytes;
    let usable = env.space.usable(reserve, parked(tx)?).saturating_sub(env.space.deferred);
    if used.saturating_add(BLOCK_CHARGE.saturating_mul(blocks)) > usable {
        return Err(OpError::NoSpace.into());
    }
    Ok(())
}

/// Returns the bytes that may still be charged to a dir, according to the MOS.
pub(crate) fn available(tx: &mut Tx<'_>, env: &Env, dir: u64) -> TxResult<u64> {
    available_after(tx, env, dir, (0, 0))
}

/// Returns the same after `relief.1` bytes less are charged to the ancestor `relief.0`.
pub(crate) fn available_after(
    tx: &mut Tx<'_>,
    env: &Env,
    dir: u64,
    relief: (u64, u64),
) -> TxResult<u64> {
    let pool = env.space.usable(Reserve::Normal, parked(tx)?);
    let mut space: Option<u64> = None;
    for (object, phys) in dir::ancestry(tx, dir)?.into_iter().rev() {
        let quota = if phys.quota == 0 { u64::MAX } else { phys.quota };
        let mut used = phys.used_bytes;
        let above = space.map(|space| space.saturating_add(phys.reserved.saturating_sub(used)));
        let quota = if above.is_none() { quota.min(pool) } else { quota };
        let mut above = above.unwrap_or(u64::MAX);
        if object == relief.0 {
            used = used.saturating_sub(relief.1);
            above = above.saturating_add(relief.1);
        }
        space = Some(quota.saturating_sub(used).min(above));
    }
    Ok(space.unwrap_or(0))
}

/// Returns the dir's charge to its parent.
pub(crate) fn share(dir: &DirPhys) -> u64 {
    dir.used_bytes.max(dir.reserved)
}

/// Returns the dirs from `dir` up to the root.
pub(crate) fn ancestry(tx: &mut Tx<'_>, dir: u64) -> TxResult<Vec<u64>> {
    Ok(dir::ancestry(tx, dir)?.into_iter().map(|(object, _)| object).collect())
}

/// Checks whether `bytes` can move from the dir `from` to the dir `to`, which frees them above
/// both.
pub(crate) fn check_transfer(
    tx: &mut Tx<'_>,
    env: &Env,
    from: u64,
    to: u64,
    bytes: u64,
) -> TxResult<u64> {
    let (ours, theirs) = (ancestry(tx, from)?, ancestry(tx, to)?);
    let common = theirs.iter().copied().find(|dir| ours.contains(dir)).unwrap_or(0);
    // Removing them from `from` reduces the charge of each dir below the common one by at most
    // that.
    let mut relief = bytes;
    for dir in ours.iter().copied().take_while(|dir| *dir != common) {
        let phys = get_dir(tx, dir)?;
        let after = phys.used_bytes.saturating_sub(relief).max(phys.reserved);
        relief = share(&phys).saturating_sub(after);
    }
    if available_after(tx, env, to, (common, relief))? < bytes {
        return Err(OpError::NoSpace.into());
    }
    Ok(common)
}
