//! Scrub and resilver (spec 06 §9, §15): damage of every kind is repaired, leaves that were away
//! get everything that they lack, and datasets change meanwhile; scans continue after a crash, and
//! those of OpenZFS continue here.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use cenote_codec::crypto::Suite;
use cenote_device::{Device, DeviceInfo, ImageDevice};
use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit as zap;
use cenote_engine::{
    ApplyOptions, Engine, Event, NewDataset, NewEncryption, Notice, PoolEvent, ScanError,
    ScrubOptions,
};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::VdevKind;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::scan::{
    ERROR_SCRUB, ErrorScrubPhys, LAST_SCRUBBED_TXG, SCAN, ScanFlags, ScanFunc, ScanPhys, ScanState,
};
use cenote_ondisk::zap::Value;
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::mos::DIRECTORY;
use cenote_pool::verify::Summary;
use cenote_pool::{OpenOptions, Pool};
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::seeded::{self, Bug};
use cenote_rt::{
    BoxFuture, Buf, BufMut, Error, JoinHandle, Kind, Result, Rng, block_on, simulate, tunables,
};
use cenote_testkit::golden::golden;
use cenote_vdev::DtlKind;

use crate::throttles;

/// Redundancy, devices, and how many of them may be bad.
pub(crate) const LAYOUTS: [(&str, usize, usize); 6] = [
    ("mirror", 2, 1),
    ("mirror", 3, 2),
    ("raidz1", 3, 1),
    ("raidz2", 5, 2),
    ("raidz3", 6, 3),
    ("draid1:2d:6c:1s", 6, 1),
];
pub(crate) const BLOCKS: u64 = 24;

/// A pool with heads, snapshots and a clone.
pub(crate) struct Fixture {
    pub(crate) devices: Vec<Arc<ImageDevice>>,
    pub(crate) engine: Arc<Engine>,
}

pub(crate) fn scan_of(pool: &Pool) -> ScanPhys {
    ScanPhys::decode(&pool.directory_value(SCAN).unwrap().words()).unwrap()
}

impl Fixture {
    pub(crate) async fn new(layout: &str, count: usize) -> Self {
        let builder = PoolBuilder::of(layout, count).with_size(96 << 20);
        let (engine, devices) = builder.create_in_memory().await;
        let pool = Self { devices, engine };
        for name in ["tank/a", "tank/b"] {
            pool.engine.datasets().create(pools::dataset(name)).await.unwrap();
            pool.write(name, 0..BLOCKS, 1).await;
        }
        pool.snap("tank/a@1").await;
        pool.write("tank/a", 4..12, 2).await;
        pool.engine.datasets().clone_snapshot("tank/a@1", "tank/c", Vec::new()).await.unwrap();
        pool.write("tank/c", 0..3, 3).await;
        pool.snap("tank/a@2").await;
        pool
    }

    pub(crate) async fn write(&self, name: &str, blocks: std::ops::Range<u64>, salt: u64) {
        let head = self.engine.head(name).await.unwrap();
        let found = head.live().inspect(|tx| {
            for object in 1..64 {
                if tx.find(object)?.is_some() {
                    return Ok(Some(object));
                }
            }
            Ok(None)
        });
        let object = match found.await.unwrap() {
            Some(object) => object,
            None => pools::new_object(&self.engine, &head).await.unwrap(),
        };
        for block in blocks {
            pools::write(&self.engine, &head, object, block, salt).await.unwrap();
        }
        self.engine.sync().await.unwrap();
    }

    pub(crate) async fn snap(&self, name: &str) {
        self.engine.snapshots().create(vec![name.into()]).await.unwrap();
    }

    /// Returns the object of a dataset that has data, and the pointer to one of its blocks.
    pub(crate) async fn block_of(&self, name: &str, block: u64) -> (u64, BlockPtr) {
        let view = self.engine.view().await.unwrap();
        let found = view.dataset(name).await.unwrap().open().await.unwrap();
        for object in 1..64 {
            if let Ok(dnode) = found.dnode(object).await {
                return (object, dnode.stored_pointer(0, block).await.unwrap());
            }
        }
        panic!("{name} has no data");
    }

    pub(crate) fn leaf(&self, index: usize) -> u64 {
        self.engine.admin().vdev_config().leaves().nth(index).unwrap().guid
    }

    /// Changes a byte of every 32 KiB of a device between its labels, where anything is stored.
    pub(crate) async fn damage(&self, device: usize) -> usize {
        let device = &self.devices[device];
        let (mut image, mut count) = (device.image(), 0);
        for at in (4 << 20..device.info().size - (4 << 20)).step_by(32 << 10) {
            let mut sector = vec![0; 512];
            image.read_at(at, &mut sector);
            if sector.iter().any(|byte| *byte != 0) {
                sector[7] ^= 1;
                image.write_at(at, &sector);
                device.write(at, vec![Buf::from(sector)]).await.unwrap();
                count += 1;
            }
        }
        count
    }

    /// Scrubs to the end.
    pub(crate) async fn scrub(&self) -> ScanPhys {
        self.engine.store().clear_cache();
        self.engine.scans().scrub(ScrubOptions::default()).await.unwrap();
        self.engine.scans().wait(ScanFunc::Scrub).await.unwrap();
        scan_of(&self.engine.view().await.unwrap())
    }

    /// Brings leaves up to date.
    pub(crate) async fn resilver(&self) {
        self.engine.scans().resume().await.unwrap();
        self.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    }

    /// Syncs until nothing is to be freed.
    pub(crate) async fn settle(&self) {
        while self.engine.space().has_pending_frees().await.unwrap() {
            self.engine.sync().await.unwrap();
        }
    }

    /// Kills the process at a random point of `work`, which uses the pool's devices and `new` ones.
    /// Returns the pool as the next import has it.
    pub(crate) async fn kill_during<T>(
        self,
        work: JoinHandle<T>,
        new: &[Arc<ImageDevice>],
        rng: &mut Rng,
    ) -> Self {
        let most = 1 << (2 + rng.below(10));
        for _ in 0..rng.below(most) {
            cenote_rt::yield_now().await;
        }
        let mut images = pools::images_of(&self.devices);
        images.extend(new.iter().map(|device| device.image()));
        drop(work);
        let devices = pools::devices(images);
        let engine = pools::open(as_devices(&devices)).await.unwrap();
        Self { devices, engine }
    }

    /// Exports the pool, in which nothing may be wrong or missing; OpenZFS judges it for some seeds.
    pub(crate) async fn finish_whole(self, seed: u64) {
        self.engine.export().await.unwrap();
        let (summary, is_whole) = verify_of(as_devices(&self.devices)).await;
        assert!(summary.is_clean() && is_whole, "seed {seed}: {summary:?}");
        if seed.is_multiple_of(8) {
            pools::judge_devices(&self.devices, "after a crash", &[]);
        }
    }

