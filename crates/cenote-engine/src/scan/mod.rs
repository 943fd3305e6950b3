//! Scrub and resilver: every block is read, and what is bad or missing is written again.
//!
//! ```text
//!   zpool scrub, a leaf is back ── setup ──> rounds, each of its own view ──> end
//!                                              |                              `─ DTLs emptied
//!                                              `─ position recorded in the pool: goes on from
//!                                                 there after a crash, and with OpenZFS
//!   rebuild    new sides of mirrors and children of dRAIDs, without a walk through datasets
//!   deferral   leaves that wait for the end of the resilver of others
//!   error_scrub  the blocks of the error log only
//!   position   the dataset in progress, and those to come
//!   fill       the blocks that leaves lack are read and written, by address
//!   record     their form in the pool directory; operations on datasets move it
//!   round      the walk through a committed state, and the repairs
//!   run        round after round, in the background
//! ```
//!
//! A resilver reads the blocks that leaves in service lack according to their dirty time logs, and
//! writes them there. It begins anew after an import, because leaves may have been away since. A
//! scrub goes on where it was.
//!
//! Guarantees
//! * SC2  A leaf's log forgets a txg only after a scan that began in this import has written every
//!   block of that txg to the leaf; D2 of the leaf covers what fails meanwhile, and the commit
//!   flushes the leaf.
//!
//! Sources: spec 04 §21, 06 §9, §14, §15.

pub(crate) mod deferral;
mod error_scrub;
mod fill;
mod position;
pub(crate) mod rebuild;
pub(crate) mod record;
mod round;
mod run;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use cenote_dmu::{Tx, TxResult, TxStop};
use cenote_ondisk::scan::{LAST_SCRUBBED_TXG, ScanFlags, ScanFunc, ScanPhys};
use cenote_pool::mos::directory_object;
use cenote_rt::lock::{AsyncMutex, AsyncMutexGuard, Mutex, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result};
use cenote_vdev::TxgRanges;
use cenote_vdev::queue::ScanWait;

use crate::Engine;
use crate::admin::events::{Event, PoolEvent};
use crate::admin::health::Notice;
use crate::dsl::operation::Request;
use crate::dsl::{Effects, Env};
use record::ScanDamage;
use run::{Job, Runner};

/// Most txgs that a new leaf lacks and that are not synced yet.
const TXGS_TO_COME: u32 = 3;

/// Why a scan is not started, paused or stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// A scrub runs.
    #[error("currently scrubbing")]
    Scrubbing,
    /// A resilver runs.
    #[error("currently resilvering")]
    Resilvering,
    /// The scrub is paused already.
    #[error("scrub is paused")]
    Paused,
    /// An error scrub runs.
    #[error("currently error scrubbing")]
    ErrorScrubbing,
    /// An error scrub is paused.
    #[error("error scrub is paused")]
    ErrorScrubPaused,
    /// No scrub runs, or no scan at all.
    #[error("there is no active scrub")]
    NotRunning,
}

impl From<ScanError> for Error {
    fn from(error: ScanError) -> Self {
        let kind = if error == ScanError::NotRunning { Kind::NotFound } else { Kind::Busy };
        Self::new(kind, error)
    }
}

impl From<ScanError> for TxStop {
    fn from(error: ScanError) -> Self {
        Error::from(error).into()
    }
}

/// Which blocks a scrub reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScrubOptions {
    /// Only blocks that were born after the last completed scrub (`zpool scrub -C`).
    pub from_last: bool,
}

/// What a scan did since the pool was opened, or since the scan began or was resumed. The rest of
/// its state is in the pool ([`cenote_ondisk::scan::ScanPhys`]).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ScanPass {
    /// Seconds since 1970 at which this pass began.
    pub started: u64,
    /// Bytes whose blocks were visited.
    pub examined: u64,
    /// Bytes read.
    pub issued: u64,
    /// Bytes read by earlier passes.
    pub issued_before: u64,
    /// Seconds since 1970 at which it was paused; 0 if it is not paused.
    pub paused: u64,
    /// Seconds for which it was paused before.
    pub spent_paused: u64,
    /// How much ordinary I/O held it back lately; `None` if it does not run.
    pub wait: Option<ScanWait>,
    /// Whether the expansion of a RAID-Z vdev waits until a device is back and has everything.
    pub is_expansion_waiting: bool,
}

