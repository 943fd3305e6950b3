//! Converts little-endian content to the form that a big-endian host would have written, by class.
//!
//! Written from the format's description without any code of the engine, not even its table of
//! object types, since the result tests the engine's swap. Content is parsed as little-endian here,
//! while the engine parses the same structures as big-endian.
//!
//! Sources: spec 02 §2, §8; spec 03 §2-§4, §12, §14.

/// How the content of a level-0 block, or of a bonus buffer, is laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Nothing to swap.
    Bytes,
    /// Array of u16.
    Shorts,
    /// Array of u32.
    Ints,
    /// Array of u64; block pointers too.
    Words,
    /// Micro ZAP, or a block of a fat one.
    Zap,
    /// Dnodes.
    Dnodes,
    /// Root block of an object set.
    ObjSet,
    /// Bonus of files before system attributes.
    Znode,
    /// ACL entries of 12 bytes.
    OldAcl,
    /// ACL entries of 8, 16 or 48 bytes.
    Acl,
    /// System attributes: by layout; their magic shows their order.
    Attributes,
}

impl Class {
    /// The class of an object type, a block's or a bonus buffer's.
    #[must_use]
    pub fn of(object_type: u8) -> Self {
        const NEW_STYLE: [Class; 10] = [
            Class::Bytes,
            Class::Shorts,
            Class::Ints,
            Class::Words,
            Class::Zap,
            Class::Dnodes,
            Class::ObjSet,
            Class::Znode,
            Class::OldAcl,
            Class::Acl,
        ];
        match object_type {
            2 | 4..=9 | 12 | 16 | 26 | 30 | 36 | 51 | 53 => Self::Words,
            1 | 13..=15 | 20..=22 | 24 | 27 | 28 | 31 | 32 | 37..=43 | 45..=48 | 50 | 52 => {
                Self::Zap
            }
            10 => Self::Dnodes,
            11 => Self::ObjSet,
            17 => Self::Znode,
            18 => Self::OldAcl,
            33 => Self::Acl,
            44 => Self::Attributes,
            0x80.. => NEW_STYLE[usize::from(object_type & 0x1f)],
            _ => Self::Bytes,
        }
    }
}

/// Swaps everything but dnodes, object sets and attributes, which need data from other blocks.
pub(super) fn content(bytes: &mut [u8], class: Class) {
    match class {
        Class::Shorts => units(bytes, 2),
        Class::Ints => units(bytes, 4),
        Class::Words => units(bytes, 8),
        Class::Zap => zap(bytes),
        Class::Znode => znode(bytes),
        Class::OldAcl => old_acl(bytes),
        Class::Acl => acl(bytes),
        Class::Bytes | Class::Dnodes | Class::ObjSet | Class::Attributes => {}
    }
}

/// Swaps an array of integers of `width` bytes; a shorter rest is not changed.
pub(super) fn units(bytes: &mut [u8], width: usize) {
    bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse);
}

/// Swaps consecutive fields of the given widths; 1 skips a byte.
fn fields(bytes: &mut [u8], widths: &[usize]) {
    let mut at = 0;
    for width in widths {
        bytes[at..at + width].reverse();
        at += width;
    }
}

/// The little-endian number in all of `bytes`.
pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn zap(block: &mut [u8]) {
    match number(&block[..8]) {
        0x8000_0000_0000_0003 => {
            units(&mut block[..64], 8);
            block[64..].chunks_exact_mut(64).for_each(|slot| fields(slot, &[8, 4]));
        }
        0x8000_0000_0000_0000 => zap_leaf(block),
        _ => units(block, 8),
    }
}

fn zap_leaf(block: &mut [u8]) {
    let slots_len = block.len() / 32 * 2;
    fields(block, &[8, 8, 8, 4, 2, 2, 2, 2]);
    let (slots, chunks) = block[48..].split_at_mut(slots_len);
    units(slots, 2);
    for chunk in chunks.chunks_exact_mut(24) {
        match chunk[0] {
            252 => fields(chunk, &[1, 1, 2, 2, 2, 2, 2, 4, 8]),
            251 | 253 => chunk[22..].reverse(),
            _ => {}
        }
    }
}

fn znode(bonus: &mut [u8]) {
    let version = number(&bonus[188..190]);
    let (size, count) = (number(&bonus[184..188]), number(&bonus[190..192]));
    units(&mut bonus[..184], 8);
    fields(&mut bonus[184..], &[4, 2, 2]);
    let inline = &mut bonus[192..264];
    // Version 0 counts entries where version 1 has bytes. A longer list is stored elsewhere.
    match version {
        0 if size <= 6 => old_acl(&mut inline[..12 * size as usize]),
        1 if size <= 72 && count > 0 => acl(&mut inline[..size as usize]),
        _ => {}
    }
}

fn old_acl(bytes: &mut [u8]) {
    bytes.chunks_exact_mut(12).for_each(|entry| fields(entry, &[4, 4, 2, 2]));
}

pub(super) fn acl(mut bytes: &mut [u8]) {
    while bytes.len() >= 8 {
        let kind = number(&bytes[..2]);
        let who = number(&bytes[2..4]) & 0x7040;
        let is_nameless = matches!(who, 0x1000 | 0x2040 | 0x4000);
        let len = match kind {
            _ if is_nameless => 8,
            5..=8 => 48,
            _ => 16,
        };
        let (entry, rest) = bytes.split_at_mut(len.min(bytes.len()));
        fields(entry, &[2, 2, 4]);
        if entry.len() >= 16 {
            entry[8..16].reverse();
        }
        bytes = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_keeps_the_integers_of_its_arrays() {
        let mut block = vec![0; 1024];
        block[7] = 0x80;
        block[24..28].copy_from_slice(&0x02ab_1eaf_u32.to_le_bytes());
        let chunks = 48 + 64;
        block[chunks] = 252;
        block[chunks + 12] = 7;
        block[chunks + 24..chunks + 27].copy_from_slice(&[251, 1, 2]);
        block[chunks + 46] = 9;
        zap(&mut block);
        assert_eq!((block[0], block[7]), (0x80, 0));
        assert_eq!(block[24..28], 0x02ab_1eaf_u32.to_be_bytes());
        assert_eq!((block[chunks], block[chunks + 15]), (252, 7));
        assert_eq!(block[chunks + 24..chunks + 27], [251, 1, 2]);
        assert_eq!(block[chunks + 46..chunks + 48], [0, 9]);
    }

    #[test]
    fn classes() {
        assert_eq!(Class::of(0xc4), Class::Zap);
        assert_eq!(Class::of(0xc3), Class::Words);
        assert_eq!(Class::of(19), Class::Bytes);
        assert_eq!(Class::of(44), Class::Attributes);
    }
}
