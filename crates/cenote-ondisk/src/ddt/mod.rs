//! The dedup table: stores, statistics, logs (spec 08 §21-§24).
//!
//! ```text
//!   pool directory   DDT-<c>-zap-<class>  (legacy)      DDT-statistics
//!                    DDT-<c> --> version, flags, DDT-<c>-zap-<class>, DDT-log-<c>-0/1   (FDT)
//!   store            fat ZAP: five words --> version byte + phys, usually ZLE-compressed
//! ```
//!
//! `<c>` is the name of a checksum, one table for each. The key is the checksum and the sizes of
//! the block; the phys holds the addresses of its copies and its reference count: 72 bytes in a
//! flat table, four slots in 256 bytes in a legacy one. Decompression is not done here:
//! [`DdtValue`] says how the payload is stored, and [`DdtPhys::decode`] decodes the decompressed
//! bytes.
//!
//! A value has its own byte order, which also applies to flat entries.

pub mod histogram;
pub mod log;

pub use histogram::{DdtHistogram, DdtStat};
pub use log::{LogFlags, LogPhys, LogRecord};

use crate::bits::Bits;
use crate::blkptr::{BlockPtr, Dva, NewBlock, NewProtection};
use crate::endian::Endian;
use crate::object_type::ObjectType;
use crate::words;

/// Pool directory: ZAP of statistics.
pub const DDT_STATISTICS: &str = "DDT-statistics";
/// FDT directory: u64, 1.
pub const DDT_DIR_VERSION: &str = "version";
/// FDT directory: u64 of [`DDT_FLAG_FLAT`] and [`DDT_FLAG_LOG`].
pub const DDT_DIR_FLAGS: &str = "flags";
/// Entries are flat.
pub const DDT_FLAG_FLAT: u64 = 1;
/// Changes go to logs first.
pub const DDT_FLAG_LOG: u64 = 2;
/// Words of a key.
pub const DDT_KEY_WORDS: usize = 5;
/// Bytes of a flat phys.
pub const DDT_PHYS_FLAT_LEN: usize = 72;
/// Bytes of a legacy phys.
pub const DDT_PHYS_TRAD_LEN: usize = 256;
/// `level` of ZLE in a store.
pub const DDT_ZLE_LEVEL: u8 = 64;

/// Why bytes of a dedup table are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptDdt {
    /// A key does not have five words.
    #[error("dedup table: key of {count} words, expected 5")]
    Key {
        /// Words found.
        count: usize,
    },
    /// A value has no version byte, or names an unknown compression.
    #[error("dedup table: value of {len} bytes with compression {compression}")]
    Value {
        /// Bytes found.
        len: usize,
        /// Compression in the version byte.
        compression: u8,
    },
    /// The phys does not have the length of the table's layout.
    #[error("dedup table: phys of {len} bytes, expected {expected}")]
    Phys {
        /// Bytes found.
        len: usize,
        /// Bytes of the layout.
        expected: usize,
    },
    /// Statistics of a wrong number of words.
    #[error("dedup statistics: {count} words, expected 512")]
    Statistics {
        /// Words found.
        count: usize,
    },
    /// A log's header.
    #[error("dedup log: header of {len} bytes, version {version}")]
    LogHeader {
        /// Bytes found.
        len: usize,
        /// Version found.
        version: u8,
    },
    /// A log record of an unknown type, or beyond its block.
    #[error("dedup log: record at {offset} of type {kind}, {len} bytes")]
    LogRecord {
        /// Where it starts in the block.
        offset: usize,
        /// Type found.
        kind: u8,
        /// Length found.
        len: usize,
    },
}

/// The store of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DdtClass {
    /// Obsolete.
    Ditto = 0,
    /// Referenced more than once.
    Duplicate = 1,
    /// Referenced once.
    Unique = 2,
}

impl DdtClass {
    /// All classes.
    pub const ALL: [Self; 3] = [Self::Ditto, Self::Duplicate, Self::Unique];

    /// Name in object names.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ditto => "ditto",
            Self::Duplicate => "duplicate",
            Self::Unique => "unique",
        }
    }

    /// From a stored number.
    #[must_use]
    pub const fn from_id(id: u8) -> Option<Self> {
        Some(match id {
            0 => Self::Ditto,
            1 => Self::Duplicate,
            2 => Self::Unique,
            _ => return None,
        })
    }
}

