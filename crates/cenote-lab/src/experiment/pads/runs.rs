//! Worlds of the experiment: a file of equal records on a RAID-Z vdev, and the recorded writes.
//!
//! ```text
//!   vdev      | r0 ........... pad | r1 ........... pad | r2 ........... pad | r3 ...
//!   counted                   only the pads between two adjacent records
//! ```
//!
//! All records are written in one txg. The first records find the queues empty, and nothing that
//! their pads could join: they are not counted.

use std::collections::BTreeMap;

use cenote_device::model::{Op, Params};
use cenote_device::pattern;
use cenote_dmu::live::ObjectSpec;
use cenote_engine::{ApplyOptions, Engine, NewDataset};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_rt::tunables::{self, Tunable};
use cenote_rt::{Result, Rng, simulate};
use cenote_vdev::DATA_START;
use cenote_vdev::create::Redundancy;

use super::layout::{Case, Layout};
use crate::machine::{Machine, Recorded, world};
use crate::policy::Policy;

/// Bytes of a disk: room for every case. Disks are sparse.
const DISK_BYTES: u64 = 8 << 30;
/// Processors: enough that the disks are what limits the rate.
const PROCESSORS: usize = 16;
/// Limit of dirty data, so that a file is written in one txg.
const DIRTY_MAX: u64 = 8 << 30;
/// Values of the property `compression`.
const COMPRESSION_OFF: u64 = 2;
const COMPRESSION_LZ4: u64 = 15;
/// Reciprocals of the compression ratios 1.3 and 3, in thousandths.
const PACKED_MILLE: (u64, u64) = (333, 769);

/// What a world is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Which sectors are written: disks do one write at a time, so that all others are queued.
    Layout,
    /// How fast: queues as they are.
    Rate,
    /// Like [`Self::Layout`], with records that lz4 packs to different sizes.
    Compressed,
}

/// A world.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub layout: Layout,
    /// Sizes of records, one for each file.
    pub records: Vec<u64>,
    /// Records of a file, and those at its start that are not counted.
    pub count: u64,
    pub first: u64,
    pub policy: &'static Policy,
    pub device: Params,
    pub purpose: Purpose,
    pub seed: u64,
}

/// The recorded writes of a file.
#[derive(Debug, Clone, Default)]
pub(super) struct FileRun {
    pub record: u64,
    /// Records that are followed by an adjacent one.
    pub blocks: u64,
    /// Records with a pad that was not written.
    pub open_blocks: u64,
    /// Pads behind those records, and how many of them were written.
    pub pads: u64,
    pub filled: u64,
    /// Seconds from the first write to the end of the last one.
    pub seconds: f64,
    /// Writes, and their bytes.
    pub writes: u64,
    pub bytes: u64,
    /// Gaps between successive writes to the disk that has most of them.
    pub gaps_max: u64,
    /// Gaps on all disks.
    pub gaps: u64,
    /// All writes of the records, by disk.
    pub log: Vec<Recorded>,
    /// First sectors of the records.
    pub starts: Vec<u64>,
}

/// The results of a world.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    pub files: Vec<FileRun>,
    pub hash: u128,
}

/// Runs a world.
pub(super) fn run(plan: &Plan) -> Result<Outcome> {
    let mut own: Vec<(&'static Tunable, u64)> =
        vec![(&tunables::NUM_ALLOCATORS, 1), (&tunables::DIRTY_DATA_MAX, DIRTY_MAX)];
    if plan.purpose != Purpose::Rate {
        own.push((&tunables::ASYNC_WRITE_MIN_ACTIVE, 1));
        own.push((&tunables::ASYNC_WRITE_MAX_ACTIVE, 1));
    }
    simulate(world(plan.seed, PROCESSORS, plan.policy.with(&own)), work(plan.clone()))?
}

async fn work(plan: Plan) -> Result<Outcome> {
    let Layout { ashift, nparity, width } = plan.layout;
    let machine = Machine::new(plan.device, width as usize, (DISK_BYTES, ashift), plan.seed);
    let engine = machine.create_pool(Redundancy::Raidz(nparity), ashift).await?;
    let is_packed = plan.purpose == Purpose::Compressed;
    let compression = if is_packed { COMPRESSION_LZ4 } else { COMPRESSION_OFF };
    let props = vec![("compression".to_owned(), Value::U64(compression))];
    let new = NewDataset { props, ..NewDataset::new("tank/a", ObjSetType::Other) };
    engine.datasets().create(new).await?;
    engine.sync().await?;
    let mut files = Vec::new();
    for (number, record) in (0..).zip(&plan.records) {
        machine.tap.start();
        let object = write_file(&engine, &plan, (number, *record)).await?;
        let log = machine.tap.stop();
        let blocks = blocks_of(&engine, object, plan.count, plan.layout).await?;
        files.push(judge(&plan, *record, &blocks, log));
    }
    let hash = machine.hash();
    engine.export().await?;
    Ok(Outcome { files, hash })
}

/// Writes and syncs a file.
async fn write_file(engine: &Engine, plan: &Plan, (file, record): (u64, u64)) -> Result<u64> {
    let head = engine.head("tank/a").await?;
    let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, record);
    let (object, _) = engine.apply(&head, ApplyOptions::new(), |tx| tx.allocate(&spec)).await?;
    let mut rng = Rng::seeded(plan.seed ^ record ^ file << 32);
    let mut bytes = vec![0; record as usize];
    for number in 0..plan.count {
        let mut dense = record;
        if plan.purpose == Purpose::Compressed {
            let (least, most) = PACKED_MILLE;
            dense = record / 1000 * (least + rng.below(most - least));
        }
        let (data, zeros) = bytes.split_at_mut(dense as usize);
        pattern::fill(rng.next_u64() | 1, data);
        zeros.fill(0);
        let options = ApplyOptions::new();
        engine.apply(&head, options, |tx| tx.write(object, number * record, &bytes)).await?;
    }
    engine.sync().await?;
    Ok(object)
}

