//! The two inner loops of parity, each as vector code and as plain scalar code.
//!
//! *Horner* computes P, Q and R of one block of bytes from all data columns at once. The sums stay
//! in registers, so every data byte is loaded once and every parity byte stored once. *Combine*
//! multiplies up to three syndromes by constants and adds them, with two byte shuffles per product
//! (see [`Product`]).
//!
//! The scalar forms are the reference for tests and measurements of the vector forms, and are used
//! on machines without vectors. Spec 06 §4.4.

#![expect(
    clippy::inline_always,
    reason = "code for one kind of vectors has to end up in the function compiled for them"
)]

use fearless_simd::{Level, Simd, dispatch, prelude::*, u8x16};

use super::gf::{POLYNOMIAL, Product, double};

/// Both loops in one implementation.
pub(super) trait Kernels: Copy {
    /// Sets `out[k]` to the sum of `2^(k * (n-1-j)) * columns[j]`, `k` = 0, 1, 2.
    ///
    /// All columns and outputs have the same length.
    fn horner<const N: usize>(self, columns: &[&[u8]], out: [&mut [u8]; N]);

    /// Sets `out` to the sum of `products[k] * syndromes[k]`, all of the same length.
    fn combine<const M: usize>(
        self,
        products: &[Product; M],
        syndromes: [&[u8]; M],
        out: &mut [u8],
    );
}

/// The kernels with the widest vectors of this processor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Vectors(Level);

impl Vectors {
    pub(super) fn new() -> Self {
        Self(Level::new())
    }
}

impl Kernels for Vectors {
    fn horner<const N: usize>(self, columns: &[&[u8]], out: [&mut [u8]; N]) {
        // Registers: N × UNROLL sums, one column, one mask, two constants.
        match N {
            1 => dispatch!(self.0, simd => horner::<_, N, 4>(simd, columns, out)),
            _ => dispatch!(self.0, simd => horner::<_, N, 2>(simd, columns, out)),
        }
    }

    fn combine<const M: usize>(self, products: &[Product; M], from: [&[u8]; M], out: &mut [u8]) {
        dispatch!(self.0, simd => combine(simd, products, from, out));
    }
}

/// Constants for doubling a vector of field elements.
#[derive(Clone, Copy)]
struct Doubling<S: Simd> {
    zero: S::u8s,
    polynomial: S::u8s,
    sign: S::i8s,
}

impl<S: Simd> Doubling<S> {
    #[inline(always)]
    fn double(self, x: S::u8s) -> S::u8s {
        let carry = x.bitcast::<S::i8s>().simd_lt(self.sign);
        (x + x) ^ carry.select(self.polynomial, self.zero)
    }
}

#[inline(always)]
fn horner<S: Simd, const N: usize, const UNROLL: usize>(
    simd: S,
    columns: &[&[u8]],
    mut out: [&mut [u8]; N],
) {
    let zero = S::u8s::simd_from(simd, 0);
    let polynomial = S::u8s::simd_from(simd, POLYNOMIAL);
    let constants: Doubling<S> = Doubling { zero, polynomial, sign: S::i8s::simd_from(simd, 0) };

    let lanes = S::u8s::LEN;
    let stride = lanes * UNROLL;
    let len = out.iter().map(|column| column.len()).min().unwrap_or(0);
    let whole = len - len % stride;
    for start in (0..whole).step_by(stride) {
        let mut sums = [[zero; UNROLL]; N];
        for column in columns {
            let bytes = &column[start..start + stride];
            for u in 0..UNROLL {
                let data = S::u8s::from_slice(simd, &bytes[u * lanes..(u + 1) * lanes]);
                for (k, sum) in sums.iter_mut().enumerate() {
                    let mut scaled = sum[u];
                    for _ in 0..k {
                        scaled = constants.double(scaled);
                    }
                    sum[u] = scaled ^ data;
                }
            }
        }
        for (sum, column) in sums.iter().zip(&mut out) {
            for (u, vector) in sum.iter().enumerate() {
                vector.store_slice(&mut column[start + u * lanes..start + (u + 1) * lanes]);
            }
        }
    }
    if whole < len {
        horner_bytes(columns, out.each_mut().map(|column| &mut column[whole..len]), whole);
    }
}

