//! Reasons to refuse a record (spec 07 B9.4, B13).

use cenote_codec::compress::DecompressError;
use cenote_dmu::TxStop;
use cenote_ondisk::stream::InvalidRecord;
use cenote_rt::{Error, Kind};

use crate::CorruptPayload;

/// Reasons to refuse a record.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError {
    /// The record must not be at this place, or in this kind of stream.
    #[error("{name} record is out of place")]
    Misplaced {
        /// Name of the record's type.
        name: &'static str,
    },
    /// The stream is a package of substreams.
    #[error("packages of streams cannot be received as one")]
    Package,
    /// The object set is neither a file system nor a volume.
    #[error("object set of type {number} cannot be received")]
    ObjSetKind {
        /// Number of the type.
        number: u64,
    },
    /// The sender's name is not that of a snapshot.
    #[error("'{name}' is not the name of a snapshot")]
    NoSnapshotName {
        /// The name.
        name: String,
    },
    /// The list in BEGIN is damaged.
    #[error("list in the BEGIN record: {source}")]
    BeginPayload {
        /// The cause.
        source: CorruptPayload,
    },
    /// A field has a value that no sender may write.
    #[error("{name} record at byte {offset} of the stream is invalid: {source}")]
    Invalid {
        /// Name of the record's type.
        name: &'static str,
        /// Offset of the record.
        offset: u64,
        /// The cause.
        source: InvalidRecord,
    },
    /// The payload is not as long as the record says.
    #[error("{name} record with a payload of {len} bytes, expected {expected}")]
    PayloadLength {
        /// Name of the record's type.
        name: &'static str,
        /// Bytes found.
        len: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// The stream is not of the snapshot that is to be healed.
    #[error("the stream is of another snapshot")]
    OtherSnapshot,
    /// The snapshot that is to be healed has another block there, or none.
    #[error("object {object} of the snapshot has another block at {offset}")]
    OtherBlock {
        /// The object.
        object: u64,
        /// Byte offset in it.
        offset: u64,
    },
    /// A record goes back behind an earlier one.
    #[error("object {object}, offset {offset}: the stream goes backwards")]
    Order {
        /// Object number.
        object: u64,
        /// Offset in the object.
        offset: u64,
    },
    /// A record changes an object that does not exist.
    #[error("object {object} does not exist")]
    NoObject {
        /// Object number.
        object: u64,
    },
    /// Slots of a dnode belong to another one.
    #[error("object {object}: its slots belong to another object")]
    SlotsTaken {
        /// Object number.
        object: u64,
    },
    /// No object of a file system or volume has this type.
    #[error("object {object} of type {kind}")]
    ObjectType {
        /// Object number.
        object: u64,
        /// Number of the type.
        kind: u32,
    },
    /// The block size of a file shrinks, or it has no generation to tell whether it is another
    /// file.
    #[error("object {object}: blocks of {found} bytes cannot become blocks of {wanted} bytes")]
    BlockSize {
        /// Object number.
        object: u64,
        /// Bytes of its blocks.
        found: u64,
        /// Bytes in the record.
        wanted: u64,
    },
    /// An object without system attributes cannot have a spill block.
    #[error("object {object} cannot have a spill block")]
    Spill {
        /// Object number.
        object: u64,
    },
    /// The compression of a block is unknown.
    #[error("object {object}: compression {compression} is unknown")]
    Compression {
        /// Object number.
        object: u64,
        /// Number of the compression.
        compression: u8,
    },
    /// A compressed block is damaged.
    #[error("object {object}, offset {offset}: {source}")]
    Decompress {
        /// Object number.
        object: u64,
        /// Offset in the object.
        offset: u64,
        /// The cause.
        source: DecompressError,
    },
    /// An embedded block is not data.
    #[error("object {object}: embedded block of type {kind}")]
    EmbeddedKind {
        /// Object number.
        object: u64,
        /// Number of the type.
        kind: u8,
    },
    /// A dnode of a raw stream comes without the parameters of its block.
    #[error("object {object} does not follow the OBJECT_RANGE of its block")]
    NoRange {
        /// Object number.
        object: u64,
    },
    /// Raw blocks can be stored in the byte order of this machine only.
    #[error("object {object}: encrypted blocks of the other byte order cannot be received")]
    ForeignOrder {
        /// Object number.
        object: u64,
    },
    /// The bytes of a raw block are no whole number of sectors.
    #[error("object {object}: encrypted block of {len} bytes")]
    StoredLength {
        /// Object number.
        object: u64,
        /// Bytes found.
        len: usize,
    },
    /// The tree of a raw object does not reach its last block.
    #[error("object {object}: {levels} levels do not reach block {max_block}")]
    Tree {
        /// Object number.
        object: u64,
        /// Levels in the record.
        levels: u8,
        /// Highest block in the record.
        max_block: u64,
    },
    /// The END record is still to come.
    #[error("the stream has not ended")]
    NoEnd,
}

impl From<ReceiveError> for Error {
    fn from(error: ReceiveError) -> Self {
        let kind = match &error {
            ReceiveError::Package | ReceiveError::ForeignOrder { .. } => Kind::Unsupported,
            _ => Kind::Invalid,
        };
        Self::new(kind, error)
    }
}

impl From<ReceiveError> for TxStop {
    fn from(error: ReceiveError) -> Self {
        Self::Fail(error.into())
    }
}
