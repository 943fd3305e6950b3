//! Events as OpenZFS describes them: class, and the pairs of the payload.
//!
//! ```text
//!   pairs ──> zpool events -v    name = value, numbers hexadecimal
//!         `─> zedlets            ZEVENT_NAME=value in the environment, numbers decimal
//! ```
//!
//! Classes and names of pairs are OpenZFS's (spec 08 §37); pairs without meaning here are omitted.
//!
//! Sources: the manual pages zpool-events(8), zed(8).

use std::fmt::Write as _;
use std::time::Duration;

use cenote_engine::{Event, EventLog, IoKind, LeafIo, NotedEvent, PoolEvent, TrimEvent};
use cenote_pool::status::{VdevAux, VdevState, state_name};

use crate::zfs::value;

/// `errno` of a checksum error, and of an I/O error.
const EBADE: u64 = 52;
const EIO: u64 = 5;
/// Columns before a pair.
const INDENT: usize = 8;

/// Facts of a pool that is still open.
pub(super) struct Known {
    /// Paths of leaves, by guid.
    pub(super) paths: Vec<(u64, String)>,
    /// `failmode`
    pub(super) failmode: &'static str,
}

/// Returns the class of an event.
pub(super) fn class(event: &Event) -> &'static str {
    match event {
        Event::Lost { .. } => "ereport.fs.zfs.data",
        Event::Bad { checksum: None, .. } => "ereport.fs.zfs.io",
        Event::Bad { checksum: Some(_), .. } => "ereport.fs.zfs.checksum",
        Event::State { .. } => "resource.fs.zfs.statechange",
        Event::Slow { .. } => "ereport.fs.zfs.delay",
        Event::Hung { .. } => "ereport.fs.zfs.deadman",
        Event::Suspended(_) => "ereport.fs.zfs.io_failure",
        Event::History(_) => "sysevent.fs.zfs.history_event",
        Event::AuxRemoved { .. } => "sysevent.fs.zfs.vdev_remove_aux",
        Event::Trim { event, .. } => match event {
            TrimEvent::Start => "sysevent.fs.zfs.trim_start",
            TrimEvent::Resume => "sysevent.fs.zfs.trim_resume",
            TrimEvent::Suspend => "sysevent.fs.zfs.trim_suspend",
            TrimEvent::Cancel => "sysevent.fs.zfs.trim_cancel",
            TrimEvent::Finish => "sysevent.fs.zfs.trim_finish",
        },
        Event::Pool(action) => match action {
            PoolEvent::Created => "sysevent.fs.zfs.pool_create",
            PoolEvent::Imported => "sysevent.fs.zfs.pool_import",
            PoolEvent::Exported => "sysevent.fs.zfs.pool_export",
            PoolEvent::Destroyed => "sysevent.fs.zfs.pool_destroy",
            PoolEvent::Reguided => "sysevent.fs.zfs.pool_reguid",
            PoolEvent::Configured => "sysevent.fs.zfs.config_sync",
            PoolEvent::Cleared => "sysevent.fs.zfs.vdev_clear",
            PoolEvent::VdevsAdded => "sysevent.fs.zfs.vdev_add",
            PoolEvent::ScrubStarted => "sysevent.fs.zfs.scrub_start",
            PoolEvent::ScrubFinished => "sysevent.fs.zfs.scrub_finish",
            PoolEvent::ScrubPaused => "sysevent.fs.zfs.scrub_paused",
            PoolEvent::ScrubResumed => "sysevent.fs.zfs.scrub_resume",
            PoolEvent::ErrorScrubStarted => "sysevent.fs.zfs.errorscrub_start",
            PoolEvent::ErrorScrubFinished => "sysevent.fs.zfs.errorscrub_finish",
            PoolEvent::ErrorScrubPaused => "sysevent.fs.zfs.errorscrub_paused",
            PoolEvent::ErrorScrubResumed => "sysevent.fs.zfs.errorscrub_resume",
            PoolEvent::ErrorScrubAborted => "sysevent.fs.zfs.errorscrub_abort",
            // OpenZFS has one class for both.
            PoolEvent::ScrubAborted | PoolEvent::ResilverAborted => "sysevent.fs.zfs.scrub_abort",
            PoolEvent::ResilverStarted | PoolEvent::RebuildStarted => {
                "sysevent.fs.zfs.resilver_start"
            }
            PoolEvent::ResilverFinished
            | PoolEvent::RebuildFinished
            | PoolEvent::RebuildAborted => "sysevent.fs.zfs.resilver_finish",
            PoolEvent::Attached(_) => "sysevent.fs.zfs.vdev_attach",
            PoolEvent::SpareUsed(_) => "sysevent.fs.zfs.vdev_spare",
            PoolEvent::Onlined(_) => "sysevent.fs.zfs.vdev_online",
            PoolEvent::Detached(_) => "sysevent.fs.zfs.vdev_remove",
            PoolEvent::LogRemoved(_) | PoolEvent::Removed(_) => "sysevent.fs.zfs.vdev_remove_dev",
        },
    }
}

