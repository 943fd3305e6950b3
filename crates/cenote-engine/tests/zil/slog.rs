//! Log devices that fail during commits: commits fall back to syncs, the pool continues, and
//! acknowledged data is there after any crash.

use std::sync::Arc;

use cenote_device::{Device, FaultyDevice, ImageDevice};
use cenote_engine::admin::PoolSetting;
use cenote_engine::zil::VolumeReplayer;
use cenote_engine::{Engine, EngineError};
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::objset::ObjSetType;
use cenote_pool::{OpenOptions, leaks};
use cenote_poolkit::pools;
use cenote_rt::{Rng, simulate};
use cenote_testkit::rng::cases;
use cenote_vdev::VdevState;

use crate::layout::Layout;
use crate::model::{self, History, Volume};

/// Operations of a run.
const OPS: u64 = 24;
/// Volumes of a run.
const NAMES: [&str; 2] = ["tank/a", "tank/b"];

/// How a log device fails.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Death {
    /// It answers nothing.
    Gone,
    /// It accepts writes and makes none of them durable.
    NeverFlushes,
    /// It fails writes of data, but not of labels.
    RefusesData,
}

struct Pool {
    inner: Vec<Arc<ImageDevice>>,
    devices: Vec<Arc<FaultyDevice>>,
    /// Number of devices of the main vdev; the others are log devices.
    main: usize,
    engine: Arc<Engine>,
    volumes: Vec<Volume>,
}

impl Pool {
    async fn new(layout: Layout, seed: u64) -> Self {
        let builder = layout.builder(seed);
        let inner = builder.memory_devices();
        let faulty = |device: &Arc<ImageDevice>| {
            Arc::new(FaultyDevice::new(Arc::clone(device) as Arc<dyn Device>, seed))
        };
        let devices: Vec<_> = inner.iter().map(faulty).collect();
        let engine = builder.create(pools::as_devices(&devices)).await.unwrap();
        let mut volumes = Vec::new();
        for name in NAMES {
            let head = model::make(&engine, name, ObjSetType::Other).await.unwrap();
            volumes.push(Volume { head, history: Arc::<History>::default() });
        }
        Self { inner, devices, main: layout.main_devices(), engine, volumes }
    }

    fn kill_log(&self, death: Death) {
        for device in &self.devices[self.main..] {
            match death {
                Death::Gone => device.set_offline(true),
                Death::NeverFlushes => device.set_failing_flushes(true),
                Death::RefusesData => device.set_failing_writes(Some(cenote_vdev::DATA_START)),
            }
        }
    }

    fn revive_log(&self) {
        for device in &self.devices[self.main..] {
            device.set_offline(false);
            device.set_failing_flushes(false);
            device.set_failing_writes(None);
        }
    }

    fn log_leaves(&self) -> Vec<u64> {
        let config = self.engine.admin().vdev_config();
        let logs = config.children.iter().filter(|top| top.top.is_log);
        logs.flat_map(VdevConfig::leaves).map(|leaf| leaf.guid).collect()
    }

    fn states(&self) -> Vec<VdevState> {
        let state = |guid| self.engine.tree().vdev(guid).unwrap().state();
        self.log_leaves().into_iter().map(state).collect()
    }

    /// Applies and commits one operation.
    async fn step(&self, rng: &mut Rng) {
        let volume = &self.volumes[rng.below(2) as usize];
        let place = volume.apply(&self.engine, model::draw(rng), rng.below(2) == 0).await.unwrap();
        volume.commit(&self.engine, place).await.unwrap();
        assert_eq!(self.engine.health().suspended(), None);
    }

    fn acknowledged(&self) -> Vec<usize> {
        self.volumes.iter().map(|volume| volume.history.acknowledged()).collect()
    }

    /// Opens the state after a kill, with or without the log devices, and compares.
    async fn check_crash(&self, what: &str, has_log: bool) {
        let count = if has_log { self.inner.len() } else { self.main };
        let copies = pools::devices(pools::images_of(&self.inner[..count]));
        let options = OpenOptions { missing_log_ok: !has_log, ..OpenOptions::default() };
        let engine = pools::open_with(pools::as_devices(&copies), &options).await.unwrap();
        engine.intent_logs().set_replayer(ObjSetType::Other, Arc::new(VolumeReplayer));
        for (name, volume) in NAMES.iter().zip(&self.volumes) {
            let head = engine.head(name).await.unwrap();
            if head.log().is_claimed() {
                engine.intent_logs().replay(&head, &VolumeReplayer).await.unwrap();
            }
            let found = model::read(&head).await.unwrap();
            let least = volume.history.acknowledged();
            let at = volume.history.find(&found, least);
            assert!(at.is_some(), "{what}, log {has_log}: {name} lacks some of {least}");
        }
        engine.export().await.unwrap();
        drop(engine);
        let pool = pools::open_copy(&copies[..self.main]).await;
        if let Ok(pool) = pool {
            let report = leaks::check(&pool).await.unwrap();
            assert!(report.is_clean(), "{what}: {:?}", report.lines());
        }
    }
}

