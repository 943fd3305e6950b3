//! `zpool`: OpenZFS's command of that name.
//!
//! With `--embedded -d DIR` pools are opened in this process; without it and without a daemon no
//! pool is imported, and the output is OpenZFS's for a system without pools. Verbs that cenote does
//! not implement check their arguments as far as that needs no pool, and refuse ([`refuse`]).
//!
//! Sources: spec 06 §19, spec 05 §6.6, the manual pages.

mod attach;
pub mod cache;
mod change;
mod checkpoint;
mod colour;
mod config_table;
pub(crate) mod create;
mod dump;
mod event_text;
pub(crate) mod events;
mod get;
mod history;
mod import;
mod import_failure;
mod import_text;
mod iostat;
mod iostat_columns;
mod iostat_table;
pub(crate) mod json;
mod layout;
mod leafwork;
mod list;
mod list_vdevs;
pub(crate) mod names;
mod redundancy;
mod refuse;
mod remove;
mod remove_data;
mod reopen;
pub mod scan;
mod scripts;
mod scrub;
mod service;
mod setting;
mod shown;
mod split;
mod status;
mod status_json;
mod status_text;
mod vdev_props;
mod vdev_setting;
pub(crate) mod wait;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cenote_engine::{Engine, SOFTWARE};
use cenote_pool::import::FindError;
use cenote_pool::{OpenOptions, Pool};
use cenote_rt::tunables;

use crate::err;
use crate::getopt::{self, Long, Parsed};
use crate::hints;
use crate::host::AbsentPool;
use crate::io::{CommandResult, Exit, Io};
use crate::manual::Page;
use crate::program;
use crate::source::Source;
use crate::usage::Tool;

/// Runs one verb.
pub fn run(verb: &str, source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    match verb {
        "import" => import::run(source, args, io),
        "list" => list::run(source, args, io),
        "get" => get::run(source, args, io),
        "status" => status::run(source, args, io),
        "history" => history::run(source, args, io),
        "iostat" => iostat::run(source, args, io),
        "create" => create::run(source, args, io),
        "add" => create::add(source, args, io),
        "destroy" | "export" | "sync" | "set" | "reguid" | "upgrade" | "labelclear" => {
            change::run(verb, source, args, io)
        }
        "clear" | "online" | "offline" => service::run(verb, source, args, io),
        "attach" | "replace" => attach::run(verb, source, args, io),
        "reopen" => reopen::run(source, args, io),
        "split" => split::run(source, args, io),
        "remove" => remove::run(source, args, io),
        "detach" => attach::detach(source, args, io),
        "checkpoint" => checkpoint::run(source, args, io),
        "trim" => leafwork::trim(source, args, io),
        "initialize" => leafwork::initialize(source, args, io),
        "scrub" => scrub::scrub(source, args, io),
        "resilver" => scrub::resilver(source, args, io),
        "wait" => wait::run(source, args, io),
        "events" => events::run(source, args, io),
        "version" => version(Tool::Zpool, args, io),
        _ => refuse::run(verb, source, args, io),
    }
}

/// Runs `work` to completion.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, Exit>>) -> Result<T, Exit> {
    cenote_rt::block_on(0, work)?
}

/// `help [VERB]`: prints the usage text.
pub(crate) fn help(tool: Tool, args: &[String], io: &mut Io<'_>) -> CommandResult {
    match args.first().map(String::as_str) {
        Some(verb) if tool.has_verb(program::full(verb)) => {
            let verb = program::full(verb);
            let text =
                Page::of(tool, verb).map_or_else(|| tool.verb_usage(verb), |page| page.text());
            write!(io.out, "{text}")?;
        }
        Some(topic) if topic != "--help" => {
            let usage = hints::usage_of_tool(tool);
            return Err(Exit::Usage(format!(
                "unrecognized command '{topic}'\n{}",
                usage.trim_end()
            )));
        }
        _ => write!(io.out, "{}", tool.usage())?,
    }
    Ok(())
}

/// `version [-j]`: prints the version, that of the engine in place of the kernel module's.
pub(crate) fn version(tool: Tool, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "j", &[Long::flag("json", 'j')])?;
    if parsed.has('j') {
        let mut document = json::document(&format!("{} version", tool.name()));
        let mut versions = serde_json::Map::new();
        versions.insert("userland".into(), SOFTWARE.into());
        versions.insert("kernel".into(), SOFTWARE.into());
        document.insert("zfs_version".into(), versions.into());
        return json::print(document, io);
    }
    write!(io.out, "{SOFTWARE}\n{SOFTWARE}\n")?;
    Ok(())
}

