//! A metaslab: its sets of ranges, and the states a range passes through (spec 05 §5).
//!
//!              allocate                take_changes             sync_done
//!   free ────────────────> allocating[txg] ──────> recorded ───────────> (allocated)
//!    ^                                                                        |
//!    |  sync_done(t+2)             sync_done(t)        take_changes      free |
//!    +──────────────── defer[t%2] <──────────── freed <──────────── freeing <─+
//!    ^                     | a pin needs it, or a guard is held
//!    +───────────────── overdue[t]
//!
//! `free` exists only while the metaslab is loaded; the other sets are small and always in memory.
//! Unflushed changes are those in the logs and not in the metaslab's own map, as of the last
//! commit.
//!
//! Invariants (each checked in every build, when a set changes or a txg ends)
//! * M1  A range is in at most one of free, allocating, defer, freed; ranges in `freeing` or
//!   `freed` were allocated.
//! * M2  While loaded: size - allocated = free + allocating + freed + defer + overdue, in bytes;
//!   otherwise the former is not less than the latter without free.
//! * M3  A range freed in txg t is free again after sync_done(t+2) at the earliest, so that a
//!   rewind by one or two uberblocks finds every block in place. Where deferral is off, only the
//!   last committed uberblock has all of its blocks (spec 05 §5.4).
//! * M4  Unflushed allocations and unflushed frees are disjoint.
//! * M5  A range that a valid pin may read is not free: before a range freed in txg t becomes free,
//!   every pin on a txg before t is marked as overtaken.
//! * M6  While a guard is held on the metaslab, none of its ranges becomes free.
//! * M7  The ranges of a metaslab lie within it.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

use cenote_ondisk::spacemap::{HISTOGRAM_BUCKETS, histogram};
use cenote_ranges::{RangeError, RangeSet};
use cenote_rt::ensure;

use super::error::Violation;
use super::fragmentation;
use super::policy::{Cursors, MetaslabInfo, Policy};
use super::request::MetaslabSpec;
use super::tree::FreeTree;
use super::weight::Weight;

/// Bytes of memory that a range takes in a tree by offset and one by size.
pub(super) const SEGMENT_BYTES: u64 = 64;

/// In-memory state of a loaded metaslab.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) free: FreeTree,
    pub(super) cursors: Cursors,
}

/// Records which stream has the metaslab open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Activation {
    /// Index of the stream in the group.
    pub(super) slot: usize,
    /// Whether it is open for second and third copies.
    pub(super) is_secondary: bool,
    /// Its weight when it was opened.
    pub(super) weight: Weight,
}

/// Changes that are only in the logs.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    pub(super) allocs: RangeSet,
    pub(super) frees: RangeSet,
}

impl Unflushed {
    /// Number of segments, for the estimate of memory.
    pub(super) fn segments(&self) -> u64 {
        (self.allocs.len() + self.frees.len()) as u64
    }

    /// An allocation first cancels a free, and a free an allocation (spec 05 §4.3).
    pub(super) fn fold(&mut self, range: Range<u64>, is_alloc: bool) -> Result<(), RangeError> {
        let (same, other) = if is_alloc {
            (&mut self.allocs, &mut self.frees)
        } else {
            (&mut self.frees, &mut self.allocs)
        };
        let undone: RangeSet = other.within(&range).collect();
        other.subtract(&undone);
        let mut rest = RangeSet::from(range);
        rest.subtract(&undone);
        same.try_union(&rest)
    }
}

/// How long freed ranges are deferred before they become free.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deferral {
    /// Until two later txgs are committed, and no pin on an earlier txg is left. Holds the txg of
    /// the oldest pin, `u64::MAX` without pins.
    TwoTxgs(u64),
    /// Not at all: the space is needed now. No pin is valid.
    Nothing,
}

/// Ranges that a txg freed.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    ranges: RangeSet,
    freed_in: u64,
}

/// Most sets of overdue ranges that a metaslab keeps apart by txg.
const OVERDUE_MAX: usize = 32;