/// The state behind [`Scans`].
#[derive(Debug)]
pub(crate) struct ScanTasks {
    /// Held while a scan is begun, paused or ended, and while it is started: so each record has one
    /// runner, and each runner the record that it began with.
    control: AsyncMutex<()>,
    // Held for a few instructions, never across I/O.
    runner: Mutex<Option<Arc<Runner>>>,
    /// No scan runs, because the pool is being closed. Asked under the lock of `runner`.
    is_stopped: AtomicBool,
    /// When the scan began that this import began last.
    began: AtomicU64,
    /// Something could not be visited since then: the scan does not know all that leaves lack.
    is_incomplete: AtomicBool,
    /// A leaf came back while a scan was running.
    is_wanted: AtomicBool,
}

/// The scans of a pool; from [`Engine::scans`].
#[derive(Debug, Clone, Copy)]
pub struct Scans<'e> {
    pub(crate) engine: &'e Engine,
}

impl Default for ScanTasks {
    fn default() -> Self {
        Self {
            control: AsyncMutex::with_default(Rank::ScanControl),
            runner: Mutex::new(Rank::ScanRunner, None),
            is_stopped: AtomicBool::new(false),
            began: AtomicU64::new(u64::MAX),
            is_incomplete: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
        }
    }
}

/// What a scan is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Scrub(ScrubOptions),
    Resilver,
    /// A resilver in place of the one in progress, for a leaf that has come since.
    EarlyRestart,
}

