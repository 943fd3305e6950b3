//! The permission rules, as functions of the attributes that they depend on.
//!
//! Sources: spec 03 §10.2, §12.3.

use cenote_ondisk::acl::{Ace, Who};
use cenote_ondisk::znode::PFlags;

use super::credentials::{Capabilities, Credentials};
use crate::acl::posix::PosixAcl;
use crate::acl::{Ids, Want, evaluate};
use crate::edit::{SET_GID, SET_UID, STICKY, TYPE_MASK};
use crate::error::FsError;

const DIRECTORY: u64 = 0o040_000;
const REGULAR: u64 = 0o100_000;
const SYMLINK: u64 = 0o120_000;

/// The attributes of a node that permissions depend on.
#[derive(Debug, Clone, Copy)]
pub struct Subject<'a> {
    /// Mode with type bits.
    pub mode: u64,
    /// Owner and group.
    pub ids: Ids,
    /// Flags.
    pub flags: PFlags,
    /// Its ACL; ignored if the flags say that it is trivial.
    pub aces: &'a [Ace],
    /// Its POSIX ACL, if there is one and the file system supports them.
    pub posix: Option<&'a PosixAcl>,
}

impl Subject<'_> {
    fn kind(&self) -> u64 {
        self.mode & TYPE_MASK
    }

    fn is_directory(&self) -> bool {
        self.kind() == DIRECTORY
    }

    fn is_owner(&self, cred: &Credentials) -> bool {
        cred.is(self.ids.uid)
    }

    /// Whether `cred` has the rights of the owner.
    fn has_owner_rights(&self, cred: &Credentials) -> bool {
        self.is_owner(cred) || cred.can(Capabilities::FOWNER)
    }

    fn is_trivial(&self) -> bool {
        self.flags.contains(PFlags::ACL_TRIVIAL)
    }

    fn forbids_changes(&self) -> bool {
        self.flags.intersects(PFlags::IMMUTABLE | PFlags::APPENDONLY)
    }

    /// Evaluates a nontrivial ACL.
    fn evaluate_acl(&self, cred: &Credentials, wanted: Want) -> crate::acl::Verdict {
        let is_meant = |who| match who {
            Who::Owner => self.is_owner(cred),
            Who::Group => cred.is_member(self.ids.gid),
            Who::Everyone => true,
            Who::NamedUser(uid) => cred.is(uid),
            Who::NamedGroup(gid) => cred.is_member(gid),
        };
        evaluate(self.aces, self.is_directory(), wanted, is_meant)
    }

    /// Whether the mode grants these bits: 4 read, 2 write, 1 execute.
    fn permits(&self, cred: &Credentials, rwx: u64) -> bool {
        if let Some(acl) = self.posix {
            return acl.permits(rwx as u16, self.is_owner(cred), cred.uid.into(), |group| {
                cred.is_member(group.map_or(self.ids.gid, u64::from))
            });
        }
        let class = if self.is_owner(cred) {
            6
        } else if cred.is_member(self.ids.gid) {
            3
        } else {
            0
        };
        self.mode >> class & rwx == rwx
    }

    /// Returns the wanted permissions that are not granted.
    fn missing(&self, cred: &Credentials, wanted: Want) -> Want {
        if self.posix.is_none() && !self.is_trivial() {
            return wanted - self.evaluate_acl(cred, wanted).allowed;
        }
        let mut missing = Want::empty();
        for (rights, rwx) in CLASSES {
            if wanted.intersects(rights) && !self.permits(cred, rwx) {
                missing |= wanted & rights;
            }
        }
        if !self.is_owner(cred) {
            missing |= wanted & OF_OWNER;
        }
        missing
    }
}

/// Permissions that a mode can grant, and its bits.
const CLASSES: [(Want, u64); 3] = [
    (Want::READ.union(Want::READ_XATTR), 4),
    (WRITES.union(Want::DELETE_CHILD).union(Want::WRITE_XATTR), 2),
    (Want::EXECUTE, 1),
];
/// Permissions of the owner where the mode decides.
const OF_OWNER: Want = Want::WRITE_ATTRIBUTES.union(Want::WRITE_ACL).union(Want::WRITE_OWNER);
/// Permissions that change data.
const WRITES: Want = Want::WRITE.union(Want::APPEND);

