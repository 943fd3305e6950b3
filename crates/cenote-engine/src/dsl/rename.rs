//! Renames datasets and snapshots (spec 04 §14.8).

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::DirPhys;
use cenote_ondisk::objset::ObjSetType;
use cenote_pool::dsl::dataset::snapshots_of;

use crate::dsl::counts;
use crate::dsl::counts::Count;
use crate::dsl::names;
use crate::dsl::names::Name;
use crate::dsl::space;
use crate::dsl::space::{Sizes, Use};
use crate::dsl::{
    Effects, Env, OpError, crypto, get_dataset, get_dir, history, put_dir, room, snapshot,
};

/// Renames a file system or volume with its descendants, and moves it if the parent differs.
pub(crate) fn dataset(
    tx: &mut Tx<'_>,
    env: &Env,
    effects: &mut Effects,
    from: &str,
    to: &str,
) -> TxResult<()> {
    names::check_pool(env, from)?;
    names::check_pool(env, to)?;
    names::check_visible(from)?;
    let head = names::dataset(tx, from)?;
    let phys = get_dataset(tx, head)?;
    if phys.is_snapshot() {
        return Err(OpError::NotAHead.into());
    }
    let object = phys.dir_obj;
    let (old_parent_name, old_last) = Name::parse(from).split_last().ok_or(OpError::IsPool)?;
    let (parent_name, last) = Name::parse(to).split_last().ok_or(OpError::Exists)?;
    check_names(tx, env, object, (from, to))?;
    let parent = names::dir(tx, parent_name)?;
    if names::found(names::dir(tx, to))? {
        return Err(OpError::Exists.into());
    }
    if env.parent.is_none_or(|parent| parent != ObjSetType::Zfs) {
        return Err(OpError::WrongParent.into());
    }
    let old_parent = names::dir(tx, old_parent_name)?;
    if room::ancestry(tx, parent)?.contains(&object) {
        return Err(OpError::Cycle.into());
    }
    let dir = get_dir(tx, object)?;
    crypto::check_move(tx, object, parent)?;
    if parent != old_parent {
        counts::activate_if_active(tx, object)?;
        let common = room::check_transfer(tx, env, old_parent, parent, room::share(&dir))?;
        move_counts(tx, env, object, (old_parent, parent), common)?;
    }
    history::log(tx, env, "rename", head, &format!("-> {to}"))?;
    let siblings = get_dir(tx, old_parent)?.child_dir_zapobj;
    zap::remove(tx, siblings, old_last)?;
    if parent != old_parent {
        let dir = get_dir(tx, object)?;
        put_dir(tx, object, &DirPhys { parent_obj: parent, ..dir })?;
        charge(tx, old_parent, &dir, -1)?;
        charge(tx, parent, &dir, 1)?;
    }
    let siblings = get_dir(tx, parent)?.child_dir_zapobj;
    zap::insert(tx, siblings, last, object)?;
    effects.settings_changed.push(object);
    Ok(())
}

/// Every resulting name must be valid.
fn check_names(tx: &mut Tx<'_>, env: &Env, dir: u64, (from, to): (&str, &str)) -> TxResult<()> {
    if to.contains(['@', '#']) {
        return Err(OpError::Name.into());
    }
    // The limit applies only if the depth grows.
    let deeper = names::depth(to).saturating_sub(names::depth(from));
    if deeper > 0 {
        names::check_new(env, to)?;
    } else {
        names::check_visible(to)?;
        if cenote_pool::dsl::DatasetName::parse(to).is_err() {
            return Err(OpError::Name.into());
        }
    }
    check_below(tx, dir, to.len(), names::depth(to), deeper > 0)
}

