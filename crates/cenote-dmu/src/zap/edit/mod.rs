//! Changes ZAPs. The functions of [`super::read`] are here, too.
//!
//!     create ──> micro: one slot is written per change
//!                  | another value than one u64, a name of 50 bytes, 128 KiB full, ...
//!                  v
//!                fat: a leaf, and the count in the header, are written per change   (`fat`)
//!
//! Keys are names or words ([`KeyRef`]); `&str`, bytes and `&[u64]` convert. A u64 converts to a
//! value. A ZAP's flags alone determine its kind of keys; keys of the other kind are refused.
//!
//! When entries are removed, leaves join and free blocks become holes, but the ZAP stays fat.
//!
//! Sources: spec 03 §1-§7.

mod create;
mod fat;
mod micro;
mod numbered;
#[cfg(test)]
mod tests;

use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::{KeyRef, VALUE_LEN_MAX, Value, micro_edit};
use cenote_rt::Kind;

use super::ZapError;
use super::fat::Fat;
use super::read::{Body, check_key, decode_micro, missing, open, printable};
use crate::live::{TxResult, TxStop};
use crate::objects::{Objects, fail, failure};

pub use super::read::{
    Page, contains, entries, entries_from, find, len, lookup, lookup_normalized, lookup_u64,
    name_of, require_u64,
};
pub use create::{ZapOptions, create, format};
pub use micro::fill;
pub use numbered::{contains_number, hex_key, insert_number, numbers, remove_number};

/// What to do if the key exists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Present {
    Refuse,
    Replace,
}

/// Adds an entry; `Kind::Exists` if the key exists.
pub fn insert<'k>(
    tx: &mut dyn Objects,
    object: u64,
    key: impl Into<KeyRef<'k>>,
    value: impl Into<Value>,
) -> TxResult<()> {
    put(tx, object, &key.into(), &value.into(), Present::Refuse)
}

/// Sets the value of a key, whether it exists or not.
pub fn update<'k>(
    tx: &mut dyn Objects,
    object: u64,
    key: impl Into<KeyRef<'k>>,
    value: impl Into<Value>,
) -> TxResult<()> {
    put(tx, object, &key.into(), &value.into(), Present::Replace)
}

/// Removes an entry; `Kind::NotFound` if the key does not exist.
pub fn remove<'k>(tx: &mut dyn Objects, object: u64, key: impl Into<KeyRef<'k>>) -> TxResult<()> {
    let key = key.into();
    if take(tx, object, key)?.is_none() {
        return Err(missing(object, &key));
    }
    Ok(())
}

/// Removes an entry if it exists; returns its value.
pub fn take<'k>(
    tx: &mut dyn Objects,
    object: u64,
    key: impl Into<KeyRef<'k>>,
) -> TxResult<Option<Value>> {
    let key = key.into();
    match open(tx, object)? {
        Body::Micro(block) => {
            check_key(object, &key, decode_micro(object, &block)?.hash(), ObjectType::NONE)?;
            micro::remove(tx, object, &block, &key)
        }
        Body::Fat(block) => {
            let mut zap = Fat::open(tx, object, block)?;
            check_key(object, &key, zap.hash(), ObjectType::DIRECTORY_CONTENTS)?;
            let removed = zap.remove(&key)?;
            zap.finish()?;
            Ok(removed)
        }
    }
}

/// Adds to a key's integer and returns the sum; an absent key counts as 0, and a sum of 0 removes
/// the key (spec 03 §6.4).
pub fn increment<'k>(
    tx: &mut dyn Objects,
    object: u64,
    key: impl Into<KeyRef<'k>>,
    delta: i64,
) -> TxResult<u64> {
    let key = key.into();
    let found = lookup_u64(tx, object, key)?;
    let sum = found.unwrap_or(0).wrapping_add_signed(delta);
    if sum != 0 {
        update(tx, object, key, sum)?;
    } else if found.is_some() {
        remove(tx, object, key)?;
    }
    Ok(sum)
}

/// Frees the object.
pub fn destroy(tx: &mut dyn Objects, object: u64) -> TxResult<()> {
    tx.free(object)
}

fn put(
    tx: &mut dyn Objects,
    object: u64,
    key: &KeyRef<'_>,
    value: &Value,
    present: Present,
) -> TxResult<()> {
    let object_type = tx.dnode(object)?.object_type;
    check_value(object, value)?;
    let block = match open(tx, object)? {
        Body::Micro(block) => {
            check_key(object, key, decode_micro(object, &block)?.hash(), object_type)?;
            if micro_edit::fits_slot(key, value) {
                if micro::put(tx, object, &block, key, value, present)? {
                    return Ok(());
                }
            } else if present == Present::Refuse
                && let KeyRef::Name(name) = key
                && decode_micro(object, &block)?.get(name).is_some()
            {
                return Err(exists(object, key));
            }
            return convert_and_put(tx, object, key, value, present);
        }
        Body::Fat(block) => block,
    };
    let mut zap = Fat::open(tx, object, block)?;
    check_key(object, key, zap.hash(), object_type)?;
    zap.put(key, value, present)?;
    zap.finish()
}

fn convert_and_put(
    tx: &mut dyn Objects,
    object: u64,
    key: &KeyRef<'_>,
    value: &Value,
    present: Present,
) -> TxResult<()> {
    let mut zap = micro::convert(tx, object)?;
    zap.put(key, value, present)?;
    zap.finish()
}

fn check_value(object: u64, value: &Value) -> TxResult<()> {
    let (len, size) = (value.stored().len(), value.integer_size());
    if len > VALUE_LEN_MAX || !value.is_well_formed() {
        return fail(Kind::Invalid, object, ZapError::Value { len, size });
    }
    Ok(())
}

fn exists(object: u64, key: &KeyRef<'_>) -> TxStop {
    failure(Kind::Exists, object, ZapError::Exists { key: printable(key) })
}
