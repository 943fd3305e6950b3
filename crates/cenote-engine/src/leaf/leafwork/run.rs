//! The walk through the metaslabs of a leaf's top-level vdev.
//!
//! ```text
//!   metaslab ── out of use ── free ranges ── as ranges of the leaf ── behind what is done ──> I/O
//!        `── in use again after a moment, whether or not all of it is done
//! ```
//!
//! Offsets in a leaf's data area grow with those of its vdev, so one number is the progress of the
//! walk. It counts finished work only: repeated work after a crash is harmless, skipped work would
//! never be done.
//!
//! Invariants
//! * LW1  The progress of a walk only grows, and ends within the free ranges of a paused metaslab.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_block::alloc::MetaslabSpace;
use cenote_ondisk::leaf_work::{LeafWork, LeafWorkKind, LeafWorkState};
use cenote_ranges::RangeSet;
use cenote_rt::{Buf, Error, Kind, Result, ensure, monotonic, tunables};
use cenote_vdev::{DATA_START, IoClass, LeafId, Place, VdevState};

use crate::background::Background;
use crate::leaf::leafwork::LeafWorkError;
use crate::{Engine, EngineError, Leaves};

/// How long a metaslab is disabled at a time.
const MOMENT: Duration = Duration::from_millis(200);
/// Unit of the length of a write by initialize: no device here has larger sectors.
const CHUNK_ALIGN: u64 = 4096;
/// Transaction groups for which freed ranges are deferred.
const DEFERRED_TXGS: u32 = 2;
/// Free ranges that are processed at a time.
const RANGES_MAX: usize = 1024;

/// Running work on one leaf.
#[derive(Debug)]
pub(super) struct Runner {
    offset: AtomicU64,
    /// It ended because it was stopped.
    was_stopped: AtomicBool,
    work: Background,
}

impl Runner {
    fn new(offset: u64) -> Arc<Self> {
        Arc::new(Self {
            offset: AtomicU64::new(offset),
            was_stopped: AtomicBool::new(false),
            work: Background::default(),
        })
    }

    /// Returns the finished bytes of the data area.
    pub(super) fn offset(&self) -> u64 {
        self.offset.load(Ordering::Acquire)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.work.has_ended()
    }

    /// Whether it ended because it was stopped.
    pub(super) fn was_stopped(&self) -> bool {
        self.was_stopped.load(Ordering::Acquire)
    }

    /// Requests it to stop.
    pub(super) fn stop(&self) {
        self.work.stop();
    }

    fn is_stopped(&self) -> bool {
        self.work.is_stopped()
    }

    /// Waits for its end, and returns the result to the first caller.
    pub(super) async fn wait(&self) -> Result<()> {
        self.work.wait().await
    }
}

/// The position of the work.
struct Walk {
    leaf: u64,
    top: u64,
    kind: LeafWorkKind,
    work: LeafWork,
    metaslab: u64,
    /// Free ranges of the metaslab that begin before this offset of the vdev are finished.
    from: u64,
    /// The last metaslab whose deferred frees were waited for.
    settled: Option<u64>,
    runner: Arc<Runner>,
}

/// Result of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The metaslab has more.
    Again,
    /// Continue with the next metaslab.
    Next,
    /// There is no next metaslab.
    End,
}

impl Leaves<'_> {
    /// Runs work on a leaf in the background.
    pub(super) fn run_work(self, leaf: u64, kind: LeafWorkKind, work: LeafWork) {
        let top = self
            .engine
            .config()
            .root
            .children
            .iter()
            .find_map(|top| top.leaves().any(|found| found.guid == leaf).then_some(top.id));
        let Some(top) = top else { return };
        let runner = Runner::new(work.offset);
        {
            let mut running = self.engine.leaf.works.lock();
            // Its state on disk is active: the next import resumes it.
            if self.engine.leaf.works.is_stopped.load(Ordering::Acquire) {
                return;
            }
            // Of two concurrent starts the second finds the work running.
            if running.get(&(leaf, kind)).is_some_and(|runner| !runner.has_ended()) {
                return;
            }
            running.insert((leaf, kind), Arc::clone(&runner));
        }
        *self.engine.leaf.works.saved() = monotonic();
        let walk = Walk {
            leaf,
            top,
            kind,
            work,
            metaslab: 0,
            from: 0,
            settled: None,
            runner: Arc::clone(&runner),
        };
        let engine = Weak::clone(&self.engine.me);
        cenote_rt::spawn_background(async move {
            let work = async {
                walk.run(&engine).await.unwrap_or_else(|| {
                    runner.was_stopped.store(true, Ordering::Release);
                    Ok(())
                })
            };
            let cut = Error::new(Kind::Closed, EngineError::Closed);
            runner.work.run(work, cut).await;
        });
    }
}

