//! Reads the meta object set: entries of its ZAPs, bonus buffers, packed nvlists.
//!
//! The pool layer reads the MOS through these functions only, so that every error has the object
//! number, and a missing entry is `None` rather than an error.

use std::sync::Arc;

use cenote_dmu::{ObjSet, Zap};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::{Key, Value};
use cenote_rt::{Error, Kind, Result};

/// The object number of the pool directory.
pub const DIRECTORY: u64 = 1;

/// Entries of a ZAP with string keys.
pub(crate) type Entries = Vec<(String, Value)>;

/// Returns the type and contents of an object's bonus buffer.
pub(crate) async fn bonus(objset: &Arc<ObjSet>, object: u64) -> Result<(ObjectType, Vec<u8>)> {
    let dnode = objset.dnode(object).await?;
    Ok((dnode.phys().bonus_type, dnode.bonus()?.to_vec()))
}

pub(crate) async fn object_type(objset: &Arc<ObjSet>, object: u64) -> Result<ObjectType> {
    Ok(objset.dnode(object).await?.phys().object_type)
}

/// Returns the value of `name` in the ZAP in `object`.
pub(crate) async fn value(objset: &Arc<ObjSet>, object: u64, name: &str) -> Result<Option<Value>> {
    Zap::open(objset, object).await?.lookup(name).await
}

/// Returns the first integer of the value of `name`, or `None` if there is no such entry.
pub async fn u64(objset: &Arc<ObjSet>, object: u64, name: &str) -> Result<Option<u64>> {
    Ok(value(objset, object, name).await?.and_then(|value| value.first()))
}

/// Returns all entries with string keys, in ZAP order. Keys that are not UTF-8 are converted
/// lossily.
pub(crate) async fn entries(objset: &Arc<ObjSet>, object: u64) -> Result<Entries> {
    let mut cursor = Zap::open(objset, object).await?.entries();
    let mut entries = Vec::new();
    while let Some(entry) = cursor.next().await? {
        if let Key::Name(name) = entry.key {
            entries.push((String::from_utf8_lossy(&name).into_owned(), entry.value));
        }
    }
    Ok(entries)
}

/// Returns an extra key of a dir or dataset, `None` if it is not zapified.
pub(crate) async fn extra(objset: &Arc<ObjSet>, object: u64, key: &str) -> Result<Option<Value>> {
    if object_type(objset, object).await? != ObjectType::ZAP_METADATA {
        return Ok(None);
    }
    value(objset, object, key).await
}

/// Converts a "not found" error to `None`.
pub(crate) fn optional<T>(result: Result<T>) -> Result<Option<T>> {
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
