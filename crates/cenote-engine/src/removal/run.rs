//! Runs a removal in the background: batch after batch, until the end or until it is stopped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{Error, Kind, Notify, Result, sleep, tunables};
use futures_util::future::join;

use super::copy::{self, Copy, Filled, Remaining, Source};
use super::{RemovalError, cancel, finish};
use crate::{Answer, Engine, Notice};

/// Longest time until a runner notices that it was stopped.
const REST: Duration = Duration::from_millis(100);
/// Pause after an error.
const FAILED_PAUSE: Duration = Duration::from_secs(10);

/// The task that removes a vdev.
#[derive(Debug)]
pub(super) struct Runner {
    is_stopped: AtomicBool,
    has_ended: AtomicBool,
    end: Mutex<Result<()>>,
    ended: Notify,
}

impl Runner {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            is_stopped: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            end: Mutex::new(Rank::RemovalEnd, Ok(())),
            ended: Notify::new(),
        })
    }

    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Waits for its end. The first caller gets the error that ended it.
    pub(super) async fn wait(&self) -> Result<()> {
        loop {
            let ended = self.ended.notified();
            if self.has_ended() {
                return std::mem::replace(&mut *self.end.lock(), Ok(()));
            }
            ended.await;
        }
    }

    /// Waits, unless it is stopped.
    async fn rest(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() && !self.is_stopped() {
            let part = left.min(REST);
            sleep(part).await;
            left -= part;
        }
    }

    fn finish(&self, result: Result<()>) {
        *self.end.lock() = result;
        self.has_ended.store(true, Ordering::Release);
        self.ended.notify_waiters();
    }
}

/// A runner that has ended when this is dropped, also if it panics or its process ends.
struct Ending(Arc<Runner>);

impl Drop for Ending {
    fn drop(&mut self) {
        if !self.0.has_ended() {
            self.0.finish(Err(Error::new(Kind::Closed, RemovalError::NotRunning)));
        }
    }
}

/// Runs the removal until its end.
pub(super) fn start(engine: Weak<Engine>, runner: Arc<Runner>) {
    cenote_rt::spawn_background(async move {
        let ending = Ending(runner);
        let result = run(&engine, &ending.0).await;
        ending.0.finish(result);
    });
}

/// What a runner keeps between two batches.
#[derive(Default)]
struct Progress {
    remaining: Remaining,
    /// The next batch, which was read during the last sync.
    ready: Option<Vec<Filled>>,
    is_known: bool,
}

async fn run(engine: &Weak<Engine>, runner: &Arc<Runner>) -> Result<()> {
    let (mut progress, mut is_told) = (Progress::default(), false);
    loop {
        // Held for a batch only, so that closing the pool does not wait for the end.
        let Some(held) = engine.upgrade() else { return Ok(()) };
        if runner.is_stopped() {
            return Ok(());
        }
        if tunables::REMOVAL_SUSPEND_PROGRESS.get() != 0 {
            drop(held);
            runner.rest(REST).await;
            continue;
        }
        let error = match step(&held, &mut progress).await {
            Ok(true) => return Ok(()),
            Ok(false) => continue,
            Err(error) => error,
        };
        progress = Progress::default();
        if error.kind() == Kind::Invariant {
            held.fail(&error.to_string());
            return Err(error);
        }
        if error.kind() == Kind::Closed || error.cause() == Some(&RemovalError::NotRunning) {
            return Err(error);
        }
        if copy::is_unreadable(&error) {
            return give_up(&held, error).await;
        }
        if !std::mem::replace(&mut is_told, true) {
            held.health().add_notice(Notice::RemovalStalled { cause: error.to_string() });
        }
        drop(held);
        runner.rest(FAILED_PAUSE).await;
    }
}

/// Cancels a removal whose bytes cannot be read, as OpenZFS does.
async fn give_up(engine: &Arc<Engine>, error: Error) -> Result<()> {
    let vdev = engine.removals().removing().unwrap_or_default();
    cancel::cancel(engine).await?;
    engine.removals().after_end().await?;
    let error = RemovalError::Cancelled { vdev, cause: error.to_string() };
    engine.health().add_notice(Notice::RemovalStalled { cause: error.to_string() });
    Err(error.into())
}

/// Copies a batch, or finishes. Returns whether that was the end.
async fn step(engine: &Arc<Engine>, progress: &mut Progress) -> Result<bool> {
    engine.until_running().await?;
    let (Some(source), Some((_, copied))) =
        (Source::of(engine), engine.store.moved().copied_up_to())
    else {
        return Ok(true);
    };
    if !std::mem::replace(&mut progress.is_known, true) {
        progress.remaining = Remaining::after(&source, copied);
    }
    let batch = match progress.ready.take() {
        Some(batch) => batch,
        None => next(engine, &source, &mut progress.remaining, copied).await?,
    };
    if batch.is_empty() {
        finish::finish(engine).await?;
        return Ok(true);
    }
    let answer = Answer::new();
    let task = Copy { source, batch, answer: Arc::clone(&answer) };
    let (synced, read) = join(
        engine.run_task(Box::new(task)),
        next(engine, &source, &mut progress.remaining, copied),
    )
    .await;
    synced?;
    let is_whole = answer.take()?;
    if !is_whole {
        return Err(RemovalError::NoSpace.into());
    }
    progress.ready = Some(read?);
    Ok(false)
}

/// Reads the next batch; an empty one at the end of the vdev.
async fn next(
    engine: &Engine,
    source: &Source,
    remaining: &mut Remaining,
    copied: u64,
) -> Result<Vec<Filled>> {
    let segments = remaining.take(engine, source, copied).await?;
    copy::read(engine, source, segments).await
}
