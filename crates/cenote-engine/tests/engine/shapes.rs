//! Leaves are attached, replaced and detached (spec 06 §9.3, §10): on every layout, beside writers,
//! and with a crash at any point.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cenote_device::{Device, Image, ImageDevice, OpenMode};
use cenote_engine::create::{LeafSpec, plan_leaf};
use cenote_engine::{
    Attach, CheckpointError, DeviceSource, Engine, Event, NewLeaf, PoolEvent, ScrubOptions,
    ShapeError,
};
use cenote_ondisk::config::VdevKind;
use cenote_ondisk::scan::ScanFunc;
use cenote_pool::import::scan_devices;
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::seeded::Bug;
use cenote_rt::{BoxFuture, Error, Kind, Rng, simulate};
use cenote_vdev::DtlKind;

use crate::scans::{BLOCKS, Failing, Fixture, LAYOUTS, Rounds, fails, verify_of};

const SIZE: u64 = 96 << 20;

pub(crate) fn new_device() -> Arc<ImageDevice> {
    device_of(SIZE)
}

fn device_of(size: u64) -> Arc<ImageDevice> {
    Arc::new(ImageDevice::new("new", Image::zeroed(size)))
}

pub(crate) fn leaf_on(device: &Arc<ImageDevice>) -> NewLeaf {
    let spec = LeafSpec::of(device.info());
    plan_leaf(&spec, Arc::<ImageDevice>::clone(device)).unwrap()
}

fn why(error: &Error) -> Option<ShapeError> {
    error.cause::<ShapeError>().copied()
}

fn kinds(engine: &Engine) -> Vec<VdevKind> {
    engine.admin().vdev_config().walk().map(|vdev| vdev.kind.clone()).collect()
}

impl Fixture {
    /// Attaches a new device, or replaces a leaf by one. Returns the guid of the new leaf.
    async fn attach(&mut self, beside: u64, how: Attach) -> u64 {
        let device = new_device();
        let leaf = leaf_on(&device);
        let guid = leaf.config.guid;
        self.devices.push(device);
        self.engine.leaves().attach(beside, leaf, how).await.unwrap();
        guid
    }

    pub(crate) fn lacks(&self, guid: u64) -> bool {
        !self.engine.tree().dtl(guid, DtlKind::Missing).unwrap().is_empty()
    }
}

/// Whether a device belongs to a pool by its labels.
async fn is_member(device: &Arc<ImageDevice>) -> bool {
    let scan = scan_devices(as_devices(std::slice::from_ref(device))).await;
    scan.find("tank").is_ok()
}

/// A disk gets a second side, which has everything; then the first one leaves.
async fn disk_is_mirrored() {
    let (engine, devices) = PoolBuilder::disks(1).with_size(SIZE).create_in_memory().await;
    let mut pool = Fixture { devices, engine };
    pool.engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
    pool.write("tank/a", 0..BLOCKS, 1).await;
    let first = pool.leaf(0);
    let second = pool.attach(first, Attach::Mirror).await;
    assert_eq!(kinds(&pool.engine)[1], VdevKind::Mirror);
    assert!(pool.lacks(second));
    let refused = pool.engine.leaves().detach(first, None).await.unwrap_err();
    assert_eq!(why(&refused), Some(ShapeError::NoReplicas));
    pool.write("tank/a", 3..9, 2).await;
    pool.resilver().await;
    assert!(!pool.lacks(second));
    pool.write("tank/a", 5..6, 3).await;
    let top = pool.engine.admin().vdev_config().children[0].guid;
    pool.engine.leaves().detach(first, None).await.unwrap();
    // The leaf has the guid of the mirror.
    assert_eq!(pool.leaf(0), top);
    assert_eq!(kinds(&pool.engine).len(), 2);
    let gone = pool.devices.remove(0);
    assert!(!is_member(&gone).await, "it is no pool's");
    pool.write("tank/a", 7..8, 4).await;
    assert!(pool.scrub().await.errors == 0);
    let told = pool.engine.health().events().after(0);
    for event in [PoolEvent::Attached(second), PoolEvent::Detached(first)] {
        assert!(told.iter().any(|noted| noted.event == Event::Pool(event)), "{event:?}");
    }
    assert!(pool.finish().await.is_clean());
}

