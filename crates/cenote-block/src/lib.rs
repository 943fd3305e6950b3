//! Blocks: from a block pointer to the bytes that it stands for.
//!
//!     BlockStore::read      cache, copies, gang blocks, verify, decrypt, decompress, byteswap
//!     BlockStore::read_raw  the stored bytes, verified
//!     BlockStore::scrub     every copy and all parity, with a report of what is bad
//!
//! One readable async function per step (`store`, `fetch`, `expand`, `scrub`), no state machine.
//! The vdev layer below gets the verdict on bytes injected (`verify`); this layer knows block
//! pointers, checksums, keys and nothing of objects.
//!
//! Sources: spec 02 §1-§6, spec 08 §5-§11.

pub mod alloc;
mod cache;
mod error;
mod expand;
mod fetch;
mod gang;
mod scrub;
mod store;
mod verify;

pub use cache::{CacheConfig, CacheStats};
pub use cenote_codec::crypto::BlockKeys;
pub use error::{BlockError, CopyFailure};
pub use scrub::{BadPart, ScrubReport};
pub use store::{BlockStore, ReadContext, StoreStats};
