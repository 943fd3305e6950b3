//! Checksums of blocks: four 64-bit words from bytes, by the function that a block pointer names.
//!
//!     function          words of the result
//!     fletcher2/4       the sums; data is read in the block's byte order
//!     sha256            digest bytes as big-endian numbers, on every machine
//!     sha512 skein      first 32 digest bytes as numbers in the block's byte order
//!     edonr blake3
//!     off noparity      zeros
//!
//! The checksum covers the bytes as stored: compressed, padded, encrypted. `swapped` says that the
//! block's pointer gives big-endian order (`B` = 0).
//!
//! skein, edonr and blake3 are keyed with the pool's salt. A [`Salt`] keeps the precomputed keyed
//! state of each, so that blocks do not pay for it again.
//!
//! `embedded` has the four functions whose result is stored in the block itself.
//!
//! Sources: spec 02 §3.1, §3.2, §3.5.

pub mod embedded;
#[cfg(test)]
mod tests;

use sha2::{Digest, Sha256, Sha512_256};

use crate::{edonr, fletcher, skein};

/// A checksum function that can be computed, with its number on disk (spec 02 §3.1).
///
/// `ChecksumType` of the ondisk crate is any number that the format allows, with its name and
/// properties, including the property values `inherit` and `on`. The two crates do not depend on
/// each other; a test of the block layer, which uses both, compares the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ChecksumAlgorithm {
    /// Zeros.
    Off = 2,
    /// SHA-256 in a trailer; labels.
    Label = 3,
    /// SHA-256 in a trailer; gang headers.
    GangHeader = 4,
    /// fletcher2 in a trailer; log blocks of old pools.
    Zilog = 5,
    /// fletcher2.
    Fletcher2 = 6,
    /// fletcher4, the default.
    Fletcher4 = 7,
    /// SHA-256.
    Sha256 = 8,
    /// fletcher4 in a chain header; log blocks.
    Zilog2 = 9,
    /// Zeros; used for dump volumes.
    NoParity = 10,
    /// SHA-512/256.
    Sha512 = 11,
    /// Skein-512-256 with the pool's salt.
    Skein = 12,
    /// Edon-R-512 with the pool's salt.
    EdonR = 13,
    /// BLAKE3 with the pool's salt.
    Blake3 = 14,
}

impl ChecksumAlgorithm {
    /// The function with this number in a block pointer; `None` for 0, 1 and unknown ones.
    pub fn from_id(id: u8) -> Option<Self> {
        Some(match id {
            2 => Self::Off,
            3 => Self::Label,
            4 => Self::GangHeader,
            5 => Self::Zilog,
            6 => Self::Fletcher2,
            7 => Self::Fletcher4,
            8 => Self::Sha256,
            9 => Self::Zilog2,
            10 => Self::NoParity,
            11 => Self::Sha512,
            12 => Self::Skein,
            13 => Self::EdonR,
            14 => Self::Blake3,
            _ => return None,
        })
    }

    /// Its number.
    pub fn id(self) -> u8 {
        self as u8
    }

    /// Whether the checksum needs the pool's salt.
    pub fn is_salted(self) -> bool {
        matches!(self, Self::Skein | Self::EdonR | Self::Blake3)
    }

    /// Whether the checksum is stored in the block ([`embedded`]).
    pub fn is_embedded(self) -> bool {
        matches!(self, Self::Label | Self::GangHeader | Self::Zilog | Self::Zilog2)
    }

    /// Whether the checksum of an encrypted block is truncated to half, instead of folded.
    fn is_truncated(self) -> bool {
        matches!(self, Self::Sha256 | Self::Sha512 | Self::Skein | Self::Blake3)
    }

    /// The two words that are stored for an encrypted block, whose other two hold the MAC (spec 02
    /// §3.5). Object set blocks store all four words even if encrypted.
    pub fn fold(self, words: [u64; 4]) -> [u64; 2] {
        let [a, b, c, d] = words;
        if self.is_truncated() { [a, b] } else { [a ^ c, b ^ d] }
    }

    /// Whether `computed` matches `stored`; `folded` for encrypted blocks.
    pub fn matches(self, computed: [u64; 4], stored: [u64; 4], folded: bool) -> bool {
        if folded { self.fold(computed) == stored[..2] } else { computed == stored }
    }
}

/// A pool's salt (`org.illumos:checksum_salt`), with the precomputed state of each function keyed
/// with it.
#[derive(Clone)]
pub struct Salt {
    skein: skein::Keyed,
    edonr: edonr::Keyed,
    blake3: [u8; 32],
}

impl Salt {
    /// Prepares the salt.
    pub fn new(salt: &[u8; 32]) -> Self {
        Self { skein: skein::Keyed::new(salt), edonr: edonr::Keyed::new(salt), blake3: *salt }
    }
}

impl std::fmt::Debug for Salt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Salt").finish_non_exhaustive()
    }
}

/// The pool's salt is needed and was not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("checksum {algorithm:?} needs the pool's salt")]
pub struct SaltMissing {
    /// The requested function.
    pub algorithm: ChecksumAlgorithm,
}

/// The checksum of `data`; `swapped` if its block was written in big-endian order.
///
/// For embedded checksums, the function is applied to the bytes as they are.
pub fn compute(
    algorithm: ChecksumAlgorithm,
    data: &[u8],
    swapped: bool,
    salt: Option<&Salt>,
) -> Result<[u64; 4], SaltMissing> {
    use ChecksumAlgorithm as Algorithm;
    let salt = || salt.ok_or(SaltMissing { algorithm });
    Ok(match algorithm {
        Algorithm::Off | Algorithm::NoParity => [0; 4],
        Algorithm::Fletcher2 | Algorithm::Zilog if swapped => fletcher::fletcher2_be(data),
        Algorithm::Fletcher2 | Algorithm::Zilog => fletcher::fletcher2(data),
        Algorithm::Fletcher4 | Algorithm::Zilog2 if swapped => fletcher::fletcher4_be(data),
        Algorithm::Fletcher4 | Algorithm::Zilog2 => fletcher::fletcher4(data),
        Algorithm::Sha256 | Algorithm::Label | Algorithm::GangHeader => {
            words(&Sha256::digest(data).into(), true)
        }
        Algorithm::Sha512 => words(&Sha512_256::digest(data).into(), swapped),
        Algorithm::Skein => words(&salt()?.skein.hash(data), swapped),
        Algorithm::EdonR => words(&salt()?.edonr.hash(data), swapped),
        Algorithm::Blake3 => words(blake3::keyed_hash(&salt()?.blake3, data).as_bytes(), swapped),
    })
}

/// Four words of a digest.
fn words(digest: &[u8; 32], big_endian: bool) -> [u64; 4] {
    let mut words = [0; 4];
    for (word, &bytes) in words.iter_mut().zip(digest.as_chunks::<8>().0) {
        *word = if big_endian { u64::from_be_bytes(bytes) } else { u64::from_le_bytes(bytes) };
    }
    words
}
