//! Work on the paths of mount points. It is done by the path worker and nowhere else
//! ([`helper`](super::helper), invariant F1): every function here may have to wait for a file
//! system that the serving process serves.
//!
//! A program that ends without unmounting leaves a dead mount: everything below it fails with
//! `ENOTCONN`. The next mount at the same place detaches it, if it was one of ours.

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

/// Resolves a mount point, and detaches what a program of ours that is gone left there. Returns the
/// resolved path, and whether a file system of ours is there that answers.
///
/// # Errors
/// [`Step::Resolve`]; [`Step::Link`]; [`Step::Unmount`].
pub(super) fn clear(at: &Path) -> Result<(PathBuf, bool), PathError> {
    cleared(at, Walk::Existing).map(|(_, at, is_ours)| (at, is_ours))
}

/// Does the work of [`clear`], and returns a handle as well.
fn cleared(at: &Path, how: Walk) -> Result<(OwnedFd, PathBuf, bool), PathError> {
    let mut handle = walk(at, how)?;
    let at = path_of(&handle).map_err(|errno| PathError::of(Step::Resolve, errno))?;
    loop {
        // Attributes may be in the kernel's cache: this is always asked of the server.
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

/// Makes the folder of a mount point and those above it, after detaching a dead mount there.
/// Returns the resolved path.
///
/// # Errors
/// [`Step::Create`]; [`Step::NotEmpty`] if it must be empty and is not; those of [`clear`].
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

/// Opens a folder for reading that there is a handle of.
fn readable(handle: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(handle, c".", flags, Mode::empty())
}

/// Attaches a mount that was made before at a resolved path.
///
/// # Errors
/// [`Step::Attach`]; [`Step::Link`] if a link has come to the path since it was resolved.
pub(super) fn attach(mount: &OwnedFd, at: &Path) -> Result<(), PathError> {
    let target = again(at, Step::Attach)?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(mount.as_fd(), c"", target.as_fd(), c"", flags)
        .map_err(|errno| PathError::of(Step::Attach, errno))
}

/// Opens what is at a resolved path; an error is one of that step.
fn again(at: &Path, step: Step) -> Result<OwnedFd, PathError> {
    walk(at, Walk::Resolved).map_err(|error| match error {
        WalkError::Open(errno) => PathError::of(step, errno),
        error => error.into(),
    })
}

#[expect(clippy::option_option, reason = "a place without a mount is not one that is unknown")]
/// Returns the number of the file system that is mounted at a place, `MAJOR:MINOR`: the inner
/// option is none if the place is no mount point, the outer if that cannot be told.
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
    // The handle keeps the mount in use, and must be closed before it is unmounted.
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

/// Unmounts what is mounted at a resolved path, by its name in the folder that it lies in: no
/// handle of the mount itself may be open, and no link on the way to it may be followed.
fn unmount_in_parent(at: &Path, flags: UnmountFlags) -> Result<(), Errno> {
    let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else {
        return Err(Errno::INVAL);
    };
    let folder = walk(parent, Walk::Resolved).map_err(|error| match error {
        WalkError::Open(errno) | WalkError::Make(errno) => errno,
        WalkError::Link => Errno::LOOP,
    })?;
    // The worker has one thread: its working directory is nobody else's.
    rustix::process::fchdir(&folder)?;
    let unmounted = unmount(name, flags | UnmountFlags::NOFOLLOW);
    rustix::process::chdir("/")?;
    unmounted
}

/// Unmounts; if `is_lazy`, what is in use is taken out of sight and goes when its last user does.
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
                // It says no more than that; in use is what it mostly is.
                _ => Err(failed(Errno::BUSY)),
            }
        }
        unmounted => unmounted.map_err(failed),
    }
}

/// Has the kernel hand over the pages that it has not written yet.
pub(super) fn flush(at: &Path) {
    if let Ok(folder) = walk(at, Walk::Resolved)
        && let Ok(folder) = readable(&folder)
    {
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
    let (target, at, _) = cleared(at, Walk::Existing)?;
    let table = MountTable::read().map_err(|_| PathError::of(Step::Resolve, Errno::IO))?;
    let is_seen = |place: &&&Path| table.seen_at(place).is_some_and(|seen| seen.device() == number);
    let from = from.iter().find(is_seen).ok_or(PathError::of(Step::Hidden, Errno::BUSY))?;
    let source = again(from, Step::Attach)?;
    mount_bind(through(&source), through(&target)).map_err(refused)?;
    // Options come with the mount that it is made of, and take a second call to change.
    remount(&at, flags).inspect_err(|_| {
        // A mount with other options than were asked for must not stay; nobody uses it yet.
        let _ = detach(&at, true);
    })?;
    Ok(at)
}

/// Gives a mount at a resolved path other options.
///
/// # Errors
/// [`Step::Attach`]
pub(super) fn remount(at: &Path, flags: MountFlags) -> Result<(), PathError> {
    let mount = again(at, Step::Attach)?;
    mount_remount(through(&mount), MountFlags::BIND | flags, c"")
        .map_err(|errno| PathError::of(Step::Attach, errno))
}

/// Removes the folder at a resolved path if there is nothing in it.
pub(super) fn remove_folder(at: &Path) {
    let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else { return };
    if let Ok(folder) = walk(parent, Walk::Resolved) {
        // A folder that is not empty was somebody's before.
        let _ = rustix::fs::unlinkat(&folder, name, AtFlags::REMOVEDIR);
    }
}
