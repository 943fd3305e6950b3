//! Promotes a clone: it becomes the owner of the snapshots that it shares with its origin (spec 04
//! §14.7).
//!
//! ```text
//!   E:  s1 ── O ── s3 ── G                 E:        .── s3 ── G
//!              `── F ── H   :D       =>    D:  s1 ── O ── F ── H
//! ```
//!
//! No block moves and no deadlist changes: snapshots change their dir, the branch at O its main
//! line, and their space moves between the dirs.

use cenote_dmu::deadlist::edit as deadlist;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::{DatasetFlags, DatasetPhys};
use cenote_ondisk::object_type::ObjectType;
use cenote_pool::dsl::bookmark::bookmarks_of;
use cenote_pool::dsl::dataset::{origin_txg, snapshots_of};
use cenote_rt::ensure;

use crate::dsl::counts;
use crate::dsl::counts::Count;
use crate::dsl::space;
use crate::dsl::space::{Sizes, Use};
use crate::dsl::{
    Effects, Env, OpError, bookmark, crypto, errors, get_dataset, get_dir, history, names, new_zap,
    put_dataset, put_dir, room,
};
use crate::invariant;

/// A dataset with its number.
type Member = (u64, DatasetPhys);

/// The datasets involved.
struct Parts {
    /// The clone's dir and head.
    dir: u64,
    head: u64,
    /// The dir and head of its origin.
    origin_dir: u64,
    origin_head: u64,
    /// The snapshot that it was cloned from.
    origin: u64,
    /// The origin snapshot of the origin's dir.
    first_origin: u64,
    /// The origin and the older snapshots of its dir, newest first.
    shared: Vec<Member>,
    /// The clone's datasets after the origin, newest first.
    clone_line: Vec<Member>,
    /// The origin's datasets after the origin, newest first.
    origin_line: Vec<Member>,
}

/// Promotes the clone with this name.
pub(crate) fn promote(
    tx: &mut Tx<'_>,
    env: &Env,
    effects: &mut Effects,
    name: &str,
) -> TxResult<()> {
    let parts = gather(tx, env, name)?;
    let used = moved_sizes(tx, &parts)?;
    check(tx, env, &parts, used, name.len())?;
    let is_key_root = crypto::check_promotion(tx, parts.origin_dir, parts.dir)?;
    let first = parts.clone_line.last().map(|(object, _)| *object);
    // Checks SN1.
    let first = first.ok_or_else(|| invariant("a clone without a head".into()))?;

    if is_key_root {
        crypto::promote(tx, effects, parts.origin_dir, parts.dir)?;
    }
    relink_branch(tx, &parts, first)?;
    relink_dirs(tx, &parts)?;
    move_snapshots(tx, &parts)?;
    move_bookmarks(tx, &parts, first)?;
    let first_deadlist = get_dataset(tx, first)?.deadlist_obj;
    let mut origin = get_dataset(tx, parts.origin)?;
    origin.unique_bytes =
        deadlist::space_range(tx, first_deadlist, origin.prev_snap_txg, u64::MAX)?.used;
    put_dataset(tx, parts.origin, &origin)?;
    move_space(tx, &parts, used)?;
    errors::move_old(tx, parts.origin_head, parts.head, origin.creation_txg)?;
    history::log(tx, env, "promote", parts.head, "")
}

fn gather(tx: &mut Tx<'_>, env: &Env, name: &str) -> TxResult<Parts> {
    names::check_pool(env, name)?;
    names::check_visible(name)?;
    let head = names::dataset(tx, name)?;
    let phys = get_dataset(tx, head)?;
    if phys.is_snapshot() {
        return Err(OpError::NotAHead.into());
    }
    if phys.flags.contains(DatasetFlags::NOPROMOTE) {
        return Err(OpError::NoPromote.into());
    }
    let dir_phys = get_dir(tx, phys.dir_obj)?;
    let origin = dir_phys.origin_obj;
    if origin == 0 || origin_txg(tx, &dir_phys)? == 0 {
        return Err(OpError::NotAClone.into());
    }
    let origin_dir = get_dataset(tx, origin)?.dir_obj;
    let origin_dir_phys = get_dir(tx, origin_dir)?;
    let origin_head = origin_dir_phys.head_dataset_obj;
    let first_origin = origin_dir_phys.origin_obj;
    Ok(Parts {
        dir: phys.dir_obj,
        head,
        origin_dir,
        origin_head,
        origin,
        first_origin,
        shared: line(tx, origin, first_origin)?,
        clone_line: line(tx, head, origin)?,
        origin_line: line(tx, origin_head, origin)?,
    })
}

