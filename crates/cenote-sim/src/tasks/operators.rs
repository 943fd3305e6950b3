//! Operations on the pool and its devices.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cenote_device::Device;
use cenote_engine::create::{LeafSpec, plan_distributed_spare, plan_leaf};
use cenote_engine::{
    Attach, FaultEffect, FaultSpec, Faults, IoKind, NewLeaf, ScrubOptions, SplitPool, Stop,
    TrimOptions,
};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::leaf_work::LeafWorkKind;
use cenote_ondisk::zap::Value;
use cenote_poolkit::builder::new_vdev;
use cenote_rt::tunables::Tunable;
use cenote_rt::{Kind, Result, Rng, tunables};
use cenote_vdev::create::{Guids, Redundancy, VdevClass};

use super::{Ended, FULL, Outcome, Running, rest, spares};
use crate::check::{self, is_honest};
use crate::plan::Op;

/// Disks of a pool at most.
const LEAVES_MAX: usize = 8;
/// One of so many disks is rebuilt sequentially where that is possible.
const SEQUENTIAL: u32 = 3;
/// Microseconds for which a disk is initialized.
const INITIALIZE_MICROS: u32 = 20_000;
/// Time of an I/O that is delayed.
const INJECTED_DELAY: Duration = Duration::from_millis(30);

pub(super) async fn perform(running: &Running, op: Op) -> Ended {
    let engine = &running.engine;
    match op {
        Op::Sync => sync(running).await,
        Op::DropCache => {
            engine.store().clear_cache();
            Ok(Outcome::Done)
        }
        Op::LimitCache { mib } => match tunables::BLOCK_CACHE_BYTES.set(u64::from(mib) << 20) {
            Ok(()) => {
                engine.retune();
                Ok(Outcome::Done)
            }
            Err(error) => Err(error.to_string()),
        },
        Op::Offline { disk } => match victim(running, disk) {
            None => Ok(Outcome::Refused),
            Some((_, leaf)) => {
                let done = engine.leaves().offline(leaf, disk % 2 == 0).await;
                // Another command may have taken it out of the pool.
                settle(running, done, &[Kind::Busy, Kind::NotFound])
            }
        },
        Op::Online { disk } => match victim(running, disk) {
            None => Ok(Outcome::Refused),
            Some((number, leaf)) => {
                let device = running.history.machine.devices().get(number).cloned();
                let done = engine.leaves().online(leaf, device).await;
                // The disk may be failing, or have lost its labels, or have left the pool.
                settle(running, done, &[Kind::Io, Kind::Invalid, Kind::Busy, Kind::NotFound])
            }
        },
        Op::Replace { disk, with } => attach(running, disk, with, Attach::Replace).await,
        Op::Attach { disk, with } => attach(running, disk, with, Attach::Mirror).await,
        Op::Detach { disk } => detach(running, disk).await,
        Op::AddVdev { with } => add_vdev(running, with).await,
        Op::RemoveVdev { vdev } => remove_vdev(running, vdev).await,
        Op::SetAllocating { vdev, is_on } => set_allocating(running, vdev, is_on).await,
        Op::Split { side } => split(running, side).await,
        Op::Expand { with } => expand(running, with).await,
        Op::Grow { disk, is_of_all } => grow(running, disk, is_of_all).await,
        Op::Spare { disk } => spare(running, disk).await,
        Op::AddSpare { .. }
        | Op::RemoveSpare { .. }
        | Op::CallInSpare { .. }
        | Op::ReplaceBySpare { .. }
        | Op::SendBackSpare { .. }
        | Op::KeepSpare { .. }
        | Op::ReplaceSpared { .. } => spares::perform(running, op).await,
        Op::Fault { disk, is_temporary } => match victim(running, disk) {
            None => Ok(Outcome::Refused),
            Some((_, leaf)) => {
                let done = engine.leaves().fault(leaf, is_temporary).await;
                settle(running, done, &[Kind::Busy, Kind::NotFound])
            }
        },
        Op::CancelRemoval => settle(running, engine.removals().cancel().await, &[Kind::NotFound]),
        Op::Clear => settle(running, engine.leaves().clear(None).await, &[]),
        Op::Checkpoint => {
            let allowed = [FULL[0], FULL[1], Kind::Exists, Kind::Busy];
            settle(running, engine.space().take_checkpoint().await, &allowed)
        }
        Op::DiscardCheckpoint => {
            let allowed = [Kind::NotFound, Kind::Busy];
            settle(running, engine.space().discard_checkpoint().await, &allowed)
        }
        Op::Trim => {
            let leaves = engine.leaves().data_guids();
            let done = engine.leaves().start_trim(&leaves, TrimOptions::default()).await;
            settle(running, done, &[Kind::Busy, Kind::ReadOnly, Kind::NotFound])
        }
        Op::Initialize { disk } => initialize(running, disk).await,
        Op::Scrub => {
            let done = engine.scans().scrub(ScrubOptions::default()).await;
            settle(running, done, &[Kind::Busy])
        }
        Op::Resilver => settle(running, engine.scans().resume().await, &[]),
        Op::PauseScrub => {
            settle(running, engine.scans().pause().await, &[Kind::Busy, Kind::NotFound])
        }
        // A rebuild is not stopped.
        Op::StopScan => settle(running, engine.scans().stop().await, &[Kind::Busy, Kind::NotFound]),
        Op::Throttle { model, delay } => throttle(model, delay),
        Op::Inject { disk, effect, percent } => Ok(inject(running, disk, effect, percent)),
        Op::CancelInjections => {
            let faults = Faults::of(engine.tree());
            for injection in faults.injections() {
                faults.cancel(injection.id);
            }
            Ok(Outcome::Done)
        }
        Op::ErrorRates { disk, count } => set_error_rates(running, disk, count).await,
        _ => Ok(Outcome::Refused),
    }
}