/// Name of a store object.
#[must_use]
pub fn store_name(checksum: &str, class: DdtClass) -> String {
    format!("DDT-{checksum}-zap-{}", class.name())
}

/// Name of a log object, 0 or 1.
#[must_use]
pub fn log_name(checksum: &str, index: u8) -> String {
    format!("DDT-log-{checksum}-{index}")
}

const LSIZE_MINUS_1: Bits<0, 16> = Bits;
const PSIZE_MINUS_1: Bits<16, 16> = Bits;
const COMPRESSION: Bits<32, 7> = Bits;
const IS_ENCRYPTED: Bits<39, 1> = Bits;

/// Key of an entry (`ddt_key_t`). Keys compare as five words, the first most significant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DdtKey {
    /// Checksum words of the block pointer.
    pub checksum: [u64; 4],
    /// Sizes, compression, encryption.
    pub prop: u64,
}

impl DdtKey {
    /// From the words of a ZAP key.
    pub const fn from_words(words: &[u64]) -> Result<Self, CorruptDdt> {
        let [a, b, c, d, prop] = *words else {
            return Err(CorruptDdt::Key { count: words.len() });
        };
        Ok(Self { checksum: [a, b, c, d], prop })
    }

    /// The words of the ZAP key.
    #[must_use]
    pub const fn to_words(&self) -> [u64; DDT_KEY_WORDS] {
        let [a, b, c, d] = self.checksum;
        [a, b, c, d, self.prop]
    }

    /// The key of a block.
    #[must_use]
    pub fn of(bp: &BlockPtr) -> Self {
        let sectors = |size: u64| (size >> 9).saturating_sub(1);
        let prop = LSIZE_MINUS_1
            .with(0, sectors(bp.lsize()))
            .and_then(|prop| PSIZE_MINUS_1.with(prop, sectors(bp.psize())))
            .and_then(|prop| COMPRESSION.with(prop, bp.compression_id().into()))
            .and_then(|prop| IS_ENCRYPTED.with(prop, bp.is_protected().into()));
        Self { checksum: bp.checksum(), prop: prop.unwrap_or(0) }
    }

    /// Logical size.
    #[must_use]
    pub const fn lsize(&self) -> u64 {
        (LSIZE_MINUS_1.get(self.prop) + 1) << 9
    }

    /// Physical size.
    #[must_use]
    pub const fn psize(&self) -> u64 {
        (PSIZE_MINUS_1.get(self.prop) + 1) << 9
    }

    /// Compression number.
    #[must_use]
    pub const fn compression_id(&self) -> u8 {
        COMPRESSION.get(self.prop) as u8
    }

    /// Whether the block is encrypted.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        IS_ENCRYPTED.is_set(self.prop)
    }
}

/// The value of a store's entry, split but not decompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DdtValue<'a> {
    /// Byte order of the phys.
    pub order: Endian,
    /// Whether the payload is ZLE at [`DDT_ZLE_LEVEL`]; otherwise it is the phys.
    pub is_zle: bool,
    /// Bytes behind the version byte.
    pub payload: &'a [u8],
}

impl<'a> DdtValue<'a> {
    /// Splits a value.
    pub const fn decode(value: &'a [u8]) -> Result<Self, CorruptDdt> {
        let Some((version, payload)) = value.split_first() else {
            return Err(CorruptDdt::Value { len: 0, compression: 0 });
        };
        let is_zle = match *version & 0x7f {
            14 => true,
            2 => false,
            compression => return Err(CorruptDdt::Value { len: value.len(), compression }),
        };
        let order = if *version & 0x80 != 0 { Endian::Little } else { Endian::Big };
        Ok(Self { order, is_zle, payload })
    }
}

/// Layout of a table's entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DdtLayout {
    /// Four slots.
    Legacy,
    /// One phys with a time.
    Flat,
}

impl DdtLayout {
    /// Bytes of a phys.
    #[must_use]
    pub const fn phys_len(self) -> usize {
        match self {
            Self::Legacy => DDT_PHYS_TRAD_LEN,
            Self::Flat => DDT_PHYS_FLAT_LEN,
        }
    }
}

/// One set of copies of a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DdtSlot {
    /// DVAs as stored; of an encrypted block the third holds salt and IV.
    pub dva_words: [[u64; 2]; 3],
    /// References.
    pub refcount: u64,
    /// Txg of the write; 0 = the slot is empty.
    pub birth: u64,
}

