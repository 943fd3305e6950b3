//! Top-level vdevs with data are removed (spec 08 §34): beside writers and frees, with a crash at
//! any point, cancelled, with devices that fail; removals of OpenZFS continue here.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cenote_device::{Device, Fault, FaultyDevice, Image, ImageDevice, Recorder, Replay};
use cenote_dmu::Tx;
use cenote_engine::create::Redundancy;
use cenote_engine::zil::LogRecord;
use cenote_engine::{
    ApplyOptions, CheckpointError, Engine, EngineError, Event, PoolEvent, RemovalError,
    ScrubOptions, ShapeError,
};
use cenote_ondisk::config::VdevKind;
use cenote_ondisk::indirect::{REMOVING, RemovingPhys};
use cenote_ondisk::scan::ScanFunc;
use cenote_pool::import::{ScanOptions, scan, scan_devices};
use cenote_pool::{OpenOptions, Pool};
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::seeded::Bug;
use cenote_rt::{Error, Kind, Result, Rng, block_on, simulate, tunables};
use cenote_testkit::cuts;
use cenote_testkit::golden::golden;
use cenote_vdev::create::VdevClass;
use cenote_vdev::{DATA_START, DtlKind, TxgRanges};

use crate::condense;
use crate::scans::{BLOCKS, Fixture, fails, verify_of};

const SIZE: u64 = 96 << 20;

/// Small batches and segments, so that a removal has many.
pub(crate) struct Batches;

impl Batches {
    pub(crate) fn of(bytes: u64) -> Self {
        tunables::REMOVAL_BATCH_BYTES.set(bytes).unwrap();
        tunables::REMOVE_MAX_SEGMENT.set(bytes / 2).unwrap();
        Self
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        let tunables = [
            &tunables::REMOVAL_BATCH_BYTES,
            &tunables::REMOVE_MAX_SEGMENT,
            &tunables::REMOVAL_MAX_SPAN,
        ];
        for tunable in tunables {
            tunable.set(tunable.default).unwrap();
        }
        tunables::REMOVAL_SUSPEND_PROGRESS.set(0).unwrap();
    }
}

fn why(error: &Error) -> Option<RemovalError> {
    error.cause::<RemovalError>().cloned()
}

fn kinds(engine: &Engine) -> Vec<VdevKind> {
    engine.admin().vdev_config().children.iter().map(|top| top.kind.clone()).collect()
}

/// Mirrors of two disks.
pub(crate) fn mirrors(count: usize) -> PoolBuilder {
    PoolBuilder::new(vec![(Redundancy::Mirror, VdevClass::Normal, 2); count])
}

/// A pool with data on all of its vdevs.
pub(crate) async fn pool_of(builder: &PoolBuilder) -> Fixture {
    let (engine, devices) = builder.clone().with_size(SIZE).create_in_memory().await;
    let pool = Fixture { devices, engine };
    for name in ["tank/a", "tank/b"] {
        pool.engine.datasets().create(pools::dataset(name)).await.unwrap();
        pool.write(name, 0..BLOCKS, 1).await;
    }
    pool.snap("tank/a@1").await;
    pool.write("tank/a", 4..12, 2).await;
    pool
}

impl Fixture {
    pub(crate) fn top(&self, index: usize) -> u64 {
        self.engine.admin().vdev_config().children[index].guid
    }

    /// Removes a vdev to the end.
    pub(crate) async fn remove(&self, index: usize) {
        self.engine.removals().begin(self.top(index)).await.unwrap();
        self.engine.removals().wait().await.unwrap();
        assert_eq!(kinds(&self.engine)[index], VdevKind::Indirect);
    }

    /// Returns the vdev that has most blocks of each of the file systems, and their offsets in it.
    pub(crate) async fn vdev_with_most(&self, names: &[&str]) -> (usize, Vec<u64>) {
        let width = self.engine.admin().vdev_config().children.len();
        let mut found = vec![(usize::MAX, Vec::new()); width];
        for name in names {
            let mut of_name = vec![Vec::new(); width];
            for block in 0..BLOCKS {
                let (_, bp) = self.block_of(name, block).await;
                let dva = bp.dva(0).unwrap();
                of_name[dva.vdev as usize].push(dva.offset);
            }
            for ((least, all), offsets) in found.iter_mut().zip(of_name) {
                *least = offsets.len().min(*least);
                all.extend(offsets);
            }
        }
        let most = found.iter().enumerate().max_by_key(|(_, (least, _))| *least).unwrap().0;
        (most, found.swap_remove(most).1)
    }

    async fn removal(&self) -> RemovingPhys {
        self.engine.removals().state().await.unwrap().unwrap()
    }
}

async fn is_member(device: &Arc<ImageDevice>) -> bool {
    let scan = scan_devices(as_devices(std::slice::from_ref(device))).await;
    scan.find("tank").is_ok()
}

