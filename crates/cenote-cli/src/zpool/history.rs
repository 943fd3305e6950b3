//! `zpool history`: commands, with `-i` also internal events of the pool.

use std::fmt::Write as _;

use cenote_pool::history::{HistoryEvent, HistoryRecord};

use super::{block_on, dump, no_such_pool, pools};
use crate::getopt;
use crate::io::{CommandResult, Io};
use crate::source::Source;
use crate::zfs::value;
use crate::{err, out};

/// Indent of the lists of an ioctl.
const LIST_INDENT: usize = 8;

/// Runs `zpool history`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "li", &[])?;
    block_on(async {
        let pools = pools(source, &parsed.operands, no_such_pool, io).await?;
        let users = users();
        for pool in &pools.open {
            out!(io, "History for '{}':", pool.name())?;
            let history = pool.history().await?;
            for record in &history.records {
                write!(io.out, "{}", line(record, parsed.has('i'), parsed.has('l'), &users))?;
            }
            out!(io)?;
            if let Some(damage) = history.damage {
                err!(io, "cannot read all of the history of '{}': {damage}", pool.name())?;
            }
        }
        pools.finish()
    })
}

/// Formats one record; empty if it is not selected.
fn line(
    record: &HistoryRecord,
    has_internal: bool,
    is_long: bool,
    users: &[(u64, String)],
) -> String {
    let time = value::date(record.time, "%Y-%m-%d.%H:%M:%S");
    let mut text = match &record.event {
        HistoryEvent::Command(command) => format!("{time} {command}"),
        _ if !has_internal => return String::new(),
        HistoryEvent::Internal { txg, name, dataset, text } => {
            let mut line = format!("{time} [txg:{txg}] {name}");
            if let Some((name, object)) = dataset {
                let _ = write!(line, " {name} ({object})");
            }
            format!("{line} {text}")
        }
        HistoryEvent::Ioctl { name, input, output, output_size, errno, elapsed_ns } => {
            let mut text = format!("{time} ({}ms) ioctl {name}\n", elapsed_ns / 1_000_000);
            for (title, list) in [("input", input), ("output", output)] {
                if let Some(list) = list {
                    let _ = writeln!(text, "    {title}:");
                    dump::list(list, LIST_INDENT, &mut text);
                }
            }
            if let Some(size) = output_size {
                let size = size >> 10;
                let _ = writeln!(text, "    output nvlist omitted; original size: {size}KB");
            }
            if *errno != 0 {
                let _ = writeln!(text, "    errno: {errno}");
            }
            text
        }
        HistoryEvent::Other => {
            let mut text = format!("{time} unrecognized record:\n");
            dump::list(&record.list, 4, &mut text);
            text
        }
    };
    if is_long {
        text.push_str(&origin(record, users));
    }
    text.push('\n');
    text
}

/// Returns the user and host of a record.
fn origin(record: &HistoryRecord, users: &[(u64, String)]) -> String {
    let mut text = " [".to_owned();
    if let Some(who) = record.who {
        let _ = write!(text, "user {who} ");
        if let Some((_, name)) = users.iter().find(|(id, _)| *id == who) {
            let _ = write!(text, "({name}) ");
        }
    }
    if let Some(hostname) = &record.hostname {
        let _ = write!(text, "on {hostname}");
        if let Some(zone) = &record.zone {
            let _ = write!(text, ":{zone}");
        }
    }
    text + "]"
}

/// Returns the users of this system.
fn users() -> Vec<(u64, String)> {
    let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        Some((fields.nth(1)?.parse().ok()?, name))
    };
    text.lines().filter_map(user).collect()
}
