//! Starts and answers the kernel's requests, decoded by the [wire](super::wire) module.
//!
//! A request is started on the thread that read it. If it has to wait, it continues as a task, and
//! the thread reads the next request. So requests served from memory are answered at once, and
//! others do not block them. Only to make something durable a thread itself waits, while another
//! thread reads requests ([`service`](super::service)).
//!
//! Files are opened and closed with messages, for two reasons. The kernel does not know the flags
//! of a node that forbid changes, so an immutable file is refused here. And while a file is open
//! for reading and writing, there may be dirty pages of a mapping where the file has a hole:
//! `lseek` reports no holes until the last such handle is released
//! ([`Nodes`](super::nodes::Nodes)). A handle only records whether the file can be mapped in this
//! way. A node is held as long as the kernel knows it, open or not.
//!
//! Directories need no messages: the first `opendir` is answered with `ENOSYS`, and the kernel
//! sends no further ones. The same holds for `flush`, at `close`.
//!
//! Locks are managed by the kernel.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_fs::access::Credentials;
use cenote_fs::acl::Want;
use cenote_fs::edit::xattr::Existing;
use cenote_fs::edit::{NewKind, NewNode, Rename, RenameMode, SetAttributes, SetTime};
use cenote_fs::mount::{
    Allocate, Attributes, DirEntry, Seek, Space, WriteOptions, caches_data, decode_dev, encode_rdev,
};
use cenote_rt::{Buf, BufMut, Result, Runtime};

use super::convert::{NOTHING, attributes, errno_of, file_type, generation, time};
use super::flags;
use super::queues;
use super::service::{Service, hand_over};
use super::vfs::{Opening, POSIX_ACLS, Vfs, checked_by_kernel, is_mappable};
use super::wire::{
    AccessFlags, Changes, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, Negotiation, OpenFile, OpenFlags, Refuse, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyStatx, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

/// Longest read or write.
pub(super) const REQUEST_MAX: u32 = 1 << 20;
/// Entries of a directory that are looked up at a time.
const ENTRIES: usize = 128;
/// Requests that the kernel may have in flight in the background.
const BACKGROUND: u16 = 64;

/// Requests of at least this length take long: the connection is handed to another thread.
const LONG_FROM: usize = 64 << 10;
/// Maximum waits of a thread for one durable request: for blocks of the log, and for the flush.
const WAITS: u32 = 4;

const TYPE_MASK: u32 = 0o170_000;
const PERMISSION_MASK: u32 = 0o7777;
const O_EXCL: i32 = 0o200;
const O_APPEND: i32 = 0o2000;
const O_DSYNC: i32 = 0o10_000;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 16;

/// Expected duration of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Short,
    Long,
    /// It makes something durable, and its thread waits for that.
    Durable,
}

impl Pace {
    /// Returns the pace of a request of `len` bytes.
    fn of(len: usize) -> Self {
        if len < LONG_FROM { Self::Short } else { Self::Long }
    }
}

/// Serves the requests of one mount.
pub(super) struct Adapter {
    vfs: Arc<Vfs>,
    runtime: Runtime,
    service: Arc<Service>,
    is_writeback: bool,
    /// Whether the kernel works without messages for opening directories.
    needs_no_opendir: bool,
}

impl Adapter {
    pub(super) fn new(vfs: Arc<Vfs>, service: Arc<Service>, is_writeback: bool) -> Self {
        Self { vfs, runtime: Runtime::here(), service, is_writeback, needs_no_opendir: false }
    }

    /// Returns the name of the pool.
    pub(super) fn pool(&self) -> String {
        self.vfs.mount().engine().name()
    }

