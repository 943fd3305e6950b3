//! From names to objects and back, as the open transaction has them (spec 04 §6).

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::{DatasetFlags, DatasetPhys, key};
use cenote_ondisk::zap::{Key, MatchKind};
use cenote_pool::dsl::DatasetName;
use cenote_pool::dsl::name::{BadName, NAME_MAX};

use crate::dsl::{Env, OpError, get_dataset, get_dir, need_directory_object};

/// A new dataset's name has fewer slashes than this (`zfs_max_dataset_nesting`).
pub(crate) const NESTING_MAX: usize = 50;
/// Deeper chains of dirs than names can be long are loops.
pub(super) const DEPTH_MAX: usize = 256;

/// A dataset name taken apart: `pool/dir/dir@snapshot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name<'a> {
    /// The whole dataset part.
    pub(crate) dataset: &'a str,
    /// The snapshot, if one is named.
    pub(crate) snapshot: Option<&'a str>,
}

impl<'a> Name<'a> {
    /// Takes a name apart.
    pub(crate) fn parse(name: &'a str) -> Self {
        match name.split_once('@') {
            Some((dataset, snapshot)) => Self { dataset, snapshot: Some(snapshot) },
            None => Self { dataset: name, snapshot: None },
        }
    }

    /// The parent's name and the last component; `None` for the root.
    pub(crate) fn split_last(&self) -> Option<(&'a str, &'a str)> {
        self.dataset.rsplit_once('/')
    }
}

/// Refuses names that nothing new may have.
pub(crate) fn check_new(env: &Env, name: &str) -> TxResult<()> {
    check_form(name)?;
    if name.contains(['%', '$']) {
        return Err(OpError::Name.into());
    }
    if depth(name) >= NESTING_MAX {
        return Err(OpError::NameTooLong.into());
    }
    check_pool(env, name)
}

/// Refuses what is no name at all.
fn check_form(name: &str) -> TxResult<()> {
    match DatasetName::parse(name) {
        Ok(_) => Ok(()),
        Err(BadName::TooLong) => Err(OpError::NameTooLong.into()),
        Err(_) => Err(OpError::Name.into()),
    }
}

/// Refuses names of other pools.
pub(crate) fn check_pool(env: &Env, name: &str) -> TxResult<()> {
    // What the pool has for itself is nobody's.
    if name.contains('$') {
        return Err(OpError::NotFound.into());
    }
    let pool = name.split(['/', '@', '#']).next();
    if pool == Some(env.pool.as_str()) { Ok(()) } else { Err(OpError::OtherPool.into()) }
}

/// Slashes of the dataset part.
pub(crate) fn depth(name: &str) -> usize {
    name.split(['@', '#']).next().unwrap_or_default().matches('/').count()
}

/// Refuses a length that no whole name may have.
pub(crate) fn check_length(len: usize) -> TxResult<()> {
    if len >= NAME_MAX { Err(OpError::NameTooLong.into()) } else { Ok(()) }
}

/// The dir of that name. The first component is the pool's and is not looked at.
pub(crate) fn dir(tx: &mut Tx<'_>, dataset: &str) -> TxResult<u64> {
    let mut object = need_directory_object(tx, key::ROOT_DATASET)?;
    for component in dataset.split('/').skip(1) {
        let children = get_dir(tx, object)?.child_dir_zapobj;
        object = zap::lookup_u64(tx, children, component)?.ok_or(OpError::NotFound)?;
    }
    Ok(object)
}

/// The head of that name.
pub(crate) fn head(tx: &mut Tx<'_>, dataset: &str) -> TxResult<u64> {
    let dir = dir(tx, dataset)?;
    match get_dir(tx, dir)?.head_dataset_obj {
        0 => Err(OpError::NotFound.into()),
        head => Ok(head),
    }
}

/// The snapshot of a head.
pub(crate) fn snapshot(tx: &mut Tx<'_>, head: &DatasetPhys, name: &str) -> TxResult<u64> {
    // The names meet by upper case; whether other spellings count depends on the file system.
    let found = if head.flags.contains(DatasetFlags::CI_DATASET) {
        zap::lookup_normalized(tx, head.snapnames_zapobj, name.as_bytes(), MatchKind::Normalized)?
            .and_then(|entry| entry.value.first())
    } else {
        zap::lookup_u64(tx, head.snapnames_zapobj, name)?
    };
    found.ok_or_else(|| OpError::NotFound.into())
}

/// Whether the head has a snapshot of that name.
pub(crate) fn has_snapshot(tx: &mut Tx<'_>, head: &DatasetPhys, name: &str) -> TxResult<bool> {
    found(snapshot(tx, head, name))
}