async fn sync(running: &Running) -> Ended {
    match running.engine.sync().await {
        Ok(txg) => {
            running.history.model().acknowledge(txg);
            Ok(Outcome::Done)
        }
        Err(error) => running.judge(&error, &[]),
    }
}

pub(super) fn settle(running: &Running, done: Result<()>, allowed: &[Kind]) -> Ended {
    match done {
        Ok(()) => {
            running.acknowledge();
            Ok(Outcome::Done)
        }
        Err(error) => running.judge(&error, allowed),
    }
}

/// Returns a disk that may leave service, with the guid of its leaf.
pub(super) fn victim(running: &Running, number: u32) -> Option<(usize, u64)> {
    let victims = &running.history.plan.layout.victims;
    let disk = *victims.get(number as usize % victims.len().max(1))?;
    Some((disk, leaf_on(&running.engine.admin().vdev_config(), disk)?))
}

/// Returns the leaf that is on a disk.
pub(super) fn leaf_on(root: &VdevConfig, disk: usize) -> Option<u64> {
    let path = format!("d{disk}");
    let is_on = |leaf: &&VdevConfig| {
        leaf.leaf.path.as_ref().is_some_and(|of| of.as_bytes() == path.as_bytes())
    };
    root.leaves().find(is_on).map(|leaf| leaf.guid)
}

/// Returns the leaf on a disk that may leave the pool or stand beside others; any disk may get
/// another side.
pub(super) fn chosen(running: &Running, number: u32, is_any: bool) -> Option<u64> {
    let layout = &running.history.plan.layout;
    let root = running.engine.admin().vdev_config();
    let disks = (0..layout.all_disks())
        .filter(|disk| is_any || layout.may_move(*disk) && !is_last(running, &root, *disk));
    let leaves: Vec<_> = disks.filter_map(|disk| leaf_on(&root, disk)).collect();
    leaves.get(number as usize % leaves.len().max(1)).copied()
}

/// A disk that belongs to no pool, while an operator adds it to one.
pub(super) struct Claim<'r> {
    running: &'r Running,
    disk: usize,
    pub(super) device: Arc<dyn Device>,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.running.claimed().remove(&self.disk);
    }
}