/// Checks whether `cred` has the wanted permissions.
///
/// # Errors
/// [`FsError::NotPermitted`] if a flag of the node forbids it, [`FsError::AccessDenied`] if nothing
/// grants it.
pub fn check(subject: &Subject<'_>, cred: &Credentials, wanted: Want) -> Result<(), FsError> {
    let changes = WRITES | Want::WRITE_XATTR | Want::DELETE_CHILD;
    let is_closed = subject.flags.contains(PFlags::IMMUTABLE)
        || subject.flags.contains(PFlags::READONLY)
            && !subject.is_directory()
            && !cred.can(Capabilities::SYS_ADMIN);
    if wanted.intersects(changes) && is_closed {
        return Err(FsError::NotPermitted);
    }
    if wanted.intersects(Want::READ | Want::EXECUTE)
        && subject.flags.contains(PFlags::AV_QUARANTINED)
    {
        return Err(FsError::AccessDenied);
    }
    let missing = subject.missing(cred, wanted);
    if missing.is_empty() || (missing - by_privilege(subject, cred)).is_empty() {
        Ok(())
    } else {
        Err(FsError::AccessDenied)
    }
}

/// Returns the permissions that privileges grant.
fn by_privilege(subject: &Subject<'_>, cred: &Credentials) -> Want {
    let mut allowed = Want::empty();
    let is_executable = subject.mode & 0o111 != 0;
    if cred.can(Capabilities::DAC_OVERRIDE) {
        allowed |= Want::all() - OF_OWNER;
        if !subject.is_directory() && !is_executable {
            allowed -= Want::EXECUTE;
        }
    }
    if cred.can(Capabilities::DAC_READ_SEARCH) {
        allowed |= Want::READ | Want::READ_XATTR | Want::READ_ACL | Want::READ_ATTRIBUTES;
        if subject.is_directory() {
            allowed |= Want::EXECUTE;
        }
    }
    if cred.can(Capabilities::FOWNER) {
        allowed |= Want::WRITE_ATTRIBUTES | Want::WRITE_ACL;
    }
    if cred.can(Capabilities::CHOWN) {
        allowed |= Want::WRITE_OWNER;
    }
    allowed
}

/// Checks whether a name may be added to a directory.
///
/// # Errors
/// The errors of [`check`].
pub fn may_add(dir: &Subject<'_>, cred: &Credentials, is_directory: bool) -> Result<(), FsError> {
    check(dir, cred, Want::EXECUTE)?;
    check(dir, cred, if is_directory { Want::APPEND } else { Want::WRITE })
}

/// Checks whether a name of a node may be removed from a directory.
///
/// # Errors
/// [`FsError::NotPermitted`] if flags or the sticky bit forbid it, else the errors of [`check`].
pub fn may_delete(
    dir: &Subject<'_>,
    node: &Subject<'_>,
    cred: &Credentials,
) -> Result<(), FsError> {
    let forbids = PFlags::APPENDONLY | PFlags::IMMUTABLE;
    if dir.flags.intersects(forbids) || node.flags.intersects(forbids | PFlags::NOUNLINK) {
        return Err(FsError::NotPermitted);
    }
    let by_acl = |subject: &Subject<'_>, right| {
        let is_plain = subject.posix.is_some() || subject.is_trivial();
        (!is_plain).then(|| subject.evaluate_acl(cred, right))
    };
    check(dir, cred, Want::EXECUTE)?;
    let own = by_acl(node, Want::DELETE);
    if own.is_some_and(|verdict| verdict.allowed.contains(Want::DELETE)) {
        return Ok(());
    }
    let is_denied = own.is_some_and(|verdict| verdict.denied.contains(Want::DELETE));
    let of_dir = by_acl(dir, Want::DELETE_CHILD);
    let is_spoken = of_dir
        .is_some_and(|verdict| (verdict.allowed | verdict.denied).contains(Want::DELETE_CHILD));
    // If the directory's ACL does not mention deleting, write permission is enough.
    check(dir, cred, if is_spoken { Want::DELETE_CHILD } else { Want::WRITE })?;
    if is_denied && !cred.can(Capabilities::DAC_OVERRIDE) {
        return Err(FsError::AccessDenied);
    }
    let is_anybodys = dir.mode & STICKY == 0 || node.is_owner(cred) || dir.is_owner(cred);
    if is_anybodys || cred.can(Capabilities::FOWNER) { Ok(()) } else { Err(FsError::NotPermitted) }
}

