//! The 27 types of value, and the strings in them.

use super::{CorruptNvList, NvList};

/// A name or string: bytes without NUL, mostly UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NvString(Vec<u8>);

impl NvString {
    /// From bytes; `None` if they contain a NUL.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        (!bytes.contains(&0)).then(|| Self(bytes.to_vec()))
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text, if it is UTF-8.
    #[must_use]
    pub fn to_str(&self) -> Option<&str> {
        std::str::from_utf8(&self.0).ok()
    }

    /// The text, with replacement characters for invalid UTF-8.
    #[must_use]
    pub fn to_string_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// Length in bytes, without a NUL.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Text up to its first NUL, as C would see it.
impl From<&str> for NvString {
    fn from(text: &str) -> Self {
        Self(text.bytes().take_while(|byte| *byte != 0).collect())
    }
}

impl PartialEq<str> for NvString {
    fn eq(&self, other: &str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl PartialEq<&str> for NvString {
    fn eq(&self, other: &&str) -> bool {
        self.0 == other.as_bytes()
    }
}

impl std::fmt::Display for NvString {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(&self.to_string_lossy())
    }
}

impl std::fmt::Debug for NvString {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", self.to_string_lossy())
    }
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "the names are the types'")]
pub enum NvValue {
    /// True if present.
    Boolean,
    Byte(u8),
    Int16(i16),
    Uint16(u16),
    Int32(i32),
    Uint32(u32),
    Int64(i64),
    Uint64(u64),
    String(NvString),
    ByteArray(Vec<u8>),
    Int16Array(Vec<i16>),
    Uint16Array(Vec<u16>),
    Int32Array(Vec<i32>),
    Uint32Array(Vec<u32>),
    Int64Array(Vec<i64>),
    Uint64Array(Vec<u64>),
    StringArray(Vec<NvString>),
    /// Nanoseconds.
    Hrtime(i64),
    List(NvList),
    ListArray(Vec<NvList>),
    BooleanValue(bool),
    Int8(i8),
    Uint8(u8),
    BooleanArray(Vec<bool>),
    Int8Array(Vec<i8>),
    Uint8Array(Vec<u8>),
    Double(f64),
}

impl NvValue {
    /// The type's number.
    #[must_use]
    pub const fn type_code(&self) -> u32 {
        match self {
            Self::Boolean => 1,
            Self::Byte(_) => 2,
            Self::Int16(_) => 3,
            Self::Uint16(_) => 4,
            Self::Int32(_) => 5,
            Self::Uint32(_) => 6,
            Self::Int64(_) => 7,
            Self::Uint64(_) => 8,
            Self::String(_) => 9,
            Self::ByteArray(_) => 10,
            Self::Int16Array(_) => 11,
            Self::Uint16Array(_) => 12,
            Self::Int32Array(_) => 13,
            Self::Uint32Array(_) => 14,
            Self::Int64Array(_) => 15,
            Self::Uint64Array(_) => 16,
            Self::StringArray(_) => 17,
            Self::Hrtime(_) => 18,
            Self::List(_) => 19,
            Self::ListArray(_) => 20,
            Self::BooleanValue(_) => 21,
            Self::Int8(_) => 22,
            Self::Uint8(_) => 23,
            Self::BooleanArray(_) => 24,
            Self::Int8Array(_) => 25,
            Self::Uint8Array(_) => 26,
            Self::Double(_) => 27,
        }
    }

    /// Number of elements: 0 for presence, 1 for a scalar, else the array's length.
    #[must_use]
    pub fn element_count(&self) -> usize {
        match self {
            Self::Boolean => 0,
            Self::ByteArray(v) | Self::Uint8Array(v) => v.len(),
            Self::Int16Array(v) => v.len(),
            Self::Uint16Array(v) => v.len(),
            Self::Int32Array(v) => v.len(),
            Self::Uint32Array(v) => v.len(),
            Self::Int64Array(v) => v.len(),
            Self::Uint64Array(v) => v.len(),
            Self::StringArray(v) => v.len(),
            Self::ListArray(v) => v.len(),
            Self::BooleanArray(v) => v.len(),
            Self::Int8Array(v) => v.len(),
            _ => 1,
        }
    }

    /// Bytes of the value in the memory of a C program, which `decoded_size` counts and the native
    /// encoding stores. Nested lists count with their heads only.
    pub(super) fn memory_len(&self) -> usize {
        let count = self.element_count();
        match self {
            Self::String(text) => text.len().saturating_add(1),
            Self::StringArray(texts) => {
                let ends = texts.iter().map(|text| text.len().saturating_add(1));
                ends.fold(count.saturating_mul(8), usize::saturating_add)
            }
            _ => count.saturating_mul(self.element_len()),
        }
    }

    /// Bytes of an element in memory, for all types but strings.
    const fn element_len(&self) -> usize {
        match self {
            Self::Boolean | Self::String(_) | Self::StringArray(_) => 0,
            Self::Byte(_)
            | Self::Int8(_)
            | Self::Uint8(_)
            | Self::ByteArray(_)
            | Self::Int8Array(_)
            | Self::Uint8Array(_) => 1,
            Self::Int16(_) | Self::Uint16(_) | Self::Int16Array(_) | Self::Uint16Array(_) => 2,
            Self::Int32(_)
            | Self::Uint32(_)
            | Self::Int32Array(_)
            | Self::Uint32Array(_)
            | Self::BooleanValue(_)
            | Self::BooleanArray(_) => 4,
            Self::Int64(_)
            | Self::Uint64(_)
            | Self::Int64Array(_)
            | Self::Uint64Array(_)
            | Self::Hrtime(_)
            | Self::Double(_) => 8,
            Self::List(_) => 24,
            Self::ListArray(_) => 32,
        }
    }
}

/// Checks that the pair at `at` is of a known type that allows this many elements.
pub(super) const fn check_count(code: u32, count: u32, at: usize) -> Result<(), CorruptNvList> {
    match (code, count) {
        (1, 0) | (10..=17 | 20 | 24..=26, _) | (2..=9 | 18 | 19 | 21..=23 | 27, 1) => Ok(()),
        (1..=27, _) => Err(CorruptNvList::Count { code, count, at }),
        _ => Err(CorruptNvList::Type { code, at }),
    }
}

macro_rules! from {
    ($($of:ty => $variant:ident),* $(,)?) => {
        $(impl From<$of> for NvValue {
            fn from(value: $of) -> Self {
                Self::$variant(value.into())
            }
        })*
    };
}

from! {
    u32 => Uint32,
    i64 => Int64,
    u64 => Uint64,
    bool => BooleanValue,
    &str => String,
    NvString => String,
    NvList => List,
    Vec<NvList> => ListArray,
    Vec<u64> => Uint64Array,
    Vec<NvString> => StringArray,
    Vec<u8> => ByteArray,
}
