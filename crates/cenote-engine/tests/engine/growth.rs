//! Devices become longer, and their vdevs larger (spec 06 §2.1, §10): on every layout, beside
//! writers, and with a crash at any point.

use std::sync::Arc;

use cenote_device::ImageDevice;
use cenote_engine::Engine;
use cenote_engine::admin::PoolSetting;
use cenote_pool::import::Found;
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::seeded::Bug;
use cenote_rt::{Rng, simulate};

use crate::scans::{Fixture, LAYOUTS, fails, verify_of};

const MORE: u64 = 192 << 20;

fn asize(engine: &Engine) -> u64 {
    engine.admin().vdev_config().children[0].top.asize
}

fn metaslabs(engine: &Engine) -> u64 {
    engine.allocator().vdev_figures().iter().map(|vdev| vdev.metaslabs).sum()
}

/// Number of labels of the pool on a device.
async fn label_count(device: &Arc<ImageDevice>) -> usize {
    let whole = pools::devices(vec![device.image()]).remove(0);
    Found::read(whole).await.unwrap().good_labels
}

/// Lowest txg of the uberblocks in each label of a device.
async fn first_uberblocks(device: &Arc<ImageDevice>) -> Vec<Option<u64>> {
    let whole = pools::devices(vec![device.image()]).remove(0);
    let labels = cenote_vdev::labels::read(&*whole).await.labels;
    let first = |label: &cenote_vdev::labels::Label| {
        label.uberblocks.iter().map(|found| found.uberblock.txg).min()
    };
    labels.iter().map(first).collect()
}

/// Exports a pool, and verifies it on devices of their present sizes.
async fn finish(pool: Fixture, what: &str) {
    pool.engine.export().await.unwrap();
    drop(pool.engine);
    let devices = pools::devices(pools::images_of(&pool.devices));
    let (summary, is_whole) = verify_of(as_devices(&devices)).await;
    assert!(summary.is_clean() && is_whole, "{what}: {summary:?}");
    pools::judge_devices(&devices, what, &[]);
}

/// All devices become longer; the vdev follows when it is told to, and is filled.
async fn devices_become_longer((layout, count, _): (&str, usize, usize)) {
    let pool = Fixture::new(layout, count).await;
    let engine = &pool.engine;
    let (before, parts) = (asize(engine), metaslabs(engine));
    for device in &pool.devices {
        device.grow(MORE);
    }
    engine.sync().await.unwrap();
    let head = engine.head("tank/a").await.unwrap();
    let object = pools::new_object(engine, &head).await.unwrap();
    let writer = Arc::clone(engine);
    let writing = cenote_rt::spawn(async move {
        for block in 0..60 {
            pools::write(&writer, &head, object, block % 20, block).await.unwrap();
            if block % 8 == 7 {
                writer.sync().await.unwrap();
            }
        }
    });
    engine.leaves().adopt_sizes().await.unwrap();
    assert_eq!((asize(engine), metaslabs(engine)), (before, parts), "{layout}");
    for device in &pool.devices {
        assert_eq!(label_count(device).await, 4, "{layout}");
        // The labels that moved have the uberblocks of before.
        let first = first_uberblocks(device).await;
        assert!(first.iter().all(|txg| *txg == first[0]), "{layout}: {first:?}");
    }
    let view = engine.view().await.unwrap();
    let expandable = view.space().await.unwrap().expandable;
    drop(view);
    let leaf = pool.leaf(0);
    engine.leaves().expand(Some(leaf)).await.unwrap();
    if layout != "disk" && count > 1 {
        assert_eq!(asize(engine), before, "{layout}: the others do not count yet");
    }
    engine.leaves().expand(None).await.unwrap();
    writing.await.unwrap();
    let more = asize(engine) - before;
    assert!(more >= expandable && expandable > 32 << 20, "{layout}: {more} of {expandable}");
    assert!(metaslabs(engine) > parts, "{layout}");
    engine.sync().await.unwrap();
    // Until something is written behind the old end.
    let head = engine.head("tank/b").await.unwrap();
    let object = pools::new_object(engine, &head).await.unwrap();
    let is_used = || {
        let metaslabs = engine.allocator().metaslab_figures(0);
        metaslabs.iter().skip(parts as usize).any(|metaslab| metaslab.allocated > 1 << 20)
    };
    let mut block = 0;
    while !is_used() {
        for _ in 0..32 {
            pools::write(engine, &head, object, block, block).await.unwrap();
            block += 1;
        }
        engine.sync().await.unwrap();
    }
    assert_eq!(pools::check_space(pools::images_of(&pool.devices)).await, Ok(()), "{layout}");
    finish(pool, layout).await;
}

