//! RAID-Z vdevs get one more child: `zpool attach` of a RAID-Z, and the end of the expansion (spec
//! 06 §5.4). What happens in between is in [`crate::leaf::reflow`].
//!
//! Invariants
//! * RF6  The new width begins after the open txg, whose blocks may have been allocated with the
//!   old one.

use std::sync::Arc;

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::label;
use cenote_ondisk::leaf_work::LeafWorkKind;
use cenote_ondisk::vdev_zap::{
    RAIDZ_EXPAND_COPIED, RAIDZ_EXPAND_END, RAIDZ_EXPAND_START, RAIDZ_EXPAND_STATE,
};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Result, ensure};
use cenote_vdev::{Tree, VdevState, layout};

use super::{NewLeaf, Shape, ShapeError, TXGS_IN_FLIGHT, check_resync, path_of};
use crate::admin::birth;
use crate::admin::events::{Event, PoolEvent};
use crate::dsl::{Env, features, history};
use crate::leaf::leafwork::Stop;
use crate::leaf::reflow::{self, FEATURE};
use crate::space::checkpoint;
use crate::{Config, Leaves, RemovalError};

/// Stored state of a running expansion, and of a finished one.
const RUNNING: u64 = 1;
const FINISHED: u64 = 2;
/// Txgs that may use the old width when an expansion ends: the syncing one, and as in OpenZFS two
/// more.
const TXGS_OF_OLD_WIDTH: u64 = 3;

impl Leaves<'_> {
    /// Adds a leaf to the RAID-Z vdev `guid`. Returns when it is a part of the pool; its data is
    /// then to be moved ([`resume_reflow`](Self::resume_reflow)).
    ///
    /// # Errors
    /// A [`ShapeError`], a [`CheckpointError`](crate::CheckpointError),
    /// [`RemovalError::InProgress`], or an error of the new device, and nothing was changed but the
    /// labels of that device; errors of a sync.
    pub async fn expand_raidz(self, guid: u64, new: NewLeaf) -> Result<()> {
        let engine = self.engine;
        let _one = engine.leaf.reflow.control().await;
        engine.space().check_no_checkpoint()?;
        engine.removals().check_none()?;
        let root = engine.config().root;
        check_expand(&root, &engine.tree, guid, &new)?;
        if !engine.mos.inspect(|tx| features::is_enabled(tx, FEATURE)).await? {
            return Err(ShapeError::NoExpansionFeature.into());
        }
        let device = new.device.clone().ok_or(ShapeError::TooSmall)?;
        self.label_new(&*device, &new.config).await?;
        // Neither may touch sectors that are about to move.
        for leaf in root.find(guid).into_iter().flat_map(VdevConfig::leaves) {
            for kind in [LeafWorkKind::Trim, LeafWorkKind::Initialize] {
                self.stop_work_if_any(leaf.guid, kind, Stop::Suspend).await?;
            }
        }
        engine.tree.expansion().reset().await;
        let tree = Arc::clone(&engine.tree);
        let change = move |tx: &mut Tx<'_>, env: &Env, config: &mut Config| {
            checkpoint::check_none(tx)?;
            if config.root.children.iter().any(|top| top.top.removing) {
                return Err(RemovalError::InProgress.into());
            }
            // The shape may have changed since.
            check_expand(&config.root, &tree, guid, &new)?;
            check_resync(tx, &config.root, false)?;
            let mut leaf = new.config.clone();
            if config.has_vdev_zaps {
                birth::add_leaf_zap(tx, &mut leaf)?;
            }
            let pool = config.facts.name.clone();
            let top = config.root.find_mut(guid).ok_or(ShapeError::NoSuchLeaf)?;
            (leaf.id, leaf.create_txg) = (top.children.len() as u64, top.create_txg);
            let (added, path) = (leaf.guid, path_of(&leaf));
            top.children.push(leaf);
            let VdevKind::RaidZ(raidz) = &mut top.kind else {
                return Err(ShapeError::NotAMirror.into());
            };
            raidz.expanding = true;
            let name = format!("raidz{}-{}", raidz.nparity, top.id);
            features::add(tx, FEATURE, 1)?;
            record_start(tx, env, top)?;
            log(tx, env, (&pool, top), "started")?;
            let text = format!("attach vdev={path} to vdev={name}");
            history::log_pool(tx, env, "vdev attach", &text)?;
            let shape =
                Shape { added: Some(added), is_added_empty: true, ..Shape::of(top.clone()) };
            Ok((vec![shape], added))
        };
        let (added, _) = self.reshape(change, Some(device)).await?;
        engine.health.damage.note(Event::Pool(PoolEvent::Attached(added)));
        self.apply_error_rates().await
    }

    /// Ends the expansion of a vdev whose data was moved: new blocks use the new width from here
    /// on, as soon as no txg uses the old one.
    pub(crate) async fn finish_expansion(self, vdev: u64) -> Result<()> {
        let (tree, next) = (Arc::clone(&self.engine.tree), self.engine.leaf.reflow.next());
        let change = move |tx: &mut Tx<'_>, env: &Env, config: &mut Config| {
            let pool = config.facts.name.clone();
            let tops = &mut config.root.children;
            let top = tops.iter_mut().find(|top| top.id == vdev).ok_or(ShapeError::NoSuchLeaf)?;
            let is_moved = tree.expansion().progress().offset >= layout::min_asize(top);
            match &mut top.kind {
                VdevKind::RaidZ(raidz) if raidz.expanding && is_moved => {
                    raidz.expanding = false;
                    let early = is_on(Bug::ReflowWidensEarly);
                    let after = if early { 0 } else { TXGS_OF_OLD_WIDTH };
                    let first = env.txg + after;
                    let last = env.txg + TXGS_IN_FLIGHT;
                    ensure!("RF6", first > last, "txg {last} is open with the old width");
                    raidz.expand_txgs.push(first);
                }
                _ => return Err(ShapeError::Expanding.into()),
            }
            if let Some(object) = top.top.zap_top {
                zap::update(tx, object, RAIDZ_EXPAND_STATE, FINISHED)?;
                zap::update(tx, object, RAIDZ_EXPAND_END, env.now)?;
            }
            log(tx, env, (&pool, top), "completed")?;
            next.set(0, None);
            Ok((vec![Shape::of(top.clone())], ()))
        };
        self.reshape(change, None).await.map(drop)
    }
}

