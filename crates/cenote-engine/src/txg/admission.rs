//! Admission of changes to the open txg: quotas, reservations, and the pool's capacity (spec 04
//! §17.6, §19.2).
//!
//! ```text
//!   charge ── dataset's dir ── parent ── ... ── root
//!             used + what is under way < quota, at each; what a reservation covers stops there
//! ```
//!
//! A change is charged with its worst-case cost until its txg is on disk and the real cost is in
//! the dirs. A change that would fit with fewer changes in flight waits for a sync; one that cannot
//! fit is refused. The slop space is divided so that a full pool can be emptied:
//!
//! ```text
//!   used ──> | 3/8 of the slop               | 1/8               | 1/4                | 1/4
//!            | the last changes that enter,  | administrators'   | changes that free, | the syncs
//!            | with their worst cost         | work              | ends of datasets   | themselves
//! ```
//!
//! A change is admitted while less than the pool's usable space is in use, as in OpenZFS, but not
//! if its worst-case cost extends past the first part. OpenZFS has no such limit: there one write
//! of many small records on large sectors can take all space that would be needed to remove it
//! again. Changes that free more than they take bypass quotas.
//!
//! The worst case is known once a change is made: the additional blocks that syncing its txg writes
//! because of it ([`Footprint`]), each split into sectors if there are no longer ranges
//! ([`SpaceBound`]), and their entries in lists and maps. A block, data or indirect, that is
//! changed again in the same txg costs nothing more. Until then the change is charged with its
//! announced writes. Log records are charged twice, in their txg and in the next, which frees the
//! log blocks.
//!
//! Not charged are the MOS and the blocks that each txg writes of a dataset regardless of changes;
//! they use the slop space.
//!
//! If space is short, a sync begins when half of it is in flight, so that changes can continue.
//!
//! Invariants
//! * AD1  Until a txg is synced, the charge of a dir includes that of each of its changes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_block::SpaceBound;
use cenote_dmu::live::Footprint;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::objset::ObjSetType;
use cenote_rt::lock::{AsyncMutex, Mutex, MutexGuard, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result};

use crate::OpError;
use crate::dsl;
use crate::dsl::room::{PoolSpace, Reserve};
use crate::dsl::{blocks, props, room};
use crate::txg::apply::{ApplyOptions, LogMode};
use crate::zil::LogBytes;
use crate::{Engine, EngineError, Head, is_txg_passed};

/// Charge of a change with unknown cost: dnodes and a block of names.
const UNKNOWN_BYTES: u64 = 16 << 10;
/// Charge for the entries of each block in deadlists and space maps, three copies of them; for a
/// log record, its share of a block.
const ENTRY_BYTES: u64 = 1 << 10;
/// The worst case divided by the expected cost, if nothing is split.
const WORST_OVER_EXPECTED: u64 = 2;
/// Changes in flight may exceed a quota by this part of it: OpenZFS permits a 32nd, and counts
/// writes 24 times.
const OVERSHOOT_PART: u64 = 32 * 24;
/// Maximum number of syncs that a change waits for: freed space is available after three.
const WAITS_MAX: usize = 6;

/// Announced cost of a change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Bytes that it writes, counted as in spec 04 §19.2.
    pub bytes: u64,
    /// Number of additional blocks, and the size of each.
    pub blocks: (u64, u64),
    /// It frees more than it uses.
    pub is_freeing: bool,
}

impl Charge {
    /// A change of unknown cost.
    pub(crate) const UNKNOWN: Self = Self::write(UNKNOWN_BYTES);

    /// Returns the charge of a change that writes so many bytes.
    #[must_use]
    pub const fn write(bytes: u64) -> Self {
        Self { bytes, blocks: (0, 0), is_freeing: false }
    }

    /// Adds `count` blocks of `size` bytes. Small blocks cost more than one of their total size:
    /// each takes whole sectors.
    #[must_use]
    pub const fn with_blocks(self, count: u64, size: u64) -> Self {
        Self { blocks: (count, size), ..self }
    }

    /// Returns the charge of a change that frees space and writes so many bytes.
    #[must_use]
    pub const fn free(bytes: u64) -> Self {
        Self { bytes, blocks: (0, 0), is_freeing: true }
    }
}

/// Limits of a dir on the way up.
#[derive(Debug, Clone, Copy)]
struct DirLimits {
    dir: u64,
    used: u64,
    reserved: u64,
    quota: u64,
    has_head: bool,
}

/// Limits of a head and of the dirs above it, from the MOS.
#[derive(Debug)]
struct HeadLimits {
    dirs: Vec<DirLimits>,
    unfilled: u64,
    refquota: u64,
    referenced: u64,
    is_volume: bool,
    parked: u64,
}

/// Result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Enter(Admitted),
    Wait(OpError),
    Refuse(OpError),
}