    /// Exports the pool; returns what a verification of it finds.
    pub(crate) async fn finish(self) -> Summary {
        self.engine.export().await.unwrap();
        drop(self.engine);
        let (summary, is_whole) = verify_of(as_devices(&self.devices)).await;
        assert!(is_whole, "a leaf lacks something");
        pools::judge_devices(&self.devices, "after a scan", &[]);
        summary
    }
}

/// Verifies a pool; also returns whether no leaf lacks anything.
pub(crate) async fn verify_of(devices: Vec<Arc<dyn Device>>) -> (Summary, bool) {
    let pool = pools::open_read_only(devices).await.unwrap();
    pools::verify(&pool).await.unwrap()
}

/// Small rounds, so that a scan has many.
pub(crate) struct Rounds;

impl Rounds {
    pub(crate) fn of(bytes: u64) -> Self {
        tunables::SCAN_ROUND_BYTES.set(bytes).unwrap();
        Self
    }
}

impl Drop for Rounds {
    fn drop(&mut self) {
        tunables::SCAN_ROUND_BYTES.set(0).unwrap();
    }
}

/// Damage of `bad` leaves, whole blocks and gang blocks, is repaired by one scrub.
async fn damage_is_repaired((layout, count, bad): (&str, usize, usize)) {
    let pool = Fixture::new(layout, count).await;
    let usual = tunables::FORCE_GANGING.get();
    tunables::FORCE_GANGING.set(2048).unwrap();
    tunables::FORCE_GANGING_PCT.set(100).unwrap();
    pool.write("tank/b", 0..3, 8).await;
    tunables::FORCE_GANGING.set(usual).unwrap();
    let mut damaged = 0;
    for device in 0..bad {
        damaged += pool.damage(device).await;
    }
    let done = pool.scrub().await;
    assert_eq!((done.func, done.state, done.errors), (ScanFunc::Scrub, ScanState::Finished, 0));
    assert!(done.processed > 0 && damaged > 20, "{layout}: {done:?}");
    assert!(done.queue_obj == 0 && done.examined > done.to_examine / 2, "{layout}: {done:?}");
    let stats = pool.engine.tree().leaves().map(|(_, leaf)| leaf.stats());
    let counts: Vec<_> = stats.map(|stats| stats.checksum_errors > 0).collect();
    let expected: Vec<_> = (0..count).map(|device| device < bad).collect();
    assert_eq!(counts, expected, "{layout}");
    let again = pool.scrub().await;
    assert_eq!((again.processed, again.errors), (0, 0), "{layout}: {again:?}");
    let view = pool.engine.view().await.unwrap();
    assert_eq!(view.directory_value(LAST_SCRUBBED_TXG).unwrap().first(), Some(again.max_txg));
    drop(view);
    let summary = pool.finish().await;
    assert!(summary.is_clean(), "{layout}: {summary:?}");
}

#[test]
fn scrub_repairs_damage_on_every_layout() {
    for layout in LAYOUTS {
        simulate(1, damage_is_repaired(layout)).unwrap();
    }
}

/// Overwrites the blocks of an object of the MOS on all devices, while the pool is closed.
async fn spoil_object(devices: &[Arc<ImageDevice>], object: u64) {
    let pool = pools::open_copy(devices).await.unwrap();
    let dnode = pool.mos().dnode(object).await.unwrap();
    let pointer = dnode.block_pointer(0, 0).await.unwrap().unwrap();
    let ranges = pool.store().leaf_ranges(&pointer);
    assert!(!ranges.is_empty(), "the block is in its pointer");
    for range in ranges {
        for device in devices {
            device.write(range.offset, vec![Buf::from(vec![0xee; 512])]).await.unwrap();
        }
    }
}

/// A paused scrub whose record is changed is dropped with a notice by the next import. Until then
/// and afterwards the pool is used as before.
async fn damaged_scan_is_dropped(change: fn(&mut ScanPhys, &mut Vec<u64>), want: &str) {
    let rounds = Rounds::of(64 << 10);
    let mut pool = Fixture::new("mirror", 2).await;
    pool.engine.scans().scrub(ScrubOptions::default()).await.unwrap();
    pool.engine.scans().pause().await.unwrap();
    let list = Arc::new(AtomicU64::new(0));
    let found = Arc::clone(&list);
    let tampered = pool.engine.tamper(move |tx| {
        let stored = zap::lookup(tx, DIRECTORY, SCAN)?.unwrap();
        let mut phys = ScanPhys::decode(&stored.words()).unwrap();
        assert_eq!(phys.state, ScanState::Scanning);
        found.store(phys.queue_obj, Relaxed);
        let mut more = Vec::new();
        change(&mut phys, &mut more);
        let mut words = phys.encode().to_vec();
        if more == [0] {
            words.push(0);
            more.clear();
        }
        for dataset in more {
            zap::update(tx, phys.queue_obj, &zap::hex_key(dataset), dataset)?;
        }
        zap::update(tx, DIRECTORY, SCAN, Value::words_of(&words))
    });
    tampered.await.unwrap();
    pool.engine.export().await.unwrap();
    if want == "unreadable" {
        spoil_object(&pool.devices, list.load(Relaxed)).await;
    }
    pool.engine = pools::open(as_devices(&pool.devices)).await.unwrap();
    pool.snap("tank/b@before").await;
    pool.engine.scans().resume().await.unwrap();
    let notices = pool.engine.health().take_notices();
    let [Notice::ScanDropped { cause }] = &notices[..] else { panic!("{want}: {notices:?}") };
    let object = list.load(Relaxed);
    let wanted = want.replace("unreadable", &format!("object {object}: "));
    assert!(cause.starts_with(&wanted), "{cause}, and not {wanted}");
    let view = pool.engine.view().await.unwrap();
    assert!(view.directory_value(SCAN).is_none(), "{want}");
    drop(view);
    pool.snap("tank/b@after").await;
    pool.engine.snapshots().destroy("tank/b@before").await.unwrap();
    drop(rounds);
    pool.engine.scans().resume().await.unwrap();
    assert_eq!(pool.engine.health().take_notices(), []);
    let done = pool.scrub().await;
    assert_eq!((done.state, done.errors), (ScanState::Finished, 0), "{want}");
    pool.settle().await;
    assert!(pool.finish().await.is_clean(), "{want}");
}

