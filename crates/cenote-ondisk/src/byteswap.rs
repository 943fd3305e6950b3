//! Converts a big-endian block to the little-endian form that every decoder here expects.
//!
//! Done once, in place, after the block was verified, decrypted and decompressed, and before it
//! enters the cache. The type and level in the block's pointer determine the conversion:
//!
//! ```text
//!   level > 0   an array of block pointers, that is, of u64 (payloads embedded in pointers are
//!               defined by words, so that the same swap is right for them)
//!   level 0     by ObjectType::byteswap: bytes, arrays of u16/u32/u64, or one of the structures
//!               below, which have fields of several widths
//! ```
//!
//! System attributes are bytes at this level: their buffers record their own byte order
//! ([`crate::sa`]), and so do packed nvlists. Nothing here can fail: structure is followed as far
//! as it is valid, and the decoder of the swapped block checks the result.
//!
//! Sources: spec 02 §2, spec 03 §6.8, §12, §14.

use crate::acl::{ACE_EVERYONE, ACE_GROUP, ACE_OWNER, ACE_WHO_FLAGS};
use crate::blkptr::BLOCK_PTR_LEN;
use crate::dnode::{DNODE_CORE_LEN, DNODE_SLOT_LEN, DnodeFlags};
use crate::object_type::{Byteswap, ObjectType};

const MICRO_ZAP: u64 = 0x8000_0000_0000_0003;
const ZAP_LEAF: u64 = 0x8000_0000_0000_0000;
const MICRO_SLOT_LEN: usize = 64;
const LEAF_HEADER_LEN: usize = 48;
const LEAF_CHUNK_LEN: usize = 24;
const LEAF_CHUNK_ARRAY: u8 = 251;
const LEAF_CHUNK_ENTRY: u8 = 252;
const LEAF_CHUNK_FREE: u8 = 253;

/// Swaps a block of this type and level.
pub fn block(bytes: &mut [u8], object_type: ObjectType, level: u8) {
    if level > 0 {
        swap64(bytes);
    } else {
        content(bytes, object_type.byteswap());
    }
}

/// Swaps a level-0 block, or a bonus buffer, of this class.
pub fn content(bytes: &mut [u8], class: Byteswap) {
    match class {
        Byteswap::Uint8 => {}
        Byteswap::Uint16 => swap16(bytes),
        Byteswap::Uint32 => swap32(bytes),
        Byteswap::Uint64 => swap64(bytes),
        Byteswap::Zap => zap(bytes),
        Byteswap::Dnode => dnodes(bytes),
        Byteswap::ObjSet => objset(bytes),
        Byteswap::Znode => znode(bytes),
        Byteswap::OldAcl => old_acl(bytes),
        Byteswap::Acl => acl(bytes),
    }
}

fn swap16(bytes: &mut [u8]) {
    bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|word| word.reverse());
}

fn swap32(bytes: &mut [u8]) {
    bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse());
}

fn swap64(bytes: &mut [u8]) {
    bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| word.reverse());
}

/// Swaps the bytes `start..end` with `swap`, as far as they exist.
fn part(bytes: &mut [u8], start: usize, end: usize, swap: impl FnOnce(&mut [u8])) {
    let end = end.min(bytes.len());
    if let Some(bytes) = bytes.get_mut(start..end) {
        swap(bytes);
    }
}

fn zap(block: &mut [u8]) {
    match block.first_chunk::<8>().map(|word| u64::from_be_bytes(*word)) {
        Some(MICRO_ZAP) => micro_zap(block),
        Some(ZAP_LEAF) => zap_leaf(block),
        // The header, its table, and blocks of an external table.
        _ => swap64(block),
    }
}

fn micro_zap(block: &mut [u8]) {
    // Type, salt, flags; the rest of the header is zero.
    part(block, 0, 24, swap64);
    for slot in block.as_chunks_mut::<MICRO_SLOT_LEN>().0.iter_mut().skip(1) {
        part(slot, 0, 8, swap64);
        part(slot, 8, 12, swap32);
    }
}

fn zap_leaf(block: &mut [u8]) {
    let hash_len = block.len() / 16;
    let chunks_at = LEAF_HEADER_LEN.saturating_add(hash_len);
    part(block, 0, 24, swap64);
    part(block, 24, 28, swap32);
    part(block, 28, 36, swap16);
    part(block, LEAF_HEADER_LEN, chunks_at, swap16);
    let chunks = block.get_mut(chunks_at..).unwrap_or_default();
    for chunk in chunks.as_chunks_mut::<LEAF_CHUNK_LEN>().0 {
        match chunk.first() {
            Some(&LEAF_CHUNK_ENTRY) => {
                part(chunk, 2, 12, swap16);
                part(chunk, 12, 16, swap32);
                part(chunk, 16, 24, swap64);
            }
            // The integers in the 21 bytes before are big-endian in either order.
            Some(&(LEAF_CHUNK_ARRAY | LEAF_CHUNK_FREE)) => part(chunk, 22, 24, swap16),
            _ => {}
        }
    }
}

