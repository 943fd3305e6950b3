//! One side of each mirror becomes a pool of its own: `zpool split` (spec 06 §10).
//!
//! ```text
//!   all logs end ──syncs──> sides out of service, listed in the config: one txg (1)
//!       ──> no I/O in flight on the sides, their devices leave the tree
//!       ──> the state before (1) is opened on the devices, as a pool of another guid:
//!           its config, without everything that only the other vdevs need: one txg (2), exported
//!       ──> the sides are detached: one txg (3)
//! ```
//!
//! The new pool begins with the last state that was committed while the sides were in service: they
//! have all of it, since their dirty time logs were empty. What is written after that goes to space
//! that is free in this state.
//!
//! A crash between (1) and (2) leaves the old pool, and the next import brings the sides back,
//! which lack what was written meanwhile. A crash between (2) and (3) leaves both pools, and the
//! next import of the old one detaches the sides: their labels name the new pool, with the guid of
//! the old one as `split_guid`. The commit of (2) is one for all devices: until one of them has the
//! new uberblock, all of them belong to the old pool, whatever labels they have
//! ([`cenote_pool::import`]).
//!
//! Invariants
//! * SH5  The sides have the whole state with which the new pool begins.

use std::sync::Arc;

use cenote_block::{BlockStore, CacheConfig, Grounds};
use cenote_device::OpenMode;
use cenote_dmu::{ObjSet, Tx, TxResult};
use cenote_ondisk::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_ondisk::uberblock::Uberblock;
use cenote_pool::Pool;
use cenote_pool::import::Found;
use cenote_pool::pool::{PoolParts, assemble_apart};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result};
use cenote_vdev::{BuildOptions, DtlKind, Need, Tree, Vdev, VdevAux, VdevState};

use super::{IDLE_TIMEOUT, Shape, ShapeError, config, free_objects, path_of};
use crate::admin::PoolSetting;
use crate::admin::aux::{self, Aux};
use crate::admin::birth;
use crate::admin::create::LeafDevices;
use crate::admin::events::{Event, PoolEvent};
use crate::dsl::{self, Context, Env, history};
use crate::leaf::dtl;
use crate::space::{checkpoint, metaslabs};
use crate::{Config, Engine, EngineError, Leaves};

/// A pool that is to be made of sides of mirrors.
#[derive(Debug, Clone)]
pub struct SplitPool {
    /// Its name.
    pub name: String,
    /// The leaf of each top-level vdev that it gets, by id; `None` for log vdevs, holes and removed
    /// vdevs. Log vdevs and holes at the end are left out.
    pub leaves: Vec<Option<u64>>,
    /// Its properties, beyond those of the old pool.
    pub settings: Vec<PoolSetting>,
}

/// Why a pool is not split, in OpenZFS's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SplitError {
    /// The leaves are not one healthy side of each mirror.
    #[error("invalid argument for this pool operation")]
    Invalid,
    /// There is no such leaf.
    #[error("no such device in pool")]
    NoSuchLeaf,
    /// A side lacks data, or has the only copy of some; or intent logs are to be replayed.
    #[error("pool is busy")]
    Busy,
    /// A device does not become idle.
    #[error("a device does not answer")]
    Silent,
}

impl From<SplitError> for Error {
    fn from(error: SplitError) -> Self {
        let kind = match error {
            SplitError::Invalid => Kind::Invalid,
            SplitError::NoSuchLeaf => Kind::NotFound,
            SplitError::Busy => Kind::Busy,
            SplitError::Silent => Kind::Io,
        };
        Self::new(kind, error)
    }
}

/// The sides that left service, and the state that they have.
struct Sides {
    uberblock: Uberblock,
    /// The config of the pool in that state.
    config: PoolConfig,
    guids: Vec<u64>,
}

