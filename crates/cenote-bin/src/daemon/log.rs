//! What the daemon says of itself: one line for each event, with its level and fields.
//!
//! ```text
//!   time=2026-03-01T12:00:00.250Z level=warn event="pool not opened" pool=tank cause="no such …"
//! ```
//!
//! Values that are more than a word are quoted as Rust quotes strings, so that a line is a line.
//! Where the journal reads (`JOURNAL_STREAM` names our standard error), a line begins with its
//! priority, `<4>`, and leaves the time to it. `CENOTE_LOG` is the least important level that is
//! written: `error`, `warn`, `info` (unless it is set), `debug`, or `off`.

use std::fmt::{Display, Write as _};
use std::io::Write as _;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cenote_engine::{Event, EventLog, PoolEvent};
use cenote_pool::status::state_name;
use cenote_vdev::{VdevAux, VdevState};
use jiff::Timestamp;

/// Between two looks at the events of a pool.
const PAUSE: Duration = Duration::from_secs(1);
/// Events of damage that are told one by one in a look.
const DAMAGE_MAX: usize = 20;

/// How important something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    /// Something is lost or stands still.
    Error,
    /// Something was not done, or is worse than it was.
    Warn,
    /// What happens.
    Info,
    /// What was asked for.
    Debug,
}

impl Level {
    const ALL: [Self; 4] = [Self::Error, Self::Warn, Self::Info, Self::Debug];

    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }

    /// The priority of syslog.
    fn priority(self) -> u8 {
        match self {
            Self::Error => 3,
            Self::Warn => 4,
            Self::Info => 6,
            Self::Debug => 7,
        }
    }
}

/// Where lines go, and which.
#[derive(Debug, Clone, Copy)]
struct Target {
    /// None for no lines at all.
    least: Option<Level>,
    is_journal: bool,
}

impl Target {
    fn of_environment() -> Self {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let least = least(&variable("CENOTE_LOG"));
        let is_journal = rustix::fs::fstat(std::io::stderr()).is_ok_and(|stderr| {
            variable("JOURNAL_STREAM") == format!("{}:{}", stderr.st_dev, stderr.st_ino)
        });
        Self { least, is_journal }
    }

    /// A line, if there is to be one.
    fn line(
        self,
        level: Level,
        time: Duration,
        event: &str,
        fields: &[(&str, &dyn Display)],
    ) -> Option<String> {
        self.least.filter(|least| level <= *least)?;
        let mut line = if self.is_journal {
            format!("<{}>", level.priority())
        } else {
            let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
            let time = Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH);
            format!("time={time:.3} ")
        };
        let _ = write!(line, "level={} event={}", level.name(), value(event));
        for (name, field) in fields {
            let _ = write!(line, " {name}={}", value(&field.to_string()));
        }
        line.push('\n');
        Some(line)
    }
}

/// The level that a word names.
fn least(word: &str) -> Option<Level> {
    match word {
        "off" => None,
        word => Some(Level::ALL.into_iter().find(|level| level.name() == word))
            .map(|level| level.unwrap_or(Level::Info)),
    }
}

/// A value as a line has it.
fn value(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-+./:@,%#".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("{text:?}")
    }
}

/// Says that something has happened.
pub(super) fn log(level: Level, event: &str, fields: &[(&str, &dyn Display)]) {
    static TARGET: OnceLock<Target> = OnceLock::new();
    let target = TARGET.get_or_init(Target::of_environment);
    if let Some(line) = target.line(level, cenote_rt::wall_clock(), event, fields) {
        // Nobody is left who could be told. In one piece: others write, too.
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }
}

/// Something was not done.
pub(super) fn warn(event: &str, fields: &[(&str, &dyn Display)]) {
    log(Level::Warn, event, fields);
}

/// Something happened.
pub(super) fn info(event: &str, fields: &[(&str, &dyn Display)]) {
    log(Level::Info, event, fields);
}

/// Panics are lines, too.
pub(super) fn catch_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let cause = panic.payload_as_str().unwrap_or("unknown");
        let place = panic.location().map_or_else(String::new, ToString::to_string);
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        log(Level::Error, "panic", &[("cause", &cause), ("place", &place), ("thread", &thread)]);
    }));
}

