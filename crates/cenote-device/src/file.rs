//! Files and block devices.
//!
//! A read takes the first way that works:
//! 1. From the page cache, on the caller's thread (`preadv2` with `RWF_NOWAIT`): a cached sector
//!    costs one system call and no hop to another thread.
//! 2. Through io_uring ([`ring`](crate::ring)).
//! 3. By `pread` on the blocking pool, where io_uring is refused or switched off (tunable
//!    `cenote_io_uring`, or `CENOTE_IO_URING=0` in the environment).
//!
//! Reads go through the page cache, because images are often read again by the next command, and
//! since readahead makes a sequential scan as fast as `dd`. `cenote_direct_io` bypasses it for
//! aligned reads; what the host refuses is then read through the cache.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use cenote_rt::{BoxFuture, BufMut, Error, Kind, Result, Semaphore, tunables};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::ReadWriteFlags;
use tokio::sync::OwnedSemaphorePermit;

use crate::device::check_range;
use crate::{Device, DeviceInfo, OpenMode};

/// Alignment of offset, length and memory from which on a direct read is tried.
const DIRECT_ALIGN: usize = 4096;

/// Why a path was not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// Neither a regular file nor a block device.
    #[error("'{0}' is neither a regular file nor a block device")]
    NotADevice(String),
    /// Another process holds it.
    #[error("'{0}' is in use by another process")]
    InUse(String),
}

/// A regular file or a block device.
#[derive(Debug)]
pub struct FileDevice {
    info: DeviceInfo,
    file: Arc<File>,
    /// The same, opened with `O_DIRECT`.
    direct: Option<Arc<File>>,
    /// Bounds the I/Os in flight.
    depth: Arc<Semaphore>,
    /// Whether the page cache can be asked without waiting.
    has_nowait: std::sync::atomic::AtomicBool,
}

impl FileDevice {
    /// Opens `path`. Read-only opening takes no lock and cannot write.
    pub fn open(path: impl AsRef<Path>, mode: OpenMode) -> Result<Arc<dyn Device>> {
        Ok(Arc::new(Self::open_file(path.as_ref(), mode)?))
    }

    fn open_file(path: &Path, mode: OpenMode) -> Result<Self> {
        let name = path.to_string_lossy().into_owned();
        let failed = |error: rustix::io::Errno| {
            let kind = match error {
                rustix::io::Errno::NOENT => Kind::NotFound,
                rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => Kind::Permission,
                rustix::io::Errno::BUSY => Kind::Busy,
                _ => Kind::Io,
            };
            Error::new(kind, io::Error::from(error)).with_at(|at| at.device = Some(name.clone()))
        };
        // Not a block: a FIFO among the candidates of a scan must not hang it.
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
                // On a block device O_EXCL without O_CREAT asks for the exclusive claim.
                OpenMode::Exclusive if is_block_device => OFlags::RDWR | OFlags::EXCL,
                OpenMode::Exclusive => OFlags::RDWR,
            };
        let file = File::from(rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?);
        if mode == OpenMode::Exclusive {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(
                |error| match error {
                    rustix::io::Errno::WOULDBLOCK => {
                        Error::new(Kind::Busy, OpenError::InUse(name.clone()))
                    }
                    error => failed(error),
                },
            )?;
        }
        let info = describe(&file, name.clone(), is_block_device).map_err(failed)?;
        let direct = (tunables::DIRECT_IO.get() == 1)
            .then(|| rustix::fs::open(path, OFlags::CLOEXEC | OFlags::DIRECT, Mode::empty()).ok())
            .flatten()
            .map(|file| Arc::new(File::from(file)));
        Ok(Self {
            info,
            file: Arc::new(file),
            direct,
            depth: Arc::new(Semaphore::new(tunables::DEVICE_QUEUE_DEPTH.get_usize())),
            has_nowait: std::sync::atomic::AtomicBool::new(true),
        })
    }

    /// What the page cache holds of the read, without waiting: bytes from the start on.
    fn read_cached(&self, offset: u64, buf: &mut [u8]) -> usize {
        use std::sync::atomic::Ordering::Relaxed;
        if !self.has_nowait.load(Relaxed) {
            return 0;
        }
        let mut parts = [io::IoSliceMut::new(buf)];
        match rustix::io::preadv2(&self.file, &mut parts, offset, ReadWriteFlags::NOWAIT) {
            Ok(count) => count,
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => 0,
            Err(_) => {
                // File systems without RWF_NOWAIT refuse it each time.
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
            // A refusal (EINVAL: the host wants a larger alignment) is no error of the device.
            return match result {
                Err(error)
                    if error.raw_os_error() == Some(rustix::io::Errno::INVAL.raw_os_error()) =>
                {
                    let (buf, result) = fill(&self.file, offset, (buf, 0), &permit).await?;
                    result.map(|()| buf)
                }
                result => result.map(|()| buf),
            };
        }
        let (buf, result) = fill(&self.file, offset, rest, &permit).await?;
        result.map(|()| buf)
    }
}

