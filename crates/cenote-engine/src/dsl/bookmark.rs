//! Bookmarks: creation points of snapshots that outlive the snapshots (spec 04 §15).
//!
//! ```text
//!   @a ── @b ── @c ── head        #b stands for @b also when that is gone
//!          `── sum over what was in @b and died before @c ("freed before next")
//! ```
//!
//! The sums of a bookmark with `HAS_FBN` are kept exact: while it is after the last snapshot, each
//! killed block older than it counts; when a snapshot between it and the next one is destroyed, the
//! blocks that died after that snapshot count as well. Deadlists keep the txg of such a bookmark as
//! a key, so that the sums can be computed.

use std::collections::BTreeSet;

use cenote_dmu::deadlist::edit as deadlist;
use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit::{self as zap, ZapOptions};
use cenote_dmu::{Space, Tx, TxResult};
use cenote_ondisk::dsl::bookmark::{BOOKMARK_V1_WORDS, BOOKMARK_V2_WORDS};
use cenote_ondisk::dsl::{BookmarkFlags, BookmarkPhys, DatasetPhys, key};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::{NormFlags, Value};
use cenote_pool::dsl::bookmark::{bookmark_table, bookmarks_of, find_bookmark};

use crate::dsl::space::Sizes;
use crate::dsl::{
    Env, OpError, blocks, crypto, features, get_dataset, get_dir, history, names, redaction,
    snapshot,
};

fn has_sums(mark: &BookmarkPhys) -> bool {
    mark.flags.contains(BookmarkFlags::HAS_FBN)
}

/// Splits `pool/fs#name`.
pub(super) fn parts(name: &str) -> TxResult<(&str, &str)> {
    name.split_once('#').ok_or_else(|| OpError::Name.into())
}

/// Creates the bookmark `pool/fs#name` of a snapshot or another bookmark.
pub(crate) fn create(tx: &mut Tx<'_>, env: &Env, name: &str, source: &str) -> TxResult<()> {
    if !features::is_enabled(tx, "bookmarks")? {
        return Err(OpError::Unsupported.into());
    }
    names::check_new(env, name)?;
    names::check_pool(env, source)?;
    let (dataset, last) = parts(name)?;
    let head = names::head(tx, dataset)?;
    if find_bookmark(tx, head, last)?.is_some() {
        return Err(OpError::Exists.into());
    }
    let (point, text) = if source.contains('#') {
        let (of, source_name) = parts(source)?;
        let of = names::head(tx, of)?;
        let (_, mark) = find_bookmark(tx, of, source_name)?.ok_or(OpError::NotFound)?;
        if !is_before(tx, of, mark.creation_txg, head)? {
            return Err(OpError::NotAnAncestor.into());
        }
        let mut mark = BookmarkPhys { redaction_obj: 0, ..mark };
        mark.word_count = if has_sums(&mark) || mark.ivset_guid != 0 {
            BOOKMARK_V2_WORDS
        } else {
            BOOKMARK_V1_WORDS
        };
        (mark, format!("name={last} creation_txg={} source_guid={}", mark.creation_txg, mark.guid))
    } else {
        let object = names::snapshot_of(tx, source)?;
        let list = match redaction::snapshots_of(tx, object)? {
            // What the snapshot lacks, and why, must be known to later sends.
            Some(_) if !features::is_enabled(tx, "redaction_bookmarks")? => {
                return Err(OpError::Unsupported.into());
            }
            Some(guids) => redaction::create_complete(tx, guids)?,
            None => 0,
        };
        return insert_of_snapshot(tx, env, (head, last), object, list);
    };
    insert(tx, head, last, &point)?;
    history::log(tx, env, "bookmark", head, &text)
}

