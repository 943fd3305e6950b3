//! The file system operations for the kernel, on top of a [`Mount`], independent of the wire
//! format.
//!
//! **Permissions** are checked by the kernel, which has everything that is needed: the mount is
//! always made with `default_permissions`, and with POSIX ACLs where the file system has them.
//! Requests contain only one group of a user, and cached paths are walked without any request. So
//! operations here run with the permissions of a user whom the kernel has already checked. This
//! server checks the owner of new nodes, node flags that forbid a change (also at `open`, so that
//! no file is mapped whose pages could not be written back), set-id bits after a write, and quotas.
//!
//! **Set-id bits and capabilities** are removed when a file is written, in the transaction of the
//! write (KILLPRIV_V2). Otherwise the kernel would ask for `security.capability` before each write.
//!
//! **Caching.** Only the kernel changes a mounted file system (and a rollback, which notifies it:
//! [`rollback`](super::rollback)). Its page cache is therefore kept across open and close, and it
//! may cache names, attributes and the absence of names for [`LONG`], with these exceptions:
//! - the space of a file changes by itself when its txg is on disk: until then its attributes are
//!   valid for [`SHORT`];
//! - so are set-id bits, which a write removes without the kernel noticing;
//! - where a file's name has several spellings, the kernel only knows those that it has looked up,
//!   and removing one removes all: names are looked up each time;
//! - ACLs and flags change modes and times without the kernel noticing: it is notified;
//! - the control directory is changed by commands, and is looked up each time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cenote_fs::access::{Capabilities, Credentials, OpenFor};
use cenote_fs::acl::Want;
use cenote_fs::edit::{NewNode, SetAttributes};
use cenote_fs::mount::{Attributes, ReadDirPage, Seek, Space, WriteOptions, control};
use cenote_fs::{CaseSensitivity, FsError, Mount};
use cenote_rt::lock::{Rank, RwLock};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, BufMut, Error, Kind, Result};

use super::MountOptions;
use super::gate::Gate;
use super::nodes::Nodes;
use super::snapshots::{self, Place, Snapshots};
use super::wire::{FileHandle, INodeNo, Notifier, OpenFile};

/// The extended attributes with POSIX ACLs.
pub(super) const POSIX_ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// Time for which the kernel may cache data that only requests change.
const LONG: Duration = Duration::from_hours(1);
/// Time for which it may cache data that changes by itself.
const SHORT: Duration = Duration::from_secs(1);
/// Set-user-ID and set-group-ID.
const SET_IDS: u32 = 0o6000;
/// The kernel's number of the root.
pub(super) const ROOT: u64 = 1;
/// Maximum bytes copied per request.
const COPY_MAX: u64 = 64 << 20;

/// The requested access of an `open`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags of a request")]
pub(super) struct Opening {
    /// The handle permits writing.
    pub(super) writes: bool,
    /// The handle permits reading and writing, so that the file can be mapped shared and writable.
    pub(super) is_mappable: bool,
    /// Every write appends (`O_APPEND`).
    pub(super) appends: bool,
    /// The file is truncated (`O_TRUNC`), even if the handle is read-only.
    pub(super) truncates: bool,
}

impl Opening {
    /// Parses the flags of `open`.
    pub(super) const fn of(flags: i32) -> Self {
        const ACCESS_MODE: i32 = 3;
        const O_RDWR: i32 = 2;
        const O_TRUNC: i32 = 0o1000;
        const O_APPEND: i32 = 0o2000;
        Self {
            writes: flags & ACCESS_MODE != 0,
            is_mappable: flags & ACCESS_MODE == O_RDWR,
            appends: flags & O_APPEND != 0,
            truncates: flags & O_TRUNC != 0,
        }
    }
}

