//! Verify: reads and checks all copies and all parity of all blocks; a scrub that writes nothing.
//!
//!     traversal ──> window of pointers ──sorted by address──> batches ──> extents ──> verdicts
//!                   bounded                                   several under way at once
//!
//! The traversal returns blocks in the order of trees; on disk they are in the order of writing. So
//! pointers are collected as far as memory allows and then read by address: adjacent blocks become
//! reads of [`tunables::AGGREGATION_LIMIT`] bytes per leaf, and each block is checked in place. The
//! next window is filled while one is read.
//!
//! A block with several references (deduplication, clones) is read once per window and reported for
//! each place.
//!
//! Guarantees
//! * V1 Every copy on every leaf that should have it is read; J2 of the vdev layer says which
//!   leaves should. Missing bytes of stale or absent leaves are counted by leaf: they are not
//!   damage, but redundancy below that of the layout.
//! * V2 The last block of a log chain may never have been written; this is not a finding. While the
//!   pool is being written, and in a state of a given txg, after which it may have been written,
//!   blocks of log chains are left out: they may have reached only some of their leaves.
//! * V3 Memory: two windows and the extents in flight, both bounded by
//!   [`tunables::SCAN_MEMORY_BYTES`], in addition to the block cache.

mod batch;
mod extents;
mod missing;
mod window;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cenote_block::{BadPart, CopyFailure, Grounds};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{BoxFuture, Result, trace, tunables};
use cenote_vdev::queue::ThrottleModel;

use crate::Pool;
use crate::traverse::{self, Damage, Flow, Visitor};
pub use extents::Extents;
pub use missing::MissingBytes;
use missing::MissingCounter;
use window::Collector;

/// A finding of verify.
#[derive(Debug)]
pub enum Finding {
    /// A wrong part of a block on one leaf.
    Part {
        /// The block.
        place: Bookmark,
        /// Its pointer.
        bp: BlockPtr,
        /// Leaf, offset and cause.
        part: BadPart,
    },
    /// A block without a correct copy.
    Lost {
        /// The block.
        place: Bookmark,
        /// Its pointer.
        bp: BlockPtr,
        /// The error of each copy.
        copies: Vec<CopyFailure>,
        /// The cause, if it is not in `copies`.
        cause: Option<cenote_rt::Error>,
    },
    /// Everything below a place is unreachable.
    Unreachable(Damage),
}

/// Receives findings. Reading waits for it.
pub trait Observer: Send + Sync {
    /// Receives a finding.
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()>;
}

/// Progress of a run; can be read at any time.
#[derive(Debug)]
pub struct Progress {
    blocks: AtomicU64,
    bytes: AtomicU64,
    parts: AtomicU64,
    lost: AtomicU64,
    unreachable: AtomicU64,
    /// Set at the end of a run.
    missing: Mutex<BTreeMap<String, MissingBytes>>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            blocks: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            parts: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            unreachable: AtomicU64::new(0),
            missing: Mutex::with_default(Rank::VerifyMissing),
        }
    }
}

/// Figures of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Summary {
    /// Number of copies read.
    pub copies: u64,
    /// Their allocated bytes, including parity.
    pub bytes: u64,
    /// Number of wrong parts.
    pub parts: u64,
    /// Number of lost blocks.
    pub lost: u64,
    /// Number of unreachable subtrees.
    pub unreachable: u64,
}

impl Summary {
    /// Whether there are no findings.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.parts == 0 && self.lost == 0 && self.unreachable == 0
    }
}

impl Progress {
    /// Returns the current figures.
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

