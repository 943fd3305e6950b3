//! `zpool trim` and `zpool initialize`.
//!
//! The daemon goes on when the command has ended, which waits for the end only with `-w`.
//!
//! With `--embedded` no process keeps the pool between two commands, so the command does the work
//! itself and returns when it is done, with or without `-w`. An interrupted command leaves the
//! progress in the pool: `status` shows it, `-s` and `-c` end it, and the command without them
//! continues it.

use cenote_engine::{Engine, LeafWorkError, Stop, TrimOptions};
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::leaf_work::{LeafWorkKind, LeafWorkState};
use cenote_pool::status::vdev_name;
use cenote_rt::Error;

use super::block_on;
use super::names::{self, FindVdevError};
use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, command_line};
use cenote_pool::props::quantity;

/// Runs `zpool trim`.
pub(super) fn trim(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let longs = [
        Long::flag("cancel", 'c'),
        Long::flag("secure", 'd'),
        Long::with_argument("rate", 'r'),
        Long::flag("suspend", 's'),
        Long::flag("wait", 'w'),
    ];
    let parsed = getopt::parse(args, "cdr:sw", &longs)?;
    let is_stop = parsed.has('c') || parsed.has('s');
    if parsed.has('d') && is_stop {
        return Err(Exit::usage("-d cannot be combined with the -c or -s options"));
    }
    if parsed.has('r') && is_stop {
        return Err(Exit::usage("-r cannot be combined with the -c or -s options"));
    }
    if parsed.has('w') && is_stop {
        return Err(Exit::usage("-w cannot be used with -c or -s"));
    }
    let rate = parsed.value('r').map(quantity::parse).transpose();
    let rate = rate.map_err(|_| Exit::usage("invalid value for rate"))?.unwrap_or(0);
    let options = TrimOptions { rate, is_secure: parsed.has('d'), is_partial: false };
    let line = command_line(Tool::Zpool, "trim", args);
    work(source, &parsed, LeafWorkKind::Trim, options, &line, io)
}

/// Runs `zpool initialize`.
pub(super) fn initialize(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let longs = [
        Long::flag("cancel", 'c'),
        Long::flag("suspend", 's'),
        Long::flag("uninit", 'u'),
        Long::flag("wait", 'w'),
    ];
    let parsed = getopt::parse(args, "csuw", &longs)?;
    if parsed.has('w') && (parsed.has('c') || parsed.has('s') || parsed.has('u')) {
        // The missing space is OpenZFS's.
        return Err(Exit::usage("-w cannot be used with -c, -sor -u"));
    }
    let line = command_line(Tool::Zpool, "initialize", args);
    work(source, &parsed, LeafWorkKind::Initialize, TrimOptions::default(), &line, io)
}

/// Returns how to end the work, if requested. If several options are given, the error names the
/// last one.
fn stop_of(parsed: &Parsed) -> Result<Option<Stop>, Exit> {
    let mut stops = parsed.options.iter().filter(|(letter, _)| "csu".contains(*letter));
    let Some((first, _)) = stops.next() else { return Ok(None) };
    if let Some((other, _)) = stops.find(|(letter, _)| letter != first) {
        return Err(Exit::usage(format!("-{other} cannot be combined with other options")));
    }
    Ok(Some(match first {
        'c' => Stop::Cancel,
        's' => Stop::Suspend,
        _ => Stop::Forget,
    }))
}

fn work(
    source: &Source,
    parsed: &Parsed,
    kind: LeafWorkKind,
    options: TrimOptions,
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    let stop = stop_of(parsed)?;
    let [name, devices @ ..] = &parsed.operands[..] else {
        return Err(Exit::usage("missing pool name argument"));
    };
    block_on(Writer::run_on_pool(source, name, Some(line), io, async |engine, _| {
        let root = engine.admin().vdev_config();
        let mut leaves = Vec::new();
        for word in devices {
            let found = names::find(&root, word, &source.path(word))
                .and_then(|vdev| {
                    vdev.leaf.path.is_some().then_some(vdev).ok_or(FindVdevError::Absent)
                })
                .map_err(|why| Exit::cannot(kind.name(), word, why))?;
            leaves.push(found.guid);
        }
        if leaves.is_empty() {
            leaves = of_all(engine, kind, stop).await?;
        }
        let outcome = async {
            if let Some(stop) = stop {
                return engine.leaves().stop_work(&leaves, kind, stop).await;
            }
            match kind {
                LeafWorkKind::Trim => engine.leaves().start_trim(&leaves, options).await?,
                LeafWorkKind::Initialize => engine.leaves().start_initialize(&leaves).await?,
            }
            if source.session.is_some() && !parsed.has('w') {
                return Ok(());
            }
            let ended = engine.leaves().wait_for_work(&leaves, kind);
            // A client that has gone does not wait, and the work goes on.
            source.while_waited_for(ended).await.unwrap_or(Ok(()))
        };
        outcome.await.map_err(|error| failure(&root, name, kind, &error))
    }))
}

/// Returns the leaves to work on when none is named: all; when stopping, those in progress.
async fn of_all(engine: &Engine, kind: LeafWorkKind, stop: Option<Stop>) -> Result<Vec<u64>, Exit> {
    let all = engine.leaves().data_guids();
    if !matches!(stop, Some(Stop::Cancel | Stop::Suspend)) {
        return Ok(all);
    }
    let mut running = Vec::new();
    for leaf in &all {
        let is_meant = match engine.leaves().work_state(*leaf, kind).await?.state {
            LeafWorkState::Active => true,
            LeafWorkState::Suspended => stop == Some(Stop::Cancel),
            _ => false,
        };
        if is_meant {
            running.push(*leaf);
        }
    }
    Ok(if running.is_empty() { all } else { running })
}

fn failure(root: &VdevConfig, pool: &str, kind: LeafWorkKind, error: &Error) -> Exit {
    let action = kind.name();
    match error.cause::<LeafWorkError>() {
        Some(cause) => {
            let leaf = root.find(cause.leaf()).map_or_else(|| pool.to_owned(), vdev_name);
            Exit::cannot(action, &leaf, cause)
        }
        None => Exit::cannot(action, pool, error),
    }
}
