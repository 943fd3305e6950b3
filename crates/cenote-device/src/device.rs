//! The trait of a leaf device.

use std::fmt::Debug;
use std::sync::Arc;

use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Result};

/// How a device is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// For reads only: no lock is taken and nothing is ever written.
    ReadOnly,
    /// For reads and writes: the device is first locked against other processes.
    Exclusive,
}

/// Properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Path by which it was opened.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Log2 of the logical sector size.
    pub logical_ashift: u8,
    /// Log2 of the physical sector size.
    pub physical_ashift: u8,
    /// Whether it is a block device (`disk`) and not a regular file (`file`).
    pub is_block_device: bool,
    /// Whether it is a rotating disk.
    pub is_rotational: bool,
}

impl DeviceInfo {
    /// Properties of a device in memory, with sectors of 512 bytes.
    pub(crate) fn of_memory(path: impl Into<String>, size: u64) -> Self {
        Self {
            path: path.into(),
            size,
            logical_ashift: 9,
            physical_ashift: 9,
            is_block_device: false,
            is_rotational: false,
        }
    }
}

/// A leaf device. Offsets are bytes from its start, labels included.
///
/// There is no write that is durable when it returns (FUA): callers write and then flush. Where
/// durability matters (labels, uberblocks, intent log blocks) several writes are in flight at once,
/// and one flush covers them all; FUA writes would each wait for the medium separately, and a
/// device without FUA, such as any file, would flush for each.
pub trait Device: Send + Sync + Debug {
    /// Properties of the device.
    fn info(&self) -> &DeviceInfo;

    /// Returns its size now, in bytes: less than in [`info`](Self::info) if it became shorter while
    /// it was open.
    ///
    /// # Errors
    /// `Kind::Io` with the path.
    fn current_size(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async { Ok(self.info().size) })
    }

    /// Returns another handle of the device with its size now, if it has become longer since this
    /// one was opened. Both handles are one open device, with one lock.
    ///
    /// # Errors
    /// `Kind::Io` with the path.
    fn grown(&self) -> BoxFuture<'_, Result<Option<Arc<dyn Device>>>> {
        Box::pin(async { Ok(None) })
    }

    /// Whether its path leads to this device: false once a file was deleted or replaced, and what
    /// is written would be lost when it is closed. True for a device without a path.
    fn is_at_its_path(&self) -> BoxFuture<'_, bool> {
        Box::pin(async { true })
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `Kind::Io` with path and offset, also when the range leaves the device.
    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>>;

    /// Writes `parts` one after the other from `offset` on: all of them, or returns an error. The
    /// bytes are durable only after a [`Device::flush`] that began later.
    ///
    /// # Errors
    /// `Kind::ReadOnly` on a device opened for reading; else as for `read`.
    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        let len = parts.iter().map(|part| part.len()).sum();
        Box::pin(async move {
            check_range(self.info(), offset, len)?;
            Err(Error::new(Kind::ReadOnly, ReadOnly).on_device(&self.info().path, offset))
        })
    }

    /// Makes every write that has returned durable.
    ///
    /// # Errors
    /// `Kind::Io` with the path.
    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async { Ok(()) })
    }

    /// Discards a range (TRIM): its contents are undefined afterwards.
    ///
    /// # Errors
    /// `Kind::Unsupported` if the device does not support it.
    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        let _ = len;
        let error = Error::new(Kind::Unsupported, NoDiscard);
        Box::pin(async move { Err(error.on_device(&self.info().path, offset)) })
    }

    /// Waits until no I/O is in flight, including I/O whose caller was dropped. For a device that
    /// is about to be dropped and gets no new I/O: afterwards no task keeps it open.
    fn settle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// A write to a device that was opened for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device is open for reading only")]
pub struct ReadOnly;

/// A discard on a device that does not support it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device does not support discard")]
pub struct NoDiscard;

/// An I/O beyond the end of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset:#x} reach beyond the end of the device of {size} bytes")]
pub struct OutOfRange {
    /// First byte requested.
    pub offset: u64,
    /// Length requested.
    pub len: usize,
    /// Size of the device.
    pub size: u64,
}

/// Refuses an I/O beyond the end of the device described by `info`.
pub(crate) fn check_range(info: &DeviceInfo, offset: u64, len: usize) -> Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= info.size => Ok(()),
        _ => Err(Error::new(Kind::Io, OutOfRange { offset, len, size: info.size })
            .on_device(&info.path, offset)),
    }
}

/// Like [`check_range`], with a 64-bit length.
pub(crate) fn check_span(info: &DeviceInfo, offset: u64, len: u64) -> Result<()> {
    check_range(info, offset, usize::try_from(len).unwrap_or(usize::MAX))
}

/// Concatenates `parts` in one buffer.
pub(crate) fn joined(parts: &[Buf]) -> BufMut {
    let mut whole = BufMut::for_filling(parts.iter().map(|part| part.len()).sum());
    let mut at = 0;
    for part in parts {
        whole[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    whole
}
