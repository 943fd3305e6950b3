//! The XDR encoding: big-endian, every item padded to 4 bytes (spec 01 §3.3).
//!
//! ```text
//!   list   := version=0  flags  pair*  0  0
//!   pair   := encoded_size  decoded_size  name  type  count  value
//!   string := length  bytes  padding
//! ```
//!
//! Numeric arrays repeat their count in front unless empty; arrays of bytes, strings and lists do
//! not. `encoded_size` covers nested lists; OpenZFS never checks it, and neither do we, but boot
//! loaders use it to skip pairs. `decoded_size` is checked exactly, as in OpenZFS.

use super::cursor::Cursor;
use super::value::check_count;
use super::{CorruptNvList, DEPTH_MAX, NVLIST_HEADER_LEN, NvList, NvPair, NvString, NvValue};
use super::{pair_size, round_up};
use crate::endian::Endian;

type Result<T> = std::result::Result<T, CorruptNvList>;

/// Decodes a list with its header; also returns its length.
pub(super) fn decode(bytes: &[u8]) -> Result<(NvList, usize)> {
    let mut decoder = Decoder { rest: Cursor::new(bytes, Endian::Big) };
    decoder.rest.take(NVLIST_HEADER_LEN)?;
    let list = decoder.list(1)?;
    Ok((list, decoder.rest.position()))
}

struct Decoder<'a> {
    rest: Cursor<'a>,
}

/// The pair being read.
#[derive(Clone, Copy)]
struct Head {
    at: usize,
    code: u32,
    count: u32,
}

impl<'a> Decoder<'a> {
    /// Bytes with their padding.
    fn opaque(&mut self, len: usize) -> Result<&'a [u8]> {
        let padded = self.rest.take(round_up(len, 4))?;
        padded.get(..len).ok_or(self.rest.short())
    }

    fn text(&mut self) -> Result<&'a [u8]> {
        let len = self.rest.u32()?;
        self.opaque(len as usize)
    }

    fn string(&mut self, head: Head) -> Result<NvString> {
        let text = self.text()?;
        NvString::from_bytes(text).ok_or(CorruptNvList::String { at: head.at })
    }

    fn list(&mut self, depth: u32) -> Result<NvList> {
        let at = self.rest.position();
        if depth > DEPTH_MAX {
            return Err(CorruptNvList::Depth { at });
        }
        let (version, flags) = (self.rest.u32()?, self.rest.u32()?);
        if version != 0 {
            return Err(CorruptNvList::Version { version, at });
        }
        let mut list = NvList { flags, pairs: Vec::new() };
        while let Some(pair) = self.pair(depth)? {
            list.pairs.push(pair);
        }
        Ok(list)
    }

    /// The next pair, or `None` at the end marker.
    fn pair(&mut self, depth: u32) -> Result<Option<NvPair>> {
        let at = self.rest.position();
        let (_encoded, found) = (self.rest.u32()?, self.rest.u32()?);
        if found == 0 {
            return Ok(None);
        }
        let name = NvString::from_bytes(self.text()?)
            .filter(|name| !name.is_empty())
            .ok_or(CorruptNvList::Name { at })?;
        let head = Head { at, code: self.rest.u32()?, count: self.rest.u32()? };
        let value = self.value(head, depth)?;
        let expected = pair_size(name.len(), value.memory_len());
        if found as usize != expected {
            return Err(CorruptNvList::PairSize { found, expected, at });
        }
        Ok(Some(NvPair { name, value }))
    }

    fn value(&mut self, head: Head, depth: u32) -> Result<NvValue> {
        let Head { at, code, count } = head;
        check_count(code, count, at)?;
        Ok(match code {
            1 => NvValue::Boolean,
            2 => NvValue::Byte(self.rest.u32()? as u8),
            3 => NvValue::Int16(self.rest.u32()? as i16),
            4 => NvValue::Uint16(self.rest.u32()? as u16),
            5 => NvValue::Int32(self.rest.u32()? as i32),
            6 => NvValue::Uint32(self.rest.u32()?),
            7 => NvValue::Int64(self.rest.u64()? as i64),
            8 => NvValue::Uint64(self.rest.u64()?),
            9 => NvValue::String(self.string(head)?),
            10 => NvValue::ByteArray(self.opaque(count as usize)?.to_vec()),
            11 => NvValue::Int16Array(self.words(head, |word| word as i16)?),
            12 => NvValue::Uint16Array(self.words(head, |word| word as u16)?),
            13 => NvValue::Int32Array(self.words(head, |word| word as i32)?),
            14 => NvValue::Uint32Array(self.words(head, |word| word)?),
            15 => NvValue::Int64Array(self.long_words(head, |word| word as i64)?),
            16 => NvValue::Uint64Array(self.long_words(head, |word| word)?),
            17 => {
                NvValue::StringArray((0..count).map(|_| self.string(head)).collect::<Result<_>>()?)
            }
            18 => NvValue::Hrtime(self.rest.u64()? as i64),
            19 => NvValue::List(self.list(depth.saturating_add(1))?),
            20 => NvValue::ListArray(
                (0..count).map(|_| self.list(depth.saturating_add(1))).collect::<Result<_>>()?,
            ),
            21 => NvValue::BooleanValue(self.rest.u32()? != 0),
            22 => NvValue::Int8(self.rest.u32()? as i8),
            23 => NvValue::Uint8(self.rest.u32()? as u8),
            24 => NvValue::BooleanArray(self.words(head, |word| word != 0)?),
            25 => NvValue::Int8Array(self.words(head, |word| word as i8)?),
            26 => NvValue::Uint8Array(self.words(head, |word| word as u8)?),
            27 => NvValue::Double(f64::from_bits(self.rest.u64()?)),
            _ => return Err(CorruptNvList::Type { code, at }),
        })
    }

    /// Checks that the count before a numeric array equals the pair's.
    fn repeated_count(&mut self, head: Head) -> Result<()> {
        let Head { at, code, count } = head;
        match count {
            0 => Ok(()),
            _ if self.rest.u32()? == count => Ok(()),
            _ => Err(CorruptNvList::Count { code, count, at }),
        }
    }

    fn words<T>(&mut self, head: Head, convert: impl Fn(u32) -> T) -> Result<Vec<T>> {
        self.repeated_count(head)?;
        (0..head.count).map(|_| self.rest.u32().map(&convert)).collect()
    }

    fn long_words<T>(&mut self, head: Head, convert: impl Fn(u64) -> T) -> Result<Vec<T>> {
        self.repeated_count(head)?;
        (0..head.count).map(|_| self.rest.u64().map(&convert)).collect()
    }
}