/// A value of a payload.
enum Value {
    Text(String),
    Number(u64),
    /// A state of a vdev.
    State(VdevState),
    Time(Duration),
    Nested(Vec<Pair>),
}

/// A name and its value.
type Pair = (&'static str, Value);

/// Returns the payload of an event, in OpenZFS's order.
fn payload(log: &EventLog, noted: &NotedEvent, known: Option<&Known>) -> Vec<Pair> {
    let class = class(&noted.event);
    let is_report = class.starts_with("ereport.");
    let number = |name, value| (name, Value::Number(value));
    let mut pairs = Vec::new();
    if !is_report {
        pairs.push(number("version", 0));
    }
    pairs.push(("class", Value::Text(class.to_owned())));
    if is_report {
        pairs.push(number("ena", 0));
        pairs.push(("detector", Value::Nested(detector(log, &noted.event))));
    }
    pairs.push(("pool", Value::Text(log.pool.clone())));
    pairs.push(number("pool_guid", log.guid));
    pairs.push(number("pool_state", pool_state(&noted.event)));
    pairs.push(number("pool_context", 0));
    if let (true, Some(known)) = (is_report, known) {
        pairs.push(("pool_failmode", Value::Text(known.failmode.to_owned())));
    }
    details(&mut pairs, &noted.event, known);
    pairs.push(("time", Value::Time(noted.time)));
    pairs.push(number("eid", noted.eid));
    pairs
}

/// Adds the pairs that only this kind of event has.
fn details(pairs: &mut Vec<Pair>, event: &Event, known: Option<&Known>) {
    let path = |leaf: u64| {
        let found = known?.paths.iter().find(|(guid, _)| *guid == leaf);
        found.map(|(_, path)| ("vdev_path", Value::Text(path.clone())))
    };
    let number = |name, value| (name, Value::Number(value));
    match event {
        Event::Lost { place, .. } => pairs.extend([
            number("zio_err", EBADE),
            number("zio_objset", place.objset),
            number("zio_object", place.object),
            number("zio_level", place.level.cast_unsigned()),
            number("zio_blkid", place.blkid),
        ]),
        Event::Bad { io, checksum, .. } => {
            pairs.push(number("vdev_guid", io.leaf));
            pairs.extend(path(io.leaf));
            if let Some(wrong) = checksum {
                pairs.push(number("vdev_cksum_errors", wrong.errors));
                pairs.push(number("zio_priority", wrong.class as u64));
            }
            pairs.push(number("zio_err", if checksum.is_none() { EIO } else { EBADE }));
            pairs.push(number("zio_type", type_of(io)));
            pairs.push(number("zio_offset", io.offset));
            pairs.push(number("zio_size", io.len));
        }
        Event::Slow { io, took: time } | Event::Hung { io, age: time } => {
            pairs.push(number("vdev_guid", io.leaf));
            pairs.extend(path(io.leaf));
            pairs.extend(of_io(io, *time));
        }
        Event::State { leaf, state, last, .. } => {
            pairs.push(number("vdev_guid", *leaf));
            pairs.push(("vdev_state", Value::State(*state)));
            pairs.extend(path(*leaf));
            pairs.push(("vdev_laststate", Value::State(*last)));
        }
        Event::Pool(
            PoolEvent::Attached(leaf) | PoolEvent::SpareUsed(leaf) | PoolEvent::Onlined(leaf),
        ) => {
            pairs.push(number("vdev_guid", *leaf));
            pairs.push(("vdev_state", Value::State(VdevState::Healthy)));
            pairs.extend(path(*leaf));
        }
        Event::AuxRemoved { device, state, path } => {
            pairs.push(number("vdev_guid", *device));
            pairs.push(("vdev_state", Value::State(*state)));
            pairs.extend(path.clone().map(|path| ("vdev_path", Value::Text(path))));
        }
        Event::History(note) => {
            let text = |name, text: &str| (name, Value::Text(text.to_owned()));
            let dataset = note.dataset.as_ref();
            pairs.push(text("history_hostname", &note.host));
            pairs.extend(dataset.map(|(name, _)| text("history_dsname", name)));
            pairs.push(text("history_internal_str", &note.text));
            pairs.push(text("history_internal_name", &note.name));
            pairs.extend(dataset.map(|(_, object)| number("history_dsid", *object)));
            pairs.push(number("history_txg", note.txg));
            pairs.push(number("history_time", note.time));
        }
        Event::Trim { leaf, .. }
        | Event::Pool(
            PoolEvent::Detached(leaf) | PoolEvent::LogRemoved(leaf) | PoolEvent::Removed(leaf),
        ) => {
            pairs.push(number("vdev_guid", *leaf));
            pairs.extend(path(*leaf));
        }
        Event::Pool(PoolEvent::ResilverStarted | PoolEvent::ResilverFinished) => {
            pairs.push(("resilver_type", Value::Text("healing".to_owned())));
        }
        Event::Pool(
            PoolEvent::RebuildStarted | PoolEvent::RebuildFinished | PoolEvent::RebuildAborted,
        ) => {
            pairs.push(("resilver_type", Value::Text("sequential".to_owned())));
        }
        Event::Suspended(_) | Event::Pool(_) => {}
    }
}

/// Returns the type of an I/O as a number of OpenZFS's `enum zio_type`.
fn type_of(io: &LeafIo) -> u64 {
    match io.kind {
        IoKind::Read => 1,
        IoKind::Write => 2,
        IoKind::Flush => 5,
        IoKind::Discard => 6,
    }
}

/// Returns the pairs of an I/O and its time.
fn of_io(io: &LeafIo, time: Duration) -> [Pair; 5] {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    [
        ("zio_err", Value::Number(0)),
        ("zio_type", Value::Number(type_of(io))),
        ("zio_offset", Value::Number(io.offset)),
        ("zio_size", Value::Number(io.len)),
        ("zio_delay", Value::Number(ns)),
    ]
}

/// Returns the device or pool that reports.
fn detector(log: &EventLog, event: &Event) -> Vec<Pair> {
    let mut pairs = vec![
        ("version", Value::Number(0)),
        ("scheme", Value::Text("zfs".to_owned())),
        ("pool", Value::Number(log.guid)),
    ];
    let leaf = match event {
        Event::Bad { io, .. } | Event::Slow { io, .. } | Event::Hung { io, .. } => Some(io.leaf),
        _ => None,
    };
    pairs.extend(leaf.map(|leaf| ("vdev", Value::Number(leaf))));
    pairs
}

/// Formats the pairs of an event, one per line, and an empty line.
pub(super) fn pairs(log: &EventLog, noted: &NotedEvent, known: Option<&Known>) -> String {
    let mut text = String::new();
    lines(&mut text, &payload(log, noted, known), INDENT);
    text + "\n"
}

fn lines(text: &mut String, pairs: &[Pair], indent: usize) {
    for (name, value) in pairs {
        let _ = match value {
            Value::Text(value) => writeln!(text, "{:indent$}{name} = \"{value}\"", ""),
            Value::Number(value) => writeln!(text, "{:indent$}{name} = {value:#x}", ""),
            Value::State(state) => {
                let word = state_name(*state, VdevAux::None);
                writeln!(text, "{:indent$}{name} = \"{word}\" ({:#x})", "", *state as u64)
            }
            Value::Time(time) => {
                let (seconds, nanos) = (time.as_secs(), time.subsec_nanos());
                writeln!(text, "{:indent$}{name} = {seconds:#x} {nanos:#x} ", "")
            }
            Value::Nested(nested) => {
                let _ = writeln!(text, "{:indent$}{name} = (embedded nvlist)", "");
                lines(text, nested, indent + INDENT);
                writeln!(text, "{:indent$}(end {name})", "")
            }
        };
    }
}

/// Returns an event as environment variables, as `zed` gives it to its scripts.
pub(super) fn variables(
    log: &EventLog,
    noted: &NotedEvent,
    known: Option<&Known>,
) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut add = |name: &str, value: String| {
        let upper = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        // A NUL cannot be in an environment.
        let name = name.chars().map(upper).collect::<String>();
        all.push((format!("ZEVENT_{name}"), value.replace('\0', "")));
    };
    for (name, value) in payload(log, noted, known) {
        match value {
            Value::Text(text) => add(name, text),
            Value::Number(number) if name.ends_with("_guid") => {
                add(name, format!("{number:#018X}").replacen("0X", "0x", 1));
            }
            Value::Number(number) => {
                add(name, number.to_string());
                if name == "pool_state" {
                    let word = ["ACTIVE", "EXPORTED", "DESTROYED"].get(number as usize);
                    add("pool_state_str", word.copied().unwrap_or("UNKNOWN").to_owned());
                }
            }
            Value::State(state) => {
                add(name, (state as u64).to_string());
                let word = state_name(state, VdevAux::None);
                add(&format!("{name}_str"), word.to_owned());
            }
            Value::Time(time) => {
                let (seconds, nanos) = (time.as_secs(), time.subsec_nanos());
                add(name, format!("{seconds} {nanos}"));
                add("time_secs", seconds.to_string());
                add("time_nsecs", nanos.to_string());
                add("time_string", value::date(seconds, "%Y-%m-%d %H:%M:%S%z"));
            }
            Value::Nested(_) => add(name, "_NOT_IMPLEMENTED_".to_owned()),
        }
    }
    add("subclass", subclass(class(&noted.event)).to_owned());
    all
}

/// Returns a class without its first three parts (`ereport.fs.zfs.`).
pub(super) fn subclass(class: &'static str) -> &'static str {
    class.splitn(4, '.').nth(3).unwrap_or(class)
}

/// Returns the pool's state as labels number it.
fn pool_state(event: &Event) -> u64 {
    match event {
        Event::Pool(PoolEvent::Exported) => 1,
        Event::Pool(PoolEvent::Destroyed) => 2,
        _ => 0,
    }
}
