//! Merges the walk with redaction lists (spec 07 B5.4).
//!
//! ```text
//!   left out of this stream    ███████               REDACT, also where the walk has a hole
//!   walk                          ███████            as the walk has it
//!   left out of the source     ███      █████████    read, although it may be old
//!   sent                       ---RRRRWWWWOOOOOO
//! ```
//!
//! All three are in the order of objects and blocks, and each block is sent as the first of them
//! that has it says. A block that both the stream and its source leave out is not mentioned: the
//! receiver does not have it. Without lists this is the walk.

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::{Dnode, ObjSet, SPILL_BLKID};
use cenote_ondisk::redaction::RedactionEntry;
use cenote_rt::{Kind, Result};

use super::walk::{Step, Walk};

/// Object, whether it is a block of it, number of the block: an object comes before its blocks.
type Place = (u64, bool, u64);

/// The steps of a send, in order.
pub(super) struct Merge {
    set: Arc<ObjSet>,
    walk: Walk,
    /// The next step of the walk.
    front: Option<Step>,
    left_out: Runs,
    restored: Runs,
    /// Blocks whose pointers are looked up.
    looked_up: Option<Run>,
}

impl Merge {
    /// `left_out` is what the stream leaves out, `restored` what was left out of its source.
    pub(super) fn new(
        walk: Walk,
        set: &Arc<ObjSet>,
        left_out: &Arc<[RedactionEntry]>,
        restored: &Arc<[RedactionEntry]>,
    ) -> Self {
        let begin = walk.begin();
        Self {
            set: Arc::clone(set),
            walk,
            front: None,
            left_out: Runs::new(left_out, begin),
            restored: Runs::new(restored, begin),
            looked_up: None,
        }
    }

    /// Returns the next step, `None` at the end.
    ///
    /// # Errors
    /// Errors of reading metadata.
    pub(super) async fn next(&mut self) -> Result<Option<Step>> {
        loop {
            if self.looked_up.is_none() && self.left_out.is_done() && self.restored.is_done() {
                return self.walked().await;
            }
            if let Some(step) = self.look_up().await? {
                return Ok(Some(step));
            }
            self.front = self.walked().await?;
            self.left_out.fill(&self.set).await?;
            self.restored.fill(&self.set).await?;
            let walked = self.front.as_ref();
            let fronts =
                [self.left_out.blocks(), walked.and_then(blocks_of), self.restored.blocks()];
            let begins = fronts.iter().flatten();
            let Some(begin) = begins.map(|(object, blocks)| (*object, true, blocks.start)).min()
            else {
                return Ok(self.front.take());
            };
            if walked.is_some_and(|step| place_of(step) < begin) {
                return Ok(self.front.take());
            }
            if let Some(step) = self.step_at(begin, fronts) {
                return Ok(Some(step));
            }
        }
    }

    /// Takes the front, or the next step of the walk.
    async fn walked(&mut self) -> Result<Option<Step>> {
        if let Some(step) = self.front.take() {
            return Ok(Some(step));
        }
        loop {
            match self.walk.next().await? {
                Some(step) if is_behind(&step) => {}
                step => return Ok(step),
            }
        }
    }

    /// Takes what is at a place, up to the next one at which any of the three begins or ends.
    fn step_at(
        &mut self,
        (object, _, start): Place,
        fronts: [Option<(u64, Range<u64>)>; 3],
    ) -> Option<Step> {
        let of_object = fronts.iter().flatten().filter(|(of, _)| *of == object);
        let changes = of_object.map(
            |(_, blocks)| {
                if blocks.start > start { blocks.start } else { blocks.end }
            },
        );
        let end = changes.min()?;
        let [is_left_out, is_walked, is_restored] = fronts
            .map(|front| front.is_some_and(|(of, blocks)| of == object && blocks.start == start));
        let left_out = if is_left_out { self.left_out.take(end) } else { None };
        let walked = if is_walked { take_blocks(&mut self.front, end) } else { None };
        let restored = if is_restored { self.restored.take(end) } else { None };
        match (left_out, walked, restored) {
            (Some(_), _, Some(_)) => None,
            (Some(run), ..) => {
                let offset = run.blocks.start.saturating_mul(run.block_size);
                let len = run.blocks.end.saturating_mul(run.block_size).saturating_sub(offset);
                Some(Step::Redacted { object, offset, len })
            }
            (None, Some(step), _) => Some(step),
            (None, None, restored) => {
                self.looked_up = restored;
                None
            }
        }
    }

