//! What the kernel asks of a file system, on top of a [`Mount`]: everything that is not the wire.
//!
//! **Who may do what** the kernel decides, since it has what is needed: the mount is always made
//! with `default_permissions`, and with POSIX ACLs where the file system has them; requests tell
//! one group of a user only, and a path that is in the kernel's cache is walked without asking. So
//! operations run with the rights of somebody who was let through. Left to us are the owner of what
//! is made, what flags of a node forbid (also at `open`, so that nothing is mapped that could not
//! be written back), set-id bits after a write, and quotas.
//!
//! **Set-id bits and capabilities** are taken away when a file is written, in the transaction that
//! writes (KILLPRIV_V2). Else the kernel would ask for `security.capability` before each write.
//!
//! **What is cached where.** Nobody but the kernel changes a mounted file system (and a rollback,
//! which tells it: [`rollback`](super::rollback)), so its cache of pages is kept over open and
//! close, and names and attributes are believed for [`LONG`], names that there are not included.
//! But for this:
//! - what a file takes changes by itself when its txg is on disk: until then its attributes are
//!   believed for [`SHORT`];
//! - so are set-id bits, which go with a write that the kernel does not look at for that;
//! - where one file has names of several spellings, the kernel knows of the others of it what it
//!   has asked for and no more: names are believed for [`SHORT`];
//! - ACLs and flags change modes and times in ways that the kernel does not see: it is told;
//! - the control directory changes by commands, and is asked each time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use cenote_fs::access::{Capabilities, Credentials};
use cenote_fs::acl::Want;
use cenote_fs::edit::{NewNode, SetAttributes};
use cenote_fs::mount::{Attributes, ReadDirPage, Seek, Space, WriteOptions, control};
use cenote_fs::{CaseSensitivity, FsError, Mount};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, BufMut, Error, Kind, Result};

use super::MountOptions;
use super::gate::Gate;
use super::nodes::Nodes;
use super::snapshots::{self, Place, Snapshots};
use super::wire::{FileHandle, INodeNo, Notifier, OpenFile};

/// The attributes that are POSIX ACLs.
pub(super) const POSIX_ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// How long the kernel may believe what does not change unless it is asked to change it.
const LONG: Duration = Duration::from_hours(1);
/// How long it may believe what does.
const SHORT: Duration = Duration::from_secs(1);
/// Set-user-ID and set-group-ID.
const SET_IDS: u32 = 0o6000;
/// Number of the root for the kernel.
pub(super) const ROOT: u64 = 1;
/// Bytes that one request copies.
const COPY_MAX: u64 = 64 << 20;

/// What the flags of `open` ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags of a request")]
pub(super) struct Opening {
    /// The handle can write.
    pub(super) writes: bool,
    /// The handle can read and write, so that the file can be mapped shared and writable.
    pub(super) is_mappable: bool,
    /// Every write goes to the end (`O_APPEND`).
    pub(super) appends: bool,
    /// The content is cut off (`O_TRUNC`), also of a handle that can only read.
    pub(super) truncates: bool,
}

impl Opening {
    /// From flags as `open` takes them.
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

/// A file system as the kernel sees it.
#[derive(Debug)]
pub(super) struct Vfs {
    /// Another one after a rollback. Held for a copy.
    current: RwLock<Arc<Mount>>,
    /// Every request passes it.
    pub(super) gate: Gate,
    /// The content is being replaced, or the kernel is told that it was.
    pub(super) is_suspended: AtomicBool,
    pub(super) nodes: Nodes,
    pub(super) snapshots: Snapshots,
    /// POSIX ACLs are the kernel's business too.
    pub(super) has_posix_acls: bool,
    /// The kernel has agreed to check them, and who may set them. It does so for this mount or
    /// never: the property may become another meanwhile.
    pub(super) checks_acls: AtomicBool,
    /// There are no extended attributes, whatever the property says.
    has_no_xattrs: AtomicBool,
    /// A name has one spelling.
    has_exact_names: bool,
    /// Tells the kernel what it does not see; none before it is mounted.
    pub(super) notifier: OnceLock<Notifier>,
}

/// How long the kernel may believe what it is told of a number that is no node of the file system
/// itself: for long what is in a snapshot, never what is in the control directory.
fn fixed_ttl(number: u64) -> Option<Duration> {
    // Their numbers are large, and would count as the control directory's, too.
    if snapshots::is_inside(number) {
        return Some(LONG);
    }
    control::is_control(number).then_some(Duration::ZERO)
}

/// Handles have the number of rollbacks before they were opened from this bit on. The lowest bit is
/// set of a handle through which the file can be mapped shared and writable.
const EPOCH_SHIFT: u32 = 1;

/// Whether a file can be mapped shared and writable through a handle.
pub(super) const fn is_mappable(handle: FileHandle) -> bool {
    handle.0 & 1 != 0
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
        let rules = mount.facts().rules;
        Self {
            current: RwLock::new(mount),
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

    /// The file system. A request that is in hand may keep it to its end.
    pub(super) fn mount(&self) -> Arc<Mount> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another in its place, while no request is in hand.
    pub(super) fn replace(&self, mount: Arc<Mount>) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *current, mount);
        drop(current);
        drop(before);
    }

