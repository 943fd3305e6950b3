//! Intent logs: committed operations survive any power cut, nothing is torn or partial, space is
//! consistent at any time, and OpenZFS agrees.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

mod counts;
mod cuts;
mod golden;
mod layout;
mod model;
mod reopened;
mod slog;
mod torn;
mod unread;
mod verified;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cenote_device::{Device, DeviceInfo, ImageDevice};
use cenote_engine::zil::{LogBytes, VolumeReplayer};
use cenote_engine::{ApplyOptions, Engine, Notice};
use cenote_ondisk::objset::ObjSetType;
use cenote_pool::OpenOptions;
use cenote_poolkit::pools;
use cenote_rt::{BoxFuture, Buf, BufMut, Result, Rng, block_on};
use layout::Layout;
use model::{History, Volume};

async fn volume(engine: &Engine, name: &str) -> Result<Volume> {
    let head = model::make(engine, name, ObjSetType::Other).await?;
    Ok(Volume { head, history: Arc::<History>::default() })
}

/// A log is left by a crash, claimed and replayed by the next import, and removed by an export.
#[test]
fn log_is_replayed_after_a_crash() {
    for layout in Layout::ALL {
        block_on(2, crash_and_replay(layout)).unwrap().unwrap();
    }
}

async fn crash_and_replay(layout: Layout) -> Result<()> {
    let (engine, devices) = layout.builder(7).create_in_memory().await;
    let images = || pools::images_of(&devices);
    let volume = volume(&engine, "tank/v").await?;
    let mut rng = Rng::seeded(3);
    for round in 0..30 {
        let place = volume.apply(&engine, model::draw(&mut rng), round % 2 == 0).await?;
        volume.commit(&engine, place).await?;
        if round % 11 == 10 {
            engine.sync().await?;
        }
    }
    let (txg, before) = (engine.uberblock().txg, model::read(&volume.head).await.unwrap());
    let left = images();
    assert_eq!(pools::check_space(left.clone()).await, Ok(()), "{layout:?} live, txg {txg}");
    pools::judge_devices(&pools::devices(left.clone()), &format!("{layout:?}-live"), &["-iiii"]);
    drop((engine, volume));

    let engine = pools::open(pools::as_devices(&devices)).await?;
    assert_eq!(pools::check_space(images()).await, Ok(()), "{layout:?} claimed");
    pools::judge_devices(&devices, &format!("{layout:?}-claimed"), &["-iiii"]);
    let head = engine.head("tank/v").await?;
    assert!(head.log().is_claimed());
    engine.sync().await?;
    drop((engine, head));
    // Claimed by one import, replayed by the next.
    let engine = pools::open(pools::as_devices(&devices)).await?;
    let head = engine.head("tank/v").await?;
    let replayed =
        engine.intent_logs().replay(&head, &VolumeReplayer).await?.expect("there is a log");
    assert!(replayed.failure.is_none() && replayed.applied > 0, "{replayed:?}");
    assert_eq!(model::read(&head).await.unwrap(), before, "{layout:?}");
    assert_eq!(pools::check_space(images()).await, Ok(()), "{layout:?} replayed");
    engine.export().await?;
    assert_eq!(pools::check_space(images()).await, Ok(()), "{layout:?} exported");
    pools::judge_devices(&devices, &format!("{layout:?}-exported"), &["-iiii"]);
    Ok(())
}