/// An admitted change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Admitted {
    /// The charges, by dir.
    charges: Vec<(u64, u64)>,
    /// Half of the space of one of the dirs is in flight in the open txg.
    is_tight: bool,
}

#[derive(Debug, Default)]
struct Inner {
    /// Charges by dir and txg.
    in_flight: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// The last synced txg.
    synced: u64,
    /// Limits by head, since the last sync.
    limits_by_head: BTreeMap<u64, Arc<HeadLimits>>,
}

/// The changes in flight.
#[derive(Debug)]
pub(crate) struct Admission {
    // Held for arithmetic, never across I/O.
    inner: Mutex<Inner>,
    /// Held by the task that syncs for space while others wait: one sync is for all of them. Taken
    /// before `syncing`.
    gate: AsyncMutex<()>,
    /// The open txg is to be synced although it is small.
    is_tight: AtomicBool,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            inner: Mutex::with_default(Rank::Admission),
            gate: AsyncMutex::with_default(Rank::AdmissionGate),
            is_tight: AtomicBool::new(false),
        }
    }
}

impl Admission {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Removes the charges of `txg`, which is on disk.
    pub(crate) fn synced(&self, txg: u64) {
        let mut inner = self.lock();
        inner.limits_by_head.clear();
        let before = std::mem::replace(&mut inner.synced, txg);
        // Checks T1.
        assert!(before < txg, "txg {txg} was synced after txg {before}");
        for charges in inner.in_flight.values_mut() {
            charges.retain(|of, _| *of > txg);
        }
        inner.in_flight.retain(|_, charges| !charges.is_empty());
    }

    /// Returns whether a sync was requested since the last call.
    pub(crate) fn take_tight(&self) -> bool {
        self.is_tight.swap(false, Ordering::AcqRel)
    }

    fn last_synced(&self) -> u64 {
        self.lock().synced
    }

    fn request(
        &self,
        limits: &HeadLimits,
        pool: &PoolSpace,
        charge: Charge,
        bytes: u64,
        txg: u64,
    ) -> Verdict {
        let mut inner = self.lock();
        let mut admitted = Admitted::default();
        let mut rest = bytes;
        // The dataset's reservation suffices once fewer changes are in flight.
        let mut may_fill = false;
        let last = limits.dirs.len().saturating_sub(1);
        let is_free_of_quota =
            charge.is_freeing || limits.is_volume || limits.dirs.iter().any(|dir| !dir.has_head);
        for (index, station) in limits.dirs.iter().enumerate() {
            let charges = inner.in_flight.get(&station.dir);
            let in_flight: u64 = charges.map_or(0, |charges| charges.values().sum());
            let open = charges.and_then(|charges| charges.get(&txg).copied()).unwrap_or(0);
            let mut used = station.used;
            let mut passed_on = rest;
            if index == 0 {
                used = used.saturating_sub(limits.unfilled);
                passed_on = if expected(in_flight.saturating_add(rest)) <= limits.unfilled {
                    0
                } else {
                    rest.saturating_sub(limits.unfilled.saturating_sub(in_flight))
                };
                may_fill = in_flight > 0 && expected(rest) <= limits.unfilled;
                if let Some(verdict) = check_refquota(limits, charge, in_flight) {
                    return verdict;
                }
            }
            let mut quota = match station.quota {
                0 => u64::MAX,
                _ if is_free_of_quota => u64::MAX,
                quota => quota,
            };
            let mut error = OpError::Quota;
            if index == last {
                let reserve = if charge.is_freeing { Reserve::Most } else { Reserve::Normal };
                let usable = pool.usable(reserve, limits.parked);
                if usable.saturating_sub(pool.deferred) < quota {
                    quota = usable.saturating_sub(pool.deferred);
                    error = OpError::NoSpace;
                }
            }
            if used >= quota {
                // Recently freed space becomes available.
                let comes_back =
                    error == OpError::NoSpace && (used - quota < pool.deferred || may_fill);
                return if comes_back { Verdict::Wait(error) } else { Verdict::Refuse(error) };
            }
            if used.saturating_add(in_flight) >= quota.saturating_add(quota / OVERSHOOT_PART) {
                return Verdict::Wait(error);
            }
            if index == last && !charge.is_freeing {
                let ceiling = pool.ceiling(limits.parked).saturating_sub(pool.deferred);
                if used.saturating_add(in_flight).saturating_add(rest) > ceiling {
                    let comes_back = in_flight > 0 || pool.deferred > 0 || may_fill;
                    let error = OpError::NoSpace;
                    return if comes_back { Verdict::Wait(error) } else { Verdict::Refuse(error) };
                }
            }
            admitted.is_tight |= open > 0 && open >= (quota - used) / 2;
            admitted.charges.push((station.dir, rest));
            let share = |used: u64| used.max(station.reserved);
            let with = station.used.saturating_add(in_flight);
            rest = share(with.saturating_add(passed_on)).saturating_sub(share(with));
            if rest == 0 {
                break;
            }
        }
        for (dir, bytes) in &admitted.charges {
            *inner.in_flight.entry(*dir).or_default().entry(txg).or_default() += bytes;
        }
        Verdict::Enter(admitted)
    }

