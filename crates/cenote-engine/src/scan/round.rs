//! A round of a scan: part of the walk through one committed state, and the repair of what it
//! found.
//!
//! ```text
//!   view ── walk from the position on ──> scrub: a sweep reads every copy, by address ─┐
//!             |                            resilver: blocks that leaves lack, by address ├─> mend
//!             v                                                                         ─┘
//!           the next position, recorded once everything before it was done
//! ```
//!
//! The walk never reads a state that changes: each round has a view of its own, whose blocks a pin
//! keeps in place. A block is repaired under a guard that is taken while the pin is valid
//! ([`cenote_block::BlockStore::mend`]). If the pool needs the space of the view, the round is
//! repeated, with less.
//!
//! A round ends after some bytes, so that its position is recorded now and then: work since the
//! last recorded position is repeated after a crash.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_block::alloc::Pin;
use cenote_block::{BlockError, CopyFailure, Grounds, MendKind, Mended, Reporter as _};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_OBJSET};
use cenote_ondisk::dsl::DatasetPhys;
use cenote_ondisk::scan::ScanFunc;
use cenote_pool::Pool;
use cenote_pool::traverse::{self, Damage, Flow, Visitor};
use cenote_pool::verify::{Finding, Observer, Sweep};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Error, Kind, Result, tunables};
use cenote_vdev::IoClass;
use cenote_vdev::queue::ScanKind;
use cenote_vdev::{LeafRange, LeafReader, Tree};

use super::fill::{self, Fill};
use super::record::{Advance, Record};
use super::run::Runner;
use crate::{Engine, invariant_error};

/// Time for which the state of a round is kept if the pool does not need its space.
pub(super) const VIEW_TIME: Duration = Duration::from_mins(10);
/// Blocks that wait to be resilvered; their memory is bounded.
const WINDOW_BLOCKS: usize = 1 << 16;

/// The datasets of a state.
struct Datasets {
    is_incomplete: bool,
    by_object: BTreeMap<u64, DatasetPhys>,
    successors: BTreeMap<u64, Vec<u64>>,
}

impl Datasets {
    async fn of(view: &Arc<Pool>) -> Self {
        let traverse::Datasets { found, is_incomplete } = traverse::datasets(view).await;
        let by_object: BTreeMap<_, _> = found.into_iter().collect();
        let mut successors: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (object, phys) in &by_object {
            let before = by_object.get(&phys.prev_snap_obj);
            let is_clone = before.is_some_and(|before| before.next_snap_obj != *object);
            if is_clone && is_on(Bug::ScanSkipsClones) {
                continue;
            }
            successors.entry(phys.prev_snap_obj).or_default().push(*object);
        }
        Self { is_incomplete, by_object, successors }
    }

    fn created(&self, object: u64) -> Option<u64> {
        let phys = self.by_object.get(&object)?;
        phys.is_snapshot().then_some(phys.creation_txg)
    }

    fn after(&self, object: u64) -> Vec<(u64, u64)> {
        let next = self.successors.get(&object).into_iter().flatten();
        next.filter_map(|next| Some((*next, self.by_object.get(next)?.prev_snap_txg))).collect()
    }
}

/// What a round counts.
#[derive(Debug, Default)]
struct Counted {
    written: AtomicU64,
    errors: AtomicU64,
}

