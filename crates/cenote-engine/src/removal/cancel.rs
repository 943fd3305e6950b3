//! Cancels a removal: its copies are freed, and the vdev is used as before.

use std::sync::Arc;

use cenote_block::alloc::Occupied;
use cenote_dmu::zap::edit as zap;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Result, ensure};

use super::copy::Source;
use super::{RemovalError, record};
use crate::admin::vdev_props::ALLOCATING;
use crate::dsl::history;
use crate::leaf::shape;
use crate::{Answer, Engine, Scope, Task};

/// Cancels the removal.
pub(super) async fn cancel(engine: &Engine) -> Result<()> {
    let answer = Answer::new();
    engine.run_task(Box::new(Cancel { answer: Arc::clone(&answer) })).await?;
    answer.take()
}

/// The task that cancels a removal.
struct Cancel {
    answer: Arc<Answer<()>>,
}

impl Task for Cancel {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let before = engine.config();
            let env = engine.datasets().env(context.txg);
            let found = Source::of(engine).and_then(|source| {
                let top = before.root.children.iter().find(|top| top.id == source.vdev)?;
                Some((source, top))
            });
            let Some((source, top)) = found else {
                self.answer.put(Err(RemovalError::NotRunning.into()));
                return Ok(());
            };
            let result = engine
                .mos_apply(context.txg, |tx| {
                    // The closure may run several times: each time from the same state.
                    let mut config = before.clone();
                    let mut top = top.clone();
                    let mut state = record::running(tx, top.id)?;
                    (state.state, state.end_time) = (record::CANCELED, env.now);
                    record::set_state(tx, &state)?;
                    record::destroy(tx, &mut top)?;
                    let allocating = match top.top.zap_top {
                        Some(zap_top) => zap::lookup_u64(tx, zap_top, ALLOCATING)?,
                        None => None,
                    };
                    top.top.removing = false;
                    top.top.non_allocating = allocating == Some(0);
                    let text = format!(
                        "{} vdev {} {}",
                        before.facts.name,
                        top.id,
                        shape::path_for_history(&top)
                    );
                    history::log_pool(tx, &env, "vdev remove canceled", &text)?;
                    let is_allocating = !top.top.non_allocating;
                    let id = top.id;
                    if let Some(place) = config.root.children.iter_mut().find(|top| top.id == id) {
                        *place = top;
                    }
                    config.touch();
                    Ok((config, is_allocating))
                })
                .await;
            let Some((config, is_allocating)) = self.answer.unless_refused(result)? else {
                return Ok(());
            };
            // The MOS has no removal any more: from here on a failure is one of the pool.
            if !is_on(Bug::CancelledCopiesKept) {
                free_copies(engine, &source, context.txg).await?;
            }
            drop(engine.store.moved().end());
            engine.alloc.set_allocating(source.vdev, is_allocating);
            scope.replace_config(config)?;
            self.answer.put(Ok(()));
            Ok(())
        })
    }
}

/// Frees the copies of everything that is still allocated on the vdev. Copies of what was freed
/// meanwhile are free already.
async fn free_copies(engine: &Engine, source: &Source, txg: u64) -> Result<()> {
    let moved = engine.store.moved();
    let copied = moved.copied_up_to().map_or(0, |(_, end)| end);
    for metaslab in 0..source.metaslabs {
        let allocated = Occupied::of(&engine.alloc).ranges(source.vdev, metaslab).await?;
        for range in allocated.within(&(0..copied)) {
            let copies = moved.copies(range.start, range.end - range.start);
            ensure!("MV1", copies.is_some(), "{range:?} of vdev {} has no copy", source.vdev);
            for copy in copies.unwrap_or_default() {
                engine.alloc.free_range(copy.vdev.into(), copy.vdev_offset, copy.size, txg)?;
            }
        }
    }
    Ok(())
}
