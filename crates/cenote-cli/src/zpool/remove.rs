//! `zpool remove`: hot spares, cache devices and log vdevs; vdevs with data are in `remove_data`.

use std::path::Path;

use cenote_engine::{Engine, ShapeError};
use cenote_ondisk::config::VdevConfig;
use cenote_pool::Pool;

use super::names::{self, FindVdevError, Names};
use super::{block_on, remove_data};
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
    let root = engine.admin().vdev_config();
    let named = find(&root, &view, word, &source.path(word));
    let named = named.map_err(|why| cannot(&why.to_string()))?;
    drop(view);
    let guid = match named {
        Named::Aux { is_distributed: true, .. } => {
            return Err(cannot("dRAID spares cannot be removed"));
        }
        Named::Aux { guid, .. } => guid,
        Named::Vdev(vdev) if vdev.top.is_log => {
            let removed = remove_log(engine, vdev.guid, parsed.has('n')).await;
            return removed.map_err(|why| cannot(&why));
        }
        Named::Vdev(vdev) => return remove_data::remove(engine, word, vdev, parsed, io).await,
    };
    if parsed.has('n') {
        return Ok(());
    }
    let removed = engine.leaves().remove_aux(guid).await;
    removed.map_err(|error| cannot(&cause_or_checkpoint::<ShapeError>(&error)))
}

/// A device that a word on the command line denotes.
enum Named<'a> {
    /// A vdev of the tree.
    Vdev(&'a VdevConfig),
    /// A hot spare or cache device.
    Aux { guid: u64, is_distributed: bool },
}

/// Finds the device that `word` denotes; `file` is the word as a path. A spare in use is also a
/// vdev of the tree: its path and guid denote the spare, shorter names a vdev of the tree first.
fn find<'a>(
    root: &'a VdevConfig,
    view: &Pool,
    word: &str,
    file: &Path,
) -> Result<Named<'a>, FindVdevError> {
    let aux: Vec<_> =
        view.spares().iter().chain(view.caches()).map(|device| &device.config).collect();
    let is_it = |aux: &&&VdevConfig| {
        let path = aux.leaf.path.as_ref().map(ToString::to_string).unwrap_or_default();
        path == word || Path::new(&path) == file || aux.guid.to_string() == word
    };
    let found = match aux.iter().find(is_it) {
        Some(found) => found,
        None => match names::find(root, word, file) {
            Err(FindVdevError::Absent) => names::find_among(&aux, &Names::default(), word, file)?,
            found => return found.map(Named::Vdev),
        },
    };
    Ok(Named::Aux { guid: found.guid, is_distributed: !found.kind.is_real_leaf() })
}

/// Removes a log vdev. Returns why it is not removed, in OpenZFS's words.
async fn remove_log(engine: &Engine, guid: u64, is_dry: bool) -> Result<(), String> {
    if is_dry {
        return Ok(());
    }
    let removed = engine.leaves().remove_log(guid).await;
    removed.map_err(|error| cause_or_checkpoint::<ShapeError>(&error))
}
