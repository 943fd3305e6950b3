//! Answers, and notifications of the kernel.

use std::ffi::OsStr;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cenote_fs::mount::decode_dev;

use super::super::queues::Answerer;
use super::{Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo};

/// Bytes of an answer's header.
const HEADER: usize = 16;
/// Directory entries are aligned to this.
const ALIGNMENT: usize = 8;
const DIRENT: usize = 24;

/// The answer to one request, not yet sent.
#[derive(Debug)]
pub(in crate::fuse) struct Reply {
    /// `None` once it was sent.
    way: Option<Way>,
    unique: u64,
}

/// How an answer reaches the kernel.
#[derive(Debug)]
pub(in crate::fuse) enum Way {
    /// By a write to the connection.
    Channel(Arc<OwnedFd>),
    /// Through the ring from which the request came.
    Ring(Answerer),
}

impl Reply {
    pub(in crate::fuse) fn new(way: Way, unique: u64) -> Self {
        Self { way: Some(way), unique }
    }

    /// Sends the parts of a body.
    pub(super) fn answer(mut self, body: &[&[u8]]) {
        self.send(0, body);
    }

    /// Sends an error.
    pub(in crate::fuse) fn error(mut self, error: Errno) {
        self.send(-error.0, &[]);
    }

    fn send(&mut self, error: i32, body: &[&[u8]]) {
        match self.way.take() {
            // The caller may be gone, and the file system unmounted: they need no answer.
            Some(Way::Channel(channel)) => drop(write(&channel, error, self.unique, body)),
            Some(Way::Ring(answerer)) => answerer.answer(error, body),
            None => {}
        }
    }
}

impl Drop for Reply {
    fn drop(&mut self) {
        self.send(-Errno::EIO.0, &[]);
    }
}

fn write(channel: &OwnedFd, error: i32, unique: u64, body: &[&[u8]]) -> rustix::io::Result<usize> {
    let len = HEADER + body.iter().map(|part| part.len()).sum::<usize>();
    let mut header = [0; HEADER];
    for (target, source) in
        header.chunks_exact_mut(4).zip([(len as u32).to_ne_bytes(), error.to_ne_bytes()])
    {
        target.copy_from_slice(&source);
    }
    if let Some(target) = header.get_mut(8..) {
        target.copy_from_slice(&unique.to_ne_bytes());
    }
    let mut parts = vec![IoSlice::new(&header)];
    parts.extend(body.iter().map(|part| IoSlice::new(part)));
    rustix::io::writev(channel, &parts)
}

/// An answer that can be an error.
pub(in crate::fuse) trait Refuse {
    /// Sends an error.
    fn error(self, error: Errno);
}

macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(in crate::fuse) struct $name(Reply);

        impl From<Reply> for $name {
            fn from(reply: Reply) -> Self {
                Self(reply)
            }
        }

        impl Refuse for $name {
            fn error(self, error: Errno) {
                self.0.error(error);
            }
        }
    )*};
}

replies! {
    /// An answer without a body.
    ReplyEmpty
    /// An answer with data.
    ReplyData
    /// An answer with a node.
    ReplyEntry
    /// An answer with attributes.
    ReplyAttr
    /// An answer with attributes, the creation time among them.
    ReplyStatx
    /// An answer with a handle.
    ReplyOpen
    /// An answer with a node and a handle.
    ReplyCreate
    /// An answer with a number of bytes.
    ReplyWrite
    /// An answer with the space of a file system.
    ReplyStatfs
    /// An answer with a value or its length.
    ReplyXattr
    /// An answer with the output of an ioctl.
    ReplyIoctl
    /// An answer with an offset.
    ReplyLseek
}

impl ReplyEmpty {
    pub(in crate::fuse) fn ok(self) {
        self.0.answer(&[]);
    }
}

impl ReplyData {
    pub(in crate::fuse) fn data(self, data: &[u8]) {
        self.0.answer(&[data]);
    }
}

