//! The verbs that are cenote's own.

use crate::io::{CommandResult, Exit, Io};

/// Runs one verb.
pub fn run(verb: &str, _args: &[String], _io: &mut Io<'_>) -> CommandResult {
    Err(Exit::usage(format!("unrecognized command '{verb}'; run 'cenote help'")))
}
