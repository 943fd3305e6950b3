//! Takes and destroys snapshots (spec 04 §14.2, §14.4).
//!
//! ```text
//!   before    P <── head (deadlist d)
//!   after     P <── S (deadlist d) <── head (new deadlist, with one key more)
//! ```

use cenote_dmu::deadlist::edit as deadlist;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::{DatasetFlags, DatasetPhys, DirPhys, key};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::Value;
use cenote_pool::dsl::dataset::origin_txg;
use cenote_rt::ensure;
use cenote_rt::seeded::{Bug, is_on};

use crate::dsl::space;
use crate::dsl::space::{Sizes, Use};
use crate::dsl::{
    Context, Env, OpError, blocks, bookmark, counts, crypto, features, get_dataset, get_dir,
    history, hold, names, need_directory_object, new_bonus_object, put_dataset, room,
};
use crate::invariant;
use crate::scan::record as scan;

/// Pool directory entry: the pool's properties.
/// Pool property: the dataset to boot from.
const BOOTFS: &str = "bootfs";

/// Takes the snapshot `pool/fs@name`. Returns its object.
pub(crate) fn take_named(tx: &mut Tx<'_>, env: &Env, full_name: &str) -> TxResult<u64> {
    names::check_new(env, full_name)?;
    let name = names::Name::parse(full_name);
    let head = names::head(tx, name.dataset)?;
    if env.unwritten.contains(&head) {
        return Err(OpError::SameTxg.into());
    }
    let object = take(tx, env, head, name.snapshot.ok_or(OpError::NotASnapshot)?)?;
    history::log(tx, env, "snapshot", object, "")?;
    Ok(object)
}

/// Takes a snapshot of a head. Returns its object.
pub(crate) fn take(tx: &mut Tx<'_>, ctx: &Env, head_object: u64, name: &str) -> TxResult<u64> {
    let mut head = get_dataset(tx, head_object)?;
    let dir = get_dir(tx, head.dir_obj)?;
    if head.flags.contains(DatasetFlags::INCONSISTENT) {
        return Err(OpError::Busy.into());
    }
    if head.prev_snap_txg >= ctx.txg {
        return Err(OpError::SameTxg.into());
    }
    if names::has_snapshot(tx, &head, name)? {
        return Err(OpError::Exists.into());
    }
    let refreservation = blocks::refreservation(tx, &dir)?;
    if head.unique_bytes.min(refreservation) > room::available(tx, ctx, head.dir_obj)? {
        return Err(OpError::NoSpace.into());
    }
    counts::add_snapshot(tx, ctx, head.dir_obj, name)?;

    let snapshot = DatasetPhys {
        next_snap_obj: head_object,
        snapnames_zapobj: 0,
        num_children: 1,
        creation_time: ctx.now,
        creation_txg: ctx.txg,
        unique_bytes: 0,
        fsid_guid: ctx.fsid_guid(head_object),
        guid: ctx.guid(head_object.wrapping_add(1 << 32)),
        next_clones_obj: 0,
        props_obj: 0,
        userrefs_obj: 0,
        ..head.clone()
    };
    let object = new_bonus_object(tx, ObjectType::DSL_DATASET, &snapshot.encode())?;
    copy_features(tx, head_object, object)?;
    crypto::note_snapshot(tx, ctx, head.dir_obj, object)?;
    replace_next(tx, head.prev_snap_obj, head_object, object)?;

    let new_deadlist = deadlist::clone_keys(tx, head.deadlist_obj, u64::MAX)?;
    deadlist::add_key(tx, new_deadlist, head.prev_snap_txg)?;
    for txg in bookmark::keys_after(tx, head_object, head.prev_snap_txg)? {
        deadlist::add_key(tx, new_deadlist, txg)?;
    }
    let unique = head.unique_bytes;
    head.deadlist_obj = new_deadlist;
    head.prev_snap_obj = object;
    head.prev_snap_txg = ctx.txg;
    head.unique_bytes = 0;
    head.flags |= DatasetFlags::UNIQUE_ACCURATE;
    put_dataset(tx, head_object, &head)?;

    // The space covered by the reservation now belongs to the snapshot, and is reserved again.
    let reserved = unique.min(refreservation) as i64;
    if reserved != 0 {
        let sizes = Sizes { used: reserved, ..Sizes::default() };
        space::did_use(tx, head.dir_obj, Use::RefReserved, sizes)?;
    }
    zap::insert(tx, head.snapnames_zapobj, name, object)?;
    scan::follow_snapshot(tx, head_object, object)?;
    note_change(tx, ctx, head.dir_obj)?;
    Ok(object)
}