/// Tells what happens to a pool, until it leaves.
pub(super) async fn follow(events: Arc<EventLog>) {
    let mut last = 0;
    loop {
        // Before the look: what comes after it wakes.
        let told = events.told();
        let (mut damaged, mut has_left) = (0, false);
        for noted in events.after(last) {
            last = noted.eid;
            has_left |=
                matches!(noted.event, Event::Pool(PoolEvent::Exported | PoolEvent::Destroyed));
            if matches!(noted.event, Event::Bad { .. } | Event::Lost { .. }) {
                damaged += 1;
                if damaged > DAMAGE_MAX {
                    continue;
                }
            }
            tell(&events.pool, &noted.event);
        }
        if let Some(more) = damaged.checked_sub(DAMAGE_MAX).filter(|more| *more > 0) {
            warn("more of the same", &[("pool", &events.pool), ("count", &more)]);
        }
        if has_left {
            return;
        }
        told.await;
        cenote_rt::sleep(PAUSE).await;
    }
}

fn tell(pool: &str, event: &Event) {
    match event {
        Event::Pool(PoolEvent::Configured) => {
            log(Level::Debug, "config written", &[("pool", &pool)]);
        }
        Event::Pool(PoolEvent::ScanCancelled) => {
            warn("scan cancelled: datasets change", &[("pool", &pool)]);
        }
        Event::Pool(action) => {
            let event = match action {
                PoolEvent::Created => "pool created",
                PoolEvent::Imported => "pool imported",
                PoolEvent::Exported => "pool exported",
                PoolEvent::Destroyed => "pool destroyed",
                PoolEvent::Reguided => "pool has another guid",
                PoolEvent::Cleared | PoolEvent::Configured | PoolEvent::ScanCancelled => {
                    "errors cleared"
                }
            };
            info(event, &[("pool", &pool)]);
        }
        Event::Suspended(cause) => {
            log(Level::Error, "pool suspended", &[("pool", &pool), ("cause", &cause)]);
        }
        Event::State { leaf, state } => {
            let level = if *state == VdevState::Healthy { Level::Info } else { Level::Warn };
            let state = state_name(*state, VdevAux::None);
            log(level, "device state", &[("pool", &pool), ("device", leaf), ("state", &state)]);
        }
        Event::Bad { leaf, offset, cause, is_repaired, .. } => warn(
            "device error",
            &[
                ("pool", &pool),
                ("device", leaf),
                ("offset", offset),
                ("cause", &cause),
                ("repaired", is_repaired),
            ],
        ),
        Event::Lost { place, cause } => log(
            Level::Error,
            "block lost",
            &[
                ("pool", &pool),
                ("objset", &place.objset),
                ("object", &place.object),
                ("level", &place.level),
                ("blkid", &place.blkid),
                ("cause", &cause),
            ],
        ),
        Event::Trim { leaf, event: action } => {
            let action = format!("{action:?}").to_lowercase();
            info("trim", &[("pool", &pool), ("device", leaf), ("action", &action)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let time = Duration::from_millis(1_772_366_400_250);
        let fields: &[(&str, &dyn Display)] = &[("pool", &"tank"), ("cause", &"two\nlines, \"a\"")];
        let target = Target { least: Some(Level::Info), is_journal: false };
        let line = target.line(Level::Warn, time, "pool not opened", fields);
        let wanted = "time=2026-03-01T12:00:00.250Z level=warn event=\"pool not opened\" \
                      pool=tank cause=\"two\\nlines, \\\"a\\\"\"\n";
        assert_eq!(line.as_deref(), Some(wanted));
        assert_eq!(target.line(Level::Debug, time, "x", &[]), None);
        let target = Target { least: Some(Level::Debug), is_journal: true };
        let line = target.line(Level::Error, time, "x", &[("empty", &"")]);
        assert_eq!(line.as_deref(), Some("<3>level=error event=x empty=\"\"\n"));
        let target = Target { least: None, is_journal: false };
        assert_eq!(target.line(Level::Error, time, "x", &[]), None);
    }

    #[test]
    fn levels_are_named() {
        assert_eq!((least("off"), least("debug")), (None, Some(Level::Debug)));
        assert_eq!((least(""), least("nonsense")), (Some(Level::Info), Some(Level::Info)));
    }
}
