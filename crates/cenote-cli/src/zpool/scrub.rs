//! `zpool scrub` and `zpool resilver`.
//!
//! In a session the scan goes on in the background, and `-w` waits for it. With `--embedded` no
//! process keeps the pool between two commands: without `-w` the command only starts the scan, and
//! the next import by a daemon or `zpool wait` continues it.
//!
//! Order of checks, messages and statuses are OpenZFS's: to pause a scrub where none runs is no
//! error, to cancel one is. One difference: `-C` resumes a paused scrub without an error, where
//! OpenZFS 2.3 resumes it and then reports that delegated administration is disabled.

use std::collections::BTreeSet;

use cenote_engine::{CheckpointState, Engine, ScanError, ScrubOptions};
use cenote_ondisk::scan::ScanFunc;
use cenote_pool::features::FeatureState;
use cenote_rt::Error;

use super::block_on;
use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, command_line};
use crate::{err, out};

/// What a command requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Request {
    /// Start a scrub, or resume a paused one.
    Scrub(ScrubOptions),
    /// Start a scrub of the blocks in the error log (`-e`).
    ErrorScrub,
    /// Pause the scrub (`-p`).
    Pause,
    /// Cancel the scrub (`-s`).
    Cancel,
    /// Start a resilver.
    Resilver,
}

impl Request {
    /// The start of the message of a failure.
    fn action(self) -> &'static str {
        match self {
            Self::Scrub(_) | Self::ErrorScrub => "scrub",
            Self::Pause => "pause scrubbing",
            Self::Cancel => "cancel scrubbing",
            Self::Resilver => "restart resilver on",
        }
    }

    /// Returns the failure of this request to a pool.
    fn failure(self, pool: &str, why: impl std::fmt::Display) -> Exit {
        Exit::failed(format!("cannot {} {pool}: {why}", self.action()))
    }
}

/// Runs `zpool scrub`.
pub(super) fn scrub(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "spweC", &[])?;
    let [cancels, pauses, waits, has_errors, from_last] =
        ['s', 'p', 'w', 'e', 'C'].map(|letter| parsed.has(letter));
    for (are_both, letters) in [
        (pauses && cancels, "-s and -p"),
        (pauses && from_last, "-p and -C"),
        (cancels && from_last, "-s and -C"),
        (has_errors && from_last, "-e and -C"),
    ] {
        if are_both {
            let what = format!("invalid option combination: {letters} are mutually exclusive");
            return Err(Exit::usage(what));
        }
    }
    if waits && (cancels || pauses) {
        let what = "invalid option combination: -w cannot be used with -p or -s";
        return Err(Exit::usage(what));
    }
    let request = match (pauses, cancels, has_errors) {
        (true, ..) => Request::Pause,
        (_, true, _) => Request::Cancel,
        (_, _, true) => Request::ErrorScrub,
        _ => Request::Scrub(ScrubOptions { from_last }),
    };
    let line = command_line(Tool::Zpool, "scrub", args);
    on_each_pool(source, &parsed, request, &line, io)
}

/// Runs `zpool resilver`.
pub(super) fn resilver(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "", &[])?;
    let line = command_line(Tool::Zpool, "resilver", args);
    on_each_pool(source, &parsed, Request::Resilver, &line, io)
}

/// Carries out a request on each pool that is named; a failure does not keep the others from it.
/// With `-w`, waits for all scrubs if none of them failed to start.
fn on_each_pool(
    source: &Source,
    parsed: &Parsed,
    request: Request,
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    if parsed.operands.is_empty() {
        return Err(Exit::usage("missing pool name argument"));
    }
    // With `--embedded` a scan runs only as long as the pool is open here.
    let waits_at_once = parsed.has('w') && source.session.is_none();
    block_on(async {
        let mut seen = BTreeSet::new();
        let names: Vec<_> = parsed.operands.iter().filter(|name| seen.insert(*name)).collect();
        let mut status = Ok(());
        for name in &names {
            let done = Writer::run_on_pool(source, name, Some(line), io, async |engine, io| {
                carry_out(engine, request, io).await?;
                if waits_at_once { wait(source, engine).await } else { Ok(()) }
            });
            match done.await {
                Ok(()) => {}
                Err(Exit::Failed(message)) => {
                    err!(io, "{message}")?;
                    status = Err(Exit::Status(1));
                }
                Err(other) => return Err(other),
            }
        }
        if parsed.has('w') && !waits_at_once && status.is_ok() {
            for name in names {
                Writer::run_on_pool(source, name, None, io, async |engine, _| {
                    wait(source, engine).await
                })
                .await?;
            }
        }
        status
    })
}

