//! Sequential rebuilds of dRAID vdevs, and their distributed spares (spec 06 §6.6, §9.2): beside
//! writers, with devices that fail meanwhile, and with a crash at any point.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use cenote_device::{Image, ImageDevice, Recorder};
use cenote_engine::create::plan_distributed_spare;
use cenote_engine::{Attach, Engine, NewLeaf, ShapeError};
use cenote_ondisk::config::VdevKind;
use cenote_ondisk::rebuild::RebuildState;
use cenote_ondisk::scan::ScanFunc;
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::seeded::Bug;
use cenote_rt::{Error, Rng, block_on, simulate};
use cenote_testkit::cuts;
use cenote_testkit::golden::golden;

use crate::rebuilds::{NoScrub, rebuild_of};
use crate::scans::{BLOCKS, Failing, Fixture, fails, verify_of};
use crate::shapes::{leaf_on, new_device};

/// A dRAID: its layout, devices, parity.
pub(crate) type Draid = (&'static str, usize, usize);

pub(crate) const ONE: Draid = ("draid1:2d:6c:1s", 6, 1);
pub(crate) const TWO: Draid = ("draid2:2d:8c:2s", 8, 2);

fn why(error: &Error) -> Option<ShapeError> {
    error.cause::<ShapeError>().copied()
}

fn has_spare(engine: &Engine) -> bool {
    engine.admin().vdev_config().walk().any(|vdev| vdev.kind == VdevKind::Spare)
}

/// Guids of the leaves with devices, in their order.
pub(crate) fn real_leaves(engine: &Engine) -> Vec<u64> {
    let root = engine.admin().vdev_config();
    root.leaves().filter(|leaf| leaf.kind.is_real_leaf()).map(|leaf| leaf.guid).collect()
}

/// Positions of the leaves that have a block, parity first.
pub(crate) async fn homes(pool: &Fixture) -> Vec<usize> {
    let (_, bp) = pool.block_of("tank/a", 5).await;
    let tree = pool.engine.tree();
    let ranges = tree.layout_ranges(bp.dva(0).unwrap(), bp.psize(), bp.physical_birth());
    let guids = real_leaves(&pool.engine);
    let at = |guid| guids.iter().position(|leaf| *leaf == guid).unwrap();
    ranges.iter().map(|range| at(tree.leaf(range.leaf).guid())).collect()
}

/// Returns a distributed spare of the pool.
async fn spare_of(engine: &Arc<Engine>, number: usize) -> NewLeaf {
    let view = engine.view().await.unwrap();
    plan_distributed_spare(&view.spares()[number].config)
}

/// The pool without some devices: nothing is lost.
async fn is_readable_without(devices: &[Arc<ImageDevice>], gone: &[usize], what: &str) {
    let rest = as_devices(devices).into_iter().enumerate();
    let rest = rest.filter(|(index, _)| !gone.contains(index)).map(|(_, device)| device);
    let (summary, _) = verify_of(rest.collect()).await;
    assert!(summary.lost == 0 && summary.unreachable == 0, "{what}: without {gone:?}: {summary:?}");
}

/// Takes away each set of as many devices as redundancy allows, beside those that are `absent`.
async fn every_loss_is_survived(
    devices: &[Arc<ImageDevice>],
    parity: usize,
    absent: &[usize],
    what: &str,
) {
    let count = devices.len();
    for first in (0..count).filter(|first| !absent.contains(first)) {
        // With one parity once, else each pair.
        let seconds = first + 1..if parity > 1 { count } else { first + 2 };
        for second in seconds.filter(|second| parity == 1 || !absent.contains(second)) {
            let gone = [absent, &[first, second][..parity]].concat();
            is_readable_without(devices, &gone, what).await;
        }
    }
}

/// A child is rebuilt on a new device, beside a writer and a dataset that is destroyed.
async fn child_is_rebuilt((layout, count, parity): Draid, is_absent: bool, seed: u64) {
    let _unrepaired = NoScrub::new();
    let mut pool = Fixture::new(layout, count).await;
    let at = homes(&pool).await[seed as usize % 3];
    let old = pool.leaf(at);
    if is_absent {
        pool.engine.leaves().offline(old, false).await.unwrap();
        pool.write("tank/b", 0..5, 50).await;
    }
    let head = pool.engine.head("tank/a").await.unwrap();
    let object = pools::new_object(&pool.engine, &head).await.unwrap();
    let writer = Arc::clone(&pool.engine);
    let writing = cenote_rt::spawn(async move {
        for round in 0..40 {
            let block = (round * 7 + seed) % 12;
            pools::write(&writer, &head, object, block, 60 + round).await.unwrap();
            if round % 8 == 7 {
                writer.sync().await.unwrap();
            }
        }
    });
    let device = new_device();
    let leaf = NewLeaf { is_sequential: true, ..leaf_on(&device) };
    pool.devices.push(device);
    pool.write("tank/b", 0..BLOCKS, 30).await;
    pool.engine.leaves().attach(old, leaf, Attach::Replace).await.unwrap();
    pool.engine.datasets().destroy("tank/c").await.unwrap();
    pool.engine.scans().resume().await.unwrap();
    pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    let done = rebuild_of(&pool.engine).await;
    assert_eq!((done.state, done.errors), (RebuildState::Complete, 0), "{done:?}");
    assert!(done.bytes_rebuilt > 1 << 18 && done.bytes_scanned > done.bytes_rebuilt, "{done:?}");
    writing.await.unwrap();
    for (_, leaf) in pool.engine.tree().leaves() {
        assert!(leaf.is_whole(), "{layout}: seed {seed}: {leaf:?}");
    }
    pool.devices.remove(at);
    pool.settle().await;
    pool.engine.export().await.unwrap();
    let (summary, is_whole) = verify_of(as_devices(&pool.devices)).await;
    assert!(summary.is_clean() && is_whole, "{layout}: seed {seed}: {summary:?}");
    every_loss_is_survived(&pool.devices, parity, &[], layout).await;
    pools::judge_devices(&pool.devices, layout, &[]);
}

#[test]
fn children_are_rebuilt_beside_writers() {
    for (seed, (layout, is_absent)) in (0..).zip([(ONE, false), (ONE, true), (TWO, true)]) {
        simulate(seed, child_is_rebuilt(layout, is_absent, seed)).unwrap();
    }
}

/// How a distributed spare stops standing in for a leaf.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SpareEnds {
    LeafIsBack,
    LeafIsReplaced,
    SpareIsDetached,
}

