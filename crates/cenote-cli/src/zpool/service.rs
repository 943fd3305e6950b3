//! `zpool clear`, `zpool offline` and `zpool online`.
//!
//! Nobody keeps a pool between two commands. So counts of errors begin anew with each, what is
//! temporary ends with the command, and a leaf that was found faulted gets its chance whenever the
//! pool is opened; what lasts is what the labels say, and what each leaf lacks.

use cenote_ondisk::config::VdevConfig;
use cenote_pool::engine::EngineError;
use cenote_rt::Error;

use super::leafwork::{leaf_named, path_of};
use super::{block_on, no_such_pool};
use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, command_line};

/// Runs one of the verbs.
pub(super) fn run(verb: &str, source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let line = command_line(Tool::Zpool, verb, args);
    let longs = [Long::flag("power", 'p')];
    let options = match verb {
        "online" => "e",
        "offline" => "ft",
        _ => "nFX",
    };
    let parsed = getopt::parse(args, options, &longs)?;
    let Some((pool, devices)) = parsed.operands.split_first() else {
        return Err(Exit::usage("missing pool name"));
    };
    match (verb, devices.len()) {
        ("clear", 0 | 1) => {}
        ("clear", _) => return Err(Exit::usage("too many arguments")),
        (_, 0) => return Err(Exit::usage("missing device name")),
        _ => {}
    }
    if parsed.has('p') {
        let text = "power of slots is not controlled by this version of cenote";
        return Err(Exit::failed(format!("cannot {verb} '{pool}': {text}")));
    }
    if (parsed.has('n') || parsed.has('X')) && !parsed.has('F') {
        return Err(Exit::usage("-n only valid with -F"));
    }
    block_on(async {
        if !source.embedded {
            return Err(Exit::failed(no_such_pool(pool)));
        }
        // With -F a pool that cannot be opened is rewound, which is what an import does here.
        let writer = Writer::open(source, pool).await?;
        if parsed.has('n') {
            return writer.leave(io).await;
        }
        let root = writer.engine().vdev_config();
        if verb == "clear" && devices.is_empty() {
            let cleared = writer.engine().clear(None).await;
            cleared.map_err(|error| failure(verb, pool, &error))?;
        }
        for word in devices {
            serve(&writer, verb, &parsed, &root, word).await?;
        }
        writer.finish(&line, io).await
    })
}

async fn serve(
    writer: &Writer,
    verb: &str,
    parsed: &Parsed,
    root: &VdevConfig,
    word: &str,
) -> CommandResult {
    let subject = if verb == "clear" { "clear errors for" } else { verb };
    let leaf = leaf_named(root, word);
    let absent = || Exit::failed(format!("cannot {subject} {word}: no such device in pool"));
    let leaf = leaf.ok_or_else(absent)?;
    let engine = writer.engine();
    let outcome = match verb {
        "clear" => engine.clear(Some(leaf)).await,
        "online" => engine.online(leaf, None).await,
        _ if parsed.has('f') => engine.fault(leaf, parsed.has('t')).await,
        _ => engine.offline(leaf, parsed.has('t')).await,
    };
    let name = root.find(leaf).map_or_else(|| word.to_owned(), path_of);
    outcome.map_err(|error| failure(verb, &name, &error))
}

fn failure(verb: &str, subject: &str, error: &Error) -> Exit {
    let verb = if verb == "clear" { "clear errors for" } else { verb };
    Exit::failed(match error.cause::<EngineError>() {
        Some(cause @ EngineError::NoReplicas(_)) => format!("cannot {verb} {subject}: {cause}"),
        _ => format!("cannot {verb} {subject}: {error}"),
    })
}
