//! Worlds of the experiment: a file that is filled once, and then overwritten at random.
//!
//! ```text
//!   txg      | fill: blocks in order | overwrites | overwrites | ...
//!   writers                          write the blocks of the next txg while this one is synced
//! ```
//!
//! Every txg has the same number of overwrites, whatever the policy, so that only the places of
//! blocks differ between policies.

use std::sync::Arc;
use std::time::Duration;

use cenote_device::model::{Op, Params};
use cenote_device::pattern;
use cenote_engine::{ApplyOptions, Engine, Head};
use cenote_ondisk::zap::Value;
use cenote_rt::tunables::{self, Tunable};
use cenote_rt::{Result, Rng, monotonic, sleep, spawn};
use cenote_vdev::create::Redundancy;

use crate::machine::{COMMIT_DISK, Machine, Recorded, new_file, world};
use crate::place::Place;
use crate::policy::Policy;

/// Bytes of a block of the file.
pub(super) const BLOCK: u64 = 8 << 10;
const COMMIT_DISK_BYTES: u64 = 1 << 30;
/// Bytes of a disk that are not in metaslabs: labels, and a remainder.
const RESERVED: u64 = 5 << 20;
const PROCESSORS: usize = 8;
/// Speed of a processor of the report's virtual machine, compared with the table of costs.
const SPEED_PERCENT: u32 = 60;
/// Txgs of overwrites that the fill writes in one.
const FILL_TXGS: u64 = 8;
/// Values of the property `compression`.
const COMPRESSION_OFF: u64 = 2;
const COMPRESSION_LZ4: u64 = 15;
/// Smallest slop space: the pools are smaller than what a pool keeps back usually.
const SLOP_MIN: u64 = 1 << 20;
/// Everything that is in memory in the report stays in the cache.
const CACHE: u64 = 96 << 20;
/// Parts of the overwrites: samples of the rate, and pictures of the metaslabs.
pub(super) const SAMPLES: u64 = 80;
pub(super) const FRAMES: u64 = 5;
/// Samples at the end whose mean is the settled rate.
const SETTLED: usize = 20;
/// Txgs with a single overwrite whose mean is the cost of a commit.
const LEAST_TXGS: u64 = 8;
/// Overwrites of the report's txg: 32 MiB.
const REPORT_TXG_BLOCKS: u64 = 4096;

/// Size of a pool and of its txgs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Size {
    /// Metaslabs of all disks, and log2 of their bytes.
    pub metaslabs: u64,
    pub shift: u64,
    /// Overwrites of a txg.
    pub txg_blocks: u64,
    /// Overwrites, in percent of the blocks that fit on the disks.
    pub overwrites_percent: u64,
    /// Whether it is smaller than the report's: metadata other than those of the file are on
    /// another disk, and work takes no time of a processor.
    pub is_scaled: bool,
}

/// A kind of disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Disk {
    pub name: &'static str,
    pub params: Params,
    /// Writes that its queue has in progress (`zfs_vdev_async_write_max_active`).
    pub writes_active: u64,
}

/// What differs from the report's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    /// Nothing.
    Usual,
    /// Compression is on; the data are incompressible.
    Compressed,
    /// No fill: each block is written once, in random order.
    Once,
    /// The disks are four vdevs.
    FourDisks,
}

/// A world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub policy: &'static Policy,
    /// Part of the disks that the file fills.
    pub percent: u64,
    pub variant: Variant,
    pub device: Disk,
    pub size: Size,
    pub seed: u64,
}

/// Figures of some txgs.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    /// Virtual seconds since the first overwrite, at the end.
    pub at: f64,
    /// Overwrites a second.
    pub rate: f64,
    /// Mean bytes of a device write, in KiB.
    pub write_kib: f64,
    /// Bytes that the devices wrote, over bytes overwritten.
    pub amplification: f64,
}

/// The metaslabs at a moment.
#[derive(Debug, Clone, Default)]
pub(super) struct Frame {
    pub at: f64,
    /// Free space in percent, and fragmentation, of each.
    pub free: Vec<f64>,
    pub fragmentation: Vec<f64>,
}

