//! The transmission phase after an export is selected: requests in, replies out.
//!
//! ```text
//!   request  magic, flags, command, cookie, offset, length   28 bytes, then a write's data
//!   reply    simple: magic, error, cookie, then a read's data
//!            structured: magic, flags, type, cookie, length, then that many bytes; the last has
//!            the flag DONE
//! ```
//!
//! Pure functions on bytes, all big-endian. The input is untrusted.
//!
//! Source: the protocol's description of the NBD project, `doc/proto.md`.

/// Length of a request without data.
pub const REQUEST_LEN: usize = 28;
/// Length of a chunk's header.
pub const CHUNK_LEN: usize = 20;
/// Length of a simple reply without data.
pub const SIMPLE_LEN: usize = 16;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Error numbers of the protocol.
pub mod errno {
    /// The export is read-only.
    pub const EPERM: u32 = 1;
    /// Bytes could not be read or written.
    pub const EIO: u32 = 5;
    /// Invalid request.
    pub const EINVAL: u32 = 22;
    /// No space, or beyond the end of the export.
    pub const ENOSPC: u32 = 28;
    /// The answer would be too long.
    pub const EOVERFLOW: u32 = 75;
    /// Not supported.
    pub const ENOTSUP: u32 = 95;
}

/// Flags of an export.
pub mod export_flag {
    /// The flags are valid.
    pub const HAS_FLAGS: u16 = 1;
    /// Read-only.
    pub const READ_ONLY: u16 = 1 << 1;
    /// Supports flushes.
    pub const FLUSH: u16 = 1 << 2;
    /// Supports durable single requests.
    pub const FUA: u16 = 1 << 3;
    /// Supports discarding ranges.
    pub const TRIM: u16 = 1 << 5;
    /// Supports zeroing ranges.
    pub const WRITE_ZEROES: u16 = 1 << 6;
    /// Supports reads in one piece.
    pub const DF: u16 = 1 << 7;
    /// A flush on one connection covers all.
    pub const MULTI_CONN: u16 = 1 << 8;
    /// Supports reading ahead.
    pub const CACHE: u16 = 1 << 10;
    /// Supports zeroing only if it is fast.
    pub const FAST_ZERO: u16 = 1 << 11;
}

/// Flags of a request.
pub mod request_flag {
    /// Durable before the answer.
    pub const FUA: u16 = 1;
    /// Zeros that keep their space allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer in one piece.
    pub const DF: u16 = 1 << 2;
    /// One extent only.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Zero only if it is fast.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Flags of an extent, in the context `base:allocation`.
pub mod extent_flag {
    /// Not allocated.
    pub const HOLE: u32 = 1;
    /// It reads as zeros.
    pub const ZERO: u32 = 1 << 1;
}

/// Types of chunks.
mod chunk {
    pub(super) const NONE: u16 = 0;
    pub(super) const OFFSET_DATA: u16 = 1;
    pub(super) const OFFSET_HOLE: u16 = 2;
    pub(super) const BLOCK_STATUS: u16 = 5;
    pub(super) const ERROR: u16 = 1 << 15 | 1;
}

/// Commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Read data.
    Read,
    /// Write the data that follows.
    Write,
    /// End the connection.
    Disconnect,
    /// Make all answered writes durable.
    Flush,
    /// Discard a range.
    Trim,
    /// Read a range ahead.
    Cache,
    /// Zero a range.
    WriteZeroes,
    /// Return data and holes.
    BlockStatus,
    /// An unknown command.
    Unknown(u16),
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Its command.
    pub command: Command,
    /// Flags, see [`request_flag`].
    pub flags: u16,
    /// Number that the answer repeats.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range.
    pub len: u32,
}

/// Errors of decoding a request; the following bytes cannot be interpreted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptRequest {
    /// Too few bytes.
    #[error("request of {found} bytes")]
    Length {
        /// Bytes found.
        found: usize,
    },
    /// Wrong magic number.
    #[error("request with magic {found:#x}")]
    Magic {
        /// The number found.
        found: u32,
    },
}

