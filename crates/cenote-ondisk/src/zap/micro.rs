//! A micro ZAP: the whole object is one block of 64-byte slots (spec 03 §2).
//!
//! ```text
//!    0  type | salt | normflags | 40 bytes zero
//!   64  value u64 | cd u32 | 0 u16 | name, NUL-terminated, up to 49 bytes      slot 0
//!  128  …                                                                      slot 1
//! ```
//!
//! A slot is free if its name is empty. Slots have no order; hashes are not stored. The block may
//! have any size that is a multiple of 512.

use super::{BLOCK_MICRO, CorruptZap, Entry, Key, NormFlags, Value, ZapFlags, ZapHash};
use crate::words;

/// Bytes of the header and of a slot.
pub const SLOT_LEN: usize = 64;
/// Bytes of the longest name, without NUL.
pub const NAME_LEN_MAX: usize = 49;

/// A micro ZAP's block, checked.
#[derive(Debug, Clone, Copy)]
pub struct MicroZap<'a> {
    slots: &'a [[u8; SLOT_LEN]],
    hash: ZapHash,
}

/// A slot in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MicroEntry<'a> {
    /// Number of the slot.
    pub slot: usize,
    /// Name, without NUL.
    pub name: &'a [u8],
    /// Value.
    pub value: u64,
    /// Distinguishes names with equal hash.
    pub cd: u32,
}

impl<'a> MicroZap<'a> {
    /// Decodes the block of a micro ZAP.
    pub fn decode(block: &'a [u8]) -> Result<Self, CorruptZap> {
        let (chunks, _partial) = block.as_chunks::<SLOT_LEN>();
        let Some((header, slots)) = chunks.split_first() else {
            return Err(CorruptZap::BlockSize { len: block.len() });
        };
        let [kind, salt, normflags] = words::padded(header);
        if kind != BLOCK_MICRO {
            return Err(CorruptZap::BlockType { found: kind });
        }
        let normflags = NormFlags::from_bits_retain(normflags);
        Ok(Self { slots, hash: ZapHash { salt, normflags, flags: ZapFlags::empty() } })
    }

    /// Salt, normalization; the hash has 28 bits.
    #[must_use]
    pub const fn hash(&self) -> ZapHash {
        self.hash
    }

    /// Number of slots, in use or free.
    #[must_use]
    pub const fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// The slots in use, in slot order.
    pub fn slots(&self) -> impl Iterator<Item = MicroEntry<'a>> + use<'a> {
        self.slots.iter().enumerate().filter_map(|(slot, bytes)| MicroEntry::decode(slot, bytes))
    }

    /// The entry with exactly this name.
    #[must_use]
    pub fn get(&self, name: &[u8]) -> Option<MicroEntry<'a>> {
        self.slots().find(|entry| entry.name == name)
    }

    /// All entries in cursor order.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries: Vec<Entry> = self.slots().map(|slot| self.entry(&slot)).collect();
        entries.sort_by_key(Entry::cursor);
        entries
    }

    fn entry(&self, slot: &MicroEntry<'_>) -> Entry {
        Entry {
            hash: self.hash.name(slot.name),
            cd: slot.cd,
            key: Key::Name(slot.name.to_vec()),
            value: Value::U64(slot.value),
        }
    }
}

impl<'a> MicroEntry<'a> {
    fn decode(slot: usize, bytes: &'a [u8; SLOT_LEN]) -> Option<Self> {
        let (head, name) = bytes.split_first_chunk::<14>()?;
        // A name that fills the field has lost its NUL; it is read without the last byte.
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(NAME_LEN_MAX);
        let name = name.get(..end).filter(|name| !name.is_empty())?;
        let (value, cd) = (words::u64_at(head, 0)?, words::u32_at(head, 8)?);
        Some(Self { slot, name, value, cd })
    }

    /// The bytes of a slot; `None` if the name does not fit or is empty.
    #[must_use]
    pub fn encode(&self) -> Option<[u8; SLOT_LEN]> {
        if self.name.is_empty() || self.name.len() > NAME_LEN_MAX || self.name.contains(&0) {
            return None;
        }
        let mut bytes = Vec::with_capacity(SLOT_LEN);
        bytes.extend_from_slice(&self.value.to_le_bytes());
        bytes.extend_from_slice(&self.cd.to_le_bytes());
        bytes.extend_from_slice(&[0, 0]);
        bytes.extend_from_slice(self.name);
        bytes.resize(SLOT_LEN, 0);
        bytes.try_into().ok()
    }
}

/// The header of a micro ZAP, 64 bytes.
#[must_use]
pub fn encode_header(salt: u64, normflags: NormFlags) -> Vec<u8> {
    words::to_bytes(&[BLOCK_MICRO, salt, normflags.bits(), 0, 0, 0, 0, 0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn block(salt: u64, rows: &BTreeMap<String, u64>, size: usize) -> Vec<u8> {
        let mut block = encode_header(salt, NormFlags::empty());
        for (slot, (name, value)) in rows.iter().enumerate() {
            let entry = MicroEntry { slot, name: name.as_bytes(), value: *value, cd: 0 };
            block.extend_from_slice(&entry.encode().unwrap());
        }
        block.resize(size.max(block.len()), 0);
        block
    }

    /// Slot of spec 03 §17: root directory, regular file "zstd", object 2.
    #[test]
    fn a_real_slot() {
        let mut slot = [0; SLOT_LEN];
        slot[..8].copy_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0x80]);
        slot[14..18].copy_from_slice(b"zstd");
        let entry = MicroEntry::decode(3, &slot).unwrap();
        assert_eq!((entry.name, entry.value, entry.cd), (&b"zstd"[..], 0x8000_0000_0000_0002, 0));
        assert_eq!(entry.encode(), Some(slot));
        assert_eq!(MicroEntry::decode(0, &[0; SLOT_LEN]), None);
    }

    #[test]
    fn refusals() {
        assert!(matches!(MicroZap::decode(&[0; 63]), Err(CorruptZap::BlockSize { len: 63 })));
        assert!(matches!(MicroZap::decode(&[0; 512]), Err(CorruptZap::BlockType { found: 0 })));
        let long = "n".repeat(50);
        let entry = MicroEntry { slot: 0, name: long.as_bytes(), value: 0, cd: 0 };
        assert_eq!(entry.encode(), None);
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(mut bytes: Vec<u8>) {
            let _ = MicroZap::decode(&bytes).map(|zap| zap.entries());
            if let Some(head) = bytes.first_chunk_mut::<8>() {
                *head = BLOCK_MICRO.to_le_bytes();
            }
            let _ = MicroZap::decode(&bytes).map(|zap| zap.entries());
        }

        #[test]
        fn is_a_map_in_hash_order(
            salt in 1_u64..,
            rows in proptest::collection::btree_map("[a-zA-Z0-9._-]{1,49}", any::<u64>(), 0..60),
        ) {
            let block = block(salt, &rows, 512);
            let zap = MicroZap::decode(&block).unwrap();
            for (name, value) in &rows {
                prop_assert_eq!(zap.get(name.as_bytes()).unwrap().value, *value);
            }
            let entries = zap.entries();
            prop_assert!(entries.is_sorted_by_key(Entry::cursor));
            let read: BTreeMap<String, u64> = entries
                .iter()
                .map(|e| {
                    let name = String::from_utf8(e.key.name().unwrap().to_vec()).unwrap();
                    (name, e.value.single().unwrap())
                })
                .collect();
            prop_assert_eq!(read, rows);
        }
    }
}
