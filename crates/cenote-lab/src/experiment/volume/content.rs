//! An image whose compression is known: that of report 003.
//!
//! ```text
//!   grains of 4K      zeros in runs of four on average, 11 % of all; never compressed by less
//!   other grains      pieces of 300 bytes: new ones, or copies of pieces 4K to 60K before
//! ```
//!
//! Copies have a distance of more than 4K, so that blocks of 4K hardly compress; how many there are
//! decides how lz4 packs blocks of 128K. The share is tuned to the factor of 1.69 that the report's
//! figures imply.

use cenote_rt::Rng;

/// Bytes of a record.
pub(super) const RECORD: usize = 128 << 10;
/// Smallest unit of zeros.
pub(super) const GRAIN: usize = 4 << 10;

const PIECE: usize = 300;
/// Distances of a copy.
const NEAR: usize = GRAIN + PIECE;
const FAR: usize = 60_000;
/// Copies among pieces, in thousandths.
const COPIES_MILLE: u64 = 517;
/// In ten thousands: the first grain is zero; data ends in zeros; zeros end in data.
const ZERO: u64 = 1100;
const DATA_ENDS: u64 = 309;
const ZEROS_END: u64 = 2500;

/// Fills a record of the image.
pub(super) fn fill(seed: u64, number: u64, record: &mut [u8]) {
    let mut rng = Rng::seeded(seed ^ (number + 1) << 20);
    let mut at = 0;
    while at < record.len() {
        let end = (at + PIECE).min(record.len());
        if at > NEAR && rng.below(1000) < COPIES_MILLE {
            let distance = NEAR + rng.below((at.min(FAR) - NEAR) as u64) as usize;
            let len = end - at;
            record.copy_within(at - distance..at - distance + len, at);
        } else {
            rng.fill(&mut record[at..end]);
        }
        at = end;
    }
    let mut is_zero = rng.below(10_000) < ZERO;
    for grain in record.chunks_mut(GRAIN) {
        if is_zero {
            grain.fill(0);
        }
        let changes = rng.below(10_000) < if is_zero { ZEROS_END } else { DATA_ENDS };
        is_zero ^= changes;
    }
}

/// Returns the ranges of a record that are not zero, in grains.
pub(super) fn data_ranges(record: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut ranges: Vec<std::ops::Range<usize>> = Vec::new();
    for (index, grain) in record.chunks(GRAIN).enumerate() {
        if grain.iter().all(|byte| *byte == 0) {
            continue;
        }
        let start = index * GRAIN;
        match ranges.last_mut() {
            Some(last) if last.end == start => last.end = start + grain.len(),
            _ => ranges.push(start..start + grain.len()),
        }
    }
    ranges
}
