//! Blocks: reads and writes the contents of block pointers.
//!
//!     BlockStore::read      cache, copies, gang blocks, verify, decrypt, decompress, byteswap
//!     BlockStore::read_raw  the stored bytes, verified
//!     BlockStore::scrub     every copy and all parity, with a report of what is bad
//!     BlockStore::mend      writes what is bad or missing
//!     BlockStore::write     zeros, compress, embed, checksum, nopwrite, in place, allocate, gang
//!     BlockStore::free      the space of a block, gang members included
//!     BlockStore::alloc_log, write_log      blocks of the intent log
//!     WritePolicy::of       derives how a block is written from the properties
//!
//! The vdev layer below is given the checksum test (`verify`); this layer knows block pointers,
//! checksums and keys, but no objects.
//!
//! Sources: spec 02 §1-§6, spec 08 §5-§11.

pub mod alloc;
mod assemble;
mod cache;
mod costs;
mod error;
mod expand;
mod fetch;
mod gang;
mod grounds;
mod heal;
mod log;
mod mend;
mod moved;
pub mod policy;
mod release;
mod restore;
mod scrub;
mod store;
mod verify;
mod write;

pub use cache::{CacheConfig, CacheStats};
pub use cenote_codec::crypto::{BlockKeys, Seal};
pub use cenote_vdev::IoClass;
pub use costs::charge_expand;
pub use error::{BlockError, CopyFailure, WriteError};
pub use grounds::{Grounds, Hold, Since};
pub use heal::Reporter;
pub use log::LOG_BLOCK_ALIGN;
pub use mend::{MendKind, Mended};
pub use moved::MovedBytes;
pub use policy::WritePolicy;
pub use scrub::{BadPart, ScrubReport};
pub use store::{BlockStore, ReadContext, StoreStats, StoredForm};
pub use write::{
    Draft, Prepared, SealKeys, SentForm, SpaceBound, Stored, WriteContext, WriteMethod, Written,
};
