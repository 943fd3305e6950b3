//! Sending: from a snapshot to the records of a substream (spec 07 B5).
//!
//! ```text
//!   Walk ──────────────────> Merge ─────────> Reader ───────────> Emitter ──────> RecordSink
//!    |  dnode blocks,          |  without       |  reads ahead,     |  merges
//!    |  dnodes, pointers       |  what is       |  one task         |  ranges
//!                              |  redacted      |  for some blocks
//! ```
//!
//! A [`SendPlan`] fixes what is sent: the BEGIN record with its features, the first txg, the form
//! of the payloads. [`SendPlan::run`] then walks the object set depth first, skips every block that
//! the source of the increment has, and gives each record with its payload to the caller's sink.
//! The walk runs ahead of the output: the next blocks are read by tasks, in order, until the
//! tunable `zfs_send_queue_length` is in flight. A block is read in the form in which it is sent: a
//! compressed block that is sent compressed is verified, but not expanded.
//!
//! Records and their order are those of OpenZFS, with two exceptions: with `-e`, a spill block that
//! is embedded in its pointer is sent as SPILL, where OpenZFS sends a data block at an offset far
//! behind the file; and an embedded block over 128 KiB is expanded for a stream without large
//! blocks (spec 07 B15, defects 1 and 2).
//!
//! Guarantees
//! * SEND-1  Payloads in memory: less than the queue length and what one task reads more.
//! * SEND-2  After an error nothing follows, and no END: a receiver cannot take a part for the
//!   whole.

mod block;
mod emit;
mod estimate;
mod from;
mod merge;
mod payload;
mod plan;
mod read;
mod redaction;
mod walk;

use std::future::Future;

use cenote_ondisk::stream::Record;
use cenote_rt::{Kind, Result};

pub use estimate::{Estimate, estimate};
pub use from::From;
pub use payload::Payload;
pub use plan::SendPlan;
pub use redaction::{Redaction, redact};

/// Receives the records of a substream, in order.
pub trait RecordSink: Send {
    /// Takes a record and its payload, of the length that the record says. The checksum words are
    /// the sink's to fill in.
    ///
    /// # Errors
    /// Any error ends the send.
    fn put(&mut self, record: &Record, payload: Payload)
    -> impl Future<Output = Result<()>> + Send;
}

/// How blocks are sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "one for each option of the command")]
pub struct SendOptions {
    /// Blocks over 128 KiB are sent whole (`-L`).
    pub large_blocks: bool,
    /// Blocks that are stored in their pointers are sent so (`-e`).
    pub embedded: bool,
    /// Compressed blocks are sent compressed (`-c`).
    pub compressed: bool,
    /// Blocks are sent as they are on disk, encrypted (`-w`). Of an unencrypted dataset the same as
    /// all other options.
    pub raw: bool,
}

/// Why something cannot be sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The source of the increment is not an earlier state.
    #[error("not an earlier snapshot from the same fs")]
    NotEarlier,
    /// Ciphertext cannot be left out of a stream: MACs are over all of it.
    #[error("raw sends may not be redacted")]
    RawRedacted,
    /// The dataset is neither a file system nor a volume.
    #[error("the object set is of a type that cannot be sent")]
    Type,
    /// Unfinished receives have no consistent contents.
    #[error("the dataset is the target of an unfinished receive")]
    Inconsistent,
    /// Micro ZAPs over 128 KiB can be sent only with large blocks.
    #[error("the dataset has large micro ZAPs, which need large blocks or a raw send")]
    LargeMicrozap,
    /// Key objects of this version predate raw sends.
    #[error("the format of the encryption key is too old for a raw send")]
    KeyVersion,
    /// A resumed send begins in an object that the snapshot does not have.
    #[error("object {object}, where the send is to resume, does not exist")]
    ResumeObject {
        /// The object.
        object: u64,
    },
    /// The bonus is longer than the dnode.
    #[error("object {object}: bonus of {len} bytes")]
    Bonus {
        /// The object.
        object: u64,
        /// Bytes of the bonus.
        len: u16,
    },
}

impl SendError {
    const fn kind(&self) -> Kind {
        match self {
            Self::KeyVersion | Self::Type => Kind::Unsupported,
            Self::RawRedacted | Self::NotEarlier | Self::Inconsistent | Self::LargeMicrozap => {
                Kind::Invalid
            }
            Self::ResumeObject { .. } => Kind::NotFound,
            Self::Bonus { .. } => Kind::Corrupt,
        }
    }
}

impl std::convert::From<SendError> for cenote_rt::Error {
    fn from(error: SendError) -> Self {
        Self::new(error.kind(), error)
    }
}
