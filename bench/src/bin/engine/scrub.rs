//! Scrubs of pools, to their end.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cenote_device::{Device, SimulatedDisk, pattern};
use cenote_engine::{ApplyOptions, Engine, ScrubOptions};
use cenote_ondisk::scan::ScanFunc;
use cenote_rt::{BufMut, Error, Kind, Result};
use cenote_vdev::create::Redundancy;

use crate::args::Args;
use crate::pool::{self, CHECKSUM_ON, COMPRESSION_OFF};
use crate::usage::{self, Clock};

/// Bytes of a record on the simulated disk.
const RECORD: u64 = 128 << 10;
/// Time in which freed memory goes back to the system.
const REST: Duration = Duration::from_secs(15);

/// Opens the pool "tank" of a folder, and scrubs it.
pub(crate) async fn run(args: &Args<'_>) -> Result<()> {
    let engine = pool::open(Path::new(args.word(0)?)).await?;
    scrub(&engine).await?;
    println!("memory: {} MiB at most", usage::memory_mib("VmHWM"));
    engine.export().await
}

async fn scrub(engine: &Engine) -> Result<()> {
    let clock = Clock::start();
    engine.scans().scrub(ScrubOptions::default()).await?;
    engine.scans().wait(ScanFunc::Scrub).await?;
    clock.tell("scrub", "MB/s", engine.scans().pass().issued as f64 / 1e6);
    Ok(())
}

/// Fills a simulated disk, and scrubs it: how much memory that needs.
pub(crate) async fn simulated(args: &Args<'_>) -> Result<()> {
    let bytes = args.number::<u64>(0)? << 30;
    let disk = Arc::new(SimulatedDisk::new("disk", bytes + bytes / 16 + (1 << 30)));
    let device: Arc<dyn Device> = Arc::<SimulatedDisk>::clone(&disk);
    let engine = pool::create(Redundancy::Single, vec![device]).await?;
    let head = pool::dataset(&engine, "tank/fs", COMPRESSION_OFF, CHECKSUM_ON).await?;
    let object = pool::object(&engine, &head, RECORD).await?;
    let clock = Clock::start();
    // One run of the pattern, of which the disk keeps only the begin where records are neighbours.
    let mut seed = 1;
    for number in 0..bytes / RECORD {
        let mut block = BufMut::for_filling(RECORD as usize);
        seed = pattern::fill(seed, &mut block);
        let block = block.freeze();
        engine
            .apply(&head, ApplyOptions::new(), |tx| tx.write_block(object, number, block.clone()))
            .await?;
    }
    engine.sync().await?;
    clock.tell("write", "MB/s", bytes as f64 / 1e6);
    engine.store().clear_cache();
    cenote_rt::sleep(REST).await;
    usage::forget_peak().map_err(|error| Error::new(Kind::Io, error))?;
    println!(
        "before: {} MiB resident, {} extents of the disk",
        usage::memory_mib("VmRSS"),
        disk.used().extents
    );
    scrub(&engine).await?;
    println!("memory: {} MiB at most in the scrub", usage::memory_mib("VmHWM"));
    engine.export().await
}
