//! Devices that are removed while a pool is written, and put back: neither acknowledged nor
//! accepted changes are lost, and OpenZFS finds no errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_device::Device;
use cenote_engine::admin::PoolSetting;
use cenote_engine::{Engine, EngineError, Event, StateCause, Suspended};
use cenote_pool::OpenOptions;
use cenote_pool::import::scan_devices;
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::{Kind, Rng, simulate};
use cenote_testkit::rng::{cases, wants_all};
use cenote_vdev::VdevState;

use crate::bus::{Bus, Pluggable};

const SIZE: u64 = 64 << 20;
const BLOCKS: u64 = 12;

/// A pool in which some devices can be removed.
pub(crate) struct Fixture {
    pub(crate) bus: Arc<Bus>,
    pub(crate) devices: Vec<Arc<Pluggable>>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) guid: u64,
}

impl Fixture {
    /// The first `loose` of `count` devices can be removed.
    pub(crate) async fn new(layout: &str, count: usize, loose: usize) -> Self {
        let (bus, firm) = (Bus::new(), Bus::new());
        let devices: Vec<_> = (0..count)
            .map(|n| Pluggable::new(if n < loose { &bus } else { &firm }, &format!("d{n}"), SIZE))
            .collect();
        let engine = PoolBuilder::of(layout, count).create(as_devices(&devices)).await.unwrap();
        Self { bus, devices, guid: engine.guid(), engine }
    }

    /// Returns the guid of a leaf.
    fn leaf(&self, index: usize) -> u64 {
        self.engine.admin().vdev_config().leaves().nth(index).unwrap().guid
    }

    /// Puts the devices back.
    pub(crate) fn put_back(&self) {
        self.bus.put_back(&self.devices);
    }

    /// Writes until the devices are removed and longer, puts them back, and continues.
    async fn write_through(&self, cut: i64) -> bool {
        let engine = &self.engine;
        let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        let object = pools::new_object(engine, &head).await.unwrap();
        engine.sync().await.unwrap();
        self.bus.pull_out_after(cut);
        let rescue = {
            let (engine, bus) = (Arc::clone(engine), Arc::clone(&self.bus));
            let devices = self.devices.clone();
            cenote_rt::spawn(async move {
                let cause = engine.health().until_suspended().await;
                assert!(matches!(cause, Suspended::Io(_)));
                // Still removed: the pool is not resumed.
                let error = engine.leaves().clear(None).await.unwrap_err();
                assert!(matches!(error.cause(), Some(EngineError::StillFailing(_))), "{error}");
                assert!(engine.health().suspended().is_some());
                bus.put_back(&devices);
                engine.leaves().clear(None).await.unwrap();
            })
        };
        for round in 0..3 {
            for block in 0..BLOCKS {
                pools::write(engine, &head, object, block, round).await.unwrap();
            }
            engine.sync().await.unwrap();
            engine.snapshots().create(vec![format!("tank/a@{round}")]).await.unwrap();
        }
        engine.snapshots().destroy("tank/a@1").await.unwrap();
        let was_suspended = rescue.is_finished();
        if !was_suspended {
            // They are not removed again.
            self.bus.pull_out_after(i64::MAX);
            rescue.abort();
        }
        was_suspended
    }

    /// Exports the pool and returns the devices.
    async fn finish(self) -> Vec<Arc<Pluggable>> {
        let Self { devices, engine, guid, .. } = self;
        engine.export().await.unwrap();
        drop(engine);
        let pool = pools::open_read_only(as_devices(&devices)).await.unwrap();
        pools::assert_no_leaks(&pool).await;
        drop(pool);
        let engine =
            Engine::open_devices(as_devices(&devices), guid, &OpenOptions::default()).await;
        let engine = engine.unwrap();
        let head = engine.head("tank/a").await.unwrap();
        for block in 0..BLOCKS {
            let read = head
                .live()
                .inspect(|tx| {
                    let object = object_of_test(tx)?;
                    tx.read(object, block << 17, 64 << 10)
                })
                .await
                .unwrap();
            let mut bytes = vec![0; 64 << 10];
            Rng::seeded(block << 32 | 2).fill(&mut bytes);
            assert!(read == bytes, "block {block}");
        }
        engine.export().await.unwrap();
        devices
    }
}

/// Returns the only object of the dataset.
fn object_of_test(tx: &mut cenote_dmu::Tx<'_>) -> cenote_dmu::TxResult<u64> {
    for object in 1..64 {
        if tx.find(object)?.is_some() {
            return Ok(object);
        }
    }
    panic!("the object is gone");
}