/// Creates the redaction bookmark `pool/fs#name` of a snapshot, with its list.
pub(super) fn create_redacted(
    tx: &mut Tx<'_>,
    env: &Env,
    name: &str,
    source: &str,
    list: u64,
) -> TxResult<()> {
    names::check_new(env, name)?;
    let (dataset, last) = parts(name)?;
    let (head, object) = (names::head(tx, dataset)?, names::snapshot_of(tx, source)?);
    insert_of_snapshot(tx, env, (head, last), object, list)
}

/// Adds a bookmark of a snapshot to a head; with a redaction list unless that is 0.
fn insert_of_snapshot(
    tx: &mut Tx<'_>,
    env: &Env,
    (head, name): (u64, &str),
    object: u64,
    list: u64,
) -> TxResult<()> {
    let snapshot = get_dataset(tx, object)?;
    if !is_before(tx, object, snapshot.creation_txg, head)? {
        return Err(OpError::NotAnAncestor.into());
    }
    let mut mark = of_snapshot(tx, &snapshot)?;
    if let Some(guid) = crypto::ivset_of(tx, object)?
        && features::is_enabled(tx, "bookmark_v2")?
    {
        (mark.ivset_guid, mark.word_count) = (guid, BOOKMARK_V2_WORDS);
    }
    if list != 0 {
        (mark.redaction_obj, mark.word_count) = (list, BOOKMARK_V2_WORDS);
    }
    insert(tx, head, name, &mark)?;
    let txg = mark.creation_txg;
    let text = format!("name={name} creation_txg={txg} target_snap={object} redact_obj={list}");
    history::log(tx, env, "bookmark", head, &text)
}

fn of_snapshot(tx: &mut Tx<'_>, snapshot: &DatasetPhys) -> TxResult<BookmarkPhys> {
    let mut mark = BookmarkPhys {
        word_count: BOOKMARK_V1_WORDS,
        guid: snapshot.guid,
        creation_txg: snapshot.creation_txg,
        creation_time: snapshot.creation_time,
        ..BookmarkPhys::default()
    };
    let has_v2 = features::is_enabled(tx, "bookmark_v2")?;
    if has_v2 && features::is_enabled(tx, "bookmark_written")? {
        let next = get_dataset(tx, snapshot.next_snap_obj)?;
        mark.word_count = BOOKMARK_V2_WORDS;
        mark.flags = BookmarkFlags::HAS_FBN | BookmarkFlags::SNAPSHOT_EXISTS;
        mark.referenced =
            [snapshot.referenced_bytes, snapshot.compressed_bytes, snapshot.uncompressed_bytes];
        mark.freed_before_next = words(deadlist::space(tx, next.deadlist_obj)?);
    }
    Ok(mark)
}

fn words(space: Space) -> [u64; 3] {
    [space.used, space.comp, space.uncomp]
}

/// Whether the dataset `earlier`, as of `txg`, is an earlier state of `later`.
pub(super) fn is_before(tx: &mut Tx<'_>, earlier: u64, txg: u64, later: u64) -> TxResult<bool> {
    let earlier_dir = get_dataset(tx, earlier)?.dir_obj;
    let mut at = later;
    loop {
        let phys = get_dataset(tx, at)?;
        if phys.is_snapshot() && txg >= phys.creation_txg {
            return Ok(at == earlier || phys.dir_obj == earlier_dir && txg == phys.creation_txg);
        }
        if phys.dir_obj == earlier_dir {
            return Ok(true);
        }
        at = get_dir(tx, phys.dir_obj)?.origin_obj;
        if at == 0 {
            return Ok(false);
        }
    }
}

