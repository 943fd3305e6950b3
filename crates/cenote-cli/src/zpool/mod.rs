//! `zpool`: OpenZFS's command of that name.

use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;

/// Runs one verb.
pub fn run(verb: &str, _source: &Source, _args: &[String], _io: &mut Io<'_>) -> CommandResult {
    Err(Exit::failed(format!("cannot run 'zpool {verb}': not supported by this version of cenote")))
}
