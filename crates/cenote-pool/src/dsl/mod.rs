//! The dataset layer for reading: directories, datasets, snapshots, clones, bookmarks, holds.
//!
//!     Pool ── root dir ── child map ── Dir ── Dir ...
//!                                       |  head
//!                                       v
//!        snapshot <─prev─ snapshot <─prev─ Dataset ──bp──> object set (cenote-dmu)
//!                                       |  deadlist, bookmarks
//!
//! A [`Dir`] has space figures and properties, a [`Dataset`] a tree of blocks; both are immutable
//! copies of the MOS at the pool's txg. Names are not stored in them: a dataset gets its name on
//! the way down, and the name of an object number is found through the parents' child maps
//! ([`crate::Pool::dataset_by_object`]).
//!
//! Dirs and datasets are recognised by bonus type, never by object type (spec 04 §4).
//! Sources: spec 04 §1-§8, §10, §15-§17.

pub mod bookmark;
pub mod dataset;
pub mod deleg;
pub mod dir;
pub mod name;
pub mod redaction;
pub mod written;

pub use bookmark::Bookmark;
pub use dataset::{Dataset, DatasetKind, Hold};
pub use dir::Dir;
pub use name::{BadName, BadPoolName, DatasetName, Suffix, check_pool_name};
pub use redaction::RedactionList;

/// Reasons why a dataset cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DslError {
    /// The file system or volume does not exist.
    #[error("dataset does not exist")]
    NoDataset,
    /// The file system exists, but not the snapshot.
    #[error("snapshot does not exist")]
    NoSnapshot,
    /// The file system exists, but not the bookmark.
    #[error("bookmark does not exist")]
    NoBookmark,
    /// The name is that of another pool.
    #[error("the dataset is not in pool '{pool}'")]
    OtherPool {
        /// The name of this pool.
        pool: String,
    },
    /// An object has another type than its reference implies.
    #[error("MOS object {object}: bonus type {found}, expected {expected}")]
    BonusType {
        /// The object.
        object: u64,
        /// Its bonus type.
        found: u8,
        /// The type of a dir or dataset.
        expected: u8,
    },
    /// The chain of parents has a loop, or is deeper than any name allows.
    #[error("dir {object}: the chain of parents does not end")]
    Loop {
        /// The dir.
        object: u64,
    },
    /// A dir names another parent than the dir whose child it is.
    #[error("dir {object} says that its parent is {parent}, not {expected}")]
    Parent {
        /// The dir.
        object: u64,
        /// The parent that it names.
        parent: u64,
        /// The dir whose child it is.
        expected: u64,
    },
    /// A dir appears twice among the children of another.
    #[error("dir {object} has a second name '{name}'")]
    TwoNames {
        /// The dir.
        object: u64,
        /// Its second name.
        name: String,
    },
    /// A required entry is missing.
    #[error("MOS object {object} has no entry '{key}'")]
    Missing {
        /// The ZAP.
        object: u64,
        /// The missing entry.
        key: &'static str,
    },
    /// The snapshot is not an earlier state of the dataset.
    #[error("'{0}' is not an earlier state of the dataset")]
    NotAncestor(String),
    /// The bookmark has no record of the space that was freed after it.
    #[error("bookmark '{0}' does not hold the space that was freed after it")]
    NoFreedSums(String),
    /// The redaction list of the bookmark was not built to its end.
    #[error("the redaction list of '{0}' is incomplete")]
    IncompleteRedaction(String),
    /// The entries of a redaction list overlap, or are not in order.
    #[error("redaction list: its entries are not in order")]
    RedactionOrder,
}
