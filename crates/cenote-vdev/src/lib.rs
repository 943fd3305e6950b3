//! The vdev tree: mirror, RAID-Z, dRAID, indirect; labels on devices.
//!
//! Maps addresses (vdev, offset) to devices. [`Tree::read`] returns the bytes of a block, using the
//! caller's checksum test to choose among copies and reconstructions; [`Tree::scrub`] reports every
//! wrong copy and parity column of a block; [`Tree::write`] writes a block, reports whether it can
//! be read back without the failed devices, and records in the dirty time logs which devices lack
//! it.

mod arena;
#[cfg(test)]
mod bench;
mod build;
mod close;
pub mod create;
pub mod draid;
mod dtl;
mod fault;
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
mod reflow;
mod reshape;
mod service;
mod sides;
mod size;
mod state;
mod tree;
mod unflushed;
mod verdict;
mod write;

pub use build::{BuildError, BuildOptions};
pub use cenote_ondisk::indirect::Mapping as IndirectMap;
pub use dtl::{DtlKind, MissingRedundancy, TxgRanges};
pub use fault::{
    ErrorRate, ErrorRates, FaultEffect, FaultSpec, Faults, InjectedLeafFault, Injection, IoKind,
    LeafIo, LeafObserver, Symptom,
};
pub use grow::GrowError;
pub use io_class::IoClass;
pub use leaf::{DATA_START, Leaf, LeafId, LeafStats, NeverFlushes, NoDevice, TreeClosed};
pub use read::{ClassReader, GroupReader, ReadError, RebuildPiece};
pub use reflow::{Expansion, FirstRows, HeldRange, ReflowError, Shape, copy_limit};
pub use reshape::{ReshapeError, Reshaped};
pub use service::{Need, ServiceError};
pub use sides::{SideError, Sides};
pub use state::{VdevAux, VdevState};
pub use tree::{Place, Tree, Vdev, VdevKind};
pub use verdict::{BadChild, Cause, LeafRange, LeafReader, Read, ScrubRead, Verify};
pub use write::{
    FailedWrite, FlushError, FlushOutcome, RepairOutcome, Rewrite, WriteError, WriteOutcome,
};
