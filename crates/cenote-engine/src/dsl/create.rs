//! Creates dirs and datasets (spec 04 §5, §14.1).

use cenote_dmu::deadlist::edit as deadlist;
use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit::{self as zap, ZapOptions};
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dsl::dir::DIR_FLAG_USED_BREAKDOWN;
use cenote_ondisk::dsl::{DatasetFlags, DatasetPhys, DirPhys, SpaceUse, key};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::NormFlags;
use cenote_rt::seeded::{Bug, is_on};

use crate::dsl::{
    Context, Env, OpError, blocks, counts, crypto, deleg, features, get_dataset, get_dir, history,
    names, new_bonus_object, new_zap, put_dataset, put_dir, snapshot,
};

/// Creation txg of datasets that are created with the pool: before the first txg.
pub(crate) const TXG_BEFORE_FIRST: u64 = 1;
/// The first txg of a pool.
pub(crate) const TXG_INITIAL: u64 = 4;

/// Creates a dir without a head. `parent` 0 makes it the root dir, which the pool directory names.
pub(crate) fn dir(tx: &mut Tx<'_>, ctx: &Context, parent: u64, name: &str) -> TxResult<u64> {
    let props = new_zap(tx, ObjectType::DSL_PROPS)?;
    let children = new_zap(tx, ObjectType::DSL_DIR_CHILD_MAP)?;
    let phys = DirPhys {
        creation_time: ctx.now,
        head_dataset_obj: 0,
        parent_obj: parent,
        origin_obj: 0,
        child_dir_zapobj: children,
        used_bytes: 0,
        compressed_bytes: 0,
        uncompressed_bytes: 0,
        quota: 0,
        reserved: 0,
        props_zapobj: props,
        deleg_zapobj: 0,
        flags: DIR_FLAG_USED_BREAKDOWN,
        breakdown: SpaceUse::default(),
        clones: 0,
        pad: [0; 13],
    };
    let object = new_bonus_object(tx, ObjectType::DSL_DIR, &phys.encode())?;
    if parent == 0 {
        zap::insert(tx, cenote_pool::mos::DIRECTORY, key::ROOT_DATASET, object)?;
    } else {
        let siblings = get_dir(tx, parent)?.child_dir_zapobj;
        zap::insert(tx, siblings, name, object)?;
    }
    Ok(object)
}

/// Creates a dir below `parent` for a user's dataset, and counts it.
fn child_dir(tx: &mut Tx<'_>, env: &Env, parent: u64, name: &str) -> TxResult<u64> {
    counts::add_filesystem(tx, env, parent, name)?;
    let object = dir(tx, env, parent, name)?;
    if features::is_active(tx, "filesystem_limits")? {
        blocks::zapify(tx, object)?;
        zap::insert(tx, object, key::FILESYSTEM_COUNT, 0)?;
        zap::insert(tx, object, key::SNAPSHOT_COUNT, 0)?;
    }
    Ok(object)
}

/// Returns a dataset that was never written.
fn empty_dataset(ctx: &Context, dir: u64, serial: u64) -> DatasetPhys {
    let creation_txg = if ctx.txg == TXG_INITIAL { TXG_BEFORE_FIRST } else { ctx.txg };
    DatasetPhys {
        dir_obj: dir,
        prev_snap_obj: 0,
        prev_snap_txg: 0,
        next_snap_obj: 0,
        snapnames_zapobj: 0,
        num_children: 0,
        creation_time: ctx.now,
        creation_txg,
        deadlist_obj: 0,
        referenced_bytes: 0,
        compressed_bytes: 0,
        uncompressed_bytes: 0,
        unique_bytes: 0,
        fsid_guid: ctx.fsid_guid(2 * serial),
        guid: ctx.guid(2 * serial + 1),
        flags: DatasetFlags::UNIQUE_ACCURATE,
        bp: BlockPtr::default(),
        next_clones_obj: 0,
        props_obj: 0,
        userrefs_obj: 0,
        pad: [0; 5],
    }
}

/// Creates a snapshot name ZAP. It is always normalized to upper case.
fn snapshot_names(tx: &mut Tx<'_>) -> TxResult<u64> {
    let spec = ObjectSpec::new(ObjectType::DSL_DS_SNAP_MAP, 0);
    zap::create(tx, &spec, ZapOptions { normflags: NormFlags::TOUPPER, ..ZapOptions::default() })
}

/// Creates `$ORIGIN` in a new pool: an empty head and its snapshot, which is the origin of all
/// others. Returns the snapshot.
pub(crate) fn origin(tx: &mut Tx<'_>, ctx: &Context, root_dir: u64) -> TxResult<u64> {
    let dir_object = dir(tx, ctx, root_dir, key::ORIGIN_DIR)?;
    let mut head = empty_dataset(ctx, dir_object, 0);
    head.snapnames_zapobj = snapshot_names(tx)?;
    let head_object = new_bonus_object(tx, ObjectType::DSL_DATASET, &head.encode())?;
    let snapshot = DatasetPhys {
        next_snap_obj: head_object,
        snapnames_zapobj: 0,
        num_children: 1,
        deadlist_obj: deadlist::create(tx)?,
        fsid_guid: ctx.fsid_guid(8),
        guid: ctx.guid(9),
        ..head.clone()
    };
    let snapshot_object = new_bonus_object(tx, ObjectType::DSL_DATASET, &snapshot.encode())?;
    zap::insert(tx, head.snapnames_zapobj, key::ORIGIN_DIR, snapshot_object)?;
    head.prev_snap_obj = snapshot_object;
    head.prev_snap_txg = TXG_BEFORE_FIRST;
    head.deadlist_obj = deadlist::create(tx)?;
    deadlist::add_key(tx, head.deadlist_obj, 0)?;
    put_dataset(tx, head_object, &head)?;
    let mut phys = get_dir(tx, dir_object)?;
    phys.head_dataset_obj = head_object;
    put_dir(tx, dir_object, &phys)?;
    Ok(snapshot_object)
}

