//! A cursor over the bytes of an nvlist; reads past the end return the error common to both
//! encodings.

use super::CorruptNvList;
use crate::bytes::Reader;
use crate::endian::Endian;

type Result<T> = std::result::Result<T, CorruptNvList>;

/// A reader that knows its position in the list.
pub(super) struct Cursor<'a> {
    reader: Reader<'a>,
    endian: Endian,
    /// Byte of the list at which the reader began.
    start: usize,
}

impl<'a> Cursor<'a> {
    pub(super) const fn new(bytes: &'a [u8], endian: Endian) -> Self {
        Self { reader: Reader::new(bytes, endian), endian, start: 0 }
    }

    /// Position of the next byte in the list.
    pub(super) const fn position(&self) -> usize {
        self.start.saturating_add(self.reader.position())
    }

    /// The error that the list ends here.
    pub(super) const fn short(&self) -> CorruptNvList {
        CorruptNvList::Short { at: self.position() }
    }

    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        self.reader.take(len).ok_or(self.short())
    }

    /// The next `len` bytes, as a cursor of their own.
    pub(super) fn part(&mut self, len: usize) -> Result<Self> {
        let start = self.position();
        let reader = Reader::new(self.take(len)?, self.endian);
        Ok(Self { reader, endian: self.endian, start })
    }

    /// The bytes up to the next NUL, which is skipped; `None` if there is no NUL.
    pub(super) fn until_nul(&mut self) -> Option<&'a [u8]> {
        let rest = self.reader.clone().take(self.reader.remaining())?;
        let len = rest.iter().position(|byte| *byte == 0)?;
        self.reader.take(len.saturating_add(1))?.get(..len)
    }

    pub(super) fn u8(&mut self) -> Result<u8> {
        self.reader.u8().ok_or(self.short())
    }

    pub(super) fn u16(&mut self) -> Result<u16> {
        self.reader.u16().ok_or(self.short())
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.reader.u32().ok_or(self.short())
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.reader.u64().ok_or(self.short())
    }
}
