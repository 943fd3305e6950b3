//! A simulated disk far larger than memory: runs of the test pattern are stored as their seed.
//!
//!     sectors   0 ........ 255   256   257 ..... 512   513 ...
//!     extent    run of seed s1   raw   run of seed s2  nothing: zeros
//!
//! Contents are extents, sorted by their first sector. A written range that is a run of the
//! [`pattern`](crate::pattern) becomes one extent of a few words, whatever its length; other data
//! are stored as they are. An experiment that writes such data through the engine without
//! compression needs memory for its metadata and about forty bytes per record and leaf.
//!
//! Invariants
//! * S1  Extents do not overlap, and none is empty or all zeros.
//! * S2  The number of raw sectors is the sum over the raw extents.

use std::collections::BTreeMap;

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Result};

use crate::device::{check_range, check_span};
use crate::pattern::{self, SECTOR};
use crate::{Device, DeviceInfo};

/// Other data are stored in pieces of at most this many sectors, so that little is copied when a
/// part is overwritten.
const RAW_SECTORS_MAX: usize = 128;

/// Contents of an extent.
#[derive(Debug, Clone)]
enum Content {
    /// The run of a seed.
    Run(u64),
    /// Raw bytes.
    Raw(Box<[u8]>),
}

#[derive(Debug, Clone)]
struct Extent {
    sectors: u32,
    content: Content,
}

impl Extent {
    /// The part of `sectors` sectors that begins `skip` sectors after its start.
    fn part(&self, skip: u64, sectors: u32) -> Self {
        let content = match &self.content {
            Content::Run(seed) => Content::Run(pattern::skip(*seed, skip)),
            Content::Raw(bytes) => {
                let start = skip as usize * SECTOR;
                Content::Raw(bytes[start..start + sectors as usize * SECTOR].into())
            }
        };
        Self { sectors, content }
    }
}

#[derive(Debug, Default)]
struct Extents {
    by_start: BTreeMap<u64, Extent>,
    raw_sectors: u64,
}

impl Extents {
    fn insert(&mut self, start: u64, extent: Extent) {
        if let Content::Raw(_) = extent.content {
            self.raw_sectors += u64::from(extent.sectors);
        }
        // Checks S1.
        assert!(extent.sectors > 0, "an empty extent at sector {start}");
        let before = self.by_start.insert(start, extent);
        // Checks S1.
        assert!(before.is_none(), "two extents at sector {start}");
    }

    fn remove(&mut self, start: u64) -> Option<Extent> {
        let extent = self.by_start.remove(&start)?;
        if let Content::Raw(_) = extent.content {
            let left = self.raw_sectors.checked_sub(u64::from(extent.sectors));
            // Checks S2.
            self.raw_sectors = left.expect("a part of the sum");
        }
        Some(extent)
    }

    /// The extents that overlap `start..end`.
    fn touching(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Extent)> {
        let before = self.by_start.range(..start).next_back();
        let before = before.filter(|(at, extent)| **at + u64::from(extent.sectors) > start);
        before.into_iter().chain(self.by_start.range(start..end)).map(|(at, extent)| (*at, extent))
    }

    /// Fills `start..end` with zeros: extents that reach beyond it keep their other parts.
    fn clear(&mut self, start: u64, end: u64) {
        let touched: Vec<u64> = self.touching(start, end).map(|(at, _)| at).collect();
        for at in touched {
            let Some(extent) = self.remove(at) else { continue };
            let extent_end = at + u64::from(extent.sectors);
            if at < start {
                self.insert(at, extent.part(0, (start - at) as u32));
            }
            if extent_end > end {
                self.insert(end, extent.part(end - at, (extent_end - end) as u32));
            }
        }
    }

    /// Writes whole sectors.
    fn write(&mut self, start: u64, bytes: &[u8]) {
        self.clear(start, start + (bytes.len() / SECTOR) as u64);
        let mut done = 0;
        while done < bytes.len() {
            let (len, content) = recognize(&bytes[done..]);
            let at = start + (done / SECTOR) as u64;
            done += len;
            // S1: zeros are not stored.
            if !matches!(content, Content::Run(0)) {
                self.insert(at, Extent { sectors: (len / SECTOR) as u32, content });
            }
        }
    }

    fn read(&self, start: u64, bytes: &mut [u8]) {
        bytes.fill(0);
        let end = start + (bytes.len() / SECTOR) as u64;
        for (at, extent) in self.touching(start, end) {
            let (from, to) = (at.max(start), (at + u64::from(extent.sectors)).min(end));
            let target = &mut bytes[(from - start) as usize * SECTOR..];
            let target = &mut target[..(to - from) as usize * SECTOR];
            match &extent.content {
                Content::Run(seed) => {
                    pattern::fill(pattern::skip(*seed, from - at), target);
                }
                Content::Raw(raw) => {
                    let skip = (from - at) as usize * SECTOR;
                    target.copy_from_slice(&raw[skip..skip + target.len()]);
                }
            }
        }
    }
}

/// Recognizes the first extent of `bytes`: returns its length and its contents.
fn recognize(bytes: &[u8]) -> (usize, Content) {
    if let Some((seed, sectors)) = pattern::run_of(bytes) {
        return (sectors * SECTOR, Content::Run(seed));
    }
    let sectors = bytes.chunks(SECTOR).take(RAW_SECTORS_MAX);
    let len = sectors.take_while(|sector| pattern::run_of(sector).is_none()).count() * SECTOR;
    (len, Content::Raw(bytes[..len].into()))
}

