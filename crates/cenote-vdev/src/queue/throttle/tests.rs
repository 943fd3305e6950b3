//! The share on a modelled disk (spec 09 §3.2): a sorted scan, and random reads beside it. The other
//! models are tested with whole pools.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_device::ModelDisk;
use cenote_device::model::table;
use cenote_rt::{Rng, World, simulate, sleep, spawn, without_caller};

use super::*;
use crate::DATA_START;
use crate::queue::{Load, Queue, now_ns};

const SIZE: u64 = 2_000_000_000_000;
const EXTENT: u64 = 1 << 20;
const MS: u64 = 1_000_000;
/// Batches of a sweep under way.
const BATCHES: u64 = 8;

/// Figures of a run.
#[derive(Debug, Clone, Copy)]
struct Figures {
    /// MB/s of the scan.
    scan: f64,
    /// Latency of the ordinary reads in milliseconds: mean, 99th percentile.
    mean: f64,
    p99: f64,
    waited: u8,
}

/// A scan with ordinary reads beside it.
#[derive(Debug, Clone)]
struct Run {
    tunables: Vec<(&'static Tunable, u64)>,
    /// Ordinary reads per second.
    others: u64,
    seconds: u64,
    has_scan: bool,
    /// Whether callers wait for the ordinary reads.
    has_callers: bool,
}

impl Run {
    fn new(others: u64) -> Self {
        Self { tunables: Vec::new(), others, seconds: 60, has_scan: true, has_callers: true }
    }

    fn with(mut self, tunable: &'static Tunable, value: u64) -> Self {
        self.tunables.push((tunable, value));
        self
    }

