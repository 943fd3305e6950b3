//! One side of each mirror becomes another pool (spec 06 §10): beside writers, with a crash at any
//! point, and not when a side lacks anything.

use std::sync::Arc;
use std::time::Duration;

use cenote_device::{Image, ImageDevice, Recorder};
use cenote_dmu::Tx;
use cenote_engine::admin::PoolSetting;
use cenote_engine::zil::LogRecord;
use cenote_engine::{ApplyOptions, Attach, CheckpointError, Engine, SplitError, SplitPool};
use cenote_ondisk::config::VdevKind;
use cenote_pool::OpenOptions;
use cenote_pool::import::scan_devices;
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::seeded::Bug;
use cenote_rt::{Error, Result, Rng, simulate};
use cenote_testkit::cuts;
use cenote_testkit::rng::cases;
use cenote_vdev::create::{Redundancy, VdevClass};

use crate::scans::{fails, verify_of};
use crate::shapes::{leaf_on, new_device};

const SIZE: u64 = 96 << 20;
const BLOCKS: u64 = 16;

/// Two mirrors, a log disk between them and one at the end: 0 1, 2, 3 4 5, 6.
fn builder() -> PoolBuilder {
    let tops = vec![
        (Redundancy::Mirror, VdevClass::Normal, 2),
        (Redundancy::Single, VdevClass::Log, 1),
        (Redundancy::Mirror, VdevClass::Normal, 3),
        (Redundancy::Single, VdevClass::Log, 1),
    ];
    PoolBuilder::new(tops).with_size(SIZE)
}

/// The devices of the new pool.
const SIDES: [usize; 2] = [1, 5];

fn sides(engine: &Engine) -> Vec<Option<u64>> {
    let tops = engine.admin().vdev_config().children;
    let last = |top: usize| tops[top].children.last().map(|leaf| leaf.guid);
    vec![last(0), None, last(2)]
}

fn new_pool(engine: &Engine) -> SplitPool {
    SplitPool { name: "new".into(), leaves: sides(engine), settings: Vec::new() }
}

async fn write(engine: &Arc<Engine>, name: &str, salt: u64) -> Result<()> {
    let head = engine.head(name).await?;
    let object = pools::new_object(engine, &head).await?;
    for block in 0..BLOCKS {
        pools::write(engine, &head, object, block, salt).await?;
    }
    // Some of it is in an intent log.
    for round in 0..4 {
        let write = |tx: &mut Tx<'_>| {
            tx.write(object, 4096 * round, &[round as u8; 4096])?;
            let record = LogRecord::write_later(object, 4096 * round, 4096);
            Ok(((), head.log().append(tx, vec![record])?))
        };
        engine.apply(&head, ApplyOptions::new().logged(), write).await?;
        engine.intent_logs().commit(&head, Some(object)).await?;
    }
    Ok(())
}

async fn filled() -> (Arc<Engine>, Vec<Arc<ImageDevice>>) {
    let (engine, devices) = builder().create_in_memory().await;
    for name in ["tank/a", "tank/b"] {
        engine.datasets().create(pools::dataset(name)).await.unwrap();
        write(&engine, name, 1).await.unwrap();
    }
    engine.snapshots().create(vec!["tank/a@1".into()]).await.unwrap();
    (engine, devices)
}

fn some(devices: &[Arc<ImageDevice>], which: impl Fn(usize) -> bool) -> Vec<Arc<ImageDevice>> {
    let chosen = devices.iter().enumerate().filter(|(index, _)| which(*index));
    chosen.map(|(_, device)| Arc::clone(device)).collect()
}

fn why(error: &Error) -> Option<SplitError> {
    error.cause::<SplitError>().copied()
}

/// Opens the new pool for writing, by its name.
async fn open_new(devices: &[Arc<ImageDevice>]) -> Result<Arc<Engine>> {
    let devices = as_devices(devices);
    let scan = scan_devices(devices.clone()).await;
    let found = scan.find("new").map_err(|error| Error::not_found(error.to_string()))?;
    Engine::open_devices(devices, found.guid(), &OpenOptions::default()).await
}

