//! RAID-Z vdevs are expanded (spec 06 §5): beside writers and readers, with devices that fail, and
//! with a crash at any point; OpenZFS continues what was begun here, and the other way round.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cenote_device::{Device, Image, ImageDevice, Recorder};
use cenote_engine::create::{LeafSpec, plan_leaf};
use cenote_engine::{CheckpointError, Engine, NewLeaf, ScanError, ScrubOptions, ShapeError};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::scan::{ScanFunc, ScanState};
use cenote_ondisk::uberblock::ReflowState;
use cenote_pool::OpenOptions;
use cenote_pool::features::FeatureState;
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::status::ExpansionState;
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::seeded::Bug;
use cenote_rt::{Rng, block_on, simulate, tunables};
use cenote_testkit::cuts;
use cenote_testkit::golden::golden;

use crate::scans::{Failing, Fixture, fails, scan_of, verify_of};
use crate::shapes::{leaf_on, new_device};

/// Expansions pause after so many bytes while this exists.
pub(crate) struct Pause;

impl Pause {
    pub(crate) fn after(bytes: u64) -> Self {
        tunables::RAIDZ_EXPAND_MAX_REFLOW_BYTES.set(bytes).unwrap();
        Self
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        tunables::RAIDZ_EXPAND_MAX_REFLOW_BYTES.set(0).unwrap();
    }
}

fn top(engine: &Engine) -> VdevConfig {
    engine.admin().vdev_config().children[0].clone()
}

fn expand_txgs(engine: &Engine) -> Vec<u64> {
    match top(engine).kind {
        VdevKind::RaidZ(raidz) => raidz.expand_txgs,
        kind => panic!("{kind:?}"),
    }
}

async fn until(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    for _ in 0..8_000 {
        if is_true().await {
            return;
        }
        cenote_rt::sleep(Duration::from_millis(5)).await;
    }
    panic!("{what} takes forever");
}

impl Fixture {
    /// A pool whose data is in the first rows and behind them.
    pub(crate) async fn full(layout: &str, count: usize) -> Self {
        let pool = Self::new(layout, count).await;
        pool.write("tank/b", 0..160, 4).await;
        pool
    }

    pub(crate) async fn begin_expansion(&mut self) -> u64 {
        let device = new_device();
        let leaf = leaf_on(&device);
        let guid = leaf.config.guid;
        self.devices.push(device);
        self.engine.leaves().expand_raidz(top(&self.engine).guid, leaf).await.unwrap();
        self.engine.leaves().resume_reflow();
        guid
    }

    /// Waits for the end of the expansion, and of the scrub that follows it.
    pub(crate) async fn end_expansion(&self) {
        let engine = &self.engine;
        engine.leaves().resume_reflow();
        until("the expansion", async || engine.leaves().reflow_progress().is_none()).await;
        engine.leaves().wait_for_reflow().await;
        engine.scans().wait(ScanFunc::Scrub).await.unwrap();
        let scrub = scan_of(&engine.view().await.unwrap());
        assert_eq!((scrub.func, scrub.state), (ScanFunc::Scrub, ScanState::Finished));
        assert_eq!((scrub.errors, scrub.processed), (0, 0), "{scrub:?}");
    }

    /// Waits until the expansion has copied all it may, or waits for a device.
    pub(crate) async fn until_paused(&self) {
        let leaves = self.engine.leaves();
        let most = tunables::RAIDZ_EXPAND_MAX_REFLOW_BYTES.get();
        until("a pause", async || {
            let progress = leaves.reflow_progress().unwrap();
            progress.is_waiting || most != 0 && progress.copied >= most
        })
        .await;
        // The progress is recorded.
        self.engine.sync().await.unwrap();
    }
}

