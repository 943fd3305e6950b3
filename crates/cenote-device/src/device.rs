//! The trait of a leaf device.

use std::fmt::Debug;

use cenote_rt::{BoxFuture, BufMut, Error, Kind, Result};

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
}

/// A leaf device. Offsets are bytes from its start, labels included.
pub trait Device: Send + Sync + Debug {
    /// What is known of it.
    fn info(&self) -> &DeviceInfo;

    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// `Kind::Io` with path and offset, also when the range leaves the device.
    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>>;
}

/// A read that leaves the device.
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

/// Refuses a read that leaves the device described by `info`.
pub(crate) fn check_range(info: &DeviceInfo, offset: u64, len: usize) -> Result<()> {
    match offset.checked_add(len as u64) {
        Some(end) if end <= info.size => Ok(()),
        _ => Err(Error::new(Kind::Io, OutOfRange { offset, len, size: info.size })
            .on_device(&info.path, offset)),
    }
}
