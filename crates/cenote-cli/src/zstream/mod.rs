//! `zstream`: shows and rewrites stored send streams, with the output of OpenZFS 2.3's `zstream`.
//!
//! ```text
//!   dump                  stream -> text          its own reader: shows damaged streams, too
//!   token                 text -> text
//!   decompress, recompress,
//!   drop_record, redup    stream -> stream        records with checksums that match, framed anew
//! ```
//!
//! `drop_record` is that of OpenZFS 2.4. `docs/zstream.md` lists the differences from OpenZFS 2.3,
//! whose zstream fails or loses data in all of these cases.
//!
//! Wrong use ends with status 1, as in OpenZFS, and not with 2.

mod decompress;
mod drop_record;
mod dump;
pub(crate) mod nvlist;
mod places;
mod recompress;
mod records;
mod redup;
#[cfg(test)]
mod tests;
mod token;

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;

use rustix::termios::isatty;

use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io, words};

pub(crate) use records::{Strictness, for_each_record};

/// The text that is printed after wrong use.
const USAGE: &str = include_str!("usage.txt");
/// Bytes that are read at once.
const BUFFER_LEN: usize = 1 << 20;

/// The standard input of a command, and whether input and output are terminals.
pub struct Streams<'a> {
    /// Standard input.
    pub input: &'a mut dyn BufRead,
    /// Standard input is a terminal.
    pub is_input_terminal: bool,
    /// Standard output is a terminal.
    pub is_output_terminal: bool,
}

/// Runs `zstream` with this process's standard input.
pub fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    with_standard_input(|streams| run_with(args, streams, io))
}

/// Calls `command` with this process's standard input.
pub(crate) fn with_standard_input(
    command: impl FnOnce(&mut Streams<'_>) -> CommandResult,
) -> CommandResult {
    let input = std::io::stdin();
    let file = input.as_fd().try_clone_to_owned().map(File::from);
    let file = file.map_err(|error| Exit::failed(words(&error)))?;
    command(&mut Streams {
        input: &mut BufReader::with_capacity(BUFFER_LEN, file),
        is_input_terminal: isatty(&input),
        is_output_terminal: isatty(std::io::stdout()),
    })
}

/// Runs `zstream`; the first argument is the command.
pub fn run_with(args: &[String], streams: &mut Streams<'_>, io: &mut Io<'_>) -> CommandResult {
    if args.iter().take(2).any(|arg| arg == "--help") {
        return Ok(write!(io.out, "{USAGE}")?);
    }
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("", &[][..]),
    };
    let result = match command {
        "decompress" => decompress::run(rest, streams, io),
        "drop_record" | "drop_records" => drop_record::run(rest, streams, io),
        "dump" => dump::run(rest, streams, io),
        "recompress" => recompress::run(rest, streams, io),
        "redup" => redup::run(rest, streams, io),
        "token" => token::run(rest, io),
        _ => Err(Exit::usage("")),
    };
    result.map_err(|exit| match exit {
        Exit::Usage(message) => {
            let separator = if message.is_empty() { "" } else { "\n" };
            Exit::FailedWith(format!("{message}{separator}{}", USAGE.trim_end()), 1)
        }
        other => other,
    })
}

/// Parses options. The message for a wrong one is preceded by that of C's getopt, which names the
/// command; `dump` suppresses it.
fn parse(command: &str, args: &[String], letters: &str) -> CommandResult<Parsed> {
    // C's getopt has no long options: the second dash counts as an unknown letter.
    let mut until_end = args.iter().take_while(|arg| *arg != "--");
    let parsed = if until_end.any(|arg| arg.starts_with("--")) {
        Err(Exit::usage("invalid option '-'"))
    } else {
        getopt::parse(args, letters, &[])
    };
    parsed.map_err(|exit| {
        let Exit::Usage(message) = exit else { return exit };
        let letter = message.split('\'').nth(1).unwrap_or_default();
        let getopt = match message.starts_with("missing") {
            _ if command == "dump" => String::new(),
            true => format!("{command}: option requires an argument -- '{letter}'\n"),
            false => format!("{command}: invalid option -- '{letter}'\n"),
        };
        Exit::usage(format!("{getopt}invalid option '{letter}'"))
    })
}

/// Refuses a terminal as the input of a command that reads standard input only, and as the output
/// of a command that writes a stream.
fn refuse_terminals(streams: &Streams<'_>) -> CommandResult {
    if streams.is_input_terminal {
        return Err(Exit::failed(
            "Error: The send stream is a binary format and can not be read from a\n\
             terminal.  Standard input must be redirected.",
        ));
    }
    refuse_output(streams)
}

fn refuse_output(streams: &Streams<'_>) -> CommandResult {
    if !streams.is_output_terminal {
        return Ok(());
    }
    let message = "Error: Stream can not be written to a terminal.\n\
                   You must redirect standard output.";
    Err(Exit::failed(message))
}

/// Opens a file that is named on the command line.
pub(crate) fn open(path: &str) -> CommandResult<File> {
    File::open(crate::argument::path(path)).map_err(|error| {
        Exit::failed(format!("Error while opening file '{path}': {}", words(&error)))
    })
}
