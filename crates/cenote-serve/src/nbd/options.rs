//! The option phase before an export is selected: options in, replies out.
//!
//! ```text
//!   server   "NBDMAGIC" "IHAVEOPT" flags
//!   client   flags
//!   client   "IHAVEOPT" option length data    ── any number of times
//!   server   magic option type length data    ── one or more per option
//! ```
//!
//! Pure functions on bytes, all big-endian. The input is untrusted: lengths are limited by the
//! input, and nothing longer than [`DATA_MAX`] is kept.
//!
//! Source: the protocol's description of the NBD project, `doc/proto.md`.

use super::wire::{take, take_u16, take_u32, take_u64};

/// Longest data of an option that is decoded.
pub const DATA_MAX: u32 = 64 << 10;
/// Length of the header before an option's data.
pub const HEADER_LEN: usize = 16;
/// Longest name, and longest query.
const TEXT_MAX: usize = 4096;
/// Maximum queries of one option.
const QUERIES_MAX: u32 = 256;

const SERVER_MAGIC: [u8; 8] = *b"NBDMAGIC";
const OPTION_MAGIC: [u8; 8] = *b"IHAVEOPT";
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Flags of both sides.
pub mod handshake_flag {
    /// All options are answered, also unknown ones.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No zeros after the answer to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Types of replies.
pub mod reply {
    /// Success.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// Information about an export.
    pub const INFO: u32 = 3;
    /// A context.
    pub const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    /// Unknown option.
    pub const UNSUPPORTED: u32 = ERROR | 1;
    /// Refused by policy.
    pub const POLICY: u32 = ERROR | 2;
    /// Invalid option.
    pub const INVALID: u32 = ERROR | 3;
    /// Encryption is required first.
    pub const TLS_REQUIRED: u32 = ERROR | 5;
    /// Unknown export.
    pub const UNKNOWN: u32 = ERROR | 6;
    /// Too long.
    pub const TOO_BIG: u32 = ERROR | 9;
}

/// Kinds of options.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionKind {
    /// Selects an export; disconnects if there is none.
    ExportName,
    /// Ends the negotiation.
    Abort,
    /// Lists all exports.
    List,
    /// Encrypts everything that follows.
    StartTls,
    /// Requests information about an export.
    Info,
    /// Like `Info`, and selects the export.
    Go,
    /// Requests structured replies.
    StructuredReply,
    /// Lists the contexts.
    ListMetaContext,
    /// Selects contexts for block status.
    SetMetaContext,
    /// An unknown or unsupported option.
    Unknown(u32),
}

impl OptionKind {
    const fn of(number: u32) -> Self {
        match number {
            1 => Self::ExportName,
            2 => Self::Abort,
            3 => Self::List,
            5 => Self::StartTls,
            6 => Self::Info,
            7 => Self::Go,
            8 => Self::StructuredReply,
            9 => Self::ListMetaContext,
            10 => Self::SetMetaContext,
            other => Self::Unknown(other),
        }
    }

    /// Returns its number.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::ExportName => 1,
            Self::Abort => 2,
            Self::List => 3,
            Self::StartTls => 5,
            Self::Info => 6,
            Self::Go => 7,
            Self::StructuredReply => 8,
            Self::ListMetaContext => 9,
            Self::SetMetaContext => 10,
            Self::Unknown(number) => number,
        }
    }
}

/// Errors of decoding an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptOption {
    /// Wrong magic number.
    #[error("option with magic {found:#x}")]
    Magic {
        /// The number found.
        found: u64,
    },
    /// Wrong length.
    #[error("option of {found} bytes")]
    Length {
        /// The length found.
        found: usize,
    },
    /// A name or query is too long.
    #[error("text of {found} bytes, at most {TEXT_MAX}")]
    Text {
        /// The length found.
        found: usize,
    },
    /// A name or query is not UTF-8.
    #[error("text that is not UTF-8")]
    NotUtf8,
    /// Too many queries.
    #[error("{found} queries, at most {QUERIES_MAX}")]
    Queries {
        /// The number of queries.
        found: u32,
    },
}

/// Returns the server's first message.
#[must_use]
pub fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    super::wire::fill(&mut bytes, &[&SERVER_MAGIC, &OPTION_MAGIC, &flags.to_be_bytes()]);
    bytes
}

/// Decodes the client's flags; `None` if there are unknown ones.
#[must_use]
pub fn decode_client_flags(bytes: [u8; 4]) -> Option<u16> {
    let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    let flags = u32::from_be_bytes(bytes);
    (flags & !known == 0).then_some(flags as u16)
}

/// Returns the kind of an option, and the length of its data.
///
/// # Errors
/// [`CorruptOption`]: the following bytes cannot be interpreted.
pub fn decode_header(bytes: &[u8]) -> Result<(OptionKind, u32), CorruptOption> {
    let short = CorruptOption::Length { found: bytes.len() };
    let mut rest = bytes;
    let magic = take_u64(&mut rest).ok_or(short)?;
    let number = take_u32(&mut rest).ok_or(short)?;
    let len = take_u32(&mut rest).ok_or(short)?;
    if magic != u64::from_be_bytes(OPTION_MAGIC) {
        return Err(CorruptOption::Magic { found: magic });
    }
    Ok((OptionKind::of(number), len))
}

