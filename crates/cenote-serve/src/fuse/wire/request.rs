//! Decodes requests by opcode, and passes them to a [`Filesystem`].

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cenote_rt::trace::{self, Span};

use super::{
    AccessFlags, Changes, Errno, FileHandle, Filesystem, INodeNo, Initialized, Negotiation,
    OpenFile, OpenFlags, RenameFlags, Reply, ReplyDirectory, ReplyDirectoryPlus, Request,
    TimeOrNow, Way, WriteFlags,
};

/// Bytes of a request's header.
const HEADER: usize = 40;
/// Bytes of the arguments of INIT that are used.
const INIT: u32 = 26;

mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const READLINK: u32 = 5;
    pub(super) const SYMLINK: u32 = 6;
    pub(super) const MKNOD: u32 = 8;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RMDIR: u32 = 11;
    pub(super) const RENAME: u32 = 12;
    pub(super) const LINK: u32 = 13;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const SETXATTR: u32 = 21;
    pub(super) const GETXATTR: u32 = 22;
    pub(super) const LISTXATTR: u32 = 23;
    pub(super) const REMOVEXATTR: u32 = 24;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const FSYNCDIR: u32 = 30;
    pub(super) const ACCESS: u32 = 34;
    pub(super) const CREATE: u32 = 35;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const IOCTL: u32 = 39;
    pub(super) const NOTIFY_REPLY: u32 = 41;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const READDIRPLUS: u32 = 44;
    pub(super) const RENAME2: u32 = 45;
    pub(super) const LSEEK: u32 = 46;
    pub(super) const COPY_FILE_RANGE: u32 = 47;
    pub(super) const TMPFILE: u32 = 51;
    pub(super) const STATX: u32 = 52;

    /// Returns the name of an operation.
    pub(super) fn name(opcode: u32) -> &'static str {
        match opcode {
            LOOKUP => "lookup",
            FORGET | BATCH_FORGET => "forget",
            GETATTR | STATX => "getattr",
            SETATTR => "setattr",
            READLINK => "readlink",
            SYMLINK => "symlink",
            MKNOD => "mknod",
            MKDIR => "mkdir",
            UNLINK => "unlink",
            RMDIR => "rmdir",
            RENAME | RENAME2 => "rename",
            LINK => "link",
            OPEN => "open",
            READ => "read",
            WRITE => "write",
            STATFS => "statfs",
            RELEASE => "release",
            FSYNC | FSYNCDIR => "fsync",
            SETXATTR => "setxattr",
            GETXATTR => "getxattr",
            LISTXATTR => "listxattr",
            REMOVEXATTR => "removexattr",
            OPENDIR => "opendir",
            READDIR | READDIRPLUS => "readdir",
            RELEASEDIR => "releasedir",
            ACCESS => "access",
            CREATE | TMPFILE => "create",
            IOCTL => "ioctl",
            FALLOCATE => "fallocate",
            LSEEK => "lseek",
            COPY_FILE_RANGE => "copy_file_range",
            _ => "other",
        }
    }
}

/// Bits of `setattr` that tell which of its fields are valid.
mod valid {
    pub(super) const MODE: u32 = 1;
    pub(super) const UID: u32 = 1 << 1;
    pub(super) const GID: u32 = 1 << 2;
    pub(super) const SIZE: u32 = 1 << 3;
    pub(super) const ATIME: u32 = 1 << 4;
    pub(super) const MTIME: u32 = 1 << 5;
    pub(super) const HANDLE: u32 = 1 << 6;
    pub(super) const ATIME_NOW: u32 = 1 << 7;
    pub(super) const MTIME_NOW: u32 = 1 << 8;
    pub(super) const CTIME: u32 = 1 << 10;
    /// What the kernel sends when it writes back the time of writes that it had cached. A request
    /// of a program never has these bits: through a handle programs change only the size.
    pub(super) const WRITTEN_BACK: u32 = MTIME | CTIME | HANDLE;
}

/// Result of dispatching a request.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::fuse) enum Outcome {
    /// It was started, or answered.
    Begun,
    /// It was the last request.
    Ended,
}

/// Reads numbers and names from the front of a request.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn skip(&mut self, len: usize) -> Option<()> {
        self.bytes(len).map(drop)
    }

    pub(super) fn u32(&mut self) -> Option<u32> {
        self.bytes(4)?.try_into().ok().map(u32::from_ne_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.u32().map(u32::cast_signed)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes(8)?.try_into().ok().map(u64::from_ne_bytes)
    }

    /// Reads a name up to its zero byte.
    fn name(&mut self) -> Option<&'a OsStr> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let name = self.bytes(end)?;
        self.skip(1)?;
        Some(OsStr::from_bytes(name))
    }
}

