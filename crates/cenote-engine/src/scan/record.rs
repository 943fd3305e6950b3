//! The stored state of a scan, in the pool directory (spec 04 §21, 06 §14).
//!
//! ```text
//!   setup ── scanning ──advance──> scanning ── ... ──> finished
//!               |  ^ resume                     `────> canceled
//!               v  |
//!              paused          operations on datasets: the position follows them, in the same txg
//! ```
//!
//! All functions run in a transaction on the MOS. A record that is damaged is dropped by the
//! import, before any dataset changes ([`examine`]).

use std::collections::BTreeMap;

use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit::{self as zap, ZapOptions};
use cenote_dmu::{Tx, TxResult, TxStop};
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::checkpoint::POOL_CHECKPOINT;
use cenote_ondisk::dsl::DatasetPhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::scan::{
    CorruptScan, LAST_SCRUBBED_TXG, SCAN, SCAN_WORDS, ScanFlags, ScanFunc, ScanPhys, ScanState,
};
use cenote_ondisk::zap::Value;
use cenote_pool::mos::DIRECTORY;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind};

use super::position::{PAST_DDT, Position};
use super::{ScanError, deferral};
use crate::dsl::{Effects, Env, errors, get_dataset, history};

/// Keys that pools of old versions have (spec 04 §21).
const OLD_KEYS: [&str; 2] = ["scrub_func", "scrub_queue"];

/// A scan that reads up to more txgs from now than this was not stored by anybody.
const TXGS_TO_COME_MAX: u64 = 64;

/// Damage of a stored scan: it cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ScanDamage {
    /// It has the wrong size.
    #[error("{0}")]
    Size(CorruptScan),
    /// Its state is unknown.
    #[error("its state is {0}")]
    State(u64),
    /// Neither a scrub nor a resilver.
    #[error("its kind is {0}")]
    Kind(u64),
    /// Scans are told apart by their begin, and none can begin after this.
    #[error("it began at {0}")]
    Begin(u64),
    /// It reads blocks that do not exist yet.
    #[error("it reads blocks up to txg {0}, which is to come")]
    Future(u64),
    /// The datasets that it is to visit are not in the object that it names.
    #[error("object {0} is no list of datasets")]
    NoQueue(u64),
    /// It stands at, or is to visit, something else than a dataset.
    #[error("object {0} is no dataset")]
    NoDataset(u64),
    /// An object that it names cannot be read.
    #[error("object {object}: {cause}")]
    Unreadable {
        /// The object.
        object: u64,
        /// The error.
        cause: String,
    },
}

impl ScanDamage {
    /// Returns the damage that an error of [`examine`] shows: a block of the queue, or of a
    /// dataset, cannot be read. `None` for other errors, and if the record cannot be read.
    pub(super) fn of(error: &Error) -> Option<Self> {
        let object = error.at().object.filter(|object| !matches!(*object, 0 | DIRECTORY))?;
        let is_damage = matches!(error.kind(), Kind::Checksum | Kind::Corrupt);
        is_damage.then(|| Self::Unreadable { object, cause: error.to_string() })
    }
}

/// Returns the damage that an error shows; other errors stay errors.
fn unless_damaged<T>(found: TxResult<T>, object: u64) -> TxResult<Result<T, ScanDamage>> {
    let is_damage =
        |kind| matches!(kind, Kind::Checksum | Kind::Corrupt | Kind::Invalid | Kind::NotFound);
    match found {
        Err(TxStop::Fail(error)) if is_damage(error.kind()) => {
            Ok(Err(ScanDamage::Unreadable { object, cause: error.to_string() }))
        }
        found => found.map(Ok),
    }
}

/// A scan as it is stored.
#[derive(Debug, Clone)]
pub(super) struct Record {
    pub(super) phys: ScanPhys,
    pub(super) position: Position,
}

/// The progress of a round.
#[derive(Debug, Clone, Default)]
pub(super) struct Advance {
    /// When the scan began that made it.
    pub(super) start_time: u64,
    /// The datasets that were visited to their ends, in this order.
    pub(super) finished: Vec<u64>,
    /// The block with which a dataset continues.
    pub(super) at: Option<Bookmark>,
    /// The txg of the state that was read.
    pub(super) view_txg: u64,
    /// Datasets of that state that follow another one.
    pub(super) successors: BTreeMap<u64, Vec<u64>>,
    pub(super) examined: u64,
    pub(super) written: u64,
    pub(super) errors: u64,
}

