//! Counts of file systems and snapshots, kept where a limit was ever set (spec 04 §18).

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::key;
use cenote_pool::dsl::dataset::snapshots_of;
use cenote_pool::dsl::deleg::permits;
use cenote_pool::mos::extra_value;
use cenote_pool::props::lookup::own_value;

use crate::dsl::{Env, OpError, blocks, features, get_dataset, get_dir, names};
use crate::invariant;

const NO_LIMIT: u64 = u64::MAX;
const FEATURE: &str = "filesystem_limits";

/// Kind of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    /// File systems and volumes below a dir.
    Filesystems,
    /// Snapshots of a dir and its descendants.
    Snapshots,
}

impl Count {
    fn key(self) -> &'static str {
        match self {
            Self::Filesystems => key::FILESYSTEM_COUNT,
            Self::Snapshots => key::SNAPSHOT_COUNT,
        }
    }

    fn limit(self) -> &'static str {
        match self {
            Self::Filesystems => "filesystem_limit",
            Self::Snapshots => "snapshot_limit",
        }
    }
}

/// Counts a new snapshot of a dir, if the limits permit it.
pub(crate) fn add_snapshot(tx: &mut Tx<'_>, env: &Env, dir: u64, name: &str) -> TxResult<()> {
    add(tx, env, dir, (Count::Snapshots, name))
}

/// Counts a new dir below `parent`, if the limits permit it.
pub(crate) fn add_filesystem(tx: &mut Tx<'_>, env: &Env, parent: u64, name: &str) -> TxResult<()> {
    add(tx, env, parent, (Count::Filesystems, name))
}

/// Counts a destroyed snapshot of a dir.
pub(crate) fn remove_snapshot(tx: &mut Tx<'_>, dir: u64, name: &str) -> TxResult<()> {
    remove(tx, dir, (Count::Snapshots, name))
}

/// Counts a destroyed dir below `parent`.
pub(crate) fn remove_filesystem(tx: &mut Tx<'_>, parent: u64, name: &str) -> TxResult<()> {
    remove(tx, parent, (Count::Filesystems, name))
}

fn add(tx: &mut Tx<'_>, env: &Env, dir: u64, (what, name): (Count, &str)) -> TxResult<()> {
    if is_temporary(name) {
        return Ok(());
    }
    check(tx, env, dir, (what, 1), 0)?;
    adjust(tx, dir, what, 1)
}

fn remove(tx: &mut Tx<'_>, dir: u64, (what, name): (Count, &str)) -> TxResult<()> {
    if is_temporary(name) { Ok(()) } else { adjust(tx, dir, what, -1) }
}

/// Whether a name is one of a temporary dataset (`%…`), which never counts.
fn is_temporary(name: &str) -> bool {
    name.starts_with('%')
}

/// Returns the count of a dir, `None` if it keeps none.
pub(crate) fn get(tx: &mut Tx<'_>, dir: u64, what: Count) -> TxResult<Option<u64>> {
    if dir == 0 {
        return Ok(None);
    }
    Ok(extra_value(tx, dir, what.key())?.and_then(|value| value.first()))
}

/// Refuses `more` if a limit on the way up forbids it; from the dir `until` on nothing changes.
///
/// A limit does not bind a user who may change it (zfsprops(7)): no limit binds a trusted user, and
/// the limit of a dir does not bind a user with the permission to set it there.
pub(crate) fn check(
    tx: &mut Tx<'_>,
    env: &Env,
    from: u64,
    (what, more): (Count, u64),
    until: u64,
) -> TxResult<()> {
    if more == 0 || env.requester.is_trusted || !features::is_active(tx, FEATURE)? {
        return Ok(());
    }
    let mut dir = from;
    while dir != until && dir != 0 {
        // Ancestors of a dir without a count have none either.
        let Some(found) = get(tx, dir, what)? else { break };
        let phys = get_dir(tx, dir)?;
        let limit = own_value(tx, phys.props_zapobj, what.limit())?;
        let limit = limit.and_then(|(value, _)| value.first()).unwrap_or(NO_LIMIT);
        if found.saturating_add(more) > limit
            && !permits(tx, (dir, false), &env.requester, &[what.limit()])?
        {
            return Err(OpError::Limit.into());
        }
        dir = phys.parent_obj;
    }
    Ok(())
}

/// Adjusts the counts of a dir and its ancestors.
pub(crate) fn adjust(tx: &mut Tx<'_>, from: u64, what: Count, delta: i64) -> TxResult<()> {
    if delta == 0 || !features::is_active(tx, FEATURE)? {
        return Ok(());
    }
    let mut dir = from;
    while let Some(found) = get(tx, dir, what)? {
        // Checks CT1.
        let now = found.checked_add_signed(delta).ok_or_else(|| {
            invariant(format!("{} of dir {dir}: {found} changed by {delta}", what.key()))
        })?;
        zap::update(tx, dir, what.key(), now)?;
        dir = get_dir(tx, dir)?.parent_obj;
    }
    Ok(())
}

/// Starts counting at a dir, because a limit was set there.
pub(crate) fn activate(tx: &mut Tx<'_>, dir: u64) -> TxResult<()> {
    if !features::is_enabled(tx, FEATURE)? {
        return Err(OpError::Unsupported.into());
    }
    if !features::is_active(tx, FEATURE)? {
        features::add(tx, FEATURE, 1)?;
    }
    init(tx, dir).map(|_| ())
}

/// Starts counting at a dir that moves below one with counts.
pub(crate) fn activate_if_active(tx: &mut Tx<'_>, dir: u64) -> TxResult<()> {
    if features::is_active(tx, FEATURE)? {
        init(tx, dir)?;
    }
    Ok(())
}

/// Counts a dir's descendants. Returns (file systems below, snapshots).
fn init(tx: &mut Tx<'_>, dir: u64) -> TxResult<(u64, u64)> {
    if let (Some(filesystems), Some(snapshots)) =
        (get(tx, dir, Count::Filesystems)?, get(tx, dir, Count::Snapshots)?)
    {
        return Ok((filesystems, snapshots));
    }
    let (mut filesystems, mut snapshots) = (0, 0);
    for (name, child) in names::children(tx, dir)? {
        let (below, theirs) = init(tx, child)?;
        if !name.starts_with('%') {
            filesystems += 1 + below;
            snapshots += theirs;
        }
    }
    let head = get_dir(tx, dir)?.head_dataset_obj;
    if head != 0 {
        let head = get_dataset(tx, head)?;
        let own = snapshots_of(tx, &head)?.into_iter();
        snapshots += own.filter(|(name, _)| !name.starts_with('%')).count() as u64;
    }
    blocks::zapify(tx, dir)?;
    zap::update(tx, dir, key::FILESYSTEM_COUNT, filesystems)?;
    zap::update(tx, dir, key::SNAPSHOT_COUNT, snapshots)?;
    Ok((filesystems, snapshots))
}
