//! What a read of the tree says beside the bytes: which leaf answered wrong, where, and how.
//!
//! The vdev layer does not know block pointers. It gets the verdict on bytes injected as a
//! [`Verify`], because the choice of a mirror child and the search for wrong RAID-Z columns need
//! it in the middle (spec 06 §3.2, §4.6).

use std::fmt;
use std::sync::Arc;

use cenote_rt::{BoxFuture, Buf, Error, Result};

use crate::LeafId;

/// Tells whether the bytes of a block (exactly `psize` of them) are the ones that were written.
pub trait Verify: Send + Sync {
    /// Whether `data` matches the block's checksum.
    fn verify(&self, data: &[u8]) -> bool;
}

impl<F: Fn(&[u8]) -> bool + Send + Sync> Verify for F {
    fn verify(&self, data: &[u8]) -> bool {
        self(data)
    }
}

/// Where the bytes of leaves come from: the devices, or extents that were read before.
///
/// [`Tree`](crate::Tree) itself is one, which reads the devices.
pub trait LeafReader: Send + Sync {
    /// `len` bytes from byte `offset` of the device of `leaf` (labels included).
    fn read_leaf(&self, leaf: LeafId, offset: u64, len: usize) -> BoxFuture<'_, Result<Buf>>;
}

/// Why a part of a block on one leaf counts as bad.
#[derive(Clone)]
pub enum Cause {
    /// The device gave an error.
    Io(Arc<Error>),
    /// The device gave bytes that are not those that were written.
    Checksum,
    /// The block is lost, and this part of it may be why: which of the parts are wrong cannot be
    /// told from the bytes.
    Suspect,
}

impl fmt::Debug for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "Io({error:?})"),
            Self::Checksum => write!(f, "Checksum"),
            Self::Suspect => write!(f, "Suspect"),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "{error}"),
            Self::Checksum => write!(f, "checksum mismatch"),
            Self::Suspect => write!(f, "part of a lost block"),
        }
    }
}

/// A part of a block that one leaf holds wrong.
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
    /// What was wrong.
    pub cause: Cause,
}

/// A block that was read.
#[derive(Debug, Clone)]
pub struct Read {
    /// The verified bytes, `psize` of them.
    pub data: Buf,
    /// What was found wrong on the way.
    pub bad: Vec<BadChild>,
}

/// A block of which everything was read.
#[derive(Debug, Clone)]
pub struct ScrubRead {
    /// The verified bytes, if they could be had at all.
    pub good: Option<Buf>,
    /// Every part that is wrong, on whichever leaf. Leaves that are absent are not in it: their
    /// state says so.
    pub bad: Vec<BadChild>,
}

/// A stretch of a leaf that belongs to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeafRange {
    /// The leaf.
    pub leaf: LeafId,
    /// Byte on the device, labels included.
    pub offset: u64,
    /// Bytes from there on.
    pub len: u64,
}
