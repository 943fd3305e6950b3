//! `zpool clear`, `zpool offline` and `zpool online`.
//!
//! With `--embedded` no process keeps the pool between two commands. Error counts therefore start
//! anew with each command, temporary states end with the command, and a faulted leaf is tried again
//! whenever the pool is opened. Only the labels and the dirty time log of each leaf last.
//!
//! `clear -F` changes nothing for a pool that can be opened; `zpool import -F` rewinds a pool that
//! cannot be opened. With `-n` the pool is only read.

use cenote_engine::{Engine, EngineError};
use cenote_pool::status::vdev_name;

use super::block_on;
use super::import::check_rewind;
use super::names::{self, FindVdevError};
use crate::err;
use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, cause_text, command_line};

/// Runs one of these verbs.
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
        return Err(Exit::cannot(verb, pool, text));
    }
    check_rewind(&parsed)?;
    if parsed.has('n') {
        return block_on(async { source.pool(pool).await.map(drop) });
    }
    if let Some(session) = &source.session
        && verb == "clear"
        && session.absent_pool(pool).is_some()
    {
        // As in OpenZFS, this tries to open the pool again.
        return block_on(async {
            session.host.look_for_absent_pools().await;
            session.pool(pool).map(drop)
        });
    }
    block_on(Writer::run_on_pool(source, pool, Some(&line), io, async |engine, io| {
        if engine.is_read_only() {
            return Err(failure(verb, pool, "pool is read-only"));
        }
        if verb == "clear" && devices.is_empty() {
            let failed = |error| failure(verb, pool, cause_text::<EngineError>(&error));
            engine.leaves().clear(None).await.map_err(failed)?;
            return bring_up_to_date(source, engine).await.map_err(failed);
        }
        // A failure does not keep the others from being processed.
        let mut status = Ok(());
        for word in devices {
            let served = serve(engine, source, verb, &parsed, word).await;
            if let Err(Exit::Failed(message)) = served {
                err!(io, "{message}")?;
                status = Err(Exit::Status(1));
            }
        }
        status
    }))
}

async fn serve(
    engine: &Engine,
    source: &Source,
    verb: &str,
    parsed: &Parsed,
    word: &str,
) -> CommandResult {
    let root = engine.admin().vdev_config();
    let vdev = names::find(&root, word, &source.path(word)).map_err(|why| match (verb, why) {
        ("online", FindVdevError::Absent) => {
            let pool = engine.name();
            Exit::failed(format!("couldn't find device \"{word}\" in pool \"{pool}\""))
        }
        _ => failure(verb, word, why),
    })?;
    let outcome = match verb {
        "clear" => engine.leaves().clear(Some(vdev.guid)).await,
        "online" => online(engine, vdev.guid, parsed.has('e')).await,
        _ if parsed.has('f') => engine.leaves().fault(vdev.guid, parsed.has('t')).await,
        _ => engine.leaves().offline(vdev.guid, parsed.has('t')).await,
    };
    let failed = |error| failure(verb, &vdev_name(vdev), cause_text::<EngineError>(&error));
    outcome.map_err(failed)?;
    if matches!(verb, "clear" | "online") {
        bring_up_to_date(source, engine).await.map_err(failed)?;
    }
    Ok(())
}

/// Brings a leaf online; with `is_expanded`, lets its vdev use all of its device.
async fn online(engine: &Engine, guid: u64, is_expanded: bool) -> cenote_rt::Result<()> {
    engine.leaves().online(guid, None).await?;
    if is_expanded {
        return engine.leaves().expand(Some(guid)).await;
    }
    engine.leaves().adopt_sizes().await
}

/// Devices that are back get what they missed. Without a daemon nobody would carry that out: the
/// command ends.
async fn bring_up_to_date(source: &Source, engine: &Engine) -> cenote_rt::Result<()> {
    if source.session.is_none() {
        return Ok(());
    }
    engine.scans().resume().await
}

/// Returns a failure in OpenZFS's form, which has no quotes here.
fn failure(verb: &str, subject: &str, why: impl std::fmt::Display) -> Exit {
    let verb = if verb == "clear" { "clear errors for" } else { verb };
    Exit::failed(format!("cannot {verb} {subject}: {why}"))
}
