//! Sequential rebuild of new sides (spec 06 §9.2): beside writers, with devices that fail, and with
//! a crash at any point; those of OpenZFS continue here.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cenote_device::{Device, DeviceInfo, ImageDevice};
use cenote_engine::create::{LeafSpec, plan_leaf};
use cenote_engine::{
    Attach, Engine, Event, NotedEvent, PoolEvent, ScanError, ScrubOptions, ShapeError,
};
use cenote_ondisk::rebuild::{RebuildPhys, RebuildState};
use cenote_ondisk::scan::{SCAN, ScanFunc, ScanPhys, ScanState};
use cenote_pool::OpenOptions;
use cenote_pool::features::FeatureState;
use cenote_pool::import::{ScanOptions, scan};
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::seeded::Bug;
use cenote_rt::{
    BoxFuture, Buf, BufMut, Error, Kind, Result, Rng, World, block_on, simulate, tunables,
};
use cenote_testkit::golden::golden;

use crate::scans::{BLOCKS, Failing, Fixture, fails, scan_of, verify_of};
use crate::shapes::{leaf_on, new_device};

/// No scrub follows a rebuild while this exists: so what a rebuild left out is seen.
pub(crate) struct NoScrub;

impl NoScrub {
    pub(crate) fn new() -> Self {
        tunables::REBUILD_SCRUB.set(0).unwrap();
        Self
    }
}

impl Drop for NoScrub {
    fn drop(&mut self) {
        tunables::REBUILD_SCRUB.set(1).unwrap();
    }
}

pub(crate) async fn rebuild_of(engine: &Arc<Engine>) -> RebuildPhys {
    let view = engine.view().await.unwrap();
    view.status().await.unwrap().other_scans.rebuilds[0].phys
}

/// Waits for the end of the scrub that follows a rebuild.
async fn scrub_after_rebuild(engine: &Arc<Engine>) -> ScanPhys {
    for _ in 0..20_000 {
        let view = engine.view().await.unwrap();
        let scan = view.directory_value(SCAN).map(|_| scan_of(&view));
        if let Some(scan) = scan.filter(|scan| scan.state == ScanState::Finished) {
            return scan;
        }
        cenote_rt::sleep(Duration::from_millis(5)).await;
    }
    panic!("no scrub follows");
}

/// A new side is rebuilt beside a writer and a dataset that is destroyed; it alone has everything.
async fn side_is_rebuilt((layout, count): (&str, usize), how: Attach, seed: u64) {
    let _unrepaired = NoScrub::new();
    let mut pool = Fixture::new(layout, count).await;
    let head = pool.engine.head("tank/a").await.unwrap();
    let object = pools::new_object(&pool.engine, &head).await.unwrap();
    let writer = Arc::clone(&pool.engine);
    let writing = cenote_rt::spawn(async move {
        for round in 0..40 {
            pools::write(&writer, &head, object, (round * 7 + seed) % 12, 60 + round)
                .await
                .unwrap();
            if round % 8 == 7 {
                writer.sync().await.unwrap();
            }
        }
    });
    let device = new_device();
    let mut leaf = leaf_on(&device);
    leaf.is_sequential = true;
    pool.devices.push(device);
    // The last allocations are only in the log of space maps.
    pool.write("tank/b", 0..BLOCKS, 30).await;
    pool.engine.leaves().attach(pool.leaf(0), leaf, how).await.unwrap();
    pool.engine.datasets().destroy("tank/c").await.unwrap();
    pool.engine.scans().resume().await.unwrap();
    assert!(pool.engine.scans().is_running(ScanFunc::Resilver));
    let busy = pool.engine.scans().scrub(ScrubOptions::default()).await.unwrap_err();
    assert_eq!(busy.cause(), Some(&ScanError::Resilvering));
    pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    let done = rebuild_of(&pool.engine).await;
    assert_eq!((done.state, done.errors), (RebuildState::Complete, 0), "{done:?}");
    assert!(done.bytes_rebuilt > 1 << 20 && done.bytes_scanned == done.bytes_rebuilt, "{done:?}");
    writing.await.unwrap();
    for (_, leaf) in pool.engine.tree().leaves() {
        assert!(leaf.is_whole(), "{layout}: seed {seed}: {leaf:?}");
    }
    let features = pool.engine.view().await.unwrap();
    assert_eq!(features.features().state("device_rebuild"), FeatureState::Enabled);
    drop(features);
    if how == Attach::Replace {
        pool.devices.remove(0);
    }
    pool.settle().await;
    pool.engine.export().await.unwrap();
    let (summary, is_whole) = verify_of(as_devices(&pool.devices)).await;
    assert!(summary.is_clean() && is_whole, "{layout}: seed {seed}: {summary:?}");
    let last = as_devices(&pool.devices[pool.devices.len() - 1..]);
    let (summary, _) = verify_of(last).await;
    assert!(summary.lost == 0 && summary.unreachable == 0, "{layout}: seed {seed}: {summary:?}");
    pools::judge_devices(&pool.devices, layout, &[]);
}

