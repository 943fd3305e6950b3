//! Permission, quota and flag checks of each operation.
//!
//! The rules are in [`crate::access`] and [`crate::acl`]; this module selects the rules for each
//! operation. Without credentials there are no checks.

use cenote_dmu::TxResult;
use cenote_ondisk::acl::{Ace, Acl};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::znode::PFlags;
use cenote_rt::{Error, Kind};

use super::attributes::SetAttributes;
use super::create::{NewKind, NewNode};
use super::inode::{PERMISSION_MASK, SET_GID};
use super::{Inode, Op, posix, refuse};
use crate::access::{self, Capabilities};
use crate::acl::{self, AclInherit, AclMode, Ids, NewNodeAcl, NodeAcl, ParentAcl, Want};
use crate::error::FsError;

/// Checks permissions on an inode.
pub(crate) fn check(op: &mut Op<'_, '_>, inode: &Inode, want: Want) -> TxResult<()> {
    let Some(cred) = op.cred else { return Ok(()) };
    access::check(op, inode, cred, want)
}

/// Checks for looking up a name.
pub(crate) fn search(op: &mut Op<'_, '_>, dir: &Inode) -> TxResult<()> {
    // The flag is computed from mode and ACL. A POSIX ACL may deny more.
    if dir.flags().contains(PFlags::NO_EXECS_DENIED) && !posix::may_have_acl(op, dir) {
        return Ok(());
    }
    check(op, dir, Want::EXECUTE)
}

/// Checks for listing names.
pub(crate) fn list(op: &mut Op<'_, '_>, dir: &Inode) -> TxResult<()> {
    check(op, dir, Want::READ)
}

/// Checks for adding a name.
pub(crate) fn add_entry(op: &mut Op<'_, '_>, dir: &Inode, is_directory: bool) -> TxResult<()> {
    let Some(cred) = op.cred else { return Ok(()) };
    access::check_add(op, dir, is_directory, cred)
}

/// Checks for creating a node of that kind. Character devices with number 0 are whiteouts, which
/// every user may create.
pub(crate) fn kind(op: &Op<'_, '_>, kind: NewKind<'_>) -> TxResult<()> {
    let is_device = match kind {
        NewKind::CharDevice(device) => device != 0,
        NewKind::BlockDevice(_) => true,
        _ => false,
    };
    if is_device && op.cred.is_some_and(|cred| !cred.can(Capabilities::MKNOD)) {
        return Err(refuse(Kind::Permission, FsError::NotPermitted));
    }
    Ok(())
}

/// Checks for removing a name.
pub(crate) fn delete(op: &mut Op<'_, '_>, dir: &Inode, inode: &Inode) -> TxResult<()> {
    let Some(cred) = op.cred else { return Ok(()) };
    access::check_delete(op, dir, inode, cred)
}

/// Checks for adding a name to an inode.
pub(crate) fn link(op: &mut Op<'_, '_>, inode: &Inode) -> TxResult<()> {
    if op.cred.is_none() {
        return Ok(());
    }
    access::check_link(op, inode)
}

/// Checks for moving a name.
pub(crate) fn rename(
    op: &mut Op<'_, '_>,
    source: &Inode,
    target: &Inode,
    inode: &Inode,
) -> TxResult<()> {
    delete(op, source, inode)?;
    if inode.is_directory() && source.object != target.object {
        // Its entry `..` changes.
        check(op, inode, Want::WRITE)?;
    }
    add_entry(op, target, inode.is_directory())
}

/// Checks for changing contents from an offset on.
pub(crate) fn write(op: &Op<'_, '_>, inode: &Inode, offset: u64) -> TxResult<()> {
    if op.cred.is_none() || op.is_write_back {
        return Ok(());
    }
    access::check_write(inode, offset)
}

/// Checks for changing attributes.
pub(crate) fn set_attributes(
    op: &mut Op<'_, '_>,
    inode: &Inode,
    changes: &SetAttributes,
) -> TxResult<()> {
    let Some(cred) = op.cred else { return Ok(()) };
    access::check_set_attributes(op, inode, changes, cred)
}

/// Refuses inodes of another project in a directory that passes its project on.
pub(crate) fn same_project(dir: &Inode, inode: &Inode) -> TxResult<()> {
    let is_handed_down = dir.flags().contains(PFlags::PROJINHERIT);
    if is_handed_down && dir.project().unwrap_or(0) != inode.project().unwrap_or(0) {
        return Err(refuse(Kind::Invalid, FsError::CrossProject));
    }
    Ok(())
}

/// Returns owner and group of a new inode.
pub(crate) fn owner_of_new(op: &Op<'_, '_>, dir: &Inode) -> (u64, u64) {
    let (uid, gid) = op.cred.map_or((0, 0), |cred| (cred.uid.into(), cred.gid.into()));
    let gid = if dir.mode() & SET_GID != 0 { dir.gid() } else { gid };
    (uid, gid)
}

