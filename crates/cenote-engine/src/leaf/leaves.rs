//! Leaves that fail while the pool is in use, are taken offline, and come back.
//!
//! ```text
//!   each sync    leaves of which an I/O failed are probed: one that is silent is FAULTED, and
//!                the labels of this txg say so; one that nobody can stand in for is DEGRADED
//!   offline      out of service by word of the administrator
//!   online       back, on the device it had or another one with its labels
//!   clear        errors forgotten, faulted leaves back; a suspended pool goes on
//! ```
//!
//! The missing txgs of a leaf are in its DTL, which stays with it when it is removed and comes
//! back: until a resilver, such blocks are read from it as a last resort, and verified by checksums
//! (spec 06 §2.3, §8, §10).
//!
//! Only tasks of a sync change a leaf's state in the config, in the txg in which the change is
//! known. The state of the vdev itself changes immediately.
//!
//! Invariants
//! * O1  A leaf that was out of service comes back on the device at its path: the open device may
//!   be a deleted file, or a disk that was replaced, and would be lost when the pool is closed.
//! * O3  A leaf that has the only copy of some data is not taken out of service.
//!
//! Guarantees
//! * O2  A task that records that a leaf is back, or that it has failed, first checks that this is
//!   still its state in the tree. An `offline` between the change of the tree and the task would
//!   otherwise be undone in the labels only.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cenote_device::{Device, OpenMode};
use cenote_ondisk::config::{LeafConfig, VdevConfig};
use cenote_pool::import::Found;
use cenote_rt::lock::{AsyncMutex, AsyncMutexGuard, Rank};
use cenote_rt::{Error, Kind, Result};
use cenote_vdev::{LeafId, Need, ServiceError, Vdev, VdevAux, VdevKind, VdevState};
use futures_util::future::{Either, select};

use crate::admin::events::{Event, PoolEvent, StateCause};
use crate::leaf::diagnosis;
use crate::txg::closing::answer_timeout;
use crate::{EngineError, SplitError, Suspended};
use crate::{Leaves, Scope};

/// Longest time until the writer of a label notices that the pool was closed.
const LOOK: Duration = Duration::from_millis(100);

/// Serializes checks of the leaves, and the last writes to devices that have left the pool.
#[derive(Debug)]
pub(crate) struct Service {
    probing: AsyncMutex<()>,
    labels: AsyncMutex<()>,
}

impl Default for Service {
    fn default() -> Self {
        Self {
            probing: AsyncMutex::with_default(Rank::LeafService),
            labels: AsyncMutex::with_default(Rank::Relabel),
        }
    }
}

/// Clears the fault of leaves at import, unless an administrator faulted them (spec 06 §10).
pub(crate) fn clear_faults(root: &mut VdevConfig) {
    for_leaves(root, &mut |leaf| {
        let told = VdevAux::of_config(leaf.aux_state.as_deref());
        if leaf.faulted && told != VdevAux::External {
            (leaf.faulted, leaf.aux_state) = (false, None);
        }
    });
}

fn for_leaves(vdev: &mut VdevConfig, change: &mut impl FnMut(&mut LeafConfig)) {
    if vdev.kind.is_leaf() {
        change(&mut vdev.leaf);
    }
    vdev.children.iter_mut().for_each(|child| for_leaves(child, change));
}

/// Time that a device has to become idle before it is cut off.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

