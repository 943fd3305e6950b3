//! Reads a volume: its data, and its holes.
//!
//! Invariants
//! * D3  The extents of a volume are not empty and follow each other.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_dmu::TxResult;
use cenote_dmu::live::Piece;
use cenote_ondisk::master_node::ZVOL_OBJ;
use cenote_rt::{Buf, BufMut, Result, ensure};

use super::writable::{WritableVolume, span};

/// Blocks that are looked up and read together.
const BATCH: u64 = 64;
/// Maximum runs per lookup, and extents per answer.
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
    /// Reads `len` bytes from `offset` on.
    ///
    /// # Errors
    /// `Kind::Invalid` with [`FsError::BehindEnd`](crate::FsError::BehindEnd) if the range reaches
    /// beyond the end of the volume; read errors.
    pub async fn read(&self, offset: u64, len: usize) -> Result<Buf> {
        let since = cenote_rt::monotonic();
        let _lock = self.locks.shared(span(offset, len as u64)).await;
        let range = self.check(offset, len as u64)?;
        if range.is_empty() {
            return Ok(Buf::empty());
        }
        let bytes = self.read_range(range, len).await?;
        self.head.activity().read(ZVOL_OBJ, offset, len as u64, since);
        Ok(bytes)
    }

    async fn read_range(&self, range: Range<u64>, len: usize) -> Result<Buf> {
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

    /// Returns the present blocks; `None` for holes. `request` is the client's request, reported
    /// once to the read-ahead.
    async fn blocks(
        &self,
        blocks: Range<u64>,
        request: Option<&Range<u64>>,
    ) -> Result<Vec<Option<Buf>>> {
        let live = self.head.live();
        let is_told = AtomicBool::new(request.is_none());
        let find = || {
            live.inspect(|tx| {
                let pieces = blocks.clone().map(|number| tx.peek(ZVOL_OBJ, number));
                let pieces = pieces.collect::<TxResult<Vec<_>>>()?;
                if let Some(request) = request.filter(|_| !is_told.swap(true, Ordering::Relaxed)) {
                    let waits = pieces.iter().any(|piece| matches!(piece, Piece::Stored(_)));
                    self.ahead.note(tx, ZVOL_OBJ, request.clone(), waits);
                }
                Ok((pieces, ()))
            })
        };
        let (found, wanted) = (live.gather(find).await?.0, blocks.end - blocks.start);
        let count = found.len() as u64;
        ensure!("D1", count == wanted, "{count} of {wanted} blocks of a volume");
        Ok(found)
    }

    /// Returns data and holes from `offset` on; adjacent extents differ. The answer starts at the
    /// beginning of the range and may end early if there are very many extents.
    ///
    /// # Errors
    /// The errors of [`read`](Self::read).
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
                ensure!("D3", end > at, "an extent ends at {end} and begins at {at}");
                at = end;
            }
        }
        Ok(extents)
    }
}

/// Returns the part of a range within a block.
fn within(range: &Range<u64>, block: u64, size: u64) -> Range<usize> {
    let start = range.start.saturating_sub(block * size).min(size);
    let end = range.end.saturating_sub(block * size).min(size);
    start as usize..end as usize
}
