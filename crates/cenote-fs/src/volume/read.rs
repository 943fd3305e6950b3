//! Reading a volume: its bytes, and which of them are holes.

use std::ops::Range;

use cenote_dmu::Step;
use cenote_dmu::live::Missing;
use cenote_ondisk::master_node::ZVOL_OBJ;
use cenote_rt::{Buf, BufMut, FixedSet, Result};
use futures_util::stream::{self, StreamExt};

use super::writable::{WritableVolume, span};

/// Blocks that are looked at together, and of them those that are read at a time.
const BATCH: u64 = 64;
const READS_MAX: usize = 32;
/// Rounds of reading what is missing: one for each level of the tree.
const ROUNDS_MAX: usize = 7;
/// Runs that are looked for in one go, and extents of an answer.
const RUNS_MAX: usize = 256;
const EXTENTS_MAX: usize = 4096;

/// A part of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeExtent {
    /// Where it starts.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// Nothing is stored there: it reads as zeros.
    pub is_hole: bool,
}

impl WritableVolume {
    /// `len` bytes from `offset` on.
    ///
    /// # Errors
    /// `Kind::Invalid` with [`FsError::BehindEnd`](crate::FsError::BehindEnd) if the volume ends
    /// before; those of the blocks.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Buf> {
        let _lock = self.locks.shared(span(offset, len as u64)).await;
        let range = self.check(offset, len as u64)?;
        self.head.activity().read(len as u64);
        if range.is_empty() {
            return Ok(Buf::empty());
        }
        let size = self.block_size();
        let blocks = range.start / size..range.end.div_ceil(size);
        if blocks.end - blocks.start == 1 {
            let block = self.blocks(blocks.clone(), Some(&blocks)).await?.pop().flatten();
            let inside = within(&range, blocks.start, size);
            let part = block.and_then(|block| block.slice(inside));
            return Ok(part.unwrap_or_else(|| BufMut::zeroed(len).freeze()));
        }
        let mut bytes = BufMut::for_filling(len);
        let mut rest: &mut [u8] = &mut bytes;
        let mut first = blocks.start;
        while first < blocks.end {
            let last = blocks.end.min(first + BATCH);
            let request = (first == blocks.start).then_some(&blocks);
            for (number, block) in (first..last).zip(self.blocks(first..last, request).await?) {
                let inside = within(&range, number, size);
                let (part, behind) = rest.split_at_mut(inside.len().min(rest.len()));
                match block.as_deref().and_then(|block| block.get(inside)) {
                    Some(found) => part.copy_from_slice(found),
                    None => part.fill(0),
                }
                rest = behind;
            }
            first = last;
        }
        Ok(bytes.freeze())
    }

    /// Blocks as they are now; holes are none. What is not in memory is read together. `request`
    /// is what somebody asked for, told once.
    async fn blocks(
        &self,
        blocks: Range<u64>,
        request: Option<&Range<u64>>,
    ) -> Result<Vec<Option<Buf>>> {
        let live = self.head.live();
        for round in 0..ROUNDS_MAX {
            let (found, missing) = live
                .inspect(|tx| {
                    let (mut found, mut missing) = (Vec::new(), Vec::<Box<Missing>>::new());
                    for number in blocks.clone() {
                        match tx.block(ZVOL_OBJ, number) {
                            Ok(block) => found.push(block),
                            // Nothing is changed here: all that is needed can be asked for at once.
                            Err(Step::Need(need)) => missing.push(need),
                            Err(error) => return Err(error),
                        }
                    }
                    if let Some(request) = request.filter(|_| round == 0) {
                        self.ahead.note(tx, ZVOL_OBJ, request.clone(), !missing.is_empty());
                    }
                    Ok((found, missing))
                })
                .await?;
            if missing.is_empty() {
                return Ok(found);
            }
            let mut seen = FixedSet::default();
            let wanted = missing.into_iter().filter(|need| seen.insert(need.pointer));
            let reads = wanted.map(|need| live.blocks().read(need.pointer, need.place));
            // Into the cache. What fails, or was replaced meanwhile, is met again below.
            stream::iter(reads).for_each_concurrent(READS_MAX, async |read| drop(read.await)).await;
        }
        let mut found = Vec::new();
        for number in blocks {
            found.push(live.inspect(|tx| tx.block(ZVOL_OBJ, number)).await?);
        }
        Ok(found)
    }

    /// What is data and what is hole, from `offset` on; neighbours differ. The answer covers the
    /// range from its beginning and may end early, if there is very much to tell.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn block_status(&self, offset: u64, len: u64) -> Result<Vec<VolumeExtent>> {
        let _lock = self.locks.shared(span(offset, len)).await;
        let range = self.check(offset, len)?;
        let size = self.block_size();
        let mut extents: Vec<VolumeExtent> = Vec::new();
        let mut at = range.start;
        while at < range.end && extents.len() < EXTENTS_MAX {
            let runs = self.head.live().inspect(|tx| {
                let (mut runs, mut block) = (Vec::new(), at / size);
                while block * size < range.end && runs.len() < RUNS_MAX {
                    let max = range.end.div_ceil(size) - block;
                    let run = tx.run(ZVOL_OBJ, block, max)?;
                    block += run.count;
                    runs.push((run.is_data, block));
                }
                Ok(runs)
            });
            for (is_data, end) in runs.await? {
                let end = end.saturating_mul(size).min(range.end);
                match extents.last_mut() {
                    Some(last) if last.is_hole != is_data => last.len = end - last.offset,
                    _ => {
                        let extent = VolumeExtent { offset: at, len: end - at, is_hole: !is_data };
                        extents.push(extent);
                    }
                }
                at = end;
            }
        }
        Ok(extents)
    }
}

/// The bytes of a range in a block.
fn within(range: &Range<u64>, block: u64, size: u64) -> Range<usize> {
    let start = range.start.saturating_sub(block * size).min(size);
    let end = range.end.saturating_sub(block * size).min(size);
    start as usize..end as usize
}
