//! Whether a change may enter the open txg: quotas, reservations, and the pool's own end
//! (spec 04 §17.6, §19.2).
//!
//! ```text
//!   charge ── dataset's dir ── parent ── ... ── root
//!             used + what is under way < quota, at each; what a reservation covers stops there
//! ```
//!
//! A change is charged with the worst that it can cost, until its txg is on disk and the real cost
//! stands in the dirs. One that would only fit if less were under way waits for a sync; one that
//! cannot fit is refused. What the pool keeps back (the slop) is shared out so that a full pool can
//! be emptied:
//!
//! ```text
//!   used ──> | 3/8 of the slop               | 1/8               | 1/4                | 1/4
//!            | the last changes that enter,  | administrators'   | changes that free, | the syncs
//!            | with their worst cost         | work              | ends of datasets   | themselves
//! ```
//!
//! A change enters while less than the pool's usable space is in use, as in OpenZFS, but not if its
//! worst cost reaches behind the first part. OpenZFS has no such end: there one write of many small
//! records on large sectors can take all that would be needed to remove it again. What frees more
//! than it takes passes quotas.
//!
//! The worst is known once a change is made: the blocks that syncing its txg writes more than
//! without it ([`Footprint`]), each split into sectors for lack of longer ranges
//! ([`SpaceBound`]), and what tells of them in lists and maps. A block, data or pointers, that is
//! changed again in the same txg costs nothing more. Until then the change stands for what it said
//! that it would write. Records of a log are charged twice, in their txg and in the next, which
//! frees the blocks of the log.
//!
//! What is left out, the MOS and what each txg writes of a data set whatever is changed, has its
//! room in what the pool keeps back.
//!
//! Where there is little room, a sync begins as soon as half of it is under way, so that changes
//! go on meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cenote_block::SpaceBound;
use cenote_dmu::live::Footprint;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::objset::ObjSetType;
use cenote_rt::{AsyncMutex, Error, Kind, Result};

use crate::OpError;
use crate::dsl;
use crate::dsl::room::{PoolSpace, Reserve};
use crate::dsl::{blocks, props, room};
use crate::{Engine, EngineError, Head, is_txg_passed};

/// What a change is charged of which nothing is known: dnodes and a block of names.
const UNKNOWN_BYTES: u64 = 16 << 10;
/// What each block is charged for entries in lists of dead blocks and maps of space, three copies
/// of them, and an item of a log is for its share of a block.
const ENTRY_BYTES: u64 = 1 << 10;
/// What the worst case is over the likely one, where nothing is split.
const WORST_OVER_LIKELY: u64 = 2;
/// What is under way may exceed a quota by this part of it: OpenZFS lets it exceed a 32nd, and
/// counts what is written 24 times.
const OVERSHOOT_PART: u64 = 32 * 24;
/// Syncs that a change waits for room: freed space comes back after three.
const WAITS_MAX: usize = 6;

/// What a change may cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Bytes that it writes, as spec 04 §19.2 counts them.
    pub bytes: u64,
    /// Blocks that it writes besides, and the size of each.
    pub blocks: (u64, u64),
    /// It frees more than it takes.
    pub is_freeing: bool,
}

impl Charge {
    /// A change of which nothing is known before.
    pub(crate) const UNKNOWN: Self = Self::write(UNKNOWN_BYTES);

    /// A change that writes so many bytes.
    #[must_use]
    pub const fn write(bytes: u64) -> Self {
        Self { bytes, blocks: (0, 0), is_freeing: false }
    }

    /// The same, which also writes `count` blocks of `size` bytes. Small blocks cost more than one
    /// of their sum: each takes whole sectors.
    #[must_use]
    pub const fn with_blocks(self, count: u64, size: u64) -> Self {
        Self { blocks: (count, size), ..self }
    }

    /// A change that frees space and writes so many bytes for that.
    #[must_use]
    pub const fn free(bytes: u64) -> Self {
        Self { bytes, blocks: (0, 0), is_freeing: true }
    }
}

/// A dir on the way up.
#[derive(Debug, Clone, Copy)]
struct Station {
    dir: u64,
    used: u64,
    reserved: u64,
    quota: u64,
    has_head: bool,
}

/// What stands in the MOS of a head and of the dirs above it.
#[derive(Debug)]
struct Line {
    stations: Vec<Station>,
    unfilled: u64,
    refquota: u64,
    referenced: u64,
    is_volume: bool,
    parked: u64,
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    Enter(Entered),
    Wait(OpError),
    Refuse(OpError),
}

