//! The field GF(2^8) of RAID-Z: polynomial x^8+x^4+x^3+x^2+1 (0x11d), generator 2 (spec 06 §4.4).
//!
//! Products come in two forms. Single products of coefficients use logarithms. Products of whole
//! columns with one coefficient use [`Product`]: multiplication is linear, so that `c * x = c * (x
//! & 0x0f) ^ c * (x & 0xf0)`, and each half has sixteen possible values, which a byte shuffle can
//! look up.

/// Value to xor when a doubling overflows: the polynomial without x^8.
pub(super) const POLYNOMIAL: u8 = 0x1d;

/// Order of the multiplicative group.
const ORDER: usize = 255;

/// `EXP[i] = 2^i`, twice around so that a sum of two logarithms needs no reduction.
const EXP: [u8; 2 * ORDER] = {
    let mut table = [0; 2 * ORDER];
    let mut value = 1u8;
    let mut i = 0;
    while i < 2 * ORDER {
        table[i] = value;
        value = double(value);
        i += 1;
    }
    table
};

/// `LOG[2^i] = i` for `i < 255`; `LOG[0]` is never read.
const LOG: [u8; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < ORDER {
        table[EXP[i] as usize] = i as u8;
        i += 1;
    }
    table
};

/// `2 * x`.
pub(super) const fn double(x: u8) -> u8 {
    (x << 1) ^ (POLYNOMIAL & (x >> 7).wrapping_neg())
}

/// `2^exponent`.
pub(super) fn exp2(exponent: usize) -> u8 {
    EXP[exponent % ORDER]
}

/// `a * b`.
pub(super) fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    EXP[LOG[a as usize] as usize + LOG[b as usize] as usize]
}

/// `1 / a`; `None` for zero.
pub(super) fn invert(a: u8) -> Option<u8> {
    (a != 0).then(|| EXP[ORDER - LOG[a as usize] as usize])
}

/// Tables for multiplying many bytes by one coefficient.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Product {
    /// Products of the coefficient with 0x00..=0x0f.
    pub(super) low: [u8; 16],
    /// Products of the coefficient with 0x00, 0x10, ..., 0xf0.
    pub(super) high: [u8; 16],
}

impl Product {
    /// Tables for `coefficient`.
    pub(super) fn new(coefficient: u8) -> Self {
        let mut product = Self::default();
        for nibble in 0..16u8 {
            product.low[nibble as usize] = mul(coefficient, nibble);
            product.high[nibble as usize] = mul(coefficient, nibble << 4);
        }
        product
    }

    /// The coefficient times `x`.
    pub(super) fn of(&self, x: u8) -> u8 {
        self.low[(x & 15) as usize] ^ self.high[(x >> 4) as usize]
    }
}

/// A square matrix of at most 3 × 3; the rest is unused.
pub(super) type Matrix = [[u8; 3]; 3];

/// Inverse of the upper left `size × size` part by Gauss–Jordan; `None` if it is singular.
pub(super) fn invert_matrix(mut matrix: Matrix, size: usize) -> Option<Matrix> {
    let mut inverse = [[1, 0, 0], [0, 1, 0], [0, 0, 1]];
    for pivot in 0..size {
        let row = (pivot..size).find(|&row| matrix[row][pivot] != 0)?;
        matrix.swap(pivot, row);
        inverse.swap(pivot, row);
        let scale = invert(matrix[pivot][pivot])?;
        for column in 0..size {
            matrix[pivot][column] = mul(matrix[pivot][column], scale);
            inverse[pivot][column] = mul(inverse[pivot][column], scale);
        }
        for other in (0..size).filter(|&other| other != pivot) {
            let factor = matrix[other][pivot];
            for column in 0..size {
                matrix[other][column] ^= mul(factor, matrix[pivot][column]);
                inverse[other][column] ^= mul(factor, inverse[pivot][column]);
            }
        }
    }
    Some(inverse)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Multiplication from its definition: carry-less product, then reduction.
    fn mul_slow(a: u8, b: u8) -> u8 {
        let (mut product, mut a, mut b) = (0, a, b);
        while b != 0 {
            if b & 1 != 0 {
                product ^= a;
            }
            a = double(a);
            b >>= 1;
        }
        product
    }

    #[test]
    fn products_agree_with_the_definition() {
        for a in 0..=255u8 {
            let product = Product::new(a);
            for b in 0..=255u8 {
                assert_eq!(mul(a, b), mul_slow(a, b), "{a} * {b}");
                assert_eq!(product.of(b), mul_slow(a, b), "{a} * {b}");
            }
            if let Some(inverse) = invert(a) {
                assert_eq!(mul(a, inverse), 1);
            }
        }
    }

    #[test]
    fn every_choice_of_parity_and_columns_is_solvable() {
        // Three unknowns among up to 64 columns, all parities; two unknowns with any two parities
        // among 255 columns.
        let coefficient = |parity: usize, exponent: usize| exp2(parity * exponent);
        for x in 0..64 {
            for y in 0..x {
                for z in 0..y {
                    let row = |k| [coefficient(k, x), coefficient(k, y), coefficient(k, z)];
                    assert!(invert_matrix([row(0), row(1), row(2)], 3).is_some());
                }
            }
        }
        for x in 0..255 {
            for y in 0..x {
                for (j, k) in [(0, 1), (0, 2), (1, 2)] {
                    let row = |k| [coefficient(k, x), coefficient(k, y), 0];
                    assert!(invert_matrix([row(j), row(k), [0; 3]], 2).is_some(), "{x} {y} {j}{k}");
                }
            }
        }
    }
}
