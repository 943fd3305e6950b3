//! The contribution of a block pointer to a MAC: the portable record (spec 08 §8, §10).
//!
//!       0        8                       24               32
//!      +--------+-----------------------+----------------+
//!      | w6, LE |   MAC of the block    |       0        |
//!      | masked |   that it points to   | not version 0  |
//!      +--------+-----------------------+----------------+
//!
//! A raw receive on another machine allocates, births and checksums the same blocks differently, so
//! of the sixteen words only the property word and the MAC are authenticated, and of the property
//! word only the bits that such a machine must not change. Above level 0 that is even less: the
//! receiver chooses the compression of indirect blocks itself.
//!
//! A hole contributes zeros. Its MAC words are zero on disk; they are hashed as found, so a hole
//! with other contents does not verify.

use sha2::{Digest, Sha512};
use subtle::ConstantTimeEq;

use super::{ByteOrder, CryptError, IV_BYTES, KEY_VERSION_CURRENT, MAC_BYTES, SALT_BYTES};

/// Bytes of a block pointer.
pub(super) const POINTER_BYTES: usize = 128;
/// Words of a block pointer.
pub(super) const POINTER_WORDS: usize = 16;
/// Bytes of a record; version 0 omits the last eight.
const RECORD_BYTES: usize = 32;
const RECORD_V0_BYTES: usize = 24;

const PROPERTY_WORD: usize = 6;
const FILL_WORD: usize = 11;
const SALT_WORD: usize = 4;
const IV_WORD: usize = 5;
const MAC_WORD: usize = 14;

const PSIZE: u64 = 0xffff << 16;
const COMPRESSION: u64 = 0x7f << 32;
const EMBEDDED: u64 = 1 << 39;
const CHECKSUM: u64 = 0xff << 40;
const TYPE_SHIFT: u32 = 48;
const LEVEL_SHIFT: u32 = 56;
const LEVEL_MASK: u64 = 0x1f;
const DEDUP: u64 = 1 << 62;
const LITTLE: u64 = 1 << 63;

/// Object type of an object set.
const OBJSET_TYPE: u8 = 11;

/// Whether blocks (and bonuses) of an object type are encrypted in an encrypted object set.
///
/// The types of the original numbering are listed; newer ones have a bit for it (spec 02 §8).
pub const fn is_encrypted_type(object_type: u8) -> bool {
    const NEW_STYLE: u8 = 0x80;
    const NEW_STYLE_ENCRYPTED: u8 = 0x20;
    if object_type & NEW_STYLE != 0 {
        return object_type & NEW_STYLE_ENCRYPTED != 0;
    }
    matches!(
        object_type,
        9 | 10 | 18 | 19 | 20 | 22 | 23 | 25 | 26 | 33..=35 | 39 | 40 | 44..=47 | 49
    )
}

/// The sixteen words of a pointer, decoded in the byte order of the block that contains it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pointer {
    words: [u64; POINTER_WORDS],
}

impl Pointer {
    pub(super) fn decode(order: ByteOrder, bytes: &[u8; POINTER_BYTES]) -> Pointer {
        let mut words = [0; POINTER_WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = order.word(*bytes);
        }
        Pointer { words }
    }

    pub(super) const fn from_words(words: [u64; POINTER_WORDS]) -> Pointer {
        Pointer { words }
    }

    const fn property(&self) -> u64 {
        self.words[PROPERTY_WORD]
    }

    /// The byte order of the block that it points to.
    const fn target_order(&self) -> ByteOrder {
        if self.property() & LITTLE == 0 { ByteOrder::Big } else { ByteOrder::Little }
    }

    const fn is_hole(&self) -> bool {
        self.property() & EMBEDDED == 0 && self.words[0] == 0 && self.words[1] == 0
    }

    pub(super) fn salt(&self) -> [u8; SALT_BYTES] {
        self.target_order().bytes(self.words[SALT_WORD])
    }