/// Runs a round of about `limit` bytes. Returns its progress; `None` if it was stopped, and some of
/// its blocks were left out.
///
/// # Errors
/// `Kind::Overtaken` if the space of the view was needed.
pub(super) async fn run(
    engine: &Arc<Engine>,
    runner: &Arc<Runner>,
    record: &Record,
    limit: u64,
) -> Result<Option<Advance>> {
    let view = engine.view_of_scan(VIEW_TIME).await?;
    let Grounds::Pinned(pin) = view.grounds() else {
        return Err(invariant_error("the view of a scan has no pin".into()));
    };
    let datasets = Datasets::of(&view).await;
    if datasets.is_incomplete {
        engine.scans().note_incomplete();
    }
    let phys = &record.phys;
    let limits = (phys.min_txg, phys.max_txg);
    let mut done =
        Advance { start_time: phys.start_time, view_txg: view.txg(), ..Advance::default() };
    let mender = Arc::new(Mender::new(engine, pin));
    let mut walk = Collect {
        runner: Arc::clone(runner),
        sweep: None,
        fills: Vec::new(),
        mender: Arc::clone(&mender),
        limits,
        is_scrub: phys.func == ScanFunc::Scrub,
        left: limit,
        examined: 0,
        at: None,
    };
    if walk.is_scrub {
        let observer = Arc::<Mender>::clone(&mender);
        let memory = tunables::SCAN_MEMORY_BYTES.get_usize() / 4;
        let (stop, issued) = (runner.stop_flag(), runner.issued());
        walk.sweep = Some(Sweep::new(&view, observer, stop, issued, memory));
    }
    let mut position = record.position.clone();
    while let Some(object) = position.next(limits, |object| datasets.created(object)) {
        let root = datasets.by_object.get(&object);
        if object != traverse::MOS && root.is_none() {
            // It was created since, in place of another dataset: the next state has it.
            break;
        }
        // Nothing that was born after the bounds is visited, however often snapshots are taken. The
        // log of a head may be older than its last snapshot.
        let is_over = position.bounds.0.saturating_add(1) >= limits.1;
        let min_txg = if is_over { u64::MAX } else { position.bounds.0 };
        let options = traverse::Options {
            min_txg: limits.0,
            start: position.start(),
            ..traverse::Options::default()
        };
        let walked = traverse::dataset(&view, (object, root), min_txg, options, &mut walk).await?;
        if walked == Flow::Stop {
            break;
        }
        position.finish(object, datasets.after(object));
        done.finished.push(object);
        if runner.is_stopped() {
            break;
        }
    }
    let swept = walk.finish().await?;
    if runner.is_stopped() && !is_on(Bug::ScanAheadOfRepairs) {
        return Ok(None);
    }
    // Blocks of other txgs, for example, are not read.
    runner.count_issued(walk.examined.saturating_sub(swept));
    done.successors = datasets.successors;
    (done.at, done.examined) = (walk.at, walk.examined);
    done.written = mender.counted.written.load(Ordering::Relaxed);
    done.errors = mender.counted.errors.load(Ordering::Relaxed);
    Ok(Some(done))
}

/// Collects the blocks of a round.
struct Collect {
    runner: Arc<Runner>,
    /// Of a scrub.
    sweep: Option<Sweep>,
    /// Blocks that leaves lack.
    fills: Vec<Fill>,
    mender: Arc<Mender>,
    limits: (u64, u64),
    is_scrub: bool,
    /// Bytes until the round ends.
    left: u64,
    examined: u64,
    /// Where the next round continues.
    at: Option<Bookmark>,
}

impl Collect {
    /// Whether a walk can continue at this block: with data and object sets, as in OpenZFS; not
    /// with the first block of objects, whose bookmark means the whole dataset.
    fn may_stop_at(place: &Bookmark) -> bool {
        place.level == LEVEL_OBJSET || place.level == 0 && (place.object, place.blkid) != (0, 0)
    }

    fn kind(&self) -> ScanKind {
        if self.is_scrub { ScanKind::Scrub } else { ScanKind::Resilver }
    }

    /// Writes what leaves lack.
    async fn fill(&mut self) -> Result<()> {
        let fills = std::mem::take(&mut self.fills);
        fill::write(&self.mender, &self.runner, self.kind(), fills).await;
        self.mender.pin.check()
    }

    /// Waits until every block of the round was read and repaired. Returns the bytes that were
    /// counted as read.
    async fn finish(&mut self) -> Result<u64> {
        let swept = match self.sweep.take() {
            Some(sweep) => sweep.finish().await?,
            None => 0,
        };
        self.fill().await?;
        Ok(swept)
    }
}

impl Collect {
    /// Takes a block, which is read by a scrub only if it is known to be on the disk.
    async fn take(&mut self, bp: &BlockPtr, place: &Bookmark, is_written: bool) -> Result<Flow> {
        let is_suspended = tunables::SCAN_SUSPEND_PROGRESS.get() != 0;
        let is_over = self.left == 0 || is_suspended || self.runner.is_stopped();
        if is_over && Self::may_stop_at(place) {
            let skipped = u64::from(is_on(Bug::ScanSkipsBlock));
            self.at = Some(Bookmark { blkid: place.blkid + skipped, ..*place });
            return Ok(Flow::Stop);
        }
        if bp.is_embedded() {
            return Ok(Flow::Continue);
        }
        let bytes = bp.dvas().map(|dva| dva.asize).sum::<u64>();
        self.examined = self.examined.saturating_add(bytes);
        self.runner.count_examined(bytes);
        let birth = bp.physical_birth();
        if birth <= self.limits.0 || birth >= self.limits.1 {
            return Ok(Flow::Continue);
        }
        // Only now: each recorded round makes new objects, and blocks of those must not end it.
        self.left = self.left.saturating_sub(bytes);
        if self.mender.engine.store.lacks_parts(bp) {
            self.fills.push((*bp, *place));
            if self.fills.len() >= WINDOW_BLOCKS {
                self.fill().await?;
            }
        }
        if let Some(sweep) = self.sweep.as_mut().filter(|_| is_written) {
            sweep.push(bp, place).await;
        }
        Ok(Flow::Continue)
    }
}

