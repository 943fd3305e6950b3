//! Sequential rebuild: new sides of mirrors, and new children and distributed spares of dRAIDs, get
//! everything that is allocated, in the order of the disk, without a look at pointers and checksums
//! (spec 06 §9.2). A scrub in progress is cancelled at the start, and another one follows.
//!
//! ```text
//!   zpool attach -s ── record: active ── txgs in flight synced ──> rounds
//!                                                                    |
//!     round   committed state, pinned ── its space maps ── ranges: read from a whole side ──┐
//!             guard, write to the sides that lack them <────────────────────────────────────┘
//!                                                                    |
//!     end     sync, which flushes ── no write failed: logs emptied, record: complete ── scrub
//! ```
//!
//! Blocks that are allocated in a committed state do not change while its pin is valid, so no
//! metaslab is taken out of use. Later ones are written to the new sides by their own writes.
//!
//! On a dRAID a piece is a few whole stripes of a group: its data is read from leaves that lack
//! nothing, or computed from parity, and each column that is missing is written (`Tree::repair`).
//!
//! Without checksums only a leaf that lacks nothing can be trusted, and a failed write may have
//! been of any txg. If either fails, the rebuild is cancelled and a resilver follows. After an
//! import it starts anew, because leaves may have been away since.
//!
//! Invariants
//! * RB1  A rebuild reads only from leaves with an empty dirty time log.
//! * RB2  A rebuilt leaf forgets its missing txgs only after a sync that began after its last write
//!   has flushed it.
//!
//! Guarantees
//! * RB3  A rebuilt distributed spare forgets its missing txgs only if no leaf below it failed to
//!   make durable what the rebuild wrote: the log of such a leaf has the birth of the rebuild.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use cenote_block::Grounds;
use cenote_block::alloc::{GuardOutcome, Pin};
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::rebuild::{RebuildPhys, RebuildState};
use cenote_ondisk::scan::{ScanFunc, ScanPhys};
use cenote_ondisk::vdev_zap::VDEV_REBUILD;
use cenote_ondisk::zap::Value;
use cenote_pool::spacemaps::{self, Unflushed};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result, Semaphore, ensure, monotonic, tunables};
use cenote_vdev::queue::ScanKind;
use cenote_vdev::{
    ClassReader, GroupReader, IoClass, LeafRange, LeafReader as _, Place, RebuildPiece, Rewrite,
    Tree,
};

use super::round::VIEW_TIME;
use super::run::{Job, Runner, Step};
use super::{ScanError, Scans, ScrubOptions, record};
use crate::admin::create::FIRST_TXG;
use crate::admin::events::PoolEvent;
use crate::dsl::{Env, features, history};
use crate::{Engine, invariant_error};

/// The feature that counts rebuilds in progress.
const FEATURE: &str = "device_rebuild";
/// Bytes that are read from a side of a mirror at a time.
const CHUNK: u64 = 1 << 20;
/// Bytes of data of a piece of a dRAID.
const GROUP_CHUNK: u64 = 4 << 20;
/// Time after which progress is recorded.
const ROUND_TIME: Duration = Duration::from_secs(5);
/// The birth of what is rebuilt: new leaves lack it, and every leaf that lacks nothing has it.
const BIRTH: u64 = FIRST_TXG;

/// A rebuild as it is stored.
#[derive(Debug, Clone)]
pub(super) struct Rebuild {
    /// The top-level vdev.
    top: VdevConfig,
    pub(super) phys: RebuildPhys,
}

/// Returns the stored rebuild of a top-level vdev.
fn find(tx: &mut Tx<'_>, top: &VdevConfig) -> TxResult<Option<RebuildPhys>> {
    let Some(object) = top.top.zap_top else { return Ok(None) };
    let value = zap::lookup(tx, object, VDEV_REBUILD)?;
    Ok(value.map(|value| RebuildPhys::decode(&value.words())))
}

/// Returns the rebuild of a top-level vdev in progress that began then.
fn find_begun(tx: &mut Tx<'_>, top: &VdevConfig, start_time: u64) -> TxResult<Option<RebuildPhys>> {
    let key = (RebuildState::Active, start_time);
    Ok(find(tx, top)?.filter(|phys| (phys.state, phys.start_time) == key))
}

