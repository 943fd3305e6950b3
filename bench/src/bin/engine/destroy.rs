//! The latency of a writer that repeatedly writes 8K and waits until it is durable, while a large
//! dataset and a snapshot with many freed blocks are destroyed.
//!
//! The devices are simulated, so the result is that of the engine: its computations and its waits.
//! Syncs follow one another without a pause, which is worse for the writer than the usual sync
//! every five seconds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_device::{Device, SimulatedDisk, pattern};
use cenote_engine::zil::LogRecord;
use cenote_engine::{ApplyOptions, Engine, Head};
use cenote_rt::{Buf, Error, Kind, Result};
use cenote_vdev::create::Redundancy;

use crate::args::Args;
use crate::pool::{self, CHECKSUM_ON, COMPRESSION_OFF};
use crate::usage::{self, Times, since};

const SMALL: u64 = 8 << 10;
const LARGE: u64 = 128 << 10;
/// Blocks that the writer overwrites one after the other.
const BLOCKS: u64 = 1000;

pub(crate) async fn run(args: &Args<'_>) -> Result<()> {
    let (bytes, blocks): (u64, u64) = (args.number::<u64>(0)? * 1_000_000_000, args.number(1)?);
    let size = bytes + bytes / 4 + blocks * SMALL * 4 + (16 << 30);
    let disk: Arc<dyn Device> = Arc::new(SimulatedDisk::new("disk", size));
    let engine = pool::create(Redundancy::Single, vec![disk]).await?;

    let start = cenote_rt::monotonic();
    fill(&engine, "tank/large", LARGE, bytes / LARGE).await?;
    let (head, object) = fill(&engine, "tank/small", SMALL, blocks).await?;
    engine.snapshots().create(vec!["tank/small@before".into()]).await?;
    write(&engine, &head, object, SMALL, blocks).await?;
    engine.sync().await?;
    let (gb, wall) = (bytes as f64 / 1e9, since(start).as_secs_f64());
    println!("made: {gb:.0} GB in 128K blocks, {blocks} blocks of a snapshot, {wall:.0} s");

    let writer = Writer::start(&engine).await?;
    cenote_rt::sleep(Duration::from_secs(2)).await;
    writer.stop("alone").await?;

    let writer = Writer::start(&engine).await?;
    let (start, first) = (cenote_rt::monotonic(), engine.open_txg());
    engine.datasets().destroy("tank/large").await?;
    engine.snapshots().destroy("tank/small@before").await?;
    let mut longest = Duration::ZERO;
    while engine.space().has_pending_frees().await? {
        let begin = cenote_rt::monotonic();
        engine.sync().await?;
        longest = longest.max(since(begin));
    }
    let (wall, txgs) = (since(start).as_secs_f64(), engine.open_txg() - first);
    writer.stop("meanwhile").await?;
    println!("destroyed: {wall:.1} s, {txgs} txgs, longest {:.2} s", longest.as_secs_f64());
    println!("memory: {} MiB at most", usage::memory_mib("VmHWM"));
    engine.export().await
}

/// A dataset with one object of so many blocks, none of which is all zeros.
async fn fill(engine: &Engine, name: &str, size: u64, blocks: u64) -> Result<(Arc<Head>, u64)> {
    let head = pool::dataset(engine, name, COMPRESSION_OFF, CHECKSUM_ON).await?;
    let object = pool::object(engine, &head, size).await?;
    write(engine, &head, object, size, blocks).await?;
    Ok((head, object))
}

async fn write(engine: &Engine, head: &Head, object: u64, size: u64, blocks: u64) -> Result<()> {
    let block = block(size);
    for number in 0..blocks {
        engine
            .apply(head, ApplyOptions::new(), |tx| tx.write_block(object, number, block.clone()))
            .await?;
    }
    Ok(())
}

/// A block whose content a simulated disk stores in a few words.
pub(crate) fn block(size: u64) -> Buf {
    let mut bytes = vec![0; size as usize];
    pattern::fill(size, &mut bytes);
    Buf::from(bytes)
}

/// The writer whose latency is measured.
struct Writer {
    is_over: Arc<AtomicBool>,
    task: cenote_rt::JoinHandle<Result<Vec<Duration>>>,
}

impl Writer {
    async fn start(engine: &Arc<Engine>) -> Result<Self> {
        let name = format!("tank/log{}", engine.open_txg());
        let head = pool::dataset(engine, &name, COMPRESSION_OFF, CHECKSUM_ON).await?;
        let object = pool::object(engine, &head, SMALL).await?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (engine, ends) = (Arc::clone(engine), Arc::clone(&is_over));
        let task = cenote_rt::spawn(async move {
            let block = block(SMALL);
            let mut times = Vec::new();
            while !ends.load(Ordering::Acquire) {
                let offset = times.len() as u64 % BLOCKS * SMALL;
                let begin = cenote_rt::monotonic();
                let change = engine.apply(&head, ApplyOptions::new().logged(), |tx| {
                    tx.write(object, offset, &block)?;
                    let record = LogRecord::write(object, offset, block.clone());
                    Ok(((), head.log().append(tx, vec![record])?))
                });
                change.await?;
                engine.intent_logs().commit(&head, Some(object)).await?;
                times.push(since(begin));
            }
            Ok(times)
        });
        Ok(Self { is_over, task })
    }

    async fn stop(self, when: &str) -> Result<()> {
        self.is_over.store(true, Ordering::Release);
        let times = self.task.await.map_err(|error| Error::new(Kind::Io, error))??;
        let times = Times::new(times);
        let parts = [500, 990, 999, 1000].map(|part| format!("{:.1}", times.per_mille(part)));
        let count = times.len();
        println!(
            "write and fsync {when}: {count} times, ms at 50, 99, 99.9, 100 %: {}",
            parts.join(" ")
        );
        Ok(())
    }
}
