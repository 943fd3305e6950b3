//! Renaming: moves a name, exchanges two names, or leaves a whiteout (spec 03 §10.1).
//!
//! Everything happens in one transaction. An inode keeps its link count. What changes are the
//! counters of the directories, the parent attribute, and, if the new name was taken, the inode
//! that had it.

use cenote_dmu::TxResult;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::zap::MatchKind;
use cenote_ondisk::znode::PFlags;
use cenote_rt::{Error, Kind};

use super::create::{self, NewKind, NewNode};
use super::remove::{self, Removed};
use super::{Inode, Op, names, permit, record, refuse};
use crate::directory::{self, Entry};
use crate::error::FsError;

/// Longer chains of parents are loops: no directory is that deep.
const DEPTH_MAX: usize = 1 << 16;

/// What to do with an existing new name, or with the old name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// An existing node is replaced.
    #[default]
    Plain,
    /// An existing node makes the request fail.
    NoReplace,
    /// Both names are exchanged.
    Exchange,
    /// The old name becomes a whiteout: a character device with number 0.
    Whiteout,
}

/// A request to rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rename<'a> {
    /// Present directory and name.
    pub from: (u64, &'a [u8]),
    /// New directory and name.
    pub to: (u64, &'a [u8]),
    /// Variant.
    pub mode: RenameMode,
}

/// The two directories, which may be the same.
struct Dirs {
    source: Inode,
    /// `None` if it is the same as the source.
    target: Option<Inode>,
}

impl Dirs {
    fn target(&mut self) -> &mut Inode {
        self.target.as_mut().unwrap_or(&mut self.source)
    }

    fn target_ref(&self) -> &Inode {
        self.target.as_ref().unwrap_or(&self.source)
    }

    fn store(&self, op: &mut Op<'_, '_>) -> TxResult<()> {
        op.store(&self.source)?;
        self.target.as_ref().map_or(Ok(()), |target| op.store(target))
    }
}

/// Renames. Returns what became of the replaced inode.
///
/// # Errors
/// `Kind::NotFound` if there is no such name; `Kind::Exists` if the new one is taken and must not
/// be; [`FsError::IntoItself`]; permission errors and of what does not go together.
pub fn rename(op: &mut Op<'_, '_>, request: &Rename<'_>) -> TxResult<Option<Removed>> {
    let ((from, old), (to, new)) = (request.from, request.to);
    let source = op.directory(from)?;
    let target = if from == to { None } else { Some(op.directory(to)?) };
    let mut dirs = Dirs { source, target };
    if is_dots(old) || is_dots(new) {
        return Err(refuse(Kind::Busy, FsError::WrongKind));
    }
    let is_hidden = |dir: &Inode| dir.flags().contains(PFlags::XATTR);
    if is_hidden(&dirs.source) != is_hidden(dirs.target_ref()) {
        return Err(refuse(Kind::Invalid, FsError::WrongKind));
    }
    permit::search(op, &dirs.source)?;
    permit::search(op, dirs.target_ref())?;
    names::check_free(op, from, old)?;
    let moved = names::require(op, from, old)?;
    names::check_new(op, to, new)?;
    let there = names::find(op, to, new)?;
    let mut inode = op.inode(moved.object)?;
    check_project(op, &dirs, &inode)?;
    if check_same(op, request, &moved, there.as_ref())? {
        return Ok(None);
    }
    if inode.is_directory() && from != to {
        check_apart(op, inode.object, to)?;
    }
    if request.mode == RenameMode::Exchange {
        let there = there.ok_or_else(|| refuse(Kind::NotFound, FsError::NoEntry))?;
        exchange(op, request, &mut dirs, (&moved, inode), &there)?;
        return Ok(None);
    }
    create::check_alive(dirs.target_ref())?;
    permit::rename(op, &dirs.source, dirs.target_ref(), &inode)?;
    let is_same = there.as_ref().is_some_and(|there| there.object == moved.object);
    let replaced = match there {
        // Another spelling of the same name.
        Some(_) if is_same => None,
        Some(_) if request.mode == RenameMode::NoReplace => {
            return Err(refuse(Kind::Exists, FsError::Exists));
        }
        Some(there) => Some(replace(op, &mut dirs, &inode, &there)?),
        None => None,
    };
    names::remove(op, from, &moved.name)?;
    remove::discount_entry(op, &mut dirs.source, &inode);
    names::insert(op, to, new, &inode)?;
    create::count_entry(op, dirs.target(), &inode);
    moved_to(op, &mut inode, to);
    op.store(&inode)?;
    let whiteout = match request.mode {
        RenameMode::Whiteout => Some(leave_whiteout(op, &mut dirs, &moved)?),
        _ => None,
    };
    dirs.store(op)?;
    record::rename(op, request, moved.object, whiteout.as_ref(), replaced.as_ref());
    Ok(replaced)
}

fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Whether there is nothing to do, because both names belong to the same inode.
fn check_same(
    op: &mut Op<'_, '_>,
    request: &Rename<'_>,
    moved: &Entry,
    there: Option<&Entry>,
) -> TxResult<bool> {
    let Some(there) = there.filter(|there| there.object == moved.object) else {
        return Ok(false);
    };
    if request.mode == RenameMode::NoReplace && there.name == request.to.1 {
        return Err(refuse(Kind::Exists, FsError::Exists));
    }
    let is_respelled = request.from.0 == request.to.0
        && moved.name == there.name
        && there.name != request.to.1
        && directory::find(op.tx, request.to.0, request.to.1, MatchKind::Exact)?.is_none();
    Ok(!is_respelled)
}

fn check_project(op: &Op<'_, '_>, dirs: &Dirs, inode: &Inode) -> TxResult<()> {
    if dirs.target.is_none() || op.cred.is_none() {
        return Ok(());
    }
    permit::same_project(dirs.target_ref(), inode)
}

/// Refuses to move a directory below itself.
fn check_apart(op: &mut Op<'_, '_>, moved: u64, into: u64) -> TxResult<()> {
    let mut at = into;
    for _ in 0..DEPTH_MAX {
        if at == moved {
            return Err(refuse(Kind::Invalid, FsError::IntoItself));
        }
        if at == op.facts.root {
            return Ok(());
        }
        let parent = op.inode(at)?.parent();
        if parent == at {
            return Ok(());
        }
        at = parent;
    }
    Err(Error::corrupt(FsError::ParentLoop).into())
}

/// Removes the inode that has the new name.
fn replace(
    op: &mut Op<'_, '_>,
    dirs: &mut Dirs,
    inode: &Inode,
    there: &Entry,
) -> TxResult<Removed> {
    let victim = op.inode(there.object)?;
    match (inode.is_directory(), victim.is_directory()) {
        (true, false) => return Err(refuse(Kind::Invalid, FsError::NotADirectory)),
        (false, true) => return Err(refuse(Kind::Invalid, FsError::IsADirectory)),
        _ => {}
    }
    permit::delete(op, dirs.target_ref(), &victim)?;
    if victim.is_directory() && zap::len(op.tx, victim.object)? != 0 {
        return Err(refuse(Kind::Exists, FsError::NotEmpty));
    }
    let target = dirs.target_ref().object;
    names::remove(op, target, &there.name)?;
    remove::discount_entry(op, dirs.target(), &victim);
    remove::drop_name(op, victim)
}

fn moved_to(op: &Op<'_, '_>, inode: &mut Inode, parent: u64) {
    inode.set_word(ZplAttr::Parent, parent);
    inode.set_flags(inode.flags() | PFlags::AV_MODIFIED);
    op.touch_state(inode);
}

fn exchange(
    op: &mut Op<'_, '_>,
    request: &Rename<'_>,
    dirs: &mut Dirs,
    (moved, mut inode): (&Entry, Inode),
    there: &Entry,
) -> TxResult<()> {
    let ((from, _), (to, _)) = (request.from, request.to);
    let mut other = op.inode(there.object)?;
    if other.is_directory() && from != to {
        check_apart(op, other.object, from)?;
    }
    if dirs.target.is_some() && op.cred.is_some() {
        permit::same_project(&dirs.source, &other)?;
    }
    permit::rename(op, &dirs.source, dirs.target_ref(), &inode)?;
    permit::rename(op, dirs.target_ref(), &dirs.source, &other)?;
    names::remove(op, from, &moved.name)?;
    names::remove(op, to, &there.name)?;
    names::insert(op, from, &moved.name, &other)?;
    names::insert(op, to, &there.name, &inode)?;
    remove::discount_entry(op, &mut dirs.source, &inode);
    remove::discount_entry(op, dirs.target(), &other);
    create::count_entry(op, &mut dirs.source, &other);
    create::count_entry(op, dirs.target(), &inode);
    moved_to(op, &mut inode, to);
    moved_to(op, &mut other, from);
    op.store(&inode)?;
    op.store(&other)?;
    dirs.store(op)?;
    record::rename(op, request, moved.object, None, None);
    Ok(())
}

fn leave_whiteout(op: &mut Op<'_, '_>, dirs: &mut Dirs, moved: &Entry) -> TxResult<Inode> {
    let new = NewNode::new(NewKind::CharDevice(0), 0);
    let whiteout = create::make(op, &dirs.source, &new)?;
    names::insert(op, dirs.source.object, &moved.name, &whiteout)?;
    create::count_entry(op, &mut dirs.source, &whiteout);
    Ok(whiteout)
}
