//! Log vdevs leave the pool (spec 06 §10): beside writers, with a crash at any point, and not
//! while they are needed.

use std::sync::Arc;

use cenote_device::{Image, ImageDevice, Recorder};
use cenote_dmu::Tx;
use cenote_engine::zil::LogRecord;
use cenote_engine::{ApplyOptions, CheckpointError, Engine, Event, PoolEvent, ShapeError};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_pool::import::scan_devices;
use cenote_pool::leaks;
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::seeded::Bug;
use cenote_rt::{Error, Kind, Result, Rng, simulate};
use cenote_testkit::cuts;
use cenote_vdev::create::{Redundancy, VdevClass};

use crate::scans::{fails, verify_of};

const SIZE: u64 = 96 << 20;

/// A mirror, a mirrored log vdev and a log disk: two, two and one devices.
fn builder() -> PoolBuilder {
    let tops = vec![
        (Redundancy::Mirror, VdevClass::Normal, 2),
        (Redundancy::Mirror, VdevClass::Log, 2),
        (Redundancy::Single, VdevClass::Log, 1),
    ];
    PoolBuilder::new(tops).with_size(SIZE)
}

fn tops(engine: &Engine) -> Vec<VdevConfig> {
    engine.admin().vdev_config().children
}

/// Makes changes, each durable when it returns: through the intent log, if there is one.
async fn commit(engine: &Arc<Engine>, name: &str, rounds: u64) -> Result<()> {
    let head = engine.head(name).await?;
    let object = pools::new_object(engine, &head).await?;
    for round in 0..rounds {
        let write = |tx: &mut Tx<'_>| {
            tx.write(object, 4096 * (round % 8), &[round as u8; 4096])?;
            let record = LogRecord::write_later(object, 4096 * (round % 8), 4096);
            Ok(((), head.log().append(tx, vec![record])?))
        };
        engine.apply(&head, ApplyOptions::new().logged(), write).await?;
        engine.intent_logs().commit(&head, Some(object)).await?;
    }
    Ok(())
}

async fn is_member(device: &Arc<ImageDevice>) -> bool {
    let scan = scan_devices(as_devices(std::slice::from_ref(device))).await;
    scan.find("tank").is_ok()
}

fn why(error: &Error) -> Option<ShapeError> {
    error.cause::<ShapeError>().copied()
}

/// Both log vdevs leave, one after the other, while two datasets are written.
async fn logs_are_removed() {
    let (engine, devices) = builder().create_in_memory().await;
    for name in ["tank/a", "tank/b"] {
        engine.datasets().create(pools::dataset(name)).await.unwrap();
        commit(&engine, name, 20).await.unwrap();
    }
    let writers: Vec<_> = ["tank/a", "tank/b"]
        .into_iter()
        .map(|name| {
            let engine = Arc::clone(&engine);
            cenote_rt::spawn(async move { commit(&engine, name, 60).await })
        })
        .collect();
    let mirror = tops(&engine)[1].guid;
    engine.leaves().remove_log(mirror).await.unwrap();
    assert_eq!(tops(&engine)[1], VdevConfig::hole(1));
    for device in &devices[2..4] {
        assert!(!is_member(device).await, "it is no pool's");
    }
    assert!(is_member(&devices[4]).await);
    for writer in writers {
        writer.await.unwrap().unwrap();
    }
    let told = engine.health().events().after(0);
    let removed = Event::Pool(PoolEvent::LogRemoved(mirror));
    assert!(told.iter().any(|noted| noted.event == removed));
    // With the last one the logs are on the data vdevs.
    engine.leaves().remove_log(tops(&engine)[2].guid).await.unwrap();
    commit(&engine, "tank/a", 20).await.unwrap();
    assert_eq!(pools::check_space(pools::images_of(&devices)).await, Ok(()));
    engine.export().await.unwrap();
    drop(engine);
    let (summary, is_whole) = verify_of(as_devices(&devices[..2])).await;
    assert!(summary.is_clean() && is_whole, "{summary:?}");
    pools::judge_devices(&devices[..2], "without log vdevs", &[]);
    // The slots stay, and the pool goes on.
    let engine = pools::open(as_devices(&devices[..2])).await.unwrap();
    let kinds: Vec<_> = tops(&engine).into_iter().map(|top| top.kind).collect();
    assert_eq!(kinds, [VdevKind::Mirror, VdevKind::Hole, VdevKind::Hole]);
    commit(&engine, "tank/b", 5).await.unwrap();
    engine.export().await.unwrap();
    pools::judge_devices(&devices[..2], "with holes", &[]);
}

