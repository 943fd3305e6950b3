//! Accounts for the blocks that a head gained and lost (spec 04 §9.2, §10.3).
//!
//! ```text
//!   born     referenced and unique grow
//!   killed   after the last snapshot   nobody else has it: unique shrinks, its space is freed
//!            before                    that snapshot has it: it goes on the head's deadlist
//! ```

use cenote_dmu::bpobj::edit::BpobjEntry;
use cenote_dmu::deadlist::edit as deadlist;
use cenote_dmu::live::Synced;
use cenote_dmu::zap::edit::{self as zap, ZapOptions};
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_ondisk::dsl::{DatasetPhys, DirPhys};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetFlags;
use cenote_ondisk::zap::Value;
use cenote_pool::dsl::bookmark::bookmark_table;
use cenote_pool::dsl::dataset::origin_txg;
use cenote_pool::mos::is_zapified;
use cenote_rt::ensure;
use cenote_rt::seeded::{Bug, is_on};
use cenote_vdev::Tree;

use crate::dsl::space;
use crate::dsl::space::{Sizes, Use};
use crate::dsl::{bookmark, features, get_dataset, get_dir, props, put_dataset};
use crate::invariant;
use crate::txg::ledger::Entries;

/// Accounts for one pass of the head `object`, stores its new root, and returns the blocks to be
/// freed.
pub(crate) fn account(
    tx: &mut Tx<'_>,
    tree: &Tree,
    object: u64,
    entries: &Entries,
    synced: &Synced,
) -> TxResult<Vec<BlockPtr>> {
    let mut head = get_dataset(tx, object)?;
    let (latest, txg) = (head.prev_snap_txg, tx.txg());
    ensure!("SN3", latest <= txg, "head {object} has a snapshot of txg {latest}, in txg {txg}");
    let dir = get_dir(tx, head.dir_obj)?;
    let refreservation = refreservation(tx, &dir)?;
    let born_after = origin_txg(tx, &dir)?;
    let (mut freed, mut dead) = (Vec::new(), Vec::new());
    let (mut killed, mut gone, mut kept) = (Sizes::default(), Sizes::default(), 0);
    let mut of_previous = 0;
    let mut of_bookmarks = Vec::new();
    let has_bookmarks = bookmark_table(tx, object)?.is_some();
    let previous = previous_snapshot(tx, object, &head)?;
    for block in &entries.killed {
        let sizes = Sizes::of(block, tree);
        killed += sizes;
        if has_bookmarks {
            of_bookmarks.push((block.allocation_birth(), sizes));
        }
        if block.allocation_birth() > head.prev_snap_txg {
            gone += sizes;
            freed.push(*block);
            continue;
        }
        dead.push(BpobjEntry::new(*block, sizes.used as u64));
        if previous
            .as_ref()
            .is_some_and(|previous| block.allocation_birth() > previous.prev_snap_txg)
        {
            of_previous += sizes.used;
        }
        if block.allocation_birth() > born_after {
            kept += sizes.used;
        }
    }
    if is_on(Bug::ForgottenDeadBlock) {
        dead.pop();
    }
    deadlist::insert_all(tx, head.deadlist_obj, &dead)?;
    if !of_bookmarks.is_empty() {
        bookmark::note_killed(tx, object, head.prev_snap_txg, &of_bookmarks)?;
    }
    let mut net = entries.born;
    net -= gone;
    let floor_before = head.unique_bytes.max(refreservation);
    change(&mut head.referenced_bytes, entries.born.used - killed.used)?;
    change(&mut head.compressed_bytes, entries.born.compressed - killed.compressed)?;
    change(&mut head.uncompressed_bytes, entries.born.uncompressed - killed.uncompressed)?;
    change(&mut head.unique_bytes, net.used)?;
    let delta = head.unique_bytes.max(refreservation) as i64 - floor_before as i64;
    head.bp = synced.root;
    put_dataset(tx, object, &head)?;
    let charged = Sizes { used: delta, ..net };
    space::transfer(tx, head.dir_obj, charged, net.used, Use::RefReserved, Use::Head)?;
    space::reclassify(tx, head.dir_obj, kept, Use::Head, Use::Snap)?;
    if let (Some(mut previous), true) = (previous, of_previous != 0) {
        change(&mut previous.unique_bytes, of_previous)?;
        put_dataset(tx, head.prev_snap_obj, &previous)?;
    }
    note_features(tx, object, synced)?;
    Ok(freed)
}

