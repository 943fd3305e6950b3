//! `zpool events`.
//!
//! Events are kept in the memory of the process that has a pool open. With `--embedded` no process
//! has it open between two commands, so such a command has no events to show or to wait for. In a
//! session the events of all pools are shown, including some of recently closed pools.

use std::sync::Arc;
use std::time::Duration;

use cenote_engine::{Engine, EventLog, FailMode, NotedEvent};
use cenote_pool::dsl::check_pool_name;

use super::block_on;
use super::event_text::{self, Known, class, pairs};
use crate::getopt::{self, Parsed};
use crate::host::Session;
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::source::Source;
use crate::zfs::value;

/// Interval of checks for new events.
const STEP: Duration = Duration::from_millis(20);

/// Runs `zpool events`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "vHfc", &[])?;
    let name = match &parsed.operands[..] {
        [] => None,
        [name] => Some(name),
        _ => return Err(Exit::usage("too many arguments")),
    };
    // The name only filters: the pool need not exist.
    if let Some(name) = name.filter(|name| check_pool_name(name).is_err()) {
        return Err(Exit::usage(format!("invalid pool name '{name}'")));
    }
    let session = source.session.as_ref();
    if parsed.has('c') {
        if name.is_some() || "vHf".chars().any(|letter| parsed.has(letter)) {
            return Err(Exit::usage("invalid options combined with -c"));
        }
        return clear(session, io);
    }
    let Some(session) = session else {
        if parsed.has('f') {
            return Err(Exit::failed("cannot follow events: no daemon keeps pools open"));
        }
        return header(&parsed, io);
    };
    let dropped: u64 = session.host.events().iter().map(|log| log.take_dropped()).sum();
    if dropped > 0 {
        out!(io, "dropped {dropped} events")?;
    }
    header(&parsed, io)?;
    let mut shown = Shown { name, by_log: Vec::new() };
    block_on(async {
        loop {
            shown.show(session, &parsed, io)?;
            source.deliver(io)?;
            if !parsed.has('f') || !source.sleep(STEP).await {
                return Ok(());
            }
        }
    })
}

fn header(parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    if parsed.has('H') { Ok(()) } else { out!(io, "{:<30} CLASS", "TIME") }
}

fn clear(session: Option<&Session>, io: &mut Io<'_>) -> CommandResult {
    if session.is_some_and(|session| !session.caller.is_trusted()) {
        return Err(Exit::failed("cannot clear events: permission denied"));
    }
    let logs = session.map(|session| session.host.events()).unwrap_or_default();
    out!(io, "cleared {} events", logs.iter().map(|log| log.clear()).sum::<usize>())
}

/// The events shown so far.
struct Shown<'a> {
    /// Only of this pool.
    name: Option<&'a String>,
    /// The last event of each log: events are not ordered across logs.
    by_log: Vec<(u64, u64)>,
}

impl Shown<'_> {
    /// Prints new events.
    fn show(&mut self, session: &Session, parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
        let mut new: Vec<(Arc<EventLog>, NotedEvent)> = Vec::new();
        for log in session.host.events() {
            if self.name.is_some_and(|name| *name != log.pool) {
                continue;
            }
            let last = self.by_log.iter().find(|(id, _)| *id == log.id).map_or(0, |(_, eid)| *eid);
            let events = log.after(last);
            if let Some(newest) = events.last() {
                self.by_log.retain(|(id, _)| *id != log.id);
                self.by_log.push((log.id, newest.eid));
            }
            new.extend(events.into_iter().map(|noted| (Arc::clone(&log), noted)));
        }
        new.sort_by_key(|(_, noted)| noted.eid);
        for (log, noted) in &new {
            let (seconds, nanos) = (noted.time.as_secs(), noted.time.subsec_nanos());
            let date = value::date(seconds, "%b %d %Y %H:%M:%S");
            let gap = if parsed.has('H') { '\t' } else { ' ' };
            out!(io, "{date}.{nanos:09}{gap}{}", class(&noted.event))?;
            if parsed.has('v') {
                write!(io.out, "{}", pairs(log, noted, known(session, log).as_ref()))?;
            }
        }
        Ok(())
    }
}

/// An event as `zed` describes it to its scripts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventDescription {
    /// Its class, such as `resource.fs.zfs.statechange`.
    pub class: &'static str,
    /// The class without its first three parts.
    pub subclass: &'static str,
    /// Environment variables with its payload (`ZEVENT_…`).
    pub variables: Vec<(String, String)>,
}

/// Describes an event of a pool, which may be closed.
#[must_use]
pub fn describe(log: &EventLog, noted: &NotedEvent, engine: Option<&Engine>) -> EventDescription {
    let class = class(&noted.event);
    let variables = event_text::variables(log, noted, engine.map(known_of).as_ref());
    EventDescription { class, subclass: event_text::subclass(class), variables }
}

/// Returns the facts of a log's pool, if it is still open.
fn known(session: &Session, log: &EventLog) -> Option<Known> {
    let pools = session.host.pools();
    let engine = pools.iter().find(|engine| engine.health().events().id == log.id)?;
    Some(known_of(engine))
}

fn known_of(engine: &Engine) -> Known {
    let config = engine.admin().vdev_config();
    let path = |leaf: &cenote_ondisk::config::VdevConfig| {
        Some((leaf.guid, leaf.leaf.path.as_ref()?.to_string()))
    };
    let failmode = match engine.health().failmode() {
        FailMode::Wait => "wait",
        FailMode::Continue => "continue",
        FailMode::Panic => "panic",
    };
    Known { paths: config.leaves().filter_map(path).collect(), failmode }
}
