//! `cenote trace`: records the reads and writes of a file system or volume of the daemon.
//!
//! ```text
//!   # cenote trace 1, of tank/vm
//!   1520 R 1 8192 4096          microseconds, read or write, object, offset, length
//!   1733 W 1 65536 16384
//!   # 2 accesses, 0 lost
//! ```
//!
//! Recorded are the requests that reach the daemon, places and lengths without data; what programs
//! find in the kernel's cache does not reach it. `cenote lab recordsize` reads the result.

use std::sync::Arc;
use std::time::Duration;

use cenote_engine::{Access, Activity, Recording};
use cenote_rt::monotonic;

use crate::getopt::{self, Parsed};
use crate::host::Session;
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::source::{self, Source};

/// The usage text.
const USAGE: &str = "\
usage: cenote trace [-t SECONDS] [-n ACCESSES] DATASET > FILE
  Records the reads and writes of a file system or volume that the daemon has open, until SECONDS
  (60) have passed or ACCESSES (1000000) were recorded. A line has the microseconds since the start,
  R or W, the number of the file, offset and length: no data, no names. For root and the daemon's
  user. 'cenote lab recordsize FILE' tells which recordsize suits the accesses.
";

/// Time and number of accesses of a recording, and the most that can be requested.
const SECONDS: u64 = 60;
const SECONDS_MAX: u64 = 86_400;
const ACCESSES: u64 = 1_000_000;
const ACCESSES_MAX: u64 = 100_000_000;
/// Interval at which recorded accesses are printed.
const STEP: Duration = Duration::from_millis(50);

/// Runs the verb; without a session it only prints the usage text.
pub(crate) fn run(session: Option<&Session>, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let with_usage = |exit: Exit| match exit {
        Exit::Usage(message) => Exit::Usage(format!("{message}\n{}", USAGE.trim_end())),
        other => other,
    };
    if args.iter().any(|arg| arg == "--help") {
        return Ok(write!(io.out, "{USAGE}")?);
    }
    let parsed = getopt::parse(args, "t:n:", &[]).map_err(with_usage)?;
    let seconds = number(&parsed, 't', SECONDS, SECONDS_MAX).map_err(with_usage)?;
    let most = number(&parsed, 'n', ACCESSES, ACCESSES_MAX).map_err(with_usage)?;
    let [name] = &parsed.operands[..] else {
        return Err(with_usage(Exit::usage("one dataset is needed")));
    };
    let Some(session) = session else {
        return Err(Exit::cannot("trace", name, "only a daemon keeps datasets open"));
    };
    // Offsets tell what other users' programs do.
    if !session.caller.is_trusted() {
        return Err(Exit::cannot("trace", name, "permission denied"));
    }
    let source = Source { session: Some(session.clone()), ..Source::default() };
    source::run(async {
        let activity = activity_of(session, &source, name).await?;
        let Some(recording) = activity.record() else {
            return Err(Exit::cannot("trace", name, "it is being traced"));
        };
        out!(io, "# cenote trace 1, of {name}")?;
        record(&source, recording, (Duration::from_secs(seconds), most), io).await
    })
}

fn number(parsed: &Parsed, letter: char, usual: u64, most: u64) -> CommandResult<u64> {
    let Some(text) = parsed.value(letter) else { return Ok(usual) };
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number
        .ok_or_else(|| Exit::usage(format!("-{letter}: '{text}' is not a number from 1 to {most}")))
}

/// Returns the counters of a dataset that is open. No view of the pool remains in use.
async fn activity_of(
    session: &Session,
    source: &Source,
    name: &str,
) -> CommandResult<Arc<Activity>> {
    let dataset = source.dataset(name).await?;
    if dataset.is_snapshot() {
        return Err(Exit::cannot("trace", name, "a snapshot has no head"));
    }
    let engine = session.pool(dataset.pool().name())?;
    let heads = engine.open_heads();
    let head = heads.iter().find(|head| head.object() == dataset.object());
    let head = head.ok_or_else(|| {
        Exit::cannot("trace", name, "it is neither mounted nor served as a volume")
    })?;
    Ok(Arc::clone(head.activity()))
}

/// Prints accesses until the time has passed, enough were recorded, or the caller is gone.
async fn record(
    source: &Source,
    mut recording: Recording<'_>,
    (time, most): (Duration, u64),
    io: &mut Io<'_>,
) -> CommandResult {
    let (start, mut count) = (monotonic(), 0);
    source.deliver(io)?;
    loop {
        while count < most
            && let Some(access) = recording.take()
        {
            print(start, access, io)?;
            count += 1;
        }
        source.deliver(io)?;
        let left = (start + time).saturating_sub(monotonic());
        if count >= most || left.is_zero() || !source.sleep(STEP.min(left)).await {
            break;
        }
    }
    out!(io, "# {count} accesses, {} lost", recording.dropped())
}

fn print(start: Duration, access: Access, io: &mut Io<'_>) -> CommandResult {
    let kind = if access.is_write { 'W' } else { 'R' };
    let Access { time, object, offset, len, .. } = access;
    let us = time.saturating_sub(start).as_micros();
    out!(io, "{us} {kind} {object} {offset} {len}")
}
