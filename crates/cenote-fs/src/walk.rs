//! Resolves paths to nodes.
//!
//! Paths are bytes, relative to the root of the file system with or without a leading slash.
//! Symbolic links are followed within the file system; an absolute link is refused, because its
//! target depends on the machine where it was created. `..` in the root is the root.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use cenote_rt::{Error, Result};

use crate::error::FsError;
use crate::filesystem::FileSystem;
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

impl FileSystem {
    /// Returns the node at `path`.
    ///
    /// # Errors
    /// An [`FsError`] with `Kind::NotFound` or `Kind::Invalid`, or read errors.
    pub async fn walk(self: &Arc<Self>, path: &[u8], follow: Follow) -> Result<Node> {
        let mut node = self.root().await?;
        // Directories above `node`, so that ".." goes back along the path.
        let mut above: Vec<Node> = Vec::new();
        let mut rest: VecDeque<Vec<u8>> = components(path).collect();
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if !node.is_directory() {
                return Err(node.refuse(FsError::NotADirectory));
            }
            if name == b".." {
                node = above.pop().unwrap_or(node);
                continue;
            }
            let next = node.lookup(&name).await?;
            if next.kind() == FileKind::Symlink && (!rest.is_empty() || follow == Follow::Yes) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(next.refuse(FsError::TooManyLinks));
                }
                let target = next.target().await?;
                if target.first() == Some(&b'/') {
                    let target = String::from_utf8_lossy(&target).into_owned();
                    return Err(next.refuse(FsError::AbsoluteLink { target }));
                }
                for component in components(&target).collect::<Vec<_>>().into_iter().rev() {
                    rest.push_front(component);
                }
                continue;
            }
            above.push(std::mem::replace(&mut node, next));
        }
        if path.ends_with(b"/") && !node.is_directory() {
            return Err(node.refuse(FsError::NotADirectory));
        }
        Ok(node)
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

fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
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
