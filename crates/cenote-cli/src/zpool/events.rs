//! `zpool events`.
//!
//! Events are kept by whoever has the pool open, and nobody has it between two commands: what a
//! command of its own can show is that there are none.

use cenote_pool::{DatasetName, Suffix};

use crate::getopt;
use crate::io::{CommandResult, Exit, Io};
use crate::out;

/// Runs it.
pub(super) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "vHfc", &[])?;
    let name = match &parsed.operands[..] {
        [] => None,
        [name] => Some(name),
        _ => return Err(Exit::usage("too many arguments")),
    };
    // The name only filters: there need not be such a pool.
    if let Some(name) = name.filter(|name| !is_pool_name(name)) {
        return Err(Exit::usage(format!("invalid pool name '{name}'")));
    }
    if parsed.has('c') {
        if name.is_some() || "vHf".chars().any(|letter| parsed.has(letter)) {
            return Err(Exit::usage("invalid options combined with -c"));
        }
        return out!(io, "cleared 0 events");
    }
    if parsed.has('f') {
        let text = "cannot follow events: not supported by this version of cenote";
        return Err(Exit::failed(text));
    }
    if !parsed.has('H') {
        out!(io, "{:<30} CLASS", "TIME")?;
    }
    Ok(())
}

/// Whether a pool could be called so, as OpenZFS's check of such names sees it.
fn is_pool_name(name: &str) -> bool {
    DatasetName::parse(name).is_ok_and(|parsed| parsed.suffix == Suffix::None)
}