/// A distributed spare stands in for a leaf: it has everything, so that as many others may go as
/// redundancy allows.
async fn spare_stands_in((layout, count, parity): Draid, is_sequential: bool, ends: SpareEnds) {
    let _unrepaired = NoScrub::new();
    let mut pool = Fixture::new(layout, count).await;
    let at = homes(&pool).await[1];
    let failed = pool.leaf(at);
    pool.engine.leaves().fault(failed, false).await.unwrap();
    pool.write("tank/a", 0..3, 70).await;
    let spare = NewLeaf { is_sequential, ..spare_of(&pool.engine, 0).await };
    let guid = spare.config.guid;
    pool.engine.leaves().attach(failed, spare.clone(), Attach::Replace).await.unwrap();
    let refused = pool.engine.leaves().attach(pool.leaf(0), spare, Attach::Replace).await;
    assert_eq!(why(&refused.unwrap_err()), Some(ShapeError::Replacing));
    pool.write("tank/a", 0..6, 80).await;
    pool.resilver().await;
    assert!(has_spare(&pool.engine) && !pool.lacks(guid), "{layout}: {is_sequential}");
    pool.write("tank/b", 3..9, 81).await;
    pool.settle().await;
    let what = format!("{layout}: sequential: {is_sequential}");
    let copy = pools::devices(pools::images_of(&pool.devices));
    let engine = pools::open(as_devices(&copy)).await.unwrap();
    engine.export().await.unwrap();
    drop(engine);
    every_loss_is_survived(&copy, parity, &[at], &what).await;
    pools::judge_devices(&copy, &what, &[]);
    match ends {
        SpareEnds::SpareIsDetached => {
            pool.engine.leaves().detach(guid, None).await.unwrap();
            pool.engine.leaves().online(failed, None).await.unwrap();
            pool.resilver().await;
        }
        SpareEnds::LeafIsBack => {
            pool.engine.leaves().online(failed, None).await.unwrap();
            pool.resilver().await;
        }
        SpareEnds::LeafIsReplaced => {
            let device = new_device();
            let leaf = leaf_on(&device);
            pool.engine.leaves().attach(failed, leaf, Attach::Replace).await.unwrap();
            pool.resilver().await;
            pool.devices[at] = device;
        }
    }
    assert!(!has_spare(&pool.engine), "{what}");
    let spares = pool.engine.view().await.unwrap().spares().len();
    assert_eq!(spares, usize::from(layout == ONE.0) + 2 * usize::from(layout == TWO.0));
    assert!(pool.finish().await.is_clean());
}