/// Checks whether a node may get another name.
///
/// # Errors
/// [`FsError::NotPermitted`] if flags forbid it.
pub fn may_link(node: &Subject<'_>) -> Result<(), FsError> {
    if node.forbids_changes() { Err(FsError::NotPermitted) } else { Ok(()) }
}

/// Returns the mode that a chmod sets: a user outside of the group cannot set the set-group-id bit,
/// not even on directories.
#[must_use]
pub fn mode_of_chmod(mode: u64, gid: u64, cred: &Credentials) -> u64 {
    let keeps_id = cred.is_member(gid) || cred.can(Capabilities::FSETID);
    if keeps_id { mode } else { mode & !SET_GID }
}

/// Checks whether mode and ACL may be replaced.
///
/// # Errors
/// [`FsError::NotPermitted`].
pub fn may_set_acl(node: &Subject<'_>, cred: &Credentials) -> Result<(), FsError> {
    let has_right = node.has_owner_rights(cred) || check(node, cred, Want::WRITE_ACL).is_ok();
    if node.forbids_changes() || !has_right { Err(FsError::NotPermitted) } else { Ok(()) }
}

/// Checks whether owner and group may be changed.
///
/// # Errors
/// [`FsError::NotPermitted`].
pub fn may_chown(
    node: &Subject<'_>,
    cred: &Credentials,
    uid: Option<u64>,
    gid: Option<u64>,
) -> Result<(), FsError> {
    let is_taken = uid.is_some_and(|uid| uid != node.ids.uid);
    let is_moved = gid.is_some_and(|gid| gid != node.ids.gid);
    let is_allowed = cred.can(Capabilities::CHOWN) || {
        let has_right = !node.is_trivial()
            && node.posix.is_none()
            && check(node, cred, Want::WRITE_OWNER).is_ok();
        let owns = node.is_owner(cred);
        // A user with this permission may take ownership, for itself or one of its groups.
        let uid_is_fine = !is_taken || has_right && uid.is_some_and(|uid| cred.is(uid));
        let gid_is_fine = !is_moved || gid.is_some_and(|gid| cred.is_member(gid));
        uid_is_fine && gid_is_fine && (owns || has_right)
    };
    if node.forbids_changes() || !is_allowed { Err(FsError::NotPermitted) } else { Ok(()) }
}

/// Returns the mode of a file after a change of its owner. A set-group-id bit without execute
/// permission marks mandatory locking, and stays.
#[must_use]
pub const fn without_set_ids(mode: u64) -> u64 {
    let mode = mode & !SET_UID;
    if mode & 0o010 != 0 { mode & !SET_GID } else { mode }
}

/// Returns the mode of a file after a write by `cred`.
#[must_use]
pub fn mode_after_write(mode: u64, cred: &Credentials) -> u64 {
    let is_executable = mode & 0o111 != 0;
    if is_executable && !cred.can(Capabilities::FSETID) {
        mode & !(SET_UID | SET_GID)
    } else {
        mode
    }
}

/// Checks whether times may be changed: to now by every user with write permission, to other times
/// by the owner.
///
/// # Errors
/// [`FsError::NotPermitted`] or [`FsError::AccessDenied`].
pub fn may_set_times(node: &Subject<'_>, cred: &Credentials, is_now: bool) -> Result<(), FsError> {
    if node.flags.contains(PFlags::IMMUTABLE) || !is_now && node.forbids_changes() {
        return Err(FsError::NotPermitted);
    }
    if node.has_owner_rights(cred) || !node.is_trivial() && is_allowed_attributes(node, cred) {
        return Ok(());
    }
    if is_now { check(node, cred, Want::WRITE) } else { Err(FsError::NotPermitted) }
}

fn is_allowed_attributes(node: &Subject<'_>, cred: &Credentials) -> bool {
    node.posix.is_none() && check(node, cred, Want::WRITE_ATTRIBUTES).is_ok()
}