impl Request {
    /// Decodes a request.
    ///
    /// # Errors
    /// [`CorruptRequest`]
    pub fn decode(bytes: &[u8]) -> Result<Self, CorruptRequest> {
        let short = CorruptRequest::Length { found: bytes.len() };
        let mut rest = bytes;
        let magic = take_u32(&mut rest).ok_or(short)?;
        let flags = take_u16(&mut rest).ok_or(short)?;
        let command = take_u16(&mut rest).ok_or(short)?;
        let cookie = take_u64(&mut rest).ok_or(short)?;
        let offset = take_u64(&mut rest).ok_or(short)?;
        let len = take_u32(&mut rest).ok_or(short)?;
        if magic != REQUEST_MAGIC {
            return Err(CorruptRequest::Magic { found: magic });
        }
        Ok(Self { command: Command::of(command), flags, cookie, offset, len })
    }

    /// Encodes a request, as a client sends it.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_LEN] {
        let mut bytes = [0; REQUEST_LEN];
        let fields: [&[u8]; 6] = [
            &REQUEST_MAGIC.to_be_bytes(),
            &self.flags.to_be_bytes(),
            &self.command.number().to_be_bytes(),
            &self.cookie.to_be_bytes(),
            &self.offset.to_be_bytes(),
            &self.len.to_be_bytes(),
        ];
        fill(&mut bytes, &fields);
        bytes
    }

    /// Whether it has any of these flags.
    #[must_use]
    pub const fn has(&self, flags: u16) -> bool {
        self.flags & flags != 0
    }
}

impl Command {
    const fn of(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            other => Self::Unknown(other),
        }
    }

    const fn number(self) -> u16 {
        match self {
            Self::Read => 0,
            Self::Write => 1,
            Self::Disconnect => 2,
            Self::Flush => 3,
            Self::Trim => 4,
            Self::Cache => 5,
            Self::WriteZeroes => 6,
            Self::BlockStatus => 7,
            Self::Unknown(number) => number,
        }
    }

    /// Returns the flags that are valid for this command.
    #[must_use]
    pub const fn flags(self) -> u16 {
        match self {
            Self::Read => request_flag::DF,
            Self::Write | Self::Trim => request_flag::FUA,
            Self::WriteZeroes => {
                request_flag::FUA | request_flag::NO_HOLE | request_flag::FAST_ZERO
            }
            Self::BlockStatus => request_flag::REQ_ONE,
            Self::Disconnect | Self::Flush | Self::Cache | Self::Unknown(_) => 0,
        }
    }
}

/// An extent of a block status; extents are adjacent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u32,
    /// Its state, see [`extent_flag`].
    pub flags: u32,
}

/// Encodes a simple reply; without an error, the data of a read follows it.
#[must_use]
pub fn simple(cookie: u64, error: u32) -> [u8; SIMPLE_LEN] {
    let mut bytes = [0; SIMPLE_LEN];
    let fields: [&[u8]; 3] =
        [&SIMPLE_MAGIC.to_be_bytes(), &error.to_be_bytes(), &cookie.to_be_bytes()];
    fill(&mut bytes, &fields);
    bytes
}

/// A chunk of a structured reply; the last one ends the reply.
#[derive(Debug, Clone, Copy)]
pub enum Chunk<'a> {
    /// Success without data.
    Done,
    /// Data follows.
    Data {
        /// Offset of the data.
        offset: u64,
        /// Length of the data.
        len: u32,
    },
    /// A hole.
    Hole {
        /// Offset of the hole.
        offset: u64,
        /// Length of the hole.
        len: u32,
    },
    /// Extents, starting at the offset of the request.
    Status {
        /// Number of the context.
        context: u32,
        /// The extents.
        extents: &'a [Extent],
    },
    /// Failure.
    Error {
        /// Number of the error.
        error: u32,
        /// Text for people.
        message: &'a str,
    },
}

/// Longest text of an error.
const MESSAGE_MAX: usize = 512;

