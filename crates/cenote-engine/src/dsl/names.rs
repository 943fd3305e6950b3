//! Finds objects by name and names by object, in the open transaction (spec 04 §6).

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::{DatasetPhys, DirPhys, key};
use cenote_pool::dsl::DatasetName;
use cenote_pool::dsl::dataset::find_snapshot;
use cenote_pool::dsl::dir::{ancestry, children_of, find_dir};
use cenote_pool::dsl::name::{BadName, NAME_MAX};

use crate::dsl::{Env, OpError, get_dataset, get_dir, need_directory_object};

/// Names of new datasets have fewer slashes than this (`zfs_max_dataset_nesting`).
pub(crate) const NESTING_MAX: usize = 50;

/// A split dataset name: `pool/dir/dir@snapshot`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name<'a> {
    /// The dataset part.
    pub(crate) dataset: &'a str,
    /// The snapshot, if there is one.
    pub(crate) snapshot: Option<&'a str>,
}

impl<'a> Name<'a> {
    /// Splits a name.
    pub(crate) fn parse(name: &'a str) -> Self {
        match name.split_once('@') {
            Some((dataset, snapshot)) => Self { dataset, snapshot: Some(snapshot) },
            None => Self { dataset: name, snapshot: None },
        }
    }

    /// Returns the parent's name and the last component, `None` for the root.
    pub(crate) fn split_last(&self) -> Option<(&'a str, &'a str)> {
        self.dataset.rsplit_once('/')
    }
}

/// Refuses names that a new dataset cannot have.
pub(crate) fn check_new(env: &Env, name: &str) -> TxResult<()> {
    check_form(name)?;
    check_visible(name)?;
    if depth(name) >= NESTING_MAX {
        return Err(OpError::NameTooLong.into());
    }
    check_pool(env, name)
}

/// Refuses invalid names.
fn check_form(name: &str) -> TxResult<()> {
    match DatasetName::parse(name) {
        Ok(_) => Ok(()),
        Err(BadName::TooLong) => Err(OpError::NameTooLong.into()),
        Err(_) => Err(OpError::Name.into()),
    }
}

/// Refuses names of hidden datasets: none is made by a user, and an unfinished receive must not be
/// moved, nor become an owner of snapshots.
pub(crate) fn check_visible(name: &str) -> TxResult<()> {
    if name.contains(['%', '$']) { Err(OpError::Name.into()) } else { Ok(()) }
}

/// Refuses names of other pools.
pub(crate) fn check_pool(env: &Env, name: &str) -> TxResult<()> {
    // Internal datasets of the pool.
    if name.contains('$') {
        return Err(OpError::NotFound.into());
    }
    let pool = name.split(['/', '@', '#']).next();
    if pool == Some(env.pool.as_str()) { Ok(()) } else { Err(OpError::OtherPool.into()) }
}

/// Returns the number of slashes of the dataset part.
pub(crate) fn depth(name: &str) -> usize {
    name.split(['@', '#']).next().unwrap_or_default().matches('/').count()
}

/// Refuses a length above that of names.
pub(crate) fn check_length(len: usize) -> TxResult<()> {
    if len >= NAME_MAX { Err(OpError::NameTooLong.into()) } else { Ok(()) }
}

/// Returns the dir with this name. The first component is the pool's and is ignored.
pub(crate) fn dir(tx: &mut Tx<'_>, dataset: &str) -> TxResult<u64> {
    Ok(find(tx, dataset)?.0)
}

fn find(tx: &mut Tx<'_>, dataset: &str) -> TxResult<(u64, DirPhys)> {
    let root = need_directory_object(tx, key::ROOT_DATASET)?;
    find_dir(tx, root, dataset.split('/').skip(1))?.ok_or_else(|| OpError::NotFound.into())
}