/// A vdev gets another child while the pool is written; everything is there, and there is more
/// room.
async fn vdev_is_expanded((layout, count): (&str, usize), seed: u64) {
    let mut pool = Fixture::full(layout, count).await;
    let before = top(&pool.engine);
    let head = pool.engine.head("tank/a").await.unwrap();
    let object = pools::new_object(&pool.engine, &head).await.unwrap();
    let writer = Arc::clone(&pool.engine);
    let writing = cenote_rt::spawn(async move {
        let mut round = 0;
        while round < 60 || writer.leaves().reflow_progress().is_some() {
            let block = (round * 7 + seed) % 40;
            pools::write(&writer, &head, object, block, 60 + round).await.unwrap();
            if round % 8 == 7 {
                writer.sync().await.unwrap();
            }
            match round % 16 {
                15 => cenote_rt::sleep(Duration::from_millis(1)).await,
                _ => cenote_rt::yield_now().await,
            }
            round += 1;
        }
    });
    pool.begin_expansion().await;
    let reader = Arc::clone(&pool.engine);
    let reading = cenote_rt::spawn(async move {
        while reader.leaves().reflow_progress().is_some() {
            // Simulated time passes only while nothing can run.
            cenote_rt::sleep(Duration::from_millis(1)).await;
            reader.store().clear_cache();
            let view = reader.view().await.unwrap();
            let found = view.dataset("tank/a@1").await.unwrap().open().await.unwrap();
            for object in 1..4 {
                let Ok(dnode) = found.dnode(object).await else { continue };
                for block in 0..16 {
                    dnode.read_at(block << 17, 128 << 10).await.unwrap();
                }
            }
        }
    });
    pool.write("tank/b", 100..140, 70).await;
    pool.end_expansion().await;
    reading.await.unwrap();
    writing.await.unwrap();
    let after = top(&pool.engine);
    assert_eq!(after.children.len(), before.children.len() + 1);
    let width = count as u64;
    assert_eq!(after.top.asize, before.top.asize / width * (width + 1), "{layout}");
    assert_eq!(expand_txgs(&pool.engine).len(), 1);
    assert_eq!(pool.engine.uberblock().raidz_reflow_info, 0);
    let view = pool.engine.view().await.unwrap();
    assert_eq!(view.features().state("raidz_expansion"), FeatureState::Active);
    let [expansion] = view.status().await.unwrap().expansions[..] else { panic!() };
    assert_eq!((expansion.vdev, expansion.state), (0, ExpansionState::Finished));
    assert!(expansion.copied > 2 << 20, "{expansion:?}");
    drop(view);
    // Of the new width.
    pool.write("tank/a", 0..12, 90).await;
    pool.settle().await;
    assert!(pool.finish().await.is_clean(), "{layout}: seed {seed}");
}

#[test]
fn vdevs_are_expanded_beside_writers() {
    for (seed, layout) in
        (0..).zip([("raidz1", 3), ("raidz1", 2), ("raidz1", 4), ("raidz2", 4), ("raidz3", 5)])
    {
        simulate(seed, vdev_is_expanded(layout, seed)).unwrap();
    }
}

/// A pool half way is whole for OpenZFS and for readers, and continues after an import.
async fn expansion_is_interrupted(layout: (&str, usize), bytes: u64) {
    let pause = Pause::after(bytes);
    let mut pool = Fixture::full(layout.0, layout.1).await;
    pool.begin_expansion().await;
    pool.until_paused().await;
    pool.write("tank/a", 0..40, 30).await;
    pool.write("tank/b", 50..60, 31).await;
    pool.engine.export().await.unwrap();
    let word = pool.engine.uberblock().raidz_reflow();
    assert_eq!(word.state, ReflowState::InvalidSyncedReflow);
    pools::judge_devices(&pool.devices, "half way", &[]);
    let (summary, is_whole) = verify_of(as_devices(&pool.devices)).await;
    assert!(summary.is_clean() && is_whole, "{summary:?}");
    drop(pause);
    let engine = pools::open(as_devices(&pool.devices)).await.unwrap();
    assert_eq!(engine.uberblock().raidz_reflow().offset, word.offset);
    let pool = Fixture { engine, ..pool };
    // Rows that straddle the progress.
    pool.write("tank/a", 0..40, 33).await;
    pool.end_expansion().await;
    assert!(pool.finish().await.is_clean());
}

#[test]
fn interrupted_expansions_are_continued() {
    for (layout, mib) in [(("raidz1", 3), 1), (("raidz1", 3), 5), (("raidz2", 4), 3)] {
        simulate(1, expansion_is_interrupted(layout, mib << 20)).unwrap();
    }
}

/// OpenZFS ends what was begun here.
#[test]
fn openzfs_continues_our_expansion() {
    let Some(theirs) = cenote_oracle::libzpool() else { return };
    let devices = simulate(1, async {
        let _pause = Pause::after(4 << 20);
        let mut pool = Fixture::full("raidz1", 3).await;
        pool.begin_expansion().await;
        pool.until_paused().await;
        pool.write("tank/a", 0..40, 30).await;
        pool.engine.export().await.unwrap();
        pools::images_of(&pool.devices)
    })
    .unwrap();
    let folder = pools::unpack(&devices);
    theirs.pool("tank", folder.path(), &["expand"]);
    pools::judge(folder.path(), "tank");
    let run = async {
        let engine = open_in(folder.path(), "tank").await;
        assert!(engine.leaves().reflow_progress().is_none());
        assert_eq!((expand_txgs(&engine).len(), top(&engine).children.len()), (1, 4));
        engine.scans().resume().await.unwrap();
        engine.scans().wait(ScanFunc::Scrub).await.unwrap();
        let scrub = scan_of(&engine.view().await.unwrap());
        assert_eq!((scrub.errors, scrub.processed), (0, 0), "{scrub:?}");
        engine.export().await.unwrap();
    };
    block_on(2, run).unwrap();
}

