//! `cenote top`: what the daemon's pools, devices and datasets do.
//!
//! ```text
//!   daemon --samples--> watcher --frames--> terminal: screens, keys
//!                       (a thread)      --> batch: text or JSON, a frame after the other
//! ```
//!
//! A terminal has a thread that asks the daemon, so that keys are answered while the daemon is
//! silent. Nothing is started: without a daemon this is shown, and the next one is found.

mod frame;
mod sample;
mod screen;
mod terminal;
#[cfg(test)]
mod tests;
mod watcher;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use cenote_rt::{monotonic, stages, wall_clock};
use rustix::event::{Timespec, poll};
use serde_json::json;

use crate::environment;
use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::zpool::Repeat;

use frame::{Frame, Selection, Sort};
use screen::Notes;
use terminal::{Event, Terminal};
use watcher::{Trouble, Watcher};

/// The usage text.
const USAGE: &str = "\
usage: cenote top [-b] [--json] [-s COLUMN] [-r] [-n ROWS] [POOL] [INTERVAL [COUNT]]
  Shows every INTERVAL seconds (2), COUNT times, what the daemon's pools do: rates, queues, running
  scans and what they wait for, and the busiest devices and datasets. Times are the median and that
  of the slowest in a hundred.
  -b      prints frames as text, as without a terminal
  --json  prints each frame as JSON, on a line of its own
  -s      sorts by operations, reads, writes, read, written (bytes), readtime, writetime, name
  -r      reverses the order
  -n      prints this many devices and datasets (20); a terminal shows as many as fit
Keys: q quits, s and S sort by the next and the previous column, r reverses, space pauses.
";

const LONGS: [Long; 2] = [Long::flag("json", 'J'), Long::flag("help", '?')];
const KEYS: &str = "q quit, s sort, r reverse, space pause";
/// The interval, the shortest and the longest one.
const INTERVAL: Duration = Duration::from_secs(2);
const INTERVAL_MIN: Duration = Duration::from_millis(100);
const INTERVAL_MAX: Duration = Duration::from_hours(24 * 365);
/// Rows of each table in a batch, and most rows that can be requested.
const ROWS: usize = 20;
const ROWS_MAX: usize = 10_000;
/// Time after which a terminal says that the daemon does not answer.
const SILENCE: Duration = Duration::from_secs(1);

/// What the arguments say.
struct Options {
    pool: Option<String>,
    interval: Duration,
    count: Option<u64>,
    selection: Selection,
    is_json: bool,
}

/// Runs the verb.
pub(crate) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let with_usage = |exit: Exit| match exit {
        Exit::Usage(message) => Exit::Usage(format!("{message}\n{}", USAGE.trim_end())),
        other => other,
    };
    let parsed = getopt::parse(args, "bs:rn:", &LONGS).map_err(with_usage)?;
    if parsed.has('?') {
        return Ok(write!(io.out, "{USAGE}")?);
    }
    let options = options(&parsed).map_err(with_usage)?;
    let state = environment::state_folder();
    let state = state.ok_or_else(|| {
        Exit::failed("neither CENOTE_STATE_DIR nor HOME says where the daemon keeps its state")
    })?;
    let watcher = Watcher::new(state.join("metrics.sock"), options.pool.clone());
    if options.is_json || parsed.has('b') || !Terminal::is_usable() {
        batch(watcher, &options, io)
    } else {
        interactive(watcher, &options)
    }
}

fn options(parsed: &Parsed) -> CommandResult<Options> {
    let mut operands = parsed.operands.clone();
    let repeat = Repeat::take(&mut operands)?;
    let interval = repeat.interval.unwrap_or(INTERVAL).min(INTERVAL_MAX);
    if interval < INTERVAL_MIN {
        return Err(Exit::usage("the shortest interval is 0.1"));
    }
    let pool = match &operands[..] {
        [] => None,
        [pool] => Some(pool.clone()),
        _ => return Err(Exit::usage("too many arguments")),
    };
    let sort = match parsed.value('s') {
        None => Sort::Operations,
        Some(name) => Sort::named(name)
            .ok_or_else(|| Exit::usage(format!("'{name}' is not a column to sort by")))?,
    };
    let rows = match parsed.value('n') {
        None => ROWS,
        Some(text) => text
            .parse()
            .ok()
            .filter(|rows| *rows <= ROWS_MAX)
            .ok_or_else(|| Exit::usage(format!("'{text}' is not a number up to {ROWS_MAX}")))?,
    };
    let selection = Selection { sort, is_reversed: parsed.has('r'), rows };
    Ok(Options { pool, interval, count: repeat.count, selection, is_json: parsed.has('J') })
}