/// A vdev is removed beside a writer, and everything is freed and written again afterwards.
async fn vdev_is_removed(builder: PoolBuilder, width: usize, seed: u64) {
    let _small = Batches::of(256 << 10);
    let mut pool = pool_of(&builder).await;
    let mut rng = Rng::seeded(seed);
    let index = rng.below(3) as usize;
    let guid = pool.top(index);
    let writer = Arc::clone(&pool.engine);
    let (object, _) = pool.block_of("tank/b", 0).await;
    let writing = cenote_rt::spawn(async move {
        let head = writer.head("tank/b").await.unwrap();
        for round in 0..30 {
            pools::write(&writer, &head, object, round % BLOCKS, 60 + round).await.unwrap();
            if round % 5 == 4 {
                writer.sync().await.unwrap();
            }
            if round == 12 {
                writer.snapshots().destroy("tank/a@1").await.unwrap();
            }
        }
    });
    pool.remove(index).await;
    writing.await.unwrap();
    let state = pool.removal().await;
    assert_eq!((state.state, state.copied), (2, state.to_copy), "seed {seed}: {state:?}");
    assert_eq!(state.prev_indirect_vdev, Some(index as u64));
    let told = pool.engine.health().events().after(0);
    let event = Event::Pool(PoolEvent::Removed(guid));
    assert!(told.iter().any(|noted| noted.event == event));
    for device in pool.devices.drain(index * width..(index + 1) * width) {
        assert!(!is_member(&device).await, "seed {seed}: the device is no pool's");
    }
    pools::judge_devices(&pool.devices, "while it is in use", &[]);
    // Obsolete parts of the mapping.
    pool.write("tank/a", 0..BLOCKS, 5).await;
    assert_eq!(pool.scrub().await.errors, 0);
    pool.write("tank/b", 3..9, 6).await;
    pool.settle().await;
    let devices = pool.devices.clone();
    let summary = pool.finish().await;
    assert!(summary.is_clean(), "seed {seed}: {summary:?}");
    pools::check_space(pools::images_of(&devices)).await.unwrap();
}

#[test]
fn vdevs_are_removed_beside_writers() {
    for seed in 0..3 {
        simulate(seed, vdev_is_removed(PoolBuilder::disks(4), 1, seed)).unwrap();
    }
    for seed in 3..5 {
        simulate(seed, vdev_is_removed(mirrors(4), 2, seed)).unwrap();
    }
}

/// Vdevs are removed one after the other: copies of the first lie on the second. Sectors of 4 KiB.
async fn vdevs_are_removed_in_a_row() {
    let mut pool = pool_of(&PoolBuilder::disks(5).with_ashift(12)).await;
    pool.remove(0).await;
    pool.write("tank/b", 0..9, 7).await;
    pool.remove(2).await;
    let tops = pool.engine.admin().vdev_config().children;
    assert_eq!((tops[0].top.prev_indirect_vdev, tops[2].top.prev_indirect_vdev), (None, Some(0)));
    pool.write("tank/a", 3..20, 8).await;
    // The newest mapping is found first, and the pool is opened through both.
    pool.engine.export().await.unwrap();
    pool.devices.remove(2);
    pool.devices.remove(0);
    pool.engine = pools::open(as_devices(&pool.devices)).await.unwrap();
    pool.write("tank/b", 5..15, 9).await;
    pool.remove(1).await;
    pool.devices.remove(0);
    pool.engine.datasets().destroy("tank/b").await.unwrap();
    pool.settle().await;
    assert_eq!(pool.scrub().await.errors, 0);
    assert!(pool.finish().await.is_clean());
}

#[test]
fn chains_of_removed_vdevs_work() {
    simulate(1, vdevs_are_removed_in_a_row()).unwrap();
}

/// All copies of most objects of the MOS are on a vdev that is removed: whatever an import reads
/// is found through the mapping.
async fn metadata_is_removed(is_read_only: bool) {
    let classes = [VdevClass::Normal, VdevClass::Special];
    let tops = classes.map(|class| (Redundancy::Single, class, 1)).to_vec();
    let mut pool = pool_of(&PoolBuilder::new(tops)).await;
    pool.remove(1).await;
    pool.engine.export().await.unwrap();
    pool.devices.remove(1);
    let devices = as_devices(&pool.devices);
    if is_read_only {
        pools::assert_no_leaks(&pools::open_read_only(devices).await.unwrap()).await;
        return;
    }
    pool.engine = pools::open(devices).await.unwrap();
    pool.write("tank/a", 3..20, 8).await;
    assert!(pool.finish().await.is_clean());
}

#[test]
fn metadata_on_a_removed_vdev_is_found() {
    for is_read_only in [true, false] {
        simulate(1, metadata_is_removed(is_read_only)).unwrap();
    }
}

