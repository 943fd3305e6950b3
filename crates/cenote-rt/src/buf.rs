//! Byte buffers: page-aligned, filled once by one owner, then shared without copying.
//!
//!     BufMut --freeze--> Buf --clone/slice--> Buf ...
//!
//! A read fills a [`BufMut`]; a cached block is a [`Buf`], immutable and shared (`Arc`), so readers
//! neither wait for each other nor copy. Buffers of a page or more start at a multiple of 4096
//! bytes, as direct I/O needs: whole pages without effort if the allocator aligns them, all others
//! by over-allocation, which costs memory (half as much again for 8 KiB) but no `unsafe`.

use std::cell::Cell;
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::recycle::Storage;

/// Alignment of the first byte of every buffer, enough for direct I/O on any supported sector size.
pub const ALIGN: usize = 4096;

/// Whether the allocator aligns whole pages by itself, as observed so far.
static ALIGNS_PAGES: AtomicBool = AtomicBool::new(true);

thread_local! {
    /// Bytes of the buffers that this thread has created.
    static MADE: Cell<u64> = const { Cell::new(0) };
}

/// Returns the bytes of all buffers that this thread has created. Each is filled once, so this
/// bounds the bytes that were read into them or copied between them.
#[must_use]
pub fn bytes_made() -> u64 {
    MADE.get()
}

fn count(len: usize) {
    MADE.set(MADE.get().wrapping_add(len as u64));
}

/// A buffer with one owner, who may write it.
#[derive(Debug)]
pub struct BufMut {
    storage: Storage,
    start: usize,
    len: usize,
}

impl BufMut {
    /// Returns `len` zero bytes, aligned to [`ALIGN`] if at least that long: aligning shorter
    /// buffers would cost several times their memory, and direct I/O gathers small pieces anyway.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        if len < ALIGN {
            return Self::from(vec![0; len]);
        }
        Self::aligned(len, |len| Storage(vec![0; len]))
    }

    /// Returns `len` bytes with unspecified contents, aligned like [`zeroed`](Self::zeroed), for
    /// callers that fill them completely: much cheaper, because the storage of an earlier buffer is
    /// reused.
    #[must_use]
    pub fn for_filling(len: usize) -> Self {
        if len < ALIGN {
            return Self::zeroed(len);
        }
        Self::aligned(len, Storage::of_any_content)
    }

    /// Returns `len` bytes from an aligned address on, in storage from `allocate`.
    fn aligned(len: usize, allocate: impl Fn(usize) -> Storage) -> Self {
        count(len);
        if len.is_multiple_of(ALIGN) && ALIGNS_PAGES.load(Ordering::Relaxed) {
            let storage = allocate(len);
            if storage.0.as_ptr().align_offset(ALIGN) == 0 {
                return Self { storage, start: 0, len };
            }
            ALIGNS_PAGES.store(false, Ordering::Relaxed);
        }
        let storage = allocate(len + ALIGN);
        let start = storage.0.as_ptr().align_offset(ALIGN);
        // align_offset may return usize::MAX in theory; an unaligned buffer is still correct.
        let start = if start < ALIGN { start } else { 0 };
        Self { storage, start, len }
    }

    /// Makes the bytes immutable and shareable.
    #[must_use]
    pub fn freeze(self) -> Buf {
        let range = self.start..self.start + self.len;
        Buf { storage: Arc::new(self.storage), range }
    }

    /// Keeps the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl From<Vec<u8>> for BufMut {
    fn from(storage: Vec<u8>) -> Self {
        let len = storage.len();
        count(len);
        Self { storage: Storage(storage), start: 0, len }
    }
}

impl Deref for BufMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.storage.0[self.start..self.start + self.len]
    }
}

impl DerefMut for BufMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.storage.0[self.start..self.start + self.len]
    }
}

/// Immutable bytes, shared by reference count; a slice of it keeps the whole alive.
#[derive(Clone)]
pub struct Buf {
    storage: Arc<Storage>,
    range: Range<usize>,
}

impl Buf {
    /// Returns an empty buffer.
    #[must_use]
    pub fn empty() -> Self {
        Self { storage: Arc::default(), range: 0..0 }
    }

    /// Returns the bytes of `range`, sharing the storage; `None` if the range exceeds the buffer.
    #[must_use]
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let (start, end) =
            (self.range.start.checked_add(range.start)?, self.range.start.checked_add(range.end)?);
        (start <= end && end <= self.range.end)
            .then(|| Self { storage: Arc::clone(&self.storage), range: start..end })
    }

    /// Whether it is a part of a longer buffer, which it keeps in memory.
    #[must_use]
    pub fn is_slice(&self) -> bool {
        self.range.len() + ALIGN < self.storage.0.len()
    }

    /// Returns a writable copy; reuses the storage if it is not shared.
    #[must_use]
    pub fn into_mut(self) -> BufMut {
        let (start, len) = (self.range.start, self.range.len());
        match Arc::try_unwrap(self.storage) {
            Ok(storage) => BufMut { storage, start, len },
            Err(shared) => {
                let mut copy = BufMut::for_filling(len);
                copy.copy_from_slice(&shared.0[start..start + len]);
                copy
            }
        }
    }
}

impl From<Vec<u8>> for Buf {
    fn from(bytes: Vec<u8>) -> Self {
        BufMut::from(bytes).freeze()
    }
}

impl Deref for Buf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.storage.0[self.range.clone()]
    }
}

impl AsRef<[u8]> for Buf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl std::fmt::Debug for Buf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buf({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_aligned() {
        for len in [4096, 4608, 131072] {
            let buf = BufMut::zeroed(len);
            assert_eq!((buf.len(), buf.as_ptr() as usize % ALIGN), (len, 0), "len {len}");
        }
    }

    #[test]
    fn created_bytes_are_counted_and_shared_ones_are_not() {
        let before = bytes_made();
        let short = BufMut::zeroed(100);
        let long = BufMut::for_filling(8192).freeze();
        let shared = [long.clone(), long.slice(0..4096).expect("inside")];
        assert_eq!(bytes_made() - before, 8292);
        let copy = long.into_mut();
        assert_eq!(bytes_made() - before, 8292 + 8192, "others hold it");
        drop((short, shared, copy.freeze().into_mut()));
        assert_eq!(bytes_made() - before, 8292 + 8192);
    }

    #[test]
    fn slices_share_and_stay_inside() {
        let buf = Buf::from(vec![1, 2, 3, 4]);
        let part = buf.slice(1..3).expect("inside");
        assert_eq!(&part[..], [2, 3]);
        assert!(part.slice(0..3).is_none());
        assert!(buf.slice(3..5).is_none());
        assert_eq!(&part.into_mut()[..], [2, 3]);
    }
}
