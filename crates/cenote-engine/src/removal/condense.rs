//! Condenses mappings: entries of which nothing is used any more are left out (spec 05 §11).
//!
//! ```text
//!   begin     the obsolete map is closed; an empty mapping ──────────────> one txg
//!   copy      entries that the counts and the closed map leave in use ───> a txg for each batch
//!   finish    the new mapping takes the place of the old one, which is freed with the closed map
//! ```
//!
//! The state on disk is OpenZFS's, at each commit: it goes on with what was begun here, and the
//! other way round. What becomes obsolete meanwhile is in a new map, by ranges of the vdev, so that
//! it counts for either mapping.
//!
//! A mapping is not condensed beside a checkpoint: the blocks of that are looked up in the mapping
//! that the pool has now.
//!
//! Invariants
//! * RV4  An entry is left out only if every byte of it is obsolete.
//!
//! Orders that data depends on
//! 1. Views of earlier states end before the old mapping goes: they may read what was freed since.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_block::alloc::Pin;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult, spacemap};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::indirect::{
    CONDENSING_INDIRECT, CondensingPhys, MAPPING_ENTRY_LEN, Mapping, MappingEntry, counts,
};
use cenote_ondisk::spacemap::{Decoder, Geometry, Item};
use cenote_ondisk::vdev_zap::OBSOLETE_SM;
use cenote_ondisk::zap::Value;
use cenote_pool::mos::DIRECTORY;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Error, Kind, Result, ensure, tunables};

use super::record::{self, NewCopy};
use super::{RemovalError, Removals};
use crate::background::Background;
use crate::dsl::features;
use crate::space::{checkpoint, metaslabs};
use crate::{Answer, Engine, Scope, Task, invariant};

/// Pause after an error.
const FAILED_PAUSE: Duration = Duration::from_secs(10);
/// Entries that are copied in a txg: half a megabyte of mapping.
const BATCH: usize = 20_000;
/// Counts that are read at a time, a block of their object.
const COUNTS_AT_ONCE: usize = 32 << 10;

/// Returns the stored state, `None` if no mapping is being condensed.
fn state(tx: &mut Tx<'_>) -> TxResult<Option<CondensingPhys>> {
    let Some(value) = zap::lookup(tx, DIRECTORY, CONDENSING_INDIRECT)? else { return Ok(None) };
    let state = CondensingPhys::decode(&value.words());
    Ok(Some(state.map_err(|error| Error::corrupt(error).in_object(0, DIRECTORY))?))
}

/// Whether enough of a mapping is obsolete, by OpenZFS's measure: the obsolete map alone counts.
fn is_worth_it(tx: &mut Tx<'_>, top: &VdevConfig) -> TxResult<bool> {
    let (VdevKind::Indirect, Some(zap_top)) = (&top.kind, top.top.zap_top) else {
        return Ok(false);
    };
    let Some(map) = zap::lookup_u64(tx, zap_top, OBSOLETE_SM)? else { return Ok(false) };
    let map = spacemap::header(tx, map)?;
    let mapping = record::mapping_of(tx, top)?;
    let obsolete = map.allocated.max(0) as u64;
    let share = obsolete.saturating_mul(100) / mapping.bytes_mapped.max(1);
    let size = mapping.num_entries.saturating_mul(MAPPING_ENTRY_LEN as u64);
    let is_large = size > tunables::CONDENSE_MIN_MAPPING_BYTES.get();
    Ok(is_large && share >= tunables::CONDENSE_OBSOLETE_PCT.get()
        || map.length >= tunables::CONDENSE_MAX_OBSOLETE_BYTES.get())
}

/// Returns the vdev whose mapping is to be condensed next.
fn next<'a>(tx: &mut Tx<'_>, root: &'a VdevConfig) -> TxResult<Option<&'a VdevConfig>> {
    if tunables::CONDENSE_ENABLE.get() == 0 {
        return Ok(None);
    }
    for top in &root.children {
        if is_worth_it(tx, top)? {
            return Ok(Some(top));
        }
    }
    Ok(None)
}

