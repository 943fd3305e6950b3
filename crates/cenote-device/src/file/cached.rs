//! Writes to the page cache of a file: one after the other, by one thread.
//!
//! The kernel does no two writes of a file at once. Threads that ask for it all the same wait in
//! the kernel, which keeps processors busy with waiting, and each costs a change of thread. So
//! whoever finds nobody at it has a thread go through all that comes meanwhile. Only who has the
//! patience, and not much to write, does so itself, past all that waits.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cenote_rt::{Buf, OwnedSemaphorePermit, oneshot, spend_patience};

use super::ways::{bounded, write_now};

/// Bytes up to which a thread writes itself: into the page cache, which takes them at once.
const HERE_MAX: usize = 128 << 10;

/// The writes of a file that wait.
#[derive(Debug, Default)]
pub(super) struct CachedWrites {
    /// LOCK: held for a few instructions.
    turns: Mutex<Turns>,
}

#[derive(Debug, Default)]
struct Turns {
    waiting: VecDeque<Write>,
    /// Whether a thread is at it, or will be.
    is_busy: bool,
}

#[derive(Debug)]
struct Write {
    offset: u64,
    parts: Vec<Buf>,
    permit: Arc<OwnedSemaphorePermit>,
    done: oneshot::Sender<io::Result<()>>,
}

/// Who goes through the writes, until there is none.
#[derive(Debug)]
struct Worker {
    writes: Arc<CachedWrites>,
    is_over: bool,
}

impl CachedWrites {
    /// Writes `parts` from `offset` on.
    pub(super) async fn store(
        self: &Arc<Self>,
        file: &Arc<File>,
        offset: u64,
        parts: Vec<Buf>,
        permit: &Arc<OwnedSemaphorePermit>,
    ) -> io::Result<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if len <= HERE_MAX && spend_patience() {
            return write_now(file, offset, bounded(parts));
        }
        let (done, outcome) = oneshot::channel();
        let permit = Arc::clone(permit);
        let is_busy = {
            let mut turns = self.lock();
            turns.waiting.push_back(Write { offset, parts: bounded(parts), permit, done });
            std::mem::replace(&mut turns.is_busy, true)
        };
        if !is_busy {
            let worker = Worker { writes: Arc::clone(self), is_over: false };
            let file = Arc::clone(file);
            cenote_rt::begin_blocking(move || worker.run(&file));
        }
        outcome.await.map_err(io::Error::other)?
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    fn run(mut self, file: &File) {
        while let Some(Write { offset, parts, permit, done }) = self.next() {
            let result = write_now(file, offset, parts);
            drop(permit);
            let _ = done.send(result);
        }
    }

    fn next(&mut self) -> Option<Write> {
        let mut turns = self.writes.lock();
        let next = turns.waiting.pop_front();
        turns.is_busy = next.is_some();
        self.is_over = next.is_none();
        next
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.is_over {
            // It never ran, or not to its end: whoever waits is told, and the next one begins anew.
            *self.writes.lock() = Turns::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_never_runs_leaves_nobody_waiting() {
        let writes = Arc::new(CachedWrites::default());
        let (done, outcome) = oneshot::channel();
        let permit = Arc::new(cenote_rt::Semaphore::new(1)).try_acquire_owned().expect("free");
        let write = Write { offset: 0, parts: Vec::new(), permit: Arc::new(permit), done };
        *writes.lock() = Turns { waiting: [write].into(), is_busy: true };
        drop(Worker { writes: Arc::clone(&writes), is_over: false });
        assert!(outcome.blocking_recv().is_err());
        assert!(!writes.lock().is_busy);
    }
}
