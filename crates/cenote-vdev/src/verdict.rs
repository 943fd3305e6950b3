//! Results of reading the tree: the bytes, and which leaf returned wrong bytes where and how.
//!
//! The vdev layer does not know block pointers. The checksum test is injected as a [`Verify`],
//! because the choice of a mirror child and the search for wrong RAID-Z columns need it in the
//! middle of a read (spec 06 §3.2, §4.6).

use std::fmt;
use std::sync::Arc;

use cenote_rt::{BoxFuture, Buf, Error, Result};

use crate::LeafId;

/// Tests whether the bytes of a block (exactly `psize` of them) are the ones that were written.
pub trait Verify: Send + Sync {
    /// Whether `data` matches the block's checksum.
    fn verify(&self, data: &[u8]) -> bool;
}

impl<F: Fn(&[u8]) -> bool + Send + Sync> Verify for F {
    fn verify(&self, data: &[u8]) -> bool {
        self(data)
    }
}

/// Source of the bytes of leaves: the devices, or extents that were read before.
///
/// [`Tree`](crate::Tree) implements it by reading the devices.
pub trait LeafReader: Send + Sync {
    /// Returns `len` bytes from byte `offset` of the device of `leaf` (labels included).
    fn read_leaf(&self, leaf: LeafId, offset: u64, len: usize) -> BoxFuture<'_, Result<Buf>>;
}

/// Why a part of a block on a leaf is bad.
#[derive(Clone)]
pub enum Cause {
    /// The device returned an error.
    Io(Arc<Error>),
    /// The device returned other bytes than were written.
    Checksum,
    /// The block is lost, and this part may be why: the bytes alone do not show which parts are
    /// wrong.
    Suspect,
    /// The block was written while the leaf was out of service, or the write failed.
    Missing,
}

impl Cause {
    /// Whether it counts as a checksum error of the leaf. As in OpenZFS, of a lost block every part
    /// does that was read.
    pub fn is_checksum(&self) -> bool {
        matches!(self, Self::Checksum | Self::Suspect)
    }
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "Io({error:?})"),
            Self::Checksum => write!(f, "Checksum"),
            Self::Suspect => write!(f, "Suspect"),
            Self::Missing => write!(f, "Missing"),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Checksum => write!(f, "checksum mismatch"),
            Self::Suspect => write!(f, "part of a lost block"),
            Self::Missing => write!(f, "not written to this device"),
        }
    }
}

/// A part of a block that is bad on one leaf.
#[derive(Debug, Clone)]
pub struct BadChild {
    /// The leaf.
    pub leaf: LeafId,
    /// Guid of the leaf.
    pub guid: u64,
    /// Path of the leaf.
    pub path: String,
    /// Byte on the device, labels included.
    pub offset: u64,
    /// Bytes from there on.
    pub len: u64,
    /// The kind of error.
    pub cause: Cause,
    /// The leaf's checksum errors, this one included; 0 until it is counted.
    pub errors: u64,
}

/// Result of a read.
#[derive(Debug, Clone)]
pub struct Read {
    /// The verified bytes, `psize` of them.
    pub data: Buf,
    /// Bad parts found on the way.
    pub bad: Vec<BadChild>,
}

/// Result of a scrub of one block.
#[derive(Debug, Clone)]
pub struct ScrubRead {
    /// The verified bytes, if the block could be read at all.
    pub good: Option<Buf>,
    /// Every bad part, on all leaves. Absent leaves are not listed: their state shows it.
    pub bad: Vec<BadChild>,
}

/// A range of a leaf that belongs to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeafRange {
    /// The leaf.
    pub leaf: LeafId,
    /// Byte on the device, labels included.
    pub offset: u64,
    /// Bytes from there on.
    pub len: u64,
}
