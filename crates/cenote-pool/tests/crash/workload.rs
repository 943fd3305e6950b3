//! A scripted run on recorded devices in memory: a bit of everything, one txg after the other.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_device::{Device, Image, Log, Recorder};
use cenote_dmu::Tx;
use cenote_dmu::live::ObjectSpec;
use cenote_ondisk::leaf_work::LeafWorkKind;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_pool::engine::create::CreateSpec;
use cenote_pool::engine::{Engine, NewDataset, TrimOptions};
use cenote_rt::{Kind, Result, Rng, tunables};
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

use crate::model::{self, BLOCK, Content, History, State};

/// Bytes of a device: the smallest there is.
pub(crate) const DEVICE_SIZE: u64 = 64 << 20;
/// Blocks of an object.
const BLOCKS: u64 = 200;
/// Values of `compression`: off, lz4, gzip-6.
const COMPRESSIONS: [u64; 3] = [2, 15, 10];

/// Shapes of pools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    Disk,
    Mirror,
    Raidz2,
    LargeSectors,
    Raidz1,
    Raidz3,
    Slog,
    Special,
}

impl Layout {
    /// Those of every run.
    pub(crate) const USUAL: [Self; 3] = [Self::Disk, Self::Mirror, Self::Raidz2];
    /// The others.
    pub(crate) const MORE: [Self; 5] =
        [Self::LargeSectors, Self::Raidz1, Self::Raidz3, Self::Slog, Self::Special];

    /// What each top-level vdev is, with its devices.
    fn tops(self) -> Vec<(Redundancy, VdevClass, usize)> {
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
        }
    }

    /// Its devices.
    pub(crate) fn devices(self) -> usize {
        self.tops().iter().map(|(.., devices)| devices).sum()
    }

    /// Devices that may be missing.
    pub(crate) fn spare_devices(self) -> usize {
        match self {
            Self::Mirror | Self::Raidz1 => 1,
            Self::Raidz2 => 2,
            Self::Raidz3 => 3,
            _ => 0,
        }
    }

    fn ashift(self) -> u64 {
        if matches!(self, Self::LargeSectors | Self::Raidz1) { 12 } else { 9 }
    }
}

/// What happened.
pub(crate) struct Run {
    pub(crate) log: Log,
    pub(crate) history: History,
    /// Changes that were asked for.
    pub(crate) operations: u64,
}

/// Runs the workload for so many rounds, a txg or a few each, on devices that `make` makes.
pub(crate) async fn run(
    layout: Layout,
    seed: u64,
    rounds: u64,
    make: fn(String) -> Arc<dyn Device>,
) -> Result<Run> {
    // What was freed is used again as soon as it may be: the smallest piece that fits is taken.
    tunables::DF_ALLOC_THRESHOLD.set(1 << 40).unwrap();
    tunables::BY_SIZE_MIN.set(0).unwrap();
    let recorder = Recorder::new();
    let devices = (0..layout.devices())
        .map(|number| recorder.wrap(make(format!("d{number}")), Image::zeroed(DEVICE_SIZE)));
    let engine = Engine::create(spec(layout, seed, devices.collect())).await?;
    let mut script = Script {
        engine,
        recorder: Arc::clone(&recorder),
        rng: Rng::seeded(seed),
        state: State::default(),
        history: History::default(),
        clones: BTreeMap::new(),
        operations: 0,
    };
    script.state.datasets.insert("tank".into(), BTreeMap::new());
    script.acknowledge();
    script.new_head("tank/a").await?;
    script.new_head("tank/b").await?;
    for round in 0..rounds {
        script.write().await?;
        script.administer(round).await?;
        script.clear_away().await?;
        script.keep_house(round).await?;
    }
    script.engine.export().await?;
    script.acknowledge();
    Ok(Run { log: recorder.log(), history: script.history, operations: script.operations })
}

fn spec(layout: Layout, seed: u64, devices: Vec<Arc<dyn Device>>) -> CreateSpec {
    let mut leaves = devices.iter().map(|device| LeafSpec::of(device.info()));
    let tops = layout.tops().into_iter().map(|(redundancy, class, count)| TopSpec {
        redundancy,
        class,
        leaves: leaves.by_ref().take(count).collect(),
    });
    let pool = create::CreateSpec {
        tops: tops.collect(),
        ashift: Some(layout.ashift()),
        ..create::CreateSpec::default()
    };
    let mut rng = Rng::seeded(seed);
    let vdevs = create::pool(&pool, 4, &mut Guids::new(|| Ok(rng.next_u64()))).unwrap();
    CreateSpec::new("tank", vdevs, devices)
}