/// Returns the rebuilds in progress.
pub(super) fn active(tx: &mut Tx<'_>, root: &VdevConfig) -> TxResult<Vec<Rebuild>> {
    let mut found = Vec::new();
    for top in root.children.iter().filter(|top| top.kind.is_concrete()) {
        if let Some(phys) = find(tx, top)?.filter(|phys| phys.state == RebuildState::Active) {
            found.push(Rebuild { top: top.clone(), phys });
        }
    }
    Ok(found)
}

fn store(tx: &mut Tx<'_>, top: &VdevConfig, phys: &RebuildPhys) -> TxResult<()> {
    let Some(object) = top.top.zap_top else { return Ok(()) };
    zap::update(tx, object, VDEV_REBUILD, Value::words_of(&phys.encode()))
}

fn log(tx: &mut Tx<'_>, env: &Env, top: &VdevConfig, what: &str) -> TxResult<()> {
    let text = format!("vdev_id={} vdev_guid={} {what}", top.id, top.guid);
    history::log_pool(tx, env, "rebuild", &text)
}

/// Records that a rebuild of a top-level vdev is to begin, or to begin anew.
pub(crate) fn request(tx: &mut Tx<'_>, env: &Env, top: &VdevConfig) -> TxResult<()> {
    if find(tx, top)?.is_none_or(|phys| phys.state != RebuildState::Active) {
        features::add(tx, FEATURE, 1)?;
    }
    let state = RebuildState::Active;
    let phys = RebuildPhys { state, start_time: env.now, ..RebuildPhys::decode(&[]) };
    store(tx, top, &phys)?;
    log(tx, env, top, "started")
}

/// Whether a rebuild is in progress.
pub(crate) fn is_active(tx: &mut Tx<'_>, root: &VdevConfig) -> TxResult<bool> {
    Ok(!active(tx, root)?.is_empty())
}

/// Whether pools with rebuilds in progress can be told by programs that do not know them.
pub(crate) fn is_enabled(tx: &mut Tx<'_>) -> TxResult<bool> {
    features::is_enabled(tx, FEATURE)
}

/// A leaf has left a top-level vdev: cancels a rebuild that has no leaf left to write to. Returns
/// whether it did.
pub(crate) fn cancel_without_leaves(
    tx: &mut Tx<'_>,
    env: &Env,
    tree: &Tree,
    top: &VdevConfig,
) -> TxResult<bool> {
    let is_lacking = |leaf: &VdevConfig| {
        tree.leaf_of(leaf.guid).is_some_and(|id| tree.leaf(id).is_missing(BIRTH))
    };
    let active = find(tx, top)?.filter(|phys| phys.state == RebuildState::Active);
    let Some(phys) = active.filter(|_| !top.leaves().any(is_lacking)) else { return Ok(false) };
    end(tx, env, &Rebuild { top: top.clone(), phys }, RebuildState::Canceled)?;
    Ok(true)
}

fn end(tx: &mut Tx<'_>, env: &Env, rebuild: &Rebuild, state: RebuildState) -> TxResult<()> {
    let phys = RebuildPhys { state, end_time: env.now, ..rebuild.phys };
    store(tx, &rebuild.top, &phys)?;
    features::add(tx, FEATURE, -1)?;
    let is_done = state == RebuildState::Complete;
    log(tx, env, &rebuild.top, if is_done { "complete" } else { "canceled" })
}

/// The leaves below a top-level vdev that lack everything, and those that lack nothing.
#[derive(Debug, Default)]
struct Sides {
    lacking: Vec<u64>,
    whole: Vec<u64>,
}

impl Sides {
    /// Returns the sides of a mirror in service, or the leaves of a dRAID; `None` if there is
    /// nothing to write, or not enough to read. A side of a mirror that lacks only a part makes a
    /// resilver necessary; a leaf of a dRAID that does is not read, as if it were absent.
    fn of(engine: &Engine, top: &VdevConfig) -> Option<Self> {
        let is_draid = match &top.kind {
            VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => false,
            VdevKind::Draid(draid) => {
                let reader = GroupReader::new(&engine.tree, top.id)?;
                if reader.children_without_source() as u64 > draid.nparity {
                    return None;
                }
                true
            }
            _ => return None,
        };
        let mut sides = Self::default();
        for config in top.leaves() {
            let leaf = engine.tree.leaf(engine.tree.leaf_of(config.guid)?);
            if leaf.is_whole() {
                sides.whole.push(config.guid);
            } else if leaf.is_missing(BIRTH) {
                sides.lacking.push(config.guid);
            } else if leaf.is_writable() && !is_draid {
                return None;
            }
        }
        (!sides.lacking.is_empty() && !sides.whole.is_empty()).then_some(sides)
    }
}