/// Results of a world.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    /// Device writes while filling: by log2 of their bytes, and mean KiB.
    pub fill_sizes: [u64; 32],
    pub fill_kib: f64,
    pub samples: Vec<Sample>,
    /// Device writes of the settled samples, by log2 of their bytes.
    pub sizes: [u64; 32],
    pub frames: Vec<Frame>,
    /// Metaslabs less than 1 percent free, after the fill.
    pub full_after_fill: u64,
    /// Fragmentation of the pool, and deferred bytes in percent of the disks.
    pub fragmentation: u64,
    pub deferred: f64,
    /// Milliseconds of the settled txgs, sorted, and of one with a single overwrite.
    pub txg_ms: Vec<f64>,
    pub least_txg_ms: f64,
    pub hash: u128,
}

impl Outcome {
    /// Mean of the settled samples.
    pub(super) fn settled(&self, of: impl Fn(&Sample) -> f64) -> f64 {
        mean(self.samples.iter().rev().take(SETTLED).map(of))
    }

    /// Rate of the settled samples, over that of as many samples before them.
    pub(super) fn trend(&self) -> f64 {
        let before = self.samples.iter().rev().skip(SETTLED).take(SETTLED);
        self.settled(|sample| sample.rate) / mean(before.map(|sample| sample.rate))
    }

    /// Settled overwrites a second if txgs were as large as the report's: a commit costs as much
    /// beside a large txg as beside a small one.
    pub(super) fn scaled_rate(&self, plan: &Plan) -> f64 {
        let per_txg = plan.size.txg_blocks as f64;
        let seconds = per_txg / self.settled(|sample| sample.rate).max(1e-9);
        let commit = (self.least_txg_ms / 1e3).min(seconds);
        if !plan.size.is_scaled {
            return self.settled(|sample| sample.rate);
        }
        let times = (REPORT_TXG_BLOCKS as f64 / per_txg).max(1.0);
        per_txg * times / ((seconds - commit) * times + commit)
    }

    /// Metaslabs in use at half time.
    pub(super) fn used_at_half(&self) -> u64 {
        used(self.frames.get(self.frames.len() / 2 + 1))
    }

    /// Metaslabs in use after the fill and at the end: less than 99 percent free.
    pub(super) fn used(&self) -> (u64, u64) {
        (used(self.frames.first()), used(self.frames.last()))
    }
}

