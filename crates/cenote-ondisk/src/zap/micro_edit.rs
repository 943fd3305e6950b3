//! Changes a micro ZAP (spec 03 §2).
//!
//! A change affects one slot, so the owner of the object writes 64 bytes. Anything that a micro ZAP
//! cannot hold converts it to a fat one for good: a value that is not one u64, a name of 50 bytes
//! or more, more than the largest block, or so many names with one hash that no leaf could hold
//! them.

use super::leaf_edit::{entry_cost, lowest_free};
use super::micro::{self, MicroEntry, NAME_LEN_MAX, SLOT_LEN};
use super::{KeyRef, MicroZap, NormFlags, Value};

/// Largest block of a micro ZAP (without feature large_microzap).
pub const MICRO_LEN_MAX: usize = 128 << 10;
/// Bytes by which a full micro ZAP grows.
pub const MICRO_STEP: usize = 512;
/// Log2 of the block size of a fat ZAP converted from a micro ZAP.
pub const CONVERTED_SHIFT: u32 = 14;

/// The block of a micro ZAP without entries.
#[must_use]
pub fn format(size: usize, salt: u64, normflags: NormFlags) -> Vec<u8> {
    let mut block = micro::encode_header(salt, normflags);
    block.resize(size.max(SLOT_LEN), 0);
    block
}

/// Byte of the object at which a slot starts.
#[must_use]
pub const fn slot_offset(slot: usize) -> usize {
    slot.saturating_add(1).saturating_mul(SLOT_LEN)
}

/// Whether a slot can hold this entry.
#[must_use]
pub fn fits_slot(key: &KeyRef<'_>, value: &Value) -> bool {
    let is_word = value.integer_size() == 8 && value.count() == 1;
    matches!(key, KeyRef::Name(name) if name.len() <= NAME_LEN_MAX) && is_word
}

/// Whether a leaf of the fat ZAP that a micro ZAP may become can hold so many names with one hash.
#[must_use]
pub const fn fits_leaf(names: usize) -> bool {
    // One entry chunk, three for the name, one for the value.
    let cost = entry_cost(NAME_LEN_MAX + 1, 8);
    names.saturating_mul(cost) < super::leaf::chunk_count(CONVERTED_SHIFT)
}

/// Where a new name can be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// In this slot, with this cd.
    Slot {
        /// Number of the slot.
        slot: usize,
        /// Distinguishes names with equal hash.
        cd: u32,
    },
    /// Nowhere until the block is larger.
    Grow,
    /// Only in a fat ZAP: a leaf must be able to hold all names with one hash.
    Convert,
    /// The name exists.
    Taken,
}

impl MicroZap<'_> {
    /// Finds where a name can be stored.
    #[must_use]
    pub fn room_for(&self, name: &[u8]) -> Room {
        let hash = self.hash().name(name);
        let (mut free, mut next) = (None, 0_usize);
        let mut taken = Vec::new();
        for entry in self.slots() {
            if entry.name == name {
                return Room::Taken;
            }
            if entry.slot > next && free.is_none() {
                free = Some(next);
            }
            next = entry.slot.saturating_add(1);
            if self.hash().name(entry.name) == hash {
                taken.push(entry.cd);
            }
        }
        if !fits_leaf(taken.len().saturating_add(1)) {
            return Room::Convert;
        }
        match free.or((next < self.slot_count()).then_some(next)) {
            Some(slot) => Room::Slot { slot, cd: lowest_free(taken) },
            None => Room::Grow,
        }
    }
}

/// The bytes of a slot; zeros to clear it.
#[must_use]
pub fn slot_bytes(entry: Option<&MicroEntry<'_>>) -> [u8; SLOT_LEN] {
    entry.and_then(MicroEntry::encode).unwrap_or([0; SLOT_LEN])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_one_hash_get_different_cds() {
        let mut block = format(512, 9, NormFlags::TOUPPER);
        let names: [&[u8]; 8] = [b"a", b"A", b"b", b"c", b"d", b"e", b"f", b"g"];
        for (number, name) in names.iter().enumerate() {
            let room = MicroZap::decode(&block).unwrap().room_for(name);
            if number == 7 {
                assert_eq!(room, Room::Grow);
                block.resize(1024, 0);
                let room = MicroZap::decode(&block).unwrap().room_for(name);
                assert_eq!(room, Room::Slot { slot: 7, cd: 0 });
                continue;
            }
            let want = Room::Slot { slot: number, cd: u32::from(*name == b"A") };
            assert_eq!(room, want, "{number}");
            let Room::Slot { slot, cd } = room else { unreachable!() };
            let entry = MicroEntry { slot, name, value: 1, cd };
            let at = slot_offset(slot);
            block[at..at + 64].copy_from_slice(&slot_bytes(Some(&entry)));
        }
        assert_eq!(MicroZap::decode(&block).unwrap().room_for(b"d"), Room::Taken);
        let at = slot_offset(0);
        block[at..at + 64].copy_from_slice(&slot_bytes(None));
        // "A" has cd 1, so that the next name with that hash gets 0 again, and the hole is used.
        let room = MicroZap::decode(&block).unwrap().room_for(b"a");
        assert_eq!(room, Room::Slot { slot: 0, cd: 0 });
    }

    #[test]
    fn entries_that_fit_a_micro_zap() {
        let long = "n".repeat(50);
        assert!(fits_slot(&KeyRef::from(&long[..49]), &Value::U64(1)));
        assert!(!fits_slot(&KeyRef::from(long.as_str()), &Value::U64(1)));
        assert!(!fits_slot(&KeyRef::from("a"), &Value::words_of(&[1, 2])));
        assert!(!fits_slot(&KeyRef::from("a"), &Value::text("x")));
        assert!(!fits_slot(&KeyRef::Words(&[1]), &Value::U64(1)));
        let word = Value::Array { integer_size: 8, bytes: vec![0; 8] };
        assert!(fits_slot(&KeyRef::from("a"), &word));
    }
}
