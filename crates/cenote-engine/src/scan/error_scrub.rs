//! Error scrub: reads the blocks that the error log names, and forgets those that are good again
//! (spec 06 §15.5).
//!
//! ```text
//!   zpool scrub -e ── setup ──> batches of entries, each of its own view ──> end
//!                                  |
//!                                  `─ entries of good blocks leave the log, in the same txg as the
//!                                     progress
//! ```
//!
//! After an import it starts with the first entry that is left: what was good has left the log, and
//! the rest is few. An entry whose block no dataset has any more leaves the log too.

use std::sync::Arc;

use cenote_block::{Grounds, MendKind};
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::errlog::{ERRLOG_LAST, HeadEntry, format_plain};
use cenote_ondisk::scan::{ERROR_SCRUB, ErrorScrubPhys, ScanFunc, ScanState};
use cenote_ondisk::zap::Value;
use cenote_pool::errlog::{DamagedBlock, DamagedSet};
use cenote_pool::mos::DIRECTORY;
use cenote_rt::{Kind, Result, tunables};
use cenote_vdev::queue::ScanKind;

use super::round::{Mender, VIEW_TIME};
use super::run::{Job, Runner, Step};
use super::{ScanError, Scans};
use crate::admin::events::PoolEvent;
use crate::dsl::{Env, directory_object, errors, history};
use crate::{Engine, invariant_error};

/// Blocks that are read at the same time.
const BLOCKS_AT_ONCE: usize = 16;
const JOB: Job = Job::Scan(ScanFunc::ErrorScrub);
/// Bit of the stored flags: it is paused.
const PAUSED: u64 = 1;

/// Returns the stored error scrub, of any state.
fn find(tx: &mut Tx<'_>) -> TxResult<Option<ErrorScrubPhys>> {
    let value = zap::lookup(tx, DIRECTORY, ERROR_SCRUB)?;
    Ok(value.and_then(|value| ErrorScrubPhys::decode(&value.words()).ok()))
}

/// Returns the error scrub that is in progress, paused or not.
pub(super) fn running(tx: &mut Tx<'_>) -> TxResult<Option<ErrorScrubPhys>> {
    Ok(find(tx)?.filter(|scrub| scrub.state == ScanState::ErrorScrubbing))
}

fn store(tx: &mut Tx<'_>, phys: &ErrorScrubPhys) -> TxResult<()> {
    zap::update(tx, DIRECTORY, ERROR_SCRUB, Value::words_of(&phys.encode()))
}

/// Number of entries in the log of errors.
fn entries(tx: &mut Tx<'_>) -> TxResult<u64> {
    let Some(log) = directory_object(tx, ERRLOG_LAST)? else { return Ok(0) };
    if !errors::are_by_head(tx)? {
        return zap::len(tx, log);
    }
    let mut sum = 0;
    for (_, of_head) in zap::numbers(tx, log)? {
        sum += zap::len(tx, of_head)?;
    }
    Ok(sum)
}

/// Begins one. Returns whether there is anything to read.
fn setup(tx: &mut Tx<'_>, env: &Env) -> TxResult<bool> {
    let to_examine = entries(tx)?;
    if to_examine == 0 {
        return Ok(false);
    }
    // They are told apart by their start.
    let start_time = env.now.max(find(tx)?.map_or(0, |last| last.start_time.saturating_add(1)));
    store(
        tx,
        &ErrorScrubPhys {
            func: ScanFunc::ErrorScrub,
            state: ScanState::ErrorScrubbing,
            cursor: 0,
            start_time,
            end_time: 0,
            to_examine,
            examined: 0,
            errors: 0,
            paused_flags: 0,
        },
    )?;
    let text = format!("func={} mintxg=0 maxtxg={}", ScanFunc::ErrorScrub.to_word(), env.txg);
    history::log_pool(tx, env, "error scrub setup", &text)?;
    Ok(true)
}

/// Pauses one, or lets it go on.
fn pause(tx: &mut Tx<'_>, is_paused: bool) -> TxResult<()> {
    let Some(mut phys) = running(tx)? else { return Err(ScanError::NotRunning.into()) };
    if (phys.paused_flags & PAUSED != 0) == is_paused {
        return Err(why_not(&phys).into());
    }
    phys.paused_flags ^= PAUSED;
    store(tx, &phys)
}

/// Starts with the first entry again, after an import.
fn restart(tx: &mut Tx<'_>) -> TxResult<()> {
    let Some(phys) = running(tx)? else { return Ok(()) };
    let to_examine = entries(tx)?;
    store(tx, &ErrorScrubPhys { cursor: 0, examined: 0, to_examine, ..phys })
}

/// Cancels the error scrub in progress. Returns whether there was one.
pub(super) fn cancel(tx: &mut Tx<'_>, env: &Env) -> TxResult<bool> {
    let Some(phys) = running(tx)? else { return Ok(false) };
    end(tx, env, phys, ScanState::Canceled)?;
    Ok(true)
}

