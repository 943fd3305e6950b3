//! Creation of files on this machine, such that nothing is ever written outside of the target.
//!
//! Every operation is relative to an open directory, and no symbolic link is followed: names and
//! links in a pool are untrusted, and an extracted link must not redirect later writes. Attributes
//! are set through a handle of the file itself, never through its name: another user who may write
//! to the directory could put a link there between two calls. Existing files and links with the
//! same name are replaced; a device, FIFO or socket is replaced only by one of the same type.
//! Operations that only root may do are omitted for other users, and counted.
//!
//! Order for one entry: contents, owner, extended attributes, mode, times. In any other order a
//! later step would undo an earlier one.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cenote_fs::{FileAttributes, FileKind, Time};
use rustix::fs::{self, AtFlags, Dev, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Uid};

use super::destination::{kind, stat};

/// Result of a system call.
pub(super) type Result<T> = rustix::io::Result<T>;

/// Writes entries to this machine.
#[derive(Debug)]
pub(super) struct Target {
    uid: Uid,
    gid: Gid,
    /// Attributes that could not be set for want of privilege or support.
    pub(super) omitted: Omitted,
}

/// Counts of omitted attributes and entries.
#[derive(Debug, Default)]
pub(super) struct Omitted {
    pub(super) devices: u64,
    pub(super) owners: u64,
    pub(super) xattrs: u64,
}

/// An entry whose attributes are to be set.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// A link, FIFO, socket or device, which is not opened: a handle made by [`Target::handle`].
    Handle(BorrowedFd<'a>),
}

impl Place<'_> {
    /// Returns a path that leads to the inode of a handle, and to nothing else, even if its name
    /// has changed.
    fn path(fd: BorrowedFd<'_>) -> String {
        format!("/proc/self/fd/{}", fd.as_raw_fd())
    }
}

impl Target {
    pub(super) fn new() -> Self {
        // One directory stays open for each level of depth. Without the larger limit very deep
        // trees fail with an error that says so.
        let mut limit = rustix::process::getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        let _ = rustix::process::setrlimit(Resource::Nofile, limit);
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Self { uid, gid, omitted: Omitted::default() }
    }

    fn is_root(&self) -> bool {
        self.uid.is_root()
    }

    /// Creates a directory, or opens an existing one.
    pub(super) fn directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
        match fs::mkdirat(parent, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        open_directory(parent, name, OFlags::NOFOLLOW)
    }