/// A change of the record of a paused scrub and of its list of datasets, and how the notice begins.
type Tampering = (fn(&mut ScanPhys, &mut Vec<u64>), &'static str);

#[test]
fn damaged_scans_are_dropped() {
    let cases: [Tampering; 12] = [
        (|_, more| more.push(0), "scan state: 25 words"),
        (|phys, _| phys.state = ScanState::Unknown(77), "its state is 77"),
        (|phys, _| phys.func = ScanFunc::Unknown(9), "its kind is 9"),
        (|phys, _| phys.func = ScanFunc::None, "its kind is 0"),
        (|phys, _| phys.max_txg = u64::MAX, "it reads blocks up to txg 18446744073709551615"),
        (|phys, _| phys.start_time = u64::MAX, "it began at 18446744073709551615"),
        (|phys, _| phys.queue_obj = 0, "object 0 is no list of datasets"),
        (|phys, _| phys.queue_obj = 1, "object 1 is no list of datasets"),
        (|phys, _| phys.queue_obj = u64::MAX, "object 18446744073709551615 is no list"),
        (|phys, _| phys.bookmark.objset = 1, "object 1 is no dataset"),
        (|_, more| more.push(1 << 50), "object 1125899906842624: "),
        (
            |_, more| more.extend((1..60).map(|number| (number << 33) + number * 77_777)),
            "unreadable",
        ),
    ];
    for (change, want) in cases {
        simulate(1, damaged_scan_is_dropped(change, want)).unwrap();
    }
}

/// Blocks of encrypted datasets are checked and repaired, and written to a leaf that lacks them,
/// without their keys.
async fn sealed_blocks_are_repaired() {
    let mut pool = Fixture::new("raidz1", 3).await;
    let encryption = NewEncryption::Root(Some(Suite::Aes256Gcm), pools::raw_key([3; 32]));
    let new = NewDataset { encryption, ..pools::dataset("tank/sealed") };
    pool.engine.datasets().create(new).await.unwrap();
    pool.write("tank/sealed", 0..BLOCKS, 5).await;
    pool.engine.export().await.unwrap();
    pool.engine = pools::open(as_devices(&pool.devices)).await.unwrap();
    let view = pool.engine.view().await.unwrap();
    let info = view.dataset("tank/sealed").await.unwrap().key_info().await.unwrap().unwrap();
    assert!(!view.keys().is_loaded(&info));
    drop(view);
    assert!(pool.damage(1).await > 20);
    let done = pool.scrub().await;
    assert!(done.errors == 0 && done.processed > BLOCKS * (64 << 10) / 3, "{done:?}");
    let again = pool.scrub().await;
    assert_eq!((again.processed, again.errors), (0, 0));
    let leaf = pool.leaf(2);
    pool.engine.leaves().offline(leaf, false).await.unwrap();
    pool.snap("tank/sealed@s").await;
    pool.engine.sync().await.unwrap();
    pool.engine.leaves().online(leaf, None).await.unwrap();
    pool.resilver().await;
    assert!(pool.finish().await.is_clean());
}

#[test]
fn scans_need_no_keys() {
    simulate(1, sealed_blocks_are_repaired()).unwrap();
}

/// Beyond the redundancy the damaged blocks are in the error log, and nothing else.
async fn lost_blocks_are_listed() {
    let pool = Fixture::new("mirror", 2).await;
    let (object, bp) = pool.block_of("tank/b", 5).await;
    let at = bp.dva(0).unwrap().offset + (4 << 20);
    for device in &pool.devices {
        device.write(at, vec![Buf::from(vec![0xee; 512])]).await.unwrap();
    }
    let done = pool.scrub().await;
    assert_eq!(done.errors, 1, "{done:?}");
    pool.engine.sync().await.unwrap();
    let view = pool.engine.view().await.unwrap();
    let log = view.error_log().await.unwrap();
    assert_eq!(log.len(), 1, "{log:?}");
    assert_eq!((log[0].place.object, log[0].place.blkid), (object, 5), "{log:?}");
    drop(view);
    // Once it was written again, a scrub forgets it.
    pool.write("tank/b", 5..6, 9).await;
    let done = pool.scrub().await;
    assert_eq!(done.errors, 0);
    pool.engine.sync().await.unwrap();
    assert!(pool.engine.view().await.unwrap().error_log().await.unwrap().is_empty());
    assert!(pool.finish().await.is_clean());
}

async fn error_scrub_of(engine: &Arc<Engine>) -> ErrorScrubPhys {
    let words = engine.view().await.unwrap().directory_value(ERROR_SCRUB).unwrap().words();
    ErrorScrubPhys::decode(&words).unwrap()
}

/// Overwrites a sector of a block on every device, or puts back what was there.
async fn spoil(pool: &Fixture, bp: &BlockPtr, sectors: &mut Vec<Vec<u8>>) {
    let at = bp.dva(0).unwrap().offset + (4 << 20);
    let is_new = sectors.is_empty();
    for (number, device) in pool.devices.iter().enumerate() {
        if is_new {
            let mut was = vec![0; 512];
            device.image().read_at(at, &mut was);
            sectors.push(was);
        }
        let bytes = if is_new { vec![0xee; 512] } else { sectors[number].clone() };
        device.write(at, vec![Buf::from(bytes)]).await.unwrap();
    }
}

/// An error scrub reads what the log names and nothing else, and forgets what is good again: a
/// block that a snapshot has, one that was overwritten, and one that was restored.
async fn error_scrub_forgets_what_is_good() {
    let pool = Fixture::new("mirror", 2).await;
    let scans = || pool.engine.scans();
    scans().scrub_errors().await.unwrap();
    assert!(!scans().is_running(ScanFunc::ErrorScrub), "no errors are known");
    // Of a snapshot only, of a head and clone, and of another head.
    let mut spoiled = Vec::new();
    for (name, block) in [("tank/a@1", 5), ("tank/a", 20), ("tank/b", 7), ("tank/b", 9)] {
        let (_, bp) = pool.block_of(name, block).await;
        let mut sectors = Vec::new();
        spoil(&pool, &bp, &mut sectors).await;
        spoiled.push((bp, sectors));
    }
    assert_eq!(pool.scrub().await.errors, 4);
    let log = || async {
        pool.engine.sync().await.unwrap();
        pool.engine.view().await.unwrap().error_log().await.unwrap()
    };
    let scrub = || async {
        pool.engine.store().clear_cache();
        scans().scrub_errors().await.unwrap();
        scans().wait(ScanFunc::ErrorScrub).await.unwrap();
        error_scrub_of(&pool.engine).await
    };
    assert_eq!(log().await.len(), 4);
    let done = scrub().await;
    assert_eq!(done.state, ScanState::Finished);
    assert_eq!((done.to_examine, done.examined, done.errors), (4, 4, 4));
    assert_eq!(log().await.len(), 4, "all are bad still");
    // The first two are restored, the third is overwritten.
    for (bp, sectors) in &mut spoiled[..2] {
        spoil(&pool, bp, sectors).await;
    }
    pool.write("tank/b", 7..8, 9).await;
    let before = pool.engine.tree().leaves().map(|(_, leaf)| leaf.stats().bytes).sum::<u64>();
    tunables::SCRUB_ERROR_BLOCKS.set(2).unwrap();
    let done = scrub().await;
    tunables::SCRUB_ERROR_BLOCKS.set(4096).unwrap();
    assert_eq!((done.to_examine, done.examined, done.errors), (4, 4, 1));
    let left = log().await;
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0].place.blkid, 9);
    let after = pool.engine.tree().leaves().map(|(_, leaf)| leaf.stats().bytes).sum::<u64>();
    assert!(after - before < 8 << 20, "{} bytes were read", after - before);
    let (bp, sectors) = &mut spoiled[3];
    spoil(&pool, bp, sectors).await;
    assert_eq!(scrub().await.errors, 0);
    assert!(log().await.is_empty());
    assert!(pool.finish().await.is_clean());
}

