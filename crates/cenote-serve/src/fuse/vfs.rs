//! What the kernel asks of a file system, on top of a [`Mount`]: everything that is not the wire.
//!
//! **Who may do what** the kernel decides, since it has what is needed: the mount is always made
//! with `default_permissions`, and with POSIX ACLs where the file system has them; requests tell
//! one group of a user only, and a path that is in the kernel's cache is walked without asking. So
//! operations run with the rights of somebody who was let through. Left to us are the owner of what
//! is made, what flags of a node forbid, set-id bits after a write, and quotas.
//!
//! **Set-id bits and capabilities** are taken away here when a file is written (KILLPRIV_V2). Else
//! the kernel would ask for `security.capability` before each write. We ask once for each node that
//! the kernel knows, and note the answer.
//!
//! **What is cached where.** Nobody but the kernel changes a mounted file system, so its cache of
//! pages is kept over open and close, and is dropped only when told to. Names and attributes are
//! asked for again after [`TTL`]: what changes by itself (times of reading, space taken, which is
//! known when a txg is on disk) is never older than that.

use std::sync::Arc;
use std::time::Duration;

use cenote_fs::access::{Capabilities, Credentials};
use cenote_fs::edit::{NewNode, SetAttributes};
use cenote_fs::mount::{Attributes, WriteOptions};
use cenote_fs::{FsError, Mount};
use cenote_rt::{Buf, BufMut, Error, Result};

use super::nodes::Nodes;

/// How long the kernel may believe what it was told.
pub(super) const TTL: Duration = Duration::from_secs(1);
/// The attribute with the capabilities of a program.
const CAPABILITY: &[u8] = b"security.capability";
/// Number of the root for the kernel.
const ROOT: u64 = 1;
/// Bytes that one request copies.
const COPY_MAX: u64 = 64 << 20;

/// A file system as the kernel sees it.
#[derive(Debug)]
pub(super) struct Vfs {
    pub(super) mount: Arc<Mount>,
    pub(super) nodes: Nodes,
    /// POSIX ACLs are the kernel's business too.
    pub(super) has_posix_acls: bool,
}

/// Somebody whom the kernel let through.
pub(super) fn let_through(uid: u32, gid: u32) -> Credentials {
    let mut cred = Credentials::user(uid, gid, Vec::new());
    cred.capabilities |= Capabilities::CHOWN
        | Capabilities::DAC_OVERRIDE
        | Capabilities::DAC_READ_SEARCH
        | Capabilities::FOWNER
        | Capabilities::MKNOD;
    cred
}

impl Vfs {
    pub(super) fn new(mount: Arc<Mount>) -> Self {
        let has_posix_acls = mount.facts().settings().acl_type == POSIX;
        Self { mount, nodes: Nodes::default(), has_posix_acls }
    }

    /// The object of a number of the kernel's.
    pub(super) fn object(&self, node: u64) -> u64 {
        if node == ROOT { self.mount.root() } else { node }
    }

    /// The node of a name; the kernel knows it from here on.
    pub(super) async fn lookup(
        &self,
        cred: &Credentials,
        parent: u64,
        name: &[u8],
    ) -> Result<Attributes> {
        let found = self.mount.lookup(cred, self.object(parent), name).await?;
        self.give(found).await
    }

    /// Gives a node to the kernel.
    pub(super) async fn give(&self, attributes: Attributes) -> Result<Attributes> {
        if self.nodes.again(attributes.object) {
            return Ok(attributes);
        }
        let handle = self.mount.hold(attributes.object).await?;
        // Since it was looked up the number may have become another node's.
        let held = self.mount.attributes(attributes.object).await?;
        if held.generation != attributes.generation {
            return Err(Error::not_found(FsError::NoEntry));
        }
        self.nodes.add(handle);
        Ok(held)
    }

