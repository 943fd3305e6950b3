//! The side that is written: files of this machine, made so that nothing is written elsewhere.
//!
//! Everything is done relative to an open directory, and no symbolic link is followed: names and
//! links in a pool are not ours, and a link that was extracted must not redirect what comes after
//! it. Attributes are set through a handle of the file itself, never through its name: another user
//! who may write to the directory could put a link there between two calls. Files are made anew in
//! place of files and links that had their name; a device, FIFO or socket is replaced only by its
//! like. What only root may do is left out for others, and counted.
//!
//! Order for one entry: contents, owner, extended attributes, mode, times; each would undo the one
//! before it the other way round.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cenote_fs::{FileAttributes, FileKind, Time};
use rustix::fs::{self, AtFlags, Dev, FileType, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Resource, Uid};

use super::destination::{kind, stat};

/// Result of a system call.
pub(super) type Result<T> = rustix::io::Result<T>;

/// How things are written.
#[derive(Debug)]
pub(super) struct Target {
    uid: Uid,
    gid: Gid,
    /// What could not be kept because of who we are or where we write.
    pub(super) omitted: Omitted,
}

/// Counts of what was left out.
#[derive(Debug, Default)]
pub(super) struct Omitted {
    pub(super) devices: u64,
    pub(super) owners: u64,
    pub(super) xattrs: u64,
}

/// An entry to be given its attributes.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// An open file or directory.
    Open(BorrowedFd<'a>),
    /// A link, FIFO, socket or device, which is not opened: a handle as [`Target::handle`] makes.
    Handle(BorrowedFd<'a>),
}

impl Place<'_> {
    /// A path that leads to the inode of a handle, and to nothing else, whatever its name has
    /// become.
    fn path(fd: BorrowedFd<'_>) -> String {
        format!("/proc/self/fd/{}", fd.as_raw_fd())
    }
}

impl Target {
    pub(super) fn new() -> Self {
        // A directory stays open for each level of depth. Without the larger limit very deep trees
        // fail with an error that says so.
        let mut limit = rustix::process::getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        let _ = rustix::process::setrlimit(Resource::Nofile, limit);
        let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
        Self { uid, gid, omitted: Omitted::default() }
    }

    fn is_root(&self) -> bool {
        self.uid.is_root()
    }

    /// Makes a directory, or takes the one that is there.
    pub(super) fn directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
        match fs::mkdirat(parent, name, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        open_directory(parent, name, OFlags::NOFOLLOW)
    }

    /// Makes a second name for what has the path `of` below `base`.
    pub(super) fn link(
        (base, of): (BorrowedFd<'_>, &[u8]),
        (parent, name): (BorrowedFd<'_>, &[u8]),
    ) -> Result<()> {
        // One component after the other: a folder on the way may have become a link.
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

    /// A handle of a file that was just made, for its attributes.
    ///
    /// # Errors
    /// `STALE` if the name leads to another file now.
    fn handle(parent: BorrowedFd<'_>, name: &[u8], made: FileType) -> Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = fs::openat(parent, name, flags, Mode::empty())?;
        let found = fs::fstat(&handle)?;
        // Another file's second name would be one of two.
        if kind(&found) != made || found.st_nlink != 1 {
            return Err(Errno::STALE);
        }
        Ok(handle)
    }

    /// Makes a fifo, socket or device; `None` if that is not for us to do.
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

    /// Gives an entry its owner, extended attributes, mode and times.
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
            // The path ends in the inode itself: a link that the handle is of is not followed.
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
            // Ids that this machine, or this container, does not have.
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
            // Not ours to set, not there on this file system, or more than it has room for beside
            // the inode, which ext4 tells as if it were full.
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

    /// Permissions; set-id bits only where the owner that they speak of is kept.
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

/// Makes a file of type `made`. A regular file or link that has its name is taken away, and so is
/// one of the type that is made.
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
    // Nanoseconds of a damaged node may be anything; the system takes less than a second.
    Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.min(999_999_999) as _ }
}

#[cfg(test)]
mod tests;
