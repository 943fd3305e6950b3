//! The window: collected pointers, sorted by address.

use std::cmp::Reverse;
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

impl Copy {
    fn end(&self) -> u64 {
        self.offset.saturating_add(self.asize)
    }
}

/// Blocks that are read together.
pub(super) struct Window {
    pub(super) jobs: Vec<Job>,
    /// In the order in which they are read. Equal addresses are neighbours if it is sorted.
    pub(super) copies: Vec<Copy>,
}

/// Order in which the copies of a window are read.
#[derive(Debug, Clone, Copy)]
enum Order {
    /// That of the jobs.
    Found,
    /// That of the addresses.
    Disk,
    /// Long extents first.
    LongExtentsFirst,
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
        let order = match self.run.scrubbed {
            None => Order::Disk,
            Some(_) => Order::of_scans(),
        };
        let window = Window::of(std::mem::take(&mut self.jobs), order);
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

impl Order {
    /// Returns the order that the tunables want for scans. A window is always read to its end
    /// before its place is recorded, so strategy 0 has nothing to choose.
    fn of_scans() -> Self {
        match (tunables::SCAN_LEGACY.get(), tunables::SCAN_ISSUE_STRATEGY.get()) {
            (0, 2) => Self::LongExtentsFirst,
            (0, _) => Self::Disk,
            _ => Self::Found,
        }
    }

    fn sort(self, copies: Vec<Copy>) -> Vec<Copy> {
        let mut copies = copies;
        if matches!(self, Self::Found) {
            return copies;
        }
        copies.sort_unstable_by_key(|copy| (copy.vdev, copy.offset, copy.job));
        if matches!(self, Self::LongExtentsFirst) { long_extents_first(&copies) } else { copies }
    }
}

/// Sorts copies that are sorted by address: those of the longest extents first, in classes of the
/// powers of two (spec 06 §15.4).
fn long_extents_first(copies: &[Copy]) -> Vec<Copy> {
    let gap = tunables::SCAN_MAX_EXT_GAP.get();
    let is_near = |a: &Copy, b: &Copy| a.vdev == b.vdev && b.offset.saturating_sub(a.end()) <= gap;
    let mut extents: Vec<_> = copies.chunk_by(is_near).collect();
    extents.sort_by_cached_key(|extent| Reverse(score(extent).checked_ilog2()));
    extents.concat()
}

/// Returns how early an extent is read: its bytes, and more of them the fewer gaps it has.
fn score(extent: &[Copy]) -> u128 {
    let (Some(first), Some(last)) = (extent.first(), extent.last()) else { return 0 };
    let size = u128::from(last.end().saturating_sub(first.offset)).max(1);
    let filled = extent.iter().map(|copy| u128::from(copy.asize)).sum::<u128>().min(size);
    filled + filled * filled * u128::from(tunables::SCAN_FILL_WEIGHT.get()) / size
}

impl Window {
    fn of(jobs: Vec<Job>, order: Order) -> Self {
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
        Self { jobs, copies: order.sort(copies) }
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn copies(places: &[(u32, u64, u64)]) -> Vec<Copy> {
        let copy = |(job, (vdev, offset, asize)): (u32, &(u32, u64, u64))| Copy {
            vdev: *vdev,
            dva: 0,
            offset: offset * MIB,
            asize: asize * MIB,
            job,
        };
        (0..).zip(places).map(copy).collect()
    }

    fn jobs(order: Order, places: &[(u32, u64, u64)]) -> Vec<u32> {
        order.sort(copies(places)).iter().map(|copy| copy.job).collect()
    }

    #[test]
    fn long_extents_are_read_first() {
        cenote_rt::simulate(1, async {
            // Extents: one block, three blocks with a small gap, two blocks of another vdev.
            let places = [(1, 5, 1), (0, 40, 2), (0, 0, 1), (0, 44, 2), (0, 46, 2), (1, 4, 1)];
            assert_eq!(jobs(Order::Found, &places), [0, 1, 2, 3, 4, 5]);
            assert_eq!(jobs(Order::Disk, &places), [2, 1, 3, 4, 5, 0]);
            assert_eq!(jobs(Order::LongExtentsFirst, &places), [1, 3, 4, 5, 0, 2]);
            tunables::SCAN_MAX_EXT_GAP.set(MIB).unwrap();
            assert_eq!(jobs(Order::LongExtentsFirst, &places), [3, 4, 1, 5, 0, 2]);
        })
        .unwrap();
    }

    /// Ten MiB without gaps go before twelve with gaps. Without the weight they are in one class,
    /// and are read in the order of the disk.
    #[test]
    fn full_extents_are_read_before_those_with_gaps() {
        cenote_rt::simulate(1, async {
            let gaps = (0..12).map(|index| (0, index * 3, 1));
            let places: Vec<_> = gaps.chain([(0, 100, 10)]).collect();
            assert_eq!(jobs(Order::LongExtentsFirst, &places)[0], 12);
            tunables::SCAN_FILL_WEIGHT.set(0).unwrap();
            assert_eq!(jobs(Order::LongExtentsFirst, &places)[0], 0);
        })
        .unwrap();
    }
}
