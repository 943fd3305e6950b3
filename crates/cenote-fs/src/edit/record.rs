//! What operations tell the intent log (spec 07 A7, A8).
//!
//! A record says as much as is needed to do the operation again. Nothing is said of what has no
//! name: after a crash it is gone, and by then its number may be another's. What a record cannot
//! say is noted as unrecorded, and a commit is a sync then.

use cenote_engine::zil::LogRecord;
use cenote_ondisk::acl::Acl;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::zil::{Body, LoggedAcl, NewObject, RecordKind, SetMask, XvAttrs};
use cenote_ondisk::znode::{PFlags, Time};

use super::attributes::{SetAttributes, SetTime, USER_FLAGS};
use super::create::NewNode;
use super::remove::Removed;
use super::rename::{Rename, RenameMode};
use super::{Inode, Op};
use crate::acl::{NodeAcl, WIDE_FLAGS};
use crate::node::FileKind;

/// Adds a record of names, or notes that there is none.
fn log_names(op: &mut Op<'_, '_>, kind: RecordKind, body: &Body<'_>) {
    match body.encode(kind) {
        Some(bytes) => op.log(LogRecord::of_names(kind, bytes)),
        None => op.log_unrecorded(),
    }
}

/// The same of one object.
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

/// An inode as records of its creation tell of it.
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

/// An inode was made.
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

/// An inode got the hidden directory of its extended attributes.
pub(super) fn make_hidden(op: &mut Op<'_, '_>, owner: u64, dir: &Inode) {
    let Some(new) = new_object(op, dir) else { return op.log_unrecorded() };
    let body = Body::Create { parent: owner, new, xvattr: None, name: b"", target: None };
    log_names(op, RecordKind::Mkxattr, &body);
}

/// An inode got one more name.
pub(super) fn link(op: &mut Op<'_, '_>, parent: u64, object: u64, name: &[u8]) {
    log_names(op, RecordKind::Link, &Body::Link { parent, object, name });
}

/// A name was taken away.
pub(super) fn remove(
    op: &mut Op<'_, '_>,
    parent: u64,
    name: &[u8],
    is_directory: bool,
    removed: &Removed,
) {
    let kind = if is_directory { RecordKind::Rmdir } else { RecordKind::Remove };
    log_names(op, kind, &Body::Remove { parent, name });
    if removed.links == 0 {
        op.forget(removed.object);
    }
}

/// A name was moved, which `object` had.
pub(super) fn rename(
    op: &mut Op<'_, '_>,
    wish: &Rename<'_>,
    object: u64,
    whiteout: Option<&Inode>,
    replaced: Option<&Removed>,
) {
    let kind = match wish.mode {
        RenameMode::Plain | RenameMode::NoReplace => RecordKind::Rename,
        RenameMode::Exchange => RecordKind::RenameExchange,
        RenameMode::Whiteout => RecordKind::RenameWhiteout,
    };
    let whiteout = whiteout.and_then(|inode| new_object(op, inode));
    let ((source_parent, source), (target_parent, target)) = (wish.from, wish.to);
    // What was written under the old name goes in front: who finds the new one finds it whole.
    op.make_sync(object);
    let body = Body::Rename { source_parent, target_parent, source, target, whiteout };
    log_names(op, kind, &body);
    if let Some(replaced) = replaced.filter(|replaced| replaced.links == 0) {
        op.forget(replaced.object);
    }
}

/// Attributes were changed.
pub(super) fn set_attributes(op: &mut Op<'_, '_>, inode: &Inode, wish: &SetAttributes) {
    if inode.links() == 0 {
        return;
    }
    let mut mask = SetMask::CTIME;
    mask.set(SetMask::MODE, wish.mode.is_some());
    mask.set(SetMask::UID, wish.uid.is_some());
    mask.set(SetMask::GID, wish.gid.is_some());
    mask.set(SetMask::SIZE, wish.size.is_some());
    mask.set(SetMask::ATIME, wish.atime.is_some());
    mask.set(SetMask::MTIME, wish.mtime.is_some());
    mask.set(SetMask::ATIME_SET, matches!(wish.atime, Some(SetTime::To(_))));
    mask.set(SetMask::MTIME_SET, matches!(wish.mtime, Some(SetTime::To(_))));
    let time = |wish: Option<SetTime>| match wish {
        Some(SetTime::To(time)) => pair(time),
        Some(SetTime::Now) => pair(op.now),
        None => [0, 0],
    };
    let xvattr = wanted_flags(wish);
    mask.set(SetMask::XVATTR, xvattr.is_some());
    let object = inode.object;
    let body = Body::Setattr {
        object,
        mask: mask.to_stored(),
        mode: wish.mode.map_or(0, |_| inode.mode()),
        uid: wish.uid.map_or(0, u64::from),
        gid: wish.gid.map_or(0, u64::from),
        size: wish.size.unwrap_or(0),
        atime: time(wish.atime),
        mtime: time(wish.mtime),
        xvattr,
    };
    // What is made in a directory takes its project over, and records of names do not tell of that:
    // they must be replayed behind this one.
    if inode.is_directory() && xvattr.is_some() {
        return log_names(op, RecordKind::Setattr, &body);
    }
    log_object(op, RecordKind::Setattr, object, &body);
}

/// A write took set-id bits off. Only the mode is named, as OpenZFS does: a change of mode that
/// somebody asked for, which may change the ACL, names the time of change as well.
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

fn wanted_flags(wish: &SetAttributes) -> Option<XvAttrs> {
    let flags = wish.flags.map(|flags| XvAttrs::of_flags(USER_FLAGS, flags));
    match wish.project {
        Some(project) => Some(flags.unwrap_or_default().with_project(project.into())),
        None => flags,
    }
}

/// An ACL was set.
pub(super) fn set_acl(op: &mut Op<'_, '_>, inode: &Inode, acl: &NodeAcl) {
    if inode.links() == 0 {
        return;
    }
    let object = inode.object;
    log_object(op, RecordKind::Acl, object, &Body::Acl { object, acl: logged(acl) });
}

/// An extended attribute in the node's list was set, or removed.
pub(super) fn set_xattr(op: &mut Op<'_, '_>, inode: &Inode, name: &[u8], value: Option<&[u8]>) {
    if inode.links() == 0 {
        return;
    }
    if !op.facts.logs_xattrs || value.is_some_and(<[u8]>::is_empty) {
        // Readers without the feature would give up; no value means that it is removed.
        return op.log_unrecorded();
    }
    let object = inode.object;
    let body = Body::SetSaXattr { object, name, value: value.unwrap_or(&[]) };
    log_object(op, RecordKind::SetSaXattr, object, &body);
}

/// Bytes were written: the log takes them from the file when it comes to that.
pub(super) fn write(op: &mut Op<'_, '_>, inode: &Inode, offset: u64, len: u64) {
    log_data(op, inode, LogRecord::write_later(inode.object, offset, len));
}

/// A range was cut out, or everything from an offset on with `len` 0.
pub(super) fn truncate(op: &mut Op<'_, '_>, inode: &Inode, offset: u64, len: u64) {
    log_data(op, inode, LogRecord::truncate(inode.object, offset, len));
}

fn log_data(op: &mut Op<'_, '_>, inode: &Inode, record: LogRecord) {
    if inode.links() == 0 {
        return;
    }
    // Nobody asks for the file that holds an extended attribute to be durable: its value goes with
    // its name, or after a crash there would be a name with no value.
    let is_value = inode.flags().contains(PFlags::XATTR);
    op.log(if is_value { record.synchronous() } else { record });
}
