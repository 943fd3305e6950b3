//! Writes of a leaf since its last flush, buffered until a flush has succeeded.
//!
//! ```text
//!   a write returns ──> pending ──a flush begins──> flushing ──it succeeds──> dropped
//!                                                      `── it fails, or its future is dropped:
//!                                                          the next flush includes the batch
//! ```
//!
//! A device that loses its cache (power, a reset, a cable) loses writes that had returned. The
//! layers above cannot write them again: a syncing txg does not keep the contents of the blocks
//! that it wrote early. So the leaf keeps the buffers until a flush says that they are durable;
//! after a failure every write is suspect, and all are written again before the next flush, but for
//! what a later one overwrote: a reader must not find the bytes of an earlier sync pass, not even
//! for a moment. For the same reason a write that began on an earlier device of the leaf returns
//! only when the present device has it too. Buffers are shared, and their total is bounded: a flush
//! is started when it exceeds [`tunables::UNFLUSHED_MAX`], and if that fails, the leaf refuses
//! further writes.
//!
//! Invariants
//! * U1  A flush that succeeds ends a batch that a flush has begun.
//! * U2  The bytes of a batch are the sum over its writes.
//!
//! A leaf that is taken out of service does not need its buffers: its dirty time log has the txgs.

use std::ops::Range;

use cenote_ranges::RangeSet;
use cenote_rt::tunables;

use crate::dtl::TxgRanges;
use crate::leaf::{Content, Part};

/// Writes that returned and may still be in a cache of the device.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    /// Writes that returned since the last flush began.
    pending: Batch,
    /// Writes that the last flush covers, until it has succeeded.
    flushing: Batch,
    /// Whether the last flush failed.
    has_failed_flush: bool,
    /// Number of times that the buffers were dropped or the device changed.
    generation: u64,
}

/// Writes, and their state.
#[derive(Debug, Default)]
struct Batch {
    /// Whether there is anything to flush, labels and repairs included.
    needs_flush: bool,
    /// A write or flush failed: all of the writes may be lost, even if the next flush succeeds.
    is_suspect: bool,
    /// A write went to an earlier device of the leaf: the present one may have older bytes there.
    is_on_former_device: bool,
    /// The txgs of the writes.
    txgs: TxgRanges,
    writes: Vec<Vec<Part>>,
    bytes: u64,
}

/// A flush in progress.
#[derive(Debug)]
pub(crate) struct FlushInProgress {
    generation: u64,
    /// Whether the writes that it covers were suspect.
    pub(crate) is_suspect: bool,
    /// Buffered writes to repeat before the flush, the oldest first, without what later ones
    /// overwrote.
    pub(crate) writes: Vec<Vec<Part>>,
}

/// Result of a flush.
#[derive(Debug)]
pub(crate) enum FlushResult {
    /// All writes that it covers are durable.
    Durable,
    /// The flush failed: these txgs may be lost.
    Failed(TxgRanges),
    /// A write failed meanwhile, or the device changed: the flush proves nothing.
    Inconclusive,
}

impl Unflushed {
    /// Returns the state of a device that was just opened: an earlier process may have left writes
    /// in its cache, which can be read and are not durable.
    pub(crate) fn of_opened_device() -> Self {
        let pending = Batch { needs_flush: true, ..Batch::default() };
        Self { pending, ..Self::default() }
    }

    /// Number of times that the buffers were dropped or the device changed.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Records a write of `txg` that returned and began in `generation`; the contents of writes
    /// outside of any txg are not kept.
    pub(crate) fn record_write(&mut self, generation: u64, txg: Option<u64>, parts: Vec<Part>) {
        self.pending.needs_flush = true;
        let is_on_former_device = generation != self.generation;
        self.pending.is_suspect |= is_on_former_device;
        if let Some(txg) = txg {
            self.pending.is_on_former_device |= is_on_former_device;
            self.pending.txgs.insert(txg);
            self.pending.bytes += bytes_of(&parts);
            self.pending.writes.push(parts);
        }
    }

    /// Records a write of `txg` that failed: it may have been written in part, and the device may
    /// have lost its cache.
    pub(crate) fn record_failed_write(&mut self, txg: Option<u64>) {
        (self.pending.needs_flush, self.pending.is_suspect) = (true, true);
        if let Some(txg) = txg {
            self.pending.txgs.insert(txg);
        }
    }

