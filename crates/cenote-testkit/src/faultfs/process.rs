//! The process that serves the leaves: a FUSE file system, and the orders of the test.
//!
//! It ends when the test closes its end of the socket, which the kernel does for a test that was
//! killed. It then detaches its mount and exits; requests that are in flight fail, so that a
//! process that still has a leaf open cannot hang.
//!
//! Concurrency: every request holds `power` for reading while it is carried out, and a power cut
//! holds it for writing. So a cut falls between two requests, the same moment for all leaves.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, TimeOrNow, WriteFlags,
};

use super::leaf::{Leaf, Presence};
use super::order::{Answer, Order, PowerCut};
use super::{BACKING, IMAGES, MOUNTED, detach, leaf_paths};

/// Requests that are carried out at the same time.
const THREADS: usize = 6;
/// Attributes and names are asked for each time.
const NOT_CACHED: Duration = Duration::ZERO;
/// The inode number of leaf 0.
const FIRST_LEAF: u64 = 2;

/// The leaves and their common power.
#[derive(Debug)]
struct Leaves {
    leaves: Vec<Leaf>,
    is_powered: RwLock<bool>,
}

impl Leaves {
    /// Carries out a request of a leaf while there is power.
    fn request<T>(
        &self,
        ino: INodeNo,
        work: impl FnOnce(&Leaf) -> Result<T, rustix::io::Errno>,
    ) -> Result<T, Errno> {
        let index = u64::from(ino).checked_sub(FIRST_LEAF).ok_or(Errno::EISDIR)?;
        let leaf = self.leaves.get(index as usize).ok_or(Errno::ENOENT)?;
        leaf.wait();
        let is_powered = self.is_powered.read().unwrap_or_else(PoisonError::into_inner);
        if !*is_powered {
            return Err(Errno::ENXIO);
        }
        work(leaf).map_err(|error| Errno::from_i32(error.raw_os_error()))
    }

    /// Carries out a request of a leaf, unless the leaf hangs: then it is carried out later.
    fn schedule(self: &Arc<Self>, ino: INodeNo, request: impl FnOnce(&Self) + Send + 'static) {
        let leaves = Arc::clone(self);
        let request = move || request(&leaves);
        let index = u64::from(ino).checked_sub(FIRST_LEAF);
        match index.and_then(|index| self.leaves.get(index as usize)) {
            Some(leaf) => leaf.admit_or_hold(Box::new(request)),
            None => request(),
        }
    }

    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let leaf = u64::from(ino).checked_sub(FIRST_LEAF);
        let leaf = leaf.map(|index| self.leaves.get(index as usize));
        let (size, kind, perm) = match leaf {
            None => (0, FileType::Directory, 0o755),
            Some(leaf) => (leaf?.size().ok()?, FileType::RegularFile, 0o644),
        };
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Some(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind,
            perm,
            nlink: 1,
            uid,
            gid,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        })
    }

    /// Inode numbers and names of the leaves that have one.
    fn named(&self) -> impl Iterator<Item = (INodeNo, &str)> {
        let named = (FIRST_LEAF..).zip(&self.leaves);
        let named = named.filter(|(_, leaf)| leaf.presence() != Presence::Absent);
        named.map(|(ino, leaf)| (INodeNo(ino), leaf.name.as_str()))
    }

    fn cut(&self, cut: PowerCut) -> Result<(), rustix::io::Errno> {
        let mut is_powered = self.is_powered.write().unwrap_or_else(PoisonError::into_inner);
        *is_powered = false;
        (0..).zip(&self.leaves).try_for_each(|(index, leaf)| leaf.cut(cut, index))
    }

    fn power_on(&self) {
        self.leaves.iter().for_each(Leaf::heal);
        *self.is_powered.write().unwrap_or_else(PoisonError::into_inner) = true;
    }

    /// Carries out an order of the test.
    fn obey(&self, order: Order) -> Answer {
        let leaf = |index: usize| &self.leaves[index];
        match order {
            Order::Inject(index, fault) => leaf(index).inject(fault),
            Order::Heal(index) => leaf(index).heal(),
            Order::Gone(index) => leaf(index).set_presence(Presence::Gone),
            Order::Absent(index) => leaf(index).set_presence(Presence::Absent),
            Order::Full(index) => leaf(index).fill_host(),
            Order::Resize(index, end) => leaf(index).resize(end),
            Order::Delay(index, delay) => leaf(index).delay(delay),
            Order::Hang(index) => leaf(index).hang(),
            Order::LyingFlush(index) => leaf(index).lie_at_flush(),
            Order::Remember(index) => leaf(index).remember(),
            Order::Recall(index) => leaf(index).recall(),
            Order::Cut(cut) => {
                if let Err(error) = self.cut(cut) {
                    return Answer::Failed(error.to_string());
                }
            }
            Order::PowerOn => self.power_on(),
            Order::Count(index) => return Answer::Counts(leaf(index).counts()),
        }
        Answer::Done
    }
}

