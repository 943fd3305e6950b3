//! Chooses the space of a block: class, vdev, metaslab, range (spec 05 §8.2-8.7).
//!
//!     the requested class, then its fallback classes
//!       usual effort, then hard effort
//!         for each copy: vdevs in the order of the rotor, those without a copy first
//!           the open metaslab, else the best candidate by weight, else the next
//!
//! An attempt runs under the lock from begin to end. If it reaches a metaslab that is not loaded,
//! it undoes itself and returns the metaslab; the caller loads it without the lock and tries again.
//! Hard effort examines every metaslab that could serve, so an attempt returns no space exactly
//! when nothing fits.
//!
//! Invariants
//! * P1  A policy picks a range of whole sectors within the metaslab.
//! * P2  An attempt that fails has no copy allocated.
//! * P3  An attempt that succeeds has all copies.

use std::cmp::Reverse;
use std::ops::Bound;

use cenote_ondisk::blkptr::Dva;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{ensure, tunables};

use super::area::Side;
use super::class::Class;
use super::error::{AllocError, Violation};
use super::group::{Vdev, percent};
use super::metaslab::Metaslab;
use super::policy::{PickContext, PickRequest, Policy};
use super::request::{Request, VdevHealth};
use super::state::{Rotor, State};
use super::weight::Weight;

/// Result of an attempt.
#[derive(Debug)]
pub(super) enum Attempt {
    /// Space for all copies.
    Found(Vec<Dva>),
    /// This metaslab must be loaded first.
    Load(u64, usize),
    /// Only metaslabs that are paused could serve.
    Paused,
    /// No metaslab could serve.
    NoSpace,
}

/// How much is tried to find space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// Healthy vdevs below the fragmentation limit, a bounded number of metaslabs, copies far
    /// apart.
    Usual,
    /// Every metaslab of every writable vdev.
    Hard,
}

/// Result of a search within a class.
enum SearchResult<T> {
    Found(T),
    Load(u64, usize),
    Nothing,
}

impl State {
    /// Whether the block must gang because of the tunable `metaslab_force_ganging`.
    pub(super) fn forced_gang(&mut self, request: &Request) -> Option<AllocError> {
        let psize = request.psize;
        let is_large = psize >= tunables::FORCE_GANGING.get() && !request.is_gang_part;
        let is_chosen = is_large && self.rng.below(100) < tunables::FORCE_GANGING_PCT.get();
        is_chosen.then_some(AllocError::ForcedGang { psize })
    }

    /// Finds space for all copies, or returns what is missing.
    pub(super) fn attempt(&mut self, request: &Request) -> Result<Attempt, Violation> {
        self.check_open("allocation", request.txg)?;
        let mut class = Some(request.class);
        while let Some(current) = class {
            for effort in [Effort::Usual, Effort::Hard] {
                match self.all_copies(current, request, effort)? {
                    SearchResult::Found(dvas) => return Ok(Attempt::Found(dvas)),
                    SearchResult::Load(vdev, id) => return Ok(Attempt::Load(vdev, id)),
                    SearchResult::Nothing => {}
                }
            }
            class = current.fallback();
        }
        Ok(if self.is_paused(request) { Attempt::Paused } else { Attempt::NoSpace })
    }

    /// Whether a paused metaslab could serve a request.
    fn is_paused(&mut self, request: &Request) -> bool {
        if self.disabled == 0 {
            return false;
        }
        let mut class = Some(request.class);
        while let Some(current) = class {
            for id in self.ring_from(current, request, &[]) {
                if !self.is_eligible(current, id, request, Effort::Hard, true) {
                    continue;
                }
                let asize = self.geometry.asize_for(id, request.psize, request.txg);
                let (Some(asize), Some(vdev)) = (asize, self.vdevs.get_mut(&id)) else { continue };
                let group = vdev.group_for(current);
                let could_serve = |metaslab: &mut Metaslab| {
                    metaslab.disabled > 0
                        && Some(metaslab.group) == group
                        && metaslab.may_hold(asize)
                };
                if vdev.metaslabs.iter_mut().any(could_serve) {
                    return true;
                }
            }
            class = current.fallback();
        }
        false
    }

