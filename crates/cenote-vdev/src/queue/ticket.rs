//! Who waits for what: answers of requests, and batches of requests that are one write.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_rt::{Buf, BufMut, Error, Kind, Result, oneshot};

/// An I/O that ended because the program did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the I/O was abandoned")]
struct Abandoned;

/// Waits for an answer. Whoever has to give it can only be gone if the runtime is.
pub(super) async fn wait<T>(receiver: oneshot::Receiver<Result<T>>) -> Result<T> {
    receiver.await.unwrap_or_else(|_| Err(Error::new(Kind::Io, Abandoned)))
}

/// Where the answer of a request goes.
#[derive(Debug)]
pub(super) enum Answer {
    Read(oneshot::Sender<Result<Buf>>),
    /// The batch, and the part of it that the request belongs to.
    Done(Arc<Batch>, u32),
}

impl Answer {
    /// It is done, or has failed. Reads get their bytes.
    pub(super) fn give(self, result: Result<Option<Buf>>) {
        match self {
            Self::Done(batch, member) => batch.done(member, result.err()),
            Self::Read(sender) => {
                let missing = || Error::new(Kind::Invariant, Abandoned);
                // Nobody listens if the future was dropped.
                let _ = sender.send(result.and_then(|read| read.ok_or_else(missing)));
            }
        }
    }
}

/// A copy, out of a read that others share: so no part keeps the whole in memory.
pub(super) fn copy(part: &Buf) -> Buf {
    let mut copy = BufMut::for_filling(part.len());
    copy.copy_from_slice(part);
    copy.freeze()
}

/// Errors of a batch, with the member that each is of.
pub(super) type Failed = Vec<(u32, Error)>;

/// Requests, of one leaf or several, that somebody waits for together: answered when the last of
/// them is done, with the errors.
#[derive(Debug)]
pub(super) struct Batch {
    left: AtomicUsize,
    outcome: Mutex<Outcome>,
}

/// Who waits for a batch, until it is answered, and the errors so far.
#[derive(Debug)]
struct Outcome {
    sender: Option<oneshot::Sender<Failed>>,
    failed: Failed,
}

impl Batch {
    /// A batch of `count` requests.
    pub(super) fn new(count: usize, sender: oneshot::Sender<Failed>) -> Arc<Self> {
        let sender = if count == 0 {
            let _ = sender.send(Vec::new());
            None
        } else {
            Some(sender)
        };
        let outcome = Mutex::new(Outcome { sender, failed: Vec::new() });
        Arc::new(Self { left: AtomicUsize::new(count), outcome })
    }

    fn done(&self, member: u32, error: Option<Error>) {
        if let Some(error) = error {
            self.lock().failed.push((member, error));
        }
        // Whoever is last sees what the others did before they counted down.
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut outcome = self.lock();
            let failed = std::mem::take(&mut outcome.failed);
            if let Some(sender) = outcome.sender.take() {
                let _ = sender.send(failed);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a batch that succeeds if nothing of it fails.
pub(super) async fn wait_for(receiver: oneshot::Receiver<Failed>) -> Result<()> {
    let failed = receiver.await.map_err(|_| Error::new(Kind::Io, Abandoned))?;
    failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// The errors if nobody answers any more.
pub(super) fn abandoned(members: u32) -> Failed {
    (0..members).map(|member| (member, Error::new(Kind::Io, Abandoned))).collect()
}