/// Replaces the next dataset `old` of `prev` by `new`.
fn replace_next(tx: &mut Tx<'_>, prev_object: u64, old: u64, new: u64) -> TxResult<()> {
    if prev_object == 0 {
        return Ok(());
    }
    let mut prev = get_dataset(tx, prev_object)?;
    if prev.next_snap_obj == old {
        prev.next_snap_obj = new;
        return put_dataset(tx, prev_object, &prev);
    }
    // Checks SN1.
    if prev.next_clones_obj == 0 {
        return Err(invariant(format!("snapshot {prev_object} does not know what follows it")));
    }
    zap::remove_number(tx, prev.next_clones_obj, old)?;
    zap::insert_number(tx, prev.next_clones_obj, new)
}

/// Copies the features of a dataset's blocks to another dataset with the same blocks.
pub(super) fn copy_features(tx: &mut Tx<'_>, from: u64, to: u64) -> TxResult<()> {
    for (name, value) in feature_keys(tx, from)? {
        blocks::zapify(tx, to)?;
        let feature = features::known(name);
        zap::insert(tx, to, feature.guid, value)?;
        features::add(tx, name, 1)?;
    }
    Ok(())
}

/// Removes the features of a destroyed dataset.
pub(super) fn drop_features(tx: &mut Tx<'_>, object: u64) -> TxResult<()> {
    for (name, _) in feature_keys(tx, object)? {
        zap::remove(tx, object, features::known(name).guid)?;
        features::add(tx, name, -1)?;
    }
    Ok(())
}

