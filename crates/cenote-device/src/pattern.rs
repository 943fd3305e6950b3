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

/// The word after `word`.
#[must_use]
pub const fn step(word: u64) -> u64 {
    // The two low bytes, doubled in GF(2^8) with the polynomial of RAID-Z (0x11d).
    let low = word & 0xffff;
    let carry = (low >> 7) & 0x0101;
    // Multiplied by 0x1d: vectors have shifts of 64 bits, but no products.
    let reduced = carry ^ (carry << 2) ^ (carry << 3) ^ (carry << 4);
    let doubled = ((low & 0x7f7f) << 1) ^ reduced;
    let mixed = doubled | word & !0xffff;
    (mixed ^ (mixed >> 24)).rotate_left(40)
}

/// Fills `bytes` with the run of `seed`. Returns the word that continues the run, if the length is
/// a multiple of eight.
pub fn fill(seed: u64, bytes: &mut [u8]) -> u64 {
    let mut word = seed;
    for chunk in bytes.chunks_mut(8) {
        chunk.copy_from_slice(&word.to_le_bytes()[..chunk.len()]);
        word = step(word);
    }
    word
}

/// Recognizes the run at the start of `bytes`: returns its seed and its length in whole sectors.
/// `None` if the first sector is not a run.
#[must_use]
pub fn run_of(bytes: &[u8]) -> Option<(u64, usize)> {
    let (words, _) = bytes.as_chunks::<8>();
    let seed = u64::from_le_bytes(*words.first()?);
    let mut next = seed;
    // Each word is compared with what follows from the word found before it, not from a computed
    // one, so that words are checked independently. Other data are rejected after one sector.
    let follows = |sector: &&[[u8; 8]]| {
        let mut difference = u64::from_le_bytes(sector[0]) ^ next;
        for pair in sector.windows(2) {
            difference |= step(u64::from_le_bytes(pair[0])) ^ u64::from_le_bytes(pair[1]);
        }
        next = step(u64::from_le_bytes(sector[sector.len() - 1]));
        difference == 0
    };
    let sectors = words.chunks_exact(WORDS as usize).take_while(follows).count();
    (sectors > 0).then_some((seed, sectors))
}

/// The seed of the run `sectors` sectors after the start of the run of `seed`.
#[must_use]
pub fn skip(seed: u64, sectors: u64) -> u64 {
    static JUMPS: OnceLock<Vec<[u64; 64]>> = OnceLock::new();
    // Jump k advances by 2^k sectors.
    let jumps = JUMPS.get_or_init(|| {
        let one = power(&columns(step), WORDS);
        std::iter::successors(Some(one), |jump| Some(product(jump, jump))).take(64).collect()
    });
    (0..64).filter(|bit| sectors >> bit & 1 == 1).fold(seed, |word, bit| apply(&jumps[bit], word))
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
        let mut bytes = vec![0; 64 * SECTOR];
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
