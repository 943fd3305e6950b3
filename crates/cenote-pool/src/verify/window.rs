//! The window: collected pointers, sorted by address.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_rt::{JoinHandle, Semaphore, tunables};
use cenote_vdev::Tree;

use super::{Finding, Run, batch};

/// A block to be read.
pub(super) struct Job {
    pub(super) bp: BlockPtr,
    pub(super) place: Bookmark,
    /// Whether an unreadable block may be the unwritten end of a log (V2).
    pub(super) may_be_unwritten: bool,
    /// Whether some copy is correct.
    has_good_copy: AtomicBool,
    /// Whether some copy is wrong.
    has_bad_copy: AtomicBool,
}

impl Job {
    /// Records the result of a copy.
    pub(super) fn note(&self, is_right: bool) {
        let flag = if is_right { &self.has_good_copy } else { &self.has_bad_copy };
        flag.store(true, Ordering::Relaxed);
    }

    fn is_lost(&self) -> bool {
        self.has_bad_copy.load(Ordering::Relaxed) && !self.has_good_copy.load(Ordering::Relaxed)
    }
}

/// One copy of a job, ordered by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Copy {
    pub(super) vdev: u32,
    pub(super) dva: u8,
    pub(super) offset: u64,
    pub(super) asize: u64,
    pub(super) job: u32,
}

/// Blocks that are read together.
pub(super) struct Window {
    pub(super) jobs: Vec<Job>,
    /// Sorted by address; for a scan with `zfs_scan_legacy` in the order of the jobs.
    pub(super) copies: Vec<Copy>,
}

/// Memory of a block with two copies in a window.
const JOB_BYTES: usize = size_of::<Job>() + 2 * size_of::<Copy>();

/// Fills windows and reads full ones.
pub(super) struct Collector {
    pub(super) run: Arc<Run>,
    jobs: Vec<Job>,
    capacity: usize,
    /// The window that is being read.
    reading: Option<JoinHandle<()>>,
}

impl Collector {
    /// Creates a collector with windows of `bytes`, of which two exist at a time.
    pub(super) fn new(run: Arc<Run>, bytes: usize) -> Self {
        let capacity = (bytes / JOB_BYTES).max(1);
        Self { run, jobs: Vec::new(), capacity, reading: None }
    }

    pub(super) async fn push(&mut self, bp: &BlockPtr, place: &Bookmark, may_be_unwritten: bool) {
        if self.jobs.len() >= self.capacity {
            self.flush().await;
        }
        let (has_good_copy, has_bad_copy) = (AtomicBool::new(false), AtomicBool::new(false));
        let (bp, place) = (*bp, *place);
        self.jobs.push(Job { bp, place, may_be_unwritten, has_good_copy, has_bad_copy });
    }

    /// Starts reading the collected window after the previous one is finished.
    async fn flush(&mut self) {
        self.wait().await;
        let is_sorted = self.run.scrubbed.is_none() || tunables::SCAN_LEGACY.get() == 0;
        let window = Window::of(std::mem::take(&mut self.jobs), is_sorted);
        let run = Arc::clone(&self.run);
        self.reading = Some(cenote_rt::spawn(read(run, window)));
    }

    async fn wait(&mut self) {
        if let Some(reading) = self.reading.take() {
            // An error means that the task panicked, which has been printed.
            let _ = reading.await;
        }
    }

    /// Reads everything that was collected.
    pub(super) async fn finish(&mut self) {
        self.flush().await;
        self.wait().await;
    }
}

impl Window {
    fn of(jobs: Vec<Job>, is_sorted: bool) -> Self {
        let mut copies = Vec::with_capacity(jobs.len() * 2);
        for (job, Job { bp, .. }) in (0..).zip(&jobs) {
            if bp.is_gang() || bp.validate().is_err() || bp.dva(0).is_none() {
                // Gang blocks are read alone, in the order of their headers.
                let (vdev, offset) = bp.dva(0).map_or((0, 0), |dva| (dva.vdev, dva.offset));
                copies.push(Copy { vdev, dva: batch::WHOLE, offset, asize: bp.psize(), job });
                continue;
            }
            for index in 0..3 {
                let Some(at) = bp.dva(usize::from(index)) else { continue };
                let (vdev, offset, asize) = (at.vdev, at.offset, at.asize);
                copies.push(Copy { vdev, dva: index, offset, asize, job });
            }
        }
        if is_sorted {
            copies.sort_unstable_by_key(|copy| (copy.vdev, copy.offset, copy.job));
        }
        Self { jobs, copies }
    }

    /// Splits the copies into batches of about `bytes`.
    fn batches(&self, bytes: u64) -> Vec<std::ops::Range<usize>> {
        let mut batches = Vec::new();
        let (mut start, mut sum) = (0, 0);
        for (index, copy) in self.copies.iter().enumerate() {
            let is_other = index > start && self.copies[index - 1].vdev != copy.vdev;
            if index > start && (is_other || sum + copy.asize > bytes) {
                batches.push(start..index);
                (start, sum) = (index, 0);
            }
            sum += copy.asize;
        }
        if start < self.copies.len() {
            batches.push(start..self.copies.len());
        }
        batches
    }
}

/// Returns the bytes of a batch, and the number of batches in flight. A scan has at most
/// `zfs_scan_vdev_limit` bytes in flight for each leaf of the smallest top-level vdev.
fn limits(run: &Run) -> (u64, u64) {
    let batch_bytes = tunables::VERIFY_BATCH_BYTES.get();
    let bytes = tunables::SCAN_MEMORY_BYTES.get() / 4;
    let in_flight = bytes.div_ceil(batch_bytes).clamp(2, 64);
    if run.scrubbed.is_none() {
        return (batch_bytes, in_flight);
    }
    let limit = tunables::SCAN_VDEV_LIMIT.get().saturating_mul(least_leaves(run.pool.tree()));
    let batch_bytes = batch_bytes.min(limit);
    (batch_bytes, in_flight.min(limit / batch_bytes))
}

/// Returns the number of leaves of the top-level vdev that has the fewest.
fn least_leaves(tree: &Tree) -> u64 {
    let mut counts = BTreeMap::new();
    for top in tree.leaves().filter_map(|(_, leaf)| tree.top_of(leaf.guid())) {
        *counts.entry(top.guid()).or_insert(0) += 1;
    }
    counts.into_values().min().unwrap_or(1)
}

/// Reads a window and reports errors.
async fn read(run: Arc<Run>, window: Window) {
    let window = Arc::new(window);
    let (batch_bytes, in_flight) = limits(&run);
    let permits = Arc::new(Semaphore::new(in_flight as usize));
    for copies in window.batches(batch_bytes) {
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        if run.is_stopped() {
            break;
        }
        let (run, window) = (Arc::clone(&run), Arc::clone(&window));
        cenote_rt::spawn(async move {
            batch::read(&run, &window, copies).await;
            drop(permit);
        });
    }
    let Ok(_all_done) = permits.acquire_many(in_flight as u32).await else { return };
    for job in window.jobs.iter().filter(|job| job.is_lost() && !job.may_be_unwritten) {
        let copies = batch::failures(&run, job).await;
        let (place, bp) = (job.place, job.bp);
        run.report(Finding::Lost { place, bp, copies, cause: None }).await;
    }
}