    /// Eight bytes are a word of their own, four share one with the fill count.
    pub(super) fn iv(&self) -> [u8; IV_BYTES] {
        let order = self.target_order();
        let high = (self.words[FILL_WORD] >> 32) as u32;
        let tail = match order {
            ByteOrder::Little => high.to_le_bytes(),
            ByteOrder::Big => high.to_be_bytes(),
        };
        let mut iv = [0; IV_BYTES];
        for (to, from) in iv.iter_mut().zip(order.bytes(self.words[IV_WORD]).iter().chain(&tail)) {
            *to = *from;
        }
        iv
    }

    pub(super) fn mac(&self) -> [u8; MAC_BYTES] {
        let order = self.target_order();
        let halves = [self.words[MAC_WORD], self.words[MAC_WORD + 1]].map(|w| order.bytes(w));
        let mut mac = [0; MAC_BYTES];
        for (to, from) in mac.iter_mut().zip(halves.as_flattened()) {
            *to = *from;
        }
        mac
    }

    /// The bits of the property word that another machine must not change.
    const fn portable_property(&self, version: u64) -> u64 {
        let property = self.property();
        if version == 0 {
            return property & !(DEDUP | CHECKSUM | PSIZE);
        }
        if self.is_hole() {
            return 0;
        }
        if property >> LEVEL_SHIFT & LEVEL_MASK == 0 {
            property & !(DEDUP | CHECKSUM)
        } else {
            property & !(DEDUP | CHECKSUM | LITTLE | COMPRESSION | PSIZE)
        }
    }

    /// An object set stores its MACs inside.
    pub(super) fn record(&self, version: u64) -> Record {
        let is_objset = (self.property() >> TYPE_SHIFT) as u8 == OBJSET_TYPE;
        let mac = if is_objset { [0; MAC_BYTES] } else { self.mac() };
        let property = self.portable_property(version).to_le_bytes();
        let mut bytes = [0; RECORD_BYTES];
        for (to, from) in bytes.iter_mut().zip(property.iter().chain(&mac)) {
            *to = *from;
        }
        Record { bytes, is_short: version == 0 }
    }
}

/// The portable record of a pointer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    bytes: [u8; RECORD_BYTES],
    is_short: bool,
}

impl Record {
    pub(super) fn as_bytes(&self) -> &[u8] {
        if self.is_short { &self.bytes[..RECORD_V0_BYTES] } else { &self.bytes }
    }
}

/// The MAC of an uncompressed indirect block: an unkeyed hash over its records.
///
/// `order` is that of the words in `data` as passed: a block that was already swapped is
/// little-endian.
pub fn indirect_mac(
    version: u64,
    order: ByteOrder,
    data: &[u8],
) -> Result<[u8; MAC_BYTES], CryptError> {
    let (pointers, rest) = data.as_chunks::<POINTER_BYTES>();
    if !rest.is_empty() {
        return Err(CryptError::BlockLength { len: data.len(), unit: POINTER_BYTES });
    }
    let mut hash = Sha512::new();
    for bytes in pointers {
        hash.update(Pointer::decode(order, bytes).record(version).as_bytes());
    }
    Ok(truncated(&hash.finalize()))
}

/// Checks an uncompressed indirect block against the MAC in its pointer. Uses no key, so the key
/// version is unknown: both formats are tried.
pub fn verify_indirect(
    order: ByteOrder,
    data: &[u8],
    mac: &[u8; MAC_BYTES],
) -> Result<(), CryptError> {
    for version in [KEY_VERSION_CURRENT, 0] {
        if bool::from(indirect_mac(version, order, data)?.ct_eq(mac)) {
            return Ok(());
        }
    }
    Err(CryptError::IndirectMac)
}

/// The first bytes of a digest.
pub(super) fn truncated<const N: usize>(digest: &[u8]) -> [u8; N] {
    let mut short = [0; N];
    for (to, from) in short.iter_mut().zip(digest) {
        *to = *from;
    }
    short
}