impl ReplyEntry {
    pub(in crate::fuse) fn entry_with_ttls(
        self,
        ttl: &Duration,
        name_ttl: &Duration,
        attr: &FileAttr,
        generation: Generation,
    ) {
        self.0.answer(&[&entry(*ttl, *name_ttl, attr, generation)]);
    }
}

impl ReplyAttr {
    pub(in crate::fuse) fn attr(self, ttl: &Duration, attr: &FileAttr) {
        let mut body = Body::new();
        body.u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0).attributes(attr);
        self.0.answer(&[&body.0]);
    }
}

fn statx(ttl: &Duration, attr: &FileAttr) -> Vec<u8> {
    let mut body = Body::new();
    body.u64(ttl.as_secs()).u32(ttl.subsec_nanos()).u32(0).u64(0).u64(0).extended(attr);
    body.0
}

impl ReplyStatx {
    pub(in crate::fuse) fn statx(self, ttl: &Duration, attr: &FileAttr) {
        self.0.answer(&[&statx(ttl, attr)]);
    }
}

fn opened(handle: FileHandle, flags: FopenFlags) -> Vec<u8> {
    let mut body = Body::new();
    body.u64(handle.0).u32(flags.bits()).u32(0);
    body.0
}

impl ReplyOpen {
    pub(in crate::fuse) fn opened(self, handle: FileHandle, flags: FopenFlags) {
        self.0.answer(&[&opened(handle, flags)]);
    }
}

impl ReplyCreate {
    pub(in crate::fuse) fn created(
        self,
        (ttl, name_ttl): (Duration, Duration),
        attr: &FileAttr,
        generation: Generation,
        handle: FileHandle,
        flags: FopenFlags,
    ) {
        self.0.answer(&[&entry(ttl, name_ttl, attr, generation), &opened(handle, flags)]);
    }
}

impl ReplyWrite {
    pub(in crate::fuse) fn written(self, len: u32) {
        self.0.answer(&[&len.to_ne_bytes(), &[0; 4]]);
    }
}

impl ReplyStatfs {
    /// Blocks: all, free, available. Nodes: all, free. Sizes: block, name, fragment.
    pub(in crate::fuse) fn statfs(self, blocks: [u64; 3], nodes: [u64; 2], sizes: [u32; 3]) {
        let mut body = Body::new();
        for count in blocks.into_iter().chain(nodes) {
            body.u64(count);
        }
        for size in sizes {
            body.u32(size);
        }
        body.0.resize(80, 0);
        self.0.answer(&[&body.0]);
    }
}

impl ReplyXattr {
    pub(in crate::fuse) fn size(self, len: u32) {
        self.0.answer(&[&len.to_ne_bytes(), &[0; 4]]);
    }

    pub(in crate::fuse) fn data(self, data: &[u8]) {
        self.0.answer(&[data]);
    }
}

impl ReplyIoctl {
    pub(in crate::fuse) fn ioctl(self, result: i32, data: &[u8]) {
        let mut body = Body::new();
        body.u32(result.cast_unsigned()).u32(0).u32(1).u32(u32::from(!data.is_empty()));
        self.0.answer(&[&body.0, data]);
    }
}

impl ReplyLseek {
    pub(in crate::fuse) fn offset(self, offset: i64) {
        self.0.answer(&[&offset.to_ne_bytes()]);
    }
}

macro_rules! listings {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(in crate::fuse) struct $name {
            reply: Reply,
            body: Body,
            room: usize,
        }

        impl $name {
            pub(super) fn new(reply: Reply, room: usize) -> Self {
                Self { reply, body: Body::new(), room }
            }

            /// Sends the entries that were added.
            pub(in crate::fuse) fn ok(self) {
                self.reply.answer(&[&self.body.0]);
            }

            fn is_full(&self, head: usize, name: &OsStr) -> bool {
                let len = (head + DIRENT + name.len()).next_multiple_of(ALIGNMENT);
                self.body.0.len() + len > self.room
            }
        }

        impl Refuse for $name {
            fn error(self, error: Errno) {
                self.reply.error(error);
            }
        }
    )*};
}

