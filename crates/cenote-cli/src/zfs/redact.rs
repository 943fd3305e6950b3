//! `zfs redact`: creates a bookmark with the list of the blocks that a redacted stream leaves out.
//!
//! Messages and statuses are those of OpenZFS; the status is the number of the error.

use std::collections::BTreeSet;

use cenote_engine::OpError;
use cenote_rt::{Error, Kind};
use cenote_stream::send::redact;

use super::refuse::existing;
use crate::err;
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, command_line};
use crate::zpool::block_on;

const NO_ENTRY: i32 = 2;
const NO_SUCH: i32 = 3;
const TOO_BIG: i32 = 7;
const EXISTS: i32 = 17;
const OTHER_DEVICE: i32 = 18;
const INVALID: i32 = 22;
const NAME_TOO_LONG: i32 = 36;
const NOT_SUPPORTED: i32 = 95;
const ALREADY: i32 = 114;

/// Runs `zfs redact`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let [snapshot, bookmark, snapshots @ ..] = args else {
        return Err(Exit::usage("too few arguments"));
    };
    if snapshots.is_empty() {
        return Err(Exit::usage("too few arguments"));
    }
    let mut named = BTreeSet::new();
    let snapshots: Vec<String> =
        snapshots.iter().filter(|name| named.insert(*name)).cloned().collect();
    block_on(async {
        check_names(source, snapshot, bookmark, &snapshots, io).await?;
        let head = snapshot.split('@').next().unwrap_or_default();
        let name = format!("{head}#{bookmark}");
        let line = command_line(Tool::Zfs, "redact", args);
        Writer::run(source, snapshot, Some(&line), io, async |engine, _| {
            let done = redact(engine, &name, snapshot, &snapshots).await;
            done.map_err(|error| refusal(&error, bookmark))
        })
        .await
    })
}

/// Refuses names before anything is opened for writing.
async fn check_names(
    source: &Source,
    snapshot: &str,
    bookmark: &str,
    snapshots: &[String],
    io: &mut Io<'_>,
) -> CommandResult {
    let mut are_missing = false;
    let pool = |name: &str| name.split(['/', '@', '#']).next().map(str::to_owned);
    for name in std::iter::once(snapshot).chain(snapshots.iter().map(String::as_str)) {
        if pool(name) != pool(snapshot) {
            return Err(other_pool());
        }
        if name.contains('#') || !name.contains('@') {
            return Err(invalid(bookmark));
        }
        match existing(source, name).await {
            Err(Exit::Failed(message)) => {
                err!(io, "{message}\nprovided snapshot {name} does not exist")?;
                are_missing = true;
            }
            found => drop(found?),
        }
    }
    if are_missing {
        return Err(Exit::Status(NO_ENTRY));
    }
    if bookmark.contains(['#', '@', '/']) { Err(invalid(bookmark)) } else { Ok(()) }
}

fn invalid(bookmark: &str) -> Exit {
    let text = if bookmark.contains('#') {
        "redaction bookmark name must not contain '#'"
    } else {
        "redaction snapshot must be descendent of snapshot being redacted"
    };
    Exit::FailedWith(text.to_owned(), INVALID)
}

fn other_pool() -> Exit {
    let text = "potentially invalid redaction snapshot; full dataset names required";
    Exit::FailedWith(text.to_owned(), OTHER_DEVICE)
}

fn refusal(error: &Error, bookmark: &str) -> Exit {
    let with = |text: &str, status| Exit::FailedWith(text.to_owned(), status);
    match error.cause::<OpError>() {
        Some(OpError::Exists) => {
            let text = format!("specified redaction bookmark ({bookmark}) provided already exists");
            Exit::FailedWith(text, EXISTS)
        }
        Some(OpError::NameTooLong) => with(
            "provided bookmark name cannot be used, final name would be too long",
            NAME_TOO_LONG,
        ),
        Some(OpError::TooLong) => with("too many redaction snapshots specified", TOO_BIG),
        Some(OpError::IsRedacted) => with(
            "attempted to redact redacted dataset or with respect to redacted dataset",
            ALREADY,
        ),
        Some(OpError::Unsupported) => {
            with("redaction bookmarks feature not enabled", NOT_SUPPORTED)
        }
        Some(OpError::OtherPool) => other_pool(),
        Some(OpError::OtherRedaction) => {
            with("attempted to resume redaction  with a mismatched redaction list", NO_SUCH)
        }
        Some(_) if error.kind() == Kind::Invalid => invalid(bookmark),
        _ => Exit::of(error, format!("cannot redact: {error}")),
    }
}
