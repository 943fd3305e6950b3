//! The kernel's mount table.
//!
//! The table is read from `/proc`, which sends no request to any file system: every thread may read
//! it, even for mounts that this process serves itself.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use cenote_rt::{Error, FixedMap, Kind, Result};

const MOUNTS: &str = "/proc/self/mountinfo";
/// The file system type of cenote's mounts.
pub(super) const TYPE: &[u8] = b"fuse.zfs";

/// All mounts, in the order in which they were made.
#[derive(Debug)]
pub struct MountTable {
    mounts: Vec<MountLine>,
    /// Indexes into `mounts`, by device number.
    by_device: FixedMap<Vec<u8>, Vec<usize>>,
}

/// One line of the table.
#[derive(Debug)]
pub(super) struct MountLine {
    /// The kernel's number for the file system, `MAJOR:MINOR`.
    device: Vec<u8>,
    /// Whether the whole file system is mounted, and not one of its folders.
    is_whole: bool,
    at: PathBuf,
    kind: Vec<u8>,
}

impl MountLine {
    /// Whether it is a cenote mount.
    pub(super) fn is_ours(&self) -> bool {
        self.kind == TYPE
    }

    /// The kernel's number for the file system, `MAJOR:MINOR`.
    pub(super) fn device(&self) -> &[u8] {
        &self.device
    }
}

impl MountTable {
    /// Reads the table.
    ///
    /// # Errors
    /// `Kind::Io`
    pub fn read() -> Result<Self> {
        let text = std::fs::read(MOUNTS).map_err(|error| Error::new(Kind::Io, error))?;
        Ok(Self::parse(&text))
    }

    fn parse(text: &[u8]) -> Self {
        let line = |line: &[u8]| {
            let mut fields = line.split(|byte| *byte == b' ');
            let device = fields.nth(2)?.to_vec();
            let is_whole = fields.next()? == b"/";
            let at = PathBuf::from(unescape(fields.next()?));
            // After a variable number of options, and a dash.
            let kind = fields.skip_while(|field| *field != b"-").nth(1)?.to_vec();
            Some(MountLine { device, is_whole, at, kind })
        };
        let mounts: Vec<_> = text.split(|byte| *byte == b'\n').filter_map(line).collect();
        let mut by_device = FixedMap::<_, Vec<usize>>::default();
        for (index, mount) in mounts.iter().enumerate() {
            by_device.entry(mount.device.clone()).or_default().push(index);
        }
        Self { mounts, by_device }
    }

    /// Returns the visible mount at a place: the last one, which hides the others.
    pub(super) fn seen_at(&self, at: &Path) -> Option<&MountLine> {
        self.mounts.iter().rfind(|seen| seen.at == at)
    }

    /// Returns the places where a file system is mounted as a whole, each with the number of mounts
    /// made before it.
    pub(super) fn places(&self, device: &[u8]) -> Vec<(usize, PathBuf)> {
        let indexes = self.by_device.get(device).into_iter().flatten();
        let mounts = indexes.filter_map(|index| Some((*index, self.mounts.get(*index)?)));
        let whole = mounts.filter(|(_, mount)| mount.is_whole);
        whole.map(|(order, mount)| (order, mount.at.clone())).collect()
    }
}

/// Blanks and similar characters are written as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let (mut plain, mut rest) = (Vec::with_capacity(field.len()), field);
    while let [byte, behind @ ..] = rest {
        rest = behind;
        let digit = |byte: u8| matches!(byte, b'0'..=b'7').then(|| byte - b'0');
        match (byte, behind) {
            (b'\\', [a, b, c, behind @ ..]) => match (digit(*a), digit(*b), digit(*c)) {
                (Some(a @ 0..=3), Some(b), Some(c)) => {
                    plain.push(a << 6 | b << 3 | c);
                    rest = behind;
                }
                _ => plain.push(*byte),
            },
            _ => plain.push(*byte),
        }
    }
    OsString::from_vec(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_is_parsed() {
        let table = b"21 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
            30 21 0:40 / /mnt/a\\040b rw,nosuid shared:5 master:1 - fuse.zfs tank/a rw\n\
            31 21 0:41 / /mnt/c rw - fuse.zfs tank/c rw\n\
            32 31 0:42 / /mnt/c rw - tmpfs tmpfs rw\n\
            33 21 0:40 /sub /mnt/d rw - fuse.zfs tank/a rw\n\
            34 21 0:40 / /mnt/e ro shared:7 - fuse.zfs tank/a rw\n\
            broken\n";
        let table = MountTable::parse(table);
        let of = |path: &str| {
            let seen = table.seen_at(Path::new(path));
            seen.map(|seen| String::from_utf8_lossy(&seen.kind).into_owned())
        };
        assert_eq!(of("/").as_deref(), Some("ext4"));
        assert_eq!(of("/mnt/a b").as_deref(), Some("fuse.zfs"));
        assert_eq!(of("/mnt/c").as_deref(), Some("tmpfs"), "what hides the other");
        assert_eq!(of("/mnt"), None);
        assert_eq!(table.places(b"0:40"), [(1, "/mnt/a b".into()), (5, "/mnt/e".into())]);
        assert!(table.seen_at(Path::new("/mnt/a b")).is_some_and(MountLine::is_ours));
        assert_eq!(unescape(b"a\\134\\9"), OsString::from("a\\\\9"));
    }
}
