//! A device whose bytes are in memory: tests, and images unpacked on the fly.

use std::sync::{PoisonError, RwLock};

use cenote_rt::{BoxFuture, BufMut, Result};

use crate::device::check_range;
use crate::{Device, DeviceInfo};

/// A device in memory. Answers at once and never fails inside its range.
#[derive(Debug)]
pub struct MemoryDevice {
    info: DeviceInfo,
    bytes: RwLock<Vec<u8>>,
}

impl MemoryDevice {
    /// A device of `bytes` that calls itself `path`, with sectors of 512 bytes.
    pub fn new(path: impl Into<String>, bytes: Vec<u8>) -> Self {
        let info = DeviceInfo {
            path: path.into(),
            size: bytes.len() as u64,
            logical_ashift: 9,
            physical_ashift: 9,
            is_block_device: false,
        };
        Self { info, bytes: RwLock::new(bytes) }
    }

    /// Changes its bytes in place, as no [`Device`] can: the size stays.
    pub fn edit(&self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.bytes.write().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Device for MemoryDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            check_range(&self.info, offset, buf.len())?;
            let start = offset as usize;
            let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
            let end = start + buf.len();
            buf.copy_from_slice(&bytes[start..end]);
            Ok(buf)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OutOfRange;

    #[test]
    fn reads_inside_and_refuses_outside() {
        let device = MemoryDevice::new("mem", (0..=255).collect());
        device.edit(|bytes| bytes[7] = 0xaa);
        let read = |offset, len| {
            cenote_rt::block_on(1, device.read(offset, BufMut::zeroed(len))).expect("runtime")
        };
        assert_eq!(&read(6, 3).expect("inside")[..], [6, 0xaa, 8]);
        for (offset, len) in [(255, 2), (256, 1), (u64::MAX, 1)] {
            let error = read(offset, len).expect_err("outside");
            assert_eq!(error.cause(), Some(&OutOfRange { offset, len, size: 256 }));
        }
    }
}
