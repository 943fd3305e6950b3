//! Damage without copies: an overlay of changed sectors over an image that is never written.
//!
//!     Overlay         the differences: sectors of 512 bytes, and perhaps where the device ends
//!     OverlayDevice   the device that reads through it
//!
//! Thousands of cases then need space only for their changes, and share the page cache of one
//! image.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use cenote_device::{Device, DeviceInfo, OutOfRange};
use cenote_rt::{BoxFuture, BufMut, Error, Kind, Result};

use crate::damage::{Damage, Medium, SECTOR_BYTES};

const SECTOR: usize = SECTOR_BYTES as usize;

/// The differences from an image.
#[derive(Debug, Clone, Default)]
pub struct Overlay {
    size: u64,
    sectors: BTreeMap<u64, Box<[u8; SECTOR]>>,
}

impl Overlay {
    /// The overlay that makes `image` look as if all of `damage` had been done to it, in order.
    pub fn new(image: &Path, damage: &[Damage]) -> Self {
        let fail = |error: std::io::Error| -> ! { panic!("{}: {error}", image.display()) };
        let file = File::open(image).unwrap_or_else(|error| fail(error));
        let size = file.metadata().unwrap_or_else(|error| fail(error)).len();
        let mut drawing = Drawing { file: &file, overlay: Self { size, ..Self::default() } };
        for damage in damage {
            damage.apply_on(&mut drawing).unwrap_or_else(|error| fail(error));
        }
        drawing.overlay
    }

    /// Where the device ends.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The sectors that were written, by their bytes on the device.
    pub fn sectors(&self) -> impl Iterator<Item = u64> + '_ {
        self.sectors.keys().map(|sector| sector * SECTOR_BYTES)
    }

    /// Replaces those parts of `bytes`, read from the image at `offset`, that the overlay has.
    fn patch(&self, offset: u64, bytes: &mut [u8]) {
        let end = offset + bytes.len() as u64;
        for (sector, content) in
            self.sectors.range(offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES))
        {
            let at = sector * SECTOR_BYTES;
            let (from, to) = (at.max(offset), (at + SECTOR_BYTES).min(end));
            let source = &content[(from - at) as usize..(to - at) as usize];
            bytes[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
        }
    }
}

/// An overlay while damage is applied to it.
struct Drawing<'a> {
    file: &'a File,
    overlay: Overlay,
}

impl Medium for Drawing<'_> {
    fn size(&self) -> std::io::Result<u64> {
        Ok(self.overlay.size)
    }

    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
        self.file.read_exact_at(bytes, offset)?;
        self.overlay.patch(offset, bytes);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        let end = offset + bytes.len() as u64;
        for sector in offset / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES) {
            let at = sector * SECTOR_BYTES;
            let mut content = Box::new([0; SECTOR]);
            // The last sector of an image may be cut.
            let len = SECTOR_BYTES.min(self.file.metadata()?.len().saturating_sub(at)) as usize;
            self.read_at(at, &mut content[..len])?;
            let (from, to) = (at.max(offset), (at + SECTOR_BYTES).min(end));
            content[(from - at) as usize..(to - at) as usize]
                .copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
            self.overlay.sectors.insert(sector, content);
        }
        Ok(())
    }

    fn set_size(&mut self, size: u64) -> std::io::Result<()> {
        self.overlay.size = self.overlay.size.min(size);
        Ok(())
    }
}

/// A device seen through an overlay.
#[derive(Debug)]
pub struct OverlayDevice {
    inner: Arc<dyn Device>,
    info: DeviceInfo,
    overlay: Overlay,
}

impl OverlayDevice {
    /// `inner`, which reads the image that `overlay` was made for.
    pub fn new(inner: Arc<dyn Device>, overlay: Overlay) -> Self {
        let info = DeviceInfo { size: overlay.size, ..inner.info().clone() };
        Self { inner, info, overlay }
    }
}

impl Device for OverlayDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            let (len, size) = (buf.len(), self.info.size);
            if offset.checked_add(len as u64).is_none_or(|end| end > size) {
                let cause = OutOfRange { offset, len, size };
                return Err(Error::new(Kind::Io, cause).on_device(&self.info.path, offset));
            }
            let mut buf = self.inner.read(offset, buf).await?;
            self.overlay.patch(offset, &mut buf);
            Ok(buf)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::PrivateFolder;
    use cenote_device::{FileDevice, OpenMode};

    #[test]
    fn an_overlay_reads_as_the_damaged_file_does() {
        let folder = PrivateFolder::create("overlay");
        let (image, copy) = (folder.path().join("image"), folder.path().join("copy"));
        let size = 2 << 20;
        let mut bytes = vec![0; size as usize];
        cenote_rt::Rng::seeded(1).fill(&mut bytes);
        std::fs::write(&image, &bytes).unwrap();
        let mut rng = cenote_rt::Rng::seeded(2);
        for _ in 0..20 {
            std::fs::write(&copy, &bytes).unwrap();
            let mut left = size;
            let mut damage = Vec::new();
            for _ in 0..6 {
                let one = Damage::random(&mut rng, &(0..left), left, std::slice::from_ref(&image));
                if let Damage::Truncate { size } = one {
                    left = size;
                }
                one.apply(&copy);
                damage.push(one);
                if left < 1 << 20 {
                    break;
                }
            }
            let overlay = Overlay::new(&image, &damage);
            assert_eq!(overlay.size(), left);
            let inner = FileDevice::open(&image, OpenMode::ReadOnly).unwrap();
            let device = OverlayDevice::new(inner, overlay);
            let wanted = std::fs::read(&copy).unwrap();
            cenote_rt::block_on(1, async {
                let all = device.read(0, BufMut::zeroed(left as usize)).await.unwrap();
                assert!(all[..] == wanted[..], "{damage:?}");
                let odd = device.read(777, BufMut::zeroed(3001)).await.unwrap();
                assert!(odd[..] == wanted[777..3778], "{damage:?}");
                assert!(device.read(left - 1, BufMut::zeroed(2)).await.is_err());
            })
            .unwrap();
        }
    }
}