fn dnodes(block: &mut [u8]) {
    let mut rest = block;
    while rest.len() >= DNODE_SLOT_LEN {
        let slots = match rest.get(12) {
            Some(extra) if rest.first() != Some(&0) => usize::from(*extra).saturating_add(1),
            _ => 1,
        };
        let len = rest.len().min(slots.saturating_mul(DNODE_SLOT_LEN));
        let (slots, tail) = rest.split_at_mut(len);
        dnode(slots);
        rest = tail;
    }
}

/// Swaps one dnode in all of its slots. A free slot is zeroed, whatever its contents.
fn dnode(bytes: &mut [u8]) {
    let Some([object_type, _, _, nblkptr, bonus_type, _, _, flags]) =
        bytes.first_chunk::<8>().copied()
    else {
        return;
    };
    if object_type == ObjectType::NONE.0 {
        bytes.fill(0);
        return;
    }
    part(bytes, 8, 12, swap16);
    part(bytes, 16, 32, swap64);
    let bonus_len = bytes.get(10..12).map_or(0, |len| len.iter().fold(0, |all, byte| all | *byte));
    let has_spill = DnodeFlags::from_bits_retain(flags).contains(DnodeFlags::SPILL_BLKPTR);
    let spill_at = bytes.len().saturating_sub(if has_spill { BLOCK_PTR_LEN } else { 0 });
    let pointers_len = usize::from(nblkptr).saturating_mul(BLOCK_PTR_LEN);
    let bonus_at = DNODE_CORE_LEN.saturating_add(pointers_len).min(spill_at);
    part(bytes, DNODE_CORE_LEN, bonus_at, swap64);
    part(bytes, spill_at, usize::MAX, swap64);
    if bonus_len != 0 {
        // The whole area, not only the used bytes: the rest may be used by a longer bonus later.
        let class = ObjectType(bonus_type).byteswap();
        part(bytes, bonus_at, spill_at, |bonus| bonus_buffer(bonus, class));
    }
}

/// Bonus buffers hold arrays or a znode; a bonus type of a block structure means damage, and is
/// left unswapped for the reader of the bonus.
fn bonus_buffer(bonus: &mut [u8], class: Byteswap) {
    if !matches!(class, Byteswap::Dnode | Byteswap::ObjSet) {
        content(bonus, class);
    }
}

fn objset(block: &mut [u8]) {
    for start in [0, 1024, 1536, 2048] {
        part(block, start, start.saturating_add(DNODE_SLOT_LEN), |slot| {
            if slot.len() == DNODE_SLOT_LEN {
                dnode(slot);
            }
        });
    }
    // ZIL header, type, flags; the MACs after them are bytes.
    part(block, 512, 720, swap64);
}

/// A legacy znode: 22 words, then an ACL with up to 72 bytes of entries, then a symlink's target.
fn znode(bonus: &mut [u8]) {
    part(bonus, 0, 184, swap64);
    part(bonus, 184, 188, swap32);
    part(bonus, 188, 192, swap16);
    let version = bonus.get(188..190).and_then(|bytes| bytes.first_chunk::<2>());
    let entries = if version == Some(&[0, 0]) { old_acl } else { acl };
    part(bonus, 192, 264, entries);
}

/// Entries of version 0: who (u32), mask (u32), flags, type.
fn old_acl(bytes: &mut [u8]) {
    for entry in bytes.as_chunks_mut::<12>().0 {
        part(entry, 0, 8, swap32);
        part(entry, 8, 12, swap16);
    }
}

/// Entries of version 1: type, flags, mask (u32), then by type and flags a FUID and two GUIDs.
fn acl(bytes: &mut [u8]) {
    let mut rest = bytes;
    while rest.len() >= 8 {
        part(rest, 0, 4, swap16);
        part(rest, 4, 8, swap32);
        let (kind, flags) = match rest {
            [kind_low, kind_high, flags_low, flags_high, ..] => (
                u16::from_le_bytes([*kind_low, *kind_high]),
                u16::from_le_bytes([*flags_low, *flags_high]),
            ),
            _ => return,
        };
        let len = ace_len(kind, flags).min(rest.len());
        part(rest, 8, len.min(16), swap64);
        rest = rest.split_at_mut(len).1;
    }
}