/// Returns the features of a dataset with their stored values.
pub(super) fn feature_keys(tx: &mut Tx<'_>, object: u64) -> TxResult<Vec<(&'static str, Value)>> {
    use cenote_ondisk::feature::{FEATURES, FeatureFlags};
    if tx.dnode(object)?.object_type != ObjectType::ZAP_METADATA {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for feature in FEATURES.iter().filter(|f| f.flags.contains(FeatureFlags::PER_DATASET)) {
        if let Some(value) = zap::lookup(tx, object, feature.guid)? {
            found.push((feature.name, value));
        }
    }
    Ok(found)
}

/// Records the time of the last change of a dir's snapshots.
pub(super) fn note_change(tx: &mut Tx<'_>, ctx: &Context, dir: u64) -> TxResult<()> {
    if !features::is_enabled(tx, "extensible_dataset")? {
        return Ok(());
    }
    blocks::zapify(tx, dir)?;
    zap::update(tx, dir, key::SNAPSHOTS_CHANGED, Value::words_of(&[ctx.now, ctx.now_nanoseconds]))
}

/// Destroys the snapshot with this name. One that does not exist counts as destroyed. With
/// `is_deferred` a snapshot with holds or clones is destroyed later.
pub(crate) fn destroy_named(
    tx: &mut Tx<'_>,
    env: &Env,
    name: &str,
    is_deferred: bool,
) -> TxResult<()> {
    names::check_pool(env, name)?;
    let object = match names::snapshot_of(tx, name) {
        Ok(object) => object,
        Err(step) if names::is_missing(&step) => return Ok(()),
        Err(step) => return Err(step),
    };
    let mut phys = get_dataset(tx, object)?;
    check_unread(env, object)?;
    let is_needed = phys.num_children > 1 || holds(tx, &phys)? > 0;
    if is_deferred && is_needed {
        phys.flags |= DatasetFlags::DEFER_DESTROY;
        put_dataset(tx, object, &phys)?;
        return history::log(tx, env, "defer_destroy", object, "");
    }
    destroy(tx, env, object)
}

/// An open snapshot is not destroyed, not even deferred.
fn check_unread(env: &Env, object: u64) -> TxResult<()> {
    // Checks OP1.
    let is_open = env.opened.has(object) && !is_on(Bug::OpenSnapshotDestroyed);
    if is_open { Err(OpError::Busy.into()) } else { Ok(()) }
}

/// Destroys a snapshot. Its unshared blocks are queued to be freed.
pub(crate) fn destroy(tx: &mut Tx<'_>, env: &Env, object: u64) -> TxResult<()> {
    check_unread(env, object)?;
    let snapshot = get_dataset(tx, object)?;
    if holds(tx, &snapshot)? > 0 {
        return Err(OpError::Held.into());
    }
    if snapshot.num_children != 1 {
        return Err(OpError::HasClones.into());
    }
    let name = names::name_of_snapshot(tx, object)?;
    history::log(tx, env, "destroy", object, "")?;
    let dir_object = snapshot.dir_obj;
    let dir = get_dir(tx, dir_object)?;
    let head_object = dir.head_dataset_obj;
    drop_features(tx, object)?;
    let (prev_object, next_object) = (snapshot.prev_snap_obj, snapshot.next_snap_obj);
    let mut next = get_dataset(tx, next_object)?;
    let before = next.prev_snap_obj;
    ensure!("SN1", before == object, "{next_object} follows {before}, and not {object}");
    let is_kept = bookmark::note_destroyed(tx, head_object, &snapshot, next.deadlist_obj)?;
    let is_branch = {
        let prev = (prev_object != 0).then(|| get_dataset(tx, prev_object)).transpose()?;
        prev.is_some_and(|prev| prev.next_snap_obj != object)
    };
    replace_next(tx, prev_object, object, next_object)?;
    next.prev_snap_obj = prev_object;
    next.prev_snap_txg = snapshot.prev_snap_txg;

    if prev_object != 0 && !is_branch {
        let mut prev = get_dataset(tx, prev_object)?;
        let (min, max) = (prev.prev_snap_txg, snapshot.prev_snap_txg);
        prev.unique_bytes += deadlist::space_range(tx, next.deadlist_obj, min, max)?.used;
        put_dataset(tx, prev_object, &prev)?;
    }
    let is_free_after = if is_on(Bug::SharedBlocksFreed) { 0 } else { snapshot.prev_snap_txg };
    free_range(tx, dir_object, next.deadlist_obj, is_free_after)?;
    let tree = &env.tree;
    deadlist::merge(tx, next.deadlist_obj, snapshot.deadlist_obj, &|b| space::dsize(b, tree))?;
    if !is_kept {
        remove_clone_keys(tx, &dir, snapshot.creation_txg)?;
    }

    put_dataset(tx, next_object, &next)?;
    if next_object == head_object {
        recount_head(tx, head_object)?;
    } else {
        let after = get_dataset(tx, next.next_snap_obj)?;
        let (min, max) = (snapshot.prev_snap_txg, snapshot.creation_txg);
        next.unique_bytes += deadlist::space_range(tx, after.deadlist_obj, min, max)?.used;
        put_dataset(tx, next_object, &next)?;
        if !is_kept {
            let head = get_dataset(tx, head_object)?;
            deadlist::remove_key(tx, head.deadlist_obj, snapshot.creation_txg)?;
        }
    }
    scan::follow_destroy(tx, object, Some(next_object))?;
    let head = get_dataset(tx, head_object)?;
    zap::remove(tx, head.snapnames_zapobj, &name)?;
    counts::remove_snapshot(tx, dir_object, &name)?;
    note_change(tx, env, dir_object)?;
    clear_bootfs(tx, object)?;
    for zap_object in [snapshot.next_clones_obj, snapshot.props_obj, snapshot.userrefs_obj] {
        if zap_object != 0 {
            zap::destroy(tx, zap_object)?;
        }
    }
    free_object(tx, object)
}

/// Clears `bootfs` if it names the destroyed dataset.
pub(super) fn clear_bootfs(tx: &mut Tx<'_>, object: u64) -> TxResult<()> {
    if let Some(props) = crate::dsl::directory_object(tx, key::POOL_PROPS)?
        && zap::lookup(tx, props, BOOTFS)?.and_then(|value| value.first()) == Some(object)
    {
        zap::remove(tx, props, BOOTFS)?;
    }
    Ok(())
}

/// Destroys a snapshot whose destruction was deferred, if nothing needs it any more.
pub(super) fn destroy_if_due(tx: &mut Tx<'_>, env: &Env, object: u64) -> TxResult<()> {
    if object != 0 && tx.find(object)?.is_some() && hold::is_due(tx, object)? {
        destroy(tx, env, object)?;
    }
    Ok(())
}

/// Moves blocks that died after `min` from a deadlist to the queue of frees.
fn free_range(tx: &mut Tx<'_>, dir: u64, deadlist: u64, min: u64) -> TxResult<()> {
    let queue = need_directory_object(tx, key::FREE_BPOBJ)?;
    let sizes = Sizes::from(deadlist::move_to(tx, deadlist, queue, min)?);
    space::did_use(tx, dir, Use::Snap, sizes.negated())?;
    let freeing = free_dir(tx)?;
    space::did_use(tx, freeing, Use::Head, sizes)
}

/// Returns the dir that is charged for queued frees.
pub(crate) fn free_dir(tx: &mut Tx<'_>) -> TxResult<u64> {
    let root = need_directory_object(tx, key::ROOT_DATASET)?;
    let children = get_dir(tx, root)?.child_dir_zapobj;
    zap::require_u64(tx, children, key::FREE_DIR)
}

/// Removes the snapshot's txg from the keys of clones that began after it.
pub(super) fn remove_clone_keys(tx: &mut Tx<'_>, dir: &DirPhys, txg: u64) -> TxResult<()> {
    if dir.clones == 0 {
        return Ok(());
    }
    for (clone, _) in zap::numbers(tx, dir.clones)? {
        let head = get_dataset(tx, clone)?;
        let clone_dir = get_dir(tx, head.dir_obj)?;
        if origin_txg(tx, &clone_dir)? > txg {
            // A bookmark of the clone at that point may need the key.
            if !bookmark::keeps_key(tx, clone, txg)? {
                remove_key(tx, head.deadlist_obj, txg)?;
            }
            remove_clone_keys(tx, &clone_dir, txg)?;
        }
    }
    Ok(())
}

/// Removes a key if it exists.
pub(super) fn remove_key(tx: &mut Tx<'_>, object: u64, txg: u64) -> TxResult<()> {
    match deadlist::keys(tx, object)? {
        Some(keys) if keys.contains_key(&txg) => deadlist::remove_key(tx, object, txg),
        _ => Ok(()),
    }
}

/// Recomputes the unique space of the head after its previous snapshot has changed (spec 04 §8,
/// I6).
pub(super) fn recount_head(tx: &mut Tx<'_>, object: u64) -> TxResult<()> {
    let mut head = get_dataset(tx, object)?;
    let dir = get_dir(tx, head.dir_obj)?;
    let shared = match head.prev_snap_obj {
        0 => 0,
        prev => {
            let prev = get_dataset(tx, prev)?;
            let dead = deadlist::space(tx, head.deadlist_obj)?.used;
            prev.referenced_bytes.saturating_sub(dead)
        }
    };
    let before = head.unique_bytes;
    // Checks SZ1.
    head.unique_bytes = head
        .referenced_bytes
        .checked_sub(shared)
        .ok_or_else(|| invariant(format!("head {object} shares more than it has")))?;
    put_dataset(tx, object, &head)?;
    let reserved = blocks::refreservation(tx, &dir)?;
    if before < reserved {
        let covered = (head.unique_bytes.saturating_sub(before)).min(reserved - before) as i64;
        let sizes = Sizes { used: -covered, ..Sizes::default() };
        space::did_use(tx, head.dir_obj, Use::RefReserved, sizes)?;
    }
    Ok(())
}

/// Returns the number of holds.
pub(super) fn holds(tx: &mut Tx<'_>, snapshot: &DatasetPhys) -> TxResult<u64> {
    match snapshot.userrefs_obj {
        0 => Ok(0),
        object => zap::len(tx, object),
    }
}

/// Frees the object of a dir or dataset.
pub(super) fn free_object(tx: &mut Tx<'_>, object: u64) -> TxResult<()> {
    if tx.dnode(object)?.object_type == ObjectType::ZAP_METADATA {
        features::add(tx, "extensible_dataset", -1)?;
    }
    tx.free(object)
}