/// Returns the head with this name.
pub(crate) fn head(tx: &mut Tx<'_>, dataset: &str) -> TxResult<u64> {
    match find(tx, dataset)?.1.head_dataset_obj {
        0 => Err(OpError::NotFound.into()),
        head => Ok(head),
    }
}

/// Returns a snapshot of a head, with the file system's rules for case.
pub(crate) fn snapshot(tx: &mut Tx<'_>, head: &DatasetPhys, name: &str) -> TxResult<u64> {
    let (_, snapshot) = find_snapshot(tx, head, name)?.ok_or(OpError::NotFound)?;
    Ok(snapshot)
}

pub(crate) fn has_snapshot(tx: &mut Tx<'_>, head: &DatasetPhys, name: &str) -> TxResult<bool> {
    found(snapshot(tx, head, name))
}

/// Converts a missing dataset to `false`.
pub(crate) fn found(result: TxResult<u64>) -> TxResult<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(step) if is_missing(&step) => Ok(false),
        Err(step) => Err(step),
    }
}

/// Whether a lookup failed because the name does not exist.
pub(crate) fn is_missing(step: &cenote_dmu::TxStop) -> bool {
    let cause = step.error().and_then(|error| error.cause::<OpError>());
    matches!(cause, Some(OpError::NotFound))
}

/// Returns the dataset with this name, snapshot or head.
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

pub(crate) fn snapshot_of(tx: &mut Tx<'_>, name: &str) -> TxResult<u64> {
    if Name::parse(name).snapshot.is_none() {
        return Err(OpError::NotASnapshot.into());
    }
    dataset(tx, name)
}

/// Returns the name of a snapshot from its head's list.
pub(crate) fn name_of_snapshot(tx: &mut Tx<'_>, object: u64) -> TxResult<String> {
    let snapshot = get_dataset(tx, object)?;
    let dir = get_dir(tx, snapshot.dir_obj)?;
    let head = get_dataset(tx, dir.head_dataset_obj)?;
    let name = zap::name_of(tx, head.snapnames_zapobj, object, u64::MAX)?;
    let name = name.ok_or(OpError::NotFound)?;
    Ok(String::from_utf8_lossy(&name).into_owned())
}

/// Returns the full name of a head.
pub(crate) fn name_below(tx: &mut Tx<'_>, pool: &str, head: u64) -> TxResult<String> {
    let dir = get_dataset(tx, head)?.dir_obj;
    dir_below(tx, pool, dir)
}

/// Returns the full name of a dir.
pub(crate) fn name_of_dir(tx: &mut Tx<'_>, env: &Env, object: u64) -> TxResult<String> {
    dir_below(tx, &env.pool, object)
}

fn dir_below(tx: &mut Tx<'_>, pool: &str, object: u64) -> TxResult<String> {
    let dirs = ancestry(tx, object)?;
    let mut name = pool.to_owned();
    for ((child, _), (_, parent)) in dirs.iter().zip(dirs.iter().skip(1)).rev() {
        let last = zap::name_of(tx, parent.child_dir_zapobj, *child, u64::MAX)?;
        name += "/";
        name += &String::from_utf8_lossy(&last.ok_or(OpError::NotFound)?);
    }
    Ok(name)
}

/// Returns the full name of a dataset.
pub(crate) fn name_of(tx: &mut Tx<'_>, env: &Env, object: u64) -> TxResult<String> {
    let phys = get_dataset(tx, object)?;
    let dir = name_of_dir(tx, env, phys.dir_obj)?;
    if !phys.is_snapshot() {
        return Ok(dir);
    }
    Ok(format!("{dir}@{}", name_of_snapshot(tx, object)?))
}

/// Returns the children of a dir as (name, dir), without `$ORIGIN` and the like.
pub(crate) fn children(tx: &mut Tx<'_>, dir: u64) -> TxResult<Vec<(String, u64)>> {
    let mut children = children_of(tx, dir)?;
    children.retain(|(name, _)| !name.starts_with('$'));
    Ok(children)
}