/// Checks whether flags and project may be changed.
///
/// # Errors
/// [`FsError::NotPermitted`].
pub fn may_set_flags(
    node: &Subject<'_>,
    cred: &Credentials,
    changed: PFlags,
) -> Result<(), FsError> {
    let guarded = PFlags::IMMUTABLE
        | PFlags::APPENDONLY
        | PFlags::NOUNLINK
        | PFlags::AV_QUARANTINED
        | PFlags::AV_MODIFIED;
    let is_guarded = changed.intersects(guarded) && !cred.can(Capabilities::LINUX_IMMUTABLE);
    if is_guarded || !node.has_owner_rights(cred) {
        return Err(FsError::NotPermitted);
    }
    // Nothing else of an immutable node may be changed.
    if node.flags.contains(PFlags::IMMUTABLE) && !changed.contains(PFlags::IMMUTABLE) {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// Checks whether an open file of `size` bytes may be written from `offset` on. Permissions were
/// checked when it was opened, but its flags may have changed since.
///
/// # Errors
/// [`FsError::NotPermitted`].
pub fn may_write_at(flags: PFlags, offset: u64, size: u64) -> Result<(), FsError> {
    if flags.contains(PFlags::IMMUTABLE) || flags.contains(PFlags::APPENDONLY) && offset < size {
        return Err(FsError::NotPermitted);
    }
    Ok(())
}

/// What a file is opened for; for reading if nothing is set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenFor {
    /// Writing.
    pub writes: bool,
    /// Each write appends.
    pub appends: bool,
    /// The file is truncated.
    pub truncates: bool,
}

/// Checks whether flags permit opening a file. Only the read-only flag of Windows does not bind
/// administrators.
///
/// # Errors
/// [`FsError::NotPermitted`] for a change; [`FsError::AccessDenied`] for reading a file that a
/// virus scanner has quarantined.
pub fn may_open(flags: PFlags, cred: &Credentials, wanted: OpenFor) -> Result<(), FsError> {
    let OpenFor { writes, appends, truncates } = wanted;
    let changes = writes || truncates;
    let is_read_only = flags.contains(PFlags::READONLY) && !cred.can(Capabilities::SYS_ADMIN);
    let is_closed = flags.contains(PFlags::IMMUTABLE) || is_read_only;
    let only_grows = flags.contains(PFlags::APPENDONLY);
    if changes && is_closed || only_grows && (writes && !appends || truncates) {
        return Err(FsError::NotPermitted);
    }
    if flags.contains(PFlags::AV_QUARANTINED) {
        return Err(FsError::AccessDenied);
    }
    Ok(())
}

/// Checks whether an extended attribute may be read.
///
/// # Errors
/// [`FsError::NoXattr`] where the attribute is to appear missing, else the errors of [`check`].
pub fn may_get_xattr(node: &Subject<'_>, cred: &Credentials, name: &[u8]) -> Result<(), FsError> {
    if name.starts_with(b"trusted.") && !cred.can(Capabilities::SYS_ADMIN) {
        return Err(FsError::NoXattr);
    }
    if !name.starts_with(b"user.") {
        return Ok(());
    }
    if !matches!(node.kind(), REGULAR | DIRECTORY) {
        return Err(FsError::NoXattr);
    }
    check(node, cred, Want::READ_XATTR)
}

/// Checks whether an extended attribute may be set or removed.
///
/// # Errors
/// [`FsError::NotPermitted`] or [`FsError::AccessDenied`]; [`FsError::XattrsOff`] for an unknown
/// namespace.
pub fn may_set_xattr(node: &Subject<'_>, cred: &Credentials, name: &[u8]) -> Result<(), FsError> {
    if node.forbids_changes() {
        return Err(FsError::NotPermitted);
    }
    let is_admin = cred.can(Capabilities::SYS_ADMIN);
    if name.starts_with(b"trusted.") || name.starts_with(b"security.") {
        return if is_admin { Ok(()) } else { Err(FsError::NotPermitted) };
    }
    if name.starts_with(b"system.posix_acl_") {
        if node.kind() == SYMLINK {
            return Err(FsError::XattrsOff);
        }
        return may_set_acl(node, cred);
    }
    if !name.starts_with(b"user.") {
        return Err(FsError::XattrsOff);
    }
    if !matches!(node.kind(), REGULAR | DIRECTORY) {
        return Err(FsError::NotPermitted);
    }
    if node.is_directory() && node.mode & STICKY != 0 && !node.has_owner_rights(cred) {
        return Err(FsError::NotPermitted);
    }
    check(node, cred, Want::WRITE_XATTR)
}
