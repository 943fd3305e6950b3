//! `zstream token`: the contents of a resume token.

use cenote_stream::token::decode_list;

use crate::io::{CommandResult, Exit, Io};
use crate::zdb;

/// Columns before each line.
const INDENT: usize = 5;

/// Runs the command.
pub(super) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let Some(token) = args.first() else {
        return Err(Exit::usage("Need to pass the resume token"));
    };
    let list = decode_list(token)
        .map_err(|error| Exit::failed(format!("Unable to parse resume token: {error}")))?;
    zdb::print_nvlist(io, &list, INDENT)
}
