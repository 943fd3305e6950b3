//! Pools larger than the machine.

use std::sync::Arc;

use cenote_block::alloc::Request;
use cenote_device::{Device, SimulatedDisk, pattern};
use cenote_engine::{ApplyOptions, Engine};
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_rt::{Buf, BufMut, Error, Kind, Result, Rng};

use crate::args::Args;
use crate::pool::{self, CHECKSUM_ON, COMPRESSION_OFF};
use crate::usage::{self, since};

/// Bytes of each free segment.
const HOLE: u64 = 8 << 10;
/// The longest block.
const LONGEST: u64 = 16 << 20;
/// Allocations of a txg.
const ROUND: u64 = 50_000;
const RECORD: u64 = 128 << 10;

/// Creates a pool in a sparse file, full except for segments of 8K that are evenly distributed.
/// Space is only allocated, for blocks that are not written: opening a pool does not read them.
pub(crate) async fn scatter(args: &Args<'_>) -> Result<()> {
    let (dir, size) = (args.word(0)?, args.number::<u64>(1)? << 40);
    let segments: u64 = args.number(2)?;
    let (redundancy, devices) = pool::files(dir, "d", size)?;
    let engine = pool::create_alone(redundancy, devices).await?;
    let between = (size / 100 * 96 / segments).min(LONGEST + HOLE) / 4096 * 4096 - HOLE;
    let space = engine.allocator();
    let mut holes = Vec::new();
    for number in 0..segments {
        let txg = engine.open_txg();
        holes.extend(space.allocate(&Request::data(HOLE, txg)).await?);
        space.allocate(&Request::data(between, txg)).await?;
        if number % ROUND == ROUND - 1 {
            engine.sync().await?;
        }
    }
    engine.sync().await?;
    let made = holes.len();
    // In random order, like files being removed.
    let mut rng = Rng::seeded(1);
    while !holes.is_empty() {
        let txg = engine.open_txg();
        for _ in 0..ROUND.min(holes.len() as u64) {
            let hole = holes.swap_remove(rng.below(holes.len() as u64) as usize);
            space.free(&hole, txg)?;
        }
        engine.sync().await?;
    }
    let figures = space.vdev_figures();
    let allocated: u64 = figures.iter().map(|vdev| vdev.space.allocated).sum();
    println!("made: {made} free segments, {allocated} bytes allocated");
    engine.export().await
}

/// Opens that pool for writing, and makes the first commit.
pub(crate) async fn import(args: &Args<'_>) -> Result<()> {
    let start = cenote_rt::monotonic();
    let options = ScanOptions { paths: vec![args.word(0)?.into()] };
    let scan = scan(&options).await?;
    let candidate = scan.find("tank").map_err(|error| Error::new(Kind::NotFound, error))?;
    let engine = Engine::open(candidate, &OpenOptions::default()).await?;
    let opened = since(start).as_secs_f64();
    engine.sync().await?;
    let committed = since(start).as_secs_f64();
    let resident = usage::memory_mib("VmRSS");
    println!("import: opened after {opened:.2} s, committed after {committed:.2} s");
    let head = pool::dataset(&engine, "tank/fs", COMPRESSION_OFF, CHECKSUM_ON).await?;
    let object = pool::object(&engine, &head, RECORD).await?;
    let block = crate::destroy::block(RECORD);
    for number in 0..100 {
        engine
            .apply(&head, ApplyOptions::new(), |tx| tx.write_block(object, number, block.clone()))
            .await?;
    }
    engine.sync().await?;
    let written = since(start).as_secs_f64();
    let peak = usage::memory_mib("VmHWM");
    println!("first 100 blocks written after {written:.2} s");
    println!("memory: {resident} MiB resident after the import, {peak} MiB at most");
    Ok(())
}

/// Writes more than fits into memory to a raidz2 of six simulated disks, and reads some of it.
pub(crate) async fn simulated(args: &Args<'_>) -> Result<()> {
    let bytes: u64 = args.number::<u64>(0)? * 1_000_000_000;
    let size = bytes / 4 + bytes / 16 + (1 << 30);
    let disks: Vec<_> =
        (0..6).map(|number| Arc::new(SimulatedDisk::new(format!("disk{number}"), size))).collect();
    let devices = disks.iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect();
    let (redundancy, _) = pool::shape("raidz2:6");
    let engine = pool::create(redundancy, devices).await?;
    let head = pool::dataset(&engine, "tank/fs", COMPRESSION_OFF, CHECKSUM_ON).await?;
    let object = pool::object(&engine, &head, RECORD).await?;
    let records = bytes / RECORD;
    let start = cenote_rt::monotonic();
    for number in 0..records {
        let block = record(number);
        engine
            .apply(&head, ApplyOptions::new(), |tx| tx.write_block(object, number, block.clone()))
            .await?;
    }
    engine.sync().await?;
    let wall = since(start).as_secs_f64();
    println!(
        "written: {} GB, {wall:.0} s, {:.0} MB/s",
        bytes / 1_000_000_000,
        bytes as f64 / 1e6 / wall
    );
    let mut rng = Rng::seeded(2);
    let checks = 2000;
    for _ in 0..checks {
        let number = rng.below(records);
        let read = head.live().inspect(|tx| tx.read(object, number * RECORD, RECORD as usize));
        if read.await?[..] != record(number)[..] {
            return Err(Error::new(Kind::Corrupt, format!("record {number} is another")));
        }
    }
    let extents: u64 = disks.iter().map(|disk| disk.used().extents).sum();
    let raw: u64 = disks.iter().map(|disk| disk.used().raw_bytes).sum();
    println!("{checks} records read back are right");
    println!("disks: {extents} extents, {} MiB that are no pattern", raw >> 20);
    println!("memory: {} MiB at most", usage::memory_mib("VmHWM"));
    engine.export().await
}

fn record(number: u64) -> Buf {
    let mut block = BufMut::for_filling(RECORD as usize);
    pattern::fill(number + 1, &mut block);
    block.freeze()
}
