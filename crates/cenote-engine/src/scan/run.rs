//! Runs scans in the background: round after round, until the end or until it is stopped.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_ondisk::scan::{ScanFlags, ScanFunc};
use cenote_rt::{Error, Kind, Result, monotonic, tunables};

use super::{ScanError, ScanPass, Scans, error_scrub, rebuild, record, round};
use crate::admin::events::{Event, PoolEvent};
use crate::background::Background;
use crate::{Engine, Notice};

/// Bytes of the first round.
const ROUND_FIRST: u64 = 256 << 20;
/// Least and most bytes of a round.
const ROUND_MIN: u64 = 1 << 20;
const ROUND_MAX: u64 = 64 << 30;
/// Rounds are made as long that they take about this time.
const ROUND_TIME: Duration = Duration::from_secs(10);
/// Pause before a round is repeated that made no progress.
const AGAIN_PAUSE: Duration = Duration::from_millis(100);
/// Repetitions without a pause, if the next dataset is too new.
const IDLE_SHORT: u32 = 3;
/// Repetitions after which such pauses become longer.
const IDLE_MAX: u32 = 50;
/// Time after which it is asked again whether scans stand still.
const REST: Duration = Duration::from_millis(100);
/// Pause after an error of a device.
const FAILED_PAUSE: Duration = Duration::from_secs(10);

/// What a runner does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Job {
    /// It walks through datasets, or reads the blocks of the error log.
    Scan(ScanFunc),
    /// It copies whole vdevs.
    Rebuild,
}

impl Job {
    /// The scan that callers take it for.
    const fn func(self) -> ScanFunc {
        match self {
            Self::Scan(func) => func,
            Self::Rebuild => ScanFunc::Resilver,
        }
    }
}

/// A scan that runs.
#[derive(Debug)]
pub(super) struct Runner {
    job: Job,
    /// It has completed a rebuild.
    has_rebuilt: AtomicBool,
    work: Background,
    /// When the scan began; another one has another time.
    start_time: u64,
    started: u64,
    issued_before: u64,
    spent_paused: u64,
    examined: AtomicU64,
    /// Shared with the sweep that reads blocks.
    issued: Arc<AtomicU64>,
    /// Seconds since 1970 at which it was paused, 0 if it was not.
    paused: AtomicU64,
}

impl Runner {
    /// Returns the state of a scan that goes on; `before` is that of the same scan if it was
    /// paused.
    pub(super) fn new(
        job: Job,
        start_time: u64,
        issued_before: u64,
        before: Option<&Self>,
    ) -> Arc<Self> {
        let now = cenote_rt::wall_clock().as_secs();
        let before = before.filter(|before| before.is_of(job, start_time));
        let first = || ScanPass { started: now, issued_before, ..ScanPass::default() };
        let pass = before.map_or_else(first, Self::pass);
        Arc::new(Self {
            job,
            has_rebuilt: AtomicBool::new(false),
            work: Background::default(),
            start_time,
            started: pass.started,
            issued_before: pass.issued_before,
            spent_paused: pass.spent_paused + since(pass.paused, now),
            examined: AtomicU64::new(pass.examined),
            issued: Arc::new(AtomicU64::new(pass.issued)),
            paused: AtomicU64::new(0),
        })
    }

    /// The scan that callers take it for.
    pub(super) fn func(&self) -> ScanFunc {
        self.job.func()
    }

    /// When the scan began.
    pub(super) fn start_time(&self) -> u64 {
        self.start_time
    }

    pub(super) fn note_rebuilt(&self) {
        self.has_rebuilt.store(true, Ordering::Release);
    }

    pub(super) fn has_rebuilt(&self) -> bool {
        self.has_rebuilt.load(Ordering::Acquire)
    }

    /// Whether it is that of the job that began then.
    pub(super) fn is_of(&self, job: Job, start_time: u64) -> bool {
        (self.job, self.start_time) == (job, start_time)
    }

