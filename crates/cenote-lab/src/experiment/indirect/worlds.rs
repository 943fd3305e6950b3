//! Worlds of the experiment: a file that is written once, read at random places, and destroyed.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_device::model::{Op, table};
use cenote_device::pattern;
use cenote_dmu::Dnode;
use cenote_engine::{ApplyOptions, Engine};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::zap::Value;
use cenote_pool::import::scan_devices;
use cenote_pool::traverse::{self, Damage, Flow, Visitor};
use cenote_pool::{OpenOptions, Pool};
use cenote_rt::tunables::{self, Tunable};
use cenote_rt::{Result, Rng, monotonic, simulate, spawn};
use cenote_vdev::DATA_START;
use cenote_vdev::create::Redundancy;

use crate::machine::{Machine, Recorded, new_file, world};
use crate::policy::Policy;

pub(super) const RECORD: u64 = 8 << 10;
/// Bytes that are written at once while the file is filled.
const FILL: u64 = 16 * RECORD;
pub(super) const DISKS: usize = 3;
/// Bytes of a disk; those of its model, so that seeks are as long as they should be.
const DISK_BYTES: u64 = 300_000_000_000;
const READERS: u64 = 16;
pub(super) const PROCESSORS: usize = 8;
/// Everything that is read stays in the cache.
const CACHE: u64 = 2 << 30;
/// Value `off` of the property `compression`.
pub(super) const COMPRESSION_OFF: u64 = 2;
/// Levels that are told apart; higher ones are counted with the last.
pub(super) const LEVELS: usize = 4;
pub(super) const EXPORTED: &str = "the pool was exported before";
pub(super) const ENDS: &str = "tasks end with their world";

/// A load.
#[derive(Debug, Clone, Copy)]
pub(super) struct Case {
    /// Records between two places that may be read.
    pub apart: u64,
    /// Reads of all threads.
    pub reads: u64,
}

/// A world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub policy: &'static Policy,
    /// Records of the file.
    pub records: u64,
    pub cases: [Case; 2],
    /// How often each case is measured, from a cold cache.
    pub rounds: u64,
    pub seed: u64,
}

impl Plan {
    /// Log2 of the bytes of an indirect block.
    pub(super) fn shift(&self) -> u64 {
        shift_of(self.policy)
    }
}

/// Returns log2 of the bytes of an indirect block.
pub(super) fn shift_of(policy: &Policy) -> u64 {
    let own = policy.tunables.iter().find(|(tunable, _)| is_ibs(tunable));
    own.map_or(tunables::DEFAULT_IBS.default, |(_, value)| *value)
}

fn is_ibs(tunable: &Tunable) -> bool {
    tunable.name == tunables::DEFAULT_IBS.name
}

/// Blocks and their bytes on disk, of one level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sum {
    pub blocks: u64,
    pub bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.blocks += 1;
        self.bytes += bytes;
    }

    /// Mean bytes of a block.
    pub(super) fn mean(self) -> f64 {
        self.bytes as f64 / self.blocks.max(1) as f64
    }
}

/// Figures of a case, of all its rounds together.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures {
    /// Reads, and the seconds that they took.
    pub reads: u64,
    pub seconds: f64,
    /// Blocks that the disks read, by level.
    pub levels: [Sum; LEVELS],
    /// Milliseconds of each read, sorted.
    pub times: Vec<f64>,
    /// Part of the time in which a disk worked, in percent: the mean of all disks.
    pub busy: f64,
}

impl Figures {
    pub(super) fn rate(&self) -> f64 {
        self.reads as f64 / self.seconds.max(1e-9)
    }

    pub(super) fn percentile(&self, percent: usize) -> f64 {
        self.times.get(self.times.len() * percent / 100).copied().unwrap_or_default()
    }
}

/// Results of a world.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// Blocks of the file by level; bytes of one copy.
    pub tree: [Sum; LEVELS],
    pub cases: [Figures; 2],
    /// Seconds until the dataset was destroyed and freed, and commands of all disks.
    pub destroy_s: f64,
    pub destroy_reads: u64,
    pub hash: u128,
}

/// Runs a world.
pub(super) fn run(plan: &Plan) -> Result<Outcome> {
    let tunables = plan.policy.with(&[(&tunables::BLOCK_CACHE_BYTES, CACHE)]);
    simulate(world(plan.seed, PROCESSORS, tunables), work(*plan))?
}

async fn work(plan: Plan) -> Result<Outcome> {
    let params = table::find("hdd-10k-sas").expect("a device of the table");
    let machine = Machine::new(params, DISKS, (DISK_BYTES, 9), plan.seed);
    let (engine, object) = fill(&machine, &plan).await?;
    engine.export().await?;
    drop(engine);
    let mut outcome = Outcome::default();
    let mut blocks = Blocks::default();
    let mut rng = Rng::seeded(plan.seed ^ 0x696e_6469);
    for (case, figures) in plan.cases.iter().zip(&mut outcome.cases) {
        for _ in 0..plan.rounds {
            // Opened anew: nothing is cached.
            let pool = open(&machine).await?;
            if blocks.at.is_empty() {
                blocks = Blocks::of(&pool, object).await?;
                pool.store().clear_cache();
            }
            measure(&machine, &pool, (object, plan.records), case, &blocks, figures, &mut rng)
                .await?;
        }
        figures.busy /= plan.rounds as f64;
        figures.times.sort_by(f64::total_cmp);
    }
    outcome.tree = blocks.tree;
    destroy(&machine, &mut outcome).await?;
    outcome.hash = machine.hash();
    Ok(outcome)
}

