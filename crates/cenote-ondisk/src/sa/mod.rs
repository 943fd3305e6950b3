//! System attributes: how a file's metadata is packed into bonus and spill buffers.
//!
//! ```text
//!   0  magic u32 | layout and header size u16 | lengths of variable attributes u16 …
//!   h  attributes in the order of the layout, each on a multiple of 8
//! ```
//!
//! The layout is a number; the file system's LAYOUTS ZAP maps it (decimal) to an array of attribute
//! numbers, and its REGISTRY maps attribute names to numbers ([`Registry`]). Only numbers 0-15 are
//! the same everywhere. A buffer keeps the byte order of the host that last wrote *it*, whatever
//! the order of the block around it, so its magic is examined each time and every attribute is read
//! in that order ([`SaBuffer`]).
//!
//! Padding and the bytes behind the last attribute may be stale. Sources: spec 03 §8.

pub mod registry;

pub use registry::{AttrInfo, Registry, Swap, ZplAttr};

use crate::endian::Endian;

/// Magic of a buffer.
pub const SA_MAGIC: u32 = 0x002f_505a;
/// Most attributes of one layout: numbers are 16 bits and unique, but no real layout has more than
/// a few dozen.
pub const LAYOUT_LEN_MAX: usize = 1 << 10;

/// Why a system-attribute buffer is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptSa {
    /// The buffer is too short for a header.
    #[error("system attributes: buffer of {len} bytes")]
    Length {
        /// Bytes of the buffer.
        len: usize,
    },
    /// The magic is that of neither byte order.
    #[error("system attributes: magic {found:#010x}")]
    Magic {
        /// Value, read little-endian.
        found: u32,
    },
    /// The LAYOUTS ZAP has no such number.
    #[error("system attributes: layout {number} is not registered")]
    UnknownLayout {
        /// Layout number.
        number: u16,
    },
    /// A layout contains an attribute that REGISTRY does not have.
    #[error("system attributes: attribute {number} of layout {layout} is not registered")]
    UnknownAttr {
        /// Layout number.
        layout: u16,
        /// Attribute number.
        number: u16,
    },
    /// The header's size does not match the layout.
    #[error("system attributes: header of {found} bytes, layout {layout} needs {expected}")]
    HeaderSize {
        /// Layout number.
        layout: u16,
        /// Size in the header.
        found: usize,
        /// Size by the number of variable attributes.
        expected: usize,
    },
    /// An attribute reaches beyond the buffer.
    #[error("system attributes: attribute {number} at {offset}, {len} bytes, of {buffer_len}")]
    OutOfRange {
        /// Attribute number.
        number: u16,
        /// Where it would start.
        offset: usize,
        /// Its length.
        len: usize,
        /// Bytes of the buffer.
        buffer_len: usize,
    },
    /// A mandatory attribute is missing, or shorter than its type.
    #[error("file attributes: {name} is missing")]
    Missing {
        /// Name of the attribute.
        name: &'static str,
    },
    /// A legacy znode is too short.
    #[error("znode: bonus of {len} bytes, expected at least 264")]
    ZnodeLength {
        /// Bytes found.
        len: usize,
    },
}

/// Header of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SaHeader {
    /// Byte order of the buffer.
    pub order: Endian,
    /// Layout number; 0 = empty layout (numbers 0 and 1 are never registered).
    pub layout: u16,
    /// Bytes before the first attribute.
    pub size: usize,
}

impl SaHeader {
    /// Decodes the header of a bonus or spill buffer; `None` if the buffer was never initialized.
    pub fn decode(buffer: &[u8]) -> Result<Option<Self>, CorruptSa> {
        let [m0, m1, m2, m3, l0, l1, ..] = *buffer else {
            return Err(CorruptSa::Length { len: buffer.len() });
        };
        let order = match u32::from_le_bytes([m0, m1, m2, m3]) {
            0 => return Ok(None),
            SA_MAGIC => Endian::Little,
            found if found.swap_bytes() == SA_MAGIC => Endian::Big,
            found => return Err(CorruptSa::Magic { found }),
        };
        let word = order.u16([l0, l1]);
        let size = usize::from(word >> 10) * 8;
        if size == 0 || size > buffer.len() {
            return Err(CorruptSa::Length { len: buffer.len() });
        }
        Ok(Some(Self { order, layout: word & 0x3ff, size }))
    }
}

/// Bytes of a header whose layout has `variable_count` attributes of variable length.
#[must_use]
pub const fn header_size(variable_count: usize) -> usize {
    match variable_count.checked_sub(1) {
        None => 8,
        Some(more) => 8 + (2 * more).next_multiple_of(8),
    }
}

/// One attribute of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr<'a> {
    /// Number in this file system.
    pub number: u16,
    /// Bytes, in the buffer's order.
    pub bytes: &'a [u8],
    /// That order.
    pub order: Endian,
}

impl Attr<'_> {
    /// The u64 at word `index`; `None` if the attribute is shorter.
    #[must_use]
    pub fn word(&self, index: usize) -> Option<u64> {
        let bytes = self.bytes.get(index.checked_mul(8)?..)?.first_chunk()?;
        Some(self.order.u64(*bytes))
    }
}

/// A buffer split into its attributes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SaBuffer<'a> {
    /// Layout number.
    pub layout: u16,
    /// Attributes in storage order.
    pub attrs: Vec<Attr<'a>>,
}

impl<'a> SaBuffer<'a> {
    /// Splits a bonus or spill buffer by its layout. A buffer that was never initialized has no
    /// attributes.
    pub fn decode(buffer: &'a [u8], registry: &Registry) -> Result<Self, CorruptSa> {
        let Some(header) = SaHeader::decode(buffer)? else {
            return Ok(Self { layout: 0, attrs: Vec::new() });
        };
        let number = header.layout;
        let layout = match number {
            0 => &[][..],
            _ => registry.layout(number).ok_or(CorruptSa::UnknownLayout { number })?,
        };
        let mut variable_count = 0_usize;
        let mut offset = header.size;
        let mut attrs = Vec::with_capacity(layout.len());
        for attr in layout {
            let number = *attr;
            let fixed = registry
                .attr(number)
                .ok_or(CorruptSa::UnknownAttr { layout: header.layout, number })?
                .len;
            let len = if fixed != 0 {
                usize::from(fixed)
            } else {
                let len = variable_len(buffer, &header, variable_count);
                variable_count += 1;
                len.ok_or(CorruptSa::Length { len: buffer.len() })?
            };
            let out = CorruptSa::OutOfRange { number, offset, len, buffer_len: buffer.len() };
            let bytes = buffer.get(offset..).and_then(|rest| rest.get(..len)).ok_or(out)?;
            attrs.push(Attr { number, bytes, order: header.order });
            offset = offset.saturating_add(len).saturating_add(7) & !7;
        }
        let expected = header_size(variable_count);
        if header.size != expected && number != 0 {
            let found = header.size;
            return Err(CorruptSa::HeaderSize { layout: number, found, expected });
        }
        Ok(Self { layout: number, attrs })
    }

    /// The attribute with this number.
    #[must_use]
    pub fn get(&self, number: u16) -> Option<&Attr<'a>> {
        self.attrs.iter().find(|attr| attr.number == number)
    }
}

/// Length of the variable attribute `index`: the first one is stored at offset 6, inside the first
/// 8 bytes.
fn variable_len(buffer: &[u8], header: &SaHeader, index: usize) -> Option<usize> {
    let at = index.checked_mul(2)?.checked_add(6)?;
    let bytes = buffer.get(..header.size)?.get(at..)?.first_chunk()?;
    Some(usize::from(header.order.u16(*bytes)))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
