//! Fletcher checksums of 64-bit sums: fletcher2 and fletcher4, in either byte order.
//!
//!     fletcher4, words of 32 bits:  a += x; b += a; c += b; d += c
//!     fletcher2, pairs of 64 bits:  a0 += x; a1 += y; b0 += a0; b1 += a1
//!
//! Each step depends on the one before, so the plain loop runs at the latency of an addition. But
//! the sums are linear in the words: a word with `m - 1` words behind it counts C(m,1) times in b,
//! C(m+1,2) in c and C(m+2,3) in d. So `L` lanes sum every `L`-th word each, in parallel, and the
//! sums of the lanes are combined with those weights at the end ([`Weights`]).
//!
//! fletcher4 is written with vector types: the compiler does not vectorize it by itself, since
//! words are widened when loaded. fletcher2 is written over arrays, which it does vectorize for
//! each level that `fearless_simd` dispatches to.
//!
//! Bit `B` of the block pointer decides how words are read (spec 02 §2): the plain names read
//! little-endian words on every host, the `_be` ones big-endian words. Bytes after the last whole
//! word (pair of words for fletcher2) are ignored.
//!
//! Sources: spec 02 §3.2.

#![expect(
    clippy::inline_always,
    reason = "code for one kind of vectors has to end up in the function compiled for them"
)]

use std::ops::AddAssign;

use fearless_simd::{Level, Simd, dispatch, prelude::*, u8x16};

/// Lanes of fletcher2, half of them for each word of a pair.
const LANES: usize = 8;

/// Bytes per step of the fletcher2 lanes.
const STEP2: usize = 8 * LANES;

/// fletcher4 of data written in little-endian order.
pub fn fletcher4(data: &[u8]) -> [u64; 4] {
    fletcher4_at::<false>(Level::new(), data)
}

/// fletcher4 of data written in big-endian order.
pub fn fletcher4_be(data: &[u8]) -> [u64; 4] {
    fletcher4_at::<true>(Level::new(), data)
}

/// fletcher2 of data written in little-endian order.
pub fn fletcher2(data: &[u8]) -> [u64; 4] {
    fletcher2_at::<false>(Level::new(), data)
}

