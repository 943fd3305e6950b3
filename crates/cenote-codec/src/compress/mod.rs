//! Compression of blocks: six stored forms, read from any bytes, written as OpenZFS reads them.
//!
//!     id     stored form                                    who ends it
//!     off    the bytes                                      their number
//!     lzjb   LZJB items                                     the output is full
//!     gzip   zlib stream                                    the stream; what follows is ignored
//!     zle    literals and runs of zeros                     the output is full
//!     lz4    length (u32 BE), LZ4 block                     the length
//!     zstd   length (u32 BE), level and version, frame      the length
//!
//! A decoder gets the physical bytes, whose tail may be padding, and must fill its output exactly:
//! the logical size is known from the block pointer, so less is damage, and so is more. Whatever
//! the input, it costs time and memory in proportion to input and output, and never a panic. That
//! matters more here than elsewhere: with a damaged pointer these functions see arbitrary bytes.
//!
//! An encoder writes at most `dst.len()` bytes and gives `None` if that does not do: the caller
//! sizes `dst` by what makes compression worth it, and stores the block raw otherwise.
//!
//! What is ours and what comes from libraries: lzjb and zle are small and nobody else has them. LZ4
//! is ours because the encoder's choices have to equal OpenZFS's, and for metadata's sake (see
//! `lz4`). zlib and Zstandard are libraries; their contexts are kept per thread, since making one
//! costs more than a small block.
//!
//! Sources: spec 02 §4.

mod gzip;
pub mod lz4;
pub mod lzjb;
#[cfg(test)]
mod tests;
pub mod zle;
pub mod zstd;

pub use zstd::ZstdLevel;

/// How a block is stored. `inherit`, `on` and `empty` are policies and never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// As it is.
    Off,
    /// The first one of ZFS.
    Lzjb,
    /// zlib at this level, 1 to 9. The level means nothing to the decoder.
    Gzip(u8),
    /// Runs of zeros.
    Zle,
    /// LZ4 behind its length.
    Lz4,
    /// Zstandard behind its length and level.
    Zstd,
}

impl Compression {
    /// The form with this number in a block pointer; `None` for policies and unknown numbers.
    pub fn from_id(id: u8) -> Option<Self> {
        Some(match id {
            2 => Self::Off,
            3 => Self::Lzjb,
            5..=13 => Self::Gzip(id - 4),
            14 => Self::Zle,
            15 => Self::Lz4,
            16 => Self::Zstd,
            _ => return None,
        })
    }

    /// Its number.
    pub fn id(self) -> u8 {
        match self {
            Self::Off => 2,
            Self::Lzjb => 3,
            Self::Gzip(level) => level.clamp(1, 9) + 4,
            Self::Zle => 14,
            Self::Lz4 => 15,
            Self::Zstd => 16,
        }
    }
}

/// Why stored bytes do not give the block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecompressError {
    /// The stored bytes end before the block is complete.
    #[error("stored bytes end after {produced} of {expected} bytes")]
    Truncated {
        /// Bytes of the block that were there.
        produced: usize,
        /// Bytes of the block.
        expected: usize,
    },
    /// The stored form is complete, and the block is not.
    #[error("stored bytes give {produced} bytes, expected {expected}")]
    Short {
        /// Bytes that came out.
        produced: usize,
        /// Bytes of the block.
        expected: usize,
    },
    /// The stored form holds more than the block.
    #[error("stored bytes give more than the {expected} bytes expected")]
    Long {
        /// Bytes of the block.
        expected: usize,
    },
    /// A match reaches to before the start of the block.
    #[error("distance {distance} at byte {at}")]
    Distance {
        /// How far back.
        distance: usize,
        /// From where.
        at: usize,
    },
    /// The length in front does not fit what is stored.
    #[error("length {length} is larger than the {available} bytes behind it")]
    Length {
        /// What the header claims.
        length: u64,
        /// Bytes behind the header.
        available: usize,
    },
    /// Not even the header fits.
    #[error("{len} bytes have no room for a header")]
    NoHeader {
        /// Bytes stored.
        len: usize,
    },
    /// The level word of a Zstandard block is none that OpenZFS writes.
    #[error("zstd level word {word:#010x}")]
    ZstdLevel {
        /// The word.
        word: u32,
    },
    /// The library found the stream broken; it knows where, but does not say.
    #[error("broken {form} stream")]
    Broken {
        /// Which form.
        form: &'static str,
    },
}

/// Fills `dst`, the logical block, from the stored bytes.
pub fn decompress(
    compression: Compression,
    src: &[u8],
    dst: &mut [u8],
) -> Result<(), DecompressError> {
    match compression {
        Compression::Off => {
            let short = DecompressError::Short { produced: src.len(), expected: dst.len() };
            dst.copy_from_slice(src.get(..dst.len()).ok_or(short)?);
            Ok(())
        }
        Compression::Lzjb => lzjb::decompress(src, dst),
        Compression::Gzip(_) => gzip::decompress(src, dst),
        Compression::Zle => zle::decompress(src, dst),
        Compression::Lz4 => lz4::decompress(src, dst),
        Compression::Zstd => zstd::decompress(src, dst),
    }
}

/// Compresses `src` into `dst` and gives the bytes used; `None` if they do not fit. `zstd_level`
/// is for Zstandard only.
pub fn compress(
    compression: Compression,
    zstd_level: ZstdLevel,
    src: &[u8],
    dst: &mut [u8],
) -> Option<usize> {
    match compression {
        Compression::Off => {
            dst.get_mut(..src.len())?.copy_from_slice(src);
            Some(src.len())
        }
        Compression::Lzjb => lzjb::compress(src, dst),
        Compression::Gzip(level) => gzip::compress(level, src, dst),
        Compression::Zle => zle::compress(src, dst),
        Compression::Lz4 => lz4::compress(src, dst),
        Compression::Zstd => zstd::compress(zstd_level, src, dst),
    }
}

/// `Ok` if `produced` bytes are the whole block.
fn complete(produced: usize, dst: &[u8]) -> Result<(), DecompressError> {
    let expected = dst.len();
    if produced == expected { Ok(()) } else { Err(DecompressError::Short { produced, expected }) }
}
