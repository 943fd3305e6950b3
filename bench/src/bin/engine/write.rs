//! The workload of `ozpool.py --time` for OpenZFS's engine: one object is written from start to
//! end, a MiB or a record in each transaction, then random records of it are overwritten, one in
//! each. Data is generated before the clock starts, and is copied into the engine on both sides;
//! the time includes the last sync.

use cenote_engine::{ApplyOptions, Engine, Head};
use cenote_rt::{Result, Rng};

use crate::args::Args;
use crate::pool::{self, Contents};
use crate::usage::Clock;

/// Chunks that are written repeatedly.
const CHUNKS: usize = 16;
/// Records for overwriting.
const RECORDS: usize = 64;

pub(crate) async fn run(args: &Args<'_>) -> Result<()> {
    let (dir, layout) = (args.word(0)?, args.word(1)?);
    let (size, fill) = (args.number::<u64>(2)? << 20, args.number::<u64>(3)? << 20);
    let record: u64 = args.number(4)?;
    let (compression, checksum) = (pool::compression(args.word(5)?), pool::checksum(args.word(6)?));
    let overwrites: u64 = args.number(7)?;

    let (redundancy, devices) = pool::files(dir, layout, size)?;
    let engine = pool::create(redundancy, devices).await?;
    let head = pool::dataset(&engine, "tank/fs", compression, checksum).await?;
    let object = pool::object(&engine, &head, record).await?;
    engine.sync().await?;

    let mut contents = Contents::new();
    let step = record.max(1 << 20);
    let chunks: Vec<_> = (0..CHUNKS).map(|_| contents.chunk(step)).collect();
    let clock = Clock::start();
    for (number, chunk) in (0..fill / step).zip(chunks.iter().cycle()) {
        write(&engine, &head, object, number * step, chunk).await?;
    }
    engine.sync().await?;
    clock.tell("sequential write", "MB/s", fill as f64 / 1e6);

    if overwrites > 0 {
        let records: Vec<_> = (0..RECORDS).map(|_| contents.chunk(record)).collect();
        let mut rng = Rng::seeded(1);
        let clock = Clock::start();
        for (_, bytes) in (0..overwrites).zip(records.iter().cycle()) {
            let offset = rng.below(fill / record) * record;
            write(&engine, &head, object, offset, bytes).await?;
        }
        engine.sync().await?;
        clock.tell("random overwrite", "records/s", overwrites as f64);
    }
    tell_queues(&engine);
    engine.export().await
}

async fn write(engine: &Engine, head: &Head, object: u64, offset: u64, bytes: &[u8]) -> Result<()> {
    engine.apply(head, ApplyOptions::new(), |tx| tx.write(object, offset, bytes)).await?;
    Ok(())
}

/// The writes that the devices received.
fn tell_queues(engine: &Engine) {
    let stats = engine.tree().leaves().map(|(_, leaf)| leaf.stats());
    let (writes, bytes, flushes) = stats.fold((0, 0, 0), |(writes, bytes, flushes), leaf| {
        (writes + leaf.writes, bytes + leaf.write_bytes, flushes + leaf.flushes)
    });
    let txg = engine.uberblock().txg;
    println!("devices: {bytes} bytes in {writes} requests, {flushes} flushes, txg {txg}");
}