fn check_below(
    tx: &mut Tx<'_>,
    dir: u64,
    len: usize,
    depth: usize,
    is_deeper: bool,
) -> TxResult<()> {
    names::check_length(len)?;
    if is_deeper && depth >= names::NESTING_MAX {
        return Err(OpError::NameTooLong.into());
    }
    let head = get_dir(tx, dir)?.head_dataset_obj;
    if head != 0 {
        let head = get_dataset(tx, head)?;
        for (name, _) in snapshots_of(tx, &head)? {
            names::check_length(len + 1 + name.len())?;
        }
    }
    for (name, child) in names::children(tx, dir)? {
        check_below(tx, child, len + 1 + name.len(), depth + 1, is_deeper)?;
    }
    Ok(())
}

/// Moves the counts: the dir counts as one file system, plus its own counts.
fn move_counts(
    tx: &mut Tx<'_>,
    env: &Env,
    object: u64,
    (from, to): (u64, u64),
    common: u64,
) -> TxResult<()> {
    let Some(filesystems) = counts::get(tx, object, Count::Filesystems)? else { return Ok(()) };
    let snapshots = counts::get(tx, object, Count::Snapshots)?.unwrap_or(0);
    for (what, count) in [(Count::Filesystems, filesystems + 1), (Count::Snapshots, snapshots)] {
        counts::check(tx, env, to, (what, count), common)?;
        counts::adjust(tx, from, what, -(count as i64))?;
        counts::adjust(tx, to, what, count as i64)?;
    }
    Ok(())
}

/// Charges a parent for a child that is added (1) or removed (-1).
fn charge(tx: &mut Tx<'_>, parent: u64, child: &DirPhys, sign: i64) -> TxResult<()> {
    let sizes = Sizes {
        used: sign * child.used_bytes as i64,
        compressed: sign * child.compressed_bytes as i64,
        uncompressed: sign * child.uncompressed_bytes as i64,
    };
    space::did_use(tx, parent, Use::Child, sizes)?;
    let reserved = child.reserved.saturating_sub(child.used_bytes);
    if reserved != 0 {
        let sizes = Sizes { used: sign * reserved as i64, ..Sizes::default() };
        space::did_use(tx, parent, Use::ChildReserved, sizes)?;
    }
    Ok(())
}

/// Renames the snapshot `dataset@from`; with `is_recursive` also those with this name of
/// descendants.
pub(crate) fn snapshot(
    tx: &mut Tx<'_>,
    env: &Env,
    dataset: &str,
    (from, to): (&str, &str),
    is_recursive: bool,
) -> TxResult<()> {
    names::check_new(env, &format!("{dataset}@{to}"))?;
    let dir = names::dir(tx, dataset)?;
    let head = names::head(tx, dataset)?;
    let head_phys = get_dataset(tx, head)?;
    if !names::has_snapshot(tx, &head_phys, from)? && !is_recursive {
        return Err(OpError::NotFound.into());
    }
    let count = rename_in(tx, env, dir, dataset.len(), (from, to), is_recursive)?;
    if count == 0 { Err(OpError::NotFound.into()) } else { Ok(()) }
}

fn rename_in(
    tx: &mut Tx<'_>,
    env: &Env,
    dir: u64,
    len: usize,
    (from, to): (&str, &str),
    is_recursive: bool,
) -> TxResult<u64> {
    let mut count = 0;
    let head_object = get_dir(tx, dir)?.head_dataset_obj;
    let head = get_dataset(tx, head_object)?;
    if names::has_snapshot(tx, &head, from)? {
        names::check_length(len + 1 + to.len())?;
        if names::has_snapshot(tx, &head, to)? {
            return Err(OpError::Exists.into());
        }
        let object = names::snapshot(tx, &head, from)?;
        let text = format!("-> @{to}");
        history::log(tx, env, "rename", object, &text)?;
        let name = names::name_of_snapshot(tx, object)?;
        zap::remove(tx, head.snapnames_zapobj, &name)?;
        zap::insert(tx, head.snapnames_zapobj, to, object)?;
        snapshot::note_change(tx, env, dir)?;
        count += 1;
    }
    if is_recursive {
        for (name, child) in names::children(tx, dir)? {
            let len = len + 1 + name.len();
            count += rename_in(tx, env, child, len, (from, to), true)?;
        }
    }
    Ok(count)
}
