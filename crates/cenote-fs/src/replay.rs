//! Replays the intent log of a file system after a crash (spec 07 A13).
//!
//! Every record is replayed as the operation that it describes, without credentials: permissions
//! and quotas were checked when the operation was first done. New nodes get their original number,
//! generation and times; changed directories and written files get the time of the replay. Records
//! of an object after its removal are filtered out before they reach this module.

use cenote_dmu::{Tx, TxResult};
use cenote_engine::zil::{Operation, Replayed, Replayer};
use cenote_engine::{Engine, Head};
use cenote_ondisk::acl::Ace;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::zil::{Body, LoggedAcl, NewObject, RecordKind, SetMask, XvAttrs, XvMask};
use cenote_ondisk::znode::{PFlags, Time};
use cenote_rt::{Kind, Result};

use crate::acl::{self, Ids, NodeAcl, WIDE_FLAGS};
use crate::edit::{
    self, Facts, NewKind, NewNode, Op, PERMISSION_MASK, Place, Rename, RenameMode, SetAttributes,
    SetTime, TYPE_MASK, Target, permit, refuse, xattr,
};
use crate::error::FsError;
use crate::mount::now;

/// Replays the log of a file system, if it is not empty, before the file system is changed.
///
/// # Errors
/// `Kind::Unsupported` if the log has unknown records: it is then kept. Errors of reading and of a
/// sync.
pub async fn replay(engine: &Engine, head: &Head) -> Result<Option<Replayed>> {
    if !head.log().awaits_replay() {
        return Ok(None);
    }
    let replayer = FsReplayer::new(Facts::read(engine, head).await?);
    engine.intent_logs().replay(head, &replayer).await
}

/// Replays the operations of one file system.
#[derive(Debug)]
pub struct FsReplayer {
    facts: Facts,
}

impl FsReplayer {
    /// Returns a replayer for a file system with this state.
    #[must_use]
    pub const fn new(facts: Facts) -> Self {
        Self { facts }
    }
}

impl Replayer for FsReplayer {
    fn replay(&self, tx: &mut Tx<'_>, operation: &Operation<'_>) -> TxResult<()> {
        let mut op = Op::new(tx, &self.facts, None, now());
        apply(&mut op, operation)?;
        op.finish(None)?;
        Ok(())
    }
}

fn time([seconds, nanoseconds]: [u64; 2]) -> Time {
    Time { seconds: seconds as i64, nanoseconds }
}

fn unknown(what: &'static str) -> cenote_dmu::TxStop {
    refuse(Kind::Unsupported, FsError::Unreplayable { what })
}

fn apply(op: &mut Op<'_, '_>, operation: &Operation<'_>) -> TxResult<()> {
    let kind = operation.record.kind().ok_or_else(|| unknown("unknown type"))?;
    match &operation.body {
        Body::Create { parent, new, xvattr, name, target } => {
            create(op, kind, *parent, name, (new, *target), xvattr.as_ref(), None)
        }
        Body::CreateAcl { parent, new, xvattr, acl, name } => {
            create(op, kind, *parent, name, (new, None), xvattr.as_ref(), Some(acl))
        }
        Body::Remove { parent, name } => {
            let is_directory = kind == RecordKind::Rmdir;
            let target = if is_directory { Target::Directory } else { Target::File };
            edit::remove(op, *parent, name, target).map(|_| ())
        }
        Body::Link { parent, object, name } => edit::link(op, *object, *parent, name).map(|_| ()),
        Body::Rename { source_parent, target_parent, source, target, whiteout } => {
            let (from, to) = ((*source_parent, *source), (*target_parent, *target));
            let is_exchange = kind == RecordKind::RenameExchange;
            let mode = if is_exchange { RenameMode::Exchange } else { RenameMode::Plain };
            edit::rename(op, &Rename { from, to, mode })?;
            match whiteout {
                Some(new) => create(op, kind, from.0, from.1, (new, None), None, None),
                None => Ok(()),
            }
        }
        Body::Write { object, offset, len, data, .. } => match (data, &operation.block) {
            (Some(data), _) => write(op, *object, *offset, data),
            (None, Some(block)) => write_block(op, *object, *offset, *len, block),
            (None, None) => extend(op, *object, offset.saturating_add(*len)),
        },
        Body::Truncate { object, offset, len } => truncate(op, *object, *offset, *len),
        Body::Setattr { .. } => set_attributes(op, &operation.body),
        Body::SetSaXattr { object, name, value } => {
            let value = Some(*value).filter(|value| !value.is_empty());
            xattr::put_listed(op, *object, name, value)
        }
        Body::Acl { object, acl } => {
            let mut inode = op.inode(*object)?;
            let ids = Ids { uid: inode.uid(), gid: inode.gid() };
            let acl = node_acl(acl, inode.mode(), ids, inode.is_directory());
            permit::set_acl(&mut inode, &acl);
            op.touch_state(&mut inode);
            op.store(&inode)
        }
        Body::CloneRange { .. } => Err(unknown("a cloned range")),
        Body::Unknown => Err(unknown("unknown type")),
    }
}