/// Claims a disk that does not belong to the pool, also not as a hot spare.
pub(super) async fn free_disk(running: &Running, number: u32, is_safe: bool) -> Option<Claim<'_>> {
    let mut spares = BTreeSet::new();
    loop {
        let claim = unclaimed_disk(running, number, is_safe, &spares)?;
        // No task makes it a hot spare once it is claimed.
        if !spares::is_hot_spare(running, claim.disk).await? {
            return Some(claim);
        }
        spares.insert(claim.disk);
    }
}

/// Claims a disk that is not in the vdev tree, and none of `spares`.
fn unclaimed_disk<'r>(
    running: &'r Running,
    number: u32,
    is_safe: bool,
    spares: &BTreeSet<usize>,
) -> Option<Claim<'r>> {
    let root = running.engine.admin().vdev_config();
    let layout = &running.history.plan.layout;
    let machine = &running.history.machine;
    let mut claimed = running.claimed();
    let is_free = |disk: &usize| {
        leaf_on(&root, *disk).is_none() && !claimed.contains(disk) && !machine.is_open(*disk)
    };
    let may_serve = |disk: &usize| {
        is_free(disk) && !(is_safe && layout.victims.contains(disk)) && !spares.contains(disk)
    };
    let free: Vec<_> = (0..layout.all_disks()).filter(may_serve).collect();
    let disk = free.get(number as usize % free.len().max(1)).copied()?;
    claimed.insert(disk);
    let device = Arc::clone(machine.devices().get(disk)?);
    Some(Claim { running, disk, device })
}

/// Claims a disk like [`free_disk`], as a new leaf.
pub(super) async fn free_leaf(
    running: &Running,
    number: u32,
    is_safe: bool,
) -> Option<(Claim<'_>, NewLeaf)> {
    let claim = free_disk(running, number, is_safe).await?;
    let new = plan_leaf(&LeafSpec::of(claim.device.info()), Arc::clone(&claim.device)).ok()?;
    Some((claim, new))
}

/// Adds a disk as a vdev.
async fn add_vdev(running: &Running, with: u32) -> Ended {
    let engine = &running.engine;
    let is_full = engine.tree().leaves().count() >= LEAVES_MAX;
    let Some(claim) = free_disk(running, with, true).await.filter(|_| !is_full) else {
        return Ok(Outcome::Refused);
    };
    let mut rng = Rng::seeded(running.history.plan.seed ^ u64::from(with));
    let mut guids = Guids::new(|| Ok(rng.next_u64()));
    let kind = (Redundancy::Single, VdevClass::Normal);
    let ashift = running.history.plan.layout.ashift;
    let added = match new_vdev(engine, kind, ashift, &[Arc::clone(&claim.device)], &mut guids) {
        Ok(new) => engine.admin().add_vdevs(new).await,
        Err(error) => Err(error),
    };
    settle(running, added, &[Kind::Busy, Kind::Exists, Kind::Invalid, Kind::Io])
}

/// Whether no disk has wrong bytes in silence, which a copy without a checksum would spread.
fn are_all_honest(running: &Running) -> bool {
    let history = &running.history;
    (0..history.plan.layout.all_disks()).all(|disk| is_honest(history, disk))
}

/// Makes a disk longer, or all of them, and lets the vdevs follow.
async fn grow(running: &Running, disk: u32, is_of_all: bool) -> Ended {
    let (engine, machine) = (&running.engine, &running.history.machine);
    let disks = running.history.plan.layout.all_disks();
    let one = disk as usize % disks;
    let mut has_grown = false;
    for number in if is_of_all { 0..disks } else { one..one + 1 } {
        has_grown |= machine.grow(number);
    }
    if !has_grown {
        return Ok(Outcome::Refused);
    }
    settle(running, engine.leaves().expand(None).await, &[Kind::Busy, Kind::NotFound, Kind::Io])
}

