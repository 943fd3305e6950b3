//! Send streams: records of 312 bytes, each followed by its payload (spec 07 B1-B4).
//!
//! ```text
//!     0    4             8                                280         312
//!   +------+-------------+---------------------------------+-----------+- - - - - -+
//!   | type | payload len | body, by type                   | checksum  |  payload  |
//!   +------+-------------+---------------------------------+-----------+- - - - - -+
//! ```
//!
//! The length of a payload is not in the record, except in BEGIN: it follows from the type and the
//! fields ([`Record::payload_len`]). The name in BEGIN reaches over the checksum words, so a BEGIN
//! has none. Integers are in the order of the sender's host; the magic of BEGIN tells which. Arrays
//! of bytes (salt, IV, MAC, name) are the same in both.
//!
//! Decoding takes any values; [`Record::check`] says which of them no sender may write.

mod begin;
mod body;
mod check;
mod field;
#[cfg(test)]
mod tests;

pub use begin::{Begin, BeginFlags, HeaderType, StreamFeatures};
pub use body::{
    CipherParams, Embedded, End, FreeObjects, Object, ObjectFlags, ObjectRange, Range, Spill,
    Write, WriteByRef, WriteFlags, WriteKey, object_type,
};
pub use check::{InvalidRecord, RecordLimits};

use crate::endian::Endian;
use field::{Fields, FieldsMut};

/// Bytes of a record.
pub const RECORD_LEN: usize = 312;
/// Offset of the checksum words, in all records but BEGIN.
pub const CHECKSUM_AT: usize = 280;
/// Magic of BEGIN.
pub const STREAM_MAGIC: u64 = 0x0002_f5ba_cbac;

/// The bytes of a record.
pub type RecordBytes = [u8; RECORD_LEN];

/// Why bytes are no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptRecord {
    /// The first record is not a BEGIN with the magic of either order.
    #[error("not a send stream: magic {magic:#x}")]
    Magic {
        /// Word at offset 8.
        magic: u64,
    },
    /// The type is unknown.
    #[error("unknown record type {kind}")]
    Kind {
        /// Type found.
        kind: u32,
    },
}

/// A record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// Begins a substream or a package of substreams.
    Begin(Box<Begin>),
    /// An object's dnode. Payload: its bonus.
    Object(Object),
    /// A range of objects that do not exist.
    FreeObjects(FreeObjects),
    /// A block of an object. Payload: the block.
    Write(Write),
    /// A hole in an object.
    Free(Range),
    /// Ends a substream or a package.
    End(End),
    /// A block that equals one sent before (streams of before 2.0).
    WriteByRef(Box<WriteByRef>),
    /// An object's spill block. Payload: the block.
    Spill(Spill),
    /// A block that is stored in its pointer. Payload: the stored bytes.
    WriteEmbedded(Embedded),
    /// Encryption parameters of a block of dnodes (raw streams).
    ObjectRange(ObjectRange),
    /// A range of an object that the sender left out on purpose.
    Redact(Range),
}

/// Finds the byte order of a stream by its first record.
///
/// # Errors
/// [`CorruptRecord::Magic`].
pub fn byte_order(first: &RecordBytes) -> Result<Endian, CorruptRecord> {
    let magic = Fields::new(first, Endian::Little).u64(8);
    if magic == STREAM_MAGIC {
        Ok(Endian::Little)
    } else if magic.swap_bytes() == STREAM_MAGIC {
        Ok(Endian::Big)
    } else {
        Err(CorruptRecord::Magic { magic })
    }
}

