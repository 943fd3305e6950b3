//! Reads the meta object set: entries of its ZAPs, bonus buffers, packed nvlists.
//!
//! The functions over [`ReadObjects`] read a committed state as well as the open one, where a
//! missing entry is `None` rather than an error. The async ones read a committed state; every error
//! has the object number.

use std::sync::Arc;

use cenote_dmu::zap::read as zap;
use cenote_dmu::{ObjSet, ReadObjects, TxResult};
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::{Key, MatchKind, Value};
use cenote_rt::{Error, Kind, Result};

use crate::dsl::DslError;

/// The object number of the pool directory.
pub const DIRECTORY: u64 = 1;

/// Entries of a ZAP with string keys.
pub(crate) type Entries = Vec<(String, Value)>;

/// Returns the object of an entry of the pool directory, `None` if it is missing or 0.
pub fn directory_object(objects: &mut dyn ReadObjects, name: &str) -> TxResult<Option<u64>> {
    Ok(zap::lookup_u64(objects, DIRECTORY, name)?.filter(|object| *object != 0))
}

/// Returns the dnode of a dir or dataset, which is recognised by the type of its bonus.
pub(crate) fn dnode_with(
    objects: &mut dyn ReadObjects,
    object: u64,
    bonus_type: ObjectType,
) -> TxResult<Arc<DnodePhys>> {
    let dnode = objects.dnode(object)?;
    let (found, expected) = (dnode.bonus_type.0, bonus_type.0);
    if found != expected {
        return Err(corrupt(object)(DslError::BonusType { object, found, expected }).into());
    }
    Ok(dnode)
}

/// Returns all entries with string keys, in ZAP order. Keys that are not UTF-8 are converted
/// lossily.
pub fn named(objects: &mut dyn ReadObjects, zap: u64) -> TxResult<Vec<(String, Value)>> {
    let name = |key| match key {
        Key::Name(name) => Some(String::from_utf8_lossy(&name).into_owned()),
        Key::Words(_) => None,
    };
    let entries = zap::entries(objects, zap)?.into_iter();
    Ok(entries.filter_map(|entry| Some((name(entry.key)?, entry.value))).collect())
}

/// Returns all entries with string keys and numbers, in ZAP order.
pub fn numbered(objects: &mut dyn ReadObjects, zap: u64) -> TxResult<Vec<(String, u64)>> {
    let entries = named(objects, zap)?.into_iter();
    Ok(entries.filter_map(|(name, value)| Some((name, value.first()?))).collect())
}

/// Returns the entry of a snapshot or bookmark with its name as stored. If `is_folded`, case does
/// not matter; the ZAP determines which of several names is found.
pub(crate) fn find(
    objects: &mut dyn ReadObjects,
    zap: u64,
    name: &str,
    is_folded: bool,
) -> TxResult<Option<(String, Value)>> {
    let kind = if is_folded { MatchKind::Normalized } else { MatchKind::Exact };
    let found = zap::find(objects, zap, name.as_bytes(), kind)?;
    Ok(found.map(|(stored, value)| (String::from_utf8_lossy(&stored).into_owned(), value)))
}

/// Whether a dir or dataset is zapified, so that it can have extra keys (spec 04 §4).
pub fn is_zapified(objects: &mut dyn ReadObjects, object: u64) -> TxResult<bool> {
    Ok(objects.dnode(object)?.object_type == ObjectType::ZAP_METADATA)
}

/// Returns an extra key of a dir or dataset, `None` if it is not zapified.
pub fn extra_value(
    objects: &mut dyn ReadObjects,
    object: u64,
    key: &str,
) -> TxResult<Option<Value>> {
    if is_zapified(objects, object)? { zap::lookup(objects, object, key) } else { Ok(None) }
}

/// Returns the type and contents of an object's bonus buffer.
pub(crate) async fn bonus(objset: &Arc<ObjSet>, object: u64) -> Result<(ObjectType, Vec<u8>)> {
    objset.read(|objects| Ok((objects.dnode(object)?.bonus_type, objects.bonus(object)?))).await
}

pub(crate) async fn object_type(objset: &Arc<ObjSet>, object: u64) -> Result<ObjectType> {
    objset.read(|objects| Ok(objects.dnode(object)?.object_type)).await
}

/// Returns the value of `name` in the ZAP in `object`.
pub(crate) async fn value(objset: &Arc<ObjSet>, object: u64, name: &str) -> Result<Option<Value>> {
    objset.read(|objects| zap::lookup(objects, object, name)).await
}

/// Returns the first integer of the value of `name`, or `None` if there is no such entry.
pub async fn u64(objset: &Arc<ObjSet>, object: u64, name: &str) -> Result<Option<u64>> {
    Ok(value(objset, object, name).await?.and_then(|value| value.first()))
}

/// Like [`named`], of a committed state.
pub(crate) async fn entries(objset: &Arc<ObjSet>, object: u64) -> Result<Entries> {
    objset.read(|objects| named(objects, object)).await
}

/// Like [`extra_value`], of a committed state.
pub(crate) async fn extra(objset: &Arc<ObjSet>, object: u64, key: &str) -> Result<Option<Value>> {
    objset.read(|objects| extra_value(objects, object, key)).await
}

/// Separates errors that concern one object, which a reader may report or leave out, from those
/// that end the reader ([`Kind::is_interruption`]): without this, a list would lack objects that
/// exist.
///
/// # Errors
/// Errors that end the reader.
pub fn unless_interrupted<T>(result: Result<T>) -> Result<Result<T>> {
    match result {
        Err(error) if error.kind().is_interruption() => Err(error),
        other => Ok(other),
    }
}

/// Converts a "not found" error to `None`.
///
/// # Errors
/// All others.
pub fn optional<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Converts a decoder's error to an error that names the MOS object.
pub(crate) fn corrupt<E>(object: u64) -> impl FnOnce(E) -> Error
where
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    move |cause| Error::corrupt(cause).in_object(0, object)
}
