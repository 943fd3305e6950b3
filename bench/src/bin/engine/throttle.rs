//! Scrubs of a pool in files with each throttle of scans, beside random reads of others.
//!
//! Each reader reads 8 KiB at a random place of the first file's data, and then the next ones, as
//! soon as it has them. Without readers the rate of sequential reads is told, too. To be run with
//! `-o cenote_direct_io=1`, so that the files are read from the disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_engine::{Engine, ScrubOptions, ThrottleModel};
use cenote_ondisk::scan::ScanFunc;
use cenote_rt::{Error, Kind, Result, Rng, monotonic, sleep, spawn, tunables};
use cenote_vdev::queue::Queue;
use cenote_vdev::{DATA_START, IoClass};

use crate::args::Args;
use crate::usage::Times;
use crate::{pool, random};

/// Bytes of a read.
const READ: u64 = 8192;
/// Time before the one that is measured.
const SETTLE: Duration = Duration::from_secs(3);
/// Time of each scrub that is not measured: its begin is recorded in the pool, which is ordinary
/// I/O, and a share takes a leaf for idle two seconds after that at the latest.
const BEGIN: Duration = Duration::from_millis(2500);
/// Bytes of a sequential read.
const LONG: u64 = 1 << 20;
/// Time after which it is asked again whether a scrub has ended.
const LOOK: Duration = Duration::from_millis(5);

/// Opens the pool "tank" of a folder, and prints a row for each throttle.
pub(crate) async fn run(args: &Args<'_>) -> Result<()> {
    let dir = Path::new(args.word(0)?);
    let engine = pool::open(dir).await?;
    let places = random::written(&dir.join("d0"));
    let mut places = places.map_err(|error| Error::new(Kind::Io, error))?;
    // Reads of labels are not ordinary I/O.
    places.retain(|place| *place >= DATA_START);
    let pool = (&engine, &Arc::new(places));
    let time = Duration::from_secs(args.number(1)?);
    let readers: u64 = args.number(2)?;
    println!("readers  throttle     scrub MB/s  reads/s  ms: p50    p99");
    if readers == 0 {
        println!("{readers:7}  sequential   {:10.1}", sequential(pool, time).await?);
    } else {
        measure(pool, ("no scrub", None), readers, time).await?;
    }
    for (name, model) in [
        ("OpenZFS", ThrottleModel::OpenZfs),
        ("delay 4", ThrottleModel::Delays),
        ("share", ThrottleModel::Share),
    ] {
        measure(pool, (name, Some(model)), readers, time).await?;
    }
    engine.export().await
}

/// Returns MB/s of reading the data from its begin to its end, for some time at most.
async fn sequential(
    (engine, places): (&Arc<Engine>, &Arc<Vec<u64>>),
    time: Duration,
) -> Result<f64> {
    let leaf = queue(engine)?;
    let mut places: Vec<u64> = places.iter().map(|place| place / LONG * LONG).collect();
    places.dedup();
    let (begun, mut bytes) = (monotonic(), 0);
    for several in places.chunks(4) {
        let reads = several.iter().map(|at| leaf.read(*at, LONG as usize, IoClass::SyncRead));
        for read in reads.collect::<Vec<_>>() {
            read.await?;
        }
        bytes += several.len() as u64 * LONG;
        if monotonic() > begun + time {
            break;
        }
    }
    Ok(bytes as f64 / 1e6 / monotonic().saturating_sub(begun).as_secs_f64())
}

/// The queue of the first device.
fn queue(engine: &Engine) -> Result<Queue> {
    let leaf = engine.tree().leaves().next().and_then(|(_, leaf)| leaf.queue());
    leaf.ok_or_else(|| Error::new(Kind::NotFound, "no device".to_owned()))
}

/// Prints the row of a throttle, or of the readers alone.
async fn measure(
    (engine, places): (&Arc<Engine>, &Arc<Vec<u64>>),
    (name, model): (&str, Option<ThrottleModel>),
    readers: u64,
    time: Duration,
) -> Result<()> {
    if let Some(model) = model {
        random::set(&tunables::SCAN_THROTTLE, model as u64)?;
    }
    let from = monotonic() + SETTLE;
    let is_over = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = (0..readers)
        .map(|seed| {
            let (engine, places) = (Arc::clone(engine), Arc::clone(places));
            spawn(read(engine, places, seed, from, Arc::clone(&is_over)))
        })
        .collect();
    let scans = engine.scans();
    let (mut scrubbed, mut scrub_time) = (0, Duration::ZERO);
    // When the present scrub was settled, and what it had read by then.
    let mut settled: Option<(Duration, u64)> = None;
    let mut begun = Duration::ZERO;
    while monotonic() < from + time {
        if model.is_some() && !scans.is_running(ScanFunc::Scrub) {
            settled = None;
            engine.store().clear_cache();
            scans.scrub(ScrubOptions::default()).await?;
            begun = monotonic();
        }
        sleep(LOOK).await;
        let (now, issued) = (monotonic(), scans.pass().issued);
        if now < from.max(begun + BEGIN) {
            continue;
        }
        if let Some((at, before)) = settled.replace((now, issued)) {
            scrubbed += issued.saturating_sub(before);
            scrub_time += now.saturating_sub(at);
        }
    }
    let scrub = scrubbed as f64 / 1e6 / scrub_time.as_secs_f64().max(f64::MIN_POSITIVE);
    let seconds = monotonic().saturating_sub(from).as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for task in tasks {
        times.extend(task.await.map_err(|error| Error::new(Kind::Io, error))??);
    }
    if scans.is_running(ScanFunc::Scrub) {
        scans.stop().await?;
    }
    let times = Times::new(times);
    let (rate, p50, p99) =
        (times.len() as f64 / seconds, times.per_mille(500), times.per_mille(990));
    println!("{readers:7}  {name:<11}  {scrub:10.1}  {rate:7.0}  {p50:7.2} {p99:7.2}");
    Ok(())
}

/// Reads until it is over. Returns how long the reads took that began from `from` on.
async fn read(
    engine: Arc<Engine>,
    places: Arc<Vec<u64>>,
    seed: u64,
    from: Duration,
    is_over: Arc<AtomicBool>,
) -> Result<Vec<Duration>> {
    let mut rng = Rng::seeded(seed);
    let mut times = Vec::new();
    let leaf = queue(&engine)?;
    while !is_over.load(Ordering::Relaxed) {
        let at = places[rng.below(places.len() as u64) as usize];
        let begun = monotonic();
        leaf.read(at, READ as usize, IoClass::SyncRead).await?;
        if begun >= from {
            times.push(monotonic().saturating_sub(begun));
        }
    }
    Ok(times)
}
