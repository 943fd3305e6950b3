//! Metadata apart from data, and the metaslabs with the longest mean free run first.
//!
//! A file that is overwritten at random writes its indirect blocks again in almost every txg, so
//! that they are freed again soon, while data blocks stay for long. Mixed, both leave short free
//! runs everywhere. Apart, each kind leaves longer ones (`area`).
//!
//! Within a metaslab, free ranges are taken in one pass by address, over txgs. Ranges that become
//! free behind the cursor are left for the next pass: they are short, and grow until then. A
//! metaslab is closed at its end.
//!
//! Sources: spec 09 §4.1.

use cenote_rt::tunables;

use super::{MetaslabInfo, PickContext, PickRequest, Policy};
use crate::alloc::weight::Weight;

/// Largest allocation that uses the cursor for short ones. Longer allocations pass over many free
/// ranges, which are left for the short ones.
const SHORT_MAX: u64 = 32 << 10;

/// The policy of this engine.
#[derive(Debug, Clone, Copy, Default)]
pub struct Separate;

impl Policy for Separate {
    fn name(&self) -> &'static str {
        "separate"
    }

    fn size_floor(&self) -> u64 {
        tunables::BY_SIZE_MIN.get()
    }

    fn weigh(&self, info: &MetaslabInfo) -> Weight {
        match info.segments {
            Some(segments) => Weight::of_runs(info.free, segments),
            None => Weight::of_space(info.free),
        }
    }

    fn pick(&self, context: &mut PickContext<'_>, wanted: PickRequest) -> Option<u64> {
        if context.free.largest() < wanted.size {
            return None;
        }
        let cursor = context.cursors.of(if wanted.size > SHORT_MAX { 1 << 1 } else { 1 });
        let ahead = context.free.from(*cursor).find_map(|segment| wanted.fit(&segment));
        let found = match ahead {
            None if context.must_find => {
                context.free.ranges().iter().find_map(|segment| wanted.fit(&segment))
            }
            ahead => ahead,
        };
        *cursor = found.map_or(context.start, |found| found + wanted.size);
        found
    }

    fn should_leave(&self, _: Weight, _: Weight, _: u64, _: u64) -> bool {
        false
    }

    fn aliquot(&self, width: u64, nparity: u64) -> u64 {
        tunables::ALIQUOT.get().saturating_mul(width.saturating_sub(nparity).max(1))
    }

    fn fragmentation_limit(&self) -> u64 {
        tunables::MG_FRAGMENTATION_THRESHOLD.get()
    }

    fn separates_metadata(&self) -> bool {
        true
    }
}
