//! Copies batches of a vdev that is being removed.
//!
//! ```text
//!   in the background   next allocated ranges ──> bytes of all sides
//!   in the sync         what is still allocated ──> space elsewhere, bytes, entries
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_block::IoClass;
use cenote_block::alloc::{Class, Occupied, Request};
use cenote_ondisk::blkptr::Dva;
use cenote_ondisk::indirect::MappingEntry;
use cenote_ranges::RangeSet;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, BufMut, Error, Kind, Result, ensure, tunables};
use cenote_vdev::{Place, SideError, Sides};
use futures_util::stream::{StreamExt, TryStreamExt};

use super::record::NewCopy;
use super::segments::{self, SegmentLimits};
use super::{RemovalError, record};
use crate::{Answer, Engine, Scope, Task};

/// Reads in flight.
const READS_MAX: usize = 16;

/// The vdev whose bytes are copied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    pub(super) vdev: u64,
    pub(super) sector: u64,
    pub(super) metaslab_shift: u32,
    pub(super) metaslabs: u64,
    class: Class,
}

impl Source {
    /// Returns the vdev that is being removed.
    pub(super) fn of(engine: &Engine) -> Option<Self> {
        let vdev = engine.removals().removing()?;
        let top = engine.with_config(|config| {
            let top = config.root.children.iter().find(|top| top.id == vdev);
            top.map(|top| top.top.clone())
        })?;
        let figures = engine.alloc.vdev_figures().into_iter().find(|figures| figures.id == vdev)?;
        Some(Self {
            vdev,
            sector: 1 << top.ashift,
            metaslab_shift: top.metaslab_shift as u32,
            metaslabs: figures.metaslabs,
            class: figures.class,
        })
    }

    fn limits(&self) -> SegmentLimits {
        let len = tunables::REMOVE_MAX_SEGMENT.get() / self.sector * self.sector;
        SegmentLimits { span: tunables::REMOVAL_MAX_SPAN.get(), len: len.max(self.sector) }
    }

    /// Returns the number of the metaslab with this byte.
    fn metaslab_of(&self, offset: u64) -> u64 {
        offset >> self.metaslab_shift
    }
}

/// Allocated ranges that are yet to be copied, of one metaslab at a time.
#[derive(Debug, Default)]
pub(super) struct Remaining {
    ranges: RangeSet,
    /// The next metaslab.
    next: u64,
}

impl Remaining {
    /// Returns everything above what was copied.
    pub(super) fn after(source: &Source, copied: u64) -> Self {
        Self { ranges: RangeSet::new(), next: source.metaslab_of(copied) }
    }

    /// Takes the next segments of one metaslab, about a batch; none at the end of the vdev.
    pub(super) async fn take(
        &mut self,
        engine: &Engine,
        source: &Source,
        copied: u64,
    ) -> Result<Vec<Range<u64>>> {
        while self.ranges.is_empty() {
            if self.next >= source.metaslabs {
                return Ok(Vec::new());
            }
            self.ranges = Occupied::of(&engine.alloc).ranges(source.vdev, self.next).await?;
            self.ranges = self.ranges.within(&(copied..u64::MAX)).collect();
            self.next += 1;
        }
        let limit = tunables::REMOVAL_BATCH_BYTES.get().next_multiple_of(source.sector);
        let mut part = RangeSet::new();
        for range in self.ranges.iter() {
            let room = limit.saturating_sub(part.bytes());
            if room == 0 {
                break;
            }
            part.add(range.start..range.end.min(range.start + room));
        }
        self.ranges.subtract(&part);
        Ok(segments::segments(&part, source.limits()))
    }
}

/// A segment with its bytes.
#[derive(Debug, Clone)]
pub(super) struct Filled {
    range: Range<u64>,
    sides: Sides,
}

/// Reads segments.
pub(super) async fn read(
    engine: &Engine,
    source: &Source,
    segments: Vec<Range<u64>>,
) -> Result<Vec<Filled>> {
    let reads = segments.into_iter().map(|range| async move {
        let len = (range.end - range.start) as usize;
        let at = Place { vdev: source.vdev, offset: range.start };
        let read = Sides::read(&engine.tree, at, len, IoClass::Removal).await;
        let sides = match read {
            Ok(sides) => sides,
            Err(error) if ignores(&error) => Sides::equal(BufMut::zeroed(len).freeze()),
            Err(error) => return Err(error),
        };
        Ok(Filled { range, sides })
    });
    futures_util::stream::iter(reads).buffered(READS_MAX).try_collect().await
}

/// Whether the removal goes on although bytes cannot be read.
fn ignores(error: &Error) -> bool {
    let is_of_device = matches!(error.cause(), Some(SideError::Unreadable { .. }));
    is_of_device && tunables::REMOVAL_IGNORE_ERRORS.get() != 0
}

/// The task that writes a batch.
pub(super) struct Copy {
    pub(super) source: Source,
    pub(super) batch: Vec<Filled>,
    /// Gets whether everything was copied: otherwise space is missing.
    pub(super) answer: Arc<Answer<bool>>,
}

