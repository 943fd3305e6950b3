//! A checked cursor over bytes from disk, for structures that are not arrays of u64.
//!
//! Every read returns `None` past the end, so that a decoder turns each short read into its own
//! error; nothing here can panic. For arrays of words see [`crate::words`].

use crate::endian::Endian;

/// Reads forward through a slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    position: usize,
    endian: Endian,
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`, for integers in `endian` order.
    #[must_use]
    pub const fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self { bytes, position: 0, endian }
    }

    /// Bytes read so far.
    #[must_use]
    pub const fn position(&self) -> usize {
        self.position
    }

    /// Bytes left.
    #[must_use]
    pub const fn remaining(&self) -> usize {
        self.bytes.len().saturating_sub(self.position)
    }

    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.position..)?;
        let taken = rest.get(..len)?;
        self.position = self.position.checked_add(len)?;
        Some(taken)
    }

    /// The next `N` bytes as an array.
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk::<N>().copied()
    }

    /// One byte.
    pub fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    /// A u16.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(|bytes| self.endian.u16(bytes))
    }

    /// A u32.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(|bytes| self.endian.u32(bytes))
    }

    /// A u64.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(|bytes| self.endian.u64(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_end_at_the_end() {
        let mut reader = Reader::new(&[1, 2, 3, 4, 5, 6, 7], Endian::Big);
        assert_eq!(reader.u16(), Some(0x102));
        assert_eq!(reader.take(usize::MAX), None);
        assert_eq!(reader.u32(), Some(0x0304_0506));
        assert_eq!((reader.position(), reader.remaining()), (6, 1));
        assert_eq!(reader.u64(), None);
        assert_eq!(reader.u8(), Some(7));
        assert_eq!(reader.u8(), None);
    }
}