    /// The kernel forgets a node so many times.
    pub(super) async fn forget(&self, node: u64, lookups: u64) {
        if self.nodes.forget(node, lookups) {
            // What could not be freed now is freed later.
            let _ = self.mount.reap().await;
        }
    }

    pub(super) async fn make(
        &self,
        cred: &Credentials,
        parent: u64,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Attributes> {
        let made = self.mount.create(cred, self.object(parent), name, new).await?;
        self.give(made).await
    }

    pub(super) async fn link(
        &self,
        cred: &Credentials,
        node: u64,
        parent: u64,
        name: &[u8],
    ) -> Result<Attributes> {
        let (object, parent) = (self.object(node), self.object(parent));
        let linked = self.mount.link(cred, object, parent, name).await?;
        self.give(linked).await
    }

    pub(super) async fn set_attributes(
        &self,
        mut cred: Credentials,
        node: u64,
        wish: &SetAttributes,
    ) -> Result<Attributes> {
        let object = self.object(node);
        if wish.size.is_some() || wish.uid.is_some() || wish.gid.is_some() {
            self.drop_capability(object).await?;
        }
        if wish.size.is_none() {
            // The kernel has looked at the groups, and taken the bit off if need be.
            cred.capabilities |= Capabilities::FSETID;
        }
        self.mount.set_attributes(&cred, object, wish).await
    }

    pub(super) async fn read(&self, node: u64, offset: u64, len: usize) -> Result<Buf> {
        let mut buf = BufMut::for_filling(len);
        let count = self.mount.read(self.object(node), offset, &mut buf).await?;
        buf.truncate(count);
        Ok(buf.freeze())
    }

    /// Writes; `drops_set_ids` is the kernel's word that who writes may not keep set-id bits.
    pub(super) async fn write(
        &self,
        mut cred: Credentials,
        node: u64,
        offset: u64,
        bytes: &[u8],
        (drops_set_ids, is_sync): (bool, bool),
    ) -> Result<u64> {
        let object = self.object(node);
        self.drop_capability(object).await?;
        cred.capabilities.set(Capabilities::FSETID, !drops_set_ids);
        let options = WriteOptions { is_append: false, is_sync };
        Ok(self.mount.write(&cred, object, offset, bytes, options).await?.len)
    }

    pub(super) async fn copy(
        &self,
        cred: Credentials,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
    ) -> Result<u64> {
        let (source, target) = (self.object(from.0), self.object(to.0));
        self.drop_capability(target).await?;
        let len = len.min(COPY_MAX);
        self.mount.copy_range(&cred, (source, from.1), (target, to.1), len).await
    }

    pub(super) async fn set_xattr(
        &self,
        cred: &Credentials,
        node: u64,
        (name, value): (&[u8], &[u8]),
        existing: cenote_fs::edit::xattr::Existing,
    ) -> Result<()> {
        let object = self.object(node);
        let set = self.mount.set_xattr(cred, object, name, value, existing).await;
        if name == CAPABILITY {
            self.nodes.set_plain(object, false);
        }
        set
    }

    /// The content or owner of a file changes: the program in it is not trusted any more.
    async fn drop_capability(&self, object: u64) -> Result<()> {
        if self.nodes.is_plain(object) {
            return Ok(());
        }
        let root = Credentials::root();
        // Noted first: an attribute that is set meanwhile takes the note back.
        self.nodes.set_plain(object, true);
        match self.mount.xattr(&root, object, CAPABILITY).await {
            Ok(_) => {
                let removed = self.mount.remove_xattr(&root, object, CAPABILITY).await;
                if removed.is_err() {
                    self.nodes.set_plain(object, false);
                }
                removed
            }
            Err(error) if matches!(error.cause(), Some(FsError::NoXattr | FsError::XattrsOff)) => {
                Ok(())
            }
            Err(error) => {
                self.nodes.set_plain(object, false);
                Err(error)
            }
        }
    }
}

/// `acltype=posix`
const POSIX: u64 = 1;