    /// Goes by those options that the kernel does not know of.
    pub(super) fn set(&self, options: &MountOptions) {
        self.mount().set_access_times(options.access_times);
        self.has_no_xattrs.store(options.has_no_xattrs, Ordering::Relaxed);
    }

    /// Refuses extended attributes where there are none.
    pub(super) fn check_xattrs(&self) -> Result<()> {
        if self.has_no_xattrs.load(Ordering::Relaxed) {
            return Err(Error::new(Kind::Unsupported, FsError::XattrsOff));
        }
        Ok(())
    }

    /// Refuses to change an ACL where the kernel does not check who may: kernels before 6.2 let
    /// everybody who is not asked for it set the attribute.
    pub(super) fn check_acl_change(&self, name: &[u8]) -> Result<()> {
        let is_acl = POSIX_ACLS.contains(&name);
        if is_acl && !self.checks_acls.load(Ordering::Acquire) {
            return Err(Error::new(Kind::Unsupported, FsError::XattrsOff));
        }
        Ok(())
    }

    /// The object of a number of the kernel's, which is no node in a snapshot.
    ///
    /// # Errors
    /// [`FsError::Stale`] if a rollback has taken the node away.
    fn object(&self, node: u64) -> Result<u64> {
        if node == ROOT {
            return Ok(self.mount().root());
        }
        if self.nodes.is_stale(node) {
            return Err(Error::not_found(FsError::Stale));
        }
        Ok(node)
    }

    /// The node of a file that somebody has open.
    ///
    /// # Errors
    /// [`FsError::Stale`] if it was opened before a rollback that has taken the node away: the
    /// number may be another node's by now.
    pub(super) fn node_of(&self, file: OpenFile) -> Result<u64> {
        self.check_handle(file.node, Some(file.handle))
    }

    /// The same for a request that may come without a handle.
    pub(super) fn check_handle(&self, node: INodeNo, handle: Option<FileHandle>) -> Result<u64> {
        let epoch = handle.map(|handle| handle.0 >> EPOCH_SHIFT);
        if epoch.is_some_and(|epoch| self.nodes.is_newer(node.0, epoch)) {
            return Err(Error::not_found(FsError::Stale));
        }
        Ok(node.0)
    }

    /// A handle for a file that is opened.
    pub(super) fn handle(&self, opening: Opening) -> FileHandle {
        FileHandle(self.nodes.epoch() << EPOCH_SHIFT | u64::from(opening.is_mappable))
    }

    /// The kernel's number of an object.
    pub(super) fn number(&self, object: u64) -> u64 {
        if object == self.mount().root() { ROOT } else { object }
    }

    /// The object of a node that is to be changed, or that something is to be changed in.
    ///
    /// # Errors
    /// `Kind::ReadOnly` in a snapshot.
    pub(super) fn changing(&self, node: u64) -> Result<u64> {
        match Place::of(node) {
            None => self.object(node),
            Some(_) => Err(Error::new(Kind::ReadOnly, FsError::ReadOnly)),
        }
    }

    /// How long the kernel may believe what it is told of a node.
    pub(super) fn ttl(attributes: &Attributes) -> Duration {
        let changes_by_itself = attributes.is_pending || attributes.mode & SET_IDS != 0;
        fixed_ttl(attributes.object).unwrap_or(if changes_by_itself { SHORT } else { LONG })
    }

    /// How long the kernel may believe that a name is that of a node.
    pub(super) fn name_ttl(&self, object: u64) -> Duration {
        fixed_ttl(object).unwrap_or(if self.has_exact_names { LONG } else { SHORT })
    }

    /// How long the kernel may believe that there is no such name in a directory.
    pub(super) fn absence_ttl(&self, parent: u64, name: &[u8]) -> Duration {
        let is_believed = match Place::of(parent) {
            Some(_) => true,
            // Another spelling can bring it; the control directory comes and goes by a property.
            None => self.has_exact_names && !control::is_control(parent) && name != control::NAME,
        };
        if is_believed { LONG } else { Duration::ZERO }
    }

    /// Has the kernel ask for a node's attributes again, which changed without its doing. Nothing
    /// that it holds for a request is needed for that, so requests may do it.
    pub(super) fn has_changed(&self, node: u64) {
        self.tell(node, ATTRIBUTES_ONLY);
    }

    /// Has the kernel ask for a node's attributes again, and read it again from `offset` on.
    pub(super) fn tell(&self, node: u64, offset: i64) {
        if let Some(notifier) = self.notifier.get() {
            // A node that it does not know any more is as good as forgotten.
            let _ = notifier.inval_inode(INodeNo(node), offset, 0);
        }
    }

    /// The node of a name; the kernel knows it from here on.
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

    /// How full the file system is, for whoever stands at a node.
    pub(super) async fn space(&self, node: u64) -> Result<Space> {
        match Place::of(node) {
            None => self.mount().space_at(self.object(node)?).await,
            Some(_) => self.mount().space().await,
        }
    }

