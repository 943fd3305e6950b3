//! Work on the free space of leaves: trim, initialize and autotrim (spec 05 §9, 06 §18, 08 §35).
//!
//! ```text
//!   start ── state in the leaf's ZAP: active ──> run, metaslab after metaslab ──> complete
//!                                                 |  now and then: how far it is
//!   stop ──> canceled, suspended                  `─ the pool is left: active, and goes on at the
//!                                                    next opening from there
//! ```
//!
//! The object with the state of a leaf is looked up by the task that uses it: by then the leaf may
//! have left the pool, and the number of its object may be another object's.
//!
//! Safety: work is done only on ranges that the allocator gives as free, in a metaslab that is
//! disabled meanwhile: no open, syncing or recent txg uses them, no checkpoint holds them, and they
//! are not allocated before the device has answered. So a crash at any time is harmless. All work
//! ends before the pool is closed: [`Leaves::stop_all_work`].

mod auto;
mod record;
mod run;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_dmu::TxStop;
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::leaf_work::{LeafWork, LeafWorkKind, LeafWorkState};
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result, monotonic, tunables};

use crate::Leaves;
use crate::admin::events::{Event, TrimEvent};
use crate::dsl::history;
use crate::dsl::operation::Request;
pub(crate) use auto::AutoTrim;
use run::Runner;

/// Reasons why work on a leaf is not started or stopped, in OpenZFS's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeafWorkError {
    /// The vdev is not a leaf with data.
    #[error("no such device in pool")]
    NoDevice(u64),
    /// The leaf is not writable.
    #[error("device is not writable")]
    NotWritable(u64),
    /// The work is already running.
    #[error("currently {}", match .1 { LeafWorkKind::Trim => "trimming", LeafWorkKind::Initialize => "initializing" })]
    Running(u64, LeafWorkKind),
    /// The work is not running.
    #[error("there is no active {}", match .1 { LeafWorkKind::Trim => "trim", LeafWorkKind::Initialize => "initialization" })]
    NotRunning(u64, LeafWorkKind),
    /// The device does not support trim, or no secure trim.
    #[error("trim operations are not supported by this device")]
    NotSupported(u64),
}

impl LeafWorkError {
    /// Returns the guid of the leaf.
    #[must_use]
    pub const fn leaf(self) -> u64 {
        match self {
            Self::NoDevice(leaf)
            | Self::NotWritable(leaf)
            | Self::Running(leaf, _)
            | Self::NotRunning(leaf, _)
            | Self::NotSupported(leaf) => leaf,
        }
    }
}

impl From<LeafWorkError> for TxStop {
    fn from(error: LeafWorkError) -> Self {
        Error::from(error).into()
    }
}

impl From<LeafWorkError> for Error {
    fn from(error: LeafWorkError) -> Self {
        let kind = match error {
            LeafWorkError::NoDevice(_) | LeafWorkError::NotRunning(..) => Kind::NotFound,
            LeafWorkError::NotWritable(_) => Kind::ReadOnly,
            LeafWorkError::Running(..) => Kind::Busy,
            LeafWorkError::NotSupported(_) => Kind::Unsupported,
        };
        Self::new(kind, error)
    }
}

/// Options of a trim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrimOptions {
    /// Maximum bytes per second, 0 for no limit.
    pub rate: u64,
    /// Skip space that was never allocated.
    pub is_partial: bool,
    /// Require that trimmed data becomes unreadable.
    pub is_secure: bool,
}

/// How work is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Cancelled: the next run starts from the beginning.
    Cancel,
    /// Suspended: it can be resumed.
    Suspend,
    /// Uninitialized: the stored state is removed; initialize only, and not while it runs.
    Forget,
}

/// Running work, by leaf and kind.
#[derive(Debug)]
pub(crate) struct LeafWorks {
    // Held for single reads and updates, never across I/O.
    running: Mutex<BTreeMap<(u64, LeafWorkKind), Arc<Runner>>>,
    /// No work starts, because the pool is being closed. Asked under the lock of `running`.
    is_stopped: AtomicBool,
    /// Time at which progress was last saved.
    saved: Mutex<Duration>,
}