/// Returns the stored scan, of any state.
fn find(tx: &mut Tx<'_>) -> TxResult<Option<ScanPhys>> {
    let value = zap::lookup(tx, DIRECTORY, SCAN)?;
    Ok(value.and_then(|value| ScanPhys::decode(&value.words()).ok()))
}

/// Returns the datasets that the stored scan is to visit, if it is in progress, or the damage of
/// its record. `txg` is the txg of the state.
pub(super) fn examine(tx: &mut Tx<'_>, txg: u64) -> TxResult<Result<Vec<u64>, ScanDamage>> {
    let Some(value) = zap::lookup(tx, DIRECTORY, SCAN)? else { return Ok(Ok(Vec::new())) };
    let words = value.words();
    match words.get(1).map_or(ScanState::None, |state| ScanState::from_word(*state)) {
        ScanState::Scanning => {}
        // A longer one that has ended is a known mistake of an old release.
        ScanState::None | ScanState::Finished | ScanState::Canceled => return Ok(Ok(Vec::new())),
        other => return Ok(Err(ScanDamage::State(other.to_word()))),
    }
    let phys = match ScanPhys::decode(&words) {
        Ok(phys) => phys,
        Err(error) => return Ok(Err(ScanDamage::Size(error))),
    };
    if !matches!(phys.func, ScanFunc::Scrub | ScanFunc::Resilver) {
        return Ok(Err(ScanDamage::Kind(phys.func.to_word())));
    }
    if phys.start_time > i64::MAX.cast_unsigned() {
        return Ok(Err(ScanDamage::Begin(phys.start_time)));
    }
    if phys.max_txg > txg.saturating_add(TXGS_TO_COME_MAX) {
        return Ok(Err(ScanDamage::Future(phys.max_txg)));
    }
    if phys.queue_obj == 0 || !has_queue(tx, &phys)? {
        return Ok(Err(ScanDamage::NoQueue(phys.queue_obj)));
    }
    let queue = match unless_damaged(zap::numbers(tx, phys.queue_obj), phys.queue_obj)? {
        Ok(queue) => queue.into_iter().map(|(object, _)| object),
        Err(damage) => return Ok(Err(damage)),
    };
    let current = Position::of(&phys, BTreeMap::new()).current();
    Ok(Ok(queue.chain(current).filter(|object| *object != 0).collect()))
}

/// Returns the damage of a scan that is to visit this object, if that is no dataset.
pub(super) fn examine_dataset(tx: &mut Tx<'_>, object: u64) -> TxResult<Option<ScanDamage>> {
    Ok(match unless_damaged(dataset(tx, object), object)? {
        Ok(Some(_)) => None,
        Ok(None) => Some(ScanDamage::NoDataset(object)),
        Err(damage) => Some(damage),
    })
}

/// Whether the object that a scan names has a list of datasets. Old releases made it a plain ZAP.
fn has_queue(tx: &mut Tx<'_>, phys: &ScanPhys) -> TxResult<bool> {
    let types = [ObjectType::SCAN_QUEUE, ObjectType::ZAP_OTHER];
    let found = unless_damaged(tx.find(phys.queue_obj), phys.queue_obj)?;
    Ok(found.ok().flatten().is_some_and(|dnode| types.contains(&dnode.object_type)))
}

/// Forgets a scan whose record is damaged. Its queue is not read; with `keeps_rest`, queue and log
/// of errors stay where they are, because they cannot be freed.
pub(super) fn drop_damaged(
    tx: &mut Tx<'_>,
    env: &Env,
    damage: &ScanDamage,
    keeps_rest: bool,
) -> TxResult<()> {
    if !keeps_rest {
        if let Some(phys) = find(tx)?
            && phys.queue_obj != 0
            && has_queue(tx, &phys)?
        {
            zap::destroy(tx, phys.queue_obj)?;
        }
        errors::drop_scrub_log(tx)?;
    }
    for key in [SCAN].into_iter().chain(OLD_KEYS) {
        zap::take(tx, DIRECTORY, key)?;
    }
    history::log_pool(tx, env, "scan dropped", &damage.to_string())
}

