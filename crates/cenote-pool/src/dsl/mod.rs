//! The dataset layer, reading: directories, datasets, snapshots, clones, bookmarks, holds.
//!
//!     Pool ── root dir ── child map ── Dir ── Dir ...
//!                                       |  head
//!                                       v
//!        snapshot <─prev─ snapshot <─prev─ Dataset ──bp──> object set (cenote-dmu)
//!                                       |  deadlist, bookmarks
//!
//! A [`Dir`] carries space and properties, a [`Dataset`] a tree of blocks; both are immutable
//! copies of what the MOS said at the pool's txg. Names are not stored in them: a dataset knows
//! its name because it was reached by it, and finding the name of a bare number walks the parents'
//! child maps ([`crate::Pool::dataset_by_object`]).
//!
//! Dirs and datasets are recognised by bonus type, never by object type (spec 04 §4).
//! Sources: spec 04 §1-§8, §10, §15-§17.

pub mod bookmark;
pub mod dataset;
pub mod deadlist;
pub mod deleg;
pub mod dir;
pub mod name;
pub mod written;

pub use bookmark::Bookmark;
pub use dataset::{Dataset, DatasetKind, Hold};
pub use deadlist::{Deadlist, SpaceSum};
pub use dir::Dir;
pub use name::{BadName, BadPoolName, DatasetName, Suffix, check_pool_name};

/// Why a dataset could not be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DslError {
    /// There is no such file system or volume.
    #[error("dataset does not exist")]
    NoDataset,
    /// The file system exists, its snapshot does not.
    #[error("snapshot does not exist")]
    NoSnapshot,
    /// The file system exists, its bookmark does not.
    #[error("bookmark does not exist")]
    NoBookmark,
    /// The name is in another pool.
    #[error("the dataset is not in pool '{pool}'")]
    OtherPool {
        /// This pool.
        pool: String,
    },
    /// An object is not what the reference to it says.
    #[error("MOS object {object}: bonus type {found}, expected {expected}")]
    BonusType {
        /// The object.
        object: u64,
        /// Its bonus type.
        found: u8,
        /// What a dir or dataset has.
        expected: u8,
    },
    /// Dirs lead to themselves, or nest deeper than any name allows.
    #[error("dir {object}: the chain of parents does not end")]
    Loop {
        /// The dir.
        object: u64,
    },
    /// A dir is the child of one that is not its parent.
    #[error("dir {object} says that its parent is {parent}, not {expected}")]
    Parent {
        /// The dir.
        object: u64,
        /// What it says.
        parent: u64,
        /// Whose child it is.
        expected: u64,
    },
    /// A dir is twice among the children of another.
    #[error("dir {object} has a second name '{name}'")]
    TwoNames {
        /// The dir.
        object: u64,
        /// The second of its names.
        name: String,
    },
    /// A required entry is missing.
    #[error("MOS object {object} has no entry '{key}'")]
    Missing {
        /// The ZAP.
        object: u64,
        /// The entry.
        key: &'static str,
    },
    /// A snapshot is not an earlier state of the dataset.
    #[error("'{0}' is not an earlier state of the dataset")]
    NotAncestor(String),
    /// A bookmark lacks the sums that the question needs.
    #[error("bookmark '{0}' does not hold the space that was freed after it")]
    NoFreedSums(String),
}
