//! Where file systems are mounted: what the kernel says of it, and detaching.
//!
//! A program that ends without unmounting leaves a dead mount: everything below it fails with
//! `ENOTCONN`. The next mount at the same place detaches it, if it was one of ours.

use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cenote_rt::{Error, Kind, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};

use super::{FuseError, MountOptions};

/// The type that our mounts have.
pub(super) const SUBTYPE: &str = "zfs";
const TYPE: &[u8] = b"fuse.zfs";
const DEVICE: &str = "/dev/fuse";
const MOUNTS: &str = "/proc/self/mountinfo";
/// Pages that the kernel reads ahead of a sequential reader, in KiB.
const READ_AHEAD: &str = "1024";

/// Where a mount is to be made, without links and dots. What is there may be a dead mount, of which
/// nothing can be asked.
pub(super) fn resolve(at: &Path) -> Result<PathBuf> {
    let failed = |error| Error::new(Kind::NotFound, FuseError::Place { at: at.into(), error });
    match at.canonicalize() {
        Ok(path) => Ok(path),
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            let (Some(folder), Some(name)) = (at.parent(), at.file_name()) else {
                return Err(failed(error));
            };
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            Ok(folder.canonicalize().map_err(failed)?.join(name))
        }
        Err(error) => Err(failed(error)),
    }
}

/// Detaches what a program of ours left at a place, resolved as [`resolve`] does. True if there is
/// a file system of ours now that answers.
///
/// # Errors
/// Those of detaching.
pub(super) fn detach_dead(at: &Path) -> Result<bool> {
    loop {
        let table = MountTable::read()?;
        if table.seen_at(at).is_none_or(|seen| seen.kind != TYPE) {
            return Ok(false);
        }
        // Attributes may be in the kernel's cache: this is always asked of whoever serves it.
        match rustix::fs::statvfs(at) {
            Err(Errno::NOTCONN) => detach(at, true)?,
            _ => return Ok(true),
        }
    }
}

/// What is mounted, in the order in which that was done.
#[derive(Debug)]
pub struct MountTable(Vec<Seen>);

/// A line of it.
#[derive(Debug)]
struct Seen {
    /// The kernel's number for the file system.
    device: Vec<u8>,
    /// It is there as a whole, and not one of its folders.
    is_whole: bool,
    at: PathBuf,
    kind: Vec<u8>,
}

impl MountTable {
    /// As it is now.
    ///
    /// # Errors
    /// `Kind::Io`
    pub fn read() -> Result<Self> {
        let text = std::fs::read(MOUNTS).map_err(|error| Error::new(Kind::Io, error))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &[u8]) -> Self {
        let seen = |line: &[u8]| {
            let mut fields = line.split(|byte| *byte == b' ');
            let device = fields.nth(2)?.to_vec();
            let is_whole = fields.next()? == b"/";
            let at = PathBuf::from(unescape(fields.next()?));
            // Behind the options, as many as there are, and a dash.
            let kind = fields.skip_while(|field| *field != b"-").nth(1)?.to_vec();
            Some(Seen { device, is_whole, at, kind })
        };
        Self(text.split(|byte| *byte == b'\n').filter_map(seen).collect())
    }

    /// What is mounted at a place: of several the last, which hides the others.
    fn seen_at(&self, at: &Path) -> Option<&Seen> {
        self.0.iter().rfind(|seen| seen.at == at)
    }

    /// Where a file system is, by the kernel's number for it, with what is mounted before it.
    pub(super) fn places(&self, device: &[u8]) -> Vec<(usize, PathBuf)> {
        let lines = self.0.iter().enumerate();
        let seen = lines.filter(|(_, seen)| seen.is_whole && seen.device == device);
        seen.map(|(order, seen)| (order, seen.at.clone())).collect()
    }
}

/// Blanks and the like are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let (mut plain, mut rest) = (Vec::with_capacity(field.len()), field);
    while let [byte, behind @ ..] = rest {
        rest = behind;
        let digit = |byte: u8| matches!(byte, b'0'..=b'7').then(|| byte - b'0');
        match (byte, behind) {
            (b'\\', [a, b, c, behind @ ..]) => match (digit(*a), digit(*b), digit(*c)) {
                (Some(a @ 0..=3), Some(b), Some(c)) => {
                    plain.push(a << 6 | b << 3 | c);
                    rest = behind;
                }
                _ => plain.push(*byte),
            },
            _ => plain.push(*byte),
        }
    }
    OsString::from_vec(plain)
}

/// Unmounts; if `is_lazy`, what is in use is taken out of sight and goes when its last user does.
///
/// # Errors
/// `Kind::Busy` if it is in use.
pub(super) fn detach(at: &Path, is_lazy: bool) -> Result<()> {
    let flags = if is_lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let failed =
        |error: std::io::Error, kind| Error::new(kind, FuseError::Unmount { at: at.into(), error });
    match unmount(at, flags) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(failed(Errno::BUSY.into(), Kind::Busy)),
        // Without privileges it takes a program that has them.
        Err(Errno::PERM) => {
            let mut command = Command::new("fusermount3");
            command.args(["-u", "-q"]).args(is_lazy.then_some("-z")).arg("--").arg(at);
            let status = command.stdin(Stdio::null()).status();
            match status.map_err(|error| failed(error, Kind::Io))? {
                status if status.success() => Ok(()),
                // It says no more than that; in use is what it mostly is.
                _ => Err(failed(Errno::BUSY.into(), Kind::Busy)),
            }
        }
        Err(error) => Err(failed(error.into(), Kind::Io)),
    }
}

