//! `zpool checkpoint`.
//!
//! With `--embedded` no process keeps the pool between two commands. The space of a discarded
//! checkpoint is freed by this command as far as one transaction group goes, and by the following
//! commands; with `-w` this command frees all of it.

use cenote_engine::{CheckpointError, CheckpointState};

use super::block_on;
use crate::err;
use crate::getopt::{self, Long};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, cause_text, command_line};

/// The message for a name with a slash.
const NOT_A_DATASET: &str = "'zpool checkpoint' doesn't work on datasets. To save the state of a \
    dataset from a specific point in time please use 'zfs snapshot'";

/// Runs `zpool checkpoint`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let line = command_line(Tool::Zpool, "checkpoint", args);
    let longs = [Long::flag("discard", 'd'), Long::flag("wait", 'w')];
    let parsed = getopt::parse(args, "dw", &longs)?;
    if parsed.has('w') && !parsed.has('d') {
        return Err(Exit::usage("--wait only valid when --discard also specified"));
    }
    let [name] = getopt::exactly(&parsed.operands, ["missing pool argument"])?;
    if name.contains('/') {
        err!(io, "cannot open '{name}': invalid character '/' in pool name")?;
        return Err(Exit::failed(NOT_A_DATASET));
    }
    block_on(Writer::run_on_pool(source, name, Some(&line), io, async |engine, _| {
        let (action, outcome) = if parsed.has('d') {
            ("discard checkpoint in", engine.space().discard_checkpoint().await)
        } else {
            ("checkpoint", engine.space().take_checkpoint().await)
        };
        outcome
            .map_err(|error| Exit::cannot(action, name, cause_text::<CheckpointError>(&error)))?;
        while parsed.has('w') && engine.space().checkpoint_state() == CheckpointState::Discarding {
            engine.sync().await?;
        }
        Ok(())
    }))
}