fn end(tx: &mut Tx<'_>, env: &Env, phys: ErrorScrubPhys, state: ScanState) -> TxResult<()> {
    let ended = ErrorScrubPhys { state, cursor: 0, end_time: env.now, paused_flags: 0, ..phys };
    store(tx, &ended)?;
    let is_done = state == ScanState::Finished;
    let event = if is_done { "error scrub done" } else { "error scrub canceled" };
    let left = entries(tx)?;
    history::log_pool(tx, env, event, &format!("errors={left}"))
}

/// Returns why nothing else can be started while this error scrub is in progress.
pub(super) const fn why_not(phys: &ErrorScrubPhys) -> ScanError {
    match phys.paused_flags & PAUSED {
        0 => ScanError::ErrorScrubbing,
        _ => ScanError::ErrorScrubPaused,
    }
}

/// What a batch did.
#[derive(Debug, Default)]
struct Batch {
    good: Vec<DamagedBlock>,
    examined: u64,
    errors: u64,
    is_last: bool,
}

/// Records a batch. Returns whether the error scrub has ended; `None` if it is not in progress.
fn advance(tx: &mut Tx<'_>, env: &Env, start_time: u64, done: &Batch) -> TxResult<Option<bool>> {
    let Some(mut phys) = running(tx)?.filter(|phys| phys.start_time == start_time) else {
        return Ok(None);
    };
    for block in &done.good {
        forget(tx, block)?;
    }
    phys.examined = phys.examined.saturating_add(done.examined);
    phys.errors = phys.errors.saturating_add(done.errors);
    if done.is_last {
        end(tx, env, phys, ScanState::Finished)?;
    } else {
        store(tx, &phys)?;
    }
    Ok(Some(done.is_last))
}

/// Removes a block from the log of errors; it may have left it since.
fn forget(tx: &mut Tx<'_>, block: &DamagedBlock) -> TxResult<()> {
    let Some(log) = directory_object(tx, ERRLOG_LAST)? else { return Ok(()) };
    let place = &block.place;
    if !errors::are_by_head(tx)? {
        zap::take(tx, log, &format_plain(place))?;
        return Ok(());
    }
    let head = zap::hex_key(place.objset);
    let Some(of_head) = zap::lookup_u64(tx, log, &head)? else { return Ok(()) };
    let birth = block.birth.unwrap_or(0);
    let entry = HeadEntry { object: place.object, level: place.level, blkid: place.blkid, birth };
    zap::take(tx, of_head, &entry.format())?;
    if zap::len(tx, of_head)? == 0 {
        zap::remove(tx, log, &head)?;
        zap::destroy(tx, of_head)?;
    }
    Ok(())
}

impl Scans<'_> {
    /// Starts an error scrub, or resumes a paused one; does nothing if no errors are known. It goes
    /// on in the background, and after a crash or an export with the next import.
    ///
    /// # Errors
    /// A [`ScanError`], or errors of a sync.
    pub async fn scrub_errors(self) -> Result<()> {
        let _control = self.control().await;
        match self.in_progress().await? {
            None => {}
            Some(ScanError::ErrorScrubPaused) => {
                self.operate(|tx, _, _| pause(tx, false)).await?;
                self.note(PoolEvent::ErrorScrubResumed);
                return self.start_error_scrub().await;
            }
            Some(other) => return Err(other.into()),
        }
        // Errors that were found are recorded by the sync.
        if self.operate(|tx, env, _| setup(tx, env)).await? {
            self.note(PoolEvent::ErrorScrubStarted);
            self.start_error_scrub().await?;
        }
        Ok(())
    }

    /// Removes blocks that are good again from the log of errors.
    ///
    /// # Errors
    /// Errors of a sync.
    pub async fn forget_errors(self, blocks: Vec<DamagedBlock>) -> Result<()> {
        self.operate(move |tx, _, _| blocks.iter().try_for_each(|block| forget(tx, block))).await
    }

    /// Pauses the error scrub; the caller holds the lock. Returns whether there is one.
    pub(super) async fn pause_error_scrub(self) -> Result<bool> {
        if self.engine.mos.inspect(running).await?.is_none() {
            return Ok(false);
        }
        self.operate(|tx, _, _| pause(tx, true)).await?;
        self.halt().await;
        if let Some(runner) = self.runner() {
            runner.note_paused();
        }
        self.note(PoolEvent::ErrorScrubPaused);
        Ok(true)
    }

    /// Cancels the error scrub; the caller holds the lock. Returns whether there was one.
    pub(super) async fn stop_error_scrub(self) -> Result<bool> {
        if self.engine.mos.inspect(running).await?.is_none()
            || !self.operate(|tx, env, _| cancel(tx, env)).await?
        {
            return Ok(false);
        }
        self.halt().await;
        self.note(PoolEvent::ErrorScrubAborted);
        Ok(true)
    }

    /// Lets an error scrub go on that was in progress when the pool was closed.
    pub(super) async fn resume_error_scrub(self) -> Result<()> {
        let Some(phys) = self.engine.mos.inspect(running).await? else { return Ok(()) };
        let is_paused = phys.paused_flags & PAUSED != 0;
        let is_known = |runner: &Runner| {
            runner.is_of(JOB, phys.start_time) && (is_paused || !runner.is_stopped())
        };
        if self.runner().is_some_and(|runner| is_known(&runner)) {
            return Ok(());
        }
        self.operate(|tx, _, _| restart(tx)).await?;
        self.start_error_scrub().await
    }

    async fn start_error_scrub(self) -> Result<()> {
        let Some(phys) = self.engine.mos.inspect(running).await? else { return Ok(()) };
        let before = self.runner();
        let runner = Runner::new(JOB, phys.start_time, 0, before.as_deref());
        self.launch(runner, phys.paused_flags & PAUSED != 0);
        Ok(())
    }
}