    fn all_copies(
        &mut self,
        class: Class,
        request: &Request,
        effort: Effort,
    ) -> Result<SearchResult<Vec<Dva>>, Violation> {
        let rotor = self.rotors.get(&(class, self.stream(request))).copied();
        let mut dvas = Vec::with_capacity(usize::from(request.copies));
        for _ in 0..request.copies {
            let failed = match self.one_copy(class, request, effort, &dvas)? {
                SearchResult::Found(dva) => {
                    dvas.push(dva);
                    continue;
                }
                SearchResult::Load(vdev, id) => SearchResult::Load(vdev, id),
                SearchResult::Nothing => SearchResult::Nothing,
            };
            for dva in &dvas {
                let (id, range) = self.locate_dva(dva, request.txg)?;
                if let Some(metaslab) = self.metaslab(u64::from(dva.vdev), id) {
                    let is_undone = metaslab.give_back(range, request.txg)?;
                    ensure!("P2", is_undone, "the copy at {dva:?} was recorded meanwhile");
                }
            }
            match (rotor, (class, self.stream(request))) {
                (Some(rotor), key) => self.rotors.insert(key, rotor),
                (None, key) => self.rotors.remove(&key),
            };
            return Ok(failed);
        }
        Ok(SearchResult::Found(dvas))
    }

    /// The index of a request's stream.
    fn stream(&self, request: &Request) -> usize {
        (request.stream % self.streams.max(1) as u64) as usize
    }

    /// The vdevs of a class in the order in which they are tried for the next copy.
    fn ring_from(&self, class: Class, request: &Request, dvas: &[Dva]) -> Vec<u64> {
        let ring = self.rings.get(&class).map_or(&[][..], Vec::as_slice);
        let after = |vdev: u64| ring.iter().position(|id| *id > vdev).unwrap_or(0);
        let at = |vdev: u64| ring.iter().position(|id| *id >= vdev).unwrap_or(0);
        let first = match (dvas.last(), request.near) {
            (Some(last), _) => after(u64::from(last.vdev)),
            (None, Some(near)) => at(near),
            (None, None) => {
                at(self.rotors.get(&(class, self.stream(request))).map_or(0, |rotor| rotor.vdev))
            }
        };
        let mut order: Vec<_> = ring[first..].iter().chain(&ring[..first]).copied().collect();
        // Vdevs without a copy of the block come first.
        order.sort_by_key(|id| dvas.iter().any(|dva| u64::from(dva.vdev) == *id));
        order
    }

    fn one_copy(
        &mut self,
        class: Class,
        request: &Request,
        effort: Effort,
        dvas: &[Dva],
    ) -> Result<SearchResult<Dva>, Violation> {
        for vdev in self.ring_from(class, request, dvas) {
            if !self.is_eligible(class, vdev, request, effort, dvas.is_empty()) {
                continue;
            }
            let asize = self.geometry.asize_for(vdev, request.psize, request.txg);
            let Some(asize) = asize.filter(|asize| *asize > 0) else { continue };
            match self.in_group(class, vdev, asize, request, effort, dvas)? {
                SearchResult::Found(offset) => {
                    self.advance(class, vdev, asize, request);
                    let dva = Dva { vdev: vdev as u32, offset, asize, gang: false };
                    return Ok(SearchResult::Found(dva));
                }
                SearchResult::Load(vdev, id) => return Ok(SearchResult::Load(vdev, id)),
                SearchResult::Nothing => {}
            }
        }
        Ok(SearchResult::Nothing)
    }

    fn is_eligible(
        &self,
        class: Class,
        id: u64,
        request: &Request,
        effort: Effort,
        is_first: bool,
    ) -> bool {
        let Some(vdev) = self.vdevs.get(&id) else { return false };
        let health = self.geometry.health(id);
        if health == VdevHealth::Unwritable || !vdev.spec.is_allocating {
            return false;
        }
        if effort == Effort::Hard || request.is_gang_part {
            return true;
        }
        if is_first && health == VdevHealth::Poor {
            return false;
        }
        let limit = self.policy.fragmentation_limit();
        let is_worn = |vdev: &Vdev| {
            vdev.group_for(class).is_none_or(|group| {
                let group = &vdev.groups[group];
                group.free_percent() <= tunables::MG_NOALLOC_THRESHOLD.get()
                    || group.fragmentation.is_some_and(|percent| percent > limit)
            })
        };
        !is_worn(vdev) || self.groups(class).all(|(other, _)| is_worn(other))
    }