/// What a round did.
#[derive(Debug, Default)]
struct Done {
    last_offset: u64,
    scanned: u64,
    written: u64,
    millis: u64,
    is_end: bool,
}

impl Scans<'_> {
    async fn rebuilds(self) -> Result<Vec<Rebuild>> {
        let root = self.engine.config().root;
        self.engine.mos.inspect(move |tx| active(tx, &root)).await
    }

    /// Whether a rebuild is in progress, also if it does not run yet.
    pub(crate) async fn is_rebuilding(self) -> Result<bool> {
        Ok(!self.rebuilds().await?.is_empty())
    }

    /// Starts the rebuilds that are recorded, unless they run already; those that are not possible
    /// any more are cancelled. Returns whether any is in progress. The caller holds the lock.
    pub(super) async fn resume_rebuilds(self) -> Result<bool> {
        let rebuilds = self.rebuilds().await?;
        let Some(latest) = rebuilds.iter().map(|rebuild| rebuild.phys.start_time).max() else {
            return Ok(false);
        };
        if self
            .runner()
            .is_some_and(|runner| runner.runs(Job::Rebuild, latest) && !runner.has_ended())
        {
            return Ok(true);
        }
        self.halt().await;
        self.stop_error_scrub().await?;
        self.until_missing_is_synced().await?;
        let missing = self.missing();
        let is_possible = |rebuild: &Rebuild| Sides::of(self.engine, &rebuild.top).is_some();
        let rebuilds: Vec<_> =
            rebuilds.into_iter().map(|rebuild| (is_possible(&rebuild), rebuild)).collect();
        let figures = self.engine.alloc.vdev_figures();
        let (start_time, is_any, is_scrub_cancelled) = self
            .operate(move |tx, env, effects| {
                let mut begun = Vec::new();
                for (is_possible, rebuild) in &rebuilds {
                    // One whose last leaf was detached meanwhile has ended.
                    let is_active =
                        find_begun(tx, &rebuild.top, rebuild.phys.start_time)?.is_some();
                    if !is_active && !is_on(Bug::RebuildBegunTwice) {
                        continue;
                    }
                    if *is_possible {
                        begun.push(rebuild);
                    } else {
                        end(tx, env, rebuild, RebuildState::Canceled)?;
                    }
                }
                // Told apart from the one before, also within a second.
                let start_time = env.now.max(latest.saturating_add(1));
                let max_txg = missing.max().map_or(env.txg, |last| last.saturating_add(1));
                for Rebuild { top, .. } in &begun {
                    let figures = figures.iter().find(|vdev| vdev.id == top.id);
                    let phys = RebuildPhys {
                        state: RebuildState::Active,
                        max_txg,
                        start_time,
                        bytes_est: figures.map_or(0, |vdev| vdev.space.allocated),
                        ..RebuildPhys::decode(&[])
                    };
                    store(tx, top, &phys)?;
                }
                effects.begun_scan = Some((start_time, (0, max_txg)));
                // As in OpenZFS; another scrub follows the rebuild.
                let is_scrub = |phys: ScanPhys| phys.func == ScanFunc::Scrub;
                let cancels = !begun.is_empty() && record::scanning(tx)?.is_some_and(is_scrub);
                if cancels {
                    record::cancel(tx, env)?;
                }
                Ok((start_time, !begun.is_empty(), cancels))
            })
            .await?;
        if is_scrub_cancelled {
            self.note(PoolEvent::ScrubAborted);
        }
        if is_any {
            self.note(PoolEvent::RebuildStarted);
            let runner = Runner::new(Job::Rebuild, start_time, 0, None);
            self.launch(runner, false);
        }
        Ok(is_any)
    }

    /// Starts the scan that is to follow a rebuild: a resilver if a leaf still lacks something, or
    /// a scrub.
    pub(super) async fn follow_rebuild(self) -> Result<()> {
        self.resume().await?;
        if tunables::REBUILD_SCRUB.get() == 0 || self.is_stopped() {
            return Ok(());
        }
        let _control = self.control().await;
        let is_idle = self.in_progress().await?.is_none() && self.missing().is_empty();
        let was_completed = self.runner().is_some_and(|runner| runner.has_rebuilt());
        if is_idle && was_completed {
            self.begin(super::Wanted::Scrub(ScrubOptions::default())).await?;
        }
        Ok(())
    }
}