impl Leaves<'_> {
    /// Makes a pool of one side of each mirror, and exports it; the sides leave this pool. Returns
    /// the guid of the new pool.
    ///
    /// # Errors
    /// A [`SplitError`] or a [`CheckpointError`](crate::CheckpointError), and nothing was changed;
    /// errors of the devices, and the sides are back in service; errors of a sync.
    pub async fn split(self, new: SplitPool) -> Result<u64> {
        // The devices are without an owner meanwhile.
        self.engine.even_alone(|engine| async move { engine.leaves().split_here(new).await }).await
    }

    async fn split_here(self, new: SplitPool) -> Result<u64> {
        let engine = self.engine;
        engine.space().check_no_checkpoint()?;
        check(&engine.config().root, &engine.tree, &new.leaves)?;
        self.check_logs_replayed().map_err(|_| SplitError::Busy)?;
        for guid in new.leaves.iter().flatten() {
            self.pause_work_of(*guid).await?;
        }
        let split = self.split_paused(new).await;
        // What cannot be continued now is continued by the next import.
        drop(self.run_active_work().await);
        split
    }

    async fn split_paused(self, new: SplitPool) -> Result<u64> {
        let engine = self.engine;
        let is_drained = !is_on(Bug::SplitWithLogs);
        // The new pool has no log vdevs: its state must have no logs there.
        let _frozen = if is_drained { Some(engine.intent_logs().drain().await?) } else { None };
        let sides = match self.take_out_sides(&new).await {
            Ok(sides) => sides,
            Err(error) => {
                self.put_back(new.leaves.iter().flatten().copied().collect(), &Vec::new()).await?;
                return Err(error);
            }
        };
        let mut devices: LeafDevices = Vec::new();
        let made = async {
            self.withdraw(&sides, &mut devices).await?;
            self.make(&new, &sides, &devices).await
        };
        let guid = match made.await {
            Ok(guid) => guid,
            Err(error) => {
                self.put_back(sides.guids, &devices).await?;
                return Err(error);
            }
        };
        self.detach_sides(sides.guids).await?;
        Ok(guid)
    }

    /// Takes the sides out of service (1).
    async fn take_out_sides(self, new: &SplitPool) -> Result<Sides> {
        let engine = self.engine.shared()?;
        let leaves = new.leaves.clone();
        let mut are_taken_out = false;
        let change = move |tx: &mut Tx<'_>, _: &Context, config: &mut Config| {
            checkpoint::check_none(tx)?;
            // This txg has not written its own yet.
            let object = dsl::need_directory_object(tx, "config")?;
            let stored = cenote_dmu::nvlist::read(tx, object)?;
            let stored = PoolConfig::decode(stored).map_err(Error::corrupt)?;
            let guids: Vec<u64> = leaves.iter().flatten().copied().collect();
            // The closure may run several times. A side that another request took out of service
            // may lack a txg.
            if !std::mem::replace(&mut are_taken_out, true) {
                for root in [&config.root, &stored.vdev_tree] {
                    check(root, &engine.tree, &leaves).map_err(Error::from)?;
                }
                for guid in &guids {
                    let (state, aux) = (VdevState::Offline, VdevAux::None);
                    let tree = &engine.tree;
                    if !tree.take_out_of_service_unless_needed(*guid, state, aux, Need::OnlyCopy) {
                        return Err(Error::from(SplitError::Busy).into());
                    }
                }
            }
            for guid in &guids {
                if let Some(leaf) = config.root.find_mut(*guid) {
                    leaf.leaf.offline = true;
                }
            }
            if !is_on(Bug::SplitNotRecorded) {
                config.facts.split_leaves =
                    leaves.iter().map(|leaf| leaf.unwrap_or_default()).collect();
            }
            config.touch();
            Ok(Sides { uberblock: engine.uberblock(), config: stored, guids })
        };
        self.engine.admin().change(change).await
    }

    /// Takes the devices of the sides, once no I/O is in flight there: a late write would hit what
    /// the new pool writes.
    /// Requests that bring a side back fail afterwards: its device is open, and locked.
    async fn withdraw(self, sides: &Sides, devices: &mut LeafDevices) -> Result<()> {
        let _probing = self.lock_service().await;
        for guid in &sides.guids {
            let tree = &self.engine.tree;
            let is_out = tree.vdev(*guid).is_some_and(|vdev| vdev.state() == VdevState::Offline);
            let Some(id) = tree.leaf_of(*guid).filter(|_| is_out) else {
                return Err(SplitError::Busy.into());
            };
            let device = tree.take_device(id, IDLE_TIMEOUT).await;
            devices.push((*guid, device.ok_or(SplitError::Silent)?));
        }
        Ok(())
    }

    /// Makes the new pool on the devices (2). Returns its guid.
    async fn make(self, new: &SplitPool, sides: &Sides, devices: &LeafDevices) -> Result<u64> {
        let pool = open_sides(new, sides, devices).await?;
        let open = async {
            let made = Engine::over(&pool, sides.uberblock.txg, false).await?;
            // A removal in progress: blocks that it copied are freed in both places.
            made.removals().adopt(&pool).await?;
            Ok(made)
        };
        let made = match open.await {
            Ok(made) => made,
            Err(error) => {
                pool.tree().close(IDLE_TIMEOUT).await;
                return Err(error);
            }
        };
        drop(pool);
        // It must not wait for devices that fail.
        made.health().stop_at_failures();
        let guid = made.guid();
        let (old, kept) = (sides.config.clone(), sides.guids.clone());
        let change = move |tx: &mut Tx<'_>, env: &Env, config: &mut Config| {
            clean(tx, env.txg, &old, &kept)?;
            let text = format!("from pool {}", old.facts.name);
            history::log_pool(tx, env, "split", &text)?;
            config.touch();
            Ok((Vec::new(), ()))
        };
        // Tasks of their own: the new pool takes its locks beside those of the old one.
        let (settings, writing) = (new.settings.clone(), Arc::clone(&made));
        let written = cenote_rt::spawn(async move {
            if let Err(error) = writing.leaves().reshape(change, None).await {
                writing.close_by_force().await;
                return Err((error, false));
            }
            // It exists from here on, whatever fails.
            let set = writing.admin().set(settings).await;
            let exported = writing.export().await;
            if let Err(error) = set.and(exported) {
                writing.close_by_force().await;
                return Err((error, true));
            }
            Ok(guid)
        });
        // The old pool is being closed by force: nothing writes to its devices afterwards.
        let cut = async {
            drop(cenote_rt::spawn(async move { made.close_by_force().await }).await);
            Err((Error::new(Kind::Closed, EngineError::Closed), false))
        };
        let written = async {
            let done = written.await;
            done.unwrap_or_else(|error| Err((Error::new(Kind::Io, error), false)))
        };
        match self.before_close(written, cut).await {
            Ok(guid) => Ok(guid),
            Err((error, false)) => Err(error),
            Err((error, true)) => {
                self.detach_sides(sides.guids.clone()).await?;
                Err(error)
            }
        }
    }

    /// Detaches the sides for good (3).
    async fn detach_sides(self, guids: Vec<u64>) -> Result<()> {
        let told = guids.clone();
        let change = move |tx: &mut Tx<'_>, env: &Env, config: &mut Config| {
            let mut shapes = Vec::new();
            for guid in &guids {
                let Some(top) = config::top_of_mut(&mut config.root, *guid) else { continue };
                let removed = config::detach(top, *guid).ok_or(ShapeError::NotAGroup)?;
                // A crash in the commit leaves this label, and a config with the earlier guid; the
                // other side has another pool's labels.
                top.leaf.orig_guid = removed.renamed.map(|(was, _)| was).or(top.leaf.orig_guid);
                shapes.push(Shape { renamed: removed.renamed, ..Shape::of(top.clone()) });
                free_objects(tx, &removed.leaf, env.txg)?;
                let text = format!("vdev={}", path_of(&removed.leaf));
                history::log_pool(tx, env, "detach", &text)?;
            }
            config.facts.split_leaves = Vec::new();
            config.touch();
            Ok((shapes, ()))
        };
        self.reshape(change, None).await?;
        for guid in told {
            self.engine.health.damage.note(Event::Pool(PoolEvent::Detached(guid)));
        }
        Ok(())
    }

    /// Brings sides back that are out of service because of a split, on their devices.
    async fn put_back(self, guids: Vec<u64>, devices: &LeafDevices) -> Result<()> {
        let mut back = Vec::new();
        for guid in guids {
            let state = self.engine.tree.vdev(guid).map(Vdev::state);
            // Not a leaf that the administrator took offline just before.
            let is_ours = self.engine.with_config(|config| {
                let leaf = config.root.find(guid);
                !config.facts.split_leaves.is_empty() || leaf.is_some_and(|leaf| !leaf.leaf.offline)
            });
            if state != Some(VdevState::Offline) || !is_ours {
                continue;
            }
            let device = devices.iter().find(|(leaf, _)| *leaf == guid);
            let device = device.map(|(_, device)| Arc::clone(device));
            // A device that fails stays out of service.
            if self.engine.tree.return_to_service(guid, device).await.is_ok() {
                back.push(guid);
            }
        }
        self.end_split(back).await?;
        self.engine.scans().resume().await
    }

    /// Records that no split is in progress, and that these leaves are in service.
    async fn end_split(self, back: Vec<u64>) -> Result<()> {
        let change = move |_: &mut Tx<'_>, _: &Context, config: &mut Config| {
            for guid in &back {
                if let Some(leaf) = config.root.find_mut(*guid) {
                    leaf.leaf.offline = false;
                }
            }
            config.facts.split_leaves = Vec::new();
            config.touch();
            Ok(())
        };
        self.engine.admin().change(change).await
    }

    /// Ends a split that a crash interrupted: sides that another pool has are detached, others
    /// brought back. `others` are leaves that the labels of another pool name.
    pub(crate) async fn settle_split(self, others: &[u64]) -> Result<()> {
        let config = self.engine.config();
        if config.facts.split_guid.is_some() {
            // The pool was split off, which is complete.
            return self
                .engine
                .admin()
                .change(|_, _, config| {
                    config.facts.split_guid = None;
                    config.touch();
                    Ok(())
                })
                .await;
        }
        if config.facts.split_leaves.is_empty() {
            return Ok(());
        }
        let (mut sides, mut gone) = (Vec::new(), Vec::new());
        for guid in config.facts.split_leaves.iter().copied().filter(|guid| *guid != 0) {
            let Some(leaf) = config.root.find(guid).filter(|leaf| leaf.kind.is_leaf()) else {
                continue;
            };
            sides.push(guid);
            if others.contains(&guid) || self.is_of_another_pool(leaf).await {
                gone.push(guid);
            }
        }
        if gone.len() == sides.len() && !sides.is_empty() {
            return self.detach_sides(sides).await;
        }
        let is_kept = |guid: &u64| !gone.contains(guid);
        for guid in sides.iter().filter(|guid| is_kept(guid)) {
            drop(self.engine.tree.return_to_service(*guid, None).await);
        }
        self.end_split(sides).await
    }

    /// Whether the device at the path of a leaf is one of a pool that was split off.
    async fn is_of_another_pool(self, leaf: &VdevConfig) -> bool {
        let Some(path) = leaf.leaf.path.as_ref().and_then(|path| path.to_str()) else {
            return false;
        };
        let Some(device) = self.open_at_path(path, OpenMode::ReadOnly).await else { return false };
        let Some(found) = Found::read(device).await else { return false };
        let split = found.config.member.as_ref().and_then(|member| member.facts.split_guid);
        found.guid() == leaf.guid && split == Some(self.engine.guid())
    }
}

