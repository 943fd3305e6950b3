//! The intent log records of operations (spec 07 A7, A8).
//!
//! A record has everything that is needed to repeat the operation. Nodes without a name are not
//! recorded: they do not survive a crash, and their number may be reused by then. Operations that a
//! record cannot express are noted as unrecorded, and a commit is then a sync.

use cenote_engine::zil::LogRecord;
use cenote_ondisk::acl::Acl;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::zil::{Body, LoggedAcl, NewObject, RecordKind, SetMask, XvAttrs};
use cenote_ondisk::znode::{PFlags, Time};
use cenote_rt::seeded::{Bug, is_on};

use super::attributes::{SetAttributes, SetTime, USER_FLAGS};
use super::create::NewNode;
use super::remove::Removed;
use super::rename::{Rename, RenameMode};
use super::{Inode, Op};
use crate::acl::{NodeAcl, WIDE_FLAGS};
use crate::node::FileKind;

/// Adds a record of a name change, or notes that there is none.
fn log_names(op: &mut Op<'_, '_>, kind: RecordKind, body: &Body<'_>) {
    match body.encode(kind) {
        Some(bytes) => op.log(LogRecord::of_names(kind, bytes)),
        None => op.log_unrecorded(),
    }
}

/// Like [`log_names`], for a record of one object.
fn log_object(op: &mut Op<'_, '_>, kind: RecordKind, object: u64, body: &Body<'_>) {
    if op.is_naming {
        return log_names(op, kind, body);
    }
    match body.encode(kind) {
        Some(bytes) => op.log(LogRecord::of_object(kind, object, bytes)),
        None => op.log_unrecorded(),
    }
}

fn pair(time: Time) -> [u64; 2] {
    [time.seconds as u64, time.nanoseconds]
}

/// Returns an inode as it appears in records of its creation.
fn new_object(op: &Op<'_, '_>, inode: &Inode) -> Option<NewObject> {
    let dnode = op.tx.dnode(inode.object).ok()?;
    Some(NewObject {
        object: inode.object,
        slots: u16::from(dnode.extra_slots) + 1,
        mode: inode.mode(),
        uid: inode.uid(),
        gid: inode.gid(),
        gen_: inode.generation(),
        crtime: pair(inode.time(ZplAttr::Crtime)),
        rdev: inode.word(ZplAttr::Rdev).unwrap_or(0),
    })
}

/// Records the creation of an inode.
pub(super) fn create(
    op: &mut Op<'_, '_>,
    parent: u64,
    name: &[u8],
    inode: &Inode,
    new: &NewNode<'_>,
) {
    use RecordKind as K;
    let Some(object) = new_object(op, inode) else { return op.log_unrecorded() };
    let is_directory = inode.is_directory();
    if let Some(acl) = new.acl {
        let kind = if is_directory { K::MkdirAcl } else { K::CreateAcl };
        let acl = logged(acl);
        let body = Body::CreateAcl { parent, new: object, xvattr: None, acl, name };
        return log_names(op, kind, &body);
    }
    let kind = match inode.kind() {
        FileKind::Directory => K::Mkdir,
        FileKind::Symlink => K::Symlink,
        _ => K::Create,
    };
    let target = inode.bytes(ZplAttr::Symlink);
    let body = Body::Create { parent, new: object, xvattr: None, name, target };
    log_names(op, kind, &body);
}

fn logged(acl: &NodeAcl) -> LoggedAcl {
    let flags = (acl.flags & WIDE_FLAGS).bits();
    let acl = Acl { entries: acl.aces.clone(), is_truncated: false };
    LoggedAcl { acl, flags, ..LoggedAcl::default() }
}

/// Records the creation of an inode's hidden directory for extended attributes.
pub(super) fn make_hidden(op: &mut Op<'_, '_>, owner: u64, dir: &Inode) {
    let Some(new) = new_object(op, dir) else { return op.log_unrecorded() };
    let body = Body::Create { parent: owner, new, xvattr: None, name: b"", target: None };
    log_names(op, RecordKind::Mkxattr, &body);
}

/// Records a new name of an inode.
pub(super) fn link(op: &mut Op<'_, '_>, parent: u64, object: u64, name: &[u8]) {
    log_names(op, RecordKind::Link, &Body::Link { parent, object, name });
}

/// Records the removal of a name.
pub(super) fn remove(
    op: &mut Op<'_, '_>,
    parent: u64,
    name: &[u8],
    is_directory: bool,
    removed: &Removed,
) {
    let kind = if is_directory { RecordKind::Rmdir } else { RecordKind::Remove };
    log_names(op, kind, &Body::Remove { parent, name });
    if removed.links == 0 || is_on(Bug::LinkedFileForgotten) {
        op.forget(removed.object);
    }
}

/// Records the renaming of `object`.
pub(super) fn rename(
    op: &mut Op<'_, '_>,
    request: &Rename<'_>,
    object: u64,
    whiteout: Option<&Inode>,
    replaced: Option<&Removed>,
) {
    let kind = match request.mode {
        RenameMode::Plain | RenameMode::NoReplace => RecordKind::Rename,
        RenameMode::Exchange if is_on(Bug::ExchangeLoggedAsRename) => RecordKind::Rename,
        RenameMode::Exchange => RecordKind::RenameExchange,
        RenameMode::Whiteout => RecordKind::RenameWhiteout,
    };
    let whiteout = whiteout.and_then(|inode| new_object(op, inode));
    let ((source_parent, source), (target_parent, target)) = (request.from, request.to);
    // Writes under the old name are committed first: after a crash the new name never leads to
    // older contents.
    op.make_sync(object);
    let body = Body::Rename { source_parent, target_parent, source, target, whiteout };
    log_names(op, kind, &body);
    if let Some(replaced) = replaced.filter(|replaced| replaced.links == 0) {
        op.forget(replaced.object);
    }
}

