//! Reads an object sequentially, with prefetch.
//!
//! A stream plans ahead of its reader: it walks the tree, starts a task for every block, and
//! returns the blocks in order. `zfetch_max_distance` limits the bytes in flight; a block counts as
//! at least 32 KiB, so that small blocks do not become thousands of tasks. A hole of any size is
//! one extent and costs only the walk. At least two blocks are in flight, however large they are.
//! Long streams bypass the block cache, because they would evict everything else.
//!
//! A block or an indirect block that cannot be read is an error for the range it covers; the stream
//! continues behind it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::{Buf, Error, JoinHandle, Kind, Result, tunables};

use crate::dnode::Dnode;
use crate::tree::Run;

/// Smallest number of bytes counted for a block in flight.
const BLOCK_WEIGHT_MIN: u64 = 32 << 10;

/// A piece of an object: bytes, or a hole.
#[derive(Debug, Clone)]
pub struct Extent {
    /// First byte in the object.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The bytes; `None` for a hole.
    pub data: Option<Buf>,
}

/// A piece of an object that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Lost {
    /// First byte in the object.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
    /// The error.
    pub error: Error,
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        lost.error
    }
}

enum Step {
    Hole(Range<u64>),
    Block { blkid: u64, weight: u64, task: JoinHandle<Result<Buf>> },
    Ready { blkid: u64, data: Buf },
    Lost { blocks: Range<u64>, error: Error },
}

/// A sequential reader of a byte range.
pub struct BlockStream {
    dnode: Arc<Dnode>,
    bytes: Range<u64>,
    /// Next block to plan, and the end of planning.
    next: u64,
    end: u64,
    run: Option<Run>,
    steps: VecDeque<Step>,
    in_flight: u64,
    in_flight_max: u64,
    bypass_cache: bool,
}

impl BlockStream {
    pub(crate) fn new(dnode: Arc<Dnode>, bytes: Range<u64>) -> Self {
        let block_size = dnode.geometry().block_size;
        let end = bytes.end.min(dnode.geometry().byte_count()).max(bytes.start);
        let bytes = bytes.start..end;
        let in_flight_max = tunables::PREFETCH_BYTES.get().max(2 * block_size);
        let bypass_cache = end - bytes.start > tunables::BLOCK_CACHE_BYTES.get() / 8;
        let next = bytes.start / block_size;
        let end = end.div_ceil(block_size);
        let steps = VecDeque::new();
        Self {
            dnode,
            bytes,
            next,
            end,
            run: None,
            steps,
            in_flight: 0,
            in_flight_max,
            bypass_cache,
        }
    }

    /// Returns the next piece, in order; `None` at the end.
    pub async fn next(&mut self) -> Option<Result<Extent, Lost>> {
        loop {
            self.plan().await;
            match self.steps.pop_front()? {
                Step::Hole(blocks) => {
                    let blocks = self.merge_holes(blocks);
                    if let Some(extent) = self.hole(blocks) {
                        return Some(Ok(extent));
                    }
                }
                Step::Ready { blkid, data } => return Some(Ok(self.piece(blkid, &data))),
                Step::Block { blkid, weight, task } => {
                    let result = task.await.unwrap_or_else(|e| Err(Error::new(Kind::Io, e)));
                    self.in_flight -= weight;
                    return Some(match result {
                        Ok(data) => Ok(self.piece(blkid, &data)),
                        Err(error) => Err(self.lost(blkid..blkid + 1, error)),
                    });
                }
                Step::Lost { blocks, error } => return Some(Err(self.lost(blocks, error))),
            }
        }
    }