/// Returns the datasets from `from` back to `until`, exclusive.
fn line(tx: &mut Tx<'_>, from: u64, until: u64) -> TxResult<Vec<Member>> {
    let mut members = Vec::new();
    let mut at = from;
    while at != until && at != 0 {
        let phys = get_dataset(tx, at)?;
        let previous = phys.prev_snap_obj;
        members.push((at, phys));
        at = previous;
    }
    ensure!("SN1", at == until, "{from} does not go back to {until}");
    Ok(members)
}

/// Returns the space that moves with the shared snapshots: everything that the origin references or
/// that died before it, except what is older.
fn moved_sizes(tx: &mut Tx<'_>, parts: &Parts) -> TxResult<Sizes> {
    let mut used = referenced(&get_dataset(tx, parts.origin)?);
    for (_, phys) in &parts.shared {
        if phys.prev_snap_obj != 0 {
            used += Sizes::from(deadlist::space(tx, phys.deadlist_obj)?);
        }
    }
    if parts.first_origin != 0 {
        used -= referenced(&get_dataset(tx, parts.first_origin)?);
    }
    Ok(used)
}

fn referenced(phys: &DatasetPhys) -> Sizes {
    Sizes {
        used: phys.referenced_bytes as i64,
        compressed: phys.compressed_bytes as i64,
        uncompressed: phys.uncompressed_bytes as i64,
    }
}

fn check(tx: &mut Tx<'_>, env: &Env, parts: &Parts, used: Sizes, name_len: usize) -> TxResult<()> {
    if parts.shared.iter().any(|(object, _)| env.unwritten.contains(object)) {
        return Err(OpError::SameTxg.into());
    }
    room::check_pool(tx, env, room::Reserve::Half, 2 + parts.shared.len() as u64)?;
    let head = get_dataset(tx, parts.head)?;
    let origin_head = get_dataset(tx, parts.origin_head)?;
    let theirs = snapshots_of(tx, &origin_head)?;
    let mut count = 0;
    for (name, object) in &theirs {
        if !parts.shared.iter().any(|(shared, _)| shared == object) {
            continue;
        }
        names::check_length(name_len + 1 + name.len())?;
        if names::has_snapshot(tx, &head, name)? {
            return Err(OpError::Exists.into());
        }
        count += u64::from(!name.starts_with('%'));
    }
    let ours = bookmarks_of(tx, parts.head)?;
    let txg = get_dataset(tx, parts.origin)?.creation_txg;
    for (name, mark) in bookmarks_of(tx, parts.origin_head)? {
        if mark.creation_txg <= txg && ours.iter().any(|(our, _)| *our == name) {
            return Err(OpError::Exists.into());
        }
    }
    let bytes = u64::try_from(used.used).unwrap_or(0);
    let common = room::check_transfer(tx, env, parts.origin_dir, parts.dir, bytes)?;
    counts::check(tx, env, parts.dir, (Count::Snapshots, count), common)
}

/// Makes the clone's line the main one at the origin.
fn relink_branch(tx: &mut Tx<'_>, parts: &Parts, first: u64) -> TxResult<()> {
    let mut origin = get_dataset(tx, parts.origin)?;
    zap::remove_number(tx, origin.next_clones_obj, first)?;
    zap::insert_number(tx, origin.next_clones_obj, origin.next_snap_obj)?;
    origin.next_snap_obj = first;
    put_dataset(tx, parts.origin, &origin)
}

/// Exchanges the origins of the dirs.
fn relink_dirs(tx: &mut Tx<'_>, parts: &Parts) -> TxResult<()> {
    let mut origin_dir = get_dir(tx, parts.origin_dir)?;
    zap::remove_number(tx, origin_dir.clones, parts.head)?;
    origin_dir.origin_obj = parts.origin;
    put_dir(tx, parts.origin_dir, &origin_dir)?;
    if parts.first_origin != 0 {
        let above = get_dataset(tx, parts.first_origin)?.dir_obj;
        let clones = get_dir(tx, above)?.clones;
        zap::insert_number(tx, clones, parts.head)?;
        zap::remove_number(tx, clones, parts.origin_head)?;
    }
    let mut dir = get_dir(tx, parts.dir)?;
    if dir.clones == 0 {
        dir.clones = new_zap(tx, ObjectType::DSL_CLONES)?;
    }
    zap::insert_number(tx, dir.clones, parts.origin_head)?;
    dir.origin_obj = parts.first_origin;
    put_dir(tx, parts.dir, &dir)?;
    // Other clones of moved snapshots now have an origin in another dir.
    let old_next: Vec<u64> =
        parts.origin_line.last().map(|(object, _)| *object).into_iter().collect();
    for (_, shared) in &parts.shared {
        let next_clones = branches(tx, shared)?;
        for branch in next_clones.into_iter().filter(|branch| !old_next.contains(branch)) {
            let branch_dir = get_dataset(tx, branch)?.dir_obj;
            let head = get_dir(tx, branch_dir)?.head_dataset_obj;
            zap::remove_number(tx, origin_dir.clones, head)?;
            zap::insert_number(tx, dir.clones, head)?;
        }
    }
    Ok(())
}