impl<'e> Scans<'e> {
    async fn control(self) -> AsyncMutexGuard<'e, ()> {
        self.engine.leaf.scan.control.lock().await
    }

    /// Starts a scrub, or resumes a paused one. If a leaf in service lacks data, that is a
    /// resilver, as in OpenZFS. It goes on in the background, and after a crash or an export with
    /// the next import.
    ///
    /// # Errors
    /// A [`ScanError`], or errors of a sync.
    pub async fn scrub(self, options: ScrubOptions) -> Result<()> {
        let before = self.in_progress().await?;
        let _control = self.control().await;
        match self.in_progress().await? {
            None => self.begin(Wanted::Scrub(options)).await,
            // The resilver of a leaf that has just come began meanwhile: it would have been this.
            Some(ScanError::Resilvering) if before.is_none() => Ok(()),
            Some(ScanError::Paused) => self.go_on().await,
            Some(other) => Err(other.into()),
        }
    }

    /// Returns why no scan can be started: the one that is in progress, also if it does not run yet
    /// after an import.
    ///
    /// # Errors
    /// Errors of a device.
    pub async fn in_progress(self) -> Result<Option<ScanError>> {
        if self.is_rebuilding().await? {
            return Ok(Some(ScanError::Resilvering));
        }
        if let Some(phys) = self.engine.mos.inspect(error_scrub::running).await? {
            return Ok(Some(error_scrub::why_not(&phys)));
        }
        let found = self.stored().await?.map(|phys| match phys.func {
            ScanFunc::Resilver => ScanError::Resilvering,
            _ if phys.flags.contains(ScanFlags::PAUSED) => ScanError::Paused,
            _ => ScanError::Scrubbing,
        });
        Ok(found)
    }

    /// Starts a resilver, or starts a running one anew, if a leaf in service lacks data.
    ///
    /// # Errors
    /// Errors of a sync.
    pub async fn resilver(self) -> Result<()> {
        if self.missing().is_empty() {
            return Ok(());
        }
        let _control = self.control().await;
        // Whatever leaves lack once it has ended is resilvered then.
        if self.is_rebuilding().await? {
            return Ok(());
        }
        self.begin(Wanted::Resilver).await
    }

    /// Pauses a scrub or error scrub.
    ///
    /// # Errors
    /// A [`ScanError`], or errors of a sync.
    pub async fn pause(self) -> Result<()> {
        let _control = self.control().await;
        if self.is_rebuilding().await? {
            return Err(ScanError::Resilvering.into());
        }
        if self.pause_error_scrub().await? {
            return Ok(());
        }
        self.operate(|tx, _, _| record::pause(tx, true)).await?;
        self.halt().await;
        if let Some(runner) = self.runner() {
            runner.note_paused();
        }
        self.note(PoolEvent::ScrubPaused);
        Ok(())
    }

    async fn go_on(self) -> Result<()> {
        self.operate(|tx, _, _| record::pause(tx, false)).await?;
        self.note(PoolEvent::ScrubResumed);
        self.start().await
    }

    /// Cancels a scrub, error scrub or resilver.
    ///
    /// # Errors
    /// A [`ScanError`], or errors of a sync.
    pub async fn stop(self) -> Result<()> {
        let _control = self.control().await;
        if self.is_rebuilding().await? {
            return Err(ScanError::Resilvering.into());
        }
        if self.stop_error_scrub().await? {
            return Ok(());
        }
        self.takes_next();
        let ended = self.operate(|tx, env, _| record::cancel(tx, env)).await?;
        self.halt().await;
        let is_scrub = ended == ScanFunc::Scrub;
        self.note(if is_scrub { PoolEvent::ScrubAborted } else { PoolEvent::ResilverAborted });
        Ok(())
    }

    /// Whether a scan of this kind runs; a paused one does not.
    pub fn is_running(self, func: ScanFunc) -> bool {
        self.runner().is_some_and(|runner| runner.func() == func && !runner.has_ended())
    }

    /// Waits until no scan of this kind runs. A paused one does not run.
    ///
    /// # Errors
    /// The error that ended it.
    pub async fn wait(self, func: ScanFunc) -> Result<()> {
        while let Some(runner) = self.runner().filter(|runner| runner.func() == func) {
            let is_over = runner.has_ended();
            runner.wait().await?;
            if is_over {
                break;
            }
        }
        Ok(())
    }

    /// Returns what the scan did since the pool was opened, or since it began.
    pub fn pass(self) -> ScanPass {
        let is_expansion_waiting =
            self.engine.leaves().reflow_progress().is_some_and(|progress| progress.is_waiting);
        let Some(runner) = self.runner() else {
            return ScanPass { is_expansion_waiting, ..ScanPass::default() };
        };
        let is_running = !runner.has_ended() && !runner.is_stopped();
        let wait = is_running.then(|| self.engine.tree.load().scan().waited());
        ScanPass { wait, is_expansion_waiting, ..runner.pass() }
    }

    /// Continues a scan that was running when the pool was closed, and starts a resilver if a leaf
    /// in service lacks data; does nothing while the pool is being closed. To be called after an
    /// import, and when a leaf is back.
    ///
    /// # Errors
    /// Errors of a device.
    pub async fn resume(self) -> Result<()> {
        let _control = self.control().await;
        if self.is_stopped() || self.resume_rebuilds().await? {
            return Ok(());
        }
        let stored = self.stored().await?;
        let is_resilver = |phys: &ScanPhys| phys.func == ScanFunc::Resilver;
        let lacks = self.missing().max().is_some();
        match stored {
            // It may have passed what a leaf that came back lacks.
            Some(phys) if is_resilver(&phys) && self.is_running(ScanFunc::Resilver) => {
                self.take_in().await
            }
            Some(phys) if is_resilver(&phys) => self.begin(Wanted::Resilver).await,
            _ if lacks => self.begin(Wanted::Resilver).await,
            Some(_) => self.start().await,
            None => {
                self.resume_error_scrub().await?;
                self.forget_deferral().await?;
                // A crash may have come between the end of a resilver and that.
                self.engine.leaves().end_replacements().await
            }
        }
    }

    /// Like [`resume`](Self::resume), but leaves a scan that is in progress alone: a resilver
    /// follows it, if a leaf in service lacks data then.
    ///
    /// # Errors
    /// Errors of a device.
    pub async fn resume_afterwards(self) -> Result<()> {
        self.engine.leaf.scan.is_wanted.store(true, Ordering::Release);
        if self.in_progress().await?.is_some() {
            return Ok(());
        }
        self.takes_next();
        self.resume().await
    }

    /// Drops a stored scan that cannot go on, because its record is damaged. By the import, before
    /// any dataset changes: the queue of a scan follows those changes.
    ///
    /// # Errors
    /// Errors of a device or a sync.
    pub(crate) async fn drop_damaged(self) -> Result<()> {
        let Some(damage) = self.damage().await? else { return Ok(()) };
        let cause = damage.to_string();
        let known = damage.clone();
        let dropped =
            self.operate(move |tx, env, _| record::drop_damaged(tx, env, &known, false)).await;
        if dropped.is_err() {
            self.operate(move |tx, env, _| record::drop_damaged(tx, env, &damage, true)).await?;
        }
        self.engine.health().add_notice(Notice::ScanDropped { cause });
        Ok(())
    }

    /// Returns what is wrong with the record of the scan in progress.
    async fn damage(self) -> Result<Option<ScanDamage>> {
        // What cannot be read while leaves are out of service may be whole on them.
        let of = |error: Error| {
            let damage = ScanDamage::of(&error);
            damage.filter(|_| !self.engine.tree.has_unavailable_leaves()).ok_or(error)
        };
        let txg = self.engine.uberblock().txg;
        let datasets = match self.engine.mos.inspect(|tx| record::examine(tx, txg)).await {
            Ok(Ok(datasets)) => datasets,
            Ok(Err(damage)) => return Ok(Some(damage)),
            Err(error) => return of(error).map(Some),
        };
        // Each by itself: a closure that needs many blocks is run again for each of them.
        for object in datasets {
            let found = self.engine.mos.inspect(|tx| record::examine_dataset(tx, object)).await;
            match found {
                Ok(None) => {}
                Ok(Some(damage)) => return Ok(Some(damage)),
                Err(error) => return of(error).map(Some),
            }
        }
        Ok(None)
    }

    /// Stops the scan, so that devices are not used any more. It stays as it is in the pool.
    pub(crate) async fn suspend(self) {
        self.engine.leaf.scan.is_stopped.store(true, Ordering::Release);
        self.halt().await;
    }

    /// The pool stays open: undoes [`suspend`](Self::suspend).
    pub(crate) async fn unsuspend(self) -> Result<()> {
        self.engine.leaf.scan.is_stopped.store(false, Ordering::Release);
        self.resume().await
    }

    fn is_stopped(self) -> bool {
        self.engine.leaf.scan.is_stopped.load(Ordering::Acquire)
    }

    /// Returns the scan in progress, paused or not.
    async fn stored(self) -> Result<Option<ScanPhys>> {
        self.engine.mos.inspect(record::scanning).await
    }

    /// Changes the record of the scan in the next sync.
    async fn operate<T: Send + 'static>(
        self,
        change: impl Fn(&mut Tx<'_>, &Env, &mut Effects) -> TxResult<T> + Send + Sync + 'static,
    ) -> Result<T> {
        self.engine.datasets().operate(Request::free().changing(&[]), change).await
    }

    fn runner(self) -> Option<Arc<Runner>> {
        self.engine.leaf.scan.runner.lock().clone()
    }

    fn note(self, event: PoolEvent) {
        self.engine.health.damage.note(Event::Pool(event));
    }

    /// Returns the txgs that leaves in service lack.
    fn missing(self) -> TxgRanges {
        let leaves = self.engine.tree.leaves().filter(|(_, leaf)| leaf.is_writable());
        let missing = leaves.filter_map(|(_, leaf)| leaf.dtl());
        missing.fold(TxgRanges::default(), |all, of| all.union(&of))
    }

    /// A leaf that has just come, or came before a crash, lacks txgs that are still to come: once
    /// they are synced, no write is in flight that misses it.
    async fn until_missing_is_synced(self) -> Result<()> {
        for _ in 0..TXGS_TO_COME {
            if self.missing().max().is_some_and(|last| last > self.engine.uberblock().txg) {
                self.engine.sync().await?;
            }
        }
        Ok(())
    }

    /// Begins a scan; one that runs is replaced.
    async fn begin(self, wanted: Wanted) -> Result<()> {
        self.halt().await;
        self.stop_error_scrub().await?;
        self.takes_next();
        self.until_missing_is_synced().await?;
        let figures = self.engine.alloc.vdev_figures();
        let allocated = figures.iter().map(|vdev| vdev.space.allocated).sum();
        let missing = self.missing();
        let begun = self
            .operate(move |tx, env, effects| {
                let first = missing.iter().next().map(|(first, _)| first);
                let limits = match (wanted, first) {
                    (_, Some(first)) => {
                        let after = u64::from(!is_on(Bug::ScanMissesLastTxg));
                        let end = missing.max().map_or(env.txg, |last| last.saturating_add(after));
                        (first.saturating_sub(1), end.min(env.txg.saturating_add(1)))
                    }
                    // The leaf has left service meanwhile.
                    (Wanted::Resilver | Wanted::EarlyRestart, None) => (0, 1),
                    (Wanted::Scrub(options), None) => {
                        let last = if options.from_last {
                            directory_object(tx, LAST_SCRUBBED_TXG)?.unwrap_or(0)
                        } else {
                            0
                        };
                        (last, env.txg)
                    }
                };
                let is_scrub = first.is_none() && matches!(wanted, Wanted::Scrub(_));
                let func = if is_scrub { ScanFunc::Scrub } else { ScanFunc::Resilver };
                let restarted = record::scanning(tx)?;
                let start_time = record::setup(tx, env, func, limits, allocated)?;
                if !is_scrub {
                    let is_early = wanted == Wanted::EarlyRestart;
                    deferral::note_begun(tx, env, effects, restarted.as_ref(), is_early)?;
                }
                effects.begun_scan = Some((start_time, limits));
                Ok(func)
            })
            .await?;
        let is_scrub = begun == ScanFunc::Scrub;
        self.note(if is_scrub { PoolEvent::ScrubStarted } else { PoolEvent::ResilverStarted });
        self.start().await
    }

    /// A task has begun a scan.
    pub(crate) fn note_begun(self, start_time: u64, (min, max): (u64, u64)) {
        self.engine.tree.leaves().for_each(|(_, leaf)| leaf.begin_scan(min, max));
        let is_incomplete =
            self.engine.removals().hides_copies() && !is_on(Bug::ResilverForgetsCopies);
        self.engine.leaf.scan.is_incomplete.store(is_incomplete, Ordering::Release);
        self.engine.leaf.scan.began.store(start_time, Ordering::Release);
    }

    /// Something could not be visited.
    fn note_incomplete(self) {
        self.engine.leaf.scan.is_incomplete.store(true, Ordering::Release);
    }

    /// Whether the scan in progress was begun by this import, and has visited everything (SC2).
    fn is_whole(self, start_time: u64) -> bool {
        let scan = &self.engine.leaf.scan;
        scan.began.load(Ordering::Acquire) == start_time
            && !scan.is_incomplete.load(Ordering::Acquire)
    }

    /// Whether another resilver is to follow the one that has ended.
    fn takes_next(self) -> bool {
        self.engine.leaf.scan.is_wanted.swap(false, Ordering::AcqRel)
    }

    /// Runs the stored scan in the background.
    async fn start(self) -> Result<()> {
        let Some(phys) = self.stored().await? else { return Ok(()) };
        // The runner of this scan, unless it was asked to end.
        if let Some(before) = self.runner().filter(|before| !before.has_ended()) {
            if before.runs(Job::Scan(phys.func), phys.start_time) {
                return Ok(());
            }
            self.halt().await;
        }
        let issued_before = phys.examined.saturating_sub(phys.skipped);
        let before = self.runner();
        let runner =
            Runner::new(Job::Scan(phys.func), phys.start_time, issued_before, before.as_deref());
        self.launch(runner, phys.flags.contains(ScanFlags::PAUSED));
        Ok(())
    }

    /// Starts a runner, unless its scan is paused or the pool is being closed.
    fn launch(self, runner: Arc<Runner>, is_paused: bool) {
        if is_paused {
            runner.note_paused();
            runner.finish();
        }
        {
            let mut running = self.engine.leaf.scan.runner.lock();
            // The next import, or the end of a failed close, starts it.
            if self.is_stopped() {
                return;
            }
            *running = Some(Arc::clone(&runner));
        }
        if !is_paused {
            run::start(self.engine.me.clone(), runner);
        }
    }

    /// Stops the running scan, and waits for it.
    async fn halt(self) {
        if let Some(runner) = self.runner() {
            runner.stop();
            // What it has submitted is read without waiting for ordinary I/O.
            let _lifted = self.engine.tree.load().scan().lift();
            // Why it ended is told by the next one.
            drop(runner.wait().await);
        }
    }
}
