//! Name/value lists: how OpenZFS stores configurations, history, properties and stream headers.
//!
//! ```text
//!   byte 0: 0 native, 1 XDR     byte 1: 1 little-endian writer, 0 big     bytes 2, 3: 0
//!   then the list in that encoding: module `xdr` or `native`
//! ```
//!
//! Native lists are read in either byte order; OpenZFS itself refuses a foreign one. Pairs keep
//! their order and a name may occur more than once: a getter returns the first. Names and strings
//! are bytes ([`NvString`]), since extended attributes and paths need not be UTF-8.
//!
//! Decoding is bounded: nesting by [`DEPTH_MAX`], memory by a multiple of the input, because no
//! count is trusted before its bytes have been seen. Encoding produces exactly the bytes that
//! OpenZFS writes, including both sizes of every pair.
//!
//! Sources: spec 01 §3.

mod cursor;
mod native;
mod value;
mod xdr;

#[cfg(test)]
mod tests;

pub use value::{NvString, NvValue};

use crate::endian::Endian;

/// Deepest nesting that is read, as in OpenZFS's tools (its kernel stops at 20).
pub const DEPTH_MAX: u32 = 100;
/// Flag of a list: names occur once.
pub const UNIQUE_NAME: u32 = 1;
/// Flag of a list: pairs of name and type occur once.
pub const UNIQUE_NAME_TYPE: u32 = 2;
/// Bytes of the common header.
pub const NVLIST_HEADER_LEN: usize = 4;

/// Why the bytes of an nvlist are invalid; `at` is the byte offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptNvList {
    /// The bytes end within the list.
    #[error("nvlist: ends at byte {at}, within a pair or before the end marker")]
    Short {
        /// Where the bytes end.
        at: usize,
    },
    /// The first byte is neither encoding.
    #[error("nvlist: encoding {encoding}, expected 0 (native) or 1 (xdr)")]
    Encoding {
        /// The byte found.
        encoding: u8,
    },
    /// The second byte of a native list is neither byte order.
    #[error("nvlist: byte order {order}, expected 0 (big) or 1 (little)")]
    ByteOrder {
        /// The byte found.
        order: u8,
    },
    /// The version of a list is not 0.
    #[error("nvlist: version {version} at byte {at}, expected 0")]
    Version {
        /// The version found.
        version: u32,
        /// Byte offset.
        at: usize,
    },
    /// Lists are nested too deeply.
    #[error("nvlist: nested deeper than {DEPTH_MAX} lists at byte {at}")]
    Depth {
        /// Byte offset.
        at: usize,
    },
    /// A name is empty, contains a NUL, or (native) has no terminating NUL.
    #[error("nvlist: bad name at byte {at}")]
    Name {
        /// Offset of the pair.
        at: usize,
    },
    /// The type number is unknown.
    #[error("nvlist: type {code} at byte {at} is unknown")]
    Type {
        /// The number found.
        code: u32,
        /// Offset of the pair.
        at: usize,
    },
    /// The number of elements does not match the type, or contradicts the array's own count.
    #[error("nvlist: {count} elements of type {code} at byte {at}")]
    Count {
        /// The type's number.
        code: u32,
        /// Elements claimed.
        count: u32,
        /// Offset of the pair.
        at: usize,
    },
    /// A string contains a NUL, or (native) has no terminating NUL.
    #[error("nvlist: bad string at byte {at}")]
    String {
        /// Offset of the pair.
        at: usize,
    },
    /// The stored memory size of a pair does not match its name and value.
    #[error("nvlist: pair at byte {at} says size {found}, its content makes {expected}")]
    PairSize {
        /// The size stored.
        found: u32,
        /// The size computed.
        expected: usize,
        /// Offset of the pair.
        at: usize,
    },
}

/// The two encodings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// Structures of a C program in memory, in this byte order.
    Native(Endian),
    /// RFC 4506.
    Xdr,
}

/// A name and its value.
#[derive(Debug, Clone, PartialEq)]
pub struct NvPair {
    /// The name.
    pub name: NvString,
    /// The value.
    pub value: NvValue,
}

/// A list of pairs in stored order.
#[derive(Debug, Clone, PartialEq)]
pub struct NvList {
    /// [`UNIQUE_NAME`], [`UNIQUE_NAME_TYPE`], or 0; kept as found.
    pub flags: u32,
    /// The pairs.
    pub pairs: Vec<NvPair>,
}

/// Like [`new`](NvList::new): OpenZFS never looks names up in a list whose names may repeat.
impl Default for NvList {
    fn default() -> Self {
        Self::new()
    }
}

impl NvList {
    /// An empty list with unique names.
    #[must_use]
    pub const fn new() -> Self {
        Self { flags: UNIQUE_NAME, pairs: Vec::new() }
    }

    /// Decodes a list with its 4-byte header; bytes behind the list are ignored.
    pub fn decode(bytes: &[u8]) -> Result<Self, CorruptNvList> {
        Self::decode_prefix(bytes).map(|(list, _)| list)
    }