/// Judges a pool on its devices, once it is exported: its space, all blocks and, by OpenZFS, all.
async fn judge(name: &str, devices: &[Arc<ImageDevice>]) {
    let scan = scan_devices(as_devices(devices)).await;
    let found = scan.find(name).unwrap();
    let engine =
        Engine::open_devices(as_devices(devices), found.guid(), &OpenOptions::default()).await;
    let engine = engine.unwrap();
    engine.admin().rename("tank").await.unwrap();
    engine.export().await.unwrap();
    drop(engine);
    let (summary, is_whole) = verify_of(as_devices(devices)).await;
    assert!(summary.is_clean() && is_whole, "{name}: {summary:?}");
    assert_eq!(pools::check_space(pools::images_of(devices)).await, Ok(()), "{name}");
    pools::judge_devices(devices, name, &["-dd"]);
}

async fn pool_is_split() {
    let (engine, devices) = filled().await;
    let before = engine.admin().vdev_config();
    let writer = {
        let engine = Arc::clone(&engine);
        cenote_rt::spawn(async move {
            for salt in 2..6 {
                write(&engine, "tank/b", salt).await?;
            }
            Ok::<_, Error>(())
        })
    };
    let settings = vec![PoolSetting::Comment(Some("second half".into()))];
    let guid = engine.leaves().split(SplitPool { settings, ..new_pool(&engine) }).await.unwrap();
    writer.await.unwrap().unwrap();
    write(&engine, "tank/a", 9).await.unwrap();
    // The guid of a top-level vdev stays; the other side of a mirror of two takes its place.
    let after = engine.admin().vdev_config();
    assert_eq!(after.children[0].guid, before.children[0].guid);
    assert_eq!(after.children[0].children.len(), 0);
    assert_eq!(after.children[2].children.len(), 2);
    engine.export().await.unwrap();
    drop(engine);
    let new = some(&devices, |index| SIDES.contains(&index));
    let scan = scan_devices(as_devices(&devices)).await;
    let found = scan.find("new").unwrap();
    assert_eq!((found.guid(), found.devices.len()), (guid, 2));
    assert_eq!(found.facts.split_guid, Some(before.guid));
    let engine = open_new(&new).await.unwrap();
    let tops = engine.admin().vdev_config().children;
    let kinds: Vec<_> = tops.iter().map(|top| top.kind.clone()).collect();
    assert_eq!(kinds, [VdevKind::File, VdevKind::Hole, VdevKind::File]);
    let view = engine.view().await.unwrap();
    assert_eq!(view.config().facts.comment.as_deref(), Some("second half"));
    drop(view);
    write(&engine, "new/a", 3).await.unwrap();
    assert!(engine.snapshots().create(vec!["new/a@2".into()]).await.is_ok());
    engine.export().await.unwrap();
    drop(engine);
    judge("new", &new).await;
    judge("tank", &some(&devices, |index| !SIDES.contains(&index))).await;
}

#[test]
fn pool_of_mirrors_is_split_beside_a_writer() {
    simulate(1, pool_is_split()).unwrap();
}

#[test]
fn what_is_no_whole_side_stays() {
    simulate(1, async {
        let (engine, _devices) = filled().await;
        let before = engine.admin().vdev_config();
        let split = async |leaves| {
            let new = SplitPool { leaves, ..new_pool(&engine) };
            engine.leaves().split(new).await.unwrap_err()
        };
        let all = sides(&engine);
        let (first, last) = (all[0], all[2]);
        let log = Some(before.children[1].guid);
        for (leaves, expected) in [
            (vec![], SplitError::Invalid),
            (vec![first], SplitError::Invalid),
            (vec![first, None, None], SplitError::Invalid),
            (vec![first, log, last], SplitError::Invalid),
            (vec![last, None, first], SplitError::Invalid),
            (vec![Some(before.children[0].guid), None, last], SplitError::Invalid),
            (vec![Some(7), None, last], SplitError::NoSuchLeaf),
            (vec![first, None, last, None], SplitError::Invalid),
        ] {
            assert_eq!(why(&split(leaves.clone()).await), Some(expected), "{leaves:?}");
        }
        let leaf = last.unwrap();
        engine.leaves().offline(leaf, false).await.unwrap();
        assert_eq!(why(&split(all.clone()).await), Some(SplitError::Invalid));
        write(&engine, "tank/a", 4).await.unwrap();
        engine.leaves().online(leaf, None).await.unwrap();
        assert_eq!(why(&split(all.clone()).await), Some(SplitError::Busy));
        engine.scans().resume().await.unwrap();
        engine.scans().wait(cenote_ondisk::scan::ScanFunc::Resilver).await.unwrap();
        engine.space().take_checkpoint().await.unwrap();
        assert_eq!(split(all).await.cause(), Some(&CheckpointError::Exists));
        engine.space().discard_checkpoint().await.unwrap();
        while engine.space().has_pending_frees().await.unwrap() {
            engine.sync().await.unwrap();
        }
        assert_eq!(engine.admin().vdev_config().guid_sum(), before.guid_sum());
        engine.export().await.unwrap();
        // No mirrors.
        let (engine, _devices) = PoolBuilder::of("raidz1", 3).create_in_memory().await;
        let leaf = engine.admin().vdev_config().leaves().next().map(|leaf| leaf.guid);
        let new = SplitPool { name: "new".into(), leaves: vec![leaf], settings: Vec::new() };
        let refused = engine.leaves().split(new).await.unwrap_err();
        assert_eq!(why(&refused), Some(SplitError::Invalid));
        engine.export().await.unwrap();
    })
    .unwrap();
}

