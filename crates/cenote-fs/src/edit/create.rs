//! Creates inodes and links (spec 03 §10.1).
//!
//! Invariants
//! * N1  A replayed creation gets the object number of its record, to which later records refer.

use cenote_dmu::TxResult;
use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit::{self as zap, ZapOptions};
use cenote_ondisk::acl::Ace;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::znode::{PFlags, Time};
use cenote_rt::{Kind, ensure};

use super::inode::{PERMISSION_MASK, SET_GID};
use super::posix::Inherited;
use super::sa::Attrs;
use super::{FILE, Inode, Op, names, permit, record, refuse};
use crate::acl::{Ids, NodeAcl};
use crate::error::FsError;
use crate::node::FileKind;

/// Maximum number of links of a file.
const LINKS_MAX: u64 = u32::MAX as u64 >> 1;
/// Maximum length of the target of a symbolic link.
const TARGET_MAX: usize = 4095;
/// Size of an empty directory, and its links: for `.` and `..`.
const EMPTY_DIRECTORY: u64 = 2;

/// Kind of a new node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewKind<'a> {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link with that target.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device with that number as it is stored ([`encode_rdev`]).
    ///
    /// [`encode_rdev`]: crate::mount::encode_rdev
    CharDevice(u64),
    /// A block device.
    BlockDevice(u64),
}

impl NewKind<'_> {
    pub(super) const fn type_bits(self) -> u64 {
        match self {
            Self::Fifo => 1,
            Self::CharDevice(_) => 2,
            Self::Directory => 4,
            Self::BlockDevice(_) => 6,
            Self::Regular => 8,
            Self::Symlink(_) => 10,
            Self::Socket => 12,
        }
    }

    pub(super) const fn file_kind(self) -> FileKind {
        FileKind::from_bits(self.type_bits() as u8)
    }
}

/// Attributes of a new inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewNode<'a> {
    /// What it is.
    pub kind: NewKind<'a>,
    /// Permission bits.
    pub mode: u32,
    /// Permission bits to remove, unless the directory has a default ACL, which replaces the umask.
    pub umask: u32,
    /// Object number to use, in a replay.
    pub number: Option<u64>,
    /// Slots of the dnode; `None` for the dataset's `dnodesize`.
    pub slots: Option<usize>,
    /// Creation txg (generation); `None` for that of the transaction.
    pub generation: Option<u64>,
    /// Value for all its times; `None` for now.
    pub time: Option<Time>,
    /// Owner and group; `None` for those of the user, or the group of the directory if that has the
    /// set-group-id bit.
    pub owner: Option<(u64, u64)>,
    /// ACL, flags and mode; `None` to inherit from the directory.
    pub acl: Option<&'a NodeAcl>,
}

impl<'a> NewNode<'a> {
    /// Returns an inode of that kind and mode.
    #[must_use]
    pub const fn new(kind: NewKind<'a>, mode: u32) -> Self {
        Self {
            kind,
            mode,
            umask: 0,
            number: None,
            slots: None,
            generation: None,
            time: None,
            owner: None,
            acl: None,
        }
    }
}

/// Creates an inode with a name.
///
/// # Errors
/// `Kind::Exists` if the name is taken; permission, name and quota errors; those of the
/// transaction.
pub fn create(op: &mut Op<'_, '_>, parent: u64, name: &[u8], new: &NewNode<'_>) -> TxResult<Inode> {
    let mut dir = op.directory(parent)?;
    names::check_new(op, parent, name)?;
    let is_directory = new.kind == NewKind::Directory;
    if names::find(op, parent, name)?.is_some() {
        permit::search(op, &dir)?;
        return Err(refuse(Kind::Exists, FsError::Exists));
    }
    check_alive(&dir)?;
    permit::add_entry(op, &dir, is_directory)?;
    permit::kind(op, new.kind)?;
    let (new, inherited) = &inherit(op, &dir, new)?;
    let mut inode = make(op, &dir, new)?;
    names::insert(op, parent, name, &inode)?;
    count_entry(op, &mut dir, &inode);
    op.store(&dir)?;
    record::create(op, parent, name, &inode, new);
    inherited.give(op, &mut inode)?;
    Ok(inode)
}

