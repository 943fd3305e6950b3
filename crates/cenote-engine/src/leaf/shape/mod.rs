//! Leaves that come to a vdev in use, and leave it: `zpool attach`, `replace` and `detach`; log
//! vdevs that leave the pool (spec 06 §9.3, §10).
//!
//! ```text
//!   attach   labels of txg 0 ──flush──> config, tree, log of what it lacks: one txg ──> resilver
//!   end      a resilver has ended: leaves whose replacement has everything are detached
//!   detach   config, tree: one txg ──> no I/O in flight ──> label of a device without a pool
//!   log      logs end ──> config, tree, its objects: one txg ──> as for detach
//!   split    sides of mirrors out of service: one txg ──> another pool on them ──> detached
//!   grow     labels at the new end of a device: one txg ──> size of the vdev, metaslabs: one txg
//! ```
//!
//! A new leaf lacks everything, also what is being written while it comes: writes of the syncing
//! and the open txg may still use the vdev without it. So its log has the txgs up to those, and a
//! resilver that is to write them begins once they are synced ([`crate::scan`]).
//!
//! A crash leaves either shape. A leaf that was detached and not relabelled has the labels of an
//! older txg, and is ignored while any other device of the pool is there.
//!
//! Invariants
//! * SH1  A leaf that has the only copy of some data is not detached.
//! * SH2  The dirty time log of a new leaf has every txg whose writes may have missed it.
//! * SH3  Nothing is allocated on a log vdev that leaves the pool.
//! * SH4  A vdev that becomes larger keeps its metaslabs, and gets more.

pub(crate) mod autoreplace;
mod config;
mod expand;
mod grow;
mod logs;
mod spares;
mod split;

pub use split::{SplitError, SplitPool};

use std::sync::Arc;
use std::time::Duration;

use cenote_block::alloc::Pin;
use cenote_device::Device;
use cenote_dmu::{Tx, TxResult, TxStop};
use cenote_ondisk::config::{PoolFacts, PoolState, VdevConfig, VdevKind, label_list};
use cenote_ondisk::label;
use cenote_ondisk::leaf_work::LeafWorkKind;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Error, Kind, Result, ensure};
use cenote_vdev::{DtlKind, LeafId, Need, TxgRanges, VdevAux, VdevState, labels};

use super::dtl;
use crate::admin::aux::{self, Aux};
use crate::admin::create::{self, FIRST_TXG};
use crate::admin::events::{Event, PoolEvent};
use crate::admin::{birth, write_aux_label};
use crate::dsl::{Env, history};
use crate::leaf::leafwork::{LeafWorkError, Stop};
use crate::scan::{deferral, rebuild, record};
use crate::space::checkpoint;
use crate::{Answer, CheckpointError, Config, EngineError, Leaves, RemovalError, Scope, Task};

