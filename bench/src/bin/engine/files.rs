//! Many small files: created, looked up, read and removed by name, one after the other.
//!
//! `bench/fs_peer.c` does less with OpenZFS's engine: it has no permissions, attribute layouts,
//! accounts and log records.

use cenote_fs::Mount;
use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode};
use cenote_fs::mount::WriteOptions;
use cenote_rt::{Error, Kind, Result, tunables};

use crate::args::Args;
use crate::pool;
use crate::random::set;
use crate::usage::{Clock, memory_mib};

/// Bytes of a file.
const SMALL: usize = 1000;
/// Bytes of the cache: all files fit.
const CACHE: u64 = 1 << 30;
/// Files of a directory.
pub(crate) const PER_DIRECTORY: u64 = 10_000;
/// Entries that a listing asks for at a time.
const PAGE: usize = 1000;
/// Parts of a large directory that are timed separately.
const PARTS: u64 = 10;

pub(crate) fn name(number: u64) -> Vec<u8> {
    format!("file-{number:07}").into_bytes()
}

pub(crate) async fn new_directory(mount: &Mount, me: &Credentials, name: &str) -> Result<u64> {
    let new = NewNode::new(NewKind::Directory, 0o755);
    Ok(mount.create(me, mount.root(), name.as_bytes(), &new).await?.object)
}

/// Files of 1 KB, in directories of ten thousand.
pub(crate) async fn run(args: &Args<'_>) -> Result<()> {
    let (dir, count) = (args.word(0)?, args.number::<u64>(1)?);
    set(&tunables::BLOCK_CACHE_BYTES, CACHE)?;
    let mount = pool::mount(dir, 4 << 30, 128 << 10).await?;
    // Work that the peer does not do.
    mount.engine().properties().set("tank", "atime", 0.into()).await?;
    let me = Credentials::root();
    let mut dirs = Vec::new();
    for number in 0..count.div_ceil(PER_DIRECTORY) {
        dirs.push(new_directory(&mount, &me, &format!("d{number}")).await?);
    }
    let numbers = || (0..count).zip(dirs.iter().flat_map(|dir| vec![*dir; PER_DIRECTORY as usize]));
    let bytes = vec![7; SMALL];

    let clock = Clock::start();
    for (number, dir) in numbers() {
        let new = NewNode::new(NewKind::Regular, 0o644);
        let made = mount.create(&me, dir, &name(number), &new).await?;
        mount.write(&me, made.object, 0, &bytes, WriteOptions::default()).await?;
    }
    mount.engine().sync().await?;
    clock.tell("create", "files/s", count as f64);

    let clock = Clock::start();
    for (number, dir) in numbers() {
        let found = mount.lookup(&me, dir, &name(number)).await?;
        expect(found.size == SMALL as u64)?;
    }
    clock.tell("stat", "files/s", count as f64);

    let mut into = vec![0; 2 * SMALL];
    let clock = Clock::start();
    for (number, dir) in numbers() {
        let found = mount.lookup(&me, dir, &name(number)).await?;
        expect(mount.read(found.object, 0, &mut into).await? == SMALL)?;
    }
    clock.tell("read", "files/s", count as f64);

    let clock = Clock::start();
    for (number, dir) in numbers() {
        mount.unlink(&me, dir, &name(number)).await?;
    }
    mount.engine().sync().await?;
    clock.tell("remove", "files/s", count as f64);
    println!("memory: {} MiB at most", memory_mib("VmHWM"));
    mount.engine().export().await
}

/// One large directory.
pub(crate) async fn directory(args: &Args<'_>) -> Result<()> {
    let (dir, count) = (args.word(0)?, args.number::<u64>(1)?);
    set(&tunables::BLOCK_CACHE_BYTES, CACHE)?;
    let mount = pool::mount(dir, 8 << 30, 128 << 10).await?;
    let me = Credentials::root();
    let top = new_directory(&mount, &me, "large").await?;

    let clock = Clock::start();
    for part in 0..PARTS {
        let own = Clock::start();
        for number in part * count / PARTS..(part + 1) * count / PARTS {
            let new = NewNode::new(NewKind::Regular, 0o644);
            mount.create(&me, top, &name(number), &new).await?;
        }
        own.tell(&format!("part {part}"), "entries/s", (count / PARTS) as f64);
    }
    mount.engine().sync().await?;
    clock.tell("create", "entries/s", count as f64);

    let clock = Clock::start();
    let (mut cookie, mut listed) = (0, 0);
    loop {
        let page = mount.read_dir(&me, top, cookie, PAGE).await?;
        listed += page.entries.len() as u64;
        if let Some(last) = page.entries.last() {
            cookie = last.cookie;
        }
        if page.is_end {
            break;
        }
    }
    expect(listed == count + 2)?;
    clock.tell("list", "entries/s", count as f64);

    let clock = Clock::start();
    for number in 0..count {
        // Each name once, in random order.
        mount.lookup(&me, top, &name(number * 7919 % count)).await?;
    }
    clock.tell("lookup", "entries/s", count as f64);

    let clock = Clock::start();
    for number in 0..count {
        mount.unlink(&me, top, &name(number)).await?;
    }
    mount.engine().sync().await?;
    clock.tell("unlink", "entries/s", count as f64);
    println!("memory: {} MiB at most", memory_mib("VmHWM"));
    mount.engine().export().await
}

/// Checks that the measured work was done.
pub(crate) fn expect(is_so: bool) -> Result<()> {
    if is_so { Ok(()) } else { Err(Error::new(Kind::Corrupt, "not what was written")) }
}
