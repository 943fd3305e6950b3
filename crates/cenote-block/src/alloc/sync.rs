//! The allocator in a syncing txg: the changes of each pass, and the effect of a commit (spec 05
//! §5.2-5.4).

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use cenote_ondisk::spacemap::HISTOGRAM_BUCKETS;
use cenote_ranges::RangeSet;
use cenote_rt::ensure;
use cenote_rt::seeded::{Bug, is_on};

use super::class::Class;
use super::error::Violation;
use super::metaslab::{Deferral, Loaded, Metaslab};
use super::state::State;

/// Changes of one metaslab to record in a pass: ALLOC of `allocs`, then FREE of `frees`, in the log
/// of the txg, or in its own map on a pool without logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaslabChange {
    /// Top-level vdev.
    pub vdev: u64,
    /// Metaslab.
    pub metaslab: u64,
    /// Ranges allocated.
    pub allocs: RangeSet,
    /// Ranges freed.
    pub frees: RangeSet,
    /// Ranges freed that the checkpoint still uses: FREE in the vdev's checkpoint map and nowhere
    /// else.
    pub held: RangeSet,
    /// New entry in the vdev's array of unflushed txgs.
    pub unflushed_txg: Option<u64>,
    /// Histogram for the header of its own map.
    pub histogram: [u64; HISTOGRAM_BUCKETS],
    /// Allocated bytes after these changes.
    pub allocated: u64,
    /// Whether it has no space map yet: create one, and store it in the vdev's array.
    pub needs_map: bool,
}

impl State {
    /// Removes all changes to be recorded for `txg` from their sets and returns them.
    pub(super) fn take_changes(&mut self, txg: u64) -> Result<Vec<MetaslabChange>, Violation> {
        self.check_syncing("recording", txg)?;
        self.recording_txg = Some(txg);
        let marked: Vec<_> = self.dirty.get(&txg).into_iter().flatten().copied().collect();
        let mut changes = Vec::new();
        for (vdev, id) in marked {
            changes.extend(self.take_change(txg, vdev, id)?);
        }
        Ok(changes)
    }

    fn take_change(
        &mut self,
        txg: u64,
        vdev: u64,
        id: usize,
    ) -> Result<Option<MetaslabChange>, Violation> {
        let has_logs = self.has_logs;
        let Some(metaslab) = self.metaslab(vdev, id) else { return Ok(None) };
        let (allocs, frees) = metaslab.record(txg)?;
        let held = metaslab.held.take();
        let is_changed = !(allocs.is_empty() && frees.is_empty());
        if !is_changed && held.is_empty() {
            return Ok(None);
        }
        let needs_map = !metaslab.has_map && is_changed;
        let mut unflushed_txg = None;
        if is_changed {
            metaslab.update_histogram(&frees);
            metaslab.has_map = true;
            if has_logs && !metaslab.is_dirty {
                // Its map is complete up to this txg (spec 05 §4.3).
                metaslab.is_dirty = true;
                unflushed_txg = Some(txg);
            } else if !has_logs {
                metaslab.map_pending = Some(txg);
            }
        }
        let (histogram, allocated) = (metaslab.histogram, metaslab.allocated);
        if let Some(txg) = unflushed_txg {
            self.set_unflushed(vdev, id, txg)?;
        }
        Ok(Some(MetaslabChange {
            vdev,
            metaslab: id as u64,
            allocs,
            frees,
            held,
            unflushed_txg,
            histogram,
            allocated,
            needs_map,
        }))
    }

