//! Who may do what: the checks that Linux and the file system make before they change anything.
//!
//! ```text
//!   flags of the node (immutable, append-only, …) ── forbid, whoever asks
//!   POSIX ACL (acltype=posix), else the mode if the ACL is trivial, else the ACL ── allow
//!   capabilities ── allow what these did not
//! ```
//!
//! Where an ACL is not trivial it decides alone. (A Linux kernel asks the mode first, which the ACL
//! made, and so never lets named users do more than it says; here they may what they were given, as
//! on the other systems.)
//!
//! Two errors are told apart as POSIX does: rights that are missing are
//! [`FsError::AccessDenied`](crate::FsError::AccessDenied); what only the owner or a privilege can
//! do, and what a flag forbids, is [`FsError::NotPermitted`](crate::FsError::NotPermitted).
//!
//! The rules are pure functions ([`rules`]); the functions here look up in a transaction what they
//! need.
//!
//! Sources: spec 03 §10.2, §12.3.

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
use rules::Subject;

/// What decides about an inode, looked up.
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

/// A verdict as an operation gives it.
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

/// Whether somebody may do something with an inode.
pub(crate) fn check(
    op: &mut Op<'_, '_>,
    inode: &Inode,
    cred: &Credentials,
    wanted: Want,
) -> TxResult<()> {
    let facts = Facts::of(op, inode)?;
    decided(rules::check(&facts.subject(), cred, wanted))
}

/// Whether a name may be added to a directory.
pub(crate) fn check_add(
    op: &mut Op<'_, '_>,
    dir: &Inode,
    is_directory: bool,
    cred: &Credentials,
) -> TxResult<()> {
    let facts = Facts::of(op, dir)?;
    decided(rules::may_add(&facts.subject(), cred, is_directory))
}

/// Whether a name of an inode may be taken out of a directory.
pub(crate) fn check_delete(
    op: &mut Op<'_, '_>,
    dir: &Inode,
    inode: &Inode,
    cred: &Credentials,
) -> TxResult<()> {
    let (dir, node) = (Facts::of(op, dir)?, Facts::of(op, inode)?);
    decided(rules::may_delete(&dir.subject(), &node.subject(), cred))
}

/// Whether an inode may get one more name.
pub(crate) fn check_link(op: &mut Op<'_, '_>, inode: &Inode) -> TxResult<()> {
    let facts = Facts::of(op, inode)?;
    decided(rules::may_link(&facts.subject()))
}

/// Whether a file that is open for writing may be written from an offset on: its rights were asked
/// for when it was opened, its flags may be others since.
pub(crate) fn check_write(inode: &Inode, offset: u64) -> TxResult<()> {
    decided(rules::may_write_at(inode.flags(), offset, inode.size()))
}

/// Whether flags let a file be opened.
pub(crate) fn check_open(
    inode: &Inode,
    writes: bool,
    appends: bool,
    truncates: bool,
) -> TxResult<()> {
    decided(rules::may_open(inode.flags(), writes, appends, truncates))
}

/// Whether attributes may be changed.
pub(crate) fn check_set_attributes(
    op: &mut Op<'_, '_>,
    inode: &Inode,
    wish: &SetAttributes,
    cred: &Credentials,
) -> TxResult<()> {
    let facts = Facts::of(op, inode)?;
    let node = facts.subject();
    if wish.size.is_some() {
        check_write(inode, 0)?;
        if !wish.is_by_handle {
            decided(rules::check(&node, cred, Want::WRITE))?;
        }
    }
    if wish.uid.is_some() || wish.gid.is_some() {
        let (uid, gid) = (wish.uid.map(u64::from), wish.gid.map(u64::from));
        decided(rules::may_chown(&node, cred, uid, gid))?;
    }
    if wish.mode.is_some() {
        decided(rules::may_set_acl(&node, cred))?;
    }
    let times: Vec<SetTime> = wish.atime.into_iter().chain(wish.mtime).collect();
    // With a new size the time of the change comes by itself.
    let is_now = times.iter().all(|time| *time == SetTime::Now);
    let is_of_handle = wish.is_by_handle && wish.size.is_some() && is_now;
    if !times.is_empty() && !is_of_handle && !wish.is_write_back {
        decided(rules::may_set_times(&node, cred, is_now))?;
    }
    if let Some(flags) = wish.flags {
        let changed = (flags ^ node.flags) & crate::edit::USER_FLAGS;
        decided(rules::may_set_flags(&node, cred, changed))?;
    }
    if wish.project.is_some() {
        decided(rules::may_set_flags(&node, cred, PFlags::PROJID))?;
    }
    Ok(())
}
