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
    /// It is done, or has failed. Reads get their bytes.
    pub(super) fn give(self, result: Result<Option<Buf>>) {
        match self {
            Self::Done(batch) => batch.done(result.map(|_| ())),
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
