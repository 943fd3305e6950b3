//! Looking into directories.

use cenote_dmu::TxResult;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::zap::{Cursor, HashBits, Key};
use cenote_ondisk::znode::DirEntry as Stored;

use super::{Inode, Op, names, permit};
use crate::node::FileKind;

/// An entry of a directory, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// Its name, as it is stored.
    pub name: Vec<u8>,
    /// The node.
    pub object: u64,
    /// What it is; unknown on file systems of the first version.
    pub kind: Option<FileKind>,
    /// Listing goes on behind it from here, now or later.
    pub cookie: u64,
}

/// Some entries of a directory, in its order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReadDirPage {
    /// The entries.
    pub entries: Vec<DirEntry>,
    /// Nothing follows.
    pub is_end: bool,
}

/// The inode of a name.
///
/// # Errors
/// `Kind::NotFound` if there is no such name; refusals of rights.
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

/// At most `max` entries from the place of a cookie on, 0 for the start. Names that come and go
/// meanwhile may be told or not; all others are told exactly once.
///
/// # Errors
/// `FsError::NotADirectory`; refusals of rights.
pub fn list(op: &mut Op<'_, '_>, object: u64, cookie: u64, max: usize) -> TxResult<ReadDirPage> {
    let dir = op.directory(object)?;
    permit::list(op, &dir)?;
    let page = zap::entries_from(op.tx, object, cookie, max)?;
    let mut listed = Vec::with_capacity(page.entries.len());
    for entry in page.entries {
        let next = entry.cursor().next().serialize(HashBits::B28);
        let (Key::Name(name), Some(value)) = (entry.key, entry.value.first()) else { continue };
        let Stored { file_type, object } = Stored::decode(value);
        let kind = (file_type != 0).then(|| FileKind::from_bits(file_type));
        listed.push(DirEntry { name, object, kind, cookie: next });
    }
    Ok(ReadDirPage { entries: listed, is_end: page.cookie == Cursor::END })
}
