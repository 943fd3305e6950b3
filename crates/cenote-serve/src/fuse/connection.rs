//! A FUSE connection before it is mounted.
//!
//! As root the file system is created without a path (`fsopen`, `fsmount`): its number is known,
//! the guard watches it, and it answers requests before the path worker attaches it at its mount
//! point (invariants F1 and F2 of [`helper`](super::helper)). A failure before that leaves nothing
//! behind. Without root `fusermount3` does everything in one step.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use cenote_rt::{Error, Kind, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen,
};

use super::helper::{self, Operation};
use super::table::MountTable;
use super::{FuseError, MountOptions, Unmount};

const DEVICE: &str = "/dev/fuse";
/// The file system type of cenote's mounts, after `fuse.`.
const SUBTYPE: &str = "zfs";
/// Read-ahead of the kernel for sequential readers, in KiB.
const READ_AHEAD: &str = "1024";

/// A connection to the kernel, and its mount before it is attached.
#[derive(Debug)]
pub(super) struct Connection {
    /// The server's end: requests are read from it.
    pub(super) channel: OwnedFd,
    /// The kernel's number for the file system, `MAJOR:MINOR`.
    pub(super) number: Vec<u8>,
    /// The mount, if it is not attached yet; `None` if `fusermount3` has mounted it.
    mount: Option<OwnedFd>,
}

impl Connection {
    /// Creates a connection for a file system that is to be mounted at a resolved path.
    ///
    /// # Errors
    /// A [`FuseError`].
    pub(super) async fn make(
        at: &Path,
        source: &str,
        options: &MountOptions,
        is_for_all: bool,
    ) -> Result<Self> {
        let refused = |errno: Errno| {
            let kind = if errno == Errno::PERM { Kind::Permission } else { Kind::Io };
            Error::new(kind, FuseError::Refused { at: at.to_owned(), error: errno.into() })
        };
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let made = match rustix::fs::open(DEVICE, flags, Mode::empty()) {
            Err(errno @ (Errno::NOENT | Errno::NXIO | Errno::NODEV)) => {
                return Err(Error::new(Kind::Io, FuseError::Device { error: errno.into() }));
            }
            Err(Errno::ACCESS) => Err(Errno::PERM),
            channel => {
                channel.and_then(|channel| Self::detached(channel, source, options, is_for_all))
            }
        };
        match made {
            Err(Errno::PERM | Errno::NOSYS) => {
                Self::unprivileged(at, source, options, is_for_all).await
            }
            made => made.map_err(refused),
        }
    }

    fn detached(
        channel: OwnedFd,
        source: &str,
        options: &MountOptions,
        is_for_all: bool,
    ) -> std::result::Result<Self, Errno> {
        let context = context(&channel, source)?;
        if is_for_all {
            fsconfig_set_flag(&context, "allow_other")?;
        }
        if options.is_read_only {
            fsconfig_set_flag(&context, "ro")?;
        }
        fsconfig_create(&context)?;
        let mount = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(options))?;
        // Answered by the kernel from its cache: no request is sent.
        let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&mount, c"", how, StatxFlags::TYPE)?;
        let number = format!("{}:{}", found.stx_dev_major, found.stx_dev_minor).into_bytes();
        Ok(Self { channel, number, mount: Some(mount) })
    }

    async fn unprivileged(
        at: &Path,
        source: &str,
        options: &MountOptions,
        is_for_all: bool,
    ) -> Result<Self> {
        let words = [
            ("ro", options.is_read_only),
            ("nosuid", options.nosuid),
            ("nodev", options.nodev),
            ("noexec", options.noexec),
            ("allow_other", is_for_all),
        ];
        let mut text = format!("fsname={},subtype={SUBTYPE},default_permissions", escape(source));
        for (word, _) in words.iter().filter(|(_, is_set)| *is_set) {
            text.push(',');
            text.push_str(word);
        }
        let operation = Operation::MountUnprivileged;
        let (_, channel) = helper::work(operation, at, vec![text.into_bytes()], None).await?;
        let gone =
            || Error::new(Kind::Io, FuseError::Refused { at: at.into(), error: Errno::IO.into() });
        let channel = channel.ok_or_else(gone)?;
        let failed = |errno: Errno| Error::new(Kind::Io, std::io::Error::from(errno));
        let flags = rustix::fs::fcntl_getfl(&channel).map_err(failed)?;
        rustix::fs::fcntl_setfl(&channel, flags | OFlags::NONBLOCK).map_err(failed)?;
        let number = MountTable::read()?.seen_at(at).map(|seen| seen.device().to_owned());
        Ok(Self { channel, number: number.ok_or_else(gone)?, mount: None })
    }

    /// Attaches the file system at its mount point.
    ///
    /// # Errors
    /// A [`FuseError`].
    pub(super) async fn attach(mount: Option<OwnedFd>, at: &Path) -> Result<()> {
        let Some(mount) = mount else { return Ok(()) };
        helper::work(Operation::Attach, at, Vec::new(), Some(mount)).await.map(drop)
    }

    /// Takes the mount that is to be attached.
    pub(super) fn take_mount(&mut self) -> Option<OwnedFd> {
        self.mount.take()
    }
}

