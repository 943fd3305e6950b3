//! Changes deadlists and livelists (spec 04 §10).
//!
//!     key k0 < k1 < ... < kn    entry ki: a bpobj of the blocks with ki < birth <= k(i+1)
//!     bonus                     sums over all of them
//!
//! Keys without blocks refer to the shared empty bpobj; the first block creates a bpobj for its
//! key. A deadlist in the format before pool version 26 is one bpobj: it can be appended to, merged
//! from and freed.

use std::collections::{BTreeMap, BTreeSet};

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::deadlist::{DEADLIST_PHYS_LEN, DeadlistPhys};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::Kind;

use crate::bpobj::edit as bpobj;
use crate::bpobj::edit::BpobjEntry;
use crate::error::DmuError;
use crate::live::{ObjectSpec, TxResult};
use crate::objects::{Objects, fail};
use crate::space::Space;
use crate::zap::edit::{self as zap, ZapOptions, hex_key};

pub use super::{keys, space, space_range};

/// Creates a deadlist without keys.
pub fn create(tx: &mut dyn Objects) -> TxResult<u64> {
    let spec = ObjectSpec::new(ObjectType::DEADLIST, 0)
        .with_bonus(ObjectType::DEADLIST_HDR, DEADLIST_PHYS_LEN);
    zap::create(tx, &spec, ZapOptions::default())
}

/// Creates a deadlist with the keys of `source` that are less than `max_txg`, and no blocks.
///
/// A source in the old format has no keys: `Kind::Unsupported`, see [`create_with`].
pub fn clone_keys(tx: &mut dyn Objects, source: u64, max_txg: u64) -> TxResult<u64> {
    let Some(keys) = keys(tx, source)? else {
        return fail(Kind::Unsupported, source, DmuError::OldDeadlist);
    };
    create_with(tx, keys.into_keys().filter(|key| *key < max_txg))
}

/// Creates a deadlist with these keys, and no blocks.
pub fn create_with(tx: &mut dyn Objects, keys: impl IntoIterator<Item = u64>) -> TxResult<u64> {
    let keys: BTreeSet<u64> = keys.into_iter().collect();
    let object = create(tx)?;
    let lists = bpobj::acquire_empty(tx, keys.len())?;
    let entries: Vec<_> = keys.into_iter().map(hex_key).zip(lists).collect();
    zap::fill(tx, object, &entries)?;
    Ok(object)
}

/// Calls `visit` for every block, by ascending key.
pub fn for_each(
    tx: &mut dyn Objects,
    object: u64,
    visit: &mut dyn FnMut(&BlockPtr),
) -> TxResult<()> {
    let Some(keys) = keys(tx, object)? else {
        return bpobj::for_each(tx, object, visit);
    };
    keys.into_values().try_for_each(|list| bpobj::for_each(tx, list, visit))
}

/// Adds a block.
pub fn insert(tx: &mut dyn Objects, object: u64, bp: &BlockPtr, dsize: u64) -> TxResult<()> {
    insert_all(tx, object, &[BpobjEntry::new(*bp, dsize)])
}

/// Adds blocks, each to the greatest key less than its birth.
pub fn insert_all(tx: &mut dyn Objects, object: u64, blocks: &[BpobjEntry]) -> TxResult<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    let Some(keys) = keys(tx, object)? else {
        return bpobj::append(tx, object, blocks);
    };
    let mut by_key: BTreeMap<u64, Vec<BpobjEntry>> = BTreeMap::new();
    let mut sum = space(tx, object)?;
    for block in blocks {
        let birth = block.bp.allocation_birth();
        // Checks K1.
        let Some((key, _)) = keys.range(..birth).next_back() else {
            return fail(Kind::Invariant, object, DmuError::DeadlistRange { txg: birth });
        };
        by_key.entry(*key).or_default().push(*block);
        sum += block.space();
    }
    for (key, blocks) in by_key {
        let list = own_list(tx, object, &keys, key)?;
        bpobj::append(tx, list, &blocks)?;
    }
    set_space(tx, object, sum)
}

/// Adds a key without blocks; in practice the greatest one.
pub fn add_key(tx: &mut dyn Objects, object: u64, key: u64) -> TxResult<()> {
    for list in bpobj::acquire_empty(tx, 1)? {
        zap::insert(tx, object, &hex_key(key), list)?;
    }
    Ok(())
}

/// Removes a key; its blocks move to the next lower one.
pub fn remove_key(tx: &mut dyn Objects, object: u64, key: u64) -> TxResult<()> {
    let Some(mut keys) = keys(tx, object)? else {
        return fail(Kind::Unsupported, object, DmuError::OldDeadlist);
    };
    let lower = keys.range(..key).next_back().map(|(lower, _)| *lower);
    // Checks K1.
    let (Some(list), Some(lower)) = (keys.remove(&key), lower) else {
        return fail(Kind::Invariant, object, DmuError::DeadlistRange { txg: key });
    };
    zap::remove(tx, object, &hex_key(key))?;
    add_list(tx, object, &keys, lower, list)
}