/// Whether there is anything to condense.
pub(super) fn is_due(tx: &mut Tx<'_>, root: &VdevConfig) -> TxResult<bool> {
    if !root.children.iter().any(|top| top.kind == VdevKind::Indirect) {
        return Ok(false);
    }
    Ok(!checkpoint::exists(tx)? && (state(tx)?.is_some() || next(tx, root)?.is_some()))
}

impl Removals<'_> {
    /// Condenses mappings in the background, if enough of them is obsolete or one was begun.
    pub(super) fn start_condensing(self) {
        if self.engine.is_read_only() {
            return;
        }
        let tasks = &self.engine.leaf.removal;
        let runner = {
            let mut running = tasks.condenser.lock();
            let is_stopped = tasks.is_stopped.load(Ordering::Acquire)
                || tasks.is_inconsistent.load(Ordering::Acquire);
            if is_stopped || running.as_ref().is_some_and(|runner| !runner.has_ended()) {
                return;
            }
            Arc::clone(running.insert(Arc::default()))
        };
        let engine = self.engine.me.clone();
        cenote_rt::spawn_background(async move {
            let cut = Error::new(Kind::Closed, RemovalError::NotRunning);
            let work = async {
                loop {
                    // Held for one mapping only, so that closing the pool does not wait for all.
                    let Some(held) = engine.upgrade() else { return Ok(()) };
                    match condense(&held, &runner).await {
                        Ok(true) => {}
                        Ok(false) => return Ok(()),
                        Err(error) if error.kind() == Kind::Closed => return Err(error),
                        Err(error) if error.kind() == Kind::Invariant => {
                            held.fail(&error.to_string());
                            return Err(error);
                        }
                        Err(error) if error.kind() == Kind::Corrupt => {
                            // The mapping is used as it is, until the next import.
                            held.leaf.removal.is_inconsistent.store(true, Ordering::Release);
                            return Err(error);
                        }
                        Err(_) => {
                            drop(held);
                            runner.rest(FAILED_PAUSE).await;
                        }
                    }
                    if runner.is_stopped() {
                        return Ok(());
                    }
                }
            };
            runner.run(work, cut).await;
        });
    }

    /// Stops condensing, and waits for the task.
    pub(super) async fn halt_condensing(self) {
        let runner = self.engine.leaf.removal.condenser.lock().clone();
        if let Some(runner) = runner {
            runner.stop();
            // An error leaves the mapping as it is.
            drop(runner.wait().await);
        }
    }

    /// Waits until no mapping is being condensed.
    ///
    /// # Errors
    /// The error that ended it.
    pub async fn wait_condensed(self) -> Result<()> {
        let runner = self.engine.leaf.removal.condenser.lock().clone();
        match runner {
            Some(runner) => runner.wait().await,
            None => Ok(()),
        }
    }
}

/// Condenses one mapping. Returns false if there is none, or the task is to stop.
async fn condense(engine: &Engine, runner: &Background) -> Result<bool> {
    engine.until_running().await?;
    let root = engine.config().root;
    if !engine.mos.inspect(|tx| is_due(tx, &root)).await? {
        return Ok(false);
    }
    let answer = Answer::new();
    engine.run_task(Box::new(Begin { answer: Arc::clone(&answer) })).await?;
    let Some(state) = answer.take()? else { return Ok(false) };
    let mapping = engine.tree.indirect(state.vdev);
    let mapping = mapping.ok_or(RemovalError::NoMapping(state.vdev))?;
    let obsolete = obsolete_bytes(engine, &state, &mapping).await?;
    let pairs = mapping.entries().iter().zip(obsolete);
    let used = pairs.filter(|(entry, obsolete)| *obsolete < entry.target.asize);
    let used = used.map(|(entry, obsolete)| NewCopy { entry: *entry, obsolete });
    let used: Vec<NewCopy> = used.collect();
    let new = state.next_mapping_obj;
    let copied = engine.mos.inspect(|tx| record::header(tx, new)).await?;
    let first = used.partition_point(|copy| copy.entry.source < copied.max_offset);
    let last = used.len().saturating_sub(usize::from(is_on(Bug::CondenseDropsEntry))).max(first);
    let delay = tunables::CONDENSE_DELAY_MS.get();
    for batch in used[first..last].chunks(if delay == 0 { BATCH } else { 1 }) {
        runner.rest(Duration::from_millis(delay)).await;
        if runner.is_stopped() {
            return Ok(false);
        }
        let answer = Answer::new();
        let batch = batch.to_vec();
        engine.run_task(Box::new(Copy { state, batch, answer: Arc::clone(&answer) })).await?;
        answer.take()?;
    }
    let count = engine.mos.inspect(|tx| record::header(tx, new)).await?.num_entries;
    let is_whole = count == used.len() as u64 || is_on(Bug::CondenseDropsEntry);
    ensure!("RV4", is_whole, "{count} entries, and {} are in use", used.len());
    let answer = Answer::new();
    engine.run_task(Box::new(Finish { state, answer: Arc::clone(&answer) })).await?;
    answer.take()
}