/// A removal stopped half way: frees before and behind the frontier, an export, then the end or a
/// cancellation.
async fn removal_stops_half_way(seed: u64, is_cancelled: bool) {
    let _small = Batches::of(64 << 10);
    let mut rng = Rng::seeded(seed);
    let mut pool = pool_of(&PoolBuilder::disks(4)).await;
    pool.engine.removals().begin(pool.top(1)).await.unwrap();
    // In no time: devices in memory take none.
    while pool.removal().await.copied < 300 << 10 {
        cenote_rt::yield_now().await;
    }
    tunables::REMOVAL_SUSPEND_PROGRESS.set(1).unwrap();
    let again = pool.engine.removals().begin(pool.top(1)).await.unwrap_err();
    assert_eq!(why(&again), Some(RemovalError::Already));
    let checkpoint = pool.engine.space().take_checkpoint().await.unwrap_err();
    assert_eq!(checkpoint.cause(), Some(&CheckpointError::Removing));
    // Frees on both sides of the frontier.
    for block in 0..BLOCKS {
        if rng.below(2) == 0 {
            pool.write("tank/a", block..block + 1, 20 + seed).await;
        }
    }
    let state = pool.removal().await;
    assert!(state.state == 1 && state.copied < state.to_copy, "seed {seed}: {state:?}");
    if rng.below(2) == 0 {
        pool.engine.export().await.unwrap();
        pools::judge_devices(&pool.devices, "half way", &[]);
        pool.engine = pools::open(as_devices(&pool.devices)).await.unwrap();
        assert_eq!(pool.engine.removals().removing(), Some(1));
        pool.write("tank/b", 2..6, 30).await;
    }
    if is_cancelled {
        pool.engine.removals().resume().await;
        pool.engine.removals().cancel().await.unwrap();
        assert_eq!(pool.removal().await.state, 3);
        let again = pool.engine.removals().cancel().await.unwrap_err();
        assert_eq!(why(&again), Some(RemovalError::NotRunning));
        let top = &pool.engine.admin().vdev_config().children[1];
        assert!(!top.top.removing && !top.top.non_allocating);
        pool.write("tank/b", 0..9, 31).await;
        pools::judge_devices(&pool.devices, "cancelled", &[]);
        // It can be removed as before.
        tunables::REMOVAL_SUSPEND_PROGRESS.set(0).unwrap();
        pool.remove(1).await;
    } else {
        tunables::REMOVAL_SUSPEND_PROGRESS.set(0).unwrap();
        pool.engine.removals().resume().await;
        pool.engine.removals().wait().await.unwrap();
    }
    let state = pool.removal().await;
    assert_eq!((state.state, state.copied), (2, state.to_copy), "seed {seed}: {state:?}");
    pool.devices.remove(1);
    pool.settle().await;
    assert!(pool.finish().await.is_clean(), "seed {seed}");
}

#[test]
fn removals_stop_half_way_and_go_on() {
    for seed in 0..6 {
        simulate(seed, removal_stops_half_way(seed, seed % 2 == 1)).unwrap();
    }
}

/// A power cut at any moment of a removal: the next import goes on, and nothing is lost.
async fn crash_loses_nothing(seed: u64) {
    let _small = Batches::of(128 << 10);
    let mut rng = Rng::seeded(seed);
    let pool = pool_of(&PoolBuilder::disks(4)).await;
    let (engine, guid) = (Arc::clone(&pool.engine), pool.top(2));
    let is_cancelled = rng.below(4) == 0;
    let (object, _) = pool.block_of("tank/b", 0).await;
    let changes = cenote_rt::spawn(async move {
        let head = engine.head("tank/b").await?;
        engine.removals().begin(guid).await?;
        for round in 0..12 {
            pools::write(&engine, &head, object, round, 60 + round).await?;
            engine.sync().await?;
        }
        if is_cancelled {
            engine.removals().cancel().await?;
        }
        engine.removals().wait().await
    });
    let most = 1 << (2 + rng.below(12));
    for _ in 0..rng.below(most) {
        cenote_rt::yield_now().await;
    }
    let images = pools::images_of(&pool.devices);
    drop(changes);
    let devices = pools::devices(images);
    let engine = pools::open(as_devices(&devices)).await.unwrap();
    let mut pool = Fixture { devices, engine };
    pool.write("tank/a", 0..6, 90).await;
    pool.engine.removals().resume().await;
    pool.engine.removals().wait().await.unwrap();
    if kinds(&pool.engine)[2] == VdevKind::Indirect {
        pool.devices.remove(2);
    }
    assert_eq!(pool.scrub().await.errors, 0, "seed {seed}");
    pool.settle().await;
    pool.engine.export().await.unwrap();
    let (summary, is_whole) = verify_of(as_devices(&pool.devices)).await;
    assert!(summary.is_clean() && is_whole, "seed {seed}: {summary:?}");
    pools::check_space(pools::images_of(&pool.devices)).await.unwrap();
    if seed.is_multiple_of(4) {
        pools::judge_devices(&pool.devices, "after a crash", &[]);
    }
}

#[test]
fn crash_at_any_point_loses_nothing() {
    for seed in 0..24 {
        simulate(seed, crash_loses_nothing(seed)).unwrap();
    }
}

/// A power cut at flush boundaries of a removal, with none, all or some of the unflushed writes: the
/// pool on disk is whole, and the removal goes on to its end. Returns the states that were found.
async fn cuts_lose_nothing(seed: u64) -> Vec<u64> {
    let _small = Batches::of(128 << 10);
    let pool = pool_of(&PoolBuilder::disks(4)).await;
    let (object, _) = pool.block_of("tank/b", 0).await;
    pool.engine.export().await.unwrap();
    let recorder = Recorder::new();
    let engine = pools::open(pools::recorded(&recorder, &pool.devices)).await.unwrap();
    let guid = engine.admin().vdev_config().children[2].guid;
    let head = engine.head("tank/b").await.unwrap();
    engine.removals().begin(guid).await.unwrap();
    for round in 0..6 {
        pools::write(&engine, &head, object, round, 60 + round).await.unwrap();
        engine.sync().await.unwrap();
    }
    engine.removals().wait().await.unwrap();
    pools::write(&engine, &head, object, 9, 70).await.unwrap();
    engine.export().await.unwrap();
    let log = recorder.log();
    let (mut replay, mut rng) = (Replay::new(&log), Rng::seeded(seed));
    let (mut boundary, mut states) = (0_u64, Vec::new());
    while replay.next_boundary() {
        boundary += 1;
        if boundary % 9 != seed % 9 {
            continue;
        }
        let (sample, images) = cuts::leave(&replay, &mut rng);
        let at = format!("seed {seed} event {} sample {sample}", replay.position());
        let devices = pools::devices(images);
        let (summary, _) = verify_of(as_devices(&devices)).await;
        assert!(summary.is_clean(), "{at}: {summary:?}");
        let engine = pools::open(as_devices(&devices)).await.unwrap();
        let pool = Fixture { devices, engine };
        let state = pool.engine.removals().state().await.unwrap();
        states.push(state.map_or(0, |state| state.state));
        pool.write("tank/b", 4..8, 80).await;
        pool.engine.removals().resume().await;
        pool.engine.removals().wait().await.unwrap();
        pool.engine.export().await.unwrap();
        let images = pools::images_of(&pool.devices);
        pools::check_space(images.clone()).await.unwrap_or_else(|error| panic!("{at}: {error}"));
        if states.len() % 8 == 1 {
            pools::judge_images(&images);
        }
    }
    states
}