/// Encodes an option, as a client sends it.
#[must_use]
pub fn encode_option(kind: OptionKind, data: &[u8]) -> Vec<u8> {
    let number = kind.number().to_be_bytes();
    [&OPTION_MAGIC[..], &number, &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Decodes option data that consists of a name.
///
/// # Errors
/// [`CorruptOption`]
pub fn decode_name(data: &[u8]) -> Result<String, CorruptOption> {
    if data.len() > TEXT_MAX {
        return Err(CorruptOption::Text { found: data.len() });
    }
    String::from_utf8(data.to_vec()).map_err(|_| CorruptOption::NotUtf8)
}

fn take_text(rest: &mut &[u8], short: CorruptOption) -> Result<String, CorruptOption> {
    let len = take_u32(rest).ok_or(short)? as usize;
    if len > TEXT_MAX {
        return Err(CorruptOption::Text { found: len });
    }
    decode_name(take(rest, len).ok_or(short)?)
}

/// The data of [`OptionKind::Info`] and [`OptionKind::Go`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfoRequest {
    /// The export.
    pub name: String,
    /// Requested information in addition to size and flags.
    pub wanted: Vec<u16>,
}

impl InfoRequest {
    /// Decodes the data.
    ///
    /// # Errors
    /// [`CorruptOption`]
    pub fn decode(data: &[u8]) -> Result<Self, CorruptOption> {
        let bad = CorruptOption::Length { found: data.len() };
        let mut rest = data;
        let name = take_text(&mut rest, bad)?;
        let count = take_u16(&mut rest).ok_or(bad)?;
        if rest.len() != usize::from(count) * 2 {
            return Err(bad);
        }
        let wanted = std::iter::from_fn(|| take_u16(&mut rest)).collect();
        Ok(Self { name, wanted })
    }

    /// Encodes the data, as a client sends it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut data = Vec::new();
        data.extend((self.name.len() as u32).to_be_bytes());
        data.extend(self.name.as_bytes());
        data.extend((self.wanted.len() as u16).to_be_bytes());
        data.extend(self.wanted.iter().flat_map(|wanted| wanted.to_be_bytes()));
        data
    }
}

/// The data of [`OptionKind::ListMetaContext`] and [`OptionKind::SetMetaContext`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaRequest {
    /// The export.
    pub name: String,
    /// Contexts, or prefixes of their names.
    pub queries: Vec<String>,
}

impl MetaRequest {
    /// Decodes the data.
    ///
    /// # Errors
    /// [`CorruptOption`]
    pub fn decode(data: &[u8]) -> Result<Self, CorruptOption> {
        let bad = CorruptOption::Length { found: data.len() };
        let mut rest = data;
        let name = take_text(&mut rest, bad)?;
        let count = take_u32(&mut rest).ok_or(bad)?;
        if count > QUERIES_MAX {
            return Err(CorruptOption::Queries { found: count });
        }
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(take_text(&mut rest, bad)?);
        }
        if rest.is_empty() { Ok(Self { name, queries }) } else { Err(bad) }
    }

    /// Encodes the data, as a client sends it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut data = Vec::new();
        let text = |data: &mut Vec<u8>, text: &str| {
            data.extend((text.len() as u32).to_be_bytes());
            data.extend(text.as_bytes());
        };
        text(&mut data, &self.name);
        data.extend((self.queries.len() as u32).to_be_bytes());
        for query in &self.queries {
            text(&mut data, query);
        }
        data
    }
}

/// Encodes a reply to an option.
#[must_use]
pub fn encode_reply(option: OptionKind, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(20 + data.len());
    bytes.extend(REPLY_MAGIC.to_be_bytes());
    bytes.extend(option.number().to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_the_round_trip() {
        for number in 0..12 {
            let kind = OptionKind::of(number);
            let bytes = encode_option(kind, b"data");
            assert_eq!(decode_header(&bytes[..HEADER_LEN]), Ok((kind, 4)));
        }
        let info = InfoRequest { name: "tank/vol@früh".to_owned(), wanted: vec![3, 0xffff] };
        let data = info.encode();
        assert_eq!(InfoRequest::decode(&data), Ok(info));
        let queries = vec!["base:allocation".to_owned(), String::new()];
        let meta = MetaRequest { name: String::new(), queries };
        assert_eq!(MetaRequest::decode(&meta.encode()), Ok(meta));
        for end in 0..data.len() {
            let cut = InfoRequest::decode(&data[..end]);
            assert!(cut.is_err(), "{end} bytes: {cut:?}");
        }
    }

    #[test]
    fn too_long_options_are_refused() {
        let mut data = vec![0xff; 64];
        let length = Err(CorruptOption::Text { found: u32::MAX as usize });
        assert_eq!(InfoRequest::decode(&data), length);
        data[..8].copy_from_slice(&[0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(MetaRequest::decode(&data), Err(CorruptOption::Queries { found: 65536 }));
        assert_eq!(decode_name(&[0xc3, 0x28]), Err(CorruptOption::NotUtf8));
        assert_eq!(decode_client_flags([0, 0, 0, 3]), Some(3));
        assert_eq!(decode_client_flags([0, 0, 0, 4]), None);
    }
}