/// Checks the devices with OpenZFS.
pub(crate) fn judge(devices: &[Arc<Pluggable>]) {
    pools::judge_images(&devices.iter().map(|device| device.image()).collect::<Vec<_>>());
}

#[test]
fn suspended_pool_resumes_without_losses() {
    // Layout, devices, removed devices.
    let layouts = [("disk", 1, 1), ("mirror", 2, 2), ("raidz1", 3, 2)];
    let (mut points, mut suspended) = (0, 0);
    for (layout, count, loose) in layouts {
        for case in 0..cases(8, 400) {
            // Early cuts one by one: each interrupts another step of a commit.
            let cut = if case < 6 || wants_all() { case } else { 6 + (case - 6) * 23 };
            simulate(case, async {
                let fixture = Fixture::new(layout, count, loose).await;
                points += 1;
                suspended += usize::from(fixture.write_through(cut as i64).await);
                let devices = fixture.finish().await;
                if case % 24 == 7 && layout != "raidz1" {
                    judge(&devices);
                }
            })
            .unwrap();
        }
    }
    println!("{points} cuts, {suspended} suspended pools");
    assert!(suspended > points / 2, "{suspended} of {points}");
}

/// Offsets of the uberblocks of the first label, and of the config of the second one.
const RING: std::ops::Range<u64> = 128 << 10..256 << 10;
const SECOND_CONFIG: std::ops::Range<u64> = (256 + 16) << 10..(256 + 128) << 10;

#[test]
fn txg_is_committed_only_after_its_flush() {
    for (layout, count) in [("disk", 1), ("mirror", 2)] {
        for after in [RING, SECOND_CONFIG] {
            simulate(1, a_last_flush_fails(layout, count, after)).unwrap();
        }
    }
}

/// All devices are removed at the flush after a commit has written this range.
async fn a_last_flush_fails(layout: &str, count: usize, after: std::ops::Range<u64>) {
    let fixture = Fixture::new(layout, count, count).await;
    let engine = &fixture.engine;
    fixture.bus.pull_out_at_flush_after(after.clone());
    let is_cleared = Arc::new(AtomicBool::new(false));
    let rescue = {
        let (engine, bus) = (Arc::clone(engine), Arc::clone(&fixture.bus));
        let (devices, is_cleared) = (fixture.devices.clone(), Arc::clone(&is_cleared));
        cenote_rt::spawn(async move {
            engine.health().until_suspended().await;
            bus.put_back(&devices);
            is_cleared.store(true, Ordering::SeqCst);
            engine.leaves().clear(None).await.unwrap();
        })
    };
    // With a changed config a commit has all of its flushes.
    engine.admin().set(vec![PoolSetting::Comment(Some("new".into()))]).await.unwrap();
    assert!(is_cleared.load(Ordering::SeqCst), "{layout}, {after:x?}: told too early");
    rescue.await.unwrap();
    let txg = engine.uberblock().txg;
    // The state after a power cut.
    fixture.put_back();
    let scan = scan_devices(as_devices(&fixture.devices)).await;
    let newest = scan.find("tank").unwrap().uberblocks().iter().map(|found| found.txg).max();
    assert_eq!(newest, Some(txg), "{layout}, {after:x?}");
}

#[test]
fn clear_brings_back_a_faulted_leaf() {
    for (layout, count) in [("mirror", 2), ("raidz2", 4)] {
        for cut in [0, 7, 30] {
            simulate(cut, one_leaf_fails(layout, count, cut as i64)).unwrap();
        }
    }
}

async fn one_leaf_fails(layout: &str, count: usize, cut: i64) {
    let fixture = Fixture::new(layout, count, 1).await;
    let (engine, leaf) = (Arc::clone(&fixture.engine), fixture.leaf(0));
    assert!(!fixture.write_through(cut).await, "one is not needed");
    assert!(fixture.bus.is_out());
    engine.sync().await.unwrap();
    let state = |guid| engine.tree().vdev(guid).unwrap().state();
    assert_eq!(state(leaf), VdevState::Faulted);
    assert_eq!(engine.tree().root().state(), VdevState::Degraded);
    let config = engine.admin().vdev_config();
    let known = &config.find(leaf).unwrap().leaf;
    assert!(known.faulted && known.dtl_object.is_some());
    let (state_now, cause) = (VdevState::Faulted, StateCause::Probe);
    let last = VdevState::Healthy;
    let faulted = Event::State { leaf, state: state_now, last, cause };
    assert!(engine.health().events().after(0).iter().any(|noted| noted.event == faulted));
    // The leaf is still missing; the pool works without it.
    engine.leaves().clear(None).await.unwrap();
    assert_eq!(state(leaf), VdevState::Faulted);
    fixture.put_back();
    engine.leaves().clear(Some(leaf)).await.unwrap();
    assert_eq!(state(leaf), VdevState::Healthy);
    let config = engine.admin().vdev_config();
    let known = &config.find(leaf).unwrap().leaf;
    assert!(!known.faulted && known.dtl_object.is_some(), "what it lacks is not forgotten");
    // The only copy must stay in service.
    if layout == "mirror" {
        let error = engine.leaves().offline(fixture.leaf(1), true).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
    }
    drop(engine);
    let devices = fixture.finish().await;
    if cut == 7 {
        judge(&devices);
    }
}