/// Rebuilds for a while, and records the progress.
pub(super) async fn step(engine: &Arc<Engine>, runner: &Arc<Runner>) -> Result<Step> {
    engine.until_running().await?;
    let scans = engine.scans();
    let mut rebuilds = scans.rebuilds().await?;
    rebuilds.retain(|rebuild| runner.is_of(Job::Rebuild, rebuild.phys.start_time));
    let Some(rebuild) = rebuilds.into_iter().next() else { return Ok(Step::End) };
    let Some(sides) = Sides::of(engine, &rebuild.top) else {
        return cancel(scans, rebuild).await;
    };
    let done = match round(engine, runner, &rebuild, &sides).await {
        Ok(Some(done)) => done,
        Ok(None) => return Ok(Step::End),
        Err(error) if error.kind() == Kind::Overtaken => return Ok(Step::Again),
        Err(error) if error.kind().is_interruption() => return Err(error),
        // A device failed.
        Err(_) => return cancel(scans, rebuild).await,
    };
    let is_end = done.is_end;
    let (top, start_time) = (rebuild.top.clone(), rebuild.phys.start_time);
    // RB2: the sync of this flushes what the round wrote.
    let recorded = scans
        .operate(move |tx, env, _| {
            let Some(mut phys) = find_begun(tx, &top, start_time)? else { return Ok(None) };
            phys.last_offset = done.last_offset;
            phys.bytes_scanned += done.scanned;
            phys.bytes_issued += done.scanned;
            phys.bytes_rebuilt += done.written;
            phys.scan_time_ms += done.millis;
            store(tx, &top, &phys)?;
            Ok(Some(env.txg))
        })
        .await?;
    if let Some(written) = recorded.filter(|_| is_end) {
        complete(engine, runner, &rebuild, sides.lacking, written).await?;
    }
    // Another vdev may be next.
    Ok(Step::More)
}

/// Records that a rebuild is complete. The txg `written` followed its last write.
async fn complete(
    engine: &Arc<Engine>,
    runner: &Arc<Runner>,
    rebuild: &Rebuild,
    mut leaves: Vec<u64>,
    written: u64,
) -> Result<()> {
    let (top, start_time) = (rebuild.top.clone(), rebuild.phys.start_time);
    forget_unsafe_spares(engine, &top, &mut leaves);
    let is_done = engine
        .scans()
        .operate(move |tx, env, effects| {
            let Some(phys) = find_begun(tx, &top, start_time)? else { return Ok(false) };
            ensure!("RB2", env.txg > written, "txg {} has not flushed txg {written}", env.txg);
            effects.rebuilt = Some((phys.max_txg, leaves.clone()));
            end(tx, env, &Rebuild { top: top.clone(), phys }, RebuildState::Complete)?;
            Ok(true)
        })
        .await?;
    if is_done {
        runner.note_rebuilt();
        engine.scans().note(PoolEvent::RebuildFinished);
        engine.leaves().end_replacements().await?;
    }
    Ok(())
}

/// Leaves distributed spares out of the rebuilt leaves if a leaf that has parts of them may have
/// lost what the rebuild wrote (RB3): a resilver follows for them.
fn forget_unsafe_spares(engine: &Engine, top: &VdevConfig, leaves: &mut Vec<u64>) {
    let tree = &engine.tree;
    let lost = |config: &VdevConfig| {
        let leaf = tree.leaf_of(config.guid).map(|id| tree.leaf(id));
        let lacks = leaf.and_then(cenote_vdev::Leaf::dtl).is_some_and(|log| log.contains(BIRTH));
        // A leaf that is rebuilt as well keeps its whole log if it failed, which covers its parts
        // of the spare.
        config.kind.is_real_leaf() && lacks && !leaves.contains(&config.guid)
    };
    let has_lost = top.leaves().any(lost) && !is_on(Bug::RebuildForgetsSpareHome);
    if has_lost {
        let is_spare = |guid: &u64| top.find(*guid).is_some_and(|leaf| !leaf.kind.is_real_leaf());
        leaves.retain(|guid| !is_spare(guid));
    }
}