/// A change that may be made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Entered {
    /// What was charged, by dir.
    charges: Vec<(u64, u64)>,
    /// Half of the room of one of them is under way in the open txg.
    is_tight: bool,
}

#[derive(Debug, Default)]
struct Inner {
    /// Charges by dir and txg.
    under_way: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// The last txg that was synced.
    synced: u64,
    /// Lines by head, since the last sync.
    lines: BTreeMap<u64, Arc<Line>>,
}

/// What is under way.
#[derive(Debug, Default)]
pub(crate) struct Admission {
    // Held for arithmetic, never across I/O.
    inner: Mutex<Inner>,
    /// Held by the one who syncs for room while others wait: one sync is for all of them. Before
    /// `syncing`.
    gate: AsyncMutex<()>,
    /// The open txg is to be synced although it is small.
    is_tight: AtomicBool,
}

impl Admission {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `txg` is on disk: what it cost stands in the MOS.
    pub(crate) fn synced(&self, txg: u64) {
        let mut inner = self.lock();
        inner.lines.clear();
        inner.synced = txg;
        for charges in inner.under_way.values_mut() {
            charges.retain(|of, _| *of > txg);
        }
        inner.under_way.retain(|_, charges| !charges.is_empty());
    }

    /// Whether a sync was asked for since this was.
    pub(crate) fn take_tight(&self) -> bool {
        self.is_tight.swap(false, Ordering::AcqRel)
    }

    fn last_synced(&self) -> u64 {
        self.lock().synced
    }