async fn open_in(folder: &Path, pool: &str) -> Arc<Engine> {
    let found = scan(&ScanOptions { paths: vec![folder.to_path_buf()] }).await.unwrap();
    let candidate = found.find(pool).expect("the pool is in its folder");
    Engine::open(candidate, &OpenOptions::default()).await.unwrap()
}

#[test]
fn expansion_of_openzfs_is_continued() {
    let Some(golden) = golden("g-reflow") else { return };
    let copy = golden.private_copy();
    let run = async {
        let engine = open_in(copy.path(), "g-reflow").await;
        let before = engine.uberblock().raidz_reflow();
        assert!(before.offset > 0 && before.state == ReflowState::InvalidSyncedReflow);
        assert!(engine.leaves().reflow_progress().is_some());
        engine.leaves().resume_reflow();
        until("the expansion", async || engine.leaves().reflow_progress().is_none()).await;
        engine.leaves().wait_for_reflow().await;
        engine.scans().wait(ScanFunc::Scrub).await.unwrap();
        let scrub = scan_of(&engine.view().await.unwrap());
        assert_eq!((scrub.state, scrub.errors, scrub.processed), (ScanState::Finished, 0, 0));
        let history = engine.view().await.unwrap().history().await.unwrap();
        let text = format!("{history:?}");
        assert!(text.contains("raidz vdev expansion completed"), "{text}");
        engine.export().await.unwrap();
    };
    block_on(2, run).unwrap();
    pools::judge(copy.path(), "g-reflow");
}

/// A child is away in the middle: the expansion waits until it has everything.
async fn expansion_waits_for_a_child((layout, count): (&str, usize), at: usize) {
    let pause = Pause::after(5 << 20);
    let mut pool = Fixture::full(layout, count).await;
    pool.begin_expansion().await;
    pool.until_paused().await;
    let leaf = pool.leaf(at);
    pool.engine.leaves().offline(leaf, false).await.unwrap();
    let offset = pool.engine.uberblock().raidz_reflow().offset;
    drop(pause);
    pool.write("tank/a", 0..40, 30).await;
    let leaves = pool.engine.leaves();
    until("a pause", async || leaves.reflow_progress().unwrap().is_waiting).await;
    cenote_rt::sleep(Duration::from_secs(5)).await;
    assert_eq!(pool.engine.uberblock().raidz_reflow().offset, offset, "{layout} {at}");
    pool.write("tank/b", 20..60, 31).await;
    pool.engine.leaves().online(leaf, None).await.unwrap();
    pool.resilver().await;
    pool.end_expansion().await;
    assert!(pool.finish().await.is_clean(), "{layout} {at}");
}

#[test]
fn expansion_waits_for_children_that_are_away() {
    for (layout, at) in [(("raidz1", 3), 0), (("raidz1", 3), 3), (("raidz2", 4), 2)] {
        simulate(1, expansion_waits_for_a_child(layout, at)).unwrap();
    }
}