/// Ends a rebuild that is not possible any more; a resilver follows.
async fn cancel(scans: Scans<'_>, rebuild: Rebuild) -> Result<Step> {
    scans
        .operate(move |tx, env, _| {
            let phys = find(tx, &rebuild.top)?;
            if phys.is_some_and(|phys| phys == rebuild.phys) {
                end(tx, env, &rebuild, RebuildState::Canceled)?;
            }
            Ok(())
        })
        .await?;
    scans.note(PoolEvent::RebuildAborted);
    Ok(Step::More)
}

/// The state of a round that its reads and writes share.
struct Round {
    engine: Arc<Engine>,
    pin: Arc<Pin>,
    /// End of the births of the blocks.
    end: u64,
    top: u64,
    whole: Vec<u64>,
    next: AtomicUsize,
    written: AtomicU64,
    failed: cenote_rt::lock::Mutex<Option<Error>>,
}

/// Copies ranges for a while. Returns what it did; `None` if it was stopped.
async fn round(
    engine: &Arc<Engine>,
    runner: &Arc<Runner>,
    rebuild: &Rebuild,
    sides: &Sides,
) -> Result<Option<Done>> {
    let begun = monotonic();
    let view = engine.view_for(VIEW_TIME).await?;
    let Grounds::Pinned(pin) = view.grounds() else {
        return Err(invariant_error("the view of a rebuild has no pin".into()));
    };
    let figures = view.space().await?;
    let top = rebuild.top.id;
    let vdev = figures.vdevs.iter().find(|vdev| vdev.id == top);
    let vdev = vdev.ok_or_else(|| Error::not_found(ScanError::NotRunning))?;
    let from = rebuild.phys.last_offset;
    let first = from >> vdev.metaslab_shift;
    let wanted = |id, number| id == top && number >= first;
    let unflushed = Unflushed::load(&view, &figures.vdevs, wanted).await?;
    let state = Arc::new(Round {
        engine: Arc::clone(engine),
        pin: Arc::clone(pin),
        end: view.txg() + 1,
        top,
        whole: sides.whole.clone(),
        next: AtomicUsize::new(0),
        written: AtomicU64::new(0),
        failed: cenote_rt::lock::Mutex::new(cenote_rt::lock::Rank::RebuildFailed, None),
    });
    let chunk = if state.groups().is_some() { GROUP_CHUNK } else { CHUNK };
    let most = (tunables::SCAN_MEMORY_BYTES.get() / chunk).clamp(1, 64) as usize;
    let mut todo = Vec::new();
    let permits = Arc::new(Semaphore::new(most));
    let mut done = Done { last_offset: from, ..Done::default() };
    let fixed = tunables::SCAN_ROUND_BYTES.get();
    'round: for number in first..vdev.metaslabs.len() as u64 {
        let (ranges, faults) = spacemaps::allocated(&view, vdev, number, &unflushed).await?;
        if !faults.is_empty() {
            return Err(Error::corrupt(ScanError::NotRunning));
        }
        for range in ranges.iter() {
            if range.end <= from {
                continue;
            }
            todo.extend(state.pieces(range, from)?);
        }
        for piece in todo.drain(..) {
            let is_over = monotonic().saturating_sub(begun) > ROUND_TIME
                || fixed != 0 && done.scanned >= fixed
                || tunables::SCAN_SUSPEND_PROGRESS.get() != 0;
            if runner.is_stopped() || is_over || state.has_failed() {
                break 'round;
            }
            let len = piece.range.end - piece.range.start;
            let tree = engine.tree.load();
            let tops = engine.tree.tops().count() as u64;
            let slot = tree.pace(ScanKind::Resilver, tops, &runner.stop_flag()).await;
            let Ok(permit) = Arc::clone(&permits).acquire_many_owned(1).await else { break 'round };
            done.scanned += len;
            done.last_offset = piece.range.end;
            runner.count_examined(len);
            let (state, runner) = (Arc::clone(&state), Arc::clone(runner));
            cenote_rt::spawn(async move {
                match state.copy(piece).await {
                    Ok(()) => runner.count_issued(len),
                    Err(error) => drop(state.failed.lock().get_or_insert(error)),
                }
                drop((permit, slot));
            });
        }
        done.is_end = number + 1 == vdev.metaslabs.len() as u64;
    }
    done.is_end |= vdev.metaslabs.is_empty();
    // An error means that the runtime ends.
    drop(permits.acquire_many(most as u32).await);
    if let Some(error) = state.failed.lock().take() {
        return Err(error);
    }
    if runner.is_stopped() {
        return Ok(None);
    }
    pin.check()?;
    done.written = state.written.load(Ordering::Relaxed);
    done.millis = monotonic().saturating_sub(begun).as_millis() as u64;
    Ok(Some(done))
}

