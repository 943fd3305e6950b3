//! A scripted run on recorded devices in memory: some of each operation, one txg after the other.

mod datasets;
mod leaves;
mod pool;
mod vdevs;

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_device::{Device, Image, ImageDevice, Log, Recorder};
use cenote_dmu::live::ObjectSpec;
use cenote_dmu::{Tx, TxResult};
use cenote_engine::{ApplyOptions, DeviceSource, Engine, Head, NewDataset};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Kind, Result, Rng, tunables};
use cenote_vdev::create::{Redundancy, VdevClass};

use self::leaves::Shelf;
pub use self::leaves::{ROUNDS_OF_LEAVES, operations_on_leaves};
use super::facts::POOL;
use super::model::{self, BLOCK, Content, History, State, UPGRADES};
use super::order;
use crate::builder::Top;
use crate::builder::redundancy_of;
use crate::{PoolBuilder, pools};

/// Size of a device: the minimum.
const DEVICE_SIZE: u64 = 64 << 20;
/// Size of a device if vdevs are removed: the others have room for a reserve of 128 MiB.
const DEVICE_SIZE_OF_LEAVES: u64 = 192 << 20;
/// Blocks of this size or more are sometimes ganged.
const GANG_FROM: u64 = 2048;
const GANG_PERCENT: u64 = 4;
/// Bytes that are initialized at a time.
const INITIALIZE_CHUNK: u64 = 64 << 10;
/// Bytes of a round of a scan, so that it takes many txgs.
const SCAN_ROUND: u64 = 128 << 10;
/// Bytes of a step of a removal.
const REMOVAL_STEP: u64 = 32 << 10;
/// The pool that is split off.
pub(super) const SPLIT_OFF: &str = "half";
/// The fact that a head is a clone.
const ORIGIN: &str = "origin";
/// Rounds between two changes of keys.
const KEY_ROUNDS: u64 = 4;
/// Blocks of an object.
const BLOCKS: u64 = 200;

/// Operations of a run, each at least once.
pub const OPERATIONS: [&str; 47] = [
    "create",
    "sync",
    "write",
    "punch",
    "creating an object",
    "freeing an object",
    "creating a head",
    "creating an encrypted head",
    "changing a key",
    "destroying a head",
    "snapshot",
    "snapshots of all",
    "destroying a snapshot",
    "deferred destroy",
    "clone",
    "promote",
    "rollback",
    "rename",
    "rename of a snapshot",
    "hold",
    "release",
    "bookmark",
    "destroying a bookmark",
    "redaction",
    "a part of a redaction list",
    "property",
    "inheriting a property",
    "user property",
    "quota",
    "refquota",
    "reservation",
    "refreservation",
    "snapshot_limit",
    "filesystem_limit",
    "properties of the pool",
    "upgrade",
    "adding a log",
    "adding a vdev",
    "trim",
    "the end of a trim",
    "initialize",
    "the end of initialize",
    "checkpoint",
    "discarding a checkpoint",
    "reguid",
    "export",
    "import",
];

/// What a run is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Datasets, and the pool as a whole: one operation at a time.
    Datasets,
    /// Leaves, vdevs and scans, beside writes.
    Leaves,
}

/// Pool layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// One disk.
    Disk,
    /// Two disks.
    Mirror,
    /// Four disks.
    Raidz2,
    /// One disk with sectors of 4 KiB.
    LargeSectors,
    /// Three disks with sectors of 4 KiB.
    Raidz1,
    /// Five disks.
    Raidz3,
    /// One disk, and one for intent logs.
    Slog,
    /// One disk, and one for metadata.
    Special,
    /// Four disks with sectors of 4 KiB, the space of one of which is spare.
    Draid,
}

impl Layout {
    /// Layouts of every run.
    pub const USUAL: [Self; 3] = [Self::Disk, Self::Mirror, Self::Raidz2];
    /// The other layouts.
    pub const MORE: [Self; 5] =
        [Self::LargeSectors, Self::Raidz1, Self::Raidz3, Self::Slog, Self::Special];