/// Answers the first request of a connection.
pub(in crate::fuse) fn initialize(
    channel: &Arc<OwnedFd>,
    message: &[u8],
    negotiation: Negotiation,
) -> Option<Initialized> {
    let (opcode, unique, ..) = header(&mut Fields::new(message))?;
    let reply = Reply::new(Way::Channel(Arc::clone(channel)), unique);
    if opcode != INIT {
        reply.error(Errno::EIO);
        return None;
    }
    let initialized = negotiation.answer(message.get(HEADER..).unwrap_or_default());
    match &initialized {
        Initialized::Agreed(body, _) | Initialized::Again(body) => reply.answer(&[body]),
        Initialized::Failed(error) => reply.error(*error),
    }
    Some(initialized)
}

/// Returns opcode, number of the request, node, and user.
fn header(fields: &mut Fields<'_>) -> Option<(u32, u64, INodeNo, Request)> {
    fields.u32()?;
    let opcode = fields.u32()?;
    let (unique, node) = (fields.u64()?, INodeNo(fields.u64()?));
    let request = Request { uid: fields.u32()?, gid: fields.u32()? };
    fields.skip(8)?;
    Some((opcode, unique, node, request))
}

/// Returns the span of a request to a file system in `pool`.
pub(in crate::fuse) fn span(message: &[u8], pool: impl FnOnce() -> String) -> Span {
    let header = || header(&mut Fields::new(message));
    trace::request(
        || header().map_or("malformed", |(opcode, ..)| opcode::name(opcode)),
        || Some(pool()),
        || header().map(|(_, _, node, _)| node.0),
    )
}

/// Passes a request to a file system.
pub(in crate::fuse) fn dispatch(filesystem: &impl Filesystem, way: Way, message: &[u8]) -> Outcome {
    let mut fields = Fields::new(message);
    let Some((opcode, unique, node, request)) = header(&mut fields) else { return Outcome::Ended };
    match opcode {
        // These two have no answers.
        opcode::FORGET => {
            if let Some(lookups) = fields.u64() {
                filesystem.forget(&request, node, lookups);
            }
            return Outcome::Begun;
        }
        opcode::BATCH_FORGET => {
            forget_all(filesystem, &request, &mut fields);
            return Outcome::Begun;
        }
        opcode::NOTIFY_REPLY => return Outcome::Begun,
        _ => {}
    }
    // If the arguments cannot be decoded, dropping the reply answers `EIO`.
    let reply = Reply::new(way, unique);
    if opcode == opcode::DESTROY {
        reply.answer(&[]);
        return Outcome::Ended;
    }
    let parsed = Parsed { request, node, fields };
    let _ = match opcode {
        opcode::READ..=opcode::WRITE
        | opcode::FSYNC
        | opcode::FSYNCDIR
        | opcode::FALLOCATE
        | opcode::LSEEK
        | opcode::COPY_FILE_RANGE => parsed.on_data(filesystem, opcode, reply),
        opcode::SETXATTR..=opcode::REMOVEXATTR => parsed.on_xattr(filesystem, opcode, reply),
        opcode::SYMLINK..=opcode::LINK | opcode::CREATE | opcode::RENAME2 | opcode::LOOKUP => {
            parsed.on_name(filesystem, opcode, reply)
        }
        _ => parsed.on_node(filesystem, opcode, reply),
    };
    Outcome::Begun
}

fn forget_all(filesystem: &impl Filesystem, request: &Request, fields: &mut Fields<'_>) {
    let (Some(count), Some(_)) = (fields.u32(), fields.u32()) else { return };
    for _ in 0..count {
        let (Some(node), Some(lookups)) = (fields.u64(), fields.u64()) else { return };
        filesystem.forget(request, INodeNo(node), lookups);
    }
}

/// A request whose arguments are not decoded yet.
struct Parsed<'a> {
    request: Request,
    node: INodeNo,
    fields: Fields<'a>,
}