impl DdtSlot {
    const fn from_words(w: [u64; 8]) -> Self {
        let dva_words = [[w[0], w[1]], [w[2], w[3]], [w[4], w[5]]];
        Self { dva_words, refcount: w[6], birth: w[7] }
    }

    const fn to_words(self) -> [u64; 8] {
        let [first, second, third] = self.dva_words;
        let (refcount, birth) = (self.refcount, self.birth);
        [first[0], first[1], second[0], second[1], third[0], third[1], refcount, birth]
    }

    /// Whether the slot is in use.
    #[must_use]
    pub const fn is_used(&self) -> bool {
        self.birth != 0
    }

    /// The valid DVAs of an entry whose key is given.
    pub fn dvas(&self, key: &DdtKey) -> impl Iterator<Item = Dva> + '_ {
        let count = if key.is_encrypted() { 2 } else { 3 };
        self.dva_words.iter().take(count).map(|w| Dva::from_words(*w)).filter(Dva::is_valid)
    }

    /// Whether a block pointer refers to these copies: first DVA and physical birth are equal.
    #[must_use]
    pub fn matches(&self, bp: &BlockPtr) -> bool {
        let [[first, second], ..] = self.dva_words;
        let [w0, w1, ..] = *bp.words();
        self.is_used() && (first, second) == (w0, w1) && self.birth == bp.physical_birth()
    }

    /// Returns the block pointer with all addresses of these copies: the entry may have been
    /// extended since the pointer was written. Words that hold salt and IV are not changed.
    #[must_use]
    pub fn extend(&self, bp: &BlockPtr) -> BlockPtr {
        let mut words = *bp.words();
        let count = if bp.is_protected() { 2 } else { 3 };
        for (pair, dva) in words.as_chunks_mut::<2>().0.iter_mut().zip(&self.dva_words).take(count)
        {
            *pair = *dva;
        }
        BlockPtr::from_words(words)
    }

    /// A pointer to the copies themselves, with which they are freed: without object type, dedup
    /// bit and checksum. `None` if it cannot be encoded.
    #[must_use]
    pub fn to_block_ptr(&self, key: &DdtKey) -> Option<BlockPtr> {
        let dvas: Vec<Dva> = self.dvas(key).collect();
        let new = NewBlock {
            lsize: key.lsize(),
            psize: key.psize(),
            object_type: ObjectType::NONE,
            level: 0,
            compression: key.compression_id(),
            checksum_type: 0,
            checksum: key.checksum,
            protection: NewProtection::None,
            dvas: &dvas,
            birth: self.birth,
            fill: 1,
        };
        new.to_block_ptr()
    }
}

/// An entry's phys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DdtPhys {
    /// Slots for ditto (obsolete) and 1, 2, 3 copies.
    Legacy([DdtSlot; 4]),
    /// One slot.
    Flat {
        /// The copies.
        slot: DdtSlot,
        /// Seconds since 1970 of the entry's last change.
        class_start: u64,
    },
}

impl DdtPhys {
    /// Decodes a phys (after decompression) in its byte order.
    pub fn decode(bytes: &[u8], layout: DdtLayout, order: Endian) -> Result<Self, CorruptDdt> {
        let bad = CorruptDdt::Phys { len: bytes.len(), expected: layout.phys_len() };
        let (chunks, partial) = bytes.as_chunks::<8>();
        if bytes.len() != layout.phys_len() || !partial.is_empty() {
            return Err(bad);
        }
        let mut words = chunks.iter().map(|word| order.u64(*word));
        let mut slot = || {
            let mut w = [0; 8];
            for word in &mut w {
                *word = words.next().unwrap_or(0);
            }
            DdtSlot::from_words(w)
        };
        Ok(match layout {
            DdtLayout::Legacy => Self::Legacy([slot(), slot(), slot(), slot()]),
            DdtLayout::Flat => Self::Flat { slot: slot(), class_start: words.next().unwrap_or(0) },
        })
    }

