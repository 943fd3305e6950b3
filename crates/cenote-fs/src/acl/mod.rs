//! NFSv4 ACLs: the permissions that they grant, their relation to modes, and inheritance (spec 03
//! §12).
//!
//! ```text
//!   mode ──trivial──> ACL        a file without an explicit ACL has the one of its mode
//!   ACL  ──compute──> mode       and the displayed mode is always computed from the ACL
//!   directory's ACL ──inherit──> ACL of a new node       by `aclinherit`
//!   ACL + chmod ──> ACL                                  by `aclmode`
//! ```
//!
//! Every node has an NFSv4 ACL, even if users cannot see it. POSIX ACLs ([`posix`]) are stored as
//! extended attributes and take its place where `acltype=posix`.
//!
//! An ACL is *trivial* if the mode expresses all of it; a flag of the node records that, and the
//! ACL is then never evaluated. Three more flags are computed from it: some entry can be inherited,
//! some entry is an object entry, no entry denies execution.

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
    /// Permissions, in the bits of an ACL entry's mask.
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
        /// Take ownership of the node.
        const WRITE_OWNER = 0x8_0000;
        /// Synchronize (ignored).
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
    /// Children that inherit it do not pass it on.
    pub(crate) const NO_PROPAGATE: u16 = 0x4;
    /// It does not apply to the directory that has it.
    pub(crate) const INHERIT_ONLY: u16 = 0x8;
    /// It was inherited.
    pub(crate) const INHERITED: u16 = 0x80;
    /// `owner@`
    pub(crate) const OWNER: u16 = cenote_ondisk::acl::ACE_OWNER;
    /// `group@`
    pub(crate) const GROUP: u16 = cenote_ondisk::acl::ACE_GROUP;
    /// `everyone@`
    pub(crate) const EVERYONE: u16 = cenote_ondisk::acl::ACE_EVERYONE;
    /// All inheritance flags except `INHERITED`.
    pub(crate) const INHERIT: u16 = FILE_INHERIT | DIRECTORY_INHERIT | NO_PROPAGATE | INHERIT_ONLY;
}

/// Flags of a node that are computed from or belong to its ACL.
pub const ACL_FLAGS: PFlags = PFlags::INHERIT_ACE
    .union(PFlags::ACL_TRIVIAL)
    .union(PFlags::ACL_OBJ_ACE)
    .union(WIDE_FLAGS)
    .union(PFlags::NO_EXECS_DENIED);

/// The flags among them that are stored with the ACL and do not affect its entries.
pub const WIDE_FLAGS: PFlags =
    PFlags::ACL_PROTECTED.union(PFlags::ACL_DEFAULTED).union(PFlags::ACL_AUTO_INHERIT);

/// Effect of chmod on an ACL (`aclmode`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AclMode {
    /// The mode's entries replace the ACL.
    #[default]
    Discard,
    /// Named entries are reduced to the group's permissions.
    GroupMask,
    /// Named entries stay unchanged.
    Passthrough,
    /// chmod fails if the ACL is not trivial.
    Restricted,
}

impl AclMode {
    /// Returns the mode of a property value.
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

/// The entries that new nodes inherit (`aclinherit`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum AclInherit {
    /// Nothing.
    Discard,
    /// Entries that deny.
    NoAllow,
    /// All entries unchanged.
    Passthrough,
    /// All entries, without the permissions to change the ACL or the owner.
    #[default]
    Restricted,
    /// Like `Passthrough`, but files get execute permission only if their mode has it.
    PassthroughX,
}

impl AclInherit {
    /// Returns the setting of a property value.
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

/// Owner and group of a node, which entries may refer to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ids {
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
}

/// An ACL, and the flags and mode computed from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeAcl {
    /// The entries.
    pub aces: Vec<Ace>,
    /// The node's flags within [`ACL_FLAGS`].
    pub flags: PFlags,
    /// Mode with type bits.
    pub mode: u64,
}

impl NodeAcl {
    /// Returns the node's flags combined with those of the ACL.
    #[must_use]
    pub fn apply(&self, flags: PFlags) -> PFlags {
        (flags - ACL_FLAGS) | self.flags
    }
}

/// Returns an allowing or denying entry for owner, group or everyone.
fn plain(kind: u16, flags: u16, mask: Want) -> Ace {
    Ace { kind, flags, mask: mask.bits(), id: 0, object: None }
}

fn want(ace: &Ace) -> Want {
    Want::from_bits_retain(ace.mask)
}

/// Whether an entry allows or denies; other entries are for auditing.
fn decides(ace: &Ace) -> bool {
    matches!(ace.kind, ACE_ALLOW | ACE_DENY | 5 | 6)
}

fn allows(ace: &Ace) -> bool {
    matches!(ace.kind, ACE_ALLOW | 5)
}

/// Whether an entry is for owner, group or everyone.
fn is_of_mode(ace: &Ace) -> bool {
    matches!(ace.who(), Who::Owner | Who::Group | Who::Everyone)
}

fn is_inheritable(ace: &Ace) -> bool {
    ace.flags & (flag::FILE_INHERIT | flag::DIRECTORY_INHERIT) != 0
}

/// Evaluates an ACL for the wanted permissions. Entries apply in order, and the first entry that
/// mentions a permission decides it. `is_meant` tells whether an entry's subject matches the user.
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

/// Result of evaluating an ACL; permissions in neither set are not mentioned by any entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) allowed: Want,
    pub(crate) denied: Want,
}
