//! Changing a volume.
//!
//! ```text
//!   request ── cut at multiples of 1 MiB ── blocks copied ──> one transaction each, one record
//! ```
//!
//! A small write that is to be durable at once is kept with its record; the data of others is taken
//! from the volume when the record is written.
//!
//! A block that is covered whole is not read; of others the rest is, inside the transaction. A
//! block of zeros becomes a hole when it is written, if compression is on, as with OpenZFS.

use std::ops::Range;

use cenote_dmu::{Tx, TxResult};
use cenote_engine::Charge;
use cenote_engine::zil::LogRecord;
use cenote_ondisk::master_node::ZVOL_OBJ;
use cenote_rt::{Buf, BufMut, Result};

use super::writable::{WritableVolume, span};

/// Bytes of a transaction, unless a block is larger.
const TRANSACTION: u64 = 1 << 20;
/// Blocks of a transaction that frees.
const FREED_MAX: u64 = 16_384;
/// What a transaction that frees is charged beside the edges.
const FREE_CHARGE: u64 = 128 << 10;

/// What a transaction does to the blocks.
enum Part {
    /// A whole block.
    Block(u64, Buf),
    /// Bytes inside one.
    Bytes(u64, Buf),
}

impl WritableVolume {
    /// Writes `bufs` one behind the other from `offset` on. With `is_fua` they are durable when
    /// this returns.
    ///
    /// # Errors
    /// `Kind::Invalid` with [`FsError::BehindEnd`](crate::FsError::BehindEnd) if the volume ends
    /// before: nothing is written then. `Kind::NoSpace`: the beginning may be written.
    pub async fn write(&self, offset: u64, bufs: Vec<Buf>, is_fua: bool) -> Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        {
            let _lock = self.locks.exclusive(span(offset, len as u64)).await;
            let range = self.check(offset, len as u64)?;
            if range.is_empty() {
                return Ok(());
            }
            let log = self.head.log();
            let is_kept = log.must_commit(is_fua) && log.wants_data(len as u64);
            let mut bufs = Bufs { bufs: bufs.into(), at: 0 };
            for range in cut(range, TRANSACTION.max(self.block_size())) {
                self.write_part(range, &mut bufs, is_kept).await?;
            }
            self.head.activity().written(len as u64);
        }
        self.settle(is_fua).await
    }

    async fn write_part(&self, range: Range<u64>, bufs: &mut Bufs, is_kept: bool) -> Result<()> {
        let size = self.block_size();
        let mut parts = Vec::new();
        for piece in cut(range.clone(), size) {
            let data = bufs.take((piece.end - piece.start) as usize);
            parts.push(if piece.end - piece.start == size {
                Part::Block(piece.start / size, data)
            } else {
                Part::Bytes(piece.start, data)
            });
        }
        let data = match &parts[..] {
            [Part::Bytes(_, data) | Part::Block(_, data)] if is_kept => Some(data.clone()),
            _ => None,
        };
        let len = range.end - range.start;
        let record = data.map_or_else(
            || LogRecord::write_later(ZVOL_OBJ, range.start, len),
            |data| LogRecord::write(ZVOL_OBJ, range.start, data),
        );
        let charge = Charge::write(0).with_blocks(parts.len() as u64, size);
        self.change(charge, record, |tx| {
            for part in &parts {
                match part {
                    Part::Block(number, data) => tx.write_block(ZVOL_OBJ, *number, data.clone())?,
                    Part::Bytes(at, data) => tx.write(ZVOL_OBJ, *at, data)?,
                }
            }
            Ok(())
        })
        .await
    }

    async fn change(
        &self,
        charge: Charge,
        record: LogRecord,
        mut change: impl FnMut(&mut Tx<'_>) -> TxResult<()>,
    ) -> Result<()> {
        let changed = self.engine.apply_charged_logged(&self.head, charge, |tx| {
            change(tx)?;
            Ok(((), vec![record.clone()]))
        });
        changed.await.map(drop)
    }

    /// Frees the blocks that lie in the range as a whole. What is left at its edges stays as it is.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn discard(&self, offset: u64, len: u64) -> Result<()> {
        {
            let _lock = self.locks.exclusive(span(offset, len)).await;
            let range = self.check(offset, len)?;
            let size = self.block_size();
            let (start, end) = (range.start.next_multiple_of(size), range.end / size * size);
            if start >= end {
                return Ok(());
            }
            self.free(start..end).await?;
        }
        self.settle(false).await
    }

    /// Makes the range zeros, and frees what it can. With `no_hole` nothing is freed: the zeros are
    /// written, which keeps their space if compression is off.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn write_zeroes(
        &self,
        offset: u64,
        len: u64,
        no_hole: bool,
        is_fua: bool,
    ) -> Result<()> {
        {
            let _lock = self.locks.exclusive(span(offset, len)).await;
            let range = self.check(offset, len)?;
            if range.is_empty() {
                return Ok(());
            }
            if no_hole {
                let size = self.block_size();
                // One block for all: zeros take their space on disk only.
                let zeros = BufMut::zeroed(size as usize).freeze();
                for range in cut(range, TRANSACTION.max(size)) {
                    let pieces = cut(range.clone(), size).map(|piece| piece.end - piece.start);
                    let pieces = pieces.filter_map(|len| zeros.slice(0..len as usize));
                    let mut bufs = Bufs { bufs: pieces.collect(), at: 0 };
                    self.write_part(range, &mut bufs, false).await?;
                }
            } else {
                self.free(range).await?;
            }
        }
        self.settle(is_fua).await
    }

    /// Frees a range; of blocks at its edges, the part inside becomes zeros.
    async fn free(&self, range: Range<u64>) -> Result<()> {
        let size = self.block_size();
        for part in cut(range, FREED_MAX * size) {
            let (start, len) = (part.start, part.end - part.start);
            let has_edges = !part.start.is_multiple_of(size) || !part.end.is_multiple_of(size);
            let edges = if has_edges { 2 * size } else { 0 };
            let charge = Charge::free(FREE_CHARGE + edges);
            let freed = self.engine.apply_charged_logged(&self.head, charge, |tx| {
                tx.free_range(ZVOL_OBJ, start, Some(len))?;
                Ok(((), vec![LogRecord::truncate(ZVOL_OBJ, start, len)]))
            });
            freed.await?;
        }
        Ok(())
    }

    /// Makes a change durable if that was asked for, here or by the property `sync`.
    async fn settle(&self, is_fua: bool) -> Result<()> {
        if self.head.log().must_commit(is_fua) {
            self.flush().await?;
        }
        Ok(())
    }
}