/// Returns the previous snapshot of the same head. A clone's origin is not one, because others may
/// share its blocks.
fn previous_snapshot(
    tx: &mut Tx<'_>,
    object: u64,
    head: &DatasetPhys,
) -> TxResult<Option<DatasetPhys>> {
    if head.prev_snap_obj == 0 {
        return Ok(None);
    }
    let previous = get_dataset(tx, head.prev_snap_obj)?;
    Ok((previous.next_snap_obj == object).then_some(previous))
}

/// Returns the property `refreservation`, which is not inherited.
pub(crate) fn refreservation(tx: &mut Tx<'_>, dir: &DirPhys) -> TxResult<u64> {
    props::own_number(tx, dir.props_zapobj, "refreservation")
}

fn change(value: &mut u64, delta: i64) -> TxResult<()> {
    // Checks SZ1.
    *value = value.checked_add_signed(delta).ok_or_else(|| {
        invariant(format!("a size of a dataset, {value}, changed by {delta} leaves the range"))
    })?;
    Ok(())
}

/// Activates the features that the blocks need (spec 04 §4.3).
fn note_features(tx: &mut Tx<'_>, object: u64, synced: &Synced) -> TxResult<()> {
    let Synced { facts, flags, .. } = synced;
    let facts = [
        ("large_blocks", facts.has_large_block),
        ("large_dnode", facts.has_large_dnode),
        ("zstd_compress", facts.has_zstd),
        ("longname", facts.has_long_name),
        ("sha512", facts.has_checksum(ChecksumType::Sha512)),
        ("skein", facts.has_checksum(ChecksumType::Skein)),
        ("edonr", facts.has_checksum(ChecksumType::EdonR)),
        ("blake3", facts.has_checksum(ChecksumType::Blake3)),
        ("userobj_accounting", flags.contains(ObjSetFlags::USEROBJACCOUNTING_COMPLETE)),
        ("project_quota", flags.contains(ObjSetFlags::PROJECTQUOTA_COMPLETE)),
    ];
    for (name, is_used) in facts {
        if is_used {
            activate(tx, object, name)?;
        }
    }
    Ok(())
}

/// Marks the dataset as using the feature.
pub(crate) fn activate(tx: &mut Tx<'_>, object: u64, name: &'static str) -> TxResult<()> {
    activate_with(tx, object, name, Value::from(0))
}

/// Marks the dataset as using the feature in this way.
pub(crate) fn activate_with(
    tx: &mut Tx<'_>,
    object: u64,
    name: &'static str,
    value: Value,
) -> TxResult<()> {
    let feature = features::known(name);
    zapify(tx, object)?;
    if !zap::contains(tx, object, feature.guid)? {
        zap::insert(tx, object, feature.guid, value)?;
        features::add(tx, name, 1)?;
    }
    Ok(())
}

/// Marks the dataset as not using the feature.
pub(crate) fn deactivate(tx: &mut Tx<'_>, object: u64, name: &'static str) -> TxResult<()> {
    let feature = features::known(name);
    if is_zapified(tx, object)? && zap::contains(tx, object, feature.guid)? {
        zap::remove(tx, object, feature.guid)?;
        features::add(tx, name, -1)?;
    }
    Ok(())
}

/// Zapifies a dir or dataset, so that it can have extra keys (spec 04 §4).
pub(crate) fn zapify(tx: &mut Tx<'_>, object: u64) -> TxResult<()> {
    if is_zapified(tx, object)? {
        return Ok(());
    }
    tx.set_object_type(object, ObjectType::ZAP_METADATA)?;
    zap::format(tx, object, ZapOptions::default())?;
    features::add(tx, "extensible_dataset", 1)?;
    Ok(())
}