/// Returns the description of a mount of a connection.
fn context(channel: &OwnedFd, source: &str) -> std::result::Result<OwnedFd, Errno> {
    let context = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let texts = [
        ("source", source.to_owned()),
        ("subtype", SUBTYPE.to_owned()),
        ("fd", channel.as_raw_fd().to_string()),
        ("rootmode", "40000".to_owned()),
        ("user_id", uid.as_raw().to_string()),
        ("group_id", gid.as_raw().to_string()),
    ];
    for (name, value) in texts {
        fsconfig_set_string(&context, name, value)?;
    }
    fsconfig_set_flag(&context, "default_permissions")?;
    Ok(context)
}

/// Returns another mount of the file system of a live connection, not attached yet. The kernel
/// finds the file system by the descriptor of the connection.
///
/// # Errors
/// `ENOTCONN` if the connection has ended; `EINVAL` by kernels before 5.14; `EPERM` without root.
pub(super) fn again(
    channel: &OwnedFd,
    source: &str,
    options: &MountOptions,
) -> std::result::Result<OwnedFd, Errno> {
    let context = context(channel, source)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(options))
}

/// Whether the kernel has not closed a connection.
pub(super) fn is_open(channel: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(channel, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let polled = poll(&mut watched, Some(&now));
    let [watched] = watched;
    polled.is_ok() && !watched.revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Ends a connection that was not mounted in the end.
pub(super) async fn withdraw(number: &[u8], at: &Path, is_attached: bool) {
    if is_attached {
        let _ = unmount(at, number, Unmount::Force).await;
    }
}

/// Unmounts the file system with that number at a place.
///
/// # Errors
/// `Kind::Busy` if it is in use or hidden; a [`FuseError`].
pub(super) async fn unmount(at: &Path, number: &[u8], how: Unmount) -> Result<()> {
    let how: &[u8] = match how {
        Unmount::Plain => b"plain",
        Unmount::Detach => b"detach",
        Unmount::Force => b"force",
    };
    let fields = vec![number.to_vec(), how.to_vec()];
    helper::work(Operation::Unmount, at, fields, None).await.map(drop)
}

/// Raises the kernel's read-ahead. Only root may; without it reads come in smaller pieces.
pub(super) fn raise_read_ahead(number: &[u8]) {
    let path = format!("/sys/class/bdi/{}/read_ahead_kb", String::from_utf8_lossy(number));
    let _ = std::fs::write(path, READ_AHEAD);
}

/// Commas separate options, and a backslash escapes them.
fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace(',', "\\,")
}

fn attributes(options: &MountOptions) -> MountAttrFlags {
    let mut flags = MountAttrFlags::empty();
    flags.set(MountAttrFlags::MOUNT_ATTR_RDONLY, options.is_read_only);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOSUID, options.nosuid);
    flags.set(MountAttrFlags::MOUNT_ATTR_NODEV, options.nodev);
    flags.set(MountAttrFlags::MOUNT_ATTR_NOEXEC, options.noexec);
    flags
}

/// Encodes options as a field for the path worker.
pub(super) fn flags(options: &MountOptions) -> Vec<u8> {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.is_read_only);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    flags.bits().to_string().into_bytes()
}