#[test]
fn power_cuts_at_flushes_lose_nothing() {
    let mut states: Vec<u64> =
        (0..2).flat_map(|seed| simulate(seed, cuts_lose_nothing(seed)).unwrap()).collect();
    states.sort_unstable();
    states.dedup();
    assert_eq!(states, [0, 1, 2], "cuts before, during and after a removal");
}

/// Synchronous writes: a log block that was allocated before the removal is never written on the
/// vdev that goes.
async fn logs_leave_the_vdev(seed: u64) {
    let mut pool = pool_of(&PoolBuilder::disks(4)).await;
    let head = pool.engine.head("tank/b").await.unwrap();
    let (object, _) = pool.block_of("tank/b", 0).await;
    let mut rng = Rng::seeded(seed);
    // Chains whose next block is on some vdev.
    for round in 0..3 + rng.below(4) {
        let data = || cenote_rt::Buf::from(vec![70 + round as u8; 4096]);
        let change = |tx: &mut Tx<'_>| {
            tx.write(object, round << 17, &data())?;
            let record = LogRecord::write(object, round << 17, data());
            Ok(((), head.log().append(tx, vec![record])?))
        };
        pool.engine.apply(&head, ApplyOptions::new().logged(), change).await.unwrap();
        pool.engine.intent_logs().commit(&head, None).await.unwrap();
    }
    let index = rng.below(4) as usize;
    let begun = pool.engine.removals().begin(pool.top(index)).await;
    let on_it = head.log().has_blocks_on(index as u64);
    assert!(!on_it, "seed {seed}: a log block is on the vdev that is being removed");
    begun.unwrap();
    pool.engine.removals().wait().await.unwrap();
    pool.devices.remove(index);
    assert!(pool.finish().await.is_clean());
}

#[test]
fn logs_end_before_a_removal() {
    for seed in 0..4 {
        simulate(seed, logs_leave_the_vdev(seed)).unwrap();
    }
}

/// Both sides of a mirror have a wrong block each, before the removal: both blocks survive it.
async fn sides_stay_apart() {
    let mut pool = pool_of(&mirrors(4)).await;
    let (most, offsets) = pool.vdev_with_most(&["tank/b"]).await;
    let sides = 2 * most..2 * most + 2;
    for (side, offset) in sides.clone().zip(&offsets[..2]) {
        let wrong = vec![cenote_rt::Buf::from(vec![0xee; 512])];
        pool.devices[side].write(offset + DATA_START, wrong).await.unwrap();
    }
    pool.remove(most).await;
    pool.devices.drain(sides);
    let done = pool.scrub().await;
    assert!(done.errors == 0 && done.processed > 0, "{done:?}");
    assert_eq!(pool.scrub().await.processed, 0);
    assert!(pool.finish().await.is_clean());
}

#[test]
fn sides_of_a_mirror_stay_apart() {
    simulate(1, sides_stay_apart()).unwrap();
}

/// Exports the pool, and reads everything without its second device.
async fn assert_whole_without_the_second(pool: &Fixture) {
    pool.engine.export().await.unwrap();
    let rest = as_devices(&pool.devices).into_iter().enumerate().filter(|(index, _)| *index != 1);
    let (summary, _) = verify_of(rest.map(|(_, device)| device).collect()).await;
    assert!(summary.lost == 0 && summary.unreachable == 0, "{summary:?}");
}

/// A side of a target mirror is away during the removal: it gets the copies, whose births are those
/// of the originals, before it counts as whole.
async fn absent_side_gets_the_copies() {
    let mut pool = pool_of(&mirrors(4)).await;
    let away = pool.leaf(0);
    pool.engine.leaves().offline(away, false).await.unwrap();
    pool.remove(1).await;
    pool.engine.leaves().online(away, None).await.unwrap();
    let lacks =
        |pool: &Fixture| !pool.engine.tree().dtl(away, DtlKind::Missing).unwrap().is_empty();
    assert!(lacks(&pool));
    pool.resilver().await;
    assert!(!lacks(&pool));
    pool.devices.drain(2..4);
    assert_whole_without_the_second(&pool).await;
    pools::judge_devices(&pool.devices, "after a resilver", &[]);
}

#[test]
fn side_that_was_away_gets_the_copies() {
    simulate(1, absent_side_gets_the_copies()).unwrap();
}

