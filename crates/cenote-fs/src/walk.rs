//! From a path to its node.
//!
//! Paths are bytes, relative to the root of the file system whether they begin with a slash or not.
//! Symbolic links on the way are followed inside of the file system; where an absolute one leads is
//! only known on the machine that it was made on, so it is refused. `..` at the root stays there.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use cenote_rt::{Error, Result};

use crate::error::FsError;
use crate::filesystem::FileSystem;
use crate::node::{FileKind, Node};

/// Symbolic links that one path may lead through, as on Linux.
const LINKS_MAX: u32 = 40;

/// What to do when the last component is a symbolic link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Follow {
    /// Give what it leads to.
    Yes,
    /// Give the link.
    No,
}

impl FileSystem {
    /// The node that `path` leads to.
    ///
    /// # Errors
    /// An [`FsError`] with `Kind::NotFound` or `Kind::Invalid`, or what reading finds damaged.
    pub async fn walk(self: &Arc<Self>, path: &[u8], follow: Follow) -> Result<Node> {
        let mut node = self.root().await?;
        // Directories above `node`, so that ".." leads back the way that was come.
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

    /// The path of a node, made of the names of its parents; `None` if it is not where its parent
    /// says, as happens to files with several links. The hidden directory of a node's extended
    /// attributes stands in the path as `<xattrdir>`, as OpenZFS writes it.
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

/// What OpenZFS calls the directory of a node's extended attributes in paths.
const XATTR_DIRECTORY: &[u8] = b"<xattrdir>";
/// Bits of a directory entry that are the object.
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
    fn slashes_and_dots_are_nothing() {
        let parts: Vec<_> = components(b"//a/./b\xff/../").collect();
        assert_eq!(parts, [b"a".to_vec(), b"b\xff".to_vec(), b"..".to_vec()]);
        assert_eq!(components(b"/").count(), 0);
    }
}
