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
//! cannot fit is refused. What frees more than it takes passes quotas, and may use half of what the
//! pool keeps back: so a full pool can be emptied.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::objset::ObjSetType;
use cenote_rt::{Error, Kind, Result};

use super::{OpError, PoolSpace, Reserve};
use crate::engine::dsl::{self, blocks, props, room};
use crate::engine::{Engine, EngineError, Head, is_txg_passed};

/// Worst case of space for a byte: the widest RAID-Z of single sectors, three copies, some slack.
const INFLATION: u64 = 24;
/// What a change is charged of which nothing is known: dnodes and a block of names.
const UNKNOWN_BYTES: u64 = 16 << 10;
/// The same with metadata, where nothing is unusual.
const LIKELY_INFLATION: u64 = 2;
/// What is under way may exceed a quota by this part of it.
const OVERSHOOT_SHIFT: u32 = 5;
/// Syncs that a change waits for room: freed space comes back after three.
const WAITS_MAX: usize = 6;

/// What a change may cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Charge {
    /// Bytes that it writes, as spec 04 §19.2 counts them.
    pub bytes: u64,
    /// It frees more than it takes.
    pub is_freeing: bool,
}

impl Charge {
    /// A change that writes so many bytes.
    #[must_use]
    pub const fn write(bytes: u64) -> Self {
        Self { bytes, is_freeing: false }
    }

    /// A change that frees space and writes so many bytes for that.
    #[must_use]
    pub const fn free(bytes: u64) -> Self {
        Self { bytes, is_freeing: true }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Enter,
    Wait(OpError),
    Refuse(OpError),
}

#[derive(Debug, Default)]
struct Inner {
    /// Charges by dir and txg.
    under_way: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// Lines by head, since the last sync.
    lines: BTreeMap<u64, Arc<Line>>,
}

/// What is under way.
#[derive(Debug, Default)]
pub(in crate::engine) struct Admission {
    // Held for arithmetic, never across I/O.
    inner: Mutex<Inner>,
}

impl Admission {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `txg` is on disk: what it cost stands in the MOS.
    pub(in crate::engine) fn synced(&self, txg: u64) {
        let mut inner = self.lock();
        inner.lines.clear();
        for charges in inner.under_way.values_mut() {
            charges.retain(|of, _| *of > txg);
        }
        inner.under_way.retain(|_, charges| !charges.is_empty());
    }

    fn request(
        &self,
        line: &Line,
        pool: &PoolSpace,
        charge: Charge,
        bytes: u64,
        txg: u64,
    ) -> (Verdict, Vec<(u64, u64)>) {
        let mut inner = self.lock();
        let mut charges = Vec::new();
        let mut rest = bytes;
        // What the dataset has reserved is enough once less is under way.
        let mut may_fill = false;
        let last = line.stations.len().saturating_sub(1);
        let is_free_of_quota =
            charge.is_freeing || line.is_volume || line.stations.iter().any(|dir| !dir.has_head);
        for (index, station) in line.stations.iter().enumerate() {
            let under_way: u64 =
                inner.under_way.get(&station.dir).map_or(0, |charges| charges.values().sum());
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
                    return (verdict, Vec::new());
                }
            }
            let mut quota = match station.quota {
                0 => u64::MAX,
                _ if is_free_of_quota => u64::MAX,
                quota => quota,
            };
            let mut error = OpError::Quota;
            if index == last {
                let reserve = if charge.is_freeing { Reserve::Half } else { Reserve::Normal };
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
                let verdict =
                    if comes_back { Verdict::Wait(error) } else { Verdict::Refuse(error) };
                return (verdict, Vec::new());
            }
            if used.saturating_add(under_way) >= quota.saturating_add(quota >> OVERSHOOT_SHIFT) {
                return (Verdict::Wait(error), Vec::new());
            }
            charges.push((station.dir, rest));
            let share = |used: u64| used.max(station.reserved);
            let with = station.used.saturating_add(under_way);
            rest = share(with.saturating_add(passed_on)).saturating_sub(share(with));
            if rest == 0 {
                break;
            }
        }
        for (dir, bytes) in &charges {
            *inner.under_way.entry(*dir).or_default().entry(txg).or_default() += bytes;
        }
        (Verdict::Enter, charges)
    }

    /// Adds `bytes` to each of the charges.
    fn add(&self, charges: &[(u64, u64)], bytes: u64, txg: u64) {
        let mut inner = self.lock();
        for (dir, _) in charges {
            *inner.under_way.entry(*dir).or_default().entry(txg).or_default() += bytes;
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
    worst / (INFLATION / LIKELY_INFLATION)
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
        let (value, txg, _) = self.apply_admitted(head, charge, &mut change).await?;
        Ok((value, txg))
    }

    /// Changes a head in the open txg, and tells that txg. The closure may run several times, and
    /// changes nothing unless it succeeds.
    ///
    /// What it will write is not known before: it enters for little, and is charged afterwards for
    /// what it did. Whoever knows what a change costs, or frees with it, says so
    /// ([`Engine::apply_charged`]).
    ///
    /// # Errors
    /// As there.
    pub async fn apply<T>(
        &self,
        head: &Head,
        mut change: impl FnMut(&mut Tx<'_>) -> TxResult<T>,
    ) -> Result<(T, u64)> {
        let charge = Charge::write(UNKNOWN_BYTES);
        let (value, txg, (charges, added)) = self.apply_admitted(head, charge, &mut change).await?;
        let more = self.worst_case(added.saturating_sub(UNKNOWN_BYTES));
        self.admission.add(&charges, more, txg);
        Ok((value, txg))
    }

    /// The change, and with its txg what was charged and the bytes that it added in memory.
    async fn apply_admitted<T>(
        &self,
        head: &Head,
        charge: Charge,
        change: &mut impl FnMut(&mut Tx<'_>) -> TxResult<T>,
    ) -> Result<(T, u64, (Vec<(u64, u64)>, u64))> {
        let bytes = self.worst_case(charge.bytes);
        self.admit().await?;
        let mut waits = 0;
        loop {
            self.until_running().await?;
            if head.is_gone() {
                return Err(Error::not_found(EngineError::HeadGone(head.object())));
            }
            let txg = self.open_txg();
            let line = self.line(head).await?;
            let pool = self.pool_space();
            let (verdict, charges) = self.admission.request(&line, &pool, charge, bytes, txg);
            match verdict {
                Verdict::Enter => {}
                Verdict::Wait(_) if waits < WAITS_MAX => {
                    waits += 1;
                    self.sync().await?;
                    continue;
                }
                Verdict::Wait(error) | Verdict::Refuse(error) => return Err(error.into()),
            }
            match head.live().apply(txg, &mut *change).await {
                Ok(value) => {
                    let added = self.note_dirty(head, txg);
                    return Ok((value, txg, (charges, added)));
                }
                Err(error) => {
                    self.admission.withdraw(&charges, txg);
                    // The txg was closed in between: the change belongs in the next one.
                    if !is_txg_passed(&error) {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// The most space that so many bytes may take.
    fn worst_case(&self, bytes: u64) -> u64 {
        if bytes == 0 {
            return 0;
        }
        let ashift = self.with_config(|config| {
            config.root.children.iter().map(|top| top.top.ashift).max().unwrap_or(9)
        });
        bytes.max(1 << ashift).saturating_mul(INFLATION)
    }

    async fn line(&self, head: &Head) -> Result<Arc<Line>> {
        if let Some(line) = self.admission.lock().lines.get(&head.object()) {
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
        self.admission.lock().lines.insert(object, Arc::clone(&line));
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
