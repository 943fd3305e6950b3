//! A device that injects faults: errors and wrong data, in ranges or scattered by a seed.
//!
//! Faults depend only on the sector and the seed, never on the order of I/Os, so a failing test
//! fails again.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Result};

use crate::device::joined;
use crate::{Device, DeviceInfo};

const SECTOR: u64 = 512;

/// Fault of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The read fails.
    Eio,
    /// The read succeeds, and every byte inside the range is changed, by the seed.
    Lie,
}

/// Fault of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFault {
    /// The write fails, and nothing is written.
    Eio,
    /// The write succeeds, and nothing is written.
    Lost,
    /// The write succeeds, but only its first sectors are written; the seed decides how many.
    Torn,
    /// The write succeeds, but its bytes are written to another place: to this offset, or to one
    /// that the seed decides.
    Misdirected(Option<u64>),
}

/// The cause of an injected error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("injected I/O error in {len} bytes at {offset:#x}")]
pub struct InjectedFault {
    /// First byte of the I/O.
    pub offset: u64,
    /// Length of the I/O.
    pub len: usize,
}

/// Faults of one kind of I/O: in ranges of bytes, and scattered over sectors.
#[derive(Debug)]
struct Faults<F> {
    seed: u64,
    ranges: Vec<(Range<u64>, F)>,
    strewn: Vec<(u64, F)>,
}

impl<F: Copy> Faults<F> {
    fn new(seed: u64) -> Self {
        Self { seed, ranges: Vec::new(), strewn: Vec::new() }
    }