/// Txgs after the syncing one whose writes may have begun before a leaf came: the open one.
const TXGS_IN_FLIGHT: u64 = 1;
/// Time for I/O in flight on a detached device.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a leaf is not attached or detached, in OpenZFS's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// There is no such leaf.
    #[error("no such device in pool")]
    NoSuchLeaf,
    /// The vdev is no mirror and no disk of its own.
    #[error("can only attach to mirrors and top-level disks")]
    NotAMirror,
    /// The leaf, or a spare, stands in for another one already.
    #[error("already in replacing/spare config; wait for completion or use 'zpool detach'")]
    Replacing,
    /// A hot spare is to stand in for a log device.
    #[error("cannot replace a log with a spare")]
    SpareForLog,
    /// The device is smaller than the data of the vdev.
    #[error("device is too small")]
    TooSmall,
    /// The sectors of the device are larger than those of the vdev.
    #[error(
        "new device has a different optimal sector size; use the option '-o ashift=N' to override \
         the optimal size"
    )]
    Ashift,
    /// The vdev is not one that can be rebuilt sequentially.
    #[error("only mirror and dRAID vdevs support sequential reconstruction")]
    NotSequential,
    /// A distributed spare is to replace a leaf outside of its dRAID.
    #[error("dRAID spares can only replace child devices in their parent's dRAID vdev")]
    SpareOfOtherVdev,
    /// The feature is disabled.
    #[error("device_rebuild feature must be enabled in order to use sequential reconstruction")]
    NoRebuildFeature,
    /// A resilver runs, beside which nothing is rebuilt.
    #[error("currently resilvering")]
    Resilvering,
    /// A rebuild runs, beside which nothing is resilvered.
    #[error("currently sequentially resilvering")]
    Rebuilding,
    /// The leaf is not below a mirror, replacing or spare vdev.
    #[error("only applicable to mirror and replacing vdevs")]
    NotAGroup,
    /// The leaf has the only copy of some data.
    #[error("no valid replicas")]
    NoReplicas,
    /// The feature is disabled.
    #[error("raidz_expansion feature must be enabled in order to attach a device to raidz")]
    NoExpansionFeature,
    /// A RAID-Z expands: one at a time.
    #[error("raidz expansion in progress")]
    Expanding,
    /// A child of the RAID-Z is not healthy, or is being replaced.
    #[error("raidz vdev has devices that are are offline or being replaced")]
    NotWhole,
    /// A row of the RAID-Z would be larger than the area in which its first rows are kept.
    #[error("raidz vdev has too many devices")]
    TooWide,
    /// The vdev has no object for its state: its pool was created before 2016.
    #[error("raidz vdev has no object for the progress of an expansion")]
    NoVdevObject,
    /// The spare stands in for a leaf, or the log vdev has records that are to be replayed.
    #[error("Pool busy; removal may already be in progress")]
    InUse,
}

impl From<ShapeError> for Error {
    fn from(error: ShapeError) -> Self {
        let kind = match error {
            ShapeError::NoSuchLeaf => Kind::NotFound,
            ShapeError::NoReplicas
            | ShapeError::InUse
            | ShapeError::Resilvering
            | ShapeError::Expanding
            | ShapeError::NotWhole
            | ShapeError::Rebuilding => Kind::Busy,
            _ => Kind::Invalid,
        };
        Self::new(kind, error)
    }
}

impl From<ShapeError> for TxStop {
    fn from(error: ShapeError) -> Self {
        Error::from(error).into()
    }
}

/// A leaf that comes to a vdev.
#[derive(Debug, Clone)]
pub struct NewLeaf {
    /// Its config, with a guid of its own. That of a hot spare is the entry in the list of spares.
    pub config: VdevConfig,
    /// Its device, open for writing and exclusively; `None` for a distributed spare, which has
    /// none of its own.
    pub device: Option<Arc<dyn Device>>,
    /// Log2 of its sector size.
    pub ashift: u64,
    /// It gets everything in the order of the disk ([`crate::scan`], `zpool attach -s`), instead of
    /// by a resilver.
    pub is_sequential: bool,
}

/// How a leaf comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attach {
    /// As another side of a mirror.
    Mirror,
    /// In place of the other leaf, once it has everything.
    Replace,
}

impl Attach {
    /// Returns the kind of the vdev above the new leaf.
    const fn parent(self, new: &NewLeaf) -> VdevKind {
        match self {
            Self::Mirror => VdevKind::Mirror,
            Self::Replace if new.config.leaf.is_spare => VdevKind::Spare,
            Self::Replace => VdevKind::Replacing,
        }
    }
}

/// How a change of the config changes one top-level vdev of the tree.
struct Shape {
    /// The top-level vdev, as it is from now on.
    top: VdevConfig,
    /// A leaf that takes the place of its parent: its guid before and now.
    renamed: Option<(u64, u64)>,
    /// Guid of a leaf that is new.
    added: Option<u64>,
    /// Nothing is read from the new leaf that was not written to it: it lacks nothing.
    is_added_empty: bool,
    /// What becomes of its space.
    space: Space,
}

impl Shape {
    const fn of(top: VdevConfig) -> Self {
        Self { top, renamed: None, added: None, is_added_empty: false, space: Space::Kept }
    }
}