/// Reads the next batch of blocks, and records it.
pub(super) async fn step(
    engine: &Arc<Engine>,
    runner: &Arc<Runner>,
    after: &mut Option<DamagedBlock>,
) -> Result<Step> {
    engine.until_running().await?;
    let Some(phys) = engine.mos.inspect(running).await? else { return Ok(Step::End) };
    if phys.paused_flags & PAUSED != 0 || !runner.is_of(JOB, phys.start_time) {
        return Ok(Step::End);
    }
    let (done, last) = match batch(engine, runner, *after).await {
        Ok(Some(done)) => done,
        Ok(None) => return Ok(Step::End),
        Err(error) if error.kind() == Kind::Overtaken => return Ok(Step::Again),
        Err(error) => return Err(error),
    };
    let start_time = phys.start_time;
    let done = Arc::new(done);
    let recorded =
        engine.scans().operate(move |tx, env, _| advance(tx, env, start_time, &done)).await?;
    *after = last;
    if recorded == Some(true) {
        engine.scans().note(PoolEvent::ErrorScrubFinished);
    }
    Ok(if recorded == Some(false) { Step::More } else { Step::End })
}

/// Reads blocks that the log names behind `after`. Returns what it did, and the last of them;
/// `None` if it was stopped.
async fn batch(
    engine: &Arc<Engine>,
    runner: &Arc<Runner>,
    after: Option<DamagedBlock>,
) -> Result<Option<(Batch, Option<DamagedBlock>)>> {
    let view = engine.view_for(VIEW_TIME).await?;
    let Grounds::Pinned(pin) = view.grounds() else {
        return Err(invariant_error("the view of an error scrub has no pin".into()));
    };
    let mender = Arc::new(Mender::new(engine, pin));
    let log = view.error_log().await?;
    let from = after.map_or(0, |after| log.partition_point(|block| *block <= after));
    let limit = tunables::SCRUB_ERROR_BLOCKS.get_usize();
    let blocks: Vec<_> = log.iter().skip(from).take(limit).copied().collect();
    let mut done = Batch { is_last: log.len() - from <= blocks.len(), ..Batch::default() };
    let mut set: Option<(u64, Arc<Result<DamagedSet>>)> = None;
    for some in blocks.chunks(BLOCKS_AT_ONCE) {
        let mut reads = Vec::new();
        for block in some {
            if runner.is_stopped() {
                return Ok(None);
            }
            let tree = engine.tree().load();
            let tops = engine.tree().tops().count() as u64;
            let slot = tree.pace(ScanKind::Scrub, tops, &runner.stop_flag()).await;
            let objset = block.place.objset;
            let of_block = match set.take().filter(|(of, _)| *of == objset) {
                Some((_, found)) => found,
                None => Arc::new(DamagedSet::load(&view, objset).await),
            };
            set = Some((objset, Arc::clone(&of_block)));
            let (mender, block) = (Arc::clone(&mender), *block);
            reads.push((
                block,
                cenote_rt::spawn(async move {
                    let Ok(set) = &*of_block else { return false };
                    let is_good = match set.pointer(&block).await {
                        Ok(Some(bp)) => mender.is_good(&bp, &block.place, MendKind::Unread).await,
                        // It was overwritten or freed.
                        Ok(None) => true,
                        Err(_) => false,
                    };
                    drop(slot);
                    is_good
                }),
            ));
        }
        for (block, read) in reads {
            let is_good = read.await.unwrap_or(false);
            done.examined += 1;
            done.errors += u64::from(!is_good);
            if is_good {
                done.good.push(block);
            }
        }
    }
    pin.check()?;
    Ok(Some((done, blocks.last().copied().or(after))))
}
