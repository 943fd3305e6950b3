//! Directories: lookup and listing of names.
//!
//! A directory is a ZAP from names to words with the object number and, since version 2, the kind
//! of the node (spec 03 §10.1). The file system's properties determine how names are compared; the
//! hash is always that of the name as the ZAP normalizes it (spec 03 §7). `.` and `..` are not
//! stored.

use cenote_dmu::{Entries, Zap};
use cenote_ondisk::zap::{self, Key, MatchKind};
use cenote_ondisk::znode::DirEntry;
use cenote_rt::{Error, Kind, Result};

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
}

impl ReadDir {
    /// Returns the next entry; `None` at the end.
    ///
    /// After an error, the next call continues after the damaged part.
    pub async fn next(&mut self) -> Result<Option<Entry>> {
        match self.entries.next().await? {
            Some(entry) => decode(entry).map(Some),
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
        Ok(ReadDir { entries: self.directory().await?.entries() })
    }

    /// Returns the entries from a cookie on ([`ReadDir::cookie`]).
    pub async fn entries_from(&self, cookie: u64) -> Result<ReadDir> {
        Ok(ReadDir { entries: self.directory().await?.entries_from(cookie) })
    }

    /// Returns the entry with that name, compared by the file system's rules.
    pub async fn find(&self, name: &[u8]) -> Result<Option<Entry>> {
        let rules = self.fs.rules();
        if rules.is_utf8_only && std::str::from_utf8(name).is_err() {
            return Err(self.refuse(FsError::NotUtf8));
        }
        let zap = self.directory().await?;
        let kind = rules.match_kind();
        if kind == MatchKind::Exact || zap.hash().normflags.is_empty() {
            let value = zap.lookup(name).await?;
            return value.map(|value| entry_of(name.to_vec(), &value)).transpose();
        }
        zap.lookup_normalized(name, kind).await?.map(decode).transpose()
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

    async fn directory(&self) -> Result<Zap> {
        if !self.is_directory() {
            return Err(self.refuse(FsError::NotADirectory));
        }
        Zap::of(self.dnode.clone()).await
    }
}

fn decode(entry: zap::Entry) -> Result<Entry> {
    match entry.key {
        Key::Name(name) => entry_of(name, &entry.value),
        Key::Words(_) => Err(Error::corrupt(FsError::EntryName { name: String::new() })),
    }
}

/// Decodes an entry; refuses invalid names and values without an object.
fn entry_of(name: Vec<u8>, value: &zap::Value) -> Result<Entry> {
    let text = || String::from_utf8_lossy(&name).into_owned();
    if name.is_empty() || name == b"." || name == b".." || name.contains(&b'/') {
        return Err(Error::new(Kind::Corrupt, FsError::EntryName { name: text() }));
    }
    let Some(DirEntry { file_type, object }) = value.first().map(DirEntry::decode) else {
        return Err(Error::new(Kind::Corrupt, FsError::EntryValue { name: text() }));
    };
    let kind = (file_type != 0).then(|| FileKind::from_bits(file_type));
    Ok(Entry { name, object, kind })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_ondisk::zap::Value;

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/"] {
            assert!(entry_of(name.to_vec(), &Value::U64(7)).is_err(), "{name:?}");
        }
        let entry = entry_of(b"\xff..".to_vec(), &Value::U64(0x8000_0000_0000_0007)).unwrap();
        assert_eq!((entry.object, entry.kind), (7, Some(FileKind::Regular)));
        assert_eq!(entry_of(b"a".to_vec(), &Value::U64(7)).unwrap().kind, None);
        assert!(entry_of(b"a".to_vec(), &Value::words_of(&[])).is_err());
    }
}
