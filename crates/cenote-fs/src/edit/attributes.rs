//! Changes attributes on request.

use cenote_dmu::TxResult;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::znode::{DirEntry, PFlags, Time};
use cenote_rt::Kind;

use super::inode::{PERMISSION_MASK, SET_GID, SET_UID};
use super::{Inode, Op, data, permit, record, refuse, xattr};
use crate::access::rules;
use crate::error::FsError;
use crate::node::FileKind;

const SET_IDS: u64 = SET_UID | SET_GID;

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the operation; needs only write permission.
    Now,
    /// Any time.
    To(Time),
}

/// Attributes to change; `None` leaves an attribute as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size of a file.
    pub size: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Content change time.
    pub mtime: Option<SetTime>,
    /// pflags that users set (immutable, append only, ...), with their new values; other flags are
    /// ignored.
    pub flags: Option<PFlags>,
    /// Project.
    pub project: Option<u32>,
    /// The request comes through a file opened for writing (`ftruncate`): permissions were checked
    /// by the open. Flags still forbid it.
    pub is_by_handle: bool,
    /// `mtime` is the time of writes that the kernel cached. Permissions and flags were checked by
    /// those writes: later flags, and the permissions of the caller, do not matter.
    pub is_write_back: bool,
}

/// pflags that a request may set.
pub const USER_FLAGS: PFlags = PFlags::READONLY
    .union(PFlags::HIDDEN)
    .union(PFlags::SYSTEM)
    .union(PFlags::ARCHIVE)
    .union(PFlags::IMMUTABLE)
    .union(PFlags::NOUNLINK)
    .union(PFlags::APPENDONLY)
    .union(PFlags::NODUMP)
    .union(PFlags::OPAQUE)
    .union(PFlags::REPARSE)
    .union(PFlags::OFFLINE)
    .union(PFlags::SPARSE)
    .union(PFlags::PROJINHERIT);

/// Changes attributes: all of them, or none.
///
/// # Errors
/// Permission and quota errors; those of [`truncate`](super::truncate).
pub fn set_attributes(
    op: &mut Op<'_, '_>,
    object: u64,
    changes: &SetAttributes,
) -> TxResult<Inode> {
    let mut inode = op.inode(object)?;
    permit::set_attributes(op, &inode, changes)?;
    if let Some(size) = changes.size {
        inode.check_data()?;
        let is_same = size == inode.size();
        data::set_size(op, &mut inode, size)?;
        drop_privileges(op, &mut inode)?;
        if !is_same || changes.mtime.is_none() {
            op.touch_content(&mut inode);
        }
    }
    let before = inode.mode() & SET_IDS;
    set_owner(op, &mut inode, changes)?;
    let has_lost_ids = inode.mode() & SET_IDS != before;
    if let Some(mode) = changes.mode {
        permit::chmod(op, &mut inode, u64::from(mode) & PERMISSION_MASK)?;
    }
    if let Some(flags) = changes.flags {
        inode.set_flags((inode.flags() - USER_FLAGS) | (flags & USER_FLAGS));
    }
    if let Some(project) = changes.project {
        set_project(op, &mut inode, project)?;
    }
    let SetAttributes { is_by_handle, is_write_back, .. } = *changes;
    let nothing = SetAttributes { is_by_handle, is_write_back, ..SetAttributes::default() };
    if *changes != nothing {
        let archive = inode.flags() & PFlags::ARCHIVE;
        op.touch_state(&mut inode);
        if changes.flags.is_some() {
            // The request set the archive bit explicitly.
            inode.set_flags((inode.flags() - PFlags::ARCHIVE) | archive);
        }
    }
    let time = |changes| match changes {
        SetTime::Now => op.now,
        SetTime::To(time) => time,
    };
    if let Some(changes) = changes.atime {
        inode.set_time(ZplAttr::Atime, time(changes));
    }
    if let Some(changes) = changes.mtime {
        inode.set_time(ZplAttr::Mtime, time(changes));
    }
    op.store(&inode)?;
    let mode = has_lost_ids.then_some((inode.mode() & PERMISSION_MASK) as u32);
    record::set_attributes(op, &inode, &SetAttributes { mode: changes.mode.or(mode), ..*changes });
    Ok(inode)
}

