//! Receives one substream: what begins it, what ends it, and where it can be resumed (spec 07 B9).
//!
//! ```text
//!   target missing     begin: target, empty or a clone of the origin      INCONSISTENT
//!                      end:   its snapshot                                 consistent
//!
//!   target exists      begin: target/%recv, a clone of the source snapshot INCONSISTENT
//!                      end:   contents of %recv and target are exchanged, the snapshot is taken,
//!                             %recv with the contents from before is destroyed
//! ```
//!
//! Until its end a receive has changed nothing that users see: a target that existed before keeps
//! its contents, and a new one cannot be mounted.
//!
//! Crash safety
//! 1. The mark INCONSISTENT is set in the txg that creates the dataset, and removed in the txg of
//!    its snapshot: begin and end are one task of a sync each.
//! 2. The resume point is written in the txg that carries the data in front of it: it is noted in
//!    the transaction that changes the data ([`ReceivePoints`]), and the sync of the head stores it
//!    with the head's new root ([`resume::store_point`]).
//! 3. A pool that is opened for writing destroys marked datasets without resume keys
//!    ([`crate::dsl::destroy::abandoned`]); those with keys wait for the rest of their stream.
//!
//! Invariants
//! * RC1  A dataset that is being received is INCONSISTENT from its creation to the snapshot that
//!   ends the receive.
//! * RC2  A resume point never goes backwards.
//! * RC3  A dataset that is received raw is open without its keys, so that nothing is encrypted
//!   twice.
//!
//! Concurrency: a receive owns its head, so that it is neither destroyed nor resumed by another
//! task meanwhile. Durability: nothing here flushes; begin and end return when their txg is
//! committed.

pub(crate) mod begin;
pub(crate) mod check;
pub(crate) mod end;
mod error;
mod points;
pub(crate) mod resume;
pub(crate) mod task;

use std::sync::Arc;

use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::stream::{BeginFlags, StreamFeatures};
use cenote_ondisk::zap::Value;
use cenote_pool::dsl::deleg::Requester;

use crate::dsl::api::keys::NewEncryption;
use crate::dsl::crypto::SentKeys;
use crate::{Head, Ownership};
pub use error::ReceiveRefusal;
pub use points::{ReceivePoint, ReceivePoints};

/// The name of the dataset below an existing target that is received into.
pub(crate) const RECV: &str = "%recv";

/// Guids of redaction snapshots, as a BEGIN has them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedactionGuids {
    /// Redaction snapshots of the sent snapshot, if that is redacted.
    pub of_snapshot: Option<Vec<u64>>,
    /// Redaction snapshots of the source of the increment, if that is redacted.
    pub of_source: Option<Vec<u64>>,
}

/// A substream to be received, as its BEGIN describes it, and how its receiver wants it.
#[derive(Debug, Clone)]
pub struct NewReceive {
    /// Full name of the file system or volume.
    pub target: String,
    /// Short name of the snapshot.
    pub snapshot: String,
    /// Full name of the snapshot at the sender, which a resume token contains.
    pub sender_name: Vec<u8>,
    /// File system or volume.
    pub kind: ObjSetType,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Guid of the source of an increment, 0 if the stream is full.
    pub from_guid: u64,
    /// When the snapshot was taken at the sender, in seconds.
    pub creation_time: u64,
    /// Features of the stream.
    pub features: StreamFeatures,
    /// Flags of the stream.
    pub flags: BeginFlags,
    /// Redaction snapshots of the snapshot and of its source.
    pub redaction: RedactionGuids,
    /// What a raw stream says of the keys and the root of its dataset.
    pub keys: Option<SentKeys>,
    /// The snapshot whose clone is received into; required for an increment whose target does not
    /// exist.
    pub origin: Option<String>,
    /// Object and offset at which a resumed stream continues.
    pub resumes_at: Option<(u64, u64)>,
    /// What the receiver chooses.
    pub choices: ReceiveChoices,
}