#[test]
fn new_sides_are_rebuilt_beside_writers() {
    for (seed, (layout, how)) in (0..).zip([
        (("disk", 1), Attach::Mirror),
        (("mirror", 2), Attach::Mirror),
        (("disk", 1), Attach::Replace),
        (("mirror", 2), Attach::Replace),
        (("mirror", 3), Attach::Replace),
    ]) {
        simulate(seed, side_is_rebuilt(layout, how, seed)).unwrap();
    }
}

/// A scrub follows a rebuild, and repairs what it copied although it was bad.
#[test]
fn scrub_follows_a_rebuild() {
    simulate(1, async {
        let mut pool = Fixture::new("mirror", 2).await;
        // Only one side is bad: half of the reads of a rebuild copy from it.
        let damaged = pool.damage(0).await;
        assert!(damaged > 8);
        let device = new_device();
        let mut leaf = leaf_on(&device);
        leaf.is_sequential = true;
        pool.devices.push(device);
        pool.engine.leaves().attach(pool.leaf(0), leaf, Attach::Mirror).await.unwrap();
        pool.engine.store().clear_cache();
        pool.engine.scans().resume().await.unwrap();
        pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
        let done = scrub_after_rebuild(&pool.engine).await;
        assert_eq!((done.func, done.state), (ScanFunc::Scrub, ScanState::Finished));
        assert!(done.errors == 0 && done.processed > 0, "{done:?}");
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// A scrub in progress, which stands still here, is cancelled when a rebuild begins.
#[test]
fn scrub_is_cancelled_by_a_rebuild() {
    let tunables = vec![(&tunables::SCAN_SUSPEND_PROGRESS, 1)];
    simulate(World { tunables, ..World::new(1) }, async {
        let _unrepaired = NoScrub::new();
        let mut pool = Fixture::new("mirror", 2).await;
        pool.engine.scans().scrub(ScrubOptions::default()).await.unwrap();
        let device = new_device();
        let mut leaf = leaf_on(&device);
        leaf.is_sequential = true;
        pool.devices.push(device);
        pool.engine.leaves().attach(pool.leaf(0), leaf, Attach::Mirror).await.unwrap();
        pool.engine.scans().resume().await.unwrap();
        tunables::SCAN_SUSPEND_PROGRESS.set(0).unwrap();
        pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
        assert_eq!(rebuild_of(&pool.engine).await.state, RebuildState::Complete);
        let scan = scan_of(&pool.engine.view().await.unwrap());
        assert_eq!((scan.func, scan.state), (ScanFunc::Scrub, ScanState::Canceled));
        let aborted = |noted: &NotedEvent| noted.event == Event::Pool(PoolEvent::ScrubAborted);
        let events = pool.engine.health().events().after(0);
        assert_eq!(events.iter().filter(|noted| aborted(noted)).count(), 1);
        assert_eq!(pool.engine.scans().in_progress().await.unwrap(), None);
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// The only new side is detached while the rebuild stands still: the rebuild is cancelled at once.
#[test]
fn rebuild_without_its_new_side_is_cancelled() {
    let tunables = vec![(&tunables::SCAN_SUSPEND_PROGRESS, 1)];
    let done = simulate(World { tunables, ..World::new(1) }, async {
        let _unrepaired = NoScrub::new();
        let mut pool = Fixture::new("mirror", 2).await;
        let mut add = async || {
            let device = new_device();
            let mut leaf = leaf_on(&device);
            leaf.is_sequential = true;
            let guid = leaf.config.guid;
            pool.devices.push(device);
            pool.engine.leaves().attach(pool.leaf(0), leaf, Attach::Mirror).await.unwrap();
            pool.engine.scans().resume().await.unwrap();
            guid
        };
        let new = add().await;
        pool.engine.leaves().detach(new, None).await.unwrap();
        assert_eq!(rebuild_of(&pool.engine).await.state, RebuildState::Canceled);
        assert_eq!(pool.engine.scans().in_progress().await.unwrap(), None);
        let events = pool.engine.health().events().after(0);
        let is_aborted = |noted: &NotedEvent| noted.event == Event::Pool(PoolEvent::RebuildAborted);
        assert_eq!(events.iter().filter(|noted| is_aborted(noted)).count(), 1);
    });
    done.unwrap();
}

/// The new side is detached while its rebuild begins: the rebuild ends once.
async fn rebuild_begins_beside_a_detach() {
    let _unrepaired = NoScrub::new();
    let mut pool = Fixture::new("mirror", 2).await;
    for _ in 0..2 {
        let device = new_device();
        let mut leaf = leaf_on(&device);
        leaf.is_sequential = true;
        let guid = leaf.config.guid;
        pool.devices.push(device);
        pool.engine.leaves().attach(pool.leaf(0), leaf, Attach::Mirror).await.unwrap();
        let engine = Arc::clone(&pool.engine);
        let resuming = cenote_rt::spawn(async move { engine.scans().resume().await });
        pool.engine.leaves().detach(guid, None).await.unwrap();
        resuming.await.unwrap().unwrap();
        pool.engine.sync().await.unwrap();
    }
    assert_eq!(rebuild_of(&pool.engine).await.state, RebuildState::Canceled);
    let view = pool.engine.view().await.unwrap();
    let state = view.features().state("device_rebuild");
    assert_eq!(state, FeatureState::Enabled);
}

/// Orders in which the tasks run.
const ORDERS: std::ops::Range<u64> = 0..60;

/// Whether anything is wrong if the tasks run in this order.
fn fails_beside_a_detach(order: u64, bug: Option<Bug>) -> bool {
    let world = World { interleave: Some(order), bug, ..World::new(1) };
    let run = AssertUnwindSafe(|| simulate(world, rebuild_begins_beside_a_detach()).unwrap());
    catch_unwind(run).is_err()
}

#[test]
fn rebuilds_that_begin_beside_a_detach_end_once() {
    let failed = ORDERS.into_iter().find(|order| fails_beside_a_detach(*order, None));
    assert_eq!(failed, None, "the order that fails");
}

/// A write to the new side fails: its log stays, and a resilver writes what it lacks.
async fn failed_writes_are_kept() {
    let _unrepaired = NoScrub::new();
    let mut pool = Fixture::new("mirror", 2).await;
    let (_, bp) = pool.block_of("tank/a", 5).await;
    let inner = new_device();
    let bad = AtomicU64::new(bp.dva(0).unwrap().offset + (4 << 20));
    let device = Arc::new(Failing { inner: Arc::clone(&inner), bad });
    let mut leaf = plan_leaf(&LeafSpec::of(inner.info()), Arc::<Failing>::clone(&device)).unwrap();
    leaf.is_sequential = true;
    let new = leaf.config.guid;
    pool.engine.leaves().attach(pool.leaf(0), leaf, Attach::Mirror).await.unwrap();
    pool.engine.scans().resume().await.unwrap();
    pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    device.bad.store(u64::MAX, Relaxed);
    for _ in 0..3 {
        pool.resilver().await;
    }
    pool.devices.push(inner);
    assert!(!pool.lacks(new));
    assert!(pool.finish().await.is_clean());
}

#[test]
fn rebuild_keeps_what_it_could_not_write() {
    simulate(1, failed_writes_are_kept()).unwrap();
}

/// A device that refuses to read one place.
#[derive(Debug)]
struct Unreadable {
    inner: Arc<ImageDevice>,
    bad: AtomicU64,
}

impl Device for Unreadable {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        if (offset..offset + buf.len() as u64).contains(&self.bad.load(Relaxed)) {
            return Box::pin(std::future::ready(Err(Error::new(Kind::Io, "a bad sector"))));
        }
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        self.inner.write(offset, parts)
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.flush()
    }
}

/// The only other side cannot be read somewhere: the rebuild is cancelled, and a resilver writes
/// what it can.
#[test]
fn rebuild_from_a_failing_side_becomes_a_resilver() {
    simulate(1, async {
        let builder = PoolBuilder::disks(1).with_size(96 << 20);
        let unreadable = |inner| Arc::new(Unreadable { inner, bad: AtomicU64::new(u64::MAX) });
        let devices: Vec<_> = builder.memory_devices().into_iter().map(unreadable).collect();
        let engine = builder.create(as_devices(&devices)).await.unwrap();
        let inner = devices.iter().map(|device| Arc::clone(&device.inner)).collect();
        let mut pool = Fixture { devices: inner, engine };
        pool.engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        pool.write("tank/a", 0..BLOCKS, 1).await;
        let (_, bp) = pool.block_of("tank/a", 5).await;
        let device = new_device();
        let mut leaf = leaf_on(&device);
        leaf.is_sequential = true;
        let new = leaf.config.guid;
        pool.devices.push(device);
        pool.engine.leaves().attach(pool.leaf(0), leaf, Attach::Mirror).await.unwrap();
        devices[0].bad.store(bp.dva(0).unwrap().offset + (4 << 20), Relaxed);
        pool.engine.scans().resume().await.unwrap();
        pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
        assert_eq!(rebuild_of(&pool.engine).await.state, RebuildState::Canceled);
        assert!(pool.lacks(new));
        devices[0].bad.store(u64::MAX, Relaxed);
        for _ in 0..3 {
            pool.resilver().await;
        }
        assert!(!pool.lacks(new));
        assert_eq!(pool.scrub().await.errors, 0);
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// A kill at a point of a rebuild: the next import goes on, and misses nothing.
async fn crash_leaves_a_whole_pool(seed: u64) {
    let _unrepaired = NoScrub::new();
    let mut rng = Rng::seeded(seed);
    let pool = Fixture::new("mirror", 2).await;
    let device = new_device();
    let (old, mut new) = (pool.leaf(0), leaf_on(&device));
    new.is_sequential = true;
    let engine = Arc::clone(&pool.engine);
    let changes = cenote_rt::spawn(async move {
        engine.leaves().attach(old, new, Attach::Mirror).await?;
        engine.scans().resume().await?;
        engine.scans().wait(ScanFunc::Resilver).await
    });
    let pool = pool.kill_during(changes, &[device], &mut rng).await;
    for _ in 0..2 {
        pool.resilver().await;
    }
    pool.write("tank/a", 0..4, 90).await;
    pool.finish_whole(seed).await;
}

#[test]
fn crash_in_a_rebuild_leaves_a_whole_pool() {
    for seed in 0..24 {
        simulate(seed, crash_leaves_a_whole_pool(seed)).unwrap();
    }
}

#[test]
fn what_cannot_be_rebuilt_is_refused() {
    simulate(1, async move {
        let pool = Fixture::new("raidz1", 3).await;
        let mut leaf = leaf_on(&new_device());
        leaf.is_sequential = true;
        let attached = pool.engine.leaves().attach(pool.leaf(0), leaf, Attach::Replace).await;
        assert_eq!(attached.unwrap_err().cause(), Some(&ShapeError::NotSequential));
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
    // Beside each other.
    simulate(1, async {
        let mut pool = Fixture::new("mirror", 2).await;
        for is_sequential in [true, false] {
            let (mut first, mut second) = (leaf_on(&new_device()), leaf_on(&new_device()));
            (first.is_sequential, second.is_sequential) = (is_sequential, !is_sequential);
            let guid = first.config.guid;
            pool.engine.leaves().attach(pool.leaf(0), first, Attach::Mirror).await.unwrap();
            pool.engine.scans().resume().await.unwrap();
            let refused = pool.engine.leaves().attach(pool.leaf(0), second, Attach::Mirror).await;
            let expected =
                if is_sequential { ShapeError::Rebuilding } else { ShapeError::Resilvering };
            assert_eq!(refused.unwrap_err().cause(), Some(&expected));
            pool.engine.leaves().detach(guid, None).await.unwrap();
            pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
            pool.resilver().await;
            pool.devices.truncate(2);
        }
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

#[test]
fn rebuild_of_openzfs_is_continued() {
    let Some(golden) = golden("g-rebuild") else { return };
    let copy = golden.private_copy();
    let folder = copy.path().to_path_buf();
    let run = async {
        let found = scan(&ScanOptions { paths: vec![folder] }).await?;
        let candidate = found.find("g-rebuild").expect("the pool is in its folder");
        let engine = Engine::open(candidate, &OpenOptions::default()).await?;
        assert_eq!(rebuild_of(&engine).await.state, RebuildState::Active);
        engine.scans().resume().await?;
        assert!(engine.scans().is_running(ScanFunc::Resilver));
        engine.scans().wait(ScanFunc::Resilver).await?;
        let done = rebuild_of(&engine).await;
        assert_eq!((done.state, done.errors), (RebuildState::Complete, 0));
        let scrub = scrub_after_rebuild(&engine).await;
        assert_eq!((scrub.state, scrub.errors, scrub.processed), (ScanState::Finished, 0, 0));
        engine.export().await
    };
    block_on(2, run).unwrap().unwrap();
    pools::judge(copy.path(), "g-rebuild");
}

#[test]
fn mistakes_are_found() {
    let found = |bug| match bug {
        Bug::RebuildForgetsFailures => fails(bug, failed_writes_are_kept()),
        Bug::RebuildBegunTwice => {
            ORDERS.into_iter().any(|order| fails_beside_a_detach(order, Some(bug)))
        }
        _ => fails(bug, side_is_rebuilt(("mirror", 2), Attach::Mirror, 1)),
    };
    let unfound: Vec<_> = Bug::OF_REBUILDS.into_iter().filter(|bug| !found(*bug)).collect();
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}