impl Parsed<'_> {
    /// Dispatches requests about a name in a directory.
    fn on_name(mut self, filesystem: &impl Filesystem, opcode: u32, reply: Reply) -> Option<()> {
        let (request, parent, fields) = (&self.request, self.node, &mut self.fields);
        match opcode {
            opcode::LOOKUP => filesystem.lookup(request, parent, fields.name()?, reply.into()),
            opcode::SYMLINK => {
                let (name, target) = (fields.name()?, Path::new(fields.name()?));
                filesystem.symlink(request, parent, name, target, reply.into());
            }
            opcode::MKNOD => {
                let (mode, device, umask) = (fields.u32()?, fields.u32()?, fields.u32()?);
                fields.skip(4)?;
                let name = fields.name()?;
                filesystem.mknod(request, parent, name, mode, umask, device, reply.into());
            }
            opcode::MKDIR => {
                let (mode, umask) = (fields.u32()?, fields.u32()?);
                filesystem.mkdir(request, parent, fields.name()?, mode, umask, reply.into());
            }
            opcode::UNLINK => filesystem.unlink(request, parent, fields.name()?, reply.into()),
            opcode::RMDIR => filesystem.rmdir(request, parent, fields.name()?, reply.into()),
            opcode::RENAME | opcode::RENAME2 => {
                let new_parent = INodeNo(fields.u64()?);
                let mut flags = 0;
                if opcode == opcode::RENAME2 {
                    flags = fields.u32()?;
                    fields.skip(4)?;
                }
                let (name, new_name) = (fields.name()?, fields.name()?);
                let flags = RenameFlags::from_bits_retain(flags);
                let reply = reply.into();
                filesystem.rename(request, parent, name, new_parent, new_name, flags, reply);
            }
            opcode::LINK => {
                let node = INodeNo(fields.u64()?);
                filesystem.link(request, node, parent, fields.name()?, reply.into());
            }
            opcode::CREATE => {
                let (flags, mode, umask) = (fields.i32()?, fields.u32()?, fields.u32()?);
                fields.skip(4)?;
                let name = fields.name()?;
                filesystem.create(request, parent, name, mode, umask, flags, reply.into());
            }
            _ => reply.error(Errno::ENOSYS),
        }
        Some(())
    }

    /// Dispatches requests about the contents of a file, and syncs.
    fn on_data(mut self, filesystem: &impl Filesystem, opcode: u32, reply: Reply) -> Option<()> {
        let (request, node, fields) = (&self.request, self.node, &mut self.fields);
        // All of them begin with a handle.
        let file = OpenFile { node, handle: FileHandle(fields.u64()?) };
        match opcode {
            opcode::READ => {
                let (offset, len) = (fields.u64()?, fields.u32()?);
                filesystem.read(request, file, offset, len, reply.into());
            }
            opcode::WRITE => {
                let (offset, len, write_flags) = (fields.u64()?, fields.u32()?, fields.u32()?);
                fields.skip(8)?;
                let flags = OpenFlags(fields.i32()?);
                fields.skip(4)?;
                let data = fields.bytes(len as usize)?;
                let write_flags = WriteFlags::from_bits_retain(write_flags);
                filesystem.write(request, file, offset, data, write_flags, flags, reply.into());
            }
            opcode::FSYNC => filesystem.fsync(request, file, reply.into()),
            opcode::FSYNCDIR => {
                // Directories are opened without a message, and have no handles.
                let file = OpenFile { node, handle: FileHandle(u64::MAX) };
                filesystem.fsync(request, file, reply.into());
            }
            opcode::FALLOCATE => {
                let (offset, len, mode) = (fields.u64()?, fields.u64()?, fields.i32()?);
                filesystem.fallocate(request, file, offset, len, mode, reply.into());
            }
            opcode::LSEEK => {
                let (offset, whence) = (fields.u64()?.cast_signed(), fields.i32()?);
                filesystem.lseek(request, file, offset, whence, reply.into());
            }
            opcode::COPY_FILE_RANGE => {
                let (offset, to) = (fields.u64()?, INodeNo(fields.u64()?));
                let to = OpenFile { node: to, handle: FileHandle(fields.u64()?) };
                let (to_offset, len) = (fields.u64()?, fields.u64()?);
                let reply = reply.into();
                filesystem.copy_file_range(request, file, offset, to, to_offset, len, reply);
            }
            _ => reply.error(Errno::ENOSYS),
        }
        Some(())
    }

    /// Dispatches requests about extended attributes.
    fn on_xattr(mut self, filesystem: &impl Filesystem, opcode: u32, reply: Reply) -> Option<()> {
        let (request, node, fields) = (&self.request, self.node, &mut self.fields);
        match opcode {
            opcode::SETXATTR => {
                let (len, flags) = (fields.u32()?, fields.i32()?);
                let name = fields.name()?;
                let value = fields.bytes(len as usize)?;
                filesystem.setxattr(request, node, name, value, flags, reply.into());
            }
            opcode::GETXATTR => {
                let len = fields.u32()?;
                fields.skip(4)?;
                filesystem.getxattr(request, node, fields.name()?, len, reply.into());
            }
            opcode::LISTXATTR => filesystem.listxattr(request, node, fields.u32()?, reply.into()),
            opcode::REMOVEXATTR => {
                filesystem.removexattr(request, node, fields.name()?, reply.into());
            }
            _ => reply.error(Errno::ENOSYS),
        }
        Some(())
    }

    /// Dispatches requests about a node itself.
    fn on_node(mut self, filesystem: &impl Filesystem, opcode: u32, reply: Reply) -> Option<()> {
        let (request, node, fields) = (&self.request, self.node, &mut self.fields);
        match opcode {
            opcode::GETATTR => filesystem.getattr(request, node, reply.into()),
            opcode::STATX => filesystem.statx(request, node, reply.into()),
            opcode::TMPFILE => {
                // A name follows, which means nothing.
                let (flags, mode, umask) = (fields.i32()?, fields.u32()?, fields.u32()?);
                filesystem.tmpfile(request, node, mode, umask, flags, reply.into());
            }
            opcode::SETATTR => {
                let changes = changes(fields)?;
                filesystem.setattr(request, node, &changes, reply.into());
            }
            opcode::READLINK => filesystem.readlink(request, node, reply.into()),
            opcode::OPEN => {
                let flags = OpenFlags(fields.i32()?);
                filesystem.open(request, node, flags, reply.into());
            }
            opcode::RELEASE => {
                let handle = FileHandle(fields.u64()?);
                filesystem.release(node, handle, reply.into());
            }
            opcode::RELEASEDIR => reply.answer(&[]),
            opcode::OPENDIR => filesystem.opendir(request, node, reply.into()),
            opcode::READDIR | opcode::READDIRPLUS => {
                fields.skip(8)?;
                let (offset, room) = (fields.u64()?, fields.u32()? as usize);
                if opcode == opcode::READDIR {
                    let reply = ReplyDirectory::new(reply, room);
                    filesystem.readdir(request, node, offset, reply);
                } else {
                    let reply = ReplyDirectoryPlus::new(reply, room);
                    filesystem.readdirplus(request, node, offset, reply);
                }
            }
            opcode::STATFS => filesystem.statfs(request, node, reply.into()),
            opcode::ACCESS => {
                let mask = AccessFlags::from_bits_retain(fields.i32()?);
                filesystem.access(request, node, mask, reply.into());
            }
            opcode::IOCTL => {
                fields.skip(12)?;
                let command = fields.u32()?;
                fields.skip(8)?;
                let len = fields.u32()?;
                fields.skip(4)?;
                let data = fields.bytes(len as usize)?;
                filesystem.ioctl(request, node, command, data, reply.into());
            }
            _ => reply.error(Errno::ENOSYS),
        }
        Some(())
    }
}

