//! The ACL of a new node (spec 03 §12.5).
//!
//! Inheritable entries of the parent for nodes of this kind are copied, modified according to
//! `aclinherit`. The entries of the mode follow, unless entries for owner, group or everyone were
//! passed through, which then determine the mode. A symbolic link inherits nothing.

use cenote_ondisk::acl::{ACE_ALLOW, Ace};
use cenote_ondisk::znode::PFlags;

use super::mode::{Treatment, complete, with_mode};
use super::{AclInherit, AclMode, Ids, NodeAcl, Want, flag, is_of_mode};
use crate::node::FileKind;

/// The attributes of the parent directory that inheritance depends on.
#[derive(Debug, Clone, Copy)]
pub struct ParentAcl<'a> {
    /// Its flags.
    pub flags: PFlags,
    /// Its ACL; ignored unless a flag says that it has inheritable entries.
    pub aces: &'a [Ace],
}

/// Kind, mode and owner of a new node.
#[derive(Debug, Clone, Copy)]
pub struct NewNodeAcl {
    /// Its kind.
    pub kind: FileKind,
    /// The requested mode, with type bits.
    pub mode: u64,
    /// Its owner and group.
    pub ids: Ids,
}

/// Returns the ACL of a new node. `parent` is `None` for a root directory.
#[must_use]
pub fn for_new(
    parent: Option<ParentAcl<'_>>,
    new: &NewNodeAcl,
    inherit: AclInherit,
    policy: AclMode,
) -> NodeAcl {
    let is_directory = new.kind == FileKind::Directory;
    let source = parent.filter(|parent| {
        parent.flags.contains(PFlags::INHERIT_ACE) && !parent.flags.contains(PFlags::XATTR)
    });
    let (inherited, says_mode) = match source {
        Some(parent) => taken(parent.aces, new, inherit),
        None => (Vec::new(), false),
    };
    if says_mode {
        return complete(inherited, PFlags::empty(), new.mode, new.ids, is_directory);
    }
    let is_trimmed = policy == AclMode::GroupMask && !inherit.is_passthrough();
    let treatment = Treatment { is_split: false, is_trimmed };
    let aces = with_mode(&inherited, new.mode, is_directory, treatment);
    let wide = if is_directory { PFlags::ACL_AUTO_INHERIT } else { PFlags::empty() };
    complete(aces, wide, new.mode, new.ids, is_directory)
}

/// Returns the inherited entries, and whether they determine the mode.
fn taken(aces: &[Ace], new: &NewNodeAcl, inherit: AclInherit) -> (Vec<Ace>, bool) {
    let (mut taken, mut says_mode) = (Vec::new(), false);
    if inherit == AclInherit::Discard || new.kind == FileKind::Symlink {
        return (taken, says_mode);
    }
    let is_directory = new.kind == FileKind::Directory;
    for ace in aces.iter().filter(|ace| is_for(ace, is_directory)) {
        let mut ace = *ace;
        if inherit == AclInherit::NoAllow && ace.kind == ACE_ALLOW {
            continue;
        }
        let is_for_this = new.kind == FileKind::Regular
            || is_directory && ace.flags & flag::DIRECTORY_INHERIT != 0;
        says_mode |= inherit.is_passthrough() && is_of_mode(&ace) && is_for_this;
        let removed = match inherit {
            AclInherit::PassthroughX if !is_directory && new.mode & 0o111 == 0 => Want::EXECUTE,
            AclInherit::Restricted => Want::WRITE_ACL | Want::WRITE_OWNER,
            _ => Want::empty(),
        };
        if ace.kind == ACE_ALLOW {
            ace.mask &= !removed.bits();
        }
        ace.flags = inherited_flags(ace.flags, is_directory);
        taken.push(ace);
    }
    (taken, says_mode)
}

/// Whether nodes of a kind inherit an entry.
const fn is_for(ace: &Ace, is_directory: bool) -> bool {
    let is_for_files = ace.flags & flag::FILE_INHERIT != 0;
    if is_directory {
        // The directory passes it on to the files in it.
        ace.flags & flag::DIRECTORY_INHERIT != 0
            || is_for_files && ace.flags & flag::NO_PROPAGATE == 0
    } else {
        is_for_files
    }
}

const fn inherited_flags(flags: u16, is_directory: bool) -> u16 {
    let goes_on = is_directory && flags & flag::NO_PROPAGATE == 0;
    let flags = match (goes_on, flags & flag::DIRECTORY_INHERIT != 0) {
        (false, _) => flags & !flag::INHERIT,
        (true, true) => flags & !flag::INHERIT_ONLY,
        // The entry applies to files only.
        (true, false) => flags | flag::INHERIT_ONLY,
    };
    flags | flag::INHERITED
}
