//! Who may do what: where operations ask the rules of rights, ACLs, quotas and flags.
//!
//! The rules are in [`crate::access`] and [`crate::acl`]; here is which of them each operation
//! asks. Without credentials nothing is asked.

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

/// Asks for rights on an inode.
pub(crate) fn check(op: &mut Op<'_, '_>, inode: &Inode, want: Want) -> TxResult<()> {
    let Some(cred) = op.cred else { return Ok(()) };
    access::check(op, inode, cred, want)
}

/// Finding a name.
pub(crate) fn search(op: &mut Op<'_, '_>, dir: &Inode) -> TxResult<()> {
    // The flag is made of mode and ACL. A POSIX ACL may deny what they do not.
    if dir.flags().contains(PFlags::NO_EXECS_DENIED) && !posix::may_have_acl(op, dir) {
        return Ok(());
    }
    check(op, dir, Want::EXECUTE)
}

/// Listing names.
pub(crate) fn list(op: &mut Op<'_, '_>, dir: &Inode) -> TxResult<()> {
    check(op, dir, Want::READ)
}

/// Adding a name.
pub(crate) fn add_entry(op: &mut Op<'_, '_>, dir: &Inode, is_directory: bool) -> TxResult<()> {
    let Some(cred) = op.cred else { return Ok(()) };
    access::check_add(op, dir, is_directory, cred)
}

/// Making something of that kind. Character devices of number 0 are whiteouts, which are anybody's.
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

/// Taking a name away.
pub(crate) fn delete(op: &mut Op<'_, '_>, dir: &Inode, inode: &Inode) -> TxResult<()> {
    let Some(cred) = op.cred else { return Ok(()) };
    access::check_delete(op, dir, inode, cred)
}

/// Giving an inode one more name.
pub(crate) fn link(op: &mut Op<'_, '_>, inode: &Inode) -> TxResult<()> {
    if op.cred.is_none() {
        return Ok(());
    }
    access::check_link(op, inode)
}

/// Moving a name.
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

/// Changing content from an offset on.
pub(crate) fn write(op: &Op<'_, '_>, inode: &Inode, offset: u64) -> TxResult<()> {
    if op.cred.is_none() || op.is_write_back {
        return Ok(());
    }
    access::check_write(inode, offset)
}

/// Changing attributes.
pub(crate) fn set_attributes(
    op: &mut Op<'_, '_>,
    inode: &Inode,
    wish: &SetAttributes,
) -> TxResult<()> {
    let Some(cred) = op.cred else { return Ok(()) };
    access::check_set_attributes(op, inode, wish, cred)
}

/// A directory that hands its project down takes only inodes of that project.
pub(crate) fn same_project(dir: &Inode, inode: &Inode) -> TxResult<()> {
    let is_handed_down = dir.flags().contains(PFlags::PROJINHERIT);
    if is_handed_down && dir.project().unwrap_or(0) != inode.project().unwrap_or(0) {
        return Err(refuse(Kind::Invalid, FsError::CrossProject));
    }
    Ok(())
}

/// Owner and group of a new inode.
pub(crate) fn owner_of_new(op: &Op<'_, '_>, dir: &Inode) -> (u64, u64) {
    let (uid, gid) = op.cred.map_or((0, 0), |cred| (cred.uid.into(), cred.gid.into()));
    let gid = if dir.mode() & SET_GID != 0 { dir.gid() } else { gid };
    (uid, gid)
}

/// The mode that an inode of that group gets when somebody sets it.
pub(crate) fn mode_of_chmod(op: &Op<'_, '_>, gid: u64, mode: u64) -> u64 {
    op.cred.map_or(mode, |cred| access::rules::mode_of_chmod(mode, gid, cred))
}

/// The mode of a file that is written.
pub(crate) fn mode_after_write(op: &Op<'_, '_>, inode: &Inode) -> u64 {
    let mode = inode.mode();
    op.cred.map_or(mode, |cred| access::rules::mode_after_write(mode, cred))
}

/// The ACL of a new inode.
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

/// The ACL of an inode as it is stored.
pub(crate) fn aces(inode: &Inode) -> Vec<Ace> {
    let count = inode.word(ZplAttr::DaclCount).unwrap_or(0);
    let bytes = inode.bytes(ZplAttr::DaclAces).unwrap_or(&[]);
    Acl::decode(bytes, count, Endian::Little).entries
}

/// Another mode, with what that does to the ACLs.
pub(crate) fn chmod(op: &mut Op<'_, '_>, inode: &mut Inode, mode: u64) -> TxResult<()> {
    let mode = mode_of_chmod(op, inode.gid(), mode);
    set_mode(op, inode, mode)?;
    posix::follow_mode(op, inode)
}

/// Another mode, with the NFSv4 ACL that it makes.
pub(super) fn set_mode(op: &Op<'_, '_>, inode: &mut Inode, mode: u64) -> TxResult<()> {
    let mode = inode.mode() & !PERMISSION_MASK | mode;
    let ids = Ids { uid: inode.uid(), gid: inode.gid() };
    let policy = AclMode::from_property(op.facts.settings().acl_mode);
    let changed = acl::chmod(&aces(inode), inode.flags(), mode, ids, inode.is_directory(), policy);
    let changed = changed.map_err(|cause| Error::new(Kind::Permission, cause))?;
    set_acl(inode, &changed);
    Ok(())
}

/// What the mode is now that the owner is another, whom an entry may name.
pub(super) fn follow_owner(inode: &mut Inode) {
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

/// Gives an inode an ACL with what goes with it.
pub(crate) fn set_acl(inode: &mut Inode, acl: &NodeAcl) {
    inode.set_word(ZplAttr::Mode, acl.mode);
    inode.set_flags(acl.apply(inode.flags()));
    inode.set_acl(&acl.aces);
}

/// Whether owner and group may have one more object, and what it takes.
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

/// Whether the owners of a file may have more space.
pub(crate) fn quota_of_write(op: &mut Op<'_, '_>, inode: &Inode) -> TxResult<()> {
    if op.cred.is_none() {
        return Ok(());
    }
    crate::quota::check_space(op, inode.uid(), inode.gid(), inode.project().unwrap_or(0))
}

/// Whether a user or group may be given something.
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

/// Whether a project may be given something.
pub(crate) fn quota_of_project(op: &mut Op<'_, '_>, project: u64) -> TxResult<()> {
    if op.cred.is_none() {
        return Ok(());
    }
    crate::quota::check_project(op, project)
}
