//! Resilvers that wait for the end of another one (spec 06 §9.1): marks, restarts, and the one that
//! follows.

use std::sync::Arc;
use std::time::Duration;

use cenote_device::ImageDevice;
use cenote_engine::{Attach, Engine};
use cenote_ondisk::scan::ScanFunc;
use cenote_pool::features::{FeatureState, identity};
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::seeded::Bug;
use cenote_rt::{Rng, simulate, tunables};

use crate::scans::{BLOCKS, Fixture, Rounds, fails, scan_of};
use crate::shapes::{leaf_on, new_device};

/// From how many percent on a resilver is not restarted, while this exists.
struct Percent;

impl Percent {
    fn of(percent: u64) -> Self {
        tunables::RESILVER_DEFER_PERCENT.set(percent).unwrap();
        Self
    }
}

impl Drop for Percent {
    fn drop(&mut self) {
        tunables::RESILVER_DEFER_PERCENT.set(10).unwrap();
    }
}

fn marks(engine: &Engine) -> Vec<u64> {
    let root = engine.admin().vdev_config();
    root.leaves().filter(|leaf| leaf.leaf.resilver_defer).map(|leaf| leaf.guid).collect()
}

async fn is_feature_active(engine: &Arc<Engine>) -> bool {
    let view = engine.view().await.unwrap();
    view.features().state("resilver_defer") == FeatureState::Active
}

async fn start_of(engine: &Arc<Engine>) -> u64 {
    scan_of(&engine.view().await.unwrap()).start_time
}

/// A mirror in which a leaf is back, whose resilver runs.
async fn resilvering(pool: &Fixture) {
    let leaf = pool.leaf(0);
    pool.engine.leaves().offline(leaf, false).await.unwrap();
    pool.write("tank/a", 0..BLOCKS, 5).await;
    pool.write("tank/b", 0..BLOCKS, 6).await;
    pool.engine.leaves().online(leaf, None).await.unwrap();
    pool.engine.scans().resume().await.unwrap();
    assert!(pool.engine.scans().is_running(ScanFunc::Resilver));
}

/// Adds a side while a resilver runs. Returns its guid.
async fn attach(pool: &mut Fixture) -> u64 {
    let device: Arc<ImageDevice> = new_device();
    let leaf = leaf_on(&device);
    let guid = leaf.config.guid;
    pool.devices.push(device);
    pool.engine.leaves().attach(pool.leaf(1), leaf, Attach::Mirror).await.unwrap();
    guid
}

/// Waits until no leaf lacks anything, without starting anything.
async fn until_whole(engine: &Arc<Engine>) {
    for _ in 0..2000 {
        let is_over = !engine.scans().is_running(ScanFunc::Resilver);
        if is_over && engine.tree().leaves().all(|(_, leaf)| leaf.is_whole()) {
            return;
        }
        cenote_rt::sleep(Duration::from_millis(20)).await;
    }
    panic!("no resilver follows");
}

/// A new leaf is marked and waits; the resilver that runs goes on, and another one follows.
async fn new_leaf_waits() {
    let (_small, _defers) = (Rounds::of(64 << 10), Percent::of(0));
    let mut pool = Fixture::new("mirror", 2).await;
    resilvering(&pool).await;
    let begun = start_of(&pool.engine).await;
    let new = attach(&mut pool).await;
    assert_eq!(marks(&pool.engine), [new]);
    assert!(is_feature_active(&pool.engine).await);
    pool.engine.scans().resume().await.unwrap();
    assert_eq!(start_of(&pool.engine).await, begun, "it goes on");
    let view = pool.engine.view().await.unwrap();
    let status = view.status().await.unwrap();
    let told: Vec<_> = status.root.walk().filter(|vdev| vdev.is_deferred).collect();
    assert!(told.len() == 1 && told[0].guid == new);
    drop(view);
    until_whole(&pool.engine).await;
    assert!(start_of(&pool.engine).await > begun);
    assert!(marks(&pool.engine).is_empty() && !is_feature_active(&pool.engine).await);
    assert!(pool.finish().await.is_clean());
}

#[test]
fn new_leaf_waits_for_the_resilver_of_another() {
    simulate(1, new_leaf_waits()).unwrap();
}

