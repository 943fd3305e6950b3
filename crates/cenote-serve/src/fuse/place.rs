//! Work on the paths of mount points. Only the path worker does it ([`helper`](super::helper),
//! invariant F1): every function here may have to wait for a file system that the serving process
//! serves.
//!
//! A program that ends without unmounting leaves a dead mount: every access below it fails with
//! `ENOTCONN`. The next mount at the same place detaches it, if it was one of cenote's.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, StatxAttributes};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MoveMountFlags, UnmountFlags, mount_bind, mount_remount, move_mount, unmount,
};

use super::Unmount;
use super::helper::{PathError, Step};
use super::table::{MountLine, MountTable};
use super::walk::{Walk, WalkError, look, path_of, through, walk};

impl From<WalkError> for PathError {
    fn from(error: WalkError) -> Self {
        match error {
            WalkError::Open(errno) => Self::of(Step::Resolve, errno),
            WalkError::Make(errno) => Self::of(Step::Create, errno),
            WalkError::Link => Self::of(Step::Link, Errno::LOOP),
        }
    }
}

/// Resolves a mount point, and detaches a dead cenote mount there. Returns the resolved path, and
/// whether a live cenote mount is there.
///
/// # Errors
/// [`Step::Resolve`]; [`Step::Link`]; [`Step::Unmount`].
pub(super) fn clear(at: &Path) -> Result<(PathBuf, bool), PathError> {
    cleared(at, Walk::Existing).map(|(_, at, is_ours)| (at, is_ours))
}

/// Like [`clear`], and also returns a handle.
fn cleared(at: &Path, how: Walk) -> Result<(OwnedFd, PathBuf, bool), PathError> {
    let mut handle = walk(at, how)?;
    let at = path_of(&handle).map_err(|errno| PathError::of(Step::Resolve, errno))?;
    loop {
        // Attributes may be in the kernel's cache: this call always asks the server.
        let is_dead = matches!(rustix::fs::fstatvfs(&handle), Err(Errno::NOTCONN));
        if !is_dead && device(&handle) == Some(None) {
            return Ok((handle, at, false));
        }
        let table = MountTable::read().map_err(|_| PathError::of(Step::Resolve, Errno::IO))?;
        let is_ours = table.seen_at(&at).is_some_and(MountLine::is_ours);
        if !(is_dead && is_ours) {
            return Ok((handle, at, is_ours));
        }
        detach(&at, true)?;
        handle = walk(&at, Walk::Resolved)?;
    }
}

/// Creates the folder of a mount point and its parents, after detaching a dead mount there.
/// Returns the resolved path.
///
/// # Errors
/// [`Step::Create`]; [`Step::NotEmpty`] if it must be empty and is not; the errors of [`clear`].
pub(super) fn make_room(at: &Path, must_be_empty: bool) -> Result<PathBuf, PathError> {
    let (handle, at, _) = cleared(at, Walk::Making)?;
    if must_be_empty && !is_empty(&handle) {
        return Err(PathError::of(Step::NotEmpty, Errno::NOTEMPTY));
    }
    Ok(at)
}

fn is_empty(handle: &OwnedFd) -> bool {
    let Ok(folder) = readable(handle) else { return false };
    let Ok(entries) = Dir::new(folder) else { return false };
    let is_dot = |name: &[u8]| matches!(name, b"." | b"..");
    entries.into_iter().all(|entry| entry.is_ok_and(|entry| is_dot(entry.file_name().to_bytes())))
}

/// Opens a folder for reading by its handle.
fn readable(handle: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(handle, c".", flags, Mode::empty())
}

/// Attaches a detached mount at a resolved path.
///
/// # Errors
/// [`Step::Attach`]; [`Step::Link`] if the path has contained a link since it was resolved.
pub(super) fn attach(mount: &OwnedFd, at: &Path) -> Result<(), PathError> {
    let target = again(at, Step::Attach)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount.as_fd(), c"", target.as_fd(), c"", flags)
        .map_err(|errno| PathError::of(Step::Attach, errno))
}

/// Opens a resolved path; errors are attributed to `step`.
fn again(at: &Path, step: Step) -> Result<OwnedFd, PathError> {
    walk(at, Walk::Resolved).map_err(|error| match error {
        WalkError::Open(errno) => PathError::of(step, errno),
        error => error.into(),
    })
}

