//! Walks the path of a mount point by handles: each component is opened in the folder opened before
//! it, without following links, so that another user who renames or replaces components meanwhile
//! cannot redirect the walk.
//!
//! Invariants
//! * W1  A symbolic link is followed only if it belongs to root or to the user of this process, and
//!   if no other user could have put it there: its folder is writable for these users only, or it
//!   is sticky. Any other link fails the walk. Links are read through a handle, so that the checked
//!   link is the followed one.
//!
//! Only the path worker walks paths ([`helper`](super::helper), invariant F1).

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags, mkdirat, openat, readlinkat,
};
use rustix::io::Errno;

/// Maximum links per path, as many as the kernel follows.
const LINKS_MAX: usize = 40;
/// A folder in which users can rename and remove only their own files.
const STICKY: u16 = 0o1000;
/// Writable for the group, or for others.
const WRITABLE_FOR_OTHERS: u16 = 0o022;

/// Treatment of links and missing folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Walk {
    /// Trusted links are followed.
    Existing,
    /// Trusted links are followed, and missing folders are created.
    Making,
    /// A resolved path: any link fails the walk.
    Resolved,
}

/// Why a walk failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WalkError {
    /// A component cannot be opened.
    Open(Errno),
    /// A folder cannot be created.
    Make(Errno),
    /// A link that must not be followed (W1).
    Link,
}

/// Opens the folder at an absolute path. The handle (`O_PATH`) shows what is mounted there.
///
/// # Errors
/// A [`WalkError`].
pub(super) fn walk(path: &Path, how: Walk) -> Result<OwnedFd, WalkError> {
    let root = || open(CWD, OsStr::new("/"));
    let mut at = root()?;
    // Remaining components, the next one last.
    let mut left = reversed(path);
    let mut links = 0;
    while let Some(name) = left.pop() {
        if name.as_bytes() == b"/" {
            at = root()?;
            continue;
        }
        let next = match open(&at, &name) {
            Err(WalkError::Open(Errno::NOENT)) if how == Walk::Making => make(&at, &name)?,
            opened => opened?,
        };
        let seen = look(&next)?;
        match file_type(&seen) {
            FileType::Directory => at = next,
            FileType::Symlink if how == Walk::Resolved => return Err(WalkError::Link),
            FileType::Symlink => {
                links += 1;
                if links > LINKS_MAX {
                    return Err(WalkError::Open(Errno::LOOP));
                }
                // Checks W1.
                if !is_trusted(&look(&at)?, &seen) {
                    return Err(WalkError::Link);
                }
                let target = readlinkat(&next, c"", Vec::new()).map_err(WalkError::Open)?;
                let target = OsString::from_vec(target.into_bytes());
                left.append(&mut reversed(Path::new(&target)));
            }
            _ if how == Walk::Making && left.is_empty() => {
                return Err(WalkError::Make(Errno::EXIST));
            }
            _ => return Err(WalkError::Open(Errno::NOTDIR)),
        }
    }
    Ok(at)
}

/// Returns the path of a handle, without links and dots.
///
/// # Errors
/// Errors of `/proc`; `ENOENT` if it was removed.
pub(super) fn path_of(handle: &OwnedFd) -> Result<PathBuf, Errno> {
    let text = rustix::fs::readlink(through(handle), Vec::new())?;
    let path = PathBuf::from(OsString::from_vec(text.into_bytes()));
    // The kernel marks removed files, and shows unreachable ones without a leading slash.
    let is_gone = path.as_os_str().as_bytes().ends_with(b" (deleted)") && !path.exists();
    if path.is_absolute() && !is_gone { Ok(path) } else { Err(Errno::NOENT) }
}

/// Returns a path that leads to the file of a handle and nowhere else, for system calls that take
/// no handles.
pub(super) fn through(handle: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", handle.as_raw_fd()))
}

