//! Checks of hot spares: the vdev tree and the list of spares agree with each other and with the
//! model, and a spare that stands in for no leaf can be called in.

use std::sync::Arc;

use cenote_device::OpenMode;
use cenote_engine::{DeviceSource, Engine};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::scan::ScanFunc;
use cenote_pool::Pool;
use cenote_pool::import::Found;
use cenote_rt::Error;

use crate::disks::Disks;
use crate::model::Model;
use crate::tasks::History;
use crate::tasks::spares::{disk_of, spares_in_use};

type Checked<T> = Result<T, String>;

/// One history in so many leaves hot spares in use, for its last checks.
const IN_USE_OF: u64 = 2;

#[expect(clippy::needless_pass_by_value, reason = "as errors are mapped")]
fn fail(error: Error) -> String {
    format!("hot spares: {error:?}")
}

/// Returns the hot spares of a pool, without distributed ones.
fn listed(pool: &Pool) -> Vec<VdevConfig> {
    let spares = pool.spares().iter().map(|spare| spare.config.clone());
    spares.filter(|spare| spare.kind.is_real_leaf()).collect()
}

/// Compares the hot spares of a pool that was imported with the model.
pub(crate) fn compare(pool: &Pool, model: &mut Model) -> Checked<()> {
    let spares = listed(pool);
    agree(&pool.config().vdev_tree, &spares)?;
    model.compare_spares(&spares.iter().map(|spare| spare.guid).collect::<Vec<_>>())
}

/// Checks that the vdev tree and the list of hot spares agree.
fn agree(root: &VdevConfig, listed: &[VdevConfig]) -> Checked<()> {
    let is_listed = |guid: u64| listed.iter().filter(|spare| spare.guid == guid).count() == 1;
    for vdev in root.walk() {
        let is_group = vdev.kind == VdevKind::Spare;
        if is_group && vdev.children.len() < 2 {
            return Err(format!("a spare vdev with one child: {vdev:?}"));
        }
        for (number, child) in vdev.children.iter().enumerate() {
            let is_in_place = is_group && number > 0;
            if child.kind.is_real_leaf() && child.leaf.is_spare != is_in_place {
                return Err(format!("child {number} is a hot spare or not: {vdev:?}"));
            }
            if is_in_place && child.kind.is_real_leaf() && !is_listed(child.guid) {
                return Err(format!("hot spare {} in use is not in the list", child.guid));
            }
        }
    }
    let is_ordinary =
        |spare: &&VdevConfig| root.find(spare.guid).is_some_and(|leaf| !leaf.leaf.is_spare);
    match listed.iter().find(is_ordinary) {
        Some(spare) => Err(format!("leaf {} is in the list of hot spares", spare.guid)),
        None => Ok(()),
    }
}

/// Whether a leaf is a hot spare that stands in for another one.
pub(crate) fn is_in_use(engine: &Engine, leaf: u64) -> bool {
    spares_in_use(&engine.admin().vdev_config()).contains(&leaf)
}

/// Checks the hot spares in the end: every disk is up to date, and nobody changes the vdevs. The
/// leaves `back` have just been brought back.
pub(crate) async fn in_the_end(
    history: &History,
    engine: &Arc<Engine>,
    back: &[u64],
) -> Checked<()> {
    if history.plan.layout.hot_spares == 0 {
        return Ok(());
    }
    // Ends replacements that are complete.
    engine.scans().resume().await.map_err(fail)?;
    let root = engine.admin().vdev_config();
    for vdev in root.walk() {
        let has_back = vdev.children.first().is_some_and(|first| back.contains(&first.guid));
        if vdev.kind == VdevKind::Spare && has_back {
            return Err(format!("a hot spare stays although the disk is back: {vdev:?}"));
        }
        // As in OpenZFS, a replacement does not end while a spare stands in for the old leaf.
        let is_spared = vdev.children.first().is_some_and(|first| !first.kind.is_leaf());
        if vdev.kind == VdevKind::Replacing && !is_spared {
            return Err(format!("a replacement does not end: {vdev:?}"));
        }
    }
    if !history.plan.seed.is_multiple_of(IN_USE_OF) {
        send_back_all(engine).await?;
    }
    call_in_and_send_back(history, engine).await?;
    let view = engine.view().await.map_err(fail)?;
    agree(&view.config().vdev_tree, &listed(&view))?;
    history.tally().check("hot spares in the end");
    Ok(())
}