/// A child is replaced in the middle.
#[test]
fn child_is_replaced_during_an_expansion() {
    simulate(1, async {
        let pause = Pause::after(5 << 20);
        let mut pool = Fixture::full("raidz1", 3).await;
        pool.begin_expansion().await;
        pool.until_paused().await;
        let device = new_device();
        let leaf = leaf_on(&device);
        let old = pool.leaf(1);
        pool.engine.leaves().attach(old, leaf, cenote_engine::Attach::Replace).await.unwrap();
        drop(pause);
        pool.write("tank/a", 0..40, 30).await;
        pool.resilver().await;
        pool.devices.push(device);
        pool.devices.remove(1);
        pool.end_expansion().await;
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// A device refuses some writes for a while: the copies are repeated.
async fn copies_are_repeated(place: u64) {
    let mut pool = Fixture::full("raidz1", 3).await;
    let inner = new_device();
    let device = Arc::new(Failing { inner: Arc::clone(&inner), bad: AtomicU64::new(place) });
    let leaf = plan_leaf(&LeafSpec::of(inner.info()), Arc::<Failing>::clone(&device)).unwrap();
    let guid = top(&pool.engine).guid;
    pool.engine.leaves().expand_raidz(guid, leaf).await.unwrap();
    pool.engine.leaves().resume_reflow();
    let leaves = pool.engine.leaves();
    until("a failure", async || leaves.reflow_progress().unwrap().is_waiting).await;
    pool.write("tank/a", 0..40, 30).await;
    device.bad.store(u64::MAX, Relaxed);
    pool.engine.leaves().clear(None).await.unwrap();
    pool.devices.push(inner);
    pool.resilver().await;
    pool.end_expansion().await;
    assert!(pool.finish().await.is_clean());
}

#[test]
fn copies_that_failed_are_repeated() {
    // In the boot area, in the first rows, and behind them.
    for place in [600 << 10, 5 << 20, 8 << 20] {
        simulate(1, copies_are_repeated(place)).unwrap();
    }
}

/// Opens a pool after a crash, and ends its expansion.
async fn check_crashed(images: Vec<Image>, what: &str) -> Result<(), String> {
    let devices = pools::devices(images);
    let copy = as_devices(&pools::devices(pools::images_of(&devices)));
    let (summary, _) = verify_of(copy).await;
    if !summary.is_clean() {
        return Err(format!("{what}: read only: {summary:?}"));
    }
    let engine = pools::open(as_devices(&devices)).await.map_err(|error| format!("{error:?}"))?;
    let pool = Fixture { devices, engine };
    pool.write("tank/a", 0..6, 95).await;
    if pool.engine.leaves().reflow_progress().is_some() {
        pool.end_expansion().await;
    }
    pool.write("tank/a", 6..12, 96).await;
    pool.engine.export().await.map_err(|error| format!("{error:?}"))?;
    let width = top(&pool.engine).children.len();
    let (summary, is_whole) = verify_of(as_devices(&pool.devices[..width])).await;
    if summary.is_clean() && is_whole { Ok(()) } else { Err(format!("{what}: {summary:?}")) }
}

/// Power is lost at a flush: what was not flushed is lost in part, on each device differently.
async fn power_is_lost(seed: u64, step: u64) -> usize {
    let recorder = Recorder::new();
    let builder = PoolBuilder::of("raidz1", 3).with_size(96 << 20);
    let new: Arc<ImageDevice> = new_device();
    let mut devices = builder.memory_devices();
    devices.push(new);
    let mut recorded = pools::recorded(&recorder, &devices);
    let fourth = recorded.pop().unwrap();
    let engine = builder.create(recorded).await.unwrap();
    let pool = Fixture { devices, engine };
    pool.engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
    pool.engine.datasets().create(pools::dataset("tank/b")).await.unwrap();
    pool.write("tank/a", 0..20, seed).await;
    pool.write("tank/b", 0..140, seed).await;
    recorder.mark(0);
    let leaf: NewLeaf = plan_leaf(&LeafSpec::of(fourth.info()), fourth).unwrap();
    pool.engine.leaves().expand_raidz(top(&pool.engine).guid, leaf).await.unwrap();
    pool.engine.leaves().resume_reflow();
    for round in 0..6 {
        pool.write("tank/a", round * 3..round * 3 + 5, 20 + round).await;
        pool.write("tank/b", round * 20..round * 20 + 4, 20 + round).await;
    }
    pool.end_expansion().await;
    pool.write("tank/a", 0..4, 80).await;
    pool.engine.export().await.unwrap();
    drop(pool);
    let log = recorder.log();
    cuts::at_cuts(&log, seed, step, async |images, _| {
        check_crashed(images, &format!("seed {seed}")).await
    })
    .await
}

#[test]
fn power_cut_at_any_flush_of_an_expansion_loses_nothing() {
    for seed in 0..3 {
        let cuts = simulate(seed, power_is_lost(seed, 6)).unwrap();
        assert!(cuts > 8, "{cuts} cuts");
    }
}

/// A kill at a point of an expansion: the next import continues.
#[test]
fn crash_in_an_expansion_leaves_a_whole_pool() {
    for seed in 0..16 {
        let run = async move {
            let mut rng = Rng::seeded(seed);
            let pool = Fixture::full("raidz1", 3).await;
            let device = new_device();
            let (guid, leaf) = (top(&pool.engine).guid, leaf_on(&device));
            let engine = Arc::clone(&pool.engine);
            let changes = cenote_rt::spawn(async move {
                engine.leaves().expand_raidz(guid, leaf).await?;
                engine.leaves().resume_reflow();
                engine.leaves().wait_for_reflow().await;
                engine.sync().await
            });
            let pool = pool.kill_during(changes, &[device], &mut rng).await;
            if pool.engine.leaves().reflow_progress().is_some() {
                pool.end_expansion().await;
            }
            let mut pool = pool;
            pool.devices.truncate(top(&pool.engine).children.len());
            pool.finish_whole(seed).await;
        };
        simulate(seed, run).unwrap();
    }
}

/// Damage of an expanded vdev is repaired, of blocks of the old width and of the new one.
#[test]
fn scrub_repairs_an_expanded_vdev() {
    simulate(1, async {
        let mut pool = Fixture::full("raidz1", 3).await;
        pool.begin_expansion().await;
        pool.end_expansion().await;
        pool.write("tank/a", 0..20, 40).await;
        for device in [1, 3] {
            assert!(pool.damage(device).await > 20);
            let done = pool.scrub().await;
            assert!(done.errors == 0 && done.processed > 0, "{done:?}");
        }
        assert_eq!(pool.scrub().await.processed, 0);
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// A vdev is expanded twice.
#[test]
fn expanded_vdev_is_expanded_again() {
    simulate(1, async {
        let mut pool = Fixture::full("raidz1", 2).await;
        for round in 0..2 {
            pool.begin_expansion().await;
            pool.write("tank/a", 0..30, 50 + round).await;
            pool.end_expansion().await;
            pool.write("tank/b", 30..60, 60 + round).await;
        }
        let txgs = expand_txgs(&pool.engine);
        assert!(txgs.len() == 2 && txgs.is_sorted(), "{txgs:?}");
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

#[test]
fn what_cannot_be_expanded_is_refused() {
    simulate(1, async {
        let _pause = Pause::after(1);
        let mut pool = Fixture::new("raidz1", 3).await;
        let engine = Arc::clone(&pool.engine);
        let guid = top(&engine).guid;
        let why = async |leaf: NewLeaf| {
            let refused = engine.leaves().expand_raidz(guid, leaf).await.unwrap_err();
            refused.cause::<ShapeError>().copied()
        };
        let small = Arc::new(ImageDevice::new("small", Image::zeroed(80 << 20)));
        assert_eq!(why(leaf_on(&small)).await, Some(ShapeError::TooSmall));
        let mut sequential = leaf_on(&new_device());
        sequential.is_sequential = true;
        assert_eq!(why(sequential).await, Some(ShapeError::NoExpansionFeature));
        let mut coarse = leaf_on(&new_device());
        coarse.ashift = 13;
        assert_eq!(why(coarse).await, Some(ShapeError::Ashift));
        engine.leaves().offline(pool.leaf(1), false).await.unwrap();
        assert_eq!(why(leaf_on(&new_device())).await, Some(ShapeError::NotWhole));
        engine.leaves().online(pool.leaf(1), None).await.unwrap();
        pool.resilver().await;
        engine.space().take_checkpoint().await.unwrap();
        let refused = engine.leaves().expand_raidz(guid, leaf_on(&new_device())).await;
        assert_eq!(refused.unwrap_err().cause(), Some(&CheckpointError::Exists));
        engine.space().discard_checkpoint().await.unwrap();
        until("the checkpoint", async || {
            engine.sync().await.unwrap();
            engine.space().checkpoint_bytes() == 0
                && engine.space().checkpoint_state() == cenote_engine::CheckpointState::None
        })
        .await;
        // While one runs.
        pool.begin_expansion().await;
        assert_eq!(why(leaf_on(&new_device())).await, Some(ShapeError::Expanding));
        let refused = engine.space().take_checkpoint().await.unwrap_err();
        assert_eq!(refused.cause(), Some(&CheckpointError::Expanding));
        let leaves = [pool.leaf(0)];
        let refused = engine.leaves().start_initialize(&leaves).await.unwrap_err();
        assert!(refused.cause::<cenote_engine::LeafWorkError>().is_some());
        match engine.scans().scrub(ScrubOptions::default()).await {
            Ok(()) => engine.scans().wait(ScanFunc::Scrub).await.unwrap(),
            Err(error) => panic!("{:?}", error.cause::<ScanError>()),
        }
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

#[test]
fn mistakes_in_expansions_are_found() {
    let found = |bug| match bug {
        Bug::ReflowIgnoresMissing => fails(bug, expansion_waits_for_a_child(("raidz1", 3), 0)),
        Bug::ReflowSkipsScratch => fails(bug, async {
            power_is_lost(1, 2).await;
        }),
        _ => fails(bug, vdev_is_expanded(("raidz1", 3), 1)),
    };
    let unfound: Vec<_> = Bug::OF_REFLOWS.into_iter().filter(|bug| !found(*bug)).collect();
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}