    fn request(
        &self,
        line: &Line,
        pool: &PoolSpace,
        charge: Charge,
        bytes: u64,
        txg: u64,
    ) -> Verdict {
        let mut inner = self.lock();
        let mut entered = Entered::default();
        let mut rest = bytes;
        // What the dataset has reserved is enough once less is under way.
        let mut may_fill = false;
        let last = line.stations.len().saturating_sub(1);
        let is_free_of_quota =
            charge.is_freeing || line.is_volume || line.stations.iter().any(|dir| !dir.has_head);
        for (index, station) in line.stations.iter().enumerate() {
            let charges = inner.under_way.get(&station.dir);
            let under_way: u64 = charges.map_or(0, |charges| charges.values().sum());
            let open = charges.and_then(|charges| charges.get(&txg).copied()).unwrap_or(0);
            let mut used = station.used;
            let mut passed_on = rest;
            if index == 0 {
                used = used.saturating_sub(line.unfilled);
                passed_on = if likely(under_way.saturating_add(rest)) <= line.unfilled {
                    0
                } else {
                    rest.saturating_sub(line.unfilled.saturating_sub(under_way))
                };
                may_fill = under_way > 0 && likely(rest) <= line.unfilled;
                if let Some(verdict) = check_refquota(line, charge, under_way) {
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
                let usable = pool.usable(reserve, line.parked);
                if usable.saturating_sub(pool.deferred) < quota {
                    quota = usable.saturating_sub(pool.deferred);
                    error = OpError::NoSpace;
                }
            }
            if used >= quota {
                // What was freed lately comes back.
                let comes_back =
                    error == OpError::NoSpace && (used - quota < pool.deferred || may_fill);
                return if comes_back { Verdict::Wait(error) } else { Verdict::Refuse(error) };
            }
            if used.saturating_add(under_way) >= quota.saturating_add(quota / OVERSHOOT_PART) {
                return Verdict::Wait(error);
            }
            if index == last && !charge.is_freeing {
                let ceiling = pool.ceiling(line.parked).saturating_sub(pool.deferred);
                if used.saturating_add(under_way).saturating_add(rest) > ceiling {
                    let comes_back = under_way > 0 || pool.deferred > 0 || may_fill;
                    let error = OpError::NoSpace;
                    return if comes_back { Verdict::Wait(error) } else { Verdict::Refuse(error) };
                }
            }
            entered.is_tight |= open > 0 && open >= (quota - used) / 2;
            entered.charges.push((station.dir, rest));
            let share = |used: u64| used.max(station.reserved);
            let with = station.used.saturating_add(under_way);
            rest = share(with.saturating_add(passed_on)).saturating_sub(share(with));
            if rest == 0 {
                break;
            }
        }
        for (dir, bytes) in &entered.charges {
            *inner.under_way.entry(*dir).or_default().entry(txg).or_default() += bytes;
        }
        Verdict::Enter(entered)
    }

    /// A change that was charged with `bytes` is charged with `cost` instead, and with `logged` in
    /// this txg and the next.
    fn correct(&self, charges: &[(u64, u64)], bytes: u64, cost: u64, logged: u64, txg: u64) {
        let mut inner = self.lock();
        // A txg that was synced in between is paid for.
        let from = txg.max(inner.synced + 1);
        for (dir, charged) in charges {
            let under_way = inner.under_way.entry(*dir).or_default();
            // What a reservation took off stays off.
            let cost = charged.saturating_add(cost).saturating_sub(bytes);
            if from == txg {
                let sum = under_way.entry(txg).or_default();
                *sum = sum.saturating_sub(*charged).saturating_add(cost).saturating_add(logged);
            }
            if logged > 0 && from <= txg + 1 {
                *under_way.entry(txg + 1).or_default() += logged;
            }
        }
    }

    fn withdraw(&self, charges: &[(u64, u64)], txg: u64) {
        let mut inner = self.lock();
        for (dir, bytes) in charges {
            if let Some(charge) = inner.under_way.get_mut(dir).and_then(|of| of.get_mut(&txg)) {
                *charge = charge.saturating_sub(*bytes);
            }
        }
    }
}

/// What a worst case is likely to come to. By this is measured what a reservation has room for:
/// that space is there, and who reserved it counts on it.
const fn likely(worst: u64) -> u64 {
    worst / WORST_OVER_LIKELY
}

/// The most space that a change takes by what it says before it is made.
fn worst_of_charge(bound: &SpaceBound, charge: Charge, copies: u8) -> u64 {
    let (count, size) = charge.blocks;
    let block = bound.of_block(size, copies).saturating_add(bound.of_share(ENTRY_BYTES));
    let blocks = if count == 0 { 0 } else { block.saturating_mul(count) };
    let bytes =
        if charge.bytes == 0 && count > 0 { 0 } else { bound.of_block(charge.bytes, copies) };
    bytes.saturating_add(blocks)
}

/// The most space that a footprint takes, in a dataset with so many copies.
fn worst_of(bound: &SpaceBound, footprint: &Footprint, copies: u8) -> u64 {
    let entry = bound.of_share(ENTRY_BYTES);
    let costs = footprint.blocks().map(|block| {
        let copies = copies.saturating_add(u8::from(block.is_metadata));
        bound.of_block(block.size, copies).saturating_add(entry).saturating_mul(block.count)
    });
    costs.fold(0, u64::saturating_add)
}

fn check_refquota(line: &Line, charge: Charge, under_way: u64) -> Option<Verdict> {
    if line.refquota == 0 || charge.is_freeing {
        return None;
    }
    if line.referenced.saturating_add(under_way) < line.refquota {
        return None;
    }
    let may_shrink = under_way > 0 || line.referenced < line.refquota;
    Some(if may_shrink { Verdict::Wait(OpError::Quota) } else { Verdict::Refuse(OpError::Quota) })
}

impl Engine {
    /// Changes a head in the open txg as [`Engine::apply`] does, if quotas and the pool have room
    /// for the worst that it may cost; waits for syncs where that makes room.
    ///
    /// # Errors
    /// `Kind::Quota`, `Kind::NoSpace`, those of the change.
    pub async fn apply_charged<T>(
        &self,
        head: &Head,
        charge: Charge,
        mut change: impl FnMut(&mut Tx<'_>) -> TxResult<T>,
    ) -> Result<(T, u64)> {
        self.apply_weighed(head, charge, |tx| Ok((change(tx)?, 0))).await
    }

    /// Changes a head in the open txg, and tells that txg. The closure may run several times, and
    /// changes nothing unless it succeeds.
    ///
    /// What it will write is not known before: it enters for little. Whoever knows what a change
    /// costs, or frees with it, says so ([`Engine::apply_charged`]).
    ///
    /// # Errors
    /// As there.
    pub async fn apply<T>(
        &self,
        head: &Head,
        change: impl FnMut(&mut Tx<'_>) -> TxResult<T>,
    ) -> Result<(T, u64)> {
        self.apply_charged(head, Charge::UNKNOWN, change).await
    }

    /// [`apply_charged`](Self::apply_charged) of a change that also tells how many bytes it may
    /// have written before its txg is synced: those of a log ([`Log::weigh`]). Who writes a block
    /// over and over and has it durable each time takes the space of one block for it, and of as
    /// many in the log.
    ///
    /// # Errors
    /// As there.
    ///
    /// [`Log::weigh`]: crate::zil::Log::weigh
    pub async fn apply_weighed<T>(
        &self,
        head: &Head,
        charge: Charge,
        mut change: impl FnMut(&mut Tx<'_>) -> TxResult<(T, u64)>,
    ) -> Result<(T, u64)> {
        self.admit().await?;
        let bound = self.store.space_bound();
        let copies = head.policy().copies();
        let bytes = worst_of_charge(&bound, charge, copies);
        let mut waits = 0;
        loop {
            self.until_running().await?;
            if head.is_gone() {
                return Err(Error::not_found(EngineError::HeadGone(head.object())));
            }
            let txg = self.open_txg();
            let synced = self.throttle.admission.last_synced();
            let line = self.line(head).await?;
            let pool = self.datasets().pool_space();
            let entered = match self.throttle.admission.request(&line, &pool, charge, bytes, txg) {
                Verdict::Enter(entered) => entered,
                Verdict::Wait(_) if waits < WAITS_MAX => {
                    waits += 1;
                    self.sync_for_room(synced).await?;
                    continue;
                }
                Verdict::Wait(error) | Verdict::Refuse(error) => return Err(error.into()),
            };
            match head.live().apply_measured(txg, &mut change).await {
                Ok(((value, logged), footprint)) => {
                    let cost = worst_of(&bound, &footprint, copies);
                    let logged = match logged {
                        0 => 0,
                        logged => bound.of_whole(logged.saturating_add(ENTRY_BYTES)),
                    };
                    self.throttle.admission.correct(&entered.charges, bytes, cost, logged, txg);
                    self.note_dirty(head, txg);
                    if entered.is_tight {
                        self.throttle.admission.is_tight.store(true, Ordering::Release);
                        self.throttle.wake.notify_one();
                    }
                    return Ok((value, txg));
                }
                Err(error) => {
                    self.throttle.admission.withdraw(&entered.charges, txg);
                    // The txg was closed in between: the change belongs in the next one.
                    if !is_txg_passed(&error) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Syncs, unless a txg after `synced` has been synced meanwhile: then there may be room.
    async fn sync_for_room(&self, synced: u64) -> Result<()> {
        let _one = self.throttle.admission.gate.lock().await;
        // What is being synced comes to its end first: it may be enough, and what is open gathers.
        drop(self.txgs.syncing.lock().await);
        if self.throttle.admission.last_synced() == synced {
            self.sync().await?;
        }
        Ok(())
    }

    async fn line(&self, head: &Head) -> Result<Arc<Line>> {
        if let Some(line) = self.throttle.admission.lock().lines.get(&head.object()) {
            return Ok(Arc::clone(line));
        }
        let is_volume = head.live().kind() == ObjSetType::Zvol;
        let object = head.object();
        let line = self.mos.inspect(|tx| read_line(tx, object, is_volume)).await;
        let line = Arc::new(line.map_err(|error| {
            if error.kind() == Kind::NotFound {
                return Error::not_found(EngineError::HeadGone(object));
            }
            error
        })?);
        self.throttle.admission.lock().lines.insert(object, Arc::clone(&line));
        Ok(line)
    }
}

fn read_line(tx: &mut Tx<'_>, object: u64, is_volume: bool) -> TxResult<Line> {
    let phys = dsl::get_dataset(tx, object)?;
    let own = dsl::get_dir(tx, phys.dir_obj)?;
    let mut stations = Vec::new();
    for dir in room::ancestry(tx, phys.dir_obj)? {
        let dir_phys = dsl::get_dir(tx, dir)?;
        stations.push(Station {
            dir,
            used: dir_phys.used_bytes,
            reserved: dir_phys.reserved,
            quota: dir_phys.quota,
            has_head: dir_phys.head_dataset_obj != 0,
        });
    }
    let reserved = blocks::refreservation(tx, &own)?;
    Ok(Line {
        stations,
        unfilled: reserved.saturating_sub(phys.unique_bytes),
        refquota: props::own_number(tx, own.props_zapobj, "refquota")?,
        referenced: phys.referenced_bytes,
        is_volume,
        parked: room::parked(tx)?,
    })
}
