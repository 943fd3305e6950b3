//! Begins the removal of a vdev.
//!
//! ```text
//!   check ──> trim, initialize, logs end ──> no allocations there ──> two txgs ──> the removal
//! ```
//!
//! Blocks allocated before are recorded by the open txg at the latest, so two syncs later the space
//! maps have all of them, and they are written (RV2). Logs begin again afterwards, elsewhere.

use std::sync::Arc;

use super::check::{self, Room};
use super::{RemovalError, record};
use crate::dsl::{features, history};
use crate::leaf::leafwork::{LeafWorkError, Stop};
use crate::leaf::shape;
use crate::space::checkpoint;
use crate::{Answer, Engine, Scope, Task};
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::indirect::{Mapping, RemovingPhys};
use cenote_ondisk::leaf_work::LeafWorkKind;
use cenote_pool::mos::DIRECTORY;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Result, ensure};

/// Begins the removal of the vdev with this guid.
pub(super) async fn begin(engine: &Engine, guid: u64) -> Result<()> {
    engine.space().check_no_checkpoint()?;
    let root = engine.config().root;
    let vdev = check::find(&root, guid)?;
    let (id, leaves): (_, Vec<_>) = (vdev.id, vdev.leaves().map(|leaf| leaf.guid).collect());
    if !engine.mos.inspect(|tx| features::is_enabled(tx, record::FEATURE)).await? {
        return Err(RemovalError::NotSupported.into());
    }
    let room = Room::of(engine, id).ok_or(RemovalError::NoSuchVdev)?;
    let env = engine.datasets().env(engine.open_txg());
    engine.mos.inspect(|tx| room.check(tx, &env)).await?;
    check::check(engine, &root, vdev)?;
    cancel_work(engine, &leaves).await?;
    // Order 1.
    let logs = if is_on(Bug::LogsStayOnRemovedVdev) {
        None
    } else {
        Some(engine.intent_logs().end_all().await?)
    };
    let mut reserved = Reserved { engine, vdev: id, is_kept: false };
    engine.alloc.set_allocating(id, false);
    // The open txg, and the one that is being synced, may have blocks there.
    engine.sync().await?;
    engine.sync().await?;
    drop(logs);
    let answer = Answer::new();
    let task = Begin { guid, answer: Arc::clone(&answer) };
    engine.run_task(Box::new(task)).await?;
    answer.take()?;
    reserved.is_kept = true;
    Ok(())
}

/// A vdev without allocations; they are allowed again if the removal does not begin.
struct Reserved<'e> {
    engine: &'e Engine,
    vdev: u64,
    is_kept: bool,
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if !self.is_kept && self.engine.removals().removing() != Some(self.vdev) {
            let is_allocating = self.engine.with_config(|config| {
                let top = config.root.children.iter().find(|top| top.id == self.vdev);
                top.is_none_or(|top| !top.top.non_allocating)
            });
            self.engine.alloc.set_allocating(self.vdev, is_allocating);
        }
    }
}

/// Cancels trim and initialize on leaves.
async fn cancel_work(engine: &Engine, leaves: &[u64]) -> Result<()> {
    for leaf in leaves {
        for kind in [LeafWorkKind::Trim, LeafWorkKind::Initialize] {
            match engine.leaves().stop_work(&[*leaf], kind, Stop::Cancel).await {
                Ok(()) => {}
                Err(error) if error.cause::<LeafWorkError>().is_some() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// The task that records the beginning.
struct Begin {
    guid: u64,
    answer: Arc<Answer<()>>,
}

impl Task for Begin {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let before = engine.config();
            let env = engine.datasets().env(context.txg);
            let to_copy = |vdev: u64| {
                let metaslabs = engine.alloc.metaslab_figures(vdev);
                metaslabs.iter().map(|metaslab| metaslab.allocated).sum()
            };
            let result = engine
                .mos_apply(context.txg, |tx| {
                    checkpoint::check_none(tx)?;
                    // The closure may run several times: each time from the same state.
                    let mut config = before.clone();
                    let found = check::find(&config.root, self.guid)?;
                    check::check(engine, &config.root, found)?;
                    let mut top = found.clone();
                    record::create(tx, &mut top)?;
                    let prev = record::state(tx)?.and_then(|state| state.prev_indirect_vdev);
                    record::set_state(
                        tx,
                        &RemovingPhys {
                            state: record::RUNNING,
                            removing_vdev: top.id,
                            prev_indirect_vdev: prev,
                            start_time: env.now,
                            end_time: 0,
                            to_copy: to_copy(top.id),
                            copied: 0,
                        },
                    )?;
                    rewrite_directory(tx)?;
                    let path = shape::path_for_history(&top);
                    let text = format!("{} vdev {} {path}", before.facts.name, top.id);
                    history::log_pool(tx, &env, "vdev remove started", &text)?;
                    let id = top.id;
                    if let Some(place) = config.root.children.iter_mut().find(|top| top.id == id) {
                        *place = top;
                    }
                    Ok((id, config))
                })
                .await;
            let Some((id, mut config)) = self.answer.unless_refused(result)? else {
                return Ok(());
            };
            let logs = engine.heads.all().into_iter().filter(|head| head.log().has_blocks_on(id));
            let count = logs.count();
            ensure!("RV2", count == 0, "{count} logs have blocks on vdev {id}, which is removed");
            // The MOS has the removal: from here on a failure is one of the pool.
            engine.removals().note_lacking(false);
            engine.store.moved().begin(id, Mapping::default())?;
            config.touch();
            scope.replace_config(config)?;
            self.answer.put(Ok(()));
            Ok(())
        })
    }
}

/// Writes every block of the pool directory, so that none stays on the vdev: the directory is read
/// before the mappings.
fn rewrite_directory(tx: &mut Tx<'_>) -> TxResult<()> {
    let dnode = tx.dnode(DIRECTORY)?;
    let (size, last) = (dnode.data_block_size(), dnode.maxblkid);
    for block in 0..=last {
        if let Some(data) = tx.block(DIRECTORY, block)? {
            tx.write(DIRECTORY, block * size, &data)?;
        }
    }
    Ok(())
}