/// Creates the pool, and writes the file: the same bytes in each record.
async fn fill(machine: &Machine, plan: &Plan) -> Result<(Arc<Engine>, u64)> {
    let engine = machine.create_pool(Redundancy::Single, 9).await?;
    let props = vec![("compression".to_owned(), Value::U64(COMPRESSION_OFF))];
    let (head, object) = new_file(&engine, props, RECORD).await?;
    let mut record = vec![0; RECORD as usize];
    pattern::fill(1, &mut record);
    let several = record.repeat((FILL / RECORD) as usize);
    let bytes = plan.records * RECORD;
    for start in (0..bytes).step_by(FILL as usize) {
        let part = &several[..FILL.min(bytes - start) as usize];
        engine.apply(&head, ApplyOptions::new(), |tx| tx.write(object, start, part)).await?;
    }
    engine.sync().await?;
    Ok((engine, object))
}

pub(super) async fn open(machine: &Machine) -> Result<Arc<Pool>> {
    let scan = scan_devices(machine.devices()).await;
    Pool::open(scan.find("tank").expect(EXPORTED), &OpenOptions::default()).await
}

/// The blocks of the file by their places.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    object: u64,
    /// Level of the block that begins at this offset of a disk.
    at: BTreeMap<(u64, u64), usize>,
    pub tree: [Sum; LEVELS],
}

impl Blocks {
    pub(super) async fn of(pool: &Arc<Pool>, object: u64) -> Result<Self> {
        let mut blocks = Self { object, ..Self::default() };
        let dataset = pool.dataset("tank/a").await?;
        let (options, root) = (traverse::Options::default(), &dataset.phys().bp);
        traverse::tree(pool, root, dataset.object(), options, &mut blocks).await?;
        Ok(blocks)
    }

    /// Adds the reads of the file's blocks by level.
    fn count(&self, commands: &[Recorded], levels: &mut [Sum; LEVELS]) {
        for read in commands.iter().filter(|command| command.op == Op::Read) {
            if let Some(level) = self.at.get(&(read.device, read.offset)) {
                levels[*level].add(read.len);
            }
        }
    }
}

impl Visitor for Blocks {
    async fn block(&mut self, bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
        let Ok(level) = usize::try_from(place.level) else { return Ok(Flow::Continue) };
        if place.object == self.object && !bp.is_embedded() {
            let level = level.min(LEVELS - 1);
            self.tree[level].add(bp.psize());
            for dva in bp.dvas() {
                self.at.insert((u64::from(dva.vdev), dva.offset + DATA_START), level);
            }
        }
        Ok(Flow::Continue)
    }

    fn damage(&mut self, damage: Damage) {
        unreachable!("nothing was damaged: {damage:?}");
    }
}

/// Reads records at random places.
async fn measure(
    machine: &Machine,
    pool: &Arc<Pool>,
    (object, records): (u64, u64),
    case: &Case,
    blocks: &Blocks,
    figures: &mut Figures,
    rng: &mut Rng,
) -> Result<()> {
    let set = pool.dataset("tank/a").await?.open().await?;
    let dnode = set.dnode(object).await?;
    let places = records / case.apart;
    let busy = busy_ns(machine);
    machine.tap.start();
    let begun = monotonic();
    let readers: Vec<_> = (0..READERS)
        .map(|reader| {
            let (dnode, mut rng) = (Arc::clone(&dnode), Rng::seeded(rng.next_u64()));
            // As many as the others, or one more.
            let reads = (case.reads + READERS - 1 - reader) / READERS;
            let apart = case.apart;
            spawn(async move {
                let mut times = Vec::new();
                for _ in 0..reads {
                    times.push(read(&dnode, rng.below(places) * apart).await?);
                }
                Ok::<_, cenote_rt::Error>(times)
            })
        })
        .collect();
    for reader in readers {
        figures.times.extend(reader.await.expect(ENDS)?);
    }
    let seconds = monotonic().saturating_sub(begun).as_secs_f64();
    blocks.count(&machine.tap.stop(), &mut figures.levels);
    figures.reads += case.reads;
    figures.seconds += seconds;
    figures.busy += (busy_ns(machine) - busy) as f64 / 1e9 / seconds / DISKS as f64 * 100.0;
    Ok(())
}

/// Reads a record; returns the milliseconds that it took.
async fn read(dnode: &Arc<Dnode>, record: u64) -> Result<f64> {
    let begun = monotonic();
    dnode.read_at(record * RECORD, RECORD as usize).await?;
    Ok(monotonic().saturating_sub(begun).as_secs_f64() * 1e3)
}

fn busy_ns(machine: &Machine) -> u64 {
    machine.disks.iter().map(|disk| disk.stats().model.busy_ns).sum()
}

/// Destroys the dataset, with a cold cache.
async fn destroy(machine: &Machine, outcome: &mut Outcome) -> Result<()> {
    let (devices, options) = (machine.devices(), OpenOptions::default());
    let scan = scan_devices(devices.clone()).await;
    let guid = scan.find("tank").expect(EXPORTED).guid();
    let engine = Engine::open_devices(devices, guid, &options).await?;
    machine.tap.start();
    let begun = monotonic();
    engine.datasets().destroy("tank/a").await?;
    while engine.space().has_pending_frees().await? {
        engine.sync().await?;
    }
    outcome.destroy_s = monotonic().saturating_sub(begun).as_secs_f64();
    let commands = machine.tap.stop();
    outcome.destroy_reads = commands.iter().filter(|command| command.op == Op::Read).count() as u64;
    engine.export().await
}
