//! What is said before an export is chosen: options in, replies out.
//!
//! ```text
//!   server   "NBDMAGIC" "IHAVEOPT" flags
//!   client   flags
//!   client   "IHAVEOPT" option length data    ── as often as it likes
//!   server   magic option type length data    ── one or more to each
//! ```
//!
//! Pure functions on bytes, all big-endian; what comes in is hostile: lengths are those of the
//! input, and nothing is kept that is longer than [`DATA_MAX`].
//!
//! Source: the protocol's description of the NBD project, `doc/proto.md`.

use super::wire::{take, take_u16, take_u32, take_u64};

/// Longest data of an option that is looked at.
pub const DATA_MAX: u32 = 64 << 10;
/// Length of what stands before an option's data.
pub const HEADER_LEN: usize = 16;
/// Longest name, and longest query.
const TEXT_MAX: usize = 4096;
/// Most queries of one option.
const QUERIES_MAX: u32 = 256;

const SERVER_MAGIC: [u8; 8] = *b"NBDMAGIC";
const OPTION_MAGIC: [u8; 8] = *b"IHAVEOPT";
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Flags of both sides.
pub mod handshake_flag {
    /// Options are answered, also unknown ones.
    pub const FIXED_NEWSTYLE: u16 = 1;
    /// No zeros behind the answer to `EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Types of replies.
pub mod reply {
    /// It is so.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// Facts of an export.
    pub const INFO: u32 = 3;
    /// A context.
    pub const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    /// No such option.
    pub const UNSUPPORTED: u32 = ERROR | 1;
    /// Not here.
    pub const POLICY: u32 = ERROR | 2;
    /// The option makes no sense.
    pub const INVALID: u32 = ERROR | 3;
    /// Not before the connection is encrypted.
    pub const TLS_REQUIRED: u32 = ERROR | 5;
    /// No such export.
    pub const UNKNOWN: u32 = ERROR | 6;
    /// The server ends.
    pub const SHUTDOWN: u32 = ERROR | 7;
    /// Too long.
    pub const TOO_BIG: u32 = ERROR | 9;
}

/// What an option asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OptionKind {
    /// An export, at once and without an answer if there is none.
    ExportName,
    /// The end.
    Abort,
    /// All exports.
    List,
    /// That all that follows is encrypted.
    StartTls,
    /// Facts of an export.
    Info,
    /// The same, and the export.
    Go,
    /// Answers in chunks.
    StructuredReply,
    /// Which contexts there are.
    ListMetaContext,
    /// Contexts to be told about.
    SetMetaContext,
    /// Something that we do not know or have.
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

    /// Its number.
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

/// Why bytes are no option, or its data not what it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptOption {
    /// It does not begin as options do.
    #[error("option with magic {found:#x}")]
    Magic {
        /// What it begins with.
        found: u64,
    },
    /// It ends too early or too late.
    #[error("option of {found} bytes")]
    Length {
        /// Its length.
        found: usize,
    },
    /// A name or query is too long.
    #[error("text of {found} bytes, at most {TEXT_MAX}")]
    Text {
        /// Its length.
        found: usize,
    },
    /// A name or query is no UTF-8.
    #[error("text that is not UTF-8")]
    NotUtf8,
    /// More queries than anybody has.
    #[error("{found} queries, at most {QUERIES_MAX}")]
    Queries {
        /// How many.
        found: u32,
    },
}

/// What the server says first.
#[must_use]
pub fn greeting() -> [u8; 18] {
    let mut bytes = [0; 18];
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    super::wire::fill(&mut bytes, &[&SERVER_MAGIC, &OPTION_MAGIC, &flags.to_be_bytes()]);
    bytes
}

/// The flags that a client answers with; `None` if it wants what we do not know.
#[must_use]
pub fn decode_client_flags(bytes: [u8; 4]) -> Option<u16> {
    let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    let flags = u32::from_be_bytes(bytes);
    (flags & !known == 0).then_some(flags as u16)
}

/// Kind of an option, and the length of its data.
///
/// # Errors
/// [`CorruptOption`]: nothing can be said of what follows.
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

/// The bytes of an option, as a client sends it.
#[must_use]
pub fn encode_option(kind: OptionKind, data: &[u8]) -> Vec<u8> {
    let number = kind.number().to_be_bytes();
    [&OPTION_MAGIC[..], &number, &(data.len() as u32).to_be_bytes(), data].concat()
}

/// A name that is all of an option's data.
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

/// What [`OptionKind::Info`] and [`OptionKind::Go`] ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InfoRequest {
    /// The export.
    pub name: String,
    /// Facts that are wanted beside size and flags.
    pub wanted: Vec<u16>,
}

impl InfoRequest {
    /// Decodes the data of such an option.
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

    /// The data of such an option, as a client sends it.
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

/// What [`OptionKind::ListMetaContext`] and [`OptionKind::SetMetaContext`] ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaRequest {
    /// The export.
    pub name: String,
    /// Contexts, or beginnings of their names.
    pub queries: Vec<String>,
}

impl MetaRequest {
    /// Decodes the data of such an option.
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

    /// The data of such an option, as a client sends it.
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

/// A reply to an option.
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
    fn options_come_back_as_they_were() {
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
    fn what_is_too_long_is_refused() {
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