    /// A node that a listing has found, given to the kernel.
    pub(super) async fn give(&self, node: u64) -> Result<Attributes> {
        match Place::of(node) {
            None => {
                let (found, handle) = self.mount().hold_known(node, None).await?;
                self.nodes.add(handle, found.generation);
                Ok(found)
            }
            Some(place) => self.snapshots.attributes(&self.mount(), place).await,
        }
    }

    /// Gives a node to the kernel that was just made or linked.
    async fn give_new(&self, attributes: Attributes) -> Result<Attributes> {
        if self.nodes.again(attributes.object) {
            return Ok(attributes);
        }
        // Since then the number may have become another node's.
        let Attributes { object, generation, .. } = attributes;
        let (found, handle) = self.mount().hold_known(object, Some(generation)).await?;
        self.nodes.add(handle, found.generation);
        Ok(found)
    }

    /// The kernel forgets a node so many times.
    pub(super) async fn forget(&self, node: u64, lookups: u64) {
        if self.nodes.forget(node, lookups) {
            // What could not be freed now is freed later.
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

    /// Makes a file and opens it. One that another process has made meanwhile is opened instead,
    /// unless the request is exclusive. Also returns what [`open`](Self::open) does.
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
            // Its mode does not apply to the request that makes it.
            self.count_handle(made.object, opening).map(|()| false)
        } else {
            self.open(made.object, opening).await
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

    /// Opens a file. Rights were checked by the kernel, which does not know the flags. Returns
    /// whether the handle must not be mapped shared: a store could change what is only to be
    /// appended to.
    ///
    /// # Errors
    /// `Kind::ReadOnly` for writing in a snapshot; `FsError::NotPermitted` if a flag of the node
    /// forbids it.
    pub(super) async fn open(&self, node: u64, opening: Opening) -> Result<bool> {
        let Opening { writes, appends, truncates, .. } = opening;
        if Place::of(node).is_some() {
            if writes || truncates {
                self.changing(node)?;
            }
            return Ok(false);
        }
        let object = self.object(node)?;
        let only_grows = self.mount().check_open(object, writes, appends, truncates).await?;
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
        wish: &SetAttributes,
    ) -> Result<Attributes> {
        let object = self.changing(node)?;
        if wish.size.is_none() {
            // The kernel has looked at the groups, and taken the bit off if need be.
            cred.capabilities |= Capabilities::FSETID;
        }
        self.mount().set_attributes(&cred, object, wish).await
    }

    /// Removes a directory; one of `.zfs/snapshot` is a snapshot.
    pub(super) async fn rmdir(&self, cred: &Credentials, parent: u64, name: &[u8]) -> Result<()> {
        if parent == control::SNAPSHOTS {
            self.snapshots.let_go();
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

    /// The next data or hole from `offset` on. The kernel asks without writing dirty pages back, so
    /// all of a file that may be mapped is reported as data: a page that a process changed may lie
    /// in any hole.
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

    /// At most `max` entries of a directory from the place of a cookie on. Who may list it the
    /// kernel has decided.
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

    /// Whether somebody may do something, for a kernel that does not decide itself.
    pub(super) async fn access(&self, cred: &Credentials, node: u64, want: Want) -> Result<()> {
        match Place::of(node) {
            None => self.mount().access(cred, self.object(node)?, want).await,
            Some(_) if want.contains(Want::WRITE) => self.changing(node).map(drop),
            Some(_) => Ok(()),
        }
    }

    /// Makes a node durable. What is in a snapshot is.
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

    /// Writes; `drops_set_ids` is the kernel's word that who writes may not keep set-id bits.
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
            // The page is from before the rollback, and goes with what it was a page of.
            return Ok(bytes.len() as u64);
        }
        // The kernel appends behind the end that it knows.
        let is_append = options.is_append && self.nodes.has_old_size(object);
        let options = WriteOptions { is_append, ..options };
        cred.capabilities.set(Capabilities::FSETID, !drops_set_ids);
        let written = self.mount().write(&cred, object, offset, bytes, options).await?;
        if is_append && written.offset != offset {
            self.drop_pages(node);
        }
        Ok(written.len)
    }

    /// Has the kernel read a node again, and not by this thread: it waits for the request that is
    /// in hand.
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
            // The kernel copies by reading and writing then.
            return Err(Error::new(Kind::Invalid, FsError::InSnapshot));
        }
        let (source, target) = (self.object(from.0)?, self.changing(to.0)?);
        let len = len.min(COPY_MAX);
        self.mount().copy_range(&cred, (source, from.1), (target, to.1), len).await
    }
}

/// In place of an offset: no page is dropped.
const ATTRIBUTES_ONLY: i64 = -1;
/// `acltype=posix`
const POSIX: u64 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_snapshots_is_believed_and_what_leads_there_is_not() {
        assert_eq!(fixed_ttl(1 << 62 | 77 << 40 | 0xc), Some(LONG));
        for number in [control::CONTROL, control::SNAPSHOTS, control::SHARES, control::SHARES - 77]
        {
            assert_eq!(fixed_ttl(number), Some(Duration::ZERO));
        }
        assert_eq!((fixed_ttl(ROOT), fixed_ttl(1 << 40)), (None, None));
    }
}