/// A range in parts that end at multiples of `unit`.
fn cut(range: Range<u64>, unit: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = (at / unit).saturating_add(1).saturating_mul(unit).min(range.end);
        let part = at..end;
        at = end;
        (!part.is_empty()).then_some(part)
    })
}

/// Buffers that are taken from the front, whatever their borders.
struct Bufs {
    bufs: std::collections::VecDeque<Buf>,
    /// What of the first is gone.
    at: usize,
}

impl Bufs {
    /// The next `len` bytes: a buffer itself if it is just that, else a copy, so that no part of
    /// a long buffer keeps all of it in memory.
    fn take(&mut self, len: usize) -> Buf {
        let is_whole = |buf: &Buf| buf.len() == len && !buf.is_slice();
        if self.at == 0 && self.bufs.front().is_some_and(is_whole) {
            return self.bufs.pop_front().unwrap_or_else(Buf::empty);
        }
        let mut taken = BufMut::for_filling(len);
        let mut done = 0;
        while done < len {
            let Some(buf) = self.bufs.front() else { break };
            let count = (buf.len() - self.at).min(len - done);
            taken[done..done + count].copy_from_slice(&buf[self.at..self.at + count]);
            (done, self.at) = (done + count, self.at + count);
            if self.at == buf.len() {
                self.bufs.pop_front();
                self.at = 0;
            }
        }
        taken.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_at_multiples() {
        assert_eq!(cut(5..17, 8).collect::<Vec<_>>(), [5..8, 8..16, 16..17]);
        assert!(cut(8..16, 8).eq(std::iter::once(8..16)));
        assert_eq!(cut(3..3, 8).count(), 0);
        assert_eq!(cut(u64::MAX - 9..u64::MAX, 1 << 20).count(), 1);
    }

    #[test]
    fn buffers_are_taken_across_their_borders() {
        let bytes: Vec<u8> = (0..100).collect();
        let part = |range: Range<usize>| Buf::from(bytes[range].to_vec());
        let bufs = [part(0..10), part(10..10), part(10..70), part(70..100)];
        let mut bufs = Bufs { bufs: bufs.into(), at: 0 };
        let mut taken = Vec::new();
        for len in [10, 3, 60, 27] {
            let buf = bufs.take(len);
            assert_eq!(buf.len(), len);
            taken.extend_from_slice(&buf);
        }
        assert_eq!(taken, bytes);
    }
}
