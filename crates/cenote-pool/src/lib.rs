//! The pool: import, the MOS, datasets and snapshots, properties, keys, space figures, status.
//!
//!     devices ──[import::scan]──> Candidate ──[Pool::open]──> Pool ──> Dataset ──> ObjSet
//!                labels                         uberblock      |
//!                                               MOS            |── props, keys, history, errlog
//!                                                              `── space, status
//!
//! A [`Pool`] is the immutable state of one uberblock; everything read from it is consistent. Its
//! datasets share it (`Arc`). Opening never writes.
//!
//! Sources: spec 01 (labels, import), 04 (datasets), 05 (space), 08 (keys).

pub mod accounting;
pub mod dsl;
pub mod errlog;
pub mod features;
pub mod figures;
pub mod history;
pub mod import;
pub mod keys;
pub mod leaks;
pub mod mos;
pub mod pool;
mod presence;
pub mod props;
mod resume;
pub mod spacemaps;
pub mod status;
pub mod traverse;
pub mod vdevs;
pub mod verify;

pub use accounting::{AllocationClass, Space};
pub use dsl::{Bookmark, Dataset, DatasetKind, DatasetName, RedactionList, Suffix};
pub use errlog::{DamagedBlock, DamagedObject};
pub use import::{Candidate, Host, ScanOptions};
pub use keys::{KeyError, KeyStore};
pub use pool::{OpenError, OpenOptions, Pool};
pub use presence::{Presence, SuspensionProbe};
pub use status::{PoolStatus, Reason};
