//! The cost of the first commits after a crash depends on their changes only.
//!
//! They may take long all the same. Unflushed writes of a killed process are still in the kernel's
//! cache then, and the first flush waits until all of them are on the device.

use std::sync::Arc;

use cenote_device::{Event, Recorder};
use cenote_engine::zil::VolumeReplayer;
use cenote_ondisk::objset::ObjSetType;
use cenote_poolkit::pools;
use cenote_rt::{Result, Rng, block_on};

use crate::layout::Layout;
use crate::{model, volume};

/// Txgs before the crash: each leaves a log space map.
const TXGS: u64 = 150;
/// Records in the intent log.
const RECORDS: u64 = 300;
/// Changes in memory only.
const LOST: u64 = 100;
/// Maximum number of commits for claiming, one for each txg in which log blocks may be born.
const COMMITS_MAX: u64 = 3;
/// Maximum number of flushes of a commit, for each device.
const FLUSHES_MAX: u64 = 5;
/// Maximum writes and bytes of a commit with a few changed blocks.
const WRITES_MAX: u64 = 250;
const BYTES_MAX: u64 = 2 << 20;

/// Writes and flushes of the devices.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    writes: u64,
    bytes: u64,
    flushes: u64,
}

impl Cost {
    /// Returns the cost since this number of recorded events.
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

    /// Checks that the cost is at most that of so many commits.
    fn assert_within(self, commits: u64, layout: Layout, what: &str) {
        let Self { writes, bytes, flushes } = self;
        println!("{layout:?}, {what}: {commits} commits, {self:?}");
        let flushes_max = FLUSHES_MAX * layout.builder(0).device_count() as u64;
        assert!(flushes <= commits * flushes_max, "{what}: {flushes} flushes");
        assert!(writes <= commits * WRITES_MAX, "{what}: {writes} writes");
        assert!(bytes <= commits * BYTES_MAX, "{what}: {bytes} bytes");
    }
}

#[test]
fn first_commits_after_a_crash_are_small() {
    for layout in [Layout::Disk, Layout::Slog] {
        block_on(2, crash(layout)).unwrap().unwrap();
    }
}

async fn crash(layout: Layout) -> Result<()> {
    let (engine, devices) = layout.builder(5).create_in_memory().await;
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
    let images = pools::images_of(&devices);
    let txg = engine.uberblock().txg;
    drop(engine);

    let recorder = Recorder::new();
    let devices = pools::devices(images);
    let engine = pools::open(pools::recorded(&recorder, &devices)).await?;
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
    assert_eq!(pools::check_space(pools::images_of(&devices)).await, Ok(()), "{layout:?}");
    Ok(())
}
