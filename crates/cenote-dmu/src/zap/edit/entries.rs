//! Iterates over a ZAP as seen by a transaction (spec 03 §6.2).

use cenote_ondisk::zap::{Cursor, Entry, Key};

use super::fat::Fat;
use super::{Body, decode_micro, open};
use crate::live::TxResult;
use crate::objects::Objects;

/// Some of the entries of a ZAP, in cursor order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// The cookie at which the next page begins; [`Cursor::END`] at the end.
    pub cookie: u64,
}

/// Number of entries.
pub fn len(tx: &mut dyn Objects, object: u64) -> TxResult<u64> {
    match open(tx, object)? {
        Body::Micro(block) => Ok(decode_micro(object, &block)?.slots().count() as u64),
        Body::Fat(block) => Ok(Fat::open(tx, object, block)?.entry_count()),
    }
}

/// All entries in cursor order, for ZAPs that are known to be small.
pub fn entries(tx: &mut dyn Objects, object: u64) -> TxResult<Vec<Entry>> {
    entries_from(tx, object, 0, usize::MAX).map(|page| page.entries)
}

/// At most `max` entries from a cookie on, 0 for the start.
pub fn entries_from(tx: &mut dyn Objects, object: u64, cookie: u64, max: usize) -> TxResult<Page> {
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
    tx: &mut dyn Objects,
    object: u64,
    value: u64,
    mask: u64,
) -> TxResult<Option<Vec<u8>>> {
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
