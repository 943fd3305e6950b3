//! The vdev tree: mirror, RAID-Z, dRAID, indirect; labels on devices.
//!
//! Below this layer there are devices, above it there are addresses. It answers one question:
//! give me the bytes that were written at this address, of which I can tell you whether they are
//! the right ones ([`Tree::read`]), and, for a scrub, tell me everything that is wrong with them
//! wherever they lie ([`Tree::scrub`]). And it puts bytes there ([`Tree::write`]), such that what
//! can be read without some devices is told, and what these devices then lack is remembered.

mod arena;
#[cfg(test)]
mod bench;
mod build;
mod close;
pub mod create;
pub mod draid;
mod dtl;
mod grow;
mod io_class;
pub mod labels;
pub mod layout;
mod leaf;
pub mod map;
mod permutation;
pub mod queue;
pub mod raidz;
mod read;
mod service;
mod state;
mod tree;
mod unflushed;
mod verdict;
mod write;

pub use build::{BuildError, BuildOptions};
pub use cenote_ondisk::indirect::Mapping as IndirectMap;
pub use dtl::{DtlKind, MissingRedundancy, TxgRanges};
pub use grow::GrowError;
pub use io_class::IoClass;
pub use leaf::{DATA_START, Leaf, LeafId, LeafStats, NeverFlushes, NoDevice, TreeClosed};
pub use read::ReadError;
pub use service::ServiceError;
pub use state::{VdevAux, VdevState};
pub use tree::{Place, Tree, Vdev, VdevKind};
pub use verdict::{BadChild, Cause, LeafRange, LeafReader, Read, ScrubRead, Verify};
pub use write::{FailedWrite, FlushError, FlushOutcome, RepairOutcome, WriteError, WriteOutcome};