/// A view from before has log blocks on the vdev: it is overtaken, and its failures prove nothing.
async fn view_is_overtaken() {
    let (engine, _devices) = builder().create_in_memory().await;
    engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
    commit(&engine, "tank/a", 20).await.unwrap();
    engine.sync().await.unwrap();
    let view = engine.view().await.unwrap();
    assert!(leaks::check(&view).await.unwrap().is_clean());
    engine.leaves().remove_log(tops(&engine)[1].guid).await.unwrap();
    engine.store().clear_cache();
    assert_eq!(leaks::check(&view).await.unwrap_err().kind(), Kind::Overtaken);
    let view = engine.view().await.unwrap();
    assert!(leaks::check(&view).await.unwrap().is_clean());
}

#[test]
fn removal_of_a_log_overtakes_views() {
    simulate(1, view_is_overtaken()).unwrap();
}

#[test]
fn log_vdevs_are_removed_beside_writers() {
    simulate(1, logs_are_removed()).unwrap();
}

/// A log vdev whose devices are gone can leave, too.
#[test]
fn absent_log_vdev_is_removed() {
    simulate(1, async {
        let (engine, devices) = builder().create_in_memory().await;
        engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        commit(&engine, "tank/a", 10).await.unwrap();
        let disk = tops(&engine)[2].guid;
        engine.leaves().offline(disk, false).await.unwrap();
        commit(&engine, "tank/a", 10).await.unwrap();
        engine.leaves().remove_log(disk).await.unwrap();
        commit(&engine, "tank/a", 10).await.unwrap();
        engine.export().await.unwrap();
        pools::judge_devices(&devices[..4], "without an absent log vdev", &[]);
    })
    .unwrap();
}

#[test]
fn what_is_no_log_vdev_or_is_needed_stays() {
    simulate(1, async {
        let (engine, devices) = builder().create_in_memory().await;
        engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        let before = engine.admin().vdev_config();
        let log = before.children[1].guid;
        for guid in [before.children[0].guid, before.children[1].children[0].guid, 0, 7] {
            let refused = engine.leaves().remove_log(guid).await.unwrap_err();
            assert_eq!(why(&refused), Some(ShapeError::NoSuchLeaf), "{guid}");
        }
        engine.space().take_checkpoint().await.unwrap();
        let refused = engine.leaves().remove_log(log).await.unwrap_err();
        assert_eq!(refused.cause(), Some(&CheckpointError::Exists));
        engine.space().discard_checkpoint().await.unwrap();
        while engine.space().has_pending_frees().await.unwrap() {
            engine.sync().await.unwrap();
        }
        commit(&engine, "tank/a", 10).await.unwrap();
        let after = engine.admin().vdev_config();
        assert_eq!((after.guid_sum(), after.children.len()), (before.guid_sum(), 3));
        // A crash: the log is to be replayed.
        let devices = pools::devices(pools::images_of(&devices));
        let engine = pools::open(as_devices(&devices)).await.unwrap();
        let refused = engine.leaves().remove_log(log).await.unwrap_err();
        assert_eq!(why(&refused), Some(ShapeError::InUse));
        assert_eq!(engine.admin().vdev_config().children.len(), 3);
        engine.export().await.unwrap();
    })
    .unwrap();
}

