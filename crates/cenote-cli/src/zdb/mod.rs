//! `zdb`: prints on-disk structures in OpenZFS's format.
//!
//! ```text
//!   options ──> -l, -E: no pool needed
//!           └─> scan ─> open ─> config, uberblock, metaslabs, datasets, blocks, history
//!                             └> one dataset, objects of it, a path in it, a block
//! ```
//!
//! For `-l -u -C -d -h` the text equals that of OpenZFS 2.3's zdb line by line, after the filter
//! listed in `docs/zdb.md`; the other options show the same facts. Nothing is ever written.
//! Unreadable parts are reported on standard error, the listing continues, and the status is 1.

mod blocks;
mod bonus;
mod config;
mod dataset;
mod deadlists;
mod dirty_time_logs;
mod embedded;
mod features;
mod history;
mod intent_log;
mod label;
mod metaslabs;
mod object;
mod options;
mod path;
mod pool;
mod raw_block;
mod text;
mod tree;
mod uberblock;
mod zap;
mod znode;

pub use options::Options;
pub(crate) use text::nvlist as print_nvlist;

use cenote_rt::{Error, Kind};

use crate::io::{CommandResult, Exit, Io, words};
use crate::{err, out};

/// The text that the real zdb prints after wrong use.
const USAGE: &str = include_str!("usage.txt");
/// Threads that decompress and decrypt.
const THREADS: usize = 2;

/// Runs `zdb`.
pub fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    if args.first().is_some_and(|arg| arg == "--help") {
        return Ok(write!(io.out, "{USAGE}")?);
    }
    let result = Options::parse(args).and_then(|options| {
        let command = dispatch(&options, io);
        cenote_rt::block_on(THREADS, command)?
    });
    result.map_err(|exit| match exit {
        Exit::Usage(message) => {
            let _ = io.err.write_all(format!("{}{USAGE}", complaint(&message)).as_bytes());
            Exit::Status(1)
        }
        Exit::Failed(message) => {
            let _ = err!(io, "zdb: {message}");
            Exit::Status(1)
        }
        other => other,
    })
}

/// Returns the message about a wrong command line, in the words of C's getopt.
fn complaint(message: &str) -> String {
    let quoted = |before: &str| message.strip_prefix(before).map(|rest| rest.trim_matches('\''));
    if let Some(option) = quoted("invalid option ") {
        return match option.chars().count() {
            1 => format!("zdb: invalid option -- '{option}'\n"),
            _ => format!("zdb: unrecognized option '--{option}'\n"),
        };
    }
    if let Some(option) = quoted("missing argument for ").and_then(|rest| rest.chars().next()) {
        return format!("zdb: option requires an argument -- '{option}'\n");
    }
    if message.is_empty() { String::new() } else { format!("{message}\n") }
}

async fn dispatch(options: &Options, io: &mut Io<'_>) -> CommandResult {
    if options.has('E') {
        return embedded::run(options, io);
    }
    if options.has('l') {
        return label::run(options, io).await;
    }
    if options.operands.is_empty() {
        if options.has('e') || !options.has('C') {
            return Err(Exit::usage(String::new()));
        }
        return cache_files(options, io);
    }
    pool::run(options, io).await
}

/// Prints the configs of the existing cache files.
fn cache_files(options: &Options, io: &mut Io<'_>) -> CommandResult {
    let (mut is_shown, mut failure) = (false, None);
    for path in options.cache_files() {
        match std::fs::read(&path) {
            Ok(bytes) => {
                let list = cenote_ondisk::nvlist::NvList::decode(&bytes)
                    .map_err(|error| Exit::failed(error.to_string()))?;
                text::nvlist(io, &list, 0)?;
                is_shown = true;
            }
            Err(error) => failure = Some((path, error)),
        }
    }
    match failure {
        Some((path, error)) if !is_shown => {
            out!(io, "cannot open '{}': {}", path.display(), words(&error))?;
            Err(Exit::Status(1))
        }
        _ => Ok(()),
    }
}

/// Returns the text of the errno that OpenZFS has for an error.
fn error_text(error: &Error) -> String {
    let text = match error.kind() {
        Kind::NotFound => "No such file or directory",
        Kind::KeyUnavailable => "Permission denied",
        Kind::Io => "Input/output error",
        Kind::Checksum => "Invalid exchange",
        _ => return error.to_string(),
    };
    text.to_owned()
}
