//! Worlds of the experiment: a pool of one disk that gets a mirror, twice.

use std::sync::Arc;

use cenote_device::Device;
use cenote_device::model::{Op, table};
use cenote_engine::{Attach, Engine, NewLeaf, ScrubOptions};
use cenote_ondisk::scan::ScanFunc;
use cenote_ondisk::zap::Value;
use cenote_rt::tunables::{self, Tunable};
use cenote_rt::{Result, Rng, monotonic, simulate};
use cenote_vdev::create::{self, Guids, LeafSpec, Redundancy};

use crate::machine::{Machine, RecordWriter, Recorded, new_file, world};
use crate::policy::Policy;

/// Bytes of a disk: the outer part of the model's.
const DISK_BYTES: u64 = 64 << 30;
const PROCESSORS: usize = 4;
/// Bytes of a txg while the file is written.
const TXG_BYTES: u64 = 16 << 20;
/// Everything read ahead stays in the cache.
const CACHE: u64 = 256 << 20;
/// Shortest hole over which a head is moved.
const HOLE: u64 = 16 << 20;
const COMPRESSION_OFF: u64 = 2;

/// A world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub policy: &'static Policy,
    /// Bytes of a record, and of the file.
    pub record: u64,
    pub bytes: u64,
    /// Whether as many records as the file has are overwritten at random.
    pub is_overwritten: bool,
    pub seed: u64,
}

impl Plan {
    pub(super) fn file(&self) -> String {
        let state = if self.is_overwritten { "overwritten" } else { "in order" };
        format!("{}K {state}", self.record >> 10)
    }
}

/// How a new side gets its data.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Filled {
    /// Seconds, without those of an empty pool.
    pub seconds: f64,
    /// Commands of the old side, and their bytes.
    pub reads: u64,
    pub read: u64,
    /// Their bytes, and those of the holes between them that a head passes.
    pub passed: u64,
    /// Part of the time in which the old and the new side worked, in percent.
    pub busy: [f64; 2],
}

/// Results of a world.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outcome {
    /// Bytes that are allocated on a side.
    pub allocated: u64,
    pub healing: Filled,
    pub rebuild: Filled,
    /// The scrub after the rebuild.
    pub scrub_s: f64,
    /// Seconds of an empty pool, both ways.
    pub empty_s: [f64; 2],
    pub hash: u128,
}

/// Runs a world.
pub(super) fn run(plan: &Plan) -> Result<Outcome> {
    let tunables: &[(&'static Tunable, u64)] =
        &[(&tunables::BLOCK_CACHE_BYTES, CACHE), (&tunables::REBUILD_SCRUB, 0)];
    simulate(world(plan.seed, PROCESSORS, plan.policy.with(tunables)), work(*plan))?
}

async fn work(plan: Plan) -> Result<Outcome> {
    let params = table::find("hdd-7200").expect("a device of the table");
    let mut machine = Machine::new(params, 1, (DISK_BYTES, 9), plan.seed);
    let engine = machine.create_pool(Redundancy::Single, 9).await?;
    let mut sides =
        Sides { rng: Rng::seeded(plan.seed ^ 0x7369_6465), engine: Arc::clone(&engine) };
    let mut outcome = Outcome::default();
    let props = vec![("compression".to_owned(), Value::U64(COMPRESSION_OFF))];
    let (head, object) = new_file(&engine, props, plan.record).await?;
    engine.sync().await?;
    for (index, is_sequential) in [false, true].into_iter().enumerate() {
        let device = machine.add_disk(params, (DISK_BYTES, 9));
        outcome.empty_s[index] = sides.fill(&machine, device, is_sequential).await?.seconds;
    }

    let mut writer = RecordWriter::new(&engine, (&head, object), plan.record, plan.seed);
    let (records, txg) = (plan.bytes / plan.record, TXG_BYTES / plan.record);
    writer.fill(records, txg).await?;
    if plan.is_overwritten {
        for number in 0..records {
            let record = writer.rng.below(records);
            writer.write(record).await?;
            if (number + 1) % txg == 0 {
                engine.sync().await?;
            }
        }
    }
    // Freed space is deferred for some txgs, in which it counts as allocated.
    for _ in 0..4 {
        engine.sync().await?;
    }
    let vdev = engine.allocator().vdev_figures().into_iter().next();
    outcome.allocated = vdev.map_or(0, |vdev| vdev.space.allocated);
    for (index, is_sequential) in [false, true].into_iter().enumerate() {
        engine.store().clear_cache();
        let device = machine.add_disk(params, (DISK_BYTES, 9));
        let mut filled = sides.fill(&machine, device, is_sequential).await?;
        filled.seconds -= outcome.empty_s[index];
        *(if is_sequential { &mut outcome.rebuild } else { &mut outcome.healing }) = filled;
    }
    engine.store().clear_cache();
    let begun = monotonic();
    engine.scans().scrub(ScrubOptions::default()).await?;
    engine.scans().wait(ScanFunc::Scrub).await?;
    outcome.scrub_s = monotonic().saturating_sub(begun).as_secs_f64();
    outcome.hash = machine.hash();
    engine.export().await?;
    Ok(outcome)
}

/// Gives a pool of one disk new sides.
struct Sides {
    engine: Arc<Engine>,
    /// Guids of the new leaves.
    rng: Rng,
}

impl Sides {
    /// Attaches a device, waits until it has everything, and detaches it.
    async fn fill(
        &mut self,
        machine: &Machine,
        device: Arc<dyn Device>,
        is_sequential: bool,
    ) -> Result<Filled> {
        let spec = LeafSpec::of(device.info());
        let config = create::leaf(&spec, 0, 0, &mut Guids::new(|| Ok(self.rng.next_u64())))?;
        let guid = config.guid;
        let new =
            NewLeaf { config, device: Some(device), ashift: spec.logical_ashift, is_sequential };
        let engine = &self.engine;
        let old = engine.admin().vdev_config();
        let old = old.children.first().map_or(0, |top| top.guid);
        let busy = || {
            let sides = [machine.disks.first(), machine.disks.last()];
            sides.map(|side| side.map_or(0, |disk| disk.stats().model.busy_ns))
        };
        machine.tap.start();
        let (begun, before) = (monotonic(), busy());
        engine.leaves().attach(old, new, Attach::Mirror).await?;
        engine.scans().resume().await?;
        engine.scans().wait(ScanFunc::Resilver).await?;
        let seconds = monotonic().saturating_sub(begun).as_secs_f64();
        let (mut log, after) = (machine.tap.stop(), busy());
        let busy = [0, 1].map(|side: usize| {
            (after[side] - before[side]) as f64 / 1e9 / seconds.max(1e-9) * 100.0
        });
        log.retain(|command| command.device == 0 && command.op == Op::Read);
        assert!(engine.scans().in_progress().await?.is_none(), "the new side has everything");
        engine.sync().await?;
        engine.leaves().detach(guid, None).await?;
        let read = log.iter().map(|command| command.len).sum();
        Ok(Filled { seconds, reads: log.len() as u64, read, passed: passed(log), busy })
    }
}

/// Returns the bytes of the reads and of the holes between them, without those to which a head is
/// moved.
fn passed(mut reads: Vec<Recorded>) -> u64 {
    reads.sort_by_key(|read| read.offset);
    let (mut bytes, mut end) = (0, 0);
    for read in reads {
        let hole = read.offset.saturating_sub(end);
        let next = read.offset + read.len;
        bytes += if hole < HOLE { next.saturating_sub(end) } else { read.len };
        end = end.max(next);
    }
    bytes
}
