//! Where file systems are mounted: what the kernel says of it, and detaching.
//!
//! A program that ends without unmounting leaves a dead mount: everything below it fails with
//! `ENOTCONN`. The next mount at the same place detaches it, if it was one of ours.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use cenote_rt::{Error, Kind, Result};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};

use super::{FuseError, MountOptions};

/// The type that our mounts have.
pub(super) const SUBTYPE: &str = "zfs";
const TYPE: &[u8] = b"fuse.zfs";
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

/// Detaches what a program of ours left at a place, resolved as [`resolve`] does. True if there was
/// something.
///
/// # Errors
/// `Kind::Busy` if a file system of ours is mounted there; those of detaching.
pub(super) fn detach_dead(at: &Path) -> Result<bool> {
    let mut is_any = false;
    while is_ours(at)? {
        // Attributes may be in the kernel's cache: this is always asked of whoever serves it.
        match rustix::fs::statvfs(at) {
            Err(Errno::NOTCONN) => {
                detach(at, true)?;
                is_any = true;
            }
            _ => return Err(Error::new(Kind::Busy, FuseError::Mounted { at: at.into() })),
        }
    }
    Ok(is_any)
}

/// Whether a file system of ours, dead or alive, is what is seen at a place.
fn is_ours(at: &Path) -> Result<bool> {
    let table = std::fs::read(MOUNTS).map_err(|error| Error::new(Kind::Io, error))?;
    Ok(type_at(&table, at).is_some_and(|kind| kind == TYPE))
}

/// What the table says of what is mounted at a place: of several the last, which hides the others.
fn fields_at<'a>(table: &'a [u8], at: &Path) -> Option<Vec<&'a [u8]>> {
    let lines = table.split(|byte| *byte == b'\n');
    let mut lines = lines.map(|line| line.split(|byte| *byte == b' ').collect::<Vec<_>>());
    lines.rfind(|fields| {
        fields.get(4).is_some_and(|place| unescape(place).as_bytes() == at.as_os_str().as_bytes())
    })
}

/// The type of what is mounted at a place.
fn type_at(table: &[u8], at: &Path) -> Option<Vec<u8>> {
    let fields = fields_at(table, at)?.into_iter();
    // Behind the options, as many as there are, and a dash.
    fields.skip(5).skip_while(|field| *field != b"-").nth(1).map(<[u8]>::to_vec)
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
    let table = std::fs::read(MOUNTS).ok()?;
    fields_at(&table, at)?.get(2).map(|device| device.to_vec())
}

/// Numbers of the devices of everything that is mounted.
///
/// # Errors
/// Those of reading the table.
pub(super) fn devices() -> std::io::Result<BTreeSet<Vec<u8>>> {
    let table = std::fs::read(MOUNTS)?;
    let lines = table.split(|byte| *byte == b'\n');
    Ok(lines
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(2))
        .map(<[u8]>::to_vec)
        .collect())
}

/// The file that ends a connection, which belongs to who has mounted.
fn connection(at: &Path) -> Option<PathBuf> {
    let table = std::fs::read(MOUNTS).ok()?;
    let fields = fields_at(&table, at)?;
    let (_, number) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    Some(Path::new("/sys/fs/fuse/connections").join(number).join("abort"))
}

/// Gives a mount other options.
///
/// # Errors
/// `Kind::Permission`, `Kind::Busy`, `Kind::Io`.
pub(super) fn remount(at: &Path, options: &MountOptions) -> Result<()> {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.is_read_only);
    flags.set(MountFlags::NOSUID, options.nosuid);
    flags.set(MountFlags::NODEV, options.nodev);
    flags.set(MountFlags::NOEXEC, options.noexec);
    mount_remount(at, flags, c"").map_err(|error| {
        let kind = match error {
            Errno::PERM => Kind::Permission,
            Errno::BUSY => Kind::Busy,
            _ => Kind::Io,
        };
        Error::new(kind, FuseError::Refused { at: at.into(), error: error.into() })
    })
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
            32 31 0:42 / /mnt/c rw - tmpfs tmpfs rw\n";
        let of = |path: &str| {
            type_at(table, Path::new(path)).map(|kind| String::from_utf8_lossy(&kind).into_owned())
        };
        assert_eq!(of("/").as_deref(), Some("ext4"));
        assert_eq!(of("/mnt/a b").as_deref(), Some("fuse.zfs"));
        assert_eq!(of("/mnt/c").as_deref(), Some("tmpfs"));
        assert_eq!(of("/mnt"), None);
        assert_eq!(unescape(b"a\\134\\9"), OsString::from("a\\\\9"));
    }
}
