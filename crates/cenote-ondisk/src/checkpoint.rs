//! The pool's checkpoint: one uberblock kept in the pool directory (spec 05 §10).
//!
//! The value is the whole uberblock as an array of u64 (26 or 27 words, by release), with its
//! checkpoint txg set. [`uberblock_bytes`] converts it to the input of the uberblock decoder. Each
//! top-level vdev that freed space since then has a space map of FREE entries
//! ([`crate::vdev_zap::POOL_CHECKPOINT_SM`]): that space is still allocated, and the sum of the
//! maps' `allocated`, negated, is the space used by the checkpoint.

use crate::words;

/// Pool directory: the checkpointed uberblock.
pub const POOL_CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
/// Least number of words of an uberblock: up to its root block pointer.
pub const UBERBLOCK_WORDS_MIN: usize = 21;
/// Bytes of the smallest uberblock slot, the size of the result.
pub const UBERBLOCK_LEN: usize = 1024;

/// The stored words are not an uberblock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("checkpoint: uberblock of {count} words, expected 21 to 128")]
pub struct CorruptCheckpoint {
    /// Words found.
    pub count: usize,
}

/// Returns the stored words as the bytes of an uberblock slot, padded with zeros.
pub fn uberblock_bytes(words: &[u64]) -> Result<Vec<u8>, CorruptCheckpoint> {
    if words.len() < UBERBLOCK_WORDS_MIN || words.len() > UBERBLOCK_LEN / 8 {
        return Err(CorruptCheckpoint { count: words.len() });
    }
    let mut bytes = words::to_bytes(words);
    bytes.resize(UBERBLOCK_LEN, 0);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths() {
        assert_eq!(uberblock_bytes(&[7; 27]).unwrap().len(), UBERBLOCK_LEN);
        for count in [20, 129] {
            assert_eq!(uberblock_bytes(&vec![0; count]), Err(CorruptCheckpoint { count }));
        }
    }
}
