//! One JSON object per line for each entry, with the fields and the form of golden manifests.
//!
//! The form is that of Python's `json.dumps`: `", "` and `": "` as separators, ASCII only, and
//! bytes that are not UTF-8 as lone surrogates. So lines can be compared as text.

use std::fmt::Write as _;

use cenote_fs::{FileKind, Node};
use cenote_rt::Result;
use sha2::{Digest, Sha256};

use super::walk::{characters, compare};

/// Zeros from which holes are hashed.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// The fields of one entry.
pub(super) struct Row {
    path: Vec<u8>,
    node: Node,
    target: Option<Vec<u8>>,
    contents: Option<String>,
    xattrs: Vec<(Vec<u8>, String)>,
}

impl Row {
    /// Returns the row of an entry of which only attributes are wanted, or only attributes exist.
    pub(super) fn of_attributes(path: Vec<u8>, node: Node, checksum: bool) -> Self {
        let is_empty_file = checksum && node.kind() == FileKind::Regular;
        let contents = is_empty_file.then(|| hex(&Sha256::digest([])));
        Self { path, node, target: None, contents, xattrs: Vec::new() }
    }

    /// Reads the fields of an entry; with `checksum` also those computed from its contents.
    pub(super) async fn gather(path: Vec<u8>, node: Node, checksum: bool) -> Result<Self> {
        let target = match node.kind() {
            FileKind::Symlink => Some(node.target().await?),
            _ => None,
        };
        let contents = match node.kind() {
            FileKind::Regular if checksum => Some(sum_of_file(&node).await?),
            _ => None,
        };
        let mut xattrs = Vec::new();
        if checksum && node.has_xattrs() {
            for found in node.xattr_names().await? {
                if let Some(value) = node.xattr(&found.name).await? {
                    xattrs.push((found.name, hex(&Sha256::digest(&value))));
                }
            }
            xattrs.sort_by(|a, b| compare(&a.0, &b.0));
        }
        Ok(Self { path, node, target, contents, xattrs })
    }
}

async fn sum_of_file(node: &Node) -> Result<String> {
    let mut hash = Sha256::new();
    let mut stream = node.stream()?;
    while let Some(piece) = stream.next().await {
        let piece = piece?;
        if let Some(data) = piece.data {
            hash.update(&data);
            continue;
        }
        let mut rest = piece.len;
        while rest > 0 {
            let part = rest.min(ZEROS.len() as u64);
            hash.update(&ZEROS[..part as usize]);
            rest -= part;
        }
    }
    Ok(hex(&hash.finalize()))
}

/// Returns lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the name of a file kind in the field `type`.
fn type_name(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Fifo => "fifo",
        FileKind::CharDevice => "chr",
        FileKind::Directory => "dir",
        FileKind::BlockDevice => "blk",
        FileKind::Regular => "file",
        FileKind::Symlink => "symlink",
        FileKind::Socket => "sock",
        FileKind::Other(_) => "unknown",
    }
}

impl Row {
    /// Returns the line, without its end.
    pub(super) fn to_line(&self) -> String {
        let attributes = self.node.attributes();
        let mut line = "{\"path\": ".to_owned();
        push_text(&mut line, &self.path);
        let mtime = i128::from(attributes.mtime.seconds) * 1_000_000_000
            + i128::from(attributes.mtime.nanoseconds);
        let _ = write!(
            line,
            ", \"type\": \"{}\", \"mode\": \"0o{:o}\", \"uid\": {}, \"gid\": {}, \"nlink\": {}, \
             \"ino\": {}, \"mtime_ns\": {mtime}",
            type_name(self.node.kind()),
            attributes.mode & 0o7777,
            attributes.uid.rid(),
            attributes.gid.rid(),
            attributes.links,
            self.node.inode(),
        );
        if self.node.kind() == FileKind::Regular {
            let _ = write!(line, ", \"size\": {}", attributes.size);
        }
        if let Some(sum) = &self.contents {
            let _ = write!(line, ", \"sha256\": \"{sum}\"");
        }
        if let Some(target) = &self.target {
            line.push_str(", \"target\": ");
            push_text(&mut line, target);
        }
        if let Some((major, minor)) = self.node.device() {
            let _ = write!(line, ", \"rdev\": [{major}, {minor}]");
        }
        if !self.xattrs.is_empty() {
            line.push_str(", \"xattrs\": {");
            for (index, (name, sum)) in self.xattrs.iter().enumerate() {
                line.push_str(if index == 0 { "" } else { ", " });
                push_text(&mut line, name);
                let _ = write!(line, ": \"{sum}\"");
            }
            line.push('}');
        }
        line.push('}');
        line
    }
}

/// Appends a JSON string in ASCII.
fn push_text(line: &mut String, bytes: &[u8]) {
    line.push('"');
    for character in characters(bytes) {
        match character {
            0x22 => line.push_str("\\\""),
            0x5c => line.push_str("\\\\"),
            0x0a => line.push_str("\\n"),
            0x0d => line.push_str("\\r"),
            0x09 => line.push_str("\\t"),
            0x08 => line.push_str("\\b"),
            0x0c => line.push_str("\\f"),
            0x20..=0x7e => line.push(char::from(character as u8)),
            0..=0xffff => {
                let _ = write!(line, "\\u{character:04x}");
            }
            _ => {
                let rest = character - 0x10000;
                let (high, low) = (0xd800 + (rest >> 10), 0xdc00 + (rest & 0x3ff));
                let _ = write!(line, "\\u{high:04x}\\u{low:04x}");
            }
        }
    }
    line.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_as_python_writes_it() {
        for (bytes, want) in [
            (&b"plain"[..], r#""plain""#),
            (b"a\"\\\n\x01\x7f", r#""a\"\\\n\u0001\u007f""#),
            (b"\xff", r#""\udcff""#),
            ("é🦀".as_bytes(), r#""\u00e9\ud83e\udd80""#),
        ] {
            let mut line = String::new();
            push_text(&mut line, bytes);
            assert_eq!(line, want);
        }
    }
}