impl Walk {
    /// Runs to the end; returns `None` if it was stopped before.
    async fn run(mut self, engine: &Weak<Engine>) -> Option<Result<()>> {
        loop {
            // Held for one step only, so that closing the pool does not wait for the end.
            let engine = engine.upgrade()?;
            if self.runner.is_stopped() {
                return None;
            }
            let (from, begun) = (self.runner.offset(), monotonic());
            let step = match self.moment(&engine).await {
                Ok(step) => step,
                Err(error) => return Some(self.give_up(&engine, error).await),
            };
            match step {
                Step::Again => {}
                Step::Next => (self.metaslab, self.from) = (self.metaslab + 1, 0),
                Step::End => {
                    let (end, offset) = (LeafWorkState::Complete, self.runner.offset());
                    return Some(engine.leaves().save_end(self.leaf, self.kind, end, offset).await);
                }
            }
            let offset = self.runner.offset();
            if offset != from
                && let Some(done) = engine.leaf.works.due()
                && let Err(error) = engine.leaves().save_progress(&done).await
            {
                return Some(Err(error));
            }
            drop(engine);
            self.keep_to_rate(offset - from, begun).await;
        }
    }

    /// An unsupported operation ends the work, and so does a leaf that is faulted, as in OpenZFS;
    /// after any other error it can be resumed.
    async fn give_up(&self, engine: &Engine, error: Error) -> Result<()> {
        let vdev = engine.tree.vdev(self.leaf);
        let is_faulted = vdev.is_some_and(|vdev| vdev.state() == VdevState::Faulted);
        let (end, offset) = (LeafWorkState::Canceled, self.runner.offset());
        if error.kind() == Kind::Unsupported {
            engine.leaves().save_end(self.leaf, self.kind, end, offset).await?;
            return Err(LeafWorkError::NotSupported(self.leaf).into());
        }
        if engine.health().suspended().is_some() {
            return Err(error);
        }
        if is_faulted {
            engine.leaves().save_end(self.leaf, self.kind, end, offset).await?;
        } else if matches!(error.cause(), Some(LeafWorkError::NotWritable(_))) {
            // It goes on from here when the leaf is back.
            engine.leaves().save_progress(&[(self.leaf, self.kind, offset)]).await?;
        }
        Err(error)
    }

    async fn keep_to_rate(&self, bytes: u64, begun: Duration) {
        if self.work.rate == 0 {
            return;
        }
        let wanted = Duration::from_millis(bytes.saturating_mul(1000) / self.work.rate);
        let left = wanted.saturating_sub(monotonic().saturating_sub(begun));
        if !left.is_zero() {
            self.runner.work.rest(left).await;
        }
    }

