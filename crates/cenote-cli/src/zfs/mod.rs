//! `zfs`: OpenZFS's command of that name.
//!
//! With `--embedded -d DIR` pools are opened in this process; without it and without a daemon no
//! pool is imported, and the output is OpenZFS's for a system without datasets. Verbs that cenote
//! does not implement check their arguments as far as that is easy, and refuse ([`refuse`]).
//!
//! Sources: spec 04 §7, §17, the manual pages.

mod allow;
mod change;
pub(crate) mod columns;
mod create;
mod destroy;
mod diff;
pub(crate) mod encryption;
pub(crate) mod get;
mod holds;
pub(crate) mod json;
pub(crate) mod keys;
pub(crate) mod list;
mod mount;
mod moving;
mod path;
mod permits;
mod quotas;
mod receive;
mod redact;
pub(crate) mod refuse;
mod select;
mod send;
mod space;
pub(crate) mod value;

pub(crate) use mount::mount_for;
pub(crate) use permits::ASKING_VERBS;
pub(crate) use quotas::Limit;

use crate::io::{CommandResult, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::zpool;

/// Streams are not read from a terminal, nor written to one. Returns the message for a command
/// line, the program's name first, that would do so; only callers know what is a terminal.
#[must_use]
pub fn terminal_refusal(
    args: &[String],
    is_terminal: impl Fn(TerminalStream) -> bool,
) -> Option<&'static str> {
    let is_zfs = |word: &String| word.rsplit('/').next() == Some("zfs");
    let rest = match args {
        [program, rest @ ..] if is_zfs(program) => rest,
        [_, tool, rest @ ..] if tool == "zfs" => rest,
        _ => return None,
    };
    let (_, rest) = Source::default().take_leading(rest).ok()?;
    let (verb, options) = rest.split_first()?;
    let (stream, refusal) = match verb.as_str() {
        "send" => (TerminalStream::Output, send::terminal_refusal(options)),
        "receive" | "recv" => (TerminalStream::Input, receive::terminal_refusal(options)),
        _ => return None,
    };
    refusal.filter(|_| is_terminal(stream))
}

/// A standard stream that may be a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TerminalStream {
    /// Standard input.
    Input,
    /// Standard output.
    Output,
}

/// Runs one verb.
pub fn run(verb: &str, source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    match verb {
        "create" => create::run(source, args, io),
        "clone" => create::clone(source, args, io),
        "destroy" => destroy::run(source, args, io),
        "snapshot" | "rename" | "promote" | "rollback" | "set" | "inherit" | "bookmark"
        | "hold" | "release" => change::run(verb, source, args, io),
        "list" => list::run(source, args, io),
        "get" => get::run(source, args, io),
        "holds" => holds::run(source, args, io),
        "userspace" | "groupspace" | "projectspace" => space::run(verb, source, args, io),
        "diff" => diff::run(source, args, io),
        "send" => send::run(source, args, io),
        "receive" => receive::run(source, args, io),
        "redact" => redact::run(source, args, io),
        "allow" | "unallow" => allow::run(verb, source, args, io),
        "change-key" => encryption::change_key(source, args, io),
        "load-key" | "unload-key" => keys::run(verb, source, args, io),
        "mount" => mount::mount(source, args, io),
        "unmount" => mount::unmount(source, args, io),
        "version" => zpool::version(Tool::Zfs, args, io),
        _ => refuse::run(verb, source, args, io),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_not_typed_and_not_shown() {
        let refused = |line: &str| {
            let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            let both = terminal_refusal(&args, |_| true).is_some();
            let of = |wanted| terminal_refusal(&args, |stream| stream == wanted).is_some();
            assert_eq!(both, of(TerminalStream::Input) != of(TerminalStream::Output), "{line}");
            assert!(terminal_refusal(&args, |_| false).is_none(), "{line}");
            both
        };
        for line in [
            "/sbin/zfs send p@s",
            "cenote zfs --embedded -d /d send -i @a p@s",
            "zfs receive p/a",
            "cenote zfs recv -F p/a@b",
        ] {
            assert!(refused(line), "{line}");
        }
        for line in [
            "zfs send -nv p@s",
            "zfs send",
            "cenote zfs list",
            "zpool send",
            "cenote",
            "zfs receive",
            "zfs receive -A p/a",
        ] {
            assert!(!refused(line), "{line}");
        }
    }
}