/// Returns the obsolete bytes of each entry of a mapping, as recorded when condensing began.
async fn obsolete_bytes(
    engine: &Engine,
    state: &CondensingPhys,
    mapping: &Mapping,
) -> Result<Vec<u64>> {
    let entries = mapping.entries();
    let mut found = Vec::with_capacity(entries.len());
    let top = engine.with_config(|config| {
        config.root.children.iter().find(|top| top.id == state.vdev).cloned()
    });
    let top = top.ok_or(RemovalError::NoMapping(state.vdev))?;
    let phys = engine.mos.inspect(|tx| record::mapping_of(tx, &top)).await?;
    let inconsistent = || Error::corrupt(RemovalError::Obsolete(state.vdev));
    if phys.num_entries != entries.len() as u64 {
        return Err(inconsistent());
    }
    if let Some(object) = phys.counts_obj.filter(|_| !is_on(Bug::CondenseForgetsCounts)) {
        while found.len() < entries.len() {
            let (at, more) = (found.len(), COUNTS_AT_ONCE.min(entries.len() - found.len()));
            let part = engine.mos.inspect(|tx| tx.read(object, at as u64 * 4, more * 4)).await?;
            found.extend(counts(&part).map(u64::from));
        }
    }
    found.resize(entries.len(), 0);
    let map = state.prev_obsolete_sm_obj;
    let mut decoder = Decoder::new(Geometry { start: 0, size: top.top.asize, shift: 0 });
    let (length, block) = engine
        .mos
        .inspect(|tx| Ok((spacemap::header(tx, map)?.length, tx.dnode(map)?.data_block_size())))
        .await?;
    let mut at = 0;
    while at < length {
        let len = block.min(length - at) as usize;
        let part = engine.mos.inspect(|tx| tx.read(map, at, len)).await?;
        for item in decoder.block(&part) {
            let item = item.map_err(|error| Error::corrupt(error).in_object(0, map))?;
            if let Item::Entry(entry) = item {
                let range = entry.offset..entry.offset.saturating_add(entry.size);
                add_range(entries, &mut found, range).ok_or_else(inconsistent)?;
            }
        }
        at += len as u64;
    }
    let is_more = entries.iter().zip(&found).any(|(entry, found)| *found > entry.target.asize);
    if is_more { Err(inconsistent()) } else { Ok(found) }
}

/// Counts a range of the vdev as obsolete; `None` if a byte of it is not mapped.
fn add_range(
    entries: &[MappingEntry],
    found: &mut [u64],
    range: std::ops::Range<u64>,
) -> Option<()> {
    let mut at = range.start;
    let mut index = entries.partition_point(|entry| entry.end() <= at);
    while at < range.end {
        let entry = entries.get(index).filter(|entry| entry.source <= at)?;
        let end = entry.end().min(range.end);
        *found.get_mut(index)? += end - at;
        (at, index) = (end, index + 1);
    }
    Some(())
}

/// The task that begins, or finds what was begun.
struct Begin {
    answer: Arc<Answer<Option<CondensingPhys>>>,
}

