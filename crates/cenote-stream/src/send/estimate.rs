//! The estimate of a stream's length that commands print (spec 07 B6).

use cenote_ondisk::stream::RECORD_LEN;

/// What an estimate is made of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Uncompressed bytes of the blocks to send.
    pub logical: u64,
    /// Compressed bytes of the blocks to send.
    pub compressed: u64,
    /// Block size of the dataset: its record size, or a volume's block size.
    pub block_size: u64,
}

/// Bytes of a block pointer, which a sent block does not need.
const BLKPTR: u64 = 128;

/// Estimates the length of a stream in bytes, as OpenZFS does.
#[must_use]
pub const fn estimate(of: &Estimate, is_compressed: bool) -> u64 {
    let records = match of.logical.checked_div(of.block_size) {
        Some(records) => records,
        None => 0,
    };
    let size = if is_compressed { of.compressed } else { of.logical };
    let overhead = records.saturating_mul(RECORD_LEN as u64 - BLKPTR);
    size.saturating_add(overhead).saturating_add(2 * RECORD_LEN as u64)
}