#[test]
fn failed_log_device_loses_nothing() {
    let deaths = [Death::Gone, Death::NeverFlushes, Death::RefusesData];
    for layout in [Layout::Slog, Layout::MirroredSlog] {
        for seed in 0..cases(3, 200) {
            let death = deaths[seed as usize % deaths.len()];
            simulate(seed, die(layout, seed, death)).unwrap();
        }
    }
}

async fn die(layout: Layout, seed: u64, death: Death) {
    let pool = Pool::new(layout, seed).await;
    let mut rng = Rng::seeded(seed ^ 0x77);
    let at = 2 + rng.below(OPS / 2);
    for step in 0..OPS {
        let what = format!("{layout:?}, seed {seed}, {death:?}, step {step} of {at}");
        if step == at {
            pool.kill_log(death);
            // The process dies before any request to the device: the log device is needed.
            pool.check_crash(&what, true).await;
        }
        pool.step(&mut rng).await;
        if rng.below(6) == 0 {
            pool.engine.sync().await.unwrap();
        }
        if rng.below(4) == 0 || step == at {
            pool.check_crash(&what, true).await;
            if step >= at {
                // The commit has noticed the failure: nothing acknowledged is only in the log.
                pool.check_crash(&what, false).await;
            }
        }
    }
    if death == Death::RefusesData {
        return;
    }
    let logs = pool.log_leaves();
    assert!(pool.states().iter().all(|state| *state == VdevState::Faulted), "{:?}", pool.states());
    let config = pool.engine.admin().vdev_config();
    assert!(logs.iter().all(|guid| config.find(*guid).unwrap().leaf.faulted));
    assert_eq!(pool.engine.tree().root().state(), VdevState::Degraded);
    // Still failed: the pool continues.
    pool.engine.leaves().clear(None).await.unwrap();
    assert!(pool.states().iter().all(|state| *state == VdevState::Faulted));
    pool.revive_log();
    pool.engine.leaves().clear(None).await.unwrap();
    assert!(pool.states().iter().all(|state| *state == VdevState::Healthy));
    // The log is used again: commits cost no sync.
    for _ in 0..3 {
        pool.step(&mut rng).await;
        pool.step(&mut rng).await;
        pool.engine.sync().await.unwrap();
    }
    pool.check_crash("revived", true).await;
    pool.engine.sync().await.unwrap();
    for guid in logs {
        let id = pool.engine.tree().leaf_of(guid).unwrap();
        let lacks = pool.engine.tree().leaf(id).dtl().unwrap_or_default();
        assert!(lacks.is_empty(), "what {guid} lacks is of no use to anybody: {lacks:?}");
    }
    pool.engine.export().await.unwrap();
    pools::judge_devices(&pool.inner, &format!("slog-{layout:?}-{seed}"), &[]);
}

/// The log fails together with a side of the main mirror, or with all of the main vdev.
#[test]
fn log_device_fails_with_others() {
    for seed in 0..cases(4, 60) {
        simulate(seed, die_together(seed)).unwrap();
    }
}

async fn die_together(seed: u64) {
    let pool = Pool::new(Layout::MirrorAndSlog, seed).await;
    let mut rng = Rng::seeded(seed);
    for _ in 0..6 {
        pool.step(&mut rng).await;
    }
    pool.kill_log(Death::Gone);
    pool.devices[0].set_offline(true);
    for _ in 0..6 {
        pool.step(&mut rng).await;
    }
    assert!(pool.states().iter().all(|state| *state == VdevState::Faulted), "{:?}", pool.states());
    pool.check_crash("log and one side", false).await;
    let before = pool.acknowledged();
    // The other side as well: nothing can be acknowledged, and nothing is lost.
    pool.devices[1].set_offline(true);
    let volume = pool.volumes[0].clone();
    let place = volume.apply(&pool.engine, model::draw(&mut rng), false).await.unwrap();
    let commit = {
        let (engine, volume) = (Arc::clone(&pool.engine), volume.clone());
        cenote_rt::spawn(async move { volume.commit(&engine, place).await })
    };
    pool.engine.health().until_suspended().await;
    assert_eq!(pool.acknowledged(), before);
    let error = pool.engine.leaves().clear(None).await.unwrap_err();
    assert!(matches!(error.cause(), Some(EngineError::StillFailing(_))), "{error}");
    pool.devices[1].set_offline(false);
    pool.engine.leaves().clear(None).await.unwrap();
    commit.await.unwrap().unwrap();
    pool.check_crash("the other side is back", false).await;
    pool.devices[0].set_offline(false);
    pool.revive_log();
    pool.engine.leaves().clear(None).await.unwrap();
    pool.step(&mut rng).await;
    pool.engine.export().await.unwrap();
}

