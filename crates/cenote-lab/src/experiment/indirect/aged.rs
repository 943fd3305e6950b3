//! Worlds of the second part: a file that fills four fifths of the disks, and is overwritten at
//! random, scrubbed, sent, removed, and destroyed with its dataset.
//!
//! ```text
//!   fill ──> overwrite ──> scrub ──┬──> snapshot, send
//!                                  ├──> rm
//!                                  └──> destroy        each from the same disks
//! ```
//!
//! The pool is smaller than the report's by `Plan::parts`. Positions on a disk are stretched by as
//! much, and the cache and the overwrites of a txg are as much smaller. The metadata of the pool,
//! but not of the file, are on a disk that takes as good as no time, and work takes no time of
//! processors: a commit costs the same beside few overwrites as beside many, and would be most of
//! the time of a small txg.

use std::sync::Arc;
use std::time::Duration;

use cenote_device::model::table::HDD_10K_SAS;
use cenote_device::model::{Op, Params, RotatingParams};
use cenote_engine::{ApplyOptions, Engine, Head, ScrubOptions};
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::scan::ScanFunc;
use cenote_ondisk::stream::Record;
use cenote_ondisk::zap::Value;
use cenote_pool::OpenOptions;
use cenote_pool::import::scan_devices;
use cenote_rt::tunables::{self, Tunable};
use cenote_rt::{Result, monotonic, simulate, sleep, spawn};
use cenote_stream::send::{Payload, RecordSink, SendOptions, SendPlan};
use cenote_vdev::create::Redundancy;

use super::worlds::{
    Blocks, COMPRESSION_OFF, DISKS, ENDS, EXPORTED, LEVELS, PROCESSORS, RECORD, Sum, open,
};
use crate::machine::{
    COMMIT_DISK, Machine, RecordWriter, Recorded, SmallPool, block_range, new_file_in, world,
};
use crate::policy::Policy;

/// Blocks of the report's file, of 240 GB.
const REPORT_RECORDS: u64 = 30_000_000;
/// Bytes of each of the report's disks.
const REPORT_DISK_BYTES: u64 = 100_000_000_000;
/// Memory that the report's machine had for indirect blocks, fitted to its rate.
const REPORT_CACHE_BYTES: u64 = (16 << 30) / 10;
/// Overwrites of the report's txg: 1 100 a second for 5 s.
const REPORT_TXG: u64 = 5_500;
/// Part of the disks that the file fills, in percent.
const FULL_PERCENT: u64 = 80;
const WRITERS: u64 = 4;
/// Records that are written in a txg while the file is filled.
const FILL_TXG: u64 = 4_096;
/// Bytes of the disk for the metadata of the pool.
const POOL_DISK_BYTES: u64 = 256 << 20;
/// Txgs with a single overwrite whose mean is the cost of a commit.
const LEAST_TXGS: u64 = 8;

/// A world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub policy: &'static Policy,
    /// The file has one of this many parts of the report's records.
    pub parts: u64,
    /// Txgs of overwrites.
    pub txgs: u64,
    pub seed: u64,
}

impl Plan {
    pub(super) fn records(&self) -> u64 {
        REPORT_RECORDS / self.parts
    }

    /// Overwrites of a txg, a multiple of the writers.
    pub(super) fn txg_blocks(&self) -> u64 {
        (REPORT_TXG / self.parts / WRITERS).max(1) * WRITERS
    }

    /// Bytes of the cache.
    pub(super) fn cache(&self) -> u64 {
        (REPORT_CACHE_BYTES / self.parts).max(1 << 20)
    }

    fn disk_bytes(&self) -> u64 {
        SmallPool::disk_bytes(self.records() * RECORD * 100 / FULL_PERCENT / DISKS as u64)
    }

    fn tunables(&self) -> Vec<(&'static Tunable, u64)> {
        let cache = (&tunables::BLOCK_CACHE_BYTES, self.cache());
        let all: Vec<_> = SmallPool::tunables().into_iter().chain([cache]).collect();
        self.policy.with(&all)
    }
}

/// An operation on the whole file, from a cold cache.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Task {
    pub seconds: f64,
    /// Commands of the three disks.
    pub reads: u64,
}

/// Figures of the overwrites.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Overwrites {
    pub count: u64,
    pub seconds: f64,
    /// Reads of the disks: indirect blocks only, as whole records are overwritten.
    pub reads: u64,
    /// Writes of the file's blocks, without labels, and their bytes.
    pub writes: u64,
    pub written: u64,
    /// Part of the time in which a disk worked, in percent: the mean of all disks.
    pub busy: f64,
    /// Milliseconds of a txg with a single overwrite, whose indirect blocks are cached.
    pub least_txg_ms: f64,
}

