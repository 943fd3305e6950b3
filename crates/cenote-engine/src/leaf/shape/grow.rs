//! Vdevs whose devices have become longer: `zpool reopen`, `zpool online -e`, property
//! `autoexpand` (spec 06 §10).
//!
//! A vdev becomes larger when all of its devices have room, and all of them are in service. The
//! space behind the old end is allocated from once the txg that records the new size is committed:
//! an import before that would take the blocks there for lost. Labels at the new end come first, in
//! a txg of their own.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_block::alloc::Class;
use cenote_dmu::Tx;
use cenote_ondisk::config::VdevConfig;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Result};
use cenote_vdev::{Leaf, Tree, VdevState, labels, layout};

use super::{Shape, Space};
use crate::dsl::{Env, history};
use crate::{Answer, Config, Leaves, Scope, Task};

impl Leaves<'_> {
    /// Adopts the sizes of devices that have become longer: the labels at their ends move, and
    /// their vdevs can become larger. With the property `autoexpand` they do.
    ///
    /// # Errors
    /// Errors of a sync.
    pub async fn adopt_sizes(self) -> Result<()> {
        self.note_sizes().await?;
        self.expand_if_wanted().await
    }

    /// Lets vdevs become as large as their devices allow: that of the leaf `guid`, or all.
    ///
    /// # Errors
    /// Errors of a sync.
    pub async fn expand(self, guid: Option<u64>) -> Result<()> {
        self.note_sizes().await?;
        let tree = &self.engine.tree;
        let all = tree.leaves().map(|(_, leaf)| leaf);
        let is_healthy =
            |guid| tree.vdev(guid).is_some_and(|vdev| vdev.state() == VdevState::Healthy);
        all.filter(|leaf| guid.is_none_or(|guid| leaf.guid() == guid))
            .filter(|leaf| is_healthy(leaf.guid()))
            .for_each(Leaf::use_all);
        if larger_tops(&self.engine.config().root, tree).is_empty() {
            return Ok(());
        }
        let (tree, alloc) = (Arc::clone(tree), Arc::clone(&self.engine.alloc));
        let change = move |tx: &mut Tx<'_>, env: &Env, config: &mut Config| {
            let mut shapes = Vec::new();
            let (mut before, mut more) = (0, 0);
            for vdev in alloc.vdev_figures() {
                let is_log = vdev.class == Class::Log;
                before += if is_log { 0 } else { vdev.space.space };
            }
            for (id, asize) in larger_tops(&config.root, &tree) {
                let Some(top) = config.root.children.iter_mut().find(|top| top.id == id) else {
                    continue;
                };
                let shift = top.top.metaslab_shift as u32;
                let count = |asize| layout::metaslab_count(asize, shift);
                more += (count(asize) - count(top.top.asize)) << shift;
                let old = std::mem::replace(&mut top.top.asize, asize);
                shapes.push(Shape { space: Space::Grown, ..Shape::of(top.clone()) });
                if is_on(Bug::NewSizeNotRecorded) {
                    top.top.asize = old;
                }
            }
            let text = format!("pool '{}' size: {}(+{more})", config.facts.name, before + more);
            history::log_pool(tx, env, "vdev online", &text)?;
            Ok((shapes, ()))
        };
        self.reshape(change, None).await.map(drop)
    }

    /// Like [`expand`](Self::expand), if the pool has the property `autoexpand`.
    pub(crate) async fn expand_if_wanted(self) -> Result<()> {
        if self.engine.leaf.autoexpand.load(Ordering::Relaxed) {
            self.expand(None).await?;
        }
        Ok(())
    }

    /// Adopts the sizes of devices. The labels are written in the same txg.
    async fn note_sizes(self) -> Result<()> {
        let mut is_any = false;
        for (_, leaf) in self.engine.tree.leaves() {
            let Some(device) = leaf.device().filter(|_| leaf.is_writable()) else { continue };
            // A device that does not answer is not this request's error.
            is_any |= device.current_size().await.is_ok_and(|size| size > device.info().size);
        }
        if !is_any {
            return Ok(());
        }
        let answer = Answer::new();
        self.engine.run_task(Box::new(AdoptSizes { answer: Arc::clone(&answer) })).await?;
        answer.take()
    }
}

/// The task that adopts the sizes of devices: in a sync, so that no commit runs meanwhile.
struct AdoptSizes {
    answer: Arc<Answer<()>>,
}

impl Task for AdoptSizes {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let engine = scope.engine;
            let _probing = engine.leaves().lock_service().await;
            for (id, leaf) in engine.tree.leaves() {
                // A leaf that fails is probed in this sync, as after any failed I/O.
                if leaf.adopt_size().await.is_ok_and(|has_grown| has_grown) {
                    drop(labels::copy_uberblocks(&engine.tree, id).await);
                }
            }
            if !is_on(Bug::LabelsNotMoved) {
                scope.change_config(Config::touch);
            }
            self.answer.put(Ok(()));
            Ok(())
        })
    }
}

/// Returns the ids of the top-level vdevs that can get more metaslabs, with their new sizes.
fn larger_tops(root: &VdevConfig, tree: &Tree) -> Vec<(u64, u64)> {
    let used = |leaf: &VdevConfig| tree.leaf(tree.leaf_of(leaf.guid)?).used_size();
    let larger = |top: &VdevConfig| {
        let is_whole = tree.top(top.id).is_some_and(|vdev| vdev.state() == VdevState::Healthy);
        if !top.kind.is_concrete() || top.top.removing || !is_whole {
            return None;
        }
        let most = layout::asize(top, top.top.ashift as u32, &used)?;
        let count = |asize| layout::metaslab_count(asize, top.top.metaslab_shift as u32);
        (count(most) > count(top.top.asize)).then_some((top.id, most))
    };
    root.children.iter().filter_map(larger).collect()
}
