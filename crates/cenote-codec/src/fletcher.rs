//! Fletcher checksums of 64-bit sums: fletcher2 and fletcher4, in either byte order.
//!
//!     fletcher4, words of 32 bits:  a += x; b += a; c += b; d += c
//!     fletcher2, pairs of 64 bits:  a0 += x; a1 += y; b0 += a0; b1 += a1
//!
//! Each step waits for the one before, so the plain loop runs at the speed of an addition. But the
//! sums are linear in the words: one with `m - 1` words behind it counts C(m,1) times in b,
//! C(m+1,2) in c and C(m+2,3) in d. So `L` lanes sum every `L`-th word each, side by side, and the
//! sums of a lane are put together with those weights at the end ([`Weights`]). Two sets of lanes
//! would hide more latency, but eight 64-bit lanes already fill two AVX2 registers per sum.
//!
//! The lanes are written as arrays, and the compiler makes vectors of them for each level that
//! `fearless_simd` dispatches to: it does that as well as hand-written vector types would.
//!
//! Order `B` of the block decides how words are read (spec 02 §2): the plain names read
//! little-endian words on every host, the `_be` ones big-endian words. Bytes after the last whole
//! word (pair of words for fletcher2) do not count.
//!
//! Sources: spec 02 §3.2.

#![expect(
    clippy::inline_always,
    reason = "code for one kind of vectors has to end up in the function compiled for them"
)]

use fearless_simd::{Level, Simd, dispatch};

/// Lanes of the vector loops.
const LANES: usize = 8;

/// Bytes that one step of the fletcher4 lanes takes.
const STEP4: usize = 4 * LANES;

/// Bytes that one step of the fletcher2 lanes takes.
const STEP2: usize = 8 * LANES;

/// fletcher4 of data written in little-endian order.
pub fn fletcher4(data: &[u8]) -> [u64; 4] {
    dispatch!(Level::new(), simd => fletcher4_lanes::<_, false>(simd, data))
}

/// fletcher4 of data written in big-endian order.
pub fn fletcher4_be(data: &[u8]) -> [u64; 4] {
    dispatch!(Level::new(), simd => fletcher4_lanes::<_, true>(simd, data))
}

/// fletcher2 of data written in little-endian order.
pub fn fletcher2(data: &[u8]) -> [u64; 4] {
    dispatch!(Level::new(), simd => fletcher2_lanes::<_, false>(simd, data))
}

/// fletcher2 of data written in big-endian order.
pub fn fletcher2_be(data: &[u8]) -> [u64; 4] {
    dispatch!(Level::new(), simd => fletcher2_lanes::<_, true>(simd, data))
}

/// [`fletcher4`] and [`fletcher4_be`] by definition: slower, same sums. For tests and measurements.
pub fn fletcher4_scalar(data: &[u8], big_endian: bool) -> [u64; 4] {
    let start = [0; 4];
    if big_endian { continue4::<true>(start, data) } else { continue4::<false>(start, data) }
}

/// [`fletcher2`] and [`fletcher2_be`] by definition: slower, same sums. For tests and measurements.
pub fn fletcher2_scalar(data: &[u8], big_endian: bool) -> [u64; 4] {
    let start = [0; 4];
    if big_endian { continue2::<true>(start, data) } else { continue2::<false>(start, data) }
}