    /// Layouts for operations on leaves, the usual ones first.
    pub const OF_LEAVES: [Self; 6] =
        [Self::Mirror, Self::Raidz1, Self::Disk, Self::Raidz2, Self::Special, Self::Draid];

    /// Returns the top-level vdevs.
    fn tops(self) -> Vec<Top> {
        let normal = |redundancy, devices| (redundancy, VdevClass::Normal, devices);
        let disk = normal(Redundancy::Single, 1);
        match self {
            Self::Disk | Self::LargeSectors => vec![disk],
            Self::Mirror => vec![normal(Redundancy::Mirror, 2)],
            Self::Raidz1 => vec![normal(Redundancy::Raidz(1), 3)],
            Self::Raidz2 => vec![normal(Redundancy::Raidz(2), 4)],
            Self::Raidz3 => vec![normal(Redundancy::Raidz(3), 5)],
            Self::Slog => vec![disk, (Redundancy::Single, VdevClass::Log, 1)],
            Self::Special => vec![disk, (Redundancy::Single, VdevClass::Special, 1)],
            Self::Draid => vec![normal(redundancy_of("draid1:2d:4c:1s"), 4)],
        }
    }

    /// Whether data is on disks or mirrors.
    fn is_mirrored(self) -> bool {
        matches!(self.tops()[0].0, Redundancy::Single | Redundancy::Mirror)
    }

    /// Whether data is on a RAID-Z vdev.
    fn is_raidz(self) -> bool {
        matches!(self.tops()[0].0, Redundancy::Raidz(_))
    }

    /// Returns the number of devices.
    pub fn devices(self) -> usize {
        self.tops().iter().map(|(.., devices)| devices).sum()
    }

    /// Returns the number of devices that may be missing.
    pub fn spare_devices(self) -> usize {
        match self {
            Self::Mirror | Self::Raidz1 | Self::Draid => 1,
            Self::Raidz2 => 2,
            Self::Raidz3 => 3,
            _ => 0,
        }
    }

    /// Returns the log2 of the sector size.
    pub fn ashift(self) -> u64 {
        if matches!(self, Self::LargeSectors | Self::Raidz1 | Self::Draid) { 12 } else { 9 }
    }

    /// Describes a top-level vdev like the facts of a pool.
    fn in_words(redundancy: Redundancy, class: VdevClass, count: usize) -> String {
        match redundancy {
            Redundancy::Mirror => format!("mirror of {count}, {class:?}"),
            Redundancy::Raidz(parity) => format!("raidz{parity} of {count}, {class:?}"),
            Redundancy::Draid { nparity, .. } => format!("draid{nparity} of {count}, {class:?}"),
            Redundancy::Single => format!("disk, {class:?}"),
        }
    }
}

/// Result of a run.
pub struct Run {
    subject: Subject,
    /// Everything that was written.
    pub log: Log,
    /// Every committed state.
    pub history: History,
    /// Number of requested changes.
    pub operations: u64,
    /// Number of each operation.
    pub done: BTreeMap<&'static str, u64>,
    /// Number of txgs.
    pub txgs: u64,
}

impl Run {
    /// Checks the order of writes and flushes in every commit; not beside operations on leaves:
    /// labels of devices that have left the pool follow no commit.
    ///
    /// # Errors
    /// A write that was issued too early.
    pub fn check_order(&self) -> std::result::Result<(), String> {
        match self.subject {
            Subject::Datasets => order::check(&self.log),
            Subject::Leaves => Ok(()),
        }
    }
}

impl Subject {
    fn device_size(self) -> u64 {
        match self {
            Self::Datasets => DEVICE_SIZE,
            Self::Leaves => DEVICE_SIZE_OF_LEAVES,
        }
    }

    /// Returns the size that a device may grow to.
    fn device_size_max(self) -> u64 {
        match self {
            Self::Datasets => DEVICE_SIZE,
            Self::Leaves => 2 * DEVICE_SIZE_OF_LEAVES,
        }
    }
}

