//! Compression of blocks: six formats, decoded from any bytes, encoded so that OpenZFS can read
//! them.
//!
//!     id     format                                         end of the data
//!     off    the bytes                                      their number
//!     lzjb   LZJB items                                     the output is full
//!     gzip   zlib stream                                    the stream; what follows is ignored
//!     zle    literals and runs of zeros                     the output is full
//!     lz4    length (u32 BE), LZ4 block                     the length
//!     zstd   length (u32 BE), level and version, frame      the length
//!
//! A decoder gets the physical bytes, whose tail may be padding, and must fill its output exactly:
//! the logical size is known from the block pointer, so fewer or more bytes are damage. For any
//! input, it uses time and memory in proportion to input and output, and never panics. That matters
//! more here than elsewhere: with a damaged pointer these functions see arbitrary bytes.
//!
//! An encoder writes at most `dst.len()` bytes and returns `None` if that is not enough: the caller
//! sizes `dst` by the required saving, and stores the block uncompressed otherwise.
//!
//! Own code and libraries: lzjb and zle are small and have no library. LZ4 is our own because the
//! encoder must make the same choices as OpenZFS's, and for speed on metadata (see `lz4`). zlib and
//! Zstandard are libraries; their contexts are kept per thread, since creating one costs more than
//! a small block.
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

/// The format of a stored block. `inherit`, `on` and `empty` are property values and never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Uncompressed.
    Off,
    /// LZJB, the first one of ZFS.
    Lzjb,
    /// zlib at this level, 1 to 9. The decoder ignores the level.
    Gzip(u8),
    /// Runs of zeros.
    Zle,
    /// LZ4 behind its length.
    Lz4,
    /// Zstandard behind its length and level.
    Zstd,
}

impl Compression {
    /// The format with this number in a block pointer; `None` for property values and unknown
    /// numbers.
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

/// Why stored bytes cannot be decompressed.
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
    /// The stored data are complete, but shorter than the block.
    #[error("stored bytes give {produced} bytes, expected {expected}")]
    Short {
        /// Bytes produced.
        produced: usize,
        /// Bytes of the block.
        expected: usize,
    },
    /// The stored data are longer than the block.
    #[error("stored bytes give more than the {expected} bytes expected")]
    Long {
        /// Bytes of the block.
        expected: usize,
    },
    /// A match reaches back beyond the start of the block.
    #[error("distance {distance} at byte {at}")]
    Distance {
        /// Distance of the match.
        distance: usize,
        /// Position of the match.
        at: usize,
    },
    /// The length in the header does not match the stored bytes.
    #[error("length {length} is larger than the {available} bytes behind it")]
    Length {
        /// Length according to the header.
        length: u64,
        /// Bytes behind the header.
        available: usize,
    },
    /// The stored bytes are too short for the header.
    #[error("{len} bytes have no room for a header")]
    NoHeader {
        /// Bytes stored.
        len: usize,
    },
    /// The level word of a Zstandard block is not one that OpenZFS writes.
    #[error("zstd level word {word:#010x}")]
    ZstdLevel {
        /// The word.
        word: u32,
    },
    /// The library rejected the stream without saying where.
    #[error("broken {form} stream")]
    Broken {
        /// The format.
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

/// Compresses `src` into `dst` and returns the number of bytes used; `None` if they do not fit.
/// `zstd_level` applies to Zstandard only.
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
