//! A simulated disk that answers at once, with sparse contents.

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Result};

use crate::device::{check_range, check_span};
use crate::extents::Extents;
use crate::pattern::SECTOR;
use crate::{Device, DeviceInfo};

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
        SimulatedUse { extents: extents.len(), raw_bytes: extents.raw_bytes() }
    }
}

/// Refuses I/O beyond the end of the device, or not in whole sectors.
pub(crate) fn check_sectors(info: &DeviceInfo, offset: u64, len: u64) -> Result<()> {
    check_span(info, offset, len)?;
    let sector = SECTOR as u64;
    if offset.is_multiple_of(sector) && len.is_multiple_of(sector) {
        return Ok(());
    }
    let cause = PartOfSector { offset, len };
    Err(Error::new(Kind::Invalid, cause).on_device(&info.path, offset))
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

/// A sector that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("sector {sector} is unreadable")]
pub struct UnreadableSector {
    /// Number of the sector, of 512 bytes.
    pub sector: u64,
}

impl Device for SimulatedDisk {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            check_range(&self.info, offset, buf.len())?;
            // Reads of partial sectors are allowed: labels are read in parts.
            let read = self.extents.lock().read_bytes(offset, &mut buf);
            let unreadable = |sector| Error::new(Kind::Io, UnreadableSector { sector });
            read.map_err(|sector| unreadable(sector).on_device(&self.info.path, offset))?;
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let len: usize = parts.iter().map(|part| part.len()).sum();
            check_sectors(&self.info, offset, len as u64)?;
            let mut extents = self.extents.lock();
            let (start, end) = (offset / SECTOR as u64, (offset + len as u64) / SECTOR as u64);
            extents.clear(start, end);
            extents.fill_parts(start, &parts);
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            check_sectors(&self.info, offset, len)?;
            let mut extents = self.extents.lock();
            extents.clear(offset / SECTOR as u64, (offset + len) / SECTOR as u64);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pattern;

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