#[test]
fn vdevs_become_larger_on_every_layout() {
    simulate(1, devices_become_longer(("disk", 1, 0))).unwrap();
    for layout in LAYOUTS {
        simulate(1, devices_become_longer(layout)).unwrap();
    }
}

/// With `autoexpand` a vdev becomes larger by itself: when the property is set, when sizes are
/// adopted, at an import, and when a smaller device leaves.
#[test]
fn vdevs_become_larger_by_themselves() {
    simulate(1, async {
        let (engine, devices) =
            PoolBuilder::of("mirror", 2).with_size(96 << 20).create_in_memory().await;
        let autoexpand = || vec![PoolSetting::Property("autoexpand", 1)];
        let sizes = |mib: u64| devices.iter().for_each(|device| device.grow(mib << 20));
        let mut last = asize(&engine);
        let mut larger = |engine: &Engine| std::mem::replace(&mut last, asize(engine)) < last;
        sizes(128);
        engine.admin().set(autoexpand()).await.unwrap();
        assert!(larger(&engine));
        sizes(160);
        engine.leaves().adopt_sizes().await.unwrap();
        assert!(larger(&engine));
        sizes(192);
        engine.export().await.unwrap();
        drop(engine);
        let devices = pools::devices(pools::images_of(&devices));
        let engine = pools::open(as_devices(&devices)).await.unwrap();
        assert!(larger(&engine));
        // One side only.
        devices[0].grow(256 << 20);
        engine.leaves().adopt_sizes().await.unwrap();
        assert!(!larger(&engine));
        let small = engine.admin().vdev_config().leaves().nth(1).unwrap().guid;
        engine.leaves().detach(small, None).await.unwrap();
        assert!(larger(&engine));
        engine.export().await.unwrap();
        pools::judge_devices(&devices[..1], "autoexpand", &[]);
    })
    .unwrap();
}

/// A vdev that is not whole stays as large as it is: a device that comes back may be small.
#[test]
fn degraded_vdev_stays_as_large_as_it_is() {
    simulate(1, async {
        let pool = Fixture::new("mirror", 2).await;
        let before = asize(&pool.engine);
        pool.engine.leaves().offline(pool.leaf(1), false).await.unwrap();
        pool.devices[0].grow(MORE);
        pool.engine.leaves().expand(None).await.unwrap();
        assert_eq!(asize(&pool.engine), before);
        pool.engine.leaves().online(pool.leaf(1), None).await.unwrap();
        pool.resilver().await;
        pool.devices[1].grow(MORE);
        pool.engine.leaves().expand(None).await.unwrap();
        assert!(asize(&pool.engine) > before);
        finish(pool, "degraded").await;
    })
    .unwrap();
}

/// A kill at a point of growing: the next import has the old or the new size, and everything.
async fn crash_leaves_a_whole_pool(seed: u64) {
    let mut rng = Rng::seeded(seed);
    let (layout, count) = [("mirror", 2), ("raidz1", 3)][rng.below(2) as usize];
    let pool = Fixture::new(layout, count).await;
    let before = asize(&pool.engine);
    for device in &pool.devices {
        device.grow(MORE);
    }
    let engine = Arc::clone(&pool.engine);
    let growing = cenote_rt::spawn(async move {
        engine.leaves().expand(None).await.unwrap();
        let head = engine.head("tank/b").await.unwrap();
        let object = pools::new_object(&engine, &head).await.unwrap();
        for block in 0..30 {
            pools::write(&engine, &head, object, block, seed).await.unwrap();
            engine.sync().await.unwrap();
        }
    });
    let most = 1 << (1 + rng.below(11));
    for _ in 0..rng.below(most) {
        cenote_rt::yield_now().await;
    }
    let images = pools::images_of(&pool.devices);
    drop(growing);
    let devices = pools::devices(images);
    let engine = pools::open(as_devices(&devices)).await.unwrap();
    assert!(asize(&engine) >= before, "seed {seed}");
    engine.leaves().expand(None).await.unwrap();
    assert!(asize(&engine) > before, "seed {seed}");
    let pool = Fixture { devices, engine };
    pool.write("tank/a", 0..4, 90).await;
    assert_eq!(pools::check_space(pools::images_of(&pool.devices)).await, Ok(()), "seed {seed}");
    pool.finish_whole(seed).await;
}

#[test]
fn crash_at_any_point_of_growing_leaves_a_whole_pool() {
    for seed in 0..24 {
        simulate(seed, crash_leaves_a_whole_pool(seed)).unwrap();
    }
}

#[test]
fn mistakes_in_growing_are_found() {
    for bug in [Bug::LabelsNotMoved, Bug::NewSizeNotRecorded] {
        assert!(fails(bug, devices_become_longer(("mirror", 2, 1))), "{bug:?}");
    }
}