/// Lets a distributed spare stand in for a disk, or sends it back.
async fn spare(running: &Running, disk: u32) -> Ended {
    let engine = &running.engine;
    let allowed = [Kind::Exists, Kind::Busy, Kind::Invalid, Kind::NotFound, Kind::Io];
    let view = match engine.view().await {
        Ok(view) => view,
        Err(error) => return running.judge(&error, &allowed),
    };
    let layout = &running.history.plan.layout;
    let root = engine.admin().vdev_config();
    let Some(spare) = view.spares().first().map(|spare| spare.config.clone()) else {
        return Ok(Outcome::Refused);
    };
    drop(view);
    if root.find(spare.guid).is_some() {
        return settle(running, engine.leaves().detach(spare.guid, None).await, &allowed);
    }
    let leaf = leaf_on(&root, disk as usize % layout.disks());
    // A rebuild spreads wrong bytes of another disk.
    let Some(leaf) = leaf.filter(|_| are_all_honest(running)) else { return Ok(Outcome::Refused) };
    let new = NewLeaf { is_sequential: disk.is_multiple_of(2), ..plan_distributed_spare(&spare) };
    settle(running, attach_and_fill(running, leaf, new, Attach::Replace).await, &allowed)
}

/// Expands a RAID-Z vdev.
async fn expand(running: &Running, with: u32) -> Ended {
    let engine = &running.engine;
    let is_raidz = |top: &&VdevConfig| matches!(top.kind, VdevKind::RaidZ(_));
    let tops = engine.admin().vdev_config().children;
    let top = tops.iter().find(is_raidz).filter(|_| are_all_honest(running));
    let (Some(top), Some((_claim, new))) = (top, free_leaf(running, with, true).await) else {
        return Ok(Outcome::Refused);
    };
    let begun = engine.leaves().expand_raidz(top.guid, new).await;
    if begun.is_ok() {
        engine.leaves().resume_reflow();
    }
    settle(running, begun, &[Kind::Busy, Kind::Exists, Kind::Invalid, Kind::NotFound, Kind::Io])
}

/// Makes another pool of a disk of each mirror, and reads it if its disks have no faults.
async fn split(running: &Running, side: u32) -> Ended {
    let (engine, history) = (&running.engine, &running.history);
    let layout = &history.plan.layout;
    let root = engine.admin().vdev_config();
    let devices = history.machine.devices();
    let (mut claims, mut leaves) = (Vec::new(), Vec::new());
    for top in &root.children {
        if top.kind != VdevKind::Mirror || top.top.is_log {
            leaves.push(None);
            continue;
        }
        let here = (0..layout.all_disks()).filter_map(|disk| Some((disk, leaf_on(top, disk)?)));
        let may_go =
            |(disk, _): &(usize, u64)| layout.may_move(*disk) && !is_last(running, &root, *disk);
        let here: Vec<_> = here.filter(may_go).collect();
        let Some((disk, leaf)) = here.get(side as usize % here.len().max(1)).copied() else {
            return Ok(Outcome::Refused);
        };
        // No other operator takes the disk before it was checked.
        running.claimed().insert(disk);
        claims.push(Claim { running, disk, device: Arc::clone(&devices[disk]) });
        leaves.push(Some(leaf));
    }
    let is_empty = |top: &VdevConfig| top.top.is_log || top.kind == VdevKind::Hole;
    let last = root.children.iter().rposition(|top| !is_empty(top));
    leaves.truncate(last.map_or(0, |last| last + 1));
    let new = SplitPool { name: "split".to_owned(), leaves, settings: Vec::new() };
    let mut faults = history.plan.lives.iter().flat_map(|life| &life.faults);
    let is_one = |disk: usize| claims.iter().any(|claim| claim.disk == disk);
    let is_faulty = faults.any(|of| is_one(of.disk) && !of.fault.is_harmless());
    let mut allowed = vec![Kind::Busy, Kind::Invalid, Kind::NotFound, Kind::Exists, Kind::Io];
    if is_faulty {
        // The new pool has no other side to read its metadata from.
        allowed.push(Kind::Corrupt);
    }
    let made = engine.leaves().split(new).await;
    let Ok(guid) = made else { return settle(running, made.map(drop), &allowed) };
    running.acknowledge();
    if is_faulty {
        return Ok(Outcome::Done);
    }
    // They may have become longer since.
    let devices = history.machine.devices();
    let devices = claims.iter().map(|claim| Arc::clone(&devices[claim.disk])).collect();
    match check::split_off(history, devices, guid).await {
        // The machine may be without power.
        Err(_) if running.is_ending() => Ok(Outcome::Interrupted),
        checked => checked.map(|()| Outcome::Done),
    }
}

