//! What an ACL allows, what a mode makes of it, and what new nodes get (spec 03 §12).
//!
//! ```text
//!   mode ──trivial──> ACL        a file that nobody gave an ACL has the one that its mode says
//!   ACL  ──compute──> mode       and the mode that is shown is always the one that the ACL says
//!   directory's ACL ──inherit──> ACL of a new node       by `aclinherit`
//!   ACL + chmod ──> ACL                                  by `aclmode`
//! ```
//!
//! Every node has an NFSv4 ACL, even where nobody can see it. POSIX ACLs ([`posix`]) are extended
//! attributes beside it and decide instead of it where `acltype=posix`.
//!
//! An ACL is *trivial* if its mode tells as much; a flag of the node says so, and then the ACL is
//! never looked at. Three more flags are made with it: that something can be inherited, that there
//! are entries for objects, and that nobody is denied execution.

mod inherit;
mod mode;
#[cfg(test)]
mod tests;

use bitflags::bitflags;
use cenote_ondisk::acl::{ACE_ALLOW, ACE_DENY, Ace, Who};
use cenote_ondisk::znode::PFlags;

pub use cenote_ondisk::posix_acl as posix;
pub use inherit::{NewNodeAcl, ParentAcl, for_new};
pub use mode::{chmod, is_trivial, mode_of, set, trivial};

bitflags! {
    /// What somebody may do, as the mask of an entry says it.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Want: u32 {
        /// Read data; list a directory.
        const READ = 0x1;
        /// Write data; add a file to a directory.
        const WRITE = 0x2;
        /// Append; add a directory to a directory.
        const APPEND = 0x4;
        /// Read extended attributes.
        const READ_XATTR = 0x8;
        /// Write extended attributes.
        const WRITE_XATTR = 0x10;
        /// Execute; search a directory.
        const EXECUTE = 0x20;
        /// Delete anything in a directory.
        const DELETE_CHILD = 0x40;
        /// Read times, size and mode.
        const READ_ATTRIBUTES = 0x80;
        /// Change times and flags.
        const WRITE_ATTRIBUTES = 0x100;
        /// Delete the node itself.
        const DELETE = 0x1_0000;
        /// Read the ACL.
        const READ_ACL = 0x2_0000;
        /// Change the ACL or the mode.
        const WRITE_ACL = 0x4_0000;
        /// Take the node over.
        const WRITE_OWNER = 0x8_0000;
        /// Wait for others.
        const SYNCHRONIZE = 0x10_0000;
        const _ = !0;
    }
}

/// Flags of an entry.
pub(crate) mod flag {
    /// Files inherit it.
    pub(crate) const FILE_INHERIT: u16 = 0x1;
    /// Directories inherit it.
    pub(crate) const DIRECTORY_INHERIT: u16 = 0x2;
    /// What inherits it does not pass it on.
    pub(crate) const NO_PROPAGATE: u16 = 0x4;
    /// It says nothing about the directory that has it.
    pub(crate) const INHERIT_ONLY: u16 = 0x8;
    /// It was inherited.
    pub(crate) const INHERITED: u16 = 0x80;
    /// `owner@`
    pub(crate) const OWNER: u16 = 0x1000;
    /// `group@`
    pub(crate) const GROUP: u16 = 0x2040;
    /// `everyone@`
    pub(crate) const EVERYONE: u16 = 0x4000;
    /// All that has to do with inheritance, but for its being inherited.
    pub(crate) const INHERIT: u16 = FILE_INHERIT | DIRECTORY_INHERIT | NO_PROPAGATE | INHERIT_ONLY;
}

/// Flags of a node that come from its ACL.
pub const ACL_FLAGS: PFlags = PFlags::INHERIT_ACE
    .union(PFlags::ACL_TRIVIAL)
    .union(PFlags::ACL_OBJ_ACE)
    .union(WIDE_FLAGS)
    .union(PFlags::NO_EXECS_DENIED);

/// Those of them that are kept with the ACL and mean nothing for its entries.
pub const WIDE_FLAGS: PFlags =
    PFlags::ACL_PROTECTED.union(PFlags::ACL_DEFAULTED).union(PFlags::ACL_AUTO_INHERIT);