    /// Creates a hard link to the path `of` below `base`.
    pub(super) fn link(
        (base, of): (BorrowedFd<'_>, &[u8]),
        (parent, name): (BorrowedFd<'_>, &[u8]),
    ) -> Result<()> {
        // Resolves one component after the other: a folder on the path may have become a link.
        let mut components: Vec<_> = of.split(|byte| *byte == b'/').collect();
        let last = components.pop().unwrap_or_default();
        let mut folder = None;
        for component in components {
            let below = folder.as_ref().map_or(base, AsFd::as_fd);
            folder = Some(open_directory(below, component, OFlags::NOFOLLOW)?);
        }
        let folder = folder.as_ref().map_or(base, AsFd::as_fd);
        let source = fs::statat(folder, last, AtFlags::SYMLINK_NOFOLLOW)?;
        in_place(parent, name, kind(&source), || {
            fs::linkat(folder, last, parent, name, AtFlags::empty())
        })
    }

    /// Makes a symbolic link.
    pub(super) fn symlink(target: &[u8], parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
        in_place(parent, name, FileType::Symlink, || fs::symlinkat(target, parent, name))?;
        Self::handle(parent, name, FileType::Symlink)
    }

    /// Returns a handle of a file that was just created, for setting its attributes.
    ///
    /// # Errors
    /// `STALE` if the name leads to another file by now.
    fn handle(parent: BorrowedFd<'_>, name: &[u8], made: FileType) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = fs::openat(parent, name, flags, Mode::empty())?;
        let found = fs::fstat(&handle)?;
        // A second name of an existing file would have a link count above 1.
        if kind(&found) != made || found.st_nlink != 1 {
            return Err(Errno::STALE);
        }
        Ok(handle)
    }

    /// Creates a FIFO, socket or device; `None` if this user may not.
    pub(super) fn special(
        &mut self,
        kind: FileKind,
        device: Option<(u32, u32)>,
        parent: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<Option<OwnedFd>> {
        let (file_type, device): (FileType, Dev) = match (kind, device) {
            (FileKind::Fifo, _) => (FileType::Fifo, 0),
            (FileKind::Socket, _) => (FileType::Socket, 0),
            (FileKind::CharDevice, Some((major, minor))) => {
                (FileType::CharacterDevice, fs::makedev(major, minor))
            }
            (FileKind::BlockDevice, Some((major, minor))) => {
                (FileType::BlockDevice, fs::makedev(major, minor))
            }
            _ => return Err(Errno::INVAL),
        };
        let mode = Mode::RUSR | Mode::WUSR;
        let make = || fs::mknodat(parent, name, file_type, mode, device);
        match in_place(parent, name, file_type, make) {
            Err(Errno::PERM) => {
                self.omitted.devices += 1;
                Ok(None)
            }
            Err(error) => Err(error),
            Ok(()) => Self::handle(parent, name, file_type).map(Some),
        }
    }

    /// Sets owner, extended attributes, mode and times of an entry.
    pub(super) fn attributes(
        &mut self,
        place: Place<'_>,
        attributes: &FileAttributes,
        xattrs: &[(Vec<u8>, cenote_rt::Buf)],
    ) -> Result<()> {
        self.owner(place, attributes)?;
        for (name, value) in xattrs {
            self.xattr(place, name, value)?;
        }
        let is_link = FileKind::from_bits(attributes.file_type()) == FileKind::Symlink;
        if !is_link {
            let mode = Mode::from_raw_mode(self.mode(attributes));
            match place {
                Place::Open(file) => fs::fchmod(file, mode)?,
                Place::Handle(handle) => fs::chmod(Place::path(handle), mode)?,
            }
        }
        let times = Timestamps {
            last_access: timespec(attributes.atime),
            last_modification: timespec(attributes.mtime),
        };
        match place {
            Place::Open(file) => fs::futimens(file, &times),
            // The path ends in the inode itself: even the handle of a symbolic link is not
            // followed.
            Place::Handle(handle) => {
                fs::utimensat(fs::CWD, Place::path(handle), &times, AtFlags::empty())
            }
        }
    }

    fn owner(&mut self, place: Place<'_>, attributes: &FileAttributes) -> Result<()> {
        if !self.is_root() {
            return Ok(());
        }
        let owner = Some(Uid::from_raw(attributes.uid.rid()));
        let group = Some(Gid::from_raw(attributes.gid.rid()));
        let changed = match place {
            Place::Open(file) => fs::fchown(file, owner, group),
            Place::Handle(handle) => fs::chownat(handle, "", owner, group, AtFlags::EMPTY_PATH),
        };
        match changed {
            // Ids that do not exist on this machine or in this container.
            Err(Errno::PERM | Errno::INVAL | Errno::OVERFLOW) => {
                self.omitted.owners += 1;
                Ok(())
            }
            other => other,
        }
    }

    fn xattr(&mut self, place: Place<'_>, name: &[u8], value: &[u8]) -> Result<()> {
        let set = match place {
            Place::Open(file) => fs::fsetxattr(file, name, value, XattrFlags::empty()),
            Place::Handle(handle) => {
                fs::setxattr(Place::path(handle), name, value, XattrFlags::empty())
            }
        };
        match set {
            // Not permitted, not supported by this file system, or larger than the room beside the
            // inode, which ext4 reports as a full disk.
            Err(
                Errno::PERM
                | Errno::ACCESS
                | Errno::NOTSUP
                | Errno::INVAL
                | Errno::TOOBIG
                | Errno::RANGE
                | Errno::NOSPC,
            ) => {
                self.omitted.xattrs += 1;
                Ok(())
            }
            other => other,
        }
    }

    /// Returns the permissions, with set-id bits only if the owner that they refer to was kept.
    fn mode(&self, attributes: &FileAttributes) -> u32 {
        let mode = (attributes.mode & 0o7777) as u32;
        let keeps_uid = self.is_root() || attributes.uid.rid() == self.uid.as_raw();
        let keeps_gid = self.is_root() || attributes.gid.rid() == self.gid.as_raw();
        mode & if keeps_uid { !0 } else { !0o4000 } & if keeps_gid { !0 } else { !0o2000 }
    }
}

/// Opens a directory of this machine.
pub(super) fn open_directory(
    parent: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
) -> Result<OwnedFd> {
    let flags = flags | OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let name = if name.is_empty() { b"." } else { name };
    fs::openat(parent.as_fd(), name, flags, Mode::empty())
}

/// Creates a file of type `made`. An existing regular file or link of that name is removed first,
/// and so is a file of type `made`.
fn in_place(
    parent: BorrowedFd<'_>,
    name: &[u8],
    made: FileType,
    make: impl Fn() -> Result<()>,
) -> Result<()> {
    match make() {
        Err(Errno::EXIST) => {
            let found = stat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?.as_ref().map(kind);
            let is_replaced =
                |found| found == made || matches!(found, FileType::RegularFile | FileType::Symlink);
            if !found.is_none_or(is_replaced) {
                return Err(Errno::EXIST);
            }
            match fs::unlinkat(parent, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => make(),
                Err(error) => Err(error),
            }
        }
        other => other,
    }
}

fn timespec(time: Time) -> Timespec {
    // A damaged node may have any nanoseconds; the system accepts less than a second.
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.min(999_999_999) as _ }
}

#[cfg(test)]
mod tests;
