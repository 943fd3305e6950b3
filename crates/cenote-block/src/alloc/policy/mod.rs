//! Which free range to take: policy, behind a trait (spec 05 §8, §12).
//!
//! Any free range that is aligned, large enough and inside one metaslab makes a valid pool; what
//! differs is how fast the pool is as it fills. Two policies are here: OpenZFS's of today
//! ([`Dynamic`]) and that of 2013 ([`Historic`]), so that they can be run side by side.

mod dynamic;
mod historic;

pub use dynamic::Dynamic;
pub use historic::Historic;

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use cenote_rt::tunables;

use super::tree::FreeTree;
use super::weight::Weight;

/// What a metaslab's weight may depend on.
#[derive(Debug, Clone, Copy)]
pub struct Standing {
    /// Its number.
    pub metaslab: u64,
    /// Metaslabs of its vdev.
    pub count: u64,
    /// Bytes that can be used now.
    pub free: u64,
    /// Percent, if known.
    pub fragmentation: Option<u64>,
    /// Weight by segments; `None` where no histogram exists.
    pub by_segments: Option<Weight>,
}

/// What a pick is made of: a size, and what every start must be a multiple of.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    /// Bytes.
    pub size: u64,
    /// Starts are multiples of this.
    pub align: u64,
}

impl Want {
    /// Where in a free segment it fits first.
    #[must_use]
    pub fn fit(&self, segment: &Range<u64>) -> Option<u64> {
        let start = segment.start.checked_next_multiple_of(self.align)?;
        (start.checked_add(self.size)? <= segment.end).then_some(start)
    }
}

/// Where a metaslab was last allocated from, by the largest power of two that divides the size.
#[derive(Debug, Clone)]
pub struct Cursors([u64; 64]);

impl Cursors {
    /// All at the start of the metaslab.
    #[must_use]
    pub const fn new(start: u64) -> Self {
        Self([start; 64])
    }

    /// That of a size.
    pub const fn of(&mut self, size: u64) -> &mut u64 {
        &mut self.0[(size.trailing_zeros() & 63) as usize]
    }
}

/// A metaslab that can be picked from.
#[derive(Debug)]
pub struct Field<'a> {
    /// Its free segments.
    pub free: &'a mut FreeTree,
    /// Its cursors.
    pub cursors: &'a mut Cursors,
    /// Its first byte.
    pub start: u64,
    /// Its size.
    pub size: u64,
}

/// How to choose metaslabs and ranges.
pub trait Policy: Send + Sync + Debug {
    /// Its name.
    fn name(&self) -> &'static str;

    /// Segments below this many bytes are left out of the tree by size.
    fn size_floor(&self) -> u64;

    /// How good a metaslab is.
    fn weigh(&self, standing: &Standing) -> Weight;

    /// The start of a free range, or nothing if none fits. Must find one if there is one.
    fn pick(&self, field: &mut Field<'_>, want: Want) -> Option<u64>;

    /// Whether to leave a metaslab after an allocation: it weighed `activation` when it was taken
    /// up, weighs `now`, and the largest of its `free` bytes are in one piece of `largest`.
    fn should_leave(&self, activation: Weight, now: Weight, free: u64, largest: u64) -> bool;

    /// Bytes that go to a vdev of `width` children, `nparity` of them parity, in one turn.
    fn aliquot(&self, width: u64, nparity: u64) -> u64;

    /// Fragmentation of a vdev above which others are preferred.
    fn fragmentation_limit(&self) -> u64;
}

/// The policy that the tunable names.
#[must_use]
pub fn by_tunable() -> Arc<dyn Policy> {
    match tunables::ALLOCATOR.get() {
        1 => Arc::new(Historic),
        _ => Arc::new(Dynamic),
    }
}

/// The smallest segment that fits, lowest first.
fn best_fit(free: &mut FreeTree, want: Want) -> Option<u64> {
    let found = free.at_least(want.size).find_map(|segment| want.fit(&segment));
    // The tree by size may leave small segments out; they are looked through last.
    found.or_else(|| free.ranges().iter().find_map(|segment| want.fit(&segment)))
}

#[cfg(test)]
mod tests;
