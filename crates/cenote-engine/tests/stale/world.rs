//! A pool that is overwritten continuously, and the model of its contents.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cenote_device::Device;
use cenote_dmu::live::ObjectSpec;
use cenote_dmu::{ObjSet, Tx};
use cenote_engine::{ApplyOptions, Charge, Engine, Event, Head};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::Value;
use cenote_pool::OpenOptions;
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::seeded::Bug;
use cenote_rt::{Kind, Result, Rng, tunables};

use crate::slow::{SlowDevice, wait};

/// Block size.
pub(crate) const BLOCK: u64 = 32 << 10;
pub(crate) const DATASET: &str = "tank/a";
/// Number of blocks at the end of the object that are never overwritten.
pub(crate) const FIXED: u64 = 16;
/// Number of snapshots at a time.
const SNAPSHOTS: usize = 3;

/// Pool layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Mirror,
    Raidz2,
    Draid,
    /// A single disk, every block twice.
    Copies,
}

impl Layout {
    /// Returns redundancy, number of devices, and their size in MiB.
    const fn shape(self) -> (&'static str, usize, u64) {
        match self {
            Self::Mirror => ("mirror", 2, 64),
            Self::Raidz2 => ("raidz2", 4, 64),
            Self::Draid => ("draid1:2d:4c:1s", 4, 128),
            Self::Copies => ("disk", 1, 64),
        }
    }
}

/// Returns the machine of a run.
pub(crate) fn machine(seed: u64, bug: Option<Bug>) -> cenote_rt::World {
    let tunables = vec![
        // Views are held for longer than this.
        (&tunables::PIN_DEADLINE_MS, 10_000),
        (&tunables::METASLAB_PRELOAD_ENABLED, 0),
    ];
    cenote_rt::World { tunables, bug, ..cenote_rt::World::new(seed) }
}

/// The written contents.
#[derive(Debug, Default)]
pub(crate) struct Model {
    /// Every salt of each block, the last one last.
    pub(crate) history: Vec<Vec<u64>>,
    /// Index of the oldest salt that a block can have: its write has returned.
    pub(crate) returned: Vec<usize>,
    /// The committed salts of each txg.
    pub(crate) committed: BTreeMap<u64, Vec<u64>>,
    /// The salts of snapshots.
    pub(crate) snapshots: BTreeMap<String, Vec<u64>>,
}

impl Model {
    fn now(&self) -> Vec<u64> {
        self.history.iter().map(|salts| *salts.last().unwrap()).collect()
    }
}

/// The currently open pool.
struct Opened {
    engine: Arc<Engine>,
    head: Arc<Head>,
    /// Number of started exports and finished imports: odd while the pool is exported.
    changes: u64,
}

/// A pool and its model.
pub(crate) struct World {
    pub(crate) devices: Vec<Arc<SlowDevice>>,
    opened: Mutex<Opened>,
    pub(crate) object: u64,
    pub(crate) seed: u64,
    model: Mutex<Model>,
    rng: Mutex<Rng>,
    is_over: AtomicBool,
}

/// Returns an incompressible block.
pub(crate) fn content(block: u64, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    if salt != 0 {
        Rng::seeded(block << 32 | salt).fill(&mut bytes);
        bytes[..8].copy_from_slice(&salt.to_le_bytes());
    }
    bytes
}

/// Returns the salt of a block; panics if the block was never written.
pub(crate) fn salt_of(block: u64, bytes: &[u8]) -> u64 {
    let salt = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    assert!(bytes == content(block, salt), "block {block} is not what was written with {salt}");
    salt
}