    /// Replaces the charge `bytes` of a change by `cost`, and adds `logged` in this txg and the
    /// next.
    fn correct(&self, charges: &[(u64, u64)], bytes: u64, cost: u64, logged: u64, txg: u64) {
        let mut inner = self.lock();
        // A txg that was synced meanwhile has no charges any more.
        let from = txg.max(inner.synced + 1);
        for (dir, charged) in charges {
            let in_flight = inner.in_flight.entry(*dir).or_default();
            // The part covered by a reservation is not charged.
            let cost = charged.saturating_add(cost).saturating_sub(bytes);
            if from == txg {
                let sum = in_flight.entry(txg).or_default();
                // Checks AD1: otherwise more than what is free could be promised.
                assert!(*sum >= *charged, "dir {dir}: a change of {charged} bytes, of {sum}");
                *sum = (*sum - *charged).saturating_add(cost).saturating_add(logged);
            }
            if logged > 0 && from <= txg + 1 {
                *in_flight.entry(txg + 1).or_default() += logged;
            }
        }
    }

    fn withdraw(&self, charges: &[(u64, u64)], txg: u64) {
        let mut inner = self.lock();
        let is_synced = txg <= inner.synced;
        for (dir, bytes) in charges {
            if let Some(charge) = inner.in_flight.get_mut(dir).and_then(|of| of.get_mut(&txg)) {
                // Checks AD1.
                assert!(is_synced || *charge >= *bytes, "dir {dir}: {bytes} bytes, of {charge}");
                *charge = charge.saturating_sub(*bytes);
            }
        }
    }
}

/// Returns the expected cost for a worst case. Reservations are compared with it: their space
/// exists, and their owners rely on it.
const fn expected(worst: u64) -> u64 {
    worst / WORST_OVER_EXPECTED
}

/// Returns the worst-case space of a change from its announced cost.
fn worst_of_charge(bound: &SpaceBound, charge: Charge, copies: u8) -> u64 {
    let (count, size) = charge.blocks;
    let block = bound.of_block(size, copies).saturating_add(bound.of_share(ENTRY_BYTES));
    let blocks = if count == 0 { 0 } else { block.saturating_mul(count) };
    let bytes =
        if charge.bytes == 0 && count > 0 { 0 } else { bound.of_block(charge.bytes, copies) };
    bytes.saturating_add(blocks)
}

/// Returns the worst-case space of a footprint in a dataset with so many copies.
fn worst_of(bound: &SpaceBound, footprint: &Footprint, copies: u8) -> u64 {
    let entry = bound.of_share(ENTRY_BYTES);
    let costs = footprint.blocks().map(|block| {
        let copies = copies.saturating_add(u8::from(block.is_metadata));
        bound.of_block(block.size, copies).saturating_add(entry).saturating_mul(block.count)
    });
    costs.fold(0, u64::saturating_add)
}

fn check_refquota(limits: &HeadLimits, charge: Charge, in_flight: u64) -> Option<Verdict> {
    if limits.refquota == 0 || charge.is_freeing {
        return None;
    }
    if limits.referenced.saturating_add(in_flight) < limits.refquota {
        return None;
    }
    let may_shrink = in_flight > 0 || limits.referenced < limits.refquota;
    Some(if may_shrink { Verdict::Wait(OpError::Quota) } else { Verdict::Refuse(OpError::Quota) })
}

