//! Lookup and listing of directory entries.

use cenote_dmu::TxResult;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::zap::{Cursor, HashBits};

use super::{Inode, Op, names, permit};
use crate::directory::{self, Entry};
use crate::node::FileKind;

/// An entry in a directory listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name, as it is stored.
    pub name: Vec<u8>,
    /// The node.
    pub object: u64,
    /// Its kind; unknown on file systems of the first version.
    pub kind: Option<FileKind>,
    /// Position after this entry, from which a later listing can continue.
    pub cookie: u64,
}

/// A part of a directory listing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadDirPage {
    /// The entries.
    pub entries: Vec<DirEntry>,
    /// Whether this is the end of the directory.
    pub is_end: bool,
}

/// Returns the inode of a name.
///
/// # Errors
/// `Kind::NotFound` if there is no such name; permission errors.
pub fn lookup(op: &mut Op<'_, '_>, parent: u64, name: &[u8]) -> TxResult<Inode> {
    let dir = op.directory(parent)?;
    permit::search(op, &dir)?;
    match name {
        b"." => return Ok(dir),
        b".." => return op.inode(dir.parent()),
        _ => {}
    }
    names::check(op, name)?;
    let found = names::require(op, parent, name)?;
    op.inode(found.object)
}

/// Returns at most `max` entries from a cookie on, 0 for the start. Names that are added or removed
/// in the meantime may be returned or not; all others are returned exactly once.
///
/// # Errors
/// `FsError::NotADirectory`; permission errors.
pub fn list(op: &mut Op<'_, '_>, object: u64, cookie: u64, max: usize) -> TxResult<ReadDirPage> {
    let dir = op.directory(object)?;
    permit::list(op, &dir)?;
    let page = zap::entries_from(op.tx, object, cookie, max)?;
    let mut listed = Vec::with_capacity(page.entries.len());
    for entry in page.entries {
        let next = entry.cursor().next().serialize(HashBits::B28);
        // Damaged entries are not listed.
        let Ok(Entry { name, object, kind }) = directory::decode(entry, false) else { continue };
        listed.push(DirEntry { name, object, kind, cookie: next });
    }
    Ok(ReadDirPage { entries: listed, is_end: page.cookie == Cursor::END })
}