/// Returns the attributes in the kernel's cache: no server is asked.
pub(super) fn look(handle: &OwnedFd) -> Result<Statx, WalkError> {
    let how = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    let what = StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::UID;
    rustix::fs::statx(handle, c"", how, what).map_err(WalkError::Open)
}

fn open(at: impl std::os::fd::AsFd, name: &OsStr) -> Result<OwnedFd, WalkError> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty()).map_err(WalkError::Open)
}

/// Creates a folder. Another process may create it first.
fn make(at: &OwnedFd, name: &OsStr) -> Result<OwnedFd, WalkError> {
    match mkdirat(at, name, Mode::from_raw_mode(0o777)) {
        Ok(()) | Err(Errno::EXIST) => open(at, name),
        Err(errno) => Err(WalkError::Make(errno)),
    }
}

fn reversed(path: &Path) -> Vec<OsString> {
    let components = path.components().filter(|component| *component != Component::CurDir);
    let mut names: Vec<OsString> =
        components.map(|component| component.as_os_str().to_owned()).collect();
    names.reverse();
    names
}

fn file_type(seen: &Statx) -> FileType {
    FileType::from_raw_mode(seen.stx_mode.into())
}

/// Whether a link in a folder may be followed (W1).
fn is_trusted(folder: &Statx, link: &Statx) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let is_ours = |uid: u32| uid == 0 || uid == own;
    let is_closed = is_ours(folder.stx_uid) && folder.stx_mode & WRITABLE_FOR_OTHERS == 0;
    // In a sticky folder only the owners of folder and link may replace the link.
    let is_sticky = is_ours(folder.stx_uid) && folder.stx_mode & STICKY != 0;
    is_ours(link.stx_uid) && (is_closed || is_sticky)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    /// A folder for this test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("cenote-{name}-{}", std::process::id()));
            fs::create_dir(&path).expect("a new folder");
            Self(path.canonicalize().expect("it is there"))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn found(path: &Path, how: Walk) -> Result<PathBuf, WalkError> {
        walk(path, how).map(|handle| path_of(&handle).expect("a path"))
    }

    #[test]
    fn a_walk_follows_trusted_links_only() {
        let folder = Folder::new("walk");
        let at = |name: &str| folder.0.join(name);
        fs::create_dir_all(at("a/b")).expect("folders");
        symlink("a", at("link")).expect("a link");
        assert_eq!(found(&at("link/b"), Walk::Existing), Ok(at("a/b")));
        assert_eq!(found(&at("a/../link/./b"), Walk::Existing), Ok(at("a/b")));
        assert_eq!(found(&at("link/b"), Walk::Resolved), Err(WalkError::Link));
        symlink(at("link"), at("a/absolute")).expect("a link");
        assert_eq!(found(&at("a/absolute/b"), Walk::Existing), Ok(at("a/b")));

        assert_eq!(found(&at("link/x/y"), Walk::Existing), Err(WalkError::Open(Errno::NOENT)));
        assert_eq!(found(&at("link/x/y"), Walk::Making), Ok(at("a/x/y")));
        symlink("round", at("round")).expect("a link");
        assert_eq!(found(&at("round"), Walk::Existing), Err(WalkError::Open(Errno::LOOP)));
        fs::write(at("file"), "").expect("a file");
        assert_eq!(found(&at("file"), Walk::Existing), Err(WalkError::Open(Errno::NOTDIR)));

        // Any user could have put it there, unless the folder is sticky.
        let mode = |mode| fs::set_permissions(&folder.0, fs::Permissions::from_mode(mode));
        mode(0o777).expect("a mode");
        assert_eq!(found(&at("link/b"), Walk::Existing), Err(WalkError::Link));
        mode(0o1777).expect("a mode");
        assert_eq!(found(&at("link/b"), Walk::Existing), Ok(at("a/b")));
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(at("link"), Some(54_321), None).expect("another owner");
            mode(0o755).expect("a mode");
            assert_eq!(found(&at("link/b"), Walk::Making), Err(WalkError::Link));
        }
    }
}