/// A kill at a point of a removal: the next import has the vdev or the hole, and everything that
/// was committed.
async fn crash_leaves_a_whole_pool(seed: u64) {
    let mut rng = Rng::seeded(seed);
    let (engine, devices) = builder().create_in_memory().await;
    engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
    commit(&engine, "tank/a", 20).await.unwrap();
    let log = tops(&engine)[1 + rng.below(2) as usize].clone();
    let removal = {
        let engine = Arc::clone(&engine);
        cenote_rt::spawn(async move { engine.leaves().remove_log(log.guid).await })
    };
    let most = 1 << (1 + rng.below(9));
    for _ in 0..rng.below(most) {
        cenote_rt::yield_now().await;
    }
    let images = pools::images_of(&devices);
    let is_removed = removal.is_finished();
    drop((removal, engine));
    let devices = pools::devices(images);
    let engine = pools::open(as_devices(&devices)).await.unwrap();
    let is_hole = tops(&engine)[log.id as usize].kind == VdevKind::Hole;
    assert!(is_hole || !is_removed, "seed {seed}: the vdev is back");
    engine.sync().await.unwrap();
    assert_eq!(pools::check_space(pools::images_of(&devices)).await, Ok(()), "seed {seed}");
    match engine.leaves().remove_log(log.guid).await {
        Ok(()) => assert!(!is_hole, "seed {seed}"),
        Err(error) if is_hole => assert_eq!(why(&error), Some(ShapeError::NoSuchLeaf)),
        Err(error) => assert_eq!(why(&error), Some(ShapeError::InUse), "seed {seed}"),
    }
    engine.sync().await.unwrap();
    let (summary, is_whole) =
        verify_of(as_devices(&pools::devices(pools::images_of(&devices)))).await;
    assert!(summary.is_clean() && is_whole, "seed {seed}: {summary:?}");
    if seed.is_multiple_of(8) {
        pools::judge_devices(&devices, "after a crash", &[]);
    }
}

#[test]
fn crash_at_any_point_of_a_removal_leaves_a_whole_pool() {
    for seed in 0..32 {
        simulate(seed, crash_leaves_a_whole_pool(seed)).unwrap();
    }
}

/// Power is lost at a flush: what was not flushed is lost in part, on each device differently.
async fn power_is_lost(seed: u64, step: u64) -> usize {
    let recorder = Recorder::new();
    let devices = pools::recorded(&recorder, &builder().memory_devices());
    let engine = builder().create(devices).await.unwrap();
    engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
    commit(&engine, "tank/a", 10).await.unwrap();
    recorder.mark(0);
    for log in [1, 2] {
        engine.leaves().remove_log(tops(&engine)[log].guid).await.unwrap();
        commit(&engine, "tank/a", 5).await.unwrap();
    }
    engine.export().await.unwrap();
    drop(engine);
    let log = recorder.log();
    let check = async |images: Vec<Image>, _| {
        let devices = pools::devices(images);
        let engine = pools::open(as_devices(&devices)).await.map_err(|error| error.to_string())?;
        engine.sync().await.map_err(|error| error.to_string())?;
        let images = pools::images_of(&devices);
        pools::check_space(images.clone()).await?;
        let (summary, is_whole) = verify_of(as_devices(&pools::devices(images))).await;
        if summary.is_clean() && is_whole { Ok(()) } else { Err(format!("{summary:?}")) }
    };
    cuts::at_cuts(&log, seed, step, check).await
}

#[test]
fn power_cut_during_a_removal_leaves_a_whole_pool() {
    for seed in 0..4 {
        let cuts = simulate(seed, power_is_lost(seed, 8)).unwrap();
        assert!(cuts > 4, "{cuts} cuts");
    }
}

#[test]
fn removal_of_a_log_in_use_is_found() {
    assert!(fails(Bug::LogRemovedInUse, logs_are_removed()));
}
