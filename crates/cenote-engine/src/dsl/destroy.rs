//! Destroys a head and its dir (spec 04 §14.5).
//!
//! The dataset is gone with the txg; its unshared blocks are in the queue of dead trees, charged to
//! `$FREE`, and are freed in parts ([`crate::space::destroy`]).

use cenote_dmu::bpobj::edit::{self as bpobj, BpobjEntry};
use cenote_dmu::bptree::edit as bptree;
use cenote_dmu::deadlist::edit as deadlist;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Space, Tx, TxResult};
use cenote_ondisk::dsl::{DatasetPhys, DirPhys, SpaceUse, key};
use cenote_pool::mos::{DIRECTORY, extra_value};

use crate::dsl::space;
use crate::dsl::space::{Sizes, Use};
use crate::dsl::{
    Effects, Env, OpError, bookmark, counts, crypto, deleg, directory_object, errors, features,
    get_dataset, get_dir, history, names, need_directory_object, put_dataset, put_dir, settings,
    snapshot,
};
use crate::invariant;
use crate::scan::record as scan;

/// Destroys the file system or volume with this name.
pub(crate) fn head(tx: &mut Tx<'_>, env: &Env, effects: &mut Effects, name: &str) -> TxResult<()> {
    names::check_pool(env, name)?;
    let object = names::dataset(tx, name)?;
    if get_dataset(tx, object)?.is_snapshot() {
        return Err(OpError::NotAHead.into());
    }
    head_impl(tx, env, effects, object)
}

/// Destroys a head by number.
pub(crate) fn head_impl(
    tx: &mut Tx<'_>,
    env: &Env,
    effects: &mut Effects,
    object: u64,
) -> TxResult<()> {
    let phys = get_dataset(tx, object)?;
    let dir = get_dir(tx, phys.dir_obj)?;
    check(tx, object, &phys, &dir)?;
    history::log(tx, env, "destroy", object, "")?;

    settings::set_refreservation(tx, phys.dir_obj, &phys, 0)?;
    snapshot::drop_features(tx, object)?;
    forget_branch(tx, object, phys.prev_snap_obj)?;
    deadlist::free(tx, phys.deadlist_obj)?;
    release_blocks(tx, env, &phys)?;

    let origin_dir = get_dataset(tx, dir.origin_obj)?.dir_obj;
    let clones = get_dir(tx, origin_dir)?.clones;
    zap::remove_number(tx, clones, object)?;
    let mut dir = get_dir(tx, phys.dir_obj)?;
    dir.head_dataset_obj = 0;
    put_dir(tx, phys.dir_obj, &dir)?;
    zap::destroy(tx, phys.snapnames_zapobj)?;
    bookmark::destroy_all(tx, object)?;
    snapshot::clear_bootfs(tx, object)?;
    errors::forget(tx, object)?;
    scan::follow_destroy(tx, object, None)?;
    snapshot::free_object(tx, object)?;
    destroy_dir(tx, effects, phys.dir_obj)?;
    effects.gone.push(object);
    snapshot::destroy_if_due(tx, env, phys.prev_snap_obj)
}

fn check(tx: &mut Tx<'_>, object: u64, phys: &DatasetPhys, dir: &DirPhys) -> TxResult<()> {
    if dir.parent_obj == 0 {
        return Err(OpError::IsPool.into());
    }
    if get_dataset(tx, phys.prev_snap_obj)?.next_snap_obj == object {
        return Err(OpError::HasSnapshots.into());
    }
    if zap::len(tx, dir.child_dir_zapobj)? != 0 {
        return Err(OpError::HasChildren.into());
    }
    Ok(())
}

/// Removes the head from its origin.
fn forget_branch(tx: &mut Tx<'_>, object: u64, origin: u64) -> TxResult<()> {
    let mut phys = get_dataset(tx, origin)?;
    zap::remove_number(tx, phys.next_clones_obj, object)?;
    // Checks SN1.
    phys.num_children = phys
        .num_children
        .checked_sub(1)
        .ok_or_else(|| invariant(format!("snapshot {origin} has no children")))?;
    put_dataset(tx, origin, &phys)
}