/// Returns the scan that is in progress, paused or not.
pub(super) fn scanning(tx: &mut Tx<'_>) -> TxResult<Option<ScanPhys>> {
    Ok(find(tx)?.filter(|phys| phys.state == ScanState::Scanning))
}

/// Like [`scanning`], with its position.
pub(super) fn running(tx: &mut Tx<'_>) -> TxResult<Option<Record>> {
    let Some(phys) = scanning(tx)? else { return Ok(None) };
    let queue = match phys.queue_obj {
        0 => BTreeMap::new(),
        object => zap::numbers(tx, object)?.into_iter().collect(),
    };
    Ok(Some(Record { phys, position: Position::of(&phys, queue) }))
}

fn store(tx: &mut Tx<'_>, phys: &ScanPhys) -> TxResult<()> {
    zap::update(tx, DIRECTORY, SCAN, Value::words_of(&phys.encode()))
}

/// Stores the position of a scan.
fn store_position(tx: &mut Tx<'_>, record: &mut Record, new: &Position) -> TxResult<()> {
    new.store(&mut record.phys);
    let object = record.phys.queue_obj;
    for key in record.position.queue().keys().filter(|key| !new.queue().contains_key(key)) {
        zap::remove(tx, object, &zap::hex_key(*key))?;
    }
    for (key, after) in new.queue() {
        if record.position.queue().get(key) != Some(after) {
            zap::update(tx, object, &zap::hex_key(*key), *after)?;
        }
    }
    record.position = new.clone();
    store(tx, &record.phys)
}

/// Begins a scan. One that is in progress is dropped. Returns its start.
pub(super) fn setup(
    tx: &mut Tx<'_>,
    env: &Env,
    func: ScanFunc,
    (min_txg, max_txg): (u64, u64),
    to_examine: u64,
) -> TxResult<u64> {
    if let Some(old) = running(tx)? {
        let text = format!("errors={}", old.phys.errors);
        history::log_pool(tx, env, "scan aborted, restarting", &text)?;
        drop_queue(tx, &old.phys)?;
    }
    errors::drop_scrub_log(tx)?;
    let queue_obj =
        zap::create(tx, &ObjectSpec::new(ObjectType::SCAN_QUEUE, 0), ZapOptions::default())?;
    let none = ScanPhys::decode(&[0; SCAN_WORDS]).map_err(cenote_rt::Error::corrupt)?;
    // Scans are told apart by their start.
    let before = find(tx)?.map_or(0, |old| old.start_time);
    let start_time = env.now.max(before.saturating_add(1));
    let phys = ScanPhys {
        func,
        state: ScanState::Scanning,
        queue_obj,
        min_txg,
        max_txg,
        cur_min_txg: min_txg,
        cur_max_txg: max_txg,
        start_time,
        to_examine,
        ddt_bookmark: PAST_DDT,
        ..none
    };
    store(tx, &phys)?;
    let text = format!("func={} mintxg={min_txg} maxtxg={max_txg}", func.to_word());
    history::log_pool(tx, env, "scan setup", &text)?;
    Ok(start_time)
}

fn drop_queue(tx: &mut Tx<'_>, phys: &ScanPhys) -> TxResult<()> {
    if phys.queue_obj != 0 && tx.find(phys.queue_obj)?.is_some() {
        zap::destroy(tx, phys.queue_obj)?;
    }
    Ok(())
}

/// Pauses a scrub, or lets it go on.
pub(super) fn pause(tx: &mut Tx<'_>, is_paused: bool) -> TxResult<()> {
    let scrub = running(tx)?.filter(|record| record.phys.func == ScanFunc::Scrub);
    let Some(mut record) = scrub else { return Err(ScanError::NotRunning.into()) };
    if record.phys.flags.contains(ScanFlags::PAUSED) == is_paused {
        return Err(if is_paused { ScanError::Paused } else { ScanError::Scrubbing }.into());
    }
    record.phys.flags.set(ScanFlags::PAUSED, is_paused);
    store(tx, &record.phys)
}

