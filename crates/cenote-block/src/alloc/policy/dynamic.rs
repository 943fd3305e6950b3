//! OpenZFS's present policy, "dynamic" (spec 05 §8.4-8.6).
//!
//! Prefers metaslabs with the largest segments. Within one, first fit from a cursor per size class,
//! up to a bound beyond the first candidate; best fit if that fails, or if little space or no large
//! segment is left.

use cenote_rt::tunables;

use super::{MetaslabInfo, PickContext, PickRequest, Policy, best_fit};
use crate::alloc::tree::FreeTree;
use crate::alloc::weight::Weight;

/// OpenZFS 2.3's policy.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dynamic;

/// First fit from `cursor` on, up to the bound.
fn first_fit(free: &FreeTree, cursor: u64, wanted: PickRequest) -> Option<u64> {
    let reach = tunables::DF_MAX_SEARCH.get();
    let at_least = tunables::MIN_SEARCH_COUNT.get();
    let mut first = None;
    for (count, segment) in (0_u64..).zip(free.from(cursor)) {
        let start = *first.get_or_insert(segment.start);
        if segment.start - start > reach && count >= at_least {
            return None;
        }
        if let Some(found) = wanted.fit(&segment) {
            return Some(found);
        }
    }
    None
}

impl Policy for Dynamic {
    fn name(&self) -> &'static str {
        "dynamic"
    }

    fn size_floor(&self) -> u64 {
        tunables::BY_SIZE_MIN.get()
    }

    fn weigh(&self, info: &MetaslabInfo) -> Weight {
        if let Some(weight) = info.by_segments
            && tunables::SEGMENT_WEIGHT_ENABLED.get() != 0
        {
            return weight;
        }
        let whole = 101 - info.fragmentation.unwrap_or(1).clamp(1, 100);
        Weight::of_space((u128::from(info.free) * u128::from(whole) / 100) as u64)
    }

    fn pick(&self, context: &mut PickContext<'_>, wanted: PickRequest) -> Option<u64> {
        let largest = context.free.largest();
        if largest < wanted.size {
            return None;
        }
        let percent = context.free.bytes().saturating_mul(100) / context.size.max(1);
        if largest >= tunables::DF_ALLOC_THRESHOLD.get() && percent >= tunables::DF_FREE_PCT.get() {
            let cursor = context.cursors.of(wanted.size);
            if let Some(found) = first_fit(context.free, *cursor, wanted) {
                *cursor = found + wanted.size;
                return Some(found);
            }
            *cursor = context.start;
        }
        if tunables::DF_USE_LARGEST_SEGMENT.get() != 0 {
            let largest = context.free.largest_segment();
            return largest
                .and_then(|segment| wanted.fit(&segment))
                .or_else(|| best_fit(context.free, wanted));
        }
        best_fit(context.free, wanted)
    }

    fn should_leave(&self, activation: Weight, now: Weight, free: u64, largest: u64) -> bool {
        let (Some(before), Some(after)) = (activation.index(), now.index()) else {
            return now == Weight::ZERO;
        };
        // A new metaslab is filled to its end: most of its free space is one segment.
        let is_one_piece = largest > free / 16 * 15;
        !is_one_piece && u64::from(before.saturating_sub(after)) >= tunables::SWITCH_THRESHOLD.get()
    }

    fn aliquot(&self, width: u64, nparity: u64) -> u64 {
        tunables::ALIQUOT.get().saturating_mul(width.saturating_sub(nparity).max(1))
    }

    fn fragmentation_limit(&self) -> u64 {
        tunables::MG_FRAGMENTATION_THRESHOLD.get()
    }
}
