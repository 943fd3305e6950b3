//! Resolves paths to files.
//!
//! Paths are relative to the root of the file system, with or without a leading slash. `..` at the
//! root stays there. Symbolic links are followed inside of the file system; absolute ones are
//! refused, because their targets depend on where a host mounts the file system.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cenote_fs::access::Credentials;
use cenote_fs::{FileKind, Follow, FsError, Mount, components, resolve};
use cenote_rt::{Error, Kind, Result};

use crate::error::Refusal;

/// The location of a name: a directory, and the last component in it.
pub(crate) struct Place {
    /// Object of the directory.
    pub(crate) parent: u64,
    /// Last component; empty for the root.
    pub(crate) name: Vec<u8>,
}

pub(crate) fn bytes(path: &Path) -> &[u8] {
    path.as_os_str().as_bytes()
}

/// Finds the directory of a name that is to be created, removed or renamed.
///
/// # Errors
/// As [`resolve`], for the directory; `Kind::Invalid` if the path ends with `..` or is the root.
pub(crate) async fn place(mount: &Mount, cred: &Credentials, path: &[u8]) -> Result<Place> {
    let mut all: Vec<_> = components(path).collect();
    let name = all.pop().filter(|name| name != b"..");
    let name = name.ok_or_else(|| Error::new(Kind::Invalid, Refusal::NoEntry))?;
    let parent = resolve(mount, cred, &all.join(&b'/'), Follow::Yes).await?;
    if parent.kind != FileKind::Directory {
        return Err(refuse(FsError::NotADirectory));
    }
    Ok(Place { parent: parent.object, name })
}

pub(crate) fn refuse(cause: FsError) -> Error {
    Error::new(Kind::Invalid, cause)
}
