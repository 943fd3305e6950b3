//! Records of the pool's history: lists in native encoding, so in the host's order, each behind a
//! length that is little-endian on every host (spec 01 §3.4, spec 04 §23).
//!
//! Only records that lie completely in the first block are swapped, which are all in a young pool;
//! the others keep their order, as after a move of the pool between hosts.

use super::swap::{self, number};

/// Swaps the records of a block.
pub(super) fn swap(block: &mut [u8]) {
    let mut at = 0;
    while let Some(length) = block.get(at..at + 8) {
        let (start, len) = (at + 8, number(length) as usize);
        let Some(record) = block.get_mut(start..start.saturating_add(len)) else { return };
        if record.len() < 12 || record[..4] != [0, 1, 0, 0] {
            return;
        }
        record[1] = 0;
        swap::units(&mut record[4..12], 4);
        pairs(&mut record[12..]);
        at = start + len;
    }
}

/// Swaps pairs up to the four zero bytes behind the last; returns the number of bytes.
fn pairs(bytes: &mut [u8]) -> usize {
    let mut at = 0;
    loop {
        let size = number(&bytes[at..at + 4]) as usize;
        if size == 0 {
            return at + 4;
        }
        let (pair, rest) = bytes[at..].split_at_mut(size);
        at += size + value(pair, rest);
    }
}

/// Swaps a pair, and the lists in it, which follow; returns the number of bytes of the lists.
fn value(pair: &mut [u8], rest: &mut [u8]) -> usize {
    let name_len = number(&pair[4..6]) as usize;
    let (count, code) = (number(&pair[8..12]) as usize, number(&pair[12..16]));
    let (head, body) = pair.split_at_mut((16 + name_len).next_multiple_of(8));
    swap::units(&mut head[..4], 4);
    swap::units(&mut head[4..8], 2);
    swap::units(&mut head[8..16], 4);
    match code {
        3 | 4 => swap::units(&mut body[..2], 2),
        5 | 6 | 21 => swap::units(&mut body[..4], 4),
        7 | 8 | 18 | 27 => swap::units(&mut body[..8], 8),
        11 | 12 => swap::units(&mut body[..2 * count], 2),
        13 | 14 | 24 => swap::units(&mut body[..4 * count], 4),
        15 | 16 => swap::units(&mut body[..8 * count], 8),
        19 => return lists(body, 1, rest),
        20 => return lists(&mut body[8 * count..], count, rest),
        _ => {}
    }
    0
}

/// Swaps the heads of `count` lists and the pairs of each.
fn lists(heads: &mut [u8], count: usize, rest: &mut [u8]) -> usize {
    let mut taken = 0;
    for head in heads.chunks_exact_mut(24).take(count) {
        swap::units(&mut head[..8], 4);
        taken += pairs(&mut rest[taken..]);
    }
    taken
}