/// Encodes a chunk, without the data that follows a [`Chunk::Data`].
#[must_use]
pub fn encode_chunk(cookie: u64, chunk: &Chunk<'_>, is_last: bool) -> Vec<u8> {
    let mut payload = Vec::new();
    let mut behind = 0;
    let number = match *chunk {
        Chunk::Done => chunk::NONE,
        Chunk::Data { offset, len } => {
            payload.extend(offset.to_be_bytes());
            behind = len;
            chunk::OFFSET_DATA
        }
        Chunk::Hole { offset, len } => {
            payload.extend(offset.to_be_bytes());
            payload.extend(len.to_be_bytes());
            chunk::OFFSET_HOLE
        }
        Chunk::Status { context, extents } => {
            payload.extend(context.to_be_bytes());
            for extent in extents {
                payload.extend(extent.len.to_be_bytes());
                payload.extend(extent.flags.to_be_bytes());
            }
            chunk::BLOCK_STATUS
        }
        Chunk::Error { error, message } => {
            let message = message.get(..message.floor_char_boundary(MESSAGE_MAX)).unwrap_or("");
            payload.extend(error.to_be_bytes());
            payload.extend((message.len() as u16).to_be_bytes());
            payload.extend(message.as_bytes());
            chunk::ERROR
        }
    };
    let mut bytes = Vec::with_capacity(CHUNK_LEN + payload.len());
    bytes.extend(CHUNK_MAGIC.to_be_bytes());
    bytes.extend(u16::from(is_last).to_be_bytes());
    bytes.extend(number.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend((payload.len() as u32 + behind).to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// Writes fields one after the other.
pub(super) fn fill(bytes: &mut [u8], fields: &[&[u8]]) {
    let all = fields.iter().flat_map(|field| field.iter());
    for (target, byte) in bytes.iter_mut().zip(all) {
        *target = *byte;
    }
}

pub(super) fn take<'a>(rest: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(len)?;
    *rest = behind;
    Some(taken)
}

fn take_word<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (word, behind) = rest.split_first_chunk()?;
    *rest = behind;
    Some(*word)
}

pub(super) fn take_u16(rest: &mut &[u8]) -> Option<u16> {
    take_word(rest).map(u16::from_be_bytes)
}

pub(super) fn take_u32(rest: &mut &[u8]) -> Option<u32> {
    take_word(rest).map(u32::from_be_bytes)
}

pub(super) fn take_u64(rest: &mut &[u8]) -> Option<u64> {
    take_word(rest).map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_round_trip() {
        for number in 0..10 {
            let command = Command::of(number);
            let request =
                Request { command, flags: 0x11, cookie: u64::MAX - 3, offset: 1 << 40, len: 4096 };
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes), Ok(request));
            let short = CorruptRequest::Length { found: 27 };
            assert_eq!(Request::decode(&bytes[..27]), Err(short));
        }
        let found = u32::from_be_bytes(*b"GET ");
        assert_eq!(
            Request::decode(&[b"GET ", &[0; 24][..]].concat()),
            Err(CorruptRequest::Magic { found })
        );
    }

    #[test]
    fn chunks_contain_their_length() {
        let extents = [Extent { len: 4096, flags: 3 }, Extent { len: 512, flags: 0 }];
        for (chunk, number, len, behind) in [
            (Chunk::Done, 0, 0, 0),
            (Chunk::Data { offset: 7, len: 100 }, 1, 108, 100),
            (Chunk::Hole { offset: 7, len: 100 }, 2, 12, 0),
            (Chunk::Status { context: 1, extents: &extents }, 5, 20, 0),
            (Chunk::Error { error: 5, message: "no" }, 0x8001, 8, 0),
        ] {
            let bytes = encode_chunk(9, &chunk, true);
            assert_eq!(bytes[..4], CHUNK_MAGIC.to_be_bytes());
            assert_eq!(bytes[4..8], [0, 1, (number >> 8) as u8, number as u8], "{chunk:?}");
            assert_eq!(bytes[16..20], u32::to_be_bytes(len), "{chunk:?}");
            assert_eq!(bytes.len(), CHUNK_LEN + len as usize - behind, "{chunk:?}");
        }
        let long = "é".repeat(400);
        let bytes = encode_chunk(9, &Chunk::Error { error: 5, message: &long }, false);
        assert_eq!(bytes.len(), CHUNK_LEN + 6 + 512);
        assert_eq!(simple(5, 22)[4..8], [0, 0, 0, 22]);
    }
}