/// A mounted file system.
#[derive(Debug)]
pub(super) struct Vfs {
    /// Replaced by a rollback. LOCK: held for a copy.
    current: RwLock<Arc<Mount>>,
    /// Every request passes it.
    pub(super) gate: Gate,
    /// Whether the contents are being replaced, or the kernel is being notified of that.
    pub(super) is_suspended: AtomicBool,
    pub(super) nodes: Nodes,
    pub(super) snapshots: Snapshots,
    /// Whether the kernel handles POSIX ACLs, too.
    pub(super) has_posix_acls: bool,
    /// Whether the kernel has agreed to check POSIX ACLs and permission to set them. This is fixed
    /// for the mount, while the property may change.
    pub(super) checks_acls: AtomicBool,
    /// Whether extended attributes are off, whatever the property says.
    has_no_xattrs: AtomicBool,
    /// Whether each name has only one spelling.
    has_exact_names: bool,
    /// Notifies the kernel of changes that it does not see; empty before mounting.
    pub(super) notifier: OnceLock<Notifier>,
}

/// Returns the caching time for numbers that are not nodes of the file system itself: long in a
/// snapshot, zero in the control directory.
fn fixed_ttl(number: u64) -> Option<Duration> {
    // Their numbers are large, and would also count as control directory numbers.
    if snapshots::is_inside(number) {
        return Some(LONG);
    }
    control::is_control(number).then_some(Duration::ZERO)
}

/// From this bit on a handle contains the number of rollbacks before it was opened. The lowest bit
/// is set if the file can be mapped shared and writable through it.
const EPOCH_SHIFT: u32 = 1;

/// Whether a file can be mapped shared and writable through a handle.
pub(super) const fn is_mappable(handle: FileHandle) -> bool {
    handle.0 & 1 != 0
}

