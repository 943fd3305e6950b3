//! RAID-Z parity: computes P, Q and R of a block's data columns, and reconstructs columns.
//!
//!     data     D0 D1 D2 ... D(n-1)        short columns count as extended with zeros
//!     P = sum of          D_j             as long as the longest data column
//!     Q = sum of 2^(n-1-j) D_j
//!     R = sum of 4^(n-1-j) D_j            byte by byte, in GF(2^8)
//!
//! All functions work on columns in place. A row is cut at each length that occurs among the
//! columns, and the pieces into blocks that fit into the first-level cache; within a block every
//! column is either complete or absent, and absent ones refer to a page of zeros, so that the inner
//! loops (`kernel`) have no special cases.
//!
//! Reconstruction uses the same inner loop: computing parity with the missing columns absent and
//! adding the stored parity gives the syndromes, `S_k = sum over missing x of 2^(k(n-1-x)) D_x`.
//! The remaining system of at most 3 × 3 is inverted once per call, followed by one multiplication
//! per syndrome, missing column and byte. Closed forms would not be faster.
//!
//! Guarantees
//! * G1  Parity computed by [`generate`] has no [`mismatch`], and [`reconstruct`] restores the data
//!   from it.
//! * G2  A reconstruction whose short columns do not end in zeros is refused: the remaining columns
//!   do not belong together.
//!
//! Sources: spec 06 §4.4, §4.5.

mod gf;
mod kernel;
#[cfg(test)]
mod tests;

use gf::{Matrix, Product};
use kernel::{Kernels, Scalar, Vectors};

/// Most parity columns that a row can have.
pub const PARITY_MAX: usize = 3;

/// Most data columns: with more, coefficients repeat and two columns could not be distinguished.
pub const DATA_COLUMNS_MAX: usize = 255;

/// Bytes of a column worked on at a time.
const BLOCK: usize = 4096;

/// Zeros for absent columns and the tails of short ones.
static ZEROS: [u8; BLOCK] = [0; BLOCK];

/// A data column in [`reconstruct`].
#[derive(Debug)]
pub enum Column<'a> {
    /// Known bytes. Empty for a column that the row does not have.
    Present(&'a [u8]),
    /// Destination of the bytes to compute.
    Missing(&'a mut [u8]),
}

impl Column<'_> {
    /// The column's bytes; those of a missing column are valid only after [`reconstruct`].
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Present(bytes) => bytes,
            Self::Missing(bytes) => bytes,
        }
    }

    fn len(&self) -> usize {
        self.bytes().len()
    }
}

/// Why missing columns cannot be reconstructed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReconstructError {
    /// More unknowns than equations.
    #[error("{missing} data columns are missing and {available} parity columns are available")]
    TooManyMissing {
        /// Data columns to compute.
        missing: usize,
        /// Available parity columns.
        available: usize,
    },
    /// The row is wider than the field allows, or has more parity than RAID-Z supports.
    #[error("a row of {data} data and {parity} parity columns does not exist")]
    Width {
        /// Data columns given.
        data: usize,
        /// Parity columns given.
        parity: usize,
    },
    /// A parity column is shorter than the row.
    #[error("parity column {parity} has {len} bytes, the longest data column {expected}")]
    ParityLength {
        /// Index of the parity column; 0 is P.
        parity: usize,
        /// Its length.
        len: usize,
        /// Length of the longest data column.
        expected: usize,
    },
    /// A short column was reconstructed with nonzero bytes beyond its end (G2).
    #[error("data column {column} comes out longer than it is: the other columns do not agree")]
    Tail {
        /// Index of the missing data column.
        column: usize,
    },
}

/// Computes the parity columns (P; P and Q; or P, Q and R) of `data`, in column order.
///
/// Each parity column must be at least as long as the longest data column; bytes beyond that are
/// set to zero.
///
/// # Panics
/// If there are no or more than [`PARITY_MAX`] parity columns, or one is too short.
pub fn generate(parity: &mut [&mut [u8]], data: &[&[u8]]) {
    generate_by(Vectors::new(), parity, data);
}

/// [`generate`] without vectors: slower, same bytes. For tests and measurements.
pub fn generate_scalar(parity: &mut [&mut [u8]], data: &[&[u8]]) {
    generate_by(Scalar, parity, data);
}