/// Length of an entry, as OpenZFS walks when it swaps: 8 for owner@, group@ and everyone@ whatever
/// the type, although its own audit, alarm and object entries of these are longer (they are never
/// created).
const fn ace_len(kind: u16, flags: u16) -> usize {
    match (kind, flags & ACE_WHO_FLAGS) {
        (_, ACE_OWNER | ACE_GROUP | ACE_EVERYONE) => 8,
        (5..=8, _) => 48,
        _ => 16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blkptr::BlockPtr;
    use crate::dnode::DnodePhys;
    use crate::words;
    use proptest::prelude::*;

    const KINDS: [u8; 10] = [0x80, 0x81, 0x82, 0x83, 4, 10, 11, 17, 18, 33];

    #[test]
    fn arrays() {
        let bytes: Vec<u8> = (0..17).collect();
        let swapped = |kind, level| {
            let mut bytes = bytes.clone();
            block(&mut bytes, ObjectType(kind), level);
            bytes
        };
        assert_eq!(swapped(0x80, 0), bytes);
        assert_eq!(swapped(44, 0), bytes);
        assert_eq!(swapped(0x81, 0)[..4], [1, 0, 3, 2]);
        assert_eq!(swapped(0x82, 0)[..5], [3, 2, 1, 0, 7]);
        assert_eq!(swapped(8, 0)[7..], [0, 15, 14, 13, 12, 11, 10, 9, 8, 16]);
        assert_eq!(swapped(19, 1), swapped(8, 0));
    }

    /// The meta-dnode's core of a real big-endian object set (spec 02 §7.1), with a pointer and a
    /// bonus of u64s in the second slot.
    #[test]
    fn big_endian_dnodes() {
        let mut bytes = vec![0; 4 * 512];
        bytes[..12].copy_from_slice(&[0x0a, 0x11, 6, 3, 0, 0, 0, 1, 0, 0x20, 0, 0]);
        bytes[64..72].copy_from_slice(&1_u64.to_be_bytes());
        bytes[512..525].copy_from_slice(&[12, 17, 1, 1, 12, 0, 0, 5, 0, 1, 1, 0, 1]);
        bytes[536..544].copy_from_slice(&7_u64.to_be_bytes());
        bytes[704..712].copy_from_slice(&0x1234_u64.to_be_bytes());
        bytes[1408..1416].copy_from_slice(&9_u64.to_be_bytes());
        bytes[1537] = 77;
        block(&mut bytes, ObjectType::DNODE, 0);
        let meta = DnodePhys::decode(&bytes).unwrap().unwrap();
        assert_eq!((meta.data_block_size(), meta.blkptrs[0].words()[0]), (16384, 1));
        let dir = DnodePhys::decode(&bytes[512..]).unwrap().unwrap();
        assert_eq!((dir.bonus().len(), dir.used, dir.slots()), (256, 7, 2));
        assert_eq!(words::u64_at(dir.bonus(), 0), Some(0x1234));
        assert_eq!(dir.spill.unwrap().words()[0], 9);
        assert!(bytes[1536..].iter().all(|byte| *byte == 0), "a free slot is made zero");
    }

    #[test]
    fn embedded_payloads_survive() {
        let mut stored: Vec<u64> = (0..16).map(|index| index * 0x0102_0304_0506_0708).collect();
        stored[6] = 1 << 39 | 2 << 32 | 0x63 << 25 | 0x63;
        let mut bytes: Vec<u8> = stored.iter().flat_map(|word| word.to_be_bytes()).collect();
        block(&mut bytes, ObjectType::PLAIN_FILE_CONTENTS, 1);
        let bp = BlockPtr::at(&bytes, 0).unwrap();
        assert_eq!(bp.words()[..], stored);
        assert_eq!(bp.embedded_payload().unwrap().as_bytes()[8], 8);
    }

    #[test]
    fn acl_entries_are_walked() {
        let mut bytes = Vec::new();
        for (kind, flags, len) in [(0_u16, 0x1000_u16, 8), (1, 0, 16), (5, 0, 48), (0, 0x4000, 8)] {
            bytes.extend(kind.to_be_bytes());
            bytes.extend(flags.to_be_bytes());
            bytes.extend(0x1122_3344_u32.to_be_bytes());
            bytes.resize(bytes.len() + len - 8, 0xee);
        }
        block(&mut bytes, ObjectType::ACL, 0);
        for (at, flags) in [(0, 0x1000), (8, 0), (24, 0), (72, 0x4000)] {
            assert_eq!(words::u16_at(&bytes, at + 2), Some(flags), "{at}");
            assert_eq!(words::u32_at(&bytes, at + 4), Some(0x1122_3344), "{at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..3000),
            kind in 0..KINDS.len(),
            head in 0..4_u8,
        ) {
            if let Some(word) = bytes.first_chunk_mut::<8>() {
                *word = [0x80, 0, 0, 0, 0, 0, 0, head];
            }
            let len = bytes.len();
            block(&mut bytes, ObjectType(KINDS[kind]), 0);
            prop_assert_eq!(bytes.len(), len);
        }

        #[test]
        fn arrays_swap_back(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            kind in 0..4_usize,
        ) {
            let mut twice = bytes.clone();
            block(&mut twice, ObjectType(KINDS[kind]), 0);
            block(&mut twice, ObjectType(KINDS[kind]), 0);
            prop_assert_eq!(twice, bytes);
        }
    }
}