/// A simulated disk.
#[derive(Debug)]
pub struct SimulatedDisk {
    info: DeviceInfo,
    extents: Mutex<Extents>,
}

/// Memory used by a simulated disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedUse {
    /// Number of extents.
    pub extents: u64,
    /// Bytes that are not runs of the pattern.
    pub raw_bytes: u64,
}

impl SimulatedDisk {
    /// Returns a disk of `size` zero bytes under the name `path`, with sectors of 512 bytes.
    pub fn new(path: impl Into<String>, size: u64) -> Self {
        Self {
            info: DeviceInfo::of_memory(path, size),
            extents: Mutex::with_default(Rank::SimulatedExtents),
        }
    }

    /// Memory in use.
    pub fn used(&self) -> SimulatedUse {
        let extents = self.extents.lock();
        SimulatedUse {
            extents: extents.by_start.len() as u64,
            raw_bytes: extents.raw_sectors * SECTOR as u64,
        }
    }

    /// Refuses I/O beyond the end or not in whole sectors.
    fn check(&self, offset: u64, len: u64) -> Result<()> {
        check_span(&self.info, offset, len)?;
        let sector = SECTOR as u64;
        if offset.is_multiple_of(sector) && len.is_multiple_of(sector) {
            return Ok(());
        }
        let cause = PartOfSector { offset, len };
        Err(Error::new(Kind::Invalid, cause).on_device(&self.info.path, offset))
    }
}

/// An I/O that is not in whole sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {offset:#x} are not whole sectors")]
pub struct PartOfSector {
    /// First byte.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

impl Device for SimulatedDisk {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            check_range(&self.info, offset, buf.len())?;
            // Reads of partial sectors are allowed: labels are read in parts.
            let sector = SECTOR as u64;
            let (start, skip) = (offset / sector, (offset % sector) as usize);
            let extents = self.extents.lock();
            if skip == 0 && buf.len().is_multiple_of(SECTOR) {
                extents.read(start, &mut buf);
            } else {
                let mut whole = vec![0; (skip + buf.len()).next_multiple_of(SECTOR)];
                extents.read(start, &mut whole);
                let len = buf.len();
                buf.copy_from_slice(&whole[skip..skip + len]);
            }
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let len: usize = parts.iter().map(|part| part.len()).sum();
            self.check(offset, len as u64)?;
            let has_whole_parts = parts.iter().all(|part| part.len().is_multiple_of(SECTOR));
            let parts =
                if has_whole_parts { parts } else { vec![crate::device::joined(&parts).freeze()] };
            let mut extents = self.extents.lock();
            let mut at = offset / SECTOR as u64;
            for part in parts {
                extents.write(at, &part);
                at += (part.len() / SECTOR) as u64;
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.check(offset, len)?;
            let mut extents = self.extents.lock();
            extents.clear(offset / SECTOR as u64, (offset + len) / SECTOR as u64);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run<T>(work: impl Future<Output = Result<T>>) -> T {
        cenote_rt::block_on(1, work).expect("runtime").expect("no error")
    }

    #[test]
    fn behaves_as_a_vector_of_bytes() {
        const SECTORS: u64 = 600;
        let mut rng = cenote_rt::Rng::seeded(3);
        let disk = SimulatedDisk::new("sim", SECTORS * 512);
        let mut model = vec![0; SECTORS as usize * SECTOR];
        for step in 0..400 {
            let start = rng.below(SECTORS);
            let count = 1 + rng.below((SECTORS - start).min(200));
            let range = start as usize * SECTOR..(start + count) as usize * SECTOR;
            let target = &mut model[range.clone()];
            match rng.below(4) {
                0 => target.fill(0),
                1 => rng.fill(target),
                2 => {
                    pattern::fill(rng.next_u64(), target);
                }
                _ => {
                    for sector in target.chunks_mut(SECTOR * 3) {
                        pattern::fill(rng.next_u64(), sector);
                    }
                }
            }
            if target.iter().all(|byte| *byte == 0) {
                run(disk.discard(range.start as u64, range.len() as u64));
            } else {
                let cut = rng.below(range.len() as u64) as usize;
                let parts = [&target[..cut], &target[cut..]].map(|part| Buf::from(part.to_vec()));
                run(disk.write(range.start as u64, parts.into()));
            }
            let read = run(disk.read(0, BufMut::zeroed(model.len())));
            assert!(read[..] == model[..], "step {step}");
        }
        let read = run(disk.read(700, BufMut::zeroed(1000)));
        assert!(read[..] == model[700..1700]);
    }

    #[test]
    fn records_of_the_pattern_cost_an_extent_each() {
        let disk = SimulatedDisk::new("sim", 700 << 30);
        let mut rng = cenote_rt::Rng::seeded(9);
        let mut bytes = vec![0; 128 << 10];
        for record in 0..500_u64 {
            pattern::fill(rng.next_u64(), &mut bytes);
            run(disk.write(record << 30, vec![Buf::from(bytes.clone())]));
        }
        assert_eq!(disk.used(), SimulatedUse { extents: 500, raw_bytes: 0 });
        run(disk.write(5 << 30, vec![Buf::from(vec![7; 512])]));
        assert_eq!(disk.used(), SimulatedUse { extents: 501, raw_bytes: 512 });
        let error = cenote_rt::block_on(1, disk.write(1, vec![Buf::from(vec![7; 512])]));
        assert_eq!(error.expect("runtime").expect_err("misaligned").kind(), Kind::Invalid);
    }
}