/// A metaslab.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "facts that are independent of each other")]
pub(super) struct Metaslab {
    pub(super) vdev: u64,
    pub(super) id: u64,
    pub(super) start: u64,
    pub(super) size: u64,
    pub(super) ashift: u8,
    /// Index of its group in the vdev.
    pub(super) group: usize,

    pub(super) loaded: Option<Box<Loaded>>,
    pub(super) allocating: [RangeSet; 4],
    /// Ranges allocated in earlier passes of the syncing txg.
    pub(super) recorded: RangeSet,
    pub(super) freeing: RangeSet,
    pub(super) freed: RangeSet,
    pub(super) defer: [Deferred; 2],
    /// Ranges that were deferred for two txgs and are kept back by a pin or a guard, by the txg
    /// that freed them, or a later one.
    pub(super) overdue: BTreeMap<u64, RangeSet>,
    /// The allocator's epoch when a range last became free here.
    pub(super) matured: u64,
    /// Number of guards (M6).
    pub(super) guards: u32,
    /// Ranges freed in this pass that the checkpoint still uses.
    pub(super) held: RangeSet,
    pub(super) unflushed: Unflushed,

    /// Bytes allocated according to its map and the logs, passes of the syncing txg included.
    pub(super) allocated: u64,
    /// Histogram in its map's header.
    pub(super) histogram: [u64; HISTOGRAM_BUCKETS],
    pub(super) has_histogram: bool,
    pub(super) has_map: bool,
    /// First txg whose logs apply; 0 if it was never logged.
    pub(super) unflushed_txg: u64,
    /// Whether the logs hold changes from that txg on.
    pub(super) is_dirty: bool,
    /// Txg of the last commit that wrote its own map, if since import.
    pub(super) map_txg: u64,
    /// The syncing txg, if that writes its own map.
    pub(super) map_pending: Option<u64>,

    pub(super) weight: Weight,
    pub(super) fragmentation: Option<u64>,
    pub(super) activation: Option<Activation>,
    /// Number of pauses; nothing is allocated while it is not 0.
    pub(super) disabled: u32,
    /// Number of pending requests that it was loaded for; it is not unloaded while it is not 0.
    pub(super) pins: u32,
    /// The txg that must be committed before the first allocation.
    pub(super) new_in: Option<u64>,
    /// Whether its map could not be read.
    pub(super) is_broken: bool,
    /// Upper bound of the largest free segment; exact only while loaded.
    pub(super) largest_max: u64,
    /// When it was last loaded or allocated from.
    pub(super) used: (u64, Duration),
}

impl Metaslab {
    pub(super) fn new(vdev: u64, id: u64, ashift: u8, spec: &MetaslabSpec) -> Self {
        let has_histogram = spec.histogram.is_some();
        Self {
            vdev,
            id,
            start: spec.start,
            size: spec.size,
            ashift,
            group: 0,
            loaded: None,
            allocating: Default::default(),
            recorded: RangeSet::new(),
            freeing: RangeSet::new(),
            freed: RangeSet::new(),
            defer: Default::default(),
            overdue: BTreeMap::new(),
            matured: 0,
            guards: 0,
            held: RangeSet::new(),
            unflushed: Unflushed::default(),
            allocated: spec.allocated,
            histogram: spec.histogram.unwrap_or_default(),
            has_histogram,
            has_map: spec.has_map,
            unflushed_txg: spec.unflushed_txg,
            is_dirty: false,
            map_txg: 0,
            map_pending: None,
            weight: Weight::ZERO,
            fragmentation: None,
            activation: None,
            disabled: 0,
            pins: 0,
            new_in: None,
            is_broken: false,
            largest_max: spec.size.saturating_sub(spec.allocated),
            used: (0, Duration::ZERO),
        }
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.start..self.start + self.size
    }

    /// The violation for an operation on a range set of this metaslab.
    pub(super) fn set_error(
        &self,
        what: &'static str,
    ) -> impl FnOnce(RangeError) -> Violation + use<> {
        let (vdev, metaslab) = (self.vdev, self.id);
        move |cause| Violation::Set { vdev, metaslab, what, cause }
    }

