//! Destination of the bytes of one file or volume: a new file, or an existing block device.
//!
//! ```text
//!   name is free, a regular file or a link to one ──> temporary file ── rename ──> name
//!   name is a block device, or a link to one      ──> opened alone, written in place, flushed
//!   name is anything else                         ──> refused
//! ```
//!
//! A regular file appears under its name only when it is complete: an interrupted copy leaves the
//! previous file with that name, or none. A symbolic link to a regular file is itself replaced, as
//! everything in a tree is. A symbolic link to a block device is followed, as `dd of=` does,
//! because `/dev/disk/by-id` consists of such links.
//!
//! A block device is never replaced. Holes are written to it as zeros, because old contents of the
//! device must not show through. Bytes beyond the end of the copied volume stay as they are.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_pool::Pool;
use rustix::fs::{self, AtFlags, FallocateFlags, FileType, Mode, OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::target::Result;
use crate::io::words;

/// Number of temporary names to try before giving up.
const NAMES_MAX: u32 = 100;
/// Zeros that are written per call where a device cannot zero a range by itself.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// Reasons for refusing a destination.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The system call failed.
    System(Errno),
    /// Something exists that is neither a regular file nor a block device.
    Kind(FileType),
    /// A block device that is mounted, part of a pool in use, or held by another program.
    InUse,
    /// A block device with too few bytes.
    TooSmall { bytes: u64, needed: u64 },
    /// A device of the pool that is being read.
    OwnDevice,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::System(error) => f.write_str(&words(&std::io::Error::from(*error))),
            Self::Kind(kind) => write!(f, "it exists and is {}", noun(*kind)),
            Self::InUse => f.write_str("the device is mounted or in use by another program"),
            Self::TooSmall { bytes, needed } => {
                write!(f, "the device has {bytes} bytes, {needed} are needed")
            }
            Self::OwnDevice => f.write_str("it is a device of the pool that is read"),
        }
    }
}

impl From<Errno> for Refusal {
    fn from(error: Errno) -> Self {
        Self::System(error)
    }
}

fn noun(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        _ => "no regular file",
    }
}

/// A destination for the bytes of one file or volume.
pub(super) enum Destination<'a> {
    /// A file that gets its final name when it is complete.
    File(NewFile<'a>),
    /// A block device.
    Device(File),
}

impl<'a> Destination<'a> {
    /// Opens the destination `name` in `parent` for `size` bytes from `pool`.
    pub(super) fn open(
        parent: BorrowedFd<'a>,
        name: &'a [u8],
        size: u64,
        pool: &Pool,
    ) -> std::result::Result<Self, Refusal> {
        let Some(found) = stat(parent, name, AtFlags::SYMLINK_NOFOLLOW)? else {
            return Ok(Self::File(NewFile::create(parent, name)?));
        };
        // Dangling and circular links are replaced like other links.
        let behind = match kind(&found) {
            FileType::Symlink => stat(parent, name, AtFlags::empty()).ok().flatten(),
            _ => Some(found),
        };
        match behind.as_ref().map(kind) {
            Some(FileType::BlockDevice) => Self::device(parent, name, size, pool),
            Some(FileType::RegularFile) if kind(&found) == FileType::RegularFile => {
                let is_own = |path: &Path| {
                    std::fs::metadata(path)
                        .is_ok_and(|it| (it.dev(), it.ino()) == (found.st_dev, found.st_ino))
                };
                if has_device(pool, is_own) {
                    return Err(Refusal::OwnDevice);
                }
                Ok(Self::File(NewFile::create(parent, name)?))
            }
            Some(FileType::RegularFile) | None => Ok(Self::File(NewFile::create(parent, name)?)),
            Some(other) => Err(Refusal::Kind(other)),
        }
    }

