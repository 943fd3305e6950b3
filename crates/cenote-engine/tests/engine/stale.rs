//! Stale leaves while other leaves fail: the pool waits for those that have the data.

use std::sync::Arc;

use cenote_device::{Device, FaultyDevice, ImageDevice};
use cenote_engine::admin::PoolSetting;
use cenote_engine::{Engine, Head};
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::{Rng, simulate};
use cenote_testkit::rng::cases;

const BLOCKS: u64 = 24;

struct Fixture {
    inner: Vec<Arc<ImageDevice>>,
    devices: Vec<Arc<FaultyDevice>>,
    engine: Arc<Engine>,
    head: Arc<Head>,
    object: u64,
}

impl Fixture {
    async fn new(layout: &str, count: usize) -> Self {
        let builder = PoolBuilder::of(layout, count);
        let inner = builder.memory_devices();
        let faulty = |device: &Arc<ImageDevice>| {
            Arc::new(FaultyDevice::new(Arc::clone(device) as Arc<dyn Device>, 1))
        };
        let devices: Vec<_> = inner.iter().map(faulty).collect();
        let engine = builder.create(as_devices(&devices)).await.unwrap();
        // Every read goes to the devices.
        engine.store().set_cache_capacity(0);
        let head = engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        let object = pools::new_object(&engine, &head).await.unwrap();
        engine.sync().await.unwrap();
        Self { inner, devices, engine, head, object }
    }

    fn leaf(&self, index: usize) -> u64 {
        self.engine.admin().vdev_config().leaves().nth(index).unwrap().guid
    }

    async fn write(&self, salt: u64) {
        for block in 0..BLOCKS {
            pools::write(&self.engine, &self.head, self.object, block, salt).await.unwrap();
        }
    }

    async fn check(&self, salt: u64) {
        for block in 0..BLOCKS {
            let object = self.object;
            let read = self.head.live().inspect(|tx| tx.read(object, block << 17, 64 << 10)).await;
            let mut bytes = vec![0; 64 << 10];
            Rng::seeded(block << 32 | salt).fill(&mut bytes);
            assert!(read.unwrap() == bytes, "block {block}");
        }
    }

    /// Verifies the devices as after a crash: wrong parts on healthy leaves, and lost blocks.
    async fn wrong_parts(&self) -> (u64, u64) {
        let pool = pools::open_copy(&self.inner).await.unwrap();
        let (summary, _) = pools::verify(&pool).await.unwrap();
        (summary.parts, summary.lost + summary.unreachable)
    }
}

#[test]
fn pool_is_suspended_while_only_a_missing_leaf_has_the_data() {
    for (layout, count) in [("raidz1", 3), ("mirror", 2), ("raidz2", 4)] {
        for stale in 0..2 {
            simulate(1, wait_for_leaf(layout, count, stale)).unwrap();
        }
    }
}

async fn wait_for_leaf(layout: &str, count: usize, stale: usize) {
    let fixture = Fixture::new(layout, count).await;
    let engine = &fixture.engine;
    engine.leaves().offline(fixture.leaf(stale), true).await.unwrap();
    fixture.write(1).await;
    engine.sync().await.unwrap();
    engine.snapshots().create(vec!["tank/a@one".into()]).await.unwrap();
    engine.leaves().online(fixture.leaf(stale), None).await.unwrap();
    // More than the parity, including the stale one.
    let parity = if layout == "raidz2" { 2 } else { 1 };
    let away: Vec<usize> = (0..count).filter(|n| *n != stale).take(parity).collect();
    fixture.write(2).await;
    for n in &away {
        fixture.devices[*n].set_offline(true);
    }
    let work = {
        let engine = Arc::clone(engine);
        cenote_rt::spawn(async move {
            engine.sync().await.unwrap();
            engine.snapshots().destroy("tank/a@one").await.unwrap();
            engine.admin().set(vec![PoolSetting::Comment(Some("x".into()))]).await.unwrap();
            engine.sync().await.unwrap();
        })
    };
    engine.health().until_suspended().await;
    let error = engine.leaves().clear(None).await;
    assert!(engine.health().suspended().is_some() || error.is_ok(), "{layout}");
    for n in &away {
        fixture.devices[*n].set_offline(false);
    }
    engine.leaves().clear(None).await.unwrap();
    work.await.unwrap();
    fixture.check(2).await;
    assert_eq!(engine.health().suspended(), None);
    engine.export().await.unwrap();
    pools::judge_images(&pools::images_of(&fixture.inner));
}

/// Some writes fail because the host's disk is full, as for sparse files, and succeed later:
/// missing data of each leaf is recorded, in memory and on disk, until it is written.
#[test]
fn dirty_time_logs_record_writes_refused_by_a_full_host() {
    for (layout, count) in [("disk", 1), ("mirror", 2), ("raidz1", 3), ("raidz2", 5)] {
        for seed in 0..cases(6, 200) {
            simulate(seed, fill_host(layout, count, seed)).unwrap();
        }
    }
}

async fn fill_host(layout: &str, count: usize, seed: u64) {
    let fixture = Fixture::new(layout, count).await;
    let engine = &fixture.engine;
    let mut rng = Rng::seeded(seed);
    fixture.write(1).await;
    engine.sync().await.unwrap();
    let what = format!("{layout}, seed {seed}");
    for round in 0..4 {
        // From some point on each leaf has no space.
        for device in &fixture.devices {
            let from = (5 << 20) + rng.below(6 << 20);
            let is_full = rng.below(3) > 0;
            device.set_failing_writes(is_full.then_some(from));
        }
        let rescue = {
            let (engine, devices) = (Arc::clone(engine), fixture.devices.clone());
            cenote_rt::spawn(async move {
                loop {
                    engine.health().until_suspended().await;
                    for device in &devices {
                        device.set_failing_writes(None);
                    }
                    engine.leaves().clear(None).await.ok();
                }
            })
        };
        fixture.write(10 + round).await;
        engine.sync().await.unwrap();
        assert_eq!(fixture.wrong_parts().await, (0, 0), "{what}, round {round}: as committed");
        rescue.abort();
        for device in &fixture.devices {
            device.set_failing_writes(None);
        }
        engine.leaves().clear(None).await.unwrap();
        assert_eq!(fixture.wrong_parts().await, (0, 0), "{what}, round {round}: cleared");
        fixture.check(10 + round).await;
    }
    engine.export().await.unwrap();
    assert_eq!(fixture.wrong_parts().await, (0, 0), "{what}: exported");
}