/// Returns which of the given parity columns differ from those of `data`; index 0 is P.
///
/// A parity column that is shorter than the longest data column differs.
pub fn mismatch(parity: &[Option<&[u8]>], data: &[&[u8]]) -> [bool; PARITY_MAX] {
    let mut differs = [false; PARITY_MAX];
    let Some(highest) = parity.iter().take(PARITY_MAX).rposition(Option::is_some) else {
        return differs;
    };
    let mut scratch = [[0; BLOCK]; PARITY_MAX];
    for_each_block(data, |start, columns, len| {
        horner_into(Vectors::new(), highest, columns, &mut scratch, len);
        for (k, computed) in scratch.iter().enumerate().take(highest + 1) {
            if let Some(Some(stored)) = parity.get(k) {
                differs[k] |= stored.get(start..start + len) != Some(&computed[..len]);
            }
        }
    });
    differs
}

/// Reconstructs the missing columns of `data` from the others and the available parity columns
/// (`None`: lost; index 0 is P). Uses the lowest-numbered ones, as many as columns are missing.
///
/// Lost parity is computed afterwards, with [`generate`]. After an error the contents of the
/// missing columns are undefined.
pub fn reconstruct(
    parity: &[Option<&[u8]>],
    data: &mut [Column<'_>],
) -> Result<(), ReconstructError> {
    reconstruct_by(Vectors::new(), parity, data)
}

/// [`reconstruct`] without vectors: slower, same bytes. For tests and measurements.
pub fn reconstruct_scalar(
    parity: &[Option<&[u8]>],
    data: &mut [Column<'_>],
) -> Result<(), ReconstructError> {
    reconstruct_by(Scalar, parity, data)
}

fn generate_by<K: Kernels>(kernels: K, parity: &mut [&mut [u8]], data: &[&[u8]]) {
    let longest = data.iter().map(|column| column.len()).max().unwrap_or(0);
    for column in &mut *parity {
        column[longest..].fill(0);
    }
    for_each_block(data, |start, columns, len| {
        let end = start + len;
        match &mut *parity {
            [p] => kernels.horner(columns, [&mut p[start..end]]),
            [p, q] => kernels.horner(columns, [&mut p[start..end], &mut q[start..end]]),
            [p, q, r] => {
                let out = [&mut p[start..end], &mut q[start..end], &mut r[start..end]];
                kernels.horner(columns, out);
            }
            _ => panic!("RAID-Z has one to three parity columns"),
        }
    });
}

/// Calls `work(start, columns, len)` for consecutive ranges of at most [`BLOCK`] bytes that cover
/// the longest column; `columns` are the ranges' bytes, zeros where a column has ended.
fn for_each_block<'a>(data: &[&'a [u8]], mut work: impl FnMut(usize, &[&'a [u8]], usize)) {
    let mut columns = vec![&[][..]; data.len()];
    let mut start = 0;
    while let Some(shortest) = data.iter().map(|column| column.len()).filter(|&n| n > start).min() {
        let len = (shortest - start).min(BLOCK);
        for (piece, column) in columns.iter_mut().zip(data) {
            *piece = column.get(start..start + len).unwrap_or(&ZEROS[..len]);
        }
        work(start, &columns, len);
        start += len;
    }
}

/// Parity 0 to `highest` of the columns into the first `len` bytes of the scratch blocks.
fn horner_into<K: Kernels>(
    kernels: K,
    highest: usize,
    columns: &[&[u8]],
    scratch: &mut [[u8; BLOCK]; PARITY_MAX],
    len: usize,
) {
    let [p, q, r] = scratch;
    match highest {
        0 => kernels.horner(columns, [&mut p[..len]]),
        1 => kernels.horner(columns, [&mut p[..len], &mut q[..len]]),
        _ => kernels.horner(columns, [&mut p[..len], &mut q[..len], &mut r[..len]]),
    }
}

/// Coefficients for the missing columns of one row.
struct Solution {
    /// Indexes of the missing data columns, ascending; only the first `count` are used.
    missing: [usize; PARITY_MAX],
    /// Parity columns used, ascending; only the first `count` are used.
    used: [usize; PARITY_MAX],
    count: usize,
    /// Missing column `i` is the sum of `products[i][k]` times the syndrome of `used[k]`.
    products: [[Product; PARITY_MAX]; PARITY_MAX],
}

impl Solution {
    /// `None` if nothing is missing.
    fn new(
        parity: &[Option<&[u8]>],
        data: &[Column<'_>],
    ) -> Result<Option<Self>, ReconstructError> {
        let width = ReconstructError::Width { data: data.len(), parity: parity.len() };
        if data.len() > DATA_COLUMNS_MAX || parity.len() > PARITY_MAX {
            return Err(width);
        }
        let is_missing = |column: &&Column<'_>| matches!(column, Column::Missing(_));
        let count = data.iter().filter(is_missing).count();
        let available = parity.iter().flatten().count();
        if count == 0 {
            return Ok(None);
        }
        if count > available {
            return Err(ReconstructError::TooManyMissing { missing: count, available });
        }
        let mut missing = [0; PARITY_MAX];
        let indexes = (0..data.len()).filter(|&j| is_missing(&&data[j]));
        missing.iter_mut().zip(indexes).for_each(|(slot, j)| *slot = j);
        let mut used = [0; PARITY_MAX];
        let indexes = (0..parity.len()).filter(|&k| parity[k].is_some());
        used.iter_mut().zip(indexes).for_each(|(slot, k)| *slot = k);

        let mut matrix: Matrix = [[0; PARITY_MAX]; PARITY_MAX];
        for (row, k) in matrix.iter_mut().zip(used).take(count) {
            for (coefficient, j) in row.iter_mut().zip(missing).take(count) {
                *coefficient = gf::exp2(k * (data.len() - 1 - j));
            }
        }
        let inverse = gf::invert_matrix(matrix, count).ok_or(width)?;
        let products = inverse.map(|row| row.map(Product::new));
        Ok(Some(Self { missing, used, count, products }))
    }

    /// Missing column `index` (of the solution) of one block, from the syndromes in `scratch`.
    fn solve<K: Kernels>(
        &self,
        kernels: K,
        index: usize,
        scratch: &[[u8; BLOCK]; PARITY_MAX],
        out: &mut [u8],
    ) {
        let products = &self.products[index];
        let syndromes @ [first, second, _] = self.used.map(|k| &scratch[k][..out.len()]);
        match self.count {
            1 => kernels.combine(&[products[0]], [first], out),
            2 => kernels.combine(&[products[0], products[1]], [first, second], out),
            _ => kernels.combine(products, syndromes, out),
        }
    }
}

fn reconstruct_by<K: Kernels>(
    kernels: K,
    parity: &[Option<&[u8]>],
    data: &mut [Column<'_>],
) -> Result<(), ReconstructError> {
    let Some(solution) = Solution::new(parity, data)? else { return Ok(()) };
    let longest = data.iter().map(Column::len).max().unwrap_or(0);
    let used = &solution.used[..solution.count];
    for &k in used {
        let len = parity[k].map_or(0, <[u8]>::len);
        if len < longest {
            return Err(ReconstructError::ParityLength { parity: k, len, expected: longest });
        }
    }
    let highest = used[used.len() - 1];

    let mut columns = vec![&ZEROS[..0]; data.len()];
    let mut scratch = [[0; BLOCK]; PARITY_MAX];
    let mut tail = [0; BLOCK];
    let mut start = 0;
    while let Some(end) = data.iter().map(Column::len).filter(|&len| len > start).min() {
        let end = end.min(start + BLOCK);
        let len = end - start;
        for (piece, column) in columns.iter_mut().zip(&*data) {
            *piece = match column {
                Column::Present(bytes) => bytes.get(start..end).unwrap_or(&ZEROS[..len]),
                Column::Missing(_) => &ZEROS[..len],
            };
        }
        horner_into(kernels, highest, &columns, &mut scratch, len);
        for &k in used {
            let stored = parity[k].map_or(&ZEROS[..len], |column| &column[start..end]);
            scratch[k].iter_mut().zip(stored).for_each(|(byte, stored)| *byte ^= stored);
        }
        for (index, &column) in solution.missing[..solution.count].iter().enumerate() {
            let Column::Missing(bytes) = &mut data[column] else { continue };
            if let Some(out) = bytes.get_mut(start..end) {
                solution.solve(kernels, index, &scratch, out);
            } else {
                solution.solve(kernels, index, &scratch, &mut tail[..len]);
                if tail[..len] != ZEROS[..len] {
                    return Err(ReconstructError::Tail { column });
                }
            }
        }
        start = end;
    }
    Ok(())
}
