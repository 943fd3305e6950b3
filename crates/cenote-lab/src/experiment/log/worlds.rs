//! Worlds of the experiment: a volume with synchronous writers.

use std::sync::Arc;

use cenote_device::model::table::SSD_SATA_2012;
use cenote_device::model::{Command, Op, Params};
use cenote_device::pattern;
use cenote_fs::NewVolume;
use cenote_ondisk::zap::Value;
use cenote_rt::{Buf, Result, Rng, World, monotonic, simulate, spawn};
use cenote_vdev::create::{Redundancy, VdevClass};

use crate::machine::{Machine, Recorded, world};
use crate::policy::Policy;

pub(super) const BLOCK: u64 = 8 << 10;
/// Blocks of the volume.
const BLOCKS: u64 = 8_192;
const DISK_BYTES: u64 = 16 << 30;
const PROCESSORS: usize = 4;
const COMPRESSION_OFF: u64 = 2;
const ENDS: &str = "tasks end with their world";

/// A world.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub policy: &'static Policy,
    /// The log device; without one the log is on the disk.
    pub name: &'static str,
    pub log: Option<Params>,
    pub writers: u64,
    /// Writes of all writers.
    pub writes: u64,
    pub seed: u64,
}

/// Figures of a world.
#[derive(Debug, Clone, Default)]
pub(super) struct Outcome {
    pub seconds: f64,
    /// Milliseconds of each write, sorted.
    pub times: Vec<f64>,
    /// Writes and flushes of the device that has the log.
    pub log_writes: u64,
    pub flushes: u64,
    pub log_bytes: u64,
    /// Mean milliseconds of the same commands, one after the other, on an idle device.
    pub device_ms: f64,
    pub hash: u128,
}

impl Outcome {
    pub(super) fn percentile(&self, percent: usize) -> f64 {
        self.times.get(self.times.len() * percent / 100).copied().unwrap_or_default()
    }

    pub(super) fn mean(&self) -> f64 {
        self.times.iter().sum::<f64>() / self.times.len().max(1) as f64
    }

    pub(super) fn rate(&self) -> f64 {
        self.times.len() as f64 / self.seconds.max(1e-9)
    }
}

/// Runs a world.
pub(super) fn run(plan: &Plan) -> Result<Outcome> {
    let world = world(plan.seed, PROCESSORS, plan.policy.with(&[]));
    simulate(World { costs: None, ..world }, work(*plan))?
}

async fn work(plan: Plan) -> Result<Outcome> {
    let disk = Params::Flash(SSD_SATA_2012);
    let mut machine = Machine::new(disk, 1, (DISK_BYTES, 9), plan.seed);
    if let Some(log) = plan.log {
        machine = machine.with(VdevClass::Log, log, (DISK_BYTES, 9));
    }
    let engine = machine.create_pool(Redundancy::Single, 9).await?;
    let new = NewVolume::new("tank/v", BLOCKS * BLOCK).with_block_size(BLOCK);
    let volume = new.with("compression", Value::U64(COMPRESSION_OFF)).create(&engine).await?;
    engine.sync().await?;
    // The first write makes the log.
    volume.write(0, vec![Buf::from(vec![1; BLOCK as usize])], true).await?;
    engine.sync().await?;

    machine.tap.start();
    let begun = monotonic();
    let tasks: Vec<_> = (0..plan.writers)
        .map(|writer| {
            let (volume, mut rng) = (Arc::clone(&volume), Rng::seeded(plan.seed ^ (writer + 1)));
            spawn(async move {
                let mut times = Vec::new();
                let mut bytes = vec![0; BLOCK as usize];
                for _ in 0..plan.writes / plan.writers {
                    pattern::fill(rng.next_u64() | 1, &mut bytes);
                    let place = rng.below(BLOCKS) * BLOCK;
                    let sent = monotonic();
                    volume.write(place, vec![Buf::from(bytes.clone())], true).await?;
                    times.push(monotonic().saturating_sub(sent).as_secs_f64() * 1e3);
                }
                Ok::<_, cenote_rt::Error>(times)
            })
        })
        .collect();
    let mut outcome = Outcome::default();
    for task in tasks {
        outcome.times.extend(task.await.expect(ENDS)?);
    }
    outcome.seconds = monotonic().saturating_sub(begun).as_secs_f64();
    outcome.times.sort_by(f64::total_cmp);
    let device = machine.disks.len() as u64 - 1;
    let log = machine.tap.stop();
    let own: Vec<Recorded> = log.into_iter().filter(|one| one.device == device).collect();
    let writes = || own.iter().filter(|one| one.op == Op::Write);
    outcome.log_writes = writes().count() as u64;
    outcome.log_bytes = writes().map(|one| one.len).sum();
    outcome.flushes = own.iter().filter(|one| one.op == Op::Flush).count() as u64;
    outcome.device_ms = alone_ms(plan.log.unwrap_or(disk), plan.seed, &own, outcome.log_writes);
    outcome.hash = machine.hash();
    drop(volume);
    engine.export().await?;
    Ok(outcome)
}

/// Returns the mean milliseconds of a write with its flush, of commands that are sent to an idle
/// device in their order, each after the end of the one before.
fn alone_ms(params: Params, seed: u64, commands: &[Recorded], writes: u64) -> f64 {
    let mut model = params.build(DISK_BYTES, seed);
    let (mut now, mut done) = (0, Vec::new());
    for (id, command) in (0..).zip(commands) {
        let (op, offset, len) = (command.op, command.offset, command.len);
        model.admit(now, Command { id, op, offset, len });
        while done.is_empty() {
            now = model.next_event().expect("a command is in progress");
            model.advance(now, &mut done);
        }
        done.clear();
    }
    now as f64 / 1e6 / writes.max(1) as f64
}
