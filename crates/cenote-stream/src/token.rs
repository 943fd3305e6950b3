//! Resume tokens: how an interrupted receive tells the sender where to continue (spec 07 B8).
//!
//! ```text
//!   1-9bb53dc1a-b8-789c6360...
//!   |     |      |      +--- zlib stream of the packed nvlist, in hexadecimal
//!   |     |      +--- bytes of the packed nvlist, hexadecimal
//!   |     +--- first word of fletcher4 over the zlib stream, hexadecimal
//!   +--- version
//! ```
//!
//! A user may type a token, so that every part of it is checked: the length of the packed nvlist
//! bounds the memory for it, and is itself bounded.

use std::io::{Read, Write};

use cenote_codec::fletcher::fletcher4;
use cenote_ondisk::nvlist::{CorruptNvList, Encoding, NvList, NvPair, NvString, NvValue};
use flate2::Compression;
use flate2::bufread::ZlibDecoder;
use flate2::write::ZlibEncoder;

/// The version that is written, and the only one that is read.
const VERSION: u64 = 1;
/// Bytes of the packed nvlist, at most: a token with the guids of a million redaction snapshots is
/// shorter.
const PACKED_MAX: u64 = 16 << 20;

/// Why text is not a resume token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptToken {
    /// The text has not the four parts of a token.
    #[error("resume token is corrupt (invalid format)")]
    Format,
    /// The version is not 1.
    #[error("resume token is corrupt (invalid version {version})")]
    Version {
        /// Version found.
        version: u64,
    },
    /// The last part is not hexadecimal.
    #[error("resume token is corrupt (payload is not hex-encoded)")]
    Hex,
    /// The checksum does not match the last part.
    #[error("resume token is corrupt (incorrect checksum)")]
    Checksum,
    /// The last part is not a zlib stream, or its length is not the stated one.
    #[error("resume token is corrupt (decompression failed)")]
    Compression,
    /// The packed nvlist is invalid.
    #[error("resume token is corrupt (nvlist_unpack failed)")]
    List {
        /// The cause.
        source: CorruptNvList,
    },
    /// A value is missing or has another type.
    #[error("resume token is corrupt (no {key})")]
    Value {
        /// Its key.
        key: &'static str,
    },
}

/// The place where a receive was interrupted, and how the sender must continue.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags, as in the token")]
pub struct ResumeToken {
    /// Guid of the snapshot that is being received.
    pub to_guid: u64,
    /// Name of that snapshot at the sender.
    pub to_name: NvString,
    /// Guid of the source of an increment; `None` if full.
    pub from_guid: Option<u64>,
    /// Object at which to continue.
    pub object: u64,
    /// Offset in the object.
    pub offset: u64,
    /// Bytes received so far.
    pub bytes: u64,
    /// Blocks may be longer than 128 KiB (`zfs send -L`).
    pub allows_large_blocks: bool,
    /// Blocks may be stored in their pointers (`-e`).
    pub allows_embedded: bool,
    /// Blocks may be compressed (`-c`).
    pub allows_compressed: bool,
    /// Blocks are sent as they are on disk (`-w`).
    pub is_raw: bool,
    /// Guids of the redaction snapshots of a redacted send.
    pub redact_snaps: Option<Vec<u64>>,
    /// Guids of the redaction snapshots of the redaction bookmark that is the source.
    pub book_redact_snaps: Option<Vec<u64>>,
}

/// Decodes the nvlist of a token, whatever its keys.
///
/// # Errors
/// All of [`CorruptToken`] but [`CorruptToken::Value`].
pub fn decode_list(text: &str) -> Result<NvList, CorruptToken> {
    let mut parts = text.splitn(4, '-');
    let mut part = || parts.next().filter(|part| !part.is_empty()).ok_or(CorruptToken::Format);
    let (version, checksum, packed_len, payload) = (part()?, part()?, part()?, part()?);
    let version = version.parse().map_err(|_| CorruptToken::Format)?;
    let checksum = hex_number(checksum)?;
    let packed_len = hex_number(packed_len)?;
    if version != VERSION {
        return Err(CorruptToken::Version { version });
    }
    let compressed = hex_bytes(payload).ok_or(CorruptToken::Hex)?;
    let [found, ..] = fletcher4(&compressed);
    if found != checksum {
        return Err(CorruptToken::Checksum);
    }
    let packed = inflate(&compressed, packed_len).ok_or(CorruptToken::Compression)?;
    NvList::decode(&packed).map_err(|source| CorruptToken::List { source })
}

