//! Regular files and block devices.
//!
//! A read uses the first of these methods that works:
//! 1. From the page cache, on the caller's thread (`preadv2` with `RWF_NOWAIT`): a cached sector
//!    costs one system call and no change of thread.
//! 2. Through io_uring ([`ring`](crate::ring)).
//! 3. By `pread` on the blocking pool, if io_uring is unavailable or switched off (tunable
//!    `cenote_io_uring`, or `CENOTE_IO_URING=0` in the environment).
//!
//! Files are read through the page cache, because they are often read again by the next command,
//! and because the kernel's readahead makes a sequential scan as fast as `dd`; and they are written
//! through it, so that many small writes become few: by `pwritev` on the blocking pool, one after
//! the other ([`cached`]), because io_uring would hand a buffered write to a kernel thread anyway,
//! with two more changes of thread. A block device that is open for writing belongs to a pool in
//! use, whose blocks the engine caches itself: its I/O bypasses the page cache
//! (`cenote_direct_io`). Buffers that are not aligned in memory are then written from an aligned
//! copy; I/O that is not in whole sectors, or that the host refuses, goes through the page cache,
//! which the kernel keeps coherent.
//!
//! Durability: a write is in the page cache, or in the volatile cache of the device, when it
//! returns. `flush` is `fdatasync`, which waits for both.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Result, Semaphore, tunables};
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::device::{NoDiscard, ReadOnly, check_range, check_span, joined};
use crate::{Device, DeviceInfo, OpenMode};

mod cached;
mod methods;

use cached::CachedWrites;
use methods::{fill, store, sync};

/// Attempts to open a device that is in use, and the pause between them.
const OPEN_TRIES: u32 = 20;
const OPEN_PAUSE: Duration = Duration::from_millis(5);

/// Interval at which [`FileDevice::settle`] checks for I/O in flight.
const SETTLE_PAUSE: Duration = Duration::from_millis(1);

/// Alignment of offset, length and memory that direct I/O requires.
const DIRECT_ALIGN: usize = 4096;

/// Why a path was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The path is neither a regular file nor a block device.
    #[error("'{0}' is neither a regular file nor a block device")]
    NotADevice(String),
    /// Another process has it open exclusively.
    #[error("'{0}' is in use by another process")]
    InUse(String),
}

/// A regular file or a block device.
#[derive(Debug)]
pub struct FileDevice {
    info: DeviceInfo,
    mode: OpenMode,
    file: Arc<File>,
    /// Another descriptor of the file, opened with `O_DIRECT`.
    direct: Option<Arc<File>>,
    /// Queue of writes to `file`.
    cached: Arc<CachedWrites>,
    /// Limits the I/Os in flight.
    depth: Arc<Semaphore>,
    /// Whether the page cache supports reads that do not wait (`RWF_NOWAIT`).
    has_nowait: std::sync::atomic::AtomicBool,
}

/// Retries `claim` for a moment while it reports that the device is in use. A process that is being
/// started inherits its parent's open files until it executes its program, so a device that was
/// just closed may appear to be in use.
#[expect(clippy::disallowed_methods, reason = "files are opened by threads that may wait")]
fn retry_while_busy<T>(mut claim: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    for _ in 1..OPEN_TRIES {
        match claim() {
            Err(Errno::BUSY | Errno::WOULDBLOCK) => std::thread::sleep(OPEN_PAUSE),
            done => return done,
        }
    }
    claim()
}

