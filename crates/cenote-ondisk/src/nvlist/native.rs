//! The native encoding: the pairs as a 64-bit C program has them in memory (spec 01 §3.4).
//!
//! ```text
//!   list  := version=0  flags  pair*  0 (4 bytes)
//!   pair  := size (4)  name_size with NUL (2)  0 (2)  count (4)  type (4)
//!            name, NUL, zeros up to 8   value, zeros up to 8   [pairs of nested lists]
//!   head  := version=0 (4)  flags (4)  16 zero bytes             of a nested list, in the value
//!   lists := 8 zero bytes each, then one head each               value of an array of lists
//!   texts := 8 zero bytes each, then the strings with their NULs value of an array of strings
//! ```
//!
//! Where C has pointers the bytes are zero. The pairs of nested lists follow the pair that contains
//! them, outside its size, each ended by 4 zero bytes and without version and flags.

use super::cursor::Cursor;
use super::value::check_count;
use super::{CorruptNvList, DEPTH_MAX, NVLIST_HEADER_LEN, NvList, NvPair, NvString, NvValue};
use super::{pair_size, round_up};
use crate::endian::Endian;

type Result<T> = std::result::Result<T, CorruptNvList>;

/// Bytes of a pair in front of its name.
const PAIR_HEAD_LEN: usize = 16;
/// Zero bytes where C has pointers and flags of a nested list.
const LIST_HEAD_PAD: usize = 16;

/// Decodes a list with its header; also returns its length.
pub(super) fn decode(bytes: &[u8], endian: Endian) -> Result<(NvList, usize)> {
    let mut list = Cursor::new(bytes, endian);
    list.take(NVLIST_HEADER_LEN)?;
    let at = list.position();
    let (version, flags) = (list.u32()?, list.u32()?);
    if version != 0 {
        return Err(CorruptNvList::Version { version, at });
    }
    Ok((pairs(&mut list, flags, 1)?, list.position()))
}

/// The pair being read, with the padded bytes of its value.
struct Head<'a> {
    at: usize,
    code: u32,
    count: u32,
    value: Cursor<'a>,
}

impl<'a> Head<'a> {
    fn string(&mut self) -> Result<NvString> {
        let text = self.value.until_nul().and_then(NvString::from_bytes);
        text.ok_or(CorruptNvList::String { at: self.at })
    }

    fn bytes(&mut self) -> Result<Vec<u8>> {
        self.value.take(self.count as usize).map(<[u8]>::to_vec)
    }

    /// Skips the pointers before an array's elements.
    fn pointers(&mut self) -> Result<()> {
        self.value.take((self.count as usize).saturating_mul(8)).map(|_| ())
    }

    fn strings(&mut self) -> Result<Vec<NvString>> {
        self.pointers()?;
        (0..self.count).map(|_| self.string()).collect()
    }

    /// Flags of the nested lists.
    fn list_heads(&mut self) -> Result<Vec<u32>> {
        if self.code == 20 {
            self.pointers()?;
        }
        (0..self.count)
            .map(|_| {
                let (version, flags) = (self.value.u32()?, self.value.u32()?);
                self.value.take(LIST_HEAD_PAD)?;
                match version {
                    0 => Ok(flags),
                    _ => Err(CorruptNvList::Version { version, at: self.at }),
                }
            })
            .collect()
    }