/// The pools selected by name, or all. Pools that cannot be opened are reported, and make the
/// command fail.
#[derive(Default)]
pub(crate) struct Pools {
    /// Open pools, in the order of the arguments, or of their names.
    pub(crate) open: Vec<Arc<Pool>>,
    /// Suspended or stopped pools whose metadata cannot be read now.
    pub(crate) unread: Vec<Arc<Engine>>,
    /// Recorded pools that could not be opened.
    pub(crate) absent: Vec<Arc<AbsentPool>>,
    /// Whether a selected pool is missing here.
    pub(crate) is_incomplete: bool,
}

/// Reads metadata of a suspended pool. Returns `None` after a time limit: metadata that is not in
/// memory may be unreadable for hours.
pub(super) async fn in_time<T>(read: impl Future<Output = T>) -> Option<T> {
    match tunables::SUSPENDED_READ_MS.get() {
        0 => None,
        time => cenote_rt::until(Duration::from_millis(time), read).await,
    }
}

/// Whether metadata of an open pool may be unreadable for as long as the pool is open.
pub(super) fn is_impaired(engine: &Engine) -> bool {
    let health = engine.health();
    health.suspended().is_some() || health.stopped().is_some()
}

impl Pools {
    /// Adds a view of an open pool.
    async fn add(&mut self, engine: Arc<Engine>) -> CommandResult {
        if !is_impaired(&engine) {
            self.open.push(Box::pin(engine.view()).await?);
            return Ok(());
        }
        let read = Box::pin(async {
            let view = engine.view().await?;
            // Commands need the space figures first, and the view caches them.
            view.space().await?;
            view.props().await?;
            Ok::<_, cenote_rt::Error>(view)
        });
        match in_time(read).await {
            Some(Ok(view)) => self.open.push(view),
            Some(Err(_)) | None => self.unread.push(engine),
        }
        Ok(())
    }

    /// Whether no pool was selected.
    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.unread.is_empty() && self.absent.is_empty()
    }

    /// Returns status 1 if a pool could not be opened.
    pub(crate) fn finish(&self) -> CommandResult {
        if self.is_incomplete { Err(Exit::Status(1)) } else { Ok(()) }
    }
}

/// Returns the message for a missing pool.
pub(crate) fn no_such_pool(name: &str) -> String {
    format!("cannot open '{name}': no such pool")
}

/// Opens pools; `missing` returns the message for a missing one. A suspended pool that cannot be
/// read is reported, and left out.
pub(crate) async fn pools(
    source: &Source,
    names: &[String],
    missing: impl Fn(&str) -> String,
    io: &mut Io<'_>,
) -> Result<Pools, Exit> {
    let mut pools = pools_in_memory(source, names, &missing, io).await?;
    for pool in &pools.absent {
        // Commands for all pools leave them out.
        if !names.is_empty() {
            err!(io, "{}", Exit::cannot("open", pool.name(), "pool is unavailable").message())?;
            pools.is_incomplete = true;
        }
    }
    for engine in &pools.unread {
        err!(io, "cannot read '{}': pool I/O is currently suspended", engine.name())?;
        pools.is_incomplete = true;
    }
    Ok(pools)
}