/// Returns a device of this size in memory.
pub fn memory_device(path: String, size: u64) -> Arc<dyn Device> {
    Arc::new(ImageDevice::new(path, Image::zeroed(size)))
}

/// Runs the workload for this number of rounds, some txgs each, on devices from `make`.
///
/// # Errors
/// Errors of the engine, except those of limits.
pub async fn run(
    subject: Subject,
    layout: Layout,
    seed: u64,
    rounds: u64,
    make: impl Fn(String, u64) -> Arc<dyn Device> + Send + Sync + 'static,
) -> Result<Run> {
    tune(subject);
    let recorder = Recorder::new();
    let size = subject.device_size();
    let most = subject.device_size_max();
    let devices = (0..layout.devices())
        .map(|number| recorder.wrap(make(format!("d{number}"), most), Image::zeroed(size)));
    let devices = Arc::new(Shelf::new(devices.collect()));
    let engine = builder(layout, seed).create(devices.all()).await?;
    engine.leaves().set_device_source(Arc::clone(&devices) as Arc<dyn DeviceSource>);
    let mut script = Script {
        subject,
        layout,
        rounds,
        engine,
        make: Box::new(make),
        device_size: size,
        devices,
        recorder: Arc::clone(&recorder),
        rng: Rng::seeded(seed),
        state: State::default(),
        history: History::default(),
        clones: BTreeMap::new(),
        operations: 0,
        done: BTreeMap::new(),
        acknowledged: 0,
    };
    let first = script.engine.uberblock().txg;
    script.begin().await?;
    for round in 0..rounds {
        script.write().await?;
        match subject {
            Subject::Datasets => {
                script.administer(round).await?;
                script.clear_away().await?;
                if round % KEY_ROUNDS == 0 {
                    script.change_key(round).await?;
                }
                script.change_pool(round).await?;
            }
            Subject::Leaves => script.change_leaves(round).await?,
        }
    }
    script.engine.export().await?;
    script.acknowledge("export");
    if subject == Subject::Leaves {
        script.check_departed().await;
    }
    Ok(Run {
        subject,
        log: recorder.log(),
        history: script.history,
        operations: script.operations,
        done: script.done,
        txgs: script.engine.uberblock().txg - first,
    })
}

/// Sets tunables.
fn tune(subject: Subject) {
    let settings = [
        // Freed space is reused as soon as possible: the smallest fitting range is allocated.
        (&tunables::DF_ALLOC_THRESHOLD, 1 << 40),
        (&tunables::BY_SIZE_MIN, 0),
        // Some blocks are ganged.
        (&tunables::FORCE_GANGING, GANG_FROM),
        (&tunables::FORCE_GANGING_PCT, GANG_PERCENT),
        (&tunables::INITIALIZE_CHUNK_SIZE, INITIALIZE_CHUNK),
    ];
    let of_leaves = [
        (&tunables::SCAN_ROUND_BYTES, SCAN_ROUND),
        (&tunables::REMOVAL_BATCH_BYTES, REMOVAL_STEP),
        (&tunables::REMOVE_MAX_SEGMENT, REMOVAL_STEP / 2),
        // Nothing repairs what they got wrong.
        (&tunables::REBUILD_SCRUB, 0),
        (&tunables::SCRUB_AFTER_EXPAND, 0),
        // Mappings are condensed soon, one entry in each txg.
        (&tunables::CONDENSE_MIN_MAPPING_BYTES, 0),
        (&tunables::CONDENSE_OBSOLETE_PCT, 5),
        (&tunables::CONDENSE_DELAY_MS, 1),
    ];
    let more = if subject == Subject::Leaves { &of_leaves[..] } else { &[] };
    for (tunable, value) in settings.iter().chain(more) {
        tunable.set(*value).unwrap();
    }
}