#[test]
fn disk_becomes_a_mirror_and_a_disk_again() {
    simulate(1, disk_is_mirrored()).unwrap();
}

/// A leaf is replaced while the pool is written; the old one leaves by itself, and the new one
/// alone has what redundancy promises.
async fn leaf_is_replaced((layout, count, bad): (&str, usize, usize), seed: u64) {
    let mut pool = Fixture::new(layout, count).await;
    let mut rng = Rng::seeded(seed);
    let at = rng.below(count as u64) as usize;
    let old = pool.leaf(at);
    let is_absent = rng.below(2) == 0;
    if is_absent {
        pool.engine.leaves().offline(old, false).await.unwrap();
        pool.write("tank/b", 0..5, 50).await;
    }
    let head = pool.engine.head("tank/a").await.unwrap();
    let object = pools::new_object(&pool.engine, &head).await.unwrap();
    let writer = Arc::clone(&pool.engine);
    let writing = cenote_rt::spawn(async move {
        for round in 0..40 {
            pools::write(&writer, &head, object, round % 12, 60 + round).await.unwrap();
            if round % 8 == 7 {
                writer.sync().await.unwrap();
            }
        }
    });
    let new = pool.attach(old, Attach::Replace).await;
    assert!(kinds(&pool.engine).contains(&VdevKind::Replacing), "{layout}");
    writing.await.unwrap();
    pool.resilver().await;
    assert!(!kinds(&pool.engine).contains(&VdevKind::Replacing), "{layout}: seed {seed}");
    let config = pool.engine.admin().vdev_config();
    assert!(config.find(old).is_none() && config.find(new).is_some());
    let gone = pool.devices.remove(at);
    assert!(!is_member(&gone).await || is_absent, "{layout}: the old device is no pool's");
    pool.engine.export().await.unwrap();
    // Without as many others as redundancy allows, but with the new one.
    let last = pool.devices.len() - 1;
    let rest = as_devices(&pool.devices).into_iter().enumerate();
    let rest = rest.filter(|(index, _)| *index >= bad || *index == last);
    let (summary, _) = verify_of(rest.map(|(_, device)| device).collect()).await;
    assert!(summary.lost == 0 && summary.unreachable == 0, "{layout}: {summary:?}");
    let (summary, is_whole) = verify_of(as_devices(&pool.devices)).await;
    assert!(summary.is_clean() && is_whole, "{layout}: seed {seed}: {summary:?}");
    pools::judge_devices(&pool.devices, layout, &[]);
}

#[test]
fn leaves_are_replaced_beside_writers() {
    for (seed, layout) in (0..).zip(LAYOUTS) {
        simulate(seed, leaf_is_replaced(layout, seed)).unwrap();
    }
}