fn node_acl(logged: &LoggedAcl, mode: u64, ids: Ids, is_directory: bool) -> NodeAcl {
    let entries: Vec<Ace> = logged.acl.entries.clone();
    let wide = PFlags::from_bits_retain(logged.flags) & WIDE_FLAGS;
    acl::set(entries, wide, mode, ids, is_directory)
}

fn kind_of<'a>(new: &NewObject, target: Option<&'a [u8]>) -> TxResult<NewKind<'a>> {
    Ok(match ((new.mode & TYPE_MASK) >> 12, target) {
        (1, None) => NewKind::Fifo,
        (2, None) => NewKind::CharDevice(new.rdev),
        (4, None) => NewKind::Directory,
        (6, None) => NewKind::BlockDevice(new.rdev),
        (8, None) => NewKind::Regular,
        (10, Some(target)) => NewKind::Symlink(target),
        (12, None) => NewKind::Socket,
        _ => return Err(unknown("a node of unknown kind")),
    })
}

fn create(
    op: &mut Op<'_, '_>,
    kind: RecordKind,
    parent: u64,
    name: &[u8],
    (new, target): (&NewObject, Option<&[u8]>),
    xvattr: Option<&XvAttrs>,
    acl: Option<&LoggedAcl>,
) -> TxResult<()> {
    let node_kind = kind_of(new, target)?;
    let ids = Ids { uid: new.uid, gid: new.gid };
    let acl = acl.map(|acl| node_acl(acl, new.mode, ids, node_kind == NewKind::Directory));
    let node = NewNode {
        number: Some(new.object),
        // Records of symbolic links do not have the dnode size.
        slots: (kind != RecordKind::Symlink).then_some(usize::from(new.slots)),
        generation: Some(new.gen_),
        time: Some(time(new.crtime)),
        owner: Some((new.uid, new.gid)),
        acl: acl.as_ref(),
        ..NewNode::new(node_kind, (new.mode & PERMISSION_MASK) as u32)
    };
    if kind == RecordKind::Mkxattr {
        let mut owner = op.inode(parent)?;
        xattr::hidden_directory(op, &mut owner, Some(&node))?;
        return op.store(&owner);
    }
    let mut inode = edit::create(op, parent, name, &node)?;
    let Some(attrs) = xvattr else { return Ok(()) };
    let (changed, flags) = attrs.flags();
    inode.set_flags((inode.flags() - changed) | flags);
    apply_optional(&mut inode, attrs);
    op.store(&inode)?;
    match attrs.project().and_then(|project| u32::try_from(project).ok()) {
        Some(project) => {
            let changes = SetAttributes { project: Some(project), ..SetAttributes::default() };
            edit::set_attributes(op, inode.object, &changes).map(|_| ())
        }
        None => Ok(()),
    }
}