    /// Whether it runs this job, and was not asked to end.
    pub(super) fn runs(&self, job: Job, start_time: u64) -> bool {
        self.is_of(job, start_time) && !self.is_stopped()
    }

    pub(super) fn stop(&self) {
        self.work.stop();
    }

    pub(super) fn stop_flag(&self) -> Arc<AtomicBool> {
        self.work.stop_flag()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.work.is_stopped()
    }

    pub(super) fn has_ended(&self) -> bool {
        self.work.has_ended()
    }

    pub(super) fn count_examined(&self, bytes: u64) {
        self.examined.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_issued(&self, bytes: u64) {
        self.issued.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns the counter of bytes read.
    pub(super) fn issued(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.issued)
    }

    /// Returns what it did.
    pub(super) fn pass(&self) -> ScanPass {
        ScanPass {
            started: self.started,
            examined: self.examined.load(Ordering::Relaxed),
            issued: self.issued.load(Ordering::Relaxed),
            issued_before: self.issued_before,
            paused: self.paused.load(Ordering::Relaxed),
            spent_paused: self.spent_paused,
            wait: None,
            is_expansion_waiting: false,
        }
    }

    pub(super) fn note_paused(&self) {
        self.paused.store(cenote_rt::wall_clock().as_secs(), Ordering::Relaxed);
    }

    /// Waits for its end. The first caller gets the error that ended it.
    pub(super) async fn wait(&self) -> Result<()> {
        self.work.wait().await
    }

    /// It ends without having run.
    pub(super) fn finish(&self) {
        self.work.finish(Ok(()));
    }
}

/// Seconds since a pause began that lasts until `now`; 0 if there was none.
fn since(paused: u64, now: u64) -> u64 {
    if paused == 0 { 0 } else { now.saturating_sub(paused) }
}

/// Runs a scan until its end.
pub(super) fn start(engine: Weak<Engine>, runner: Arc<Runner>) {
    cenote_rt::spawn_background(async move {
        let cut = Error::new(Kind::Closed, ScanError::NotRunning);
        runner.work.run(Box::pin(run(&engine, &runner)), cut).await;
        // A leaf that came back during the scan may lack what the scan had passed.
        let Some(engine) = engine.upgrade() else { return };
        if runner.job == Job::Rebuild {
            drop(engine.scans().follow_rebuild().await);
        } else if engine.scans().takes_next() {
            drop(engine.scans().resume().await);
        }
    });
}

async fn run(engine: &Weak<Engine>, runner: &Arc<Runner>) -> Result<()> {
    let mut limit = ROUND_FIRST;
    let mut after = None;
    let (mut is_told, mut idle) = (false, 0);
    loop {
        // Held for a round only, so that closing the pool does not wait for the end.
        let Some(held) = engine.upgrade() else { return Ok(()) };
        if runner.is_stopped() {
            return Ok(());
        }
        if tunables::SCAN_SUSPEND_PROGRESS.get() != 0 {
            drop(held);
            runner.work.rest(REST).await;
            continue;
        }
        let next = match runner.job {
            Job::Rebuild => rebuild::step(&held, runner).await,
            Job::Scan(ScanFunc::ErrorScrub) => error_scrub::step(&held, runner, &mut after).await,
            Job::Scan(_) => step(&held, runner, &mut limit).await,
        };
        let pause = match next {
            Ok(Step::More) => {
                idle = 0;
                continue;
            }
            Ok(Step::End) => return Ok(()),
            // A dataset that was created since: the next state has it.
            Ok(Step::Idle) if idle < IDLE_SHORT => {
                idle += 1;
                continue;
            }
            Ok(Step::Again | Step::Idle) if idle < IDLE_MAX => {
                idle += 1;
                AGAIN_PAUSE
            }
            // The pool is full, or a dataset in the record cannot be read.
            Ok(Step::Again | Step::Idle) => FAILED_PAUSE,
            Err(error) if error.kind() == Kind::Closed => return Err(error),
            Err(error) => {
                // Closing a pool stops it, too; its scan goes on when it is opened again.
                let is_closed = held.check_stopped().is_err() && held.health().stopped().is_none();
                if !is_closed && !std::mem::replace(&mut is_told, true) {
                    held.health().add_notice(Notice::ScanStalled { cause: error.to_string() });
                }
                FAILED_PAUSE
            }
        };
        drop(held);
        runner.work.rest(pause).await;
    }
}

/// How a scan continues.
pub(super) enum Step {
    More,
    /// There was no progress: the dataset that is next is not in the state that was read.
    Idle,
    /// After a pause: the space of the state was needed.
    Again,
    End,
}

async fn step(engine: &Arc<Engine>, runner: &Arc<Runner>, limit: &mut u64) -> Result<Step> {
    engine.until_running().await?;
    let Some(record) = engine.mos.inspect(record::running).await? else { return Ok(Step::End) };
    let job = Job::Scan(record.phys.func);
    if record.phys.flags.contains(ScanFlags::PAUSED) || !runner.is_of(job, record.phys.start_time) {
        return Ok(Step::End);
    }
    let begun = monotonic();
    let fixed = tunables::SCAN_ROUND_BYTES.get();
    *limit = if fixed == 0 { *limit } else { fixed };
    let done = match round::run(engine, runner, &record, *limit).await {
        Ok(Some(done)) => done,
        Ok(None) => return Ok(Step::End),
        Err(error) if error.kind() == Kind::Overtaken => {
            *limit = (*limit / 4).max(ROUND_MIN);
            return Ok(Step::Again);
        }
        Err(error) => return Err(error),
    };
    let is_idle = done.finished.is_empty() && done.at.is_none();
    let took = monotonic().saturating_sub(begun);
    if took < ROUND_TIME / 2 {
        *limit = limit.saturating_mul(2);
    } else if took > ROUND_TIME * 2 {
        *limit /= 2;
    }
    *limit = (*limit).clamp(ROUND_MIN, ROUND_MAX);
    let is_end = engine.scans().record(done).await?;
    Ok(if is_end {
        Step::End
    } else if is_idle {
        Step::Idle
    } else {
        Step::More
    })
}

impl Scans<'_> {
    /// Records the progress of a round, and the end of the scan if everything was visited. Returns
    /// whether the scan has ended.
    async fn record(self, done: record::Advance) -> Result<bool> {
        let engine = self.engine;
        let start_time = done.start_time;
        let done = Arc::new(done);
        let left = self
            .operate(move |tx, _, _| {
                let now = record::advance(tx, &done)?;
                Ok(now.map(|now| now.position.is_at_end()))
            })
            .await?;
        match left {
            // Another scan took its place, or it was cancelled.
            None => return Ok(true),
            Some(false) => return Ok(false),
            Some(true) => {}
        }
        // As in OpenZFS, a scan ends once nothing is being destroyed: it visits no blocks of
        // destroyed datasets, and they are read until they are freed.
        let space = engine.space();
        if space.has_background_work().await {
            return Ok(false);
        }
        // Ordering that data depends on: the commit of this txg flushes what was written before the
        // uberblock makes the leaves forget that it was missing. A flush that fails enters the txgs
        // again, and is recorded in the same txg.
        // What cannot be freed stays, and was not visited.
        let is_whole = self.is_whole(start_time) && !space.has_pending_frees().await?;
        let ended = self
            .operate(move |tx, env, effects| record::finish(tx, env, effects, is_whole))
            .await?;
        if let Some(func) = ended {
            let is_scrub = func == ScanFunc::Scrub;
            let event =
                if is_scrub { PoolEvent::ScrubFinished } else { PoolEvent::ResilverFinished };
            engine.health.damage.note(Event::Pool(event));
            engine.leaves().end_replacements().await?;
        }
        Ok(true)
    }
}
