//! A device whose bytes are in memory, for tests and unpacked images.

use cenote_rt::lock::{Rank, RwLock};
use cenote_rt::{BoxFuture, Buf, BufMut, Result};

use crate::device::{check_range, check_span};
use crate::{Device, DeviceInfo};

/// A device in memory. Answers at once and never fails inside its range.
#[derive(Debug)]
pub struct MemoryDevice {
    info: DeviceInfo,
    bytes: RwLock<Vec<u8>>,
}

impl MemoryDevice {
    /// Returns a device of `bytes` under the name `path`, with sectors of 512 bytes.
    pub fn new(path: impl Into<String>, bytes: Vec<u8>) -> Self {
        let info = DeviceInfo::of_memory(path, bytes.len() as u64);
        Self { info, bytes: RwLock::new(Rank::MemoryBytes, bytes) }
    }

    /// Returns a copy of its bytes.
    pub fn snapshot(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }

    /// Changes its bytes in place, bypassing the device's requests; the size stays.
    pub fn edit(&self, change: impl FnOnce(&mut [u8])) {
        change(&mut self.bytes.write());
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
            let bytes = self.bytes.read();
            let end = start + buf.len();
            buf.copy_from_slice(&bytes[start..end]);
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            check_range(&self.info, offset, parts.iter().map(|part| part.len()).sum())?;
            let mut bytes = self.bytes.write();
            let mut start = offset as usize;
            for part in parts {
                bytes[start..start + part.len()].copy_from_slice(&part);
                start += part.len();
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            check_span(&self.info, offset, len)?;
            let mut bytes = self.bytes.write();
            bytes[offset as usize..(offset + len) as usize].fill(0);
            Ok(())
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

    #[test]
    fn parts_are_written_one_after_the_other_or_not_at_all() {
        let device = MemoryDevice::new("mem", vec![9; 8]);
        let run = |work| cenote_rt::block_on(1, work).expect("runtime");
        let parts = |texts: &[&str]| -> Vec<Buf> {
            texts.iter().map(|text| Buf::from(text.as_bytes().to_vec())).collect()
        };
        run(device.write(2, parts(&["ab", "", "c"]))).expect("inside");
        run(device.write(6, parts(&["xy", "z"]))).expect_err("one byte too long");
        run(device.discard(7, 1)).expect("inside");
        run(device.discard(7, 2)).expect_err("outside");
        run(device.flush()).expect("nothing to do");
        device.edit(|bytes| assert_eq!(bytes, [9, 9, b'a', b'b', b'c', 9, 9, 0]));
    }
}
