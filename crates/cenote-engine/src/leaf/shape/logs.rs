//! Log vdevs that leave the pool: `zpool remove` (spec 06 §10).
//!
//! ```text
//!   no log begins, all logs end ──syncs──> nothing is allocated on the vdev
//!       ──> maps and objects of the vdev are freed, its slot is a hole: one txg
//!       ──> no I/O in flight ──> labels of devices without a pool
//! ```
//!
//! Commits use a sync meanwhile. A crash leaves the vdev, or the hole: its devices then have labels
//! of an older txg, which are ignored while any other device of the pool is there.

use std::sync::Arc;

use cenote_block::alloc::SpaceAllocator;
use cenote_dmu::Tx;
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::leaf_work::LeafWorkKind;
use cenote_rt::Result;
use cenote_rt::seeded::{Bug, is_on};

use super::{Shape, ShapeError, Space, free_objects, path_for_history};
use crate::admin::birth;
use crate::admin::events::{Event, PoolEvent};
use crate::dsl::{Env, history};
use crate::leaf::leafwork::Stop;
use crate::space::{checkpoint, metaslabs};
use crate::{Config, Leaves};

impl Leaves<'_> {
    /// Removes a log vdev from the pool once no intent log has blocks there. Its devices are
    /// relabelled, so that they are no pool's.
    ///
    /// # Errors
    /// [`ShapeError::NoSuchLeaf`] if `guid` is no log vdev, [`ShapeError::InUse`] if
    /// operations of an earlier import are to be replayed, a
    /// [`CheckpointError`](crate::CheckpointError), and nothing was changed; errors of a sync.
    pub async fn remove_log(self, guid: u64) -> Result<()> {
        // The devices are to be given back.
        self.engine
            .even_alone(move |engine| async move { engine.leaves().remove_log_here(guid).await })
            .await
    }

    async fn remove_log_here(self, guid: u64) -> Result<()> {
        let engine = self.engine;
        engine.space().check_no_checkpoint()?;
        let top = check_log(&engine.config().root, guid)?.clone();
        self.check_logs_replayed()?;
        for leaf in top.leaves() {
            for kind in [LeafWorkKind::Trim, LeafWorkKind::Initialize] {
                self.stop_work_if_any(leaf.guid, kind, Stop::Cancel).await?;
            }
        }
        let is_drained = !is_on(Bug::LogRemovedInUse);
        // Until the vdev is gone, so that no log begins there.
        let _frozen = if is_drained { Some(engine.intent_logs().drain().await?) } else { None };
        let alloc = Arc::clone(&engine.alloc);
        let change = move |tx: &mut Tx<'_>, env: &Env, config: &mut Config| {
            checkpoint::check_none(tx)?;
            // The shape may have changed since.
            let top = check_log(&config.root, guid)?.clone();
            // Checks SH3. A block that no log has is that of a damaged pool.
            if is_used(&alloc, top.id, env.txg) && is_drained {
                return Err(ShapeError::InUse.into());
            }
            metaslabs::free_maps(tx, &top)?;
            for leaf in top.leaves() {
                free_objects(tx, leaf, env.txg)?;
            }
            if let Some(object) = top.top.zap_top {
                birth::remove_leaf_zap(tx, object)?;
            }
            let hole = VdevConfig::hole(top.id);
            if let Some(slot) = config.root.children.iter_mut().find(|other| other.id == top.id) {
                *slot = hole.clone();
            }
            config.facts.hole_array.push(top.id);
            config.facts.hole_array.sort_unstable();
            let (pool, path) = (&config.facts.name, path_for_history(&top));
            let text = format!("{pool} vdev {} (log) {path}", top.id);
            history::log_pool(tx, env, "vdev remove", &text)?;
            Ok((vec![Shape { space: Space::Removed, ..Shape::of(hole) }], top))
        };
        let (top, retired) = self.reshape(change, None).await?;
        engine.health.damage.note(Event::Pool(PoolEvent::LogRemoved(guid)));
        for id in retired {
            let gone = engine.tree.leaf(id).guid();
            if let Some(leaf) = top.find(gone) {
                self.give_back(id, leaf).await;
            }
        }
        Ok(())
    }

    /// Fails while operations of an earlier import are to be replayed: they may be on any log vdev.
    pub(super) fn check_logs_replayed(self) -> std::result::Result<(), ShapeError> {
        let heads = self.engine.heads.all();
        let has_claimed = heads.iter().any(|head| head.log().is_claimed());
        if has_claimed { Err(ShapeError::InUse) } else { Ok(()) }
    }
}

/// Whether anything is allocated on a vdev, or changes there in the syncing txg or in the open one.
fn is_used(alloc: &SpaceAllocator, vdev: u64, txg: u64) -> bool {
    let changed = (txg..=txg + 1).flat_map(|txg| alloc.changed(txg));
    alloc.metaslab_figures(vdev).iter().any(|metaslab| metaslab.allocated > 0)
        || changed.into_iter().any(|(changed, _)| changed == vdev)
}

/// Returns the log vdev with this guid.
fn check_log(root: &VdevConfig, guid: u64) -> std::result::Result<&VdevConfig, ShapeError> {
    let top = root.children.iter().find(|top| top.guid == guid && guid != 0);
    top.filter(|top| top.top.is_log && top.kind.is_concrete()).ok_or(ShapeError::NoSuchLeaf)
}
