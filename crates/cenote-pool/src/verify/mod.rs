//! Verify: all copies and all parity of all blocks, read and compared; a scrub that writes nothing.
//!
//!     traversal ──> window of pointers ──sorted by address──> batches ──> extents ──> verdicts
//!                   bounded                                   several under way at once
//!
//! Blocks come from the traversal in the order of trees, and lie on disk in the order in which
//! they were written. So pointers are collected as long as memory allows and then read by address:
//! neighbours become reads of [`tunables::AGGREGATION_LIMIT`] bytes per leaf, and each block is
//! judged on the bytes where they were read to. The next window fills while one is read.
//!
//! A block that is met more than once (deduplication, clones) is read once per window and reported
//! for each place.
//!
//! Invariants
//! * V1  Every copy on every leaf that should have it is looked at; J2 of the vdev layer says which
//!   leaves should. Bytes that stale or absent leaves lack are counted by leaf: they are no damage,
//!   but less redundancy than the layout promises.
//! * V2  The last block of a log chain may never have been written; it is no finding.
//! * V3  Memory: two windows and the extents under way, both bounded by
//!   [`tunables::SCAN_MEMORY_BYTES`], beside the block cache.

mod batch;
mod extents;
mod lacking;
mod window;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cenote_block::{BadPart, CopyFailure};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{BoxFuture, Result, tunables};

use crate::Pool;
use crate::traverse::{self, Damage, Flow, Visitor};
pub use lacking::Lacking;
use lacking::LackingCounter;
use window::Collector;

/// Something that is wrong.
#[derive(Debug)]
pub enum Finding {
    /// A part of a block on one leaf.
    Part {
        /// Which block.
        place: Bookmark,
        /// Its pointer.
        bp: BlockPtr,
        /// Leaf, offset and cause.
        part: BadPart,
    },
    /// A block of which no copy is right.
    Lost {
        /// Which block.
        place: Bookmark,
        /// Its pointer.
        bp: BlockPtr,
        /// What was wrong with each copy.
        copies: Vec<CopyFailure>,
        /// More, where the copies do not say it.
        cause: Option<cenote_rt::Error>,
    },
    /// Everything below a place could not be looked at.
    Unreachable(Damage),
}

/// Who is told what is found. Waiting in it holds the reading up.
pub trait Observer: Send + Sync {
    /// Takes a finding.
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()>;
}

/// How far it is; read it at any time.
#[derive(Debug, Default)]
pub struct Progress {
    blocks: AtomicU64,
    bytes: AtomicU64,
    parts: AtomicU64,
    lost: AtomicU64,
    unreachable: AtomicU64,
    /// Set at the end of a run.
    lacking: Mutex<BTreeMap<String, Lacking>>,
}

/// Figures of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Copies of blocks looked at.
    pub copies: u64,
    /// Allocated bytes of them, parity included.
    pub bytes: u64,
    /// Parts found wrong.
    pub parts: u64,
    /// Blocks lost.
    pub lost: u64,
    /// Places below which nothing could be looked at.
    pub unreachable: u64,
}

impl Summary {
    /// Whether nothing was found.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.parts == 0 && self.lost == 0 && self.unreachable == 0
    }
}

impl Progress {
    /// The figures now.
    pub fn summary(&self) -> Summary {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Summary {
            copies: get(&self.blocks),
            bytes: get(&self.bytes),
            parts: get(&self.parts),
            lost: get(&self.lost),
            unreachable: get(&self.unreachable),
        }
    }

    /// The leaves that lack a part of some block, by path; known when the run has ended.
    pub fn lacking(&self) -> BTreeMap<String, Lacking> {
        self.lacking.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn add(&self, copies: u64, bytes: u64) {
        self.blocks.fetch_add(copies, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn count(&self, finding: &Finding) {
        let counter = match finding {
            Finding::Part { .. } => &self.parts,
            Finding::Lost { .. } => &self.lost,
            Finding::Unreachable(_) => &self.unreachable,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// What all tasks of a run share.
pub(crate) struct Run {
    pool: Arc<Pool>,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
    lacking: LackingCounter,
}

impl Run {
    async fn report(&self, finding: Finding) {
        self.progress.count(&finding);
        self.observer.finding(finding).await;
    }
}

/// Bytes that a run will look at, as the space maps have it.
pub async fn expected_bytes(pool: &Pool) -> Result<u64> {
    let space = pool.space().await?;
    Ok(space.vdevs.iter().fold(0, |sum, vdev| sum.saturating_add(vdev.allocated)))
}

/// Verifies the whole pool.
///
/// # Errors
/// `Kind::Overtaken` if the pool is being written and the state that was read was given up.
pub async fn pool(
    pool: &Arc<Pool>,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
) -> Result<Summary> {
    let lacking = LackingCounter::new(pool.tree());
    let run = Run { pool: Arc::clone(pool), observer, progress: Arc::clone(&progress), lacking };
    let run = Arc::new(run);
    let memory = tunables::SCAN_MEMORY_BYTES.get_usize();
    let mut visitor =
        Verifying { collector: Collector::new(Arc::clone(&run), memory / 4), lost: vec![] };
    traverse::pool(pool, traverse::Options::default(), &mut visitor).await?;
    visitor.report_lost().await;
    visitor.collector.finish().await;
    // What was found after the state was given up is no finding.
    pool.check_valid()?;
    *progress.lacking.lock().unwrap_or_else(PoisonError::into_inner) = run.lacking.result();
    Ok(progress.summary())
}

struct Verifying {
    collector: Collector,
    lost: Vec<Damage>,
}

impl Verifying {
    async fn report_lost(&mut self) {
        for damage in self.lost.drain(..) {
            self.collector.run.report(Finding::Unreachable(damage)).await;
        }
    }
}

impl Visitor for Verifying {
    async fn block(&mut self, bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
        if !self.lost.is_empty() {
            self.report_lost().await;
        }
        if !bp.is_embedded() {
            self.collector.push(bp, place).await;
        }
        Ok(Flow::Continue)
    }

    fn damage(&mut self, damage: Damage) {
        self.lost.push(damage);
    }
}

/// Whether a block that cannot be read is just the end of a log (V2).
fn may_be_unwritten(bp: &BlockPtr) -> bool {
    bp.object_type() == ObjectType::INTENT_LOG
}