/// Checks whether the leaves are one healthy side of each mirror.
fn check(
    root: &VdevConfig,
    tree: &Tree,
    leaves: &[Option<u64>],
) -> std::result::Result<(), SplitError> {
    let is_empty = |top: &VdevConfig| top.top.is_log || matches!(top.kind, VdevKind::Hole);
    let count = root.children.iter().rposition(|top| !is_empty(top)).map_or(0, |last| last + 1);
    if leaves.len() != count {
        return Err(SplitError::Invalid);
    }
    for (top, leaf) in root.children.iter().zip(leaves) {
        let Some(guid) = leaf else {
            if is_empty(top) || top.kind == VdevKind::Indirect {
                continue;
            }
            return Err(SplitError::Invalid);
        };
        root.find(*guid).ok_or(SplitError::NoSuchLeaf)?;
        let is_side = top.kind == VdevKind::Mirror
            && !top.top.is_log
            && top.children.len() > 1
            && top.children.iter().any(|child| child.guid == *guid && child.kind.is_real_leaf());
        let is_healthy = tree.vdev(*guid).is_some_and(|vdev| vdev.state() == VdevState::Healthy);
        if !is_side || !is_healthy {
            return Err(SplitError::Invalid);
        }
        // Checks SH5.
        let is_whole = tree.dtl(*guid, DtlKind::Missing).is_some_and(|lacks| lacks.is_empty());
        if !is_whole || tree.is_dtl_required(*guid) {
            return Err(SplitError::Busy);
        }
    }
    Ok(())
}

