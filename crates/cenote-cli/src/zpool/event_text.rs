//! Events as `zpool events` prints them: class, and with `-v` the pairs of the payload.
//!
//! Classes and names of pairs are OpenZFS's (spec 08 §37); pairs without meaning here are omitted.
//! Numbers are hexadecimal.

use std::fmt::Write as _;

use cenote_engine::{Event, EventLog, NotedEvent, PoolEvent, TrimEvent};
use cenote_pool::status::{VdevAux, VdevState, state_name};

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
        Event::Bad { is_io: true, .. } => "ereport.fs.zfs.io",
        Event::Bad { is_io: false, .. } => "ereport.fs.zfs.checksum",
        Event::State { .. } => "resource.fs.zfs.statechange",
        Event::Suspended(_) => "ereport.fs.zfs.io_failure",
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
            PoolEvent::ScrubStarted => "sysevent.fs.zfs.scrub_start",
            PoolEvent::ScrubFinished => "sysevent.fs.zfs.scrub_finish",
            PoolEvent::ScrubPaused => "sysevent.fs.zfs.scrub_paused",
            PoolEvent::ScrubResumed => "sysevent.fs.zfs.scrub_resume",
            // OpenZFS has one class for both.
            PoolEvent::ScrubAborted | PoolEvent::ResilverAborted => "sysevent.fs.zfs.scrub_abort",
            PoolEvent::ResilverStarted => "sysevent.fs.zfs.resilver_start",
            PoolEvent::ResilverFinished => "sysevent.fs.zfs.resilver_finish",
            PoolEvent::Attached(_) => "sysevent.fs.zfs.vdev_attach",
            PoolEvent::Detached(_) => "sysevent.fs.zfs.vdev_remove",
        },
    }
}

struct Pairs {
    text: String,
    indent: usize,
}

impl Pairs {
    fn text(&mut self, name: &str, value: &str) {
        let _ = writeln!(self.text, "{:1$}{name} = \"{value}\"", "", self.indent);
    }

    fn number(&mut self, name: &str, value: u64) {
        let _ = writeln!(self.text, "{:1$}{name} = {value:#x}", "", self.indent);
    }

    /// Adds a state, also by name.
    fn state(&mut self, name: &str, state: VdevState) {
        let (word, indent) = (state_name(state, VdevAux::None), self.indent);
        let _ = writeln!(self.text, "{:indent$}{name} = \"{word}\" ({:#x})", "", state as u64);
    }

    fn path(&mut self, known: Option<&Known>, leaf: u64) {
        let path = known.and_then(|known| known.paths.iter().find(|(guid, _)| *guid == leaf));
        if let Some((_, path)) = path {
            self.text("vdev_path", path);
        }
    }
}

/// Formats the pairs of an event, one per line, and an empty line.
pub(super) fn pairs(log: &EventLog, noted: &NotedEvent, known: Option<&Known>) -> String {
    let mut pairs = Pairs { text: String::new(), indent: INDENT };
    let class = class(&noted.event);
    let is_report = class.starts_with("ereport.");
    if !is_report {
        pairs.number("version", 0);
    }
    pairs.text("class", class);
    if is_report {
        detector(&mut pairs, log, &noted.event);
    }
    pairs.text("pool", &log.pool);
    pairs.number("pool_guid", log.guid);
    pairs.number("pool_state", pool_state(&noted.event));
    pairs.number("pool_context", 0);
    if let (true, Some(known)) = (is_report, known) {
        pairs.text("pool_failmode", known.failmode);
    }
    match &noted.event {
        Event::Lost { place, .. } => {
            pairs.number("zio_err", EBADE);
            pairs.number("zio_objset", place.objset);
            pairs.number("zio_object", place.object);
            pairs.number("zio_level", place.level.cast_unsigned());
            pairs.number("zio_blkid", place.blkid);
        }
        Event::Bad { leaf, offset, is_io, .. } => {
            pairs.number("vdev_guid", *leaf);
            pairs.path(known, *leaf);
            pairs.number("zio_err", if *is_io { EIO } else { EBADE });
            pairs.number("zio_offset", *offset);
        }
        Event::State { leaf, state } => {
            pairs.number("vdev_guid", *leaf);
            pairs.state("vdev_state", *state);
            pairs.path(known, *leaf);
        }
        Event::Trim { leaf, .. }
        | Event::Pool(PoolEvent::Attached(leaf) | PoolEvent::Detached(leaf)) => {
            pairs.number("vdev_guid", *leaf);
            pairs.path(known, *leaf);
        }
        Event::Pool(PoolEvent::ResilverStarted | PoolEvent::ResilverFinished) => {
            pairs.text("resilver_type", "healing");
        }
        Event::Suspended(_) | Event::Pool(_) => {}
    }
    let time = noted.time;
    let _ = writeln!(
        pairs.text,
        "{:INDENT$}time = {:#x} {:#x} ",
        "",
        time.as_secs(),
        time.subsec_nanos()
    );
    pairs.number("eid", noted.eid);
    pairs.text + "\n"
}

/// Adds the device or pool that reports.
fn detector(pairs: &mut Pairs, log: &EventLog, event: &Event) {
    pairs.number("ena", 0);
    let _ = writeln!(pairs.text, "{:INDENT$}detector = (embedded nvlist)", "");
    pairs.indent += INDENT;
    pairs.number("version", 0);
    pairs.text("scheme", "zfs");
    pairs.number("pool", log.guid);
    if let Event::Bad { leaf, .. } = event {
        pairs.number("vdev", *leaf);
    }
    pairs.indent -= INDENT;
    let _ = writeln!(pairs.text, "{:INDENT$}(end detector)", "");
}

/// Returns the pool's state as labels number it.
fn pool_state(event: &Event) -> u64 {
    match event {
        Event::Pool(PoolEvent::Exported) => 1,
        Event::Pool(PoolEvent::Destroyed) => 2,
        _ => 0,
    }
}