    /// The faults that overlap the I/O of `len` bytes at `offset`, clipped to it.
    fn touching(&self, offset: u64, len: u64) -> Vec<(Range<u64>, F)> {
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

/// A device with injected faults.
#[derive(Debug)]
pub struct FaultyDevice {
    inner: Arc<dyn Device>,
    seed: u64,
    reads: Faults<Fault>,
    writes: Faults<WriteFault>,
    is_offline: AtomicBool,
    flushes_fail: AtomicBool,
    /// First byte from which writes fail.
    writes_fail_from: AtomicU64,
    /// Remaining size of the device; I/O beyond it fails.
    size: AtomicU64,
    read_count: AtomicU64,
    read_bytes: AtomicU64,
}

impl FaultyDevice {
    /// Wraps `inner`, without faults at first.
    pub fn new(inner: Arc<dyn Device>, seed: u64) -> Self {
        Self {
            size: AtomicU64::new(inner.info().size),
            inner,
            seed,
            reads: Faults::new(seed),
            // Other sectors than for reads.
            writes: Faults::new(mix(!seed)),
            is_offline: AtomicBool::new(false),
            flushes_fail: AtomicBool::new(false),
            writes_fail_from: AtomicU64::new(u64::MAX),
            read_count: AtomicU64::new(0),
            read_bytes: AtomicU64::new(0),
        }
    }

    /// Adds a read fault in a range of bytes.
    #[must_use]
    pub fn with_range(mut self, range: Range<u64>, fault: Fault) -> Self {
        self.reads.ranges.push((range, fault));
        self
    }

    /// Adds a read fault in about `per_million` of a million sectors of 512 bytes, chosen by the
    /// seed.
    #[must_use]
    pub fn with_strewn(mut self, per_million: u64, fault: Fault) -> Self {
        self.reads.strewn.push((per_million, fault));
        self
    }

    /// Adds a fault of writes that overlap a range of bytes.
    #[must_use]
    pub fn with_write_range(mut self, range: Range<u64>, fault: WriteFault) -> Self {
        self.writes.ranges.push((range, fault));
        self
    }

    /// Takes the device offline, so that every request fails, or back online.
    pub fn set_offline(&self, is_offline: bool) {
        self.is_offline.store(is_offline, Ordering::SeqCst);
    }

    /// Makes every flush fail, or lets all succeed.
    pub fn set_failing_flushes(&self, fail: bool) {
        self.flushes_fail.store(fail, Ordering::SeqCst);
    }

    /// Makes every write beyond byte `from` fail, like a file on a full disk; `None` lets all
    /// succeed.
    pub fn set_failing_writes(&self, from: Option<u64>) {
        self.writes_fail_from.store(from.unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    /// Changes the size of the device while it is in use: I/O beyond `size` bytes fails.
    pub fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::SeqCst);
    }

    /// Whether an I/O reaches beyond the remaining size.
    fn is_beyond(&self, offset: u64, len: u64) -> bool {
        offset.saturating_add(len) > self.size.load(Ordering::SeqCst)
    }

    /// Number of reads and of bytes requested so far.
    pub fn counts(&self) -> (u64, u64) {
        (self.read_count.load(Ordering::Relaxed), self.read_bytes.load(Ordering::Relaxed))
    }

    fn fail<T>(&self, offset: u64, len: usize) -> Result<T> {
        let error = Error::new(Kind::Io, InjectedFault { offset, len });
        Err(error.on_device(&self.info().path, offset))
    }

    fn is_offline(&self) -> bool {
        self.is_offline.load(Ordering::SeqCst)
    }
}

/// Mixes one word (splitmix64's finisher).
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

    fn current_size(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async {
            if self.is_offline() { self.fail(0, 0) } else { Ok(self.size.load(Ordering::SeqCst)) }
        })
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            let len = buf.len();
            self.read_count.fetch_add(1, Ordering::Relaxed);
            self.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
            let faults = self.reads.touching(offset, len as u64);
            let is_out = self.is_offline() || self.is_beyond(offset, len as u64);
            if is_out || faults.iter().any(|(_, fault)| *fault == Fault::Eio) {
                return self.fail(offset, len);
            }
            let mut buf = self.inner.read(offset, buf).await?;
            for at in faults.into_iter().flat_map(|(range, _)| range) {
                // Never zero: the byte always changes.
                buf[(at - offset) as usize] ^= (mix(self.seed ^ at) as u8) | 1;
            }
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let len = parts.iter().map(|part| part.len()).sum();
            let faults = self.writes.touching(offset, len as u64);
            let has = |wanted| faults.iter().any(|(_, fault)| *fault == wanted);
            let refused_from = self.writes_fail_from.load(Ordering::SeqCst);
            let is_refused = offset.saturating_add(len as u64) > refused_from;
            let is_out = self.is_offline() || self.is_beyond(offset, len as u64);
            if is_out || is_refused || has(WriteFault::Eio) {
                return self.fail(offset, len);
            }
            if has(WriteFault::Lost) {
                return Ok(());
            }
            let misdirected = faults.iter().find_map(|(_, fault)| match fault {
                WriteFault::Misdirected(target) => Some(*target),
                _ => None,
            });
            if let Some(target) = misdirected {
                let sectors = self.info().size.saturating_sub(len as u64) / SECTOR;
                let drawn = mix(self.seed ^ offset) % sectors.max(1) * SECTOR;
                return self.inner.write(target.unwrap_or(drawn), parts).await;
            }
            if !has(WriteFault::Torn) {
                return self.inner.write(offset, parts).await;
            }
            let sectors = (len as u64).div_ceil(SECTOR).max(1);
            let mut whole = joined(&parts);
            whole.truncate((mix(self.seed ^ offset) % sectors * SECTOR) as usize);
            self.inner.write(offset, vec![whole.freeze()]).await
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<()>> {
        if self.is_offline() || self.flushes_fail.load(Ordering::SeqCst) {
            return Box::pin(async { self.fail(0, 0) });
        }
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        if self.is_offline() {
            return Box::pin(async move { self.fail(offset, 0) });
        }
        self.inner.discard(offset, len)
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

    #[test]
    fn misdirected_writes_go_to_another_place() {
        let memory = Arc::new(MemoryDevice::new("mem", vec![0; 1 << 20]));
        let device = FaultyDevice::new(memory.clone(), 7)
            .with_write_range(0..1, WriteFault::Misdirected(Some(8192)))
            .with_write_range(4096..4097, WriteFault::Misdirected(None));
        for offset in [0, 4096] {
            let parts = vec![Buf::from(vec![1; 512])];
            cenote_rt::block_on(1, device.write(offset, parts)).expect("runtime").expect("says so");
        }
        memory.edit(|bytes| {
            let written: Vec<usize> = (0..2048).filter(|at| bytes[at * 512] == 1).collect();
            assert_eq!(written.len(), 2, "{written:?}");
            assert!(written.contains(&16) && !written.contains(&0) && !written.contains(&8));
        });
    }

    #[test]
    fn writes_fail_get_lost_or_tear() {
        let memory = Arc::new(MemoryDevice::new("mem", vec![0; 8192]));
        let device = FaultyDevice::new(memory.clone(), 7)
            .with_write_range(0..1, WriteFault::Eio)
            .with_write_range(2048..2049, WriteFault::Lost)
            .with_write_range(4096..4097, WriteFault::Torn);
        let write = |offset, len| {
            let parts = vec![Buf::from(vec![1; len])];
            cenote_rt::block_on(1, device.write(offset, parts)).expect("runtime")
        };
        let error = write(0, 512).expect_err("touches the bad byte");
        assert_eq!(error.cause(), Some(&InjectedFault { offset: 0, len: 512 }));
        write(1024, 2048).expect("says so");
        write(512, 512).expect("no fault");
        write(4096, 4096).expect("says so");
        device.set_offline(true);
        write(512, 512).expect_err("away");
        cenote_rt::block_on(1, device.flush()).expect("runtime").expect_err("away");
        device.set_offline(false);
        memory.edit(|bytes| {
            let written: Vec<usize> = (0..16).filter(|sector| bytes[sector * 512] == 1).collect();
            assert_eq!(written[0], 1);
            let torn = written.len() - 1;
            assert!(written[1..].iter().copied().eq(8..8 + torn) && torn < 8, "{written:?}");
        });
    }
}