    fn device(
        parent: BorrowedFd<'_>,
        name: &[u8],
        size: u64,
        pool: &Pool,
    ) -> std::result::Result<Self, Refusal> {
        // O_EXCL without O_CREAT claims a block device: mounted devices and those of pools in use
        // are busy. O_NONBLOCK prevents blocking on a FIFO that took the name in the meantime.
        let flags = OFlags::WRONLY | OFlags::EXCL | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match fs::openat(parent, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::BUSY) => return Err(Refusal::InUse),
            Err(error) => return Err(error.into()),
        };
        let opened = fs::fstat(&file)?;
        if kind(&opened) != FileType::BlockDevice {
            return Err(Refusal::Kind(kind(&opened)));
        }
        let is_own = |path: &Path| {
            std::fs::metadata(path)
                .is_ok_and(|it| it.file_type().is_block_device() && it.rdev() == opened.st_rdev)
        };
        if has_device(pool, is_own) {
            return Err(Refusal::OwnDevice);
        }
        let bytes = fs::seek(&file, SeekFrom::End(0))?;
        if bytes < size {
            return Err(Refusal::TooSmall { bytes, needed: size });
        }
        Ok(Self::Device(file))
    }

    /// Sets the size of the destination before anything is written to it.
    pub(super) fn set_size(&self, size: u64) -> std::io::Result<()> {
        match self {
            Self::File(new) => new.file.set_len(size),
            Self::Device(_) => Ok(()),
        }
    }

    /// Writes `data` at `offset`.
    pub(super) fn write(&self, data: &[u8], offset: u64) -> std::io::Result<()> {
        let (Self::File(NewFile { file, .. }) | Self::Device(file)) = self;
        file.write_all_at(data, offset)
    }

    /// Makes `len` bytes at `offset` read as zeros. A new file already reads as zeros.
    pub(super) fn zero(&self, offset: u64, len: u64) -> std::io::Result<()> {
        let Self::Device(file) = self else { return Ok(()) };
        if len == 0 || fs::fallocate(file, FallocateFlags::ZERO_RANGE, offset, len).is_ok() {
            return Ok(());
        }
        // For unaligned ranges, and for devices and kernels without that call.
        let end = offset.saturating_add(len);
        for at in (offset..end).step_by(ZEROS.len()) {
            let piece = (end - at).min(ZEROS.len() as u64);
            file.write_all_at(&ZEROS[..piece as usize], at)?;
        }
        Ok(())
    }
}

/// A file under a temporary name, which is removed unless [`Self::keep`] is called.
pub(super) struct NewFile<'a> {
    parent: BorrowedFd<'a>,
    name: &'a [u8],
    temporary: Vec<u8>,
    file: File,
    /// Whether a file with the final name exists and will be replaced.
    replaces: bool,
    is_kept: bool,
}

impl<'a> NewFile<'a> {
    /// Creates a file that will get the name `name`.
    ///
    /// # Errors
    /// `EXIST` if the name belongs to a device, FIFO or socket, `ISDIR` if to a directory.
    pub(super) fn create(parent: BorrowedFd<'a>, name: &'a [u8]) -> Result<Self> {
        let replaces = match stat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?.as_ref().map(kind) {
            None => false,
            Some(FileType::RegularFile | FileType::Symlink) => true,
            Some(FileType::Directory) => return Err(Errno::ISDIR),
            Some(_) => return Err(Errno::EXIST),
        };
        // O_EXCL: never opens a file or a link that another user created there.
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for _ in 0..NAMES_MAX {
            let temporary = temporary_name();
            match fs::openat(parent, &temporary[..], flags, Mode::RUSR | Mode::WUSR) {
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
                Ok(file) => {
                    let file = File::from(file);
                    return Ok(Self { parent, name, temporary, file, replaces, is_kept: false });
                }
            }
        }
        Err(Errno::EXIST)
    }

    /// Returns the open file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Renames the file to its final name. With `is_durable`, a replaced file disappears only after
    /// the new contents have reached the disk.
    pub(super) fn keep(mut self, is_durable: bool) -> Result<()> {
        if is_durable && self.replaces {
            fs::fdatasync(&self.file)?;
        }
        fs::renameat(self.parent, &self.temporary[..], self.parent, self.name)?;
        self.is_kept = true;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let _ = fs::unlinkat(self.parent, &self.temporary[..], AtFlags::empty());
        }
    }
}

fn temporary_name() -> Vec<u8> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!(".cenote-cp-{}-{count}", std::process::id()).into_bytes()
}

/// Whether `is_it` holds for a device of the pool.
fn has_device(pool: &Pool, is_it: impl Fn(&Path) -> bool) -> bool {
    pool.vdevs().leaf_paths().any(|path| is_it(Path::new(path)))
}

/// Returns the type of a file.
pub(super) fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// Returns the attributes of a name; `None` if it does not exist.
pub(super) fn stat(parent: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> Result<Option<Stat>> {
    match fs::statat(parent, name, flags) {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(error) => Err(error),
    }
}