impl FileDevice {
    /// Opens `path`. Read-only opening takes no lock and cannot write.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(Self::open_file(path.as_ref(), mode)?))
    }

    fn open_file(path: &Path, mode: OpenMode) -> Result<Self> {
        let name = path.to_string_lossy().into_owned();
        let failed = |error: Errno| {
            let kind = match error {
                Errno::NOENT => Kind::NotFound,
                Errno::ACCESS | Errno::PERM => Kind::Permission,
                _ => Kind::Io,
            };
            Error::new(kind, io::Error::from(error)).with_at(|at| at.device = Some(name.clone()))
        };
        // A read-only scan must not block: a FIFO among the candidates must not hang it.
        let is_block = |path: &Path| {
            let stat = rustix::fs::stat(path)?;
            Ok(match FileType::from_raw_mode(stat.st_mode) {
                FileType::BlockDevice => Some(true),
                FileType::RegularFile => Some(false),
                _ => None,
            })
        };
        let Some(is_block_device) = is_block(path).map_err(failed)? else {
            return Err(Error::new(Kind::Invalid, OpenError::NotADevice(name)));
        };
        let flags = OFlags::CLOEXEC
            | match mode {
                OpenMode::ReadOnly => OFlags::RDONLY,
                // On a block device, O_EXCL without O_CREAT requests exclusive access.
                OpenMode::Exclusive if is_block_device => OFlags::RDWR | OFlags::EXCL,
                OpenMode::Exclusive => OFlags::RDWR,
            };
        let in_use = || Error::new(Kind::Busy, OpenError::InUse(name.clone()));
        let claimed = |error| match error {
            Errno::BUSY | Errno::WOULDBLOCK => in_use(),
            error => failed(error),
        };
        let open = || rustix::fs::open(path, flags, Mode::empty());
        let file = File::from(retry_while_busy(open).map_err(claimed)?);
        if mode == OpenMode::Exclusive {
            let lock = FlockOperation::NonBlockingLockExclusive;
            retry_while_busy(|| rustix::fs::flock(&file, lock)).map_err(claimed)?;
        }
        let info = describe(&file, name.clone(), is_block_device).map_err(failed)?;
        let is_direct = match tunables::DIRECT_IO.get() {
            0 => false,
            1 => true,
            _ => is_block_device && mode == OpenMode::Exclusive,
        };
        // Without O_EXCL: the first descriptor holds the exclusive access for the whole process.
        let access = if mode == OpenMode::Exclusive { OFlags::RDWR } else { OFlags::RDONLY };
        let flags = access | OFlags::CLOEXEC | OFlags::DIRECT;
        let direct = is_direct.then(|| rustix::fs::open(path, flags, Mode::empty()).ok()).flatten();
        let direct = direct.map(|file| Arc::new(File::from(file)));
        Ok(Self {
            info,
            mode,
            file: Arc::new(file),
            direct,
            cached: Arc::default(),
            depth: Arc::new(Semaphore::new(tunables::DEVICE_QUEUE_DEPTH.get_usize())),
            has_nowait: std::sync::atomic::AtomicBool::new(true),
        })
    }

    /// Reads the cached part without waiting; returns the number of bytes from the start on.
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> usize {
        use std::sync::atomic::Ordering::Relaxed;
        if !self.has_nowait.load(Relaxed) {
            return 0;
        }
        let mut parts = [io::IoSliceMut::new(buf)];
        match rustix::io::preadv2(&self.file, &mut parts, offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(_) => {
                // The file system does not support RWF_NOWAIT, and would refuse it every time.
                self.has_nowait.store(false, Relaxed);
                0
            }
        }
    }

    /// Whether the read can bypass the page cache.
    fn direct_for(&self, offset: u64, buf: &BufMut) -> Option<&Arc<File>> {
        let align = DIRECT_ALIGN as u64;
        let is_aligned = offset.is_multiple_of(align)
            && (buf.len() as u64).is_multiple_of(align)
            && (buf.as_ptr() as u64).is_multiple_of(align);
        self.direct.as_ref().filter(|_| is_aligned)
    }

    async fn read_all(&self, offset: u64, mut buf: BufMut) -> io::Result<BufMut> {
        let direct = self.direct_for(offset, &buf);
        let filled = match direct {
            Some(_) => 0,
            None => self.read_cached(offset, &mut buf),
        };
        if filled == buf.len() {
            return Ok(buf);
        }
        let permit = Arc::clone(&self.depth).acquire_owned().await.map_err(io::Error::other)?;
        let permit = Arc::new(permit);
        let rest = (buf, filled);
        if let Some(direct) = direct {
            let (buf, result) = fill(direct, offset, rest, &permit).await?;
            // A refusal (the host wants a larger alignment) is not an error of the device.
            return match result {
                Err(error) if is_refusal(&error) => {
                    let (buf, result) = fill(&self.file, offset, (buf, 0), &permit).await?;
                    result.map(|()| buf)
                }
                result => result.map(|()| buf),
            };
        }
        let (buf, result) = fill(&self.file, offset, rest, &permit).await?;
        result.map(|()| buf)
    }

    async fn write_all(&self, offset: u64, parts: Vec<Buf>) -> io::Result<()> {
        let permit = Arc::clone(&self.depth).acquire_owned().await.map_err(io::Error::other)?;
        let permit = Arc::new(permit);
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let is_whole =
            |at: usize| at.is_multiple_of(DIRECT_ALIGN.min(1 << self.info.logical_ashift.max(9)));
        let direct = self.direct.as_ref().filter(|_| is_whole(offset as usize) && is_whole(len));
        let Some(direct) = direct else {
            return self.cached.store(&self.file, offset, parts, &permit).await;
        };
        let is_aligned = |part: &Buf| {
            (part.as_ptr() as usize).is_multiple_of(DIRECT_ALIGN) && is_whole(part.len())
        };
        let parts =
            if parts.iter().all(is_aligned) { parts } else { vec![joined(&parts).freeze()] };
        match store(direct, offset, parts.clone(), &permit).await {
            Err(error) if is_refusal(&error) => {
                self.cached.store(&self.file, offset, parts, &permit).await
            }
            result => result,
        }
    }

    /// Refuses changes of a device that was opened for reading.
    fn check_writable(&self, offset: u64) -> Result<()> {
        match self.mode {
            OpenMode::Exclusive => Ok(()),
            OpenMode::ReadOnly => {
                Err(Error::new(Kind::ReadOnly, ReadOnly).on_device(&self.info.path, offset))
            }
        }
    }
}

