//! Writes, discards and zeroes ranges of a volume.
//!
//! ```text
//!   request ── cut at multiples of 1 MiB ── blocks copied ──> one transaction each, one record
//! ```
//!
//! The data of a small write that must be durable at once is kept with its log record; for other
//! writes the log reads the data from the volume when it writes the record.
//!
//! A block that is written entirely is not read; partly written blocks are read inside the
//! transaction. With compression, a block of zeros becomes a hole when it is synced, as in OpenZFS.

use std::ops::Range;

use cenote_dmu::{Tx, TxResult};
use cenote_engine::zil::LogRecord;
use cenote_engine::{ApplyOptions, Charge};
use cenote_ondisk::master_node::ZVOL_OBJ;
use cenote_rt::{Buf, BufMut, Result, ensure};

use super::writable::{WritableVolume, span};

/// Bytes per transaction, unless a block is larger.
const TRANSACTION: u64 = 1 << 20;
/// Blocks per freeing transaction.
const FREED_MAX: u64 = 16_384;
/// Charge of a freeing transaction, without the partial blocks at its ends.
const FREE_CHARGE: u64 = 128 << 10;

/// A change of a block by a transaction.
enum Part {
    /// A whole block.
    Block(u64, Buf),
    /// Bytes within a block.
    Bytes(u64, Buf),
}

impl Part {
    fn len(&self) -> u64 {
        match self {
            Self::Block(_, data) | Self::Bytes(_, data) => data.len() as u64,
        }
    }
}

impl WritableVolume {
    /// Writes `bufs` one after the other from `offset` on. With `is_fua` they are durable when this
    /// returns.
    ///
    /// # Errors
    /// `Kind::Invalid` with [`FsError::BehindEnd`](crate::FsError::BehindEnd) if the range reaches
    /// beyond the end of the volume: nothing is then written. `Kind::NoSpace`: the beginning may
    /// have been written.
    pub async fn write(&self, offset: u64, bufs: Vec<Buf>, is_fua: bool) -> Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let since = cenote_rt::monotonic();
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
            self.head.activity().written(ZVOL_OBJ, offset, len as u64, since);
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
        let cut: u64 = parts.iter().map(Part::len).sum();
        ensure!("D2", cut == len, "{cut} of {len} bytes for a volume");
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
        let changed = self.engine.apply(&self.head, ApplyOptions::charged(charge).logged(), |tx| {
            change(tx)?;
            Ok(((), self.head.log().append(tx, vec![record.clone()])?))
        });
        changed.await.map(drop)
    }

    /// Frees the blocks that are entirely within the range. Partial blocks at its ends are
    /// unchanged.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
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

    /// Zeroes the range, and frees whole blocks. With `no_hole` the zeros are written instead,
    /// which allocates their space if compression is off.
    ///
    /// # Errors
    /// The errors of [`write`](Self::write).
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
                // All blocks share one buffer of zeros.
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

    /// Frees a range; the parts of blocks at its ends are zeroed.
    async fn free(&self, range: Range<u64>) -> Result<()> {
        let size = self.block_size();
        for part in cut(range, FREED_MAX * size) {
            let (start, len) = (part.start, part.end - part.start);
            let has_edges = !part.start.is_multiple_of(size) || !part.end.is_multiple_of(size);
            let edges = if has_edges { 2 * size } else { 0 };
            let charge = Charge::free(FREE_CHARGE + edges);
            let freed =
                self.engine.apply(&self.head, ApplyOptions::charged(charge).logged(), |tx| {
                    tx.free_range(ZVOL_OBJ, start, Some(len))?;
                    let record = LogRecord::truncate(ZVOL_OBJ, start, len);
                    Ok(((), self.head.log().append(tx, vec![record])?))
                });
            freed.await?;
        }
        Ok(())
    }

    /// Makes a change durable if the request or the property `sync` demands it.
    async fn settle(&self, is_fua: bool) -> Result<()> {
        if self.head.log().must_commit(is_fua) {
            self.flush().await?;
        }
        Ok(())
    }
}

/// Splits a range at multiples of `unit`.
fn cut(range: Range<u64>, unit: u64) -> impl Iterator<Item = Range<u64>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = (at / unit).saturating_add(1).saturating_mul(unit).min(range.end);
        let part = at..end;
        at = end;
        (!part.is_empty()).then_some(part)
    })
}

/// Buffers that are consumed from the front, across their boundaries.
struct Bufs {
    bufs: std::collections::VecDeque<Buf>,
    /// Consumed bytes of the first buffer.
    at: usize,
}

impl Bufs {
    /// Returns the next `len` bytes: a whole buffer if it has that length, else a copy, so that a
    /// part does not keep a long buffer in memory.
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