/// Adds a bookmark to a head, and counts its features.
pub(super) fn insert(tx: &mut Tx<'_>, head: u64, name: &str, mark: &BookmarkPhys) -> TxResult<()> {
    let table = if let Some(table) = bookmark_table(tx, head)? {
        table
    } else {
        blocks::zapify(tx, head)?;
        let spec = ObjectSpec::new(ObjectType::ZAP_METADATA, 0);
        let options = ZapOptions { normflags: NormFlags::TOUPPER, ..ZapOptions::default() };
        let table = zap::create(tx, &spec, options)?;
        zap::insert(tx, head, key::BOOKMARKS, table)?;
        features::add(tx, "bookmarks", 1)?;
        table
    };
    if mark.word_count > BOOKMARK_V1_WORDS {
        features::add(tx, "bookmark_v2", 1)?;
    }
    if has_sums(mark) {
        features::add(tx, "bookmark_written", 1)?;
    }
    if mark.redaction_obj != 0 {
        redaction::count(tx, mark.redaction_obj, 1)?;
    }
    zap::insert(tx, table, name, Value::words_of(&mark.encode()))
}

/// Removes a bookmark from a head, and its features; the ZAP is removed with the last.
pub(super) fn take(tx: &mut Tx<'_>, head: u64, name: &str, mark: &BookmarkPhys) -> TxResult<()> {
    let Some(table) = bookmark_table(tx, head)? else { return Err(OpError::NotFound.into()) };
    zap::remove(tx, table, name)?;
    if mark.word_count > BOOKMARK_V1_WORDS {
        features::add(tx, "bookmark_v2", -1)?;
    }
    if has_sums(mark) {
        features::add(tx, "bookmark_written", -1)?;
    }
    if mark.redaction_obj != 0 {
        redaction::count(tx, mark.redaction_obj, -1)?;
    }
    if zap::len(tx, table)? == 0 {
        zap::destroy(tx, table)?;
        zap::remove(tx, head, key::BOOKMARKS)?;
        features::add(tx, "bookmarks", -1)?;
    }
    Ok(())
}

/// Destroys the bookmark `pool/fs#name`. One that does not exist counts as destroyed.
pub(crate) fn destroy(tx: &mut Tx<'_>, env: &Env, name: &str) -> TxResult<()> {
    names::check_pool(env, name)?;
    let (dataset, last) = parts(name)?;
    let head = match names::head(tx, dataset) {
        Ok(head) => head,
        Err(step) if names::is_missing(&step) => return Ok(()),
        Err(step) => return Err(step),
    };
    let Some((last, mark)) = find_bookmark(tx, head, last)? else { return Ok(()) };
    remove(tx, head, &last, &mark)?;
    history::log(tx, env, "remove bookmark", head, &format!("name={last}"))
}

/// Removes a bookmark, and its key in deadlists if no other needs it.
fn remove(tx: &mut Tx<'_>, head: u64, name: &str, mark: &BookmarkPhys) -> TxResult<()> {
    take_with_list(tx, head, name, mark)?;
    if !has_sums(mark) || mark.flags.contains(BookmarkFlags::SNAPSHOT_EXISTS) {
        return Ok(());
    }
    let phys = get_dataset(tx, head)?;
    let txg = mark.creation_txg;
    if txg >= phys.prev_snap_txg || keeps_key(tx, head, txg)? {
        return Ok(());
    }
    let dir = get_dir(tx, phys.dir_obj)?;
    snapshot::remove_clone_keys(tx, &dir, txg)?;
    snapshot::remove_key(tx, phys.deadlist_obj, txg)
}

/// Removes a bookmark, and frees its redaction list.
fn take_with_list(tx: &mut Tx<'_>, head: u64, name: &str, mark: &BookmarkPhys) -> TxResult<()> {
    take(tx, head, name, mark)?;
    if mark.redaction_obj != 0 {
        redaction::free(tx, mark.redaction_obj)?;
    }
    Ok(())
}

/// Whether a bookmark of the head needs the txg as a key of deadlists.
pub(super) fn keeps_key(tx: &mut Tx<'_>, head: u64, txg: u64) -> TxResult<bool> {
    let marks = bookmarks_of(tx, head)?;
    Ok(marks.iter().any(|(_, mark)| has_sums(mark) && mark.creation_txg == txg))
}

