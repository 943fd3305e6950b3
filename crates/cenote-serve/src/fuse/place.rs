//! Work on the paths of mount points. It is done by the path worker and nowhere else
//! ([`helper`](super::helper), invariant F1): every function here may have to wait for a file
//! system that the serving process serves.
//!
//! A program that ends without unmounting leaves a dead mount: everything below it fails with
//! `ENOTCONN`. The next mount at the same place detaches it, if it was one of ours.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxAttributes, StatxFlags};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MoveMountFlags, UnmountFlags, mount_bind, mount_remount, move_mount, unmount,
};

use super::Unmount;
use super::helper::{PathError, Step};
use super::table::{MountLine, MountTable};

/// Returns where a mount is to be made, without links and dots. What is there may be a dead mount,
/// of which nothing can be asked.
fn resolve(at: &Path) -> Result<PathBuf, PathError> {
    let failed = |error: std::io::Error| PathError::new(Step::Resolve, &error);
    match at.canonicalize() {
        Err(error) if error.raw_os_error() == Some(Errno::NOTCONN.raw_os_error()) => {
            let (Some(folder), Some(name)) = (at.parent(), at.file_name()) else {
                return Err(failed(error));
            };
            Ok(folder.canonicalize().map_err(failed)?.join(name))
        }
        resolved => resolved.map_err(failed),
    }
}

/// Resolves a mount point, and detaches what a program of ours that is gone left there. Returns the
/// resolved path, and whether a file system of ours is there that answers.
///
/// # Errors
/// [`Step::Resolve`]; [`Step::Unmount`].
pub(super) fn clear(at: &Path) -> Result<(PathBuf, bool), PathError> {
    let at = resolve(at)?;
    loop {
        // Attributes may be in the kernel's cache: this is always asked of the server.
        let is_dead = matches!(rustix::fs::statvfs(&at), Err(Errno::NOTCONN));
        if !is_dead && device(&at) == Some(None) {
            return Ok((at, false));
        }
        let table = MountTable::read().map_err(|_| PathError::of(Step::Resolve, Errno::IO))?;
        let is_ours = table.seen_at(&at).is_some_and(MountLine::is_ours);
        if !(is_dead && is_ours) {
            return Ok((at, is_ours));
        }
        detach(&at, true)?;
    }
}

/// Makes the folder of a mount point and those above it, after detaching a dead mount there.
///
/// # Errors
/// [`Step::Create`]; [`Step::NotEmpty`] if it must be empty and is not; those of [`clear`].
pub(super) fn make_room(at: &Path, must_be_empty: bool) -> Result<(), PathError> {
    match clear(at) {
        Err(error) if error.step == Step::Resolve && error.errno == Errno::NOENT => {}
        cleared => drop(cleared?),
    }
    std::fs::create_dir_all(at).map_err(|error| PathError::new(Step::Create, &error))?;
    let is_empty = || std::fs::read_dir(at).is_ok_and(|mut found| found.next().is_none());
    if must_be_empty && !is_empty() {
        return Err(PathError::of(Step::NotEmpty, Errno::NOTEMPTY));
    }
    Ok(())
}

/// Attaches a mount that was made before at a resolved path.
///
/// # Errors
/// [`Step::Attach`], with `ELOOP` if a link has come to the path since it was resolved.
pub(super) fn attach(mount: &OwnedFd, at: &Path) -> Result<(), PathError> {
    let failed = |errno| PathError::of(Step::Attach, errno);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let target = rustix::fs::openat2(CWD, at, flags, Mode::empty(), how).map_err(failed)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount.as_fd(), c"", target.as_fd(), c"", flags).map_err(failed)
}