fn used(frame: Option<&Frame>) -> u64 {
    frame.map_or(0, |frame| frame.free.iter().filter(|free| **free < 99.0).count() as u64)
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

impl Plan {
    fn disks(&self) -> u64 {
        if self.variant == Variant::FourDisks { 4 } else { 1 }
    }

    /// Blocks that fit on the disks, and those of the file.
    fn blocks(&self) -> (u64, u64) {
        let all = (self.size.metaslabs << self.size.shift) / BLOCK;
        (all, all * self.percent / 100)
    }

    /// Number of txgs of overwrites.
    fn txgs(&self) -> u64 {
        let (all, file) = self.blocks();
        let overwrites = match self.variant {
            Variant::Once => file,
            _ => all * self.size.overwrites_percent / 100,
        };
        (overwrites / self.size.txg_blocks).max(SAMPLES)
    }

    fn tunables(&self) -> Vec<(&'static Tunable, u64)> {
        let txg = self.size.txg_blocks * BLOCK;
        self.policy.with(&[
            (&tunables::METASLAB_MIN_SHIFT, self.size.shift.min(24)),
            (&tunables::METASLAB_DEFAULT_SHIFT, self.size.shift),
            (&tunables::METASLAB_DEFAULT_COUNT, self.size.metaslabs * 2),
            // The report's pools had no embedded log.
            (&tunables::EMBEDDED_SLOG_MIN_MS, 1 << 16),
            (&tunables::SLOP_MIN, SLOP_MIN),
            (&tunables::SLOP_SHIFT, 31),
            (&tunables::BLOCK_CACHE_BYTES, CACHE),
            // Only full txgs are synced, with as many writes in flight as ever.
            (&tunables::DIRTY_DATA_MAX, txg * FILL_TXGS * 4),
            (&tunables::ASYNC_WRITE_MIN_ACTIVE, self.device.writes_active),
            (&tunables::ASYNC_WRITE_MAX_ACTIVE, self.device.writes_active),
            // All policies write equal indirect blocks: only places differ.
            (&tunables::DEFAULT_IBS, 14),
            // Indirect blocks of the file are on the disks that are measured.
            (&tunables::USER_INDIRECT_IS_SPECIAL, 0),
        ])
    }
}

/// Runs a world.
pub(super) fn run(place: &Place, plan: &Plan) -> Result<Outcome> {
    let world = world(plan.seed, PROCESSORS, plan.tunables());
    // The work of a commit has the length of the chain of its writes, whatever the scale.
    let costs = if plan.size.is_scaled { None } else { world.costs.clone() };
    let world = cenote_rt::World { speed_percent: SPEED_PERCENT, costs, ..world };
    place.run(world, work(place, *plan))
}

async fn work(place: &Place, plan: Plan) -> Result<Outcome> {
    let mut file = File::create(place, plan).await?;
    let mut outcome = Outcome::default();
    if plan.variant != Variant::Once {
        let log = file.fill().await?;
        outcome.fill_sizes = sizes(&log, plan.disks());
        outcome.fill_kib = mean(writes(&log, plan.disks()).map(|write| write.len as f64 / 1024.0));
    }
    outcome.frames.push(file.frame(0.0));
    let free = &outcome.frames[0].free;
    outcome.full_after_fill = free.iter().filter(|free| **free < 1.0).count() as u64;
    file.overwrite(&mut outcome).await?;

    let space = file.engine.allocator();
    outcome.fragmentation = space.fragmentation().unwrap_or_default();
    let figures: Vec<_> = space.vdev_figures().into_iter().take(plan.disks() as usize).collect();
    let deferred: u64 = figures.iter().map(|vdev| vdev.space.deferred).sum();
    let all: u64 = figures.iter().map(|vdev| vdev.space.space).sum();
    outcome.deferred = deferred as f64 / all as f64 * 100.0;
    outcome.least_txg_ms = file.least_txg_ms().await?;
    outcome.hash = file.machine.hash();
    Ok(outcome)
}

/// The file and its pool.
struct File {
    plan: Plan,
    machine: Machine,
    engine: Arc<Engine>,
    writer: Writer,
}

/// Writes blocks of the file.
#[derive(Clone)]
struct Writer {
    engine: Arc<Engine>,
    head: Arc<Head>,
    object: u64,
    rng: Rng,
    bytes: Vec<u8>,
}

impl Writer {
    async fn write(&mut self, block: u64) -> Result<()> {
        pattern::fill(self.rng.next_u64() | 1, &mut self.bytes);
        let (object, bytes) = (self.object, &self.bytes);
        let options = ApplyOptions::new();
        self.engine.apply(&self.head, options, |tx| tx.write(object, block * BLOCK, bytes)).await?;
        Ok(())
    }
}

impl File {
    async fn create(place: &Place, plan: Plan) -> Result<Self> {
        let disks = plan.disks();
        let size = ((plan.size.metaslabs / disks) << plan.size.shift) + RESERVED;
        let model = plan.device.params;
        let mut machine = Machine::at(place, model, disks as usize, (size, 9), plan.seed)?;
        if plan.size.is_scaled {
            machine = machine.with_special(COMMIT_DISK, (COMMIT_DISK_BYTES, 9));
        }
        let engine = machine.create_pool(Redundancy::Single, 9).await?;
        let is_compressed = plan.variant == Variant::Compressed;
        let compression = if is_compressed { COMPRESSION_LZ4 } else { COMPRESSION_OFF };
        let props = vec![("compression".to_owned(), Value::U64(compression))];
        let (head, object) = new_file(&engine, props, BLOCK).await?;
        engine.sync().await?;
        let (rng, bytes) = (Rng::seeded(plan.seed), vec![0; BLOCK as usize]);
        let writer = Writer { engine: Arc::clone(&engine), head, object, rng, bytes };
        Ok(Self { plan, machine, engine, writer })
    }

    /// Writes all blocks in order, and returns the commands of the devices.
    async fn fill(&mut self) -> Result<Vec<Recorded>> {
        self.machine.tap.start();
        for block in 0..self.plan.blocks().1 {
            self.writer.write(block).await?;
            if (block + 1) % (self.plan.size.txg_blocks * FILL_TXGS) == 0 {
                self.engine.sync().await?;
            }
        }
        self.engine.sync().await?;
        Ok(self.machine.tap.stop())
    }

    async fn overwrite(&mut self, outcome: &mut Outcome) -> Result<()> {
        let (txgs, per_txg) = (self.plan.txgs(), self.plan.size.txg_blocks);
        let begun = monotonic();
        let since = move || monotonic().saturating_sub(begun).as_secs_f64();
        let mut order = self.order(txgs * per_txg);
        let mut before = (0.0, self.written());
        let first: Vec<u64> = order.by_ref().take(per_txg as usize).collect();
        write_all(&mut self.writer, first).await?;
        for txg in 0..txgs {
            let next: Vec<u64> = order.by_ref().take(per_txg as usize).collect();
            let is_settled = txg + (txgs * SETTLED as u64 / SAMPLES) >= txgs;
            if is_settled && outcome.txg_ms.is_empty() {
                self.machine.tap.start();
            }
            let sync_begun = monotonic();
            let engine = Arc::clone(&self.engine);
            let sync = spawn(async move { engine.sync().await });
            // From here on, changes belong to the next txg.
            sleep(Duration::from_nanos(1)).await;
            let mut writer = self.writer.clone();
            let write = spawn(async move {
                write_all(&mut writer, next).await?;
                Ok::<_, cenote_rt::Error>(writer)
            });
            sync.await.expect(ENDS)?;
            let took = monotonic().saturating_sub(sync_begun);
            self.writer = write.await.expect(ENDS)?;
            if is_settled {
                outcome.txg_ms.push(took.as_secs_f64() * 1e3);
            }
            if (txg + 1) * SAMPLES / txgs > txg * SAMPLES / txgs {
                let now = (since(), self.written());
                let due = txg + 1 - txgs * outcome.samples.len() as u64 / SAMPLES;
                outcome.samples.push(sample(before, now, due * per_txg));
                before = now;
            }
            if (txg + 1) * FRAMES / txgs > txg * FRAMES / txgs {
                outcome.frames.push(self.frame(since()));
            }
        }
        outcome.sizes = sizes(&self.machine.tap.stop(), self.plan.disks());
        outcome.txg_ms.sort_by(f64::total_cmp);
        Ok(())
    }

    /// Returns the blocks to overwrite: random ones, or each of the file once in random order.
    fn order(&self, count: u64) -> Box<dyn Iterator<Item = u64> + Send> {
        let file = self.plan.blocks().1;
        let mut rng = Rng::seeded(self.plan.seed ^ 0x6f76_6572);
        if self.plan.variant == Variant::Once {
            let mut all: Vec<u64> = (0..file).collect();
            for index in (1..all.len()).rev() {
                all.swap(index, rng.below(index as u64 + 1) as usize);
            }
            return Box::new(all.into_iter());
        }
        Box::new((0..count).map(move |_| rng.below(file)))
    }

    /// Number and bytes of the devices' writes so far.
    fn written(&self) -> (u64, u64) {
        self.machine.written(self.plan.disks() as usize)
    }

    fn frame(&self, at: f64) -> Frame {
        let space = self.engine.allocator();
        let mut frame = Frame { at, ..Frame::default() };
        for vdev in 0..self.plan.disks() {
            for metaslab in space.metaslab_figures(vdev) {
                let free = (metaslab.size - metaslab.allocated) as f64 / metaslab.size as f64;
                frame.free.push(free * 100.0);
                frame.fragmentation.push(metaslab.fragmentation.unwrap_or_default() as f64);
            }
        }
        frame
    }

    /// Returns the mean milliseconds of txgs with a single overwrite.
    async fn least_txg_ms(&mut self) -> Result<f64> {
        let begun = monotonic();
        for block in 0..LEAST_TXGS {
            self.writer.write(block).await?;
            self.engine.sync().await?;
        }
        Ok(monotonic().saturating_sub(begun).as_secs_f64() * 1e3 / LEAST_TXGS as f64)
    }
}

/// Why a task has a result.
const ENDS: &str = "tasks end with their world";

async fn write_all(writer: &mut Writer, blocks: Vec<u64>) -> Result<()> {
    for block in blocks {
        writer.write(block).await?;
    }
    Ok(())
}

fn sample(before: (f64, (u64, u64)), now: (f64, (u64, u64)), overwrites: u64) -> Sample {
    let (writes, bytes) = (now.1.0 - before.1.0, now.1.1 - before.1.1);
    Sample {
        at: now.0,
        rate: overwrites as f64 / (now.0 - before.0),
        write_kib: bytes as f64 / 1024.0 / writes.max(1) as f64,
        amplification: bytes as f64 / (overwrites * BLOCK).max(1) as f64,
    }
}

/// Returns the writes to the first `disks` disks.
fn writes(log: &[Recorded], disks: u64) -> impl Iterator<Item = &Recorded> {
    log.iter().filter(move |command| command.op == Op::Write && command.device < disks)
}

fn sizes(log: &[Recorded], disks: u64) -> [u64; 32] {
    let mut sizes = [0; 32];
    for write in writes(log, disks) {
        sizes[(write.len.ilog2() as usize).min(31)] += 1;
    }
    sizes
}