/// The mounted file system: a folder of leaves.
#[derive(Debug)]
struct Layer(Arc<Leaves>);

impl Filesystem for Layer {
    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = self.0.named().find(|(_, known)| OsStr::new(known) == name);
        let found = found.filter(|_| parent == INodeNo::ROOT);
        match found.and_then(|(ino, _)| self.0.attributes(ino)) {
            Some(attributes) => reply.entry(&NOT_CACHED, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.0.attributes(ino) {
            Some(attributes) => reply.attr(&NOT_CACHED, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<std::time::SystemTime>,
        _: Option<FileHandle>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<std::time::SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // A leaf has its size, its owner and its mode from the test.
        match self.0.attributes(ino).filter(|_| size.is_none()) {
            Some(attributes) => reply.attr(&NOT_CACHED, &attributes),
            None => reply.error(Errno::EPERM),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let is_there = |leaf: &Leaf| match leaf.presence() {
            Presence::Present => Ok(()),
            Presence::Gone | Presence::Absent => Err(rustix::io::Errno::NXIO),
        };
        match self.0.request(ino, is_there) {
            Ok(()) => reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.0.schedule(ino, move |leaves| {
            match leaves.request(ino, |leaf| leaf.read(offset, size as usize)) {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(error),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = data.to_vec();
        self.0.schedule(ino, move |leaves| {
            match leaves.request(ino, |leaf| leaf.write(offset, &data)) {
                Ok(()) => reply.written(data.len() as u32),
                Err(error) => reply.error(error),
            }
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Closing makes nothing durable.
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.0.schedule(ino, move |leaves| answer(leaves.request(ino, Leaf::flush), reply));
    }

    fn fallocate(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let punch = rustix::fs::FallocateFlags::PUNCH_HOLE.bits();
        if mode as u32 & punch == 0 {
            return reply.error(Errno::EOPNOTSUPP);
        }
        self.0.schedule(ino, move |leaves| {
            answer(leaves.request(ino, |leaf| leaf.discard(offset, length)), reply);
        });
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let dots = [".", ".."].map(|name| (INodeNo::ROOT, FileType::Directory, name));
        let leaves = self.0.named().map(|(ino, name)| (ino, FileType::RegularFile, name));
        let entries = (1..).zip(dots.into_iter().chain(leaves));
        for (next, (ino, kind, name)) in entries.skip(offset as usize) {
            if reply.add(ino, next, kind, name) {
                break;
            }
        }
        reply.ok();
    }
}

fn answer(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// Serves the leaves of a folder until the test closes the socket. Does not return.
pub(super) fn serve(folder: &Path) -> ! {
    let socket = std::io::stdin().as_fd().try_clone_to_owned().map(UnixStream::from);
    let mut socket = socket.expect("standard input is the test's socket");
    let mounted = folder.join(MOUNTED);
    let leaves = match mount(&folder.join(BACKING).join(IMAGES), &mounted) {
        Ok(leaves) => leaves,
        Err(error) => {
            tell(&mut socket, &Answer::Refused(error.to_string()));
            std::process::exit(0);
        }
    };
    tell(&mut socket, &Answer::Mounted);
    let orders = BufReader::new(socket.try_clone().expect("a second descriptor of the socket"));
    for line in orders.lines().map_while(Result::ok) {
        let order = serde_json::from_str(&line).expect("an order of the test");
        tell(&mut socket, &leaves.obey(order));
    }
    detach(&mounted);
    std::process::exit(0);
}

fn mount(images: &Path, mounted: &PathBuf) -> std::io::Result<Arc<Leaves>> {
    let leaves: Result<Vec<Leaf>, _> =
        leaf_paths(images).iter().map(|path| Leaf::open(path)).collect();
    let leaves = Arc::new(Leaves { leaves: leaves?, is_powered: RwLock::new(true) });
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("cenote-faults".into())];
    config.n_threads = Some(THREADS);
    let session = Session::new(Layer(Arc::clone(&leaves)), mounted, &config)?.spawn()?;
    // The mount is detached by `serve`, when the test has ended.
    std::mem::forget(session);
    Ok(leaves)
}

fn tell(socket: &mut UnixStream, answer: &Answer) {
    let line = serde_json::to_string(answer).expect("an answer is JSON") + "\n";
    // If the test has ended, the write fails; the loop then ends, too.
    let _ = socket.write_all(line.as_bytes());
}
