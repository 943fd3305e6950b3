//! From modes to ACLs and back (spec 03 §12.4, §12.5).

use cenote_ondisk::acl::{ACE_ALLOW, ACE_DENY, Ace, Who};
use cenote_ondisk::znode::PFlags;

use super::{
    ACL_FLAGS, AclMode, Ids, NodeAcl, WIDE_FLAGS, Want, allows, decides, flag, is_inheritable,
    is_of_mode, plain, want,
};
use crate::error::FsError;

/// Bits of a mode that an ACL determines.
const RWX: u64 = 0o777;
const ALL_EXECUTE: u64 = 0o111;
const READ: u64 = 4;
const WRITE: u64 = 2;
const EXECUTE: u64 = 1;

/// Permissions that every user always has.
const EVERYONE: Want =
    Want::READ_XATTR.union(Want::READ_ATTRIBUTES).union(Want::READ_ACL).union(Want::SYNCHRONIZE);
/// Permissions that an owner always has.
const OWNER: Want = EVERYONE
    .union(Want::WRITE_XATTR)
    .union(Want::WRITE_ATTRIBUTES)
    .union(Want::WRITE_ACL)
    .union(Want::WRITE_OWNER);

/// The entries of a mode: at most three that correct later entries for a class, then owner, group,
/// everyone.
struct Masks {
    first: Vec<Ace>,
    last: [Ace; 3],
}

impl Masks {
    fn of(mode: u64, is_directory: bool) -> Self {
        let [owner, group, other] = [mode >> 6 & 7, mode >> 3 & 7, mode & 7];
        let rights = |bits: u64| {
            let write = Want::WRITE | Want::APPEND;
            let write = if is_directory { write | Want::DELETE_CHILD } else { write };
            let all = [(READ, Want::READ), (WRITE, write), (EXECUTE, Want::EXECUTE)];
            let chosen = all.into_iter().filter(|(bit, _)| bits & bit != 0);
            chosen.fold(Want::empty(), |all, (_, rights)| all | rights)
        };
        let first = [
            (ACE_ALLOW, flag::OWNER, rights(owner & !group & other)),
            (ACE_DENY, flag::OWNER, rights(!owner & (group | other))),
            (ACE_DENY, flag::GROUP, rights(!group & other)),
        ];
        let first = first.into_iter().filter(|(_, _, rights)| !rights.is_empty());
        Self {
            first: first.map(|(kind, flags, rights)| plain(kind, flags, rights)).collect(),
            last: [
                plain(ACE_ALLOW, flag::OWNER, OWNER | rights(owner)),
                plain(ACE_ALLOW, flag::GROUP, EVERYONE | rights(group)),
                plain(ACE_ALLOW, flag::EVERYONE, EVERYONE | rights(other)),
            ],
        }
    }

    /// Returns the permissions of the group.
    fn group(&self) -> Want {
        want(&self.last[1])
    }
}

/// Returns the ACL that is equivalent to a mode, 3 to 6 entries.
#[must_use]
pub fn trivial(mode: u64, is_directory: bool) -> Vec<Ace> {
    let Masks { mut first, last } = Masks::of(mode, is_directory);
    first.extend(last);
    first
}

/// Whether a mode can express the whole ACL.
#[must_use]
pub fn is_trivial(aces: &[Ace]) -> bool {
    let basic = Want::READ_ACL | Want::READ_ATTRIBUTES;
    let of_owner = Want::WRITE_OWNER | Want::WRITE_ACL | Want::WRITE_ATTRIBUTES | Want::WRITE_XATTR;
    aces.iter().all(|ace| {
        let mask = want(ace);
        is_of_mode(ace)
            && ace.flags & flag::INHERIT == 0
            && !(ace.kind == ACE_DENY && mask.intersects(basic))
            && !mask.contains(Want::DELETE)
            && (!mask.contains(Want::DELETE_CHILD) || mask.contains(Want::WRITE))
            && !(ace.kind == ACE_ALLOW && ace.who() != Who::Owner && mask.intersects(of_owner))
    })
}