/// Whether the host refused a direct I/O because of its alignment.
fn is_refusal(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

impl Device for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn current_size(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async move {
            let (file, is_block_device) = (Arc::clone(&self.file), self.info.is_block_device);
            let size = cenote_rt::blocking(move || size_of(&file, is_block_device)).await?;
            size.map_err(|error| {
                Error::new(Kind::Io, io::Error::from(error)).on_device(&self.info.path, 0)
            })
        })
    }

    fn grown(&self) -> BoxFuture<'_, Result<Option<Arc<dyn Device>>>> {
        Box::pin(async move {
            let size = self.current_size().await?;
            if size <= self.info.size {
                return Ok(None);
            }
            let device: Arc<dyn Device> = Arc::new(Self {
                info: DeviceInfo { size, ..self.info.clone() },
                mode: self.mode,
                file: Arc::clone(&self.file),
                direct: self.direct.as_ref().map(Arc::clone),
                cached: Arc::clone(&self.cached),
                depth: Arc::clone(&self.depth),
                has_nowait: std::sync::atomic::AtomicBool::new(true),
            });
            Ok(Some(device))
        })
    }

    fn is_at_its_path(&self) -> BoxFuture<'_, bool> {
        Box::pin(async move {
            let (file, path) = (Arc::clone(&self.file), self.info.path.clone());
            let is_same = cenote_rt::blocking(move || is_same_device(&file, Path::new(&path)));
            is_same.await.is_ok_and(|is_same| is_same)
        })
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            check_range(&self.info, offset, buf.len())?;
            self.read_all(offset, buf)
                .await
                .map_err(|error| Error::new(Kind::Io, error).on_device(&self.info.path, offset))
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            check_range(&self.info, offset, parts.iter().map(|part| part.len()).sum())?;
            self.check_writable(offset)?;
            self.write_all(offset, parts)
                .await
                .map_err(|error| Error::new(Kind::Io, error).on_device(&self.info.path, offset))
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let failed = |error| Error::new(Kind::Io, error).on_device(&self.info.path, 0);
            let permit = Arc::clone(&self.depth).acquire_owned().await;
            let permit = Arc::new(permit.map_err(|error| failed(io::Error::other(error)))?);
            sync(&self.file, &permit).await.map_err(failed)
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            check_span(&self.info, offset, len)?;
            self.check_writable(offset)?;
            let (file, is_block_device) = (Arc::clone(&self.file), self.info.is_block_device);
            let result =
                cenote_rt::blocking(move || discard(&file, offset, len, is_block_device)).await?;
            result.map_err(|error| {
                let error = match error {
                    Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => {
                        Error::new(Kind::Unsupported, NoDiscard)
                    }
                    error => Error::new(Kind::Io, io::Error::from(error)),
                };
                error.on_device(&self.info.path, offset)
            })
        })
    }

    /// Each I/O in the kernel or in one of our threads holds the file open: the lock is released
    /// with the last one.
    fn settle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let is_in_use = |file: &Arc<File>| Arc::strong_count(file) > 1;
            while is_in_use(&self.file) || self.direct.as_ref().is_some_and(is_in_use) {
                cenote_rt::sleep(SETTLE_PAUSE).await;
            }
        })
    }
}

