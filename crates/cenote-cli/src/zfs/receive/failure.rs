//! Why a receive failed, in OpenZFS's words where it has some (spec 07 B14).

use cenote_engine::{OpError, ReceiveRefusal};
use cenote_ondisk::stream::CorruptRecord;
use cenote_pool::KeyError;
use cenote_rt::{Error, Kind};
use cenote_stream::{ReceiveError, StreamError};

use crate::io::Exit;

/// What a stream is received as, in messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum What {
    /// A dataset that did not exist, or whose contents are replaced.
    New,
    /// An increment.
    Increment,
}

impl What {
    const fn words(self) -> &'static str {
        match self {
            Self::New => "cannot receive new filesystem stream",
            Self::Increment => "cannot receive incremental stream",
        }
    }

    /// Returns a failure for this reason.
    pub(super) fn failed(self, why: impl std::fmt::Display) -> Exit {
        Exit::failed(format!("{}: {why}", self.words()))
    }
}

/// Returns the failure before anything is known of the stream.
pub(super) fn cannot_receive(why: impl std::fmt::Display) -> Exit {
    Exit::failed(format!("cannot receive: {why}"))
}

/// Returns the failure of a new dataset whose parent does not exist.
pub(super) fn no_parent(parent: &str) -> Exit {
    let failed = What::New.failed("unable to restore to destination").message();
    Exit::failed(format!("cannot open '{parent}': dataset does not exist\n{failed}"))
}

/// Why a substream was not received.
#[derive(Debug)]
pub(super) enum Failure {
    /// The stream cannot be read on.
    Stream(StreamError),
    /// The pool does not take it.
    Pool(Error),
    /// Another reason, with its whole message.
    Exit(Exit),
}

impl From<Exit> for Failure {
    fn from(exit: Exit) -> Self {
        Self::Exit(exit)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Pool(error)
    }
}

impl From<StreamError> for Failure {
    fn from(error: StreamError) -> Self {
        Self::Stream(error)
    }
}

/// Returns the failure at the first record of a stream.
pub(super) fn at_start(error: &StreamError) -> Exit {
    match error {
        StreamError::Truncated { .. } => cannot_receive("failed to read from stream"),
        StreamError::Corrupt { source: CorruptRecord::Magic { .. }, .. } => {
            cannot_receive("invalid stream (bad magic number)")
        }
        other => cannot_receive(stream_words(other)),
    }
}

/// Returns why a stream cannot be read on.
pub(super) fn stream_words(error: &StreamError) -> String {
    match error {
        StreamError::Truncated { .. } => "incomplete stream".to_owned(),
        StreamError::Checksum { .. } => "checksum mismatch".to_owned(),
        StreamError::Io { source, .. } => format!("failed to read from stream: {source}"),
        other => format!("invalid backup stream: {other}"),
    }
}

/// Returns the text about state that is kept, from which the receive continues.
pub(super) fn saved(token: &str) -> String {
    format!(
        "checksum mismatch or incomplete stream.\n\
         Partially received snapshot is saved.\n\
         A resuming stream can be generated on the sending system by running:\n    \
         zfs send -t {token}"
    )
}

/// Returns the failure of a substream, for the snapshot `name`.
pub(super) fn of_pool(error: &Error, what: What, name: &str) -> Exit {
    let head = name.split('@').next().unwrap_or(name);
    if let Some(refusal) = error.cause::<ReceiveRefusal>() {
        return of_refusal(refusal, what, head);
    }
    if let Some(cause) = error.cause::<ReceiveError>() {
        return what.failed(format_args!("invalid backup stream: {cause}"));
    }
    if let Some(KeyError::NotLoaded) = error.cause::<KeyError>() {
        return what.failed("inherited key must be loaded");
    }
    match error.cause::<OpError>() {
        Some(OpError::Exists) => {
            Exit::failed(format!("cannot restore to {name}: destination already exists"))
        }
        Some(OpError::Busy) => what.failed(format_args!("destination {head} is busy")),
        Some(OpError::Limit) => what.failed("the filesystem or snapshot limit is reached"),
        _ if error.kind() == Kind::Quota => {
            what.failed(format_args!("destination {head} space quota exceeded."))
        }
        _ if error.kind() == Kind::NoSpace => what.failed("out of space"),
        Some(cause) => what.failed(cause),
        None => what.failed(error),
    }
}

fn of_refusal(refusal: &ReceiveRefusal, what: What, head: &str) -> Exit {
    use ReceiveRefusal as R;
    match refusal {
        R::UnknownFeatures(bits) => {
            cannot_receive(format_args!("stream has unsupported feature, unknown flags = {bits:x}"))
        }
        R::FeatureDisabled(feature) => what.failed(format_args!(
            "pool must be upgraded to receive this stream.\nIts feature {feature} is not enabled"
        )),
        R::NotSupported(what_of) => {
            what.failed(format_args!("{what_of} is not supported by this version of cenote"))
        }
        R::NoSource { .. } | R::WrongOrigin { .. } => what.failed(format_args!(
            "most recent snapshot of {head} does not\nmatch incremental source"
        )),
        R::Modified => what.failed(format_args!(
            "destination {head} has been modified\nsince most recent snapshot"
        )),
        R::TargetExists => what.failed(exists(head)),
        R::TargetMissing => what.failed(format_args!("destination '{head}' does not exist")),
        R::LargeBlockMismatch => what.failed(
            "incremental send stream requires -L (--large-block), to match previous receive.",
        ),
        R::Suite(_) => what.failed("stream uses crypto parameters not compatible with this pool"),
        R::KeyVersion(_) => what.failed("pool must be upgraded to receive this stream."),
        R::RawOntoPlain => {
            what.failed("cannot perform raw receive on top of existing unencrypted dataset")
        }
        R::ReplacesEncrypted => what.failed(
            "zfs receive -F cannot be used to destroy an encrypted filesystem or overwrite an \
             unencrypted one with an encrypted one",
        ),
        R::EmbeddedOntoEncrypted => {
            what.failed("incompatible embedded data stream feature with encrypted receive.")
        }
        R::KeyNotLoaded => what.failed("inherited key must be loaded"),
        R::OtherKey => what.failed("encryption key does not match existing key"),
        R::NoIvSet => what.failed("IV set guid missing. See errata 4 at https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-ER."),
        R::OtherIvSet => what.failed("IV set guid mismatch. See the 'zfs receive' man page section\ndiscussing the limitations of raw encrypted send streams."),
        R::NoSpillFlags => what.failed(
            "Spill block flag missing for raw send.\nThe zfs software on the sending system must be \
             updated.",
        ),
        R::ResumeExists => what.failed(format_args!(
            "Resuming recv on existing destination '{head}'\nmust specify -F to overwrite it"
        )),
        other => what.failed(format_args!("invalid backup stream: {other}")),
    }
}

/// Returns why a new dataset is not received in place of an existing one.
pub(super) fn exists(head: &str) -> String {
    format!("destination '{head}' exists\nmust specify -F to overwrite it")
}