#[expect(clippy::option_option, reason = "a place without a mount is not one that is unknown")]
/// Returns the number of the file system that is mounted at a place, `MAJOR:MINOR`: the inner
/// option is `None` if the place is not a mount point, the outer one if that is unknown.
fn device(handle: &OwnedFd) -> Option<Option<Vec<u8>>> {
    let found = look(handle).ok()?;
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
    // The handle keeps the mount in use, and must be closed before unmounting.
    let seen = walk(at, Walk::Resolved).ok().and_then(|handle| device(&handle));
    let seen = match seen {
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
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
            unmount_in_parent(at, flags).or_else(|_| detach(at, true))
        }
    }
}

/// Unmounts a resolved path by its name in its parent folder: no handle of the mount itself may be
/// open, and no link may be followed.
fn unmount_in_parent(at: &Path, flags: UnmountFlags) -> Result<(), Errno> {
    let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else {
        return Err(Errno::INVAL);
    };
    let folder = walk(parent, Walk::Resolved).map_err(|error| match error {
        WalkError::Open(errno) | WalkError::Make(errno) => errno,
        WalkError::Link => Errno::LOOP,
    })?;
    // The worker has one thread: no other uses its working directory.
    rustix::process::fchdir(&folder)?;
    let unmounted = unmount(name, flags | UnmountFlags::NOFOLLOW);
    rustix::process::chdir("/")?;
    unmounted
}

/// Unmounts; if `is_lazy`, a mount in use is hidden and ends with its last user.
fn detach(at: &Path, is_lazy: bool) -> Result<(), PathError> {
    let failed = |errno| PathError::of(Step::Unmount, errno);
    let mut flags = UnmountFlags::empty();
    flags.set(UnmountFlags::DETACH, is_lazy);
    match unmount_in_parent(at, flags) {
        // Without privileges it takes a program that has them.
        Err(Errno::PERM) => {
            let mut command = Command::new("fusermount3");
            command.args(["-u", "-q"]).args(is_lazy.then_some("-z")).arg("--").arg(at);
            let status = command.stdin(Stdio::null()).status();
            match status.map_err(|error| PathError::new(Step::Unmount, &error))? {
                status if status.success() => Ok(()),
                // The program reports no cause; mostly the mount is in use.
                _ => Err(failed(Errno::BUSY)),
            }
        }
        unmounted => unmounted.map_err(failed),
    }
}

/// Makes the kernel write its dirty pages back.
pub(super) fn flush(at: &Path) {
    if let Ok(folder) = walk(at, Walk::Resolved)
        && let Ok(folder) = readable(&folder)
    {
        // A server that does not answer is about to be aborted.
        let _ = rustix::fs::syncfs(&folder);
    }
}

/// Binds a mount to another place, from the first of several places that is not hidden. Returns the
/// resolved path.
///
/// # Errors
/// [`Step::Hidden`] if other mounts hide it everywhere; [`Step::Attach`]; the errors of [`clear`].
pub(super) fn bind(
    from: &[&Path],
    number: &[u8],
    at: &Path,
    flags: MountFlags,
) -> Result<PathBuf, PathError> {
    let refused = |errno| PathError::of(Step::Attach, errno);
    let (target, at, _) = cleared(at, Walk::Existing)?;
    let table = MountTable::read().map_err(|_| PathError::of(Step::Resolve, Errno::IO))?;
    let is_seen = |place: &&&Path| table.seen_at(place).is_some_and(|seen| seen.device() == number);
    let from = from.iter().find(is_seen).ok_or(PathError::of(Step::Hidden, Errno::BUSY))?;
    let source = again(from, Step::Attach)?;
    mount_bind(through(&source), through(&target)).map_err(refused)?;
    // A bind mount takes over the options of its source; changing them takes a second call.
    remount(&at, number, flags).inspect_err(|_| {
        // A mount with other options than requested must not stay; it has no users yet.
        let _ = detach(&at, true);
    })?;
    Ok(at)
}

/// Changes the options of the mount of a file system at a resolved path.
///
/// # Errors
/// [`Step::Hidden`] if another file system is mounted over it, whose options the kernel would
/// change instead; [`Step::Attach`].
pub(super) fn remount(at: &Path, number: &[u8], flags: MountFlags) -> Result<(), PathError> {
    let mount = again(at, Step::Attach)?;
    if device(&mount).is_some_and(|seen| seen.as_deref() != Some(number)) {
        return Err(PathError::of(Step::Hidden, Errno::BUSY));
    }
    mount_remount(through(&mount), MountFlags::BIND | flags, c"")
        .map_err(|errno| PathError::of(Step::Attach, errno))
}

/// Removes the folder at a resolved path if it is empty.
pub(super) fn remove_folder(at: &Path) {
    let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { return };
    if let Ok(folder) = walk(parent, Walk::Resolved) {
        // A folder that is not empty does not belong to the mount.
        let _ = rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR);
    }
}