    /// Decodes a list with its 4-byte header; also returns its length.
    pub fn decode_prefix(bytes: &[u8]) -> Result<(Self, usize), CorruptNvList> {
        match Self::encoding(bytes)? {
            Encoding::Xdr => xdr::decode(bytes),
            Encoding::Native(endian) => native::decode(bytes, endian),
        }
    }

    /// The encoding according to the header.
    pub fn encoding(bytes: &[u8]) -> Result<Encoding, CorruptNvList> {
        let Some([encoding, order, ..]) = bytes.first_chunk::<NVLIST_HEADER_LEN>() else {
            return Err(CorruptNvList::Short { at: bytes.len() });
        };
        match (encoding, order) {
            (1, _) => Ok(Encoding::Xdr),
            (0, 0) => Ok(Encoding::Native(Endian::Big)),
            (0, 1) => Ok(Encoding::Native(Endian::Little)),
            (0, &order) => Err(CorruptNvList::ByteOrder { order }),
            (&encoding, _) => Err(CorruptNvList::Encoding { encoding }),
        }
    }

    /// Encodes the list, header included. XDR says "little-endian writer", as on most hosts.
    #[must_use]
    pub fn encode(&self, encoding: Encoding) -> Vec<u8> {
        match encoding {
            Encoding::Xdr => xdr::encode(self),
            Encoding::Native(endian) => native::encode(self, endian),
        }
    }

    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there is no pair.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Names and values in stored order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&NvString, &NvValue)> {
        self.pairs.iter().map(|pair| (&pair.name, &pair.value))
    }

    /// The value of the first pair with this name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&NvValue> {
        self.pairs.iter().find(|pair| pair.name == name).map(|pair| &pair.value)
    }

    /// Whether the name occurs, which is the value of a boolean (type 1).
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    /// Removes every pair with this name.
    pub fn remove(&mut self, name: &str) {
        self.pairs.retain(|pair| pair.name != name);
    }

    /// Adds a pair; with unique names it replaces one of that name.
    pub fn insert(&mut self, name: impl Into<NvString>, value: impl Into<NvValue>) {
        let (name, value) = (name.into(), value.into());
        if self.flags & UNIQUE_NAME != 0
            && let Some(pair) = self.pairs.iter_mut().find(|pair| pair.name == name)
        {
            pair.value = value;
            return;
        }
        self.pairs.push(NvPair { name, value });
    }

    /// A u64.
    #[must_use]
    pub fn u64(&self, name: &str) -> Option<u64> {
        match self.get(name)? {
            NvValue::Uint64(value) => Some(*value),
            _ => None,
        }
    }

    /// An i64.
    #[must_use]
    pub fn i64(&self, name: &str) -> Option<i64> {
        match self.get(name)? {
            NvValue::Int64(value) => Some(*value),
            _ => None,
        }
    }

    /// A boolean value; true for the presence-only type.
    #[must_use]
    pub fn bool(&self, name: &str) -> Option<bool> {
        match self.get(name)? {
            NvValue::BooleanValue(value) => Some(*value),
            NvValue::Boolean => Some(true),
            _ => None,
        }
    }

    /// A string.
    #[must_use]
    pub fn string(&self, name: &str) -> Option<&NvString> {
        match self.get(name)? {
            NvValue::String(value) => Some(value),
            _ => None,
        }
    }

    /// A string, if it is UTF-8.
    #[must_use]
    pub fn str(&self, name: &str) -> Option<&str> {
        self.string(name)?.to_str()
    }

    /// A list.
    #[must_use]
    pub fn list(&self, name: &str) -> Option<&Self> {
        match self.get(name)? {
            NvValue::List(list) => Some(list),
            _ => None,
        }
    }

    /// An array of lists.
    #[must_use]
    pub fn list_array(&self, name: &str) -> Option<&[Self]> {
        match self.get(name)? {
            NvValue::ListArray(lists) => Some(lists),
            _ => None,
        }
    }

    /// An array of u64.
    #[must_use]
    pub fn u64_array(&self, name: &str) -> Option<&[u64]> {
        match self.get(name)? {
            NvValue::Uint64Array(values) => Some(values),
            _ => None,
        }
    }
}

impl<N: Into<NvString>, V: Into<NvValue>> FromIterator<(N, V)> for NvList {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut list = Self::new();
        for (name, value) in pairs {
            list.insert(name, value);
        }
        list
    }
}

/// The size of a pair in memory, which both encodings store: header and name, then value, each
/// rounded up to 8 bytes.
fn pair_size(name_len: usize, value_len: usize) -> usize {
    let head = 17_usize.saturating_add(name_len);
    round_up(head, 8).saturating_add(round_up(value_len, 8))
}

fn round_up(len: usize, unit: usize) -> usize {
    len.checked_next_multiple_of(unit).unwrap_or(usize::MAX)
}