    fn sum_error(&self, what: &'static str, found: u64, expected: u64) -> Violation {
        Violation::Sum { vdev: self.vdev, metaslab: self.id, what, found, expected }
    }

    /// Bytes freed and deferred.
    pub(super) fn deferred(&self) -> u64 {
        self.waiting().map(RangeSet::bytes).sum()
    }

    /// The sets of ranges that are freed, committed, and not yet free.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &RangeSet> {
        self.defer.iter().map(|deferred| &deferred.ranges).chain(self.overdue.values())
    }

    /// Bytes deferred long enough and kept back.
    pub(super) fn overdue_bytes(&self) -> u64 {
        self.overdue.values().map(RangeSet::bytes).sum()
    }

    /// Bytes allocated and not yet recorded.
    pub(super) fn allocating_bytes(&self) -> u64 {
        self.allocating.iter().map(RangeSet::bytes).sum()
    }

    /// Bytes that can be allocated now.
    pub(super) fn usable(&self) -> u64 {
        let taken = self.allocated + self.allocating_bytes() + self.deferred() + self.freed.bytes();
        self.size.saturating_sub(taken)
    }

    /// Checks that a range is allocated and can be freed: it is in no set of free or freed ranges.
    fn check_allocated(
        &self,
        range: &Range<u64>,
        txg: u64,
        what: &'static str,
    ) -> Result<(), Violation> {
        let free = self.loaded.as_ref().map(|loaded| loaded.free.ranges());
        let sets = [&self.freeing, &self.freed, &self.held].into_iter().chain(self.waiting());
        // A range allocated by a later txg cannot be freed in this one.
        let later = (1..4).map(|ahead| &self.allocating[((txg + ahead) & 3) as usize]);
        // Checks M1.
        for set in sets.chain(later).chain(free) {
            if let Some(other) = set.overlap(range) {
                let cause = RangeError::Overlap { range: range.clone(), other };
                return Err(self.set_error(what)(cause));
            }
        }
        Ok(())
    }

    /// Allocates a free range for `txg`.
    pub(super) fn take(&mut self, range: Range<u64>, txg: u64) -> Result<(), Violation> {
        let (error, again) =
            (self.set_error("allocation of a range that is not free"), range.clone());
        let Some(loaded) = &mut self.loaded else {
            return Err(error(RangeError::Missing { range }));
        };
        // Checks M1.
        loaded.free.try_remove(range).map_err(error)?;
        // Checks M1.
        let error = self.set_error("double allocation");
        self.allocating[(txg & 3) as usize].try_add(again).map_err(error)
    }

    /// Undoes an allocation of `txg` that no pass has recorded; returns false if one has.
    pub(super) fn give_back(&mut self, range: Range<u64>, txg: u64) -> Result<bool, Violation> {
        let allocating = &mut self.allocating[(txg & 3) as usize];
        if allocating.try_remove(range.clone()).is_err() {
            return Ok(false);
        }
        let error = self.set_error("undone allocation is free");
        // It was loaded for the allocation, and stays loaded while ranges are allocating.
        // Checks M2: an unloaded metaslab would have the range allocated and free.
        let Some(loaded) = &mut self.loaded else {
            return Err(error(RangeError::Missing { range }));
        };
        // Checks M1.
        loaded.free.try_add(range).map_err(error)?;
        Ok(true)
    }

    /// Frees a range in the syncing txg `txg`.
    pub(super) fn free(&mut self, range: Range<u64>, txg: u64) -> Result<(), Violation> {
        self.check_allocated(&range, txg, "free of a free range")?;
        let error = self.set_error("double free");
        // Checks M1.
        self.freeing.try_add(range).map_err(error)
    }

    /// Frees a range that the checkpoint still uses.
    pub(super) fn free_checkpointed(
        &mut self,
        range: Range<u64>,
        txg: u64,
    ) -> Result<(), Violation> {
        self.check_allocated(&range, txg, "checkpointed free of a free range")?;
        let error = self.set_error("double free");
        // Checks M1.
        self.held.try_add(range).map_err(error)
    }

    /// Records the changes of this pass: allocations of `txg`, then frees.
    pub(super) fn record(&mut self, txg: u64) -> Result<(RangeSet, RangeSet), Violation> {
        let allocs = self.allocating[(txg & 3) as usize].take();
        let frees = self.freeing.take();
        for set in [&allocs, &frees] {
            let (first, last) = (set.first(), set.last());
            let (start, end) = (first.map(|first| first.start), last.map(|last| last.end));
            let own = self.range();
            ensure!(
                "M7",
                start.is_none_or(|start| start >= own.start)
                    && end.is_none_or(|end| end <= own.end),
                "vdev {} metaslab {} records {start:?} to {end:?}",
                self.vdev,
                self.id
            );
        }
        let error = self.set_error("allocated in two passes");
        // Checks M1.
        self.recorded.try_union(&allocs).map_err(error)?;
        let error = self.set_error("freed in two passes");
        // Checks M1.
        self.freed.try_union(&frees).map_err(error)?;
        let allocated = self.allocated + allocs.bytes();
        // Checks M2: neither sum leaves its range.
        if allocated > self.size || frees.bytes() > allocated {
            return Err(self.sum_error("allocated, less frees", allocated, frees.bytes()));
        }
        self.allocated = allocated - frees.bytes();
        Ok((allocs, frees))
    }

    /// Updates the histogram for the map's header after a pass in which `frees` were recorded.
    pub(super) fn update_histogram(&mut self, frees: &RangeSet) {
        let mut counts = self.histogram;
        if let Some(loaded) = &self.loaded {
            counts = stored_counts(loaded.free.histogram(), self.ashift);
            for set in std::iter::once(&self.freed).chain(self.waiting()) {
                add_counts(&mut counts, &stored_counts(&set.histogram(), self.ashift));
            }
        } else {
            if !self.has_histogram && !self.has_map {
                // Nothing was ever recorded here: the whole metaslab was one free segment.
                counts = stored_counts(&RangeSet::from(self.range()).histogram(), self.ashift);
            }
            add_counts(&mut counts, &stored_counts(&frees.histogram(), self.ashift));
        }
        self.histogram = counts;
        self.has_histogram = true;
    }

    /// Ends `txg`, which is committed: freed ranges are deferred, and ranges deferred long enough
    /// become free. Returns the ranges that became free.
    pub(super) fn finish(&mut self, txg: u64, deferral: Deferral) -> Result<RangeSet, Violation> {
        let freed = self.freed.take();
        let now = Deferred { ranges: freed, freed_in: txg };
        let before = std::mem::replace(&mut self.defer[(txg % 2) as usize], now);
        let Deferred { ranges: waited, freed_in } = before;
        ensure!(
            "M3",
            waited.is_empty() || freed_in + 2 <= txg,
            "ranges freed in txg {freed_in} would be reused as of txg {txg}"
        );
        if !waited.is_empty() {
            // The defer set has the same parity as `txg`, and is older.
            self.put_overdue(txg.saturating_sub(2), &waited)?;
        }
        let mut mature = match deferral {
            // M6.
            _ if self.guards > 0 => RangeSet::new(),
            Deferral::TwoTxgs(oldest_pin) => self.take_overdue(oldest_pin)?,
            Deferral::Nothing => self.take_overdue(u64::MAX)?,
        };
        if deferral == Deferral::Nothing && self.guards == 0 {
            let error = self.set_error("deferred twice");
            let freed = self.defer[(txg % 2) as usize].ranges.take();
            // Checks M1.
            mature.try_union(&freed).map_err(error)?;
        }
        self.recorded.clear();
        self.make_free(&mature)?;
        Ok(mature)
    }

    fn put_overdue(&mut self, freed_in: u64, ranges: &RangeSet) -> Result<(), Violation> {
        let (vdev, metaslab) = (self.vdev, self.id);
        let error = |cause| Violation::Set { vdev, metaslab, what: "deferred twice", cause };
        // Checks M1.
        self.overdue.entry(freed_in).or_default().try_union(ranges).map_err(error)?;
        while self.overdue.len() > OVERDUE_MAX {
            let Some((_, oldest)) = self.overdue.pop_first() else { break };
            let Some(mut next) = self.overdue.first_entry() else { break };
            next.get_mut().try_union(&oldest).map_err(error)?;
        }
        Ok(())
    }

    /// Takes the overdue ranges that were freed in `txg` or before.
    pub(super) fn take_overdue(&mut self, txg: u64) -> Result<RangeSet, Violation> {
        let mut taken = RangeSet::new();
        while let Some(oldest) = self.overdue.first_entry().filter(|oldest| *oldest.key() <= txg) {
            let ranges = oldest.remove();
            // Checks M1.
            taken.try_union(&ranges).map_err(self.set_error("deferred twice"))?;
        }
        Ok(taken)
    }

    /// Adds deferred ranges to the free ones.
    pub(super) fn make_free(&mut self, mature: &RangeSet) -> Result<(), Violation> {
        let (bytes, guards) = (mature.bytes(), self.guards);
        ensure!("M6", guards == 0 || bytes == 0, "{bytes} bytes become free under {guards} guards");
        let error = self.set_error("deferred range is free");
        if let Some(loaded) = &mut self.loaded {
            // Checks M1.
            mature.iter().try_for_each(|range| loaded.free.try_add(range)).map_err(error)?;
        } else if !mature.is_empty() {
            self.largest_max = self.usable();
        }
        self.check_sums()
    }

    /// Updates the unflushed changes to the state after `txg`, whose changes are given.
    pub(super) fn fold(
        &mut self,
        txg: u64,
        is_logged: bool,
        (allocs, frees): (&RangeSet, &RangeSet),
    ) -> Result<(), Violation> {
        if self.map_pending.take_if(|pending| *pending == txg).is_some() {
            self.map_txg = txg;
            self.unflushed = Unflushed::default();
        }
        if !is_logged {
            return Ok(());
        }
        for (set, is_alloc) in [(allocs, true), (frees, false)] {
            for range in set.iter() {
                let error = self.set_error("unflushed change");
                // Checks M4: a change is not folded twice.
                self.unflushed.fold(range, is_alloc).map_err(error)?;
            }
        }
        Ok(())
    }

    /// Checks M2.
    pub(super) fn check_sums(&self) -> Result<(), Violation> {
        let taken = self.allocating_bytes() + self.freed.bytes() + self.deferred();
        let expected = self.size.saturating_sub(self.allocated);
        let Some(loaded) = &self.loaded else {
            let (vdev, id) = (self.vdev, self.id);
            ensure!(
                "M2",
                taken <= expected,
                "vdev {vdev} metaslab {id}: {taken} bytes are not free, of {expected}"
            );
            return Ok(());
        };
        let found = loaded.free.bytes() + taken;
        // Checks M2.
        if found == expected {
            return Ok(());
        }
        Err(self.sum_error("free, allocating, freed and deferred", found, expected))
    }

    /// Builds the free tree from the space that the metaslab's own map leaves free.
    pub(super) fn install(&mut self, mut free: RangeSet, floor: u64) -> Result<(), Violation> {
        let steps = [
            ("unflushed allocation is not free", &self.unflushed.allocs, false),
            ("unflushed free is free", &self.unflushed.frees, true),
            ("recorded range is not free", &self.recorded, false),
        ];
        let waiting = self.waiting().map(|set| ("deferred range is not free", set, false));
        let allocating = self.allocating.iter();
        let taken = allocating.map(|set| ("range being allocated is not free", set, false));
        for (what, set, is_free) in steps.into_iter().chain(waiting).chain(taken) {
            let result = if is_free { free.try_union(set) } else { free.try_subtract(set) };
            result.map_err(self.set_error(what))?;
        }
        for set in [&self.freeing, &self.freed, &self.held] {
            if let Some(range) = set.iter().find(|range| free.overlap(range).is_some()) {
                let cause = RangeError::Overlap { other: range.clone(), range };
                return Err(self.set_error("freed range is free already")(cause));
            }
        }
        let outside = free.bytes() - free.bytes_within(&self.range());
        if outside != 0 {
            return Err(self.sum_error("free space outside", outside, 0));
        }
        let loaded = Loaded { free: FreeTree::new(free, floor), cursors: Cursors::new(self.start) };
        self.loaded = Some(Box::new(loaded));
        let result = self.check_sums();
        if result.is_err() {
            self.loaded = None;
        }
        result
    }

    /// Whether it can be unloaded: it has no changes that exist only in memory.
    pub(super) fn can_unload(&self) -> bool {
        self.loaded.is_some()
            && self.disabled == 0
            && self.pins == 0
            && self.recorded.is_empty()
            && self.allocating.iter().all(RangeSet::is_empty)
    }

    /// Unloads the metaslab.
    pub(super) fn unload(&mut self) {
        if let Some(mut loaded) = self.loaded.take() {
            self.largest_max = loaded.free.largest();
        }
    }

    /// Upper bound of the largest free segment.
    pub(super) fn largest_bound(&mut self) -> u64 {
        match &mut self.loaded {
            Some(loaded) => loaded.free.largest(),
            None => self.largest_max,
        }
    }

    /// Whether a range of that size may fit, as far as is known.
    pub(super) fn may_hold(&mut self, asize: u64) -> bool {
        !self.is_broken && self.new_in.is_none() && self.largest_bound() >= asize
    }

    /// Number of segments in memory.
    pub(super) fn loaded_segments(&self) -> u64 {
        self.loaded.as_ref().map_or(0, |loaded| loaded.free.ranges().len() as u64)
    }

    /// Weight by segments, if a histogram exists.
    fn segment_weight(&self) -> Option<Weight> {
        if let Some(loaded) = &self.loaded {
            return Some(Weight::of_free(loaded.free.histogram(), self.ashift));
        }
        if self.usable() == self.size {
            return Some(Weight::of_segments(self.size.max(1).ilog2(), 1));
        }
        if !self.has_histogram {
            return None;
        }
        let mut unusable = [0; HISTOGRAM_BUCKETS];
        for set in std::iter::once(&self.freed).chain(self.waiting()) {
            add_counts(&mut unusable, &stored_counts(&set.histogram(), self.ashift));
        }
        Some(Weight::of_stored(&self.histogram, &unusable, self.ashift))
    }

    /// Number of free segments; without deferred ones where that is known.
    fn segment_count(&self) -> Option<u64> {
        if let Some(loaded) = &self.loaded {
            return Some(loaded.free.ranges().len() as u64);
        }
        if self.usable() == self.size {
            return Some(1);
        }
        self.has_histogram.then(|| self.histogram.iter().sum())
    }

    /// Its present weight.
    pub(super) fn weigh(&self, policy: &dyn Policy, count: u64) -> Weight {
        if self.is_broken || self.usable() == 0 {
            return Weight::ZERO;
        }
        policy.weigh(&MetaslabInfo {
            metaslab: self.id,
            count,
            free: self.usable(),
            deferred: self.deferred() + self.freed.bytes(),
            segments: self.segment_count(),
            fragmentation: self.fragmentation,
            by_segments: self.segment_weight(),
        })
    }

    /// Recomputes the fragmentation from the stored histogram.
    pub(super) fn update_fragmentation(&mut self) {
        self.fragmentation = match (self.has_map, self.has_histogram) {
            (false, _) => Some(0),
            (true, true) => Some(fragmentation::of_metaslab(&self.histogram, self.ashift)),
            (true, false) => None,
        };
    }
}

/// Converts a histogram by log2 of bytes to that of a map's header (spec 05 §2.8).
pub(super) fn stored_counts(counts: &[u64; 64], ashift: u8) -> [u64; HISTOGRAM_BUCKETS] {
    let mut stored = [0_u64; HISTOGRAM_BUCKETS];
    for (log2, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        if let Some((bucket, times)) = histogram::bucket(1 << log2, ashift) {
            stored[bucket] = stored[bucket].saturating_add(count.saturating_mul(times));
        }
    }
    stored
}

fn add_counts(sum: &mut [u64; HISTOGRAM_BUCKETS], more: &[u64; HISTOGRAM_BUCKETS]) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum = sum.saturating_add(*more);
    }
}
