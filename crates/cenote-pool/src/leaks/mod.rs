//! The leak check: compares reachable blocks with the allocations in the space maps.
//!
//!     reachable:  traversal + free queues + checkpointed frees + blocks that a dedup log frees
//!     allocated:  space maps + logs that were not taken over yet
//!
//! Allocated but not claimed: leaked. Claimed but not allocated: a block in free space. Claimed
//! twice: two blocks in one place, unless a dedup or clone table counts the references, all of
//! which must be found (spec 05 §5.7, §10, §11; spec 04 §12; spec 08 §26, §28). The size of an
//! address must fit its block with the parity and padding of its vdev (spec 06 §4.2).
//!
//! Addresses on a removed vdev claim their new location and, on the removed vdev itself, the part
//! of the mapping that is in use. While a vdev is being removed, copied blocks are allocated in
//! both places. A gang block claims its headers and its members.
//!
//! Memory for segments is bounded by [`tunables::SCAN_MEMORY_BYTES`]; if they do not fit, the pool
//! is walked several times ([`segments`]). The tables of shared blocks are loaded completely.

mod claims;
mod report;
mod segments;
mod shared;

use std::ops::Range;
use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_rt::{Result, tunables};

use crate::Pool;
use crate::accounting::VdevFigures;
use crate::spacemaps::{self, RangeSet, Unflushed};
use claims::Claimer;
pub use report::LeakReport;
use segments::Claims;
pub use segments::Segment;
pub use shared::{Leftover, Table};

/// Maximum number of listed problems of one kind; the others are only counted.
pub const LISTED_MAX: usize = 10_000;

/// Source of a counted block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A dataset or the MOS.
    Tree,
    /// A queue of blocks to be freed.
    FreeQueue,
}

/// Kind of a reference to a block whose space is claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reference {
    /// The first reference, which claims the space.
    First,
    /// Another reference, counted by this table.
    Again(Table),
}

/// Receives every block during the check.
pub trait Census: Send {
    /// Receives a reference to a block.
    fn count(&mut self, bp: &BlockPtr, place: &Bookmark, origin: Origin, reference: Reference);
}

/// Ignores all blocks.
impl Census for () {
    fn count(&mut self, _: &BlockPtr, _: &Bookmark, _: Origin, _: Reference) {}
}

/// Checks a pool for leaks.
pub async fn check(pool: &Arc<Pool>) -> Result<LeakReport> {
    check_counting(pool, &mut ()).await
}

/// Checks a pool for leaks and passes every block to `census`.
pub async fn check_counting(pool: &Arc<Pool>, census: &mut impl Census) -> Result<LeakReport> {
    let space = pool.space().await?;
    let mut report = LeakReport::default();
    let limit = tunables::SCAN_MEMORY_BYTES.get_usize() / 3 / size_of::<Segment>();
    let mut start = (0, 0);
    loop {
        let is_first = start == (0, 0);
        let claims = Claims::new(start, limit);
        let mut claimer = Claimer::new(pool, claims, &mut *census, is_first).await?;
        claimer.claim_all().await?;
        let (mut claims, pass) = claimer.into_parts();
        if is_first {
            report.claimed = pass.bytes;
            report.shared = pass.shared_bytes;
            report.note_short(&pass.short);
            report.leftovers = pass.leftovers;
            report.damage = pass.damage;
            report.checkpoint = pass.checkpoint_bytes;
            report.unreferenced = pass.unreferenced_bytes;
        }
        claims.finish();
        report.note_doubles(&claims.doubles);
        let end = claims.end();
        compare(pool, &space.vdevs, &mut claims, &mut report).await;
        if is_first {
            report.sum_up(pool, &space.vdevs).await;
        }
        pool.check_valid()?;
        if end == (u64::MAX, u64::MAX) {
            return Ok(report);
        }
        start = end;
    }
}

/// Compares the claims of a window with the space maps.
async fn compare(
    pool: &Arc<Pool>,
    vdevs: &[VdevFigures],
    claims: &mut Claims,
    report: &mut LeakReport,
) {
    let unflushed = match Unflushed::load(pool, vdevs, |_, _| true).await {
        Ok(unflushed) => unflushed,
        Err(error) => {
            report.damage.push(format!("log space maps: {error}"));
            Unflushed::default()
        }
    };
    claims.finish();
    for vdev in vdevs {
        if !vdev.is_concrete {
            report.note_referenced(vdev.id, claims.within(vdev.id, 0..u64::MAX).bytes());
            continue;
        }
        for (number, metaslab) in (0..).zip(&vdev.metaslabs) {
            let range = metaslab.start..metaslab.start.saturating_add(metaslab.size);
            let whole = Segment { vdev: vdev.id, start: range.start, end: range.end };
            if claims.clip(whole).is_none() {
                continue;
            }
            match spacemaps::allocated(pool, vdev, number, &unflushed).await {
                Ok((allocated, faults)) => {
                    report.faults.extend(faults);
                    let claimed = claims.within(vdev.id, range);
                    let clip = |range: Range<u64>| {
                        let (start, end) = (range.start, range.end);
                        claims.clip(Segment { vdev: vdev.id, start, end })
                    };
                    report.note_leaked(without(&allocated, &claimed).iter().filter_map(clip));
                    report.note_unallocated(without(&claimed, &allocated).iter().filter_map(clip));
                }
                Err(error) => {
                    report.damage.push(format!("vdev {} metaslab {number}: {error}", vdev.id));
                }
            }
        }
    }
}

/// Returns the ranges of `one` that are not in `other`.
fn without(one: &RangeSet, other: &RangeSet) -> RangeSet {
    let mut rest = one.clone();
    for range in other.iter() {
        rest.remove(range);
    }
    rest
}
