//! Keys, values and entries of both kinds of ZAP.
//!
//! Nearly all values in a pool are one u64, which therefore needs no allocation. Integers in a
//! leaf's arrays are most significant byte first whatever the byte order of the pool, so an array
//! is kept as those bytes and widened when read, without sign extension (spec 03 §1, §4.3).

use std::borrow::Cow;

/// A key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A name, without NUL, as stored.
    Name(Vec<u8>),
    /// Words (dedup and clone tables).
    Words(Vec<u64>),
}

impl Key {
    /// The bytes of a name; `None` for words.
    #[must_use]
    pub fn name(&self) -> Option<&[u8]> {
        match self {
            Self::Name(name) => Some(name),
            Self::Words(_) => None,
        }
    }

    /// The words; `None` for a name.
    #[must_use]
    pub fn words(&self) -> Option<&[u64]> {
        match self {
            Self::Name(_) => None,
            Self::Words(words) => Some(words),
        }
    }
}

/// A borrowed key, for look-ups and insertions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRef<'a> {
    /// A name, without NUL.
    Name(&'a [u8]),
    /// Words.
    Words(&'a [u64]),
}

impl KeyRef<'_> {
    /// The bytes as stored in a leaf: a name with its NUL, words most significant byte first.
    #[must_use]
    pub fn stored(&self) -> Vec<u8> {
        match self {
            Self::Name(name) => name.iter().copied().chain([0]).collect(),
            Self::Words(words) => words.iter().flat_map(|word| word.to_be_bytes()).collect(),
        }
    }

    /// Bytes of [`Self::stored`].
    #[must_use]
    pub const fn stored_len(&self) -> usize {
        match self {
            Self::Name(name) => name.len().saturating_add(1),
            Self::Words(words) => words.len().saturating_mul(8),
        }
    }

    /// Length as stored in an entry: bytes with NUL, or words.
    #[must_use]
    pub const fn integer_count(&self) -> usize {
        match self {
            Self::Name(name) => name.len().saturating_add(1),
            Self::Words(words) => words.len(),
        }
    }
}

impl<'a> From<&'a str> for KeyRef<'a> {
    fn from(name: &'a str) -> Self {
        Self::Name(name.as_bytes())
    }
}

impl<'a> From<&'a String> for KeyRef<'a> {
    fn from(name: &'a String) -> Self {
        Self::Name(name.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for KeyRef<'a> {
    fn from(name: &'a [u8]) -> Self {
        Self::Name(name)
    }
}

impl<'a> From<&'a Vec<u8>> for KeyRef<'a> {
    fn from(name: &'a Vec<u8>) -> Self {
        Self::Name(name)
    }
}

impl<'a> From<&'a [u64]> for KeyRef<'a> {
    fn from(words: &'a [u64]) -> Self {
        Self::Words(words)
    }
}

impl<'a> From<&'a Key> for KeyRef<'a> {
    fn from(key: &'a Key) -> Self {
        match key {
            Key::Name(name) => Self::Name(name),
            Key::Words(words) => Self::Words(words),
        }
    }
}

/// A value: an array of integers of 1, 2, 4 or 8 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// One u64.
    U64(u64),
    /// Anything else.
    Array {
        /// 1, 2, 4 or 8.
        integer_size: u8,
        /// Integers, most significant byte first; a multiple of the size.
        bytes: Vec<u8>,
    },
}

impl Value {
    /// A value of bytes (a string must include its NUL).
    #[must_use]
    pub fn bytes_of(bytes: &[u8]) -> Self {
        Self::Array { integer_size: 1, bytes: bytes.to_vec() }
    }

    /// A value of several u64.
    #[must_use]
    pub fn words_of(words: &[u64]) -> Self {
        match words {
            [word] => Self::U64(*word),
            _ => Self::Array {
                integer_size: 8,
                bytes: words.iter().flat_map(|word| word.to_be_bytes()).collect(),
            },
        }
    }

    /// Bytes of one integer.
    #[must_use]
    pub const fn integer_size(&self) -> u8 {
        match self {
            Self::U64(_) => 8,
            Self::Array { integer_size, .. } => *integer_size,
        }
    }

