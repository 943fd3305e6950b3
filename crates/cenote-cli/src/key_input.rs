//! Reading a key from standard input: a line typed at a terminal, or the contents of a pipe or
//! file.
//!
//! The process that received the command reads the key, because the terminal and its signals belong
//! to that process. If the daemon runs the command, that process is the client.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use rustix::termios::{LocalModes, OptionalActions, isatty, tcgetattr, tcsetattr};

/// Longest key that is read.
pub const KEY_MAX: u64 = 4096;

/// Reads a key from this process's standard input. At a terminal, writes the prompt to `out` and
/// disables echo. Returns the key, and whether it was typed at a terminal.
///
/// # Errors
/// Errors of reading and writing; an error if a raw key would have to be typed.
pub fn read_key(
    prompt: &str,
    is_raw: bool,
    out: &mut dyn Write,
) -> std::io::Result<(Vec<u8>, bool)> {
    let input = std::io::stdin();
    // Bypasses the standard library's buffer: bytes after the line belong to the next reader.
    let mut reader = std::fs::File::from(input.as_fd().try_clone_to_owned()?);
    let mut material = Vec::new();
    if !isatty(&input) {
        if is_raw {
            reader.take(KEY_MAX).read_to_end(&mut material)?;
            return Ok((material, false));
        }
        read_line(&mut reader, &mut material)?;
        return Ok((material, false));
    }
    if is_raw {
        return Err(std::io::Error::other("Cannot enter raw keys on the terminal"));
    }
    write!(out, "{prompt}")?;
    out.flush()?;
    let before = tcgetattr(&input)?;
    let mut quiet = before.clone();
    quiet.local_modes.remove(LocalModes::ECHO);
    tcsetattr(&input, OptionalActions::Flush, &quiet)?;
    let read = read_line(&mut reader, &mut material);
    tcsetattr(&input, OptionalActions::Flush, &before)?;
    writeln!(out)?;
    read.map(|()| (material, true))
}

/// Reads one line and no byte after it.
fn read_line(reader: &mut impl Read, line: &mut Vec<u8>) -> std::io::Result<()> {
    let mut byte = [0];
    while (line.len() as u64) < KEY_MAX && reader.read(&mut byte)? == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    Ok(())
}
