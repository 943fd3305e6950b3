//! Adds, grows, changes and removes vdevs; replays logs at import; chooses a block's class.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_ondisk::spacemap::Action;
use cenote_rt::{Error, FixedMap, Kind, Result, Rng, tunables};

use super::class::{Class, Placement};
use super::error::{AllocError, Violation};
use super::flush::FlushState;
use super::group::{Group, Open, Vdev, percent};
use super::metaslab::Metaslab;
use super::policy::{self, Policy};
use super::request::{MetaslabSpec, SpaceGeometry, VdevSpec};
use super::state::{LoadedMetaslabs, State};
use super::{Options, SpaceAllocator};

/// Aliquots of each vdev that may be in flight (spec 05 §8.3).
const ALIQUOTS_IN_FLIGHT: u64 = 4;
/// Memory that percentages refer to, until [`SpaceAllocator::set_memory`] is called.
const MEMORY_BYTES: u64 = 1 << 30;

impl State {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            policy: policy::by_tunable(),
            geometry: options.geometry.clone(),
            vdevs: BTreeMap::new(),
            rings: BTreeMap::new(),
            rotors: BTreeMap::new(),
            streams: options.allocators.max(1),
            has_logs: options.has_logs,
            committed: options.txg,
            freeing_txg: None,
            recording_txg: None,
            dirty: BTreeMap::new(),
            deferring: std::collections::BTreeSet::new(),
            flush: FlushState::default(),
            loaded: LoadedMetaslabs::default(),
            gates: FixedMap::default(),
            memory_bytes: MEMORY_BYTES,
            disabled: 0,
            pins: BTreeMap::new(),
            next_pin: 0,
            epoch: Arc::default(),
            checkpoint: None,
            rng: Rng::seeded(options.seed),
        }
    }

    fn add_vdev(&mut self, spec: VdevSpec, metaslabs: Vec<MetaslabSpec>, new_in: Option<u64>) {
        let (id, streams) = (spec.id, self.streams);
        let group = || Group { open: vec![Open::default(); streams + 1], ..Group::default() };
        let mut vdev =
            Vdev { spec, metaslabs: Vec::new(), groups: [group(), group()], embedded_log: None };
        vdev.extend(metaslabs, new_in);
        vdev.choose_embedded_log();
        self.vdevs.insert(id, vdev);
        self.recount_vdev(id);
    }

    /// Recomputes sums, weights, order and rings of a vdev from its metaslabs.
    fn recount_vdev(&mut self, id: u64) {
        let policy = self.policy.clone();
        self.flush.order.retain(|(_, vdev, _)| *vdev != id);
        self.rings.values_mut().for_each(|ring| ring.retain(|vdev| *vdev != id));
        let Some(vdev) = self.vdevs.get_mut(&id) else { return };
        for group in &mut vdev.groups {
            (group.space, group.allocated, group.deferred) = (0, 0, 0);
            group.order.clear();
        }
        for index in 0..vdev.metaslabs.len() {
            vdev.metaslabs[index].update_fragmentation();
            vdev.reweigh(index, policy.as_ref());
            let metaslab = &vdev.metaslabs[index];
            let group = &mut vdev.groups[metaslab.group];
            if metaslab.new_in.is_none() {
                group.space += metaslab.size;
            }
            // As of the last commit: changes recorded in passes of a syncing txg are not counted.
            let committed = metaslab.allocated + metaslab.freed.bytes();
            group.allocated += committed.saturating_sub(metaslab.recorded.bytes());
            group.allocated += metaslab.deferred();
            group.deferred += metaslab.deferred();
            if metaslab.unflushed_txg != 0 {
                self.flush.order.insert((metaslab.unflushed_txg, id, metaslab.id));
            }
        }
        vdev.update_fragmentation();
        for class in Class::ALL {
            if vdev.group_for(class).is_some() {
                let ring = self.rings.entry(class).or_default();
                ring.push(id);
                ring.sort_unstable();
            }
        }
    }

    fn replay(
        &mut self,
        log_txg: u64,
        (vdev, action): (u64, Action),
        (offset, size): (u64, u64),
    ) -> Result<(), Violation> {
        if !self.vdevs.contains_key(&vdev) {
            return Ok(());
        }
        let (id, range) = self.locate(vdev, offset, size)?;
        let Some(metaslab) = self.metaslab(vdev, id) else { return Ok(()) };
        if metaslab.unflushed_txg == 0 || log_txg < metaslab.unflushed_txg {
            return Ok(());
        }
        let is_alloc = action == Action::Alloc;
        let before = metaslab.unflushed.segments();
        let error = metaslab.set_error("log entry");
        metaslab.unflushed.fold(range, is_alloc).map_err(error)?;
        let (was, index) = (metaslab.allocated, metaslab.group);
        let now = if is_alloc { was.checked_add(size) } else { was.checked_sub(size) };
        let Some(now) = now.filter(|now| *now <= metaslab.size) else {
            let (what, metaslab) = ("allocated before a log entry", metaslab.id);
            return Err(Violation::Sum { vdev, metaslab, what, found: was, expected: size });
        };
        metaslab.allocated = now;
        metaslab.is_dirty = true;
        metaslab.has_map = true;
        metaslab.largest_max = metaslab.usable();
        let after = metaslab.unflushed.segments();
        self.flush.change_segments(after as i64 - before as i64)?;
        let policy = self.policy.clone();
        if let Some(found) = self.vdevs.get_mut(&vdev) {
            let group = &mut found.groups[index];
            group.change(now as i64 - was as i64, 0)?;
            found.reweigh(id, policy.as_ref());
        }
        Ok(())
    }

    /// Frees a range of the metaslab `id`.
    pub(super) fn free_range(
        &mut self,
        vdev: u64,
        id: usize,
        range: std::ops::Range<u64>,
        txg: u64,
    ) -> Result<(), Violation> {
        self.check_syncing("free", txg)?;
        if let Some(metaslab) = self.metaslab(vdev, id) {
            metaslab.free(range, txg)?;
            self.mark(txg, vdev, id);
        }
        Ok(())
    }

    pub(super) fn preferred_class(&self, placement: &Placement) -> Class {
        let is_there = |class| self.rings.get(&class).is_some_and(|ring| !ring.is_empty());
        if placement.is_dedup_table {
            if is_there(Class::Dedup) {
                return Class::Dedup;
            }
            let may_be_special = tunables::DDT_DATA_IS_SPECIAL.get() != 0;
            return if may_be_special && is_there(Class::Special) {
                Class::Special
            } else {
                Class::Normal
            };
        }
        if !is_there(Class::Special) {
            return Class::Normal;
        }
        let is_indirect = placement.level > 0 && tunables::USER_INDIRECT_IS_SPECIAL.get() != 0;
        if placement.is_metadata || is_indirect {
            return Class::Special;
        }
        let is_small = placement.is_file_data
            && placement.level == 0
            && placement.psize <= placement.special_small_blocks;
        let (space, allocated) = self.class_space(Class::Special);
        let reserve = tunables::SPECIAL_METADATA_RESERVE_PCT.get();
        if is_small && percent(allocated, space) < 100_u64.saturating_sub(reserve) {
            return Class::Special;
        }
        Class::Normal
    }

    pub(super) fn alloc_granularity(&self) -> (u64, u64) {
        let sizes = || {
            let vdevs = self.vdevs.values().filter(|vdev| vdev.spec.class != Class::Log);
            vdevs.map(|vdev| vdev.spec.min_alloc.max(512))
        };
        let gcd = sizes().reduce(gcd).unwrap_or(512);
        (sizes().min().unwrap_or(512), gcd)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl Vdev {
    fn extend(&mut self, metaslabs: Vec<MetaslabSpec>, new_in: Option<u64>) {
        for spec in metaslabs {
            let id = self.metaslabs.len() as u64;
            let mut metaslab = Metaslab::new(self.spec.id, id, self.spec.ashift, &spec);
            metaslab.new_in = new_in;
            self.metaslabs.push(metaslab);
        }
    }
}

impl Metaslab {
    /// Whether a pass of `txg` has anything to record.
    pub(super) fn has_changes(&self, txg: u64) -> bool {
        let sets = [&self.allocating[(txg & 3) as usize], &self.freeing, &self.held];
        sets.into_iter().any(|set| !set.is_empty())
    }
}

impl SpaceAllocator {
    /// Adds a top-level vdev with its metaslabs, by number. Metaslabs added in txg `new_in` cannot
    /// be used before that is committed (spec 05 §5.4); `None` at import and at pool creation.
    pub fn add_vdev(
        &self,
        spec: VdevSpec,
        metaslabs: Vec<MetaslabSpec>,
        new_in: Option<u64>,
    ) -> Result<()> {
        let mut state = self.lock();
        if state.vdevs.contains_key(&spec.id) {
            return Err(AllocError::Added { vdev: spec.id }.into());
        }
        let aliquot = state.policy.aliquot(spec.width, spec.nparity);
        self.throttle.widen(spec.class, aliquot.saturating_mul(ALIQUOTS_IN_FLIGHT));
        state.add_vdev(spec, metaslabs, new_in);
        Ok(())
    }

    /// Adds metaslabs at the end of a vdev that has become larger.
    pub fn grow_vdev(&self, vdev: u64, metaslabs: Vec<MetaslabSpec>, new_in: u64) {
        let mut state = self.lock();
        if let Some(found) = state.vdevs.get_mut(&vdev) {
            found.extend(metaslabs, Some(new_in));
        }
        state.recount_vdev(vdev);
    }

    /// Removes a vdev that left the pool. No allocation or free on it may be pending.
    ///
    /// # Errors
    /// `Kind::Invariant` if its unflushed changes are not counted (U2).
    pub fn remove_vdev(&self, vdev: u64) -> Result<()> {
        let mut state = self.lock();
        let removed = state.vdevs.remove(&vdev);
        state.recount_vdev(vdev);
        let metaslabs = removed.iter().flat_map(|vdev| &vdev.metaslabs);
        let segments: u64 = metaslabs
            .filter(|metaslab| metaslab.is_dirty)
            .map(|metaslab| metaslab.unflushed.segments())
            .sum();
        state.flush.change_segments(-(segments as i64))?;
        state.loaded.forget_vdev(vdev);
        state.deferring.retain(|(id, _)| *id != vdev);
        state.dirty.values_mut().for_each(|marked| marked.retain(|(id, _)| *id != vdev));
        Ok(())
    }

    /// Applies an entry of the log of `log_txg`; called at import, logs and entries in order, after
    /// all vdevs were added. Entries that a metaslab's own map contains are skipped (spec 05 §4.5).
    pub fn replay(
        &self,
        log_txg: u64,
        vdev: u64,
        action: Action,
        offset: u64,
        size: u64,
    ) -> Result<()> {
        let replayed = self.lock().replay(log_txg, (vdev, action), (offset, size));
        replayed.map_err(|violation| Error::new(Kind::Corrupt, violation))
    }

    /// Replaces the geometry after a change of the vdev tree.
    pub fn set_geometry(&self, geometry: Arc<dyn SpaceGeometry>) {
        self.lock().geometry = geometry;
    }

    /// Changes the policy and recomputes all weights.
    pub fn set_policy(&self, policy: Arc<dyn Policy>) {
        let mut state = self.lock();
        for group in state.vdevs.values_mut().flat_map(|vdev| &mut vdev.groups) {
            group.metadata.dissolve(0);
        }
        state.policy = policy;
        for id in state.vdevs.keys().copied().collect::<Vec<_>>() {
            state.recount_vdev(id);
        }
    }

    /// Sets the memory size of which loaded metaslabs and unflushed changes may use percentages.
    pub fn set_memory(&self, bytes: u64) {
        self.lock().memory_bytes = bytes;
    }

    /// Sets whether new blocks may be allocated on a vdev (property `allocating`).
    pub fn set_allocating(&self, vdev: u64, is_allocating: bool) {
        if let Some(vdev) = self.lock().vdevs.get_mut(&vdev) {
            vdev.spec.is_allocating = is_allocating;
        }
    }
}
