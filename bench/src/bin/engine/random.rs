//! Reading a large file: at random from memory and from the device, and sequentially.

use std::sync::Arc;

use cenote_device::{FileDevice, OpenMode};
use cenote_fs::Mount;
use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode};
use cenote_fs::mount::WriteOptions;
use cenote_rt::{BufMut, Error, Kind, Result, Rng, tunables};

use crate::args::Args;
use crate::files::expect;
use crate::pool::{self, Contents};
use crate::usage::{Clock, memory_mib};

/// Bytes of a record and of a read.
const RECORD: u64 = 8 << 10;
/// Bytes of a write that fills the file, and of a sequential read.
const STEP: u64 = 1 << 20;
const REQUEST: u64 = 128 << 10;
/// Reads at a time.
const DEPTH: u64 = 32;

/// A mount with a file of so many bytes, all of it on the device.
async fn filled(dir: &str, bytes: u64, record: u64) -> Result<(Arc<Mount>, u64)> {
    let mount = pool::mount(dir, bytes + bytes / 2 + (1 << 30), record).await?;
    let me = Credentials::root();
    let new = NewNode::new(NewKind::Regular, 0o644);
    let file = mount.create(&me, mount.root(), b"large", &new).await?.object;
    let mut contents = Contents::new();
    let chunks: Vec<_> = (0..16).map(|_| contents.chunk(STEP)).collect();
    for (offset, chunk) in (0..bytes).step_by(STEP as usize).zip(chunks.iter().cycle()) {
        mount.write(&me, file, offset, chunk, WriteOptions::default()).await?;
    }
    mount.engine().sync().await?;
    Ok((mount, file))
}

/// Reads at random when every record is in memory, by one thread.
pub(crate) async fn cached(args: &Args<'_>) -> Result<()> {
    let (dir, bytes, reads) = (args.word(0)?, args.number::<u64>(1)? << 20, args.number(2)?);
    set(&tunables::BLOCK_CACHE_BYTES, 4 * bytes)?;
    let (mount, file) = filled(dir, bytes, RECORD).await?;
    let mut into = vec![0; RECORD as usize];
    for offset in (0..bytes).step_by(RECORD as usize) {
        expect(mount.read(file, offset, &mut into).await? == into.len())?;
    }
    let before = blocks_read(&mount);
    let mut rng = Rng::seeded(1);
    let clock = Clock::start();
    for _ in 0..reads {
        let offset = rng.below(bytes / RECORD) * RECORD;
        expect(mount.read(file, offset, &mut into).await? == into.len())?;
    }
    clock.tell("random read", "reads/s", reads as f64);
    println!("blocks from the device meanwhile: {}", blocks_read(&mount) - before);
    mount.engine().export().await
}

/// Reads records at random from the device, and the indirect blocks from memory; then reads the raw
/// device in the same way, at as many places.
pub(crate) async fn direct(args: &Args<'_>) -> Result<()> {
    let (dir, bytes, reads) = (args.word(0)?, args.number::<u64>(1)? << 20, args.number(2)?);
    set(&tunables::DIRECT_IO, 1)?;
    set(&tunables::BLOCK_CACHE_BYTES, 1 << 30)?;
    let (mount, file) = filled(dir, bytes, RECORD).await?;
    let store = Arc::clone(mount.engine().store());
    // Small enough that few records stay cached, large enough for the indirect blocks.
    store.set_cache_capacity(1 << 20);
    store.set_cache_capacity(bytes / 32 + (16 << 20));
    let mut into = vec![0; RECORD as usize];
    for offset in (0..bytes).step_by(RECORD as usize * 512) {
        mount.read(file, offset, &mut into).await?;
        mount.read(file, offset, &mut into).await?;
    }
    for round in 0..2 {
        let before = blocks_read(&mount);
        let clock = Clock::start();
        let tasks = (0..DEPTH).map(|task| {
            let mount = Arc::clone(&mount);
            cenote_rt::spawn(async move {
                let (mut rng, mut into) = (Rng::seeded(task), vec![0; RECORD as usize]);
                for _ in 0..reads / DEPTH {
                    let offset = rng.below(bytes / RECORD) * RECORD;
                    expect(mount.read(file, offset, &mut into).await? == into.len())?;
                }
                Ok(())
            })
        });
        join(tasks.collect()).await?;
        clock.tell("uncached read", "reads/s", reads as f64);
        println!("of {reads} reads {} from the device", blocks_read(&mount) - before);
        device_alone(dir, round, reads).await?;
    }
    mount.engine().export().await
}