    fn array<T>(&mut self, mut next: impl FnMut(&mut Cursor<'a>) -> Result<T>) -> Result<Vec<T>> {
        (0..self.count).map(|_| next(&mut self.value)).collect()
    }
}

/// The pairs of a list up to their end marker.
fn pairs(rest: &mut Cursor<'_>, flags: u32, depth: u32) -> Result<NvList> {
    if depth > DEPTH_MAX {
        return Err(CorruptNvList::Depth { at: rest.position() });
    }
    let mut list = NvList { flags, pairs: Vec::new() };
    while let Some(pair) = pair(rest, depth)? {
        list.pairs.push(pair);
    }
    Ok(list)
}

fn pair(rest: &mut Cursor<'_>, depth: u32) -> Result<Option<NvPair>> {
    let at = rest.position();
    let found = rest.u32()?;
    if found == 0 {
        return Ok(None);
    }
    let (name_size, _zero) = (usize::from(rest.u16()?), rest.u16()?);
    let (count, code) = (rest.u32()?, rest.u32()?);
    let head_len = round_up(PAIR_HEAD_LEN.saturating_add(name_size), 8);
    let padded_name = rest.take(head_len.saturating_sub(PAIR_HEAD_LEN))?;
    let name = match padded_name.get(..name_size) {
        Some([text @ .., 0]) => NvString::from_bytes(text).filter(|name| !name.is_empty()),
        _ => None,
    };
    let name = name.ok_or(CorruptNvList::Name { at })?;
    let head =
        Head { at, code, count, value: rest.part((found as usize).saturating_sub(head_len))? };
    let value = value(rest, head, depth)?;
    let expected = pair_size(name.len(), value.memory_len());
    if found as usize != expected {
        return Err(CorruptNvList::PairSize { found, expected, at });
    }
    Ok(Some(NvPair { name, value }))
}

fn value(rest: &mut Cursor<'_>, mut head: Head<'_>, depth: u32) -> Result<NvValue> {
    let Head { at, code, count, .. } = head;
    check_count(code, count, at)?;
    let value = &mut head.value;
    Ok(match code {
        1 => NvValue::Boolean,
        2 => NvValue::Byte(value.u8()?),
        3 => NvValue::Int16(value.u16()? as i16),
        4 => NvValue::Uint16(value.u16()?),
        5 => NvValue::Int32(value.u32()? as i32),
        6 => NvValue::Uint32(value.u32()?),
        7 => NvValue::Int64(value.u64()? as i64),
        8 => NvValue::Uint64(value.u64()?),
        9 => NvValue::String(head.string()?),
        10 => NvValue::ByteArray(head.bytes()?),
        11 => NvValue::Int16Array(head.array(|value| Ok(value.u16()? as i16))?),
        12 => NvValue::Uint16Array(head.array(Cursor::u16)?),
        13 => NvValue::Int32Array(head.array(|value| Ok(value.u32()? as i32))?),
        14 => NvValue::Uint32Array(head.array(Cursor::u32)?),
        15 => NvValue::Int64Array(head.array(|value| Ok(value.u64()? as i64))?),
        16 => NvValue::Uint64Array(head.array(Cursor::u64)?),
        17 => NvValue::StringArray(head.strings()?),
        18 => NvValue::Hrtime(value.u64()? as i64),
        19 | 20 => return lists(rest, &mut head, depth),
        21 => NvValue::BooleanValue(value.u32()? != 0),
        22 => NvValue::Int8(value.u8()? as i8),
        23 => NvValue::Uint8(value.u8()?),
        24 => NvValue::BooleanArray(head.array(|value| Ok(value.u32()? != 0))?),
        25 => NvValue::Int8Array(head.array(|value| Ok(value.u8()? as i8))?),
        26 => NvValue::Uint8Array(head.bytes()?),
        27 => NvValue::Double(f64::from_bits(value.u64()?)),
        _ => return Err(CorruptNvList::Type { code, at }),
    })
}

/// Nested lists: heads in the value, pairs behind it.
fn lists(rest: &mut Cursor<'_>, head: &mut Head<'_>, depth: u32) -> Result<NvValue> {
    let mut lists = Vec::new();
    for flags in head.list_heads()? {
        lists.push(pairs(rest, flags, depth.saturating_add(1))?);
    }
    Ok(match head.code {
        20 => NvValue::ListArray(lists),
        _ => NvValue::List(lists.pop().ok_or(rest.short())?),
    })
}

/// The bytes of a list, with its header.
pub(super) fn encode(list: &NvList, endian: Endian) -> Vec<u8> {
    let mut encoder = Encoder { bytes: Vec::new(), endian };
    encoder.bytes.extend([0, u8::from(endian == Endian::Little), 0, 0]);
    encoder.u32(0);
    encoder.u32(list.flags);
    encoder.pairs(list);
    encoder.bytes
}

struct Encoder {
    bytes: Vec<u8>,
    endian: Endian,
}

impl Encoder {
    fn u16(&mut self, value: u16) {
        self.bytes.extend(self.endian.bytes16(value));
    }

