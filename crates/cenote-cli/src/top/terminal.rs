//! The terminal of `cenote top`: raw mode, the alternate screen, keys, signals.
//!
//! A screen is some lines of text, written at once. A library for terminals (ratatui) would be
//! seventy packages more, and would leave signals and panics to this module as well.
//!
//! Guarantees
//! * TOP-1  The terminal is as before when the process ends or stops, unless it is killed by
//!   SIGKILL. [`Terminal`] restores it when it is dropped; a hook does so before the message of a
//!   panic is printed; signals that would end or stop the process are blocked and arrive as events.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{getpid, kill_process};
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};

/// Alternate screen, no cursor, lines are clipped at the edge.
const ENTER: &[u8] = b"\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &[u8] = b"\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l";
/// Size of a terminal that does not tell it.
const USUAL_SIZE: (usize, usize) = (80, 24);
/// Signals that arrive as events.
const SIGNALS: [Signal; 6] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGTSTP,
    Signal::SIGWINCH,
];

/// Something that happened at the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A byte of a key.
    Key(u8),
    /// The window has another size, or the process went on after a stop.
    Redraw,
    /// The process shall end, with this status.
    End(i32),
}

/// A terminal in raw mode, until it is dropped.
pub(super) struct Terminal {
    restorer: Restorer,
    keys: Option<File>,
    signals: SignalFd,
}

/// What restores the terminal.
struct Restorer {
    out: File,
    /// Attributes before, and the descriptor that they belong to.
    before: Option<(OwnedFd, Termios)>,
}

impl Restorer {
    fn try_clone(&self) -> std::io::Result<Self> {
        let before = match &self.before {
            Some((keys, before)) => Some((keys.try_clone()?, before.clone())),
            None => None,
        };
        Ok(Self { out: self.out.try_clone()?, before })
    }

    fn enter(&self) -> std::io::Result<()> {
        if let Some((keys, before)) = &self.before {
            let mut raw = before.clone();
            raw.make_raw();
            tcsetattr(keys, OptionalActions::Drain, &raw)?;
        }
        (&self.out).write_all(ENTER)
    }

    /// Restores the terminal; one that is gone needs nothing.
    fn leave(&self) {
        let _ = (&self.out).write_all(LEAVE);
        if let Some((keys, before)) = &self.before {
            let _ = tcsetattr(keys, OptionalActions::Drain, before);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // TOP-1: on every return, and when a panic unwinds.
        self.restorer.leave();
    }
}

impl Terminal {
    /// Whether standard output is a terminal that can position its cursor.
    pub(super) fn is_usable() -> bool {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        isatty(std::io::stdout()) && !is_dumb
    }

    /// Takes the terminal of standard output. To be called before other threads are started: they
    /// inherit the mask of signals.
    ///
    /// # Errors
    /// Errors of the terminal.
    pub(super) fn enter() -> std::io::Result<Self> {
        let mask: SigSet = SIGNALS.into_iter().collect();
        mask.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let signals = SignalFd::with_flags(&mask, flags)?;
        let out = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
        let keys = if isatty(std::io::stdin()) {
            Some(File::from(std::io::stdin().as_fd().try_clone_to_owned()?))
        } else {
            // Without a controlling terminal there are no keys, and signals end the process.
            File::open("/dev/tty").ok()
        };
        let before = match &keys {
            Some(keys) => Some((keys.as_fd().try_clone_to_owned()?, tcgetattr(keys)?)),
            None => None,
        };
        let terminal = Self { restorer: Restorer { out, before }, keys, signals };
        let (restorer, shown) = (terminal.restorer.try_clone()?, std::panic::take_hook());
        std::panic::set_hook(Box::new(move |panic| {
            // TOP-1: the message belongs on the usual screen.
            restorer.leave();
            shown(panic);
        }));
        terminal.restorer.enter()?;
        Ok(terminal)
    }

    /// Returns the numbers of columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        match tcgetwinsize(&self.restorer.out) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                (usize::from(size.ws_col), usize::from(size.ws_row))
            }
            _ => USUAL_SIZE,
        }
    }

    /// Shows lines from the upper left corner on.
    ///
    /// # Errors
    /// Errors of writing.
    pub(super) fn show(&self, lines: &[String]) -> std::io::Result<()> {
        let text = lines.join("\x1b[K\r\n");
        // In one write, so that no half of a screen is visible.
        let screen = format!("\x1b[H{text}\x1b[K\x1b[J");
        (&self.restorer.out).write_all(screen.as_bytes())
    }

    /// Waits for events at the terminal, until the time has passed or `other` can be read.
    pub(super) fn wait(&mut self, time: Duration, other: impl AsFd) -> Vec<Event> {
        let timeout = Timespec::try_from(time).ok();
        let mut events = Vec::new();
        let mut waited = vec![
            PollFd::new(&self.signals, PollFlags::IN),
            PollFd::from_borrowed_fd(other.as_fd(), PollFlags::IN),
        ];
        if let Some(keys) = &self.keys {
            waited.push(PollFd::new(keys, PollFlags::IN));
        }
        if poll(&mut waited, timeout.as_ref()).is_err() {
            return events;
        }
        let has_keys = waited.get(2).is_some_and(|keys| !keys.revents().is_empty());
        while let Ok(Some(signal)) = self.signals.read_signal() {
            match Signal::try_from(signal.ssi_signo as i32) {
                Ok(Signal::SIGTSTP) => events.push(self.stop()),
                Ok(Signal::SIGWINCH) | Err(_) => events.push(Event::Redraw),
                Ok(signal) => events.push(Event::End(128 + signal as i32)),
            }
        }
        if has_keys {
            self.read_keys(&mut events);
        }
        events
    }

    fn read_keys(&mut self, events: &mut Vec<Event>) {
        let mut bytes = [0; 64];
        let count = match self.keys.as_mut().map(|keys| keys.read(&mut bytes)) {
            Some(Ok(count)) if count > 0 => count,
            Some(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => return,
            // The terminal is gone.
            _ => return events.push(Event::End(128 + Signal::SIGHUP as i32)),
        };
        let mut keys = bytes[..count].iter().copied();
        while let Some(key) = keys.next() {
            match key {
                // Control-C and Control-\, which raise no signals in raw mode, and Control-Z.
                0x03 => events.push(Event::End(128 + Signal::SIGINT as i32)),
                0x1c => events.push(Event::End(128 + Signal::SIGQUIT as i32)),
                0x1a => events.push(self.stop()),
                // The rest are keys such as arrows, or a lone escape.
                0x1b => keys.by_ref().for_each(drop),
                _ => events.push(Event::Key(key)),
            }
        }
    }

    /// Stops the process as Control-Z does, and takes the terminal again when it goes on.
    fn stop(&self) -> Event {
        self.restorer.leave();
        let _ = kill_process(getpid(), rustix::process::Signal::STOP);
        match self.restorer.enter() {
            Ok(()) => Event::Redraw,
            Err(_) => Event::End(128 + Signal::SIGHUP as i32),
        }
    }
}
