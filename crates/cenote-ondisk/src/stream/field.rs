//! Fields of a record by their offsets, in either byte order.
//!
//! Offsets are constants below [`RECORD_LEN`]: a field outside the record would read as zero.

#[cfg(test)]
use super::RECORD_LEN;
use super::RecordBytes;
use crate::endian::Endian;

/// Reads fields.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    bytes: &'a RecordBytes,
    endian: Endian,
}

impl<'a> Fields<'a> {
    pub(super) const fn new(bytes: &'a RecordBytes, endian: Endian) -> Self {
        Self { bytes, endian }
    }

    pub(super) fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        let field = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
        field.copied().unwrap_or([0; N])
    }

    pub(super) fn u8(&self, at: usize) -> u8 {
        let [byte] = self.bytes(at);
        byte
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        self.endian.u32(self.bytes(at))
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        self.endian.u64(self.bytes(at))
    }

    pub(super) fn words<const N: usize>(&self, at: usize) -> [u64; N] {
        std::array::from_fn(|index| self.u64(at.saturating_add(index.saturating_mul(8))))
    }
}

/// Writes fields.
#[derive(Debug)]
pub(super) struct FieldsMut<'a> {
    bytes: &'a mut RecordBytes,
    endian: Endian,
}

impl<'a> FieldsMut<'a> {
    pub(super) const fn new(bytes: &'a mut RecordBytes, endian: Endian) -> Self {
        Self { bytes, endian }
    }

    pub(super) fn put(&mut self, at: usize, field: &[u8]) {
        let target = self.bytes.get_mut(at..).and_then(|rest| rest.get_mut(..field.len()));
        if let Some(target) = target {
            target.copy_from_slice(field);
        }
    }

    pub(super) fn put_u8(&mut self, at: usize, value: u8) {
        self.put(at, &[value]);
    }

    pub(super) fn put_u32(&mut self, at: usize, value: u32) {
        self.put(at, &self.endian.bytes32(value));
    }

    pub(super) fn put_u64(&mut self, at: usize, value: u64) {
        self.put(at, &self.endian.bytes64(value));
    }

    pub(super) fn put_words(&mut self, at: usize, words: [u64; 4]) {
        for (index, word) in words.into_iter().enumerate() {
            self.put_u64(at.saturating_add(index.saturating_mul(8)), word);
        }
    }
}

#[cfg(test)]
#[test]
fn fields_end_at_the_record() {
    let mut bytes = [0; RECORD_LEN];
    let mut fields = FieldsMut::new(&mut bytes, Endian::Big);
    fields.put_u32(308, 0x0102_0304);
    fields.put_u32(309, u32::MAX);
    let fields = Fields::new(&bytes, Endian::Big);
    assert_eq!((fields.u32(308), fields.u32(309), fields.u8(311)), (0x0102_0304, 0, 4));
}