/// Opens the state that the sides have on their devices alone, with the config of the new pool.
async fn open_sides(new: &SplitPool, sides: &Sides, devices: &LeafDevices) -> Result<Arc<Pool>> {
    let device = |guid: u64| {
        let found = devices.iter().find(|(leaf, _)| *leaf == guid);
        found.map(|(_, device)| Arc::clone(device))
    };
    let (old, uberblock) = (&sides.config, sides.uberblock);
    let mut config = old.clone();
    let guid = crate::create::new_guid()?;
    (config.facts.name, config.facts.pool_guid) = (new.name.clone(), guid);
    config.facts.split_guid = Some(old.facts.pool_guid);
    config.facts.split_leaves = Vec::new();
    let tops: Vec<_> = old.vdev_tree.children.iter().zip(&new.leaves).collect();
    config.vdev_tree.guid = guid;
    config.vdev_tree.children = tops.into_iter().map(|(top, leaf)| side(top, *leaf)).collect();
    config.facts.vdev_children = Some(config.vdev_tree.children.len() as u64);
    let holes = config.vdev_tree.children.iter().filter(|top| top.kind == VdevKind::Hole);
    config.facts.hole_array = holes.map(|top| top.id).collect();
    let options = BuildOptions { is_writable: true, ..BuildOptions::default() };
    let tree = Tree::build(&config.vdev_tree, |leaf| device(leaf.guid), &options)?;
    let store = BlockStore::new(Arc::clone(&tree), CacheConfig::default());
    let mos = ObjSet::open(Arc::clone(&store), &uberblock.rootbp, None, 0).await?;
    let pool = assemble_apart(PoolParts {
        name: &new.name,
        config,
        uberblock,
        tree,
        store,
        mos,
        keys: Arc::default(),
        presence: Arc::default(),
        grounds: Grounds::Offline,
    })
    .await?;
    Ok(Arc::new(pool))
}

