//! Derives the 32-byte wrapping key from the user's key (spec 08 §3).
//!
//! | Format | Material | Wrapping key |
//! |---|---|---|
//! | raw | exactly 32 bytes, no newline | the bytes |
//! | hex | first line: 64 digits of either case | the 32 bytes |
//! | passphrase | first line, up to a NUL; `\r` counts | PBKDF2-HMAC-SHA1 of it |
//!
//! A passphrase may have any length when it is loaded: the limits are younger than some
//! passphrases, and a raw receive accepts any number of iterations except zero.

use pbkdf2::pbkdf2_hmac;
use sha1::Sha1;
use zeroize::Zeroizing;

use super::{KeyError, WRAPPING_KEY_BYTES};

/// Fewest bytes of a new passphrase.
const PASSPHRASE_MIN_BYTES: usize = 8;
/// Most bytes of a new passphrase.
const PASSPHRASE_MAX_BYTES: usize = 512;
/// Fewest iterations of a new passphrase.
const ITERATIONS_MIN: u64 = 100_000;
/// Characters of a hex key.
const HEX_DIGITS: usize = 2 * WRAPPING_KEY_BYTES;

/// Format of the user's key (`keyformat`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub enum KeyFormat {
    /// 32 bytes.
    Raw = 1,
    /// 64 hexadecimal digits.
    Hex = 2,
    /// A line of text.
    Passphrase = 3,
}

impl KeyFormat {
    /// The format with a stored number; 0 is `none` and never stored with a key.
    pub fn from_value(value: u64) -> Result<KeyFormat, KeyError> {
        match value {
            1 => Ok(KeyFormat::Raw),
            2 => Ok(KeyFormat::Hex),
            3 => Ok(KeyFormat::Passphrase),
            other => Err(KeyError::UnknownFormat(other)),
        }
    }

    /// Its number on disk.
    pub const fn value(self) -> u64 {
        self as u64
    }

    /// Its name as a property value.
    pub const fn name(self) -> &'static str {
        match self {
            KeyFormat::Raw => "raw",
            KeyFormat::Hex => "hex",
            KeyFormat::Passphrase => "passphrase",
        }
    }
}

/// PBKDF2 parameters of a passphrase; both zero for other formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pbkdf2 {
    /// `pbkdf2salt`; its little-endian bytes are the salt.
    pub salt: u64,
    /// `pbkdf2iters`.
    pub iterations: u64,
}

/// Whether the limits for new keys apply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// An existing key is loaded.
    Load,
    /// A new key is set.
    Set,
}

/// The user's key: wraps master keys, never encrypts data.
#[derive(Clone)]
pub struct WrappingKey(Zeroizing<[u8; WRAPPING_KEY_BYTES]>);

impl WrappingKey {
    /// A key from its bytes.
    pub fn from_bytes(bytes: [u8; WRAPPING_KEY_BYTES]) -> WrappingKey {
        WrappingKey(Zeroizing::new(bytes))
    }

    /// Derives the key from the contents of a key file, or from typed text. The time depends on
    /// `iterations`.
    pub fn from_material(
        format: KeyFormat,
        material: &[u8],
        pbkdf2: Pbkdf2,
        purpose: Purpose,
    ) -> Result<WrappingKey, KeyError> {
        let Pbkdf2 { salt, iterations } = pbkdf2;
        if format != KeyFormat::Passphrase && (salt != 0 || iterations != 0) {
            return Err(KeyError::UnexpectedPbkdf2 { salt, iterations });
        }
        if material.is_empty() {
            return Err(KeyError::Empty);
        }
        match format {
            KeyFormat::Raw => raw(material),
            KeyFormat::Hex => hex(first_line(material)),
            KeyFormat::Passphrase => passphrase(first_line(material), pbkdf2, purpose),
        }
    }

    pub(super) fn bytes(&self) -> &[u8; WRAPPING_KEY_BYTES] {
        &self.0
    }
}

impl std::fmt::Debug for WrappingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WrappingKey(..)")
    }
}

/// The bytes before the first newline.
fn first_line(material: &[u8]) -> &[u8] {
    material.split(|byte| *byte == b'\n').next().unwrap_or(material)
}

fn raw(material: &[u8]) -> Result<WrappingKey, KeyError> {
    let bytes = material.try_into().map_err(|_| KeyError::RawLength { len: material.len() })?;
    Ok(WrappingKey::from_bytes(bytes))
}

fn hex(line: &[u8]) -> Result<WrappingKey, KeyError> {
    if line.len() != HEX_DIGITS {
        return Err(KeyError::HexLength { len: line.len() });
    }
    let mut key = WrappingKey::from_bytes([0; WRAPPING_KEY_BYTES]);
    for (position, digit) in line.iter().enumerate() {
        let value = char::from(*digit).to_digit(16).ok_or(KeyError::HexDigit { position })? as u8;
        if let Some(byte) = key.0.get_mut(position / 2) {
            *byte = *byte << 4 | value;
        }
    }
    Ok(key)
}

fn passphrase(line: &[u8], pbkdf2: Pbkdf2, purpose: Purpose) -> Result<WrappingKey, KeyError> {
    let text = line.split(|byte| *byte == 0).next().unwrap_or(line);
    let least = if purpose == Purpose::Set { ITERATIONS_MIN } else { 1 };
    let iterations = pbkdf2.iterations;
    let rounds = u32::try_from(iterations)
        .ok()
        .filter(|_| iterations >= least)
        .ok_or(KeyError::Iterations { iterations, least })?;
    let allowed = PASSPHRASE_MIN_BYTES..=PASSPHRASE_MAX_BYTES;
    if purpose == Purpose::Set && !allowed.contains(&text.len()) {
        return Err(KeyError::PassphraseLength { len: text.len() });
    }
    let mut key = WrappingKey::from_bytes([0; WRAPPING_KEY_BYTES]);
    pbkdf2_hmac::<Sha1>(text, &pbkdf2.salt.to_le_bytes(), rounds, &mut *key.0);
    Ok(key)
}