/// Returns the mode that a chmod sets on an inode of that group.
pub(crate) fn mode_of_chmod(op: &Op<'_, '_>, gid: u64, mode: u64) -> u64 {
    op.cred.map_or(mode, |cred| access::rules::mode_of_chmod(mode, gid, cred))
}

/// Returns the mode of a file after a write.
pub(crate) fn mode_after_write(op: &Op<'_, '_>, inode: &Inode) -> u64 {
    let mode = inode.mode();
    op.cred.map_or(mode, |cred| access::rules::mode_after_write(mode, cred))
}

/// Returns the ACL of a new inode.
pub(crate) fn acl_of_new(
    op: &Op<'_, '_>,
    dir: &Inode,
    new: &NewNode<'_>,
    mode: u64,
    ids: Ids,
) -> NodeAcl {
    if let Some(acl) = new.acl {
        return acl.clone();
    }
    let settings = op.facts.settings();
    let aces = if dir.flags().contains(PFlags::INHERIT_ACE) { aces(dir) } else { Vec::new() };
    let parent = ParentAcl { flags: dir.flags(), aces: &aces };
    let kind = new.kind.file_kind();
    let new = NewNodeAcl { kind, mode: mode | new.kind.type_bits() << 12, ids };
    let inherit = AclInherit::from_property(settings.acl_inherit);
    acl::for_new(Some(parent), &new, inherit, AclMode::from_property(settings.acl_mode))
}

/// Returns the stored ACL of an inode.
pub(crate) fn aces(inode: &Inode) -> Vec<Ace> {
    let count = inode.word(ZplAttr::DaclCount).unwrap_or(0);
    let bytes = inode.bytes(ZplAttr::DaclAces).unwrap_or(&[]);
    Acl::decode(bytes, count, Endian::Little).entries
}

/// Sets the mode, and updates both kinds of ACLs.
pub(crate) fn chmod(op: &mut Op<'_, '_>, inode: &mut Inode, mode: u64) -> TxResult<()> {
    let mode = mode_of_chmod(op, inode.gid(), mode);
    set_mode(op, inode, mode)?;
    posix::update_acl(op, inode)
}

/// Sets the mode, and the NFSv4 ACL accordingly.
pub(super) fn set_mode(op: &Op<'_, '_>, inode: &mut Inode, mode: u64) -> TxResult<()> {
    let mode = inode.mode() & !PERMISSION_MASK | mode;
    let ids = Ids { uid: inode.uid(), gid: inode.gid() };
    let policy = AclMode::from_property(op.facts.settings().acl_mode);
    let changed = acl::chmod(&aces(inode), inode.flags(), mode, ids, inode.is_directory(), policy);
    let changed = changed.map_err(|cause| Error::new(Kind::Permission, cause))?;
    set_acl(inode, &changed);
    Ok(())
}

/// Updates the mode after a change of the owner, because ACL entries may name the new owner.
pub(super) fn update_mode(inode: &mut Inode) {
    if inode.flags().contains(PFlags::ACL_TRIVIAL) {
        return;
    }
    let ids = Ids { uid: inode.uid(), gid: inode.gid() };
    let (mode, is_denied) = acl::mode_of(&aces(inode), inode.mode(), ids);
    inode.set_word(ZplAttr::Mode, mode);
    let mut flags = inode.flags();
    flags.set(PFlags::NO_EXECS_DENIED, !is_denied);
    inode.set_flags(flags);
}

/// Stores an ACL with its flags and mode.
pub(crate) fn set_acl(inode: &mut Inode, acl: &NodeAcl) {
    inode.set_word(ZplAttr::Mode, acl.mode);
    inode.set_flags(acl.apply(inode.flags()));
    inode.set_acl(&acl.aces);
}

/// Checks whether owner, group and project may have one more object, and its space.
pub(crate) fn quota_of_new(
    op: &mut Op<'_, '_>,
    uid: u64,
    gid: u64,
    project: Option<u64>,
) -> TxResult<()> {
    if op.cred.is_none() {
        return Ok(());
    }
    crate::quota::check_new(op, uid, gid, project.unwrap_or(0))
}

/// Checks whether the owners of a file may have more space.
pub(crate) fn quota_of_write(op: &mut Op<'_, '_>, inode: &Inode) -> TxResult<()> {
    if op.cred.is_none() {
        return Ok(());
    }
    crate::quota::check_space(op, inode.uid(), inode.gid(), inode.project().unwrap_or(0))
}

/// Checks whether a user or group may be given a file.
pub(crate) fn quota_of_owner(
    op: &mut Op<'_, '_>,
    uid: Option<u64>,
    gid: Option<u64>,
) -> TxResult<()> {
    if op.cred.is_none() {
        return Ok(());
    }
    crate::quota::check_owner(op, uid, gid)
}

/// Checks whether a project may be given a file.
pub(crate) fn quota_of_project(op: &mut Op<'_, '_>, project: u64) -> TxResult<()> {
    if op.cred.is_none() {
        return Ok(());
    }
    crate::quota::check_project(op, project)
}
