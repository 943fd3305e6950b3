//! Work on the free space of leaves: discarding it (trim), filling it (initialize), and discarding
//! by itself what becomes free (autotrim) (spec 05 §9, 06 §18, 08 §35).
//!
//! ```text
//!   start ── state in the leaf's ZAP: active ──> run, metaslab after metaslab ──> complete
//!                                                 |  now and then: how far it is
//!   stop ──> canceled, suspended                  `─ the pool is left: active, and goes on at the
//!                                                    next opening from there
//! ```
//!
//! Safety: only ranges are touched that the allocator gives as free of a metaslab that is out of
//! use meanwhile: no txg that is open, syncing or among the last two has them, no checkpoint holds
//! them, and nobody gets them before the device has answered. So it makes no difference when a
//! crash comes. Nothing is under way any more once the pool is left: [`Leaves::stop_all_work`].

mod auto;
mod record;
mod run;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::leaf_work::{LeafWork, LeafWorkKind, LeafWorkState};
use cenote_rt::{Error, Kind, Result, monotonic, tunables};

use crate::Leaves;
use crate::admin::events::{Event, TrimEvent};
use crate::dsl::history;
use crate::dsl::operation::Request;
pub(crate) use auto::AutoTrim;
use run::Runner;

/// Why work on a leaf is not begun or ended, in OpenZFS's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeafWorkError {
    /// It is no leaf that holds data.
    #[error("no such device in pool")]
    NoDevice(u64),
    /// It cannot be written.
    #[error("device is not writable")]
    NotWritable(u64),
    /// It is under way.
    #[error("currently {}", match .1 { LeafWorkKind::Trim => "trimming", LeafWorkKind::Initialize => "initializing" })]
    Running(u64, LeafWorkKind),
    /// There is nothing to stop.
    #[error("there is no active {}", match .1 { LeafWorkKind::Trim => "trim", LeafWorkKind::Initialize => "initialization" })]
    NotRunning(u64, LeafWorkKind),
    /// The device cannot discard, or not so that nothing can be read any more.
    #[error("trim operations are not supported by this device")]
    NotSupported(u64),
}

impl LeafWorkError {
    /// The leaf.
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

/// How a trim is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrimOptions {
    /// Bytes in a second at most; 0 for as fast as it goes.
    pub rate: u64,
    /// What was never used is left out.
    pub is_partial: bool,
    /// What is discarded must not be readable any more.
    pub is_secure: bool,
}

/// How work ends before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// For good: the next one begins anew.
    Cancel,
    /// It can go on later.
    Suspend,
    /// As if it had never been; initialize only, and not while it runs.
    Forget,
}

/// Work that is under way, by leaf and kind.
#[derive(Debug, Default)]
pub(crate) struct LeafWorks {
    // Held for a look, never across I/O.
    running: Mutex<BTreeMap<(u64, LeafWorkKind), Arc<Runner>>>,
    /// When it was last written down how far they are.
    saved: Mutex<Duration>,
}

/// How far the work on a leaf is.
type Progress = (u64, LeafWorkKind, u64);

impl LeafWorks {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(u64, LeafWorkKind), Arc<Runner>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn saved(&self) -> MutexGuard<'_, Duration> {
        self.saved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How far all of it is, if that is to be written down again: one txg for all that run, and
    /// whoever is the first to ask sees to it.
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

    /// That of a leaf, unless it has ended.
    fn running(&self, leaf: u64, kind: LeafWorkKind) -> Option<Arc<Runner>> {
        self.lock().get(&(leaf, kind)).filter(|runner| !runner.has_ended()).map(Arc::clone)
    }
}

/// A leaf that can be worked on.
#[derive(Debug, Clone)]
struct Target {
    guid: u64,
    zap: u64,
    path: String,
}

/// Leaves that hold data or logs and can be worked on.
fn data_leaves_of(root: &VdevConfig) -> impl Iterator<Item = &VdevConfig> {
    let tops = root.children.iter().filter(|top| top.kind.is_concrete());
    let leaves = tops.flat_map(VdevConfig::leaves).filter(|leaf| leaf.kind.is_real_leaf());
    leaves.filter(|leaf| leaf.leaf.zap_leaf.is_some())
}