/// A side is taken offline at the same moment: the pool is split with all of the side's data, or
/// not at all.
#[test]
fn side_that_goes_offline_meanwhile_is_not_split_off() {
    let mut are_split = [0; 2];
    for pause in 0..24 {
        let is_split = simulate(pause, async move {
            let (engine, devices) = PoolBuilder::of("mirror", 2).create_in_memory().await;
            engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
            write(&engine, "tank/a", 1).await.unwrap();
            let side = engine.admin().vdev_config().leaves().last().map(|leaf| leaf.guid);
            let other = Arc::clone(&engine);
            let offline = cenote_rt::spawn(async move {
                for _ in 0..4 * pause * pause {
                    cenote_rt::yield_now().await;
                }
                drop(other.leaves().offline(side.unwrap(), false).await);
            });
            let new = SplitPool { name: "new".into(), leaves: vec![side], settings: Vec::new() };
            let split = engine.leaves().split(new).await;
            offline.await.unwrap();
            write(&engine, "tank/a", 2).await.unwrap();
            engine.export().await.unwrap();
            if split.is_ok() {
                judge("new", &some(&devices, |index| index == 1)).await;
                judge("tank", &some(&devices, |index| index == 0)).await;
            }
            split.is_ok()
        });
        are_split[usize::from(is_split.unwrap())] += 1;
    }
    assert!(are_split.iter().all(|count| *count > 0), "{are_split:?}");
}

/// What another request does to a side beside a split.
#[derive(Debug, Clone, Copy)]
enum Request {
    Offline,
    Fault,
    FaultAndClear,
    OfflineAndOnline,
    Attach,
    Replace,
    Detach,
}

const REQUESTS: [Request; 7] = [
    Request::Offline,
    Request::Fault,
    Request::FaultAndClear,
    Request::OfflineAndOnline,
    Request::Attach,
    Request::Replace,
    Request::Detach,
];

