//! Test data that can be recognized: each word of eight bytes is computed from the one before.
//!
//!     word 0 = seed      word i+1 = step(word i)      (words of eight bytes, little-endian)
//!
//! Experiments on terabytes write data that look random to every layer above, and that a simulated
//! disk recognizes in any sector: the first word is the seed, and the others must follow from it.
//! `step` is chosen so that parity of such data is such data again. RAID-Z adds bytes in GF(2^8)
//! and multiplies them by constants; `step` is linear over GF(2^8) (it shifts whole bytes, adds
//! words, and doubles bytes), so combining and stepping commute: P, Q and R of runs of the pattern
//! are runs of the pattern.
//!
//! The step has one cycle through all 2^64 - 1 nonzero words (its characteristic polynomial of
//! degree 8 over GF(2^8) is primitive: found by search, and the test checks the order against the
//! prime factors of 2^64 - 1). Zeros are the run of seed 0.

use std::sync::OnceLock;

/// Bytes of a sector.
pub const SECTOR: usize = 512;

/// Words per sector.
const WORDS: u64 = (SECTOR / 8) as u64;
/// Parts of a run that are filled side by side.
const LANES: usize = 8;

/// The word after `word`.
#[must_use]
pub const fn step(word: u64) -> u64 {
    // The two low bytes, doubled in GF(2^8) with the polynomial of RAID-Z (0x11d).
    let low = word & 0xffff;
    let doubled = ((low & 0x7f7f) << 1) ^ (((low >> 7) & 0x0101) * 0x1d);
    let mixed = doubled | word & !0xffff;
    (mixed ^ (mixed >> 24)).rotate_left(40)
}

/// Fills `bytes` with the run of `seed`. Returns the word that continues the run, if the length is
/// a multiple of eight.
pub fn fill(seed: u64, bytes: &mut [u8]) -> u64 {
    let span = bytes.len() / SECTOR / LANES;
    let (together, rest) = bytes.split_at_mut(span * SECTOR * LANES);
    let mut word = if span > 0 { fill_lanes(seed, together, span) } else { seed };
    for chunk in rest.chunks_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        word = step(word);
    }
    word
}

/// Fills lanes of `span` sectors each, side by side: each word depends on the one before it, so one
/// lane alone leaves most of the processor idle.
fn fill_lanes(seed: u64, bytes: &mut [u8], span: usize) -> u64 {
    let mut words = [seed; LANES];
    for lane in 1..LANES {
        words[lane] = skip(words[lane - 1], span as u64);
    }
    let (all, _) = bytes.as_chunks_mut::<8>();
    let lane_words = span * WORDS as usize;
    for index in 0..lane_words {
        for (lane, word) in words.iter_mut().enumerate() {
            all[lane * lane_words + index] = word.to_le_bytes();
            *word = step(*word);
        }
    }
    words[LANES - 1]
}

/// Recognizes the run at the start of `bytes`: returns its seed and its length in whole sectors.
/// `None` if the first sector is not a run.
#[must_use]
pub fn run_of(bytes: &[u8]) -> Option<(u64, usize)> {
    let (sectors, _) = bytes.as_chunks::<SECTOR>();
    let mut next = first_word(sectors.first()?);
    let seed = next;
    // Each word is compared with what follows from the word found before it, not from a computed
    // one, so that words are checked independently. Other data are rejected after one sector.
    let follows = |sector: &&[u8; SECTOR]| {
        let words = words_of(sector);
        let mut difference = words[0] ^ next;
        for index in 1..words.len() {
            difference |= step(words[index - 1]) ^ words[index];
        }
        next = step(words[words.len() - 1]);
        difference == 0
    };
    let count = sectors.iter().take_while(follows).count();
    (count > 0).then_some((seed, count))
}

fn first_word(sector: &[u8; SECTOR]) -> u64 {
    words_of(sector)[0]
}

fn words_of(sector: &[u8; SECTOR]) -> [u64; WORDS as usize] {
    let (words, _) = sector.as_chunks::<8>();
    std::array::from_fn(|index| u64::from_le_bytes(words[index]))
}

