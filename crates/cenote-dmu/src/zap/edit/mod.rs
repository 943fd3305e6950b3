//! Changes ZAPs, and reads them as seen by a transaction.
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
mod entries;
mod fat;
mod micro;
mod numbered;
#[cfg(test)]
mod tests;

use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::{
    Entry, KEY_LEN_MAX, KEY_WORDS_MAX, KeyRef, LONG_KEY_LEN_MAX, MatchKind, MicroZap,
    VALUE_LEN_MAX, Value, ZapFlags, ZapHash, ZapKind, matches, micro_edit,
};
use cenote_rt::{Buf, Kind};

use super::ZapError;
use crate::live::{TxResult, TxStop};
use crate::objects::{Objects, corrupt, fail, failure};

pub use create::{ZapOptions, create, format};
pub use entries::{Page, entries, entries_from, len, name_of};
pub use numbered::{contains_number, hex_key, insert_number, numbers, remove_number};

use fat::Fat;

/// A ZAP in its present state.
enum Body {
    Micro(Buf),
    Fat(Buf),
}

/// What to do if the key exists.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Present {
    Refuse,
    Replace,
}

/// The value of exactly this key.
pub fn lookup<'k>(
    tx: &mut dyn Objects,
    object: u64,
    key: impl Into<KeyRef<'k>>,
) -> TxResult<Option<Value>> {
    let key = key.into();
    match open(tx, object)? {
        Body::Micro(block) => {
            let zap = decode_micro(object, &block)?;
            check_key(object, &key, zap.hash(), ObjectType::DIRECTORY_CONTENTS)?;
            let KeyRef::Name(name) = key else { return Ok(None) };
            Ok(zap.get(name).map(|entry| Value::U64(entry.value)))
        }
        Body::Fat(block) => {
            let mut zap = Fat::open(tx, object, block)?;
            check_key(object, &key, zap.hash(), ObjectType::DIRECTORY_CONTENTS)?;
            zap.lookup(&key)
        }
    }
}

/// The single integer of exactly this key; any other value is an error.
pub fn lookup_u64<'k>(
    tx: &mut dyn Objects,
    object: u64,
    key: impl Into<KeyRef<'k>>,
) -> TxResult<Option<u64>> {
    match lookup(tx, object, key)? {
        None => Ok(None),
        Some(value) => single(object, &value).map(Some),
    }
}

/// The single integer of a key that must exist; `Kind::NotFound` otherwise.
pub fn require_u64<'k>(
    tx: &mut dyn Objects,
    object: u64,
    key: impl Into<KeyRef<'k>>,
) -> TxResult<u64> {
    let key = key.into();
    match lookup_u64(tx, object, key)? {
        Some(value) => Ok(value),
        None => Err(missing(object, &key)),
    }
}

/// Whether the key exists.
pub fn contains<'k>(
    tx: &mut dyn Objects,
    object: u64,
    key: impl Into<KeyRef<'k>>,
) -> TxResult<bool> {
    lookup(tx, object, key).map(|found| found.is_some())
}

/// The first entry, in cursor order, whose name matches by `kind`; it has the name as stored.
/// `Kind::Unsupported` if names are to be folded and the ZAP does not fold.
pub fn lookup_normalized(
    tx: &mut dyn Objects,
    object: u64,
    name: &[u8],
    kind: MatchKind,
) -> TxResult<Option<Entry>> {
    let body = open(tx, object)?;
    let candidates = match body {
        Body::Micro(block) => {
            let zap = decode_micro(object, &block)?;
            expect_normalized(object, kind, zap.hash())?;
            let (hash, mut all) = (zap.hash().name(name), zap.entries());
            all.retain(|entry| entry.hash == hash);
            (zap.hash().normflags, all)
        }
        Body::Fat(block) => {
            let mut zap = Fat::open(tx, object, block)?;
            expect_normalized(object, kind, zap.hash())?;
            let hash = zap.hash().name(name);
            (zap.hash().normflags, zap.with_hash(hash)?)
        }
    };
    let (normflags, entries) = candidates;
    let answers = |entry: &Entry| {
        entry.key.name().is_some_and(|stored| matches(stored, name, kind, normflags))
    };
    Ok(entries.into_iter().find(answers))
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

/// Reads block 0 and determines the format.
fn open(tx: &mut dyn Objects, object: u64) -> TxResult<Body> {
    let object_type = tx.dnode(object)?.object_type;
    if !object_type.is_zap() {
        return fail(Kind::Invalid, object, ZapError::NotAZap { object_type: object_type.0 });
    }
    let Some(block) = tx.block(object, 0)? else {
        return Err(corrupt(object, ZapError::Hole { block: 0 }));
    };
    match ZapKind::of(&block).map_err(|error| corrupt(object, error))? {
        ZapKind::Micro => Ok(Body::Micro(block)),
        ZapKind::Fat => Ok(Body::Fat(block)),
    }
}

fn decode_micro(object: u64, block: &Buf) -> TxResult<MicroZap<'_>> {
    MicroZap::decode(block).map_err(|error| corrupt(object, error))
}

fn check_key(
    object: u64,
    key: &KeyRef<'_>,
    hash: ZapHash,
    object_type: ObjectType,
) -> TxResult<()> {
    let has_words = hash.flags.contains(ZapFlags::UINT64_KEY);
    let is_legal = match key {
        KeyRef::Words(words) => has_words && (1..=KEY_WORDS_MAX).contains(&words.len()),
        KeyRef::Name(name) => {
            let is_long = object_type == ObjectType::DIRECTORY_CONTENTS;
            let max = if is_long { LONG_KEY_LEN_MAX } else { KEY_LEN_MAX };
            !has_words && !name.is_empty() && name.len() < max && !name.contains(&0)
        }
    };
    if is_legal {
        return Ok(());
    }
    fail(Kind::Invalid, object, ZapError::Key { len: key.stored_len(), has_words })
}

fn check_value(object: u64, value: &Value) -> TxResult<()> {
    let (len, size) = (value.stored().len(), value.integer_size());
    if len > VALUE_LEN_MAX || !value.is_well_formed() {
        return fail(Kind::Invalid, object, ZapError::Value { len, size });
    }
    Ok(())
}

fn expect_normalized(object: u64, kind: MatchKind, hash: ZapHash) -> TxResult<()> {
    if kind != MatchKind::Exact && hash.normflags.is_empty() {
        return fail(Kind::Unsupported, object, ZapError::NotNormalized);
    }
    Ok(())
}

fn single(object: u64, value: &Value) -> TxResult<u64> {
    value.single().ok_or_else(|| {
        let cause = ZapError::NotSingle { count: value.count(), size: value.integer_size() };
        failure(Kind::Invalid, object, cause)
    })
}

fn exists(object: u64, key: &KeyRef<'_>) -> TxStop {
    failure(Kind::Exists, object, ZapError::Exists { key: printable(key) })
}

fn missing(object: u64, key: &KeyRef<'_>) -> TxStop {
    failure(Kind::NotFound, object, ZapError::NoEntry { key: printable(key) })
}

fn printable(key: &KeyRef<'_>) -> String {
    match key {
        KeyRef::Name(name) => String::from_utf8_lossy(name).into_owned(),
        KeyRef::Words(words) => format!("{words:x?}"),
    }
}
