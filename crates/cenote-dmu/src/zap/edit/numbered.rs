//! ZAPs whose keys are numbers in lower-case hexadecimal, without padding (spec 03 §6.3).
//!
//! In a set of numbers, the value is the number itself; other ZAPs of this kind (deadlists, log
//! space maps) map the number to another value, with [`hex_key`] as the key.

use super::{contains, entries, insert, remove};
use crate::error::DmuError;
use crate::live::TxResult;
use crate::objects::{Objects, ReadObjects, corrupt};

/// The key of a number.
#[must_use]
pub fn hex_key(number: u64) -> String {
    format!("{number:x}")
}

/// The number of a key.
pub(crate) fn number_of(key: &[u8]) -> Option<u64> {
    u64::from_str_radix(std::str::from_utf8(key).ok()?, 16).ok()
}

/// Adds a number to a set; `Kind::Exists` if it is in the set.
pub fn insert_number(tx: &mut dyn Objects, object: u64, number: u64) -> TxResult<()> {
    insert(tx, object, &hex_key(number), number)
}

/// Removes a number from a set; `Kind::NotFound` if it is not in the set.
pub fn remove_number(tx: &mut dyn Objects, object: u64, number: u64) -> TxResult<()> {
    remove(tx, object, &hex_key(number))
}

/// Whether a number is in a set.
pub fn contains_number(tx: &mut dyn ReadObjects, object: u64, number: u64) -> TxResult<bool> {
    contains(tx, object, &hex_key(number))
}

/// The numbers that are keys, with their values, in cursor order.
pub fn numbers(tx: &mut dyn ReadObjects, object: u64) -> TxResult<Vec<(u64, u64)>> {
    let entries = entries(tx, object)?;
    let pair = |entry: cenote_ondisk::zap::Entry| {
        let number = entry.key.name().and_then(number_of)?;
        Some((number, entry.value.single()?))
    };
    entries
        .into_iter()
        .map(|entry| pair(entry).ok_or_else(|| corrupt(object, DmuError::NumberKey)))
        .collect()
}
