//! The policy of 2013, before histograms (spec 05 §12).
//!
//! Prefers the emptiest metaslab, and those at the start of the disk; deferred frees count as free.
//! Within one, first fit from the cursor on, wrapping around; best fit over all segments once the
//! metaslab is worn: its largest segment is below a threshold, or little is free. A metaslab is
//! closed when it cannot serve, and a worn one at the end of the txg. Copies of a block are an
//! eighth of the vdev apart (spec 09 §4.1).

use cenote_rt::tunables;

use super::{MetaslabInfo, PickContext, PickRequest, Policy, best_fit};
use crate::alloc::weight::Weight;

/// Bytes allocated on a vdev, per child, before the rotor advanced.
const ALIQUOT: u64 = 512 << 10;

/// illumos's policy of 2013.
#[derive(Debug, Clone, Copy, Default)]
pub struct Historic;

impl Policy for Historic {
    fn name(&self) -> &'static str {
        "historic"
    }

    fn size_floor(&self) -> u64 {
        0
    }

    fn weigh(&self, info: &MetaslabInfo) -> Weight {
        let free = u128::from(info.free) + u128::from(info.deferred);
        let count = u128::from(info.count.max(1));
        let mut weight = free;
        if tunables::LBA_WEIGHTING_ENABLED.get() != 0 {
            // Outer tracks are twice as fast as inner ones.
            weight = 2 * free - u128::from(info.metaslab) * free / count;
        }
        Weight::of_space(weight as u64)
    }

    fn pick(&self, context: &mut PickContext<'_>, wanted: PickRequest) -> Option<u64> {
        let largest = context.free.largest();
        if largest < wanted.size {
            return None;
        }
        if self.should_close(largest, context.free.bytes(), context.size) {
            return best_fit(context.free, wanted);
        }
        let cursor = context.cursors.of(wanted.size);
        let ahead = context.free.from(*cursor).find_map(|segment| wanted.fit(&segment));
        let found = ahead
            .or_else(|| context.free.ranges().iter().find_map(|segment| wanted.fit(&segment)))?;
        *cursor = found + wanted.size;
        Some(found)
    }

    fn should_leave(&self, _: Weight, _: Weight, _: u64, _: u64) -> bool {
        false
    }

    fn should_close(&self, largest: u64, free: u64, size: u64) -> bool {
        let percent = free.saturating_mul(100) / size.max(1);
        largest < tunables::DF_ALLOC_THRESHOLD.get() || percent < tunables::DF_FREE_PCT.get()
    }

    fn copy_distance(&self, count: u64) -> u64 {
        (count / 8).max(1)
    }

    fn aliquot(&self, width: u64, _: u64) -> u64 {
        ALIQUOT * width.max(1)
    }

    fn fragmentation_limit(&self) -> u64 {
        100
    }
}