/// Another request changes a side at any moment of a split. Whatever comes of both, each pool has
/// everything. Returns whether the pool was split.
async fn side_is_changed_beside_a_split(request: Request, seed: u64) -> bool {
    let mut rng = Rng::seeded(seed);
    let (engine, mut devices) = filled().await;
    let new = new_pool(&engine);
    let at = rng.below(2) as usize;
    let side = [new.leaves[0], new.leaves[2]][at].unwrap();
    let device: Arc<dyn cenote_device::Device> = Arc::<ImageDevice>::clone(&devices[SIDES[at]]);
    let extra = new_device();
    let leaf = leaf_on(&extra);
    let extra_guid = leaf.config.guid;
    let most = 1 << (2 + rng.below(11));
    let pause = rng.below(most);
    let other = Arc::clone(&engine);
    let changed = cenote_rt::spawn(async move {
        for _ in 0..pause {
            cenote_rt::yield_now().await;
        }
        let leaves = other.leaves();
        match request {
            Request::Offline => leaves.offline(side, false).await,
            Request::Fault => leaves.fault(side, false).await,
            Request::FaultAndClear => {
                drop(leaves.fault(side, false).await);
                leaves.clear(Some(side)).await
            }
            Request::OfflineAndOnline => {
                drop(leaves.offline(side, false).await);
                leaves.online(side, Some(device)).await
            }
            Request::Attach => leaves.attach(side, leaf, Attach::Mirror).await,
            Request::Replace => leaves.attach(side, leaf, Attach::Replace).await,
            Request::Detach => leaves.detach(side, None).await,
        }
    });
    let split = engine.leaves().split(new.clone()).await;
    let is_changed = changed.await.unwrap().is_ok();
    if is_changed && matches!(request, Request::Offline | Request::Fault) {
        // A failed split does not undo it, and a side that a split takes is refused.
        let state = engine.tree().vdev(side).map(cenote_vdev::Vdev::state);
        let is_out = state.is_some_and(|state| !state.is_readable());
        assert!(is_out && split.is_err(), "{request:?}, seed {seed}: {state:?}");
    }
    write(&engine, "tank/a", 9).await.unwrap();
    let out: Vec<_> = engine.tree().leaves().filter(|(_, leaf)| !leaf.is_writable()).collect();
    for (_, leaf) in out {
        engine.leaves().online(leaf.guid(), None).await.unwrap();
    }
    engine.scans().resume().await.unwrap();
    engine.scans().wait(cenote_ondisk::scan::ScanFunc::Resilver).await.unwrap();
    let config = engine.admin().vdev_config();
    engine.export().await.unwrap();
    drop(engine);
    let is_split = split.is_ok();
    if is_split {
        judge("new", &some(&devices, |index| SIDES.contains(&index))).await;
    }
    let gone: Vec<_> = SIDES.into_iter().zip([new.leaves[0], new.leaves[2]]).collect();
    let is_gone = |(index, guid): &(usize, Option<u64>), wanted: usize| {
        *index == wanted && config.find(guid.unwrap()).is_none()
    };
    devices = some(&devices, |index| !gone.iter().any(|side| is_gone(side, index)));
    if config.find(extra_guid).is_some() {
        devices.push(extra);
    }
    assert_eq!(config.leaves().filter(|leaf| leaf.kind.is_real_leaf()).count(), devices.len());
    judge("tank", &devices).await;
    is_split
}

#[test]
fn side_that_is_changed_beside_a_split_loses_nothing() {
    let seeds = cases(3, 8);
    let mut split = 0;
    for request in REQUESTS {
        let run = |seed| simulate(seed, side_is_changed_beside_a_split(request, seed)).unwrap();
        split += (0..seeds).filter(|seed| run(*seed)).count();
    }
    assert!(split > 0, "no split was done");
}

/// A split mirror gets its second side again, from the disk that was the new pool's.
#[test]
fn side_comes_back_by_attach() {
    simulate(1, async {
        let (engine, devices) =
            PoolBuilder::of("mirror", 2).with_size(SIZE).create_in_memory().await;
        engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        write(&engine, "tank/a", 1).await.unwrap();
        let leaves = vec![engine.admin().vdev_config().leaves().nth(1).map(|leaf| leaf.guid)];
        let new = SplitPool { name: "new".into(), leaves, settings: Vec::new() };
        engine.leaves().split(new).await.unwrap();
        write(&engine, "tank/a", 2).await.unwrap();
        let only = engine.admin().vdev_config().leaves().next().unwrap().guid;
        let spec = cenote_engine::create::LeafSpec::of(cenote_device::Device::info(&*devices[1]));
        let leaf = cenote_engine::create::plan_leaf(&spec, Arc::<ImageDevice>::clone(&devices[1]));
        engine.leaves().attach(only, leaf.unwrap(), Attach::Mirror).await.unwrap();
        engine.scans().resume().await.unwrap();
        engine.scans().wait(cenote_ondisk::scan::ScanFunc::Resilver).await.unwrap();
        engine.export().await.unwrap();
        drop(engine);
        judge("tank", &devices).await;
    })
    .unwrap();
}

/// A kill at a point of a split: afterwards there is the whole old pool, or two pools.
async fn crash_leaves_one_or_two_pools(seed: u64) {
    let mut rng = Rng::seeded(seed);
    let (engine, devices) = filled().await;
    let split = {
        let engine = Arc::clone(&engine);
        cenote_rt::spawn(async move { engine.leaves().split(new_pool(&engine)).await })
    };
    let most = 1 << (1 + rng.below(11));
    for _ in 0..rng.below(most) {
        cenote_rt::yield_now().await;
    }
    let images = pools::images_of(&devices);
    drop((split, engine));
    check_crashed(images, &format!("seed {seed}"), seed.is_multiple_of(4)).await;
}

