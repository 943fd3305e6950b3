//! Why a block could not be read or written.

use std::fmt;

use cenote_codec::compress::DecompressError;
use cenote_codec::crypto::CryptError;
use cenote_vdev::BadChild;

/// One DVA of a block that could not be read.
#[derive(Debug, Clone)]
pub struct CopyFailure {
    /// Which of the block's DVAs.
    pub dva: u8,
    /// Top-level vdev.
    pub vdev: u32,
    /// Byte offset in its data area.
    pub offset: u64,
    /// The parts that were found wrong, by leaf.
    pub bad: Vec<BadChild>,
    /// What the vdev layer says of the whole.
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

/// Every way in which reading a block fails above the vdevs.
#[derive(Debug, thiserror::Error)]
pub enum BlockError {
    /// Every DVA was tried.
    #[error("all {} copies are bad: {}", copies.len(), join(copies))]
    AllCopiesBad {
        /// What was wrong with each.
        copies: Vec<CopyFailure>,
    },
    /// The state that the pointer belongs to was given up, and its space may be reused.
    #[error("the state that was being read has been given up to free its space")]
    Overtaken,
    /// No copy matches, and nothing says that the block is still where its pointer says.
    #[error("no copy matches, and the block may have been freed: {}", join(copies))]
    Unproven {
        /// What was found at each address.
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
    /// A salted checksum before the salt is known.
    #[error("checksum {checksum} needs the pool's salt, which is not known")]
    NoSalt {
        /// Checksum id.
        checksum: u8,
    },
    /// A checksum that this program does not have.
    #[error("checksum id {checksum} is not known")]
    Checksum {
        /// Checksum id.
        checksum: u8,
    },
    /// A compression that this program does not have.
    #[error("compression id {compression} is not known")]
    Compression {
        /// Compression id.
        compression: u8,
    },
    /// Sizes that cannot be.
    #[error("block pointer says {lsize} bytes stored in {psize}")]
    Size {
        /// Logical size.
        lsize: u64,
        /// Physical size.
        psize: u64,
    },
    /// A pointer without any address.
    #[error("block pointer has no address")]
    NoDva,
    /// A DVA on a vdev that is not there.
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
        /// What the decoder says.
        #[source]
        cause: DecompressError,
    },
    /// Members of a gang block do not add up.
    #[error("gang members hold {found} bytes of {expected}")]
    GangSize {
        /// Bytes of all members.
        found: u64,
        /// Physical size of the leader.
        expected: u64,
    },
    /// Gang blocks within gang blocks within …
    #[error("gang block nested deeper than {limit}")]
    GangDepth {
        /// Levels followed.
        limit: u32,
    },
    /// The block found in memory under this address has another size.
    #[error("block of {found} bytes, pointer says {expected}")]
    Length {
        /// Bytes there are.
        found: usize,
        /// Bytes the pointer says.
        expected: u64,
    },
}

/// Every way in which writing or freeing a block fails above the vdevs and the allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The store was opened for reading: nobody gives it space.
    #[error("the pool is not open for writing")]
    NoAllocator,
    /// Not a size that a block can have.
    #[error("a block of {size} bytes cannot be written")]
    Size {
        /// Bytes.
        size: u64,
    },
    /// Blocks under encryption are read only.
    #[error("blocks under encryption can be read, not written or freed")]
    Encrypted,
    /// Blocks of the dedup table are read only.
    #[error("deduplicated blocks can be read, not written or freed")]
    Dedup,
    /// A reference to another's block.
    #[error("cloned blocks can be read, not freed")]
    Cloned,
    /// The block's address is on a vdev that was removed.
    #[error("block on removed vdev {vdev} cannot be freed")]
    RemovedVdev {
        /// Top-level vdev id.
        vdev: u32,
    },
    /// The block to be replaced is younger than the txg that replaces it.
    #[error("block born in txg {birth} would be replaced in txg {txg}")]
    FromTheFuture {
        /// Its birth.
        birth: u64,
        /// The txg that writes.
        txg: u64,
    },
    /// A block of another txg would be written over.
    #[error("block born in txg {birth} would be written over in txg {txg}")]
    RewriteOfAnotherTxg {
        /// Its physical birth.
        birth: u64,
        /// The txg that writes.
        txg: u64,
    },
    /// The allocator gave an address, or the caller a level, that no pointer can hold.
    #[error("the block cannot be pointed to")]
    Unrepresentable,
}

fn join(copies: &[CopyFailure]) -> String {
    copies.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
