//! `zpool reopen`: devices that are gone or back, or became longer, are noticed.
//!
//! A resilver that runs may begin anew, or be followed by another one, for devices that are back;
//! with `-n` another one follows. With `--embedded` every command opens the devices itself, and
//! this one only writes the labels to their new places.

use super::block_on;
use super::change::active;
use crate::err;
use crate::getopt;
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, command_line};

/// Runs `zpool reopen`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "n", &[])?;
    let line = command_line(Tool::Zpool, "reopen", args);
    block_on(async {
        let names = match &parsed.operands[..] {
            [] => active(source).await?,
            names => names.to_vec(),
        };
        let mut status = Ok(());
        for name in &names {
            // A failure does not keep the others from being reopened.
            let reopened = reopen(source, name, &line, parsed.has('n'), io).await;
            if let Err(Exit::Failed(message)) = reopened {
                err!(io, "{message}")?;
                status = Err(Exit::Status(1));
            }
        }
        status
    })
}

async fn reopen(
    source: &Source,
    name: &str,
    line: &str,
    leaves_scans_alone: bool,
    io: &mut Io<'_>,
) -> CommandResult {
    let failed = |error| Exit::failed(format!("error reopening '{name}': {error}"));
    Writer::run_on_pool(source, name, Some(line), io, async |engine, _| {
        if engine.is_read_only() {
            return Ok(());
        }
        engine.leaves().reopen().await.map_err(failed)?;
        let scans = engine.scans();
        match source.session {
            None => Ok(()),
            Some(_) if leaves_scans_alone => scans.resume_afterwards().await.map_err(failed),
            Some(_) => scans.resume().await.map_err(failed),
        }
    })
    .await
}
