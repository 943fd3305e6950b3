//! Reads ahead: the blocks of the next steps are read by tasks while the caller takes records.
//!
//! Steps come out in the order of the walk. The queue holds at least one step, and takes no further
//! block while `zfs_send_queue_length` bytes of blocks are in it (SEND-1); a small block counts as
//! 32 KiB, so that small blocks do not become thousands of tasks.

use std::collections::VecDeque;

use cenote_rt::{Error, JoinHandle, Kind, Result, tunables};

use super::block::{Form, Sent};
use super::merge::Merge;
use super::walk::Step;

/// Smallest number of bytes counted for a block in flight.
const BLOCK_WEIGHT_MIN: u64 = 32 << 10;
/// Steps in the queue, at most.
const STEPS_MAX: usize = 4096;

/// What comes next in the stream.
pub(super) enum Next {
    /// A step that needs no data.
    Step(Step),
    /// The records of a block.
    Block(Vec<Sent>),
}

enum Queued {
    Step(Step),
    Block { weight: u64, task: JoinHandle<Result<Vec<Sent>>> },
}

/// The steps of a send, with its reads.
pub(super) struct Reader {
    steps: Merge,
    form: Form,
    queue: VecDeque<Queued>,
    bytes: u64,
    is_planned: bool,
}

impl Reader {
    pub(super) const fn new(steps: Merge, form: Form) -> Self {
        Self { steps, form, queue: VecDeque::new(), bytes: 0, is_planned: false }
    }

    /// Returns what comes next, `None` at the end.
    ///
    /// # Errors
    /// Errors of reading metadata and blocks.
    pub(super) async fn next(&mut self) -> Result<Option<Next>> {
        self.plan().await?;
        match self.queue.pop_front() {
            None => Ok(None),
            Some(Queued::Step(step)) => Ok(Some(Next::Step(step))),
            Some(Queued::Block { weight, task }) => {
                let sent = task.await.unwrap_or_else(|error| Err(Error::new(Kind::Io, error)));
                self.bytes -= weight;
                sent.map(|sent| Some(Next::Block(sent)))
            }
        }
    }

    /// Goes on until enough is in flight.
    async fn plan(&mut self) -> Result<()> {
        let bytes_max = tunables::SEND_QUEUE_BYTES.get();
        while !self.is_planned
            && (self.queue.is_empty() || self.bytes < bytes_max && self.queue.len() < STEPS_MAX)
        {
            let queued = match self.steps.next().await? {
                None => {
                    self.is_planned = true;
                    return Ok(());
                }
                Some(Step::Block { dnode, bp, blkid }) => {
                    let weight = bp.lsize().max(BLOCK_WEIGHT_MIN);
                    self.bytes += weight;
                    let task = cenote_rt::spawn(self.form.read(dnode, bp, blkid));
                    Queued::Block { weight, task }
                }
                Some(step) => Queued::Step(step),
            };
            self.queue.push_back(queued);
        }
        Ok(())
    }
}