struct Script {
    engine: Arc<Engine>,
    recorder: Arc<Recorder>,
    rng: Rng,
    state: State,
    history: History,
    /// Clones with their origins.
    clones: BTreeMap<String, String>,
    operations: u64,
}

/// Snapshots are called by a letter and the round that took them.
fn round_of(snapshot: &str) -> u64 {
    snapshot.rsplit_once('@').and_then(|(_, name)| name[1..].parse().ok()).unwrap_or(0)
}

impl Script {
    /// What is now is committed, and somebody was told so.
    fn acknowledge(&mut self) {
        let txg = self.engine.uberblock().txg;
        self.history.note(txg, &self.state);
        self.recorder.mark(txg);
        self.operations += 1;
    }

    /// One of several; none if there are none.
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
        let fill = Box::new(|_: &mut Tx<'_>| Ok(()));
        let new =
            NewDataset { name: name.into(), kind: ObjSetType::Other, props: Vec::new(), fill };
        self.engine.create_dataset(new).await?;
        self.state.datasets.insert(name.into(), BTreeMap::new());
        self.acknowledge();
        self.new_object(name).await?;
        self.engine.sync().await?;
        self.acknowledge();
        Ok(())
    }

    async fn new_object(&mut self, name: &str) -> Result<()> {
        let head = self.engine.head(name).await?;
        let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, BLOCK as u64);
        let (object, _) = self.engine.apply(&head, |tx| tx.allocate(&spec)).await?;
        self.objects(name).insert(object, Content::new());
        Ok(())
    }

    fn objects(&mut self, name: &str) -> &mut BTreeMap<u64, Content> {
        self.state.datasets.get_mut(name).unwrap()
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
            self.engine.apply(&head, |tx| tx.write(object, offset, &bytes)).await?;
            self.objects(&name).get_mut(&object).unwrap().insert(block, salt);
            self.operations += 1;
        }
        if self.rng.below(4) == 0 {
            let (from, count) = (self.rng.below(BLOCKS - 20), 1 + self.rng.below(20));
            let (offset, len) = (from * BLOCK as u64, count * BLOCK as u64);
            self.engine.apply(&head, |tx| tx.free_range(object, offset, Some(len))).await?;
            let content = self.objects(&name).get_mut(&object).unwrap();
            content.retain(|block, _| !(from..from + count).contains(block));
            self.operations += 1;
        }
        if self.rng.below(10) == 0 && objects.len() > 1 {
            self.engine.apply(&head, |tx| tx.free(object)).await?;
            self.objects(&name).remove(&object);
            self.operations += 1;
        }
        self.engine.sync().await?;
        self.acknowledge();
        Ok(())
    }

    /// Perhaps an operation on datasets.
    async fn administer(&mut self, round: u64) -> Result<()> {
        let heads = self.heads();
        let name = self.pick(&heads).unwrap();
        match self.rng.below(16) {
            0..=3 => self.snapshot(vec![format!("{name}@s{round}")]).await?,
            4 => {
                self.snapshot(heads.iter().map(|name| format!("{name}@s{round}")).collect())
                    .await?;
            }
            5 | 6 => self.clone_one(round).await?,
            7 => self.promote().await?,
            8 => self.roll_back(&name).await?,
            9 => self.rename(&name, &format!("tank/r{round}")).await?,
            10 => self.rename_snapshot().await?,
            11 => {
                let value = COMPRESSIONS[self.rng.below(3) as usize];
                self.engine.set_property(&name, "compression", Value::U64(value)).await?;
            }
            12 => self.hold_and_mark(round).await?,
            _ => return Ok(()),
        }
        self.acknowledge();
        Ok(())
    }

    async fn snapshot(&mut self, names: Vec<String>) -> Result<()> {
        self.engine.snapshot(names.clone()).await?;
        for name in names {
            let head = name.split_once('@').unwrap().0;
            let content = self.state.datasets[head].clone();
            self.state.datasets.insert(name, content);
        }
        Ok(())
    }

    async fn clone_one(&mut self, round: u64) -> Result<()> {
        let snapshots = self.snapshots("");
        let Some(origin) = self.pick(&snapshots) else { return Ok(()) };
        if self.state.datasets[&origin].is_empty() {
            return Ok(());
        }
        let name = format!("tank/c{round}");
        self.engine.clone_dataset(&origin, &name, Vec::new()).await?;
        self.state.datasets.insert(name.clone(), self.state.datasets[&origin].clone());
        self.clones.insert(name, origin);
        Ok(())
    }

    /// The snapshots up to the origin change hands.
    async fn promote(&mut self) -> Result<()> {
        let clones: Vec<_> = self.clones.keys().cloned().collect();
        let Some(clone) = self.pick(&clones) else { return Ok(()) };
        self.engine.promote(&clone).await?;
        let origin = self.clones.remove(&clone).unwrap();
        let parent = origin.split_once('@').unwrap().0.to_owned();
        for snapshot in self.snapshots(&parent) {
            if round_of(&snapshot) <= round_of(&origin) {
                let (_, name) = snapshot.split_once('@').unwrap();
                self.move_dataset(&snapshot, &format!("{clone}@{name}"));
            }
        }
        if let Some(older) = self.clones.remove(&parent) {
            self.clones.insert(clone.clone(), older);
        }
        let (_, name) = origin.split_once('@').unwrap();
        self.clones.insert(parent, format!("{clone}@{name}"));
        Ok(())
    }

    /// The model's part of a new name.
    fn move_dataset(&mut self, from: &str, to: &str) {
        let content = self.state.datasets.remove(from).unwrap();
        self.state.datasets.insert(to.to_owned(), content);
        for origin in self.clones.values_mut().filter(|origin| *origin == from) {
            to.clone_into(origin);
        }
        if let Some(origin) = self.clones.remove(from) {
            self.clones.insert(to.to_owned(), origin);
        }
    }

    async fn roll_back(&mut self, name: &str) -> Result<()> {
        let Some(latest) = self.snapshots(name).pop() else { return Ok(()) };
        match self.engine.rollback(name, None).await {
            // A bookmark of a later snapshot, which is gone, is in the way.
            Err(error) if error.kind() == Kind::Busy => return Ok(()),
            result => result?,
        };
        let content = self.state.datasets[&latest].clone();
        self.state.datasets.insert(name.to_owned(), content);
        Ok(())
    }

    async fn rename(&mut self, from: &str, to: &str) -> Result<()> {
        self.engine.rename(from, to).await?;
        for snapshot in self.snapshots(from) {
            let (_, name) = snapshot.split_once('@').unwrap();
            self.move_dataset(&snapshot, &format!("{to}@{name}"));
        }
        self.move_dataset(from, to);
        Ok(())
    }

    async fn rename_snapshot(&mut self) -> Result<()> {
        let snapshots: Vec<_> =
            self.snapshots("").into_iter().filter(|name| name.contains("@s")).collect();
        let Some(from) = self.pick(&snapshots) else { return Ok(()) };
        let (head, old) = from.split_once('@').unwrap();
        let new = format!("t{}", &old[1..]);
        self.engine.rename_snapshot(head, old, &new, false).await?;
        self.move_dataset(&from, &format!("{head}@{new}"));
        Ok(())
    }

    /// A hold that comes and goes, and a bookmark that stays.
    async fn hold_and_mark(&mut self, round: u64) -> Result<()> {
        let snapshots = self.snapshots("");
        let Some(name) = self.pick(&snapshots) else { return Ok(()) };
        let head = name.split_once('@').unwrap().0;
        self.engine.hold(vec![(name.clone(), "tag".into())], false).await?;
        self.engine.bookmark(vec![(format!("{head}#b{round}"), name.clone())]).await?;
        self.engine.release(vec![(name.clone(), "tag".into())]).await?;
        self.operations += 2;
        Ok(())
    }

    /// What changes no contents: free space is discarded, and for some rounds a checkpoint holds
    /// what is freed.
    async fn keep_house(&mut self, round: u64) -> Result<()> {
        let (leaves, kind) = (self.engine.data_leaves(), LeafWorkKind::Trim);
        match round % 18 {
            3 => {
                self.engine.start_trim(&leaves, TrimOptions::default()).await?;
                // To its end: what is acknowledged below must not have a sync of its own beside it.
                self.engine.wait_for_leaf_work(&leaves, kind).await?;
            }
            7 => self.engine.take_checkpoint().await?,
            10 => self.engine.discard_checkpoint().await?,
            _ => return Ok(()),
        }
        self.operations += 1;
        self.acknowledge();
        Ok(())
    }

    /// Keeps the number of snapshots and heads down.
    async fn clear_away(&mut self) -> Result<()> {
        let snapshots: Vec<_> = self
            .snapshots("")
            .into_iter()
            .filter(|name| !self.clones.values().any(|origin| origin == name))
            .collect();
        if snapshots.len() > 4 {
            let victim = self.pick(&snapshots).unwrap();
            self.engine.destroy_snapshot(&victim).await?;
            self.state.datasets.remove(&victim);
            self.acknowledge();
        }
        let heads = self.heads();
        let idle: Vec<_> =
            heads.iter().filter(|name| self.snapshots(name).is_empty()).cloned().collect();
        if heads.len() > 4
            && let Some(victim) = self.pick(&idle)
        {
            self.engine.destroy_dataset(&victim).await?;
            self.state.datasets.remove(&victim);
            self.clones.remove(&victim);
            self.acknowledge();
        }
        Ok(())
    }
}