/// fletcher2 of data written in big-endian order.
pub fn fletcher2_be(data: &[u8]) -> [u64; 4] {
    fletcher2_at::<true>(Level::new(), data)
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

fn fletcher4_at<const BIG: bool>(level: Level, data: &[u8]) -> [u64; 4] {
    dispatch!(level, simd => fletcher4_lanes::<_, BIG>(simd, data))
}

fn fletcher2_at<const BIG: bool>(level: Level, data: &[u8]) -> [u64; 4] {
    dispatch!(level, simd => fletcher2_lanes::<_, BIG>(simd, data))
}

#[inline(always)]
fn word32<const BIG: bool>(bytes: [u8; 4]) -> u64 {
    u64::from(if BIG { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
}

#[inline(always)]
fn word64<const BIG: bool>(bytes: [u8; 8]) -> u64 {
    if BIG { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) }
}

/// Continues fletcher4 from `sums` with `data`.
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

/// Continues fletcher2 from `sums` with `data`.
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

/// Every 64 bits hold two words, which go into two sets of lanes: masking and shifting is cheaper
/// than widening, which would move words between the halves of a vector.
#[inline(always)]
fn fletcher4_lanes<S: Simd, const BIG: bool>(simd: S, data: &[u8]) -> [u64; 4] {
    let low_half = S::u64s::simd_from(simd, u64::from(u32::MAX));
    let order = byte_order::<S, BIG>(simd);
    let zero = S::u64s::simd_from(simd, 0);
    let (mut even, mut odd) = ([zero; 4], [zero; 4]);
    let mut steps = data.chunks_exact(S::u8s::LEN);
    for step in &mut steps {
        let mut bytes = S::u8s::from_slice(simd, step);
        if BIG {
            bytes = bytes.swizzle_dyn_within_blocks(order);
        }
        let words = bytes.bitcast::<S::u64s>();
        add_words(&mut even, words & low_half);
        add_words(&mut odd, words >> 32);
    }
    let mut whole = [0u64; 4];
    let weights = fletcher4_weights(2 * S::u64s::LEN);
    for (lanes, parity) in [(even, 0), (odd, 1)] {
        for lane in 0..S::u64s::LEN {
            let sums = lanes.map(|sum| sum.as_slice()[lane]);
            add_lane(&mut whole, sums, &weights[2 * lane + parity]);
        }
    }
    continue4::<BIG>(whole, steps.remainder())
}

/// Shuffle indices that swap the bytes of each word, if necessary.
#[inline(always)]
fn byte_order<S: Simd, const BIG: bool>(simd: S) -> S::u8s {
    let reversed = [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12];
    let order = if BIG { reversed } else { std::array::from_fn(|i| i as u8) };
    S::u8s::block_splat(u8x16::load_array(simd, order))
}

/// One step of fletcher4 in each lane.
#[inline(always)]
fn add_words<V: Copy + AddAssign>(sums: &mut [V; 4], words: V) {
    sums[0] += words;
    sums[1] += sums[0];
    sums[2] += sums[1];
    sums[3] += sums[2];
}

/// Adds the contribution of a lane to the total sums.
fn add_lane(whole: &mut [u64; 4], lane: [u64; 4], weights: &Weights) {
    for (total, weights) in whole.iter_mut().zip(weights) {
        for (sum, &weight) in lane.iter().zip(weights) {
            *total = total.wrapping_add(sum.wrapping_mul(weight));
        }
    }
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
    // Even lanes hold the first word of a pair, odd ones the second.
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

/// `[k][i]`: factor with which sum `i` of a lane counts in total sum `k`; modulo 2^64.
type Weights = [[u64; 4]; 4];

/// Weights for the number of lanes of a vector type.
fn fletcher4_weights(lanes: usize) -> &'static [Weights] {
    static OF_4: [Weights; 4] = weights_of_lanes();
    static OF_8: [Weights; 8] = weights_of_lanes();
    static OF_16: [Weights; 16] = weights_of_lanes();
    match lanes {
        4 => &OF_4,
        8 => &OF_8,
        16 => &OF_16,
        _ => unreachable!("vectors have 128, 256 or 512 bits"),
    }
}

static FLETCHER2_WEIGHTS: [Weights; LANES / 2] = weights_of_lanes();

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
/// A word that is the `u`-th from the end of its lane is number `m = u * lanes - lane` from the end
/// of the data. Total sum `k` counts it `f(u) = C(m+k-1, k)` times, and the lane's own sums hold
/// `C(u+i-1, i)` times the word. `f` is a polynomial of degree `k`, so it is an integer combination
/// of those, whose coefficients follow from its values at u = 0, -1, -2, -3, because there
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
            for level in [Level::new(), Level::baseline()] {
                prop_assert_eq!(fletcher4_at::<false>(level, &data), fletcher4_scalar(&data, false));
                prop_assert_eq!(fletcher4_at::<true>(level, &data), fletcher4_scalar(&data, true));
                prop_assert_eq!(fletcher2_at::<false>(level, &data), fletcher2_scalar(&data, false));
                prop_assert_eq!(fletcher2_at::<true>(level, &data), fletcher2_scalar(&data, true));
            }
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

    /// Vectors wider than this machine's are tested by their weights alone.
    #[test]
    fn weights_combine_any_number_of_lanes() {
        let data: Vec<u8> = (0..6400u32).map(|i| ((i * i) >> 3) as u8).collect();
        for lanes in [4, 8, 16] {
            let mut whole = [0; 4];
            for (lane, weights) in fletcher4_weights(lanes).iter().enumerate() {
                let words = data.as_chunks::<4>().0.iter().skip(lane).step_by(lanes);
                let own: Vec<u8> = words.flatten().copied().collect();
                add_lane(&mut whole, fletcher4_scalar(&own, false), weights);
            }
            assert_eq!(whole, fletcher4(&data), "{lanes} lanes");
        }
    }

    #[test]
    fn sums_overflow_modulo_2_to_the_64() {
        let data = vec![0xff; 16 << 20];
        assert_eq!(fletcher4(&data), fletcher4_scalar(&data, false));
        assert_eq!(fletcher2(&data), fletcher2_scalar(&data, false));
    }
}