/// Removes set-id bits without changing the ACL, as a write or a change of owner did, if this mode
/// differs only in them. Returns whether it does.
pub(crate) fn lose_set_ids(op: &mut Op<'_, '_>, object: u64, mode: u32) -> TxResult<bool> {
    let mut inode = op.inode(object)?;
    let changed = (u64::from(mode) ^ inode.mode()) & PERMISSION_MASK;
    let is_all = changed & !(SET_IDS & inode.mode()) == 0;
    if is_all {
        inode.set_word(ZplAttr::Mode, inode.mode() & !changed);
        op.store(&inode)?;
    }
    Ok(is_all)
}

fn set_owner(op: &mut Op<'_, '_>, inode: &mut Inode, changes: &SetAttributes) -> TxResult<()> {
    let uid = changes.uid.map(u64::from).filter(|uid| *uid != inode.uid());
    let gid = changes.gid.map(u64::from).filter(|gid| *gid != inode.gid());
    if changes.uid.is_none() && changes.gid.is_none() {
        return Ok(());
    }
    permit::quota_of_owner(op, uid, gid)?;
    if inode.kind() != FileKind::Directory {
        if op.cred.is_some() {
            xattr::drop_capability(op, inode)?;
        }
        if changes.mode.is_none() {
            inode.set_word(ZplAttr::Mode, rules::without_set_ids(inode.mode()));
        }
    }
    if let Some(uid) = uid {
        inode.set_word(ZplAttr::Uid, uid);
    }
    if let Some(gid) = gid {
        inode.set_word(ZplAttr::Gid, gid);
    }
    permit::update_mode(inode);
    if uid.is_none() && gid.is_none() {
        return Ok(());
    }
    let (uid, gid) = (inode.uid(), inode.gid());
    change_hidden(op, inode, |hidden| {
        hidden.set_word(ZplAttr::Uid, uid);
        hidden.set_word(ZplAttr::Gid, gid);
    })
}

/// Changes the hidden directory of an inode and the files in it: extended attributes have the
/// file's owner and project, and are accounted to them.
fn change_hidden(op: &mut Op<'_, '_>, inode: &Inode, change: impl Fn(&mut Inode)) -> TxResult<()> {
    let dir = inode.xattr_dir();
    if dir == 0 {
        return Ok(());
    }
    let mut hidden = vec![dir];
    for entry in zap::entries(op.tx, dir)? {
        hidden.extend(entry.value.first().map(|value| DirEntry::decode(value).object));
    }
    for object in hidden {
        let mut node = op.inode(object)?;
        change(&mut node);
        op.store(&node)?;
    }
    Ok(())
}

fn set_project(op: &mut Op<'_, '_>, inode: &mut Inode, project: u32) -> TxResult<()> {
    if !op.facts.has_projects {
        return Err(refuse(Kind::Unsupported, FsError::NoProjects));
    }
    if project == u32::MAX {
        return Err(refuse(Kind::Invalid, FsError::WrongKind));
    }
    let project = u64::from(project);
    if inode.project() == Some(project) {
        return Ok(());
    }
    permit::quota_of_project(op, project)?;
    inode.set_word(ZplAttr::Projid, project);
    inode.set_flags(inode.flags() | PFlags::PROJID);
    change_hidden(op, inode, |hidden| {
        hidden.set_word(ZplAttr::Projid, project);
        hidden.set_flags(hidden.flags() | PFlags::PROJID);
    })
}

/// New contents do not have the privileges of the old ones: writing removes a program's file
/// capabilities and, unless the writer may set them, the set-id bits. The caller stores the inode.
/// In a replay separate log records do this.
pub(super) fn drop_privileges(op: &mut Op<'_, '_>, inode: &mut Inode) -> TxResult<()> {
    if op.cred.is_none() {
        return Ok(());
    }
    xattr::drop_capability(op, inode)?;
    let mode = permit::mode_after_write(op, inode);
    if mode != inode.mode() {
        inode.set_word(ZplAttr::Mode, mode);
        record::lose_set_ids(op, inode);
    }
    Ok(())
}
