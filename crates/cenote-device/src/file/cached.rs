//! Writes to the page cache of a file: one after the other, by one thread.
//!
//! The kernel serializes writes to a file. Threads that write concurrently wait in the kernel,
//! which costs processor time and changes of thread. So a writer that finds no worker running
//! starts one on a blocking thread, and the worker performs all writes that arrive meanwhile. Only
//! a task with budget for inline waits, and little to write, writes itself, ahead of the queue.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Arc;

use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{Buf, OwnedSemaphorePermit, oneshot, take_inline_wait};

use super::methods::{bounded, write_now};

/// Most bytes that a task writes itself: into the page cache, which accepts them at once.
const HERE_MAX: usize = 128 << 10;

/// The queued writes of a file.
#[derive(Debug)]
pub(super) struct CachedWrites {
    /// LOCK: held for a few instructions.
    queue: Mutex<WriteQueue>,
}

impl Default for CachedWrites {
    fn default() -> Self {
        Self { queue: Mutex::with_default(Rank::CachedWrites) }
    }
}

#[derive(Debug, Default)]
struct WriteQueue {
    waiting: VecDeque<Write>,
    /// Whether a worker is running or about to run.
    has_worker: bool,
}

#[derive(Debug)]
struct Write {
    offset: u64,
    parts: Vec<Buf>,
    permit: Arc<OwnedSemaphorePermit>,
    done: oneshot::Sender<io::Result<()>>,
}

/// Performs the queued writes until none is left.
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
        if len <= HERE_MAX && take_inline_wait() {
            return write_now(file, offset, bounded(parts));
        }
        let (done, outcome) = oneshot::channel();
        let permit = Arc::clone(permit);
        let has_worker = {
            let mut queue = self.lock();
            queue.waiting.push_back(Write { offset, parts: bounded(parts), permit, done });
            std::mem::replace(&mut queue.has_worker, true)
        };
        if !has_worker {
            let worker = Worker { writes: Arc::clone(self), is_over: false };
            let file = Arc::clone(file);
            cenote_rt::begin_blocking(move || worker.run(&file));
        }
        outcome.await.map_err(io::Error::other)?
    }

    fn lock(&self) -> MutexGuard<'_, WriteQueue> {
        self.queue.lock()
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
        let mut queue = self.writes.lock();
        let next = queue.waiting.pop_front();
        queue.has_worker = next.is_some();
        self.is_over = next.is_none();
        next
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if !self.is_over {
            // The worker never ran, or not to its end: waiting writers get an error, and the next
            // write starts a new worker.
            *self.writes.lock() = WriteQueue::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_get_an_error_if_the_worker_never_runs() {
        let writes = Arc::new(CachedWrites::default());
        let (done, outcome) = oneshot::channel();
        let permit = Arc::new(cenote_rt::Semaphore::new(1)).try_acquire_owned().expect("free");
        let write = Write { offset: 0, parts: Vec::new(), permit: Arc::new(permit), done };
        *writes.lock() = WriteQueue { waiting: [write].into(), has_worker: true };
        drop(Worker { writes: Arc::clone(&writes), is_over: false });
        assert!(outcome.blocking_recv().is_err());
        assert!(!writes.lock().has_worker);
    }
}