    /// Whether buffered writes must be repeated before a flush proves anything.
    pub(crate) fn is_suspect(&self) -> bool {
        self.pending.is_suspect || self.flushing.is_suspect
    }

    /// Whether the writers must flush: the buffer exceeds its threshold, or a write went to an
    /// earlier device. Not if the last flush failed: the dirty time log has these txgs then, so
    /// that their blocks are read elsewhere.
    pub(crate) fn is_flush_due(&self) -> bool {
        let is_elsewhere = self.pending.is_on_former_device || self.flushing.is_on_former_device;
        let is_too_much = self.pending.bytes > tunables::UNFLUSHED_MAX.get();
        !self.has_failed_flush && (is_elsewhere || is_too_much)
    }

    /// Whether the buffer is full and flushes fail, so that no more writes are accepted.
    pub(crate) fn is_full(&self) -> bool {
        self.has_failed_flush
            && self.pending.bytes + self.flushing.bytes > tunables::UNFLUSHED_MAX.get()
    }

    /// Begins a flush of all writes, if there are any. One flush at a time.
    pub(crate) fn begin_flush(&mut self) -> Option<FlushInProgress> {
        let earlier = std::mem::take(&mut self.flushing);
        self.flushing = earlier.followed_by(std::mem::take(&mut self.pending));
        let Batch { needs_flush, is_suspect, writes, .. } = &self.flushing;
        needs_flush.then(|| FlushInProgress {
            generation: self.generation,
            is_suspect: *is_suspect,
            writes: if *is_suspect { without_overwritten(writes) } else { Vec::new() },
        })
    }

    /// Records how a flush ended.
    pub(crate) fn finish_flush(&mut self, flush: &FlushInProgress, is_ok: bool) -> FlushResult {
        if flush.generation != self.generation {
            return FlushResult::Inconclusive;
        }
        // Checks U1: otherwise writes would count as durable that no flush covered.
        assert!(self.flushing.needs_flush, "a flush ends that has not begun");
        let (bytes, sum) = (self.flushing.bytes, self.flushing.sum());
        // Checks U2: otherwise the bound of the buffer would not hold.
        assert!(bytes == sum, "{bytes} bytes are counted for writes of {sum} bytes");
        if is_ok && !self.pending.is_suspect {
            self.flushing = Batch::default();
            self.has_failed_flush = false;
            return FlushResult::Durable;
        }
        // The device may have written any part of them, so all are written again.
        self.flushing.is_suspect = true;
        if is_ok {
            return FlushResult::Inconclusive;
        }
        self.has_failed_flush = true;
        FlushResult::Failed(self.flushing.txgs.clone())
    }

    /// Drops all buffers; returns the txgs that are missing as a result.
    pub(crate) fn drop_all(&mut self) -> TxgRanges {
        let (pending, flushing) =
            (std::mem::take(&mut self.pending), std::mem::take(&mut self.flushing));
        self.has_failed_flush = false;
        self.generation += 1;
        flushing.followed_by(pending).txgs
    }

    /// The leaf got another device, which may lack the buffered writes. It may also have writes in
    /// its cache that were dropped here when the leaf left service.
    pub(crate) fn device_changed(&mut self) {
        self.generation += 1;
        self.pending.is_suspect |= self.pending.needs_flush || self.flushing.needs_flush;
        self.pending.needs_flush = true;
    }
}

impl Batch {
    /// Concatenates two batches; `later` is the younger one.
    fn followed_by(mut self, mut later: Self) -> Self {
        self.needs_flush |= later.needs_flush;
        self.is_suspect |= later.is_suspect;
        self.is_on_former_device |= later.is_on_former_device;
        self.txgs = self.txgs.union(&later.txgs);
        self.writes.append(&mut later.writes);
        self.bytes += later.bytes;
        self
    }

    fn sum(&self) -> u64 {
        self.writes.iter().map(|parts| bytes_of(parts)).sum()
    }
}

/// Returns `writes` without the bytes that a later one of them overwrites. Padding that a later
/// write overlaps is left out whole.
fn without_overwritten(writes: &[Vec<Part>]) -> Vec<Vec<Part>> {
    let mut overwritten = RangeSet::new();
    let mut last: Vec<Vec<Part>> = Vec::with_capacity(writes.len());
    for parts in writes.iter().rev() {
        let left: Vec<Part> = parts.iter().flat_map(|part| left_of(part, &overwritten)).collect();
        for part in parts.iter().filter(|part| !part.is_pad()) {
            overwritten.add(range_of(part));
        }
        if !left.is_empty() {
            last.push(left);
        }
    }
    last.reverse();
    last
}

