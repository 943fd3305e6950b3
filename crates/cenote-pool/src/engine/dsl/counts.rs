//! Counts of file systems and snapshots, kept where a limit was ever set (spec 04 §18).

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::key;
use cenote_ondisk::object_type::ObjectType;

use super::{OpError, features, get_dir, props};
use crate::engine::invariant;

/// No limit.
const NO_LIMIT: u64 = u64::MAX;

/// Counts snapshots of a dir, up the tree. Temporary ones (`%…`) never count.
pub(super) fn add_snapshots(tx: &mut Tx<'_>, dir: u64, name: &str, delta: i64) -> TxResult<()> {
    if name.starts_with('%') {
        return Ok(());
    }
    add(tx, dir, key::SNAPSHOT_COUNT, "snapshot_limit", delta)
}

/// Counts file systems below the parent of a dir, up the tree.
pub(super) fn add_filesystems(tx: &mut Tx<'_>, parent: u64, delta: i64) -> TxResult<()> {
    add(tx, parent, key::FILESYSTEM_COUNT, "filesystem_limit", delta)
}

fn add(tx: &mut Tx<'_>, from: u64, count: &str, limit: &str, delta: i64) -> TxResult<()> {
    if !features::is_active(tx, "filesystem_limits")? {
        return Ok(());
    }
    let mut dir = from;
    while dir != 0 {
        if tx.dnode(dir)?.object_type != ObjectType::ZAP_METADATA {
            break;
        }
        // Where nothing is counted, nothing above is either.
        let Some(found) = zap::lookup_u64(tx, dir, count)? else { break };
        let phys = get_dir(tx, dir)?;
        let now = found.checked_add_signed(delta).ok_or_else(|| {
            invariant(format!("{count} of dir {dir}: {found} changed by {delta}"))
        })?;
        let max = props::effective(tx, dir, limit, false)?;
        let max = max.and_then(|value| value.first()).unwrap_or(NO_LIMIT);
        if delta > 0 && now > max {
            return Err(OpError::Limit.into());
        }
        zap::update(tx, dir, count, now)?;
        dir = phys.parent_obj;
    }
    Ok(())
}
