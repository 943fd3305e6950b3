//! Reads ZAPs of any [`ReadObjects`]: of a committed state, or as seen by a transaction.
//!
//! Sources: spec 03 §1-§7.

use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::{
    Cursor, Entry, KEY_LEN_MAX, KEY_WORDS_MAX, Key, KeyRef, LONG_KEY_LEN_MAX, MatchKind, MicroZap,
    Value, ZapFlags, ZapHash, ZapKind, matches,
};
use cenote_rt::{Buf, Kind};

use super::ZapError;
use super::fat::Fat;
use crate::live::{TxResult, TxStop};
use crate::objects::{ReadObjects, corrupt, fail, failure};

/// A ZAP in its present state.
pub(super) enum Body {
    Micro(Buf),
    Fat(Buf),
}

/// The value of exactly this key.
pub fn lookup<'k>(
    tx: &mut dyn ReadObjects,
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
    tx: &mut dyn ReadObjects,
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
    tx: &mut dyn ReadObjects,
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
    tx: &mut dyn ReadObjects,
    object: u64,
    key: impl Into<KeyRef<'k>>,
) -> TxResult<bool> {
    lookup(tx, object, key).map(|found| found.is_some())
}

/// The first entry, in cursor order, whose name matches by `kind`; it has the name as stored.
/// `Kind::Unsupported` if names are to be folded and the ZAP does not fold.
pub fn lookup_normalized(
    tx: &mut dyn ReadObjects,
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

/// The name, as stored, and the value of the first entry whose name matches by `kind`; of exactly
/// this name if the ZAP does not fold names.
pub fn find(
    tx: &mut dyn ReadObjects,
    object: u64,
    name: &[u8],
    kind: MatchKind,
) -> TxResult<Option<(Vec<u8>, Value)>> {
    if kind != MatchKind::Exact {
        match lookup_normalized(tx, object, name, kind) {
            Err(stop) if stop.error().is_some_and(|error| error.kind() == Kind::Unsupported) => {}
            found => {
                let pair = |entry: Entry| Some((entry.key.name()?.to_vec(), entry.value));
                return Ok(found?.and_then(pair));
            }
        }
    }
    Ok(lookup(tx, object, name)?.map(|value| (name.to_vec(), value)))
}

/// Some of the entries of a ZAP, in cursor order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The cookie at which the next page begins; [`Cursor::END`] at the end.
    pub cookie: u64,
}

/// Number of entries.
pub fn len(tx: &mut dyn ReadObjects, object: u64) -> TxResult<u64> {
    match open(tx, object)? {
        Body::Micro(block) => Ok(decode_micro(object, &block)?.slots().count() as u64),
        Body::Fat(block) => Ok(Fat::open(tx, object, block)?.entry_count()),
    }
}

/// All entries in cursor order, for ZAPs that are known to be small.
pub fn entries(tx: &mut dyn ReadObjects, object: u64) -> TxResult<Vec<Entry>> {
    entries_from(tx, object, 0, usize::MAX).map(|page| page.entries)
}

/// At most `max` entries from a cookie on, 0 for the start.
pub fn entries_from(
    tx: &mut dyn ReadObjects,
    object: u64,
    cookie: u64,
    max: usize,
) -> TxResult<Page> {
    let mut found = Vec::new();
    let bits = match open(tx, object)? {
        Body::Micro(block) => {
            let zap = decode_micro(object, &block)?;
            let bits = zap.hash().bits();
            if let Some(from) = Cursor::deserialize(cookie, bits) {
                found = zap.entries();
                found.retain(|entry| entry.cursor() >= from);
            }
            bits
        }
        Body::Fat(block) => {
            let mut zap = Fat::open(tx, object, block)?;
            let bits = zap.hash().bits();
            let mut place = Cursor::deserialize(cookie, bits);
            while let Some(from) = place.filter(|_| found.len() <= max) {
                // One more than requested, to know where the next page begins.
                let rest = (max - found.len()).saturating_add(1);
                let (entries, next) = zap.leaf_entries(from, rest)?;
                found.extend(entries);
                place = next;
            }
            bits
        }
    };
    let cookie = match found.get(max) {
        Some(entry) => entry.cursor().serialize(bits),
        None => Cursor::END,
    };
    found.truncate(max);
    Ok(Page { entries: found, cookie })
}

/// The name of the first entry whose first integer, masked, is `value`.
pub fn name_of(
    tx: &mut dyn ReadObjects,
    object: u64,
    value: u64,
    mask: u64,
) -> TxResult<Option<Vec<u8>>> {
    if let Body::Micro(block) = open(tx, object)? {
        // Not page by page: each page would sort all entries.
        let zap = decode_micro(object, &block)?;
        let matching = zap.slots().filter(|slot| slot.value & mask == value);
        let first = matching.min_by_key(|slot| (zap.hash().name(slot.name), slot.cd));
        return Ok(first.map(|slot| slot.name.to_vec()));
    }
    let mut cookie = 0;
    while cookie != Cursor::END {
        let page = entries_from(tx, object, cookie, 256)?;
        for entry in page.entries {
            if entry.value.first().is_some_and(|found| found & mask == value)
                && let Key::Name(name) = entry.key
            {
                return Ok(Some(name));
            }
        }
        cookie = page.cookie;
    }
    Ok(None)
}

/// Reads block 0 and determines the format.
pub(super) fn open(tx: &mut dyn ReadObjects, object: u64) -> TxResult<Body> {
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

pub(super) fn decode_micro(object: u64, block: &Buf) -> TxResult<MicroZap<'_>> {
    MicroZap::decode(block).map_err(|error| corrupt(object, error))
}

pub(super) fn check_key(
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

pub(super) fn missing(object: u64, key: &KeyRef<'_>) -> TxStop {
    failure(Kind::NotFound, object, ZapError::NoEntry { key: printable(key) })
}

pub(super) fn printable(key: &KeyRef<'_>) -> String {
    match key {
        KeyRef::Name(name) => String::from_utf8_lossy(name).into_owned(),
        KeyRef::Words(words) => format!("{words:x?}"),
    }
}
