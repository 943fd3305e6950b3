//! Manifests: the contents of a file system as OpenZFS's kernel module showed them, one JSON object
//! a line.
//!
//! `fixtures/tools/manifest.py` wrote them. They have no times of access and change, since reading
//! changes those; contents and values of extended attributes are given as checksums.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer};

/// A path as bytes: names on disk need not be UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RawPath(pub Vec<u8>);

/// The kind of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryKind {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A character device.
    Chr,
    /// A block device.
    Blk,
    /// A socket.
    Sock,
}

/// One file, directory or other entry.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Relative to the root of the file system; the root itself is `.`.
    pub path: RawPath,
    /// The kind of the entry.
    #[serde(rename = "type")]
    pub kind: EntryKind,
    /// Permission bits with set-id and sticky bits, 12 bits.
    #[serde(deserialize_with = "octal")]
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links.
    pub nlink: u64,
    /// Object number (the inode number on the mount).
    pub ino: u64,
    /// Modification time in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Bytes, for files.
    pub size: Option<u64>,
    /// Lower-case hexadecimal SHA-256 of the contents, for files.
    pub sha256: Option<String>,
    /// For symbolic links.
    pub target: Option<RawPath>,
    /// Major and minor number, for devices.
    pub rdev: Option<(u32, u32)>,
    /// SHA-256 of each extended attribute's value, by name.
    #[serde(default)]
    pub xattrs: BTreeMap<String, String>,
    /// The errno of listing extended attributes, where that failed.
    pub xattr_error: Option<i32>,
}

/// Size and SHA-256 of a whole volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeSum {
    /// Bytes.
    pub size: u64,
    /// Lower-case hexadecimal.
    pub sha256: String,
}

/// Parses a manifest; `place` names it in panics.
pub fn parse(text: &str, place: &str) -> Vec<Entry> {
    let lines = text.lines().enumerate();
    lines
        .map(|(index, line)| {
            serde_json::from_str(line)
                .unwrap_or_else(|error| panic!("{place}, line {}: {error}", index + 1))
        })
        .collect()
}

impl VolumeSum {
    /// Parses `SIZE SHA256`; `place` names it in panics.
    pub fn parse(text: &str, place: &str) -> Self {
        let (size, sha256) =
            text.trim().split_once(' ').unwrap_or_else(|| panic!("{place}: no space"));
        let size = size.parse().unwrap_or_else(|error| panic!("{place}: {size:?}: {error}"));
        Self { size, sha256: sha256.to_owned() }
    }
}

/// The checksum of contents in the form of manifests.
pub fn sha256(bytes: &[u8]) -> String {
    use sha2::Digest;
    use std::fmt::Write;
    sha2::Sha256::digest(bytes).iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn octal<'de, D: Deserializer<'de>>(source: D) -> Result<u32, D::Error> {
    let text = String::deserialize(source)?;
    let digits = text.strip_prefix("0o").unwrap_or(&text);
    u32::from_str_radix(digits, 8).map_err(serde::de::Error::custom)
}

impl fmt::Debug for RawPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

impl fmt::Display for RawPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&String::from_utf8_lossy(&self.0))
    }
}

impl<'de> Deserialize<'de> for RawPath {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = RawPath;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a path")
            }
            fn visit_str<E>(self, text: &str) -> Result<RawPath, E> {
                Ok(RawPath(text.as_bytes().to_vec()))
            }
            fn visit_bytes<E>(self, bytes: &[u8]) -> Result<RawPath, E> {
                Ok(RawPath(without_surrogate_escapes(bytes)))
            }
        }
        // As bytes, because serde_json then accepts the lone surrogates that stand for raw bytes.
        source.deserialize_bytes(Visitor)
    }
}

/// Reverses Python's "surrogateescape": U+DC80..U+DCFF stand for the bytes 0x80..0xff.
fn without_surrogate_escapes(bytes: &[u8]) -> Vec<u8> {
    let mut raw = Vec::with_capacity(bytes.len());
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        if let [0xed, high @ 0xb2..=0xb3, low, after @ ..] = rest {
            raw.push(((high & 0x3) << 6) | (low & 0x3f));
            rest = after;
        } else {
            raw.push(first);
            rest = after;
        }
    }
    raw
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lone_surrogates_are_raw_bytes() {
        for (json, want) in [
            (r#""plain""#, &b"plain"[..]),
            (r#""\udcff\udc80""#, &[0xff, 0x80]),
            (r#""caf\u00e9""#, "café".as_bytes()),
            (r#""\ud83e\udd80""#, "🦀".as_bytes()),
        ] {
            assert_eq!(serde_json::from_str::<RawPath>(json).unwrap().0, want, "{json}");
        }
    }
}