/// Ends a scan before its end.
pub(super) fn cancel(tx: &mut Tx<'_>, env: &Env) -> TxResult<ScanFunc> {
    let Some(record) = running(tx)? else { return Err(ScanError::NotRunning.into()) };
    errors::drop_scrub_log(tx)?;
    end(tx, env, record.phys, ScanState::Canceled)?;
    Ok(record.phys.func)
}

fn end(tx: &mut Tx<'_>, env: &Env, phys: ScanPhys, state: ScanState) -> TxResult<()> {
    drop_queue(tx, &phys)?;
    for key in OLD_KEYS {
        zap::take(tx, DIRECTORY, key)?;
    }
    let mut ended = ScanPhys { queue_obj: 0, state, end_time: env.now, ..phys };
    ended.flags.remove(ScanFlags::PAUSED);
    store(tx, &ended)?;
    let event = if state == ScanState::Finished { "scan done" } else { "scan cancelled" };
    history::log_pool(tx, env, event, &format!("errors={}", ended.errors))
}

/// Whether a scan is in progress.
pub(crate) fn is_running(tx: &mut Tx<'_>) -> TxResult<bool> {
    Ok(scanning(tx)?.is_some())
}

/// Whether a resilver is in progress.
pub(crate) fn is_resilvering(tx: &mut Tx<'_>) -> TxResult<bool> {
    Ok(scanning(tx)?.is_some_and(|phys| phys.func == ScanFunc::Resilver))
}

/// Records the progress of a round. Returns the scan as it is now; `None` if another one, or none,
/// is in progress.
pub(super) fn advance(tx: &mut Tx<'_>, done: &Advance) -> TxResult<Option<Record>> {
    let Some(mut record) = running(tx)? else { return Ok(None) };
    if record.phys.start_time != done.start_time {
        return Ok(None);
    }
    let limits = (record.phys.min_txg, record.phys.max_txg);
    let mut position = record.position.clone();
    for object in &done.finished {
        let Some(object) = standing_for(tx, &position, *object, done.view_txg)? else { continue };
        let mut successors = Vec::new();
        let mut candidates = done.successors.get(&object).cloned().unwrap_or_default();
        while let Some(candidate) = candidates.pop() {
            if dataset(tx, candidate)?.is_some_and(|phys| phys.creation_txg <= done.view_txg) {
                successors.extend(successor(tx, object, candidate)?);
            } else {
                // It was destroyed: what followed it follows the dataset.
                candidates.extend(done.successors.get(&candidate).into_iter().flatten());
            }
        }
        // A snapshot that was taken since has its head behind it.
        if let Some(phys) = dataset(tx, object)?.filter(DatasetPhys::is_snapshot) {
            successors.push((phys.next_snap_obj, phys.creation_txg));
        }
        position.finish(object, successors);
    }
    if let Some(at) = done.at
        && let Some(objset) = standing_for(tx, &position, at.objset, done.view_txg)?
    {
        let created = dataset(tx, objset)?.filter(DatasetPhys::is_snapshot);
        let created = created.map(|phys| phys.creation_txg);
        position.stand_at(Bookmark { objset, ..at }, limits, created);
    }
    record.phys.examined = record.phys.examined.saturating_add(done.examined);
    record.phys.processed = record.phys.processed.saturating_add(done.written);
    record.phys.errors = record.phys.errors.saturating_add(done.errors);
    store_position(tx, &mut record, &position)?;
    Ok(Some(record))
}

/// Returns a dataset, if the object is one.
fn dataset(tx: &mut Tx<'_>, object: u64) -> TxResult<Option<DatasetPhys>> {
    if object == 0
        || tx.find(object)?.is_none_or(|dnode| dnode.bonus_type != ObjectType::DSL_DATASET)
    {
        return Ok(None);
    }
    get_dataset(tx, object).map(Some)
}

