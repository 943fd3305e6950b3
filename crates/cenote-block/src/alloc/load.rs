//! Loads and unloads metaslabs (spec 05 §4.5, §8.5).
//!
//! A metaslab is loaded when an allocation or a claim needs it, or ahead of need; it is unloaded
//! when it was unused for long, or when loaded metaslabs exceed their memory limit. A metaslab with
//! changes of uncommitted txgs stays loaded.
//!
//! Reading runs without the lock, while txgs commit. The store says as of which commit it has read
//! the metaslab's own map; if the map was written since, the result is discarded and the map read
//! again. All other changes since then are in the small sets and are applied when the tree is
//! installed.
//!
//! Invariants
//! * B1  A metaslab that was loaded for a pending allocation stays loaded until that ends.
//! * B2  A map is read as of a commit that is not newer than the last recorded txg.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result, Semaphore, ensure, tunables};

use super::SpaceAllocator;
use super::metaslab::SEGMENT_BYTES;
use super::request::StoredSpace;
use super::state::State;

/// Pause before reading again while a commit is finishing.
const RETRY: Duration = Duration::from_millis(1);

/// Result of installing a tree that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Installed {
    Done,
    /// The map was written in the meantime.
    Stale,
}

impl State {
    /// Whether a metaslab must be loaded before it can be used.
    fn needs_load(&self, vdev: u64, id: usize) -> bool {
        let metaslab = self.vdevs.get(&vdev).and_then(|vdev| vdev.metaslabs.get(id));
        metaslab.is_some_and(|metaslab| metaslab.loaded.is_none())
    }

    /// Installs a metaslab that was never written: it is free and need not be read.
    fn install_empty(&mut self, vdev: u64, id: usize) -> Result<bool> {
        let txg = self.committed;
        let Some(metaslab) = self.metaslab(vdev, id) else { return Ok(true) };
        if metaslab.has_map {
            return Ok(false);
        }
        let free = metaslab.range().into();
        self.install(vdev, id, StoredSpace { free, txg })?;
        Ok(true)
    }

    pub(super) fn install(
        &mut self,
        vdev: u64,
        id: usize,
        stored: StoredSpace,
    ) -> Result<Installed> {
        let (floor, txg) = (self.policy.size_floor(), self.committed);
        let (newest, read) = (self.recording_txg.unwrap_or(txg).max(txg), stored.txg);
        let is_known = read <= newest;
        ensure!("B2", is_known, "a map of txg {read} is read, the last recorded one is {newest}");
        let policy = self.policy.clone();
        let Some(found) = self.vdevs.get_mut(&vdev) else { return Ok(Installed::Done) };
        let Some(metaslab) = found.metaslabs.get_mut(id) else { return Ok(Installed::Done) };
        let is_ahead = metaslab.map_pending.is_some_and(|pending| pending <= stored.txg);
        let is_stale = metaslab.map_txg > stored.txg || is_ahead;
        if is_stale && !is_on(Bug::StaleMapInstalled) {
            return Ok(Installed::Stale);
        }
        if let Err(violation) = metaslab.install(stored.free, floor) {
            // Its map contradicts itself or the logs. The metaslab is not used; the pool continues.
            metaslab.is_broken = true;
            found.passivate(id, policy.as_ref());
            return Err(Error::new(Kind::Corrupt, violation));
        }
        metaslab.used = (txg, cenote_rt::monotonic());
        found.reweigh(id, policy.as_ref());
        self.recount_loaded(vdev, id);
        self.unload_for_memory(Some((vdev, id)));
        Ok(Installed::Done)
    }

    /// Recounts a metaslab's segments.
    pub(super) fn recount_loaded(&mut self, vdev: u64, id: usize) {
        let segments = match self.metaslab(vdev, id) {
            Some(metaslab) if metaslab.loaded.is_some() => Some(metaslab.loaded_segments()),
            _ => None,
        };
        self.loaded.set((vdev, id), segments);
    }

    fn unload(&mut self, vdev: u64, id: usize) {
        let policy = self.policy.clone();
        if let Some(found) = self.vdevs.get_mut(&vdev) {
            found.metaslabs[id].unload();
            found.passivate(id, policy.as_ref());
        }
        self.loaded.set((vdev, id), None);
    }

    /// Unloads metaslabs that were unused for long.
    pub(super) fn unload_idle(&mut self, txg: u64) {
        let now = cenote_rt::monotonic();
        let delay = Duration::from_millis(tunables::METASLAB_UNLOAD_DELAY_MS.get());
        let txgs = tunables::METASLAB_UNLOAD_DELAY.get();
        let is_idle = |(vdev, id): &&(u64, usize)| {
            let metaslab = self.vdevs.get(vdev).and_then(|vdev| vdev.metaslabs.get(*id));
            metaslab.is_some_and(|metaslab| {
                let (used_txg, used_at) = metaslab.used;
                metaslab.can_unload()
                    && txg > used_txg.saturating_add(txgs)
                    && now > used_at.saturating_add(delay)
            })
        };
        let idle: Vec<_> =
            self.loaded.iter().map(|(key, _)| key).filter(is_idle).copied().collect();
        for (vdev, id) in idle {
            self.unload(vdev, id);
        }
        self.unload_for_memory(None);
    }

