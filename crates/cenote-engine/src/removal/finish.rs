//! Ends a removal: an indirect vdev takes the place of the vdev, in one txg.

use std::sync::Arc;
use std::time::Duration;

use cenote_block::alloc::{Occupied, Pin};
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::{PoolFacts, TopConfig, VdevConfig, VdevKind, label_list};
use cenote_ondisk::vdev_zap::ALLOCATION_BIAS;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Result, ensure};
use cenote_vdev::{LeafId, labels};

use super::copy::Source;
use super::{RemovalError, record};
use crate::admin::events::{Event, PoolEvent};
use crate::dsl::{features, history};
use crate::leaf::shape;
use crate::space::metaslabs;
use crate::{Answer, Config, Engine, Scope, Task};

/// Time for I/O in flight on the devices.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Ends the removal of a vdev of which everything was copied.
pub(super) async fn finish(engine: &Engine) -> Result<()> {
    // The devices are to be given back.
    engine.even_alone(|engine| async move { finish_here(&engine).await }).await
}

async fn finish_here(engine: &Engine) -> Result<()> {
    check_mapped(engine).await?;
    let answer = Answer::new();
    let guid = crate::create::new_guid()?;
    let task = Finish { guid, answer: Arc::clone(&answer) };
    engine.run_task(Box::new(task)).await?;
    let Removed { top, retired, indirect } = answer.take()?;
    engine.health.damage.note(Event::Pool(PoolEvent::Removed(top.guid)));
    // Order 3.
    for (id, leaf) in retired {
        engine.leaves().relabel(clear_labels(engine, id, &leaf, &indirect)).await;
    }
    engine.removals().after_end().await
}

/// Checks that each allocated byte is mapped (RV1). Frees after that make no difference.
async fn check_mapped(engine: &Engine) -> Result<()> {
    let Some(source) = Source::of(engine) else { return Err(RemovalError::NotRunning.into()) };
    for metaslab in 0..source.metaslabs {
        for range in Occupied::of(&engine.alloc).ranges(source.vdev, metaslab).await?.iter() {
            let is_mapped =
                engine.store.moved().copies(range.start, range.end - range.start).is_some();
            ensure!("RV1", is_mapped, "{range:?} of vdev {} was not copied", source.vdev);
        }
    }
    Ok(())
}

/// Clears the labels of a device, if it answers: it belongs to no pool.
async fn clear_labels(engine: &Engine, id: LeafId, leaf: &VdevConfig, indirect: &VdevConfig) {
    let Some(device) = engine.tree.take_device(id, IDLE_TIMEOUT).await else { return };
    if is_on(Bug::RemovedKeepsLabels) {
        return;
    }
    let facts = PoolFacts { txg: 0, ..engine.config().stored() };
    let list = label_list(&facts, indirect, leaf.guid);
    // A device that fails cannot be relabelled; its labels are of an earlier txg.
    if labels::write_initial(&*device, &list).await.is_ok() {
        drop(device.flush().await);
    }
}

/// A vdev that was removed.
struct Removed {
    top: VdevConfig,
    retired: Vec<(LeafId, VdevConfig)>,
    indirect: VdevConfig,
}

/// The task that ends a removal.
struct Finish {
    /// Guid of the indirect vdev.
    guid: u64,
    answer: Arc<Answer<Removed>>,
}

impl Task for Finish {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let before = engine.config();
            let env = engine.datasets().env(context.txg);
            let vdev = engine.removals().removing();
            let top = before.root.children.iter().find(|top| Some(top.id) == vdev);
            let Some(top) = top else {
                self.answer.put(Err(RemovalError::NotRunning.into()));
                return Ok(());
            };
            let skipped = engine.store.moved().take_skipped();
            let result = engine
                .mos_apply(context.txg, |tx| {
                    // The closure may run several times: each time from the same state.
                    let mut config = before.clone();
                    let mut state = record::running(tx, top.id)?;
                    let indirect = indirect_of(top, self.guid, state.prev_indirect_vdev);
                    state.copied = state.copied.saturating_add(skipped);
                    state.state = record::FINISHED;
                    state.prev_indirect_vdev = Some(top.id);
                    state.end_time = env.now;
                    record::set_state(tx, &state)?;
                    free_objects(tx, top, env.txg)?;
                    let text = format!("{} vdev {}", before.facts.name, top.id);
                    history::log_pool(tx, &env, "vdev remove completed", &text)?;
                    replace_top(&mut config, &indirect);
                    Ok((config, indirect))
                })
                .await;
            let Some((config, indirect)) = self.answer.unless_refused(result)? else {
                return Ok(());
            };
            // The MOS has the indirect vdev: from here on a failure is one of the pool.
            // Order 4.
            Pin::overtake_all(&engine.alloc);
            let mapping = engine.store.moved().end();
            let mapping = mapping.ok_or(RemovalError::NoMapping(top.id))?;
            engine.tree.set_indirect(top.id, Arc::new(mapping));
            let reshaped = engine.tree.reshape(&indirect, None, |_| None)?;
            engine.alloc.remove_vdev(top.id)?;
            scope.replace_config(config)?;
            let by_guid = |id: LeafId| {
                let guid = engine.tree.leaf(id).guid();
                Some((id, top.find(guid)?.clone()))
            };
            let retired = reshaped.retired.into_iter().filter_map(by_guid).collect();
            self.answer.put(Ok(Removed { top: top.clone(), retired, indirect }));
            Ok(())
        })
    }
}

/// Returns the config of the indirect vdev that takes the place of `top`.
fn indirect_of(top: &VdevConfig, guid: u64, prev: Option<u64>) -> VdevConfig {
    let facts = TopConfig {
        metaslab_array: 0,
        removing: false,
        non_allocating: true,
        prev_indirect_vdev: prev,
        ..top.top.clone()
    };
    VdevConfig {
        kind: VdevKind::Indirect,
        guid,
        create_txg: top.create_txg,
        top: facts,
        ..VdevConfig::hole(top.id)
    }
}

fn replace_top(config: &mut Config, indirect: &VdevConfig) {
    if let Some(place) = config.root.children.iter_mut().find(|top| top.id == indirect.id) {
        *place = indirect.clone();
    }
    config.touch();
}

/// Frees the space maps of a vdev, and what its leaves have in the MOS.
fn free_objects(tx: &mut Tx<'_>, top: &VdevConfig, txg: u64) -> TxResult<()> {
    metaslabs::free_maps(tx, top)?;
    if let Some(zap_top) = top.top.zap_top {
        let is_of_class = zap::contains(tx, zap_top, ALLOCATION_BIAS)?;
        if is_of_class && features::is_active(tx, "allocation_classes")? {
            zap::remove(tx, zap_top, ALLOCATION_BIAS)?;
            features::add(tx, "allocation_classes", -1)?;
        }
    }
    top.leaves().try_for_each(|leaf| shape::free_objects(tx, leaf, txg))
}