/// What becomes of the space of a top-level vdev that changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Space {
    /// It stays.
    Kept,
    /// The vdev leaves the pool.
    Removed,
    /// It has more metaslabs than before.
    Grown,
}

impl Leaves<'_> {
    /// Adds a leaf beside the leaf `beside`: to its mirror, or in its place. Returns when it is a
    /// part of the pool; a resilver is to be started ([`Scans::resume`](crate::Scans::resume)).
    ///
    /// # Errors
    /// A [`ShapeError`], a [`CheckpointError`](crate::CheckpointError),
    /// [`RemovalError::InProgress`], or an error of the new device, and nothing was changed but the
    /// labels of that device; errors of a sync.
    pub async fn attach(self, beside: u64, new: NewLeaf, how: Attach) -> Result<()> {
        self.engine.space().check_no_checkpoint()?;
        self.engine.removals().check_none()?;
        let engine = self.engine;
        let root = engine.config().root;
        check_attach(&root, beside, &new, how)?;
        if let Some(device) = new.device.as_ref().filter(|_| !new.config.leaf.is_spare) {
            self.label_new(&**device, &new.config).await?;
        }
        let (kind, parent) = (how.parent(&new), crate::create::new_guid()?);
        let (device, path) = (new.device.clone(), path_of(&new.config));
        let is_spare = kind == VdevKind::Spare;
        let progress = engine.scans().progress();
        let task = move |tx: &mut Tx<'_>, env: &Env, config: &mut Config| {
            checkpoint::check_none(tx)?;
            if config.root.children.iter().any(|top| top.top.removing) {
                return Err(RemovalError::InProgress.into());
            }
            // The shape may have changed since.
            check_attach(&config.root, beside, &new, how)?;
            if new.config.leaf.is_spare && !aux::contains(tx, Aux::Spares, new.config.guid)? {
                // It was removed meanwhile.
                return Err(ShapeError::NoSuchLeaf.into());
            }
            check_resync(tx, &config.root, new.is_sequential)?;
            let mut leaf = new.config.clone();
            if new.is_sequential {
                leaf.leaf.rebuild_txg = Some(env.txg);
            } else {
                leaf.leaf.resilver_txg = Some(env.txg);
                if deferral::is_to_wait(tx, progress)? {
                    deferral::mark(tx, &mut leaf)?;
                }
            }
            if config.has_vdev_zaps {
                birth::add_leaf_zap(tx, &mut leaf)?;
            }
            let old = config.root.find(beside).map(path_of).unwrap_or_default();
            let top = config::top_of_mut(&mut config.root, beside);
            let top = top.ok_or(ShapeError::NoSuchLeaf)?;
            let guid = leaf.guid;
            if !config::attach(top, beside, leaf, (kind.clone(), parent)) {
                return Err(ShapeError::NoSuchLeaf.into());
            }
            if new.is_sequential {
                rebuild::request(tx, env, top)?;
            }
            let shape = Shape { added: Some(guid), ..Shape::of(top.clone()) };
            let text = match how {
                Attach::Mirror => format!("attach vdev={path} to vdev={old}"),
                Attach::Replace if kind == VdevKind::Spare => {
                    format!("spare in vdev={path} for vdev={old}")
                }
                Attach::Replace => format!("replace vdev={path} for vdev={old}"),
            };
            history::log_pool(tx, env, "vdev attach", &text)?;
            Ok((vec![shape], guid))
        };
        let (guid, _) = self.reshape(task, device).await?;
        if is_spare {
            self.engine.health.damage.note(Event::Pool(PoolEvent::SpareUsed(guid)));
        }
        self.engine.health.damage.note(Event::Pool(PoolEvent::Attached(guid)));
        self.apply_error_rates().await?;
        Ok(())
    }

    /// Gives the device of a new leaf its first labels, unless the pool is closed: then nothing is
    /// written to it any more, because another pool may have it.
    async fn label_new(self, device: &dyn Device, leaf: &VdevConfig) -> Result<()> {
        let facts = PoolFacts { txg: 0, ..self.engine.config().stored() };
        let list = label_list(&facts, leaf, leaf.guid);
        let write = async {
            labels::write_initial(device, &list).await?;
            device.flush().await
        };
        let cut = async { Err(Error::new(Kind::Closed, EngineError::Closed)) };
        self.before_close(write, cut).await
    }

    /// Removes a leaf from its mirror, replacing or spare vdev; with `parent` only if that is its
    /// parent still. Its device is relabelled, so that it is no pool's.
    ///
    /// # Errors
    /// A [`ShapeError`] or a [`CheckpointError`](crate::CheckpointError) (a rewind needs the vdevs
    /// of the checkpoint), and nothing was changed; errors of a sync.
    pub async fn detach(self, guid: u64, parent: Option<u64>) -> Result<()> {
        // The device is to be given back.
        self.engine
            .even_alone(
                move |engine| async move { engine.leaves().detach_here(guid, parent).await },
            )
            .await
    }

    async fn detach_here(self, guid: u64, parent: Option<u64>) -> Result<()> {
        self.engine.space().check_no_checkpoint()?;
        check_detach(&self.engine.config().root, guid, parent)?;
        self.pause_work_of(guid).await?;
        let detached = self.detach_paused(guid, parent).await;
        // What cannot be continued now is continued by the next import.
        drop(self.run_active_work().await);
        detached
    }

    async fn detach_paused(self, guid: u64, parent: Option<u64>) -> Result<()> {
        let tree = Arc::clone(&self.engine.tree);
        let task = move |tx: &mut Tx<'_>, env: &Env, config: &mut Config| {
            checkpoint::check_none(tx)?;
            check_detach(&config.root, guid, parent)?;
            // Last of all checks, because it takes the leaf out of service.
            let is_out = tree.vdev(guid).is_none_or(|vdev| !vdev.state().is_readable());
            let is_free = if is_out {
                !tree.is_dtl_required(guid)
            } else {
                let (state, aux) = (VdevState::Offline, VdevAux::None);
                tree.take_out_of_service_unless_needed(guid, state, aux, Need::OnlyCopy)
            };
            // Checks SH1.
            if !is_free && !is_on(Bug::DetachIgnoresLogs) {
                return Err(ShapeError::NoReplicas.into());
            }
            let top = config::top_of_mut(&mut config.root, guid);
            let top = top.ok_or(ShapeError::NoSuchLeaf)?;
            let removed = config::detach(top, guid).ok_or(ShapeError::NotAGroup)?;
            let shape = Shape { renamed: removed.renamed, ..Shape::of(top.clone()) };
            let is_cancelled = rebuild::cancel_without_leaves(tx, env, &tree, top)?;
            free_objects(tx, &removed.leaf, env.txg)?;
            if let Some(unspared) = removed.unspared.filter(|_| !is_on(Bug::PermanentSpareListed)) {
                aux::retain(tx, Aux::Spares, |spare| spare.guid != unspared)?;
            }
            let text = format!("vdev={}", path_of(&removed.leaf));
            history::log_pool(tx, env, "detach", &text)?;
            Ok((vec![shape], (removed.leaf, is_cancelled)))
        };
        let ((leaf, is_cancelled), retired) = self.reshape(task, None).await?;
        if is_cancelled {
            self.engine.health.damage.note(Event::Pool(PoolEvent::RebuildAborted));
        }
        self.engine.health.damage.note(Event::Pool(PoolEvent::Detached(guid)));
        for id in retired {
            self.give_back(id, &leaf).await;
        }
        // The others may have more room than the one that is gone.
        self.expand_if_wanted().await
    }

    /// Relabels a detached device, if it answers: a hot spare as one, any other as no pool's.
    async fn give_back(self, id: LeafId, leaf: &VdevConfig) {
        self.relabel(self.give_back_here(id, leaf)).await;
    }

    async fn give_back_here(self, id: LeafId, leaf: &VdevConfig) {
        if leaf.leaf.is_spare && is_on(Bug::SpareKeptOpen) {
            return;
        }
        let Some(device) = self.engine.tree.take_device(id, IDLE_TIMEOUT).await else { return };
        // A device that fails cannot be relabelled; its labels are of an earlier txg.
        if leaf.leaf.is_spare {
            drop(write_aux_label(&device, PoolState::Spare, leaf).await);
            return;
        }
        if is_on(Bug::DetachedKeepsLabels) {
            return;
        }
        let facts = PoolFacts { txg: 0, ..self.engine.config().stored() };
        let mut blank = leaf.clone();
        (blank.leaf.dtl_object, blank.leaf.zap_leaf) = (None, None);
        let list = label_list(&facts, &blank, leaf.guid);
        if labels::write_initial(&*device, &list).await.is_ok() {
            drop(device.flush().await);
        }
    }

    /// Ends replacements that are complete, and spares that are not needed any more. To be called
    /// when a resilver has ended, and after an import. While there is a checkpoint, they stay.
    ///
    /// # Errors
    /// Errors of a sync.
    pub(crate) async fn end_replacements(self) -> Result<()> {
        // Each round ends one; a leaf that cannot go yet is left.
        let mut tried = Vec::new();
        while let Some((guid, parent)) = self.replaced_leaf(&tried) {
            tried.push(guid);
            match self.detach(guid, Some(parent)).await {
                Ok(()) => {}
                Err(error) if error.cause::<ShapeError>().is_some() => {}
                Err(error) if error.cause::<CheckpointError>().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// A leaf is back: the spares that stand in for it go once it has everything.
    pub(crate) async fn release_spares(self, guid: u64) -> Result<()> {
        let is_first_of_spare = move |root: &VdevConfig| {
            config::parent_of(root, guid).is_some_and(|parent| {
                parent.kind == VdevKind::Spare
                    && parent.children.first().is_some_and(|first| first.guid == guid)
            })
        };
        if !is_first_of_spare(&self.engine.config().root) || is_on(Bug::SpareNotReleased) {
            return Ok(());
        }
        let change = move |_: &mut Tx<'_>, _: &_, config: &mut Config| {
            let is_wanted = is_first_of_spare(&config.root);
            if let Some(leaf) = config.root.find_mut(guid).filter(|_| is_wanted) {
                leaf.leaf.unspare = true;
                config.touch();
            }
            Ok(())
        };
        self.engine.admin().change(change).await
    }

    /// Returns a leaf whose replacement has everything, and its parent.
    fn replaced_leaf(self, tried: &[u64]) -> Option<(u64, u64)> {
        let root = self.engine.config().root;
        root.walk().find_map(|group| {
            let (first, last) = (group.children.first()?, group.children.last()?);
            let (goes, stays) = match group.kind {
                VdevKind::Replacing => (first, last),
                VdevKind::Spare if last.leaf.unspare => (first, last),
                VdevKind::Spare if first.leaf.unspare => (last, first),
                _ => return None,
            };
            let is_done = goes.guid != stays.guid
                && goes.kind.is_leaf()
                && !tried.contains(&goes.guid)
                && (self.is_whole(stays.guid) || is_on(Bug::ReplacedTooEarly))
                && !self.engine.tree.is_dtl_required(goes.guid);
            is_done.then_some((goes.guid, group.guid))
        })
    }

    /// Whether a vdev lacks nothing, and is in service.
    fn is_whole(self, guid: u64) -> bool {
        let tree = &self.engine.tree;
        let lacks = |kind| tree.dtl(guid, kind).is_none_or(|txgs| !txgs.is_empty());
        !lacks(DtlKind::Missing) && !lacks(DtlKind::Outage)
    }

    /// Stops trim and initialize of a leaf, and of the leaves beside it, since one of them may get
    /// another guid. The caller continues them when the vdevs have changed.
    async fn pause_work_of(self, guid: u64) -> Result<()> {
        let root = self.engine.config().root;
        let parent = config::parent_of(&root, guid);
        let leaves: Vec<_> =
            parent.into_iter().flat_map(VdevConfig::leaves).map(|leaf| leaf.guid).collect();
        self.pause_work(&leaves).await
    }

    async fn stop_work_if_any(self, leaf: u64, kind: LeafWorkKind, stop: Stop) -> Result<()> {
        match self.stop_work(&[leaf], kind, stop).await {
            Err(error) if error.cause::<LeafWorkError>().is_none() => Err(error),
            _ => Ok(()),
        }
    }

    /// Changes the config and the tree in one txg. Returns what `change` returns, and the leaves
    /// that left the tree.
    async fn reshape<T, F>(
        self,
        change: F,
        device: Option<Arc<dyn Device>>,
    ) -> Result<(T, Vec<LeafId>)>
    where
        F: FnMut(&mut Tx<'_>, &Env, &mut Config) -> TxResult<(Vec<Shape>, T)> + Send + 'static,
        T: Send + 'static,
    {
        let answer = Answer::new();
        let task = Reshape { change, device, answer: Arc::clone(&answer) };
        self.engine.run_task(Box::new(task)).await?;
        answer.take()
    }
}

/// The task that changes the shape of the pool.
struct Reshape<F, T> {
    change: F,
    device: Option<Arc<dyn Device>>,
    answer: Arc<Answer<(T, Vec<LeafId>)>>,
}

impl<F, T> Task for Reshape<F, T>
where
    F: FnMut(&mut Tx<'_>, &Env, &mut Config) -> TxResult<(Vec<Shape>, T)> + Send,
    T: Send,
{
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let before = engine.config();
            let env = engine.datasets().env(context.txg);
            let change = &mut self.change;
            let result = engine
                .mos_apply(context.txg, |tx| {
                    // The closure may run several times: each time from the same state.
                    let mut config = before.clone();
                    let (shapes, value) = change(tx, &env, &mut config)?;
                    Ok((shapes, value, config))
                })
                .await;
            let Some((shapes, value, mut config)) = self.answer.unless_refused(result)? else {
                return Ok(());
            };
            // The MOS has the new shape: from here on a failure is one of the pool.
            let mut retired = Vec::new();
            for shape in &shapes {
                retired.extend(engine.leaves().apply_shape(
                    shape,
                    self.device.as_ref(),
                    context.txg,
                )?);
            }
            config.touch();
            scope.replace_config(config)?;
            self.answer.put(Ok((value, retired)));
            Ok(())
        })
    }
}

