//! Speed of modelled disks: simulated commands per second of one core.
//!
//!     cargo run --release -p cenote-bench --bin devices [-- DEVICE]
//!
//! Each row is a device and a load of 32 commands in flight. "Model" is the state machine alone,
//! "disk" a whole `ModelDisk` with contents, a task per command in flight, and virtual time. The
//! last column is the load's rate in virtual time. Processor time is measured, so that other work
//! on the machine disturbs little.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_device::model::{Command, Op, table};
use cenote_device::{Device, ModelDisk, pattern};
use cenote_rt::{Buf, BufMut, Error, Kind, Result, Rng};

#[global_allocator]
static ALLOCATOR: cenote_allocator::Allocator = cenote_allocator::Allocator;

/// Commands in flight.
const DEPTH: u64 = 32;
/// Commands of a row.
const COUNT: u64 = 300_000;
/// Bytes of a device.
const SIZE: u64 = 100 << 30;
/// Bytes of a command.
const LEN: u64 = 8192;
/// Writes between two flushes.
const WRITES_PER_FLUSH: u64 = 1000;

/// Returns the result, and the processor time that this thread needed for it.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let used = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
    };
    let before = used();
    let result = work();
    (result, used().saturating_sub(before))
}

fn main() -> Result<()> {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    println!(
        "{:<16} {:<18}{:>12}{:>14}{:>14}",
        "device", "load", "model ns", "disk 1/s", "virtual 1/s"
    );
    for (name, _) in table::DEVICES.iter().filter(|(name, _)| name.contains(&wanted)) {
        for (load, op) in [("random reads", Op::Read), ("random writes", Op::Write)] {
            let (virtual_rate, took) = model(name, op)?;
            let per_command = took.as_nanos() as f64 / COUNT as f64;
            let (done, took) = timed(|| disk(name, op));
            done?;
            let rate = COUNT as f64 / took.as_secs_f64();
            println!("{name:<16} {load:<18}{per_command:>12.0}{rate:>14.0}{virtual_rate:>14.0}");
        }
    }
    Ok(())
}

fn unknown(name: &str) -> Error {
    Error::new(Kind::NotFound, format!("no device {name}"))
}

/// Drives the model alone. Returns commands per virtual second, and the real time.
fn model(name: &str, op: Op) -> Result<(f64, Duration)> {
    let mut model = table::find(name).ok_or_else(|| unknown(name))?.build(SIZE, 1);
    let mut rng = Rng::seeded(1);
    let mut next = 0;
    let mut command = || {
        next += 1;
        Command { id: next, op, offset: rng.below(SIZE / LEN) * LEN, len: LEN }
    };
    for _ in 0..DEPTH {
        model.admit(0, command());
    }
    let mut done = Vec::new();
    let (now_ns, took) = timed(|| {
        let (mut now_ns, mut completed) = (0, 0);
        while completed < COUNT {
            let Some(at_ns) = model.next_event() else { break };
            now_ns = at_ns;
            model.advance(now_ns, &mut done);
            for _ in done.drain(..) {
                completed += 1;
                model.admit(now_ns, command());
            }
        }
        now_ns
    });
    Ok((COUNT as f64 / now_ns as f64 * 1e9, took))
}

/// Drives a whole disk in a simulation.
fn disk(name: &str, op: Op) -> Result<()> {
    let model = table::find(name).ok_or_else(|| unknown(name))?.build(SIZE, 1);
    let disk = ModelDisk::new(name, SIZE, model);
    let left = Arc::new(AtomicU64::new(COUNT));
    cenote_rt::simulate(1, async move {
        let tasks: Vec<_> = (0..DEPTH)
            .map(|seed| cenote_rt::spawn(load(Arc::clone(&disk), op, Arc::clone(&left), seed)))
            .collect();
        for task in tasks {
            task.await.map_err(|error| Error::new(Kind::Io, error))??;
        }
        Ok(())
    })?
}

/// One command after the other, as long as some are left.
async fn load(disk: Arc<ModelDisk>, op: Op, left: Arc<AtomicU64>, seed: u64) -> Result<()> {
    let mut rng = Rng::seeded(seed);
    let mut buf = BufMut::zeroed(LEN as usize);
    let mut data = vec![0; LEN as usize];
    pattern::fill(seed + 1, &mut data);
    let data = Buf::from(data);
    loop {
        let before = left.load(Ordering::Relaxed);
        if before == 0 {
            return Ok(());
        }
        left.store(before - 1, Ordering::Relaxed);
        let offset = rng.below(SIZE / LEN) * LEN;
        match op {
            Op::Read => buf = disk.read(offset, buf).await?,
            _ => disk.write(offset, vec![data.clone()]).await?,
        }
        if op == Op::Write && before.is_multiple_of(WRITES_PER_FLUSH) {
            disk.flush().await?;
        }
    }
}