#[test]
fn distributed_spares_stand_in_for_leaves() {
    use SpareEnds::{LeafIsBack, LeafIsReplaced, SpareIsDetached};
    for (layout, is_sequential, ends) in [
        (ONE, true, LeafIsReplaced),
        (ONE, false, LeafIsBack),
        (ONE, true, SpareIsDetached),
        (TWO, false, LeafIsReplaced),
        (TWO, true, LeafIsBack),
    ] {
        simulate(1, spare_stands_in(layout, is_sequential, ends)).unwrap();
    }
}

/// Two leaves fail, one while the other is being rebuilt: two columns of a group are missing. Both
/// have spares, of which one has parts on the other's leaf.
async fn second_leaf_fails(seed: u64) {
    let _unrepaired = NoScrub::new();
    let (layout, count, parity) = TWO;
    let pool = Fixture::new(layout, count).await;
    let guids = real_leaves(&pool.engine);
    let homes = homes(&pool).await;
    let at = [homes[seed as usize % 4], homes[(seed as usize + 1) % 4]];
    let (first, second) = (guids[at[0]], guids[at[1]]);
    pool.engine.leaves().fault(first, false).await.unwrap();
    assert!(pool.engine.leaves().call_in_spare(first).await.unwrap().is_some());
    pool.write("tank/a", 0..6, 80).await;
    pool.engine.scans().resume().await.unwrap();
    for _ in 0..seed * 40 {
        cenote_rt::yield_now().await;
    }
    pool.engine.leaves().fault(second, false).await.unwrap();
    pool.write("tank/a", 2..8, 81).await;
    assert!(pool.engine.leaves().call_in_spare(second).await.unwrap().is_some());
    for round in 0..4 {
        pool.resilver().await;
        pool.write("tank/b", round..round + 3, 90 + round).await;
    }
    let root = pool.engine.admin().vdev_config();
    for leaf in root.walk().filter(|vdev| matches!(vdev.kind, VdevKind::DraidSpare { .. })) {
        assert!(!pool.lacks(leaf.guid), "seed {seed}: spare {}", leaf.guid);
    }
    // None is left.
    let third = (0..count).find(|third| !at.contains(third)).unwrap();
    pool.engine.leaves().fault(guids[third], true).await.unwrap();
    assert_eq!(pool.engine.leaves().call_in_spare(guids[third]).await.unwrap(), None);
    pool.write("tank/a", 0..4, 82).await;
    pool.engine.export().await.unwrap();
    for fourth in (0..count).filter(|it| !at.contains(it) && *it != third) {
        let gone = [at[0], at[1], third, fourth];
        assert_eq!(gone.len(), 2 + parity);
        is_readable_without(&pool.devices, &gone, "two spares").await;
    }
}

#[test]
fn failures_up_to_parity_are_survived() {
    for seed in 0..6 {
        simulate(seed, second_leaf_fails(seed)).unwrap();
    }
}

/// With a spare in use a dRAID of one parity survives the failure of another leaf, under the spare
/// too, and goes on writing.
#[test]
fn pool_goes_on_when_a_leaf_below_a_spare_fails() {
    simulate(1, async {
        let mut pool = Fixture::new(ONE.0, ONE.1).await;
        let homes = homes(&pool).await;
        let (failed, next) = (pool.leaf(homes[0]), pool.leaf(homes[2]));
        pool.engine.leaves().fault(failed, false).await.unwrap();
        let spare = pool.engine.leaves().call_in_spare(failed).await.unwrap().unwrap();
        pool.resilver().await;
        pool.engine.leaves().fault(next, false).await.unwrap();
        pool.write("tank/a", 0..12, 90).await;
        assert!(!pool.lacks(spare), "the log of the leaf below it has the txgs");
        // A leaf that was away, and a new one: both get their parts of the spare.
        let device = new_device();
        let leaf = leaf_on(&device);
        pool.engine.leaves().attach(next, leaf, Attach::Replace).await.unwrap();
        pool.resilver().await;
        pool.devices[homes[2]] = device;
        pool.write("tank/a", 3..5, 91).await;
        pool.engine.export().await.unwrap();
        every_loss_is_survived(&pool.devices, 1, &[homes[0]], "after a replacement").await;
    })
    .unwrap();
}