fn builder(layout: Layout, seed: u64) -> PoolBuilder {
    let features = cenote_pool::features::identity();
    let old = features.filter(|feature| !UPGRADES.contains(&feature.name));
    PoolBuilder::new(layout.tops())
        .with_ashift(layout.ashift())
        .with_seed(seed)
        .with_features(old.collect())
}

/// Makes a device with this path and size.
type MakeDevice = Box<dyn Fn(String, u64) -> Arc<dyn Device> + Send + Sync>;

struct Script {
    subject: Subject,
    layout: Layout,
    rounds: u64,
    engine: Arc<Engine>,
    make: MakeDevice,
    /// Of new devices.
    device_size: u64,
    /// All devices that were ever in the pool.
    devices: Arc<Shelf>,
    recorder: Arc<Recorder>,
    rng: Rng,
    state: State,
    history: History,
    /// Clones with their origins.
    clones: BTreeMap<String, String>,
    operations: u64,
    done: BTreeMap<&'static str, u64>,
    /// The last acknowledged txg.
    acknowledged: u64,
}

/// Returns the round of a snapshot, whose name is a letter and the round that took it.
fn round_of(snapshot: &str) -> u64 {
    snapshot.rsplit_once('@').and_then(|(_, name)| name[1..].parse().ok()).unwrap_or(0)
}

/// Returns `None` for errors of a limit, a reservation, something in use, or an encryption root
/// that a dataset would leave.
fn allowed<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) => match error.kind() {
            Kind::Quota | Kind::NoSpace | Kind::Busy | Kind::Permission => Ok(None),
            _ => Err(error),
        },
    }
}

impl Script {
    /// Creates two heads, and the facts of a new pool.
    async fn begin(&mut self) -> Result<()> {
        self.state.datasets.insert("tank".into(), BTreeMap::new());
        self.say(POOL, "guid", self.engine.guid().to_string());
        self.say(POOL, "comment", String::new());
        for (number, (redundancy, class, count)) in self.layout.tops().into_iter().enumerate() {
            self.say(POOL, &format!("top {number}"), Layout::in_words(redundancy, class, count));
        }
        for spare in self.spares().await? {
            self.say(POOL, &format!("spare {spare}"), String::new());
        }
        self.acknowledge("create");
        self.new_head("tank/a").await?;
        self.new_head("tank/b").await
    }

    fn say(&mut self, whose: &str, what: &str, which: String) {
        self.state.facts.insert((whose.to_owned(), what.to_owned()), which);
    }

    fn unsay(&mut self, whose: &str, what: &str) {
        self.state.facts.remove(&(whose.to_owned(), what.to_owned()));
    }

    /// The current state is committed, and the caller was told so.
    fn acknowledge(&mut self, what: &'static str) {
        self.state.facts.retain(|(_, fact), _| fact != ORIGIN);
        for (clone, origin) in &self.clones {
            self.state.facts.insert((clone.clone(), ORIGIN.into()), origin.clone());
        }
        let txg = self.engine.uberblock().txg;
        // Beside operations on leaves other txgs are committed in the background: any of them since
        // the last acknowledged one may have committed the state.
        let since = match self.subject {
            Subject::Datasets => txg,
            Subject::Leaves => txg.min(self.acknowledged + 1),
        };
        self.history.note_since(since, txg, &self.state);
        self.acknowledged = txg;
        self.recorder.mark(txg);
        self.did(what);
    }

    fn did(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
        self.operations += 1;
    }

    /// Returns one of several names, `None` if there are none.
    fn pick(&mut self, names: &[String]) -> Option<String> {
        let index = self.rng.below(names.len() as u64) as usize;
        names.get(index).cloned()
    }

    fn heads(&self) -> Vec<String> {
        let datasets = self.state.datasets.keys();
        datasets.filter(|name| name.contains('/') && !name.contains('@')).cloned().collect()
    }