/// A side is away for the first copies, and is resilvered before the removal has ended: block
/// pointers lead to the originals then. It counts as whole after another resilver.
async fn resilver_ends_before_the_removal() {
    let _small = Batches::of(64 << 10);
    let mut pool = pool_of(&mirrors(4)).await;
    let away = pool.leaf(0);
    let lacks =
        |pool: &Fixture| !pool.engine.tree().dtl(away, DtlKind::Missing).unwrap().is_empty();
    pool.engine.leaves().offline(away, false).await.unwrap();
    pool.engine.removals().begin(pool.top(1)).await.unwrap();
    while pool.removal().await.copied < 300 << 10 {
        cenote_rt::yield_now().await;
    }
    tunables::REMOVAL_SUSPEND_PROGRESS.set(1).unwrap();
    pool.engine.leaves().online(away, None).await.unwrap();
    pool.resilver().await;
    assert!(lacks(&pool), "no scan has seen the copies");
    tunables::REMOVAL_SUSPEND_PROGRESS.set(0).unwrap();
    pool.engine.removals().wait().await.unwrap();
    pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    assert!(!lacks(&pool));
    pool.devices.drain(2..4);
    assert_whole_without_the_second(&pool).await;
}

#[test]
fn copies_are_resilvered_after_a_removal() {
    simulate(1, resilver_ends_before_the_removal()).unwrap();
}

/// One side of the mirror was away while blocks were written. It returns during the removal, with
/// the old bytes: the copies are those of the other side.
async fn stale_side_is_not_copied(does_return: bool) {
    let _small = Batches::of(64 << 10);
    let mut pool = pool_of(&mirrors(4)).await;
    let stale = pool.leaf(2);
    pool.engine.leaves().offline(stale, false).await.unwrap();
    for (tag, name) in [(7, "tank/a"), (8, "tank/b")] {
        pool.write(name, 0..BLOCKS, tag).await;
    }
    let lacks = pool.engine.tree().dtl(stale, DtlKind::Missing).unwrap();
    assert!(!lacks.is_empty(), "nothing was written to the mirror");
    tunables::REMOVAL_SUSPEND_PROGRESS.set(u64::from(does_return)).unwrap();
    pool.engine.removals().begin(pool.top(1)).await.unwrap();
    if does_return {
        pool.engine.leaves().online(stale, None).await.unwrap();
        tunables::REMOVAL_SUSPEND_PROGRESS.set(0).unwrap();
    }
    pool.engine.removals().wait().await.unwrap();
    assert_eq!(kinds(&pool.engine)[1], VdevKind::Indirect);
    pool.devices.drain(2..4);
    let done = pool.scrub().await;
    assert_eq!((done.errors, done.processed), (0, 0), "{done:?}");
    assert!(pool.finish().await.is_clean());
}

#[test]
fn stale_side_of_a_mirror_is_not_copied() {
    simulate(1, stale_side_is_not_copied(false)).unwrap();
    simulate(1, stale_side_is_not_copied(true)).unwrap();
}

/// The disk cannot be read at one place: the removal is cancelled, and nothing changes.
async fn read_error_cancels() {
    let builder = PoolBuilder::disks(4).with_size(SIZE);
    let images = builder.memory_devices();
    let pool = pool_of(&builder).await;
    drop(images);
    let (_, bp) = pool.block_of("tank/b", 3).await;
    let dva = bp.dva(0).unwrap();
    let at = dva.offset + (4 << 20);
    pool.engine.export().await.unwrap();
    let devices: Vec<Arc<dyn Device>> = (0..)
        .zip(as_devices(&pool.devices))
        .map(|(index, device)| {
            let faulty = FaultyDevice::new(device, 7);
            let is_bad = index == dva.vdev;
            let range = at..at + 512;
            let faulty = if is_bad { faulty.with_range(range, Fault::Eio) } else { faulty };
            Arc::new(faulty) as _
        })
        .collect();
    let engine = pools::open(devices).await.unwrap();
    let pool = Fixture { devices: pool.devices, engine };
    let index = dva.vdev as usize;
    pool.engine.removals().begin(pool.top(index)).await.unwrap();
    let ended = pool.engine.removals().wait().await.unwrap_err();
    assert!(matches!(why(&ended), Some(RemovalError::Cancelled { .. })), "{ended}");
    assert_eq!((pool.removal().await.state, pool.engine.removals().removing()), (3, None));
    // With the tunable it goes on, and the copies of the segment are lost.
    tunables::REMOVAL_IGNORE_ERRORS.set(1).unwrap();
    pool.remove(index).await;
    tunables::REMOVAL_IGNORE_ERRORS.set(0).unwrap();
    assert!(pool.scrub().await.errors > 0);
    pool.engine.export().await.unwrap();
    let mut devices = pool.devices;
    devices.remove(index);
    let (summary, _) = verify_of(as_devices(&devices)).await;
    assert!(summary.lost > 0, "{summary:?}");
    pools::check_space(pools::images_of(&devices)).await.unwrap();
}

#[test]
fn read_errors_cancel_a_removal() {
    simulate(1, read_error_cancels()).unwrap();
}