    /// Returns the parameters that this server requests for a connection, given the longest request
    /// through io_uring.
    pub(super) fn negotiation(&self, ring_max: Option<u32>) -> Negotiation {
        let mut wanted = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_NO_OPENDIR_SUPPORT
            // A default ACL replaces the umask: the server needs mode and umask separately.
            | InitFlags::FUSE_DONT_MASK
            | InitFlags::FUSE_HANDLE_KILLPRIV_V2
            // Only this server changes files: the kernel drops pages when it is notified.
            | InitFlags::FUSE_EXPLICIT_INVAL_DATA;
        if self.vfs.has_posix_acls {
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        if self.is_writeback {
            wanted |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        Negotiation { wanted, request_max: REQUEST_MAX, background: BACKGROUND, ring_max }
    }

    /// Stores the kernel's capabilities.
    pub(super) fn agreed(&mut self, there: InitFlags) {
        self.needs_no_opendir = there.contains(InitFlags::FUSE_NO_OPENDIR_SUPPORT);
        let checks_acls = self.vfs.has_posix_acls && there.contains(InitFlags::FUSE_POSIX_ACL);
        self.vfs.checks_acls.store(checks_acls, Ordering::Release);
    }

    /// Starts a request of this pace.
    fn begin_at<F>(&self, pace: Pace, work: impl FnOnce(Arc<Vfs>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let vfs = Arc::clone(&self.vfs);
        let work = work(Arc::clone(&vfs));
        let work = async move {
            // Held until the request is answered.
            let _pass = vfs.gate.enter().await;
            work.await;
        };
        if pace != Pace::Short && queues::is_here() {
            return self.begin_elsewhere(pace, work);
        }
        let is_replaced = hand_over(pace != Pace::Short);
        if pace == Pace::Durable && is_replaced {
            self.runtime.begin_with_inline_waits(WAITS, work);
        } else {
            self.runtime.begin(work);
        }
    }

    /// Starts a long request on another thread: the program that waits may need this processor, and
    /// others the thread of the ring.
    fn begin_elsewhere(&self, pace: Pace, work: impl Future<Output = ()> + Send + 'static) {
        if pace != Pace::Durable || !self.service.has_idle_thread() {
            return self.runtime.spawn(work);
        }
        let runtime = self.runtime.clone();
        self.service.lend_thread(move |may_wait| {
            let waits = if may_wait { WAITS } else { 0 };
            runtime.begin_with_inline_waits(waits, work);
        });
    }

    /// Starts a request.
    fn begin<F: Future<Output = ()> + Send + 'static>(&self, work: impl FnOnce(Arc<Vfs>) -> F) {
        self.begin_at(Pace::Short, work);
    }

    /// Starts a request of this pace, which `answer` answers, or its error.
    fn begin_with<R, T, F>(
        &self,
        pace: Pace,
        reply: R,
        answer: impl FnOnce(R, &Vfs, T) + Send + 'static,
        work: impl FnOnce(Arc<Vfs>) -> F,
    ) where
        R: Refuse + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        self.begin_at(pace, |vfs| {
            let work = work(Arc::clone(&vfs));
            async move {
                match work.await {
                    Ok(done) => answer(reply, &vfs, done),
                    Err(error) => reply.error(errno_of(&error)),
                }
            }
        });
    }

    /// Starts a request whose answer is only success or an error.
    fn begin_empty<F>(&self, reply: ReplyEmpty, work: impl FnOnce(Arc<Vfs>) -> F)
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        self.begin_with(Pace::Short, reply, |reply, _, ()| reply.ok(), work);
    }

    /// Starts a request whose answer gives the kernel a node.
    fn begin_entry<F>(&self, reply: ReplyEntry, work: impl FnOnce(Arc<Vfs>) -> F)
    where
        F: Future<Output = Result<Attributes>> + Send + 'static,
    {
        let answer = |reply, vfs: &Vfs, found| answer_entry(reply, vfs, &found);
        self.begin_with(Pace::Short, reply, answer, work);
    }

    /// Starts a request whose answer are attributes.
    fn begin_attr<F>(&self, reply: ReplyAttr, work: impl FnOnce(Arc<Vfs>) -> F)
    where
        F: Future<Output = Result<Attributes>> + Send + 'static,
    {
        let answer = |reply: ReplyAttr, _: &Vfs, found: Attributes| {
            reply.attr(&Vfs::ttl(&found), &attributes(&found));
        };
        self.begin_with(Pace::Short, reply, answer, work);
    }
}