/// A log device is taken offline and brought online while it is in use.
#[test]
fn offline_and_online_of_a_log_device() {
    for layout in [Layout::Slog, Layout::MirroredSlog] {
        simulate(1, offline_and_online(layout)).unwrap();
    }
}

async fn offline_and_online(layout: Layout) {
    let pool = Pool::new(layout, 1).await;
    let mut rng = Rng::seeded(5);
    for round in 0..4 {
        for _ in 0..4 {
            pool.step(&mut rng).await;
        }
        for guid in pool.log_leaves() {
            pool.engine.leaves().offline(guid, round % 2 == 0).await.unwrap();
        }
        assert!(pool.states().iter().all(|state| *state == VdevState::Offline));
        for _ in 0..3 {
            pool.step(&mut rng).await;
            pool.check_crash("offline", false).await;
        }
        for guid in pool.log_leaves() {
            pool.engine.leaves().online(guid, None).await.unwrap();
        }
        assert!(pool.states().iter().all(|state| *state == VdevState::Healthy));
    }
    pool.step(&mut rng).await;
    pool.check_crash("online", true).await;
    pool.engine.export().await.unwrap();
}

/// A suspended pool refuses to take its log device offline: once it is cleared, commits use the log
/// again instead of a sync each.
#[test]
fn offline_of_a_log_device_that_fails_leaves_the_logs_in_use() {
    simulate(1, async {
        let pool = Pool::new(Layout::Slog, 1).await;
        let (engine, mut rng) = (&pool.engine, Rng::seeded(5));
        engine.admin().set(vec![PoolSetting::Property("failmode", 1)]).await.unwrap();
        for _ in 0..4 {
            pool.step(&mut rng).await;
        }
        pool.devices[0].set_offline(true);
        let sync = {
            let engine = Arc::clone(engine);
            cenote_rt::spawn(async move { engine.sync().await })
        };
        engine.health().until_suspended().await;
        let error = engine.leaves().offline(pool.log_leaves()[0], true).await.unwrap_err();
        assert!(matches!(error.cause(), Some(EngineError::Suspended(_))), "{error}");
        pool.devices[0].set_offline(false);
        engine.leaves().clear(None).await.unwrap();
        sync.await.unwrap().unwrap();
        // The first commits of each volume start its chain, with a sync.
        for _ in 0..8 {
            pool.step(&mut rng).await;
        }
        let txg = engine.open_txg();
        for _ in 0..8 {
            pool.step(&mut rng).await;
        }
        assert_eq!(engine.open_txg(), txg, "each commit is a sync");
        engine.export().await.unwrap();
    })
    .unwrap();
}

/// Records to be replayed are only on the log device: it is not faulted because of an error.
#[test]
fn log_to_be_replayed_is_not_faulted() {
    simulate(1, async {
        let pool = Pool::new(Layout::Slog, 1).await;
        let mut rng = Rng::seeded(9);
        for _ in 0..5 {
            pool.step(&mut rng).await;
        }
        let Pool { inner, main, volumes, engine, .. } = pool;
        drop(engine);
        let devices: Vec<_> = inner
            .iter()
            .map(|device| Arc::new(FaultyDevice::new(Arc::clone(device) as Arc<dyn Device>, 1)))
            .collect();
        let list = devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        let engine = pools::open(list).await.unwrap();
        let log = engine.admin().vdev_config().leaves().last().unwrap().guid;
        devices[main].set_failing_flushes(true);
        for round in 0..3 {
            // The labels of the log device change with it.
            let comment = PoolSetting::Comment(Some(format!("round {round}")));
            engine.admin().set(vec![comment]).await.unwrap();
            engine.sync().await.unwrap();
        }
        assert_eq!(engine.health().suspended(), None);
        assert!(engine.tree().vdev(log).unwrap().state().is_readable());
        assert_eq!(
            engine.leaves().offline(log, true).await.unwrap_err().kind(),
            cenote_rt::Kind::Busy
        );
        for (name, volume) in NAMES.iter().zip(&volumes) {
            let head = engine.head(name).await.unwrap();
            if head.log().is_claimed() {
                engine.intent_logs().replay(&head, &VolumeReplayer).await.unwrap();
            }
            let found = model::read(&head).await.unwrap();
            let least = volume.history.acknowledged();
            assert!(volume.history.find(&found, least).is_some());
        }
    })
    .unwrap();
}