#[inline(always)]
fn combine<S: Simd, const M: usize>(
    simd: S,
    products: &[Product; M],
    from: [&[u8]; M],
    out: &mut [u8],
) {
    let mut tables = [(S::u8s::simd_from(simd, 0), S::u8s::simd_from(simd, 0)); M];
    for (table, product) in tables.iter_mut().zip(products) {
        table.0 = S::u8s::block_splat(u8x16::load_array(simd, product.low));
        table.1 = S::u8s::block_splat(u8x16::load_array(simd, product.high));
    }
    let nibble = S::u8s::simd_from(simd, 0x0f);

    let lanes = S::u8s::LEN;
    let whole = out.len() - out.len() % lanes;
    for start in (0..whole).step_by(lanes) {
        let mut sum = S::u8s::simd_from(simd, 0);
        for k in 0..M {
            let bytes = S::u8s::from_slice(simd, &from[k][start..start + lanes]);
            let (low, high) = tables[k];
            sum = sum
                ^ low.swizzle_dyn_within_blocks(bytes & nibble)
                ^ high.swizzle_dyn_within_blocks((bytes >> 4) & nibble);
        }
        sum.store_slice(&mut out[start..start + lanes]);
    }
    for (at, byte) in out.iter_mut().enumerate().skip(whole) {
        *byte = combine_byte(products, from, at);
    }
}

/// The kernels without vectors: eight bytes to a word for sums, a table look-up per byte for
/// products.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scalar;

impl Kernels for Scalar {
    fn horner<const N: usize>(self, columns: &[&[u8]], mut out: [&mut [u8]; N]) {
        let len = out.iter().map(|column| column.len()).min().unwrap_or(0);
        let whole = len - len % 8;
        for start in (0..whole).step_by(8) {
            let mut sums = [0u64; N];
            for column in columns {
                let data = word(&column[start..start + 8]);
                for (k, sum) in sums.iter_mut().enumerate() {
                    for _ in 0..k {
                        *sum = double_word(*sum);
                    }
                    *sum ^= data;
                }
            }
            for (sum, column) in sums.iter().zip(&mut out) {
                column[start..start + 8].copy_from_slice(&sum.to_le_bytes());
            }
        }
        horner_bytes(columns, out.map(|column| &mut column[whole..len]), whole);
    }

    fn combine<const M: usize>(self, products: &[Product; M], from: [&[u8]; M], out: &mut [u8]) {
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = combine_byte(products, from, at);
        }
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte))
}

/// Doubles eight field elements at once.
fn double_word(x: u64) -> u64 {
    let carries = (x >> 7) & 0x0101_0101_0101_0101;
    ((x << 1) & 0xfefe_fefe_fefe_fefe) ^ (carries * u64::from(POLYNOMIAL))
}

/// Horner's rule byte by byte, for the remainder; `out` starts at `start` of the columns.
fn horner_bytes<const N: usize>(columns: &[&[u8]], mut out: [&mut [u8]; N], start: usize) {
    let len = out.iter().map(|column| column.len()).min().unwrap_or(0);
    for at in 0..len {
        let mut sums = [0u8; N];
        for column in columns {
            for (k, sum) in sums.iter_mut().enumerate() {
                for _ in 0..k {
                    *sum = double(*sum);
                }
                *sum ^= column[start + at];
            }
        }
        for (sum, column) in sums.iter().zip(&mut out) {
            column[at] = *sum;
        }
    }
}

fn combine_byte<const M: usize>(products: &[Product; M], from: [&[u8]; M], at: usize) -> u8 {
    (0..M).fold(0, |sum, k| sum ^ products[k].of(from[k][at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vector types other than this machine's widest, and lengths that are not multiples of them.
    #[test]
    fn all_vector_types_agree() {
        let column = |seed: usize| (0..1500).map(move |i| ((i * 31 + seed * 97) ^ (i >> 3)) as u8);
        let columns: Vec<Vec<u8>> = (0..9).map(|seed| column(seed).collect()).collect();
        let makes = [Vectors(Level::baseline()), Vectors::new()];
        for len in [0, 1, 15, 16, 31, 64, 129, 512, 1499] {
            let columns: Vec<&[u8]> = columns.iter().map(|column| &column[..len]).collect();
            let mut expected = [vec![0; len], vec![0; len], vec![0; len]];
            Scalar.horner(&columns, expected.each_mut().map(Vec::as_mut_slice));
            for make in makes {
                let mut out = [vec![1; len], vec![1; len], vec![1; len]];
                make.horner(&columns, out.each_mut().map(Vec::as_mut_slice));
                assert_eq!(out, expected, "{make:?}, {len} bytes");
            }

            let products = [Product::new(1), Product::new(0x8e), Product::new(0xff)];
            let from = [columns[0], columns[1], columns[2]];
            let mut expected = vec![0; len];
            Scalar.combine(&products, from, &mut expected);
            for make in makes {
                let mut out = vec![1; len];
                make.combine(&products, from, &mut out);
                assert_eq!(out, expected, "{make:?}, {len} bytes");
            }
        }
    }
}
