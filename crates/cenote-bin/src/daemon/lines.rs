//! Lines of the daemon's log: one for each event, with its level and fields.
//!
//! ```text
//!   time=2026-03-01T12:00:00.250Z level=warn event="pool not opened" pool=tank cause="no such …"
//!   time=2026-03-01T12:00:05.310Z level=debug event=txg pool=tank txg=1842 ms=37
//! ```
//!
//! A value that is not a single word is quoted like a Rust string, so each event stays on one line.
//! If standard error is the journal (`JOURNAL_STREAM` names it), a line begins with its priority,
//! `<4>`, and the journal adds the time.
//!
//! A span ([`cenote_rt::trace`]) becomes a line when it ends, with its duration. Events within
//! spans also have the fields of the spans. `CENOTE_LOG` is the filter: a level (`off`, `error`,
//! `warn`, `info`, `debug`, `trace`), or levels of targets, as in `info,cenote::txg=debug`. The
//! default is `info`; an invalid filter is an error.

use std::fmt::{Debug, Write as _};
use std::io::Write as _;
use std::time::Duration;

use cenote_rt::trace::listen::{
    Attributes, Event, Field, Id, Level, Record, Subscriber, Visit, set_global_default,
};
use jiff::Timestamp;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::{LookupSpan, SpanRef};

/// The levels of `CENOTE_LOG`.
const LEVELS: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// Writes events and spans of this process to standard error from now on.
///
/// # Errors
/// `CENOTE_LOG` is not a filter.
pub(super) fn start() -> std::io::Result<()> {
    let variable =
        |name: &str| std::env::var_os(name).unwrap_or_default().to_string_lossy().into_owned();
    let filter = filter(&variable("CENOTE_LOG")).map_err(std::io::Error::other)?;
    let is_journal = rustix::fs::fstat(std::io::stderr()).is_ok_and(|stderr| {
        variable("JOURNAL_STREAM") == format!("{}:{}", stderr.st_dev, stderr.st_ino)
    });
    // One write for each line, because other processes write there too. An error of it cannot be
    // reported anywhere.
    let write = |line: &str| drop(std::io::stderr().lock().write_all(line.as_bytes()));
    let listener = tracing_subscriber::registry().with(filter).with(Lines { is_journal, write });
    // The first listener of a process stays.
    let _ = set_global_default(listener);
    Ok(())
}

/// Returns the filter that `text` describes, `info` if it is empty.
fn filter(text: &str) -> Result<Targets, String> {
    let mut filter = Targets::new();
    let mut is_empty = true;
    for directive in text.split(',').map(str::trim).filter(|directive| !directive.is_empty()) {
        is_empty = false;
        let level = |word: &str| {
            let found = LEVELS.iter().find(|(name, _)| name.eq_ignore_ascii_case(word));
            found.map(|(_, level)| *level)
        };
        let (target, level) = match directive.split_once('=') {
            Some((target, word)) => (Some(target.trim()), level(word.trim())),
            None if level(directive).is_some() => (None, level(directive)),
            None => (Some(directive), Some(LevelFilter::TRACE)),
        };
        // Any other word is a typing error, which would exclude all events.
        let is_target = |name: &str| {
            name.starts_with("cenote")
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "_:".contains(c))
        };
        filter = match (target, level) {
            (None, Some(level)) => filter.with_default(level),
            (Some(target), Some(level)) if is_target(target) => filter.with_target(target, level),
            _ => {
                let levels = LEVELS.map(|(name, _)| name).join(", ");
                return Err(format!(
                    "CENOTE_LOG: '{directive}' is neither a level ({levels}) nor a target with a \
                     level, such as 'cenote::txg=debug'"
                ));
            }
        };
    }
    Ok(if is_empty { filter.with_default(LevelFilter::INFO) } else { filter })
}

/// A listener that writes lines.
struct Lines<W> {
    is_journal: bool,
    write: W,
}