/// Frees the bookmarks of a destroyed head.
pub(super) fn destroy_all(tx: &mut Tx<'_>, head: u64) -> TxResult<()> {
    for (name, mark) in bookmarks_of(tx, head)? {
        take_with_list(tx, head, &name, &mark)?;
    }
    Ok(())
}

/// Returns the txgs of bookmarks with sums after `txg`, which a new deadlist has as keys.
pub(super) fn keys_after(tx: &mut Tx<'_>, head: u64, txg: u64) -> TxResult<BTreeSet<u64>> {
    let marks = bookmarks_of(tx, head)?.into_iter();
    Ok(marks
        .filter(|(_, mark)| has_sums(mark) && mark.creation_txg > txg)
        .map(|(_, mark)| mark.creation_txg)
        .collect())
}

fn store(tx: &mut Tx<'_>, head: u64, name: &str, mark: &BookmarkPhys) -> TxResult<()> {
    let table = bookmark_table(tx, head)?.ok_or(OpError::NotFound)?;
    // An update stores all words, whatever the length was.
    let mark = BookmarkPhys { word_count: BOOKMARK_V2_WORDS, ..*mark };
    zap::update(tx, table, name, Value::words_of(&mark.encode()))
}

fn add(mark: &mut BookmarkPhys, more: [u64; 3]) {
    for (sum, more) in mark.freed_before_next.iter_mut().zip(more) {
        *sum = sum.wrapping_add(more);
    }
}

/// Adds killed blocks of the head, as (birth, sizes), to the sums.
pub(super) fn note_killed(
    tx: &mut Tx<'_>,
    head: u64,
    prev_snap_txg: u64,
    killed: &[(u64, Sizes)],
) -> TxResult<()> {
    for (name, mut mark) in bookmarks_of(tx, head)? {
        if !has_sums(&mark) || mark.creation_txg < prev_snap_txg {
            continue;
        }
        let mut sum = Sizes::default();
        for (_, sizes) in killed.iter().filter(|(birth, _)| *birth <= mark.creation_txg) {
            sum += *sizes;
        }
        if sum != Sizes::default() {
            add(&mut mark, [sum.used as u64, sum.compressed as u64, sum.uncompressed as u64]);
            store(tx, head, &name, &mark)?;
        }
    }
    Ok(())
}

/// Adds blocks for a destroyed snapshot of the head; `next_deadlist` is that of the next dataset.
/// Returns true if its txg must stay a key of deadlists.
pub(super) fn note_destroyed(
    tx: &mut Tx<'_>,
    head: u64,
    snapshot: &DatasetPhys,
    next_deadlist: u64,
) -> TxResult<bool> {
    let mut is_kept = false;
    for (name, mut mark) in bookmarks_of(tx, head)? {
        if !has_sums(&mark) {
            continue;
        }
        let txg = mark.creation_txg;
        if txg == snapshot.creation_txg {
            mark.flags.remove(BookmarkFlags::SNAPSHOT_EXISTS);
            is_kept = true;
        } else if (snapshot.prev_snap_txg..snapshot.creation_txg).contains(&txg) {
            add(&mut mark, words(deadlist::space_range(tx, next_deadlist, 0, txg)?));
        } else {
            continue;
        }
        store(tx, head, &name, &mark)?;
    }
    Ok(is_kept)
}

/// Adjusts the sums after the successor of the point at `txg` has changed to a dataset with this
/// deadlist.
pub(super) fn note_next_changed(
    tx: &mut Tx<'_>,
    head: u64,
    txg: u64,
    next_deadlist: u64,
) -> TxResult<()> {
    for (name, mut mark) in bookmarks_of(tx, head)? {
        if has_sums(&mark) && mark.creation_txg == txg {
            mark.freed_before_next = words(deadlist::space(tx, next_deadlist)?);
            store(tx, head, &name, &mark)?;
        }
    }
    Ok(())
}
