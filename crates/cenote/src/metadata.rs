//! Attributes of files.

use std::time::{Duration, SystemTime};

use cenote_fs::mount::Attributes;
use cenote_fs::{FileKind, Time};

/// Type of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileType {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, pipe, socket, or another node without data.
    Other,
}

impl From<FileKind> for FileType {
    fn from(kind: FileKind) -> Self {
        match kind {
            FileKind::Regular => Self::File,
            FileKind::Directory => Self::Directory,
            FileKind::Symlink => Self::Symlink,
            _ => Self::Other,
        }
    }
}

/// Attributes of a file at the time of the request.
#[derive(Debug, Clone)]
pub struct Metadata(pub(crate) Attributes);

impl Metadata {
    /// Type of the file.
    #[must_use]
    pub fn file_type(&self) -> FileType {
        self.0.kind.into()
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.file_type() == FileType::File
    }

    /// Bytes of a regular file; number of entries + 2 of a directory.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "as in std::fs::Metadata")]
    pub fn len(&self) -> u64 {
        self.0.size
    }

    /// Bytes that the file occupies in the pool, at the last committed txg.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.0.blocks * 512
    }

    /// Permission bits.
    #[must_use]
    pub fn mode(&self) -> u32 {
        self.0.mode
    }

    /// Owner.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.0.uid
    }

    /// Group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.0.gid
    }

    /// Number of names.
    #[must_use]
    pub fn links(&self) -> u64 {
        self.0.links
    }

    /// Inode number, which is the number of its object.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.0.object
    }

    /// Time of the last modification.
    #[must_use]
    pub fn modified(&self) -> SystemTime {
        system_time(self.0.mtime)
    }

    /// Time of the last access, according to the properties `atime` and `relatime`.
    #[must_use]
    pub fn accessed(&self) -> SystemTime {
        system_time(self.0.atime)
    }

    /// Time of creation.
    #[must_use]
    pub fn created(&self) -> SystemTime {
        system_time(self.0.crtime)
    }
}

/// Times outside of the range of `SystemTime`, which only damage causes, become 1970.
fn system_time(time: Time) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let base = if time.seconds < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    let time = base.and_then(|base| base.checked_add(Duration::from_nanos(time.nanoseconds)));
    time.unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_and_out_of_range_are_converted() {
        let of = |seconds, nanoseconds| system_time(Time { seconds, nanoseconds });
        assert_eq!(of(1, 5), SystemTime::UNIX_EPOCH + Duration::new(1, 5));
        assert_eq!(of(-1, 0), SystemTime::UNIX_EPOCH - Duration::from_secs(1));
        assert_eq!(of(i64::MAX, u64::MAX), SystemTime::UNIX_EPOCH);
    }
}