/// Returns the inode's part of the directory's default ACL, and its attributes changed accordingly.
/// Without a default ACL, the umask is applied to the mode.
fn inherit<'a>(
    op: &mut Op<'_, '_>,
    dir: &Inode,
    new: &NewNode<'a>,
) -> TxResult<(NewNode<'a>, Inherited)> {
    let inherited = match new.kind {
        NewKind::Symlink(_) => None,
        kind => Inherited::of(op, dir, kind == NewKind::Directory, new.mode)?,
    };
    let (inherited, mode) = match inherited {
        Some(inherited) => inherited,
        None => (Inherited::default(), new.mode & !new.umask),
    };
    Ok((NewNode { mode, ..*new }, inherited))
}

/// Creates an inode without a name, in the unlinked set; it may get a name later (`O_TMPFILE`).
///
/// # Errors
/// The errors of [`create`].
pub fn create_orphan(op: &mut Op<'_, '_>, parent: u64, new: &NewNode<'_>) -> TxResult<Inode> {
    let dir = op.directory(parent)?;
    check_alive(&dir)?;
    permit::add_entry(op, &dir, false)?;
    permit::kind(op, new.kind)?;
    let (new, inherited) = &inherit(op, &dir, new)?;
    let mut inode = make(op, &dir, new)?;
    inode.set_word(ZplAttr::Links, 0);
    op.store(&inode)?;
    op.add_unlinked(inode.object)?;
    inherited.give(op, &mut inode)?;
    Ok(inode)
}

/// Adds a name to an inode.
///
/// # Errors
/// `FsError::NotPermitted` for a directory; `Kind::Exists` if the name is taken; permission errors
/// and names.
pub fn link(op: &mut Op<'_, '_>, object: u64, parent: u64, name: &[u8]) -> TxResult<Inode> {
    let mut dir = op.directory(parent)?;
    let mut inode = op.inode(object)?;
    if inode.is_directory() {
        return Err(refuse(Kind::Permission, FsError::NotPermitted));
    }
    if inode.flags().contains(PFlags::XATTR) != dir.flags().contains(PFlags::XATTR) {
        return Err(refuse(Kind::Invalid, FsError::WrongKind));
    }
    permit::same_project(&dir, &inode)?;
    names::check_new(op, parent, name)?;
    if names::find(op, parent, name)?.is_some() {
        return Err(refuse(Kind::Exists, FsError::Exists));
    }
    check_alive(&dir)?;
    permit::add_entry(op, &dir, false)?;
    permit::link(op, &inode)?;
    let links = inode.links();
    if links >= LINKS_MAX {
        return Err(refuse(Kind::Limit, FsError::TooManyHardLinks));
    }
    if links == 0 {
        // The inode was created without a name: the log has no record of it.
        op.remove_unlinked(object)?;
        op.log_unrecorded();
    }
    names::insert(op, parent, name, &inode)?;
    inode.set_word(ZplAttr::Links, links + 1);
    inode.set_word(ZplAttr::Parent, parent);
    op.touch_state(&mut inode);
    op.store(&inode)?;
    count_entry(op, &mut dir, &inode);
    op.store(&dir)?;
    if links > 0 {
        record::link(op, parent, object, name);
    }
    Ok(inode)
}

/// Refuses to add entries to a directory without a name.
pub(super) fn check_alive(dir: &Inode) -> TxResult<()> {
    if dir.links() == 0 {
        return Err(refuse(Kind::NotFound, FsError::NoEntry));
    }
    Ok(())
}

/// Updates a directory's counters after an entry was added.
pub(super) fn count_entry(op: &Op<'_, '_>, dir: &mut Inode, inode: &Inode) {
    dir.set_word(ZplAttr::Size, dir.size() + 1);
    if inode.is_directory() {
        dir.set_word(ZplAttr::Links, dir.links() + 1);
    }
    op.touch_content(dir);
}

/// Allocates the object of a new inode, and stores its attributes.
pub(super) fn make(op: &mut Op<'_, '_>, dir: &Inode, new: &NewNode<'_>) -> TxResult<Inode> {
    let target = match new.kind {
        NewKind::Symlink(target) => Some(target),
        _ => None,
    };
    if target.is_some_and(|target| target.is_empty() || target.contains(&0)) {
        return Err(refuse(Kind::Invalid, FsError::WrongKind));
    }
    if target.is_some_and(|target| target.len() > TARGET_MAX) {
        return Err(refuse(Kind::Invalid, FsError::NameTooLong));
    }
    let is_directory = new.kind == NewKind::Directory;
    let (uid, gid) = new.owner.unwrap_or_else(|| permit::owner_of_new(op, dir));
    let mut mode = u64::from(new.mode) & PERMISSION_MASK;
    if new.owner.is_none() {
        if is_directory && dir.mode() & SET_GID != 0 {
            mode |= SET_GID;
        } else {
            mode = permit::mode_of_chmod(op, gid, mode);
        }
    }
    let acl = permit::acl_of_new(op, dir, new, mode, Ids { uid, gid });
    let attrs = attributes(op, dir, new, &acl, (uid, gid));
    permit::quota_of_new(op, uid, gid, attrs.word(ZplAttr::Projid))?;
    let object = allocate(op, new, attrs.bonus_len())?;
    let is_wanted = new.number.is_none_or(|number| number == object);
    ensure!("N1", is_wanted, "object {object} was allocated instead of {:?}", new.number);
    let inode = Inode::new(object, attrs);
    op.store(&inode)?;
    Ok(inode)
}

