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
mod refuse;
mod select;
mod send;
mod space;
pub(crate) mod value;

pub(crate) use mount::mount_for;
pub(crate) use permits::ASKING_VERBS;
pub(crate) use quotas::Limit;
pub use send::terminal_refusal;

use crate::io::{CommandResult, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::zpool;

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
        "allow" | "unallow" => allow::run(verb, source, args, io),
        "load-key" | "unload-key" => keys::run(verb, source, args, io),
        "mount" => mount::mount(source, args, io),
        "unmount" => mount::unmount(source, args, io),
        "version" => zpool::version(Tool::Zfs, args, io),
        "help" => zpool::help(Tool::Zfs, args, io),
        _ => refuse::run(verb, source, args, io),
    }
}