impl Round {
    fn has_failed(&self) -> bool {
        self.failed.lock().is_some()
    }

    /// The reader of a dRAID; `None` on a mirror.
    fn groups(&self) -> Option<GroupReader<'_>> {
        GroupReader::new(&self.engine.tree, self.top)
    }

    /// Cuts what lies behind `from` of an allocated range into pieces.
    fn pieces(&self, range: Range<u64>, from: u64) -> Result<Vec<RebuildPiece>> {
        let start = range.start.max(from);
        let is_cut = is_on(Bug::RebuildCutsRanges);
        if let Some(groups) = self.groups() {
            let pieces = groups.pieces(start..range.end, GROUP_CHUNK);
            let mut pieces = pieces.ok_or_else(|| Error::corrupt(ScanError::NotRunning))?;
            if is_cut {
                pieces.pop();
            }
            return Ok(pieces);
        }
        let len = range.end.saturating_sub(start);
        let count = if is_cut { len / CHUNK } else { len.div_ceil(CHUNK) };
        let pieces = (0..count).map(|number| {
            let start = start + number * CHUNK;
            let end = range.end.min(start + CHUNK);
            RebuildPiece { range: start..end, psize: end - start }
        });
        Ok(pieces.collect())
    }

    /// Copies a piece from leaves that lack nothing to those that lack it.
    async fn copy(&self, piece: RebuildPiece) -> Result<()> {
        let tree = &self.engine.tree;
        let place = Place { vdev: self.top, offset: piece.range.start };
        let missing = tree.missing_parts(place, piece.psize, BIRTH);
        let data = if let Some(groups) = self.groups() {
            // Not every leaf has a column of each group.
            if missing.is_empty() {
                return Ok(());
            }
            groups.read(&piece, IoClass::Rebuild).await?
        } else {
            self.read(&tree.layout_ranges(place, piece.psize, BIRTH)).await?
        };
        let range = piece.range;
        // As in the repair of a block (E1): until the devices have answered nothing else is written
        // there.
        let guard = match self.engine.store.guard_range(self.top, range, &self.pin) {
            GuardOutcome::Unchanged(guard) => guard,
            GuardOutcome::Reused => return self.pin.check(),
            GuardOutcome::Outside => {
                return Err(invariant_error("a rebuilt range is in no metaslab".into()));
            }
        };
        let why = Rewrite::Rebuild { birth: BIRTH, end: self.end };
        let written = tree.repair(place, &data, BIRTH, &missing, why).await;
        drop(guard);
        // What failed is in the log of the leaf.
        let bytes = written?.repaired.iter().map(|range| range.len).sum();
        self.written.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Reads a range from a leaf that lacks nothing (RB1).
    async fn read(&self, sides: &[LeafRange]) -> Result<cenote_rt::Buf> {
        let tree = &self.engine.tree;
        let is_whole = |range: &&LeafRange| {
            let leaf = tree.leaf(range.leaf);
            self.whole.contains(&leaf.guid()) && leaf.is_whole()
        };
        let whole: Vec<_> = sides.iter().filter(is_whole).collect();
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let reader = ClassReader::new(tree, IoClass::Rebuild);
        let mut last = Error::new(Kind::Io, ScanError::NotRunning);
        for at in 0..whole.len() {
            let side = whole[(first + at) % whole.len()];
            match reader.read_leaf(side.leaf, side.offset, side.len as usize).await {
                // Checks RB1: it may have missed a write meanwhile.
                Ok(data) if tree.leaf(side.leaf).is_whole() => return Ok(data),
                Ok(_) => {}
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}
