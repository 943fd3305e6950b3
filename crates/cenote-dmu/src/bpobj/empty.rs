//! The shared empty bpobj: one object of the MOS that represents every bpobj without entries.
//!
//! Feature `com.delphix:empty_bpobj`, whose count is the number of references to the object. The
//! object is created for its first user and freed with its last; while the feature is not enabled,
//! as in the txg that creates a pool, each user gets a bpobj of its own (spec 04 §11.3).
//!
//! Invariants
//! * B1  The shared empty bpobj has as many references as users, and an entry in the directory
//!   exactly while it has any.

use cenote_ondisk::dsl::key;
use cenote_rt::Kind;

use super::edit::{BLOCK_SIZE, create, free};
use crate::error::DmuError;
use crate::live::TxResult;
use crate::objects::{Objects, fail};
use crate::zap::edit as zap;

/// The pool directory, an object of the MOS.
const DIRECTORY: u64 = 1;
const FEATURES_FOR_WRITE: &str = "features_for_write";
const EMPTY_BPOBJ_FEATURE: &str = "com.delphix:empty_bpobj";
const LIVELIST_FEATURE: &str = "com.delphix:livelist";

/// Returns the shared empty bpobj, if there is one.
pub fn shared_empty(tx: &mut dyn Objects) -> TxResult<Option<u64>> {
    zap::lookup_u64(tx, DIRECTORY, key::EMPTY_BPOBJ)
}

/// Whether an object is the shared empty bpobj.
pub fn is_shared(tx: &mut dyn Objects, object: u64) -> TxResult<bool> {
    Ok(shared_empty(tx)? == Some(object))
}

/// Returns empty bpobjs for so many users that may never add entries, mostly the same.
pub fn acquire_empty(tx: &mut dyn Objects, users: usize) -> TxResult<Vec<u64>> {
    let has_freed = counts_freed(tx)?;
    let Some((table, count)) = count_of(tx, EMPTY_BPOBJ_FEATURE)? else {
        return (0..users).map(|_| create(tx, BLOCK_SIZE, has_freed)).collect();
    };
    if users == 0 {
        return Ok(Vec::new());
    }
    let object = if count == 0 {
        let object = create(tx, BLOCK_SIZE, has_freed)?;
        zap::insert(tx, DIRECTORY, key::EMPTY_BPOBJ, object)?;
        object
    } else {
        zap::require_u64(tx, DIRECTORY, key::EMPTY_BPOBJ)?
    };
    zap::update(tx, table, EMPTY_BPOBJ_FEATURE, count.wrapping_add(users as u64))?;
    Ok(vec![object; users])
}

/// Drops so many references to the shared empty bpobj.
pub fn release_empty(tx: &mut dyn Objects, users: u64) -> TxResult<()> {
    if users == 0 {
        return Ok(());
    }
    let found = count_of(tx, EMPTY_BPOBJ_FEATURE)?;
    // Checks B1.
    let Some((table, left)) =
        found.and_then(|(table, count)| Some((table, count.checked_sub(users)?)))
    else {
        return fail(Kind::Invariant, DIRECTORY, DmuError::EmptyBpobjCount);
    };
    zap::update(tx, table, EMPTY_BPOBJ_FEATURE, left)?;
    if left == 0 {
        let object = zap::require_u64(tx, DIRECTORY, key::EMPTY_BPOBJ)?;
        zap::remove(tx, DIRECTORY, key::EMPTY_BPOBJ)?;
        free(tx, object)?;
    }
    Ok(())
}

/// Whether headers of bpobjs count FREE entries (feature livelist is active).
pub(super) fn counts_freed(tx: &mut dyn Objects) -> TxResult<bool> {
    Ok(count_of(tx, LIVELIST_FEATURE)?.is_some_and(|(_, count)| count > 0))
}

/// The table of a feature, and its count; `None` if it is not enabled.
fn count_of(tx: &mut dyn Objects, feature: &str) -> TxResult<Option<(u64, u64)>> {
    let Some(table) = zap::lookup_u64(tx, DIRECTORY, FEATURES_FOR_WRITE)? else { return Ok(None) };
    Ok(zap::lookup_u64(tx, table, feature)?.map(|count| (table, count)))
}