/// A leaf is out of service while a spare is filled: the parts of the spare below it are written
/// once it is back.
async fn leaf_below_is_away(is_sequential: bool, away: usize) {
    let _unrepaired = NoScrub::new();
    let pool = Fixture::new(ONE.0, ONE.1).await;
    let at = homes(&pool).await[0];
    let away = (at + away) % ONE.1;
    let (old, absent) = (pool.leaf(at), pool.leaf(away));
    pool.engine.leaves().offline(absent, false).await.unwrap();
    pool.write("tank/a", 0..3, 70).await;
    let spare = NewLeaf { is_sequential, ..spare_of(&pool.engine, 0).await };
    pool.engine.leaves().attach(old, spare, Attach::Replace).await.unwrap();
    pool.resilver().await;
    pool.engine.leaves().online(absent, None).await.unwrap();
    for _ in 0..2 {
        pool.resilver().await;
    }
    pool.engine.export().await.unwrap();
    let what = format!("leaf {away} was away, sequential: {is_sequential}");
    every_loss_is_survived(&pool.devices, 1, &[at], &what).await;
}

#[test]
fn spare_gets_what_a_leaf_below_it_was_away_for() {
    for (is_sequential, away) in [(true, 1), (true, 2), (true, 4), (false, 3), (false, 5)] {
        simulate(1, leaf_below_is_away(is_sequential, away)).unwrap();
    }
}

/// A leaf that lacks a few txgs is no source of a rebuild.
async fn stale_leaf_is_not_read() {
    let _unrepaired = NoScrub::new();
    let mut pool = Fixture::new(ONE.0, ONE.1).await;
    let homes = homes(&pool).await;
    let (old, stale) = (pool.leaf(homes[0]), pool.leaf(homes[2]));
    pool.engine.leaves().offline(stale, false).await.unwrap();
    pool.write("tank/a", 0..BLOCKS, 40).await;
    pool.engine.leaves().online(stale, None).await.unwrap();
    assert!(pool.lacks(stale));
    let device = new_device();
    let leaf = NewLeaf { is_sequential: true, ..leaf_on(&device) };
    let new = leaf.config.guid;
    pool.engine.leaves().attach(old, leaf, Attach::Replace).await.unwrap();
    pool.engine.scans().resume().await.unwrap();
    pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    assert_eq!(rebuild_of(&pool.engine).await.state, RebuildState::Complete);
    assert!(!pool.lacks(new));
    for _ in 0..2 {
        pool.resilver().await;
    }
    assert!(!pool.lacks(stale));
    pool.devices[homes[0]] = device;
    assert!(pool.finish().await.is_clean());
}

#[test]
fn rebuild_reads_no_leaf_that_lacks_anything() {
    simulate(1, stale_leaf_is_not_read()).unwrap();
}

/// A device below the spare refuses a write of the rebuild: the spare is not whole until a resilver
/// has written it.
async fn writes_below_a_spare_fail() {
    let _unrepaired = NoScrub::new();
    let builder = PoolBuilder::of(ONE.0, ONE.1).with_size(96 << 20);
    let failing = |inner| Arc::new(Failing { inner, bad: AtomicU64::new(u64::MAX) });
    let devices: Vec<_> = builder.memory_devices().into_iter().map(failing).collect();
    let engine = builder.create(as_devices(&devices)).await.unwrap();
    let inner = devices.iter().map(|device| Arc::clone(&device.inner)).collect();
    let pool = Fixture { devices: inner, engine };
    pool.engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
    pool.write("tank/a", 0..BLOCKS, 1).await;
    let gone = homes(&pool).await[1];
    let failed = pool.leaf(gone);
    pool.engine.leaves().fault(failed, false).await.unwrap();
    let spare = NewLeaf { is_sequential: true, ..spare_of(&pool.engine, 0).await };
    let guid = spare.config.guid;
    pool.engine.leaves().attach(failed, spare, Attach::Replace).await.unwrap();
    // The first stripe of the spare's parts that the block needs.
    let (_, bp) = pool.block_of("tank/a", 5).await;
    let tree = pool.engine.tree();
    let birth = bp.physical_birth();
    let parts = tree.missing_parts(bp.dva(0).unwrap(), bp.psize(), birth);
    let guids: Vec<_> = real_leaves(&pool.engine);
    let mut is_any = false;
    for part in &parts {
        let at = (0..6).find(|index| guids[*index] == part.guid).unwrap();
        devices[at].bad.store(part.offset, Relaxed);
        is_any = true;
    }
    pool.engine.scans().resume().await.unwrap();
    pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    assert!(is_any, "no part of the block is on the spare");
    let is_whole_too_early = !pool.lacks(guid);
    for device in &devices {
        device.bad.store(u64::MAX, Relaxed);
    }
    for _ in 0..3 {
        pool.resilver().await;
    }
    assert!(!pool.lacks(guid));
    pool.engine.export().await.unwrap();
    every_loss_is_survived(&pool.devices, 1, &[gone], "after failed writes").await;
    assert!(!is_whole_too_early, "the spare lacked something");
}