/// Returns the top-level vdev of the new pool in the place of `top`.
fn side(top: &VdevConfig, leaf: Option<u64>) -> VdevConfig {
    let Some(found) = leaf.and_then(|guid| top.find(guid)) else {
        return if top.kind == VdevKind::Indirect { top.clone() } else { VdevConfig::hole(top.id) };
    };
    let mut vdev = found.clone();
    (vdev.id, vdev.top) = (top.id, top.top.clone());
    (vdev.leaf.dtl_object, vdev.leaf.resilver_txg) = (None, None);
    vdev
}

/// Frees everything in the MOS of the new pool that only vdevs of the old one need.
fn clean(tx: &mut Tx<'_>, txg: u64, old: &PoolConfig, kept: &[u64]) -> TxResult<()> {
    for leaf in old.vdev_tree.leaves() {
        if kept.contains(&leaf.guid) {
            dtl::free(tx, leaf.leaf.dtl_object, txg)?;
        } else {
            free_objects(tx, leaf, txg)?;
        }
    }
    for log in old.vdev_tree.children.iter().filter(|top| top.top.is_log) {
        metaslabs::free_maps(tx, log)?;
        if let Some(object) = log.top.zap_top {
            birth::remove_leaf_zap(tx, object)?;
        }
    }
    aux::retain(tx, Aux::Spares, |_| false)?;
    aux::retain(tx, Aux::Caches, |_| false)
}