impl Default for LeafWorks {
    fn default() -> Self {
        Self {
            running: Mutex::with_default(Rank::LeafWorks),
            is_stopped: AtomicBool::new(false),
            saved: Mutex::with_default(Rank::LeafWorkSaved),
        }
    }
}

/// Leaf, kind and progress of some work.
type Progress = (u64, LeafWorkKind, u64);

impl LeafWorks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, LeafWorkKind), Arc<Runner>>> {
        self.running.lock()
    }

    fn saved(&self) -> MutexGuard<'_, Duration> {
        self.saved.lock()
    }

    /// Returns the progress of all running work if it is to be saved: one txg for all of it; the
    /// first caller saves it.
    fn due(&self) -> Option<Vec<Progress>> {
        {
            let (mut saved, now) = (self.saved(), monotonic());
            if now.saturating_sub(*saved) <= Duration::from_secs(tunables::TXG_TIMEOUT.get()) {
                return None;
            }
            *saved = now;
        }
        let running = self.lock();
        let running = running.iter().filter(|(_, runner)| !runner.has_ended());
        Some(running.map(|(&(leaf, kind), runner)| (leaf, kind, runner.offset())).collect())
    }

    /// Returns the finished bytes of all running work.
    pub(crate) fn offsets(&self) -> BTreeMap<(u64, LeafWorkKind), u64> {
        let running = self.lock();
        let running = running.iter().filter(|(_, runner)| !runner.has_ended());
        running.map(|(key, runner)| (*key, runner.offset())).collect()
    }

    /// Returns the work of a leaf, unless it has ended.
    fn running(&self, leaf: u64, kind: LeafWorkKind) -> Option<Arc<Runner>> {
        self.lock().get(&(leaf, kind)).filter(|runner| !runner.has_ended()).map(Arc::clone)
    }
}

/// A leaf on which work is possible.
#[derive(Debug, Clone)]
struct Target {
    guid: u64,
    zap: u64,
    path: String,
}

/// Returns the leaves with data or logs on which work is possible.
fn data_leaves_of(root: &VdevConfig) -> impl Iterator<Item = &VdevConfig> {
    let tops = root.children.iter().filter(|top| top.kind.is_concrete());
    let leaves = tops.flat_map(VdevConfig::leaves).filter(|leaf| leaf.kind.is_real_leaf());
    leaves.filter(|leaf| leaf.leaf.zap_leaf.is_some())
}

/// Finds a leaf on which work is possible.
fn target_of(root: &VdevConfig, leaf: u64) -> std::result::Result<Target, LeafWorkError> {
    let found = data_leaves_of(root).find(|found| found.guid == leaf);
    let found = found.and_then(|found| Some((found, found.leaf.zap_leaf?)));
    let (found, zap) = found.ok_or(LeafWorkError::NoDevice(leaf))?;
    let path = found.leaf.path.as_ref();
    let path = path.map_or_else(String::new, |path| path.to_string_lossy().into_owned());
    Ok(Target { guid: leaf, zap, path })
}

/// Whether a leaf is below a vdev that is being removed.
fn is_leaving(root: &VdevConfig, leaf: u64) -> bool {
    root.children.iter().filter(|top| top.top.removing).any(|top| top.find(leaf).is_some())
}

