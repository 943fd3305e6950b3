//! Why a block could not be read or written.

use std::fmt;

use cenote_codec::compress::DecompressError;
use cenote_codec::crypto::CryptError;
use cenote_vdev::BadChild;

/// One DVA of a block that could not be read.
#[derive(Debug, Clone)]
pub struct CopyFailure {
    /// Index of the DVA in the block pointer.
    pub dva: u8,
    /// Top-level vdev.
    pub vdev: u32,
    /// Byte offset in its data area.
    pub offset: u64,
    /// The bad parts, by leaf.
    pub bad: Vec<BadChild>,
    /// The vdev layer's error.
    pub cause: String,
}

impl fmt::Display for CopyFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DVA {} (vdev {} offset {:#x})", self.dva, self.vdev, self.offset)?;
        if self.bad.is_empty() {
            return write!(f, ": {}", self.cause);
        }
        for (i, bad) in self.bad.iter().enumerate() {
            let separator = if i == 0 { ":" } else { "," };
            write!(f, "{separator} {} at {:#x}: {}", bad.path, bad.offset, bad.cause)?;
        }
        Ok(())
    }
}

/// Why reading a block failed above the vdev layer.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// All DVAs were tried, and none has the block.
    #[error("all {} copies are bad: {}", copies.len(), join(copies))]
    AllCopiesBad {
        /// The error of each copy.
        copies: Vec<CopyFailure>,
    },
    /// The pinned state of the pointer was released, and its space may be reused.
    #[error("the committed state being read was released to free its space")]
    Overtaken,
    /// No copy matches the checksum, and there is no proof that the block is still in place.
    #[error("no copy matches, and the block may have been freed: {}", join(copies))]
    Unproven {
        /// The error of each copy.
        copies: Vec<CopyFailure>,
    },
    /// The pointer's data was replaced by a redaction mark.
    #[error("block is redacted")]
    Redacted,
    /// The block is encrypted.
    #[error("block is encrypted and its key is not loaded")]
    NoKey,
    /// A block of an encrypted object set lacks the encryption bit.
    #[error("unprotected block in an encrypted object set")]
    Unprotected,
    /// The message authentication code does not match.
    #[error("block is not authentic: {0}")]
    Authentication(#[source] CryptError),
    /// A salted checksum, and the salt was not loaded.
    #[error("checksum {checksum} needs the pool's salt, which is not loaded")]
    NoSalt {
        /// Checksum id.
        checksum: u8,
    },
    /// A checksum that this program does not support.
    #[error("checksum id {checksum} is not supported")]
    Checksum {
        /// Checksum id.
        checksum: u8,
    },
    /// A compression that this program does not support.
    #[error("compression id {compression} is not supported")]
    Compression {
        /// Compression id.
        compression: u8,
    },
    /// Impossible sizes.
    #[error("block pointer says {lsize} bytes stored in {psize}")]
    Size {
        /// Logical size.
        lsize: u64,
        /// Physical size.
        psize: u64,
    },
    /// A pointer without a DVA.
    #[error("block pointer has no address")]
    NoDva,
    /// A DVA on a vdev that does not exist.
    #[error("block pointer names vdev {vdev}, which the pool does not have")]
    Vdev {
        /// Top-level vdev id.
        vdev: u32,
    },
    /// Bytes that match their checksum do not decompress to the logical size.
    #[error("stored bytes do not decompress to {lsize} bytes: {cause}")]
    Decompress {
        /// Logical size.
        lsize: u64,
        /// The decoder's error.
        #[source]
        cause: DecompressError,
    },
    /// The sizes of the members of a gang block do not add up.
    #[error("gang members hold {found} bytes of {expected}")]
    GangSize {
        /// Bytes of all members.
        found: u64,
        /// Physical size of the leader.
        expected: u64,
    },
    /// Gang blocks nested too deeply.
    #[error("gang block nested deeper than {limit}")]
    GangDepth {
        /// Levels followed.
        limit: u32,
    },
    /// The block cached under this address has another size.
    #[error("block of {found} bytes, pointer says {expected}")]
    Length {
        /// Bytes of the cached block.
        found: usize,
        /// Logical size in the pointer.
        expected: u64,
    },
}

/// Why writing or freeing a block failed above the vdev layer and the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The store was opened for reading and has no allocator.
    #[error("the pool is not open for writing")]
    NoAllocator,
    /// An impossible block size.
    #[error("a block of {size} bytes cannot be written")]
    Size {
        /// Bytes.
        size: u64,
    },
    /// The block is to be encrypted, and the keys are not loaded.
    #[error("the block is to be encrypted, and its key is not loaded")]
    NoKeys,
    /// Keys of a format that is only read.
    #[error("datasets with keys of version {version} can be read, but not written")]
    KeyVersion {
        /// The version.
        version: u64,
    },
    /// The block cannot be encrypted.
    #[error("the block cannot be encrypted: {0}")]
    Sealing(#[source] CryptError),
    /// Writing deduplicated blocks is not implemented.
    #[error("deduplicated blocks can be read, but not written or freed")]
    Dedup,
    /// The pointer refers to a cloned block.
    #[error("cloned blocks can be read, but not freed")]
    Cloned,
    /// The block lies on a removed vdev.
    #[error("block on removed vdev {vdev} cannot be freed")]
    RemovedVdev {
        /// Top-level vdev id.
        vdev: u32,
    },
    /// The block to replace is younger than the txg that replaces it.
    #[error("block born in txg {birth} would be replaced in txg {txg}")]
    FromTheFuture {
        /// Its birth.
        birth: u64,
        /// The writing txg.
        txg: u64,
    },
    /// A block of another txg would be overwritten.
    #[error("block born in txg {birth} would be overwritten in txg {txg}")]
    RewriteOfAnotherTxg {
        /// Its physical birth.
        birth: u64,
        /// The writing txg.
        txg: u64,
    },
    /// Bytes that were offered for a block are not its own.
    #[error("these are not the bytes of the block: its checksum differs")]
    OtherBlock,
    /// The address or level cannot be encoded in a block pointer.
    #[error("the block's address or level cannot be encoded in a block pointer")]
    Unrepresentable,
}

fn join(copies: &[CopyFailure]) -> String {
    copies.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