    /// Processes a metaslab for a short time.
    async fn moment(&mut self, engine: &Arc<Engine>) -> Result<Step> {
        let Some((id, figures)) = self.place(engine)? else { return Ok(Step::End) };
        if self.work.is_partial && self.kind == LeafWorkKind::Trim && !figures.has_map {
            return Ok(Step::Next);
        }
        let range = figures.start..figures.start + figures.size;
        let end = self.on_leaf(engine, id, &RangeSet::from(range)).iter().last();
        // The range is before the finished part, or not on this leaf.
        if end.is_none_or(|range| range.end <= self.runner.offset()) {
            return Ok(Step::Next);
        }
        self.until_frees_are_usable(engine).await?;
        let Some(paused) = engine.alloc.pause(self.top, self.metaslab).await? else {
            return Ok(Step::Next);
        };
        let deadline = monotonic() + MOMENT;
        loop {
            let free = paused.free(self.from, RANGES_MAX);
            let Some(last) = free.last() else { return Ok(Step::Next) };
            for range in self.on_leaf(engine, id, &free).iter() {
                let mut start = range.start.max(self.runner.offset());
                if range.end <= start || self.is_too_small(range.end - range.start) {
                    continue;
                }
                while start < range.end {
                    let len = self.chunk().min(range.end - start);
                    self.touch(engine, id, DATA_START + start, len).await?;
                    start += len;
                    let before = self.runner.offset.swap(start, Ordering::AcqRel);
                    ensure!("LW1", before < start, "progress from {before} to {start}");
                    let is_over = monotonic() >= deadline || engine.alloc.is_wanted();
                    if is_over || self.runner.is_stopped() {
                        return Ok(Step::Again);
                    }
                }
            }
            self.from = last.end;
        }
    }

    /// Waits until what was freed before the trim can be trimmed. In OpenZFS each metaslab that a
    /// trim takes out of use waits for a transaction group, which has this effect.
    async fn until_frees_are_usable(&mut self, engine: &Engine) -> Result<()> {
        if self.kind != LeafWorkKind::Trim || self.settled == Some(self.metaslab) {
            return Ok(());
        }
        if self.settled.replace(self.metaslab).is_none() {
            engine.sync().await?;
        }
        for _ in 0..DEFERRED_TXGS {
            let figures = engine.alloc.metaslab_space(self.top, self.metaslab);
            if figures.is_none_or(|figures| figures.deferred == 0) {
                break;
            }
            engine.sync().await?;
        }
        Ok(())
    }

    /// Returns the leaf and the current metaslab, `None` after the last.
    fn place(&self, engine: &Engine) -> Result<Option<(LeafId, MetaslabSpace)>> {
        engine.check_stopped()?;
        let id = engine.tree.leaf_of(self.leaf);
        let id = id.ok_or_else(|| Error::from(LeafWorkError::NoDevice(self.leaf)))?;
        if !engine.tree.leaf(id).is_writable() {
            return Err(LeafWorkError::NotWritable(self.leaf).into());
        }
        let figures = engine.alloc.metaslab_space(self.top, self.metaslab);
        Ok(figures.map(|figures| (id, figures)))
    }

    /// Converts ranges of the vdev to ranges of the leaf's data area.
    fn on_leaf(&self, engine: &Engine, id: LeafId, ranges: &RangeSet) -> RangeSet {
        let mut on_leaf = RangeSet::new();
        for range in ranges.iter() {
            let place = Place { vdev: self.top, offset: range.start };
            for part in engine.tree.translate(place, range.end - range.start) {
                if part.leaf == id
                    && let Some(start) = part.offset.checked_sub(DATA_START)
                {
                    on_leaf.add(start..start + part.len);
                }
            }
        }
        on_leaf
    }

    fn is_too_small(&self, len: u64) -> bool {
        self.kind == LeafWorkKind::Trim && len < tunables::TRIM_EXTENT_BYTES_MIN.get()
    }

    fn chunk(&self) -> u64 {
        let chunk = match self.kind {
            LeafWorkKind::Trim => tunables::TRIM_EXTENT_BYTES_MAX.get(),
            LeafWorkKind::Initialize => {
                tunables::INITIALIZE_CHUNK_SIZE.get().next_multiple_of(CHUNK_ALIGN)
            }
        };
        // At most the bytes of one second at a time.
        match self.work.rate {
            0 => chunk,
            rate => chunk.min(rate.next_multiple_of(1 << 16)),
        }
    }

    async fn touch(&self, engine: &Engine, id: LeafId, offset: u64, len: u64) -> Result<()> {
        match self.kind {
            LeafWorkKind::Trim => engine.tree.discard_leaf(id, offset, len).await,
            LeafWorkKind::Initialize => {
                let word = tunables::INITIALIZE_VALUE.get().to_le_bytes();
                let bytes = word.repeat(usize::try_from(len / 8).unwrap_or(0));
                let data = Buf::from(bytes);
                engine.tree.write_leaf(id, offset, data, IoClass::Initializing).await
            }
        }
    }
}