/// Returns the flags of an opened file: pages are kept across open and close, unless `primarycache`
/// excludes data. With direct I/O the kernel does not allow shared mappings.
fn fopen_flags(vfs: &Vfs, is_unmappable: bool) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, caches_data(&vfs.mount()));
    flags.set(FopenFlags::FOPEN_DIRECT_IO, is_unmappable);
    flags
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as the handlers have it")]
fn cred_of(request: &Request) -> Credentials {
    checked_by_kernel(request.uid(), request.gid())
}

fn bytes(name: &OsStr) -> Vec<u8> {
    name.as_bytes().to_vec()
}

/// Returns the kind of node for `mknod`; `None` for kinds that it cannot create.
fn new_kind(mode: u32, device: u32) -> Option<NewKind<'static>> {
    let (major, minor) = decode_dev(device.into());
    let device = encode_rdev(major, minor);
    Some(match (mode & TYPE_MASK) >> 12 {
        1 => NewKind::Fifo,
        2 => NewKind::CharDevice(device),
        6 => NewKind::BlockDevice(device),
        0 | 8 => NewKind::Regular,
        12 => NewKind::Socket,
        _ => return None,
    })
}

fn new_node(kind: NewKind<'_>, mode: u32, umask: u32) -> NewNode<'_> {
    let mut new = NewNode::new(kind, mode & PERMISSION_MASK);
    new.umask = umask;
    new
}

fn set_time(wanted: TimeOrNow) -> SetTime {
    match wanted {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => SetTime::To(time(at)),
    }
}

impl Filesystem for Adapter {
    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (cred, name) = (cred_of(request), bytes(name));
        self.begin(|vfs| async move {
            match vfs.lookup(&cred, parent.0, &name).await {
                Ok(found) => answer_entry(reply, &vfs, &found),
                Err(error) => match (errno_of(&error), vfs.absence_ttl(parent.0, &name)) {
                    (Errno::ENOENT, ttl) if !ttl.is_zero() => {
                        reply.entry_with_ttls(&ttl, &ttl, &NOTHING, Generation(0));
                    }
                    (number, _) => reply.error(number),
                },
            }
        });
    }

    fn forget(&self, _: &Request, node: INodeNo, lookups: u64) {
        self.begin(|vfs| async move { vfs.forget(node.0, lookups).await });
    }

    fn getattr(&self, _: &Request, node: INodeNo, reply: ReplyAttr) {
        self.begin_attr(reply, |vfs| async move { vfs.attributes(node.0).await });
    }

    fn statx(&self, _: &Request, node: INodeNo, reply: ReplyStatx) {
        let answer = |reply: ReplyStatx, _: &Vfs, found: Attributes| {
            reply.statx(&Vfs::ttl(&found), &attributes(&found));
        };
        let work = |vfs: Arc<Vfs>| async move { vfs.attributes(node.0).await };
        self.begin_with(Pace::Short, reply, answer, work);
    }

    fn setattr(&self, request: &Request, node: INodeNo, changes: &Changes, reply: ReplyAttr) {
        let cred = cred_of(request);
        let Changes { handle, mode, uid, gid, size, atime, mtime, is_write_back } = *changes;
        let wanted = SetAttributes {
            mode: mode.map(|mode| mode & PERMISSION_MASK),
            uid,
            gid,
            size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            is_write_back,
            ..SetAttributes::default()
        };
        self.begin_attr(reply, |vfs| async move {
            vfs.set_attributes(cred, vfs.check_handle(node, handle)?, &wanted).await
        });
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        let answer = |reply: ReplyData, _: &Vfs, target: Vec<u8>| reply.data(&target);
        let work = |vfs: Arc<Vfs>| async move { vfs.target(node.0).await };
        self.begin_with(Pace::Short, reply, answer, work);
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = new_kind(mode, device) else { return reply.error(Errno::EINVAL) };
        let (cred, name) = (cred_of(request), bytes(name));
        self.begin_entry(reply, |vfs| async move {
            vfs.make(&cred, parent.0, &name, &new_node(kind, mode, umask)).await
        });
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (cred, name) = (cred_of(request), bytes(name));
        self.begin_entry(reply, |vfs| async move {
            let new = new_node(NewKind::Directory, mode, umask);
            vfs.make(&cred, parent.0, &name, &new).await
        });
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (cred, name) = (cred_of(request), bytes(name));
        self.begin_empty(reply, |vfs| async move {
            vfs.mount().unlink(&cred, vfs.changing(parent.0)?, &name).await
        });
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (cred, name) = (cred_of(request), bytes(name));
        self.begin_empty(reply, |vfs| async move { vfs.rmdir(&cred, parent.0, &name).await });
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let (cred, name) = (cred_of(request), bytes(name));
        let target = bytes(target.as_os_str());
        self.begin_entry(reply, |vfs| async move {
            let new = NewNode::new(NewKind::Symlink(&target), 0o777);
            vfs.make(&cred, parent.0, &name, &new).await
        });
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = if flags.is_empty() {
            RenameMode::Plain
        } else if flags == RenameFlags::RENAME_NOREPLACE {
            RenameMode::NoReplace
        } else if flags == RenameFlags::RENAME_EXCHANGE {
            RenameMode::Exchange
        } else if flags == RenameFlags::RENAME_WHITEOUT {
            RenameMode::Whiteout
        } else {
            return reply.error(Errno::EINVAL);
        };
        let (cred, name, new_name) = (cred_of(request), bytes(name), bytes(new_name));
        self.begin_empty(reply, |vfs| async move {
            let from = (vfs.changing(parent.0)?, &name[..]);
            let to = (vfs.changing(new_parent.0)?, &new_name[..]);
            vfs.mount().rename(&cred, &Rename { from, to, mode }).await
        });
    }

    fn link(
        &self,
        request: &Request,
        node: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let (cred, name) = (cred_of(request), bytes(new_name));
        self.begin_entry(
            reply,
            |vfs| async move { vfs.link(&cred, node.0, new_parent.0, &name).await },
        );
    }

    fn open(&self, request: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let (cred, opening) = (cred_of(request), Opening::of(flags.0));
        let answer = move |reply: ReplyOpen, vfs: &Vfs, is_unmappable| {
            reply.opened(vfs.handle(opening), fopen_flags(vfs, is_unmappable));
        };
        let work = |vfs: Arc<Vfs>| async move { vfs.open(&cred, node.0, opening).await };
        self.begin_with(Pace::Short, reply, answer, work);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (cred, name, opening) = (cred_of(request), bytes(name), Opening::of(flags));
        let answer = move |reply: ReplyCreate, vfs: &Vfs, (made, is_unmappable): (_, bool)| {
            let (attr, number) = (attributes(&made), generation(&made));
            let flags = fopen_flags(vfs, is_unmappable);
            let ttls = (Vfs::ttl(&made), vfs.name_ttl(made.object));
            reply.created(ttls, &attr, number, vfs.handle(opening), flags);
        };
        self.begin_with(Pace::Short, reply, answer, |vfs| async move {
            let new = new_node(NewKind::Regular, mode, umask);
            let is_exclusive = flags & O_EXCL != 0;
            vfs.create(&cred, parent.0, &name, &new, (opening, is_exclusive)).await
        });
    }

    fn tmpfile(
        &self,
        request: &Request,
        parent: INodeNo,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (cred, opening) = (cred_of(request), Opening::of(flags));
        let answer = move |reply: ReplyCreate, vfs: &Vfs, made: Attributes| {
            let (attr, number) = (attributes(&made), generation(&made));
            let (ttls, flags) =
                ((Vfs::ttl(&made), vfs.name_ttl(made.object)), fopen_flags(vfs, false));
            reply.created(ttls, &attr, number, vfs.handle(opening), flags);
        };
        self.begin_with(Pace::Short, reply, answer, |vfs| async move {
            let new = new_node(NewKind::Regular, mode, umask);
            vfs.create_unnamed(&cred, parent.0, &new, opening).await
        });
    }

    fn release(&self, node: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
        // Before the answer: then a caller that waits for the answer finds the file closed.
        if is_mappable(handle) {
            self.vfs.nodes.close_mappable(node.0);
        }
        reply.ok();
    }

    fn read(&self, _: &Request, file: OpenFile, offset: u64, len: u32, reply: ReplyData) {
        let len = len as usize;
        let answer = |reply: ReplyData, _: &Vfs, data: Buf| reply.data(&data);
        self.begin_with(Pace::of(len), reply, answer, |vfs| async move {
            vfs.read(vfs.node_of(file)?, offset, len).await
        });
    }

    fn write(
        &self,
        request: &Request,
        file: OpenFile,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        reply: ReplyWrite,
    ) {
        let cred = cred_of(request);
        // The thread reads its next request into the same memory.
        let mut kept = BufMut::for_filling(data.len());
        kept.copy_from_slice(data);
        let drops_set_ids = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        // Pages written back by the kernel carry the flags of an arbitrary open file.
        let is_cached = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let is_sync = !is_cached && flags.0 & O_DSYNC != 0;
        let is_append = !is_cached && flags.0 & O_APPEND != 0;
        let pace = if is_sync {
            Pace::Durable
        } else if queues::is_here() {
            // The data is only stored until the txg is synced: to wake another thread takes longer.
            Pace::Short
        } else {
            Pace::of(data.len())
        };
        self.begin_with(pace, reply, answer_count, |vfs| async move {
            let how = WriteOptions { is_append, is_sync, is_write_back: is_cached };
            vfs.write(cred, vfs.node_of(file)?, offset, &kept, (how, drops_set_ids)).await
        });
    }

    fn fsync(&self, _: &Request, file: OpenFile, reply: ReplyEmpty) {
        let answer = |reply: ReplyEmpty, _: &Vfs, ()| reply.ok();
        self.begin_with(Pace::Durable, reply, answer, |vfs| async move {
            vfs.fsync(vfs.node_of(file)?).await
        });
    }

    fn opendir(&self, _: &Request, _: INodeNo, reply: ReplyOpen) {
        if self.needs_no_opendir {
            return reply.error(Errno::ENOSYS);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR);
    }

    fn readdir(&self, _: &Request, node: INodeNo, offset: u64, mut reply: ReplyDirectory) {
        self.begin_at(Pace::Long, |vfs| async move {
            let mut listing = Listing::new(node.0, offset);
            loop {
                let entry = match listing.next(&vfs).await {
                    Ok(Some(entry)) => entry,
                    Ok(None) => return reply.ok(),
                    Err(error) => return reply.error(errno_of(&error)),
                };
                let kind = match entry.kind {
                    Some(kind) => file_type(kind),
                    None => match vfs.attributes(entry.object).await {
                        Ok(found) => file_type(found.kind),
                        Err(_) => FileType::RegularFile,
                    },
                };
                let name = OsStr::from_bytes(&entry.name);
                if reply.add(INodeNo(entry.object), entry.cookie, kind, name) {
                    return reply.ok();
                }
            }
        });
    }

    fn readdirplus(&self, _: &Request, node: INodeNo, offset: u64, mut reply: ReplyDirectoryPlus) {
        self.begin_at(Pace::Long, |vfs| async move {
            let mut listing = Listing::new(node.0, offset);
            loop {
                let entry = match listing.next(&vfs).await {
                    Ok(Some(entry)) => entry,
                    Ok(None) => return reply.ok(),
                    Err(error) => return reply.error(errno_of(&error)),
                };
                let is_dots = entry.name == b"." || entry.name == b"..";
                // The kernel does not keep the nodes of these two.
                let found = if is_dots {
                    vfs.attributes(entry.object).await
                } else {
                    vfs.give(entry.object).await
                };
                // Entries that were removed meanwhile are skipped.
                let Ok(found) = found else { continue };
                let (number, attr) = (INodeNo(found.object), attributes(&found));
                let name = OsStr::from_bytes(&entry.name);
                let ttl = Vfs::ttl(&found).min(vfs.name_ttl(found.object));
                if reply.add(number, entry.cookie, name, &ttl, &attr, generation(&found)) {
                    if !is_dots {
                        // The kernel was not given this node.
                        vfs.forget(found.object, 1).await;
                    }
                    return reply.ok();
                }
            }
        });
    }

    fn statfs(&self, _: &Request, node: INodeNo, reply: ReplyStatfs) {
        let answer = |reply: ReplyStatfs, _: &Vfs, space: Space| {
            let blocks = [space.blocks, space.free_blocks, space.free_blocks];
            let block = space.block_size as u32;
            reply.statfs(blocks, [space.files, space.free_files], [block, space.name_max, block]);
        };
        let work = |vfs: Arc<Vfs>| async move { vfs.space(node.0).await };
        self.begin_with(Pace::Short, reply, answer, work);
    }

    fn setxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        reply: ReplyEmpty,
    ) {
        let existing = match flags {
            0 => Existing::Any,
            XATTR_CREATE => Existing::Missing,
            XATTR_REPLACE => Existing::There,
            _ => return reply.error(Errno::EINVAL),
        };
        let (cred, name, value) = (cred_of(request), bytes(name), value.to_vec());
        self.begin_empty(reply, |vfs| async move {
            vfs.check_xattrs()?;
            vfs.check_acl_change(&name)?;
            let object = vfs.changing(node.0)?;
            vfs.mount().set_xattr(&cred, object, &name, &value, existing).await?;
            notify_of_xattr(&vfs, node, &name);
            Ok(())
        });
    }

    fn getxattr(
        &self,
        request: &Request,
        node: INodeNo,
        name: &OsStr,
        len: u32,
        reply: ReplyXattr,
    ) {
        let (cred, name) = (cred_of(request), bytes(name));
        self.begin(|vfs| async move {
            match vfs.xattr(&cred, node.0, &name).await {
                Ok(value) => answer_sized(reply, len, &value),
                Err(error) => {
                    let number = errno_of(&error);
                    // If the kernel checks ACLs, a missing ACL must look like an empty one.
                    let is_off = number == Errno::EOPNOTSUPP && vfs.has_posix_acls && is_acl(&name);
                    reply.error(if is_off { Errno::ENODATA } else { number });
                }
            }
        });
    }

    fn listxattr(&self, request: &Request, node: INodeNo, len: u32, reply: ReplyXattr) {
        let cred = cred_of(request);
        let answer = move |reply: ReplyXattr, _: &Vfs, names: Vec<Vec<u8>>| {
            let ends = names.iter().flat_map(|name| name.iter().chain(&[0]));
            answer_sized(reply, len, &ends.copied().collect::<Vec<u8>>());
        };
        let work = |vfs: Arc<Vfs>| async move { vfs.xattrs(&cred, node.0).await };
        self.begin_with(Pace::Short, reply, answer, work);
    }

    fn removexattr(&self, request: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (cred, name) = (cred_of(request), bytes(name));
        self.begin_empty(reply, |vfs| async move {
            vfs.check_xattrs()?;
            vfs.check_acl_change(&name)?;
            vfs.mount().remove_xattr(&cred, vfs.changing(node.0)?, &name).await?;
            notify_of_xattr(&vfs, node, &name);
            Ok(())
        });
    }

    fn access(&self, request: &Request, node: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        // Not called by a kernel that checks permissions itself.
        let cred = Credentials::user(request.uid(), request.gid(), Vec::new());
        let mut want = Want::empty();
        for (flag, right) in [
            (AccessFlags::R_OK, Want::READ),
            (AccessFlags::W_OK, Want::WRITE),
            (AccessFlags::X_OK, Want::EXECUTE),
        ] {
            want.set(right, mask.contains(flag));
        }
        self.begin_empty(reply, |vfs| async move { vfs.access(&cred, node.0, want).await });
    }

    fn ioctl(
        &self,
        request: &Request,
        node: INodeNo,
        command: u32,
        data: &[u8],
        reply: ReplyIoctl,
    ) {
        let cred = flags::credentials(request.uid(), request.gid());
        let data = data.to_vec();
        let answer = |reply: ReplyIoctl, _: &Vfs, said: Option<Vec<u8>>| match said {
            Some(said) => reply.ioctl(0, &said),
            None => reply.error(Errno::ENOTTY),
        };
        self.begin_with(Pace::Short, reply, answer, |vfs| async move {
            flags::ioctl(&vfs, cred, node.0, command, &data).await
        });
    }

    fn fallocate(
        &self,
        request: &Request,
        file: OpenFile,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        const PUNCH: i32 = PUNCH_HOLE | KEEP_SIZE;
        const ZERO_KEEP: i32 = ZERO_RANGE | KEEP_SIZE;
        let how = match mode {
            0 => Allocate::Extend,
            KEEP_SIZE => Allocate::KeepSize,
            PUNCH => Allocate::PunchHole,
            ZERO_RANGE => Allocate::ZeroRange,
            ZERO_KEEP => Allocate::ZeroRangeKeepSize,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let cred = cred_of(request);
        self.begin_empty(reply, |vfs| async move {
            let object = vfs.changing(vfs.node_of(file)?)?;
            vfs.mount().allocate(&cred, object, offset, len, how).await
        });
    }

    fn lseek(&self, _: &Request, file: OpenFile, offset: i64, whence: i32, reply: ReplyLseek) {
        if self.is_writeback {
            // The kernel may still hold dirty data: it treats the whole file as data.
            return reply.error(Errno::ENOSYS);
        }
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let answer = |reply: ReplyLseek, _: &Vfs, found| reply.offset(found as i64);
        self.begin_with(Pace::Short, reply, answer, |vfs| async move {
            vfs.seek(vfs.node_of(file)?, offset, what).await
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        from: OpenFile,
        from_offset: u64,
        to: OpenFile,
        to_offset: u64,
        len: u64,
        reply: ReplyWrite,
    ) {
        let cred = cred_of(request);
        self.begin_with(Pace::Long, reply, answer_count, |vfs| async move {
            let (from, to) = (vfs.node_of(from)?, vfs.node_of(to)?);
            vfs.copy(cred, (from, from_offset), (to, to_offset), len).await
        });
    }
}

/// A listing of a directory from a cookie on.
struct Listing {
    node: u64,
    cookie: u64,
    page: std::vec::IntoIter<DirEntry>,
    is_end: bool,
    is_any_told: bool,
}

impl Listing {
    fn new(node: u64, cookie: u64) -> Self {
        let page = Vec::new().into_iter();
        Self { node, cookie, page, is_end: false, is_any_told: false }
    }

    async fn next(&mut self, vfs: &Vfs) -> Result<Option<DirEntry>> {
        loop {
            if let Some(entry) = self.page.next() {
                self.cookie = entry.cookie;
                self.is_any_told = true;
                return Ok(Some(entry));
            }
            if self.is_end {
                return Ok(None);
            }
            match vfs.read_dir(self.node, self.cookie, ENTRIES).await {
                Ok(page) => {
                    self.is_end = page.is_end;
                    self.page = page.entries.into_iter();
                }
                // The error is returned again when the rest is requested.
                Err(_) if self.is_any_told => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Answers with a number of bytes.
fn answer_count(reply: ReplyWrite, _: &Vfs, count: u64) {
    reply.written(count as u32);
}

/// Answers a lookup with a node.
fn answer_entry(reply: ReplyEntry, vfs: &Vfs, found: &Attributes) {
    let (ttl, name_ttl) = (Vfs::ttl(found), vfs.name_ttl(found.object));
    reply.entry_with_ttls(&ttl, &name_ttl, &attributes(found), generation(found));
}

fn is_acl(name: &[u8]) -> bool {
    POSIX_ACLS.contains(&name)
}

/// Notifies the kernel of a changed extended attribute: an ACL changes the mode.
fn notify_of_xattr(vfs: &Vfs, node: INodeNo, name: &[u8]) {
    if is_acl(name) {
        vfs.has_changed(node.0);
    }
}

/// Answers with a value if `len` has room for it, or with its length if `len` is 0.
fn answer_sized(reply: ReplyXattr, len: u32, value: &[u8]) {
    match len as usize {
        0 => reply.size(value.len() as u32),
        room if room < value.len() => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}
