//! Who waits for what: answers of requests, and batches of requests that are one write.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

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
    Done(Arc<Batch>),
}

impl Answer {
    /// It is done; for a read, `read` has its `len` bytes from `start` on. They are copied out of
    /// a read that others share, so that no part keeps the whole in memory.
    pub(super) fn give(self, read: Option<&Buf>, start: usize, len: u64, is_alone: bool) {
        match (self, read) {
            (Self::Done(batch), _) => batch.done(Ok(())),
            (Self::Read(sender), Some(read)) => {
                let part = read.slice(start..start + len as usize);
                let part = part.map(|part| if is_alone { part } else { copy(&part) });
                let missing = || Error::new(Kind::Invariant, Abandoned);
                let _ = sender.send(part.ok_or_else(missing));
            }
            (Self::Read(sender), None) => {
                let _ = sender.send(Err(Error::new(Kind::Invariant, Abandoned)));
            }
        }
    }

    /// It has failed.
    pub(super) fn fail(self, error: Error) {
        match self {
            Self::Read(sender) => {
                let _ = sender.send(Err(error));
            }
            Self::Done(batch) => batch.done(Err(error)),
        }
    }

    /// A request without data is done.
    pub(super) fn done(self, result: Result<()>) {
        if let Self::Done(batch) = self {
            batch.done(result);
        }
    }
}

fn copy(part: &Buf) -> Buf {
    let mut copy = BufMut::for_filling(part.len());
    copy.copy_from_slice(part);
    copy.freeze()
}

/// Requests that are one write: answered when the last of them is done, with the first error.
#[derive(Debug)]
pub(super) struct Batch {
    left: AtomicUsize,
    outcome: Mutex<Outcome>,
}

/// Who waits for a batch, until it is answered, and the first error so far.
#[derive(Debug)]
struct Outcome {
    sender: Option<oneshot::Sender<Result<()>>>,
    result: Result<()>,
}

impl Batch {
    /// A batch of `count` requests.
    pub(super) fn new(count: usize, sender: oneshot::Sender<Result<()>>) -> Arc<Self> {
        let sender = if count == 0 {
            let _ = sender.send(Ok(()));
            None
        } else {
            Some(sender)
        };
        let outcome = Mutex::new(Outcome { sender, result: Ok(()) });
        Arc::new(Self { left: AtomicUsize::new(count), outcome })
    }

    fn done(&self, result: Result<()>) {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        if outcome.result.is_ok() {
            outcome.result = result;
        }
        // Under the lock, so that the last one sees the errors of all.
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(sender) = outcome.sender.take()
        {
            let _ = sender.send(std::mem::replace(&mut outcome.result, Ok(())));
        }
    }
}
