//! What a person at a terminal is told while a command runs in the daemon.
//!
//! ```text
//!   2 s without an answer ──"waiting"──> daemon: what the command waits for ──> standard error
//!   Ctrl-C ──> terminal as before, a line about the command, end of this process by SIGINT
//! ```
//!
//! Programs and scripts see none of it: only a process whose standard error is a terminal asks, and
//! only one whose SIGINT is not ignored catches it.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

use cenote_cli::{environment, only_reads};
use nix::sys::signal::{SigSet, Signal, raise};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};

use super::client;
use super::place::Place;
use super::wire::Request;

/// How long a command may be silent before a person is told why.
const SILENT: Duration = Duration::from_secs(2);
/// Interval at which the reason is looked up again.
const INTERVAL: Duration = Duration::from_secs(10);

/// The person who waits for a command of this process. Dropping it ends the messages.
pub(super) struct Person {
    has_heard: Arc<AtomicBool>,
    /// Dropped at the end of the command.
    _ends: Option<Sender<()>>,
}

impl Person {
    /// Begins to wait for a command that the daemon has accepted. To be called before other threads
    /// are started, because they inherit the signals that this thread catches.
    pub(super) fn waits_for(place: &Place, request: &Request) -> Self {
        let has_heard = Arc::new(AtomicBool::new(false));
        if !environment::terminals().messages {
            return Self { has_heard, _ends: None };
        }
        catch_interrupts(request);
        let (ends, ended) = channel();
        let (place, heard) = (place.clone(), Arc::clone(&has_heard));
        let question = Request {
            args: [vec!["daemon".into(), "waiting".into()], request.args.clone()].concat(),
            ..request.clone()
        };
        let tell = move || {
            let (mut wait, mut told) = (SILENT, String::new());
            while ended.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                if heard.load(Ordering::Relaxed) {
                    return;
                }
                let reason = ask(&place, &question).unwrap_or_default();
                if !reason.is_empty() && reason != told {
                    eprint!("{reason}");
                    told = reason;
                }
                wait = INTERVAL;
            }
        };
        // Without the thread nothing is told.
        drop(std::thread::Builder::new().name("waiting".to_owned()).spawn(tell));
        Self { has_heard, _ends: Some(ends) }
    }

    /// Notes an answer: what the command prints tells the person more.
    pub(super) fn hears(&self) {
        self.has_heard.store(true, Ordering::Relaxed);
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
