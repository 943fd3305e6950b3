//! The allocated ranges of a metaslab, for copying the contents of a vdev that is being removed.
//!
//! Ranges that were freed and wait to become free count as free: no block of a later state is
//! there.

use cenote_ranges::RangeSet;
use cenote_rt::Result;

use super::SpaceAllocator;
use super::load::Pins;
use super::metaslab::Metaslab;

/// The allocated ranges of metaslabs, as of the last pass.
#[derive(Debug, Clone, Copy)]
pub struct Occupied<'a> {
    space: &'a SpaceAllocator,
}

impl<'a> Occupied<'a> {
    /// Returns those of an allocator.
    #[must_use]
    pub const fn of(space: &'a SpaceAllocator) -> Self {
        Self { space }
    }

    /// Returns the ranges of a metaslab that are allocated; none if there is no such metaslab.
    ///
    /// # Errors
    /// Errors of loading it.
    pub async fn ranges(self, vdev: u64, metaslab: u64) -> Result<RangeSet> {
        self.inspect_loaded(vdev, metaslab as usize, |metaslab| {
            let mut set = RangeSet::from(metaslab.range());
            for free in metaslab.unallocated() {
                set.subtract(free);
            }
            set
        })
        .await
    }

    /// Returns the parts of `ranges` that are allocated in a metaslab.
    ///
    /// # Errors
    /// Errors of loading it.
    pub async fn parts(self, vdev: u64, metaslab: u64, ranges: &RangeSet) -> Result<RangeSet> {
        self.inspect_loaded(vdev, metaslab as usize, |metaslab| {
            let mut set = ranges.clone();
            for free in metaslab.unallocated() {
                for range in ranges.iter() {
                    for part in free.within(&range) {
                        set.remove(part);
                    }
                }
            }
            set
        })
        .await
    }

    async fn inspect_loaded(
        self,
        vdev: u64,
        id: usize,
        look: impl Fn(&Metaslab) -> RangeSet,
    ) -> Result<RangeSet> {
        let mut pins = Pins::new(self.space);
        loop {
            pins.load(vdev, id).await?;
            // LOCK state: for the duration of `look`.
            let mut state = self.space.lock();
            match state.metaslab(vdev, id) {
                None => return Ok(RangeSet::new()),
                Some(metaslab) if metaslab.loaded.is_some() => return Ok(look(metaslab)),
                // It was unloaded again.
                Some(_) => {}
            }
        }
    }
}

impl Metaslab {
    /// The sets of ranges without a block; it is loaded.
    fn unallocated(&self) -> impl Iterator<Item = &RangeSet> {
        let free = self.loaded.iter().map(|loaded| loaded.free.ranges());
        free.chain([&self.freeing, &self.freed]).chain(self.waiting())
    }
}