impl Leaves<'_> {
    /// Changes the tree and the allocator. Returns the leaves that left the tree.
    fn apply_shape(
        self,
        shape: &Shape,
        device: Option<&Arc<dyn Device>>,
        txg: u64,
    ) -> Result<Vec<LeafId>> {
        let engine = self.engine;
        if shape.space == Space::Removed {
            // Before its devices go: pinned states may have log blocks on it.
            Pin::overtake_all(&engine.alloc);
            engine.alloc.remove_vdev(shape.top.id)?;
        }
        if shape.space == Space::Grown {
            let all = create::empty_metaslabs(&shape.top);
            let before = engine.alloc.metaslab_figures(shape.top.id).len();
            ensure!("SH4", all.len() > before, "{} metaslabs in place of {before}", all.len());
            let new = all.into_iter().skip(before).collect();
            engine.alloc.grow_vdev(shape.top.id, new, txg);
        }
        let open = |_: &VdevConfig| device.map(Arc::clone);
        let reshaped = engine.tree.reshape(&shape.top, shape.renamed, open)?;
        let is_one = reshaped.added.len() == usize::from(shape.added.is_some());
        ensure!("SH2", is_one, "{} leaves are new", reshaped.added.len());
        // As in OpenZFS, which has one more txg in the making.
        let mut end = txg + TXGS_IN_FLIGHT + 2;
        if is_on(Bug::NewLeafLogTooShort) {
            end = txg;
        }
        for id in reshaped.added.iter().filter(|_| !shape.is_added_empty) {
            let leaf = engine.tree.leaf(*id);
            leaf.note_missing(&TxgRanges::new([(FIRST_TXG, end)]));
        }
        Ok(reshaped.retired)
    }
}