/// The seed of the run `sectors` sectors after the start of the run of `seed`.
#[must_use]
pub fn skip(seed: u64, sectors: u64) -> u64 {
    static JUMPS: OnceLock<Vec<Nibbles>> = OnceLock::new();
    // Jump k advances by 2^k sectors.
    let jumps = JUMPS.get_or_init(|| {
        let one = power(&columns(step), WORDS);
        let all = std::iter::successors(Some(one), |jump| Some(product(jump, jump)));
        all.take(64).map(|jump| nibbles(&jump)).collect()
    });
    let (mut word, mut left) = (seed, sectors);
    while left > 0 {
        let jump = &jumps[left.trailing_zeros() as usize];
        let parts = jump.iter().enumerate();
        word =
            parts.fold(0, |sum, (index, table)| sum ^ table[(word >> (4 * index) & 15) as usize]);
        left &= left - 1;
    }
    word
}

/// A linear function of words, as its values for each part of four bits.
type Nibbles = [[u64; 16]; 16];

fn nibbles(matrix: &[u64; 64]) -> Nibbles {
    std::array::from_fn(|index| {
        std::array::from_fn(|value| apply(matrix, (value as u64) << (4 * index)))
    })
}

/// A linear function of words, as its values at the powers of two.
fn columns(function: impl Fn(u64) -> u64) -> [u64; 64] {
    std::array::from_fn(|bit| function(1 << bit))
}

fn apply(matrix: &[u64; 64], word: u64) -> u64 {
    let terms = matrix.iter().enumerate();
    terms.fold(0, |sum, (bit, column)| sum ^ (column & (word >> bit & 1).wrapping_neg()))
}

fn product(outer: &[u64; 64], inner: &[u64; 64]) -> [u64; 64] {
    columns(|word| apply(outer, apply(inner, word)))
}

fn power(matrix: &[u64; 64], exponent: u64) -> [u64; 64] {
    let (mut result, mut square) = (columns(|word| word), *matrix);
    for bit in 0..64 {
        if exponent >> bit & 1 == 1 {
            result = product(&square, &result);
        }
        square = product(&square, &square);
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_goes_through_all_words() {
        let (matrix, identity) = (columns(step), columns(|word| word));
        assert_eq!(power(&matrix, u64::MAX), identity);
        for prime in [3, 5, 17, 257, 641, 65537, 6_700_417] {
            assert_ne!(power(&matrix, u64::MAX / prime), identity, "{prime}");
        }
    }

    #[test]
    fn only_runs_are_recognized_from_any_sector() {
        let mut short = vec![0; 3 * SECTOR];
        let mut bytes = vec![0; 67 * SECTOR + 16];
        assert_eq!(fill(5, &mut short), skip(5, 3));
        fill(5, &mut bytes);
        assert!(bytes.starts_with(&short));
        assert_eq!(fill(5, &mut bytes), step(step(skip(5, 67))));
        bytes.truncate(64 * SECTOR);
        let next = fill(0x1234_5678_9abc_def0, &mut bytes);
        assert_eq!(run_of(&bytes), Some((0x1234_5678_9abc_def0, 64)));
        assert_eq!(skip(0x1234_5678_9abc_def0, 64), next);
        for sector in [0, 1, 2, 17, 63] {
            let seed = skip(0x1234_5678_9abc_def0, sector as u64);
            assert_eq!(run_of(&bytes[sector * SECTOR..]), Some((seed, 64 - sector)), "{sector}");
        }
        assert_eq!(run_of(&[0; SECTOR]), Some((0, 1)));
        for at in [0, 7, 8, 511, 512, 64 * SECTOR - 1] {
            bytes[at] ^= 1;
            assert_eq!(run_of(&bytes).map_or(0, |(_, sectors)| sectors), at / SECTOR, "{at}");
            bytes[at] ^= 1;
        }
        assert_eq!((run_of(&[]), run_of(&bytes[..SECTOR - 1])), (None, None));
    }

    #[test]
    fn parity_of_runs_is_a_run() {
        let double = |byte: u8| (byte << 1) ^ ((byte >> 7) * 0x1d);
        let mut rng = cenote_rt::Rng::seeded(5);
        let columns: Vec<Vec<u8>> = (0..5)
            .map(|_| {
                let mut bytes = vec![0; 8 * SECTOR];
                fill(rng.next_u64(), &mut bytes);
                bytes
            })
            .collect();
        for doublings in 0..3 {
            let mut parity = vec![0_u8; 8 * SECTOR];
            for column in &columns {
                for (sum, byte) in parity.iter_mut().zip(column) {
                    *sum = (0..doublings).fold(*sum, |sum, _| double(sum)) ^ byte;
                }
            }
            assert_eq!(run_of(&parity).map(|(_, sectors)| sectors), Some(8), "{doublings}");
        }
    }
}