impl Overwrites {
    pub(super) fn rate(&self) -> f64 {
        self.count as f64 / self.seconds.max(1e-9)
    }

    /// Overwrites a second if txgs were as large as the report's: a commit costs as much beside a
    /// large txg as beside a small one.
    pub(super) fn scaled_rate(&self, plan: &Plan) -> f64 {
        let commit = (self.least_txg_ms / 1e3).min(self.seconds / plan.txgs as f64);
        let commits = self.count as f64 / REPORT_TXG as f64;
        let seconds = self.seconds - commit * (plan.txgs as f64 - commits).max(0.0);
        self.count as f64 / seconds.max(1e-9)
    }

    /// A figure for each overwrite.
    pub(super) fn each(&self, figure: u64) -> f64 {
        figure as f64 / self.count.max(1) as f64
    }
}

/// Results of a world.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Outcome {
    /// Blocks of the file by level after the overwrites; bytes of one copy.
    pub tree: [Sum; LEVELS],
    pub overwrites: Overwrites,
    pub fragmentation: u64,
    pub scrub: Task,
    pub remove: Task,
    pub destroy: Task,
    pub send: Task,
    pub hash: u128,
}

/// Runs a world.
pub(super) fn run(plan: &Plan) -> Result<Outcome> {
    let world = world(plan.seed, PROCESSORS, plan.tunables());
    simulate(cenote_rt::World { costs: None, ..world }, work(*plan))?
}

async fn work(plan: Plan) -> Result<Outcome> {
    let size = plan.disk_bytes();
    let params = RotatingParams { stretch: REPORT_DISK_BYTES / size, ..HDD_10K_SAS };
    let machine = Machine::new(Params::Rotating(params), DISKS, (size, 9), plan.seed);
    let machine = machine.with_special(COMMIT_DISK, (POOL_DISK_BYTES, 9));
    let mut file = File::fill(&machine, plan).await?;
    let mut outcome = Outcome { overwrites: file.overwrite().await?, ..Outcome::default() };
    outcome.fragmentation = file.engine.allocator().fragmentation().unwrap_or_default();
    file.engine.export().await?;
    let object = file.object;
    drop(file);

    let pool = open(&machine).await?;
    outcome.tree = Blocks::of(&pool, object).await?.tree;
    drop(pool);
    // A cache that is smaller than what is read ahead is not the subject here.
    let cache = &tunables::BLOCK_CACHE_BYTES;
    cache.set(cache.default).expect("in range");
    outcome.scrub = timed(&machine, async |engine| {
        engine.scans().scrub(ScrubOptions::default()).await?;
        engine.scans().wait(ScanFunc::Scrub).await
    })
    .await?;
    let before: Vec<_> = machine.disks.iter().map(|disk| disk.snapshot()).collect();
    let restore = || {
        for (disk, before) in machine.disks.iter().zip(&before) {
            disk.restore(before);
        }
    };
    let snapshot = vec!["tank/a@sent".to_owned()];
    timed(&machine, async |engine| engine.snapshots().create(snapshot).await).await?;
    outcome.send = timed(&machine, send).await?;
    restore();
    outcome.remove = timed(&machine, async |engine| {
        let head = engine.head("tank/a").await?;
        engine.apply(&head, ApplyOptions::new(), |tx| tx.free(object)).await?;
        free_all(engine).await
    })
    .await?;
    restore();
    outcome.destroy = timed(&machine, async |engine| {
        engine.datasets().destroy("tank/a").await?;
        free_all(engine).await
    })
    .await?;
    outcome.hash = machine.hash();
    Ok(outcome)
}

/// Sends the snapshot whole; the stream goes nowhere.
async fn send(engine: &Arc<Engine>) -> Result<()> {
    struct Nowhere;
    impl RecordSink for Nowhere {
        async fn put(&mut self, _: &Record, _: Payload) -> Result<()> {
            Ok(())
        }
    }
    let dataset = engine.view().await?.dataset("tank/a@sent").await?;
    let plan = SendPlan::new(&dataset, None, None, &SendOptions::default(), None).await?;
    plan.run(&plan.open(&dataset).await?, &mut Nowhere).await
}

/// Syncs until everything that was removed is free.
async fn free_all(engine: &Arc<Engine>) -> Result<()> {
    engine.sync().await?;
    while engine.space().has_pending_frees().await? {
        engine.sync().await?;
    }
    Ok(())
}