    fn figures(&self) -> Figures {
        let mut tunables = vec![(&tunables::SCAN_THROTTLE, ThrottleModel::Share as u64)];
        tunables.extend(&self.tunables);
        simulate(World { tunables, ..World::new(1) }, run(self.clone())).expect("no error")
    }
}

/// Reads extents in the order of their addresses.
async fn scan(queue: Queue, end_ns: u64, bytes: Arc<AtomicU64>) {
    let next = Arc::new(AtomicU64::new(DATA_START));
    let batches: Vec<_> = (0..BATCHES)
        .map(|_| {
            let (queue, next, bytes) = (queue.clone(), Arc::clone(&next), Arc::clone(&bytes));
            spawn(async move {
                while now_ns() < end_ns {
                    let start = next.fetch_add(EXTENT, Ordering::Relaxed);
                    let read = queue.read_directly(start, EXTENT as usize, IoClass::Scrub);
                    read.await.expect("no error");
                    bytes.fetch_add(EXTENT, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for batch in batches {
        batch.await.expect("no panic");
    }
}

async fn run(run: Run) -> Figures {
    let model = table::find("hdd-7200").expect("a model").build(SIZE, 1);
    let load = Arc::new(Load::default());
    let queue = Queue::new(ModelDisk::new("disk", SIZE, model), Arc::clone(&load));
    let end_ns = now_ns() + run.seconds * 1_000_000_000;
    let bytes = Arc::new(AtomicU64::new(0));
    let mut scans = None;
    if run.has_scan {
        scans = Some(spawn(scan(queue.clone(), end_ns, Arc::clone(&bytes))));
    }
    let mut rng = Rng::seeded(7);
    let mut reads = Vec::new();
    while run.others > 0 && now_ns() < end_ns {
        let uniform = (rng.below(1 << 30) + 1) as f64 / (1_u64 << 30) as f64;
        let gap = -uniform.ln() / run.others as f64;
        sleep(Duration::from_secs_f64(gap)).await;
        let at = DATA_START + rng.below(SIZE / 2 / 8192) * 8192;
        let queue = queue.clone();
        reads.push(spawn(async move {
            let begun = now_ns();
            let read = queue.read_directly(at, 8192, IoClass::SyncRead);
            let read = if run.has_callers { read.await } else { without_caller(read).await };
            read.expect("no error");
            now_ns() - begun
        }));
    }
    if run.others == 0 {
        sleep(Duration::from_secs(run.seconds)).await;
    }
    let (scanned, waited) = (bytes.load(Ordering::Relaxed), load.scan().waited().percent);
    let mut times = Vec::new();
    for read in reads {
        times.push(read.await.expect("no panic"));
    }
    if let Some(scans) = scans {
        scans.await.expect("no panic");
    }
    let mean = times.iter().sum::<u64>() as f64 / times.len().max(1) as f64 / 1e6;
    times.sort_unstable();
    let p99 = times.get(times.len() * 99 / 100).copied().unwrap_or(0) as f64 / 1e6;
    Figures { scan: scanned as f64 / 1e6 / run.seconds as f64, mean, p99, waited }
}

#[test]
fn share_follows_the_allowed_slowdown() {
    let with = |allowed| {
        let run = Run::new(20).with(&tunables::SCRUB_SLOWDOWN_PCT, allowed);
        run.with(&tunables::SCRUB_MIN_RATE, 0).figures()
    };
    let alone = Run { has_scan: false, ..Run::new(20) }.figures();
    let (little, more, much) = (with(5), with(25), with(400));
    assert!(little.scan > 1.0 && little.waited > 50, "{little:?}");
    assert!(more.scan > 1.5 * little.scan, "{little:?}, {more:?}");
    assert!(much.scan > 1.5 * more.scan && much.waited < little.waited, "{more:?}, {much:?}");
    assert!(little.mean < 1.2 * alone.mean, "{alone:?}, {little:?}");
    assert!(more.mean < 1.4 * alone.mean, "{alone:?}, {more:?}");
}

#[test]
fn whole_leaf_is_read_when_it_is_idle() {
    let figures = Run { seconds: 10, ..Run::new(0) }.figures();
    // Of 150 MB/s.
    assert!(figures.scan > 145.0 && figures.waited == 0, "{figures:?}");
}

/// The reads of transaction groups have no caller: a leaf with nothing else belongs to the scan.
#[test]
fn reads_without_a_caller_leave_the_leaf_to_the_scan() {
    let with_callers = Run { seconds: 10, ..Run::new(5) };
    let without = Run { has_callers: false, ..with_callers.clone() }.figures();
    let with_callers = with_callers.figures();
    assert!(without.scan > 120.0 && without.waited < 10, "{without:?}");
    assert!(with_callers.scan < 0.8 * without.scan, "{with_callers:?}, {without:?}");
}

#[test]
fn length_of_scan_reads_follows_the_rate_of_the_disk() {
    // MB/s, whether each read begins where the one before it ended, and the longest read.
    for (rate, is_sequential, want) in
        [(150, true, 1 << 20), (30, true, 240_000), (10, true, 128 << 10), (30, false, 1 << 20)]
    {
        let mut share = Share::default();
        let (mut now, mut offset) = (0, DATA_START);
        for _ in 0..10 {
            let len = share.chunk();
            share.scan_started(offset, len);
            let began = now;
            now += len * 1000 / rate;
            share.scan_ended(now, began);
            offset += if is_sequential { len } else { 10 * len };
        }
        assert!(share.chunk().abs_diff(want) < 5000, "{rate} MB/s, {is_sequential}");
    }
}

#[test]
fn extents_are_short_while_a_leaf_is_shared() {
    let mut share = Share::default();
    let at = |share: &Share, now| [true, false].map(|is_disk| share.extent_max(now, is_disk));
    assert_eq!(at(&share, 0), [u64::MAX; 2]);
    // A request each 20 ms.
    (1..=100).for_each(|n| share.ordinary_ended(n * 20 * MS, (n * 20 - 5) * MS));
    let last = 100 * 20 * MS;
    assert_eq!(at(&share, last + 100 * MS), [1 << 20, 256 << 10]);
    assert_eq!(at(&share, last + 300 * MS), [u64::MAX; 2]);
}

/// Pauses between requests are used, however short: a leaf that is never idle is read fast, and the
/// slowest requests are little slower.
#[test]
fn pauses_of_a_busy_leaf_are_used() {
    let alone = Run { has_scan: false, ..Run::new(60) }.figures();
    let run = Run::new(60).with(&tunables::SCRUB_SLOWDOWN_PCT, 50);
    let beside = run.with(&tunables::SCRUB_MIN_RATE, 0).figures();
    assert!(beside.scan > 15.0, "{beside:?}");
    assert!(beside.p99 < 1.3 * alone.p99, "{alone:?}, {beside:?}");
}
