//! Exchanges the contents of a head and a clone, which implements rollback (spec 04 §14.6).
//!
//! ```text
//!   P ──> head  (what came since)        P ──> head (as P)
//!    `──> clone (as P)             =>     `──> clone (what came since) ──> destroyed
//! ```

use cenote_dmu::deadlist::edit as deadlist;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_pool::dsl::bookmark::bookmarks_of;
use cenote_pool::dsl::dataset::origin_txg;

use crate::dsl::space;
use crate::dsl::space::{Sizes, Use};
use crate::dsl::{
    Effects, Env, OpError, blocks, bookmark, create, destroy, features, get_dataset, get_dir,
    history, names, props, put_dataset, room, snapshot,
};
use crate::invariant;
use crate::scan::record as scan;

/// Name of the temporary clone of a rollback.
const ROLLBACK: &str = "%rollback";
/// Snapshots created before this txg are internal to the pool.
const TXG_INITIAL: u64 = create::TXG_INITIAL;

/// Rolls back to the latest snapshot, which must be `wanted` if that is given. Returns its object.
pub(crate) fn rollback(
    tx: &mut Tx<'_>,
    env: &Env,
    effects: &mut Effects,
    name: &str,
    wanted: Option<&str>,
) -> TxResult<u64> {
    names::check_pool(env, name)?;
    let object = names::dataset(tx, name)?;
    let head = get_dataset(tx, object)?;
    if head.is_snapshot() {
        return Err(OpError::NotAHead.into());
    }
    if head.prev_snap_txg < TXG_INITIAL {
        return Err(OpError::NoSnapshot.into());
    }
    if head.prev_snap_txg >= env.txg || env.unwritten.contains(&object) {
        return Err(OpError::SameTxg.into());
    }
    let latest = head.prev_snap_obj;
    if let Some(wanted) = wanted {
        let wanted = names::snapshot_of(tx, wanted)?;
        if wanted != latest {
            let is_ours = get_dataset(tx, wanted)?.dir_obj == head.dir_obj;
            return Err(if is_ours { OpError::NotLatest } else { OpError::NoSnapshot }.into());
        }
    } else if get_dataset(tx, latest)?.next_snap_obj != object {
        // The origin is not the dataset's own snapshot, unless it is named.
        return Err(OpError::NoSnapshot.into());
    }
    let marks = bookmarks_of(tx, object)?;
    if marks.iter().any(|(_, mark)| mark.creation_txg > head.prev_snap_txg) {
        return Err(OpError::NotLatest.into());
    }
    check_room(tx, env, object, latest)?;

    let clone_dir = create::dir(tx, env, head.dir_obj, ROLLBACK)?;
    let clone = create::head(tx, env, clone_dir, latest)?;
    swap(tx, env, clone, object)?;
    destroy::head_impl(tx, env, effects, clone)?;
    effects.replaced.push(object);
    Ok(latest)
}

/// Checks the quota and the refreservation of a head with the contents of a snapshot.
fn check_room(tx: &mut Tx<'_>, env: &Env, object: u64, snapshot: u64) -> TxResult<()> {
    let head = get_dataset(tx, object)?;
    let dir = get_dir(tx, head.dir_obj)?;
    let after = get_dataset(tx, snapshot)?.referenced_bytes;
    let refquota = props::own_number(tx, dir.props_zapobj, "refquota")?;
    if refquota != 0 && after > refquota {
        return Err(OpError::Quota.into());
    }
    let reserved = blocks::refreservation(tx, &dir)?;
    if reserved.min(head.unique_bytes) > room::available(tx, env, head.dir_obj)? {
        return Err(OpError::NoSpace.into());
    }
    Ok(())
}