/// Checks whether `new` can come to the leaf `beside`.
fn check_attach(
    root: &VdevConfig,
    beside: u64,
    new: &NewLeaf,
    how: Attach,
) -> std::result::Result<(), ShapeError> {
    let top = config::top_of(root, beside).ok_or(ShapeError::NoSuchLeaf)?;
    let old = top.find(beside).ok_or(ShapeError::NoSuchLeaf)?;
    let parent = config::parent_of(root, beside).ok_or(ShapeError::NoSuchLeaf)?;
    let is_spare = new.config.leaf.is_spare;
    if !old.kind.is_leaf() {
        return Err(ShapeError::NotAMirror);
    }
    if root.find(new.config.guid).is_some() {
        return Err(ShapeError::Replacing);
    }
    match how {
        Attach::Mirror if !matches!(parent.kind, VdevKind::Mirror | VdevKind::Root) => {
            return Err(ShapeError::NotAMirror);
        }
        Attach::Replace if top.top.is_log && is_spare => return Err(ShapeError::SpareForLog),
        Attach::Replace if parent.kind == VdevKind::Spare && is_spare != old.leaf.is_spare => {
            return Err(ShapeError::Replacing);
        }
        _ => {}
    }
    if matches!(top.kind, VdevKind::RaidZ(_)) && new.is_sequential {
        return Err(ShapeError::NotSequential);
    }
    if let VdevKind::DraidSpare { top_guid, .. } = new.config.kind {
        // A part of the other children, with their size and sectors.
        let is_of_this = top.guid == top_guid && how == Attach::Replace;
        return if is_of_this { Ok(()) } else { Err(ShapeError::SpareOfOtherVdev) };
    }
    let room = new.device.as_ref().map_or(0, |device| label::leaf_asize(device.info().size));
    let least = config::least_asize(top, beside).unwrap_or(u64::MAX);
    if room == 0 || room < least {
        return Err(ShapeError::TooSmall);
    }
    if new.ashift > top.top.ashift {
        return Err(ShapeError::Ashift);
    }
    Ok(())
}