listings! {
    /// An answer with entries of a directory.
    ReplyDirectory
    /// An answer with entries of a directory, and their nodes.
    ReplyDirectoryPlus
}

impl ReplyDirectory {
    /// Adds an entry. Returns true if there is no room for it.
    pub(in crate::fuse) fn add(
        &mut self,
        node: INodeNo,
        cookie: u64,
        kind: FileType,
        name: &OsStr,
    ) -> bool {
        if self.is_full(0, name) {
            return true;
        }
        self.body.entry_of_directory(node, cookie, kind, name);
        false
    }
}

impl ReplyDirectoryPlus {
    /// Adds an entry with its node. Returns true if there is no room for it.
    pub(in crate::fuse) fn add(
        &mut self,
        node: INodeNo,
        cookie: u64,
        name: &OsStr,
        ttl: &Duration,
        attr: &FileAttr,
        generation: Generation,
    ) -> bool {
        let head = entry(*ttl, *ttl, attr, generation);
        if self.is_full(head.len(), name) {
            return true;
        }
        self.body.0.extend_from_slice(&head);
        self.body.entry_of_directory(node, cookie, attr.kind, name);
        false
    }
}

fn entry(ttl: Duration, name_ttl: Duration, attr: &FileAttr, generation: Generation) -> Vec<u8> {
    let mut body = Body::new();
    body.u64(attr.ino.0).u64(generation.0).u64(name_ttl.as_secs()).u64(ttl.as_secs());
    body.u32(name_ttl.subsec_nanos()).u32(ttl.subsec_nanos()).attributes(attr);
    body.0
}

/// The body of an answer, field by field.
#[derive(Debug)]
struct Body(Vec<u8>);

impl Body {
    fn new() -> Self {
        Self(Vec::with_capacity(144))
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend_from_slice(&number.to_ne_bytes());
        self
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_ne_bytes());
        self
    }

    fn attributes(&mut self, attr: &FileAttr) {
        let times = [attr.atime, attr.mtime, attr.ctime].map(parts);
        self.u64(attr.ino.0).u64(attr.size).u64(attr.blocks);
        for (seconds, _) in times {
            self.u64(seconds.cast_unsigned());
        }
        for (_, nanoseconds) in times {
            self.u32(nanoseconds);
        }
        self.u32(attr.kind.number() << 12 | u32::from(attr.perm)).u32(attr.nlink);
        self.u32(attr.uid).u32(attr.gid).u32(attr.rdev).u32(attr.blksize).u32(0);
    }

    /// Adds `struct fuse_statx`.
    fn extended(&mut self, attr: &FileAttr) {
        /// `STATX_BASIC_STATS` and `STATX_BTIME`.
        const MASK: u32 = 0xfff;
        const LEN: usize = 256;
        let start = self.0.len();
        self.u32(MASK).u32(attr.blksize).u64(0).u32(attr.nlink).u32(attr.uid).u32(attr.gid);
        let mode = (attr.kind.number() << 12) as u16 | attr.perm;
        self.0.extend_from_slice(&mode.to_ne_bytes());
        self.0.extend_from_slice(&[0; 2]);
        self.u64(attr.ino.0).u64(attr.size).u64(attr.blocks).u64(0);
        for (seconds, nanoseconds) in [attr.atime, attr.crtime, attr.ctime, attr.mtime].map(parts) {
            self.u64(seconds.cast_unsigned()).u32(nanoseconds).u32(0);
        }
        let (major, minor) = decode_dev(attr.rdev.into());
        self.u32(major).u32(minor);
        self.0.resize(start + LEN, 0);
    }

    fn entry_of_directory(&mut self, node: INodeNo, cookie: u64, kind: FileType, name: &OsStr) {
        self.u64(node.0).u64(cookie).u32(name.len() as u32).u32(kind.number());
        self.0.extend_from_slice(name.as_bytes());
        let len = self.0.len().next_multiple_of(ALIGNMENT);
        self.0.resize(len, 0);
    }
}

