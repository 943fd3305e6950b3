//! Allocation policies: which free range to allocate (spec 05 §8, §12).
//!
//! Any free range that is aligned, large enough and inside one metaslab makes a valid pool; the
//! choice decides how fast the pool is as it fills. There are three policies, OpenZFS's present one
//! ([`Dynamic`]), that of 2013 ([`Historic`]) and one of this engine ([`Separate`]), so that they
//! can be compared.

mod dynamic;
mod historic;
mod separate;

pub use dynamic::Dynamic;
pub use historic::Historic;
pub use separate::Separate;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use cenote_rt::tunables;

use super::tree::FreeTree;
use super::weight::Weight;

/// Properties of a metaslab that its weight depends on.
#[derive(Debug, Clone, Copy)]
pub struct MetaslabInfo {
    /// Index of the metaslab.
    pub metaslab: u64,
    /// Number of metaslabs of its vdev.
    pub count: u64,
    /// Bytes that can be allocated now.
    pub free: u64,
    /// Bytes freed and not yet usable.
    pub deferred: u64,
    /// Number of free segments, if known.
    pub segments: Option<u64>,
    /// Fragmentation in percent, if known.
    pub fragmentation: Option<u64>,
    /// Weight by segments; `None` without a histogram.
    pub by_segments: Option<Weight>,
}

/// Size and alignment of a range to allocate.
#[derive(Debug, Clone, Copy)]
pub struct PickRequest {
    /// Size in bytes.
    pub size: u64,
    /// The start must be a multiple of this.
    pub align: u64,
}

impl PickRequest {
    /// First position in a free segment at which it fits.
    #[must_use]
    pub fn fit(&self, segment: &Range<u64>) -> Option<u64> {
        let start = segment.start.checked_next_multiple_of(self.align)?;
        (start.checked_add(self.size)? <= segment.end).then_some(start)
    }
}

/// Positions of the last allocations in a metaslab, by the largest power of two that divides the
/// size.
#[derive(Debug, Clone)]
pub struct Cursors([u64; 64]);

impl Cursors {
    /// All cursors at the start of the metaslab.
    #[must_use]
    pub const fn new(start: u64) -> Self {
        Self([start; 64])
    }

    /// The cursor for a size.
    pub const fn of(&mut self, size: u64) -> &mut u64 {
        &mut self.0[(size.trailing_zeros() & 63) as usize]
    }
}

/// The free space of a metaslab from which a range is picked.
#[derive(Debug)]
pub struct PickContext<'a> {
    /// Its free segments.
    pub free: &'a mut FreeTree,
    /// Its cursors.
    pub cursors: &'a mut Cursors,
    /// Its first byte.
    pub start: u64,
    /// Its size.
    pub size: u64,
    /// Whether a free range must be found if there is one: no other metaslab is left.
    pub must_find: bool,
}

/// Strategy for choosing metaslabs and ranges.
pub trait Policy: Send + Sync + Debug {
    /// Name of the policy.
    fn name(&self) -> &'static str;

    /// Segments below this many bytes are left out of the tree by size.
    fn size_floor(&self) -> u64;

    /// Weight of a metaslab.
    fn weigh(&self, info: &MetaslabInfo) -> Weight;

    /// Returns the start of a free range, or `None` if none fits, or if the metaslab is to be
    /// closed; the latter only without `must_find`.
    fn pick(&self, context: &mut PickContext<'_>, wanted: PickRequest) -> Option<u64>;

    /// Whether to close a metaslab after an allocation: its weight was `activation` when it was
    /// opened and is `now`, and the largest of its segments has `largest` of its `free` bytes.
    fn should_leave(&self, activation: Weight, now: Weight, free: u64, largest: u64) -> bool;

    /// Whether to close an open metaslab at the end of a txg, with the largest of its segments and
    /// its free bytes, of `size`.
    fn should_close(&self, _largest: u64, _free: u64, _size: u64) -> bool {
        false
    }

    /// Number of metaslabs by which two copies of a block on one of `count` metaslabs should be
    /// apart at least. Smaller distances are tried when there is no space.
    fn copy_distance(&self, _count: u64) -> u64 {
        1
    }

    /// Whether metadata gets metaslabs of its own.
    fn separates_metadata(&self) -> bool {
        false
    }

    /// Bytes allocated on a vdev of `width` children, `nparity` of them parity, before the rotor
    /// advances (`mg_aliquot`).
    fn aliquot(&self, width: u64, nparity: u64) -> u64;

    /// Fragmentation above which other vdevs are preferred.
    fn fragmentation_limit(&self) -> u64;
}

/// The policy named by the tunable.
#[must_use]
pub fn by_tunable() -> Arc<dyn Policy> {
    match tunables::ALLOCATOR.get() {
        1 => Arc::new(Historic),
        2 => Arc::new(Separate),
        _ => Arc::new(Dynamic),
    }
}

/// The smallest segment that fits; of several, the lowest.
fn best_fit(free: &mut FreeTree, wanted: PickRequest) -> Option<u64> {
    let found = free.at_least(wanted.size).find_map(|segment| wanted.fit(&segment));
    // The tree by size may leave small segments out; they are searched last.
    found.or_else(|| free.ranges().iter().find_map(|segment| wanted.fit(&segment)))
}

#[cfg(test)]
mod tests;
