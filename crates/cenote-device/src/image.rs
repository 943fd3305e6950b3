//! Contents of a device in memory: sparse, and shared between clones until one is written.
//!
//!     Image A  [ - ][ c1 ][ - ][ c3 ]        "-" was never written: zeros
//!     clone B  [ - ][ c1 ][ - ][ c3' ]       c1 is shared, c3' was written in B only
//!
//! A crash explorer needs thousands of images that differ in a few sectors, a test a disk of
//! gigabytes of which it writes a few megabytes. Both are a table of reference-counted chunks: a
//! clone costs eight bytes per 64 KiB, a write at most one chunk.

use std::sync::Arc;

use cenote_rt::lock::{Rank, RwLock};
use cenote_rt::{BoxFuture, Buf, BufMut, Result};

use crate::device::{check_range, check_span};
use crate::{Device, DeviceInfo};

/// Size of a chunk in bytes.
const CHUNK: usize = 64 << 10;

/// Contents of a device. Cloning is cheap.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Image {
    size: u64,
    chunks: Vec<Option<Arc<Vec<u8>>>>,
}

impl Image {
    /// An image of `size` zero bytes.
    pub fn zeroed(size: u64) -> Self {
        let chunks = vec![None; size.div_ceil(CHUNK as u64) as usize];
        Self { size, chunks }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of memory in chunks, including those shared with other images.
    pub fn resident(&self) -> u64 {
        (self.chunks.iter().flatten().count() * CHUNK) as u64
    }

    /// Fills `buf` from `offset`; zeros past the end.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) {
        let mut done = 0;
        for (index, start, len) in pieces(offset, buf.len()) {
            let part = &mut buf[done..done + len];
            match self.chunks.get(index).and_then(Option::as_ref) {
                Some(chunk) => part.copy_from_slice(&chunk[start..start + len]),
                None => part.fill(0),
            }
            done += len;
        }
    }

    /// Writes `bytes` at `offset`; bytes past the end are dropped.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) {
        let room = self.size.saturating_sub(offset);
        let bytes = &bytes[..bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX))];
        let mut done = 0;
        for (index, start, len) in pieces(offset, bytes.len()) {
            let part = &bytes[done..done + len];
            done += len;
            let slot = &mut self.chunks[index];
            // Writing zeros to a missing chunk changes nothing.
            if slot.is_none() && part.iter().all(|byte| *byte == 0) {
                continue;
            }
            let chunk = slot.get_or_insert_with(|| Arc::new(vec![0; CHUNK]));
            Arc::make_mut(chunk)[start..start + len].copy_from_slice(part);
        }
    }

    /// Appends zeros up to `size` bytes; does nothing if it has as many.
    pub fn grow(&mut self, size: u64) {
        self.size = self.size.max(size);
        self.chunks.resize(self.size.div_ceil(CHUNK as u64) as usize, None);
    }

    /// Fills a range with zeros and frees the memory of whole chunks.
    pub fn clear(&mut self, offset: u64, len: u64) {
        let len = len.min(self.size.saturating_sub(offset));
        for (index, start, len) in pieces(offset, usize::try_from(len).unwrap_or(usize::MAX)) {
            if len == CHUNK {
                self.chunks[index] = None;
            } else if let Some(chunk) = &mut self.chunks[index] {
                Arc::make_mut(chunk)[start..start + len].fill(0);
            }
        }
    }
}

impl From<&[u8]> for Image {
    fn from(bytes: &[u8]) -> Self {
        let mut image = Self::zeroed(bytes.len() as u64);
        image.write_at(0, bytes);
        image
    }
}

impl std::fmt::Debug for Image {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image({} bytes, {} resident)", self.size, self.resident())
    }
}

/// Splits a range at chunk boundaries: index of the chunk, first byte in it, length.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    let end = offset.saturating_add(len as u64);
    let mut at = offset;
    std::iter::from_fn(move || {
        let start = (at % CHUNK as u64) as usize;
        let len = (CHUNK - start).min(usize::try_from(end - at).unwrap_or(CHUNK));
        let index = (at / CHUNK as u64) as usize;
        at += len as u64;
        (len > 0).then_some((index, start, len))
    })
}

