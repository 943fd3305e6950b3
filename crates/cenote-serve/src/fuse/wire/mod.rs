//! The protocol between the kernel and a FUSE server: decoding of requests, encoding of answers.
//!
//! ```text
//!   header: len, opcode, unique, node, uid, gid, pid │ arguments │ names │ data     request
//!   header: len, -errno, unique                      │ result    │ data             answer
//! ```
//!
//! Numbers are in the byte order of the machine. Layouts are those of `linux/fuse.h`, from version
//! 7.23 on; newer fields are used only where the kernel says that it has them. A request that is
//! too short for its opcode is answered with `EIO`, an unknown one with `ENOSYS`.
//!
//! The trait [`Filesystem`] has exactly the supported operations. Each takes a reply that must be
//! used: dropping one answers `EIO`, so that no caller waits forever.

mod init;
mod null;
mod reply;
mod request;

use std::ffi::OsStr;
use std::path::Path;
use std::time::SystemTime;

use bitflags::bitflags;

pub(super) use init::{Initialized, Negotiation};
use null::NullFilesystem;
pub(super) use null::take_apart;
pub(super) use reply::{
    Notifier, Refuse, Reply, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite,
    ReplyXattr, Way,
};
pub(super) use request::{Outcome, dispatch, initialize, span};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) struct $name(pub(super) $inner);
    };
}

number!(
    /// Number of a node for the kernel.
    INodeNo(u64)
);
number!(
    /// Distinguishes nodes that had the same number one after the other.
    Generation(u64)
);
number!(
    /// The server's number of an open file.
    FileHandle(u64)
);
number!(
    /// Flags of `open`.
    OpenFlags(i32)
);
number!(
    /// An error number.
    Errno(i32)
);

impl INodeNo {
    /// The root of a file system.
    pub(super) const ROOT: Self = Self(1);
}

impl Errno {
    pub(super) const ENOENT: Self = Self(2);
    pub(super) const EIO: Self = Self(5);
    pub(super) const ENXIO: Self = Self(6);
    pub(super) const EINVAL: Self = Self(22);
    pub(super) const ENOTTY: Self = Self(25);
    pub(super) const ERANGE: Self = Self(34);
    pub(super) const ENOSYS: Self = Self(38);
    pub(super) const ENODATA: Self = Self(61);
    pub(super) const EPROTO: Self = Self(71);
    pub(super) const EOPNOTSUPP: Self = Self(95);

    /// Returns the error with a positive number.
    pub(super) const fn from_i32(number: i32) -> Self {
        if number > 0 { Self(number) } else { Self::EIO }
    }
}

bitflags! {
    /// Capabilities that kernel and server can agree on.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct InitFlags: u64 {
        const FUSE_ASYNC_READ = 1;
        const FUSE_BIG_WRITES = 1 << 5;
        const FUSE_DONT_MASK = 1 << 6;
        const FUSE_DO_READDIRPLUS = 1 << 13;
        const FUSE_READDIRPLUS_AUTO = 1 << 14;
        const FUSE_ASYNC_DIO = 1 << 15;
        const FUSE_WRITEBACK_CACHE = 1 << 16;
        const FUSE_NO_OPEN_SUPPORT = 1 << 17;
        const FUSE_PARALLEL_DIROPS = 1 << 18;
        const FUSE_POSIX_ACL = 1 << 20;
        const FUSE_MAX_PAGES = 1 << 22;
        const FUSE_CACHE_SYMLINKS = 1 << 23;
        const FUSE_NO_OPENDIR_SUPPORT = 1 << 24;
        const FUSE_EXPLICIT_INVAL_DATA = 1 << 25;
        const FUSE_HANDLE_KILLPRIV_V2 = 1 << 28;
        /// There are flags from bit 32 on.
        const FUSE_INIT_EXT = 1 << 30;
        const FUSE_OVER_IO_URING = 1 << 41;
    }

    /// Flags of a file that was opened.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct FopenFlags: u32 {
        const FOPEN_DIRECT_IO = 1;
        const FOPEN_KEEP_CACHE = 1 << 1;
        const FOPEN_CACHE_DIR = 1 << 3;
    }

    /// Flags of a write.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct WriteFlags: u32 {
        const FUSE_WRITE_CACHE = 1;
        const FUSE_WRITE_KILL_SUIDGID = 1 << 2;
    }

    /// Flags of `renameat2`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct RenameFlags: u32 {
        const RENAME_NOREPLACE = 1;
        const RENAME_EXCHANGE = 1 << 1;
        const RENAME_WHITEOUT = 1 << 2;
    }

    /// Permissions that `access` checks.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) struct AccessFlags: i32 {
        const X_OK = 1;
        const W_OK = 2;
        const R_OK = 4;
    }
}

/// Kind of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileType {
    NamedPipe,
    CharDevice,
    Directory,
    BlockDevice,
    RegularFile,
    Symlink,
    Socket,
}

impl FileType {
    /// The number of the kind in a mode and in a directory entry.
    const fn number(self) -> u32 {
        match self {
            Self::NamedPipe => 1,
            Self::CharDevice => 2,
            Self::Directory => 4,
            Self::BlockDevice => 6,
            Self::RegularFile => 8,
            Self::Symlink => 10,
            Self::Socket => 12,
        }
    }
}