/// Prints frames one after the other.
fn batch(mut watcher: Watcher, options: &Options, io: &mut Io<'_>) -> CommandResult {
    if let Err(trouble @ Trouble::NoPool(_)) = watcher.next(options.selection) {
        return Err(Exit::failed(trouble.to_string()));
    }
    let mut done = 0;
    let mut due = monotonic();
    loop {
        // An answer that took long is no reason for frames without a pause.
        due = (due + options.interval).max(monotonic());
        sleep_until(due);
        let frame = watcher.next(options.selection);
        let has_failed = frame.is_err();
        if options.is_json {
            writeln!(io.out, "{}", as_json(frame))?;
        } else {
            let (frame, notes) = match frame {
                Ok(frame) => (Some(frame), Notes::default()),
                Err(trouble) => {
                    (None, Notes { trouble: Some(trouble.to_string()), ..Notes::default() })
                }
            };
            let separator = if done > 0 { "\n" } else { "" };
            let lines = screen::lines(frame.as_ref(), options.selection, &notes, None);
            writeln!(io.out, "{separator}{}", lines.join("\n"))?;
        }
        io.out.flush()?;
        done += 1;
        if options.count.is_some_and(|count| done >= count) {
            return if has_failed { Err(Exit::Status(1)) } else { Ok(()) };
        }
    }
}

fn as_json(frame: Result<Frame, Trouble>) -> serde_json::Value {
    let time = wall_clock().as_secs_f64();
    match frame {
        Ok(frame) => json!(frame),
        Err(trouble) => json!({ "time": time, "error": trouble.to_string() }),
    }
}

fn sleep_until(end: Duration) {
    loop {
        let left = end.saturating_sub(monotonic());
        if left.is_zero() {
            return;
        }
        // Without descriptors it only waits; a signal makes it return early.
        let _ = poll(&mut [], Timespec::try_from(left).ok().as_ref());
    }
}

/// A question to the thread that asks the daemon.
enum Ask {
    /// A new sample.
    Next(Selection),
    /// Other rows of the last one.
    Again(Selection),
}

/// Answers questions, and wakes the terminal after each answer.
fn answer(
    mut watcher: Watcher,
    asks: &Receiver<Ask>,
    answers: &Sender<Result<Frame, Trouble>>,
    mut wake: UnixStream,
) {
    for ask in asks {
        let frame = match ask {
            Ask::Next(selection) => watcher.next(selection),
            Ask::Again(selection) => watcher.again(selection),
        };
        // A terminal that is gone needs no answer.
        if answers.send(frame).is_err() || wake.write_all(&[0]).is_err() {
            return;
        }
    }
}

fn thread_ended() -> Exit {
    Exit::failed("the thread that asks the daemon ended")
}

/// What a terminal shows.
struct Shown {
    frame: Option<Frame>,
    /// Why the last question had no answer.
    trouble: Option<String>,
    is_paused: bool,
    selection: Selection,
    /// Number of frames after the first one.
    intervals: u64,
    /// When the question was asked that has no answer yet.
    asked_at: Option<Duration>,
    /// Whether other rows are to be asked for.
    is_rearranged: bool,
    /// When the next sample is due.
    due: Duration,
}

impl Shown {
    fn lines(&self, height: usize) -> Vec<String> {
        let silent = self.asked_at.map(|asked| monotonic().saturating_sub(asked));
        let silent = silent.filter(|time| *time >= SILENCE).map(|time| {
            format!("the daemon does not answer, for {} s; still trying", time.as_secs())
        });
        let trouble = self.trouble.as_ref().map(|trouble| format!("{trouble}; still trying"));
        let notes =
            Notes { trouble: silent.or(trouble), is_paused: self.is_paused, keys: Some(KEYS) };
        screen::lines(self.frame.as_ref(), self.selection, &notes, Some(height))
    }

