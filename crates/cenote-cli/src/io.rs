//! The output streams of a command, and how a command ends.
//!
//! A command gets an [`Io`] and returns `Result<(), Exit>`. It writes through the macros `out!` and
//! `err!`. If the reader of the output has gone (`EPIPE`), the command ends quietly, as OpenZFS's
//! tools end by SIGPIPE. Tests call commands in process with buffers for both streams.

use std::io::Write;

/// The two streams of a command.
pub struct Io<'a> {
    /// Standard output.
    pub out: &'a mut (dyn Write + Send),
    /// Standard error.
    pub err: &'a mut (dyn Write + Send),
}

/// Reasons for a command to end early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// Exit status; every message was already printed.
    Status(i32),
    /// Wrong use: prints this message and the command's usage text to standard error; status 2.
    Usage(String),
    /// Failure: prints this message to standard error; status 1.
    Failed(String),
    /// Like [`Self::Failed`], with another status.
    FailedWith(String, i32),
    /// The command succeeded, but a file system could not be mounted afterwards; the message says
    /// which. Status 1 for most commands, 0 for commands that only move mounts.
    NotMounted(String),
    /// The reader of the output has gone.
    Pipe,
    /// The view of the pool that the command read was dropped because the pool needed its space. A
    /// read-only command starts again; a command that changes the pool reports it.
    Overtaken,
}

/// Message for a pool that changes faster than a command can read it.
const OVERTAKEN: &str =
    "the pool changed while it was read, and its earlier state is gone: try again";

/// The result of a command.
pub type CommandResult<T = ()> = Result<T, Exit>;

impl Exit {
    /// Returns a usage error with this message.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// Returns the message to print.
    #[must_use]
    pub fn message(&self) -> String {
        match self {
            Self::Failed(text)
            | Self::FailedWith(text, _)
            | Self::NotMounted(text)
            | Self::Usage(text) => text.clone(),
            Self::Status(status) => format!("it failed with status {status}"),
            Self::Pipe => "the output is closed".to_owned(),
            Self::Overtaken => OVERTAKEN.to_owned(),
        }
    }

    /// Returns a failure with this message.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// Returns a failure with this message, or [`Exit::Overtaken`] if the error means that the view
    /// of the pool was dropped.
    #[must_use]
    pub fn of(error: &cenote_rt::Error, message: String) -> Self {
        match error.kind() {
            cenote_rt::Kind::Overtaken => Self::Overtaken,
            _ => Self::Failed(message),
        }
    }

    /// Returns a failure in OpenZFS's form: `cannot ACTION 'SUBJECT': WHY`.
    pub fn cannot(action: &str, subject: &str, why: impl std::fmt::Display) -> Self {
        Self::Failed(format!("cannot {action} '{subject}': {why}"))
    }
}

impl From<std::io::Error> for Exit {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::Pipe,
            _ => Self::Failed(format!("cannot write output: {error}")),
        }
    }
}

impl From<cenote_rt::Error> for Exit {
    fn from(error: cenote_rt::Error) -> Self {
        Self::of(&error, error.to_string())
    }
}

/// Returns the system's text for an error, as C's `strerror` gives it.
#[must_use]
pub fn words(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// Prints a line to standard output of an [`Io`].
#[macro_export]
macro_rules! out {
    ($io:expr) => { writeln!($io.out).map_err($crate::Exit::from) };
    ($io:expr, $($arg:tt)*) => { writeln!($io.out, $($arg)*).map_err($crate::Exit::from) };
}

/// Prints a line to standard error of an [`Io`].
#[macro_export]
macro_rules! err {
    ($io:expr, $($arg:tt)*) => { writeln!($io.err, $($arg)*).map_err($crate::Exit::from) };
}