/// Reads the raw device where the pool has written: holes in the device's file are answered without
/// a disk.
async fn device_alone(dir: &str, round: u64, reads: u64) -> Result<()> {
    let path = std::path::Path::new(dir).join("d0");
    let places = written(&path).map_err(|error| Error::new(Kind::Io, error))?;
    expect(!places.is_empty())?;
    let (device, places) = (FileDevice::open(&path, OpenMode::ReadOnly)?, Arc::new(places));
    let clock = Clock::start();
    let tasks = (0..DEPTH).map(|task| {
        let (device, places) = (Arc::clone(&device), Arc::clone(&places));
        cenote_rt::spawn(async move {
            let mut rng = Rng::seeded(task + 1000 * (round + 1));
            let mut buf = BufMut::zeroed(RECORD as usize);
            for _ in 0..reads / DEPTH {
                let place = places[rng.below(places.len() as u64) as usize];
                buf = device.read(place, buf).await?;
            }
            Ok(())
        })
    });
    join(tasks.collect()).await?;
    clock.tell("device alone", "reads/s", reads as f64);
    Ok(())
}

/// Places of a file at which a record's length was written.
pub(crate) fn written(path: &std::path::Path) -> std::io::Result<Vec<u64>> {
    use rustix::fs::{SeekFrom, seek};
    let file = std::fs::File::open(path)?;
    let (mut places, mut at) = (Vec::new(), 0);
    while let Ok(start) = seek(&file, SeekFrom::Data(at)) {
        at = seek(&file, SeekFrom::Hole(start))?;
        let first = start.next_multiple_of(RECORD);
        places.extend((first..at.saturating_sub(RECORD - 1)).step_by(RECORD as usize));
    }
    Ok(places)
}

/// Sequential reads from the device, in requests of 128K.
pub(crate) async fn ahead(args: &Args<'_>) -> Result<()> {
    let (dir, bytes) = (args.word(0)?, args.number::<u64>(1)? << 20);
    set(&tunables::DIRECT_IO, 1)?;
    let (mount, file) = filled(dir, bytes, REQUEST).await?;
    for (label, is_disabled) in [("with read-ahead", 0), ("without", 1)] {
        set(&tunables::PREFETCH_DISABLE, is_disabled)?;
        mount.engine().store().clear_cache();
        let before = blocks_read(&mount);
        let mut into = vec![0; REQUEST as usize];
        let clock = Clock::start();
        for offset in (0..bytes).step_by(REQUEST as usize) {
            expect(mount.read(file, offset, &mut into).await? == into.len())?;
        }
        clock.tell(label, "MB/s", bytes as f64 / 1e6);
        println!("{} blocks from the device", blocks_read(&mount) - before);
    }
    println!("memory: {} MiB at most", memory_mib("VmHWM"));
    mount.engine().export().await
}

fn blocks_read(mount: &Mount) -> u64 {
    mount.engine().store().stats().blocks_read
}

/// Sets a tunable.
pub(crate) fn set(tunable: &tunables::Tunable, value: u64) -> Result<()> {
    tunable.set(value).map_err(|error| Error::new(Kind::Invalid, error))
}

/// Waits for all tasks.
pub(crate) async fn join(tasks: Vec<cenote_rt::JoinHandle<Result<()>>>) -> Result<()> {
    for task in tasks {
        task.await.map_err(|error| Error::new(Kind::Io, error))??;
    }
    Ok(())
}
