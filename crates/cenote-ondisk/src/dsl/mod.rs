//! The dataset layer's structures in the MOS: dirs, datasets, bookmarks, keys of their ZAPs.
//!
//! ```text
//!   dir (bonus, 256 bytes) --head--> dataset (bonus, 320 bytes) --prev--> snapshot --prev--> …
//!    |  children ZAP, props ZAP, deleg ZAP, clones ZAP    |  bp of the object set, deadlist
//! ```
//!
//! Dirs and datasets are distinguished by the *bonus* type (12 and 16): the object type becomes 196
//! when the object has been zapified, that is, has extra keys ([`key`]) in its own data (spec 04
//! §4). All of these structures are arrays of u64 ([`crate::words`]) except for the block pointer
//! inside a dataset. Reserved words are kept as found, so that encoding returns the decoded bytes.
//!
//! Sources: spec 04 §2-§4, §7, §15, §24; spec 08 §2.

pub mod bookmark;
pub mod crypto;
pub mod dataset;
pub mod deleg;
pub mod dir;
pub mod key;
pub mod props;

pub use bookmark::{BookmarkFlags, BookmarkPhys};
pub use dataset::{DatasetFlags, DatasetPhys};
pub use dir::{DirPhys, SpaceUse};

/// Why the bytes of a dir or dataset are invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptDsl {
    /// The bonus buffer of a dir is too small.
    #[error("dsl dir: bonus of {len} bytes, expected 256")]
    DirLength {
        /// Bytes found.
        len: usize,
    },
    /// The bonus buffer of a dataset is too small.
    #[error("dsl dataset: bonus of {len} bytes, expected 320")]
    DatasetLength {
        /// Bytes found.
        len: usize,
    },
    /// A bookmark has fewer words than the oldest form.
    #[error("bookmark: {count} words, expected at least 3")]
    BookmarkLength {
        /// Words found.
        count: usize,
    },
}