impl Engine {
    /// Changes a head in the open txg, if quotas and the pool have space for the worst-case cost of
    /// the change; waits for syncs if they free enough. Returns the closure's value and the txg.
    /// The closure may run several times, and has no effect unless it succeeds. The options say
    /// what the change is charged, and whether it is logged ([`ApplyOptions`]).
    ///
    /// # Errors
    /// `Kind::Quota` and `Kind::NoSpace`; `Kind::NotFound` if the dataset was destroyed;
    /// `Kind::Busy` if the change is logged and the head's log is still to be replayed;
    /// `Kind::ReadOnly` if the format of the head's keys is too old; errors of the change.
    pub async fn apply<L: LogMode<R>, R>(
        &self,
        head: &Head,
        options: ApplyOptions<L>,
        mut change: impl FnMut(&mut Tx<'_>) -> TxResult<R>,
    ) -> Result<(L::Value, u64)> {
        let ApplyOptions { charge, log } = options;
        log.check(head)?;
        head.check_key_version()?;
        self.admit().await?;
        let bound = self.store.space_bound();
        let copies = head.policy().copies();
        let bytes = worst_of_charge(&bound, charge, copies);
        let mut run = |tx: &mut Tx<'_>| {
            let done = change(tx)?;
            Ok(log.finish(head, tx, done))
        };
        let mut waits = 0;
        loop {
            self.until_running().await?;
            // Checks H2.
            if head.is_gone() {
                return Err(Error::not_found(EngineError::HeadGone(head.object())));
            }
            let txg = self.open_txg();
            let synced = self.throttle.admission.last_synced();
            let limits = self.limits(head).await?;
            let pool = self.datasets().pool_space();
            let admitted = match self.throttle.admission.request(&limits, &pool, charge, bytes, txg)
            {
                Verdict::Enter(admitted) => admitted,
                Verdict::Wait(_) if waits < WAITS_MAX => {
                    waits += 1;
                    self.sync_for_room(synced).await?;
                    continue;
                }
                Verdict::Wait(error) | Verdict::Refuse(error) => return Err(error.into()),
            };
            match head.live().apply_measured(txg, &mut run).await {
                Ok(((value, LogBytes(logged)), footprint)) => {
                    let cost = worst_of(&bound, &footprint, copies);
                    let logged = match logged {
                        0 => 0,
                        logged => bound.of_whole(logged.saturating_add(ENTRY_BYTES)),
                    };
                    self.throttle.admission.correct(&admitted.charges, bytes, cost, logged, txg);
                    self.note_dirty(head, txg);
                    if admitted.is_tight {
                        self.throttle.admission.is_tight.store(true, Ordering::Release);
                        self.throttle.wake.notify_one();
                    }
                    return Ok((value, txg));
                }
                Err(error) => {
                    self.throttle.admission.withdraw(&admitted.charges, txg);
                    if is_on(Bug::ChargeReturnedTwice) {
                        self.throttle.admission.withdraw(&admitted.charges, txg);
                    }
                    // The txg was closed meanwhile: the change belongs to the next one.
                    if !is_txg_passed(&error) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Syncs, unless a txg after `synced` was synced meanwhile, which may have freed space.
    async fn sync_for_room(&self, synced: u64) -> Result<()> {
        let _one = self.throttle.admission.gate.lock().await;
        // A running sync ends first: it may free enough, and the open txg collects more changes.
        drop(self.txgs.syncing.lock().await);
        if self.throttle.admission.last_synced() == synced {
            self.sync().await?;
        }
        Ok(())
    }

    async fn limits(&self, head: &Head) -> Result<Arc<HeadLimits>> {
        if let Some(limits) = self.throttle.admission.lock().limits_by_head.get(&head.object()) {
            return Ok(Arc::clone(limits));
        }
        let is_volume = head.live().kind() == ObjSetType::Zvol;
        let object = head.object();
        let limits = self.mos.inspect(|tx| read_limits(tx, object, is_volume)).await;
        let limits = Arc::new(limits.map_err(|error| {
            if error.kind() == Kind::NotFound {
                return Error::not_found(EngineError::HeadGone(object));
            }
            error
        })?);
        self.throttle.admission.lock().limits_by_head.insert(object, Arc::clone(&limits));
        Ok(limits)
    }
}

fn read_limits(tx: &mut Tx<'_>, object: u64, is_volume: bool) -> TxResult<HeadLimits> {
    let phys = dsl::get_dataset(tx, object)?;
    let own = dsl::get_dir(tx, phys.dir_obj)?;
    let mut dirs = Vec::new();
    for dir in room::ancestry(tx, phys.dir_obj)? {
        let dir_phys = dsl::get_dir(tx, dir)?;
        dirs.push(DirLimits {
            dir,
            used: dir_phys.used_bytes,
            reserved: dir_phys.reserved,
            quota: dir_phys.quota,
            has_head: dir_phys.head_dataset_obj != 0,
        });
    }
    let reserved = blocks::refreservation(tx, &own)?;
    Ok(HeadLimits {
        dirs,
        unfilled: reserved.saturating_sub(phys.unique_bytes),
        refquota: props::own_number(tx, own.props_zapobj, "refquota")?,
        referenced: phys.referenced_bytes,
        is_volume,
        parked: room::parked(tx)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "a change of 10 bytes, of 0")]
    fn charge_that_was_not_made_is_found() {
        Admission::default().correct(&[(1, 10)], 10, 10, 0, 5);
    }

    #[test]
    fn charge_of_a_synced_txg_is_gone() {
        let admission = Admission::default();
        admission.lock().in_flight.entry(1).or_default().insert(5, 10);
        admission.synced(5);
        admission.correct(&[(1, 10)], 10, 10, 0, 5);
        admission.withdraw(&[(1, 10)], 5);
        assert!(admission.lock().in_flight.values().all(BTreeMap::is_empty));
    }
}