/// Records a change of attributes.
pub(super) fn set_attributes(op: &mut Op<'_, '_>, inode: &Inode, changes: &SetAttributes) {
    if inode.links() == 0 {
        return;
    }
    let mut mask = SetMask::CTIME;
    mask.set(SetMask::MODE, changes.mode.is_some() && !is_on(Bug::ModeNotLogged));
    mask.set(SetMask::UID, changes.uid.is_some());
    mask.set(SetMask::GID, changes.gid.is_some());
    mask.set(SetMask::SIZE, changes.size.is_some());
    mask.set(SetMask::ATIME, changes.atime.is_some());
    mask.set(SetMask::MTIME, changes.mtime.is_some());
    mask.set(SetMask::ATIME_SET, matches!(changes.atime, Some(SetTime::To(_))));
    mask.set(SetMask::MTIME_SET, matches!(changes.mtime, Some(SetTime::To(_))));
    let time = |time: Option<SetTime>| match time {
        Some(SetTime::To(time)) => pair(time),
        Some(SetTime::Now) => pair(op.now),
        None => [0, 0],
    };
    let xvattr = wanted_flags(changes);
    mask.set(SetMask::XVATTR, xvattr.is_some());
    let object = inode.object;
    let body = Body::Setattr {
        object,
        mask: mask.to_stored(),
        mode: changes.mode.map_or(0, |_| inode.mode()),
        uid: changes.uid.map_or(0, u64::from),
        gid: changes.gid.map_or(0, u64::from),
        size: changes.size.unwrap_or(0),
        atime: time(changes.atime),
        mtime: time(changes.mtime),
        xvattr,
    };
    // New nodes inherit the directory's project, but their records do not contain it: they must be
    // replayed after this record.
    if inode.is_directory() && xvattr.is_some() {
        return log_names(op, RecordKind::Setattr, &body);
    }
    log_object(op, RecordKind::Setattr, object, &body);
}

/// Records that a write removed set-id bits. As in OpenZFS, the record contains only the mode; a
/// chmod by a user, which may change the ACL, also contains the ctime.
pub(super) fn lose_set_ids(op: &mut Op<'_, '_>, inode: &Inode) {
    if inode.links() == 0 {
        return;
    }
    let (object, mask) = (inode.object, SetMask::MODE.to_stored());
    let (none, mode) = ([0, 0], inode.mode());
    let body = Body::Setattr {
        object,
        mask,
        mode,
        uid: 0,
        gid: 0,
        size: 0,
        atime: none,
        mtime: none,
        xvattr: None,
    };
    log_object(op, RecordKind::Setattr, object, &body);
}

fn wanted_flags(changes: &SetAttributes) -> Option<XvAttrs> {
    let flags = changes.flags.map(|flags| XvAttrs::of_flags(USER_FLAGS, flags));
    match changes.project {
        Some(project) => Some(flags.unwrap_or_default().with_project(project.into())),
        None => flags,
    }
}

/// Records a new ACL.
pub(super) fn set_acl(op: &mut Op<'_, '_>, inode: &Inode, acl: &NodeAcl) {
    if inode.links() == 0 {
        return;
    }
    let object = inode.object;
    log_object(op, RecordKind::Acl, object, &Body::Acl { object, acl: logged(acl) });
}

/// Records that an extended attribute in the node's list was set or removed.
pub(super) fn set_xattr(op: &mut Op<'_, '_>, inode: &Inode, name: &[u8], value: Option<&[u8]>) {
    if inode.links() == 0 {
        return;
    }
    if !op.facts.logs_xattrs || value.is_some_and(<[u8]>::is_empty) {
        // Readers without the feature would fail on the record; an empty value would mean removal.
        return op.log_unrecorded();
    }
    let object = inode.object;
    let body = Body::SetSaXattr { object, name, value: value.unwrap_or(&[]) };
    log_object(op, RecordKind::SetSaXattr, object, &body);
}

/// Records a write: the log copies the bytes from the file when it writes the record.
pub(super) fn write(op: &mut Op<'_, '_>, inode: &Inode, offset: u64, len: u64) {
    log_data(op, inode, LogRecord::write_later(inode.object, offset, len));
}

/// Records that a range was freed, or everything from an offset on if `len` is 0.
pub(super) fn truncate(op: &mut Op<'_, '_>, inode: &Inode, offset: u64, len: u64) {
    log_data(op, inode, LogRecord::truncate(inode.object, offset, len));
}

fn log_data(op: &mut Op<'_, '_>, inode: &Inode, record: LogRecord) {
    if inode.links() == 0 {
        return;
    }
    // The file of an extended attribute is never synced itself: its value is committed with its
    // name, or a crash could leave a name without its value.
    let is_value = inode.flags().contains(PFlags::XATTR);
    op.log(if is_value { record.synchronous() } else { record });
}
