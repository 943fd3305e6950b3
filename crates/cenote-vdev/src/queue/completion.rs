//! Completions: where the result of a request goes, and batches of requests that form one write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{Buf, BufMut, Error, Kind, Result, oneshot};

/// An I/O that ended because the runtime shut down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the I/O was abandoned")]
struct Abandoned;

/// Waits for a completion. The sender is dropped only when the runtime shuts down.
pub(super) async fn wait<T>(receiver: oneshot::Receiver<Result<T>>) -> Result<T> {
    receiver.await.unwrap_or_else(|_| Err(Error::new(Kind::Io, Abandoned)))
}

/// Destination of a request's result.
#[derive(Debug)]
pub(super) enum Answer {
    Read(oneshot::Sender<Result<Buf>>),
    /// The batch, and the member of the batch that the request belongs to.
    Done(Arc<Batch>, u32),
}

impl Answer {
    /// Delivers the result. Reads deliver bytes.
    pub(super) fn give(self, result: Result<Option<Buf>>) {
        match self {
            Self::Done(batch, member) => batch.done(member, result.err()),
            Self::Read(sender) => {
                let missing = || Error::new(Kind::Invariant, Abandoned);
                // Checks Q7: only a read that the device answered with fewer bytes has none.
                let result = result.and_then(|read| read.ok_or_else(missing));
                // Sending fails if the caller dropped its future.
                let _ = sender.send(result);
            }
        }
    }
}

/// Copies a part out of a shared read, so that no part keeps the whole buffer in memory.
pub(super) fn copy(part: &Buf) -> Buf {
    let mut copy = BufMut::for_filling(part.len());
    copy.copy_from_slice(part);
    copy.freeze()
}

/// Errors of a batch, each with the number of its member.
pub(super) type Failed = Vec<(u32, Error)>;

/// Requests of one or several leaves that a caller waits for together: completed with the errors
/// when the last request is done.
#[derive(Debug)]
pub(super) struct Batch {
    left: AtomicUsize,
    outcome: Mutex<Outcome>,
}

/// The receiver of a batch's result until it is sent, and the errors so far.
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
        let outcome = Mutex::new(Rank::WriteBatch, Outcome { sender, failed: Vec::new() });
        Arc::new(Self { left: AtomicUsize::new(count), outcome })
    }

    fn done(&self, member: u32, error: Option<Error>) {
        if let Some(error) = error {
            self.lock().failed.push((member, error));
        }
        // The last member sees all changes that the others made before they counted down.
        let left = self.left.fetch_sub(1, Ordering::AcqRel);
        // Checks Q7.
        assert!(left > 0, "a batch has more answers than requests");
        if left == 1 {
            let mut outcome = self.lock();
            let failed = std::mem::take(&mut outcome.failed);
            if let Some(sender) = outcome.sender.take() {
                let _ = sender.send(failed);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock()
    }
}

/// Waits for a batch; succeeds if no member failed.
pub(super) async fn wait_for(receiver: oneshot::Receiver<Failed>) -> Result<()> {
    let failed = receiver.await.map_err(|_| Error::new(Kind::Io, Abandoned))?;
    failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
}

/// The errors of all members when the runtime has shut down.
pub(super) fn abandoned(members: u32) -> Failed {
    (0..members).map(|member| (member, Error::new(Kind::Io, Abandoned))).collect()
}