async fn wait(source: &Source, engine: &Engine) -> CommandResult {
    for kind in [ScanFunc::Scrub, ScanFunc::ErrorScrub] {
        match source.while_waited_for(engine.scans().wait(kind)).await {
            Some(ended) => ended?,
            None => break,
        }
    }
    Ok(())
}

/// Carries out a request on one pool.
async fn carry_out(engine: &Engine, request: Request, io: &mut Io<'_>) -> CommandResult {
    let pool = engine.name();
    if engine.is_read_only() {
        return Err(request.failure(&pool, "pool is read-only"));
    }
    if engine.health().suspended().is_some() {
        return Err(request.failure(&pool, "pool I/O is currently suspended"));
    }
    if request == Request::ErrorScrub && !engine.admin().has_feature("head_errlog").await? {
        return Err(request.failure(&pool, "operation not supported on this type of pool"));
    }
    if request == Request::Resilver && !can_defer(engine).await? {
        return Err(request.failure(&pool, "this action requires the resilver_defer feature"));
    }
    let scans = engine.scans();
    let done = match request {
        Request::Scrub(options) => scans.scrub(options).await,
        Request::ErrorScrub => scans.scrub_errors().await,
        // A resilver is neither paused nor cancelled.
        Request::Pause | Request::Cancel
            if scans.in_progress().await? == Some(ScanError::Resilvering) =>
        {
            Err(ScanError::Resilvering.into())
        }
        Request::Pause => scans.pause().await,
        Request::Cancel => scans.stop().await,
        Request::Resilver => scans.resilver().await,
    };
    match done {
        Ok(()) => {}
        Err(error) if request == Request::Pause && is(&error, ScanError::NotRunning) => {}
        Err(error) => return Err(request.failure(&pool, words(request, &error))),
    }
    let is_of_scrub = matches!(request, Request::Scrub(_) | Request::Pause);
    if is_of_scrub && engine.space().checkpoint_state() != CheckpointState::None {
        let what = "will not scrub state that belongs to the checkpoint of pool";
        out!(io, "warning: {what} '{pool}'")?;
    }
    Ok(())
}

/// Whether resilvers can be deferred, which OpenZFS requires before it starts one by command.
async fn can_defer(engine: &Engine) -> Result<bool, Exit> {
    let view = engine.view().await?;
    Ok(view.features().state("resilver_defer") != FeatureState::Disabled)
}

fn is(error: &Error, cause: ScanError) -> bool {
    error.cause::<ScanError>() == Some(&cause)
}

/// Returns why a request failed, in OpenZFS's words.
fn words(request: Request, error: &Error) -> String {
    let Some(cause) = error.cause::<ScanError>() else { return error.to_string() };
    let words = match cause {
        ScanError::Scrubbing => "currently scrubbing; use 'zpool scrub -s' to cancel scrub",
        ScanError::Paused if request == Request::Pause => {
            "scrub is paused; use 'zpool scrub' to resume scrub"
        }
        ScanError::Paused => {
            "scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to cancel scrub"
        }
        ScanError::ErrorScrubbing => {
            "currently error scrubbing; use 'zpool scrub -s' to cancel error scrub"
        }
        ScanError::ErrorScrubPaused => {
            "error scrub is paused; use 'zpool scrub -e' to resume error scrub"
        }
        ScanError::Resilvering => "currently resilvering",
        ScanError::NotRunning => "there is no active scrub",
    };
    words.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scan_errors_are_told_in_the_words_of_openzfs() {
        let told = |request: Request, cause: ScanError| {
            let exit = request.failure("t", words(request, &cause.into()));
            let Exit::Failed(message) = exit else { panic!("{exit:?}") };
            message
        };
        let scrub = Request::Scrub(ScrubOptions::default());
        assert_eq!(
            told(scrub, ScanError::Scrubbing),
            "cannot scrub t: currently scrubbing; use 'zpool scrub -s' to cancel scrub"
        );
        assert_eq!(
            told(Request::Pause, ScanError::Paused),
            "cannot pause scrubbing t: scrub is paused; use 'zpool scrub' to resume scrub"
        );
        assert_eq!(
            told(Request::ErrorScrub, ScanError::Paused),
            "cannot scrub t: scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to \
             cancel scrub"
        );
        assert_eq!(
            told(scrub, ScanError::ErrorScrubPaused),
            "cannot scrub t: error scrub is paused; use 'zpool scrub -e' to resume error scrub"
        );
        assert_eq!(
            told(Request::Cancel, ScanError::NotRunning),
            "cannot cancel scrubbing t: there is no active scrub"
        );
        assert_eq!(
            told(Request::Resilver, ScanError::Resilvering),
            "cannot restart resilver on t: currently resilvering"
        );
    }
}
