//! A scripted run on recorded devices in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_device::{Device, Image, ImageDevice, Log, Recorder};
use cenote_dmu::Tx;
use cenote_dmu::live::ObjectSpec;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_pool::engine::create::CreateSpec;
use cenote_pool::engine::{Engine, Head, NewDataset};
use cenote_rt::Rng;
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};

use crate::model::{self, BLOCK, History, State};

/// Bytes of a device: the smallest there is.
const DEVICE_SIZE: u64 = 64 << 20;
/// Rounds of a run; each is a txg.
const ROUNDS: u64 = 60;

/// Shapes of pools.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Layout {
    Disk,
    Mirror,
    Raidz2,
}

impl Layout {
    pub(crate) const ALL: [Self; 3] = [Self::Disk, Self::Mirror, Self::Raidz2];

    fn devices(self) -> usize {
        match self {
            Self::Disk => 1,
            Self::Mirror => 2,
            Self::Raidz2 => 4,
        }
    }

    fn redundancy(self) -> Redundancy {
        match self {
            Self::Disk => Redundancy::Single,
            Self::Mirror => Redundancy::Mirror,
            Self::Raidz2 => Redundancy::Raidz(2),
        }
    }
}

/// What happened.
pub(crate) struct Run {
    pub(crate) log: Log,
    pub(crate) history: History,
}

/// Runs the workload.
pub(crate) async fn run(layout: Layout, seed: u64) -> Run {
    let recorder = Recorder::new();
    let devices: Vec<_> = (0..layout.devices())
        .map(|number| {
            let image = Image::zeroed(DEVICE_SIZE);
            let device = Arc::new(ImageDevice::new(format!("d{number}"), image.clone()));
            recorder.wrap(device, image)
        })
        .collect();
    let engine = Engine::create(spec(layout, seed, devices)).await.unwrap();
    let mut script = Script {
        engine,
        recorder: Arc::clone(&recorder),
        rng: Rng::seeded(seed),
        state: State::default(),
        history: History::default(),
        heads: BTreeMap::new(),
    };
    script.state.datasets.insert("tank".into(), BTreeMap::new());
    script.acknowledge();
    script.new_head("tank/a").await;
    script.new_head("tank/b").await;
    for round in 0..ROUNDS {
        script.round(round).await;
    }
    script.engine.export().await.unwrap();
    script.acknowledge();
    Run { log: recorder.log(), history: script.history }
}

fn spec(layout: Layout, seed: u64, devices: Vec<Arc<dyn Device>>) -> CreateSpec {
    let leaf = |number| LeafSpec {
        path: format!("/d{number}").as_str().into(),
        is_disk: false,
        is_whole_disk: false,
        size: DEVICE_SIZE,
        logical_ashift: 9,
        physical_ashift: 9,
    };
    let top = TopSpec {
        redundancy: layout.redundancy(),
        class: VdevClass::Normal,
        leaves: (0..layout.devices()).map(leaf).collect(),
    };
    let pool =
        create::CreateSpec { tops: vec![top], ashift: Some(9), ..create::CreateSpec::default() };
    let mut rng = Rng::seeded(seed);
    let vdevs = create::pool(&pool, 4, &mut Guids::new(|| Ok(rng.next_u64()))).unwrap();
    let guids: Vec<_> = vdevs.root.leaves().map(|leaf| leaf.guid).collect();
    CreateSpec {
        name: "tank".into(),
        vdevs,
        devices: guids.into_iter().zip(devices).collect(),
        features: cenote_pool::features::identity().collect(),
        comment: None,
        compatibility: None,
        host: None,
        fill_root: Box::new(|_| Ok(())),
    }
}

struct Script {
    engine: Arc<Engine>,
    recorder: Arc<Recorder>,
    rng: Rng,
    state: State,
    history: History,
    heads: BTreeMap<String, (Arc<Head>, u64)>,
}

impl Script {
    /// What is now is committed, and somebody was told so.
    fn acknowledge(&mut self) {
        let txg = self.engine.uberblock().txg;
        self.history.note(txg, &self.state);
        self.recorder.mark(txg);
    }

    async fn new_head(&mut self, name: &str) {
        let fill = Box::new(|_: &mut Tx<'_>| Ok(()));
        let new =
            NewDataset { name: name.into(), kind: ObjSetType::Other, props: Vec::new(), fill };
        let head = self.engine.create_dataset(new).await.unwrap();
        self.state.datasets.insert(name.into(), BTreeMap::new());
        self.acknowledge();
        let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, BLOCK as u64);
        let (object, _) = self.engine.apply(&head, |tx| tx.allocate(&spec)).await.unwrap();
        self.engine.sync().await.unwrap();
        self.objects(name).insert(object, BTreeMap::new());
        self.heads.insert(name.into(), (head, object));
        self.acknowledge();
    }

    fn objects(&mut self, name: &str) -> &mut BTreeMap<u64, model::Content> {
        self.state.datasets.get_mut(name).unwrap()
    }

    /// One txg of changes, and perhaps an operation on snapshots.
    async fn round(&mut self, round: u64) {
        let name = ["tank/a", "tank/b"][self.rng.below(2) as usize];
        let (head, object) = self.heads[name].clone();
        for _ in 0..1 + self.rng.below(12) {
            let (block, salt) = (self.rng.below(200), self.rng.next_u64());
            let bytes = model::bytes(block, salt);
            let offset = block * BLOCK as u64;
            self.engine.apply(&head, |tx| tx.write(object, offset, &bytes)).await.unwrap();
            self.objects(name).get_mut(&object).unwrap().insert(block, salt);
        }
        if self.rng.below(4) == 0 {
            let (from, count) = (self.rng.below(180), 1 + self.rng.below(20));
            let (offset, len) = (from * BLOCK as u64, count * BLOCK as u64);
            self.engine.apply(&head, |tx| tx.free_range(object, offset, Some(len))).await.unwrap();
            let content = self.objects(name).get_mut(&object).unwrap();
            content.retain(|block, _| !(from..from + count).contains(block));
        }
        self.engine.sync().await.unwrap();
        self.acknowledge();
        if self.rng.below(3) == 0 {
            let snapshot = format!("{name}@{round}");
            self.engine.snapshot(vec![snapshot.clone()]).await.unwrap();
            let content = self.state.datasets[name].clone();
            self.state.datasets.insert(snapshot, content);
            self.acknowledge();
        }
        let snapshots: Vec<_> =
            self.state.datasets.keys().filter(|name| name.contains('@')).cloned().collect();
        if snapshots.len() > 3 {
            let victim = &snapshots[self.rng.below(snapshots.len() as u64) as usize];
            self.engine.destroy_snapshot(victim).await.unwrap();
            self.state.datasets.remove(victim);
            self.acknowledge();
        }
    }
}
