//! Setting the NFSv4 ACL of an inode (spec 03 §12).

use cenote_dmu::TxResult;
use cenote_ondisk::acl::Ace;
use cenote_ondisk::znode::PFlags;
use cenote_rt::Kind;

use super::{Op, permit, posix, record, refuse};
use crate::access::{self, rules};
use crate::acl::{self, Ids};
use crate::error::FsError;

/// Maximum size of the entries of an ACL, which is that of an attribute.
const ACL_MAX: usize = u16::MAX as usize;

/// Returns the entries of the ACL of an inode; every inode has one.
///
/// # Errors
/// Permission errors.
pub fn acl(op: &mut Op<'_, '_>, object: u64) -> TxResult<Vec<Ace>> {
    let inode = op.inode(object)?;
    permit::check(op, &inode, acl::Want::READ_ACL)?;
    Ok(permit::aces(&inode))
}

/// Replaces the ACL of an inode, and sets its mode accordingly. `wide` are the flags that belong to
/// the ACL as a whole ([`acl::WIDE_FLAGS`]).
///
/// # Errors
/// Permission errors; [`FsError::BadAcl`] if there are too many entries, or one that neither
/// allows nor denies.
pub fn set_acl(op: &mut Op<'_, '_>, object: u64, aces: &[Ace], wide: PFlags) -> TxResult<()> {
    let mut inode = op.inode(object)?;
    if let Some(cred) = op.cred {
        let facts = access::Facts::of(op, &inode)?;
        access::decided(rules::may_set_acl(&facts.subject(), cred))?;
    }
    let is_valid = aces.iter().all(|ace| ace.kind <= 1);
    let len: usize = aces.iter().map(|ace| Ace::size(ace.kind, ace.flags)).sum();
    if !is_valid || len > ACL_MAX || aces.is_empty() {
        return Err(refuse(Kind::Invalid, FsError::BadAcl));
    }
    let ids = Ids { uid: inode.uid(), gid: inode.gid() };
    let new = acl::set(aces.to_vec(), wide, inode.mode(), ids, inode.is_directory());
    permit::set_acl(&mut inode, &new);
    posix::update_acl(op, &mut inode)?;
    op.touch_state(&mut inode);
    op.store(&inode)?;
    record::set_acl(op, &inode, &new);
    Ok(())
}
