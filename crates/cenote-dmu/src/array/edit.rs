//! Writes arrays of u64.

use cenote_ondisk::words;

use crate::live::TxResult;
use crate::objects::Objects;

/// The word at `index`; 0 if it was never written.
pub fn word(tx: &mut dyn Objects, object: u64, index: u64) -> TxResult<u64> {
    let bytes = tx.read(object, index.saturating_mul(8), 8)?;
    Ok(words::u64_at(&bytes, 0).unwrap_or(0))
}

/// The first `count` words.
pub fn words(tx: &mut dyn Objects, object: u64, count: usize) -> TxResult<Vec<u64>> {
    let bytes = tx.read(object, 0, count.saturating_mul(8))?;
    Ok(words::iter(&bytes).collect())
}

/// Writes the word at `index`.
pub fn set_word(tx: &mut dyn Objects, object: u64, index: u64, word: u64) -> TxResult<()> {
    tx.write(object, index.saturating_mul(8), &word.to_le_bytes())
}