impl Device for FileDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            check_range(&self.info, offset, buf.len())?;
            self.read_all(offset, buf)
                .await
                .map_err(|error| Error::new(Kind::Io, error).on_device(&self.info.path, offset))
        })
    }
}

/// Size and sectors of an open file or block device.
fn describe(file: &File, path: String, is_block_device: bool) -> rustix::io::Result<DeviceInfo> {
    if !is_block_device {
        let size = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        return Ok(DeviceInfo {
            path,
            size,
            logical_ashift: 9,
            physical_ashift: 9,
            is_block_device,
            is_rotational: false,
        });
    }
    let size = rustix::fs::seek(file, rustix::fs::SeekFrom::End(0))?;
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

/// What the kernel knows about the head of a block device; partitions have it in their parent.
fn is_rotational(file: &File) -> bool {
    let Ok(stat) = rustix::fs::fstat(file) else { return false };
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    ["queue/rotational", "../queue/rotational"].iter().any(|name| {
        let text = std::fs::read(format!("/sys/dev/block/{major}:{minor}/{name}"));
        text.is_ok_and(|text| text.starts_with(b"1"))
    })
}

/// Reads `buf[filled..]` to its end. The outer error means that the buffer is lost.
async fn fill(
    file: &Arc<File>,
    offset: u64,
    rest: (BufMut, usize),
    permit: &Arc<OwnedSemaphorePermit>,
) -> io::Result<(BufMut, io::Result<()>)> {
    #[cfg(target_os = "linux")]
    if is_uring_wanted()
        && let Some(ring) = crate::ring::ring()
    {
        return fill_by_ring(ring, file, offset, rest, permit).await;
    }
    fill_by_pread(file, offset, rest, permit).await
}

/// Whether io_uring is switched on.
#[cfg(target_os = "linux")]
fn is_uring_wanted() -> bool {
    static IS_FORBIDDEN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    let is_forbidden = *IS_FORBIDDEN
        .get_or_init(|| std::env::var_os("CENOTE_IO_URING").is_some_and(|value| value == "0"));
    !is_forbidden && tunables::IO_URING.get() == 1
}

#[cfg(target_os = "linux")]
async fn fill_by_ring(
    ring: &crate::ring::Ring,
    file: &Arc<File>,
    offset: u64,
    (mut buf, mut filled): (BufMut, usize),
    permit: &Arc<OwnedSemaphorePermit>,
) -> io::Result<(BufMut, io::Result<()>)> {
    while filled < buf.len() {
        let answer = ring.read(file, offset, (buf, filled), permit).await;
        let (returned, result) = answer.map_err(io::Error::other)?;
        buf = returned;
        match result {
            Ok(0) => return Ok((buf, Err(io::ErrorKind::UnexpectedEof.into()))),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok((buf, Err(error))),
        }
    }
    Ok((buf, Ok(())))
}

async fn fill_by_pread(
    file: &Arc<File>,
    offset: u64,
    (mut buf, filled): (BufMut, usize),
    permit: &Arc<OwnedSemaphorePermit>,
) -> io::Result<(BufMut, io::Result<()>)> {
    let (file, permit) = (Arc::clone(file), Arc::clone(permit));
    let work = move || {
        let result = file.read_exact_at(&mut buf[filled..], offset + filled as u64);
        drop(permit);
        (buf, result)
    };
    cenote_rt::blocking(work).await.map_err(io::Error::other)
}

#[cfg(test)]
mod tests;
