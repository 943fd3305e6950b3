//! Effects of dataset operations on the error logs (spec 04 §22).
//!
//! With `head_errlog` each head has its own log; snapshots and clones that share a lost block are
//! found from that head. So entries move with their blocks: they are removed with a head, and move
//! to the clone's head on a promote.

use std::collections::BTreeMap;

use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit::{self as zap, ZapOptions};
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::errlog::{ERRLOG_LAST, ERRLOG_SCRUB, HeadEntry, parse_plain};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::Value;
use cenote_pool::mos::DIRECTORY;

use crate::dsl::{directory_object, features, get_dataset, get_dir};

/// The feature that keeps an error log for each head.
pub(crate) const HEAD_ERRLOG: &str = "head_errlog";

/// Whether each head has its own log.
pub(crate) fn are_by_head(tx: &mut Tx<'_>) -> TxResult<bool> {
    features::is_active(tx, HEAD_ERRLOG)
}

/// Creates an empty log.
fn new_log(tx: &mut Tx<'_>) -> TxResult<u64> {
    zap::create(tx, &ObjectSpec::new(ObjectType::ERROR_LOG, 0), ZapOptions::default())
}

/// Returns the log that the directory names; creates it if necessary.
pub(crate) fn need_log(tx: &mut Tx<'_>, name: &str) -> TxResult<u64> {
    if let Some(log) = directory_object(tx, name)? {
        return Ok(log);
    }
    let log = new_log(tx)?;
    zap::update(tx, DIRECTORY, name, log)?;
    Ok(log)
}

/// Returns the log of a head in a by-head log; creates it if necessary.
pub(crate) fn need_log_of(tx: &mut Tx<'_>, log: u64, head: u64) -> TxResult<u64> {
    let key = zap::hex_key(head);
    if let Some(errors) = zap::lookup_u64(tx, log, &key)? {
        return Ok(errors);
    }
    let errors = new_log(tx)?;
    zap::insert(tx, log, &key, errors)?;
    Ok(errors)
}

/// Records an error in the log of the damaged dataset's head, which is created if necessary.
pub(crate) fn note_by_head(
    tx: &mut Tx<'_>,
    log: u64,
    place: &Bookmark,
    birth: u64,
) -> TxResult<()> {
    let head = match place.objset {
        // The MOS has no head; its errors are under its own number.
        0 => 0,
        dataset => {
            // The dataset may have been destroyed since, and the number reused for another object.
            let is_dataset = |dnode: &DnodePhys| dnode.bonus_type == ObjectType::DSL_DATASET;
            if !tx.find(dataset)?.is_some_and(|dnode| is_dataset(&dnode)) {
                return Ok(());
            }
            let dir = get_dataset(tx, dataset)?.dir_obj;
            get_dir(tx, dir)?.head_dataset_obj
        }
    };
    let errors = need_log_of(tx, log, head)?;
    let entry = HeadEntry { object: place.object, level: place.level, blkid: place.blkid, birth };
    zap::update(tx, errors, &entry.format(), Value::text(""))
}

/// Gives both logs the form of `head_errlog`, which has just been enabled. `births` are those of
/// the blocks that are known; 0 stands for others.
pub(crate) fn split_by_head(tx: &mut Tx<'_>, births: &BTreeMap<Bookmark, u64>) -> TxResult<()> {
    for name in [ERRLOG_LAST, ERRLOG_SCRUB] {
        let Some(plain) = directory_object(tx, name)? else { continue };
        let log = new_log(tx)?;
        for entry in zap::entries(tx, plain)? {
            let Some(place) = entry.key.name().and_then(parse_plain) else { continue };
            note_by_head(tx, log, &place, births.get(&place).copied().unwrap_or(0))?;
        }
        zap::destroy(tx, plain)?;
        zap::update(tx, DIRECTORY, name, log)?;
    }
    Ok(())
}

/// Removes the errors of a destroyed head.
pub(crate) fn forget(tx: &mut Tx<'_>, head: u64) -> TxResult<()> {
    for log in logs(tx)? {
        if let Some(value) = zap::take(tx, log, &zap::hex_key(head))?
            && let Some(of_head) = value.first()
        {
            zap::destroy(tx, of_head)?;
        }
    }
    Ok(())
}

/// Moves the errors of blocks born up to `txg` from `from` to `to`.
pub(crate) fn move_old(tx: &mut Tx<'_>, from: u64, to: u64, txg: u64) -> TxResult<()> {
    for log in logs(tx)? {
        let Some(source) = zap::lookup_u64(tx, log, &zap::hex_key(from))? else { continue };
        let entries = zap::entries(tx, source)?;
        let is_old = |name: &&[u8]| HeadEntry::parse(name).is_some_and(|entry| entry.birth <= txg);
        let old: Vec<_> =
            entries.iter().filter_map(|entry| entry.key.name().filter(is_old)).collect();
        if old.is_empty() {
            continue;
        }
        let target = need_log_of(tx, log, to)?;
        for name in &old {
            zap::update(tx, target, *name, Value::text(""))?;
            zap::remove(tx, source, *name)?;
        }
        if old.len() == entries.len() {
            zap::remove(tx, log, &zap::hex_key(from))?;
            zap::destroy(tx, source)?;
        }
    }
    Ok(())
}

/// A scan was completed: what it found replaces what was known before.
pub(crate) fn rotate(tx: &mut Tx<'_>) -> TxResult<()> {
    drop_log(tx, ERRLOG_LAST)?;
    if let Some(log) = directory_object(tx, ERRLOG_SCRUB)? {
        zap::update(tx, DIRECTORY, ERRLOG_LAST, log)?;
        zap::update(tx, DIRECTORY, ERRLOG_SCRUB, 0)?;
    }
    Ok(())
}

/// Forgets what a scan has found that is not completed.
pub(crate) fn drop_scrub_log(tx: &mut Tx<'_>) -> TxResult<()> {
    drop_log(tx, ERRLOG_SCRUB)
}

fn drop_log(tx: &mut Tx<'_>, name: &str) -> TxResult<()> {
    let Some(log) = directory_object(tx, name)? else { return Ok(()) };
    if are_by_head(tx)? {
        for entry in zap::entries(tx, log)? {
            if let Some(of_head) = entry.value.first() {
                zap::destroy(tx, of_head)?;
            }
        }
    }
    zap::destroy(tx, log)?;
    zap::update(tx, DIRECTORY, name, 0)
}

/// Returns the by-head logs.
fn logs(tx: &mut Tx<'_>) -> TxResult<Vec<u64>> {
    let mut logs = Vec::new();
    if are_by_head(tx)? {
        for name in [ERRLOG_LAST, ERRLOG_SCRUB] {
            logs.extend(directory_object(tx, name)?);
        }
    }
    Ok(logs)
}