/// What the receiver of a stream chooses.
#[derive(Debug, Clone, Default)]
pub struct ReceiveChoices {
    /// Discard changes since the source, later snapshots, and contents that a full stream replaces
    /// (`-F`).
    pub is_forced: bool,
    /// Keep what was received if the stream ends early (`-s`).
    pub is_resumable: bool,
    /// How a new dataset that is not received raw is encrypted.
    pub encryption: NewEncryption,
    /// The user who receives: limits bind users.
    pub requester: Requester,
    /// Local properties of a new dataset.
    pub props: Vec<(String, Value)>,
}

impl NewReceive {
    /// Whether the stream continues an interrupted receive.
    #[must_use]
    pub const fn is_resuming(&self) -> bool {
        self.features.contains(StreamFeatures::RESUMING)
    }

    /// Whether the whole snapshot is sent, not the difference to another one.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.from_guid == 0
    }

    /// Whether blocks are left out, so that the dataset is redacted.
    #[must_use]
    pub const fn is_redacted(&self) -> bool {
        self.features.contains(StreamFeatures::REDACTED)
    }

    /// Whether blocks are received as the sender has encrypted them.
    #[must_use]
    pub const fn is_raw(&self) -> bool {
        self.features.contains(StreamFeatures::RAW)
    }

    /// What the stream says of its keys, if it is raw: others may say something that is not meant.
    pub(crate) fn raw_keys(&self) -> Option<&SentKeys> {
        self.keys.as_ref().filter(|_| self.is_raw())
    }

    /// Whether an increment can be received on a source that is redacted with respect to these
    /// snapshots: it has what the source lacks, lacks it too, or replaced it (spec 07 B11).
    pub(crate) fn fits_redacted(&self, of_source: &[u64]) -> bool {
        let are_all = |guids: &[u64]| guids.iter().all(|guid| of_source.contains(guid));
        match (&self.redaction.of_source, &self.redaction.of_snapshot) {
            (Some(guids), _) => are_all(guids),
            (None, Some(guids)) if self.is_redacted() => are_all(guids),
            _ => of_source.contains(&self.to_guid),
        }
    }

    /// Returns the name of the dataset below the target.
    pub(crate) fn child(&self) -> String {
        format!("{}/{RECV}", self.target)
    }
}

/// A receive that has begun. The dataset cannot be destroyed until this is dropped.
#[derive(Debug)]
pub struct Reception {
    pub(crate) new: NewReceive,
    /// Name of the dataset that is received into: the target, or its child `%recv`.
    pub(crate) dataset: String,
    pub(crate) head: Arc<Head>,
    pub(crate) _ownership: Ownership,
    pub(crate) is_child: bool,
    /// Whether it is kept if the stream ends early.
    pub(crate) is_resumable: bool,
    pub(crate) start: ReceivePoint,
}

impl Reception {
    /// Returns the head that is received into.
    #[must_use]
    pub fn head(&self) -> &Arc<Head> {
        &self.head
    }

    /// Returns the point where the stream begins: the first object, unless it is resumed.
    #[must_use]
    pub const fn start(&self) -> ReceivePoint {
        self.start
    }

    /// Whether what was received is kept if the stream ends early.
    #[must_use]
    pub const fn is_resumable(&self) -> bool {
        self.is_resumable
    }

    /// Whether a full stream is received into a clone, whose objects beyond the last one of the
    /// stream do not exist in its snapshot.
    #[must_use]
    pub const fn is_full_into_clone(&self) -> bool {
        self.new.is_full() && self.new.origin.is_some() && !self.is_child
    }

    /// Returns the name of the dataset that is received into.
    #[must_use]
    pub fn dataset(&self) -> &str {
        &self.dataset
    }

    /// Returns the parameters of the receive.
    #[must_use]
    pub const fn request(&self) -> &NewReceive {
        &self.new
    }
}