    /// Advances the rotor when the vdev's quota is used up. Log blocks advance it each time,
    /// because the copies of consecutive log blocks follow each other closely.
    fn advance(&mut self, class: Class, vdev: u64, asize: u64, request: &Request) {
        if request.near.is_some() {
            return;
        }
        let stream = self.stream(request);
        let (space, allocated) = self.class_space(class);
        let class_free = percent(space.saturating_sub(allocated), space);
        let Some(found) = self.vdevs.get(&vdev) else { return };
        let quota = found
            .group_for(class)
            .map_or(0, |group| found.rotor_quota(group, class_free, self.policy.as_ref()));
        let rotor = self.rotors.entry((class, stream)).or_default();
        if rotor.vdev != vdev {
            *rotor = Rotor { vdev, used: 0 };
        }
        rotor.used += asize;
        if class.is_log() || rotor.used >= quota {
            // The ring wraps around: beyond the last vdev the first follows.
            *rotor = Rotor { vdev: vdev + 1, used: 0 };
        }
    }

    fn in_group(
        &mut self,
        class: Class,
        vdev_id: u64,
        asize: u64,
        request: &Request,
        effort: Effort,
        dvas: &[Dva],
    ) -> Result<SearchResult<u64>, Violation> {
        let stream = self.stream(request);
        let policy = self.policy.clone();
        let (is_recording, keeps_third) = (self.recording_txg.is_some(), !self.has_logs);
        let Some(vdev) = self.vdevs.get_mut(&vdev_id) else { return Ok(SearchResult::Nothing) };
        let Some(group) = vdev.group_for(class) else { return Ok(SearchResult::Nothing) };
        let wanted = PickRequest { size: asize, align: vdev.spec.align };
        // Checks A3: an unaligned size would leave a part of a stripe that nothing fits into.
        if !asize.is_multiple_of(wanted.align) && vdev.spec.align > 1 << vdev.spec.ashift {
            return Err(Violation::Place { vdev: vdev_id, offset: 0, asize });
        }
        let side = vdev.side(group, request.is_metadata, policy.as_ref());
        let count = vdev.groups[group].order.len();
        let slot = match side {
            Side::Metadata => vdev.groups[group].open.len() - 1,
            // A group with few metaslabs does not serve many streams.
            _ if stream < count / 3 => stream,
            _ => 0,
        };
        let shift = vdev.spec.metaslab_shift;
        let own = dvas.iter().filter(|dva| u64::from(dva.vdev) == vdev_id);
        let mut search = Search {
            group,
            slot,
            side,
            distance: policy.copy_distance(count as u64) as usize,
            is_secondary: !dvas.is_empty(),
            keeps_third,
            asize,
            effort,
            taken: own.map(|dva| (dva.offset >> shift) as usize).collect(),
        };
        let mut tried = Vec::new();
        while let Some(id) = vdev.next_or_wider(&mut search, &tried) {
            if vdev.metaslabs[id].loaded.is_none() {
                return Ok(SearchResult::Load(vdev_id, id));
            }
            let must_find = effort == Effort::Hard;
            let Some(offset) = vdev.pick(id, wanted, must_find, policy.as_ref()) else {
                tried.push(id);
                vdev.passivate(id, policy.as_ref());
                continue;
            };
            let metaslab = &mut vdev.metaslabs[id];
            let (own, sector) = (metaslab.range(), 1_u64 << vdev.spec.ashift);
            ensure!(
                "P1",
                offset >= own.start && offset + asize <= own.end && offset.is_multiple_of(sector),
                "offset {offset:#x} for {asize} bytes of vdev {vdev_id} metaslab {id}"
            );
            metaslab.take(offset..offset + asize, request.txg)?;
            metaslab.used = (request.txg, cenote_rt::monotonic());
            if request.is_metadata {
                vdev.groups[group].metadata.note(asize);
            }
            vdev.update_open_metaslab(id, &search, is_recording, policy.as_ref());
            self.mark(request.txg, vdev_id, id);
            return Ok(SearchResult::Found(offset));
        }
        Ok(SearchResult::Nothing)
    }
}

/// A search within a group.
struct Search {
    group: usize,
    slot: usize,
    side: Side,
    /// Least number of metaslabs between two copies.
    distance: usize,
    is_secondary: bool,
    /// Whether third copies stay in one metaslab.
    keeps_third: bool,
    asize: u64,
    effort: Effort,
    /// Metaslabs of this vdev that already have a copy.
    taken: Vec<usize>,
}

impl Vdev {
    /// The next metaslab to try. If there is none, the copies of the block may be closer to each
    /// other, and then other metaslabs may serve this kind of block.
    fn next_or_wider(&mut self, search: &mut Search, tried: &[usize]) -> Option<usize> {
        loop {
            if let Some(id) = self.next_candidate(search, tried) {
                return Some(id);
            }
            if search.effort == Effort::Hard {
                return None;
            }
            if search.distance > 1 && !search.taken.is_empty() {
                search.distance /= 2;
            } else {
                search.side = self.widen(search.group, search.side)?;
            }
        }
    }

