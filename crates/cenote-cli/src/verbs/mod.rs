//! The verbs that are cenote's own: they read files, volumes and whole pools in this process, or
//! serve them to other programs.
//!
//! A source is two arguments, `POOL/DATASET[@SNAP]` and a path in it, because `:` may be part of a
//! dataset's name. Directories and devices are given with `-d` or `-p`, keys with `-k`.

mod cat;
pub(crate) mod completions;
mod cp;
mod json;
mod locate;
mod ls;
pub(crate) mod map;
mod mount;
mod nbd;
mod progress;
mod verify;
mod verify_stream;
mod walk;

use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_fs::{FileSystem, FsError, Volume};
use cenote_pool::{Dataset, DatasetKind};
use cenote_rt::{Error, Kind};

use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::{Source, contents_failure};

pub use progress::Progress;

/// A directory was reached before on another path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("directory was reached before on another path")]
struct ReachedBefore;

/// Runs one verb.
pub fn run(verb: &str, args: &[String], io: &mut Io<'_>) -> CommandResult {
    match verb {
        "ls" => ls::run(args, io),
        "cat" => cat::run(args, io),
        "completions" => completions::run(args, io),
        "cp" => cp::run(args, io),
        "verify" => verify::run(args, io),
        "verify-stream" => verify_stream::run(args, io),
        "map" => map::run(None, args, io),
        "top" => crate::top::run(args, io),
        "mount" => mount::run(args, io),
        "nbd" => nbd::run(args, io),
        "where" => locate::run(args, io),
        _ => Err(Exit::usage(format!("unrecognized command '{verb}'; run 'cenote help'"))),
    }
}

/// The letter under which [`parse`] reports `--help`.
const HELP: char = '?';

/// Options of a verb besides those of [`parse`]: letters, and long ones.
type Options = (&'static str, &'static [Long]);

/// Returns the name of the pool that this command reads, unless its arguments say where the devices
/// are, or are wrong: then the command needs no help to find it, or reports what is wrong.
#[must_use]
pub fn pool_to_find(verb: &str, args: &[String]) -> Option<String> {
    let (letters, longs) = match verb {
        "ls" => ls::OPTIONS,
        "cat" => cat::OPTIONS,
        "cp" => cp::OPTIONS,
        "where" => locate::OPTIONS,
        "verify" => verify::OPTIONS,
        _ => return None,
    };
    let parsed = parse_options(args, letters, longs).ok()?;
    if ['d', 'p', 'T', HELP].into_iter().any(|option| parsed.has(option)) {
        return None;
    }
    let pool = parsed.operands.first()?.split(['/', '@']).next()?;
    (!pool.is_empty()).then(|| pool.to_owned())
}

fn parse_options(args: &[String], letters: &str, longs: &[Long]) -> Result<Parsed, Exit> {
    let mut all = vec![Long::flag("help", HELP)];
    all.extend_from_slice(longs);
    getopt::parse(args, &format!("{letters}d:p:k:T:"), &all)
}

/// Parses the arguments of a verb: `letters` and `longs` besides `-d`, `-p`, `-k`, `-T` and
/// `--help`.
///
/// Returns `None` if help was requested and has been printed.
fn parse(
    args: &[String],
    (letters, longs): (&str, &[Long]),
    usage: &str,
    io: &mut Io<'_>,
) -> CommandResult<Option<(Parsed, Source)>> {
    let with_usage = |exit: Exit| match exit {
        Exit::Usage(message) => Exit::Usage(format!("{message}\n{}", usage.trim_end())),
        other => other,
    };
    let parsed = parse_options(args, letters, longs).map_err(with_usage)?;
    if parsed.has(HELP) {
        write!(io.out, "{usage}")?;
        return Ok(None);
    }
    let mut source = Source::default();
    source.paths.extend(parsed.values('d').chain(parsed.values('p')).map(str::to_owned));
    for key in parsed.values('k') {
        source.add_key(key).map_err(with_usage)?;
    }
    if let Some(txg) = parsed.value('T') {
        let wrong = |_| with_usage(Exit::usage(format!("invalid txg '{txg}'")));
        source.txg = Some(txg.parse().map_err(wrong)?);
    }
    Ok(Some((parsed, source)))
}

/// A usage error of a verb.
fn wrong_use(message: &str, usage: &str) -> Exit {
    Exit::Usage(format!("{message}\n{}", usage.trim_end()))
}

/// The contents of a dataset.
enum Contents {
    Files(Arc<FileSystem>),
    Volume(Volume),
    /// Numbered objects of a dataset that is neither a file system nor a volume.
    Objects(Arc<ObjSet>),
}

/// Opens the contents of a dataset.
async fn open(dataset: &Dataset) -> CommandResult<Contents> {
    let name = dataset.name();
    let failed = |error: Error| contents_failure(name, &error);
    match dataset.kind().await.map_err(failed)? {
        DatasetKind::Filesystem => {
            Ok(Contents::Files(FileSystem::open(dataset).await.map_err(failed)?))
        }
        DatasetKind::Volume => Ok(Contents::Volume(Volume::open(dataset).await.map_err(failed)?)),
        DatasetKind::Other => Ok(Contents::Objects(dataset.open().await.map_err(failed)?)),
    }
}

/// Returns the text for an error about a path: the system's if there is one, else the whole error
/// chain.
fn describe(error: &Error) -> String {
    match error.cause::<FsError>() {
        Some(cause) if matches!(error.kind(), Kind::NotFound | Kind::Invalid) => cause.to_string(),
        _ => error.to_string(),
    }
}

/// A path for messages.
fn shown(path: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(path)
}