#[expect(clippy::option_option, reason = "a place without a mount is not one that is unknown")]
/// Returns the number of the file system that is mounted at a place, `MAJOR:MINOR`: the inner
/// option is none if the place is no mount point, the outer if that cannot be told.
fn device(at: &Path) -> Option<Option<Vec<u8>>> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(CWD, at, flags, StatxFlags::TYPE).ok()?;
    // Kernels before 5.8 do not tell.
    let is_told = found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT);
    let is_mount = found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
    let number = format!("{}:{}", found.stx_dev_major, found.stx_dev_minor).into_bytes();
    is_told.then(|| is_mount.then_some(number))
}

/// Unmounts the file system with that number at a place.
///
/// # Errors
/// [`Step::Hidden`] if another file system is mounted over it, which the kernel would unmount
/// instead; [`Step::Unmount`], with `EBUSY` if it is in use.
pub(super) fn unmount_device(at: &Path, number: &[u8], how: Unmount) -> Result<(), PathError> {
    let seen = match device(at) {
        Some(seen) => seen,
        None => {
            MountTable::read().ok().and_then(|table| Some(table.seen_at(at)?.device().to_owned()))
        }
    };
    if !number.is_empty() && seen.is_some_and(|seen| seen != number) {
        return Err(PathError::of(Step::Hidden, Errno::BUSY));
    }
    match how {
        Unmount::Plain => detach(at, false),
        Unmount::Detach => detach(at, true),
        Unmount::Force => {
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH | UnmountFlags::NOFOLLOW;
            unmount(at, flags).or_else(|_| detach(at, true))
        }
    }
}

/// Unmounts; if `is_lazy`, what is in use is taken out of sight and goes when its last user does.
fn detach(at: &Path, is_lazy: bool) -> Result<(), PathError> {
    let failed = |errno| PathError::of(Step::Unmount, errno);
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, is_lazy);
    match unmount(at, flags) {
        // Without privileges it takes a program that has them.
        Err(Errno::PERM) => {
            let mut command = Command::new("fusermount3");
            command.args(["-u", "-q"]).args(is_lazy.then_some("-z")).arg("--").arg(at);
            let status = command.stdin(Stdio::null()).status();
            match status.map_err(|error| PathError::new(Step::Unmount, &error))? {
                status if status.success() => Ok(()),
                // It says no more than that; in use is what it mostly is.
                _ => Err(failed(Errno::BUSY)),
            }
        }
        unmounted => unmounted.map_err(failed),
    }
}

/// Has the kernel hand over the pages that it has not written yet.
pub(super) fn flush(at: &Path) {
    if let Ok(folder) = std::fs::File::open(at) {
        // A server that does not answer is about to be cut off.
        let _ = rustix::fs::syncfs(&folder);
    }
}

/// Mounts what is mounted at one of several places, the first that is not hidden, at another one,
/// too. Returns the resolved path.
///
/// # Errors
/// [`Step::Hidden`] if something else hides it everywhere; [`Step::Attach`]; those of [`clear`].
pub(super) fn bind(
    from: &[&Path],
    number: &[u8],
    at: &Path,
    flags: MountFlags,
) -> Result<PathBuf, PathError> {
    let refused = |errno| PathError::of(Step::Attach, errno);
    let (at, _) = clear(at)?;
    let table = MountTable::read().map_err(|_| PathError::of(Step::Resolve, Errno::IO))?;
    let is_seen = |place: &&&Path| table.seen_at(place).is_some_and(|seen| seen.device() == number);
    let from = from.iter().find(is_seen).ok_or(PathError::of(Step::Hidden, Errno::BUSY))?;
    mount_bind(*from, &at).map_err(refused)?;
    // Options come with the mount that it is made of, and take a second call to change.
    mount_remount(&at, MountFlags::BIND | flags, c"").map_err(|errno| {
        // A mount with other options than were asked for must not stay; nobody uses it yet.
        let _ = unmount(&at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        refused(errno)
    })?;
    Ok(at)
}

/// Gives a mount other options.
///
/// # Errors
/// [`Step::Attach`]
pub(super) fn remount(at: &Path, flags: MountFlags) -> Result<(), PathError> {
    mount_remount(at, flags, c"").map_err(|errno| PathError::of(Step::Attach, errno))
}
