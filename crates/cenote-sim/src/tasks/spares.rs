//! Operations on hot spares.
//!
//! The model has the hot spares of the pool by guid, and which of them are certain: an operation
//! that may add or remove one makes it uncertain until it has ended.

use std::sync::{Arc, Weak};

use cenote_device::{Device, OpenMode};
use cenote_engine::admin::NewVdevs;
use cenote_engine::create::{LeafSpec, plan_leaf};
use cenote_engine::{Attach, DeviceSource, Engine, NewLeaf, SpareReport};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_rt::{Kind, Result};

use super::operators::{
    attach_and_fill, chosen, free_disk, free_leaf, is_last, leaf_on, settle, victim,
};
use super::{Ended, History, Outcome, Running};
use crate::disks::Disks;
use crate::plan::Op;

/// Hot spares of a pool at most.
const SPARES_MAX: usize = 3;
/// Errors of changes of the vdev tree: there is a checkpoint or a removal, the other vdev is not
/// suitable or has left the pool, or a device fails.
const ALLOWED: [Kind; 5] = [Kind::Exists, Kind::Busy, Kind::Invalid, Kind::NotFound, Kind::Io];

pub(super) async fn perform(running: &Running, op: Op) -> Ended {
    match op {
        Op::AddSpare { with } => add(running, with).await,
        Op::RemoveSpare { spare } => remove(running, spare).await,
        Op::CallInSpare { disk } => call_in(running, disk).await,
        Op::ReplaceBySpare { disk, spare } => replace_by(running, disk, spare).await,
        Op::SendBackSpare { spare } => {
            let root = running.engine.admin().vdev_config();
            match pick(&spares_in_use(&root), spare) {
                None => Ok(Outcome::Refused),
                Some(spare) => {
                    settle(running, running.engine.leaves().detach(spare, None).await, &ALLOWED)
                }
            }
        }
        Op::KeepSpare { spare } => keep(running, spare).await,
        Op::ReplaceSpared { spare, with } => replace_spared(running, spare, with).await,
        _ => Ok(Outcome::Refused),
    }
}

fn pick<T: Clone>(all: &[T], number: u32) -> Option<T> {
    all.get(number as usize % all.len().max(1)).cloned()
}

/// Returns the vdevs below which a hot spare stands in.
fn groups(root: &VdevConfig) -> Vec<VdevConfig> {
    root.walk().filter(|vdev| vdev.kind == VdevKind::Spare).cloned().collect()
}

/// Returns the guids of the hot spares that stand in for leaves.
pub(crate) fn spares_in_use(root: &VdevConfig) -> Vec<u64> {
    let is_spare = |leaf: &&VdevConfig| leaf.leaf.is_spare && leaf.kind.is_real_leaf();
    root.leaves().filter(is_spare).map(|leaf| leaf.guid).collect()
}

/// Returns the number of the disk of a leaf or of a hot spare.
pub(crate) fn disk_of(leaf: &VdevConfig) -> Option<usize> {
    leaf.leaf.path.as_ref()?.to_str()?.strip_prefix('d')?.parse().ok()
}

/// Returns the hot spares of the pool.
async fn listed(running: &Running) -> Result<Vec<VdevConfig>> {
    let view = running.engine.view().await?;
    let spares = view.spares().iter().map(|spare| spare.config.clone());
    Ok(spares.filter(|spare| spare.kind.is_real_leaf()).collect())
}

/// Whether a disk is a hot spare; `None` if the pool does not tell.
pub(super) async fn is_hot_spare(running: &Running, disk: usize) -> Option<bool> {
    if running.history.plan.layout.hot_spares == 0 {
        return Some(false);
    }
    let spares = listed(running).await.ok()?;
    Some(spares.iter().any(|spare| disk_of(spare) == Some(disk)))
}

/// Has a pool open devices by their paths among the disks of the machine.
pub(crate) fn connect(history: &History, engine: &Engine) {
    let disks = Disks(Arc::downgrade(&history.machine));
    engine.leaves().set_device_source(Arc::new(disks));
}

/// Adds the hot spares that a pool has at first.
pub(crate) async fn add_first(history: &History, engine: &Engine) -> Result<()> {
    for disk in history.plan.layout.hot_spares() {
        let devices = Disks(Arc::downgrade(&history.machine));
        if let Some(device) = devices.open(&format!("d{disk}"), OpenMode::Exclusive).await {
            add_disk(history, engine, device).await?;
        }
    }
    Ok(())
}

async fn add_disk(history: &History, engine: &Engine, device: Arc<dyn Device>) -> Result<()> {
    let mut leaf = plan_leaf(&LeafSpec::of(device.info()), Arc::clone(&device))?;
    leaf.config.leaf.is_spare = true;
    let guid = leaf.config.guid;
    history.model().hot_spares.insert(guid, 1);
    let new = NewVdevs {
        tops: Vec::new(),
        spares: vec![leaf.config],
        caches: Vec::new(),
        devices: vec![(guid, device)],
    };
    engine.admin().add_vdevs(new).await?;
    history.model().trust_spares(&[guid]);
    Ok(())
}

async fn add(running: &Running, with: u32) -> Ended {
    let spares = match listed(running).await {
        Ok(spares) => spares,
        Err(error) => return running.judge(&error, &ALLOWED),
    };
    let claim = free_disk(running, with, false).await;
    let Some(claim) = claim.filter(|_| spares.len() < SPARES_MAX) else {
        return Ok(Outcome::Refused);
    };
    let device = Arc::clone(&claim.device);
    settle(running, add_disk(&running.history, &running.engine, device).await, &ALLOWED)
}