#[test]
fn what_cannot_be_removed_is_refused() {
    simulate(1, async {
        let refused = async |pool: &Fixture, guid| {
            let error = pool.engine.removals().begin(guid).await.unwrap_err();
            (why(&error), error.kind())
        };
        let pool = pool_of(&PoolBuilder::disks(4).with_logs(1)).await;
        let before = pool.engine.admin().vdev_config();
        assert_eq!(refused(&pool, 7).await, (Some(RemovalError::NoSuchVdev), Kind::NotFound));
        let log = (Some(RemovalError::NotSupported), Kind::Unsupported);
        assert_eq!(refused(&pool, pool.top(4)).await, log);
        pool.engine.space().take_checkpoint().await.unwrap();
        let error = pool.engine.removals().begin(pool.top(0)).await.unwrap_err();
        assert_eq!(error.cause(), Some(&CheckpointError::Exists));
        pool.engine.space().discard_checkpoint().await.unwrap();
        pool.settle().await;
        assert_eq!(pool.engine.admin().vdev_config(), before);
        // The others have too little space.
        pool.remove(0).await;
        pool.remove(1).await;
        let full = refused(&pool, pool.top(2)).await;
        let gone = refused(&pool, pool.top(0)).await;
        assert_eq!((gone.0, gone.1), (Some(RemovalError::NoSuchVdev), Kind::NotFound));
        assert_eq!(full, (Some(RemovalError::NoSpace), Kind::NoSpace));
        drop(pool);
        // RAID-Z in the pool; and no top-level vdev.
        let tops =
            vec![(Redundancy::Single, VdevClass::Normal, 1), (pools_raidz(), VdevClass::Normal, 3)];
        let pool = pool_of(&PoolBuilder::new(tops)).await;
        assert_eq!(refused(&pool, pool.top(0)).await.0, Some(RemovalError::Layout));
        assert_eq!(refused(&pool, pool.leaf(1)).await.0, Some(RemovalError::NotSupported));
        // A disk that lacks data.
        let pool = pool_of(&PoolBuilder::disks(4)).await;
        let txgs = TxgRanges::new([(2, 3)]);
        assert!(pool.engine.tree().set_dtl(pool.leaf(0), txgs));
        assert_eq!(refused(&pool, pool.top(0)).await.0, Some(RemovalError::Busy));
    })
    .unwrap();
}

fn pools_raidz() -> Redundancy {
    cenote_poolkit::builder::redundancy_of("raidz1")
}

/// Removals stand beside scrubs, detached leaves and destroyed datasets.
async fn removal_beside_everything(seed: u64) {
    let _small = Batches::of(128 << 10);
    let mut rng = Rng::seeded(seed);
    let mut pool = pool_of(&mirrors(4)).await;
    pool.engine.scans().scrub(ScrubOptions::default()).await.unwrap();
    let guid = pool.top(1);
    pool.engine.removals().begin(guid).await.unwrap();
    for round in 0..6 {
        match rng.below(4) {
            0 => pool.snap(&format!("tank/b@{round}")).await,
            1 => drop(pool.engine.scans().scrub(ScrubOptions::default()).await),
            2 => pool.write("tank/b", round..round + 6, 40 + round).await,
            _ => {
                let attached = pool.engine.leaves().detach(pool.leaf(0), None).await;
                let is_gone = attached.is_ok();
                if is_gone {
                    pool.devices.remove(0);
                } else {
                    assert!(attached.unwrap_err().cause::<ShapeError>().is_some());
                }
            }
        }
        cenote_rt::sleep(Duration::from_millis(rng.below(20))).await;
    }
    pool.engine.removals().wait().await.unwrap();
    pool.engine.scans().wait(ScanFunc::Scrub).await.unwrap();
    let mut members = Vec::new();
    for device in std::mem::take(&mut pool.devices) {
        if is_member(&device).await {
            members.push(device);
        }
    }
    pool.devices = members;
    assert_eq!(pool.scrub().await.errors, 0);
    assert!(pool.finish().await.is_clean(), "seed {seed}");
}

#[test]
fn removals_run_beside_everything_else() {
    for seed in 0..3 {
        simulate(seed, removal_beside_everything(seed)).unwrap();
    }
}

async fn open_folder(folder: &Path, name: &str) -> Result<Arc<Engine>> {
    let options = ScanOptions { paths: vec![folder.to_path_buf()] };
    let found = scan(&options).await?;
    Engine::open(found.find(name).expect("the pool"), &OpenOptions::default()).await
}

/// The removal of a real pool, stopped half way, is continued here.
#[test]
fn removals_of_openzfs_continue_here() {
    let Some(golden) = golden("g-removing") else { return };
    let copy = golden.private_copy();
    let folder = copy.path();
    block_on(2, async {
        let engine = open_folder(folder, "g-removing").await.unwrap();
        let state = engine.removals().state().await.unwrap().unwrap();
        assert!(state.state == 1 && state.copied > 0 && state.copied < state.to_copy);
        engine.removals().resume().await;
        engine.removals().wait().await.unwrap();
        let state = engine.removals().state().await.unwrap().unwrap();
        assert_eq!((state.state, state.copied), (2, state.to_copy));
        engine.export().await.unwrap();
    })
    .unwrap();
    pools::judge(folder, "g-removing");
}

/// It can be cancelled here, too.
#[test]
fn removals_of_openzfs_are_cancelled_here() {
    let Some(golden) = golden("g-removing") else { return };
    let copy = golden.private_copy();
    let folder = copy.path();
    block_on(2, async {
        let engine = open_folder(folder, "g-removing").await.unwrap();
        engine.removals().cancel().await.unwrap();
        engine.export().await.unwrap();
    })
    .unwrap();
    pools::judge(folder, "g-removing");
}