/// Sets optional attributes other than flags and project.
fn apply_optional(inode: &mut edit::Inode, attrs: &XvAttrs) {
    if attrs.requested.contains(XvMask::CRTIME) {
        inode.set_time(ZplAttr::Crtime, time(attrs.crtime));
    }
    if let Some(stamp) = attrs.scanstamp() {
        inode.set_bytes(ZplAttr::Scanstamp, &stamp);
    }
}

fn write(op: &mut Op<'_, '_>, object: u64, offset: u64, data: &[u8]) -> TxResult<()> {
    edit::write(op, object, Place::At(offset), data, &[]).map(|_| ())
}

/// Replays a write whose data was written directly to its final block: the record has the contents
/// of the whole block, which may reach beyond the end of the file.
fn write_block(
    op: &mut Op<'_, '_>,
    object: u64,
    offset: u64,
    len: u64,
    block: &[u8],
) -> TxResult<()> {
    let block_len = block.len() as u64;
    let start = if len < block_len { offset - offset % block_len } else { offset };
    let before = op.inode(object)?.size();
    write(op, object, start, block)?;
    let mut inode = op.inode(object)?;
    inode.set_word(ZplAttr::Size, before.max(offset.saturating_add(len)));
    op.store(&inode)
}

/// Extends the file to `end` if it is shorter.
fn extend(op: &mut Op<'_, '_>, object: u64, end: u64) -> TxResult<()> {
    if op.inode(object)?.size() >= end {
        return Ok(());
    }
    edit::truncate(op, object, end).map(|_| ())
}

fn truncate(op: &mut Op<'_, '_>, object: u64, offset: u64, len: u64) -> TxResult<()> {
    let size = op.inode(object)?.size();
    if len == 0 {
        return edit::truncate(op, object, offset).map(|_| ());
    }
    if offset < size {
        edit::free(op, object, offset, len)?;
    }
    extend(op, object, offset.saturating_add(len))
}

fn set_attributes(op: &mut Op<'_, '_>, body: &Body<'_>) -> TxResult<()> {
    let Body::Setattr { object, mask, mode, uid, gid, size, atime, mtime, xvattr } = body else {
        return Ok(());
    };
    let mask = SetMask::from_stored(*mask);
    let id = |wanted: SetMask, id: u64| match u32::try_from(id) {
        _ if !mask.contains(wanted) => Ok(None),
        Ok(id) => Ok(Some(id)),
        Err(_) => Err(unknown("an owner of another domain")),
    };
    let set = |wanted, stored| mask.contains(wanted).then_some(SetTime::To(time(stored)));
    let mut changes = SetAttributes {
        mode: mask.contains(SetMask::MODE).then_some((*mode & PERMISSION_MASK) as u32),
        uid: id(SetMask::UID, *uid)?,
        gid: id(SetMask::GID, *gid)?,
        size: mask.contains(SetMask::SIZE).then_some(*size),
        atime: set(SetMask::ATIME, *atime),
        mtime: set(SetMask::MTIME, *mtime),
        ..SetAttributes::default()
    };
    if let Some(attrs) = xvattr {
        let mut inode = op.inode(*object)?;
        let (changed, flags) = attrs.flags();
        changes.flags = Some((inode.flags() - changed) | flags);
        changes.project = attrs.project().and_then(|project| u32::try_from(project).ok());
        apply_optional(&mut inode, attrs);
        op.store(&inode)?;
    }
    // Set-id bits removed by a write or a new owner are recorded in the same way as a chmod, which
    // changes the ACL according to `aclmode`.
    let is_side_effect =
        !mask.contains(SetMask::CTIME) || mask.intersects(SetMask::UID | SetMask::GID);
    if let Some(mode) = changes.mode.filter(|_| is_side_effect)
        && edit::lose_set_ids(op, *object, mode)?
    {
        changes.mode = None;
    }
    edit::set_attributes(op, *object, &changes).map(|_| ())
}