impl Leaves<'_> {
    /// Returns the guids of all leaves with data or logs on which work is possible.
    pub fn data_guids(self) -> Vec<u64> {
        self.engine
            .with_config(|config| data_leaves_of(&config.root).map(|leaf| leaf.guid).collect())
    }

    /// Returns the stored state of work on a leaf, with the current progress if it runs.
    ///
    /// # Errors
    /// A [`LeafWorkError`], or errors of a device.
    pub async fn work_state(self, leaf: u64, kind: LeafWorkKind) -> Result<LeafWork> {
        let target = self.target(leaf)?;
        let work = self.engine.inspect_vdev(leaf, |tx| record::read(tx, target.zap, kind)).await?;
        let mut work = work.ok_or(LeafWorkError::NoDevice(leaf))?;
        if let Some(runner) = self.engine.leaf.works.running(leaf, kind) {
            work.offset = runner.offset();
        }
        Ok(work)
    }

    /// Starts or resumes a trim of leaves.
    ///
    /// # Errors
    /// A [`LeafWorkError`], and nothing was started; or errors of a sync.
    pub async fn start_trim(self, leaves: &[u64], options: TrimOptions) -> Result<()> {
        if let (true, Some(leaf)) = (options.is_secure, leaves.first()) {
            // No supported device promises that.
            return Err(LeafWorkError::NotSupported(*leaf).into());
        }
        self.start_work(leaves, LeafWorkKind::Trim, options).await
    }

    /// Starts or resumes an initialize of leaves.
    ///
    /// # Errors
    /// A [`LeafWorkError`], and nothing was started; or errors of a sync.
    pub async fn start_initialize(self, leaves: &[u64]) -> Result<()> {
        self.start_work(leaves, LeafWorkKind::Initialize, TrimOptions::default()).await
    }

    /// Resumes work that was running when the pool was closed, and all work after a close that
    /// failed: trim, initialize and autotrim.
    ///
    /// # Errors
    /// Errors of a device.
    pub async fn resume_work(self) -> Result<()> {
        self.engine.leaf.auto_trim.resume();
        self.engine.leaf.works.is_stopped.store(false, Ordering::Release);
        self.run_active_work().await
    }

    /// Runs all work whose stored state is active and that does not run; none while the pool is
    /// being closed.
    pub(crate) async fn run_active_work(self) -> Result<()> {
        for leaf in self.data_guids() {
            for kind in [LeafWorkKind::Trim, LeafWorkKind::Initialize] {
                let work = match self.work_state(leaf, kind).await {
                    // It has left the pool.
                    Err(error) if error.cause::<LeafWorkError>().is_some() => continue,
                    work => work?,
                };
                let is_free = self.is_writable(leaf) && !self.is_expanding(leaf);
                if work.state == LeafWorkState::Active && is_free {
                    self.run_work(leaf, kind, work);
                }
            }
        }
        Ok(())
    }

    /// Waits until no such work runs on these leaves, and returns its result.
    ///
    /// # Errors
    /// The first error of a device.
    pub async fn wait_for_work(self, leaves: &[u64], kind: LeafWorkKind) -> Result<()> {
        let mut result = Ok(());
        for leaf in leaves {
            let runner = self.engine.leaf.works.lock().get(&(*leaf, kind)).map(Arc::clone);
            if let Some(runner) = runner {
                result = result.and(runner.wait().await);
            }
        }
        result
    }

    /// Whether work on a leaf is actually running: on a leaf that cannot be written it waits.
    ///
    /// # Errors
    /// The error that ended it.
    pub async fn is_work_running(self, leaf: u64, kind: LeafWorkKind) -> Result<bool> {
        if self.engine.leaf.works.running(leaf, kind).is_some() {
            return Ok(true);
        }
        self.wait_for_work(&[leaf], kind).await?;
        Ok(false)
    }

    /// Returns the size of a leaf's data area in bytes.
    pub fn size_of(self, leaf: u64) -> u64 {
        let found =
            self.engine.tree.leaf_of(leaf).and_then(|id| self.engine.tree.leaf(id).device());
        let size = found.map(|device| device.info().size);
        size.and_then(cenote_vdev::layout::leaf_asize).unwrap_or(0)
    }

    /// Stops work on leaves.
    ///
    /// # Errors
    /// A [`LeafWorkError`], and nothing was stopped; or errors of a sync.
    pub async fn stop_work(self, leaves: &[u64], kind: LeafWorkKind, stop: Stop) -> Result<()> {
        for leaf in leaves {
            let work = self.work_state(*leaf, kind).await?;
            let is_running = self.engine.leaf.works.running(*leaf, kind).is_some();
            match (stop, work.state) {
                (Stop::Forget, _) if is_running => {
                    return Err(LeafWorkError::Running(*leaf, kind).into());
                }
                (Stop::Forget, _)
                | (Stop::Cancel | Stop::Suspend, LeafWorkState::Active)
                | (Stop::Cancel, LeafWorkState::Suspended) => {}
                _ => return Err(LeafWorkError::NotRunning(*leaf, kind).into()),
            }
        }
        let mut done = Vec::new();
        for leaf in leaves {
            done.push((*leaf, self.halt(*leaf, kind).await));
        }
        self.engine
            .datasets()
            .operate(Request::free().changing(&[]), move |tx, env, _| {
                for &(leaf, done) in &done {
                    let target = target_of(&env.vdevs, leaf)?;
                    let path = &target.path;
                    let (state, change) = match stop {
                        Stop::Cancel => (LeafWorkState::Canceled, "canceled"),
                        Stop::Suspend => (LeafWorkState::Suspended, "suspended"),
                        Stop::Forget => {
                            record::forget(tx, target.zap, kind)?;
                            history::log_pool(tx, env, "uninitialize", &format!("vdev={path}"))?;
                            continue;
                        }
                    };
                    let mut work = record::read(tx, target.zap, kind)?;
                    (work.state, work.time) = (state, env.now);
                    work.offset = done.unwrap_or(work.offset);
                    record::write(tx, target.zap, kind, &work)?;
                    history::log_pool(tx, env, kind.name(), &format!("vdev={path} {change}"))?;
                }
                Ok(())
            })
            .await?;
        let event = if stop == Stop::Cancel { TrimEvent::Cancel } else { TrimEvent::Suspend };
        for leaf in leaves {
            self.note_trim(*leaf, kind, event);
        }
        Ok(())
    }

    /// Records the event of a trim; other work has no events.
    fn note_trim(self, leaf: u64, kind: LeafWorkKind, event: TrimEvent) {
        if kind == LeafWorkKind::Trim {
            self.engine.health.damage.note(Event::Trim { leaf, event });
        }
    }

    /// Stops all work on leaves, so that their devices are not used any more; saves the progress,
    /// from which the next import resumes.
    pub(crate) async fn stop_all_work(self) {
        // First: work that starts from now on finds it.
        self.engine.leaf.works.is_stopped.store(true, Ordering::Release);
        self.engine.leaf.auto_trim.stop().await;
        let running: Vec<_> = self.engine.leaf.works.lock().keys().copied().collect();
        let mut done = Vec::new();
        for (leaf, kind) in running {
            if let Some(offset) = self.halt(leaf, kind).await {
                done.push((leaf, kind, offset));
            }
        }
        // Without saved progress work is only repeated.
        drop(self.save_progress(&done).await);
    }

    /// Stops the work on leaves that are about to change their place, and saves its progress. Its
    /// stored state stays active: [`run_active_work`](Self::run_active_work) continues it.
    pub(crate) async fn pause_work(self, leaves: &[u64]) -> Result<()> {
        let mut done = Vec::new();
        for leaf in leaves {
            for kind in [LeafWorkKind::Trim, LeafWorkKind::Initialize] {
                let offset = self.halt(*leaf, kind).await;
                done.extend(offset.map(|offset| (*leaf, kind, offset)));
            }
        }
        self.save_progress(&done).await
    }

    /// Stops the work on a leaf; returns its progress if it was running.
    async fn halt(self, leaf: u64, kind: LeafWorkKind) -> Option<u64> {
        let runner = self.engine.leaf.works.running(leaf, kind)?;
        runner.stop();
        drop(runner.wait().await);
        runner.was_stopped().then(|| runner.offset())
    }

    async fn start_work(self, leaves: &[u64], kind: LeafWorkKind, how: TrimOptions) -> Result<()> {
        for leaf in leaves {
            self.target(*leaf)?;
            if !self.is_writable(*leaf) {
                return Err(LeafWorkError::NotWritable(*leaf).into());
            }
            let is_leaving = self.engine.with_config(|config| is_leaving(&config.root, *leaf));
            // OpenZFS has this error for vdevs that are being removed or expanded, too.
            let is_running = self.engine.leaf.works.running(*leaf, kind).is_some();
            if is_leaving || is_running || self.is_expanding(*leaf) {
                return Err(LeafWorkError::Running(*leaf, kind).into());
            }
        }
        let leaves = leaves.to_vec();
        let before = self.engine.config().root;
        let begun = self
            .engine
            .datasets()
            .operate(Request::free().changing(&[]), move |tx, env, _| {
                let mut begun = Vec::new();
                let now = if is_on(Bug::LeafObjectOfBefore) { &before } else { &env.vdevs };
                for &leaf in &leaves {
                    let target = target_of(now, leaf)?;
                    if is_leaving(now, leaf) {
                        return Err(LeafWorkError::Running(leaf, kind).into());
                    }
                    let mut work = record::read(tx, target.zap, kind)?;
                    let goes_on =
                        matches!(work.state, LeafWorkState::Suspended | LeafWorkState::Active);
                    if !goes_on {
                        work = LeafWork { time: env.now, ..LeafWork::default() };
                    }
                    if how.rate != 0 {
                        work.rate = how.rate;
                    }
                    work.is_partial |= how.is_partial;
                    work.state = LeafWorkState::Active;
                    record::write(tx, target.zap, kind, &work)?;
                    let text = format!("vdev={} activated", target.path);
                    history::log_pool(tx, env, kind.name(), &text)?;
                    let event = if goes_on { TrimEvent::Resume } else { TrimEvent::Start };
                    begun.push((target.guid, work, event));
                }
                Ok(begun)
            })
            .await?;
        for (leaf, work, event) in begun {
            self.note_trim(leaf, kind, event);
            self.run_work(leaf, kind, work);
        }
        Ok(())
    }

    fn target(self, leaf: u64) -> Result<Target> {
        Ok(self.engine.with_config(|config| target_of(&config.root, leaf))?)
    }

    fn is_writable(self, leaf: u64) -> bool {
        self.engine.tree.leaf_of(leaf).is_some_and(|id| self.engine.tree.leaf(id).is_writable())
    }

    /// Saves the progress of work on leaves, but of those that have left the pool.
    async fn save_progress(self, done: &[Progress]) -> Result<()> {
        if done.is_empty() {
            return Ok(());
        }
        let done = done.to_vec();
        self.engine
            .datasets()
            .operate(Request::free().changing(&[]), move |tx, env, _| {
                for &(leaf, kind, offset) in &done {
                    let Ok(target) = target_of(&env.vdevs, leaf) else { continue };
                    let mut work = record::read(tx, target.zap, kind)?;
                    // It may have ended meanwhile.
                    if work.state == LeafWorkState::Active {
                        work.offset = offset;
                        record::write(tx, target.zap, kind, &work)?;
                    }
                }
                Ok(())
            })
            .await
    }

    /// Saves the end of the work on a leaf, and its progress.
    async fn save_end(
        self,
        leaf: u64,
        kind: LeafWorkKind,
        end: LeafWorkState,
        offset: u64,
    ) -> Result<()> {
        self.engine
            .datasets()
            .operate(Request::free().changing(&[]), move |tx, env, _| {
                let target = target_of(&env.vdevs, leaf)?;
                let mut work = record::read(tx, target.zap, kind)?;
                (work.state, work.time, work.offset) = (end, env.now, offset);
                record::write(tx, target.zap, kind, &work)?;
                let change = if end == LeafWorkState::Complete { "complete" } else { "canceled" };
                let text = format!("vdev={} {change}", target.path);
                history::log_pool(tx, env, kind.name(), &text)
            })
            .await?;
        let is_complete = end == LeafWorkState::Complete;
        self.note_trim(leaf, kind, if is_complete { TrimEvent::Finish } else { TrimEvent::Cancel });
        Ok(())
    }
}