/// Checks whether what a new leaf lacks can be written beside the scan in progress.
fn check_resync(tx: &mut Tx<'_>, root: &VdevConfig, is_sequential: bool) -> TxResult<()> {
    if !is_sequential {
        let is_active = rebuild::is_active(tx, root)?;
        return if is_active { Err(ShapeError::Rebuilding.into()) } else { Ok(()) };
    }
    if !rebuild::is_enabled(tx)? {
        return Err(ShapeError::NoRebuildFeature.into());
    }
    if record::is_resilvering(tx)? { Err(ShapeError::Resilvering.into()) } else { Ok(()) }
}

/// Checks whether a leaf is below a vdev from which it can be detached.
fn check_detach(
    root: &VdevConfig,
    guid: u64,
    parent: Option<u64>,
) -> std::result::Result<(), ShapeError> {
    let vdev = root.find(guid).ok_or(ShapeError::NoSuchLeaf)?;
    let above = config::parent_of(root, guid).ok_or(ShapeError::NoSuchLeaf)?;
    if !vdev.kind.is_leaf() || !config::is_group(&above.kind) {
        return Err(ShapeError::NotAGroup);
    }
    if parent.is_some_and(|parent| parent != above.guid) {
        return Err(ShapeError::NoReplicas);
    }
    Ok(())
}

/// Frees the objects of a leaf that leaves the pool.
pub(crate) fn free_objects(tx: &mut Tx<'_>, leaf: &VdevConfig, txg: u64) -> TxResult<()> {
    dtl::free(tx, leaf.leaf.dtl_object, txg)?;
    match leaf.leaf.zap_leaf {
        Some(object) => birth::remove_leaf_zap(tx, object),
        None => Ok(()),
    }
}

/// Returns the path of a disk, as the history has it: other vdevs have none.
pub(crate) fn path_for_history(vdev: &VdevConfig) -> String {
    let path = path_of(vdev);
    if path.is_empty() { "-".to_owned() } else { path }
}

fn path_of(vdev: &VdevConfig) -> String {
    vdev.leaf.path.as_ref().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}
