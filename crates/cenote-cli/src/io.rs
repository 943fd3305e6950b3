//! Where a command writes, and how it ends.
//!
//! A command gets an [`Io`] and returns `Result<(), Exit>`. It writes through the macros `out!`
//! and `err!`; a reader that went away (`EPIPE`) ends the command quietly, as it ends OpenZFS's
//! tools through SIGPIPE. Tests call commands in process with buffers for both streams.

use std::io::Write;

/// The two streams of a command.
pub struct Io<'a> {
    /// Standard output.
    pub out: &'a mut (dyn Write + Send),
    /// Standard error.
    pub err: &'a mut (dyn Write + Send),
}

/// How a command ends before its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// With this status; what there was to say is said.
    Status(i32),
    /// With the usage text of the command on standard error, below this message, and status 2.
    Usage(String),
    /// With this message on standard error and status 1.
    Failed(String),
    /// The same with another status.
    FailedWith(String, i32),
    /// With this message, since something is not mounted that should be; all else is done. Status 1
    /// for most commands, none for those that only move what is mounted.
    NotMounted(String),
    /// The reader of the output went away.
    Pipe,
    /// The state of the pool that the command read was given up because its space was needed. A
    /// command that only reads begins again, and one that changes something says so.
    Overtaken,
}

/// Said when a pool changes faster than a command can read it.
const OVERTAKEN: &str =
    "the pool changed while it was read, and its earlier state is gone: try again";

/// The result of a command.
pub type CommandResult<T = ()> = Result<T, Exit>;

impl Exit {
    /// A usage error with its message.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::Usage(message.into())
    }

    /// What there is to say.
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

    /// A failure with its message.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// A failure with a message, unless the error means that a state of the pool was given up.
    #[must_use]
    pub fn of(error: &cenote_rt::Error, message: String) -> Self {
        match error.kind() {
            cenote_rt::Kind::Overtaken => Self::Overtaken,
            _ => Self::Failed(message),
        }
    }

    /// A failure in OpenZFS's form.
    pub fn cannot(deed: &str, subject: &str, why: impl std::fmt::Display) -> Self {
        Self::Failed(format!("cannot {deed} '{subject}': {why}"))
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

/// The system's words for an error, as C's `strerror` has them.
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
