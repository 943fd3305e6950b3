//! ZAPs: the micro form, the header of the fat form, its leaves.

use std::hint::black_box;

use cenote_ondisk::zap::{FatHeader, Leaf, MatchKind, MicroZap, NormFlags, ZapKind, normalize};

/// A micro ZAP's block.
pub fn zap_micro(bytes: &[u8]) {
    black_box(ZapKind::of(bytes).is_ok());
    let Ok(zap) = MicroZap::decode(bytes) else { return };
    let entries = zap.entries();
    assert!(entries.len() <= zap.slot_count(), "{} entries", entries.len());
    for slot in zap.slots() {
        assert!(zap.get(slot.name).is_some(), "a name in a slot is found");
        names(slot.name);
    }
}

/// The first block of a fat ZAP.
pub fn zap_fat(bytes: &[u8]) {
    let Ok(header) = FatHeader::decode(bytes) else { return };
    black_box((header.is_embedded(), header.block_size(), header.hash()));
    for index in [0, 1, header.pointer_count(), u64::MAX] {
        black_box((header.place(index), header.pointer(bytes, index).is_ok()));
        black_box(header.pointer_index(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    }
    let again = FatHeader::decode(&header.encode());
    black_box(again.is_ok());
}

/// A leaf, with names or words as keys.
pub fn zap_leaf(bytes: &[u8]) {
    for has_word_keys in [false, true] {
        let Ok(leaf) = Leaf::decode(bytes, has_word_keys) else { continue };
        black_box((leaf.header(), leaf.chunk_count(), leaf.owns(u64::MAX)));
        black_box(leaf.entries().is_ok());
        for entry in leaf.entry_chunks().into_iter().flatten() {
            black_box((leaf.entry(&entry).is_ok(), leaf.with_hash(entry.hash).count()));
            if let Ok(key) = leaf.key(&entry) {
                if let Some(name) = key.name() {
                    black_box(leaf.get(entry.hash, name).is_ok());
                    names(name);
                }
                if let Some(words) = key.words() {
                    black_box(leaf.get_words(entry.hash, words).is_ok());
                }
            }
        }
    }
}

fn names(name: &[u8]) {
    for flags in [NormFlags::empty(), NormFlags::all()] {
        black_box(normalize(name, flags));
        assert!(cenote_ondisk::zap::matches(name, name, MatchKind::Exact, flags));
    }
}