/// Checks what a crash during a split has left: the whole old pool, or two pools.
async fn check_crashed(images: Vec<Image>, what: &str, is_judged: bool) {
    let devices = pools::devices(images);
    let scan = scan_devices(as_devices(&devices)).await;
    let has_new = scan.find("new").is_ok();
    drop(scan);
    let engine = pools::open(as_devices(&devices)).await.unwrap();
    let leaves = engine.admin().vdev_config().leaves().count();
    assert_eq!(leaves, if has_new { 5 } else { 7 }, "{what}");
    let is_in_service = engine.tree().leaves().all(|(_, leaf)| leaf.is_writable());
    assert!(is_in_service, "{what}: a leaf is out of service");
    engine.scans().resume().await.unwrap();
    engine.scans().wait(cenote_ondisk::scan::ScanFunc::Resilver).await.unwrap();
    engine.datasets().create(pools::dataset("tank/z")).await.unwrap();
    write(&engine, "tank/z", 5).await.unwrap();
    // Logs that are to be replayed.
    engine.sync().await.unwrap();
    let is_side = |index| has_new && SIDES.contains(&index);
    let images = pools::images_of(&some(&devices, |index| !is_side(index)));
    assert_eq!(pools::check_space(images).await, Ok(()), "{what}");
    let rest = pools::devices(pools::images_of(&some(&devices, |index| !is_side(index))));
    let (summary, is_whole) = verify_of(as_devices(&rest)).await;
    assert!(summary.is_clean() && is_whole, "{what}: {summary:?}");
    if has_new {
        judge("new", &some(&devices, is_side)).await;
    } else if is_judged {
        pools::judge_devices(&devices, "after a crash", &[]);
    }
}

#[test]
fn crash_at_any_point_of_a_split_leaves_one_or_two_pools() {
    for seed in 0..48 {
        simulate(seed, crash_leaves_one_or_two_pools(seed)).unwrap();
    }
}

/// Power is lost at a flush: what was not flushed is lost in part, on each device differently.
async fn power_is_lost(seed: u64, step: u64) -> usize {
    let recorder = Recorder::new();
    let devices = pools::recorded(&recorder, &builder().memory_devices());
    let engine = builder().create(devices).await.unwrap();
    engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
    write(&engine, "tank/a", 1).await.unwrap();
    recorder.mark(0);
    engine.leaves().split(new_pool(&engine)).await.unwrap();
    write(&engine, "tank/a", 2).await.unwrap();
    engine.export().await.unwrap();
    drop(engine);
    let log = recorder.log();
    let check = async |images, _| {
        check_crashed(images, &format!("seed {seed}"), false).await;
        Ok(())
    };
    cuts::at_cuts(&log, seed, step, check).await
}

#[test]
fn power_cut_during_a_split_leaves_one_or_two_pools() {
    for seed in 0..4 {
        let cuts = simulate(seed, power_is_lost(seed, 12)).unwrap();
        assert!(cuts > 4, "{cuts} cuts");
    }
}

/// A split is cut off by a forced close: once that has returned, nothing is written any more.
async fn forced_close_ends_a_split(seed: u64) -> bool {
    let (engine, devices) = filled().await;
    let splitting = Arc::clone(&engine);
    let new = new_pool(&engine);
    let split = cenote_rt::spawn(async move { splitting.leaves().split(new).await });
    let mut rng = Rng::seeded(seed);
    let most = 1 << (4 + rng.below(9));
    for _ in 0..rng.below(most) {
        cenote_rt::yield_now().await;
    }
    engine.close_by_force().await;
    let before = pools::images_of(&devices);
    let is_cut = split.await.unwrap().is_err();
    cenote_rt::sleep(Duration::from_mins(1)).await;
    let after = pools::images_of(&devices);
    for (index, (before, after)) in before.iter().zip(&after).enumerate() {
        assert!(before == after, "seed {seed}: device {index} was written to");
    }
    check_crashed(after, &format!("seed {seed}"), seed.is_multiple_of(8)).await;
    is_cut
}

#[test]
fn forced_close_ends_splits() {
    let cut = (0..32).filter(|seed| simulate(*seed, forced_close_ends_a_split(*seed)).unwrap());
    let cut = cut.count();
    assert!((4..32).contains(&cut), "{cut} splits were cut off");
}

#[test]
fn mistakes_in_splits_are_found() {
    assert!(fails(Bug::SplitWithLogs, pool_is_split()));
    let seeds = 0..48;
    let is_found = |seed| fails(Bug::SplitNotRecorded, crash_leaves_one_or_two_pools(seed));
    assert!(seeds.into_iter().any(is_found));
}
