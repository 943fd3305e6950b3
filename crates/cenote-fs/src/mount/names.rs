//! Names: lookup, creation, renaming, removal, and listing.

use cenote_engine::Charge;
use cenote_engine::zil::SyncMode;
use cenote_ondisk::sa::ZplAttr;
use cenote_rt::{Error, Kind, Result};

use super::control::{self, Virtual};
use super::{Attributes, Handle, Mount};
use crate::access::Credentials;
use crate::edit::{self, DirEntry, NewNode, ReadDirPage, Rename, Target};
use crate::error::FsError;
use crate::node::FileKind;

/// Cookies below this are those of `.`, `..` and `.zfs`; entries follow (spec 03 §10.1).
const DOTS_END: u64 = 3;

/// Maximum written by a change of a large directory: leaf, pointers and header, two leaves of a
/// split, two blocks of a grown pointer table.
const FAT_ZAP_COST: u64 = 7 * (16 << 10);
/// The dnodes that a change of names writes, and a spill block.
const NODES_COST: u64 = 4 << 10;

impl Mount {
    /// Returns the node of a name.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such name; permission errors.
    pub async fn lookup(&self, cred: &Credentials, parent: u64, name: &[u8]) -> Result<Attributes> {
        if let Some(found) = self.control_lookup(cred, parent, name).await? {
            return Ok(found);
        }
        self.inspect(Some(cred), |op| {
            let inode = edit::lookup(op, parent, name)?;
            Attributes::of(op, &inode)
        })
        .await
    }

