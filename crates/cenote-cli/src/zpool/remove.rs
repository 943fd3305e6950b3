//! `zpool remove`: hot spares, cache devices and log vdevs; vdevs with data are in `remove_data`.

use cenote_engine::{Engine, ShapeError};
use cenote_pool::import::AuxDevice;

use super::{block_on, names, remove_data};
use crate::err;
use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, cause_or_checkpoint, command_line};

/// Runs `zpool remove`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "npsw", &[])?;
    let Some((pool, devices)) = parsed.operands.split_first() else {
        return Err(Exit::usage("missing pool name argument"));
    };
    if parsed.has('s') && (parsed.has('n') || parsed.has('p') || parsed.has('w')) {
        return Err(Exit::usage("-n, -p, and -w options are not allowed with -s"));
    }
    if devices.is_empty() != parsed.has('s') {
        let what = if devices.is_empty() { "missing device" } else { "too many arguments" };
        return Err(Exit::usage(what));
    }
    let line = command_line(Tool::Zpool, "remove", args);
    let line = (!parsed.has('n')).then_some(&line[..]);
    block_on(Writer::run_on_pool(source, pool, line, io, async |engine, io| {
        if parsed.has('s') {
            return remove_data::cancel(engine).await;
        }
        let mut status = Ok(());
        for word in devices {
            match remove(source, engine, word, &parsed, io).await {
                Err(Exit::Failed(message)) => {
                    err!(io, "{message}")?;
                    status = Err(Exit::Status(1));
                }
                done => done?,
            }
        }
        if parsed.has('w') && !parsed.has('n') {
            remove_data::wait(source, engine).await?;
        }
        status
    }))
}

async fn remove(
    source: &Source,
    engine: &Engine,
    word: &str,
    parsed: &Parsed,
    io: &mut Io<'_>,
) -> CommandResult {
    let cannot = |why: &str| Exit::failed(format!("cannot remove {word}: {why}"));
    if engine.is_read_only() {
        return Err(cannot("pool is read-only"));
    }
    let view = engine.view().await?;
    let is_it = |aux: &&AuxDevice| {
        let path = aux.config.leaf.path.as_ref().map(ToString::to_string).unwrap_or_default();
        let file = source.path(word).to_string_lossy().into_owned();
        path == word || path == file || aux.config.guid.to_string() == word
    };
    let found = view.spares().iter().chain(view.caches()).find(is_it);
    if found.is_some_and(|aux| !aux.config.kind.is_real_leaf()) {
        return Err(cannot("dRAID spares cannot be removed"));
    }
    let Some(guid) = found.map(|aux| aux.config.guid) else {
        let root = engine.admin().vdev_config();
        let vdev = names::find(&root, word, &source.path(word));
        let vdev = vdev.map_err(|why| cannot(&why.to_string()))?;
        drop(view);
        if vdev.top.is_log {
            let removed = remove_log(engine, vdev.guid, parsed.has('n')).await;
            return removed.map_err(|why| cannot(&why));
        }
        return remove_data::remove(engine, word, vdev, parsed, io).await;
    };
    drop(view);
    if parsed.has('n') {
        return Ok(());
    }
    let removed = engine.leaves().remove_aux(guid).await;
    removed.map_err(|error| cannot(&cause_or_checkpoint::<ShapeError>(&error)))
}

/// Removes a log vdev. Returns why it is not removed, in OpenZFS's words.
async fn remove_log(engine: &Engine, guid: u64, is_dry: bool) -> Result<(), String> {
    if is_dry {
        return Ok(());
    }
    let removed = engine.leaves().remove_log(guid).await;
    removed.map_err(|error| cause_or_checkpoint::<ShapeError>(&error))
}