/// Has the kernel hand over the pages that it has not written yet.
pub(super) fn flush(at: &Path) {
    if let Ok(folder) = std::fs::File::open(at) {
        // Who cannot be asked is about to be cut off.
        let _ = rustix::fs::syncfs(&folder);
    }
}

/// Unmounts what is in use: whoever uses it gets errors from now on. Without root, for which the
/// kernel has no way, it is only taken out of sight, but where the connection can be ended.
///
/// # Errors
/// `Kind::Io`
pub(super) fn cut_off(at: &Path) -> Result<()> {
    if unmount(at, UnmountFlags::FORCE | UnmountFlags::DETACH).is_ok() {
        return Ok(());
    }
    let connection = connection(at);
    detach(at, true)?;
    if let Some(connection) = connection {
        let _ = std::fs::write(connection, "1");
    }
    Ok(())
}

/// Number of the device that the kernel has for what is mounted at a place.
pub(super) fn device(at: &Path) -> Option<Vec<u8>> {
    Some(MountTable::read().ok()?.seen_at(at)?.device.clone())
}

/// The file that ends a connection, which belongs to who has mounted.
fn connection(at: &Path) -> Option<PathBuf> {
    let device = device(at)?;
    let (_, number) = std::str::from_utf8(&device).ok()?.split_once(':')?;
    Some(Path::new("/sys/fs/fuse/connections").join(number).join("abort"))
}

/// Has the kernel mount a file system of which it asks through the device that this gives. `fuser`
/// can do so too, but when the file system ends it unmounts what is at the place by then.
///
/// # Errors
/// What the system says.
pub(super) fn mount(
    at: &Path,
    source: &str,
    options: &MountOptions,
    is_for_all: bool,
) -> std::io::Result<OwnedFd> {
    let device = rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let mode = rustix::fs::stat(at)?.st_mode;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},default_permissions{}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw(),
        if is_for_all { ",allow_other" } else { "" }
    );
    let data = CString::new(data)?;
    rustix::mount::mount(source, at, TYPE, flags(options), data.as_c_str())?;
    Ok(device)
}

/// Has what is mounted at one place at another one, too.
///
/// # Errors
/// `Kind::Permission` for who is not root; `Kind::Io`.
pub(super) fn bind(from: &Path, at: &Path, options: &MountOptions) -> Result<()> {
    mount_bind(from, at).map_err(|error| refused(at, error))?;
    // Options come with the mount that it is made of, and take a second call to change.
    mount_remount(at, MountFlags::BIND | flags(options), c"").map_err(|error| {
        // What has other options than were asked for must not stay; it is in nobody's use yet.
        let _ = unmount(at, UnmountFlags::DETACH);
        refused(at, error)
    })
}

/// Gives a mount other options.
///
/// # Errors
/// `Kind::Permission`, `Kind::Busy`, `Kind::Io`.
pub(super) fn remount(at: &Path, options: &MountOptions) -> Result<()> {
    mount_remount(at, flags(options), c"").map_err(|error| refused(at, error))
}

fn flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.is_read_only);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    flags
}

fn refused(at: &Path, error: Errno) -> Error {
    let kind = match error {
        Errno::PERM => Kind::Permission,
        Errno::BUSY => Kind::Busy,
        _ => Kind::Io,
    };
    Error::new(kind, FuseError::Refused { at: at.into(), error: error.into() })
}

/// Lets the kernel read further ahead than it does by itself. Only root may; without it reads come
/// in smaller pieces.
pub(super) fn raise_read_ahead(at: &Path) {
    use std::os::unix::fs::MetadataExt;
    let Ok(found) = std::fs::symlink_metadata(at) else { return };
    let (major, minor) = (rustix::fs::major(found.dev()), rustix::fs::minor(found.dev()));
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let _ = std::fs::write(path, READ_AHEAD);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_mounts_is_read() {
        let table = b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            30 21 0:40 / /mnt/a\\040b rw,nosuid shared:5 master:1 - fuse.zfs tank/a rw\n\
            31 21 0:41 / /mnt/c rw - fuse.zfs tank/c rw\n\
            32 31 0:42 / /mnt/c rw - tmpfs tmpfs rw\n\
            33 21 0:40 /sub /mnt/d rw - fuse.zfs tank/a rw\n\
            34 21 0:40 / /mnt/e ro shared:7 - fuse.zfs tank/a rw\n\
            broken\n";
        let table = MountTable::parse(table);
        let of = |path: &str| {
            let seen = table.seen_at(Path::new(path));
            seen.map(|seen| String::from_utf8_lossy(&seen.kind).into_owned())
        };
        assert_eq!(of("/").as_deref(), Some("ext4"));
        assert_eq!(of("/mnt/a b").as_deref(), Some("fuse.zfs"));
        assert_eq!(of("/mnt/c").as_deref(), Some("tmpfs"), "what hides the other");
        assert_eq!(of("/mnt"), None);
        assert_eq!(table.places(b"0:40"), [(1, "/mnt/a b".into()), (5, "/mnt/e".into())]);
        assert_eq!(unescape(b"a\\134\\9"), OsString::from("a\\\\9"));
    }
}