impl<'e> Leaves<'e> {
    /// Keeps other checks of the leaves from running.
    pub(super) async fn lock_service(self) -> AsyncMutexGuard<'e, ()> {
        self.engine.leaf.service.probing.lock().await
    }

    /// Writes other labels to a device that has left the pool, before the pool is closed. If the
    /// device hangs, the rest is not written then, as by a crash.
    pub(crate) async fn relabel(self, write: impl Future<Output = ()>) {
        self.before_close(write, async {}).await;
    }

    /// Does work on devices that have left the pool, before it is closed: closing the pool waits
    /// for that, for a while. What is not done by then is cut off, and followed by `cut`.
    pub(crate) async fn before_close<T>(
        self,
        work: impl Future<Output = T>,
        cut: impl Future<Output = T>,
    ) -> T {
        let _labels = self.engine.leaf.service.labels.lock().await;
        let closed = async {
            while !self.engine.tree.is_closed() {
                cenote_rt::sleep(LOOK).await;
            }
            cenote_rt::sleep(answer_timeout() / 2).await;
        };
        if !self.engine.tree.is_closed()
            && let Either::Left((done, _)) = select(pin!(work), pin!(closed)).await
        {
            return done;
        }
        cut.await
    }

    /// Waits until no device that has left the closed pool is written to.
    pub(crate) async fn until_labels_are_written(self) {
        drop(self.engine.leaf.service.labels.lock().await);
    }
}