/// The bytes of a list, with its header.
pub(super) fn encode(list: &NvList) -> Vec<u8> {
    let mut encoder = Encoder { bytes: vec![1, 1, 0, 0] };
    encoder.list(list);
    encoder.bytes
}

struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    fn u32(&mut self, value: u32) {
        self.bytes.extend(value.to_be_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend(value.to_be_bytes());
    }

    fn opaque(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.bytes.resize(round_up(self.bytes.len(), 4), 0);
    }

    fn string(&mut self, text: &NvString) {
        self.u32(text.len() as u32);
        self.opaque(text.as_bytes());
    }

    fn list(&mut self, list: &NvList) {
        self.u32(0);
        self.u32(list.flags);
        for pair in &list.pairs {
            self.pair(pair);
        }
        self.u64(0);
    }

    fn pair(&mut self, pair: &NvPair) {
        let start = self.bytes.len();
        self.u32(0);
        self.u32(pair_size(pair.name.len(), pair.value.memory_len()) as u32);
        self.string(&pair.name);
        self.u32(pair.value.type_code());
        self.u32(pair.value.element_count() as u32);
        self.value(&pair.value);
        let encoded = (self.bytes.len() - start) as u32;
        if let Some(size) = self.bytes.get_mut(start..).and_then(|rest| rest.first_chunk_mut()) {
            *size = encoded.to_be_bytes();
        }
    }

    /// Encodes a value. Characters and short numbers are not extended with their sign, as OpenZFS's
    /// library does it: the Linux kernel module refuses them then. Both accept them without it.
    fn value(&mut self, value: &NvValue) {
        match value {
            NvValue::Boolean => {}
            NvValue::Byte(value) | NvValue::Uint8(value) => self.u32(u32::from(*value)),
            NvValue::Int8(value) => self.u32(u32::from(*value as u8)),
            NvValue::Int16(value) => self.u32(u32::from(*value as u16)),
            NvValue::Uint16(value) => self.u32(u32::from(*value)),
            NvValue::Int32(value) => self.u32(*value as u32),
            NvValue::Uint32(value) => self.u32(*value),
            NvValue::BooleanValue(value) => self.u32(u32::from(*value)),
            NvValue::Int64(value) | NvValue::Hrtime(value) => self.u64(*value as u64),
            NvValue::Uint64(value) => self.u64(*value),
            NvValue::Double(value) => self.u64(value.to_bits()),
            NvValue::String(text) => self.string(text),
            NvValue::ByteArray(bytes) => self.opaque(bytes),
            NvValue::Int16Array(values) => self.words(values, |value| u32::from(*value as u16)),
            NvValue::Uint16Array(values) => self.words(values, |value| u32::from(*value)),
            NvValue::Int32Array(values) => self.words(values, |value| *value as u32),
            NvValue::Uint32Array(values) => self.words(values, |value| *value),
            NvValue::BooleanArray(values) => self.words(values, |value| u32::from(*value)),
            NvValue::Int8Array(values) => self.words(values, |value| u32::from(*value as u8)),
            NvValue::Uint8Array(values) => self.words(values, |value| u32::from(*value)),
            NvValue::Int64Array(values) => self.long_words(values, |value| *value as u64),
            NvValue::Uint64Array(values) => self.long_words(values, |value| *value),
            NvValue::StringArray(texts) => texts.iter().for_each(|text| self.string(text)),
            NvValue::List(list) => self.list(list),
            NvValue::ListArray(lists) => lists.iter().for_each(|list| self.list(list)),
        }
    }

    fn words<T>(&mut self, values: &[T], convert: impl Fn(&T) -> u32) {
        if !values.is_empty() {
            self.u32(values.len() as u32);
        }
        for value in values {
            self.u32(convert(value));
        }
    }

    fn long_words<T>(&mut self, values: &[T], convert: impl Fn(&T) -> u64) {
        if !values.is_empty() {
            self.u32(values.len() as u32);
        }
        for value in values {
            self.u64(convert(value));
        }
    }
}
