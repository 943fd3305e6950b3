//! Directories: lookup and listing of names.
//!
//! A directory is a ZAP from names to words with the object number and, since version 2, the kind
//! of the node (spec 03 §10.1). The file system's properties determine how names are compared; the
//! hash is always that of the name as the ZAP normalizes it (spec 03 §7). `.` and `..` are not
//! stored.

use cenote_dmu::zap::read as zap;
use cenote_dmu::{Entries, ReadObjects, TxResult, Zap};
use cenote_ondisk::zap::{Key, MatchKind, Value};
use cenote_ondisk::znode::DirEntry;
use cenote_rt::{Error, Result};

use crate::error::FsError;
use crate::node::{FileKind, Node};

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name as it was stored.
    pub name: Vec<u8>,
    /// The object.
    pub object: u64,
    /// Kind of the object; unknown on version 1 file systems.
    pub kind: Option<FileKind>,
}

/// A walk over the entries of a directory, in ZAP order.
#[derive(Debug)]
pub struct ReadDir {
    entries: Entries,
    /// Whether it is a directory of extended attributes, whose names are no parts of paths.
    has_attributes: bool,
}

impl ReadDir {
    /// Returns the next entry; `None` at the end.
    ///
    /// After an error, the next call continues after the damaged part.
    pub async fn next(&mut self) -> Result<Option<Entry>> {
        match self.entries.next().await? {
            Some(entry) => decode(entry, self.has_attributes).map(Some),
            None => Ok(None),
        }
    }

    /// Returns the position after the last returned entry, for a later walk.
    pub fn cookie(&self) -> u64 {
        self.entries.cookie()
    }
}

impl Node {
    /// Returns the entries of a directory.
    pub async fn entries(&self) -> Result<ReadDir> {
        self.entries_from(0).await
    }

    /// Returns the entries from a cookie on ([`ReadDir::cookie`]).
    pub async fn entries_from(&self, cookie: u64) -> Result<ReadDir> {
        if !self.is_directory() {
            return Err(self.refuse(FsError::NotADirectory));
        }
        let entries = Zap::of(self.dnode.clone()).await?.entries_from(cookie);
        Ok(ReadDir { entries, has_attributes: self.is_xattr_directory() })
    }

    /// Returns the entry with that name, compared by the file system's rules.
    pub async fn find(&self, name: &[u8]) -> Result<Option<Entry>> {
        let rules = self.fs.rules();
        if rules.is_utf8_only && std::str::from_utf8(name).is_err() {
            return Err(self.refuse(FsError::NotUtf8));
        }
        if !self.is_directory() {
            return Err(self.refuse(FsError::NotADirectory));
        }
        let (object, kind) = (self.object(), rules.match_kind());
        let found = self.fs.objset.read(|objects| find(objects, object, name, kind)).await?;
        found.map(|entry| checked(entry, self.is_xattr_directory())).transpose()
    }

    /// Returns the node with that name.
    ///
    /// # Errors
    /// `Kind::NotFound` with [`FsError::NoEntry`] if there is no such name.
    pub async fn lookup(&self, name: &[u8]) -> Result<Node> {
        match self.find(name).await? {
            Some(entry) => self.fs.node(entry.object).await,
            None => Err(self.dnode.locate(Error::not_found(FsError::NoEntry))),
        }
    }

    /// Returns the directory in the node's parent attribute; itself for the root.
    pub async fn parent(&self) -> Result<Node> {
        self.fs.node(self.attributes().parent).await
    }
}

/// Returns the entry of a name in a directory, compared by `kind`; exactly if the directory does
/// not fold names.
pub(crate) fn find(
    objects: &mut dyn ReadObjects,
    directory: u64,
    name: &[u8],
    kind: MatchKind,
) -> TxResult<Option<Entry>> {
    let found = zap::find(objects, directory, name, kind)?;
    Ok(found.map(|(name, value)| entry_of(name, &value)).transpose()?)
}

/// Decodes an entry of a listing; refuses names that would leave the directory.
pub(crate) fn decode(entry: cenote_ondisk::zap::Entry, has_attributes: bool) -> Result<Entry> {
    match entry.key {
        Key::Name(name) => checked(entry_of(name, &entry.value)?, has_attributes),
        Key::Words(_) => Err(Error::corrupt(FsError::EntryName { name: String::new() })),
    }
}

fn checked(entry: Entry, has_attributes: bool) -> Result<Entry> {
    let name = &entry.name[..];
    let leaves = name.is_empty() || name == b"." || name == b".." || name.contains(&b'/');
    if leaves && !has_attributes {
        let name = String::from_utf8_lossy(name).into_owned();
        return Err(Error::corrupt(FsError::EntryName { name }));
    }
    Ok(entry)
}

/// Decodes an entry; refuses values without an object.
fn entry_of(name: Vec<u8>, value: &Value) -> Result<Entry> {
    let found = value.first().map(DirEntry::decode);
    let Some(DirEntry { file_type, object: object @ 1.. }) = found else {
        let name = String::from_utf8_lossy(&name).into_owned();
        return Err(Error::corrupt(FsError::EntryValue { name }));
    };
    let kind = (file_type != 0).then(|| FileKind::from_bits(file_type));
    Ok(Entry { name, object, kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/"] {
            let entry = entry_of(name.to_vec(), &Value::U64(7)).unwrap();
            assert!(checked(entry, false).is_err(), "{name:?}");
        }
        let entry = entry_of(b"\xff..".to_vec(), &Value::U64(0x8000_0000_0000_0007)).unwrap();
        assert_eq!((entry.object, entry.kind), (7, Some(FileKind::Regular)));
        assert_eq!(entry_of(b"a".to_vec(), &Value::U64(7)).unwrap().kind, None);
        assert!(entry_of(b"a".to_vec(), &Value::words_of(&[])).is_err());
        assert!(entry_of(b"a".to_vec(), &Value::U64(8 << 60)).is_err());
    }
}
