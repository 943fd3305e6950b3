//! Resolves paths to nodes.
//!
//! Paths are bytes, relative to the root of the file system with or without a leading slash.
//! Symbolic links are followed within the file system; an absolute link is refused, because its
//! target depends on the machine where it was created. `..` in the root is the root.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use cenote_rt::{Error, Kind, Result};

use crate::access::Credentials;
use crate::error::FsError;
use crate::filesystem::FileSystem;
use crate::mount::{Attributes, Mount};
use crate::node::{FileKind, Node};

/// Maximum symbolic links per path, as on Linux.
const LINKS_MAX: u32 = 40;

/// Treatment of a symbolic link as the last component.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Follow it.
    Yes,
    /// Return the link itself.
    No,
}

/// Files that are found by name: those of a file system that is read, or of a mount.
trait Names: Sync {
    type File: Send;

    async fn root(&self) -> Result<Self::File>;
    fn kind(file: &Self::File) -> FileKind;
    fn refuse(&self, file: &Self::File, cause: FsError) -> Error;
    /// Returns the entry of a directory.
    async fn entry(&self, directory: &Self::File, name: &[u8]) -> Result<Self::File>;
    async fn target(&self, link: &Self::File) -> Result<Vec<u8>>;
}

impl Names for Arc<FileSystem> {
    type File = Node;

    async fn root(&self) -> Result<Node> {
        FileSystem::root(self).await
    }

    fn kind(node: &Node) -> FileKind {
        node.kind()
    }

    fn refuse(&self, node: &Node, cause: FsError) -> Error {
        node.refuse(cause)
    }

    async fn entry(&self, directory: &Node, name: &[u8]) -> Result<Node> {
        directory.lookup(name).await
    }

    async fn target(&self, link: &Node) -> Result<Vec<u8>> {
        link.target().await
    }
}

/// A mount as a user sees it.
struct MountOf<'m>(&'m Mount, &'m Credentials);

impl Names for MountOf<'_> {
    type File = Attributes;

    async fn root(&self) -> Result<Attributes> {
        self.0.attributes(self.0.root()).await
    }

    fn kind(file: &Attributes) -> FileKind {
        file.kind
    }

    fn refuse(&self, _: &Attributes, cause: FsError) -> Error {
        Error::new(Kind::Invalid, cause)
    }

    async fn entry(&self, directory: &Attributes, name: &[u8]) -> Result<Attributes> {
        self.0.lookup(self.1, directory.object, name).await
    }

    async fn target(&self, link: &Attributes) -> Result<Vec<u8>> {
        self.0.read_link(link.object).await
    }
}

/// Returns the file at `path` in a mount, as the user may look it up.
///
/// # Errors
/// As [`FileSystem::walk`], and `Kind::Permission`.
pub async fn resolve(
    mount: &Mount,
    cred: &Credentials,
    path: &[u8],
    follow: Follow,
) -> Result<Attributes> {
    walk(&MountOf(mount, cred), path, follow).await
}

async fn walk<N: Names>(names: &N, path: &[u8], follow: Follow) -> Result<N::File> {
    let mut file = names.root().await?;
    // Directories above `file`, so that ".." goes back along the path.
    let mut above = Vec::new();
    let mut rest: VecDeque<Vec<u8>> = components(path).collect();
    let mut links = 0;
    while let Some(name) = rest.pop_front() {
        if N::kind(&file) != FileKind::Directory {
            return Err(names.refuse(&file, FsError::NotADirectory));
        }
        if name == b".." {
            file = above.pop().unwrap_or(file);
            continue;
        }
        let next = names.entry(&file, &name).await?;
        let is_followed = !rest.is_empty() || follow == Follow::Yes;
        if N::kind(&next) == FileKind::Symlink && is_followed {
            links += 1;
            if links > LINKS_MAX {
                return Err(names.refuse(&next, FsError::TooManyLinks));
            }
            let target = names.target(&next).await?;
            if target.first() == Some(&b'/') {
                let target = String::from_utf8_lossy(&target).into_owned();
                return Err(names.refuse(&next, FsError::AbsoluteLink { target }));
            }
            for component in components(&target).rev() {
                rest.push_front(component);
            }
            continue;
        }
        above.push(std::mem::replace(&mut file, next));
    }
    if path.ends_with(b"/") && N::kind(&file) != FileKind::Directory {
        return Err(names.refuse(&file, FsError::NotADirectory));
    }
    Ok(file)
}

impl FileSystem {
    /// Returns the node at `path`.
    ///
    /// # Errors
    /// An [`FsError`] with `Kind::NotFound` or `Kind::Invalid`, or read errors.
    pub async fn walk(self: &Arc<Self>, path: &[u8], follow: Follow) -> Result<Node> {
        walk(self, path, follow).await
    }

    /// Returns the path of a node, built from the names of its parents; `None` if it is not in its
    /// recorded parent, as can happen to files with several links. The hidden directory of extended
    /// attributes appears as `<xattrdir>`, as in OpenZFS.
    pub async fn path_of(self: &Arc<Self>, object: u64) -> Result<Option<Vec<u8>>> {
        let mut path: Vec<u8> = Vec::new();
        let mut node = self.node(object).await?;
        let mut seen = BTreeSet::new();
        while seen.insert(node.object()) {
            if node.object() == self.root_object() {
                return Ok(Some(if path.is_empty() { b"/".to_vec() } else { path }));
            }
            let parent = node.parent().await?;
            let name = if node.is_xattr_directory() {
                Some(XATTR_DIRECTORY.to_vec())
            } else {
                let zap = cenote_dmu::Zap::of(parent.dnode.clone()).await?;
                zap.name_of(node.object(), OBJECT_MASK).await?
            };
            let Some(name) = name else { return Ok(None) };
            path.splice(0..0, [b"/", &name[..]].concat());
            node = parent;
        }
        Err(Error::corrupt(FsError::ParentLoop).in_object(self.objset.id(), object))
    }
}

/// Name of the hidden directory of extended attributes in paths.
const XATTR_DIRECTORY: &[u8] = b"<xattrdir>";
/// Bits of a directory entry that hold the object number.
const OBJECT_MASK: u64 = (1 << 48) - 1;

/// Returns the components of a path, without empty ones and dots.
pub fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_slashes_and_dots_are_ignored() {
        let parts: Vec<_> = components(b"//a/./b\xff/../").collect();
        assert_eq!(parts, [b"a".to_vec(), b"b\xff".to_vec(), b"..".to_vec()]);
        assert_eq!(components(b"/").count(), 0);
    }
}