#[test]
fn offline_and_online_of_leaves() {
    simulate(1, async {
        let fixture = Fixture::new("mirror", 2, 1).await;
        let (engine, leaf) = (Arc::clone(&fixture.engine), fixture.leaf(0));
        let state = |guid| engine.tree().vdev(guid).unwrap().state();
        let error = engine.leaves().offline(1, false).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound);
        engine.leaves().offline(leaf, false).await.unwrap();
        assert_eq!(state(leaf), VdevState::Offline);
        assert!(engine.admin().vdev_config().find(leaf).unwrap().leaf.offline);
        assert_eq!(
            engine.leaves().offline(fixture.leaf(1), false).await.unwrap_err().kind(),
            Kind::Busy
        );
        engine.leaves().clear(None).await.unwrap();
        assert_eq!(state(leaf), VdevState::Offline, "errors are no reason to be offline");
        fixture.write_through(i64::MAX / 2).await;
        // Another device is refused.
        let other = Arc::clone(&fixture.devices[1]) as Arc<dyn Device>;
        let error = engine.leaves().online(leaf, Some(other)).await.unwrap_err();
        assert!(matches!(error.cause(), Some(EngineError::WrongDevice(_))), "{error}");
        let own = Arc::clone(&fixture.devices[0]) as Arc<dyn Device>;
        engine.leaves().online(leaf, Some(own)).await.unwrap();
        let config = engine.admin().vdev_config();
        let known = &config.find(leaf).unwrap().leaf;
        assert!(!known.offline && known.dtl_object.is_some());
        assert_eq!(engine.tree().root().state(), VdevState::Healthy);
        drop(engine);
        judge(&fixture.finish().await);
    })
    .unwrap();
}

#[test]
fn failmode_determines_requests_of_a_suspended_pool() {
    simulate(1, async {
        for (mode, value) in [("continue", 1), ("panic", 2)] {
            let fixture = Fixture::new("disk", 1, 1).await;
            let engine = &fixture.engine;
            let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
            let object = pools::new_object(engine, &head).await.unwrap();
            engine.admin().set(vec![PoolSetting::Property("failmode", value)]).await.unwrap();
            pools::write(engine, &head, object, 0, 1).await.unwrap();
            fixture.bus.pull_out_after(0);
            if mode == "panic" {
                engine.sync().await.unwrap_err();
                let error = pools::write(engine, &head, object, 1, 1).await.unwrap_err();
                assert!(matches!(error.cause(), Some(EngineError::Stopped(_))), "{error}");
                continue;
            }
            let sync = {
                let engine = Arc::clone(engine);
                cenote_rt::spawn(async move { engine.sync().await })
            };
            engine.health().until_suspended().await;
            for error in [
                pools::write(engine, &head, object, 1, 1).await.unwrap_err(),
                engine.sync().await.map(drop).unwrap_err(),
                engine.export().await.unwrap_err(),
            ] {
                assert!(matches!(error.cause(), Some(EngineError::Suspended(_))), "{error}");
            }
            fixture.put_back();
            engine.leaves().clear(None).await.unwrap();
            sync.await.unwrap().unwrap();
            pools::write(engine, &head, object, 1, 1).await.unwrap();
            engine.sync().await.unwrap();
            // After closing by force, the committed data is there.
            pools::write(engine, &head, object, 2, 1).await.unwrap();
            fixture.bus.pull_out_after(0);
            let sync = {
                let engine = Arc::clone(engine);
                cenote_rt::spawn(async move { engine.sync().await })
            };
            engine.health().until_suspended().await;
            engine.close_by_force().await;
            sync.await.unwrap().unwrap_err();
            fixture.put_back();
            pools::open_read_only(as_devices(&fixture.devices)).await.unwrap();
        }
    })
    .unwrap();
}