impl Leaves<'_> {
    /// All leaves that hold data or logs and can be worked on.
    pub fn data_guids(self) -> Vec<u64> {
        self.engine
            .with_config(|config| data_leaves_of(&config.root).map(|leaf| leaf.guid).collect())
    }

    /// What is stored of work on a leaf; how far it is if it runs.
    ///
    /// # Errors
    /// A [`LeafWorkError`], or a device's.
    pub async fn work_state(self, leaf: u64, kind: LeafWorkKind) -> Result<LeafWork> {
        let target = self.target(leaf)?;
        let mut work = self.engine.mos.inspect(|tx| record::read(tx, target.zap, kind)).await?;
        if let Some(runner) = self.engine.leaf.works.running(leaf, kind) {
            work.offset = runner.offset();
        }
        Ok(work)
    }

    /// Begins to discard what is free on leaves, or lets it go on.
    ///
    /// # Errors
    /// A [`LeafWorkError`]: nothing was begun then; or a sync's.
    pub async fn start_trim(self, leaves: &[u64], options: TrimOptions) -> Result<()> {
        if let (true, Some(leaf)) = (options.is_secure, leaves.first()) {
            // No device that is known here promises that.
            return Err(LeafWorkError::NotSupported(*leaf).into());
        }
        self.start_work(leaves, LeafWorkKind::Trim, options).await
    }

    /// Begins to fill what is free on leaves, or lets it go on.
    ///
    /// # Errors
    /// A [`LeafWorkError`]: nothing was begun then; or a sync's.
    pub async fn start_initialize(self, leaves: &[u64]) -> Result<()> {
        self.start_work(leaves, LeafWorkKind::Initialize, TrimOptions::default()).await
    }

    /// Lets work go on that was under way when the pool was left.
    ///
    /// # Errors
    /// A device's.
    pub async fn resume_work(self) -> Result<()> {
        for leaf in self.data_guids() {
            for kind in [LeafWorkKind::Trim, LeafWorkKind::Initialize] {
                let work = self.work_state(leaf, kind).await?;
                if work.state == LeafWorkState::Active && self.is_writable(leaf) {
                    self.run_work(leaf, kind, work);
                }
            }
        }
        Ok(())
    }

    /// Waits until no such work runs on these leaves, and tells how it ended.
    ///
    /// # Errors
    /// The first device's.
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

    /// Whether work on a leaf is under way, and not only to be: on a leaf that cannot be written
    /// it waits for better times.
    ///
    /// # Errors
    /// That which ended it.
    pub async fn is_work_running(self, leaf: u64, kind: LeafWorkKind) -> Result<bool> {
        if self.engine.leaf.works.running(leaf, kind).is_some() {
            return Ok(true);
        }
        self.wait_for_work(&[leaf], kind).await?;
        Ok(false)
    }

    /// Bytes of a leaf's data area.
    pub fn size_of(self, leaf: u64) -> u64 {
        let found =
            self.engine.tree.leaf_of(leaf).and_then(|id| self.engine.tree.leaf(id).device());
        let size = found.map(|device| device.info().size);
        size.and_then(cenote_vdev::layout::leaf_asize).unwrap_or(0)
    }

    /// Ends work on leaves before its time.
    ///
    /// # Errors
    /// A [`LeafWorkError`]: nothing was ended then; or a sync's.
    pub async fn stop_work(self, leaves: &[u64], kind: LeafWorkKind, stop: Stop) -> Result<()> {
        let mut targets = Vec::new();
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
            targets.push(self.target(*leaf)?);
        }
        let mut done = Vec::new();
        for target in &targets {
            done.push(self.halt(target.guid, kind).await);
        }
        self.engine
            .datasets()
            .operate(Request::free().changing(&[]), move |tx, env, _| {
                for (target, done) in targets.iter().zip(&done) {
                    let path = &target.path;
                    let (state, deed) = match stop {
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
                    history::log_pool(tx, env, kind.name(), &format!("vdev={path} {deed}"))?;
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

    /// Tells what became of a trim; of other work there are no events.
    fn note_trim(self, leaf: u64, kind: LeafWorkKind, event: TrimEvent) {
        if kind == LeafWorkKind::Trim {
            self.engine.health.damage.note(Event::Trim { leaf, event });
        }
    }

    /// Stops everything that works on leaves, so that nothing of theirs is touched any more; how
    /// far it is is written down, and it goes on at the next opening.
    pub(crate) async fn stop_all_work(self) {
        self.engine.leaf.auto_trim.stop().await;
        let running: Vec<_> = self.engine.leaf.works.lock().keys().copied().collect();
        let mut done = Vec::new();
        for (leaf, kind) in running {
            if let Some(offset) = self.halt(leaf, kind).await {
                done.push((leaf, kind, offset));
            }
        }
        // Not being able to say how far it is only repeats work.
        drop(self.save_progress(&done).await);
    }

    /// Stops the work on a leaf; tells how far it was, if it was under way.
    async fn halt(self, leaf: u64, kind: LeafWorkKind) -> Option<u64> {
        let runner = self.engine.leaf.works.running(leaf, kind)?;
        runner.stop();
        drop(runner.wait().await);
        runner.was_stopped().then(|| runner.offset())
    }

    async fn start_work(self, leaves: &[u64], kind: LeafWorkKind, how: TrimOptions) -> Result<()> {
        let mut targets = Vec::new();
        for leaf in leaves {
            let target = self.target(*leaf)?;
            if !self.is_writable(*leaf) {
                return Err(LeafWorkError::NotWritable(*leaf).into());
            }
            if self.engine.leaf.works.running(*leaf, kind).is_some() {
                return Err(LeafWorkError::Running(*leaf, kind).into());
            }
            targets.push(target);
        }
        let begun = self
            .engine
            .datasets()
            .operate(Request::free().changing(&[]), move |tx, env, _| {
                let mut begun = Vec::new();
                for target in &targets {
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
        let target = self.engine.with_config(|config| {
            let found = data_leaves_of(&config.root).find(|found| found.guid == leaf)?;
            let path = found.leaf.path.as_ref();
            let path = path.map_or_else(String::new, |path| path.to_string_lossy().into_owned());
            Some(Target { guid: leaf, zap: found.leaf.zap_leaf?, path })
        });
        target.ok_or_else(|| LeafWorkError::NoDevice(leaf).into())
    }

    fn is_writable(self, leaf: u64) -> bool {
        self.engine.tree.leaf_of(leaf).is_some_and(|id| self.engine.tree.leaf(id).is_writable())
    }

    /// Writes down how far work on leaves is.
    async fn save_progress(self, done: &[Progress]) -> Result<()> {
        let of = |&(leaf, kind, offset): &Progress| Ok((self.target(leaf)?.zap, kind, offset));
        let done = done.iter().map(of).collect::<Result<Vec<_>>>()?;
        if done.is_empty() {
            return Ok(());
        }
        self.engine
            .run(move |tx, _| {
                for &(zap, kind, offset) in &done {
                    let mut work = record::read(tx, zap, kind)?;
                    // It may have ended meanwhile.
                    if work.state == LeafWorkState::Active {
                        work.offset = offset;
                        record::write(tx, zap, kind, &work)?;
                    }
                }
                Ok(())
            })
            .await
    }

    /// Writes down that the work on a leaf has ended, and how far it was.
    async fn save_end(
        self,
        leaf: u64,
        kind: LeafWorkKind,
        end: LeafWorkState,
        offset: u64,
    ) -> Result<()> {
        let target = self.target(leaf)?;
        self.engine
            .datasets()
            .operate(Request::free().changing(&[]), move |tx, env, _| {
                let mut work = record::read(tx, target.zap, kind)?;
                (work.state, work.time, work.offset) = (end, env.now, offset);
                record::write(tx, target.zap, kind, &work)?;
                let deed = if end == LeafWorkState::Complete { "complete" } else { "canceled" };
                let text = format!("vdev={} {deed}", target.path);
                history::log_pool(tx, env, kind.name(), &text)
            })
            .await?;
        let is_complete = end == LeafWorkState::Complete;
        self.note_trim(leaf, kind, if is_complete { TrimEvent::Finish } else { TrimEvent::Cancel });
        Ok(())
    }
}