fn attributes(
    op: &Op<'_, '_>,
    dir: &Inode,
    new: &NewNode<'_>,
    acl: &NodeAcl,
    (uid, gid): (u64, u64),
) -> Attrs {
    let is_directory = new.kind == NewKind::Directory;
    let inherits = dir.flags().contains(PFlags::PROJINHERIT);
    let mut flags = PFlags::ARCHIVE | PFlags::AV_MODIFIED | acl.flags;
    // Other kinds get a project only when a user sets it.
    let has_project =
        op.facts.has_projects && matches!(new.kind, NewKind::Regular | NewKind::Directory);
    let mut project = 0;
    if has_project {
        flags |= PFlags::PROJID;
        if inherits {
            project = dir.project().unwrap_or(0);
            flags |= PFlags::PROJINHERIT;
        }
    }
    if dir.flags().contains(PFlags::XATTR) {
        flags |= PFlags::XATTR;
    }
    let (size, links) = match new.kind {
        NewKind::Directory => (EMPTY_DIRECTORY, EMPTY_DIRECTORY),
        NewKind::Symlink(target) => (target.len() as u64, 1),
        _ => (0, 1),
    };
    let mut attrs = Attrs::default();
    attrs.set_word(ZplAttr::Mode, acl.mode);
    attrs.set_word(ZplAttr::Size, size);
    attrs.set_word(ZplAttr::Gen, new.generation.unwrap_or(op.tx.txg()));
    attrs.set_word(ZplAttr::Uid, uid);
    attrs.set_word(ZplAttr::Gid, gid);
    attrs.set_word(ZplAttr::Parent, dir.object);
    attrs.set_word(ZplAttr::Flags, flags.bits());
    let time = new.time.unwrap_or(op.now);
    for attr in [ZplAttr::Atime, ZplAttr::Mtime, ZplAttr::Ctime, ZplAttr::Crtime] {
        attrs.set_time(attr, time);
    }
    attrs.set_word(ZplAttr::Links, links);
    if has_project {
        attrs.set_word(ZplAttr::Projid, project);
    }
    if let NewKind::CharDevice(rdev) | NewKind::BlockDevice(rdev) = new.kind {
        attrs.set_word(ZplAttr::Rdev, rdev);
    }
    attrs.set_word(ZplAttr::DaclCount, acl.aces.len() as u64);
    let aces: Vec<u8> = acl.aces.iter().flat_map(Ace::encode).collect();
    attrs.set_bytes(ZplAttr::DaclAces, &aces);
    if let NewKind::Symlink(target) = new.kind {
        attrs.set_bytes(ZplAttr::Symlink, target);
    }
    debug_assert!(attrs.is_canonical() && (is_directory || links == 1));
    attrs
}

fn allocate(op: &mut Op<'_, '_>, new: &NewNode<'_>, bonus_len: usize) -> TxResult<u64> {
    let slots = new.slots.unwrap_or(op.facts.settings().dnode_slots).max(1);
    let room = slots * 512 - 64 - 128;
    let is_directory = new.kind == NewKind::Directory;
    let object_type = if is_directory { ObjectType::DIRECTORY_CONTENTS } else { FILE };
    // Attributes that do not fit go to a spill block when they are stored.
    let bonus_len = bonus_len.min(room);
    let spec = ObjectSpec { number: new.number, slots, ..ObjectSpec::new(object_type, 0) };
    let spec = spec.with_bonus(ObjectType::SA, bonus_len);
    if is_directory {
        let options =
            ZapOptions { normflags: names::normflags(op.facts.rules), ..ZapOptions::default() };
        return zap::create(op.tx, &spec, options);
    }
    op.tx.allocate(&spec)
}
