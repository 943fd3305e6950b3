//! Zstandard: a header of eight bytes and a frame without magic, content size and checksum.
//!
//!     0        4              8
//!     | length | level, version | frame, `length` bytes | padding
//!       u32 BE   u32 BE: level << 24 | version
//!
//! The level is not needed for decoding, but OpenZFS refuses blocks with an unknown level, and so
//! do we: it is one more check of bytes that a damaged pointer may have led to. Big-endian hosts
//! once wrote `version << 8 | level`; the version is below 2^16, so the zero byte above it
//! distinguishes the two.
//!
//! Sources: spec 02 §4.4.

use std::cell::RefCell;

use zstd_safe::{CCtx, CParameter, DCtx, DParameter, FrameFormat, ResetDirective};

use super::{DecompressError, complete};

/// Bytes in front of the frame.
const HEADER_LEN: usize = 8;

/// Version word of the blocks that we write: the library's, 1.5.7.
const VERSION: u32 = 10507;

thread_local! {
    static DECODER: RefCell<Option<DCtx<'static>>> = const { RefCell::new(None) };
    static ENCODER: RefCell<Option<CCtx<'static>>> = const { RefCell::new(None) };
}

/// A level as stored: 1 to 19, and the fast ones from 103 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ZstdLevel(u8);

impl Default for ZstdLevel {
    /// Level 3.
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl ZstdLevel {
    /// Level 3.
    pub const DEFAULT: Self = Self(3);

    /// The level with this number; `None` for numbers that OpenZFS does not know.
    pub fn from_id(id: u8) -> Option<Self> {
        matches!(id, 1..=19 | 103..=123).then_some(Self(id))
    }

    /// Its number.
    pub fn id(self) -> u8 {
        self.0
    }

    /// The library's level: negative for the fast ones.
    pub fn level(self) -> i32 {
        let id = i32::from(self.0);
        match self.0 {
            122 => -500,
            123 => -1000,
            113..=121 => -10 * (id - 111),
            103..=112 => -(id - 102),
            _ => id,
        }
    }

    /// The level in the second header word, in either byte order.
    fn from_word(word: u32) -> Option<Self> {
        let bytes = word.to_le_bytes();
        match bytes.iter().position(|&byte| byte == 0) {
            Some(2) => Self::from_id(bytes[3]),
            Some(3) => Self::from_id(bytes[0]),
            _ => None,
        }
    }
}

/// Fills `dst` from `src`.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    let no_header = DecompressError::NoHeader { len: src.len() };
    let (&length, rest) = src.split_first_chunk::<4>().ok_or(no_header)?;
    let (&word, rest) = rest.split_first_chunk::<4>().ok_or(no_header)?;
    let (length, word) = (u32::from_be_bytes(length), u32::from_be_bytes(word));
    ZstdLevel::from_word(word).ok_or(DecompressError::ZstdLevel { word })?;
    let too_long = DecompressError::Length { length: length.into(), available: rest.len() };
    let frame = rest.get(..length as usize).ok_or(too_long)?;
    let broken = DecompressError::Broken { form: "zstd" };
    let produced = DECODER.with_borrow_mut(|decoder| {
        if decoder.is_none() {
            let mut fresh = DCtx::try_create().ok_or(broken)?;
            let magicless = DParameter::Format(FrameFormat::Magicless);
            fresh.set_parameter(magicless).map_err(|_| broken)?;
            *decoder = Some(fresh);
        }
        let decoder = decoder.as_mut().ok_or(broken)?;
        decoder.decompress(dst, frame).map_err(|_| broken)
    })?;
    complete(produced, dst)
}

/// Compresses `src` into `dst`; `None` if it does not fit.
pub fn compress(level: ZstdLevel, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (header, room) = dst.split_first_chunk_mut::<HEADER_LEN>()?;
    let length = ENCODER.with_borrow_mut(|encoder| {
        if encoder.is_none() {
            *encoder = CCtx::try_create();
        }
        let encoder = encoder.as_mut()?;
        encoder.reset(ResetDirective::SessionAndParameters).ok()?;
        let parameters = [
            CParameter::CompressionLevel(level.level()),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ChecksumFlag(false),
            CParameter::ContentSizeFlag(false),
        ];
        for parameter in parameters {
            encoder.set_parameter(parameter).ok()?;
        }
        encoder.compress2(room, src).ok()
    })?;
    let word = u32::from(level.id()) << 24 | VERSION;
    header[..4].copy_from_slice(&u32::try_from(length).ok()?.to_be_bytes());
    header[4..].copy_from_slice(&word.to_be_bytes());
    Some(HEADER_LEN + length)
}
