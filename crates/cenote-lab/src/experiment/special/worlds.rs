//! Worlds of the experiment: a file and many objects, with and without a special vdev.

use std::sync::Arc;

use cenote_device::model::{Op, table};
use cenote_dmu::live::ObjectSpec;
use cenote_engine::{ApplyOptions, Engine, ScrubOptions};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::scan::ScanFunc;
use cenote_ondisk::zap::Value;
use cenote_pool::import::scan_devices;
use cenote_pool::{OpenOptions, Pool};
use cenote_rt::{Result, Rng, monotonic, simulate, spawn, tunables};
use cenote_vdev::create::Redundancy;

use crate::machine::{Machine, RecordWriter, new_file, world};
use crate::policy::Policy;

const RECORD: u64 = 8 << 10;
/// Records below an indirect block of 128K.
const APART: u64 = 1024;
const DISK_BYTES: u64 = 2_000_000_000_000;
const SPECIAL_BYTES: u64 = 16 << 30;
const READERS: u64 = 16;
const PROCESSORS: usize = 8;
const FILL_TXG: u64 = 4_096;
/// Objects that are created in a txg.
const OBJECTS_TXG: u64 = 1_024;
const CACHE: u64 = 512 << 20;
const COMPRESSION_OFF: u64 = 2;
const CREATED: &str = "the pool was exported before";
const ENDS: &str = "tasks end with their world";

/// A world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub policy: &'static Policy,
    pub has_special: bool,
    /// Records of the file, and number of small files.
    pub records: u64,
    pub objects: u64,
    pub seed: u64,
}

impl Plan {
    pub(super) fn name(&self) -> &'static str {
        if self.has_special { "with special" } else { "without" }
    }

    /// Indirect blocks of the file, each of which is needed for one read.
    pub(super) fn places(&self) -> u64 {
        self.records / APART
    }
}

/// An operation from a cold cache.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Task {
    pub seconds: f64,
    /// Reads of the disk, and of the special vdev.
    pub disk: u64,
    pub special: u64,
}

/// Results of a world.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outcome {
    pub listing: Task,
    pub reads: Task,
    pub scrub: Task,
    pub hash: u128,
}

/// Runs a world.
pub(super) fn run(plan: &Plan) -> Result<Outcome> {
    let tunables = plan.policy.with(&[(&tunables::BLOCK_CACHE_BYTES, CACHE)]);
    simulate(world(plan.seed, PROCESSORS, tunables), work(*plan))?
}

async fn work(plan: Plan) -> Result<Outcome> {
    let device = |name| table::find(name).expect("a device of the table");
    let mut machine = Machine::new(device("hdd-7200"), 1, (DISK_BYTES, 9), plan.seed);
    if plan.has_special {
        machine = machine.with_special(device("nvme"), (SPECIAL_BYTES, 9));
    }
    let (object, objects) = fill(&machine, &plan).await?;
    let mut outcome = Outcome::default();
    let pool = open(&machine).await?;
    outcome.listing = timed(&machine, list(&pool, objects, plan.seed)).await?;
    drop(pool);
    let pool = open(&machine).await?;
    outcome.reads = timed(&machine, read(&pool, object, &plan)).await?;
    drop(pool);
    let devices = machine.devices();
    let scan = scan_devices(devices.clone()).await;
    let guid = scan.find("tank").expect(CREATED).guid();
    let engine = Engine::open_devices(devices, guid, &OpenOptions::default()).await?;
    outcome.scrub = timed(&machine, async {
        engine.scans().scrub(ScrubOptions::default()).await?;
        engine.scans().wait(ScanFunc::Scrub).await
    })
    .await?;
    outcome.hash = machine.hash();
    engine.export().await?;
    Ok(outcome)
}

/// Writes the file and the objects, a part of both in each txg.
async fn fill(machine: &Machine, plan: &Plan) -> Result<(u64, Vec<u64>)> {
    let engine = machine.create_pool(Redundancy::Single, 9).await?;
    let props = vec![("compression".to_owned(), Value::U64(COMPRESSION_OFF))];
    let (head, object) = new_file(&engine, props, RECORD).await?;
    let mut writer = RecordWriter::new(&engine, (&head, object), RECORD, plan.seed);
    let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, RECORD);
    let mut objects = Vec::new();
    let per_txg = OBJECTS_TXG.min(plan.objects * FILL_TXG / plan.records);
    for record in 0..plan.records {
        writer.write(record).await?;
        if (record + 1) % FILL_TXG == 0 {
            for _ in 0..per_txg {
                let options = ApplyOptions::new();
                objects.push(engine.apply(&head, options, |tx| tx.allocate(&spec)).await?.0);
            }
            engine.sync().await?;
        }
    }
    engine.sync().await?;
    engine.export().await?;
    Ok((object, objects))
}

async fn open(machine: &Machine) -> Result<Arc<Pool>> {
    let scan = scan_devices(machine.devices()).await;
    Pool::open(scan.find("tank").expect(CREATED), &OpenOptions::default()).await
}

/// Takes the time of an operation, and counts reads.
async fn timed(machine: &Machine, operation: impl Future<Output = Result<()>>) -> Result<Task> {
    let reads = |number: usize| {
        machine.disks.get(number).map_or(0, |disk| disk.stats().of(Op::Read).commands)
    };
    let (begun, before) = (monotonic(), [reads(0), reads(1)]);
    operation.await?;
    Ok(Task {
        seconds: monotonic().saturating_sub(begun).as_secs_f64(),
        disk: reads(0) - before[0],
        special: reads(1) - before[1],
    })
}

/// Reads the dnodes of the objects in random order, one after the other.
async fn list(pool: &Arc<Pool>, mut objects: Vec<u64>, seed: u64) -> Result<()> {
    let mut rng = Rng::seeded(seed);
    shuffle(&mut objects, &mut rng);
    let set = pool.dataset("tank/a").await?.open().await?;
    for object in objects {
        set.dnode(object).await?;
    }
    Ok(())
}

/// Reads a record below each indirect block, in random order.
async fn read(pool: &Arc<Pool>, object: u64, plan: &Plan) -> Result<()> {
    let mut rng = Rng::seeded(plan.seed);
    let mut places: Vec<u64> =
        (0..plan.places()).map(|place| place * APART + rng.below(APART)).collect();
    shuffle(&mut places, &mut rng);
    let dnode = pool.dataset("tank/a").await?.open().await?.dnode(object).await?;
    let share = places.len().div_ceil(READERS as usize);
    let readers: Vec<_> = places
        .chunks(share)
        .map(|chunk| {
            let (dnode, chunk) = (Arc::clone(&dnode), chunk.to_vec());
            spawn(async move {
                for record in chunk {
                    dnode.read_at(record * RECORD, RECORD as usize).await?;
                }
                Ok::<_, cenote_rt::Error>(())
            })
        })
        .collect();
    for reader in readers {
        reader.await.expect(ENDS)?;
    }
    Ok(())
}

fn shuffle(items: &mut [u64], rng: &mut Rng) {
    for index in (1..items.len()).rev() {
        items.swap(index, rng.below(index as u64 + 1) as usize);
    }
}