/// Returns the devices of a pool whose removal was begun here, and stopped half way or at its end.
async fn removed_here(is_half: bool) -> Vec<Image> {
    let _small = Batches::of(64 << 10);
    let mut pool = pool_of(&PoolBuilder::disks(4)).await;
    pool.engine.removals().begin(pool.top(1)).await.unwrap();
    if is_half {
        while pool.removal().await.copied < 300 << 10 {
            cenote_rt::yield_now().await;
        }
        tunables::REMOVAL_SUSPEND_PROGRESS.set(1).unwrap();
        pool.write("tank/a", 2..9, 50).await;
        assert_eq!(pool.removal().await.state, 1);
    } else {
        pool.engine.removals().wait().await.unwrap();
        pool.devices.remove(1);
        pool.write("tank/a", 2..9, 50).await;
    }
    pool.engine.export().await.unwrap();
    pools::images_of(&pool.devices)
}

/// OpenZFS's engine finishes a removal that was begun here, and goes on with a pool after one.
#[test]
fn removals_continue_in_openzfs() {
    let Some(theirs) = cenote_oracle::libzpool() else { return };
    for is_half in [true, false] {
        let folder = pools::unpack(&simulate(1, removed_here(is_half)).unwrap());
        theirs.pool("tank", folder.path(), &["figures"]);
        pools::judge(folder.path(), "tank");
        let state = block_on(1, async {
            let options = ScanOptions { paths: vec![folder.path().to_path_buf()] };
            let found = scan(&options).await.unwrap();
            let candidate = found.find("tank").unwrap();
            let pool = Pool::open(candidate, &OpenOptions::default()).await.unwrap();
            pools::assert_no_leaks(&pool).await;
            RemovingPhys::decode(&pool.directory_value(REMOVING).unwrap().words()).unwrap()
        })
        .unwrap();
        assert_eq!((state.state, state.copied), (2, state.to_copy), "{is_half}");
    }
}

/// A view that began before the removal reads blocks that were freed since, and are not copied: it
/// is told to begin again, not of damage.
async fn view_ends_with_the_vdev() {
    let pool = pool_of(&PoolBuilder::disks(4)).await;
    let (object, block) = pool.block_of("tank/b", 0).await;
    let index = block.dvas().next().unwrap().vdev as usize;
    let view = pool.engine.view_for(Duration::from_hours(1)).await.unwrap();
    let old = view.dataset("tank/b").await.unwrap().open().await.unwrap();
    let dnode = old.dnode(object).await.unwrap();
    pool.write("tank/b", 0..BLOCKS, 30).await;
    // No gap is copied with what surrounds it.
    let _batches = Batches::of(256 << 10);
    tunables::REMOVAL_MAX_SPAN.set(0).unwrap();
    pool.remove(index).await;
    pool.engine.store().clear_cache();
    let len = dnode.geometry().byte_count() as usize;
    let read = dnode.read_at(0, len).await;
    assert_eq!(read.unwrap_err().kind(), Kind::Overtaken);
    assert_eq!(pool.engine.view().await.unwrap().error_log().await.unwrap(), []);
    assert!(
        pool.engine
            .health()
            .events()
            .after(0)
            .iter()
            .all(|noted| { !matches!(noted.event, Event::Lost { .. } | Event::Bad { .. }) })
    );
}

#[test]
fn views_of_earlier_states_end_with_the_vdev() {
    simulate(1, view_ends_with_the_vdev()).unwrap();
}

/// The state in a view.
#[test]
fn views_show_the_removal() {
    simulate(1, async {
        let pool = pool_of(&PoolBuilder::disks(4)).await;
        pool.remove(3).await;
        let view: Arc<Pool> = pool.engine.view().await.unwrap();
        let words = view.directory_value(REMOVING).unwrap().words();
        assert_eq!(RemovingPhys::decode(&words).unwrap(), pool.removal().await);
    })
    .unwrap();
}

#[test]
fn mistakes_are_found() {
    let found = |bug| match bug {
        Bug::CancelledCopiesKept => fails(bug, removal_stops_half_way(1, true)),
        Bug::ResilverForgetsCopies => fails(bug, resilver_ends_before_the_removal()),
        Bug::LogsStayOnRemovedVdev => (0..20).any(|seed| fails(bug, logs_leave_the_vdev(seed))),
        Bug::CondenseDropsEntry | Bug::CondenseForgetsCounts | Bug::CondenseKeepsOldMap => {
            fails(bug, condense::mapping_is_condensed_twice())
        }
        _ => (0..8).any(|seed| fails(bug, vdev_is_removed(PoolBuilder::disks(4), 1, seed))),
    };
    let unfound: Vec<_> = Bug::OF_REMOVALS.into_iter().filter(|bug| !found(*bug)).collect();
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}

/// Returns the bytes allocated on a top-level vdev.
async fn allocated(pool: &Fixture, vdev: u64) -> u64 {
    pool.engine.sync().await.unwrap();
    let view = pool.engine.view().await.unwrap();
    view.space().await.unwrap().vdev(vdev).unwrap().allocated
}

