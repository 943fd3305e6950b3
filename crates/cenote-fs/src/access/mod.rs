//! Permission checks that Linux and the file system make before they change anything.
//!
//! ```text
//!   flags of the node (immutable, append-only, …) ── forbid, for every user
//!   POSIX ACL (acltype=posix), else the mode if the ACL is trivial, else the ACL ── allow
//!   capabilities ── allow what these did not
//! ```
//!
//! A nontrivial ACL decides alone. (A Linux kernel first checks the mode, which was computed from
//! the ACL, and so never gives named users more than the mode does. Here they get what the ACL
//! grants, as on other systems.)
//!
//! Two errors are distinguished as in POSIX: missing permissions are
//! [`FsError::AccessDenied`](crate::FsError::AccessDenied); operations reserved to the owner or to
//! a privilege, and operations that a flag forbids, are
//! [`FsError::NotPermitted`](crate::FsError::NotPermitted).
//!
//! The rules are pure functions ([`rules`]); the functions here look up their arguments in a
//! transaction.
//!
//! Sources: spec 03 §10.2, §12.3.

pub mod accounts;
mod credentials;
pub mod rules;
#[cfg(test)]
mod tests;

use cenote_dmu::TxResult;
use cenote_ondisk::acl::Ace;
use cenote_ondisk::znode::PFlags;
use cenote_rt::Kind;

use crate::acl::Ids;
pub use crate::acl::Want;
use crate::acl::posix::PosixAcl;
use crate::edit::{self, Inode, Op, SetAttributes, SetTime, permit, refuse};
use crate::error::FsError;
pub use credentials::{Capabilities, Credentials};
pub use rules::OpenFor;
use rules::Subject;

/// The attributes of an inode that permission checks need.
#[derive(Debug)]
pub(crate) struct Facts {
    mode: u64,
    ids: Ids,
    flags: PFlags,
    aces: Vec<Ace>,
    posix: Option<PosixAcl>,
}

impl Facts {
    pub(crate) fn of(op: &mut Op<'_, '_>, inode: &Inode) -> TxResult<Self> {
        let flags = inode.flags();
        let is_trivial = flags.contains(PFlags::ACL_TRIVIAL);
        Ok(Self {
            mode: inode.mode(),
            ids: Ids { uid: inode.uid(), gid: inode.gid() },
            flags,
            aces: if is_trivial { Vec::new() } else { permit::aces(inode) },
            posix: edit::access_acl(op, inode)?,
        })
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject {
            mode: self.mode,
            ids: self.ids,
            flags: self.flags,
            aces: &self.aces,
            posix: self.posix.as_ref(),
        }
    }
}

/// Converts a verdict into the result of an operation.
pub(crate) fn decided<T>(verdict: Result<T, FsError>) -> TxResult<T> {
    verdict.map_err(|cause| {
        let kind = match cause {
            FsError::NoXattr => Kind::NotFound,
            FsError::XattrsOff => Kind::Unsupported,
            _ => Kind::Permission,
        };
        refuse(kind, cause)
    })
}

/// Checks whether `cred` has the wanted permissions on an inode.
pub(crate) fn check(
    op: &mut Op<'_, '_>,
    inode: &Inode,
    cred: &Credentials,
    wanted: Want,
) -> TxResult<()> {
    let facts = Facts::of(op, inode)?;
    decided(rules::check(&facts.subject(), cred, wanted))
}

/// Checks whether a name may be added to a directory.
pub(crate) fn check_add(
    op: &mut Op<'_, '_>,
    dir: &Inode,
    is_directory: bool,
    cred: &Credentials,
) -> TxResult<()> {
    let facts = Facts::of(op, dir)?;
    decided(rules::may_add(&facts.subject(), cred, is_directory))
}

/// Checks whether a name of an inode may be removed from a directory.
pub(crate) fn check_delete(
    op: &mut Op<'_, '_>,
    dir: &Inode,
    inode: &Inode,
    cred: &Credentials,
) -> TxResult<()> {
    let (dir, node) = (Facts::of(op, dir)?, Facts::of(op, inode)?);
    decided(rules::may_delete(&dir.subject(), &node.subject(), cred))
}

/// Checks whether an inode may get another name.
pub(crate) fn check_link(op: &mut Op<'_, '_>, inode: &Inode) -> TxResult<()> {
    let facts = Facts::of(op, inode)?;
    decided(rules::may_link(&facts.subject()))
}

/// Checks whether an open file may be written at an offset. Permissions were checked when it was
/// opened, but its flags may have changed since.
pub(crate) fn check_write(inode: &Inode, offset: u64) -> TxResult<()> {
    decided(rules::may_write_at(inode.flags(), offset, inode.size()))
}

/// Checks whether the flags of a file permit opening it.
pub(crate) fn check_open(inode: &Inode, cred: &Credentials, wanted: OpenFor) -> TxResult<()> {
    decided(rules::may_open(inode.flags(), cred, wanted))
}

/// Checks whether attributes may be changed.
pub(crate) fn check_set_attributes(
    op: &mut Op<'_, '_>,
    inode: &Inode,
    changes: &SetAttributes,
    cred: &Credentials,
) -> TxResult<()> {
    let facts = Facts::of(op, inode)?;
    let node = facts.subject();
    if changes.size.is_some() {
        check_write(inode, 0)?;
        if !changes.is_by_handle {
            decided(rules::check(&node, cred, Want::WRITE))?;
        }
    }
    if changes.uid.is_some() || changes.gid.is_some() {
        let (uid, gid) = (changes.uid.map(u64::from), changes.gid.map(u64::from));
        decided(rules::may_chown(&node, cred, uid, gid))?;
    }
    if changes.mode.is_some() {
        decided(rules::may_set_acl(&node, cred))?;
    }
    let times: Vec<SetTime> = changes.atime.into_iter().chain(changes.mtime).collect();
    // Setting the size also sets these times.
    let is_now = times.iter().all(|time| *time == SetTime::Now);
    let is_of_handle = changes.is_by_handle && changes.size.is_some() && is_now;
    if !times.is_empty() && !is_of_handle && !changes.is_write_back {
        decided(rules::may_set_times(&node, cred, is_now))?;
    }
    if let Some(flags) = changes.flags {
        let changed = (flags ^ node.flags) & crate::edit::USER_FLAGS;
        decided(rules::may_set_flags(&node, cred, changed))?;
    }
    if changes.project.is_some() {
        decided(rules::may_set_flags(&node, cred, PFlags::PROJID))?;
    }
    Ok(())
}