    /// Returns the next step of the blocks that are looked up: a block, or a hole up to the next.
    async fn look_up(&mut self) -> Result<Option<Step>> {
        let Some(Run { dnode, blocks, .. }) = &mut self.looked_up else { return Ok(None) };
        let size = dnode.geometry().block_size;
        let end = blocks.end.min(dnode.block_count());
        if blocks.start >= end {
            self.looked_up = None;
            return Ok(None);
        }
        let dnode = Arc::clone(dnode);
        let data = dnode.next_data(blocks.start.saturating_mul(size)).await?;
        let next = data.map_or(end, |offset| (offset / size).min(end));
        if next > blocks.start {
            let hole = blocks.start..next;
            blocks.start = next;
            return Ok(Some(Step::Absent { dnode, blocks: hole, is_redacted: false }));
        }
        blocks.start = next.saturating_add(1);
        Ok(Some(match dnode.block_pointer(0, next).await? {
            Some(bp) if !bp.is_redacted() => Step::Block { dnode, bp, blkid: next },
            found => {
                Step::Absent { dnode, blocks: next..blocks.start, is_redacted: found.is_some() }
            }
        }))
    }
}

/// Blocks of an object.
struct Run {
    dnode: Arc<Dnode>,
    blocks: Range<u64>,
    block_size: u64,
}

/// The runs of a redaction list, without those of objects that do not exist.
struct Runs {
    entries: Arc<[RedactionEntry]>,
    next: usize,
    begin: (u64, u64),
    /// The object of the last run, `None` if it does not exist.
    object: Option<(u64, Option<Arc<Dnode>>)>,
    front: Option<Run>,
}

impl Runs {
    fn new(entries: &Arc<[RedactionEntry]>, begin: (u64, u64)) -> Self {
        let is_before =
            |entry: &RedactionEntry| (entry.object, entry.end()) <= (begin.0, Some(begin.1));
        let next = entries.partition_point(is_before);
        Self { entries: Arc::clone(entries), next, begin, object: None, front: None }
    }

    /// Makes the next run the front, if there is none.
    async fn fill(&mut self, set: &ObjSet) -> Result<()> {
        while self.front.is_none() {
            let Some(entry) = self.entries.get(self.next) else { return Ok(()) };
            self.next += 1;
            if self.object.as_ref().is_none_or(|(object, _)| *object != entry.object) {
                let found = match set.dnode(entry.object).await {
                    Err(error) if error.kind() == Kind::NotFound => None,
                    found => Some(found?),
                };
                self.object = Some((entry.object, found));
            }
            let Some((_, Some(dnode))) = &self.object else { continue };
            let (object, blkid) = self.begin;
            let start = if entry.object == object { entry.blkid.max(blkid) } else { entry.blkid };
            self.front = Some(Run {
                dnode: Arc::clone(dnode),
                blocks: start..entry.end().unwrap_or(u64::MAX),
                block_size: entry.block_size.into(),
            });
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.front.is_none() && self.next >= self.entries.len()
    }

    fn blocks(&self) -> Option<(u64, Range<u64>)> {
        self.front.as_ref().map(|run| (run.dnode.object(), run.blocks.clone()))
    }

    /// Takes the front up to a block.
    fn take(&mut self, end: u64) -> Option<Run> {
        let front = self.front.as_mut().filter(|front| front.blocks.end > end);
        let Some(Run { dnode, blocks, block_size }) = front else { return self.front.take() };
        let taken = blocks.start..end;
        blocks.start = end;
        Some(Run { dnode: Arc::clone(dnode), blocks: taken, block_size: *block_size })
    }
}

/// Whether a step is of blocks behind the end of an object.
fn is_behind(step: &Step) -> bool {
    let Step::Absent { dnode, blocks, .. } = step else { return false };
    let is_data = !dnode.phys().object_type.is_metadata();
    is_data && (blocks.start == SPILL_BLKID || blocks.start > dnode.geometry().max_block)
}

/// The blocks of a step, `None` if it is one of objects.
fn blocks_of(step: &Step) -> Option<(u64, Range<u64>)> {
    match step {
        Step::Absent { dnode, blocks, .. } => Some((dnode.object(), blocks.clone())),
        Step::Block { dnode, blkid, .. } => Some((dnode.object(), *blkid..blkid.saturating_add(1))),
        _ => None,
    }
}

fn place_of(step: &Step) -> Place {
    match step {
        Step::ObjectRange { first, .. } | Step::FreeObjects { first, .. } => (*first, false, 0),
        Step::Object { dnode, .. } => (dnode.object(), false, 0),
        Step::Absent { dnode, blocks, .. } => (dnode.object(), true, blocks.start),
        Step::Block { dnode, blkid, .. } => (dnode.object(), true, *blkid),
        Step::Redacted { object, .. } => (*object, true, 0),
    }
}

/// Takes the blocks of a step up to a block.
fn take_blocks(step: &mut Option<Step>, end: u64) -> Option<Step> {
    match step {
        Some(Step::Absent { dnode, blocks, is_redacted }) if blocks.end > end => {
            let taken = blocks.start..end;
            blocks.start = end;
            let (dnode, is_redacted) = (Arc::clone(dnode), *is_redacted);
            Some(Step::Absent { dnode, blocks: taken, is_redacted })
        }
        _ => step.take(),
    }
}