impl Visitor for Collect {
    async fn block(&mut self, bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
        self.take(bp, place, true).await
    }

    async fn unwritten(&mut self, bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
        self.take(bp, place, false).await
    }

    /// The block itself is read, and reported, like any other; what is below it is not visited.
    fn damage(&mut self, damage: Damage) {
        self.mender.engine.scans().note_incomplete();
        let is_read = damage.bp.is_some_and(|bp| {
            let birth = bp.physical_birth();
            birth > self.limits.0 && birth < self.limits.1
        });
        if !is_read {
            self.mender.counted.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Repairs blocks, and counts.
pub(super) struct Mender {
    engine: Arc<Engine>,
    pin: Arc<Pin>,
    counted: Arc<Counted>,
}

impl Mender {
    pub(super) fn new(engine: &Arc<Engine>, pin: &Arc<Pin>) -> Self {
        let counted = Arc::default();
        Self { engine: Arc::clone(engine), pin: Arc::clone(pin), counted }
    }

    pub(super) fn tree(&self) -> &Tree {
        &self.engine.tree
    }

    /// The ranges of leaves that are read to repair a block.
    pub(super) fn leaf_ranges(&self, bp: &BlockPtr) -> Vec<LeafRange> {
        self.engine.store.leaf_ranges(bp)
    }

    /// Repairs a block whose bytes come from `reader`.
    pub(super) async fn mend(
        &self,
        reader: &dyn LeafReader,
        bp: &BlockPtr,
        place: &Bookmark,
        kind: MendKind,
    ) {
        let mended = self.engine.store.mend_with(reader, bp, &self.pin, kind).await;
        self.judge(bp, place, kind, mended).await;
    }

    /// Repairs a block. Returns whether it is readable.
    pub(super) async fn is_good(&self, bp: &BlockPtr, place: &Bookmark, kind: MendKind) -> bool {
        let mended = self.engine.store.mend(bp, &self.pin, kind).await;
        self.judge(bp, place, kind, mended).await
    }

    /// Counts and reports what became of a block. Returns whether it is readable.
    async fn judge(
        &self,
        bp: &BlockPtr,
        place: &Bookmark,
        kind: MendKind,
        mended: Result<Mended>,
    ) -> bool {
        let is_lost = match mended {
            Ok(mended) => {
                self.counted.written.fetch_add(mended.written, Ordering::Relaxed);
                mended.unreadable > 0
            }
            // The round is repeated if the pin is not valid, and ends if the pool is closed.
            Err(error) => !error.kind().is_interruption(),
        };
        if is_lost && kind == MendKind::Unread {
            let grounds = Grounds::Pinned(Arc::clone(&self.pin));
            let report = self.engine.store.scrub(bp, &grounds).await.unwrap_or_default();
            let bad: Vec<_> = report.bad.into_iter().map(|part| part.child).collect();
            self.engine.health.damage.found_bad(&bad, IoClass::Scrub, 0);
            self.lost(place, bp, report.lost);
        }
        !is_lost
    }

    fn lost(&self, place: &Bookmark, bp: &BlockPtr, copies: Vec<CopyFailure>) {
        self.counted.errors.fetch_add(1, Ordering::Relaxed);
        let error = Error::new(Kind::Checksum, BlockError::AllCopiesBad { copies });
        if !is_on(Bug::LostBlocksForgotten) {
            self.engine.health.damage.unrecoverable(place, bp, &error);
        }
    }
}

impl Observer for Mender {
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            match finding {
                Finding::Part { bp, place, part } => {
                    // One event for each error that was counted, whatever is bad when all copies
                    // are read once more. Other copies are repaired when their bad parts are
                    // counted.
                    let kind = if bp.is_gang() {
                        MendKind::Counted
                    } else {
                        MendKind::CountedCopy(part.dva)
                    };
                    let is_good = self.is_good(&bp, &place, kind).await;
                    let damage = &self.engine.health.damage;
                    damage.found_bad(&[part.child], IoClass::Scrub, usize::from(is_good));
                }
                Finding::Lost { place, bp, copies, .. } => self.lost(&place, &bp, copies),
                // The walk tells no sweep of these.
                Finding::Unreachable(_) => {}
            }
        })
    }
}