/// A record on the vdev: its first sector, and its sectors with and without pads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Block {
    start: u64,
    total: u64,
    allocated: u64,
}

/// Returns the records of a file in the order of their places.
async fn blocks_of(engine: &Engine, object: u64, count: u64, layout: Layout) -> Result<Vec<Block>> {
    let view = engine.view().await?;
    let objset = view.dataset("tank/a").await?.open().await?;
    let dnode = objset.dnode(object).await?;
    let mut blocks = Vec::new();
    for number in 0..count {
        let Some(pointer) = dnode.block_pointer(0, number).await? else { continue };
        let Some(dva) = pointer.dvas().next() else { continue };
        let case = Case { record: pointer.psize(), layout };
        let start = dva.offset >> layout.ashift;
        blocks.push(Block { start, total: case.total(), allocated: dva.asize >> layout.ashift });
    }
    blocks.sort_unstable();
    Ok(blocks)
}

/// Evaluates the recorded writes.
fn judge(plan: &Plan, record: u64, blocks: &[Block], log: Vec<Recorded>) -> FileRun {
    let Layout { ashift, width, .. } = plan.layout;
    let mut run = FileRun { record, ..FileRun::default() };
    let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else { return run };
    let rows = first.start / width..(last.start + last.total).div_ceil(width);
    let bounds = DATA_START + (rows.start << ashift)..DATA_START + (rows.end << ashift);
    let is_of_file =
        |command: &Recorded| command.op == Op::Write && bounds.contains(&command.offset);
    run.log = log.into_iter().filter(is_of_file).collect();
    run.writes = run.log.len() as u64;
    run.bytes = run.log.iter().map(|write| write.len).sum();
    let begin = run.log.iter().map(|write| write.begin_ns).min().unwrap_or_default();
    let end = run.log.iter().map(|write| write.end_ns).max().unwrap_or_default();
    run.seconds = (end - begin) as f64 / 1e9;
    let gaps = gaps_of(&run.log);
    (run.gaps, run.gaps_max) = (gaps.values().sum(), gaps.values().copied().max().unwrap_or(0));
    run.starts = blocks.iter().map(|block| block.start).collect();

    let written = Written::new(&run.log);
    let counted = blocks.get(plan.first as usize..).unwrap_or_default();
    for pair in counted.windows(2) {
        let Block { start, total, allocated } = pair[0];
        if start + allocated != pair[1].start {
            continue;
        }
        let pads = start + total..start + allocated;
        run.blocks += 1;
        run.pads += allocated - total;
        let has = |sector: &u64| {
            let (device, row) = (sector % width, sector / width);
            written.contains(device, DATA_START + (row << ashift))
        };
        let filled = pads.filter(has).count() as u64;
        run.filled += filled;
        run.open_blocks += u64::from(filled < allocated - total);
    }
    run
}

/// Counts gaps of up to 64 KiB between a write and the next one to the same disk, as
/// `cenote_device::model::Lun` does.
fn gaps_of(log: &[Recorded]) -> BTreeMap<u64, u64> {
    let (mut ends, mut gaps) = (BTreeMap::new(), BTreeMap::new());
    for write in log {
        let end = ends.insert(write.device, write.offset + write.len);
        let gap = end.and_then(|end: u64| write.offset.checked_sub(end)).unwrap_or_default();
        if (1..=64 << 10).contains(&gap) {
            *gaps.entry(write.device).or_default() += 1;
        }
    }
    gaps
}

/// Written ranges by disk and start.
struct Written(BTreeMap<(u64, u64), u64>);

impl Written {
    fn new(log: &[Recorded]) -> Self {
        let range = |write: &Recorded| ((write.device, write.offset), write.offset + write.len);
        Self(log.iter().map(range).collect())
    }

    fn contains(&self, device: u64, offset: u64) -> bool {
        let before = self.0.range((device, 0)..=(device, offset)).next_back();
        before.is_some_and(|(_, end)| *end > offset)
    }
}