/// Makes a missing dataset an answer.
pub(crate) fn found(result: TxResult<u64>) -> TxResult<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(step) if is_missing(&step) => Ok(false),
        Err(step) => Err(step),
    }
}

/// Whether a look-up failed because nothing of that name is there.
pub(crate) fn is_missing(step: &cenote_dmu::TxStop) -> bool {
    let cause = step.error().and_then(|error| error.cause::<OpError>());
    matches!(cause, Some(OpError::NotFound))
}

/// The dataset of that name, snapshot or head.
pub(crate) fn dataset(tx: &mut Tx<'_>, name: &str) -> TxResult<u64> {
    let name = Name::parse(name);
    let object = head(tx, name.dataset)?;
    match name.snapshot {
        None => Ok(object),
        Some(snapshot_name) => {
            let head = get_dataset(tx, object)?;
            snapshot(tx, &head, snapshot_name)
        }
    }
}

/// The snapshot of that name.
pub(crate) fn snapshot_of(tx: &mut Tx<'_>, name: &str) -> TxResult<u64> {
    if Name::parse(name).snapshot.is_none() {
        return Err(OpError::NotASnapshot.into());
    }
    dataset(tx, name)
}

/// The name of a snapshot in its head's list.
pub(crate) fn name_of_snapshot(tx: &mut Tx<'_>, object: u64) -> TxResult<String> {
    let snapshot = get_dataset(tx, object)?;
    let dir = get_dir(tx, snapshot.dir_obj)?;
    let head = get_dataset(tx, dir.head_dataset_obj)?;
    let name = zap::name_of(tx, head.snapnames_zapobj, object, u64::MAX)?;
    let name = name.ok_or(OpError::NotFound)?;
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// The whole name of a head of the pool.
pub(crate) fn name_below(tx: &mut Tx<'_>, pool: &str, head: u64) -> TxResult<String> {
    let dir = get_dataset(tx, head)?.dir_obj;
    dir_below(tx, pool, dir)
}

/// The whole name of a dir.
pub(crate) fn name_of_dir(tx: &mut Tx<'_>, env: &Env, object: u64) -> TxResult<String> {
    dir_below(tx, &env.pool, object)
}

fn dir_below(tx: &mut Tx<'_>, pool: &str, object: u64) -> TxResult<String> {
    let mut name = String::new();
    let mut at = object;
    for _ in 0..DEPTH_MAX {
        let parent = get_dir(tx, at)?.parent_obj;
        if parent == 0 {
            break;
        }
        let siblings = get_dir(tx, parent)?.child_dir_zapobj;
        let last = zap::name_of(tx, siblings, at, u64::MAX)?.ok_or(OpError::NotFound)?;
        name = format!("/{}{name}", String::from_utf8_lossy(&last));
        at = parent;
    }
    Ok(format!("{pool}{name}"))
}

/// The whole name of a dataset.
pub(crate) fn name_of(tx: &mut Tx<'_>, env: &Env, object: u64) -> TxResult<String> {
    let phys = get_dataset(tx, object)?;
    let dir = name_of_dir(tx, env, phys.dir_obj)?;
    if !phys.is_snapshot() {
        return Ok(dir);
    }
    Ok(format!("{dir}@{}", name_of_snapshot(tx, object)?))
}

/// The children of a dir as (name, dir), those of the pool itself left out.
pub(crate) fn children(tx: &mut Tx<'_>, dir: u64) -> TxResult<Vec<(String, u64)>> {
    let map = get_dir(tx, dir)?.child_dir_zapobj;
    let mut children = Vec::new();
    for (name, child) in zap_names(tx, map)? {
        if !name.starts_with('$') {
            children.push((name, child));
        }
    }
    Ok(children)
}

/// The snapshots of a head as (name, dataset).
pub(crate) fn snapshots(tx: &mut Tx<'_>, head: &DatasetPhys) -> TxResult<Vec<(String, u64)>> {
    zap_names(tx, head.snapnames_zapobj)
}

/// The text of a key.
pub(crate) fn text(key: &Key) -> Option<&str> {
    std::str::from_utf8(key.name()?).ok()
}

fn zap_names(tx: &mut Tx<'_>, map: u64) -> TxResult<Vec<(String, u64)>> {
    let entries = zap::entries(tx, map)?.into_iter();
    Ok(entries
        .filter_map(|entry| {
            let name = text(&entry.key)?.to_owned();
            Some((name, entry.value.first()?))
        })
        .collect())
}