/// Returns the branches at a shared snapshot.
fn branches(tx: &mut Tx<'_>, shared: &DatasetPhys) -> TxResult<Vec<u64>> {
    match shared.next_clones_obj {
        0 => Ok(Vec::new()),
        object => Ok(zap::numbers(tx, object)?.into_iter().map(|(number, _)| number).collect()),
    }
}

/// Moves the shared snapshots with their names and counts.
fn move_snapshots(tx: &mut Tx<'_>, parts: &Parts) -> TxResult<()> {
    let head = get_dataset(tx, parts.head)?;
    let origin_head = get_dataset(tx, parts.origin_head)?;
    let all = snapshots_of(tx, &origin_head)?;
    for (object, _) in &parts.shared {
        // Checks SN2.
        let Some((name, _)) = all.iter().find(|(_, named)| named == object) else {
            return Err(invariant(format!("snapshot {object} has no name")));
        };
        zap::remove(tx, origin_head.snapnames_zapobj, name)?;
        zap::insert(tx, head.snapnames_zapobj, name, *object)?;
        if !name.starts_with('%') {
            counts::adjust(tx, parts.origin_dir, Count::Snapshots, -1)?;
            counts::adjust(tx, parts.dir, Count::Snapshots, 1)?;
        }
        let mut phys = get_dataset(tx, *object)?;
        phys.dir_obj = parts.dir;
        put_dataset(tx, *object, &phys)?;
    }
    Ok(())
}

/// Moves bookmarks of points that are now in the clone's line.
fn move_bookmarks(tx: &mut Tx<'_>, parts: &Parts, first: u64) -> TxResult<()> {
    let txg = get_dataset(tx, parts.origin)?.creation_txg;
    for (name, mark) in bookmarks_of(tx, parts.origin_head)? {
        if mark.creation_txg <= txg {
            bookmark::take(tx, parts.origin_head, &name, &mark)?;
            bookmark::insert(tx, parts.head, &name, &mark)?;
        }
    }
    let next_deadlist = get_dataset(tx, first)?.deadlist_obj;
    bookmark::note_next_changed(tx, parts.head, txg, next_deadlist)
}

/// Moves the charged space between the dirs.
fn move_space(tx: &mut Tx<'_>, parts: &Parts, used: Sizes) -> TxResult<()> {
    let dir = get_dir(tx, parts.dir)?;
    let origin_dir = get_dir(tx, parts.origin_dir)?;
    // The clone's dir gets the origin of the origin's dir.
    let born_after = origin_txg(tx, &dir)?;
    let mut of_clone = 0;
    for (_, phys) in parts.shared.iter().chain(&parts.clone_line) {
        of_clone += deadlist::space_range(tx, phys.deadlist_obj, born_after, u64::MAX)?.used;
    }
    let txg = get_dataset(tx, parts.origin)?.creation_txg;
    let mut of_origin = 0;
    for (_, phys) in &parts.origin_line {
        of_origin += deadlist::space_range(tx, phys.deadlist_obj, txg, u64::MAX)?.used;
    }
    let bytes = |used: i64| Sizes { used, ..Sizes::default() };
    let delta = of_clone as i64 - dir.breakdown.snap as i64;
    space::did_use(tx, parts.dir, Use::Snap, bytes(delta))?;
    let head = Sizes { used: used.used - delta, ..used };
    space::did_use(tx, parts.dir, Use::Head, head)?;
    let delta = of_origin as i64 - origin_dir.breakdown.snap as i64;
    space::did_use(tx, parts.origin_dir, Use::Snap, bytes(delta))?;
    let head = Sizes { used: -used.used - delta, ..used.negated() };
    space::did_use(tx, parts.origin_dir, Use::Head, head)
}
