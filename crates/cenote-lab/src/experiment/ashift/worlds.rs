//! Worlds of the experiment: writes to a bare disk, a file that is overwritten, and files that
//! compress.

use std::sync::Arc;
use std::time::Duration;

use cenote_device::model::table::HDD_7200;
use cenote_device::model::{Command, DiskModel, Op, Params, RotatingParams};
use cenote_dmu::live::ObjectSpec;
use cenote_engine::ApplyOptions;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::Value;
use cenote_rt::tunables::Tunable;
use cenote_rt::{Result, Rng, World, monotonic, simulate, sleep, spawn};
use cenote_vdev::create::Redundancy;

use super::emulated::Emulated;
use crate::machine::{
    COMMIT_DISK, Machine, RecordWriter, Recorded, SmallPool, block_range, new_file, world,
};
use crate::policy::Policy;

/// Bytes of a sector that a command may begin at.
pub(super) const SMALL_SECTOR: u64 = 512;
const SECTOR: u64 = 4096;
pub(super) const RECORD: u64 = 8 << 10;
/// Nanoseconds of a revolution.
pub(super) const REVOLUTION_NS: u64 = 60_000_000_000 / 7_200;
const PROCESSORS: usize = 4;
/// Part of the disk that the file fills, in percent.
const FULL_PERCENT: u64 = 80;
/// Overwrites of a txg, and records of a txg while the file is filled.
const TXG: u64 = 256;
const FILL_TXG: u64 = 4_096;
const COMMIT_BYTES: u64 = 256 << 20;
/// Part of the overwrites that is measured: the last ones.
const MEASURED_PARTS: u64 = 4;
const COMPRESSION_OFF: u64 = 2;
const COMPRESSION_LZ4: u64 = 15;
const ENDS: &str = "tasks end with their world";
/// Sizes of the records that compress, and how many bytes of a file each has.
pub(super) const RECORD_SIZES: [u64; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 128 << 10];
const FILE_BYTES: u64 = 2 << 20;

/// Writes to a bare disk of 4096-byte sectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw {
    /// Bytes behind a multiple of 4096.
    pub shift: u64,
    pub writes: u64,
    pub mean_ms: f64,
}

fn disk(is_emulated: bool, stretch: u64, seed: u64) -> Box<dyn DiskModel> {
    let params = RotatingParams { is_cache_on: false, stretch, ..HDD_7200 };
    let size = HDD_7200.capacity;
    let model = Params::Rotating(params).build(size, seed);
    if is_emulated { Box::new(Emulated::new(model)) } else { model }
}

/// Writes 8K at random places, one after the other.
pub(super) fn raw(seed: u64, shift: u64, writes: u64) -> Raw {
    let mut disk = disk(true, 1, seed);
    let mut rng = Rng::seeded(seed);
    let (mut now, mut done) = (0, Vec::new());
    for id in 0..writes {
        let offset = rng.below(HDD_7200.capacity / SECTOR - 4) * SECTOR + shift;
        disk.admit(now, Command { id, op: Op::Write, offset, len: RECORD });
        while done.is_empty() {
            now = disk.next_event().expect("a command is in progress");
            disk.advance(now, &mut done);
        }
        done.clear();
    }
    Raw { shift, writes, mean_ms: now as f64 / 1e6 / writes as f64 }
}

/// A pool with a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub policy: &'static Policy,
    /// Whether the disk has sectors of 4096 bytes.
    pub is_emulated: bool,
    pub ashift: u64,
    pub records: u64,
    /// How often as many records as the file has are overwritten.
    pub passes: u64,
    pub seed: u64,
}

impl Plan {
    fn disk_bytes(&self) -> u64 {
        SmallPool::disk_bytes(self.records * RECORD * 100 / FULL_PERCENT)
    }

    fn tunables(&self) -> Vec<(&'static Tunable, u64)> {
        self.policy.with(&SmallPool::tunables())
    }
}

/// Figures of a pool.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outcome {
    /// MB/s of the sequential fill.
    pub fill_mb: f64,
    /// Overwrites a second, of the last ones.
    pub rate: f64,
    /// Writes of the disk for each of them, their KiB, and the part that has partial sectors.
    pub writes: f64,
    pub write_kib: f64,
    pub partial: f64,
    /// Milliseconds in which the disk works for a write.
    pub busy_ms: f64,
    pub hash: u128,
}

/// Runs a world.
pub(super) fn run(plan: &Plan) -> Result<Outcome> {
    let world = world(plan.seed, PROCESSORS, plan.tunables());
    simulate(World { costs: None, ..world }, work(*plan))?
}