/// What chmod does to an ACL (`aclmode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AclMode {
    /// It replaces it by what the mode says.
    #[default]
    Discard,
    /// Named entries get no more than the group.
    GroupMask,
    /// Named entries stay.
    Passthrough,
    /// It fails if the ACL says more than the mode.
    Restricted,
}

impl AclMode {
    /// From the property.
    #[must_use]
    pub const fn from_property(value: u64) -> Self {
        match value {
            2 => Self::GroupMask,
            3 => Self::Passthrough,
            4 => Self::Restricted,
            _ => Self::Discard,
        }
    }
}

/// What new nodes inherit (`aclinherit`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AclInherit {
    /// Nothing.
    Discard,
    /// What denies.
    NoAllow,
    /// Everything as it is.
    Passthrough,
    /// Everything but the right to change the ACL or the owner.
    #[default]
    Restricted,
    /// As passthrough, but a file can be executed only if its mode says so.
    PassthroughX,
}

impl AclInherit {
    /// From the property.
    #[must_use]
    pub const fn from_property(value: u64) -> Self {
        match value {
            0 => Self::Discard,
            1 => Self::NoAllow,
            3 => Self::Passthrough,
            5 => Self::PassthroughX,
            _ => Self::Restricted,
        }
    }

    const fn is_passthrough(self) -> bool {
        matches!(self, Self::Passthrough | Self::PassthroughX)
    }
}

/// Owner and group of a node, whom entries may name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ids {
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
}

/// An ACL with what goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAcl {
    /// The entries.
    pub aces: Vec<Ace>,
    /// What the node's flags within [`ACL_FLAGS`] have to be.
    pub flags: PFlags,
    /// Mode with type bits.
    pub mode: u64,
}

impl NodeAcl {
    /// The node's flags with those of the ACL.
    #[must_use]
    pub fn apply(&self, flags: PFlags) -> PFlags {
        (flags - ACL_FLAGS) | self.flags
    }
}

/// An entry that decides, for somebody that a mode knows.
fn plain(kind: u16, flags: u16, mask: Want) -> Ace {
    Ace { kind, flags, mask: mask.bits(), id: 0, object: None }
}

fn want(ace: &Ace) -> Want {
    Want::from_bits_retain(ace.mask)
}

/// Whether an entry allows or denies something; others are for auditors.
fn decides(ace: &Ace) -> bool {
    matches!(ace.kind, ACE_ALLOW | ACE_DENY | 5 | 6)
}

fn allows(ace: &Ace) -> bool {
    matches!(ace.kind, ACE_ALLOW | 5)
}

/// Whether an entry is one of those that stand for the mode.
fn is_of_mode(ace: &Ace) -> bool {
    matches!(ace.who(), Who::Owner | Who::Group | Who::Everyone)
}

fn is_inheritable(ace: &Ace) -> bool {
    ace.flags & (flag::FILE_INHERIT | flag::DIRECTORY_INHERIT) != 0
}

/// What an ACL allows of `wanted`, and what it leaves open: entries in order, the first that
/// speaks of a right decides it. `is_meant` tells whether somebody is whom an entry is about.
pub(crate) fn evaluate(
    aces: &[Ace],
    is_directory: bool,
    wanted: Want,
    is_meant: impl Fn(Who) -> bool,
) -> Verdict {
    let mut verdict = Verdict { allowed: Want::empty(), denied: Want::empty() };
    for ace in aces {
        let is_for_children = is_directory && ace.flags & flag::INHERIT_ONLY != 0;
        if is_for_children || !decides(ace) || !is_meant(ace.who()) {
            continue;
        }
        let open = wanted - verdict.allowed - verdict.denied;
        if allows(ace) {
            verdict.allowed |= open & want(ace);
        } else {
            verdict.denied |= open & want(ace);
        }
    }
    verdict
}

/// What came of looking at an ACL; what is in neither was not spoken of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) allowed: Want,
    pub(crate) denied: Want,
}