impl World {
    pub(crate) async fn new(layout: Layout, fill: u64, seed: u64) -> Arc<Self> {
        let (shape, count, mib) = layout.shape();
        let device = |index| SlowDevice::new(index, mib << 20, seed);
        let devices: Vec<_> = (0..count).map(device).collect();
        let builder = PoolBuilder::of(shape, count).with_seed(seed);
        let engine = builder.create(pools::as_devices(&devices)).await.unwrap();
        let head = engine.datasets().create(pools::dataset(DATASET)).await.unwrap();
        let copies = if layout == Layout::Copies { 2 } else { 1 };
        engine.properties().set(DATASET, "copies", Value::U64(copies)).await.unwrap();
        engine.properties().set(DATASET, "compression", Value::U64(2)).await.unwrap();
        keep_little_in_memory(&engine);
        let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, BLOCK);
        let charge = Charge::free(16 << 10);
        let object = engine
            .apply(&head, ApplyOptions::charged(charge), |tx| tx.allocate(&spec))
            .await
            .unwrap()
            .0;
        let world = Arc::new(Self {
            devices,
            opened: Mutex::new(Opened { engine, head, changes: 0 }),
            object,
            seed,
            model: Mutex::default(),
            rng: Mutex::new(Rng::seeded(seed)),
            is_over: AtomicBool::new(false),
        });
        world.fill(fill, copies).await;
        world.devices.iter().for_each(|device| device.set_slow(true));
        world
    }

    /// Fills this percentage of the usable space.
    async fn fill(&self, percent: u64, copies: u64) {
        let space = self.engine().allocator().normal_space();
        // Half of a tiny pool is slop space.
        let room = space / 2 / copies / BLOCK;
        let blocks = if percent < 99 { room * percent / 100 } else { u64::MAX };
        let mut block = 0;
        while block < blocks.max(FIXED * 2) {
            {
                let mut model = self.model();
                model.history.push(vec![0]);
                model.returned.push(0);
            }
            if self.write(block, 1).await.is_err() {
                self.model().history.pop();
                break;
            }
            block += 1;
            if block % 128 == 0 {
                self.sync().await;
            }
        }
        self.sync().await;
    }

    fn opened(&self) -> MutexGuard<'_, Opened> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn engine(&self) -> Arc<Engine> {
        Arc::clone(&self.opened().engine)
    }

    pub(crate) fn head(&self) -> Arc<Head> {
        Arc::clone(&self.opened().head)
    }

    /// Returns the number of started exports and finished imports.
    pub(crate) fn changes(&self) -> u64 {
        self.opened().changes
    }

    pub(crate) fn is_exported(&self) -> bool {
        self.changes() % 2 == 1
    }

    /// Exports the pool while it is read, and imports it again. No device is accessed in between.
    pub(crate) async fn export_and_import(&self) {
        self.judge_counts();
        self.opened().changes += 1;
        self.engine().export().await.unwrap();
        self.devices.iter().for_each(|device| device.set_exported(true));
        // Readers that have not noticed continue meanwhile.
        cenote_rt::sleep(Duration::from_secs(20)).await;
        for device in &self.devices {
            let unexpected = device.unexpected.load(Ordering::Relaxed);
            assert_eq!(unexpected, 0, "requests to {} after the export", device.info().path);
            device.set_exported(false);
        }
        let (devices, guid) = (pools::as_devices(&self.devices), self.engine().guid());
        let opened = Engine::open_devices(devices, guid, &OpenOptions::default()).await;
        let engine = opened.unwrap();
        keep_little_in_memory(&engine);
        let head = engine.head(DATASET).await.unwrap();
        let mut opened = self.opened();
        *opened = Opened { engine, head, changes: opened.changes + 1 };
    }

    pub(crate) fn model(&self) -> MutexGuard<'_, Model> {
        self.model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of blocks of the object.
    pub(crate) fn blocks(&self) -> u64 {
        self.model().history.len() as u64
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Returns the number of reads that were slow enough for commits meanwhile.
    pub(crate) fn slow_reads(&self) -> u64 {
        self.devices.iter().map(|device| device.long.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    async fn write(&self, block: u64, salt: u64) -> Result<()> {
        let bytes = content(block, salt);
        // Readers can see it before this returns.
        self.model().history[block as usize].push(salt);
        let (object, charge) = (self.object, Charge::write(BLOCK));
        let change = |tx: &mut Tx<'_>| tx.write(object, block * BLOCK, &bytes);
        let options = ApplyOptions::charged(charge);
        let written = self.engine().apply(&self.head(), options, change).await.map(drop);
        let mut model = self.model();
        let salts = &mut model.history[block as usize];
        if written.is_err() {
            // The write failed: the old salt is valid again.
            let before = salts[salts.len() - 2];
            salts.push(before);
        }
        let last = salts.len() - 1;
        model.returned[block as usize] = last;
        drop(model);
        written
    }

    /// Commits, and records the committed salts.
    async fn sync(&self) {
        let now = self.model().now();
        self.engine().sync().await.unwrap();
        let txg = self.engine().uberblock().txg;
        self.model().committed.insert(txg, now);
    }

    /// Overwrites blocks, in rounds.
    pub(crate) async fn churn(&self, rounds: Range<u64>) {
        let mut snapshots: VecDeque<_> = self.model().snapshots.keys().cloned().collect();
        for round in rounds {
            let count = self.blocks();
            let (writes, churned) = (self.below(40) + 10, count - FIXED);
            for step in 0..writes {
                let (block, salt) = (self.below(churned), round << 16 | step << 1 | 2);
                match self.write(block, salt).await {
                    Ok(()) => {}
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::NoSpace, "{error}");
                        break;
                    }
                }
                if step % 8 == 0 {
                    wait(1).await;
                }
            }
            self.sync().await;
            if round % 3 == 0 {
                let name = format!("{DATASET}@{round}");
                let now = self.model().now();
                if self.engine().snapshots().create(vec![name.clone()]).await.is_ok() {
                    self.model().snapshots.insert(name.clone(), now);
                    snapshots.push_back(name);
                }
            }
            while snapshots.len() > SNAPSHOTS || (self.is_tight() && !snapshots.is_empty()) {
                let name = snapshots.pop_front().unwrap();
                match self.engine().snapshots().destroy(&name).await {
                    Ok(()) => drop(self.model().snapshots.remove(&name)),
                    // The snapshot is open.
                    Err(error) => {
                        assert_eq!(error.kind(), Kind::Busy, "{error}");
                        snapshots.push_back(name);
                        break;
                    }
                }
            }
            cenote_rt::sleep(Duration::from_secs(1)).await;
        }
    }

    /// Whether the pool is nearly full.
    fn is_tight(&self) -> bool {
        let figures = self.engine().allocator().vdev_figures();
        let space: u64 = figures.iter().map(|vdev| vdev.space.space).sum();
        let taken: u64 = figures.iter().map(|vdev| vdev.space.allocated).sum();
        taken > space * 45 / 100
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.rng.lock().unwrap_or_else(PoisonError::into_inner).below(bound)
    }

    /// Checks that no errors were found, and that all contents are right.
    pub(crate) async fn judge(&self) {
        self.devices.iter().for_each(|device| device.set_slow(false));
        self.settle().await;
        self.engine().store().clear_cache();
        let now = self.model().now();
        let head = self.head();
        for (block, salt) in (0..).zip(&now) {
            let live = head.live();
            let read = live.inspect(|tx| tx.read(self.object, block * BLOCK, BLOCK as usize));
            assert_eq!(salt_of(block, &read.await.unwrap()), *salt, "block {block}");
        }
        self.judge_counts();
        self.engine().export().await.unwrap();
        let pool = pools::open_read_only(pools::as_devices(&self.devices)).await.unwrap();
        let set = pool.dataset(DATASET).await.unwrap().open().await.unwrap();
        assert_eq!(salts(&set, self.object, now.len() as u64).await.unwrap(), now);
        assert!(pool.error_log().await.unwrap().is_empty(), "the error log is not empty");
        pools::assert_no_leaks(&pool).await;
        pools::judge_images(&self.devices.iter().map(|device| device.image()).collect::<Vec<_>>());
    }

    /// Waits until all freed space is usable.
    pub(crate) async fn settle(&self) {
        for _ in 0..4 {
            self.engine().sync().await.unwrap();
        }
        while self.engine().space().has_pending_frees().await.unwrap() {
            self.engine().sync().await.unwrap();
        }
    }

    fn judge_counts(&self) {
        for (_, leaf) in self.engine().tree().leaves() {
            let stats = leaf.stats();
            let errors = (stats.read_errors, stats.checksum_errors, stats.repairs);
            assert_eq!(errors, (0, 0, 0), "{}: READ, CKSUM, repairs", leaf.path());
        }
        assert_eq!(self.engine().store().stats().parts_repaired, 0);
        let events = self.engine().health().events().after(0);
        let is_damage = |event: &Event| matches!(event, Event::Lost { .. } | Event::Bad { .. });
        let damage: Vec<_> = events.iter().filter(|noted| is_damage(&noted.event)).collect();
        assert!(damage.is_empty(), "{damage:?}");
    }
}

/// Returns the salt of every block of an unchanging object set.
pub(crate) async fn salts(set: &Arc<ObjSet>, object: u64, count: u64) -> Result<Vec<u64>> {
    let dnode = set.dnode(object).await?;
    let mut salts = Vec::new();
    for block in 0..count {
        salts.push(salt_of(block, &dnode.read_at(block * BLOCK, BLOCK as usize).await?));
    }
    Ok(salts)
}

/// Caches little, and unloads metaslabs as soon as possible.
fn keep_little_in_memory(engine: &Engine) {
    engine.store().set_cache_capacity(1 << 20);
    engine.allocator().set_memory(1 << 10);
}
