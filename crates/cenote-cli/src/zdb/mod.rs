//! `zdb`: what is on disk.

use crate::io::{CommandResult, Exit, Io};

/// Runs `zdb`.
pub fn run(_args: &[String], _io: &mut Io<'_>) -> CommandResult {
    Err(Exit::failed("zdb is not supported by this version of cenote"))
}