#[test]
fn what_cannot_be_attached_or_detached_is_refused() {
    simulate(1, async {
        let pool = Fixture::new("raidz1", 3).await;
        let leaves = || pool.engine.leaves();
        let (leaf, top) = (pool.leaf(0), pool.engine.admin().vdev_config().children[0].guid);
        let before = pool.engine.admin().vdev_config();
        let attach = async |beside, size, ashift, how| {
            let mut leaf = leaf_on(&device_of(size));
            leaf.ashift = ashift;
            leaves().attach(beside, leaf, how).await.unwrap_err()
        };
        let (mirror, replace) = (Attach::Mirror, Attach::Replace);
        for (beside, size, ashift, how, expected) in [
            (7, SIZE, 9, mirror, ShapeError::NoSuchLeaf),
            (leaf, SIZE, 9, mirror, ShapeError::NotAMirror),
            (top, SIZE, 9, mirror, ShapeError::NotAMirror),
            (leaf, 80 << 20, 9, replace, ShapeError::TooSmall),
            (leaf, SIZE, 16, replace, ShapeError::Ashift),
        ] {
            assert_eq!(why(&attach(beside, size, ashift, how).await), Some(expected));
        }
        let refused = leaves().detach(leaf, None).await.unwrap_err();
        assert_eq!(why(&refused), Some(ShapeError::NotAGroup));
        let refused = leaves().detach(7, None).await.unwrap_err();
        assert_eq!((why(&refused), refused.kind()), (Some(ShapeError::NoSuchLeaf), Kind::NotFound));
        pool.engine.space().take_checkpoint().await.unwrap();
        let refused = attach(leaf, SIZE, 9, replace).await;
        assert_eq!(refused.cause(), Some(&CheckpointError::Exists));
        pool.engine.space().discard_checkpoint().await.unwrap();
        pool.settle().await;
        assert_eq!(pool.engine.admin().vdev_config(), before);
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// A replacement at the path of the old device, which is cancelled.
#[test]
fn replacement_is_cancelled() {
    simulate(1, async {
        let mut pool = Fixture::new("mirror", 2).await;
        let old = pool.leaf(1);
        let path = |pool: &Fixture| {
            let config = pool.engine.admin().vdev_config();
            config.find(old).unwrap().leaf.path.clone().unwrap().to_string_lossy().into_owned()
        };
        let before = path(&pool);
        let device = new_device();
        let mut leaf = leaf_on(&device);
        leaf.config.leaf.path = Some(before.as_str().into());
        let new = leaf.config.guid;
        pool.engine.leaves().attach(old, leaf, Attach::Replace).await.unwrap();
        assert_eq!(path(&pool), format!("{before}/old"));
        pool.write("tank/a", 0..4, 70).await;
        pool.engine.leaves().detach(new, None).await.unwrap();
        assert_eq!(path(&pool), before);
        assert!(!is_member(&device).await);
        pool.devices.truncate(2);
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// Returns the length of the list of hot spares on disk.
async fn spare_count(pool: &Fixture) -> usize {
    let mut view = pools::open_copy(&pool.devices).await.unwrap();
    Arc::get_mut(&mut view).unwrap().aux_configs().await[0].len()
}

/// How a hot spare stops standing in for a leaf.
#[derive(Debug, Clone, Copy, PartialEq)]
enum SpareEnds {
    /// The leaf is detached, and the spare stays.
    Stays,
    LeafIsBack,
    LeafIsReplaced,
}

/// Adds a hot spare to the pool.
async fn add_spare(pool: &Fixture, device: &Arc<ImageDevice>) -> NewLeaf {
    let mut spare = leaf_on(device);
    spare.config.leaf.is_spare = true;
    let new = cenote_engine::admin::NewVdevs {
        tops: Vec::new(),
        spares: vec![spare.config.clone()],
        caches: Vec::new(),
        devices: vec![(spare.config.guid, Arc::<ImageDevice>::clone(device) as _)],
    };
    pool.engine.admin().add_vdevs(new).await.unwrap();
    spare
}

async fn spare_stands_in((layout, count): (&str, usize), ends: SpareEnds) {
    let mut pool = Fixture::new(layout, count).await;
    let (failed, device) = (pool.leaf(0), new_device());
    let spare = add_spare(&pool, &device).await;
    if count > 1 {
        pool.engine.leaves().fault(failed, false).await.unwrap();
    }
    pool.devices.push(Arc::clone(&device));
    let guid = spare.config.guid;
    pool.engine.leaves().attach(failed, spare, Attach::Replace).await.unwrap();
    pool.write("tank/a", 0..6, 80).await;
    pool.resilver().await;
    assert!(kinds(&pool.engine).contains(&VdevKind::Spare) && !pool.lacks(guid));
    assert_eq!(spare_count(&pool).await, 1);
    let refused = pool.engine.leaves().remove_aux(guid).await.unwrap_err();
    assert_eq!(why(&refused), Some(ShapeError::InUse));
    match ends {
        SpareEnds::Stays => {
            pool.engine.leaves().detach(failed, None).await.unwrap();
            assert_eq!(spare_count(&pool).await, 0);
            pool.devices.remove(0);
        }
        SpareEnds::LeafIsBack => {
            pool.engine.leaves().online(failed, None).await.unwrap();
            pool.resilver().await;
            assert_eq!((spare_count(&pool).await, pool.leaf(0)), (1, failed));
            assert!(!is_member(&device).await, "it is a spare again");
            pool.devices.truncate(2);
        }
        SpareEnds::LeafIsReplaced => {
            let new = pool.attach(failed, Attach::Replace).await;
            pool.resilver().await;
            assert_eq!((spare_count(&pool).await, pool.leaf(0)), (1, new));
            pool.devices.drain(..1);
            pool.devices.remove(1);
        }
    }
    assert!(!kinds(&pool.engine).contains(&VdevKind::Spare));
    assert!(pool.finish().await.is_clean());
}

#[test]
fn spare_stands_in_for_a_leaf() {
    use SpareEnds::{LeafIsBack, LeafIsReplaced, Stays};
    let mirror = ("mirror", 2);
    for (layout, ends) in
        [(mirror, Stays), (mirror, LeafIsBack), (mirror, LeafIsReplaced), (("disk", 1), Stays)]
    {
        simulate(1, spare_stands_in(layout, ends)).unwrap();
    }
}

/// A crash after a hot spare was sent back, before its device has the labels of a spare again.
#[test]
fn spare_with_the_labels_of_a_leaf_is_called_in() {
    simulate(1, async {
        let mut pool = Fixture::new("mirror", 2).await;
        let (failed, device) = (pool.leaf(0), new_device());
        pool.engine.leaves().set_device_source(OneDevice::new(&device));
        let spare = add_spare(&pool, &device).await;
        let guid = spare.config.guid;
        let call_in = async |pool: &Fixture| {
            pool.engine.leaves().fault(failed, true).await.unwrap();
            pool.engine.leaves().call_in_spare(failed).await.unwrap()
        };
        assert_eq!(call_in(&pool).await, Some(guid));
        pool.resilver().await;
        let before = device.image();
        pool.engine.leaves().online(failed, None).await.unwrap();
        pool.resilver().await;
        assert!(!kinds(&pool.engine).contains(&VdevKind::Spare));
        for (offset, len) in [(0, 512 << 10), (SIZE - (512 << 10), 512 << 10)] {
            let mut labels = vec![0; len];
            before.read_at(offset, &mut labels);
            device.write(offset, vec![labels.into()]).await.unwrap();
        }
        assert_eq!(call_in(&pool).await, Some(guid));
        pool.resilver().await;
        pool.devices.push(device);
        pool.engine.leaves().online(failed, None).await.unwrap();
        pool.resilver().await;
        pool.devices.pop();
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// A hot spare that was removed cannot stand in for a leaf.
#[test]
fn removed_spare_is_not_attached() {
    simulate(1, async {
        let pool = Fixture::new("mirror", 2).await;
        let spare = add_spare(&pool, &new_device()).await;
        pool.engine.leaves().remove_aux(spare.config.guid).await.unwrap();
        let told = pool.engine.health().events().after(0);
        let added = Event::Pool(PoolEvent::VdevsAdded);
        assert!(told.iter().any(|noted| noted.event == added));
        let is_removed = |event: &Event| {
            matches!(event, Event::AuxRemoved { device, .. } if *device == spare.config.guid)
        };
        assert!(told.iter().any(|noted| is_removed(&noted.event)), "{told:?}");
        let refused = pool.engine.leaves().attach(pool.leaf(0), spare, Attach::Replace).await;
        assert_eq!(why(&refused.unwrap_err()), Some(ShapeError::NoSuchLeaf));
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// A host with one device, which several may have open.
#[derive(Debug)]
struct OneDevice(Arc<dyn Device>);

impl OneDevice {
    fn new(device: &Arc<ImageDevice>) -> Arc<Self> {
        Arc::new(Self(Arc::<ImageDevice>::clone(device)))
    }
}

impl DeviceSource for OneDevice {
    fn open<'a>(&'a self, path: &'a str, _: OpenMode) -> BoxFuture<'a, Option<Arc<dyn Device>>> {
        let device = (path == self.0.info().path).then(|| Arc::clone(&self.0));
        Box::pin(async { device })
    }
}

/// A leaf is back while the hot spare that stands in for it is being filled, and in half of the
/// cases fails again and is back once more: the spare goes when the leaf has everything.
async fn leaf_is_back_while_its_spare_is_filled(seed: u64) {
    let _small = Rounds::of(64 << 10);
    let mut rng = Rng::seeded(seed);
    let (layout, count) = [("mirror", 2), ("raidz1", 3)][rng.below(2) as usize];
    let mut pool = Fixture::new(layout, count).await;
    let (leaf, device) = (pool.leaf(0), new_device());
    let spare = add_spare(&pool, &device).await;
    let guid = spare.config.guid;
    pool.engine.leaves().fault(leaf, false).await.unwrap();
    pool.write("tank/a", 0..6, 80).await;
    pool.devices.push(Arc::clone(&device));
    pool.engine.leaves().attach(leaf, spare, Attach::Replace).await.unwrap();
    pool.engine.scans().resume().await.unwrap();
    for round in 0..=rng.below(2) {
        cenote_rt::sleep(Duration::from_millis(rng.below(30))).await;
        if round > 0 {
            pool.engine.leaves().fault(leaf, false).await.unwrap();
        }
        pool.write("tank/a", 2..8, 81 + round).await;
        pool.engine.leaves().online(leaf, None).await.unwrap();
        assert!(pool.lacks(leaf), "seed {seed}");
        pool.engine.scans().resume().await.unwrap();
        pool.write("tank/b", 0..3, 90 + round).await;
    }
    pool.resilver().await;
    let config = pool.engine.admin().vdev_config();
    assert!(config.find(leaf).is_some() && config.find(guid).is_none(), "seed {seed}: {config:?}");
    assert!(!kinds(&pool.engine).contains(&VdevKind::Spare) && !pool.lacks(leaf));
    assert_eq!(spare_count(&pool).await, 1);
    assert!(!is_member(&device).await, "it is a spare again");
    pool.devices.pop();
    assert!(pool.finish().await.is_clean(), "seed {seed}");
}

#[test]
fn leaf_that_is_back_sends_its_spare_back() {
    for seed in 0..8 {
        simulate(seed, leaf_is_back_while_its_spare_is_filled(seed)).unwrap();
    }
    assert!(fails(Bug::SpareNotReleased, leaf_is_back_while_its_spare_is_filled(0)));
}

/// The new device refuses a write: the old one stays until the new one has everything.
async fn replacement_that_fails_waits() {
    let mut pool = Fixture::new("mirror", 2).await;
    let (old, other) = (pool.leaf(0), pool.leaf(1));
    let (_, bp) = pool.block_of("tank/a", 5).await;
    let inner = new_device();
    let bad = AtomicU64::new(bp.dva(0).unwrap().offset + (4 << 20));
    let device = Arc::new(Failing { inner: Arc::clone(&inner), bad });
    let leaf = plan_leaf(&LeafSpec::of(inner.info()), Arc::<Failing>::clone(&device)).unwrap();
    pool.engine.leaves().attach(old, leaf, Attach::Replace).await.unwrap();
    pool.resilver().await;
    assert!(kinds(&pool.engine).contains(&VdevKind::Replacing), "a block is on the old one only");
    device.bad.store(u64::MAX, Relaxed);
    pool.resilver().await;
    assert!(!kinds(&pool.engine).contains(&VdevKind::Replacing));
    pool.engine.leaves().offline(other, false).await.unwrap();
    assert_eq!(pool.scrub().await.errors, 0);
    pool.engine.leaves().online(other, None).await.unwrap();
    pool.resilver().await;
    pool.devices[0] = inner;
    assert!(pool.finish().await.is_clean());
}

#[test]
fn replacement_waits_for_what_it_lacks() {
    simulate(1, replacement_that_fails_waits()).unwrap();
}

/// A rewind needs the vdevs of the checkpoint: none leaves while it exists, as in OpenZFS.
async fn checkpoint_keeps_its_vdevs() {
    let mut pool = Fixture::new("mirror", 2).await;
    let (old, other) = (pool.leaf(0), pool.leaf(1));
    let spare = add_spare(&pool, &new_device()).await.config.guid;
    let new = pool.attach(old, Attach::Replace).await;
    pool.engine.space().take_checkpoint().await.unwrap();
    let before = pool.engine.admin().vdev_config();
    pool.write("tank/a", 0..6, 80).await;
    pool.resilver().await;
    let exists = Some(&CheckpointError::Exists);
    for leaf in [old, new, other, 7] {
        let refused = pool.engine.leaves().detach(leaf, None).await.unwrap_err();
        assert_eq!(refused.cause(), exists);
    }
    let refused = pool.engine.leaves().remove_aux(spare).await.unwrap_err();
    assert_eq!(refused.cause(), exists);
    assert_eq!(pool.engine.admin().vdev_config().children, before.children);

    pool.engine.space().discard_checkpoint().await.unwrap();
    pool.settle().await;
    pool.resilver().await;
    let config = pool.engine.admin().vdev_config();
    assert!(config.find(old).is_none() && config.find(new).is_some());
    pool.engine.leaves().remove_aux(spare).await.unwrap();
    pool.devices.remove(0);
    assert!(pool.finish().await.is_clean());
}

#[test]
fn vdevs_of_a_checkpoint_stay() {
    simulate(1, checkpoint_keeps_its_vdevs()).unwrap();
}

/// A kill at a point of a replacement or of attaching and detaching: the next import has one of
/// the shapes, goes on, and misses nothing.
async fn crash_leaves_a_whole_pool(seed: u64) {
    let mut rng = Rng::seeded(seed);
    let (layout, count) = [("mirror", 2), ("raidz1", 3)][rng.below(2) as usize];
    let pool = Fixture::new(layout, count).await;
    let device = new_device();
    let (old, new) = (pool.leaf(0), leaf_on(&device));
    let how =
        if layout == "mirror" && rng.below(2) == 0 { Attach::Mirror } else { Attach::Replace };
    let guid = new.config.guid;
    let engine = Arc::clone(&pool.engine);
    let changes = cenote_rt::spawn(async move {
        engine.leaves().attach(old, new, how).await?;
        engine.scans().resume().await?;
        engine.scans().wait(ScanFunc::Resilver).await?;
        if how == Attach::Mirror {
            engine.leaves().detach(guid, None).await?;
        }
        Ok::<_, Error>(())
    });
    let pool = pool.kill_during(changes, &[device], &mut rng).await;
    pool.resilver().await;
    assert!(!kinds(&pool.engine).contains(&VdevKind::Replacing), "seed {seed}");
    pool.write("tank/a", 0..4, 90).await;
    pool.engine.scans().scrub(ScrubOptions::default()).await.unwrap();
    pool.engine.scans().wait(ScanFunc::Scrub).await.unwrap();
    pool.finish_whole(seed).await;
}

#[test]
fn crash_at_any_point_leaves_a_whole_pool() {
    for seed in 0..24 {
        simulate(seed, crash_leaves_a_whole_pool(seed)).unwrap();
    }
}

/// A kill when a side that remains has half of its new labels, and the other side is gone: the
/// device is found by the guid in its old labels.
#[test]
fn half_written_labels_of_a_detach_do_not_hide_a_device() {
    simulate(1, async {
        let mut pool = Fixture::new("mirror", 2).await;
        let gone = pool.leaf(0);
        pool.engine.leaves().fault(gone, false).await.unwrap();
        pool.write("tank/a", 0..4, 90).await;
        let mut device = pool.devices[1].image();
        pool.engine.leaves().detach(gone, None).await.unwrap();
        let after = pool.devices[1].image();
        // The first two labels are written before the uberblock, without their uberblocks.
        for label in [0, SIZE - (512 << 10)] {
            let mut config = vec![0; 112 << 10];
            after.read_at(label + (16 << 10), &mut config);
            device.write_at(label + (16 << 10), &config);
        }
        pool.devices = pools::devices(vec![device]);
        pool.engine = pools::open(as_devices(&pool.devices)).await.unwrap();
        assert!(kinds(&pool.engine).contains(&VdevKind::Mirror), "the state before it");
        pool.write("tank/a", 0..4, 91).await;
        pool.engine.export().await.unwrap();
        let (summary, _) = verify_of(as_devices(&pool.devices)).await;
        assert!(summary.lost == 0 && summary.unreachable == 0, "{summary:?}");
    })
    .unwrap();
}

/// Many changes of the shape, one after the other, beside a writer and a scrub.
async fn shapes_change_all_the_time(seed: u64) {
    let _small = Rounds::of(256 << 10);
    let mut pool = Fixture::new("mirror", 2).await;
    let mut rng = Rng::seeded(seed);
    let mut devices: Vec<(u64, Arc<ImageDevice>)> =
        (0..2).map(|index| (pool.leaf(index), Arc::clone(&pool.devices[index]))).collect();
    for round in 0..30 {
        let at = rng.below(devices.len() as u64) as usize;
        let (guid, _) = devices[at];
        match rng.below(4) {
            0 if devices.len() < 5 => {
                let new = pool.attach(guid, Attach::Mirror).await;
                devices.push((new, Arc::clone(pool.devices.last().unwrap())));
            }
            1 if devices.len() < 5 => {
                let new = pool.attach(guid, Attach::Replace).await;
                pool.resilver().await;
                devices[at] = (new, Arc::clone(pool.devices.last().unwrap()));
            }
            2 if devices.len() > 2 && pool.engine.leaves().detach(guid, None).await.is_ok() => {
                devices.remove(at);
            }
            _ => drop(pool.engine.scans().scrub(ScrubOptions::default()).await),
        }
        pool.write("tank/a", 0..4, 100 + round).await;
        if rng.below(3) == 0 {
            pool.resilver().await;
        }
        cenote_rt::sleep(Duration::from_millis(rng.below(20))).await;
    }
    pool.resilver().await;
    pool.devices = devices.into_iter().map(|(_, device)| device).collect();
    assert!(pool.finish().await.is_clean(), "seed {seed}");
}

#[test]
fn shapes_change_beside_scans_and_writes() {
    for seed in 0..6 {
        simulate(seed, shapes_change_all_the_time(seed)).unwrap();
    }
}

#[test]
fn mistakes_are_found() {
    let found = |bug| match bug {
        Bug::ReplacedTooEarly => fails(bug, replacement_that_fails_waits()),
        Bug::DetachIgnoresLogs | Bug::DetachedKeepsLabels => fails(bug, disk_is_mirrored()),
        _ => (0..40).any(|seed| fails(bug, leaf_is_replaced(LAYOUTS[seed as usize % 3], seed))),
    };
    // Found by the tests of log vdevs, of devices that become longer, and of splits.
    let of_others = [
        Bug::LogRemovedInUse,
        Bug::LabelsNotMoved,
        Bug::NewSizeNotRecorded,
        Bug::SplitWithLogs,
        Bug::SplitNotRecorded,
    ];
    let own = Bug::OF_SHAPES.into_iter().filter(|bug| !of_others.contains(bug));
    let unfound: Vec<_> = own.filter(|bug| !found(*bug)).collect();
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}