/// Attributes of a node.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileAttr {
    pub(super) ino: INodeNo,
    pub(super) size: u64,
    pub(super) blocks: u64,
    pub(super) atime: SystemTime,
    pub(super) mtime: SystemTime,
    pub(super) ctime: SystemTime,
    /// Creation time.
    pub(super) crtime: SystemTime,
    pub(super) kind: FileType,
    pub(super) perm: u16,
    pub(super) nlink: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u32,
    pub(super) blksize: u32,
}

/// A time to set.
#[derive(Debug, Clone, Copy)]
pub(super) enum TimeOrNow {
    SpecificTime(SystemTime),
    Now,
}

/// The changes of a `setattr`.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Changes {
    /// The open file that is changed, as by `ftruncate`.
    pub(super) handle: Option<FileHandle>,
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) size: Option<u64>,
    pub(super) atime: Option<TimeOrNow>,
    pub(super) mtime: Option<TimeOrNow>,
    /// The kernel writes back the time of cached writes: rights and flags were checked when those
    /// were made.
    pub(super) is_write_back: bool,
}

/// An open file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OpenFile {
    pub(super) node: INodeNo,
    pub(super) handle: FileHandle,
}

/// The user who makes a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl Request {
    pub(super) const fn uid(&self) -> u32 {
        self.uid
    }

    pub(super) const fn gid(&self) -> u32 {
        self.gid
    }
}

/// Makes the trait of the supported operations, and [`NullFilesystem`] one that has them.
macro_rules! operations {
    ($(fn $name:ident(&self, $($argument:ident: $kind:ty),*);)*) => {
        /// The supported operations.
        #[expect(clippy::too_many_arguments, reason = "they are the fields of requests")]
        pub(super) trait Filesystem {
            $(fn $name(&self, $($argument: $kind),*);)*
        }

        impl Filesystem for NullFilesystem {
            $(fn $name(&self, $($argument: $kind),*) {
                std::hint::black_box(($($argument),*));
            })*
        }
    };
}

operations! {
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry);
    fn forget(&self, request: &Request, node: INodeNo, lookups: u64);
    fn getattr(&self, request: &Request, node: INodeNo, reply: ReplyAttr);
    fn statx(&self, request: &Request, node: INodeNo, reply: ReplyStatx);
    fn setattr(&self, request: &Request, node: INodeNo, changes: &Changes, reply: ReplyAttr);
    fn readlink(&self, request: &Request, node: INodeNo, reply: ReplyData);
    fn mknod(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32,
        device: u32, reply: ReplyEntry);
    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32,
        reply: ReplyEntry);
    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty);
    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path,
        reply: ReplyEntry);
    fn rename(&self, request: &Request, parent: INodeNo, name: &OsStr, new_parent: INodeNo,
        new_name: &OsStr, flags: RenameFlags, reply: ReplyEmpty);
    fn link(&self, request: &Request, node: INodeNo, new_parent: INodeNo, new_name: &OsStr,
        reply: ReplyEntry);
    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen);
    fn create(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, umask: u32,
        flags: i32, reply: ReplyCreate);
    fn tmpfile(&self, request: &Request, parent: INodeNo, mode: u32, umask: u32, flags: i32,
        reply: ReplyCreate);
    fn release(&self, node: INodeNo, handle: FileHandle, reply: ReplyEmpty);
    fn read(&self, request: &Request, file: OpenFile, offset: u64, len: u32, reply: ReplyData);
    fn write(&self, request: &Request, file: OpenFile, offset: u64, data: &[u8],
        write_flags: WriteFlags, flags: OpenFlags, reply: ReplyWrite);
    fn fsync(&self, request: &Request, file: OpenFile, reply: ReplyEmpty);
    fn opendir(&self, request: &Request, node: INodeNo, reply: ReplyOpen);
    fn readdir(&self, request: &Request, node: INodeNo, offset: u64, reply: ReplyDirectory);
    fn readdirplus(&self, request: &Request, node: INodeNo, offset: u64,
        reply: ReplyDirectoryPlus);
    fn statfs(&self, request: &Request, node: INodeNo, reply: ReplyStatfs);
    fn setxattr(&self, request: &Request, node: INodeNo, name: &OsStr, value: &[u8], flags: i32,
        reply: ReplyEmpty);
    fn getxattr(&self, request: &Request, node: INodeNo, name: &OsStr, len: u32,
        reply: ReplyXattr);
    fn listxattr(&self, request: &Request, node: INodeNo, len: u32, reply: ReplyXattr);
    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty);
    fn access(&self, request: &Request, node: INodeNo, mask: AccessFlags, reply: ReplyEmpty);
    fn ioctl(&self, request: &Request, node: INodeNo, command: u32, data: &[u8],
        reply: ReplyIoctl);
    fn fallocate(&self, request: &Request, file: OpenFile, offset: u64, len: u64, mode: i32,
        reply: ReplyEmpty);
    fn lseek(&self, request: &Request, file: OpenFile, offset: i64, whence: i32,
        reply: ReplyLseek);
    fn copy_file_range(&self, request: &Request, from: OpenFile, from_offset: u64, to: OpenFile,
        to_offset: u64, len: u64, reply: ReplyWrite);
}