    /// The bytes, little-endian and not compressed.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Legacy(slots) => {
                slots.iter().flat_map(|slot| words::to_bytes(&slot.to_words())).collect()
            }
            Self::Flat { slot, class_start } => {
                let mut bytes = words::to_bytes(&slot.to_words());
                bytes.extend(class_start.to_le_bytes());
                bytes
            }
        }
    }

    /// All slots, used or not.
    #[must_use]
    pub const fn slots(&self) -> &[DdtSlot] {
        match self {
            Self::Legacy(slots) => slots,
            Self::Flat { slot, .. } => std::slice::from_ref(slot),
        }
    }

    /// References over all slots.
    #[must_use]
    pub fn refcount(&self) -> u64 {
        self.slots().iter().fold(0, |sum, slot| sum.saturating_add(slot.refcount))
    }

    /// The slot to which a block pointer refers.
    #[must_use]
    pub fn slot_of(&self, bp: &BlockPtr) -> Option<&DdtSlot> {
        self.slots().iter().find(|slot| slot.matches(bp))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Spec 08 §22.
    #[test]
    fn a_real_key() {
        let words = [
            0x039d_7877_1991_7e18,
            0x804c_6d2e_5088_65db,
            0x7bb1_9c18_7d22_757d,
            0xf2d5_9be4_963c_e9c0,
            0x0000_000f_0072_00ff,
        ];
        let key = DdtKey::from_words(&words).unwrap();
        assert_eq!((key.lsize(), key.psize()), (128 << 10, 0x73 << 9));
        assert_eq!((key.compression_id(), key.is_encrypted()), (15, false));
        assert_eq!(key.to_words(), words);
        assert_eq!(DdtKey::from_words(&words[1..]), Err(CorruptDdt::Key { count: 4 }));
    }

    #[test]
    fn names() {
        assert_eq!(store_name("sha256", DdtClass::Duplicate), "DDT-sha256-zap-duplicate");
        assert_eq!(log_name("blake3", 1), "DDT-log-blake3-1");
    }

    #[test]
    fn a_flat_value_in_both_orders() {
        for (version, order) in [(0x82_u8, Endian::Little), (2, Endian::Big)] {
            let mut value = vec![version];
            for word in [0x73_u64, 0x12e6, 0, 0, 0, 0, 3, 0x11, 0x6b01_018a] {
                value.extend(order.bytes64(word));
            }
            let parts = DdtValue::decode(&value).unwrap();
            assert_eq!((parts.order, parts.is_zle), (order, false));
            let phys = DdtPhys::decode(parts.payload, DdtLayout::Flat, order).unwrap();
            assert_eq!(phys.refcount(), 3);
            let DdtPhys::Flat { slot, class_start } = &phys else { panic!("flat") };
            assert_eq!((slot.birth, *class_start), (0x11, 0x6b01_018a));
            let again = DdtPhys::decode(&phys.encode(), DdtLayout::Flat, Endian::Little);
            assert_eq!(again.as_ref(), Ok(&phys));
        }
        assert_eq!(
            DdtValue::decode(&[0x8f, 1]),
            Err(CorruptDdt::Value { len: 2, compression: 15 })
        );
    }

    /// The expansion of the legacy value of spec 08 §22.
    #[test]
    fn a_legacy_entry() {
        let mut words_ = [0_u64; 32];
        words_[8..10].copy_from_slice(&[0x1_0000_0002, 0xa490]);
        words_[14..16].copy_from_slice(&[1, 0x180]);
        let bytes = words::to_bytes(&words_);
        let phys = DdtPhys::decode(&bytes, DdtLayout::Legacy, Endian::Little).unwrap();
        let key = DdtKey { checksum: [0; 4], prop: 0 };
        let used: Vec<_> = phys.slots().iter().filter(|slot| slot.is_used()).collect();
        assert_eq!(used.len(), 1);
        let dvas: Vec<Dva> = used[0].dvas(&key).collect();
        assert_eq!(dvas, [Dva { vdev: 1, offset: 0xa490 << 9, asize: 1024, gang: false }]);
        let mut bp = [0; 16];
        bp[..2].copy_from_slice(&[0x1_0000_0002, 0xa490]);
        bp[10] = 0x180;
        assert!(phys.slot_of(&BlockPtr::from_words(bp)).is_some());
        bp[10] = 0x181;
        assert!(phys.slot_of(&BlockPtr::from_words(bp)).is_none());
        assert_eq!(phys.encode(), bytes);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes: Vec<u8>, words in proptest::collection::vec(any::<u64>(), 0..8)) {
            let _ = DdtKey::from_words(&words).map(|key| (key.lsize(), key.psize()));
            if let Ok(value) = DdtValue::decode(&bytes) {
                let _ = DdtPhys::decode(value.payload, DdtLayout::Flat, value.order);
            }
        }
    }
}
