//! The trait of a leaf device.

use std::fmt::Debug;

use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Result};

/// How a device is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// Reads only: no lock is taken and nothing is ever written.
    ReadOnly,
    /// Reads and writes: the device is locked against every other process first.
    Exclusive,
}

/// What is known of a device without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Path it was opened by.
    pub path: String,
    /// Size, bytes.
    pub size: u64,
    /// Log2 of the smallest I/O.
    pub logical_ashift: u8,
    /// Log2 of the sector below it.
    pub physical_ashift: u8,
    /// Whether it is a block device (`disk`) and not a regular file (`file`).
    pub is_block_device: bool,
    /// Whether it has to move a head to get somewhere else.
    pub is_rotational: bool,
}

impl DeviceInfo {
    /// A device in memory, with sectors of 512 bytes.
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
/// There is no write that is durable when it returns (FUA): who needs that writes and flushes.
/// Wherever it matters (labels, uberblocks, blocks of intent logs) several writes are under way at
/// once, and one flush behind them covers all; as writes of their own kind each would wait for the
/// medium by itself, and a device without the command, as every file, would flush for each.
pub trait Device: Send + Sync + Debug {
    /// What is known of it.
    fn info(&self) -> &DeviceInfo;

    /// Returns its size now, in bytes: less than in [`info`](Self::info) if it became shorter while
    /// it was open.
    ///
    /// # Errors
    /// `Kind::Io` with the path.
    fn current_size(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async { Ok(self.info().size) })
    }

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `Kind::Io` with path and offset, also when the range leaves the device.
    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>>;

    /// Writes `parts` one after the other from `offset` on: all of them or an error. What was
    /// written is durable only after a [`Device::flush`] that began later.
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

    /// Tells the device that a range holds nothing of value. Reading it gives anything.
    ///
    /// # Errors
    /// `Kind::Unsupported` where the device has no such request.
    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        let _ = len;
        let error = Error::new(Kind::Unsupported, NoDiscard);
        Box::pin(async move { Err(error.on_device(&self.info().path, offset)) })
    }

    /// Waits until no I/O is in flight, also none whose caller is gone. For a device that is about
    /// to be dropped and gets no new I/O: then nothing keeps it open.
    fn settle(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }
}

/// A write to a device that was opened for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device is open for reading only")]
pub struct ReadOnly;

/// A discard on a device that has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the device has no discard")]
pub struct NoDiscard;

/// An I/O that leaves the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset:#x} leave the device of {size} bytes")]
pub struct OutOfRange {
    /// First byte asked for.
    pub offset: u64,
    /// Bytes asked for.
    pub len: usize,
    /// Bytes there are.
    pub size: u64,
}

/// Refuses an I/O that leaves the device described by `info`.
pub(crate) fn check_range(info: &DeviceInfo, offset: u64, len: usize) -> Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= info.size => Ok(()),
        _ => Err(Error::new(Kind::Io, OutOfRange { offset, len, size: info.size })
            .on_device(&info.path, offset)),
    }
}

/// The same for a range that is in no buffer.
pub(crate) fn check_span(info: &DeviceInfo, offset: u64, len: u64) -> Result<()> {
    check_range(info, offset, usize::try_from(len).unwrap_or(usize::MAX))
}

/// The bytes of `parts` in one buffer.
pub(crate) fn joined(parts: &[Buf]) -> BufMut {
    let mut whole = BufMut::for_filling(parts.iter().map(|part| part.len()).sum());
    let mut at = 0;
    for part in parts {
        whole[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
    whole
}