    /// Number of integers; 0 is legal.
    #[must_use]
    pub fn count(&self) -> usize {
        match self {
            Self::U64(_) => 1,
            Self::Array { integer_size, bytes } => {
                bytes.len().checked_div(usize::from(*integer_size)).unwrap_or(0)
            }
        }
    }

    /// The bytes as stored in a leaf: integers most significant byte first.
    #[must_use]
    pub fn stored(&self) -> Cow<'_, [u8]> {
        match self {
            Self::U64(word) => Cow::Owned(word.to_be_bytes().to_vec()),
            Self::Array { bytes, .. } => Cow::Borrowed(bytes),
        }
    }

    /// Whether the integer size is valid and the bytes are whole integers.
    #[must_use]
    pub fn is_well_formed(&self) -> bool {
        match self {
            Self::U64(_) => true,
            Self::Array { integer_size, bytes } => {
                matches!(integer_size, 1 | 2 | 4 | 8)
                    && bytes.len().is_multiple_of(usize::from(*integer_size))
            }
        }
    }

    /// A string with its NUL.
    #[must_use]
    pub fn text(text: &str) -> Self {
        let bytes = text.bytes().chain([0]).collect();
        Self::Array { integer_size: 1, bytes }
    }

    /// The integers, widened.
    #[must_use]
    pub fn words(&self) -> Vec<u64> {
        match self {
            Self::U64(word) => vec![*word],
            Self::Array { integer_size, bytes } => {
                bytes.chunks_exact(usize::from(*integer_size).max(1)).map(widen).collect()
            }
        }
    }

    /// The first integer, widened; `None` if there is none.
    #[must_use]
    pub fn first(&self) -> Option<u64> {
        match self {
            Self::U64(word) => Some(*word),
            Self::Array { integer_size, bytes } => {
                bytes.get(..usize::from(*integer_size).max(1)).map(widen)
            }
        }
    }

    /// The integer of a value that has exactly one.
    #[must_use]
    pub fn single(&self) -> Option<u64> {
        if self.count() == 1 { self.first() } else { None }
    }

    /// The bytes of a value of one-byte integers.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Array { integer_size: 1, bytes } => Some(bytes),
            _ => None,
        }
    }

    /// The text of a string value: one-byte integers up to the first NUL, valid UTF-8.
    #[must_use]
    pub fn as_str(&self) -> Option<&str> {
        let text = self.as_bytes()?.split(|byte| *byte == 0).next()?;
        std::str::from_utf8(text).ok()
    }
}

impl From<u64> for Value {
    fn from(word: u64) -> Self {
        Self::U64(word)
    }
}

fn widen(integer: &[u8]) -> u64 {
    integer.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

/// An entry with its position in the order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Truncated hash of the key.
    pub hash: u64,
    /// Distinguishes entries with equal hash.
    pub cd: u32,
    /// Name or words.
    pub key: Key,
    /// Integers.
    pub value: Value,
}

impl Entry {
    /// The entry's position.
    #[must_use]
    pub const fn cursor(&self) -> super::Cursor {
        super::Cursor { hash: self.hash, cd: self.cd }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening() {
        let shorts = Value::Array { integer_size: 2, bytes: vec![0, 5, 0xff, 0xff] };
        assert_eq!(shorts.words(), [5, 0xffff]);
        assert_eq!((shorts.first(), shorts.single(), shorts.count()), (Some(5), None, 2));
        assert_eq!(Value::words_of(&[1, 2]).words(), [1, 2]);
        assert_eq!(Value::words_of(&[9]), Value::U64(9));
        let empty = Value::words_of(&[]);
        assert_eq!((empty.count(), empty.first(), empty.words()), (0, None, vec![]));
        assert_eq!(Value::bytes_of(b"special\0").as_str(), Some("special"));
        assert_eq!(Value::U64(1).as_str(), None);
        let odd = Value::Array { integer_size: 0, bytes: vec![1] };
        assert_eq!(odd.count(), 0);
    }
}