/// Returns the dataset that a scan has in place of one that it visited: itself, or the first
/// snapshot that was taken of it since. `None` if it was destroyed: then the blocks that it shared
/// are visited again, with the dataset after it.
fn standing_for(
    tx: &mut Tx<'_>,
    position: &Position,
    visited: u64,
    view_txg: u64,
) -> TxResult<Option<u64>> {
    let is_old = |phys: DatasetPhys| phys.creation_txg <= view_txg;
    if visited != 0 && !dataset(tx, visited)?.is_some_and(is_old) {
        // Another dataset may have its number now.
        return Ok(None);
    }
    let mut object = visited;
    while !position.has(object) {
        let Some(phys) = dataset(tx, object)? else { return Ok(None) };
        if phys.prev_snap_txg <= view_txg {
            return Ok(None);
        }
        object = phys.prev_snap_obj;
    }
    Ok(Some(object))
}

/// Returns what follows a dataset on the way to one that followed it in an older state, with the
/// txg after which its blocks were born.
fn successor(tx: &mut Tx<'_>, object: u64, candidate: u64) -> TxResult<Option<(u64, u64)>> {
    let mut found = candidate;
    loop {
        let Some(phys) = dataset(tx, found)? else { return Ok(None) };
        if phys.prev_snap_obj == object {
            return Ok(Some((found, phys.prev_snap_txg)));
        }
        if phys.prev_snap_obj == 0 {
            return Ok(None);
        }
        found = phys.prev_snap_obj;
    }
}

/// Records that everything was visited. Returns what has ended, if it was in progress. `is_whole`:
/// by this import, so that it knows what failed meanwhile (SC2).
pub(super) fn finish(
    tx: &mut Tx<'_>,
    env: &Env,
    effects: &mut Effects,
    is_whole: bool,
) -> TxResult<Option<ScanFunc>> {
    let Some(Record { phys, position }) = running(tx)? else { return Ok(None) };
    if !position.is_at_end() {
        return Ok(None);
    }
    errors::rotate(tx)?;
    if phys.func == ScanFunc::Scrub {
        zap::update(tx, DIRECTORY, LAST_SCRUBBED_TXG, phys.max_txg)?;
    }
    end(tx, env, phys, ScanState::Finished)?;
    deferral::note_ended(tx, env, &phys)?;
    let has_checkpoint = zap::lookup(tx, DIRECTORY, POOL_CHECKPOINT)?.is_some();
    // SC2: a checkpoint has blocks that were not visited.
    if is_whole && (!has_checkpoint || is_on(Bug::ScanIgnoresCheckpoint)) {
        effects.scanned = Some(phys.max_txg);
    }
    Ok(Some(phys.func))
}

/// Lets the position of a scan in progress follow a change of datasets, which concerns only these.
fn follow(tx: &mut Tx<'_>, of: &[u64], change: impl FnOnce(&mut Position)) -> TxResult<()> {
    let Some(phys) = scanning(tx)? else { return Ok(()) };
    let mut queue = BTreeMap::new();
    for object in of {
        if phys.queue_obj != 0
            && let Some(after) = zap::lookup_u64(tx, phys.queue_obj, &zap::hex_key(*object))?
        {
            queue.insert(*object, after);
        }
    }
    let mut record = Record { phys, position: Position::of(&phys, queue) };
    let mut position = record.position.clone();
    change(&mut position);
    if position == record.position {
        return Ok(());
    }
    store_position(tx, &mut record, &position)
}

/// A snapshot was taken of a head.
pub(crate) fn follow_snapshot(tx: &mut Tx<'_>, head: u64, snapshot: u64) -> TxResult<()> {
    if is_on(Bug::ScanMissesSnapshot) {
        return Ok(());
    }
    follow(tx, &[head], |position| position.note_snapshot(head, snapshot))
}

/// A dataset is destroyed; `next` is the one after a snapshot.
pub(crate) fn follow_destroy(tx: &mut Tx<'_>, object: u64, next: Option<u64>) -> TxResult<()> {
    let next = next.filter(|_| !is_on(Bug::ScanMissesDestroy));
    follow(tx, &[object], |position| position.note_destroyed(object, next))
}

/// Two heads exchanged their contents.
pub(crate) fn follow_swap(tx: &mut Tx<'_>, one: u64, other: u64) -> TxResult<()> {
    follow(tx, &[one, other], |position| position.note_swapped(one, other))
}