    /// Ends `txg`, which is on disk. Ranges freed two txgs ago become free, ranges freed now are
    /// deferred. If that requires it, pins are overtaken first (M5).
    pub(super) fn sync_done(
        &mut self,
        txg: u64,
        slop: u64,
    ) -> Result<Vec<ReusableRanges>, Violation> {
        // Checks A2.
        if txg <= self.committed || self.freeing_txg.is_some_and(|syncing| syncing != txg) {
            let committed = self.committed;
            return Err(Violation::Order { what: "commit", txg, committed });
        }
        let marked = self.dirty.get(&txg).into_iter().flatten();
        let is_recorded = |(vdev, id): &(u64, usize)| {
            let metaslab = self.vdevs.get(vdev).and_then(|vdev| vdev.metaslabs.get(*id));
            metaslab.is_none_or(|metaslab| !metaslab.has_changes(txg))
        };
        // Checks A6.
        if !marked.copied().all(|key| is_recorded(&key)) {
            // The maps just committed lack changes.
            let committed = self.committed;
            return Err(Violation::Order { what: "commit before recording", txg, committed });
        }
        // Pins are overtaken before any range becomes free (M5).
        let deferral = self.choose_deferral(slop);
        // A pointer that was looked up in an earlier epoch may lead to a range that becomes free
        // now.
        self.next_epoch();
        let mut touched = self.dirty.remove(&txg).unwrap_or_default();
        let earlier = self.dirty.keys().next().copied().filter(|other| *other < txg);
        ensure!("A6", earlier.is_none(), "txg {earlier:?} has changes at the commit of txg {txg}");
        touched.extend(self.deferring.iter().copied());
        let mut mature = Vec::new();
        for (vdev, id) in &touched {
            let ranges = self.finish(txg, *vdev, *id, deferral)?;
            if !ranges.is_empty() {
                mature.push(ReusableRanges { vdev: *vdev, metaslab: *id as u64, ranges });
            }
        }
        self.settle_new(txg);
        self.check_group_sums(txg)?;
        self.committed = txg;
        self.freeing_txg = None;
        self.recording_txg = None;
        let policy = self.policy.clone();
        let vdevs: BTreeSet<_> = touched.iter().map(|(vdev, _)| *vdev).collect();
        for vdev in vdevs {
            if let Some(vdev) = self.vdevs.get_mut(&vdev) {
                vdev.update_fragmentation();
                vdev.resize_area(policy.as_ref());
            }
        }
        self.unload_idle(txg);
        Ok(mature)
    }

    /// Chooses how long freed ranges are deferred as of this commit. Overtakes the pins that
    /// prevent it.
    fn choose_deferral(&mut self, slop: u64) -> Deferral {
        let (space, allocated) = self.class_space(Class::Normal);
        // With so little space left, deferred ranges are needed (spec 05 §5.4).
        let is_short = |allocated| space.saturating_sub(allocated) <= slop;
        if is_on(Bug::NoDeferral) {
            self.overtake(|_| true);
            return Deferral::Nothing;
        }
        if is_short(allocated) {
            // Ranges kept back by pins are used first: the deferral keeps older uberblocks usable.
            let overdue = self.overdue_bytes(Class::Normal);
            self.overtake(|_| true);
            if is_short(allocated.saturating_sub(overdue)) {
                return Deferral::Nothing;
            }
        }
        let now = cenote_rt::monotonic();
        self.overtake(|loan| loan.deadline <= now);
        let oldest_pin = self.oldest_pin();
        Deferral::TwoTxgs(if is_on(Bug::PinReleasedEarly) { u64::MAX } else { oldest_pin })
    }

    /// Bytes of a class that only pins and guards keep back.
    fn overdue_bytes(&self, class: Class) -> u64 {
        let metaslabs = self.deferring.iter().filter_map(|(vdev, id)| {
            let vdev = self.vdevs.get(vdev)?;
            let metaslab = vdev.metaslabs.get(*id)?;
            (vdev.group_for(class) == Some(metaslab.group)).then_some(metaslab)
        });
        metaslabs.map(Metaslab::overdue_bytes).sum()
    }

    /// Overtakes every pin that keeps ranges back and makes these ranges free now, before the next
    /// commit: they were deferred for two txgs. Returns whether there were any.
    pub(super) fn release_overdue(&mut self) -> Result<bool, Violation> {
        let is_held = |(vdev, id): &(u64, usize)| {
            let metaslab = self.vdevs.get(vdev).and_then(|vdev| vdev.metaslabs.get(*id));
            metaslab.is_some_and(|metaslab| metaslab.guards == 0 && !metaslab.overdue.is_empty())
        };
        let found: Vec<_> = self.deferring.iter().copied().filter(is_held).collect();
        if found.is_empty() {
            return Ok(false);
        }
        // M5.
        self.overtake(|_| true);
        let (epoch, policy) = (self.next_epoch(), self.policy.clone());
        for (vdev_id, id) in found {
            let Some(vdev) = self.vdevs.get_mut(&vdev_id) else { continue };
            let metaslab = &mut vdev.metaslabs[id];
            let mature = metaslab.take_overdue(u64::MAX)?;
            metaslab.make_free(&mature)?;
            metaslab.matured = epoch;
            let (bytes, is_empty) = (mature.bytes(), metaslab.deferred() == 0);
            let group = &mut vdev.groups[metaslab.group];
            group.change(-(bytes as i64), -(bytes as i64))?;
            vdev.reweigh(id, policy.as_ref());
            if is_empty {
                self.deferring.remove(&(vdev_id, id));
            }
            self.recount_loaded(vdev_id, id);
        }
        Ok(true)
    }