    /// The next metaslab to try: the stream's open one, else the best by weight.
    fn next_candidate(&mut self, search: &Search, tried: &[usize]) -> Option<usize> {
        let open = &mut self.groups[search.group].open[search.slot];
        let (own, former) = (*open.of(search.is_secondary), open.former);
        // Without logs each used metaslab writes its own map, with three copies: the third copy of
        // a block goes where that of the last block went. Otherwise each block would open another
        // metaslab, because one that was never used has the larger segment.
        let is_closed = |id: &usize| self.metaslabs[*id].activation.is_none();
        let former = former.filter(|id| search.keeps_third && search.is_secondary && is_closed(id));
        for id in own.into_iter().chain(former) {
            if !tried.contains(&id) && self.may_serve(id, search) {
                return Some(id);
            }
        }
        let is_hard = search.effort == Effort::Hard;
        let limit = if is_hard { usize::MAX } else { tunables::FIND_MAX_TRIES.get_usize() };
        let (mut last, mut tries) = (None, 0);
        while tries < limit {
            let from = last.map_or(Bound::Unbounded, Bound::Excluded);
            let order = &self.groups[search.group].order;
            let entry = *order.range((from, Bound::Unbounded)).next()?;
            let (Reverse(weight), id) = entry;
            last = Some(entry);
            let is_on_side = self.groups[search.group].metadata.has(search.side, id);
            if !is_hard && !is_on_side {
                continue;
            }
            tries += 1;
            if !is_hard && weight == Weight::ZERO {
                return None;
            }
            let is_open = self.metaslabs[id].activation.is_some();
            if (is_hard || !is_open) && !tried.contains(&id) && self.may_serve(id, search) {
                return Some(id);
            }
        }
        None
    }

    fn may_serve(&mut self, id: usize, search: &Search) -> bool {
        let metaslab = &mut self.metaslabs[id];
        if metaslab.group != search.group
            || metaslab.disabled > 0 && !is_on(Bug::PausedSpaceUsed)
            || !metaslab.may_hold(search.asize)
        {
            return false;
        }
        let is_known = metaslab.loaded.is_some();
        // An empty metaslab is not opened for a second copy if there is another one nearly as far.
        let is_empty = metaslab.usable() == metaslab.size;
        let distance = if is_empty { search.distance * 3 / 2 } else { search.distance };
        let is_apart = |other: &usize| other.abs_diff(id) >= distance.max(1);
        search.effort == Effort::Hard
            || search.taken.iter().all(is_apart)
                && (is_known || metaslab.weight.may_satisfy(search.asize))
                && self.groups[search.group].metadata.has(search.side, id)
    }

    fn pick(
        &mut self,
        id: usize,
        wanted: PickRequest,
        must_find: bool,
        policy: &dyn Policy,
    ) -> Option<u64> {
        let metaslab = &mut self.metaslabs[id];
        let loaded = metaslab.loaded.as_mut()?;
        let mut context = PickContext {
            free: &mut loaded.free,
            cursors: &mut loaded.cursors,
            start: metaslab.start,
            size: metaslab.size,
            must_find,
        };
        policy.pick(&mut context, wanted)
    }

    /// After an allocation: the metaslab becomes the stream's open one, or is closed if its weight
    /// fell.
    fn update_open_metaslab(
        &mut self,
        id: usize,
        search: &Search,
        is_recording: bool,
        policy: &dyn Policy,
    ) {
        let count = self.metaslabs.len() as u64;
        let metaslab = &mut self.metaslabs[id];
        let Some(activation) = metaslab.activation else {
            // A metaslab found with hard effort does not become the open one.
            if search.effort == Effort::Usual {
                let open = *self.groups[search.group].open[search.slot].of(search.is_secondary);
                if let Some(before) = open {
                    self.passivate(before, policy);
                    if search.is_secondary {
                        self.groups[search.group].open[search.slot].former = Some(before);
                    }
                }
                self.activate(id, search.slot, search.is_secondary);
            }
            return;
        };
        let Some(loaded) = &mut metaslab.loaded else { return };
        let (free, largest) = (loaded.free.bytes(), loaded.free.largest());
        let now = metaslab.weigh(policy, count);
        // In later passes, the txg's last blocks should not open one metaslab after the other.
        if !is_recording && policy.should_leave(activation.weight, now, free, largest) {
            self.passivate(id, policy);
        }
    }
}