/// Returns the credentials for a user whom the kernel has checked.
pub(super) fn checked_by_kernel(uid: u32, gid: u32) -> Credentials {
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
        let rules = mount.facts().rules;
        Self {
            current: RwLock::new(Rank::FuseMount, mount),
            gate: Gate::default(),
            is_suspended: AtomicBool::default(),
            nodes: Nodes::default(),
            snapshots: Snapshots::default(),
            has_posix_acls,
            checks_acls: AtomicBool::default(),
            has_no_xattrs: AtomicBool::default(),
            has_exact_names: rules.case == CaseSensitivity::Sensitive && rules.normalization == 0,
            notifier: OnceLock::new(),
        }
    }

    /// Returns the file system. A current request may keep it until its end.
    pub(super) fn mount(&self) -> Arc<Mount> {
        Arc::clone(&self.current.read())
    }

    /// Replaces the file system, while there are no current requests.
    pub(super) fn replace(&self, mount: Arc<Mount>) {
        let mut current = self.current.write();
        let before = std::mem::replace(&mut *current, mount);
        drop(current);
        drop(before);
    }

    /// Applies the options that the kernel does not know.
    pub(super) fn set(&self, options: &MountOptions) {
        self.mount().set_access_times(options.access_times);
        self.has_no_xattrs.store(options.has_no_xattrs, Ordering::Relaxed);
    }

    /// Refuses extended attributes where they are off.
    pub(super) fn check_xattrs(&self) -> Result<()> {
        if self.has_no_xattrs.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Unsupported, FsError::XattrsOff));
        }
        Ok(())
    }

    /// Refuses to change an ACL where the kernel does not check permission: kernels before 6.2 pass
    /// the change on for every user.
    pub(super) fn check_acl_change(&self, name: &[u8]) -> Result<()> {
        let is_acl = POSIX_ACLS.contains(&name);
        if is_acl && !self.checks_acls.load(Ordering::Acquire) {
            return Err(Error::new(Kind::Unsupported, FsError::XattrsOff));
        }
        Ok(())
    }

    /// Returns the object of one of the kernel's numbers, which is not in a snapshot.
    ///
    /// # Errors
    /// [`FsError::Stale`] if a rollback has removed the node.
    fn object(&self, node: u64) -> Result<u64> {
        if node == ROOT {
            return Ok(self.mount().root());
        }
        if self.nodes.is_stale(node) {
            return Err(Error::not_found(FsError::Stale));
        }
        Ok(node)
    }

    /// Returns the node of an open file.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it was opened before a rollback that has removed the node: the number
    /// may be reused by now.
    pub(super) fn node_of(&self, file: OpenFile) -> Result<u64> {
        self.check_handle(file.node, Some(file.handle))
    }

    /// Like [`node_of`](Self::node_of), for a request that may come without a handle.
    pub(super) fn check_handle(&self, node: INodeNo, handle: Option<FileHandle>) -> Result<u64> {
        let epoch = handle.map(|handle| handle.0 >> EPOCH_SHIFT);
        if epoch.is_some_and(|epoch| self.nodes.is_newer(node.0, epoch)) {
            return Err(Error::not_found(FsError::Stale));
        }
        Ok(node.0)
    }

    /// Returns a handle for an opened file.
    pub(super) fn handle(&self, opening: Opening) -> FileHandle {
        FileHandle(self.nodes.epoch() << EPOCH_SHIFT | u64::from(opening.is_mappable))
    }

    /// Returns the kernel's number of an object.
    pub(super) fn number(&self, object: u64) -> u64 {
        if object == self.mount().root() { ROOT } else { object }
    }

    /// Returns the object of a node that is to be changed, or in which something is to be changed.
    ///
    /// # Errors
    /// `Kind::ReadOnly` in a snapshot.
    pub(super) fn changing(&self, node: u64) -> Result<u64> {
        match Place::of(node) {
            None => self.object(node),
            Some(_) => Err(Error::new(Kind::ReadOnly, FsError::ReadOnly)),
        }
    }

    /// Returns the caching time of a node's attributes.
    pub(super) fn ttl(attributes: &Attributes) -> Duration {
        let changes_by_itself = attributes.is_pending || attributes.mode & SET_IDS != 0;
        fixed_ttl(attributes.object).unwrap_or(if changes_by_itself { SHORT } else { LONG })
    }

    /// Returns the caching time of a node's name.
    pub(super) fn name_ttl(&self, object: u64) -> Duration {
        fixed_ttl(object).unwrap_or(if self.has_exact_names { LONG } else { Duration::ZERO })
    }

    /// Returns the caching time of a name's absence in a directory.
    pub(super) fn absence_ttl(&self, parent: u64, name: &[u8]) -> Duration {
        let is_believed = match Place::of(parent) {
            Some(_) => true,
            // Another spelling can create it; the control directory depends on a property.
            None => self.has_exact_names && !control::is_control(parent) && name != control::NAME,
        };
        if is_believed { LONG } else { Duration::ZERO }
    }

    /// Invalidates the kernel's cached attributes of a node that changed without its doing. That
    /// needs nothing that the kernel holds during a request, so requests may call this.
    pub(super) fn has_changed(&self, node: u64) {
        self.tell(node, ATTRIBUTES_ONLY);
    }

    /// Invalidates the kernel's cached attributes of a node, and its pages from `offset` on.
    pub(super) fn tell(&self, node: u64, offset: i64) {
        if let Some(notifier) = self.notifier.get() {
            // Nothing to do for a node that the kernel does not know any more.
            let _ = notifier.inval_inode(INodeNo(node), offset, 0);
        }
    }

    /// Looks up a name; the kernel knows the node from here on.
    pub(super) async fn lookup(
        &self,
        cred: &Credentials,
        parent: u64,
        name: &[u8],
    ) -> Result<Attributes> {
        match Place::of(parent) {
            None => {
                let object = self.object(parent)?;
                let (found, handle) = self.mount().lookup_held(cred, object, name).await?;
                self.nodes.add(handle, found.generation);
                Ok(found)
            }
            Some(dir) => self.snapshots.lookup(&self.mount(), dir, name).await,
        }
    }

    /// Returns the space of the file system, as seen from a node.
    pub(super) async fn space(&self, node: u64) -> Result<Space> {
        match Place::of(node) {
            None => self.mount().space_at(self.object(node)?).await,
            Some(_) => self.mount().space().await,
        }
    }

    /// Gives the kernel a node from a listing.
    pub(super) async fn give(&self, node: u64) -> Result<Attributes> {
        match Place::of(node) {
            None => {
                let (found, handle) = self.mount().hold_generation(node, None).await?;
                self.nodes.add(handle, found.generation);
                Ok(found)
            }
            Some(place) => self.snapshots.attributes(&self.mount(), place).await,
        }
    }

    /// Gives the kernel a node that was just created or linked.
    async fn give_new(&self, attributes: Attributes) -> Result<Attributes> {
        if self.nodes.again(attributes.object) {
            return Ok(attributes);
        }
        // The number may have been reused since.
        let Attributes { object, generation, .. } = attributes;
        let (found, handle) = self.mount().hold_generation(object, Some(generation)).await?;
        self.nodes.add(handle, found.generation);
        Ok(found)
    }

    /// Decrements the kernel's lookup count of a node.
    pub(super) async fn forget(&self, node: u64, lookups: u64) {
        if self.nodes.forget(node, lookups) {
            // Nodes that cannot be freed now are freed later.
            let _ = self.mount().reap().await;
        }
    }

    pub(super) async fn make(
        &self,
        cred: &Credentials,
        parent: u64,
        name: &[u8],
        new: &NewNode<'_>,
    ) -> Result<Attributes> {
        let made = self.mount().create(cred, self.changing(parent)?, name, new).await?;
        self.give_new(made).await
    }

    /// Creates a file and opens it. A file that another process has created meanwhile is opened
    /// instead, unless the request is exclusive. Also returns the result of [`open`](Self::open).
    pub(super) async fn create(
        &self,
        cred: &Credentials,
        parent: u64,
        name: &[u8],
        new: &NewNode<'_>,
        (opening, is_exclusive): (Opening, bool),
    ) -> Result<(Attributes, bool)> {
        let (made, is_new) = match self.make(cred, parent, name, new).await {
            Ok(made) => (made, true),
            Err(error) if error.kind() == Kind::Exists && !is_exclusive => {
                (self.lookup(cred, parent, name).await?, false)
            }
            Err(error) => return Err(error),
        };
        let opened = if is_new {
            // The new mode does not apply to the request that creates the file.
            self.count_handle(made.object, opening).map(|()| false)
        } else {
            self.open(cred, made.object, opening).await
        };
        match opened {
            Ok(is_unmappable) => Ok((made, is_unmappable)),
            Err(error) => {
                // The kernel is not given the node.
                self.forget(made.object, 1).await;
                Err(error)
            }
        }
    }

    /// Creates a file without a name, and opens it (`O_TMPFILE`).
    pub(super) async fn create_unnamed(
        &self,
        cred: &Credentials,
        parent: u64,
        new: &NewNode<'_>,
        opening: Opening,
    ) -> Result<Attributes> {
        let made = self.mount().create_unnamed(cred, self.changing(parent)?, new).await;
        let (handle, made) = made?;
        self.nodes.add(handle, made.generation);
        if let Err(error) = self.count_handle(made.object, opening) {
            // The kernel is not given the node.
            self.forget(made.object, 1).await;
            return Err(error);
        }
        Ok(made)
    }

    /// Opens a file. The kernel has checked permissions, but does not know the node's flags.
    /// Returns whether the handle must not be mapped shared: a store could change data of an
    /// append-only file.
    ///
    /// # Errors
    /// `Kind::ReadOnly` for writing in a snapshot; `FsError::NotPermitted` if a flag of the node
    /// forbids it.
    pub(super) async fn open(
        &self,
        cred: &Credentials,
        node: u64,
        opening: Opening,
    ) -> Result<bool> {
        let Opening { writes, appends, truncates, .. } = opening;
        if Place::of(node).is_some() {
            if writes || truncates {
                self.changing(node)?;
            }
            return Ok(false);
        }
        let object = self.object(node)?;
        let wanted = OpenFor { writes, appends, truncates };
        let only_grows = self.mount().check_open(cred, object, wanted).await?;
        self.count_handle(node, opening)?;
        Ok(only_grows && opening.is_mappable)
    }

    fn count_handle(&self, node: u64, opening: Opening) -> Result<()> {
        if !opening.is_mappable || self.nodes.open_mappable(self.object(node)?) {
            return Ok(());
        }
        // The kernel opens only nodes that it was given.
        Err(Error::not_found(FsError::Stale))
    }

    pub(super) async fn link(
        &self,
        cred: &Credentials,
        node: u64,
        parent: u64,
        name: &[u8],
    ) -> Result<Attributes> {
        let (object, parent) = (self.changing(node)?, self.changing(parent)?);
        let linked = self.mount().link(cred, object, parent, name).await?;
        self.give_new(linked).await
    }

    pub(super) async fn set_attributes(
        &self,
        mut cred: Credentials,
        node: u64,
        wanted: &SetAttributes,
    ) -> Result<Attributes> {
        let object = self.changing(node)?;
        if wanted.size.is_none() {
            // The kernel has checked the groups, and removed the bit if necessary.
            cred.capabilities |= Capabilities::FSETID;
        }
        self.mount().set_attributes(&cred, object, wanted).await
    }

    /// Removes a directory; in `.zfs/snapshot` this destroys a snapshot.
    pub(super) async fn rmdir(&self, cred: &Credentials, parent: u64, name: &[u8]) -> Result<()> {
        if parent == control::SNAPSHOTS {
            self.snapshots.close_unused();
        }
        self.mount().rmdir(cred, self.changing(parent)?, name).await
    }

    pub(super) async fn attributes(&self, node: u64) -> Result<Attributes> {
        match Place::of(node) {
            None => self.mount().attributes(self.object(node)?).await,
            Some(place) => self.snapshots.attributes(&self.mount(), place).await,
        }
    }

    pub(super) async fn target(&self, node: u64) -> Result<Vec<u8>> {
        match Place::of(node) {
            None => self.mount().read_link(self.object(node)?).await,
            Some(place) => self.snapshots.target(&self.mount(), place).await,
        }
    }

    /// Returns the next data or hole from `offset` on. The kernel asks without writing dirty pages
    /// back, so a file that may be mapped is reported entirely as data: any hole may have a dirty
    /// page.
    pub(super) async fn seek(&self, node: u64, offset: u64, what: Seek) -> Result<u64> {
        match Place::of(node) {
            None if self.nodes.may_be_mapped(self.object(node)?) => {
                let size = self.attributes(node).await?.size;
                match what {
                    _ if offset >= size => Err(Error::new(Kind::Invalid, FsError::NoSuchPlace)),
                    Seek::Data => Ok(offset),
                    Seek::Hole => Ok(size),
                }
            }
            None => self.mount().seek(self.object(node)?, offset, what).await,
            Some(place) => self.snapshots.seek(&self.mount(), place, offset, what).await,
        }
    }

    /// Returns at most `max` entries of a directory from a cookie on. The kernel has checked
    /// permission to list it.
    pub(super) async fn read_dir(&self, node: u64, cookie: u64, max: usize) -> Result<ReadDirPage> {
        match Place::of(node) {
            None => {
                let root = Credentials::root();
                self.mount().read_dir(&root, self.object(node)?, cookie, max).await
            }
            Some(place) => self.snapshots.read_dir(&self.mount(), place, cookie, max).await,
        }
    }

    pub(super) async fn xattr(
        &self,
        cred: &Credentials,
        node: u64,
        name: &[u8],
    ) -> Result<Vec<u8>> {
        self.check_xattrs()?;
        match Place::of(node) {
            None => self.mount().xattr(cred, self.object(node)?, name).await,
            Some(place) => self.snapshots.xattr(&self.mount(), place, name).await,
        }
    }

    pub(super) async fn xattrs(&self, cred: &Credentials, node: u64) -> Result<Vec<Vec<u8>>> {
        if self.check_xattrs().is_err() {
            return Ok(Vec::new());
        }
        match Place::of(node) {
            None => self.mount().xattrs(cred, self.object(node)?).await,
            Some(place) => self.snapshots.xattrs(&self.mount(), place, cred).await,
        }
    }

    /// Checks permissions, for a kernel that does not check them itself.
    pub(super) async fn access(&self, cred: &Credentials, node: u64, want: Want) -> Result<()> {
        match Place::of(node) {
            None => self.mount().access(cred, self.object(node)?, want).await,
            Some(_) if want.contains(Want::WRITE) => self.changing(node).map(drop),
            Some(_) => Ok(()),
        }
    }

    /// Makes a node durable. Nodes in snapshots already are.
    pub(super) async fn fsync(&self, node: u64) -> Result<()> {
        match Place::of(node) {
            None => self.mount().fsync(self.object(node)?).await,
            Some(_) => Ok(()),
        }
    }

    pub(super) async fn read(&self, node: u64, offset: u64, len: usize) -> Result<Buf> {
        if let Some(place) = Place::of(node) {
            return self.snapshots.read(&self.mount(), place, offset, len).await;
        }
        let mut buf = BufMut::for_filling(len);
        let count = self.mount().read(self.object(node)?, offset, &mut buf).await?;
        buf.truncate(count);
        Ok(buf.freeze())
    }

    /// Writes; `drops_set_ids` is the kernel's statement that the writer may not keep set-id bits.
    pub(super) async fn write(
        &self,
        mut cred: Credentials,
        node: u64,
        offset: u64,
        bytes: &[u8],
        (options, drops_set_ids): (WriteOptions, bool),
    ) -> Result<u64> {
        let object = self.changing(node)?;
        let is_old = options.is_write_back && self.nodes.has_old_pages(object);
        if is_old && !is_on(Bug::OldPagesWritten) {
            // The page is from before the rollback, and is dropped with the old contents.
            return Ok(bytes.len() as u64);
        }
        // The kernel appends at the end that it knows.
        let is_append = options.is_append && self.nodes.has_old_size(object);
        let options = WriteOptions { is_append, ..options };
        cred.capabilities.set(Capabilities::FSETID, !drops_set_ids);
        let written = self.mount().write(&cred, object, offset, bytes, options).await?;
        if is_append && written.offset != offset {
            self.drop_pages(node);
        }
        Ok(written.len)
    }

    /// Makes the kernel read a node again; not on this thread, because the kernel waits for the
    /// current request.
    fn drop_pages(&self, node: u64) {
        if let Some(notifier) = self.notifier.get().cloned() {
            cenote_rt::begin_blocking(move || drop(notifier.inval_inode(INodeNo(node), 0, 0)));
        }
    }

    pub(super) async fn copy(
        &self,
        cred: Credentials,
        from: (u64, u64),
        to: (u64, u64),
        len: u64,
    ) -> Result<u64> {
        if Place::of(from.0).is_some() {
            // The kernel then copies by reading and writing.
            return Err(Error::new(Kind::Invalid, FsError::InSnapshot));
        }
        let (source, target) = (self.object(from.0)?, self.changing(to.0)?);
        let len = len.min(COPY_MAX);
        self.mount().copy_range(&cred, (source, from.1), (target, to.1), len).await
    }
}

/// An offset that invalidates no pages.
const ATTRIBUTES_ONLY: i64 = -1;
/// `acltype=posix`
const POSIX: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caching_times_of_snapshots_and_the_control_directory() {
        assert_eq!(fixed_ttl(1 << 62 | 77 << 40 | 0xc), Some(LONG));
        for number in [control::CONTROL, control::SNAPSHOTS, control::SHARES, control::SHARES - 77]
        {
            assert_eq!(fixed_ttl(number), Some(Duration::ZERO));
        }
        assert_eq!((fixed_ttl(ROOT), fixed_ttl(1 << 40)), (None, None));
    }
}
