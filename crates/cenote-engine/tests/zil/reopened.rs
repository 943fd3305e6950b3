//! What the first commits after a crash cost: as much as they change, however much was left.
//!
//! They may take long all the same. What a process that was killed had written and not flushed is
//! still in the kernel's cache then, and the first flush waits until all of it is on the device.

use std::sync::Arc;

use cenote_device::{Event, Recorder};
use cenote_engine::zil::VolumeReplayer;
use cenote_ondisk::objset::ObjSetType;
use cenote_rt::{Result, Rng, block_on};

use crate::pools::{self, Layout};
use crate::{blank, images, model, volume};

/// Txgs before the crash: each leaves a log of the space maps.
const TXGS: u64 = 150;
/// Records in the intent log.
const RECORDS: u64 = 300;
/// Changes that were in memory only.
const LOST: u64 = 100;
/// Commits that claiming may take, one for each txg that log blocks may be from.
const COMMITS_MAX: u64 = 3;
/// Flushes of a commit, of each device.
const FLUSHES_MAX: u64 = 5;
/// Writes and bytes of a commit with a change of a few blocks.
const WRITES_MAX: u64 = 250;
const BYTES_MAX: u64 = 2 << 20;

/// What went to the devices.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    writes: u64,
    bytes: u64,
    flushes: u64,
}

impl Cost {
    /// Since the recorder had so many events.
    fn since(recorder: &Recorder, start: usize) -> Self {
        let mut cost = Self::default();
        for event in &recorder.log().events[start..] {
            match event {
                Event::Write { parts, .. } => {
                    cost.writes += 1;
                    cost.bytes += parts.iter().map(|part| part.len() as u64).sum::<u64>();
                }
                Event::Flush { .. } => cost.flushes += 1,
                _ => {}
            }
        }
        cost
    }

    /// No more than so many commits take.
    fn assert_within(self, commits: u64, layout: Layout, what: &str) {
        let Self { writes, bytes, flushes } = self;
        println!("{layout:?}, {what}: {commits} commits, {self:?}");
        let flushes_max = FLUSHES_MAX * layout.devices() as u64;
        assert!(flushes <= commits * flushes_max, "{what}: {flushes} flushes");
        assert!(writes <= commits * WRITES_MAX, "{what}: {writes} writes");
        assert!(bytes <= commits * BYTES_MAX, "{what}: {bytes} bytes");
    }
}

#[test]
fn the_first_commits_after_a_crash_are_small() {
    for layout in [Layout::Disk, Layout::Slog] {
        block_on(2, crash(layout)).unwrap().unwrap();
    }
}

async fn crash(layout: Layout) -> Result<()> {
    let devices = pools::devices(blank(layout));
    let engine = pools::make(layout, 5, pools::as_devices(&devices)).await?;
    let left = volume(&engine, "tank/v").await?;
    let mut rng = Rng::seeded(11);
    for _ in 0..TXGS {
        left.apply(&engine, model::draw(&mut rng), true).await?;
        engine.sync().await?;
    }
    for _ in 0..RECORDS {
        let place = left.apply(&engine, model::draw(&mut rng), false).await?;
        left.commit(&engine, place).await?;
    }
    for _ in 0..LOST {
        left.apply(&engine, model::draw(&mut rng), true).await?;
    }
    let images = images::images_of(&devices);
    let txg = engine.uberblock().txg;
    drop(engine);

    let recorder = Recorder::new();
    let devices = pools::devices(images.clone());
    let wrapped = devices.iter().zip(images);
    let wrapped = wrapped.map(|(device, image)| recorder.wrap(device.clone(), image));
    let engine = pools::open(wrapped.collect()).await?;
    let commits = engine.uberblock().txg - txg;
    assert!((1..=COMMITS_MAX).contains(&commits), "{layout:?}: {commits} commits to open");
    Cost::since(&recorder, 0).assert_within(commits, layout, "opened");

    let start = recorder.len();
    engine.snapshots().create(vec!["tank/v@first".into()]).await?;
    Cost::since(&recorder, start).assert_within(1, layout, "first change");

    engine.intent_logs().set_replayer(ObjSetType::Other, Arc::new(VolumeReplayer));
    for (_, replayed) in engine.intent_logs().replay_all().await? {
        assert!(replayed.failure.is_none(), "{replayed:?}");
    }
    let head = engine.head("tank/v").await?;
    let found = model::read(&head).await?;
    let durable = (TXGS + RECORDS) as usize;
    assert!(left.history.find(&found, durable).is_some(), "{layout:?}");
    engine.export().await?;
    assert_eq!(pools::check_space(images::images_of(&devices)).await, Ok(()), "{layout:?}");
    Ok(())
}