async fn remove(running: &Running, spare: u32) -> Ended {
    let spares = match listed(running).await {
        Ok(spares) => spares,
        Err(error) => return running.judge(&error, &ALLOWED),
    };
    let Some(spare) = pick(&spares, spare) else { return Ok(Outcome::Refused) };
    running.history.model().doubt_spares(&[spare.guid]);
    let removed = running.engine.leaves().remove_aux(spare.guid).await;
    let is_refused = removed.as_ref().is_err_and(|error| error.kind() == Kind::Busy);
    if removed.is_ok() {
        running.history.model().hot_spares.remove(&spare.guid);
    } else if is_refused {
        running.history.model().trust_spares(&[spare.guid]);
    }
    settle(running, removed, &ALLOWED)
}

async fn call_in(running: &Running, disk: u32) -> Ended {
    let Some((_, leaf)) = victim(running, disk) else { return Ok(Outcome::Refused) };
    let called = async {
        let spare = running.engine.leaves().call_in_spare(leaf).await?;
        running.engine.scans().resume().await?;
        Ok(spare)
    };
    match called.await {
        Ok(None) => Ok(Outcome::Refused),
        called => settle(running, called.map(drop), &ALLOWED),
    }
}

/// Replaces a disk by a hot spare that is free.
async fn replace_by(running: &Running, disk: u32, spare: u32) -> Ended {
    let mut spares = match listed(running).await {
        Ok(spares) => spares,
        Err(error) => return running.judge(&error, &ALLOWED),
    };
    let root = running.engine.admin().vdev_config();
    spares.retain(|spare| root.find(spare.guid).is_none());
    let (Some(beside), Some(config)) = (chosen(running, disk, false), pick(&spares, spare)) else {
        return Ok(Outcome::Refused);
    };
    let devices = Disks(Arc::downgrade(&running.history.machine));
    let path = config.leaf.path.as_ref().map(ToString::to_string).unwrap_or_default();
    let Some(device) = devices.open(&path, OpenMode::Exclusive).await else {
        return Ok(Outcome::Refused);
    };
    let Ok(new) = plan_leaf(&LeafSpec::of(device.info()), Arc::clone(&device)) else {
        return Ok(Outcome::Refused);
    };
    let mut new = NewLeaf { config, ..new };
    new.config.leaf.is_spare = true;
    drop(device);
    settle(running, attach_and_fill(running, beside, new, Attach::Replace).await, &ALLOWED)
}

/// Returns the leaf for which a hot spare stands in, if it may leave the pool.
fn spared(running: &Running, number: u32) -> Option<VdevConfig> {
    let root = running.engine.admin().vdev_config();
    let group = pick(&groups(&root), number)?;
    let first = group.children.first().filter(|first| first.kind.is_leaf())?;
    let disk = disk_of(first).filter(|disk| leaf_on(&root, *disk) == Some(first.guid))?;
    let may_go = running.history.plan.layout.may_move(disk) && !is_last(running, &root, disk);
    may_go.then(|| first.clone())
}

async fn keep(running: &Running, spare: u32) -> Ended {
    let Some(leaf) = spared(running, spare) else { return Ok(Outcome::Refused) };
    settle(running, detach(running, leaf.guid).await, &ALLOWED)
}

/// Detaches a leaf. A hot spare that stands in for it becomes an ordinary leaf; it may have been
/// called in meanwhile.
pub(super) async fn detach(running: &Running, leaf: u64) -> Result<()> {
    let spares: Vec<_> = running.history.model().hot_spares.keys().copied().collect();
    running.history.model().doubt_spares(&spares);
    running.engine.leaves().detach(leaf, None).await?;
    // Without an answer they stay uncertain.
    if let Ok(mut listed) = listed(running).await {
        listed.retain(|spare| spares.contains(&spare.guid));
        let listed: Vec<_> = listed.iter().map(|spare| spare.guid).collect();
        running.history.model().trust_spares(&listed);
    }
    Ok(())
}

async fn replace_spared(running: &Running, spare: u32, with: u32) -> Ended {
    let Some(leaf) = spared(running, spare) else { return Ok(Outcome::Refused) };
    let Some((_claim, new)) = free_leaf(running, with, false).await else {
        return Ok(Outcome::Refused);
    };
    settle(running, attach_and_fill(running, leaf.guid, new, Attach::Replace).await, &ALLOWED)
}

/// Calls in hot spares for leaves that fail, as the daemon does, until the pool is closed.
pub(crate) async fn agent(running: Weak<Running>) {
    let Some(engine) = running.upgrade().map(|running| Arc::downgrade(&running.engine)) else {
        return;
    };
    let report = move |_: &str, report: SpareReport| {
        let Some(running) = running.upgrade() else { return };
        let judged = match report {
            SpareReport::CalledIn { .. } => {
                running.history.tally().operation("hot spare called in by the agent", true);
                return;
            }
            SpareReport::NotFilled(cause) | SpareReport::NotCalledIn { cause, .. } => {
                running.judge(&cause, &[&ALLOWED[..], &[Kind::Overtaken]].concat())
            }
        };
        if let Err(what) = judged {
            running.history.fail(format!("agent that calls in hot spares: {what}"));
        }
    };
    cenote_engine::call_in_spares(engine, report).await;
}