#[test]
fn spare_keeps_what_was_not_written_below_it() {
    simulate(1, writes_below_a_spare_fail()).unwrap();
}

/// A kill at a point of a rebuild: the next import goes on, and misses nothing.
async fn crash_leaves_a_whole_pool(seed: u64) {
    let _unrepaired = NoScrub::new();
    let mut rng = Rng::seeded(seed);
    let pool = Fixture::new(ONE.0, ONE.1).await;
    let at = homes(&pool).await[seed as usize % 3];
    let (device, old) = (new_device(), pool.leaf(at));
    let is_spare = seed.is_multiple_of(2);
    let new = if is_spare {
        pool.engine.leaves().fault(old, false).await.unwrap();
        spare_of(&pool.engine, 0).await
    } else {
        leaf_on(&device)
    };
    let new = NewLeaf { is_sequential: true, ..new };
    let engine = Arc::clone(&pool.engine);
    let changes = cenote_rt::spawn(async move {
        engine.leaves().attach(old, new, Attach::Replace).await?;
        engine.scans().resume().await?;
        engine.scans().wait(ScanFunc::Resilver).await
    });
    let pool = pool.kill_during(changes, &[device], &mut rng).await;
    for _ in 0..2 {
        pool.resilver().await;
    }
    pool.write("tank/a", 0..4, 90).await;
    if is_spare {
        let has_spare = has_spare(&pool.engine);
        pool.engine.export().await.unwrap();
        let what = format!("seed {seed}");
        if has_spare {
            every_loss_is_survived(&pool.devices, 1, &[at], &what).await;
        } else {
            is_readable_without(&pool.devices, &[at], &what).await;
        }
    } else {
        pool.finish_whole(seed).await;
    }
}

#[test]
fn crash_in_a_rebuild_leaves_a_whole_pool() {
    for seed in 0..24 {
        simulate(seed, crash_leaves_a_whole_pool(seed)).unwrap();
    }
}

/// Opens a pool after a crash, and ends its rebuild: nothing is lost, without a leaf more either.
async fn check_crashed(images: Vec<Image>, at: usize, what: &str) -> Result<(), String> {
    let devices = pools::devices(images);
    let engine = pools::open(as_devices(&devices)).await.map_err(|error| format!("{error:?}"))?;
    let pool = Fixture { devices, engine };
    for _ in 0..3 {
        pool.resilver().await;
    }
    let lacking = pool.engine.tree().leaves().filter(|(_, leaf)| leaf.is_missing(5)).count();
    pool.write("tank/a", 6..12, 96).await;
    let is_spared = has_spare(&pool.engine);
    pool.engine.export().await.map_err(|error| format!("{error:?}"))?;
    let gone = if is_spared { vec![at, (at + 2) % 6] } else { vec![at] };
    let rest = as_devices(&pool.devices).into_iter().enumerate();
    let rest = rest.filter(|(index, _)| !gone.contains(index)).map(|(_, device)| device);
    let (summary, _) = verify_of(rest.collect()).await;
    let is_whole = summary.lost == 0 && summary.unreachable == 0 && lacking == 0;
    if is_whole { Ok(()) } else { Err(format!("{what}: {lacking} leaves lack: {summary:?}")) }
}

