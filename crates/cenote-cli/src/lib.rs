//! The verbs of cenote: arguments, tables, messages, exit codes.
//!
//! A library, so that tests call the commands in process. `zpool`, `zfs` and `zdb` have OpenZFS's
//! options, wording and exit codes (2 for wrong use, 1 for a failure); the other verbs are cenote's
//! own. One program holds them all: `cenote zpool …`, or a link to it named `zpool`. Commands write
//! to an [`Io`] and return how they end; nothing here exits the process.

mod accounts;
pub mod argument;
pub mod environment;
pub mod getopt;
mod hints;
mod host;
pub mod io;
pub mod key_input;
pub mod key_place;
mod lab;
pub mod leaf_scripts;
mod manual;
pub mod nicenum;
mod progress;
pub mod source;
pub mod table;
mod top;
mod trace;
mod tunable;
pub mod usage;
pub mod verbs;
pub mod zdb;
pub mod zfs;
mod zinject;
pub mod zpool;
pub mod zstream;

mod program;
mod writer;

pub use host::{
    AbsentPool, Caller, CallerStreams, Host, MountRequest, Session, Suspended, Taken,
    TemporarilyUnmounted,
};
pub use io::{CommandResult, Exit, Io};
pub use program::{needs_no_pool, only_reads, run, run_captured, run_for, waiting_for};
pub use progress::Progress;
pub use verbs::map::{
    PictureCommand, document as map_document, picture_command as map_picture_command,
};
pub use zfs::{TerminalStream, terminal_refusal};
pub use zpool::cache as cache_file;
pub use zpool::events::{EventDescription, describe as describe_event};
pub use zpool::scan::lines as scan_lines;
