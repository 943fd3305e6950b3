//! Pools for `bench/send.sh`, whose snapshots are sent by the programs that are measured.

use std::sync::Arc;

use cenote_fs::Mount;
use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode};
use cenote_fs::mount::WriteOptions;
use cenote_rt::{Result, tunables};

use crate::args::Args;
use crate::files::{PER_DIRECTORY, name, new_directory};
use crate::pool::{self, COMPRESSION_LZ4, Contents};
use crate::random::set;
use crate::usage::Clock;

/// Bytes of the cache: the data of a file is not read again.
const CACHE: u64 = 256 << 20;
/// Chunks that are written repeatedly.
const CHUNKS: usize = 16;
/// Small files that change between the two snapshots.
const CHANGED: u64 = 100;
/// Bytes of a change.
const CHANGE: usize = 1000;

/// A file of half-compressible data, empty files in directories of ten thousand, and two snapshots:
/// some of the small files change between them.
pub(crate) async fn run(args: &Args<'_>) -> Result<()> {
    let (dir, fill) = (args.word(0)?, args.number::<u64>(1)? << 20);
    let (record, files) = (args.number(2)?, args.number::<u64>(3)?);
    let mount = mounted(dir, 2 * fill + (8 << 30), record).await?;
    let me = Credentials::root();

    if fill > 0 {
        let mut contents = Contents::new();
        let chunks: Vec<_> = (0..CHUNKS).map(|_| contents.chunk(1 << 20)).collect();
        let large = new_file(&mount, &me, mount.root(), b"large").await?;
        let clock = Clock::start();
        for (number, chunk) in (0..fill >> 20).zip(chunks.iter().cycle()) {
            mount.write(&me, large, number << 20, chunk, WriteOptions::default()).await?;
        }
        mount.engine().sync().await?;
        clock.tell("write", "MB/s", fill as f64 / 1e6);
    }

    let mut small = Vec::new();
    for number in 0..files {
        if number % PER_DIRECTORY == 0 {
            let name = format!("d{}", number / PER_DIRECTORY);
            small.push((new_directory(&mount, &me, &name).await?, Vec::new()));
        }
        let Some((parent, objects)) = small.last_mut() else { continue };
        objects.push(new_file(&mount, &me, *parent, &name(number)).await?);
    }
    snapshot(&mount, "tank@one").await?;
    let objects: Vec<u64> = small.into_iter().flat_map(|(_, objects)| objects).collect();
    let step = (objects.len() / CHANGED as usize).max(1);
    for object in objects.iter().step_by(step) {
        mount.write(&me, *object, 0, &[7; CHANGE], WriteOptions::default()).await?;
    }
    snapshot(&mount, "tank@two").await?;
    mount.engine().export().await
}

/// Snapshots of a file system, between which a file changes.
pub(crate) async fn snapshots(args: &Args<'_>) -> Result<()> {
    let (dir, count) = (args.word(0)?, args.number::<u64>(1)?);
    let mount = mounted(dir, 64 << 30, 128 << 10).await?;
    let me = Credentials::root();
    let file = new_file(&mount, &me, mount.root(), b"changing").await?;
    let clock = Clock::start();
    for number in 0..count {
        let bytes = [number as u8; CHANGE];
        mount.write(&me, file, number, &bytes, WriteOptions::default()).await?;
        snapshot(&mount, &format!("tank@{number}")).await?;
    }
    clock.tell("snapshots", "/s", count as f64);
    mount.engine().export().await
}

async fn mounted(dir: &str, size: u64, record: u64) -> Result<Arc<Mount>> {
    set(&tunables::BLOCK_CACHE_BYTES, CACHE)?;
    let mount = pool::mount(dir, size, record).await?;
    mount.engine().properties().set("tank", "compression", COMPRESSION_LZ4.into()).await?;
    Ok(mount)
}

async fn new_file(mount: &Mount, me: &Credentials, parent: u64, name: &[u8]) -> Result<u64> {
    let new = NewNode::new(NewKind::Regular, 0o644);
    Ok(mount.create(me, parent, name, &new).await?.object)
}

async fn snapshot(mount: &Mount, name: &str) -> Result<()> {
    mount.engine().snapshots().create(vec![name.into()]).await
}