/// Returns the mode computed from an ACL, with the other bits of `mode`, and whether any user is
/// denied execution.
#[must_use]
pub fn mode_of(aces: &[Ace], mode: u64, ids: Ids) -> (u64, bool) {
    let (mut seen, mut granted, mut is_denied) = (0, 0, false);
    for ace in aces.iter().filter(|ace| decides(ace) && ace.flags & flag::INHERIT_ONLY == 0) {
        let classes = match ace.who() {
            Who::Owner => 0o700,
            Who::Group => 0o070,
            Who::Everyone => 0o777,
            Who::NamedUser(id) if id == ids.uid => 0o700,
            Who::NamedGroup(id) if id == ids.gid => 0o070,
            Who::NamedUser(_) | Who::NamedGroup(_) => {
                // A named user or group belongs to no class of the mode, but is denied execution.
                is_denied |= !allows(ace) && want(ace).contains(Want::EXECUTE);
                continue;
            }
        };
        let spoken = [(READ, Want::READ), (WRITE, Want::WRITE), (EXECUTE, Want::EXECUTE)]
            .into_iter()
            .filter(|(_, right)| want(ace).contains(*right))
            .fold(0, |bits, (bit, _)| bits | (bit * 0o111));
        let fresh = spoken & classes & !seen;
        seen |= fresh;
        if allows(ace) {
            granted |= fresh;
        }
    }
    is_denied |= granted & ALL_EXECUTE != ALL_EXECUTE;
    (mode & !RWX | granted, is_denied)
}

/// Computes flags and mode of an ACL.
pub(super) fn complete(
    aces: Vec<Ace>,
    wide: PFlags,
    mode: u64,
    ids: Ids,
    is_directory: bool,
) -> NodeAcl {
    let (mode, is_denied) = mode_of(&aces, mode, ids);
    let mut flags = wide & WIDE_FLAGS;
    flags.set(PFlags::NO_EXECS_DENIED, !is_denied);
    flags.set(PFlags::ACL_TRIVIAL, is_trivial(&aces));
    flags.set(PFlags::INHERIT_ACE, is_directory && aces.iter().any(is_inheritable));
    flags.set(PFlags::ACL_OBJ_ACE, aces.iter().any(|ace| matches!(ace.kind, 5..=8)));
    NodeAcl { aces, flags, mode }
}

/// How [`with_mode`] changes existing entries.
#[derive(Debug, Clone, Copy)]
pub(super) struct Treatment {
    /// Entries for owner, group and everyone are replaced; inheritable ones stay as inherit-only
    /// entries.
    pub(super) is_split: bool,
    /// Allowed permissions are reduced to those of the group.
    pub(super) is_trimmed: bool,
}

/// Returns the entries combined with those of a mode.
pub(super) fn with_mode(
    aces: &[Ace],
    mode: u64,
    is_directory: bool,
    treatment: Treatment,
) -> Vec<Ace> {
    let masks = Masks::of(mode, is_directory);
    let group = masks.group();
    let mut all = masks.first;
    for ace in aces {
        let mut ace = *ace;
        if treatment.is_split && is_of_mode(&ace) {
            if !is_directory || !is_inheritable(&ace) {
                continue;
            }
            ace.flags |= flag::INHERIT_ONLY;
        }
        let is_active = decides(&ace) && ace.flags & flag::INHERIT_ONLY == 0;
        if is_active && ace.kind == ACE_ALLOW && treatment.is_trimmed {
            ace.mask &= group.bits();
        }
        all.push(ace);
    }
    all.extend(masks.last);
    all
}

/// Returns the ACL after a chmod. `flags` are the node's.
///
/// # Errors
/// [`FsError::NotPermitted`] if `policy` forbids it.
pub fn chmod(
    aces: &[Ace],
    flags: PFlags,
    mode: u64,
    ids: Ids,
    is_directory: bool,
    policy: AclMode,
) -> Result<NodeAcl, FsError> {
    if policy == AclMode::Restricted && !flags.contains(PFlags::ACL_TRIVIAL) {
        return Err(FsError::NotPermitted);
    }
    let aces = if policy == AclMode::Discard { &[] } else { aces };
    let is_trimmed = policy == AclMode::GroupMask;
    let aces = with_mode(aces, mode, is_directory, Treatment { is_split: true, is_trimmed });
    Ok(complete(aces, flags, mode, ids, is_directory))
}

/// Returns an ACL that a user set on a node. `wide` are the flags of [`WIDE_FLAGS`] that came with
/// it.
#[must_use]
pub fn set(aces: Vec<Ace>, wide: PFlags, mode: u64, ids: Ids, is_directory: bool) -> NodeAcl {
    const _: () = assert!(ACL_FLAGS.contains(WIDE_FLAGS));
    complete(aces, wide, mode, ids, is_directory)
}