/// Power is lost at a flush: what was not flushed is lost in part, on each device differently.
async fn power_is_lost(seed: u64, step: u64) -> usize {
    let _unrepaired = NoScrub::new();
    let recorder = Recorder::new();
    let builder = PoolBuilder::of(ONE.0, ONE.1).with_size(96 << 20);
    let devices = builder.memory_devices();
    let engine = builder.create(pools::recorded(&recorder, &devices)).await.unwrap();
    let pool = Fixture { devices, engine };
    pool.engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
    pool.write("tank/a", 0..30, seed).await;
    let at = homes(&pool).await[1];
    let failed = pool.leaf(at);
    pool.engine.leaves().fault(failed, false).await.unwrap();
    recorder.mark(0);
    assert!(pool.engine.leaves().call_in_spare(failed).await.unwrap().is_some());
    pool.engine.scans().resume().await.unwrap();
    for round in 0..4 {
        pool.write("tank/a", round * 3..round * 3 + 5, 20 + round).await;
    }
    pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    pool.write("tank/a", 0..4, 80).await;
    pool.engine.export().await.unwrap();
    drop(pool);
    let log = recorder.log();
    cuts::at_cuts(&log, seed, step, async |images, _| {
        check_crashed(images, at, &format!("seed {seed}")).await
    })
    .await
}

#[test]
fn power_cut_at_any_flush_of_a_rebuild_loses_nothing() {
    for seed in 0..3 {
        let cuts = simulate(seed, power_is_lost(seed, 6)).unwrap();
        assert!(cuts > 4, "{cuts} cuts");
    }
}

/// The spare of a dRAID that OpenZFS made stands in for a device.
#[test]
fn spare_of_a_draid_of_openzfs_is_used() {
    let Some(golden) = golden("g-draid") else { return };
    let copy = golden.private_copy();
    let folder = copy.path().to_path_buf();
    let run = async {
        let found = scan(&ScanOptions { paths: vec![folder] }).await?;
        let candidate = found.find("g-draid").expect("the pool is in its folder");
        let engine = Engine::open(candidate, &OpenOptions::default()).await?;
        let failed = real_leaves(&engine)[4];
        engine.leaves().fault(failed, false).await?;
        let spare = engine.leaves().call_in_spare(failed).await?.expect("a spare");
        engine.scans().resume().await?;
        engine.scans().wait(ScanFunc::Resilver).await?;
        assert_eq!(rebuild_of(&engine).await.state, RebuildState::Complete);
        let leaf = engine.tree().leaf_of(spare).expect("a leaf");
        assert!(engine.tree().leaf(leaf).is_whole());
        engine.export().await
    };
    block_on(2, run).unwrap().unwrap();
    // Two more are gone, as many as there is parity.
    for gone in [0, 7] {
        std::fs::remove_file(copy.path().join(format!("d{gone}.img"))).unwrap();
    }
    pools::judge(copy.path(), "g-draid");
}

#[test]
fn what_distributed_spares_cannot_do_is_refused() {
    simulate(1, async {
        let pool = Fixture::new(ONE.0, ONE.1).await;
        let mut spare = spare_of(&pool.engine, 0).await;
        let attach = async |spare, how| {
            let refused = pool.engine.leaves().attach(pool.leaf(0), spare, how).await;
            why(&refused.unwrap_err())
        };
        let other = Some(ShapeError::SpareOfOtherVdev);
        assert_eq!(attach(spare.clone(), Attach::Mirror).await, Some(ShapeError::NotAMirror));
        spare.config.kind = VdevKind::DraidSpare { top_guid: 7, spare_id: 0 };
        assert_eq!(attach(spare, Attach::Replace).await, other);
        // A leaf in service needs none.
        assert_eq!(pool.engine.leaves().call_in_spare(pool.leaf(0)).await.unwrap(), None);
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

#[test]
fn mistakes_are_found() {
    let back = SpareEnds::LeafIsBack;
    let found = |bug| match bug {
        Bug::RebuildReadsStale => fails(bug, stale_leaf_is_not_read()),
        Bug::SparePartsNotMended => fails(bug, spare_stands_in(ONE, false, back)),
        Bug::RebuildForgetsSpareHome => fails(bug, writes_below_a_spare_fail()),
        _ => fails(bug, child_is_rebuilt(ONE, true, 1)),
    };
    let unfound: Vec<_> = Bug::OF_DRAIDS.into_iter().filter(|bug| !found(*bug)).collect();
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}