/// Like [`pools`], for a command that shows suspended pools from memory.
pub(crate) async fn pools_in_memory(
    source: &Source,
    names: &[String],
    missing: impl Fn(&str) -> String,
    io: &mut Io<'_>,
) -> Result<Pools, Exit> {
    let mut pools = Pools::default();
    if !source.has_pools() {
        for name in names {
            err!(io, "{}", missing(name))?;
            pools.is_incomplete = true;
        }
        return Ok(pools);
    }
    // As in OpenZFS, a pool that is named twice is shown once.
    let mut seen = BTreeSet::new();
    if let Some(session) = &source.session {
        // A closed pool is listed until its export ends.
        let is_open = |engine: &Arc<Engine>| !engine.tree().is_closed();
        if names.is_empty() {
            for engine in session.host.pools().into_iter().filter(is_open) {
                pools.add(engine).await?;
            }
            pools.absent = session.host.absent_pools();
        }
        for name in names {
            if let Some(engine) = session.pool(name).ok().filter(is_open) {
                if seen.insert(engine.guid()) {
                    pools.add(engine).await?;
                }
            } else if let Some(absent) = session.absent_pool(name) {
                if seen.insert(absent.guid()) {
                    pools.absent.push(absent);
                }
            } else {
                err!(io, "{}", missing(name))?;
                pools.is_incomplete = true;
            }
        }
        return Ok(pools);
    }
    let scan = source.scan().await?;
    let mut wanted = Vec::new();
    if names.is_empty() {
        wanted.extend(scan.candidates.iter().filter(|candidate| !candidate.is_destroyed()));
        wanted.sort_by(|a, b| a.name().cmp(b.name()));
    }
    for name in names {
        match scan.find(name) {
            Ok(candidate) if !candidate.is_destroyed() => {
                if seen.insert(candidate.guid()) {
                    wanted.push(candidate);
                }
            }
            Err(error @ FindError::Ambiguous(_)) => {
                err!(io, "cannot open '{name}': {error}")?;
                pools.is_incomplete = true;
            }
            _ => {
                err!(io, "{}", missing(name))?;
                pools.is_incomplete = true;
            }
        }
    }
    for candidate in wanted {
        match source.open(candidate, &OpenOptions::default()).await {
            Ok(pool) => pools.open.push(pool),
            Err(Exit::Failed(message)) => {
                err!(io, "{message}")?;
                pools.is_incomplete = true;
            }
            Err(other) => return Err(other),
        }
    }
    Ok(pools)
}

/// `[interval [count]]` at the end of the operands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Repeat {
    /// Time between two reports; `None` for one report.
    pub(crate) interval: Option<std::time::Duration>,
    /// Number of reports; `None` for endless.
    pub(crate) count: Option<u64>,
}

impl Repeat {
    /// Removes the numbers from the end of the operands.
    pub(crate) fn take(operands: &mut Vec<String>) -> Result<Self, Exit> {
        let number = |text: Option<&String>| {
            text.and_then(|text| text.parse::<f64>().ok()).filter(|number| *number >= 0.0)
        };
        let mut repeat = Self { interval: None, count: None };
        let Some(last) = number(operands.last()) else { return Ok(repeat) };
        // As in OpenZFS, which takes the last number for the interval at first.
        if last == 0.0 {
            return Err(Exit::usage("interval cannot be zero"));
        }
        operands.pop();
        let interval = match number(operands.last()) {
            Some(first) => {
                operands.pop();
                repeat.count = Some(last as u64);
                first
            }
            None => last,
        };
        if interval == 0.0 {
            return Err(Exit::usage("interval cannot be zero"));
        }
        repeat.interval = std::time::Duration::try_from_secs_f64(interval).ok();
        Ok(repeat)
    }

    /// Waits for the next report; returns false if there is none.
    pub(crate) async fn next(self, done: u64, source: &Source) -> bool {
        let Some(interval) = self.interval else { return false };
        if self.count.is_some_and(|count| done >= count) {
            return false;
        }
        source.sleep(interval).await
    }
}

/// `-T u|d`: prints the time above each report.
pub(crate) fn timestamp(parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let now = cenote_rt::wall_clock().as_secs();
    match parsed.value('T') {
        None => Ok(()),
        Some("u") => Ok(writeln!(io.out, "{now}")?),
        Some("d") => {
            // The C library's `_DATE_FMT`.
            let now = crate::zfs::value::date(now, "%a %b %e %H:%M:%S %Z %Y");
            Ok(writeln!(io.out, "{now}")?)
        }
        Some(_) => Err(Exit::usage("")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_come_off_the_end() {
        let take = |line: &str| {
            let mut operands: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            (Repeat::take(&mut operands), operands.join(" "))
        };
        let seconds = |s| Some(std::time::Duration::from_secs(s));
        assert_eq!(take("p q"), (Ok(Repeat { interval: None, count: None }), "p q".into()));
        assert_eq!(take("p 2"), (Ok(Repeat { interval: seconds(2), count: None }), "p".into()));
        assert_eq!(
            take("p 2 3"),
            (Ok(Repeat { interval: seconds(2), count: Some(3) }), "p".into())
        );
        for line in ["p 0", "p 1 0", "p 0 1"] {
            assert_eq!(take(line).0, Err(Exit::usage("interval cannot be zero")), "{line}");
        }
    }
}