    /// Returns the leaves with missing bytes, by path; known after the run.
    pub fn missing(&self) -> BTreeMap<String, MissingBytes> {
        self.missing.lock().clone()
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

/// State shared by all tasks of a run.
pub(crate) struct Run {
    pool: Arc<Pool>,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
    missing: MissingCounter,
    /// Of a scrub, which delays may hold back: its count of bytes read.
    scrubbed: Option<Arc<AtomicU64>>,
    /// Whether what was not read yet is left out.
    is_stopped: Arc<AtomicBool>,
}

impl Run {
    fn new(
        pool: &Arc<Pool>,
        observer: Arc<dyn Observer>,
        progress: Arc<Progress>,
        is_stopped: Arc<AtomicBool>,
        scrubbed: Option<Arc<AtomicU64>>,
    ) -> Arc<Self> {
        let (pool, missing) = (Arc::clone(pool), MissingCounter::new(pool.tree()));
        Arc::new(Self { pool, observer, progress, missing, scrubbed, is_stopped })
    }

    /// Whether each block waits for a delay.
    fn is_delayed(&self) -> bool {
        self.scrubbed.is_some() && ThrottleModel::now() == ThrottleModel::Delays
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Counts blocks that were read.
    fn count(&self, copies: u64, bytes: u64) {
        self.progress.add(copies, bytes);
        if let Some(scrubbed) = &self.scrubbed {
            scrubbed.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    async fn report(&self, finding: Finding) {
        self.progress.count(&finding);
        self.observer.finding(finding).await;
    }
}

/// Returns the bytes that a run will read, according to the space maps.
pub async fn expected_bytes(pool: &Pool) -> Result<u64> {
    let space = pool.space().await?;
    Ok(space.vdevs.iter().fold(0, |sum, vdev| sum.saturating_add(vdev.allocated)))
}

/// Verifies the whole pool.
///
/// # Errors
/// `Kind::Overtaken` if the pool is being written and the state that was read was given up;
/// `Kind::Closed` if the pool was closed.
pub async fn pool(
    pool: &Arc<Pool>,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
) -> Result<Summary> {
    let span = trace::scan(pool.name(), "verify");
    span.run(verify(pool, observer, progress)).await
}

async fn verify(
    pool: &Arc<Pool>,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
) -> Result<Summary> {
    let run = Run::new(pool, observer, Arc::clone(&progress), Arc::default(), None);
    let memory = tunables::SCAN_MEMORY_BYTES.get_usize();
    let is_live = pool.presence().is_past() || matches!(pool.grounds(), Grounds::Pinned(_));
    let collector = Collector::new(Arc::clone(&run), memory / 4);
    let mut visitor = Verifying { collector, is_live, lost: vec![] };
    traverse::pool(pool, traverse::Options::default(), &mut visitor).await?;
    visitor.report_lost().await;
    visitor.collector.finish().await;
    // Findings after blocks were reused are not valid.
    pool.check_valid()?;
    *progress.missing.lock() = run.missing.result();
    Ok(progress.summary())
}

/// Reads chosen blocks in the order of their addresses, for scans: every copy, as a verification
/// does.
pub struct Sweep(Collector);

impl Sweep {
    /// Returns a sweep of blocks of `pool` that uses two windows of `bytes`. Once `is_stopped` is
    /// set, what was not read yet is left out. The allocated bytes of what is read are added to
    /// `scrubbed`.
    pub fn new(
        pool: &Arc<Pool>,
        observer: Arc<dyn Observer>,
        is_stopped: Arc<AtomicBool>,
        scrubbed: Arc<AtomicU64>,
        bytes: usize,
    ) -> Self {
        let run = Run::new(pool, observer, Arc::default(), is_stopped, Some(scrubbed));
        Self(Collector::new(run, bytes))
    }

    /// Adds a block. May wait until earlier ones were read.
    pub async fn push(&mut self, bp: &BlockPtr, place: &Bookmark) {
        self.0.push(bp, place, false).await;
    }

    /// Waits until everything was read, or for the reads in flight if it was stopped. Returns the
    /// allocated bytes of what was read.
    ///
    /// # Errors
    /// `Kind::Overtaken` if the state that was read was given up: findings are not complete then.
    pub async fn finish(mut self) -> Result<u64> {
        self.0.finish().await;
        self.0.run.pool.check_valid()?;
        Ok(self.0.run.progress.summary().bytes)
    }
}

struct Verifying {
    collector: Collector,
    /// Whether the pool is being written.
    is_live: bool,
    lost: Vec<Damage>,
}

impl Verifying {
    async fn report_lost(&mut self) {
        for damage in self.lost.drain(..) {
            self.collector.run.report(Finding::Unreachable(damage)).await;
        }
    }

    async fn push(
        &mut self,
        bp: &BlockPtr,
        place: &Bookmark,
        may_be_unwritten: bool,
    ) -> Result<Flow> {
        if !self.lost.is_empty() {
            self.report_lost().await;
        }
        if !bp.is_embedded() {
            self.collector.push(bp, place, may_be_unwritten).await;
        }
        Ok(Flow::Continue)
    }
}

impl Visitor for Verifying {
    async fn block(&mut self, bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
        self.push(bp, place, false).await
    }

    async fn unwritten(&mut self, bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
        // It may be in flight.
        if self.is_live { Ok(Flow::Continue) } else { self.push(bp, place, true).await }
    }

    fn damage(&mut self, damage: Damage) {
        self.lost.push(damage);
    }
}