    /// Unloads the longest unused metaslabs until the others fit the memory limit; `keep` stays.
    fn unload_for_memory(&mut self, keep: Option<(u64, usize)>) {
        let percent = tunables::METASLAB_MEM_LIMIT.get();
        let limit = (u128::from(self.memory_bytes) * u128::from(percent) / 100) as u64;
        let mut segments = self.loaded.sum();
        if segments.saturating_mul(SEGMENT_BYTES) <= limit {
            return;
        }
        let mut by_use: Vec<_> = self
            .loaded
            .iter()
            .filter(|(key, _)| Some(**key) != keep)
            .filter_map(|(key, segments)| {
                let metaslab = self.vdevs.get(&key.0)?.metaslabs.get(key.1)?;
                metaslab.can_unload().then_some((metaslab.used, *key, *segments))
            })
            .collect();
        by_use.sort_unstable();
        for (_, (vdev, id), count) in by_use {
            if segments.saturating_mul(SEGMENT_BYTES) <= limit {
                return;
            }
            self.unload(vdev, id);
            segments -= count;
        }
    }

    /// Metaslabs that are likely to be needed soon and are not loaded.
    fn wanted_soon(&self) -> Vec<(u64, usize)> {
        if tunables::METASLAB_PRELOAD_ENABLED.get() == 0 {
            return Vec::new();
        }
        let limit = tunables::METASLAB_PRELOAD_LIMIT.get_usize();
        let groups = self.vdevs.iter().flat_map(|(id, vdev)| {
            vdev.groups.iter().flat_map(move |group| {
                let best = group.order.iter().take(limit).filter(|(weight, _)| weight.0.bits() > 0);
                best.map(move |(_, metaslab)| (*id, *metaslab))
            })
        });
        groups.filter(|(vdev, id)| self.needs_load(*vdev, *id)).collect()
    }
}

/// Keeps the metaslabs that were loaded for a request from being unloaded before the request is
/// served, so that requests make progress however little memory there is. The most recent ones are
/// enough: an attempt uses at most one for each copy, effort and class, and a metaslab that could
/// not serve is not tried again, since an unloaded metaslab keeps the size of its largest segment.
pub(super) struct Pins<'a> {
    space: &'a SpaceAllocator,
    held: VecDeque<(u64, usize)>,
}

/// Three copies, two efforts, three classes; plus the one being loaded.
const PINS_MAX: usize = 3 * 2 * 3 + 1;

impl<'a> Pins<'a> {
    pub(super) fn new(space: &'a SpaceAllocator) -> Self {
        Self { space, held: VecDeque::new() }
    }

    /// Loads a metaslab and pins it.
    pub(super) async fn load(&mut self, vdev: u64, id: usize) -> Result<()> {
        self.held.push_back((vdev, id));
        let oldest = if self.held.len() > PINS_MAX { self.held.pop_front() } else { None };
        {
            // LOCK state: short.
            let mut state = self.space.lock();
            state.pin(vdev, id);
            if let Some((vdev, id)) = oldest {
                state.unpin(vdev, id);
            }
        }
        self.space.load(vdev, id).await
    }
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        if !self.held.is_empty() {
            let mut state = self.space.lock();
            self.held.iter().for_each(|(vdev, id)| state.unpin(*vdev, *id));
        }
    }
}

impl SpaceAllocator {
    /// Loads a metaslab.
    pub(super) async fn load(&self, vdev: u64, id: usize) -> Result<()> {
        let gate = {
            // LOCK state: short, no other lock is taken inside, never across an await.
            let mut state = self.lock();
            if !state.needs_load(vdev, id) {
                return Ok(());
            }
            let gate = state.gates.entry((vdev, id));
            gate.or_insert_with(|| Arc::new(Semaphore::new(1))).clone()
        };
        // One reader at a time; the others find it loaded. The permit is held across the read: it
        // protects no data, and a reader needs no other permit.
        let _permit = gate.acquire().await.map_err(|error| Error::new(Kind::Invariant, error))?;
        let result = self.load_alone(vdev, id).await;
        // LOCK state: as above.
        self.lock().gates.remove(&(vdev, id));
        result
    }

    async fn load_alone(&self, vdev: u64, id: usize) -> Result<()> {
        loop {
            {
                // LOCK state: short.
                let mut state = self.lock();
                if !state.needs_load(vdev, id) || state.install_empty(vdev, id)? {
                    return Ok(());
                }
            }
            let stored = match self.store.load(vdev, id as u64).await {
                Ok(stored) => stored,
                Err(error) => {
                    self.lock().mark_broken(vdev, id);
                    return Err(error);
                }
            };
            // LOCK state: the check against commits and the installation are one step.
            let installed = self.lock().install(vdev, id, stored)?;
            match installed {
                Installed::Done => return Ok(()),
                Installed::Stale => cenote_rt::sleep(RETRY).await,
            }
        }
    }

    /// Loads the metaslabs that are likely to be needed next; called after a commit.
    pub async fn preload(&self) {
        let wanted = self.lock().wanted_soon();
        for (vdev, id) in wanted {
            // A metaslab that cannot be read is skipped from now on.
            let _ = self.load(vdev, id).await;
        }
    }
}

impl State {
    fn pin(&mut self, vdev: u64, id: usize) {
        if let Some(metaslab) = self.metaslab(vdev, id) {
            metaslab.pins += 1;
        }
    }

    fn unpin(&mut self, vdev: u64, id: usize) {
        if let Some(metaslab) = self.metaslab(vdev, id) {
            // Checks B1: every pin is counted until it is dropped.
            assert!(metaslab.pins > 0, "vdev {vdev} metaslab {id} has no pins");
            metaslab.pins -= 1;
        }
    }

    fn mark_broken(&mut self, vdev: u64, id: usize) {
        let policy = self.policy.clone();
        if let Some(found) = self.vdevs.get_mut(&vdev) {
            found.metaslabs[id].is_broken = true;
            found.passivate(id, policy.as_ref());
        }
    }
}
