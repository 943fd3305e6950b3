//! From names to objects, as the open transaction has them (spec 04 §6).

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::{DatasetFlags, DatasetPhys, key};
use cenote_ondisk::zap::MatchKind;

use super::{OpError, get_dataset, get_dir, need_directory_object};

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

/// The name of a snapshot in its head's list.
pub(crate) fn name_of_snapshot(tx: &mut Tx<'_>, object: u64) -> TxResult<String> {
    let snapshot = get_dataset(tx, object)?;
    let dir = get_dir(tx, snapshot.dir_obj)?;
    let head = get_dataset(tx, dir.head_dataset_obj)?;
    let name = zap::name_of(tx, head.snapnames_zapobj, object, u64::MAX)?;
    let name = name.ok_or(OpError::NotFound)?;
    Ok(String::from_utf8_lossy(&name).into_owned())
}