    fn u32(&mut self, value: u32) {
        self.bytes.extend(self.endian.bytes32(value));
    }

    fn u64(&mut self, value: u64) {
        self.bytes.extend(self.endian.bytes64(value));
    }

    fn zeros(&mut self, len: usize) {
        self.bytes.resize(self.bytes.len().saturating_add(len), 0);
    }

    fn string(&mut self, text: &NvString) {
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
    }

    fn pairs(&mut self, list: &NvList) {
        for pair in &list.pairs {
            self.pair(pair);
        }
        self.u32(0);
    }

    fn pair(&mut self, pair: &NvPair) {
        let start = self.bytes.len();
        let size = pair_size(pair.name.len(), pair.value.memory_len());
        self.u32(size as u32);
        self.u16(pair.name.len().saturating_add(1) as u16);
        self.u16(0);
        self.u32(pair.value.element_count() as u32);
        self.u32(pair.value.type_code());
        self.string(&pair.name);
        let head_len = round_up(self.bytes.len() - start, 8);
        self.bytes.resize(start.saturating_add(head_len), 0);
        self.value(&pair.value);
        self.bytes.resize(start.saturating_add(size), 0);
        match &pair.value {
            NvValue::List(list) => self.pairs(list),
            NvValue::ListArray(lists) => lists.iter().for_each(|list| self.pairs(list)),
            _ => {}
        }
    }

    fn list_head(&mut self, list: &NvList) {
        self.u32(0);
        self.u32(list.flags);
        self.zeros(LIST_HEAD_PAD);
    }

    fn value(&mut self, value: &NvValue) {
        match value {
            NvValue::Boolean => {}
            NvValue::Byte(value) | NvValue::Uint8(value) => self.bytes.push(*value),
            NvValue::Int8(value) => self.bytes.push(*value as u8),
            NvValue::Int16(value) => self.u16(*value as u16),
            NvValue::Uint16(value) => self.u16(*value),
            NvValue::Int32(value) => self.u32(*value as u32),
            NvValue::Uint32(value) => self.u32(*value),
            NvValue::BooleanValue(value) => self.u32(u32::from(*value)),
            NvValue::Int64(value) | NvValue::Hrtime(value) => self.u64(*value as u64),
            NvValue::Uint64(value) => self.u64(*value),
            NvValue::Double(value) => self.u64(value.to_bits()),
            NvValue::String(text) => self.string(text),
            NvValue::ByteArray(bytes) | NvValue::Uint8Array(bytes) => self.bytes.extend(bytes),
            NvValue::Int8Array(values) => values.iter().for_each(|v| self.bytes.push(*v as u8)),
            NvValue::Int16Array(values) => values.iter().for_each(|v| self.u16(*v as u16)),
            NvValue::Uint16Array(values) => values.iter().for_each(|v| self.u16(*v)),
            NvValue::Int32Array(values) => values.iter().for_each(|v| self.u32(*v as u32)),
            NvValue::Uint32Array(values) => values.iter().for_each(|v| self.u32(*v)),
            NvValue::BooleanArray(values) => values.iter().for_each(|v| self.u32(u32::from(*v))),
            NvValue::Int64Array(values) => values.iter().for_each(|v| self.u64(*v as u64)),
            NvValue::Uint64Array(values) => values.iter().for_each(|v| self.u64(*v)),
            NvValue::StringArray(texts) => {
                self.zeros(texts.len().saturating_mul(8));
                for text in texts {
                    self.string(text);
                }
            }
            NvValue::List(list) => self.list_head(list),
            NvValue::ListArray(lists) => {
                self.zeros(lists.len().saturating_mul(8));
                for list in lists {
                    self.list_head(list);
                }
            }
        }
    }
}
