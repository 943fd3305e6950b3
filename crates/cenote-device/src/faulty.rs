//! A device that fails as told: errors and lies, in ranges or strewn by a seed.
//!
//! What goes wrong depends on the sector and the seed only, never on the order of reads, so a
//! test that failed once fails again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_rt::{BoxFuture, BufMut, Error, Kind, Result};

use crate::{Device, DeviceInfo};

const SECTOR: u64 = 512;

/// How a read goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The read fails.
    Eio,
    /// The read succeeds, and every byte inside the range is changed, by the seed.
    Lie,
}

/// The cause of an injected error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("injected I/O error in {len} bytes at {offset:#x}")]
pub struct InjectedFault {
    /// First byte of the read.
    pub offset: u64,
    /// Length of the read.
    pub len: usize,
}

/// A device with faults.
#[derive(Debug)]
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    seed: u64,
    ranges: Vec<(Range<u64>, Fault)>,
    strewn: Vec<(u64, Fault)>,
    reads: AtomicU64,
    bytes: AtomicU64,
}

impl FaultyDevice {
    /// `inner`, without faults so far.
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> Self {
        let (ranges, strewn) = (Vec::new(), Vec::new());
        Self { inner, seed, ranges, strewn, reads: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    /// Adds a fault in a range of bytes.
    #[must_use]
    pub fn with_range(mut self, range: Range<u64>, fault: Fault) -> Self {
        self.ranges.push((range, fault));
        self
    }

    /// Adds a fault in about `per_million` of a million sectors of 512 bytes, chosen by the seed.
    #[must_use]
    pub fn with_strewn(mut self, per_million: u64, fault: Fault) -> Self {
        self.strewn.push((per_million, fault));
        self
    }

    /// Reads and bytes asked for so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.reads.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// The faults that touch the read of `len` bytes at `offset`, clipped to it.
    fn faults(&self, offset: u64, len: u64) -> Vec<(Range<u64>, Fault)> {
        let end = offset.saturating_add(len);
        let clip = |range: &Range<u64>| range.start.max(offset)..range.end.min(end);
        let mut faults: Vec<_> = self.ranges.iter().map(|(r, fault)| (clip(r), *fault)).collect();
        for (index, (per_million, fault)) in self.strewn.iter().enumerate() {
            for sector in offset / SECTOR..end.div_ceil(SECTOR) {
                if mix(self.seed ^ (index as u64) << 56 ^ sector) % 1_000_000 < *per_million {
                    faults.push((clip(&(sector * SECTOR..(sector + 1) * SECTOR)), *fault));
                }
            }
        }
        faults.retain(|(range, _)| range.start < range.end);
        faults
    }
}

/// A well-spread function of one word (splitmix64's finisher).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl Device for FaultyDevice {
    fn info(&self) -> &DeviceInfo {
        self.inner.info()
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            let len = buf.len();
            self.reads.fetch_add(1, Ordering::Relaxed);
            self.bytes.fetch_add(len as u64, Ordering::Relaxed);
            let faults = self.faults(offset, len as u64);
            if faults.iter().any(|(_, fault)| *fault == Fault::Eio) {
                return Err(Error::new(Kind::Io, InjectedFault { offset, len })
                    .on_device(&self.info().path, offset));
            }
            let mut buf = self.inner.read(offset, buf).await?;
            for at in faults.into_iter().flat_map(|(range, _)| range) {
                // Never zero: a lie always changes the byte.
                buf[(at - offset) as usize] ^= (mix(self.seed ^ at) as u8) | 1;
            }
            Ok(buf)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn faults_stay_in_their_ranges_and_repeat() {
        let memory = Arc::new(MemoryDevice::new("mem", vec![0; 8192]));
        let device = FaultyDevice::new(memory, 7)
            .with_range(10..12, Fault::Lie)
            .with_range(4096..4097, Fault::Eio);
        let read = |offset, len| {
            cenote_rt::block_on(1, device.read(offset, BufMut::zeroed(len))).expect("runtime")
        };
        let lie = read(8, 6).expect("a lie is no error");
        assert_eq!([lie[0], lie[1], lie[4], lie[5]], [0; 4]);
        assert!(lie[2] != 0 && lie[3] != 0);
        assert_eq!(read(8, 6).expect("again")[..], lie[..]);
        let error = read(4000, 200).expect_err("touches the bad byte");
        assert_eq!(error.cause(), Some(&InjectedFault { offset: 4000, len: 200 }));
        assert!(read(4097, 100).is_ok());
        assert_eq!(device.counts(), (4, 312));
    }

    #[test]
    fn strewn_faults_follow_the_seed() {
        let memory = Arc::new(MemoryDevice::new("mem", vec![0; 1 << 20]));
        let bad = |seed| {
            let device = FaultyDevice::new(memory.clone(), seed).with_strewn(100_000, Fault::Lie);
            let read = device.read(0, BufMut::zeroed(1 << 20));
            let data = cenote_rt::block_on(1, read).expect("runtime").expect("lies only");
            data.chunks(512).map(|sector| sector.iter().any(|byte| *byte != 0)).collect::<Vec<_>>()
        };
        let count = bad(1).iter().filter(|bad| **bad).count();
        assert!((120..300).contains(&count), "{count} of 2048");
        assert_eq!(bad(1), bad(1));
        assert_ne!(bad(1), bad(2));
    }
}