impl Record {
    /// Decodes a record in `endian` order. The checksum words are not part of it.
    ///
    /// # Errors
    /// [`CorruptRecord::Magic`] for a BEGIN without it, [`CorruptRecord::Kind`].
    pub fn decode(bytes: &RecordBytes, endian: Endian) -> Result<Self, CorruptRecord> {
        let fields = Fields::new(bytes, endian);
        let kind = fields.u32(0);
        Ok(match kind {
            0 => {
                let magic = fields.u64(8);
                if magic != STREAM_MAGIC {
                    return Err(CorruptRecord::Magic { magic });
                }
                Self::Begin(Box::new(Begin::decode(fields)))
            }
            1 => Self::Object(Object::decode(fields)),
            2 => Self::FreeObjects(FreeObjects::decode(fields)),
            3 => Self::Write(Write::decode(fields)),
            4 => Self::Free(Range::decode(fields)),
            5 => Self::End(End::decode(fields)),
            6 => Self::WriteByRef(Box::new(WriteByRef::decode(fields))),
            7 => Self::Spill(Spill::decode(fields)),
            8 => Self::WriteEmbedded(Embedded::decode(fields)),
            9 => Self::ObjectRange(ObjectRange::decode(fields)),
            10 => Self::Redact(Range::decode(fields)),
            _ => return Err(CorruptRecord::Kind { kind }),
        })
    }

    /// Encodes the record in `endian` order, with checksum words of zero.
    #[must_use]
    pub fn encode(&self, endian: Endian) -> RecordBytes {
        let mut bytes = [0; RECORD_LEN];
        let mut fields = FieldsMut::new(&mut bytes, endian);
        fields.put_u32(0, self.kind());
        match self {
            Self::Begin(begin) => begin.encode(&mut fields),
            Self::Object(object) => object.encode(&mut fields),
            Self::FreeObjects(range) => range.encode(&mut fields),
            Self::Write(write) => write.encode(&mut fields),
            Self::Free(range) | Self::Redact(range) => range.encode(&mut fields),
            Self::End(end) => end.encode(&mut fields),
            Self::WriteByRef(reference) => reference.encode(&mut fields),
            Self::Spill(spill) => spill.encode(&mut fields),
            Self::WriteEmbedded(embedded) => embedded.encode(&mut fields),
            Self::ObjectRange(range) => range.encode(&mut fields),
        }
        bytes
    }

    /// The stored type number.
    #[must_use]
    pub const fn kind(&self) -> u32 {
        match self {
            Self::Begin(_) => 0,
            Self::Object(_) => 1,
            Self::FreeObjects(_) => 2,
            Self::Write(_) => 3,
            Self::Free(_) => 4,
            Self::End(_) => 5,
            Self::WriteByRef(_) => 6,
            Self::Spill(_) => 7,
            Self::WriteEmbedded(_) => 8,
            Self::ObjectRange(_) => 9,
            Self::Redact(_) => 10,
        }
    }

    /// Name of the type, as `zstream dump` prints it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Begin(_) => "BEGIN",
            Self::Object(_) => "OBJECT",
            Self::FreeObjects(_) => "FREEOBJECTS",
            Self::Write(_) => "WRITE",
            Self::Free(_) => "FREE",
            Self::End(_) => "END",
            Self::WriteByRef(_) => "WRITE_BYREF",
            Self::Spill(_) => "SPILL",
            Self::WriteEmbedded(_) => "WRITE_EMBEDDED",
            Self::ObjectRange(_) => "OBJECT_RANGE",
            Self::Redact(_) => "REDACT",
        }
    }

    /// Bytes of the payload that follows (spec 07 B4). A hostile record may say anything up to
    /// 2^64 - 1: [`Record::check`] bounds it.
    #[must_use]
    pub const fn payload_len(&self) -> u64 {
        match self {
            Self::Begin(begin) => begin.payload_len as u64,
            Self::Object(object) => object.payload_len(),
            Self::Write(write) => write.payload_len(),
            Self::Spill(spill) => spill.payload_len(),
            Self::WriteEmbedded(embedded) => embedded.payload_len(),
            Self::FreeObjects(_)
            | Self::Free(_)
            | Self::End(_)
            | Self::WriteByRef(_)
            | Self::ObjectRange(_)
            | Self::Redact(_) => 0,
        }
    }
}

/// Reads the checksum words of a record.
#[must_use]
pub fn checksum_words(bytes: &RecordBytes, endian: Endian) -> [u64; 4] {
    Fields::new(bytes, endian).words(CHECKSUM_AT)
}

/// Sets the checksum words of a record.
pub fn set_checksum_words(bytes: &mut RecordBytes, endian: Endian, words: [u64; 4]) {
    FieldsMut::new(bytes, endian).put_words(CHECKSUM_AT, words);
}