impl Task for Copy {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let vdev = self.source.vdev;
            if engine.removals().removing() != Some(vdev) {
                self.answer.put(Err(RemovalError::NotRunning.into()));
                return Ok(());
            }
            engine.leaf.removal.copied_in.store(context.txg, Ordering::Release);
            let mut copier = Copier {
                engine,
                source: self.source,
                txg: context.txg,
                copies: Vec::new(),
                live: 0,
            };
            let batch = std::mem::take(&mut self.batch);
            let last = batch.len().saturating_sub(usize::from(is_on(Bug::SegmentNotCopied)));
            let mut is_whole = true;
            for filled in &batch[..last.max(usize::from(batch.len() == 1))] {
                if !copier.copy(filled).await? {
                    is_whole = false;
                    break;
                }
            }
            let Copier { copies, live, .. } = copier;
            let skipped = engine.store.moved().take_skipped();
            if !copies.is_empty() || skipped > 0 {
                let root = engine.config().root;
                let top = root.children.iter().find(|top| top.id == vdev);
                let top = top.ok_or(RemovalError::NoSuchVdev)?;
                engine
                    .mos_apply(context.txg, |tx| {
                        if !copies.is_empty() {
                            record::append(tx, top, &copies, context.txg)?;
                        }
                        let mut state = record::running(tx, vdev)?;
                        state.copied = state.copied.saturating_add(live + skipped);
                        record::set_state(tx, &state)
                    })
                    .await?;
                let entries: Vec<_> = copies.iter().map(|copy| copy.entry).collect();
                engine.store.moved().add(&entries)?;
            }
            self.answer.put(Ok(is_whole));
            Ok(())
        })
    }
}

/// Copies in a sync.
struct Copier<'e> {
    engine: &'e Engine,
    source: Source,
    txg: u64,
    copies: Vec<NewCopy>,
    /// Allocated bytes that were copied.
    live: u64,
}

impl Copier<'_> {
    /// Copies what is still allocated of a segment. Returns false if space is missing.
    async fn copy(&mut self, filled: &Filled) -> Result<bool> {
        let metaslab = self.source.metaslab_of(filled.range.start);
        let wanted = RangeSet::from(filled.range.clone());
        let live =
            Occupied::of(&self.engine.alloc).parts(self.source.vdev, metaslab, &wanted).await?;
        let mut left = segments::segments(&live, self.source.limits());
        left.reverse();
        while let Some(segment) = left.pop() {
            match self.allocate(segment.end - segment.start).await {
                Ok(target) => self.write(filled, &live, segment, target).await?,
                Err(error) if error.kind() == Kind::NoSpace => {
                    let Some(at) = segments::cut(&segment, &live, self.source.sector) else {
                        return Ok(false);
                    };
                    // A gap at the cut is left out.
                    let part = |range: Range<u64>| {
                        let mut live = live.within(&range);
                        let first = live.next()?;
                        Some(first.start..live.last().map_or(first.end, |last| last.end))
                    };
                    left.extend(part(at..segment.end));
                    left.extend(part(segment.start..at));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    async fn allocate(&self, len: u64) -> Result<Dva> {
        // Never a gang block.
        let class = self.source.class;
        let request = Request { class, is_gang_part: true, ..Request::data(len, self.txg) };
        let found = self.engine.alloc.allocate(&request).await?;
        let is_elsewhere = matches!(&found[..], [dva] if !dva.gang
            && dva.asize == len
            && u64::from(dva.vdev) != self.source.vdev);
        ensure!("RV3", is_elsewhere, "{len} bytes are copied to {found:?}");
        let first = found.first().copied();
        first.ok_or_else(|| crate::invariant_error("an allocation without address".into()))
    }

    async fn write(
        &mut self,
        filled: &Filled,
        live: &RangeSet,
        segment: Range<u64>,
        target: Dva,
    ) -> Result<()> {
        let base = filled.range.start;
        let part = (segment.start - base) as usize..(segment.end - base) as usize;
        let sides = filled.sides.slice(part);
        let sides =
            sides.ok_or_else(|| crate::invariant_error(format!("{segment:?} was not read")))?;
        let place = Place { vdev: target.vdev.into(), offset: target.offset };
        let suspension = &self.engine.health.suspension;
        let mut resume_count = suspension.resume_count();
        while let Err(error) =
            sides.write(&self.engine.tree, place, self.txg, IoClass::Removal).await
        {
            suspension.hold(resume_count, error).await?;
            resume_count = suspension.resume_count();
        }
        let mut gaps = RangeSet::from(segment.clone());
        gaps.subtract(live);
        for gap in gaps.iter() {
            let offset = target.offset + (gap.start - segment.start);
            let copy = Dva { offset, asize: gap.end - gap.start, ..target };
            self.engine.alloc.unallocate(&copy, self.txg)?;
        }
        let obsolete = if is_on(Bug::GapsNotCounted) { 0 } else { gaps.bytes() };
        self.live += segment.end - segment.start - gaps.bytes();
        let entry = MappingEntry { source: segment.start, target };
        self.copies.push(NewCopy { entry, obsolete });
        Ok(())
    }
}

/// Whether a read failed because no device has the bytes.
pub(super) fn is_unreadable(error: &Error) -> bool {
    matches!(error.cause(), Some(SideError::Unreadable { .. }))
}