fn record_start(tx: &mut Tx<'_>, env: &Env, top: &VdevConfig) -> TxResult<()> {
    let object = top.top.zap_top.ok_or(ShapeError::NoVdevObject)?;
    zap::update(tx, object, RAIDZ_EXPAND_STATE, RUNNING)?;
    zap::update(tx, object, RAIDZ_EXPAND_START, env.now)?;
    for key in [RAIDZ_EXPAND_END, RAIDZ_EXPAND_COPIED] {
        if zap::lookup_u64(tx, object, key)?.is_some() {
            zap::remove(tx, object, key)?;
        }
    }
    Ok(())
}

fn log(tx: &mut Tx<'_>, env: &Env, (pool, top): (&str, &VdevConfig), what: &str) -> TxResult<()> {
    let text = format!("{pool} vdev {} new width {}", top.id, top.children.len());
    history::log_pool(tx, env, &format!("raidz vdev expansion {what}"), &text)
}

/// Checks whether `new` can come to the RAID-Z vdev `guid`.
fn check_expand(
    root: &VdevConfig,
    tree: &Tree,
    guid: u64,
    new: &NewLeaf,
) -> std::result::Result<(), ShapeError> {
    let top = root.children.iter().find(|top| top.guid == guid).ok_or(ShapeError::NoSuchLeaf)?;
    if !matches!(top.kind, VdevKind::RaidZ(_)) {
        return Err(ShapeError::NotAMirror);
    }
    // OpenZFS has the same words for both.
    if new.is_sequential {
        return Err(ShapeError::NoExpansionFeature);
    }
    if reflow::expanding(root).is_some() {
        return Err(ShapeError::Expanding);
    }
    if root.find(new.config.guid).is_some() {
        return Err(ShapeError::Replacing);
    }
    let room = new.device.as_ref().map_or(0, |device| label::leaf_asize(device.info().size));
    let least = layout::min_child_asize(top, layout::min_asize(top));
    if room == 0 || room < least {
        return Err(ShapeError::TooSmall);
    }
    if new.ashift > top.top.ashift {
        return Err(ShapeError::Ashift);
    }
    // The first row must fit into the boot areas, so that later rows do not overlap themselves.
    let width = top.children.len() as u64 + 1;
    if width > 255 || width << top.top.ashift.min(16) > label::BOOT_REGION_LEN {
        return Err(ShapeError::TooWide);
    }
    if top.top.zap_top.is_none() {
        return Err(ShapeError::NoVdevObject);
    }
    let is_healthy = |child: &VdevConfig| {
        let vdev = tree.vdev(child.guid);
        child.kind.is_leaf() && vdev.is_some_and(|vdev| vdev.state() == VdevState::Healthy)
    };
    if top.children.iter().all(is_healthy) { Ok(()) } else { Err(ShapeError::NotWhole) }
}
