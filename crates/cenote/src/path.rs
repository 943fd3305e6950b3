//! Resolves paths to files.
//!
//! Paths are relative to the root of the file system, with or without a leading slash. `..` at the
//! root stays there. Symbolic links are followed inside of the file system; absolute ones are
//! refused, because their targets depend on where a host mounts the file system.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cenote_fs::access::Credentials;
use cenote_fs::mount::Attributes;
use cenote_fs::{FileKind, Follow, FsError, Mount};
use cenote_rt::{Error, Kind, Result};

/// Maximum number of symbolic links in a path, as on Linux.
const LINKS_MAX: u32 = 40;

/// The location of a name: a directory, and the last component in it.
pub(crate) struct Place {
    /// Object of the directory.
    pub(crate) parent: u64,
    /// Last component; empty for the root.
    pub(crate) name: Vec<u8>,
}

/// Returns the components of a path, without empty ones and dots.
pub(crate) fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    let is_name = |name: &&[u8]| !name.is_empty() && *name != b".";
    path.split(|byte| *byte == b'/').filter(is_name).map(<[u8]>::to_vec)
}

pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Finds the file at `path`.
///
/// # Errors
/// `Kind::NotFound`; `FsError::NotADirectory`, `FsError::TooManyLinks`, `FsError::AbsoluteLink`.
pub(crate) async fn find(
    mount: &Mount,
    cred: &Credentials,
    path: &[u8],
    follow: Follow,
) -> Result<Attributes> {
    let mut at = mount.attributes(mount.root()).await?;
    // Directories above `at`, for "..".
    let mut above = Vec::new();
    let mut left: VecDeque<Vec<u8>> = components(path).collect();
    let mut links = 0;
    while let Some(name) = left.pop_front() {
        if at.kind != FileKind::Directory {
            return Err(refuse(FsError::NotADirectory));
        }
        if name == b".." {
            at = above.pop().unwrap_or(at);
            continue;
        }
        let next = mount.lookup(cred, at.object, &name).await?;
        let is_followed = !left.is_empty() || follow == Follow::Yes;
        if next.kind == FileKind::Symlink && is_followed {
            links += 1;
            if links > LINKS_MAX {
                return Err(refuse(FsError::TooManyLinks));
            }
            let target = mount.read_link(next.object).await?;
            if target.first() == Some(&b'/') {
                let target = String::from_utf8_lossy(&target).into_owned();
                return Err(refuse(FsError::AbsoluteLink { target }));
            }
            for component in components(&target).rev() {
                left.push_front(component);
            }
            continue;
        }
        above.push(std::mem::replace(&mut at, next));
    }
    if path.ends_with(b"/") && at.kind != FileKind::Directory {
        return Err(refuse(FsError::NotADirectory));
    }
    Ok(at)
}

/// Finds the directory of a name that is to be created, removed or renamed.
///
/// # Errors
/// As [`find`], for the directory; `Kind::Invalid` if the path ends with `..` or is the root.
pub(crate) async fn place(mount: &Mount, cred: &Credentials, path: &[u8]) -> Result<Place> {
    let mut all: Vec<_> = components(path).collect();
    let name = all.pop().filter(|name| name != b"..");
    let name = name.ok_or_else(|| Error::new(Kind::Invalid, "the path names no entry"))?;
    let parent = find(mount, cred, &all.join(&b'/'), Follow::Yes).await?;
    if parent.kind != FileKind::Directory {
        return Err(refuse(FsError::NotADirectory));
    }
    Ok(Place { parent: parent.object, name })
}

pub(crate) fn refuse(cause: FsError) -> Error {
    Error::new(Kind::Invalid, cause)
}