impl ResumeToken {
    /// Decodes a token.
    ///
    /// # Errors
    /// All of [`CorruptToken`].
    pub fn decode(text: &str) -> Result<Self, CorruptToken> {
        let list = decode_list(text)?;
        let number = |key| list.u64(key).ok_or(CorruptToken::Value { key });
        let array = |key| list.u64_array(key).map(<[u64]>::to_vec);
        Ok(Self {
            to_guid: number("toguid")?,
            to_name: list.string("toname").ok_or(CorruptToken::Value { key: "toname" })?.clone(),
            from_guid: list.u64("fromguid"),
            object: number("object")?,
            offset: number("offset")?,
            bytes: number("bytes")?,
            allows_large_blocks: list.contains("largeblockok"),
            allows_embedded: list.contains("embedok"),
            allows_compressed: list.contains("compressok"),
            is_raw: list.contains("rawok"),
            redact_snaps: array("redact_snaps"),
            book_redact_snaps: array("book_redact_snaps"),
        })
    }

    /// The nvlist of the token.
    #[must_use]
    pub fn to_list(&self) -> NvList {
        let mut list = NvList::new();
        let mut put = |name: &str, value: NvValue| {
            list.pairs.push(NvPair { name: name.into(), value });
        };
        if let Some(guid) = self.from_guid {
            put("fromguid", guid.into());
        }
        put("object", self.object.into());
        put("offset", self.offset.into());
        put("bytes", self.bytes.into());
        put("toguid", self.to_guid.into());
        put("toname", self.to_name.clone().into());
        for (name, is_set) in [
            ("largeblockok", self.allows_large_blocks),
            ("embedok", self.allows_embedded),
            ("compressok", self.allows_compressed),
            ("rawok", self.is_raw),
        ] {
            if is_set {
                put(name, NvValue::Boolean);
            }
        }
        let arrays =
            [("redact_snaps", &self.redact_snaps), ("book_redact_snaps", &self.book_redact_snaps)];
        for (name, guids) in arrays {
            if let Some(guids) = guids {
                put(name, guids.clone().into());
            }
        }
        list
    }

    /// Encodes the token; the nvlist in XDR, which every version of OpenZFS reads.
    #[must_use]
    pub fn encode(&self) -> String {
        let packed = self.to_list().encode(Encoding::Xdr);
        let compressed = deflate(&packed);
        let [checksum, ..] = fletcher4(&compressed);
        format!("{VERSION}-{checksum:x}-{:x}-{}", packed.len(), hex_text(&compressed))
    }
}

/// A number in hexadecimal, without a sign or prefix.
fn hex_number(text: &str) -> Result<u64, CorruptToken> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(text, 16).ok().filter(|_| is_hex);
    number.ok_or(CorruptToken::Format)
}

fn hex_bytes(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? << 4 | digit(*low)?) as u8);
    let bytes: Option<Vec<u8>> = pairs.iter().map(byte).collect();
    bytes.filter(|_| rest.is_empty())
}