/// A vdev gets new blocks only while it is `allocating`, also after the next import, and after a
/// removal that is cancelled.
async fn vdev_gets_no_new_blocks() {
    let _small = Batches::of(256 << 10);
    let mut pool = pool_of(&mirrors(4)).await;
    let set = async |pool: &Fixture, guid: u64, is_on: bool| {
        pool.engine.admin().set_allocating(guid, is_on).await
    };
    let is_off = |pool: &Fixture, index: usize| {
        pool.engine.admin().vdev_config().children[index].top.non_allocating
    };
    let guid = pool.top(1);
    let leaf = pool.engine.admin().vdev_config().children[1].children[0].guid;
    assert_eq!(set(&pool, leaf, false).await.unwrap_err().kind(), Kind::Unsupported);
    set(&pool, leaf, true).await.unwrap();
    assert_eq!(set(&pool, 77, false).await.unwrap_err().kind(), Kind::NotFound);

    set(&pool, guid, false).await.unwrap();
    let before = allocated(&pool, 1).await;
    for round in 0..5 {
        pool.write("tank/b", 0..BLOCKS, 20 + round).await;
        assert!(allocated(&pool, 1).await <= before);
    }
    pool.engine.export().await.unwrap();
    pools::judge_devices(&pool.devices, "without allocations", &[]);
    pool.engine = pools::open(as_devices(&pool.devices)).await.unwrap();
    assert!(is_off(&pool, 1));
    let before = allocated(&pool, 1).await;
    for round in 0..5 {
        pool.write("tank/b", 0..BLOCKS, 30 + round).await;
        assert!(allocated(&pool, 1).await <= before);
    }
    // The last one for ordinary data stays.
    for index in [0, 3] {
        set(&pool, pool.top(index), false).await.unwrap();
    }
    let last = set(&pool, pool.top(2), false).await.unwrap_err();
    assert!(matches!(last.cause(), Some(EngineError::LastAllocating(_))), "{last}");
    for index in [0, 3] {
        set(&pool, pool.top(index), true).await.unwrap();
    }

    // While it is removed, it gets none whatever is set; that counts once the removal is cancelled.
    for is_on in [false, true] {
        tunables::REMOVAL_SUSPEND_PROGRESS.set(1).unwrap();
        pool.engine.removals().begin(guid).await.unwrap();
        let before = allocated(&pool, 1).await;
        set(&pool, guid, is_on).await.unwrap();
        pool.write("tank/b", 0..BLOCKS, 40).await;
        assert!(is_off(&pool, 1) && allocated(&pool, 1).await <= before);
        pool.engine.removals().resume().await;
        pool.engine.removals().cancel().await.unwrap();
        assert_eq!(is_off(&pool, 1), !is_on);
    }
    tunables::REMOVAL_SUSPEND_PROGRESS.set(0).unwrap();
    let before = allocated(&pool, 1).await;
    pool.write("tank/a", 0..BLOCKS, 50).await;
    pool.write("tank/b", 0..BLOCKS, 51).await;
    assert!(allocated(&pool, 1).await > before);
    pool.remove(1).await;
    pool.settle().await;
    assert!(pool.finish().await.is_clean());
}

#[test]
fn vdevs_without_allocations_get_no_new_blocks() {
    simulate(7, vdev_gets_no_new_blocks()).unwrap();
}

/// The space of a vdev without allocations is no space of datasets: only its data must fit.
async fn vdev_without_allocations_is_removed() {
    let pool = pool_of(&mirrors(2)).await;
    let refused = pool.engine.removals().begin(pool.top(0)).await.unwrap_err();
    assert_eq!(why(&refused), Some(RemovalError::NoSpace));
    pool.engine.admin().set_allocating(pool.top(1), false).await.unwrap();
    let refused = pool.engine.removals().begin(pool.top(0)).await.unwrap_err();
    assert_eq!(why(&refused), Some(RemovalError::NoSpace));
    pool.remove(1).await;
    pool.settle().await;
    assert!(pool.finish().await.is_clean());
}

#[test]
fn vdevs_without_allocations_are_removed() {
    simulate(8, vdev_without_allocations_is_removed()).unwrap();
}

/// In a full pool a vdev without allocations stays, because its data fits nowhere; nothing is
/// written, but data can be freed, and then the vdev goes.
async fn vdev_of_a_full_pool_stays() {
    let pool = pool_of(&mirrors(2)).await;
    let head = pool.engine.head("tank/b").await.unwrap();
    let (object, _) = pool.block_of("tank/b", 0).await;
    let mut block = BLOCKS;
    let full = loop {
        match pools::write(&pool.engine, &head, object, block, 3).await {
            Ok(()) => block += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), Kind::NoSpace);
    drop(head);
    pool.engine.admin().set_allocating(pool.top(1), false).await.unwrap();
    let refused = pool.engine.removals().begin(pool.top(1)).await.unwrap_err();
    assert_eq!(why(&refused), Some(RemovalError::NoSpace));
    let head = pool.engine.head("tank/a").await.unwrap();
    let (object, _) = pool.block_of("tank/a", 0).await;
    let refused = pools::write(&pool.engine, &head, object, BLOCKS, 4).await.unwrap_err();
    assert_eq!(refused.kind(), Kind::NoSpace);
    drop(head);
    pool.engine.datasets().destroy("tank/b").await.unwrap();
    pool.settle().await;
    pool.remove(1).await;
    pool.settle().await;
    assert!(pool.finish().await.is_clean());
}

#[test]
fn vdevs_of_full_pools_stay() {
    simulate(9, vdev_of_a_full_pool_stays()).unwrap();
}