/// Fields of an event or span, in the order in which they were recorded.
#[derive(Debug, Default)]
struct Fields(Vec<(&'static str, String)>);

impl Fields {
    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(other, _)| *other == name)
    }

    fn put(&mut self, name: &'static str, value: String) {
        match self.0.iter_mut().find(|(other, _)| *other == name) {
            Some(field) => field.1 = value,
            None => self.0.push((name, value)),
        }
    }

    /// Removes and returns the text of an event.
    fn take_message(&mut self) -> String {
        let at = self.0.iter().position(|(name, _)| *name == "message");
        at.map_or_else(String::new, |at| self.0.remove(at).1)
    }

    /// Adds fields of a span and of its parents. Existing fields stay.
    fn add_scope<'a, S: for<'b> LookupSpan<'b> + 'a>(&mut self, span: &SpanRef<'a, S>) {
        for span in span.scope() {
            let extensions = span.extensions();
            for (name, value) in extensions.get::<Fields>().map_or(&[][..], |fields| &fields.0) {
                if !self.has(name) {
                    self.0.push((name, value.clone()));
                }
            }
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.put(field.name(), format!("{value:?}"));
    }
}

/// Start time of a span.
struct Begun(Duration);

impl<S, W> Layer<S> for Lines<W>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    W: Fn(&str) + 'static,
{
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let mut extensions = span.extensions_mut();
        extensions.insert(fields);
        extensions.insert(Begun(cenote_rt::monotonic()));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(fields) = span.extensions_mut().get_mut::<Fields>() {
            values.record(fields);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let message = fields.take_message();
        if let Some(span) = context.event_span(event) {
            fields.add_scope(&span);
        }
        self.line(*event.metadata().level(), &message, &fields);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let (level, name) = (*span.metadata().level(), span.name());
        let took = span.extensions().get::<Begun>().map(|begun| begun.0);
        let took = cenote_rt::monotonic().saturating_sub(took.unwrap_or_default());
        let mut fields = Fields::default();
        fields.add_scope(&span);
        fields.0.push(("ms", took.as_millis().to_string()));
        self.line(level, name, &fields);
    }
}

impl<W: Fn(&str)> Lines<W> {
    fn line(&self, level: Level, event: &str, fields: &Fields) {
        let time = (!self.is_journal).then(cenote_rt::wall_clock);
        (self.write)(&line(level, time, event, fields));
    }
}

/// Returns a line. Without a time, for the journal, it begins with the priority.
fn line(level: Level, time: Option<Duration>, event: &str, fields: &Fields) -> String {
    let mut line = match time {
        None => format!("<{}>", priority(level)),
        Some(time) => {
            let millis = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
            let time = Timestamp::from_millisecond(millis).unwrap_or(Timestamp::UNIX_EPOCH);
            format!("time={time:.3} ")
        }
    };
    let level = level.as_str().to_lowercase();
    let _ = write!(line, "level={level} event={}", value(event));
    for (name, field) in &fields.0 {
        let _ = write!(line, " {name}={}", value(field));
    }
    line.push('\n');
    line
}

/// Returns the priority of syslog.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

/// Returns a value in the form that lines have.
fn value(text: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "_-+./:@,%#".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("{text:?}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use cenote_rt::trace;
    use tracing_subscriber::util::SubscriberInitExt;

    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let time = Duration::from_millis(1_772_366_400_250);
        let fields =
            Fields(vec![("pool", "tank".to_owned()), ("cause", "two\nlines, \"a\"".to_owned())]);
        let text = line(Level::WARN, Some(time), "pool not opened", &fields);
        let wanted = "time=2026-03-01T12:00:00.250Z level=warn event=\"pool not opened\" \
                      pool=tank cause=\"two\\nlines, \\\"a\\\"\"\n";
        assert_eq!(text, wanted);
        let fields = Fields(vec![("empty", String::new())]);
        assert_eq!(line(Level::ERROR, None, "x", &fields), "<3>level=error event=x empty=\"\"\n");
    }

    /// Returns the lines that `work` writes, without the times that spans took.
    fn lines(text: &str, work: impl FnOnce()) -> Vec<String> {
        let (sender, lines) = channel();
        let write = move |line: &str| drop(sender.send(line.to_owned()));
        let listener = tracing_subscriber::registry()
            .with(filter(text).expect("a filter"))
            .with(Lines { is_journal: true, write });
        let listening = listener.set_default();
        work();
        drop(listening);
        let plain = |line: String| match line.split_once(" ms=") {
            Some((line, _)) => line.to_owned(),
            None => line.trim_end().to_owned(),
        };
        lines.try_iter().map(plain).collect()
    }

    fn work() {
        for pool in ["tank", "dozer"] {
            trace::txg(|| pool.to_owned(), 7).within(|| {
                trace::warn!(target: "cenote::daemon", cause = %"gone", "not unmounted");
                trace::pass(1).within(|| ());
            });
        }
        trace::debug!(target: "cenote::daemon", pool = %"a", "command");
    }

    #[test]
    fn log_filter_selects_levels_and_targets() {
        let plain = "<4>level=warn event=\"not unmounted\" cause=gone";
        for text in ["", " ", ",", "info", "warn", "WARN", "off,cenote::daemon=warn"] {
            assert_eq!(lines(text, work), [plain, plain], "{text}");
        }
        assert!(lines("off", work).is_empty() && lines("error", work).is_empty());
        // The fields of spans distinguish the events of two pools.
        let of = |pool: &str| {
            [
                format!("<4>level=warn event=\"not unmounted\" cause=gone pool={pool} txg=7"),
                format!("<7>level=debug event=txg pool={pool} txg=7"),
            ]
        };
        let both = [of("tank"), of("dozer")].concat();
        assert_eq!(lines("info,cenote::txg=debug", work), both);
        assert_eq!(lines("cenote=debug", work)[..4], both);
        let all = lines("trace", work);
        assert_eq!(all.len(), 7, "{all:?}");
        assert_eq!(all[1], "<7>level=trace event=pass pass=1 pool=tank txg=7");
        assert_eq!(all[6], "<7>level=debug event=command pool=a");
        assert_eq!(lines("cenote", work), all);
    }

    #[test]
    fn invalid_log_filter_is_an_error() {
        for text in ["nonsense", "inof", "a=b=c", "cenote=loud", "info,tokio=debug", "5", "[a]"] {
            let error = filter(text).expect_err(text);
            let directive = text.rsplit(',').next().unwrap_or_default();
            assert!(error.starts_with(&format!("CENOTE_LOG: '{directive}' is neither")), "{error}");
        }
    }

    #[test]
    fn spans_outside_the_filter_compute_nothing() {
        let spans = || {
            let name = || -> String { panic!("computed") };
            let kind = || -> &str { panic!("computed") };
            assert!(trace::txg(name, 7).is_empty());
            assert!(trace::request(kind, || None, || None).is_empty());
        };
        assert!(lines("info", spans).is_empty());
    }

    #[test]
    fn background_tasks_belong_to_no_span() {
        let work = || {
            let tasks = async {
                let event = async || trace::info!(target: "cenote::a", "event");
                cenote_rt::spawn(event()).await.expect("no panic");
                cenote_rt::spawn_background(event()).await.expect("no panic");
            };
            let span = trace::import("tank");
            cenote_rt::simulate(1, span.run(tasks)).expect("a runtime");
        };
        let with_span = "<6>level=info event=event pool=tank";
        let end = "<7>level=debug event=import pool=tank";
        assert_eq!(lines("debug", work), [with_span, "<6>level=info event=event", end]);
    }
}