/// Opens the pool, and takes the time of an operation.
async fn timed(
    machine: &Machine,
    operation: impl AsyncFnOnce(&Arc<Engine>) -> Result<()>,
) -> Result<Task> {
    let (devices, options) = (machine.devices(), OpenOptions::default());
    let scan = scan_devices(devices.clone()).await;
    let guid = scan.find("tank").expect(EXPORTED).guid();
    let engine = Engine::open_devices(devices, guid, &options).await?;
    let (begun, before) = (monotonic(), reads(machine));
    operation(&engine).await?;
    let seconds = monotonic().saturating_sub(begun).as_secs_f64();
    let reads = reads(machine) - before;
    engine.export().await?;
    Ok(Task { seconds, reads })
}

/// Reads of the disks for the file so far.
fn reads(machine: &Machine) -> u64 {
    machine.disks.iter().take(DISKS).map(|disk| disk.stats().of(Op::Read).commands).sum()
}

/// Time in which they worked.
fn busy_ns(machine: &Machine) -> u64 {
    machine.disks.iter().take(DISKS).map(|disk| disk.stats().model.busy_ns).sum()
}

struct File<'m> {
    machine: &'m Machine,
    plan: Plan,
    engine: Arc<Engine>,
    head: Arc<Head>,
    object: u64,
}

impl<'m> File<'m> {
    /// Creates the pool, and writes the file: other bytes in each record, so that checksums differ.
    async fn fill(machine: &'m Machine, plan: Plan) -> Result<Self> {
        let engine = machine.create_pool(Redundancy::Single, 9).await?;
        let props = vec![("compression".to_owned(), Value::U64(COMPRESSION_OFF))];
        let (head, object) = new_file_in(&engine, ObjSetType::Zvol, props, RECORD).await?;
        let file = Self { machine, plan, engine, head, object };
        file.writer(0).fill(plan.records(), FILL_TXG).await?;
        Ok(file)
    }

    fn writer(&self, number: u64) -> RecordWriter {
        let seed = self.plan.seed ^ (0x7772_6974 + number);
        RecordWriter::new(&self.engine, (&self.head, self.object), RECORD, seed)
    }

    /// Overwrites records at random: writers write those of the next txg while one is synced.
    async fn overwrite(&mut self) -> Result<Overwrites> {
        let Plan { txgs, .. } = self.plan;
        let (records, each) = (self.plan.records(), self.plan.txg_blocks() / WRITERS);
        let mut writers: Vec<_> = (1..=WRITERS).map(|number| self.writer(number)).collect();
        let (begun, busy) = (monotonic(), busy_ns(self.machine));
        self.machine.tap.start();
        for _ in 0..txgs {
            let engine = Arc::clone(&self.engine);
            let sync = spawn(async move { engine.sync().await });
            // From here on, changes belong to the next txg.
            sleep(Duration::from_nanos(1)).await;
            let tasks: Vec<_> = writers
                .into_iter()
                .map(|mut writer| {
                    spawn(async move {
                        for _ in 0..each {
                            let record = writer.rng.below(records);
                            writer.write(record).await?;
                        }
                        Ok::<_, cenote_rt::Error>(writer)
                    })
                })
                .collect();
            sync.await.expect(ENDS)?;
            writers = Vec::new();
            for task in tasks {
                writers.push(task.await.expect(ENDS)?);
            }
        }
        self.engine.sync().await?;
        let seconds = monotonic().saturating_sub(begun).as_secs_f64();
        let busy_s = (busy_ns(self.machine) - busy) as f64 / 1e9 / DISKS as f64;
        let log = self.machine.tap.stop();
        let blocks = block_range(self.plan.disk_bytes());
        let of = |op: Op| {
            let is_own = move |command: &&Recorded| command.op == op;
            let own = log.iter().filter(|command| command.device < DISKS as u64).filter(is_own);
            own.filter(|command| blocks.contains(&command.offset)).map(|command| command.len)
        };
        Ok(Overwrites {
            count: txgs * each * WRITERS,
            seconds,
            reads: of(Op::Read).count() as u64,
            writes: of(Op::Write).count() as u64,
            written: of(Op::Write).sum(),
            busy: busy_s / seconds * 100.0,
            least_txg_ms: self.least_txg_ms().await?,
        })
    }

    /// Returns the mean milliseconds of txgs with one overwrite, of the same record.
    async fn least_txg_ms(&self) -> Result<f64> {
        let mut writer = self.writer(WRITERS + 1);
        // Reads its indirect blocks.
        writer.write(0).await?;
        self.engine.sync().await?;
        let begun = monotonic();
        for _ in 0..LEAST_TXGS {
            writer.write(0).await?;
            self.engine.sync().await?;
        }
        Ok(monotonic().saturating_sub(begun).as_secs_f64() * 1e3 / LEAST_TXGS as f64)
    }
}