/// A device over an [`Image`]. Answers at once and never fails inside its range.
#[derive(Debug)]
pub struct ImageDevice {
    info: DeviceInfo,
    image: Arc<RwLock<Image>>,
}

impl ImageDevice {
    /// Returns a device with the contents of `image` under the name `path`, with sectors of 512
    /// bytes.
    pub fn new(path: impl Into<String>, image: Image) -> Self {
        let info = DeviceInfo::of_memory(path, image.size());
        Self { info, image: Arc::new(RwLock::new(Rank::ImageBytes, image)) }
    }

    /// Appends zeros up to `size` bytes. This handle keeps its size, see [`Device::grown`].
    pub fn grow(&self, size: u64) {
        self.image.write().grow(size);
    }

    /// The present contents.
    pub fn image(&self) -> Image {
        self.image.read().clone()
    }
}

impl Device for ImageDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn current_size(&self) -> BoxFuture<'_, Result<u64>> {
        Box::pin(async { Ok(self.image.read().size()) })
    }

    fn grown(&self) -> BoxFuture<'_, Result<Option<Arc<dyn Device>>>> {
        Box::pin(async {
            let size = self.image.read().size();
            let (info, image) = (self.info.clone(), Arc::clone(&self.image));
            let is_longer = size > info.size;
            Ok(is_longer.then(|| Arc::new(Self { info: DeviceInfo { size, ..info }, image }) as _))
        })
    }

    fn read(&self, offset: u64, mut buf: BufMut) -> BoxFuture<'_, Result<BufMut>> {
        Box::pin(async move {
            check_range(&self.info, offset, buf.len())?;
            self.image.read().read_at(offset, &mut buf);
            Ok(buf)
        })
    }

    fn write(&self, offset: u64, parts: Vec<Buf>) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            check_range(&self.info, offset, parts.iter().map(|part| part.len()).sum())?;
            let mut image = self.image.write();
            let mut at = offset;
            for part in parts {
                image.write_at(at, &part);
                at += part.len() as u64;
            }
            Ok(())
        })
    }

    fn discard(&self, offset: u64, len: u64) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            check_span(&self.info, offset, len)?;
            self.image.write().clear(offset, len);
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_equals_a_vector() {
        let size = 5 * CHUNK + 100;
        let mut rng = cenote_rt::Rng::seeded(1);
        let (mut image, mut model) = (Image::zeroed(size as u64), vec![0_u8; size]);
        for step in 0..300 {
            let start = rng.below(size as u64) as usize;
            let len = (rng.below(3 * CHUNK as u64) as usize).min(size - start);
            if step % 5 == 0 {
                image.clear(start as u64, len as u64);
                model[start..start + len].fill(0);
            } else {
                let mut bytes = vec![0; len];
                rng.fill(&mut bytes);
                image.write_at(start as u64, &bytes);
                model[start..start + len].copy_from_slice(&bytes);
            }
            let mut read = vec![9; size];
            image.read_at(0, &mut read);
            assert!(read == model, "step {step}");
        }
    }

    #[test]
    fn clones_share_chunks_until_written_and_zeros_take_no_memory() {
        let mut first = Image::zeroed(1 << 30);
        first.write_at(1 << 20, &[0; 4096]);
        assert_eq!(first.resident(), 0);
        first.write_at(1 << 20, b"one");
        let mut second = first.clone();
        second.write_at(1 << 20, b"two");
        let mut bytes = [[1; 4]; 2];
        first.read_at(1 << 20, &mut bytes[0]);
        second.read_at(1 << 20, &mut bytes[1]);
        assert_eq!((bytes, first.resident()), ([*b"one\0", *b"two\0"], CHUNK as u64));
        second.write_at((1 << 30) - 2, b"long");
        second.read_at((1 << 30) - 2, &mut bytes[0]);
        assert_eq!(bytes[0], *b"lo\0\0");
    }
}