#[inline(always)]
fn word32<const BIG: bool>(bytes: [u8; 4]) -> u64 {
    u64::from(if BIG { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
}

#[inline(always)]
fn word64<const BIG: bool>(bytes: [u8; 8]) -> u64 {
    if BIG { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
}

/// fletcher4 of `data` behind what gave `sums`.
#[inline(always)]
fn continue4<const BIG: bool>(sums: [u64; 4], data: &[u8]) -> [u64; 4] {
    let [mut a, mut b, mut c, mut d] = sums;
    for &bytes in data.as_chunks::<4>().0 {
        a = a.wrapping_add(word32::<BIG>(bytes));
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    }
    [a, b, c, d]
}

/// fletcher2 of `data` behind what gave `sums`.
#[inline(always)]
fn continue2<const BIG: bool>(sums: [u64; 4], data: &[u8]) -> [u64; 4] {
    let [mut a0, mut a1, mut b0, mut b1] = sums;
    for pair in data.as_chunks::<16>().0 {
        let [x, y] = *pair.as_chunks::<8>().0 else { continue };
        a0 = a0.wrapping_add(word64::<BIG>(x));
        a1 = a1.wrapping_add(word64::<BIG>(y));
        b0 = b0.wrapping_add(a0);
        b1 = b1.wrapping_add(a1);
    }
    [a0, a1, b0, b1]
}

#[inline(always)]
fn fletcher4_lanes<S: Simd, const BIG: bool>(_: S, data: &[u8]) -> [u64; 4] {
    let mut sums = [[0u64; LANES]; 4];
    let (steps, rest) = data.as_chunks::<STEP4>();
    for step in steps {
        let [mut a, mut b, mut c, mut d] = sums;
        for (lane, &bytes) in step.as_chunks::<4>().0.iter().enumerate() {
            a[lane] = a[lane].wrapping_add(word32::<BIG>(bytes));
            b[lane] = b[lane].wrapping_add(a[lane]);
            c[lane] = c[lane].wrapping_add(b[lane]);
            d[lane] = d[lane].wrapping_add(c[lane]);
        }
        sums = [a, b, c, d];
    }
    let mut whole = [0u64; 4];
    for lane in 0..LANES {
        let weights = &FLETCHER4_WEIGHTS[lane];
        for (k, total) in whole.iter_mut().enumerate() {
            for (sum, weight) in sums.iter().zip(weights[k]) {
                *total = total.wrapping_add(sum[lane].wrapping_mul(weight));
            }
        }
    }
    continue4::<BIG>(whole, rest)
}

#[inline(always)]
fn fletcher2_lanes<S: Simd, const BIG: bool>(_: S, data: &[u8]) -> [u64; 4] {
    let mut sums = [[0u64; LANES]; 2];
    let (steps, rest) = data.as_chunks::<STEP2>();
    for step in steps {
        let [mut a, mut b] = sums;
        for (lane, &bytes) in step.as_chunks::<8>().0.iter().enumerate() {
            a[lane] = a[lane].wrapping_add(word64::<BIG>(bytes));
            b[lane] = b[lane].wrapping_add(a[lane]);
        }
        sums = [a, b];
    }
    // Even lanes carry the first word of a pair, odd ones the second.
    let [a, b] = sums;
    let mut whole = [0u64; 4];
    for lane in 0..LANES {
        let weights = &FLETCHER2_WEIGHTS[lane / 2];
        let (total_a, total_b) = (lane % 2, lane % 2 + 2);
        whole[total_a] = whole[total_a].wrapping_add(a[lane]);
        let part =
            a[lane].wrapping_mul(weights[1][0]).wrapping_add(b[lane].wrapping_mul(weights[1][1]));
        whole[total_b] = whole[total_b].wrapping_add(part);
    }
    continue2::<BIG>(whole, rest)
}

/// `[k][i]`: how often sum `i` of a lane counts in sum `k` of the whole; modulo 2^64.
type Weights = [[u64; 4]; 4];

const FLETCHER4_WEIGHTS: [Weights; LANES] = weights_of_lanes();
const FLETCHER2_WEIGHTS: [Weights; LANES / 2] = weights_of_lanes();

const fn weights_of_lanes<const COUNT: usize>() -> [Weights; COUNT] {
    let mut table = [[[0; 4]; 4]; COUNT];
    let mut lane = 0;
    while lane < COUNT {
        table[lane] = weights(COUNT as i64, lane as i64);
        lane += 1;
    }
    table
}

/// Weights of `lane` among `lanes`.
///
/// A word that is the `u`-th from the end of its lane is number `m = u * lanes - lane` from the end
/// of the whole. Sum `k` counts it `f(u) = C(m+k-1, k)` times, and the lane's own sums hold
/// `C(u+i-1, i)` times the word. `f` is a polynomial of degree `k`, so it is a sum of those with
/// whole coefficients, which its values at u = 0, -1, -2, -3 give, because there
/// `C(u+i-1, i) = (-1)^i C(-u, i)`.
const fn weights(lanes: i64, lane: i64) -> Weights {
    let mut weights = [[0; 4]; 4];
    let mut k = 0;
    while k < 4 {
        let at0 = rising(-lane, k);
        let at1 = rising(-lanes - lane, k);
        let at2 = rising(-2 * lanes - lane, k);
        let at3 = rising(-3 * lanes - lane, k);
        let constant = at0;
        let first = constant - at1;
        let second = at2 - constant + 2 * first;
        let third = constant - 3 * first + 3 * second - at3;
        weights[k] = [constant as u64, first as u64, second as u64, third as u64];
        k += 1;
    }
    weights
}

/// `C(m+k-1, k)`, also for negative `m`.
const fn rising(m: i64, k: usize) -> i64 {
    match k {
        0 => 1,
        1 => m,
        2 => m * (m + 1) / 2,
        _ => m * (m + 1) * (m + 2) / 6,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn vectors_of_the_spec() {
        let data: Vec<u8> = (0..512usize).map(|i| i as u8).collect();
        let expected =
            [0xefcfaf8f6f4f2f00, 0xf0d0b09070503000, 0x4a38261401efdd00, 0xdac8b6a492806d80];
        assert_eq!(fletcher2(&data), expected);
        let expected =
            [0x00000040c03fbf00, 0x00000da342e27500, 0x000214fa7f828a80, 0x003d9765c9f3c980];
        assert_eq!(fletcher4(&data), expected);
    }

    proptest! {
        #[test]
        fn lanes_equal_the_definition(data in proptest::collection::vec(any::<u8>(), 0..6000)) {
            prop_assert_eq!(fletcher4(&data), fletcher4_scalar(&data, false));
            prop_assert_eq!(fletcher4_be(&data), fletcher4_scalar(&data, true));
            prop_assert_eq!(fletcher2(&data), fletcher2_scalar(&data, false));
            prop_assert_eq!(fletcher2_be(&data), fletcher2_scalar(&data, true));
        }

        #[test]
        fn swapped_words_in_the_other_order_are_equal(
            words in proptest::collection::vec(any::<u64>(), 0..600),
        ) {
            let little: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let big: Vec<u8> = words.iter().flat_map(|word| word.to_be_bytes()).collect();
            prop_assert_eq!(fletcher2(&little), fletcher2_be(&big));
            let big: Vec<u8> = little.as_chunks::<4>().0.iter().flat_map(|&[a, b, c, d]| [d, c, b, a]).collect();
            prop_assert_eq!(fletcher4(&little), fletcher4_be(&big));
        }
    }

    #[test]
    fn sums_overflow_modulo_2_to_the_64() {
        let data = vec![0xff; 16 << 20];
        assert_eq!(fletcher4(&data), fletcher4_scalar(&data, false));
        assert_eq!(fletcher2(&data), fletcher2_scalar(&data, false));
    }
}