/// Returns a vdev for data.
fn vdev_for_data(running: &Running, number: u32) -> Option<VdevConfig> {
    let mut tops = running.engine.admin().vdev_config().children;
    tops.retain(|top| top.kind.is_concrete() && !top.top.is_log);
    tops.get(number as usize % tops.len().max(1)).cloned()
}

/// Sets whether a vdev gets new blocks.
async fn set_allocating(running: &Running, vdev: u32, is_on: bool) -> Ended {
    let Some(top) = vdev_for_data(running, vdev) else { return Ok(Outcome::Refused) };
    let setting = running.history.model().allocating.begin(&top, is_on);
    let set = running.engine.admin().set_allocating(top.guid, is_on).await;
    // The last vdev that gets new blocks keeps that; others may change or leave meanwhile.
    let ended = settle(running, set, &[FULL[0], Kind::Invalid, Kind::NotFound, Kind::Unsupported]);
    if let Ok(outcome @ (Outcome::Done | Outcome::Refused)) = ended {
        running.history.model().allocating.end(setting, outcome == Outcome::Done);
    }
    ended
}

/// Begins the removal of a vdev.
async fn remove_vdev(running: &Running, vdev: u32) -> Ended {
    let engine = &running.engine;
    if !are_all_honest(running) {
        return Ok(Outcome::Refused);
    }
    let Some(top) = vdev_for_data(running, vdev) else { return Ok(Outcome::Refused) };
    let begun = engine.removals().begin(top.guid).await;
    let full = [Kind::NoSpace, Kind::Busy, Kind::Exists, Kind::NotFound];
    settle(running, begun, &[&full[..], &[Kind::Invalid, Kind::Unsupported, Kind::Io]].concat())
}

/// Whether a disk is the only one of its vdev without faults.
pub(super) fn is_last(running: &Running, root: &VdevConfig, disk: usize) -> bool {
    let layout = &running.history.plan.layout;
    let disks = |top: &VdevConfig| -> Vec<usize> {
        (0..layout.all_disks()).filter(|disk| leaf_on(top, *disk).is_some()).collect()
    };
    let top = root.children.iter().map(disks).find(|disks| disks.contains(&disk));
    let mut others = top.into_iter().flatten().filter(|other| *other != disk);
    others.all(|other| layout.victims.contains(&other))
}

async fn attach(running: &Running, disk: u32, with: u32, how: Attach) -> Ended {
    // Vdevs with more sides than this are slow to write.
    let is_full = running.engine.tree().leaves().count() >= LEAVES_MAX;
    let beside = chosen(running, disk, how == Attach::Mirror);
    let new = free_leaf(running, with, false).await;
    let (Some(beside), Some((_claim, new)), false) = (beside, new, is_full) else {
        return Ok(Outcome::Refused);
    };
    let tops = running.engine.admin().vdev_config().children;
    let top = tops.iter().find(|top| top.find(beside).is_some());
    // Wrong bytes of one disk and what was computed from them are more than one parity replaces.
    let is_safe =
        are_all_honest(running) || !top.is_some_and(|top| matches!(top.kind, VdevKind::Draid(_)));
    let is_sequential = with.is_multiple_of(SEQUENTIAL) && is_safe;
    let new = NewLeaf { is_sequential, ..new };
    let done = attach_and_fill(running, beside, new, how).await;
    // There is a checkpoint, the vdev is no mirror, or the new disk fails.
    settle(running, done, &[Kind::Exists, Kind::Busy, Kind::Invalid, Kind::NotFound, Kind::Io])
}