impl Task for Begin {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let root = engine.config().root;
            let result = engine
                .mos_apply(context.txg, |tx| {
                    if checkpoint::exists(tx)? {
                        return Ok(None);
                    }
                    if let Some(state) = state(tx)? {
                        return Ok(Some(state));
                    }
                    let Some(top) = next(tx, &root)? else { return Ok(None) };
                    let next_mapping_obj = record::create_mapping(tx)?;
                    let zap_top = record::zap_of(top)?;
                    let map = zap::lookup_u64(tx, zap_top, OBSOLETE_SM)?;
                    let prev_obsolete_sm_obj = map
                        .ok_or_else(|| invariant(format!("vdev {} has no obsolete map", top.id)))?;
                    zap::remove(tx, zap_top, OBSOLETE_SM)?;
                    let state =
                        CondensingPhys { vdev: top.id, prev_obsolete_sm_obj, next_mapping_obj };
                    zap::update(
                        tx,
                        DIRECTORY,
                        CONDENSING_INDIRECT,
                        Value::words_of(&state.encode()),
                    )?;
                    Ok(Some(state))
                })
                .await;
            if let Some(state) = self.answer.unless_refused(result)? {
                self.answer.put(Ok(state));
            }
            Ok(())
        })
    }
}

/// The task that adds a batch of entries to the new mapping.
struct Copy {
    state: CondensingPhys,
    batch: Vec<NewCopy>,
    answer: Arc<Answer<()>>,
}

impl Task for Copy {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let mapping = self.state.next_mapping_obj;
            let result = engine
                .mos_apply(context.txg, |tx| {
                    record::add_entries(tx, mapping, &self.batch).map(drop)
                })
                .await;
            if self.answer.unless_refused(result)?.is_some() {
                self.answer.put(Ok(()));
            }
            Ok(())
        })
    }
}

/// The task that ends it. Its answer is whether it did: a checkpoint may have been taken.
struct Finish {
    state: CondensingPhys,
    answer: Arc<Answer<bool>>,
}

impl Task for Finish {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let (before, state) = (engine.config(), self.state);
            let condensed = condensed(engine, &state).await?;
            let result = engine
                .mos_apply(context.txg, |tx| {
                    if checkpoint::exists(tx)? {
                        return Ok(None);
                    }
                    // The closure may run several times: each time from the same state.
                    let mut config = before.clone();
                    let found = config.root.children.iter_mut().find(|top| top.id == state.vdev);
                    let top = found.ok_or_else(|| invariant(format!("no vdev {}", state.vdev)))?;
                    record::replace_mapping(tx, top, state.next_mapping_obj)?;
                    if !is_on(Bug::CondenseKeepsOldMap) {
                        metaslabs::free_map(tx, state.prev_obsolete_sm_obj)?;
                        features::add(tx, record::COUNTS, -1)?;
                    }
                    zap::remove(tx, DIRECTORY, CONDENSING_INDIRECT)?;
                    config.touch();
                    Ok(Some(config))
                })
                .await;
            let Some(changed) = self.answer.unless_refused(result)? else { return Ok(()) };
            let has_ended = changed.is_some();
            if let Some(config) = changed {
                // The MOS has the new mapping: from here on a failure is one of the pool. Order 1.
                Pin::overtake_all(&engine.alloc);
                engine.tree.set_indirect(state.vdev, Arc::new(condensed));
                scope.replace_config(config)?;
            }
            self.answer.put(Ok(has_ended));
            Ok(())
        })
    }
}

/// Returns the new mapping, read from the MOS.
async fn condensed(engine: &Engine, state: &CondensingPhys) -> Result<Mapping> {
    let object = state.next_mapping_obj;
    let phys = engine.mos.inspect(|tx| record::header(tx, object)).await?;
    let (mut mapping, mut at) = (Mapping::default(), 0);
    let length = phys.num_entries.saturating_mul(MAPPING_ENTRY_LEN as u64);
    while at < length {
        let len = ((BATCH * MAPPING_ENTRY_LEN) as u64).min(length - at) as usize;
        let part = engine.mos.inspect(|tx| tx.read(object, at, len)).await?;
        let corrupt = |error| Error::corrupt(error).in_object(0, object);
        let more = Mapping::decode(&part).map_err(corrupt)?;
        mapping.append(more.entries()).map_err(corrupt)?;
        at += len as u64;
    }
    Ok(mapping)
}
