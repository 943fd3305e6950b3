//! Runs a removal in the background: batch after batch, until the end or until it is stopped.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_rt::{Error, Kind, Result, tunables};
use futures_util::future::join;

use super::copy::{self, Copy, Filled, Remaining, Source};
use super::{RemovalError, cancel, finish};
use crate::background::Background;
use crate::{Answer, Engine, Notice};

/// Time after which it is asked again whether removals stand still.
const REST: Duration = Duration::from_millis(100);
/// Pause after an error.
const FAILED_PAUSE: Duration = Duration::from_secs(10);

/// Runs the removal until its end.
pub(super) fn start(engine: Weak<Engine>, runner: Arc<Background>) {
    cenote_rt::spawn_background(async move {
        let cut = Error::new(Kind::Closed, RemovalError::NotRunning);
        runner.run(run(&engine, &runner), cut).await;
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

async fn run(engine: &Weak<Engine>, runner: &Background) -> Result<()> {
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