/// Attaches a leaf, and begins to fill it.
pub(super) async fn attach_and_fill(
    running: &Running,
    beside: u64,
    new: NewLeaf,
    how: Attach,
) -> Result<()> {
    running.engine.leaves().attach(beside, new, how).await?;
    running.engine.scans().resume().await
}

fn throttle(model: u8, delay: u8) -> Ended {
    let set = |tunable: &Tunable, value: u8| tunable.set(u64::from(value));
    let done = set(&tunables::SCAN_THROTTLE, model)
        .and_then(|()| set(&tunables::SCRUB_DELAY, delay))
        .and_then(|()| set(&tunables::RESILVER_DELAY, delay));
    done.map(|()| Outcome::Done).map_err(|error| error.to_string())
}

/// Injects a fault that the disk reports: what the disk does not have is in its dirty time log.
fn inject(running: &Running, disk: u32, effect: u8, percent: u8) -> Outcome {
    let Some((_, leaf)) = victim(running, disk) else { return Outcome::Refused };
    let slow = FaultEffect::Delay { latency: INJECTED_DELAY, lanes: 1 };
    let (kind, effect) = match effect {
        0 => (Some(IoKind::Read), FaultEffect::Fail),
        1 => (Some(IoKind::Write), FaultEffect::Fail),
        2 => (Some(IoKind::Write), FaultEffect::FailBefore),
        3 => (Some(IoKind::Flush), FaultEffect::FailBefore),
        4 => (None, FaultEffect::Vanish),
        _ => (None, slow),
    };
    let spec = FaultSpec { kind, effect, frequency_ppm: u32::from(percent) * 10_000 };
    match Faults::of(running.engine.tree()).inject(leaf, spec) {
        Some(_) => Outcome::Done,
        None => Outcome::Refused,
    }
}

async fn set_error_rates(running: &Running, disk: u32, count: u8) -> Ended {
    let Some((_, leaf)) = victim(running, disk) else { return Ok(Outcome::Refused) };
    for name in ["io_n", "checksum_n"] {
        let value = Some(Value::U64(count.into()));
        let set = running.engine.admin().set_vdev_property(leaf, name, value).await;
        if let Err(error) = set {
            // The disk may have been replaced meanwhile.
            return running.judge(&error, &[FULL[0], FULL[1], Kind::NotFound]);
        }
    }
    running.acknowledge();
    Ok(Outcome::Done)
}

/// Removes a log vdev, if there is one, or a disk from its mirror.
async fn detach(running: &Running, disk: u32) -> Ended {
    let engine = &running.engine;
    // There may be a checkpoint.
    let allowed = [Kind::Busy, Kind::Invalid, Kind::NotFound, Kind::Exists];
    let tops = engine.admin().vdev_config().children;
    let log = tops.iter().find(|top| top.top.is_log).filter(|_| disk.is_multiple_of(4));
    if let Some(log) = log {
        let done = engine.leaves().remove_log(log.guid).await;
        // There is a checkpoint, or a log that is to be replayed.
        return settle(running, done, &[Kind::Busy, Kind::Exists, Kind::NotFound]);
    }
    let Some(leaf) = chosen(running, disk, false) else { return Ok(Outcome::Refused) };
    settle(running, spares::detach(running, leaf).await, &allowed)
}

/// Initializes a disk for a moment.
async fn initialize(running: &Running, disk: u32) -> Ended {
    let leaves = running.engine.leaves().data_guids();
    let Some(leaf) = leaves.get(disk as usize % leaves.len().max(1)).copied() else {
        return Ok(Outcome::Refused);
    };
    let allowed = [Kind::Busy, Kind::ReadOnly, Kind::NotFound];
    if let Err(error) = running.engine.leaves().start_initialize(&[leaf]).await {
        return running.judge(&error, &allowed);
    }
    rest(INITIALIZE_MICROS).await;
    let stopped =
        running.engine.leaves().stop_work(&[leaf], LeafWorkKind::Initialize, Stop::Suspend).await;
    settle(running, stopped, &allowed)
}
