//! Removes names, and inodes without a name (spec 03 §10.1).
//!
//! An inode that loses its last name is freed in the same transaction if it is not open, not large,
//! and has no directory of extended attributes. Otherwise it is added to the unlinked set, from
//! which [`reap`](super::reap) frees it.

use cenote_dmu::TxResult;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::sa::ZplAttr;
use cenote_rt::Kind;

use super::{Inode, Op, names, permit, record, refuse};
use crate::error::FsError;

/// A file with more blocks is freed in a transaction of its own (`zfs_delete_blocks`).
const BLOCKS_AT_ONCE: u64 = 20_480;

/// Expected kind of the removed node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Anything but a directory.
    File,
    /// An empty directory.
    Directory,
}

/// State of the inode after the removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// The object.
    pub object: u64,
    /// Remaining links.
    pub links: u64,
    /// The inode has no name and is in the unlinked set, to be freed by [`reap`](super::reap).
    pub is_unlinked: bool,
}

/// Removes a name.
///
/// # Errors
/// `Kind::NotFound` if there is no such name; [`FsError::IsADirectory`],
/// [`FsError::NotADirectory`], [`FsError::NotEmpty`] if it is not what was expected; permission
/// errors.
pub fn remove(op: &mut Op<'_, '_>, parent: u64, name: &[u8], target: Target) -> TxResult<Removed> {
    let mut dir = op.directory(parent)?;
    if target == Target::Directory && name == b"." {
        return Err(refuse(Kind::Invalid, FsError::WrongKind));
    }
    if target == Target::Directory && name == b".." {
        return Err(refuse(Kind::Exists, FsError::NotEmpty));
    }
    permit::search(op, &dir)?;
    names::check_free(op, parent, name)?;
    let found = names::require(op, parent, name)?;
    let inode = op.inode(found.object)?;
    match target {
        Target::File if inode.is_directory() => {
            return Err(refuse(Kind::Invalid, FsError::IsADirectory));
        }
        Target::Directory if !inode.is_directory() => {
            return Err(refuse(Kind::Invalid, FsError::NotADirectory));
        }
        _ => {}
    }
    permit::delete(op, &dir, &inode)?;
    names::remove(op, parent, &found.name)?;
    discount_entry(op, &mut dir, &inode);
    op.store(&dir)?;
    let is_directory = inode.is_directory();
    let removed = drop_name(op, inode)?;
    record::remove(op, parent, name, is_directory, &removed);
    Ok(removed)
}

/// Updates a directory's counters after an entry was removed.
pub(super) fn discount_entry(op: &Op<'_, '_>, dir: &mut Inode, inode: &Inode) {
    dir.set_word(ZplAttr::Size, dir.size().saturating_sub(1));
    if inode.is_directory() {
        dir.set_word(ZplAttr::Links, dir.links().saturating_sub(1));
    }
    op.touch_content(dir);
}

/// Removes one link of an inode, or the only one of a directory.
pub(super) fn drop_name(op: &mut Op<'_, '_>, mut inode: Inode) -> TxResult<Removed> {
    let object = inode.object;
    if inode.is_directory() && zap::len(op.tx, object)? != 0 {
        return Err(refuse(Kind::Exists, FsError::NotEmpty));
    }
    // Only empty directories are removed, so they have no links of subdirectories.
    let links = if inode.is_directory() { 0 } else { inode.links().saturating_sub(1) };
    if links > 0 {
        inode.set_word(ZplAttr::Links, links);
        op.touch_state(&mut inode);
        op.store(&inode)?;
        return Ok(Removed { object, links, is_unlinked: false });
    }
    let is_open = op.facts.openers.is_open(object);
    if !is_open && inode.xattr_dir() == 0 && is_small(op, &inode)? && !inode.is_legacy() {
        op.free(object)?;
        return Ok(Removed { object, links, is_unlinked: false });
    }
    inode.set_word(ZplAttr::Links, 0);
    op.touch_state(&mut inode);
    op.store(&inode)?;
    op.add_unlinked(object)?;
    Ok(Removed { object, links, is_unlinked: true })
}

fn is_small(op: &Op<'_, '_>, inode: &Inode) -> TxResult<bool> {
    let block = op.tx.dnode(inode.object)?.data_block_size();
    Ok(inode.size() <= block.saturating_mul(BLOCKS_AT_ONCE))
}