    /// In the order in which they were taken.
    fn snapshots(&self, of: &str) -> Vec<String> {
        let datasets = self.state.datasets.keys();
        let is_of = |name: &&String| {
            name.split_once('@').is_some_and(|(head, _)| of.is_empty() || head == of)
        };
        let mut snapshots: Vec<_> = datasets.filter(is_of).cloned().collect();
        snapshots.sort_by_key(|name| round_of(name));
        snapshots
    }

    async fn new_head(&mut self, name: &str) -> Result<()> {
        self.create_head(pools::dataset(name), "creating a head").await
    }

    async fn create_head(&mut self, new: NewDataset, what: &'static str) -> Result<()> {
        let name = &new.name.clone();
        if allowed(self.engine.datasets().create(new).await)?.is_none() {
            return Ok(());
        }
        self.state.datasets.insert(name.into(), BTreeMap::new());
        self.acknowledge(what);
        self.new_object(name).await?;
        self.engine.sync().await?;
        self.acknowledge("creating an object");
        Ok(())
    }

    async fn new_object(&mut self, name: &str) -> Result<()> {
        let head = self.engine.head(name).await?;
        let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, BLOCK as u64);
        let made = self.change(&head, |tx| tx.allocate(&spec)).await?;
        if let Some((object, txg)) = made {
            self.objects(name).insert(object, Content::new());
            self.history.note(txg, &self.state);
        }
        Ok(())
    }

    fn objects(&mut self, name: &str) -> &mut BTreeMap<u64, Content> {
        self.state.datasets.get_mut(name).unwrap()
    }

    /// Changes a head in the open txg; returns `None` if there is no space. The state with the
    /// change is to be recorded ([`changed`](Self::changed)).
    async fn change<T>(
        &mut self,
        head: &Head,
        change: impl FnMut(&mut Tx<'_>) -> TxResult<T>,
    ) -> Result<Option<(T, u64)>> {
        allowed(self.engine.apply(head, ApplyOptions::new(), change).await)
    }

    /// The state has another change of this txg.
    fn changed(&mut self, txg: u64, what: &'static str) {
        self.history.note(txg, &self.state);
        self.did(what);
    }

    /// One txg of changes to a head.
    async fn write(&mut self) -> Result<()> {
        let heads = self.heads();
        let name = self.pick(&heads).unwrap();
        let head = self.engine.head(&name).await?;
        if self.rng.below(8) == 0 && self.objects(&name).len() < 3 {
            self.new_object(&name).await?;
        }
        let objects: Vec<_> = self.objects(&name).keys().copied().collect();
        let object = objects[self.rng.below(objects.len() as u64) as usize];
        for _ in 0..=self.rng.below(12) {
            let (block, salt) = (self.rng.below(BLOCKS), self.rng.next_u64());
            let bytes = model::bytes(block, salt);
            let offset = block * BLOCK as u64;
            let write = |tx: &mut Tx<'_>| tx.write(object, offset, &bytes);
            if let Some(((), txg)) = self.change(&head, write).await? {
                self.objects(&name).get_mut(&object).unwrap().insert(block, salt);
                self.changed(txg, "write");
            }
        }
        if self.rng.below(4) == 0 {
            let (from, count) = (self.rng.below(BLOCKS - 20), 1 + self.rng.below(20));
            let (offset, len) = (from * BLOCK as u64, count * BLOCK as u64);
            let punch = |tx: &mut Tx<'_>| tx.free_range(object, offset, Some(len));
            if let Some(((), txg)) = self.change(&head, punch).await? {
                let content = self.objects(&name).get_mut(&object).unwrap();
                content.retain(|block, _| !(from..from + count).contains(block));
                self.changed(txg, "punch");
            }
        }
        if self.rng.below(10) == 0
            && objects.len() > 1
            && let Some(((), txg)) = self.change(&head, |tx| tx.free(object)).await?
        {
            self.objects(&name).remove(&object);
            self.changed(txg, "freeing an object");
        }
        self.engine.sync().await?;
        self.acknowledge("sync");
        Ok(())
    }
}