/// Exchanges the contents of a clone and a head with the same previous snapshot; the clone's dir is
/// a child of the head's.
pub(crate) fn swap(
    tx: &mut Tx<'_>,
    env: &Env,
    clone_object: u64,
    head_object: u64,
) -> TxResult<()> {
    let mut clone = get_dataset(tx, clone_object)?;
    let mut head = get_dataset(tx, head_object)?;
    // Checks SN1.
    if clone.prev_snap_obj != head.prev_snap_obj {
        return Err(invariant(format!("{clone_object} and {head_object} begin differently")));
    }
    let name = names::name_of(tx, env, head_object)?;
    let parent = name.rsplit('/').next().unwrap_or(&name);
    history::log(tx, env, "clone swap", clone_object, &format!("parent={parent}"))?;
    let head_dir = get_dir(tx, head.dir_obj)?;
    let reserved = blocks::refreservation(tx, &head_dir)?;
    let born_after = origin_txg(tx, &head_dir)?;

    swap_features(tx, clone_object, head_object)?;
    let previous_object = head.prev_snap_obj;
    let mut previous = get_dataset(tx, previous_object)?;
    previous.unique_bytes =
        deadlist::space_range(tx, clone.deadlist_obj, previous.prev_snap_txg, u64::MAX)?.used;
    put_dataset(tx, previous_object, &previous)?;

    let mut moved = sizes_with_dead(tx, &clone)?;
    moved -= sizes_with_dead(tx, &head)?;
    let snap = |tx: &mut Tx<'_>, list: u64| -> TxResult<i64> {
        Ok(deadlist::space_range(tx, list, born_after, u64::MAX)?.used as i64)
    };
    let to_snap = snap(tx, clone.deadlist_obj)? - snap(tx, head.deadlist_obj)?;
    let reserve = reserved.min(head.unique_bytes) as i64 - reserved.min(clone.unique_bytes) as i64;

    std::mem::swap(&mut clone.bp, &mut head.bp);
    std::mem::swap(&mut clone.referenced_bytes, &mut head.referenced_bytes);
    std::mem::swap(&mut clone.compressed_bytes, &mut head.compressed_bytes);
    std::mem::swap(&mut clone.uncompressed_bytes, &mut head.uncompressed_bytes);
    std::mem::swap(&mut clone.unique_bytes, &mut head.unique_bytes);
    std::mem::swap(&mut clone.deadlist_obj, &mut head.deadlist_obj);
    put_dataset(tx, clone_object, &clone)?;
    put_dataset(tx, head_object, &head)?;
    scan::follow_swap(tx, clone_object, head_object)?;

    // The clone's dir first if it grows: it is below the head's, whose sums include it.
    space::did_use(tx, clone.dir_obj, Use::Head, moved.negated())?;
    space::did_use(tx, head.dir_obj, Use::Head, moved)?;
    space::reclassify(tx, head.dir_obj, to_snap, Use::Head, Use::Snap)?;
    if reserve != 0 {
        let sizes = Sizes { used: reserve, ..Sizes::default() };
        space::did_use(tx, head.dir_obj, Use::RefReserved, sizes)?;
    }
    bookmark::note_next_changed(tx, head_object, previous.creation_txg, head.deadlist_obj)
}

/// Returns a head's space, including blocks that died since its previous snapshot.
fn sizes_with_dead(tx: &mut Tx<'_>, head: &cenote_ondisk::dsl::DatasetPhys) -> TxResult<Sizes> {
    let mut sizes = Sizes {
        used: head.referenced_bytes as i64,
        compressed: head.compressed_bytes as i64,
        uncompressed: head.uncompressed_bytes as i64,
    };
    sizes += Sizes::from(deadlist::space(tx, head.deadlist_obj)?);
    Ok(sizes)
}

/// Exchanges the features, which belong to the contents.
fn swap_features(tx: &mut Tx<'_>, one: u64, other: u64) -> TxResult<()> {
    let (of_one, of_other) = (snapshot::feature_keys(tx, one)?, snapshot::feature_keys(tx, other)?);
    snapshot::drop_features(tx, one)?;
    snapshot::drop_features(tx, other)?;
    for (target, keys) in [(one, of_other), (other, of_one)] {
        for (name, value) in keys {
            blocks::zapify(tx, target)?;
            zap::insert(tx, target, features::known(name).guid, value)?;
            features::add(tx, name, 1)?;
        }
    }
    Ok(())
}