/// Returns what `overwritten` leaves of a part.
fn left_of(part: &Part, overwritten: &RangeSet) -> Vec<Part> {
    let range = range_of(part);
    let mut left: RangeSet = [range.clone()].into_iter().collect();
    for gone in overwritten.within(&range) {
        left.remove(gone);
    }
    match &part.content {
        Content::Data(data) => left
            .iter()
            .map(|kept| {
                let within = (kept.start - range.start) as usize..(kept.end - range.start) as usize;
                Part::data(kept.start, data.slice(within).expect("within the part"))
            })
            .collect(),
        Content::Pad(len) if left.bytes() == *len => vec![part.clone()],
        Content::Pad(_) => Vec::new(),
    }
}

fn range_of(part: &Part) -> Range<u64> {
    part.offset..part.offset + part.len()
}

fn bytes_of(parts: &[Part]) -> u64 {
    parts.iter().filter(|part| !part.is_pad()).map(Part::len).sum()
}

#[cfg(test)]
mod tests {
    use cenote_rt::{Buf, Rng};

    use super::*;

    #[test]
    fn device_that_comes_back_is_flushed() {
        let mut unflushed = Unflushed::default();
        unflushed.record_write(0, None, Vec::new());
        // The leaf leaves service, and comes back.
        unflushed.drop_all();
        assert!(unflushed.begin_flush().is_none());
        unflushed.device_changed();
        let flush = unflushed.begin_flush().expect("the cache of the device is to be flushed");
        assert!(!flush.is_suspect && flush.writes.is_empty());
        assert!(matches!(unflushed.finish_flush(&flush, true), FlushResult::Durable));
        assert!(unflushed.begin_flush().is_none());
    }

    /// Random writes that overlap: what is repeated is the result of all, and no byte of it is of an
    /// earlier write.
    #[test]
    fn repeated_writes_have_only_the_last_bytes() {
        const LEN: usize = 64;
        for seed in 0..500 {
            let mut rng = Rng::seeded(seed);
            let mut unflushed = Unflushed::default();
            // The number of the write that wrote each byte last; 0 is padding, or nothing.
            let mut wanted = [0; LEN];
            for number in 1..=rng.below(12) as u8 {
                let mut at = rng.below(16) as usize;
                let mut parts = Vec::new();
                while at < LEN && rng.below(4) != 0 {
                    let len = (1 + rng.below(16) as usize).min(LEN - at);
                    if rng.below(4) == 0 {
                        parts.push(Part::pad(at as u64, len as u64));
                        wanted[at..at + len].fill(0);
                    } else {
                        parts.push(Part::data(at as u64, Buf::from(vec![number; len])));
                        wanted[at..at + len].fill(number);
                    }
                    at += len + rng.below(3) as usize;
                }
                unflushed.record_write(0, Some(5), parts);
            }
            unflushed.record_failed_write(Some(5));
            let flush = unflushed.begin_flush().expect("there are writes");
            let (mut found, mut data_at) = ([0; LEN], [false; LEN]);
            for part in flush.writes.iter().flatten() {
                let range = part.offset as usize..(part.offset + part.len()) as usize;
                match &part.content {
                    Content::Data(data) => {
                        assert!(!data_at[range.clone()].contains(&true), "seed {seed}: twice");
                        data_at[range.clone()].fill(true);
                        found[range].copy_from_slice(data);
                    }
                    Content::Pad(_) => found[range].fill(0),
                }
            }
            for (at, byte) in wanted.iter().enumerate() {
                assert!(*byte == 0 || found[at] == *byte, "seed {seed}: byte {at}: {found:?}");
            }
            assert!(matches!(unflushed.finish_flush(&flush, true), FlushResult::Durable));
        }
    }

    #[test]
    #[should_panic(expected = "512 bytes are counted for writes of 1024 bytes")]
    fn bytes_that_are_not_counted_are_found() {
        let mut unflushed = Unflushed::default();
        let part = Part { offset: 0, content: Content::Data(Buf::from(vec![0; 1024])) };
        unflushed.record_write(0, Some(5), vec![part]);
        unflushed.pending.bytes -= 512;
        let flush = unflushed.begin_flush().expect("a write");
        unflushed.finish_flush(&flush, true);
    }
}
