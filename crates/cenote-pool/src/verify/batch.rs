//! A batch: adjacent blocks of a top-level vdev, read together and checked one by one.

use std::ops::Range;

use cenote_block::{CopyFailure, Grounds, ScrubReport};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::{Error, Result};
use cenote_vdev::{LeafRange, Tree, VdevKind};

use super::extents::Extents;
use super::window::{Copy, Job, Window};
use super::{Finding, Run};

/// In place of a DVA number: all copies of the block.
pub(super) const WHOLE: u8 = u8::MAX;

/// Reads the copies of a window in `range`.
pub(super) async fn read(run: &Run, window: &Window, range: Range<usize>) {
    let tree = run.pool.tree();
    let copies = &window.copies[range];
    let mut ranges = Vec::new();
    // End of the ranges of each copy.
    let mut ends = Vec::with_capacity(copies.len());
    for (index, copy) in copies.iter().enumerate() {
        let bp = &window.jobs[copy.job as usize].bp;
        if !is_repeated(window, copies, index) {
            run.missing.count(run.pool.store(), bp, copy.dva);
            if copy.dva != WHOLE {
                ranges.extend(leaf_ranges(tree, bp, copy.dva));
            }
        }
        ends.push(ranges.len());
    }
    let extents = if run.is_delayed() {
        let mut start = 0;
        let blocks = ends.iter().map(|end| &ranges[std::mem::replace(&mut start, *end)..*end]);
        Extents::read_delayed(tree, blocks, &run.is_stopped).await
    } else {
        Extents::read(tree, ranges.clone()).await
    };
    let (mut start, mut bytes) = (0, 0);
    let mut is_right = true;
    for (index, copy) in copies.iter().enumerate() {
        let job = &window.jobs[copy.job as usize];
        let own = start..ends[index];
        start = ends[index];
        if is_repeated(window, copies, index) && is_right {
            job.note(true);
            continue;
        }
        bytes += copy.asize;
        is_right =
            copy.dva != WHOLE && are_whole_copies_right(run, job, copy, &ranges[own], &extents);
        if is_right {
            job.note(true);
        } else {
            is_right = scrub(run, job, copy, &extents).await;
        }
    }
    run.count(copies.len() as u64, bytes);
}

/// Whether the copy is the same as the previous one, found at another place.
fn is_repeated(window: &Window, copies: &[Copy], index: usize) -> bool {
    let Some(before) = index.checked_sub(1).map(|index| &copies[index]) else { return false };
    let copy = &copies[index];
    if (before.vdev, before.offset, before.dva) != (copy.vdev, copy.offset, copy.dva) {
        return false;
    }
    let (a, b) = (&window.jobs[before.job as usize].bp, &window.jobs[copy.job as usize].bp);
    a.checksum() == b.checksum()
        && (a.psize(), a.physical_birth()) == (b.psize(), b.physical_birth())
        && a.checksum_id() == b.checksum_id()
        && a.is_protected() == b.is_protected()
}

fn leaf_ranges(tree: &Tree, bp: &BlockPtr, dva: u8) -> Vec<LeafRange> {
    let Some(dva) = bp.dva(usize::from(dva)) else { return Vec::new() };
    tree.leaf_ranges(dva, bp.psize(), bp.physical_birth())
}

/// Checks a copy on a single leaf or mirror, where each range is a whole copy, without copying the
/// bytes. Returns false if anything is wrong or the vdev is of another kind.
fn are_whole_copies_right(
    run: &Run,
    job: &Job,
    copy: &Copy,
    ranges: &[LeafRange],
    extents: &Extents<'_>,
) -> bool {
    let Some(top) = run.pool.tree().top(copy.vdev.into()) else { return false };
    let is_whole = matches!(top.kind(), VdevKind::File | VdevKind::Disk | VdevKind::Mirror);
    if !is_whole || ranges.is_empty() {
        return false;
    }
    ranges.iter().all(|range| {
        let stored = extents.get(range.leaf, range.offset, range.len);
        let stored = stored.and_then(|stored| stored.get(..job.bp.psize() as usize));
        stored.is_some_and(|stored| run.pool.store().accepts(&job.bp, stored))
    })
}

/// Reads a copy with all its parts and reports errors. Returns whether there are none.
async fn scrub(run: &Run, job: &Job, copy: &Copy, extents: &Extents<'_>) -> bool {
    let result = scrub_part(run, job, copy, extents).await;
    let (place, bp) = (job.place, job.bp);
    match result {
        Ok(report) => {
            job.note(report.is_readable());
            if !report.is_readable() && job.may_be_unwritten {
                return true;
            }
            let is_clean = report.is_clean();
            for part in report.bad {
                run.report(Finding::Part { place, bp, part }).await;
            }
            is_clean
        }
        // This error ends the run.
        Err(error) if error.kind().is_interruption() => true,
        Err(error) => {
            // The pointer is invalid and so are its other copies: reported once.
            if copy.dva == WHOLE || copy.dva == 0 {
                let cause = Some(error);
                run.report(Finding::Lost { place, bp, copies: Vec::new(), cause }).await;
            }
            false
        }
    }
}

async fn scrub_part(
    run: &Run,
    job: &Job,
    copy: &Copy,
    extents: &Extents<'_>,
) -> Result<ScrubReport> {
    let (store, grounds) = (run.pool.store(), grounds_of(run, job));
    if copy.dva == WHOLE {
        job.bp.validate().map_err(Error::corrupt)?;
        return store.scrub(&job.bp, grounds).await;
    }
    store.scrub_copy_with(&job.bp, usize::from(copy.dva), extents, grounds).await
}

/// An error at the end of a log is no evidence against a device (V2).
fn grounds_of<'a>(run: &'a Run, job: &Job) -> &'a Grounds {
    if job.may_be_unwritten { &Grounds::Speculative } else { run.pool.grounds() }
}

/// Returns the error of each copy of a lost block, whose bad parts were counted before.
pub(super) async fn failures(run: &Run, job: &Job) -> Vec<CopyFailure> {
    match run.pool.store().scrub(&job.bp, &Grounds::Speculative).await {
        Ok(report) => report.lost,
        Err(_) => Vec::new(),
    }
}