async fn work(plan: Plan) -> Result<Outcome> {
    let size = plan.disk_bytes();
    let model = disk(plan.is_emulated, HDD_7200.capacity / size, plan.seed);
    let machine = Machine::of_models(vec![model], (size, 9), plan.seed);
    let machine = machine.with_special(COMMIT_DISK, (COMMIT_BYTES, 9));
    let engine = machine.create_pool(Redundancy::Single, plan.ashift).await?;
    let props = vec![("compression".to_owned(), Value::U64(COMPRESSION_OFF))];
    let (head, object) = new_file(&engine, props, RECORD).await?;
    let mut writer = RecordWriter::new(&engine, (&head, object), RECORD, plan.seed);
    let begun = monotonic();
    writer.fill(plan.records, FILL_TXG).await?;
    let fill_s = monotonic().saturating_sub(begun).as_secs_f64();
    let fill_mb = (plan.records * RECORD) as f64 / 1e6 / fill_s;

    let txgs = (plan.records * plan.passes / TXG).max(MEASURED_PARTS);
    let measured = txgs / MEASURED_PARTS;
    let busy = || machine.disks[0].stats().model.busy_ns;
    let mut start = (monotonic(), busy());
    for txg in 0..txgs {
        if txg + measured == txgs {
            start = (monotonic(), busy());
            machine.tap.start();
        }
        let of_sync = Arc::clone(&engine);
        let sync = spawn(async move { of_sync.sync().await });
        // From here on, changes belong to the next txg.
        sleep(Duration::from_nanos(1)).await;
        for _ in 0..TXG {
            let record = writer.rng.below(plan.records);
            writer.write(record).await?;
        }
        sync.await.expect(ENDS)?;
    }
    engine.sync().await?;
    let seconds = monotonic().saturating_sub(start.0).as_secs_f64();
    let busy_ms = (busy() - start.1) as f64 / 1e6;
    let log = machine.tap.stop();
    let figures = Figures { seconds, busy_ms, overwrites: measured * TXG, disk_bytes: size };
    let outcome = Outcome { fill_mb, hash: machine.hash(), ..figures.outcome(&log) };
    engine.export().await?;
    Ok(outcome)
}

/// Figures of the overwrites that are measured.
struct Figures {
    seconds: f64,
    /// Milliseconds in which the disk worked.
    busy_ms: f64,
    overwrites: u64,
    disk_bytes: u64,
}

impl Figures {
    fn outcome(&self, log: &[Recorded]) -> Outcome {
        let blocks = block_range(self.disk_bytes);
        let is_block = |command: &&Recorded| {
            command.device == 0 && command.op == Op::Write && blocks.contains(&command.offset)
        };
        let writes: Vec<&Recorded> = log.iter().filter(is_block).collect();
        let is_whole = |write: &Recorded| {
            write.offset.is_multiple_of(SECTOR) && write.len.is_multiple_of(SECTOR)
        };
        let (count, overwrites) = (writes.len().max(1) as f64, self.overwrites as f64);
        let bytes: u64 = writes.iter().map(|write| write.len).sum();
        Outcome {
            rate: overwrites / self.seconds,
            writes: count / overwrites,
            write_kib: bytes as f64 / count / 1024.0,
            partial: writes.iter().filter(|write| !is_whole(write)).count() as f64 / count,
            busy_ms: self.busy_ms / count,
            ..Outcome::default()
        }
    }
}

/// Space of a file of compressible records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Space {
    pub ashift: u64,
    pub record: u64,
    /// Compressed bytes of each block, as its pointer says, and allocated bytes.
    pub stored: Vec<u64>,
    pub allocated: Vec<u64>,
}

impl Space {
    pub(super) fn allocated(&self) -> u64 {
        self.allocated.iter().sum()
    }
}

/// Writes a file of each record size to a pool of this ashift.
pub(super) fn space(policy: &'static Policy, seed: u64, ashift: u64) -> Result<(Vec<Space>, u128)> {
    let world = world(seed, PROCESSORS, policy.with(&[]));
    simulate(World { costs: None, ..world }, async move {
        let size = HDD_7200.capacity;
        let machine = Machine::of_models(vec![disk(true, 1, seed)], (size, 9), seed);
        let engine = machine.create_pool(Redundancy::Single, ashift).await?;
        let props = vec![("compression".to_owned(), Value::U64(COMPRESSION_LZ4))];
        let (head, _) = new_file(&engine, props, RECORD).await?;
        let mut objects = Vec::new();
        for record in RECORD_SIZES {
            let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, record);
            let options = ApplyOptions::new();
            let (object, _) = engine.apply(&head, options, |tx| tx.allocate(&spec)).await?;
            let mut rng = Rng::seeded(seed ^ record);
            let mut bytes = vec![0; record as usize];
            for number in 0..FILE_BYTES / record {
                fill(&mut rng, &mut bytes);
                let place = number * record;
                let options = ApplyOptions::new();
                engine.apply(&head, options, |tx| tx.write(object, place, &bytes)).await?;
            }
            objects.push((record, object));
        }
        engine.sync().await?;
        let view = engine.view().await?;
        let set = view.dataset("tank/a").await?.open().await?;
        let mut spaces = Vec::new();
        for (record, object) in objects {
            let dnode = set.dnode(object).await?;
            let (mut stored, mut allocated) = (Vec::new(), Vec::new());
            for number in 0..FILE_BYTES / record {
                if let Some(pointer) = dnode.block_pointer(0, number).await? {
                    stored.push(pointer.psize());
                    allocated.push(pointer.dvas().map(|dva| dva.asize).sum());
                }
            }
            spaces.push(Space { ashift, record, stored, allocated });
        }
        Ok((spaces, machine.hash()))
    })?
}

/// Fills a record that compresses to between a quarter and all of its size.
fn fill(rng: &mut Rng, bytes: &mut [u8]) {
    for grain in bytes.chunks_mut(1 << 10) {
        let len = grain.len() * (25 + rng.below(76) as usize) / 100;
        let (random, zeros) = grain.split_at_mut(len);
        rng.fill(random);
        zeros.fill(0);
    }
}