fn hex_text(bytes: &[u8]) -> String {
    let digit = |nibble: u8| char::from_digit(nibble.into(), 16).unwrap_or('0');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The content of a zlib stream, if it has exactly `len` bytes.
fn inflate(compressed: &[u8], len: u64) -> Option<Vec<u8>> {
    let limit = Some(len).filter(|len| *len <= PACKED_MAX)?.checked_add(1)?;
    let mut packed = Vec::new();
    ZlibDecoder::new(compressed).take(limit).read_to_end(&mut packed).ok()?;
    (packed.len() as u64 == len).then_some(packed)
}

fn deflate(packed: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
    let finished = encoder.write_all(packed).and_then(|()| encoder.finish());
    finished.expect("memory takes everything")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Made by libzfs 2.3.2.
    const RECORDED: &str = "1-9bb53dc1a-b8-789c636064000310a500c4ec50360710e72765a52697303030419460\
        caa7a515a79630c001489e0d493ea9b224b518489fe0c0aebf243fbd34338581c1655f4c7bfadb5e260d24794e\
        b07c5e626e2a0343ba6e716a5e8a917ea2437e5e2ad42e00e424164c";
    /// The example of spec 07 B8, accepted by libzfs 2.3.2. It has two bytes that its checksum
    /// does not cover.
    const EXAMPLE: &str = "1-11134e8917-110-789c6364648001104b05881580982d3f292b35b9042cce0195030\
        15614356969c5a9e86a98c0244c0d6b5265496a31039a1ab61fa1c8e694e4a79766a620d4dc31cfbff4686be16\
        d205b078835206af2127353c16a38a1e6f0a4eb16a7e6a5e8273ae4e7a542cd02619e9cc4a2f4d4a49cfce4ecf\
        c6c24b7c3e4b992f3730b8a528b8bc1b208793000009d2c22a3";

    #[test]
    fn tokens_of_openzfs_are_read() {
        let recorded = ResumeToken::decode(RECORDED).unwrap();
        let expected = ResumeToken {
            to_guid: 184064188700474948,
            to_name: "g-send2/a@one".into(),
            object: 2,
            bytes: 2248,
            ..ResumeToken::default()
        };
        assert_eq!(recorded, expected);
        let example = ResumeToken::decode(EXAMPLE).unwrap();
        let expected = ResumeToken {
            to_guid: 0xdc376fd2e2b571db,
            to_name: "g-send/a@one".into(),
            object: 5,
            offset: 131072,
            bytes: 456789,
            allows_large_blocks: true,
            allows_compressed: true,
            ..ResumeToken::default()
        };
        assert_eq!(example, expected);
        assert_eq!(ResumeToken::decode(&example.encode()), Ok(example));
    }

    #[test]
    fn causes_are_named() {
        let payload = RECORDED.rsplit('-').next().unwrap();
        for (text, cause) in [
            ("", CorruptToken::Format),
            ("foo", CorruptToken::Format),
            ("1-9bb53dc1a-b8", CorruptToken::Format),
            ("x-11-11-11", CorruptToken::Format),
            ("1-+1-11-11", CorruptToken::Format),
            ("1-11111111111111111-11-11", CorruptToken::Format),
            ("2-11-11-11", CorruptToken::Version { version: 2 }),
            ("1-11-11-xx", CorruptToken::Hex),
            ("1-11-11-111", CorruptToken::Hex),
            ("1-11-11-11", CorruptToken::Checksum),
            (&format!("1-9bb53dc1b-b8-{payload}"), CorruptToken::Checksum),
            (&format!("1-9bb53dc1a-b7-{payload}"), CorruptToken::Compression),
            (&format!("1-9bb53dc1a-b9-{payload}"), CorruptToken::Compression),
            (&format!("1-9bb53dc1a-ffffffffffffffff-{payload}"), CorruptToken::Compression),
        ] {
            assert_eq!(ResumeToken::decode(text), Err(cause), "{text}");
        }
        let token = |list: NvList| {
            let packed = list.encode(Encoding::Xdr);
            let compressed = deflate(&packed);
            let hex = hex_text(&compressed);
            format!("1-{:x}-{:x}-{hex}", fletcher4(&compressed)[0], packed.len())
        };
        let list = NvList::from_iter([("toguid", 1_u64)]);
        let missing = Err(CorruptToken::Value { key: "toname" });
        assert_eq!(ResumeToken::decode(&token(list)), missing);
        let zeros = deflate(&[0; 8]);
        let text = format!("1-{:x}-8-{}", fletcher4(&zeros)[0], hex_text(&zeros));
        assert!(matches!(ResumeToken::decode(&text), Err(CorruptToken::List { .. })));
    }

    proptest! {
        #[test]
        fn tokens_round_trip(
            numbers: [u64; 4],
            flags: [bool; 4],
            from_guid: Option<u64>,
            guids: (Option<Vec<u64>>, Option<Vec<u64>>),
        ) {
            let token = ResumeToken {
                to_guid: numbers[0],
                to_name: "tank/a b@snap".into(),
                from_guid,
                object: numbers[1],
                offset: numbers[2],
                bytes: numbers[3],
                allows_large_blocks: flags[0],
                allows_embedded: flags[1],
                allows_compressed: flags[2],
                is_raw: flags[3],
                redact_snaps: guids.0,
                book_redact_snaps: guids.1,
            };
            prop_assert_eq!(ResumeToken::decode(&token.encode()), Ok(token));
        }

        #[test]
        fn any_text(text in "[ -~]{0,60}", tail in "1-[0-9a-f]{1,9}-[0-9a-f]{1,3}-[0-9a-f]{0,80}") {
            let _ = ResumeToken::decode(&text);
            let _ = ResumeToken::decode(&tail);
        }

        /// A changed character is found, or is among the last three bytes, which no checksum covers.
        #[test]
        fn damaged_tokens(at in 0usize..RECORDED.len(), digit in 0u32..16) {
            let mut text: Vec<char> = RECORDED.chars().collect();
            text[at] = char::from_digit(digit, 16).unwrap();
            let _ = ResumeToken::decode(&String::from_iter(text));
        }
    }
}
