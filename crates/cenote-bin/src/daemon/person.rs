//! What a person at a terminal is told while a command runs in the daemon.
//!
//! ```text
//!   2 s without an answer ──"waiting"──> daemon: what the command waits for ──> standard error
//!                                                 what is left of an activity: a line that is
//!                                                 written anew every second
//!   Ctrl-C ──> terminal as before, a line about the command, end of this process by SIGINT
//! ```
//!
//! Programs and scripts see none of it: only a process whose standard error is a terminal asks, and
//! only one whose SIGINT is not ignored catches it.

use std::io::Write as _;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use cenote_cli::{Progress, environment, only_reads};
use cenote_rt::lock::{Mutex, Rank};
use nix::sys::signal::{SigSet, Signal, raise};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};

use super::client;
use super::place::Place;
use super::wire::Request;

/// How long a command may be silent before a person is told why.
const SILENT: Duration = Duration::from_secs(2);
/// Interval at which the reason is looked up again, and progress.
const INTERVAL: Duration = Duration::from_secs(10);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);
/// Returns to the begin of the line, and clears it.
const CLEAR: &str = "\r\x1b[K";

/// The person who waits for a command of this process. Dropping it ends the messages.
pub(super) struct Person {
    line: Arc<Mutex<Line>>,
    /// Dropped at the end of the command.
    _ends: Option<Sender<()>>,
}

/// The last line of the terminal.
#[derive(Debug, Default)]
struct Line {
    /// It has progress, and is to be cleared.
    is_taken: bool,
    /// The command prints, or has ended: nothing is told any more.
    is_over: bool,
}

impl Line {
    fn clear(&mut self) {
        if std::mem::take(&mut self.is_taken) {
            show(CLEAR);
        }
    }
}

/// Writes to standard error. A terminal that is gone is no failure of the command.
fn show(text: &str) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

impl Person {
    /// Begins to wait for a command that the daemon has accepted. To be called before other threads
    /// are started, because they inherit the signals that this thread catches.
    pub(super) fn waits_for(place: &Place, request: &Request) -> Self {
        let line = Arc::new(Mutex::with_default(Rank::TerminalLine));
        if !environment::terminals().messages {
            return Self { line, _ends: None };
        }
        catch_interrupts(request);
        let (ends, ended) = channel();
        let (place, last) = (place.clone(), Arc::clone(&line));
        let question = Request {
            args: [vec!["daemon".into(), "waiting".into()], request.args.clone()].concat(),
            ..request.clone()
        };
        let tell = move || {
            let (mut wait, mut told) = (SILENT, String::new());
            let mut progress = Progress::default();
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                if last.lock().is_over {
                    return;
                }
                let reason = ask(&place, &question).unwrap_or_default();
                let mut last = last.lock();
                if last.is_over {
                    return;
                }
                last.clear();
                if Progress::is_in(&reason) {
                    if let Some(line) = progress.line(&reason, cenote_rt::monotonic()) {
                        show(&line);
                        last.is_taken = true;
                    }
                    told.clear();
                    wait = PROGRESS_INTERVAL;
                    continue;
                }
                if !reason.is_empty() && reason != told {
                    show(&reason);
                    told = reason;
                }
                wait = INTERVAL;
            }
        };
        // Without the thread nothing is told.
        drop(std::thread::Builder::new().name("waiting".to_owned()).spawn(tell));
        Self { line, _ends: Some(ends) }
    }

    /// Notes an answer: what the command prints tells the person more.
    pub(super) fn hears(&self) {
        self.end();
    }

    fn end(&self) {
        let mut line = self.line.lock();
        line.is_over = true;
        line.clear();
    }
}

impl Drop for Person {
    fn drop(&mut self) {
        self.end();
    }
}

/// Asks the daemon what a command waits for; empty if that is what the command is for.
fn ask(place: &Place, question: &Request) -> Option<String> {
    let (said, _) = client::answers(place, question).ok()?.collected().ok()?;
    Some(String::from_utf8_lossy(&said).into_owned())
}

/// Whether this process ignores SIGINT, as shells make commands in the background do.
fn ignores_interrupts() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(u64::MAX);
    mask & (1 << (Signal::SIGINT as i32 - 1)) != 0
}

/// Makes SIGINT restore the terminal, which may be without echo for a key, and tell what happens to
/// the command.
fn catch_interrupts(request: &Request) {
    let interrupt: SigSet = [Signal::SIGINT].into_iter().collect();
    if ignores_interrupts() || interrupt.thread_block().is_err() {
        return;
    }
    let words: Vec<String> =
        request.args.iter().map(|word| cenote_cli::argument::from_os(word)).collect();
    let line = words.join(" ");
    let changes = !only_reads(&words);
    let before: Option<Termios> =
        isatty(std::io::stdin()).then(|| tcgetattr(std::io::stdin().as_fd()).ok()).flatten();
    let wait = move || {
        if interrupt.wait().is_err() {
            return;
        }
        if let Some(before) = before {
            let _ = tcsetattr(std::io::stdin().as_fd(), OptionalActions::Now, &before);
        }
        if changes {
            eprintln!("\ninterrupted; the daemon may still finish '{line}'");
        }
        // Shells look whether a command ended by the signal. It is blocked until here.
        let _ = interrupt.thread_unblock();
        let _ = raise(Signal::SIGINT);
    };
    if std::thread::Builder::new().name("interrupt".to_owned()).spawn(wait).is_err() {
        let _ = interrupt.thread_unblock();
    }
}