/// A leaf that comes back while a resilver runs is marked, too.
#[test]
fn leaf_that_is_back_waits() {
    simulate(1, async {
        let (_small, _defers) = (Rounds::of(64 << 10), Percent::of(0));
        let pool = Fixture::new("mirror", 3).await;
        let away = pool.leaf(2);
        pool.engine.leaves().offline(away, false).await.unwrap();
        resilvering(&pool).await;
        pool.engine.leaves().online(away, None).await.unwrap();
        pool.engine.scans().resume().await.unwrap();
        assert_eq!(marks(&pool.engine), [away]);
        until_whole(&pool.engine).await;
        assert!(marks(&pool.engine).is_empty() && !is_feature_active(&pool.engine).await);
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// A resilver that has done little begins anew with the new leaf; so does one in a pool without the
/// feature, and one whose restart is asked for.
async fn resilver_is_restarted(percent: u64, has_feature: bool, is_asked: bool) {
    let (_small, _defers) = (Rounds::of(64 << 10), Percent::of(percent));
    let mut builder = PoolBuilder::of("mirror", 2).with_size(96 << 20);
    if !has_feature {
        let others = identity().filter(|feature| feature.name != "resilver_defer");
        builder = builder.with_features(others.collect());
    }
    let (engine, devices) = builder.create_in_memory().await;
    let mut pool = Fixture { devices, engine };
    for name in ["tank/a", "tank/b"] {
        pool.engine.datasets().create(pools::dataset(name)).await.unwrap();
        pool.write(name, 0..BLOCKS, 1).await;
    }
    resilvering(&pool).await;
    let begun = start_of(&pool.engine).await;
    let new = attach(&mut pool).await;
    if is_asked {
        assert_eq!(marks(&pool.engine), [new]);
        pool.engine.scans().resilver().await.unwrap();
    } else {
        pool.engine.scans().resume().await.unwrap();
    }
    assert!(start_of(&pool.engine).await > begun, "{percent}: it begins anew");
    assert!(marks(&pool.engine).is_empty() && !is_feature_active(&pool.engine).await);
    until_whole(&pool.engine).await;
    // As in OpenZFS, also if no mark was ever stored.
    let history = pool.engine.view().await.unwrap().history().await.unwrap();
    let text = format!("{history:?}");
    assert_eq!(text.matches("starting deferred resilver").count(), usize::from(has_feature));
    assert!(pool.finish().await.is_clean());
}

#[test]
fn resilver_begins_anew_for_another_leaf() {
    simulate(1, resilver_is_restarted(100, true, false)).unwrap();
    simulate(2, resilver_is_restarted(0, false, false)).unwrap();
    simulate(3, resilver_is_restarted(0, true, true)).unwrap();
    simulate(4, async {
        tunables::RESILVER_DISABLE_DEFER.set(1).unwrap();
        resilver_is_restarted(0, true, false).await;
        tunables::RESILVER_DISABLE_DEFER.set(0).unwrap();
    })
    .unwrap();
}

/// A kill while a leaf waits: the next import writes to it what it lacks, and forgets the mark.
#[test]
fn crash_while_a_leaf_waits_loses_nothing() {
    for seed in 0..12 {
        simulate(seed, async move {
            let (_small, _defers) = (Rounds::of(64 << 10), Percent::of(0));
            let mut rng = Rng::seeded(seed);
            let mut pool = Fixture::new("mirror", 2).await;
            resilvering(&pool).await;
            attach(&mut pool).await;
            for _ in 0..1 << rng.below(11) {
                cenote_rt::yield_now().await;
            }
            let images = pools::images_of(&pool.devices);
            drop(pool);
            let devices = pools::devices(images);
            let engine = pools::open(as_devices(&devices)).await.unwrap();
            let pool = Fixture { devices, engine };
            pool.engine.scans().resume().await.unwrap();
            until_whole(&pool.engine).await;
            assert!(marks(&pool.engine).is_empty() && !is_feature_active(&pool.engine).await);
            pool.finish_whole(seed).await;
        })
        .unwrap();
    }
}

#[test]
fn mistakes_are_found() {
    let unfound: Vec<_> =
        Bug::OF_DEFERRALS.into_iter().filter(|bug| !fails(*bug, new_leaf_waits())).collect();
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}