#[test]
fn error_scrub_reads_what_the_log_names() {
    simulate(1, error_scrub_forgets_what_is_good()).unwrap();
}

/// Ten thousand lost blocks of many objects: the log lists each once, survives an export, and is
/// empty after the blocks were restored and an error scrub.
#[test]
fn ten_thousand_errors_are_remembered() {
    const OBJECTS: u64 = 100;
    const EACH: u64 = 100;
    simulate(1, async {
        let mut pool = Fixture::new("mirror", 2).await;
        let head = pool.engine.head("tank/b").await.unwrap();
        let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, 1 << 10);
        let mut objects = Vec::new();
        for number in 0..OBJECTS {
            let mut bytes = vec![0; (EACH << 10) as usize];
            Rng::seeded(number).fill(&mut bytes);
            let made = pool.engine.apply(&head, ApplyOptions::new(), |tx| {
                let object = tx.allocate(&spec)?;
                tx.write(object, 0, &bytes)?;
                Ok(object)
            });
            objects.push(made.await.unwrap().0);
            pool.engine.sync().await.unwrap();
        }
        let view = pool.engine.view().await.unwrap();
        let found = view.dataset("tank/b").await.unwrap().open().await.unwrap();
        let mut spoiled = Vec::new();
        for object in objects {
            let dnode = found.dnode(object).await.unwrap();
            for block in 0..EACH {
                let bp = dnode.stored_pointer(0, block).await.unwrap();
                let mut sectors = Vec::new();
                spoil(&pool, &bp, &mut sectors).await;
                spoiled.push((bp, sectors));
            }
        }
        drop((head, found, view));
        assert_eq!(pool.scrub().await.errors, OBJECTS * EACH);
        pool.engine.sync().await.unwrap();
        pool.engine.export().await.unwrap();
        pool.engine = pools::open(as_devices(&pool.devices)).await.unwrap();
        let log = pool.engine.view().await.unwrap().error_log().await.unwrap();
        let places: BTreeSet<_> =
            log.iter().map(|entry| (entry.place.object, entry.place.blkid)).collect();
        assert_eq!((log.len(), places.len() as u64), (places.len(), OBJECTS * EACH));
        for (bp, sectors) in &mut spoiled {
            spoil(&pool, bp, sectors).await;
        }
        pool.engine.store().clear_cache();
        pool.engine.scans().scrub_errors().await.unwrap();
        pool.engine.scans().wait(ScanFunc::ErrorScrub).await.unwrap();
        let done = error_scrub_of(&pool.engine).await;
        assert_eq!(
            (done.to_examine, done.examined, done.errors),
            (OBJECTS * EACH, OBJECTS * EACH, 0)
        );
        pool.engine.sync().await.unwrap();
        assert!(pool.engine.view().await.unwrap().error_log().await.unwrap().is_empty());
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// An error scrub is paused, refuses other scans, survives an export, and is cancelled by a
/// command, and by a resilver.
#[test]
fn error_scrub_is_paused_resumed_and_cancelled() {
    simulate(1, async {
        let mut pool = Fixture::new("mirror", 2).await;
        let mut spoiled = Vec::new();
        for block in 4..20 {
            let (_, bp) = pool.block_of("tank/b", block).await;
            let mut sectors = Vec::new();
            spoil(&pool, &bp, &mut sectors).await;
            spoiled.push((bp, sectors));
        }
        // Each block is a batch.
        tunables::SCRUB_ERROR_BLOCKS.set(1).unwrap();
        pool.scrub().await;
        let why = |result: Result<()>| result.unwrap_err().cause::<ScanError>().copied();
        let engine = Arc::clone(&pool.engine);
        engine.scans().scrub_errors().await.unwrap();
        let running = why(engine.scans().scrub_errors().await);
        assert_eq!(running, Some(ScanError::ErrorScrubbing));
        engine.scans().pause().await.unwrap();
        let paused = Some(ScanError::ErrorScrubPaused);
        // A leaf that comes back lets other scans go on, and leaves it as it is.
        let (before, pass) = (error_scrub_of(&engine).await, engine.scans().pass());
        assert!(before.examined > 0 && before.examined < 16, "{before:?}");
        engine.scans().resume().await.unwrap();
        assert_eq!((error_scrub_of(&engine).await, engine.scans().pass()), (before, pass));
        assert_eq!(why(engine.scans().pause().await), paused);
        assert_eq!(why(engine.scans().scrub(ScrubOptions::default()).await), paused);
        engine.export().await.unwrap();
        drop(engine);
        pool.engine = pools::open(as_devices(&pool.devices)).await.unwrap();
        let engine = Arc::clone(&pool.engine);
        engine.scans().resume().await.unwrap();
        assert!(!engine.scans().is_running(ScanFunc::ErrorScrub), "it is paused");
        engine.scans().scrub_errors().await.unwrap();
        engine.scans().wait(ScanFunc::ErrorScrub).await.unwrap();
        // Cancelled, and then by a resilver.
        engine.scans().scrub_errors().await.unwrap();
        engine.scans().stop().await.unwrap();
        assert_eq!(engine.scans().in_progress().await.unwrap(), None);
        engine.scans().scrub_errors().await.unwrap();
        engine.scans().pause().await.unwrap();
        let leaf = pool.leaf(0);
        engine.leaves().offline(leaf, false).await.unwrap();
        pool.write("tank/a", 0..3, 7).await;
        engine.leaves().online(leaf, None).await.unwrap();
        pool.resilver().await;
        assert_eq!(engine.scans().in_progress().await.unwrap(), None);
        let told = engine.health().events().after(0);
        let count = |event| told.iter().filter(|noted| noted.event == Event::Pool(event)).count();
        let counts = [
            PoolEvent::ErrorScrubStarted,
            PoolEvent::ErrorScrubPaused,
            PoolEvent::ErrorScrubResumed,
            PoolEvent::ErrorScrubFinished,
            PoolEvent::ErrorScrubAborted,
        ]
        .map(count);
        assert_eq!(counts, [2, 1, 1, 1, 2], "since the import");
        tunables::SCRUB_ERROR_BLOCKS.set(4096).unwrap();
        for (bp, sectors) in &mut spoiled {
            spoil(&pool, bp, sectors).await;
        }
        drop(engine);
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

#[test]
fn scrub_lists_what_is_lost() {
    simulate(1, lost_blocks_are_listed()).unwrap();
}

/// A leaf that came back gets everything: afterwards the pool can do without as many others as its
/// redundancy allows.
async fn leaf_is_made_whole((layout, count, bad): (&str, usize, usize)) {
    let pool = Fixture::new(layout, count).await;
    let leaf = pool.leaf(0);
    pool.engine.leaves().offline(leaf, false).await.unwrap();
    pool.write("tank/a", 0..BLOCKS, 5).await;
    pool.snap("tank/a@3").await;
    pool.write("tank/b", 3..9, 6).await;
    pool.engine.snapshots().destroy("tank/a@2").await.unwrap();
    pool.engine.leaves().online(leaf, None).await.unwrap();
    let missing = || pool.engine.tree().dtl(leaf, DtlKind::Missing).unwrap();
    assert!(!missing().is_empty());
    pool.engine.scans().resume().await.unwrap();
    assert!(pool.engine.scans().is_running(ScanFunc::Resilver));
    pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    let done = scan_of(&pool.engine.view().await.unwrap());
    assert_eq!((done.func, done.state, done.errors), (ScanFunc::Resilver, ScanState::Finished, 0));
    assert!(done.processed > 64 << 10, "{layout}: {done:?}");
    assert!(missing().is_empty(), "{layout}: {:?}", missing());
    pool.engine.export().await.unwrap();
    let rest = as_devices(&pool.devices);
    let rest = rest.into_iter().enumerate().filter(|(index, _)| !(1..=bad).contains(index));
    let (summary, _) = verify_of(rest.map(|(_, device)| device).collect()).await;
    assert!(summary.lost == 0 && summary.unreachable == 0, "{layout}: {summary:?}");
    let (summary, is_whole) = verify_of(as_devices(&pool.devices)).await;
    assert!(summary.is_clean() && is_whole, "{layout}: {summary:?}");
    pools::judge_devices(&pool.devices, layout, &[]);
}

#[test]
fn resilver_makes_a_leaf_whole() {
    for layout in LAYOUTS {
        simulate(1, leaf_is_made_whole(layout)).unwrap();
    }
}

/// A scrub that is requested while the resilver of a leaf that came back is about to begin is that
/// resilver; once it has begun, a scrub is refused.
#[test]
fn scrub_at_the_begin_of_a_resilver_is_the_resilver() {
    simulate(1, async {
        let pool = Fixture::new("mirror", 2).await;
        pool.engine.leaves().offline(pool.leaf(0), false).await.unwrap();
        pool.write("tank/a", 0..BLOCKS, 5).await;
        pool.engine.leaves().online(pool.leaf(0), None).await.unwrap();
        let scans = pool.engine.scans();
        let options = ScrubOptions::default();
        let engine = Arc::clone(&pool.engine);
        let resumed = cenote_rt::spawn(async move { engine.scans().resume().await });
        cenote_rt::yield_now().await;
        scans.scrub(options).await.unwrap();
        resumed.await.unwrap().unwrap();
        let refused = scans.scrub(options).await.unwrap_err();
        assert_eq!(refused.cause(), Some(&ScanError::Resilvering));
        scans.wait(ScanFunc::Resilver).await.unwrap();
        let done = scan_of(&pool.engine.view().await.unwrap());
        assert_eq!((done.func, done.state), (ScanFunc::Resilver, ScanState::Finished));
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// What fails while a resilver runs stays in the log of the leaf, and is written by the next one.
async fn failures_are_kept() {
    let _small = Rounds::of(64 << 10);
    let pool = Fixture::new("mirror", 2).await;
    let leaf = pool.leaf(0);
    pool.engine.leaves().offline(leaf, false).await.unwrap();
    pool.write("tank/a", 0..BLOCKS, 5).await;
    pool.engine.leaves().online(leaf, None).await.unwrap();
    pool.engine.scans().resume().await.unwrap();
    while pool.engine.scans().pass().issued < 512 << 10 {
        cenote_rt::yield_now().await;
    }
    // The leaf is away for a moment, in which the scan passes blocks that it lacks.
    pool.engine.leaves().offline(leaf, false).await.unwrap();
    pool.engine.leaves().online(leaf, None).await.unwrap();
    pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    let missing = || pool.engine.tree().dtl(leaf, DtlKind::Missing).unwrap();
    assert!(!missing().is_empty(), "it was away");
    pool.engine.scans().resume().await.unwrap();
    pool.engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    assert!(missing().is_empty());
    assert!(pool.finish().await.is_clean());
}

#[test]
fn resilver_keeps_what_fails_meanwhile() {
    simulate(1, failures_are_kept()).unwrap();
}

/// A device that refuses writes to one place.
#[derive(Debug)]
pub(crate) struct Failing {
    pub(crate) inner: Arc<ImageDevice>,
    pub(crate) bad: AtomicU64,
}

impl Device for Failing {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        self.inner.read(offset, buf)
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if (offset..offset + len as u64).contains(&self.bad.load(Relaxed)) {
            return Box::pin(std::future::ready(Err(Error::new(Kind::Io, "a bad sector"))));
        }
        self.inner.write(offset, parts)
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        self.inner.flush()
    }
}

/// A resilver whose writes fail leaves the leaf's log as it is, although the leaf stays in service.
#[test]
fn resilver_keeps_what_it_could_not_write() {
    simulate(1, async {
        let builder = PoolBuilder::of("mirror", 2).with_size(96 << 20);
        let failing = |inner| Arc::new(Failing { inner, bad: AtomicU64::new(u64::MAX) });
        let devices: Vec<_> = builder.memory_devices().into_iter().map(failing).collect();
        let engine = builder.create(as_devices(&devices)).await.unwrap();
        let inner = devices.iter().map(|device| Arc::clone(&device.inner)).collect();
        let pool = Fixture { devices: inner, engine };
        pool.engine.datasets().create(pools::dataset("tank/a")).await.unwrap();
        let leaf = pool.leaf(0);
        pool.engine.leaves().offline(leaf, false).await.unwrap();
        pool.write("tank/a", 0..BLOCKS, 5).await;
        pool.engine.leaves().online(leaf, None).await.unwrap();
        let missing = || pool.engine.tree().dtl(leaf, DtlKind::Missing).unwrap();
        let (_, bp) = pool.block_of("tank/a", 5).await;
        devices[0].bad.store(bp.dva(0).unwrap().offset + (4 << 20), Relaxed);
        pool.resilver().await;
        assert!(missing().contains(bp.physical_birth()), "{:?}", missing());
        devices[0].bad.store(u64::MAX, Relaxed);
        pool.resilver().await;
        assert!(missing().is_empty());
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// Two leaves come back at once: what one of them lacks does not count as what the other lacks.
#[test]
fn resilver_covers_only_the_txgs_that_it_visits() {
    simulate(1, async {
        let pool = Fixture::new("mirror", 3).await;
        let (one, other) = (pool.leaf(0), pool.leaf(1));
        pool.engine.leaves().offline(one, false).await.unwrap();
        pool.write("tank/a", 0..8, 5).await;
        pool.engine.leaves().offline(other, false).await.unwrap();
        pool.engine.leaves().online(one, None).await.unwrap();
        pool.write("tank/a", 8..16, 6).await;
        pool.engine.leaves().online(other, None).await.unwrap();
        let missing = |leaf| pool.engine.tree().dtl(leaf, DtlKind::Missing).unwrap();
        // As if `one` came back after the bounds were computed for `other`.
        let first = missing(other).iter().next().unwrap().0;
        let leaves = || pool.engine.tree().leaves().map(|(_, leaf)| leaf);
        leaves().for_each(|leaf| leaf.begin_scan(first - 1, u64::MAX));
        leaves().for_each(|leaf| leaf.end_scan(u64::MAX));
        assert!(missing(other).is_empty() && !missing(one).is_empty());
        pool.resilver().await;
        assert!(missing(one).is_empty());
        pool.engine.export().await.unwrap();
    })
    .unwrap();
}

/// A checkpoint has blocks that a resilver does not see: the leaf keeps its log.
async fn checkpoint_keeps_logs() {
    let pool = Fixture::new("mirror", 2).await;
    let leaf = pool.leaf(0);
    pool.engine.leaves().offline(leaf, false).await.unwrap();
    pool.write("tank/a", 0..BLOCKS, 5).await;
    pool.engine.leaves().online(leaf, None).await.unwrap();
    pool.engine.space().take_checkpoint().await.unwrap();
    pool.write("tank/a", 0..BLOCKS, 6).await;
    let missing = || pool.engine.tree().dtl(leaf, DtlKind::Missing).unwrap();
    pool.resilver().await;
    assert!(!missing().is_empty(), "the checkpoint's blocks are on one leaf only");
    pool.engine.space().discard_checkpoint().await.unwrap();
    pool.settle().await;
    pool.resilver().await;
    assert!(missing().is_empty());
    assert!(pool.finish().await.is_clean());
}

#[test]
fn resilver_leaves_the_log_of_a_checkpoint() {
    simulate(1, checkpoint_keeps_logs()).unwrap();
}

/// A power cut at a point of a scrub: the next import continues it to the end.
async fn scrub_survives_a_crash(case: u64) {
    let _small = Rounds::of(256 << 10);
    let pool = Fixture::new("raidz1", 3).await;
    pool.damage(1).await;
    pool.engine.store().clear_cache();
    pool.engine.scans().scrub(ScrubOptions::default()).await.unwrap();
    while pool.engine.scans().pass().issued < case * (700 << 10) {
        cenote_rt::yield_now().await;
    }
    let before = pool.engine.scans().pass();
    let images = pools::images_of(&pool.devices);
    drop(pool);
    let devices = pools::devices(images);
    let engine = pools::open(as_devices(&devices)).await.unwrap();
    let pool = Fixture { devices, engine };
    let stored = scan_of(&pool.engine.view().await.unwrap());
    assert_eq!(stored.state, ScanState::Scanning, "{before:?}");
    assert!(stored.examined <= before.issued && (case == 0 || stored.examined > 0));
    pool.engine.scans().resume().await.unwrap();
    pool.engine.scans().wait(ScanFunc::Scrub).await.unwrap();
    let done = scan_of(&pool.engine.view().await.unwrap());
    assert_eq!((done.state, done.errors), (ScanState::Finished, 0));
    assert!(pool.finish().await.is_clean(), "case {case}");
}

#[test]
fn scrub_continues_after_a_crash() {
    for case in 0..6 {
        simulate(case, scrub_survives_a_crash(case)).unwrap();
    }
}

/// A scrub that is interrupted by exports all the time misses nothing.
async fn exports_lose_nothing(seed: u64) {
    let mut pool = Fixture::new("mirror", 2).await;
    pool.damage(0).await;
    pool.engine.store().clear_cache();
    pool.engine.scans().scrub(ScrubOptions::default()).await.unwrap();
    let mut rng = Rng::seeded(seed);
    for _ in 0..6 {
        for _ in 0..1 << rng.below(12) {
            cenote_rt::yield_now().await;
        }
        pool.engine.export().await.unwrap();
        pool.engine = pools::open(as_devices(&pool.devices)).await.unwrap();
        pool.engine.scans().resume().await.unwrap();
    }
    pool.engine.scans().wait(ScanFunc::Scrub).await.unwrap();
    assert!(pool.finish().await.is_clean(), "seed {seed}");
}

#[test]
fn scrub_is_interrupted_at_any_point() {
    for seed in 0..8 {
        simulate(seed, exports_lose_nothing(seed)).unwrap();
    }
}

/// Datasets are written, created, snapshotted, cloned, promoted, rolled back and destroyed while a
/// scrub passes them: it misses no block that is still there.
async fn changes_are_followed(seed: u64) {
    let _small = Rounds::of(128 << 10);
    let pool = Fixture::new("mirror", 2).await;
    let engine = &pool.engine;
    for number in 0..4 {
        pool.write("tank/a", number * 3..number * 3 + 4, 20 + number).await;
        pool.snap(&format!("tank/a@n{number}")).await;
    }
    pool.snap("tank/b@old").await;
    pool.write("tank/b", 2..5, 40).await;
    pool.damage(0).await;
    engine.store().clear_cache();
    engine.scans().scrub(ScrubOptions::default()).await.unwrap();
    let mut rng = Rng::seeded(seed);
    let (mut number, mut examined, mut still) = (0, 0, 0);
    while engine.scans().is_running(ScanFunc::Scrub) {
        number += 1;
        cenote_rt::yield_now().await;
        let now = engine.scans().pass().examined;
        still = if std::mem::replace(&mut examined, now) == now { still + 1 } else { 0 };
        if still > 50 {
            // The scan rests until time passes.
            cenote_rt::sleep(Duration::from_millis(10)).await;
        }
        // Each may be refused: the dataset is gone, has clones, or is too new.
        let snapshot = format!("tank/a@n{}", rng.below(4));
        let clone = format!("tank/k{}", rng.below(3));
        let any = ["tank/a", "tank/b", "tank/c"][rng.below(3) as usize];
        match rng.below(10) {
            0 => drop(engine.snapshots().destroy(&snapshot).await),
            1 | 2 => drop(engine.snapshots().create(vec![format!("{any}@x{number}")]).await),
            3 => drop(engine.datasets().clone_snapshot(&snapshot, &clone, Vec::new()).await),
            4 => drop(engine.datasets().promote(&clone).await),
            5 => drop(engine.datasets().destroy(&clone).await),
            6 => {
                // The oldest of a file system, or one in the middle.
                let old = ["tank/b@old", "tank/a@2"][rng.below(2) as usize];
                drop(engine.snapshots().destroy(old).await);
            }
            7 => drop(engine.datasets().rollback(any, None).await),
            _ if number > 60 => drop(engine.sync().await),
            _ => {
                let first = rng.below(BLOCKS - 4);
                pool.write(any, first..first + 4, 100 + number).await;
            }
        }
    }
    engine.scans().wait(ScanFunc::Scrub).await.unwrap();
    let done = scan_of(&engine.view().await.unwrap());
    assert_eq!((done.state, done.errors), (ScanState::Finished, 0), "seed {seed}");
    assert!(number > 3, "seed {seed}: {number} changes");
    let summary = pool.finish().await;
    assert!(summary.is_clean(), "seed {seed}: {summary:?}");
}

#[test]
fn scrub_follows_changes_of_datasets() {
    for seed in 0..8 {
        simulate(seed, changes_are_followed(seed)).unwrap();
    }
}

/// Whether a scenario fails in an engine with a mistake.
pub(crate) fn fails(bug: Bug, scenario: impl Future<Output = ()>) -> bool {
    let run = AssertUnwindSafe(|| {
        simulate(1, async {
            seeded::set(Some(bug));
            scenario.await;
        })
    });
    catch_unwind(run).is_err()
}

#[test]
fn mistakes_are_found() {
    let (mirror, raidz) = (LAYOUTS[0], LAYOUTS[2]);
    let found = |bug| match bug {
        Bug::ScanMissesSnapshot | Bug::ScanMissesDestroy => {
            (0..40).any(|seed| fails(bug, changes_are_followed(seed)))
        }
        Bug::ScanSkipsBlock => fails(bug, scrub_survives_a_crash(4)),
        Bug::ScanAheadOfRepairs => (0..20).any(|seed| fails(bug, exports_lose_nothing(seed))),
        Bug::ScanForgetsFailures => fails(bug, failures_are_kept()),
        Bug::ScanIgnoresCheckpoint => fails(bug, checkpoint_keeps_logs()),
        Bug::LostBlocksForgotten => fails(bug, lost_blocks_are_listed()),
        Bug::ErrorScrubSkipsSnapshots => fails(bug, error_scrub_forgets_what_is_good()),
        Bug::ParityNotMended => fails(bug, leaf_is_made_whole(raidz)),
        Bug::ScanMissesLastTxg => fails(bug, leaf_is_made_whole(mirror)),
        Bug::OrdinaryIoUnnoticed => fails(bug, throttles::delays_clamp_a_used_pool()),
        Bug::SlowdownUnbounded => fails(bug, throttles::slowdown_is_bounded()),
        Bug::PromisedRateForgotten => fails(bug, throttles::promised_rate_is_kept()),
        _ => fails(bug, damage_is_repaired(mirror)),
    };
    let unfound: Vec<_> = Bug::OF_SCANS.into_iter().filter(|bug| !found(*bug)).collect();
    assert!(unfound.is_empty(), "not found: {unfound:?}");
}

#[test]
fn suspended_scans_stand_still() {
    simulate(1, async {
        let pool = Fixture::new("mirror", 2).await;
        let scans = pool.engine.scans();
        tunables::SCAN_SUSPEND_PROGRESS.set(1).unwrap();
        scans.scrub(ScrubOptions::default()).await.unwrap();
        cenote_rt::sleep(Duration::from_mins(1)).await;
        assert!(scans.is_running(ScanFunc::Scrub) && scans.pass().issued == 0);
        tunables::SCAN_SUSPEND_PROGRESS.set(0).unwrap();
        scans.wait(ScanFunc::Scrub).await.unwrap();
        assert!(scans.pass().issued > 0);
    })
    .unwrap();
}

#[test]
fn scrub_is_paused_resumed_and_cancelled() {
    simulate(1, async {
        let _small = Rounds::of(256 << 10);
        let pool = Fixture::new("mirror", 2).await;
        let scans = || pool.engine.scans();
        let why = |result: Result<()>| result.unwrap_err().cause::<ScanError>().copied();
        assert_eq!(why(scans().pause().await), Some(ScanError::NotRunning));
        assert_eq!(why(scans().stop().await), Some(ScanError::NotRunning));
        scans().scrub(ScrubOptions::default()).await.unwrap();
        assert_eq!(why(scans().scrub(ScrubOptions::default()).await), Some(ScanError::Scrubbing));
        scans().pause().await.unwrap();
        assert_eq!(why(scans().pause().await), Some(ScanError::Paused));
        let stored = || async { scan_of(&pool.engine.view().await.unwrap()) };
        let paused = stored().await;
        assert!(paused.flags.contains(ScanFlags::PAUSED) && !scans().is_running(ScanFunc::Scrub));
        cenote_rt::sleep(Duration::from_secs(100)).await;
        assert_eq!(stored().await, paused, "nothing moves");
        scans().scrub(ScrubOptions::default()).await.unwrap();
        scans().wait(ScanFunc::Scrub).await.unwrap();
        assert_eq!(stored().await.state, ScanState::Finished);
        // Only what is newer.
        pool.write("tank/b", 0..2, 8).await;
        scans().scrub(ScrubOptions { from_last: true }).await.unwrap();
        scans().wait(ScanFunc::Scrub).await.unwrap();
        assert!(stored().await.min_txg > 0);
        scans().scrub(ScrubOptions::default()).await.unwrap();
        scans().stop().await.unwrap();
        let ended = stored().await;
        assert_eq!((ended.state, ended.queue_obj), (ScanState::Canceled, 0));
        let told: Vec<_> = pool.engine.health().events().after(0).into_iter().collect();
        let count = |event| told.iter().filter(|noted| noted.event == Event::Pool(event)).count();
        let counts = [
            PoolEvent::ScrubStarted,
            PoolEvent::ScrubPaused,
            PoolEvent::ScrubResumed,
            PoolEvent::ScrubFinished,
            PoolEvent::ScrubAborted,
        ]
        .map(count);
        assert_eq!(counts, [3, 1, 1, 2, 1]);
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// Continues the scan of a pool that OpenZFS left in the middle of it, to its end.
async fn continue_scan(engine: &Arc<Engine>, name: &str, func: ScanFunc) -> Result<()> {
    let before = scan_of(&*engine.view().await?);
    assert_eq!((before.func, before.state), (func, ScanState::Scanning));
    engine.scans().resume().await?;
    if before.flags.contains(ScanFlags::PAUSED) {
        assert!(!engine.scans().is_running(func));
        engine.scans().scrub(ScrubOptions::default()).await?;
    }
    engine.snapshots().create(vec![format!("{name}@during")]).await?;
    engine.scans().wait(func).await?;
    let done = scan_of(&*engine.view().await?);
    assert_eq!((done.func, done.state, done.errors), (func, ScanState::Finished, 0));
    Ok(())
}

#[test]
fn scans_of_openzfs_are_continued() {
    for (name, func) in [
        ("g-scan", ScanFunc::Resilver),
        ("g-resilver", ScanFunc::Resilver),
        ("g-scrub-paused", ScanFunc::Scrub),
    ] {
        end_theirs(name, async |engine| continue_scan(engine, name, func).await.unwrap());
    }
}

/// Opens a pool of OpenZFS for writing.
async fn open_theirs(folder: &Path, name: &str) -> Arc<Engine> {
    let found = scan(&ScanOptions { paths: vec![folder.to_path_buf()] }).await.unwrap();
    Engine::open(found.find(name).unwrap(), &OpenOptions::default()).await.unwrap()
}

/// Runs `work` on a pool that OpenZFS left half way, exports it, and has OpenZFS judge it. Every
/// leaf must have everything then.
fn end_theirs(name: &str, work: impl AsyncFnOnce(&Arc<Engine>)) {
    let Some(golden) = golden(name) else { return };
    let copy = golden.private_copy();
    block_on(2, async {
        let engine = open_theirs(copy.path(), name).await;
        work(&engine).await;
        let view = engine.view().await.unwrap();
        let (summary, is_whole) = pools::verify(&view).await.unwrap();
        assert!(summary.is_clean() && is_whole, "{name}: {summary:?}");
        drop(view);
        engine.export().await.unwrap();
    })
    .unwrap();
    pools::judge(copy.path(), name);
}

async fn resilver(engine: &Arc<Engine>) {
    engine.scans().resume().await.unwrap();
    engine.scans().wait(ScanFunc::Resilver).await.unwrap();
    engine.sync().await.unwrap();
}

fn inner_vdevs(engine: &Engine) -> Vec<VdevKind> {
    let root = engine.admin().vdev_config();
    let inner = root.children.iter().flat_map(|top| &top.children);
    inner.filter(|vdev| !vdev.kind.is_leaf()).map(|vdev| vdev.kind.clone()).collect()
}

#[test]
fn replacements_of_openzfs_are_ended() {
    end_theirs("g-replacing", async |engine| {
        assert_eq!(inner_vdevs(engine), [VdevKind::Replacing, VdevKind::Replacing]);
        resilver(engine).await;
        assert_eq!(inner_vdevs(engine), []);
        assert_eq!(engine.admin().vdev_config().leaves().count(), 4);
    });
}

#[test]
fn dirty_time_logs_of_openzfs_are_emptied() {
    end_theirs("g-dtl", async |engine| {
        let lacks = || {
            let logs = engine.tree().leaves().map(|(_, leaf)| leaf.dtl());
            logs.map(|log| log.is_some_and(|log| log.max().is_some())).collect()
        };
        let before: Vec<bool> = lacks();
        assert_eq!(before.iter().filter(|lacks| **lacks).count(), 1);
        resilver(engine).await;
        assert_eq!(lacks(), vec![false; 2]);
    });
}

#[test]
fn spares_of_openzfs_are_sent_back() {
    end_theirs("g-spare", async |engine| {
        assert_eq!(inner_vdevs(engine), [VdevKind::Spare]);
        let root = engine.admin().vdev_config();
        let faulted = root.leaves().find(|leaf| leaf.leaf.faulted).unwrap().guid;
        engine.leaves().clear(Some(faulted)).await.unwrap();
        resilver(engine).await;
        assert_eq!(inner_vdevs(engine), []);
        assert_eq!(engine.view().await.unwrap().spares().len(), 2);
    });
}

/// A scrub finds the blocks again that no copy of is good, and nothing else.
#[test]
fn errors_of_openzfs_are_found_again() {
    let Some(golden) = golden("g-scrub-errors") else { return };
    let damage = golden.text("damage.txt").unwrap();
    let lost = damage.lines().filter(|line| line.starts_with("beyond repair: "));
    let block =
        |line: &str| line.split_once(" block ").unwrap().1.split(' ').next().unwrap().parse();
    let lost: BTreeSet<u64> = lost.map(|line| block(line).unwrap()).collect();
    assert_eq!(lost.len(), 3);
    let copy = golden.private_copy();
    block_on(2, async {
        let engine = open_theirs(copy.path(), "g-scrub-errors").await;
        for _ in 0..2 {
            engine.scans().scrub(ScrubOptions::default()).await.unwrap();
            engine.scans().wait(ScanFunc::Scrub).await.unwrap();
            engine.sync().await.unwrap();
            let view = engine.view().await.unwrap();
            let done = scan_of(&view);
            assert_eq!((done.state, done.errors), (ScanState::Finished, 3));
            let log = view.error_log().await.unwrap();
            let found: BTreeSet<u64> = log.iter().map(|found| found.place.blkid).collect();
            assert_eq!(found, lost, "{log:?}");
        }
        engine.export().await.unwrap();
    })
    .unwrap();
}

#[test]
fn pools_that_openzfs_split_are_two() {
    let Some(golden) = golden("g-split") else { return };
    let copy = golden.private_copy();
    for name in ["g-split", "g-split-new"] {
        block_on(2, async {
            let engine = open_theirs(copy.path(), name).await;
            assert_eq!(engine.admin().vdev_config().leaves().count(), 2);
            engine.scans().scrub(ScrubOptions::default()).await.unwrap();
            engine.scans().wait(ScanFunc::Scrub).await.unwrap();
            let done = scan_of(&engine.view().await.unwrap());
            assert_eq!((done.state, done.errors, done.processed), (ScanState::Finished, 0, 0));
            engine.export().await.unwrap();
        })
        .unwrap();
        // OpenZFS's split leaves objects of the leaves behind that left.
        if let Some(zdb) = cenote_oracle::zdb() {
            let said = zdb.pool(name, copy.path(), &["-bcc"]);
            assert!(said.stdout.contains("No leaks"), "{said}");
        }
    }
}