    fn finish(
        &mut self,
        txg: u64,
        vdev_id: u64,
        id: usize,
        deferral: Deferral,
    ) -> Result<RangeSet, Violation> {
        let (has_logs, policy) = (self.has_logs, self.policy.clone());
        let epoch = self.epoch.load(Ordering::Acquire);
        let Some(vdev) = self.vdevs.get_mut(&vdev_id) else { return Ok(RangeSet::new()) };
        let pins = self.pins.len();
        ensure!("M5", deferral != Deferral::Nothing || pins == 0, "{pins} pins are still valid");
        let Some(metaslab) = vdev.metaslabs.get_mut(id) else { return Ok(RangeSet::new()) };
        let was_pending = metaslab.map_pending == Some(txg);
        let segments = if was_pending { 0 } else { metaslab.unflushed.segments() };
        let (recorded, freed) = (metaslab.recorded.take(), metaslab.freed.clone());
        metaslab.fold(txg, has_logs, (&recorded, &freed))?;
        let now = metaslab.unflushed.segments();
        let deferred = metaslab.deferred();
        ensure!(
            "A5",
            deferred == 0 || self.deferring.contains(&(vdev_id, id)),
            "{deferred} bytes of vdev {vdev_id} metaslab {id} are deferred and not listed"
        );
        let mature = metaslab.finish(txg, deferral)?;
        if !mature.is_empty() {
            metaslab.matured = epoch;
        }
        metaslab.update_fragmentation();
        let size = metaslab.size;
        let should_close = |loaded: &mut Loaded| {
            policy.should_close(loaded.free.largest(), loaded.free.bytes(), size)
        };
        let is_open = metaslab.activation.is_some();
        let is_worn = is_open && metaslab.loaded.as_deref_mut().is_some_and(should_close);
        let (after, group) = (metaslab.deferred(), metaslab.group);
        let group = &mut vdev.groups[group];
        let deferred = after as i64 - deferred as i64;
        group.change(recorded.bytes() as i64 - freed.bytes() as i64 + deferred, deferred)?;
        if is_worn {
            vdev.passivate(id, policy.as_ref());
        } else {
            vdev.reweigh(id, policy.as_ref());
        }
        self.flush.change_segments(now as i64 - segments as i64)?;
        if after > 0 {
            self.deferring.insert((vdev_id, id));
        } else {
            self.deferring.remove(&(vdev_id, id));
        }
        self.recount_loaded(vdev_id, id);
        Ok(mature)
    }

    /// Compares the sums of one vdev's groups with its metaslabs after a commit (A4): of another
    /// vdev in each txg.
    fn check_group_sums(&self, txg: u64) -> Result<(), Violation> {
        let count = self.vdevs.len().max(1) as u64;
        let Some((id, vdev)) = self.vdevs.iter().nth((txg % count) as usize) else {
            return Ok(());
        };
        let mut sums = [(0, 0, 0); 2];
        for metaslab in &vdev.metaslabs {
            let (space, allocated, deferred) = &mut sums[metaslab.group];
            *space += if metaslab.new_in.is_none() { metaslab.size } else { 0 };
            *allocated += metaslab.allocated + metaslab.deferred();
            *deferred += metaslab.deferred();
        }
        for (group, sums) in vdev.groups.iter().zip(sums) {
            let found = (group.space, group.allocated, group.deferred);
            ensure!("A4", found == sums, "vdev {id}: {found:?}, its metaslabs {sums:?}");
        }
        Ok(())
    }

    /// Makes metaslabs that were added in `txg` usable.
    fn settle_new(&mut self, txg: u64) {
        for vdev in self.vdevs.values_mut() {
            for metaslab in &mut vdev.metaslabs {
                if metaslab.new_in.take_if(|new_in| *new_in <= txg).is_some() {
                    vdev.groups[metaslab.group].space += metaslab.size;
                }
            }
        }
    }
}

/// Ranges that became usable, which autotrim may trim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReusableRanges {
    /// Top-level vdev.
    pub vdev: u64,
    /// Metaslab.
    pub metaslab: u64,
    /// The ranges.
    pub ranges: RangeSet,
}