/// Deallocates a range of a file, or discards a range of a block device.
fn discard(file: &File, offset: u64, len: u64, is_block_device: bool) -> rustix::io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    #[cfg(target_os = "linux")]
    if is_block_device {
        return discard_blocks(file, offset, len);
    }
    let _ = is_block_device;
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(file, mode, offset, len)
}

#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "rustix has no name for this request")]
fn discard_blocks(file: &File, offset: u64, len: u64) -> rustix::io::Result<()> {
    /// `BLKDISCARD` of linux/fs.h.
    const REQUEST: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 119);
    // SAFETY: the request reads two words, offset and length, and writes nothing back.
    unsafe {
        let request = rustix::ioctl::Setter::<REQUEST, [u64; 2]>::new([offset, len]);
        rustix::ioctl::ioctl(file, request)
    }
}

/// Creates a sparse file of `size` bytes at `path`.
///
/// # Errors
/// `Kind::Exists` if the path exists.
pub fn create_file(path: impl AsRef<Path>, size: u64) -> Result<()> {
    let path = path.as_ref();
    let create = || File::options().write(true).create_new(true).open(path)?.set_len(size);
    create().map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::AlreadyExists => Kind::Exists,
            io::ErrorKind::PermissionDenied => Kind::Permission,
            io::ErrorKind::NotFound => Kind::NotFound,
            _ => Kind::Io,
        };
        Error::new(kind, error).with_at(|at| at.device = Some(path.to_string_lossy().into_owned()))
    })
}

/// Size in bytes of an open file or block device.
fn size_of(file: &File, is_block_device: bool) -> rustix::io::Result<u64> {
    if is_block_device {
        // Every read and write specifies its offset, so the file position is free to use.
        return rustix::fs::seek(file, rustix::fs::SeekFrom::End(0));
    }
    Ok(u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0))
}

/// Whether `path` leads to the open file or block device. Several nodes may lead to one block
/// device.
fn is_same_device(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(found)) = (rustix::fs::fstat(file), rustix::fs::stat(path)) else {
        return false;
    };
    let kinds = [open.st_mode, found.st_mode].map(FileType::from_raw_mode);
    match kinds {
        [FileType::BlockDevice, FileType::BlockDevice] => open.st_rdev == found.st_rdev,
        [FileType::RegularFile, FileType::RegularFile] => {
            (open.st_dev, open.st_ino) == (found.st_dev, found.st_ino)
        }
        _ => false,
    }
}

/// Size and sectors of an open file or block device.
fn describe(file: &File, path: String, is_block_device: bool) -> rustix::io::Result<DeviceInfo> {
    let size = size_of(file, is_block_device)?;
    if !is_block_device {
        return Ok(DeviceInfo {
            path,
            size,
            logical_ashift: tunables::FILE_LOGICAL_ASHIFT.get() as u8,
            physical_ashift: tunables::FILE_PHYSICAL_ASHIFT.get() as u8,
            is_block_device,
            is_rotational: false,
        });
    }
    let ashift = |bytes: u32| bytes.max(512).ilog2() as u8;
    #[cfg(target_os = "linux")]
    let (logical_ashift, physical_ashift) = (
        rustix::fs::ioctl_blksszget(file).map_or(9, ashift),
        rustix::fs::ioctl_blkpbszget(file).map_or(9, ashift),
    );
    #[cfg(not(target_os = "linux"))]
    let (logical_ashift, physical_ashift) = (ashift(512), ashift(512));
    let is_rotational = is_rotational(file);
    Ok(DeviceInfo { path, size, logical_ashift, physical_ashift, is_block_device, is_rotational })
}

/// Whether the kernel reports a rotating disk; for partitions, their parent has the attribute.
fn is_rotational(file: &File) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    ["queue/rotational", "../queue/rotational"].iter().any(|name| {
        let text = std::fs::read(format!("/sys/dev/block/{major}:{minor}/{name}"));
        text.is_ok_and(|text| text.starts_with(b"1"))
    })
}

#[cfg(test)]
mod tests;