/// Sends back all hot spares that stand in for leaves, which have everything.
pub(crate) async fn send_back_all(engine: &Engine) -> Checked<()> {
    for spare in spares_in_use(&engine.admin().vdev_config()) {
        engine.leaves().detach(spare, None).await.map_err(fail)?;
    }
    Ok(())
}

/// A leaf fails: a hot spare stands in for it, and is free again when the leaf is back.
async fn call_in_and_send_back(history: &History, engine: &Arc<Engine>) -> Checked<()> {
    let Some(leaf) = failing_leaf(history, engine) else { return Ok(()) };
    let free = free(engine).await?;
    let machine = &history.machine;
    let sizes = engine.admin().vdev_config();
    let sizes = sizes.leaves().filter_map(|leaf| disk_of(leaf).map(|disk| machine.size(disk)));
    let most = sizes.max().unwrap_or(0);
    let is_sure = |disk| machine.size(disk) >= most && !history.plan.layout.victims.contains(&disk);
    let expected = free.iter().position(|spare| disk_of(spare).is_some_and(is_sure));
    engine.leaves().fault(leaf, true).await.map_err(fail)?;
    let called = engine.leaves().call_in_spare(leaf).await.map_err(fail)?;
    let found = free.iter().position(|spare| Some(spare.guid) == called);
    if expected.is_some_and(|most| found.is_none_or(|found| found > most)) {
        return Err(format!("{called:?} was called in for leaf {leaf}, of the free {free:?}"));
    }
    engine.scans().resume().await.map_err(fail)?;
    engine.scans().wait(ScanFunc::Resilver).await.map_err(fail)?;
    if let Some(spare) = called
        && !is_in_use(engine, spare)
    {
        return Err(format!("hot spare {spare} is not in use"));
    }
    engine.leaves().online(leaf, None).await.map_err(fail)?;
    engine.scans().resume().await.map_err(fail)?;
    engine.scans().wait(ScanFunc::Resilver).await.map_err(fail)?;
    engine.scans().resume().await.map_err(fail)?;
    let Some(spare) = free.get(found.unwrap_or(usize::MAX)) else { return Ok(()) };
    if is_in_use(engine, spare.guid) {
        return Err(format!("hot spare {} stays although the disk is back", spare.guid));
    }
    if !is_labelled(history, spare).await {
        return Err(format!("hot spare {} does not have the labels of one", spare.guid));
    }
    history.tally().check("hot spares called in and sent back in the end");
    Ok(())
}

/// Returns a leaf for which a hot spare is called in if it fails: one that may fail, of a vdev with
/// data, for which nothing stands in.
fn failing_leaf(history: &History, engine: &Engine) -> Option<u64> {
    let layout = &history.plan.layout;
    let root = engine.admin().vdev_config();
    if engine.removals().removing().is_some() {
        return None;
    }
    let is_group = |kind: &VdevKind| matches!(kind, VdevKind::Spare | VdevKind::Replacing);
    let mut parents = root.walk().filter(|vdev| !is_group(&vdev.kind));
    let may_fail = |leaf: &&VdevConfig| {
        let is_log =
            root.children.iter().any(|top| top.top.is_log && top.find(leaf.guid).is_some());
        leaf.kind.is_real_leaf()
            && !is_log
            && disk_of(leaf).is_some_and(|disk| layout.victims.contains(&disk))
    };
    parents.find_map(|parent| parent.children.iter().find(may_fail).map(|leaf| leaf.guid))
}

/// Returns the hot spares that stand in for no leaf, in their order.
async fn free(engine: &Engine) -> Checked<Vec<VdevConfig>> {
    let view = engine.view().await.map_err(fail)?;
    let root = engine.admin().vdev_config();
    Ok(listed(&view).into_iter().filter(|spare| root.find(spare.guid).is_none()).collect())
}

/// Whether the device of a hot spare is not open, and has the labels of that spare.
async fn is_labelled(history: &History, spare: &VdevConfig) -> bool {
    let disks = Disks(Arc::downgrade(&history.machine));
    let path = spare.leaf.path.as_ref().map(ToString::to_string).unwrap_or_default();
    let Some(device) = disks.open(&path, OpenMode::Exclusive).await else { return false };
    let found = Found::read(device).await;
    found.is_some_and(|found| found.guid() == spare.guid && found.config.member.is_none())
}