/// Moves the blocks of all keys from `min` on to a bpobj, and removes these keys.
pub fn move_to(tx: &mut dyn Objects, object: u64, target: u64, min: u64) -> TxResult<Space> {
    let Some(keys) = keys(tx, object)? else {
        return fail(Kind::Unsupported, object, DmuError::OldDeadlist);
    };
    let mut moved = Space::default();
    for (key, list) in keys.into_iter().filter(|(key, _)| *key >= min) {
        moved += bpobj::space(tx, list)?;
        bpobj::append_all(tx, target, list)?;
        zap::remove(tx, object, &hex_key(key))?;
    }
    let mut sum = space(tx, object)?;
    sum -= moved;
    set_space(tx, object, sum)?;
    Ok(moved)
}

/// Moves all blocks of `other` here, and frees it. `dsize` is called for blocks of an `other` in
/// the old format.
///
/// Each key is looked at once: most of many have no blocks.
pub fn merge(
    tx: &mut dyn Objects,
    object: u64,
    other: u64,
    dsize: &dyn Fn(&BlockPtr) -> u64,
) -> TxResult<()> {
    let Some(theirs) = keys(tx, other)? else {
        let taken = bpobj::take(tx, other, usize::MAX, dsize)?;
        let blocks: Vec<BpobjEntry> =
            taken.blocks.iter().map(|bp| BpobjEntry::new(*bp, dsize(bp))).collect();
        insert_all(tx, object, &blocks)?;
        return bpobj::free(tx, other);
    };
    let Some(mut ours) = keys(tx, object)? else {
        return fail(Kind::Unsupported, object, DmuError::OldDeadlist);
    };
    let empty = bpobj::shared_empty(tx)?;
    let (mut sum, mut released) = (space(tx, object)?, 0);
    for (key, list) in theirs {
        // Checks K1.
        let Some((target, current)) = ours.range_mut(..=key).next_back() else {
            return fail(Kind::Invariant, object, DmuError::DeadlistRange { txg: key });
        };
        if Some(list) == empty {
            released += 1;
            continue;
        }
        sum += bpobj::space(tx, list)?;
        if Some(*current) == empty {
            released += 1;
            *current = list;
            zap::update(tx, object, &hex_key(*target), list)?;
        } else {
            bpobj::append_all(tx, *current, list)?;
        }
    }
    zap::destroy(tx, other)?;
    bpobj::release_empty(tx, released)?;
    set_space(tx, object, sum)
}

/// Frees a deadlist; the blocks that it lists are not freed.
pub fn free(tx: &mut dyn Objects, object: u64) -> TxResult<()> {
    let Some(keys) = keys(tx, object)? else {
        return bpobj::free(tx, object);
    };
    let (empty, mut released) = (bpobj::shared_empty(tx)?, 0);
    for list in keys.into_values() {
        if Some(list) == empty {
            released += 1;
        } else {
            bpobj::free(tx, list)?;
        }
    }
    bpobj::release_empty(tx, released)?;
    zap::destroy(tx, object)
}

/// The bpobj of a key; a new one in place of the shared empty one.
fn own_list(
    tx: &mut dyn Objects,
    object: u64,
    keys: &BTreeMap<u64, u64>,
    key: u64,
) -> TxResult<u64> {
    // Checks K1.
    let Some(list) = keys.get(&key) else {
        return fail(Kind::Invariant, object, DmuError::DeadlistRange { txg: key });
    };
    let (list, is_new) = bpobj::own(tx, *list)?;
    if is_new {
        zap::update(tx, object, &hex_key(key), list)?;
    }
    Ok(list)
}

/// Adds a whole bpobj to a key. If the key has no blocks, the bpobj becomes the key's own.
fn add_list(
    tx: &mut dyn Objects,
    object: u64,
    keys: &BTreeMap<u64, u64>,
    key: u64,
    list: u64,
) -> TxResult<()> {
    // Checks K1.
    let Some(current) = keys.get(&key) else {
        return fail(Kind::Invariant, object, DmuError::DeadlistRange { txg: key });
    };
    if bpobj::is_shared(tx, *current)? {
        bpobj::release_empty(tx, 1)?;
        return zap::update(tx, object, &hex_key(key), list);
    }
    bpobj::append_all(tx, *current, list)
}

fn set_space(tx: &mut dyn Objects, object: u64, space: Space) -> TxResult<()> {
    let phys = DeadlistPhys { used: space.used, comp: space.comp, uncomp: space.uncomp };
    tx.set_bonus(object, &phys.encode())
}