/// Queues the blocks born in the head to be freed, and moves their charge.
fn release_blocks(tx: &mut Tx<'_>, env: &Env, phys: &DatasetPhys) -> TxResult<()> {
    let dir = get_dir(tx, phys.dir_obj)?;
    let sizes =
        Space { used: dir.used_bytes, comp: dir.compressed_bytes, uncomp: dir.uncompressed_bytes };
    if features::is_enabled(tx, "async_destroy")? {
        if !phys.bp.is_hole() {
            let queue = dead_trees(tx)?;
            bptree::add(tx, queue, &phys.bp, phys.prev_snap_txg, sizes)?;
        }
    } else {
        let queue = need_directory_object(tx, key::FREE_BPOBJ)?;
        let entry = |bp| BpobjEntry::new(bp, space::dsize(&bp, &env.tree));
        let entries: Vec<_> = env.doomed.iter().copied().map(entry).collect();
        bpobj::append(tx, queue, &entries)?;
    }
    let sizes = Sizes::from(sizes);
    if sizes != Sizes::default() {
        space::did_use(tx, phys.dir_obj, Use::Head, sizes.negated())?;
        let freeing = snapshot::free_dir(tx)?;
        space::did_use(tx, freeing, Use::Head, sizes)?;
    }
    Ok(())
}

/// Returns the queue of dead trees. If it does not exist, creates it and activates its feature.
fn dead_trees(tx: &mut Tx<'_>) -> TxResult<u64> {
    if let Some(queue) = directory_object(tx, key::BPTREE_OBJ)? {
        return Ok(queue);
    }
    let queue = bptree::create(tx)?;
    zap::update(tx, DIRECTORY, key::BPTREE_OBJ, queue)?;
    features::add(tx, "async_destroy", 1)?;
    Ok(queue)
}

/// Destroys a dir without a head.
fn destroy_dir(tx: &mut Tx<'_>, effects: &mut Effects, object: u64) -> TxResult<()> {
    settings::set_reserved(tx, object, 0)?;
    let dir = get_dir(tx, object)?;
    let siblings = get_dir(tx, dir.parent_obj)?.child_dir_zapobj;
    // Checks SN2.
    let name = zap::name_of(tx, siblings, object, u64::MAX)?
        .ok_or_else(|| invariant(format!("dir {object} has no name")))?;
    let name = String::from_utf8_lossy(&name).into_owned();
    let is_empty = dir.breakdown == SpaceUse::default() && dir.used_bytes == 0;
    // Checks SZ2.
    if !is_empty {
        return Err(invariant(format!("dir {object} goes while charged: {:?}", dir.breakdown)));
    }
    crypto::release(tx, effects, object)?;
    counts::remove_filesystem(tx, dir.parent_obj, &name)?;
    deleg::destroy(tx, dir.deleg_zapobj)?;
    for zap_object in [dir.child_dir_zapobj, dir.props_zapobj, dir.clones] {
        if zap_object != 0 {
            zap::destroy(tx, zap_object)?;
        }
    }
    zap::remove(tx, siblings, &name)?;
    snapshot::free_object(tx, object)
}

/// Returns partially received heads that cannot be resumed, innermost first (spec 04 §20, end).
pub(crate) fn abandoned(tx: &mut Tx<'_>, root_dir: u64) -> TxResult<Vec<u64>> {
    let mut found = Vec::new();
    for (_, child) in names::children(tx, root_dir)? {
        found.extend(abandoned(tx, child)?);
    }
    let head = get_dir(tx, root_dir)?.head_dataset_obj;
    if head != 0
        && get_dataset(tx, head)?.is_inconsistent()
        && extra_value(tx, head, key::RESUME_TOGUID)?.is_none()
    {
        found.push(head);
    }
    Ok(found)
}