/// Returns seconds and nanoseconds of a time; the latter count forward, also before 1970.
fn parts(time: SystemTime) -> (i64, u32) {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds);
            match before.subsec_nanos() {
                0 => (seconds, 0),
                nanoseconds => (seconds.saturating_sub(1), 1_000_000_000 - nanoseconds),
            }
        }
    }
}

/// Notifies the kernel of changes that it does not see.
#[derive(Debug, Clone)]
pub(in crate::fuse) struct Notifier(Arc<OwnedFd>);

impl Notifier {
    pub(in crate::fuse) fn new(channel: Arc<OwnedFd>) -> Self {
        Self(channel)
    }

    /// Invalidates the kernel's attributes of a node, and `len` bytes (0: all) of its pages from
    /// `offset` on; no pages if that is negative.
    ///
    /// # Errors
    /// The system's error; `ENOENT` for a node that the kernel does not know.
    pub(in crate::fuse) fn inval_inode(
        &self,
        node: INodeNo,
        offset: i64,
        len: i64,
    ) -> std::io::Result<()> {
        const INVAL_INODE: i32 = 2;
        let mut body = Body::new();
        body.u64(node.0).u64(offset.cast_unsigned()).u64(len.cast_unsigned());
        match write(&self.0, INVAL_INODE, 0, &[&body.0]) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            told => told.map(drop).map_err(Into::into),
        }
    }

    /// Invalidates a name in a directory, with everything that the kernel knows below it.
    ///
    /// # Errors
    /// The system's error; `ENOENT` for a name or directory that the kernel does not know.
    pub(in crate::fuse) fn inval_entry(
        &self,
        directory: INodeNo,
        name: &[u8],
    ) -> std::io::Result<()> {
        const INVAL_ENTRY: i32 = 3;
        const NO_FLAGS: u32 = 0;
        let mut body = Body::new();
        body.u64(directory.0).u32(name.len() as u32).u32(NO_FLAGS);
        match write(&self.0, INVAL_ENTRY, 0, &[&body.0, name, b"\0"]) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            told => told.map(drop).map_err(Into::into),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::system_time;
    use super::*;

    #[test]
    fn answers_have_the_lengths_of_the_kernel_interface() {
        let attr = FileAttr {
            ino: INodeNo(7),
            size: 1,
            blocks: 2,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH + Duration::from_secs(77),
            kind: FileType::Directory,
            perm: 0o755,
            nlink: 3,
            uid: 4,
            gid: 5,
            rdev: 6,
            blksize: 4096,
        };
        let body = entry(Duration::from_secs(1), Duration::ZERO, &attr, Generation(9));
        assert_eq!(body.len(), 40 + 88);
        assert_eq!(body.get(100..104), Some(&0o40_755_u32.to_ne_bytes()[..]));
        let extended = statx(&Duration::from_secs(1), &attr);
        assert_eq!(extended.len(), 32 + 256);
        assert_eq!(extended.get(60..62), Some(&0o40_755_u16.to_ne_bytes()[..]));
        assert_eq!(extended.get(112..120), Some(&77_u64.to_ne_bytes()[..]));
        assert_eq!(opened(FileHandle(1), FopenFlags::FOPEN_KEEP_CACHE).len(), 16);
    }

    #[test]
    fn times_go_through_also_before_1970() {
        for time in [(0, 0), (86_400, 5), (-2, 800_000_000), (-1, 0), (-1, 1)] {
            assert_eq!(parts(system_time(time.0, time.1)), time);
        }
    }
}
