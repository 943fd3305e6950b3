//! `zpool events`.
//!
//! Events are kept by whoever has the pool open, and nobody has it between two commands: what a
//! command of its own can show is that there are none.

use super::{block_on, no_such_pool};
use crate::getopt;
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::source::Source;

/// Runs it.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "vHfc", &[])?;
    if parsed.operands.len() > 1 {
        return Err(Exit::usage("too many arguments"));
    }
    if parsed.has('c') {
        if !parsed.operands.is_empty() {
            return Err(Exit::usage("too many arguments"));
        }
        if parsed.options.len() > 1 {
            return Err(Exit::usage("invalid options combined with -c"));
        }
        return out!(io, "cleared 0 events");
    }
    if parsed.has('f') {
        let text = "cannot follow events: not supported by this version of cenote";
        return Err(Exit::failed(text));
    }
    if let Some(name) = parsed.operands.first() {
        block_on(async {
            match source.embedded {
                true => source.pool(name).await.map(drop),
                false => Err(Exit::failed(no_such_pool(name))),
            }
        })?;
    }
    if !parsed.has('H') {
        out!(io, "{:<30} CLASS", "TIME")?;
    }
    Ok(())
}