/// Concurrent commits share blocks, and all records are there afterwards.
#[test]
fn concurrent_commits_share_log_writes() {
    block_on(2, async {
        let (engine, devices) = Layout::Slog.builder(7).create_in_memory().await;
        let volume = volume(&engine, "tank/v").await.unwrap();
        let tasks: Vec<_> = (0..8)
            .map(|seed| {
                let (engine, volume) = (Arc::clone(&engine), volume.clone());
                cenote_rt::spawn(async move {
                    let mut rng = Rng::seeded(seed);
                    for _ in 0..20 {
                        let op = model::draw(&mut rng);
                        let place = volume.apply(&engine, op, false).await.unwrap();
                        volume.commit(&engine, place).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(volume.history.acknowledged(), 160);
        let before = model::read(&volume.head).await.unwrap();
        drop((engine, volume));
        let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
        let head = engine.head("tank/v").await.unwrap();
        engine.intent_logs().set_replayer(ObjSetType::Other, Arc::new(VolumeReplayer));
        assert_eq!(engine.intent_logs().replay_all().await.unwrap().len(), 1);
        assert_eq!(model::read(&head).await.unwrap(), before);
        engine.export().await.unwrap();
    })
    .unwrap();
}

/// A device with slow, counted flushes.
#[derive(Debug)]
struct Slow {
    inner: Arc<ImageDevice>,
    flushes: AtomicUsize,
}

impl Device for Slow {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        self.inner.write(offset, parts)
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            // Lets other tasks run meanwhile.
            for _ in 0..FLUSH_STEPS {
                cenote_rt::sleep(Duration::from_micros(100)).await;
            }
            self.inner.flush().await
        })
    }
}

/// Steps of other tasks during a flush.
const FLUSH_STEPS: usize = 20;

/// Returns the flushes of each device for concurrent tasks with this number of commits each.
async fn flushes(tasks: u64, commits: u64) -> Vec<usize> {
    let builder = Layout::Slog.builder(7);
    let devices: Vec<_> = builder
        .memory_devices()
        .into_iter()
        .map(|inner| Arc::new(Slow { inner, flushes: AtomicUsize::new(0) }))
        .collect();
    let engine = builder.create(pools::as_devices(&devices)).await.unwrap();
    let volume = volume(&engine, "tank/v").await.unwrap();
    let op = |salt| model::Op { first: salt % model::CELLS, count: 1, salt: Some(salt | 1) };
    // The first commit syncs, for the header.
    let place = volume.apply(&engine, op(0), false).await.unwrap();
    volume.commit(&engine, place).await.unwrap();
    let txg = engine.uberblock().txg;
    let count = || devices.iter().map(|device| device.flushes.load(Ordering::Relaxed));
    let before: Vec<_> = count().collect();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let (engine, volume) = (Arc::clone(&engine), volume.clone());
            cenote_rt::spawn(async move {
                for number in 0..commits {
                    let place =
                        volume.apply(&engine, op(task * 100 + number), false).await.unwrap();
                    volume.commit(&engine, place).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(engine.uberblock().txg, txg, "it took a sync");
    count().zip(before).map(|(after, before)| after - before).collect()
}

/// A single commit costs one flush of the log device and none of any other; concurrent commits that
/// arrive during a flush share the next.
#[test]
fn concurrent_commits_share_log_flushes() {
    cenote_rt::simulate(1, async {
        assert_eq!(flushes(1, 20).await, [0, 20]);
        for tasks in [2, 8, 32] {
            let [0, count] = flushes(tasks, 20).await[..] else { panic!("data was flushed") };
            // All others arrive during one flush and share the next.
            assert!((20..=2 * 20 + 1).contains(&count), "{count} flushes of {tasks} tasks");
        }
    })
    .unwrap();
}

/// Datasets with logs are snapshotted, cloned, rolled back and destroyed; nothing leaks.
#[test]
fn operations_on_datasets_with_logs() {
    block_on(2, operations()).unwrap().unwrap();
}

async fn operations() -> Result<()> {
    let layout = Layout::Slog;
    let (engine, devices) = layout.builder(7).create_in_memory().await;
    let images = || pools::images_of(&devices);
    let mut rng = Rng::seeded(5);
    for name in ["tank/a", "tank/b", "tank/c"] {
        let volume = volume(&engine, name).await?;
        for _ in 0..6 {
            let place = volume.apply(&engine, model::draw(&mut rng), false).await?;
            volume.commit(&engine, place).await?;
        }
        engine.snapshots().create(vec![format!("{name}@s")]).await?;
        for _ in 0..6 {
            let place = volume.apply(&engine, model::draw(&mut rng), false).await?;
            volume.commit(&engine, place).await?;
        }
    }
    assert_eq!(pools::check_space(images()).await, Ok(()), "snapshots");
    engine.datasets().clone_snapshot("tank/a@s", "tank/clone", Vec::new()).await?;
    engine.datasets().rollback("tank/b", None).await?;
    engine.snapshots().destroy("tank/c@s").await?;
    engine.datasets().destroy("tank/c").await?;
    for _ in 0..4 {
        engine.sync().await?;
    }
    assert_eq!(pools::check_space(images()).await, Ok(()), "clone, rollback, destroy");
    pools::judge_devices(&devices, "operations", &["-iiii"]);
    // The clone and the rolled back dataset have their own logs.
    for name in ["tank/clone", "tank/b"] {
        let head = engine.head(name).await?;
        let volume = Volume { head, history: Arc::default() };
        for _ in 0..4 {
            let place = volume.apply(&engine, model::draw(&mut rng), false).await?;
            volume.commit(&engine, place).await?;
        }
    }
    engine.intent_logs().retire().await?;
    assert_eq!(pools::check_space(images()).await, Ok(()), "retired");
    engine.export().await?;
    assert_eq!(pools::check_space(images()).await, Ok(()), "exported");
    pools::judge_devices(&devices, "operations-exported", &["-iiii"]);
    Ok(())
}

/// The property `sync`: with `disabled` no log is written, with `always` every operation should be
/// committed.
#[test]
fn sync_property_determines_commits() {
    use cenote_ondisk::zap::Value;
    block_on(2, async {
        let (engine, _devices) = Layout::Disk.builder(7).create_in_memory().await;
        let volume = volume(&engine, "tank/v").await.unwrap();
        let op = model::Op { first: 0, count: 1, salt: Some(1) };
        assert!(volume.head.log().must_commit(true) && !volume.head.log().must_commit(false));
        engine.properties().set("tank/v", "sync", Value::words_of(&[2])).await.unwrap();
        let txg = engine.uberblock().txg;
        let place = volume.apply(&engine, op, false).await.unwrap();
        volume.commit(&engine, place).await.unwrap();
        assert_eq!((engine.uberblock().txg, volume.head.log().memory()), (txg, 0));
        assert!(!volume.head.log().must_commit(true));
        engine.properties().set("tank/v", "sync", Value::words_of(&[1])).await.unwrap();
        assert!(volume.head.log().must_commit(false));
        engine.properties().set("tank/v", "sync", Value::words_of(&[0])).await.unwrap();
        // The first commit syncs, for the header; the next ones do not.
        for _ in 0..3 {
            let place = volume.apply(&engine, op, false).await.unwrap();
            volume.commit(&engine, place).await.unwrap();
        }
        let txg = engine.uberblock().txg;
        for _ in 0..3 {
            let place = volume.apply(&engine, op, false).await.unwrap();
            volume.commit(&engine, place).await.unwrap();
        }
        assert_eq!(engine.uberblock().txg, txg);
        engine.sync().await.unwrap();
        assert_eq!(volume.head.log().memory(), 0);
    })
    .unwrap();
}

/// Without its log device a pool opens only with an option, and then without the records in the
/// log.
#[test]
fn import_m_discards_the_log_of_a_lost_device() {
    // As left by the crash, and after another import claimed it and replayed nothing.
    for is_claimed in [false, true] {
        block_on(2, lose_log_device(is_claimed)).unwrap();
    }
}

async fn lose_log_device(is_claimed: bool) {
    let (engine, devices) = Layout::Slog.builder(7).create_in_memory().await;
    let volume = volume(&engine, "tank/v").await.unwrap();
    let mut synced = Vec::new();
    for round in 0..4 {
        let op = model::Op { first: round, count: 2, salt: Some(5) };
        let place = volume.apply(&engine, op, false).await.unwrap();
        volume.commit(&engine, place).await.unwrap();
        if round == 2 {
            engine.sync().await.unwrap();
            synced = model::read(&volume.head).await.unwrap();
        }
    }
    drop((engine, volume));
    if is_claimed {
        let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
        let head = engine.head("tank/v").await.unwrap();
        assert!(head.log().awaits_replay());
        // Nothing may be changed before the replay.
        let refused = engine
            .apply(&head, ApplyOptions::new().logged(), |_| Ok(((), LogBytes::default())))
            .await;
        assert_eq!(refused.unwrap_err().kind(), cenote_rt::Kind::Busy);
    }
    let left = pools::as_devices(&devices[..1]);
    assert!(pools::open(left.clone()).await.is_err());
    let unneeded = OpenOptions { unneeded_log_ok: true, ..OpenOptions::default() };
    let needed = pools::open_with(left.clone(), &unneeded).await.map(drop);
    assert!(needed.is_err(), "a log is on it");
    let options = OpenOptions { missing_log_ok: true, ..OpenOptions::default() };
    let engine = pools::open_with(left.clone(), &options).await.unwrap();
    let head = engine.head("tank/v").await.unwrap();
    assert!(!head.log().is_claimed());
    let dropped = Notice::LogsDropped { datasets: vec![head.object()] };
    assert!(engine.health().take_notices().contains(&dropped));
    assert_eq!(model::read(&head).await.unwrap(), synced);
    engine.export().await.unwrap();
    drop((engine, head));
    // The log device has no log any more.
    assert!(pools::open(left.clone()).await.is_err());
    let engine = pools::open_with(left, &unneeded).await.unwrap();
    let head = engine.head("tank/v").await.unwrap();
    assert_eq!(model::read(&head).await.unwrap(), synced);
    engine.export().await.unwrap();
}