    /// Starts reads until enough are in flight.
    async fn plan(&mut self) {
        while self.next < self.end
            && (self.in_flight < self.in_flight_max || self.steps.is_empty())
            && self.steps.len() < 4096
        {
            let run = match self.run.take().filter(|run| run.blocks().contains(&self.next)) {
                Some(run) => run,
                None => match self.dnode.run_at(self.next).await {
                    Ok(run) => {
                        self.prefetch_behind(&run).await;
                        run
                    }
                    Err(lost) => {
                        let end = lost.blocks.end.clamp(self.next + 1, self.end);
                        let blocks = self.next..end;
                        self.next = end;
                        self.steps.push_back(Step::Lost { blocks, error: lost.error });
                        continue;
                    }
                },
            };
            self.plan_run(&run);
            self.run = Some(run);
        }
    }

    /// Plans one block, or one range of holes, of `run`.
    fn plan_run(&mut self, run: &Run) {
        let start = self.next;
        let end = run.blocks().end.min(self.end);
        if run.is_hole() {
            self.next = end;
            self.steps.push_back(Step::Hole(start..end));
            return;
        }
        let pointer = run.pointer(start);
        if pointer.is_hole() {
            let mut hole_end = start + 1;
            while hole_end < end && run.pointer(hole_end).is_hole() {
                hole_end += 1;
            }
            self.next = hole_end;
            self.steps.push_back(Step::Hole(start..hole_end));
            return;
        }
        self.next = start + 1;
        let step = self.start_block(start, pointer);
        self.steps.push_back(step);
    }

    fn start_block(&mut self, blkid: u64, pointer: BlockPtr) -> Step {
        if let Some(data) = self.dnode.cached(&pointer)
            && data.len() as u64 == self.dnode.geometry().block_size
        {
            return Step::Ready { blkid, data };
        }
        let weight = self.dnode.geometry().block_size.max(BLOCK_WEIGHT_MIN);
        self.in_flight += weight;
        let (dnode, bypass) = (Arc::clone(&self.dnode), self.bypass_cache);
        let task =
            cenote_rt::spawn(async move { dnode.read_pointer(&pointer, 0, blkid, bypass).await });
        Step::Block { blkid, weight, task }
    }

    /// Fetches the indirect block behind `run`, which is needed next.
    async fn prefetch_behind(&self, run: &Run) {
        let behind = run.blocks().end;
        if behind < self.end && !run.is_hole() && self.dnode.geometry().levels > 1 {
            let parent = self.dnode.geometry().ancestor(behind, 0, 1);
            self.dnode.prefetch_block(1, parent).await;
        }
    }

    fn merge_holes(&mut self, mut blocks: Range<u64>) -> Range<u64> {
        while let Some(Step::Hole(more)) = self.steps.front() {
            if more.start != blocks.end {
                break;
            }
            blocks.end = more.end;
            self.steps.pop_front();
        }
        blocks
    }

    fn clip(&self, blocks: Range<u64>) -> Range<u64> {
        let size = self.dnode.geometry().block_size;
        let start = blocks.start.saturating_mul(size).max(self.bytes.start);
        let end = blocks.end.saturating_mul(size).min(self.bytes.end);
        start..end.max(start)
    }

    fn hole(&self, blocks: Range<u64>) -> Option<Extent> {
        let bytes = self.clip(blocks);
        let len = bytes.end - bytes.start;
        (len > 0).then_some(Extent { offset: bytes.start, len, data: None })
    }

    fn piece(&self, blkid: u64, data: &Buf) -> Extent {
        let size = self.dnode.geometry().block_size;
        let bytes = self.clip(blkid..blkid + 1);
        let base = blkid.saturating_mul(size);
        let inside = (bytes.start - base) as usize..(bytes.end - base) as usize;
        // The length of every block was checked when it was read.
        let data = data.slice(inside).unwrap_or_else(Buf::empty);
        Extent { offset: bytes.start, len: data.len() as u64, data: Some(data) }
    }

    fn lost(&self, blocks: Range<u64>, error: Error) -> Lost {
        let bytes = self.clip(blocks);
        Lost { offset: bytes.start, len: bytes.end - bytes.start, error }
    }
}