/// Creates a head in `dir` with the contents of the snapshot `origin`, which is that of `$ORIGIN`
/// for all but clones. Returns its object.
pub(crate) fn head(tx: &mut Tx<'_>, ctx: &Context, dir: u64, origin: u64) -> TxResult<u64> {
    let mut from = get_dataset(tx, origin)?;
    let origin_dir = from.dir_obj;
    let mut dir_phys = get_dir(tx, dir)?;
    let mut phys = empty_dataset(ctx, dir, dir);
    phys.snapnames_zapobj = snapshot_names(tx)?;
    phys.prev_snap_obj = origin;
    phys.prev_snap_txg = from.creation_txg;
    phys.referenced_bytes = from.referenced_bytes;
    phys.compressed_bytes = from.compressed_bytes;
    phys.uncompressed_bytes = from.uncompressed_bytes;
    phys.bp = from.bp;
    phys.flags |= from.flags & (DatasetFlags::INCONSISTENT | DatasetFlags::CI_DATASET);
    let mut origin_dir_phys = get_dir(tx, origin_dir)?;
    let origin_head = get_dataset(tx, origin_dir_phys.head_dataset_obj)?;
    phys.deadlist_obj = deadlist::clone_keys(tx, origin_head.deadlist_obj, from.creation_txg)?;
    let object = new_bonus_object(tx, ObjectType::DSL_DATASET, &phys.encode())?;

    from.num_children += u64::from(!is_on(Bug::CloneNotCounted));
    if from.next_clones_obj == 0 {
        from.next_clones_obj = new_zap(tx, ObjectType::NEXT_CLONES)?;
    }
    zap::insert_number(tx, from.next_clones_obj, object)?;
    put_dataset(tx, origin, &from)?;

    if origin_dir_phys.clones == 0 {
        origin_dir_phys.clones = new_zap(tx, ObjectType::DSL_CLONES)?;
        put_dir(tx, origin_dir, &origin_dir_phys)?;
    }
    zap::insert_number(tx, origin_dir_phys.clones, object)?;
    snapshot::copy_features(tx, origin, object)?;
    crypto::share(tx, origin_dir, dir)?;

    dir_phys.origin_obj = origin;
    dir_phys.head_dataset_obj = object;
    put_dir(tx, dir, &dir_phys)?;
    Ok(object)
}

/// Creates a file system or volume with the contents of `origin`. Grants the requester the
/// create-time permissions. Returns its object.
pub(crate) fn dataset(
    tx: &mut Tx<'_>,
    env: &Env,
    name: &str,
    origin: Option<u64>,
) -> TxResult<u64> {
    let head = unlogged(tx, env, name, origin)?;
    match origin {
        Some(origin) => {
            let text = format!("origin={} ({origin})", names::name_of(tx, env, origin)?);
            history::log(tx, env, "clone", head, &text)?;
        }
        None => history::log(tx, env, "create", head, "")?,
    }
    Ok(head)
}

/// Like [`dataset`], for a caller that writes its own history record.
pub(crate) fn unlogged(
    tx: &mut Tx<'_>,
    env: &Env,
    name: &str,
    origin: Option<u64>,
) -> TxResult<u64> {
    names::check_new(env, name)?;
    let name = names::Name::parse(name);
    if name.snapshot.is_some() || name.dataset.contains('#') {
        return Err(OpError::Name.into());
    }
    let (parent, last) = name.split_last().ok_or(OpError::Exists)?;
    let parent = names::dir(tx, parent)?;
    if names::found(names::dir(tx, name.dataset))? {
        return Err(OpError::Exists.into());
    }
    if env.parent.is_none_or(|parent| parent != ObjSetType::Zfs) {
        return Err(OpError::WrongParent.into());
    }
    let dir = child_dir(tx, env, parent, last)?;
    let from = match origin {
        Some(origin) => origin,
        None => crate::dsl::origin_snapshot(tx)?,
    };
    let head = head(tx, env, dir, from)?;
    deleg::copy_create_time(tx, env, dir)?;
    Ok(head)
}

/// Creates a clone of the snapshot `origin`. Returns its object.
pub(crate) fn clone(tx: &mut Tx<'_>, env: &Env, name: &str, origin: &str) -> TxResult<u64> {
    names::check_pool(env, origin)?;
    let origin = names::snapshot_of(tx, origin)?;
    let phys = get_dataset(tx, origin)?;
    // Its branch would begin in the txg of its origin.
    if phys.creation_txg >= env.txg {
        return Err(OpError::SameTxg.into());
    }
    dataset(tx, env, name, Some(origin))
}
