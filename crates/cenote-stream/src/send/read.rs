//! Reads ahead: the blocks of the next steps are read by tasks while the caller takes records.
//!
//! Steps come out in the order of the walk. The queue holds at least one step, and takes no further
//! block while `zfs_send_queue_length` bytes of blocks are in it (SEND-1). Small blocks that come
//! one after the other are read by one task, at the same time; a task counts as 32 KiB at least.

use std::collections::VecDeque;
use std::future::Future;

use cenote_rt::{Error, JoinHandle, Kind, Result, tunables};
use futures_util::future::join_all;

use super::block::{Form, Sent};
use super::merge::Merge;
use super::walk::Step;

/// Smallest number of bytes counted for a task in flight.
const WEIGHT_MIN: u64 = 32 << 10;
/// Bytes of small blocks that one task reads.
const GROUP_BYTES: u64 = 64 << 10;
/// Steps and tasks in the queue, at most.
const STEPS_MAX: usize = 4096;

/// What comes next in the stream.
pub(super) enum Next {
    /// A step that needs no data.
    Step(Step),
    /// The records of a block.
    Block(Vec<Sent>),
}

/// The records of one block after the other.
type Read = Vec<Result<Vec<Sent>>>;

enum Queued {
    Step(Step),
    Blocks { weight: u64, task: JoinHandle<Read> },
}

/// The steps of a send, with its reads.
pub(super) struct Reader {
    steps: Merge,
    form: Form,
    queue: VecDeque<Queued>,
    bytes: u64,
    is_planned: bool,
    /// The first step behind the queue, if it was taken.
    taken: Option<Step>,
    /// Blocks that were read.
    ready: VecDeque<Result<Vec<Sent>>>,
}

impl Reader {
    pub(super) const fn new(steps: Merge, form: Form) -> Self {
        Self {
            steps,
            form,
            queue: VecDeque::new(),
            bytes: 0,
            is_planned: false,
            taken: None,
            ready: VecDeque::new(),
        }
    }

    /// Returns what comes next, `None` at the end.
    ///
    /// # Errors
    /// Errors of reading metadata and blocks.
    pub(super) async fn next(&mut self) -> Result<Option<Next>> {
        loop {
            if let Some(sent) = self.ready.pop_front() {
                return sent.map(|sent| Some(Next::Block(sent)));
            }
            self.plan().await?;
            match self.queue.pop_front() {
                None => return Ok(None),
                Some(Queued::Step(step)) => return Ok(Some(Next::Step(step))),
                Some(Queued::Blocks { weight, task }) => {
                    let ended = |error| vec![Err(Error::new(Kind::Io, error))];
                    self.ready = task.await.unwrap_or_else(ended).into();
                    self.bytes -= weight;
                }
            }
        }
    }

    /// Goes on until enough is in flight.
    async fn plan(&mut self) -> Result<()> {
        let bytes_max = tunables::SEND_QUEUE_BYTES.get();
        while !self.is_planned
            && (self.queue.is_empty() || self.bytes < bytes_max && self.queue.len() < STEPS_MAX)
        {
            let Some(step) = self.step().await? else { return Ok(()) };
            let queued = if matches!(step, Step::Block { .. }) {
                self.blocks(step).await?
            } else {
                Queued::Step(step)
            };
            self.queue.push_back(queued);
        }
        Ok(())
    }

    /// Takes the next step.
    async fn step(&mut self) -> Result<Option<Step>> {
        if let Some(step) = self.taken.take() {
            return Ok(Some(step));
        }
        let step = self.steps.next().await?;
        self.is_planned = step.is_none();
        Ok(step)
    }

    /// Starts to read a block and, if they are small, those behind it.
    async fn blocks(&mut self, first: Step) -> Result<Queued> {
        let (mut reads, mut bytes, mut next) = (Vec::new(), 0_u64, Some(first));
        while let Some(step) = next {
            match self.read_of(&step) {
                Some((len, read)) if bytes == 0 || bytes.saturating_add(len) <= GROUP_BYTES => {
                    bytes = bytes.saturating_add(len.max(1));
                    reads.push(read);
                }
                _ => {
                    self.taken = Some(step);
                    break;
                }
            }
            next = if bytes < GROUP_BYTES { self.step().await? } else { None };
        }
        let weight = bytes.max(WEIGHT_MIN);
        self.bytes += weight;
        Ok(Queued::Blocks { weight, task: cenote_rt::spawn(join_all(reads)) })
    }

    /// Returns the bytes of a block, and what reads it; `None` for other steps.
    fn read_of(
        &self,
        step: &Step,
    ) -> Option<(u64, impl Future<Output = Result<Vec<Sent>>> + Send + use<>)> {
        let Step::Block { dnode, bp, blkid } = step else { return None };
        Some((bp.lsize(), self.form.read(dnode.clone(), *bp, *blkid)))
    }
}