fn changes(fields: &mut Fields<'_>) -> Option<Changes> {
    let bits = fields.u32()?;
    fields.skip(4)?;
    let handle = FileHandle(fields.u64()?);
    let size = fields.u64()?;
    fields.skip(8)?;
    let seconds = [fields.u64()?, fields.u64()?].map(u64::cast_signed);
    fields.skip(8)?;
    let nanoseconds = [fields.u32()?, fields.u32()?];
    fields.skip(4)?;
    let mode = fields.u32()?;
    fields.skip(4)?;
    let (uid, gid) = (fields.u32()?, fields.u32()?);
    let is = |bit: u32| bits & bit != 0;
    let time = |bit, now, seconds, nanoseconds| {
        let time = if is(now) {
            TimeOrNow::Now
        } else {
            TimeOrNow::SpecificTime(system_time(seconds, nanoseconds))
        };
        is(bit).then_some(time)
    };
    Some(Changes {
        handle: is(valid::HANDLE).then_some(handle),
        mode: is(valid::MODE).then_some(mode),
        uid: is(valid::UID).then_some(uid),
        gid: is(valid::GID).then_some(gid),
        size: is(valid::SIZE).then_some(size),
        atime: time(valid::ATIME, valid::ATIME_NOW, seconds[0], nanoseconds[0]),
        mtime: time(valid::MTIME, valid::MTIME_NOW, seconds[1], nanoseconds[1]),
        is_write_back: bits == valid::WRITTEN_BACK,
    })
}

/// Converts a time. Nanoseconds count forward, also before 1970.
pub(super) fn system_time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start =
        if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    let part = Duration::from_nanos(nanoseconds.min(999_999_999).into());
    start.and_then(|start| start.checked_add(part)).unwrap_or(UNIX_EPOCH)
}