impl Leaves<'_> {
    /// Notes that the state of a leaf changed.
    pub(super) fn note_state(self, leaf: u64, state: VdevState, cause: StateCause) {
        let last = VdevState::Healthy;
        self.engine.health.damage.note(Event::State { leaf, state, last, cause });
    }

    /// Returns the number of I/Os that are in flight on the devices.
    pub fn in_flight(self) -> usize {
        self.engine.tree.in_flight()
    }

    /// Returns the guids of log vdevs that cannot be read.
    pub fn unreadable_logs(self) -> Vec<u64> {
        let tops = self.engine.tree.tops();
        let is_lost = |top: &&Vdev| top.is_log() && !top.state().is_readable();
        tops.filter(is_lost).map(Vdev::guid).collect()
    }

    /// Probes the leaves with failed I/O; in a sync, before its config is written.
    pub(crate) async fn probe_failed(self, scope: &Scope<'_>) {
        if !self.engine.tree.has_failed() {
            return;
        }
        let _probing = self.lock_service().await;
        for id in self.engine.tree.take_failed() {
            let leaf = self.engine.tree.leaf(id);
            if !leaf.is_writable() {
                continue;
            }
            let Err(aux) = self.engine.tree.probe(id).await else { continue };
            // The config has no state for a device that is too small: the next import detects it.
            if self.take_out_failed(id, aux) && aux == VdevAux::ErrExceeded {
                scope.change_config(|config| {
                    if let Some(vdev) = config.root.find_mut(leaf.guid()) {
                        vdev.leaf.faulted = true;
                        vdev.leaf.aux_state = VdevAux::ErrExceeded.in_config().map(Into::into);
                        config.touch();
                    }
                });
            }
        }
    }

    /// Takes a leaf that failed its probe out of service because of `aux`, unless it is required.
    /// Returns whether it was taken out.
    fn take_out_failed(self, id: LeafId, aux: VdevAux) -> bool {
        let guid = self.engine.tree.leaf(id).guid();
        let is_short = aux == VdevAux::BadLabel;
        let mut state = if is_short { VdevState::CantOpen } else { VdevState::Faulted };
        let goes = if self.is_spare_log(guid) {
            self.engine.tree.take_out_of_service(guid, state, aux)
        } else {
            self.engine.tree.take_out_of_service_unless_needed(guid, state, aux, Need::OnlyCopy)
        };
        if goes {
            self.move_logs_off(guid);
        } else {
            state = VdevState::Degraded;
            self.engine.tree.set_status(guid, state, aux);
        }
        self.note_state(guid, state, StateCause::Probe);
        goes
    }

    /// Whether a leaf belongs to a log vdev that the pool can do without: everything in the logs is
    /// in memory, too, until its txg is synced. False for logs that are to be replayed: these are
    /// on the log vdev only.
    pub(super) fn is_spare_log(self, guid: u64) -> bool {
        self.engine.tree.top_of(guid).is_some_and(Vdev::is_log)
            && !self.engine.heads.all().iter().any(|head| head.log().is_claimed())
    }

    /// Moves the logs off a failed log vdev, if the vdev failed with this leaf: no chain continues
    /// there, and everything committed there is synced as soon as possible, since it is only in
    /// memory.
    pub(super) fn move_logs_off(self, guid: u64) {
        let dead =
            self.engine.tree.top_of(guid).filter(|top| top.is_log() && !top.state().is_readable());
        let Some(dead) = dead.map(Vdev::id) else { return };
        let mut is_any = false;
        for head in self.engine.heads.all() {
            is_any |= head.log().leave_vdev(dead);
        }
        let Some(engine) = self.engine.me.upgrade().filter(|_| is_any) else { return };
        // Not waited for: this may run in a sync, and the next sync begins when that has ended.
        cenote_rt::spawn_background(async move { engine.sync().await });
    }

    /// Takes a leaf offline, permanently or until the next import.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such leaf; `Kind::Busy` if it has the only copy of some
    /// data, or a split takes it out of the pool; errors of a sync.
    pub async fn offline(self, guid: u64, is_temporary: bool) -> Result<()> {
        self.leave_service(guid, VdevState::Offline, is_temporary).await
    }

    /// Takes a leaf offline until the next import, and closes its device, so that the device can
    /// replace it like a new one. [`online`](Self::online) opens it again.
    ///
    /// # Errors
    /// The errors of [`offline`](Self::offline).
    pub async fn release_device(self, guid: u64) -> Result<()> {
        self.offline(guid, true).await?;
        self.close_device(guid).await;
        Ok(())
    }

    /// Closes the device of a leaf that is out of service, so that its labels can be cleared.
    /// [`online`](Self::online) opens it again. Returns false for a leaf in service, and if
    /// there is no such leaf.
    pub async fn close_device(self, guid: u64) -> bool {
        // No probe may hold the device.
        let _probing = self.lock_service().await;
        let tree = &self.engine.tree;
        let is_out = tree.vdev(guid).is_some_and(|vdev| !vdev.state().is_readable());
        let Some(id) = tree.leaf_of(guid).filter(|_| is_out) else { return false };
        drop(tree.take_device(id, RELEASE_TIMEOUT).await);
        true
    }

    /// Like [`offline`](Self::offline), but faults the leaf, until it is cleared or brought online.
    /// As in OpenZFS, a leaf that is needed is degraded instead, and stays in service.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such leaf; `Kind::Busy` if a split takes it out of the pool;
    /// errors of a sync.
    pub async fn fault(self, guid: u64, is_temporary: bool) -> Result<()> {
        self.leave_service(guid, VdevState::Faulted, is_temporary).await
    }

    async fn leave_service(self, guid: u64, state: VdevState, is_temporary: bool) -> Result<()> {
        self.check_known(guid)?;
        let is_fault = state == VdevState::Faulted;
        let aux = if is_fault { VdevAux::External } else { VdevAux::None };
        let tree = Arc::clone(&self.engine.tree);
        // As in OpenZFS: the logs are synced, and then do not need the vdev.
        let is_log = self.is_spare_log(guid) && tree.is_dtl_required(guid);
        let frozen = if is_log { Some(self.engine.intent_logs().drain().await?) } else { None };
        let done = self.engine.admin().change(move |_, _, config| {
            // A split that fails brings its sides back.
            if config.facts.split_leaves.contains(&guid) {
                return Err(Error::from(SplitError::Busy).into());
            }
            let is_out = tree.vdev(guid).is_some_and(|vdev| !vdev.state().is_readable());
            let goes = if is_out || is_log {
                tree.take_out_of_service(guid, state, aux)
            } else {
                let need = if is_fault { Need::ReplacementsToo } else { Need::OnlyCopy };
                tree.take_out_of_service_unless_needed(guid, state, aux, need)
            };
            // Checks O3.
            if !goes && is_fault {
                tree.set_status(guid, VdevState::Degraded, VdevAux::ErrExceeded);
                if !is_temporary {
                    diagnosis::record(config, guid, VdevState::Degraded);
                }
                return Ok(VdevState::Degraded);
            } else if !goes {
                return Err(Error::new(Kind::Busy, EngineError::NoReplicas(guid)).into());
            }
            if let Some(vdev) = config.root.find_mut(guid).filter(|_| !is_temporary) {
                (vdev.leaf.offline, vdev.leaf.faulted) = (!is_fault, is_fault);
                vdev.leaf.aux_state = aux.in_config().map(Into::into);
                config.touch();
            }
            Ok(state)
        });
        let done = done.await;
        drop(frozen);
        if is_log {
            self.move_logs_off(guid);
        }
        self.note_state(guid, done?, StateCause::Request);
        Ok(())
    }

    /// Brings a leaf online, whatever its state was; on `device`, if one is given. Its DTL stays.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such leaf; `Kind::Io` if its device does not answer;
    /// `Kind::Invalid` if the device is another's; errors of a sync.
    pub async fn online(self, guid: u64, device: Option<Arc<dyn Device>>) -> Result<()> {
        self.check_known(guid)?;
        let was_well;
        {
            let _probing = self.lock_service().await;
            was_well = self.engine.tree.vdev(guid).is_some_and(|vdev| vdev.state().is_readable());
            // The new pool has its device, also after it was exported and until it is detached.
            if self.engine.with_config(|config| config.facts.split_leaves.contains(&guid)) {
                return Err(SplitError::Busy.into());
            }
            match device {
                Some(device) => self.bring_back_on(guid, device).await?,
                None => self.bring_back(guid).await?,
            }
        }
        self.note_state(guid, VdevState::Healthy, StateCause::Request);
        if !was_well {
            self.engine.health.damage.note(Event::Pool(PoolEvent::Onlined(guid)));
        }
        self.forget_faults(Cleared { back: vec![guid], ..Cleared::default() }).await?;
        self.release_spares(guid).await
    }

    /// Clears errors of one vdev or of all, brings faulted leaves back if they answer, and resumes
    /// a suspended pool.
    ///
    /// # Errors
    /// `Kind::Io` if a required leaf still fails, or the pool must not be resumed; `Kind::NotFound`
    /// if there is no such vdev; errors of a sync.
    pub async fn clear(self, guid: Option<u64>) -> Result<()> {
        self.engine.check_stopped()?;
        let suspended = self.engine.health().suspended();
        if let Some(cause @ Suspended::Multihost(_)) = &suspended {
            return Err(crate::txg::suspend::refusal(cause));
        }
        let Cleared { back, gone, unopened } = self.bring_back_failed(guid).await?;
        let dead = self.engine.tree.tops().find(|top| !top.is_log() && !top.state().is_readable());
        if let Some(dead) = dead {
            return Err(Error::new(Kind::Io, EngineError::StillFailing(dead.guid())));
        }
        if suspended.is_some() {
            self.engine.health.suspension.resume()?;
        }
        self.engine.health.damage.note(Event::Pool(PoolEvent::Cleared));
        if back.is_empty() && gone.is_empty() && unopened.is_empty() {
            return Ok(());
        }
        self.forget_faults(Cleared { back: back.clone(), gone, unopened }).await?;
        // A spare was called in because of these errors.
        for leaf in back {
            self.release_spares(leaf).await?;
        }
        Ok(())
    }

    /// Brings back the leaves that answer.
    async fn bring_back_failed(self, guid: Option<u64>) -> Result<Cleared> {
        let wanted: Vec<u64> = match guid {
            None => self.engine.tree.leaves().map(|(_, leaf)| leaf.guid()).collect(),
            Some(guid) => {
                let root = self.engine.config().root;
                let vdev = root.find(guid);
                let vdev = vdev.ok_or_else(|| Error::not_found(EngineError::NoSuchLeaf(guid)))?;
                vdev.leaves().map(|leaf| leaf.guid).collect()
            }
        };
        let _probing = self.lock_service().await;
        let (mut cleared, mut failing) = (Cleared::default(), None);
        for guid in wanted {
            let Some(id) = self.engine.tree.leaf_of(guid) else { continue };
            let state = self.engine.tree.vdev(guid).map_or(VdevState::Closed, Vdev::state);
            self.engine.tree.clear_errors(Some(guid));
            let is_meant = matches!(state, VdevState::Offline | VdevState::Removed);
            let is_well = state == VdevState::Healthy && self.engine.health().suspended().is_none();
            if is_meant || is_well || self.engine.tree.vdev(guid).is_some_and(is_distributed) {
                continue;
            }
            match self.bring_back(guid).await {
                Ok(()) if state == VdevState::Healthy => {}
                Ok(()) => {
                    self.note_state(guid, VdevState::Healthy, StateCause::Request);
                    cleared.back.push(guid);
                }
                Err(error) if !state.is_readable() => {
                    // As in OpenZFS: the fault is cleared, and the device cannot be opened.
                    let aux = match error.cause() {
                        Some(EngineError::WrongDevice(_)) => VdevAux::BadLabel,
                        Some(EngineError::NotAtPath { .. }) => VdevAux::OpenFailed,
                        _ => continue,
                    };
                    if state == VdevState::Faulted {
                        self.engine.tree.take_out_of_service(guid, VdevState::CantOpen, aux);
                        self.note_state(guid, VdevState::CantOpen, StateCause::Probe);
                        cleared.unopened.push(guid);
                    }
                }
                Err(error) => match aux_of(&error) {
                    aux if !self.take_out_failed(id, aux) => failing = failing.or(Some(guid)),
                    VdevAux::ErrExceeded => cleared.gone.push(guid),
                    // The next import detects a device that is too small.
                    _ => {}
                },
            }
        }
        match failing {
            Some(guid) => Err(Error::new(Kind::Io, EngineError::StillFailing(guid))),
            None => Ok(cleared),
        }
    }

    /// Looks for every device again: one that is not at its path any more leaves service, unless it
    /// has the only copy of some data; one that is back returns; sizes are adopted. What the
    /// administrator took out of service, and what is faulted, stays so.
    ///
    /// # Errors
    /// Errors of a sync.
    pub async fn reopen(self) -> Result<()> {
        self.engine.check_stopped()?;
        let mut back = Vec::new();
        {
            let _probing = self.lock_service().await;
            let root = self.engine.config().root;
            for guid in root.leaves().map(|leaf| leaf.guid) {
                let Some(vdev) = self.engine.tree.vdev(guid) else { continue };
                if is_distributed(vdev) {
                    continue;
                }
                if vdev.state().is_readable() {
                    self.leave_if_gone(guid).await;
                } else if vdev.state() == VdevState::CantOpen && self.bring_back(guid).await.is_ok()
                {
                    self.note_state(guid, VdevState::Healthy, StateCause::Request);
                    back.push(guid);
                }
            }
        }
        for guid in &back {
            self.release_spares(*guid).await?;
        }
        if !back.is_empty() {
            self.forget_faults(Cleared { back, ..Cleared::default() }).await?;
        }
        self.adopt_sizes().await
    }

    /// Takes a leaf out of service whose device is not at its path any more.
    async fn leave_if_gone(self, guid: u64) {
        let device = self.engine.tree.leaf_of(guid).map(|id| self.engine.tree.leaf(id).device());
        let Some(device) = device.flatten() else { return };
        if device.is_at_its_path().await {
            return;
        }
        let (state, aux) = (VdevState::CantOpen, VdevAux::OpenFailed);
        if self.engine.tree.take_out_of_service_unless_needed(guid, state, aux, Need::OnlyCopy) {
            self.move_logs_off(guid);
            self.note_state(guid, state, StateCause::Probe);
        }
    }

    /// Brings back a leaf on its open device, or on the device at its path.
    async fn bring_back(self, guid: u64) -> Result<()> {
        let path = self.engine.config().root.find(guid).and_then(|leaf| leaf.leaf.path.clone());
        let path = path.map(|path| path.to_string_lossy().into_owned());
        // Checks O1.
        let error = if self.has_moved(guid).await {
            let path = path.clone().unwrap_or_default();
            Error::new(Kind::Io, EngineError::NotAtPath { leaf: guid, path })
        } else {
            match self.engine.tree.return_to_service(guid, None).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            }
        };
        let Some(path) = path else { return Err(error) };
        match self.open_at_path(&path, OpenMode::Exclusive).await {
            Some(device) => self.bring_back_on(guid, device).await,
            // The error of the old device is more useful.
            None => Err(error),
        }
    }

    /// Whether a leaf is out of service and the path of its open device leads to another file or
    /// device, or to none (O1). A leaf in service keeps its device: its unflushed writes are there.
    async fn has_moved(self, guid: u64) -> bool {
        let is_out = self.engine.tree.vdev(guid).is_some_and(|vdev| !vdev.state().is_readable());
        let device = self.engine.tree.leaf_of(guid).map(|id| self.engine.tree.leaf(id).device());
        match device.flatten().filter(|_| is_out) {
            Some(device) => !device.is_at_its_path().await,
            None => false,
        }
    }

    /// Brings back a leaf on another device with this leaf's labels.
    async fn bring_back_on(self, guid: u64, device: Arc<dyn Device>) -> Result<()> {
        let pool = self.engine.config().facts.pool_guid;
        let found = Found::read(Arc::clone(&device)).await;
        let is_ours = found.is_some_and(|found| {
            found.configs.iter().any(|config| {
                let of = config.member.as_ref().map(|member| member.facts.pool_guid);
                config.guid == guid && of == Some(pool)
            })
        });
        // Checks O1.
        if !is_ours {
            return Err(Error::new(Kind::Invalid, EngineError::WrongDevice(guid)));
        }
        self.engine.tree.return_to_service(guid, Some(device)).await
    }

    /// Updates the states of leaves in the config. A leaf whose state has changed again since then
    /// is left to the request that changed it (O2).
    async fn forget_faults(self, cleared: Cleared) -> Result<()> {
        let Cleared { back, gone, unopened } = cleared;
        let tree = Arc::clone(&self.engine.tree);
        let is_in_service =
            move |guid| tree.vdev(guid).is_some_and(|vdev| vdev.state().is_readable());
        self.engine
            .admin()
            .change(move |_, _, config| {
                for guid in back.iter().filter(|guid| is_in_service(**guid)) {
                    if let Some(vdev) = config.root.find_mut(*guid) {
                        let leaf = &mut vdev.leaf;
                        (leaf.offline, leaf.faulted, leaf.degraded) = (false, false, false);
                        (leaf.removed, leaf.aux_state) = (false, None);
                    }
                }
                for guid in gone.iter().filter(|guid| !is_in_service(**guid)) {
                    if let Some(vdev) = config.root.find_mut(*guid) {
                        vdev.leaf.faulted = true;
                        vdev.leaf.aux_state = VdevAux::ErrExceeded.in_config().map(Into::into);
                    }
                }
                for guid in unopened.iter().filter(|guid| !is_in_service(**guid)) {
                    if let Some(vdev) = config.root.find_mut(*guid) {
                        (vdev.leaf.faulted, vdev.leaf.aux_state) = (false, None);
                    }
                }
                // Needed in any case: the labels of a leaf that is back are stale.
                config.touch();
                Ok(())
            })
            .await
    }

    fn check_known(self, guid: u64) -> Result<()> {
        let known = self.engine.tree.leaf_of(guid);
        known.map(drop).ok_or_else(|| Error::not_found(EngineError::NoSuchLeaf(guid)))
    }
}

/// The leaves whose errors were cleared.
#[derive(Debug, Default)]
struct Cleared {
    /// Leaves that came back.
    back: Vec<u64>,
    /// Leaves that failed again.
    gone: Vec<u64>,
    /// Leaves that were faulted, and whose device is not there.
    unopened: Vec<u64>,
}

/// Returns the cause of a leaf's state for an error of bringing it back.
fn aux_of(error: &Error) -> VdevAux {
    match error.cause() {
        Some(ServiceError::TooSmall { .. }) => VdevAux::BadLabel,
        _ => VdevAux::ErrExceeded,
    }
}

/// A distributed spare has no device of its own.
fn is_distributed(vdev: &Vdev) -> bool {
    vdev.kind() == VdevKind::DraidSpare
}