    fn press(&mut self, key: u8) {
        match key {
            b's' | b'>' => self.selection.sort = self.selection.sort.moved(1),
            b'S' | b'<' => self.selection.sort = self.selection.sort.moved(-1),
            b'r' => self.selection.is_reversed = !self.selection.is_reversed,
            b' ' | b'p' => {
                self.is_paused = !self.is_paused;
                return;
            }
            _ => return,
        }
        self.is_rearranged = true;
    }

    /// Returns the question that is to be asked now.
    fn question(&mut self, interval: Duration) -> Option<Ask> {
        if self.asked_at.is_some() {
            return None;
        }
        let now = monotonic();
        if !self.is_paused && now >= self.due {
            self.due = now + interval;
            self.is_rearranged = false;
            self.asked_at = Some(now);
            return Some(Ask::Next(self.selection));
        }
        if self.is_rearranged && self.frame.is_some() {
            self.is_rearranged = false;
            self.asked_at = Some(now);
            return Some(Ask::Again(self.selection));
        }
        None
    }

    /// Returns how long to wait for events.
    fn wait_time(&self) -> Duration {
        if self.asked_at.is_some() || self.is_paused {
            return SILENCE;
        }
        self.due.saturating_sub(monotonic()).min(SILENCE)
    }

    fn take(&mut self, answer: Result<Frame, Trouble>) {
        self.asked_at = None;
        match answer {
            Ok(frame) => {
                self.trouble = None;
                let is_newer = self.frame.as_ref().is_some_and(|last| last.time < frame.time);
                self.intervals += u64::from(is_newer);
                self.frame = Some(frame);
            }
            Err(trouble) => self.trouble = Some(trouble.to_string()),
        }
    }
}

/// Shows screens until a key or a signal ends it.
fn interactive(mut watcher: Watcher, options: &Options) -> CommandResult {
    let failed = |error: std::io::Error| Exit::failed(format!("cannot use the terminal: {error}"));
    if options.pool.is_some()
        && let Err(trouble @ Trouble::NoPool(_)) = watcher.next(options.selection)
    {
        return Err(Exit::failed(trouble.to_string()));
    }
    // The first frame of a pool is the one that showed that it exists.
    let first = options.pool.is_some().then(|| watcher.again(options.selection).ok()).flatten();
    let mut terminal = Terminal::enter().map_err(failed)?;
    let (asks, questions) = channel();
    let (replies, answers) = channel();
    let (mut woken, wake) = UnixStream::pair().map_err(failed)?;
    let work = move || answer(watcher, &questions, &replies, wake);
    std::thread::Builder::new().name("watcher".to_owned()).spawn(work).map_err(failed)?;
    let mut shown = Shown {
        due: if first.is_some() { monotonic() + options.interval } else { monotonic() },
        frame: first,
        trouble: None,
        is_paused: false,
        selection: options.selection,
        intervals: 0,
        asked_at: None,
        is_rearranged: false,
    };
    loop {
        let (width, height) = terminal.size();
        // Rows that a larger window needs come with the next answer.
        shown.selection.rows = height;
        if let Some(ask) = shown.question(options.interval) {
            asks.send(ask).map_err(|_| thread_ended())?;
        }
        let lines = shown.lines(height);
        let clipped: Vec<_> = lines.iter().map(|line| screen::clipped(line, width)).collect();
        terminal.show(&clipped)?;
        stages::reach("top-shown");
        if options.count.is_some_and(|count| count <= shown.intervals) {
            return Ok(());
        }
        for event in terminal.wait(shown.wait_time(), &woken) {
            match event {
                Event::Key(b'q' | b'Q') => return Ok(()),
                Event::Key(key) => shown.press(key),
                Event::Redraw => {}
                Event::End(status) => return Err(Exit::Status(status)),
            }
        }
        match answers.try_recv() {
            Ok(answer) => {
                let _ = woken.read(&mut [0]);
                shown.take(answer);
            }
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Err(thread_ended()),
        }
    }
}