    /// Returns the node at the end of a path of names, from the root; symbolic links are not
    /// followed.
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup).
    pub async fn walk(&self, cred: &Credentials, path: &[u8]) -> Result<Attributes> {
        let names = || path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        if names().next() == Some(edit::CONTROL) {
            let mut found = self.attributes(self.root()).await?;
            for name in names() {
                found = self.lookup(cred, found.object, name).await?;
            }
            return Ok(found);
        }
        self.inspect(Some(cred), |op| {
            let mut object = op.facts.root;
            let mut inode = op.inode(object)?;
            for name in names() {
                inode = edit::lookup(op, object, name)?;
                object = inode.object;
            }
            Attributes::of(op, &inode)
        })
        .await
    }

    /// Creates a node with a name.
    ///
    /// # Errors
    /// `Kind::Exists` if the name is taken; permission, name and quota errors.
    pub async fn create(
        &self,
        cred: &Credentials,
        parent: u64,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Attributes> {
        if let Some(place) = Virtual::of(parent) {
            return self.control_create(cred, place, name, new).await;
        }
        let charge = Charge::write(self.names_cost(&[parent]).await?);
        self.change(charge, Some(cred), |op| {
            let inode = edit::create(op, parent, name, new)?;
            Attributes::of(op, &inode)
        })
        .await
    }

    /// Creates a node without a name, which is freed with its last handle if it gets no name
    /// (`O_TMPFILE`).
    ///
    /// # Errors
    /// The errors of [`create`](Self::create).
    pub async fn create_unnamed(
        &self,
        cred: &Credentials,
        parent: u64,
        new: &NewNode<'_>,
    ) -> Result<(Handle, Attributes)> {
        let charge = Charge::write(self.names_cost(&[]).await?);
        let attributes = self.change(charge, Some(cred), |op| {
            let inode = edit::create_orphan(op, parent, new)?;
            Attributes::of(op, &inode)
        });
        let attributes = attributes.await?;
        let handle = self.hold(attributes.object).await?;
        self.free_when_closed(attributes.object);
        Ok((handle, attributes))
    }

    /// Adds a name to a node.
    ///
    /// # Errors
    /// `Kind::Exists` if the name is taken; `FsError::NotPermitted` for a directory; permission
    /// errors and names.
    pub async fn link(
        &self,
        cred: &Credentials,
        object: u64,
        parent: u64,
        name: &[u8],
    ) -> Result<Attributes> {
        let charge = Charge::write(self.names_cost(&[parent]).await?);
        let linked = self.change(charge, Some(cred), |op| {
            let inode = edit::link(op, object, parent, name)?;
            Attributes::of(op, &inode)
        });
        let linked = linked.await?;
        // The node's first name: the log has no record of the node's creation, and later records
        // would make no sense.
        if linked.links == 1 && self.head.log().mode() != SyncMode::Disabled {
            self.engine.sync().await?;
        }
        Ok(linked)
    }

    /// Removes a name of any node except a directory.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such name; `FsError::IsADirectory`; permission errors.
    pub async fn unlink(&self, cred: &Credentials, parent: u64, name: &[u8]) -> Result<()> {
        self.remove(cred, parent, name, Target::File).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such name; `FsError::NotADirectory`, `FsError::NotEmpty`;
    /// permission errors.
    pub async fn rmdir(&self, cred: &Credentials, parent: u64, name: &[u8]) -> Result<()> {
        if let Some(place) = Virtual::of(parent) {
            return self.control_remove(cred, place, name).await;
        }
        self.remove(cred, parent, name, Target::Directory).await
    }

    async fn remove(
        &self,
        cred: &Credentials,
        parent: u64,
        name: &[u8],
        target: Target,
    ) -> Result<()> {
        let charge = Charge::free(self.names_cost(&[parent]).await?);
        let removed =
            self.change(charge, Some(cred), |op| edit::remove(op, parent, name, target)).await?;
        self.settle(&removed).await;
        Ok(())
    }

    /// Returns the maximum that a change of names in these directories writes (spec 04 §19.2).
    async fn names_cost(&self, dirs: &[u64]) -> Result<u64> {
        self.inspect(None, |op| {
            let mut cost = NODES_COST;
            for dir in dirs {
                let Some(dnode) = op.tx.find(*dir)? else { continue };
                cost += match dnode.maxblkid {
                    0 => 2 * dnode.data_block_size(),
                    _ => FAT_ZAP_COST,
                };
            }
            Ok(cost)
        })
        .await
    }

    async fn settle(&self, removed: &edit::Removed) {
        if removed.is_unlinked {
            self.free_when_closed(removed.object);
            self.reap_pending().await;
        }
    }

    /// Renames.
    ///
    /// # Errors
    /// The errors of [`edit::rename`].
    pub async fn rename(&self, cred: &Credentials, request: &Rename<'_>) -> Result<()> {
        if [request.from.0, request.to.0].into_iter().any(|dir| Virtual::of(dir).is_some()) {
            return self.control_rename(cred, request).await;
        }
        let charge = Charge::write(self.names_cost(&[request.from.0, request.to.0]).await?);
        let replaced = self.change(charge, Some(cred), |op| edit::rename(op, request)).await?;
        if let Some(removed) = replaced {
            self.settle(&removed).await;
        }
        Ok(())
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `FsError::WrongKind` if it is not a symbolic link.
    pub async fn read_link(&self, object: u64) -> Result<Vec<u8>> {
        let read = self.inspect(None, |op| {
            let inode = op.inode(object)?;
            if inode.kind() != FileKind::Symlink {
                return Err(edit::refuse(Kind::Invalid, FsError::WrongKind));
            }
            let is_atime_current = self.is_atime_current(&inode);
            if let Some(target) = inode.bytes(ZplAttr::Symlink) {
                return Ok((target.to_vec(), is_atime_current));
            }
            // Old inodes keep a target that does not fit as data.
            let len = usize::try_from(inode.size()).unwrap_or(usize::MAX);
            if len > TARGET_MAX {
                let cause = FsError::LinkLength { len: inode.size() };
                return Err(Error::corrupt(cause).into());
            }
            Ok((op.tx.read(object, 0, len)?, is_atime_current))
        });
        let (target, is_atime_current) = read.await?;
        if !is_atime_current {
            self.update_atime(object).await?;
        }
        Ok(target)
    }

    /// Returns at most `max` entries of a directory, `.` and `..` first, from a cookie on: 0 for
    /// the start. Entries that are added or removed meanwhile may be returned or not; every other
    /// entry is returned exactly once.
    ///
    /// # Errors
    /// `FsError::NotADirectory`; permission errors.
    pub async fn read_dir(
        &self,
        cred: &Credentials,
        object: u64,
        cookie: u64,
        max: usize,
    ) -> Result<ReadDirPage> {
        if let Some(place) = Virtual::of(object) {
            return self.control_list(place, cookie, max).await;
        }
        let shows_control = self.shows_control(object);
        // The access time is updated at the beginning of a listing.
        let mut is_atime_current = true;
        let listed = self.inspect(Some(cred), |op| {
            let mut page = ReadDirPage::default();
            if cookie < DOTS_END {
                let dir = op.inode(object)?;
                is_atime_current = self.is_atime_current(&dir);
                let mut dots = vec![(&b"."[..], dir.object), (&b".."[..], dir.parent())];
                if shows_control {
                    dots.push((edit::CONTROL, control::CONTROL));
                }
                let last = dots.len() - 1;
                for (index, (name, object)) in dots.into_iter().enumerate() {
                    // The last of them is followed by the first entry.
                    let next = if index == last { DOTS_END } else { index as u64 + 1 };
                    if cookie <= index as u64 && page.entries.len() < max {
                        let kind = Some(FileKind::Directory);
                        let name = name.to_vec();
                        page.entries.push(DirEntry { name, object, kind, cookie: next });
                    }
                }
            }
            let rest = max - page.entries.len();
            if rest == 0 {
                return Ok(page);
            }
            let from = if cookie <= DOTS_END { 0 } else { cookie };
            let listed = edit::list(op, object, from, rest)?;
            page.entries.extend(listed.entries);
            page.is_end = listed.is_end;
            Ok(page)
        });
        let page = listed.await?;
        if !is_atime_current {
            self.update_atime(object).await?;
        }
        Ok(page)
    }
}

/// Longest target of a link that is read from data.
const TARGET_MAX: usize = 64 << 10;
