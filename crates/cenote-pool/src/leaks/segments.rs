//! Claimed space: segments of all vdevs in a window of limited size; the rest is for a later pass.
//!
//! Adjacent segments are joined, so that memory grows with the number of gaps, not of blocks. If
//! the segments still do not fit, the window is cut at the middle segment, and the next pass starts
//! there.

use std::ops::Range;

use crate::spacemaps::RangeSet;

/// An address in the pool: vdev and offset.
pub(super) type Address = (u64, u64);

/// A range on a vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// Top-level vdev.
    pub vdev: u64,
    /// First byte.
    pub start: u64,
    /// End, exclusive.
    pub end: u64,
}

/// The claims of one pass in its window.
#[derive(Debug)]
pub(super) struct Claims {
    window: Range<Address>,
    /// Sorted, disjoint and not adjacent.
    held: Vec<Segment>,
    pending: Vec<Segment>,
    limit: usize,
    /// Segments that were claimed more than once.
    pub(super) doubles: Vec<Segment>,
}

/// Minimum number of unsorted segments.
const PENDING_MIN: usize = 1 << 14;

impl Claims {
    /// Creates an empty window that begins at `start`, for at most `limit` segments.
    pub(super) fn new(start: Address, limit: usize) -> Self {
        let window = start..(u64::MAX, u64::MAX);
        let limit = limit.max(PENDING_MIN);
        Self { window, held: Vec::new(), pending: Vec::new(), limit, doubles: Vec::new() }
    }

    /// Returns the current end of the window.
    pub(super) fn end(&self) -> Address {
        self.window.end
    }

    /// Returns the part of a segment inside the window.
    pub(super) fn clip(&self, segment: Segment) -> Option<Segment> {
        let Segment { vdev, mut start, mut end } = segment;
        if vdev < self.window.start.0 || vdev > self.window.end.0 {
            return None;
        }
        if vdev == self.window.start.0 {
            start = start.max(self.window.start.1);
        }
        if vdev == self.window.end.0 {
            end = end.min(self.window.end.1);
        }
        (start < end).then_some(Segment { vdev, start, end })
    }

    pub(super) fn claim(&mut self, vdev: u64, start: u64, size: u64) {
        let segment = Segment { vdev, start, end: start.saturating_add(size) };
        if let Some(segment) = self.clip(segment) {
            self.pending.push(segment);
            if self.pending.len() >= PENDING_MIN.max(self.held.len() / 2) {
                self.settle();
            }
        }
    }

    /// Sorts in all pending segments and returns the result.
    pub(super) fn finish(&mut self) -> &[Segment] {
        self.settle();
        &self.held
    }

    /// Returns the claimed part of a range; call after [`Self::finish`].
    pub(super) fn within(&self, vdev: u64, range: Range<u64>) -> RangeSet {
        let key = (vdev, range.start);
        let first = self.held.partition_point(|segment| (segment.vdev, segment.end) <= key);
        let mut found = RangeSet::default();
        for segment in &self.held[first..] {
            if segment.vdev != vdev || segment.start >= range.end {
                break;
            }
            found.add(segment.start.max(range.start)..segment.end.min(range.end));
        }
        found
    }

    fn settle(&mut self) {
        let mut all = std::mem::take(&mut self.held);
        all.append(&mut self.pending);
        all.sort_unstable();
        for segment in all {
            match self.held.last_mut() {
                Some(last) if last.vdev == segment.vdev && segment.start <= last.end => {
                    if segment.start < last.end {
                        let end = segment.end.min(last.end);
                        self.doubles.push(Segment { end, ..segment });
                    }
                    last.end = last.end.max(segment.end);
                }
                _ => self.held.push(segment),
            }
        }
        if self.held.len() > self.limit {
            let middle = self.held[self.held.len() / 2];
            self.window.end = (middle.vdev, middle.start);
            self.held.truncate(self.held.len() / 2);
            let end = self.window.end;
            self.doubles.retain(|double| (double.vdev, double.start) < end);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_segments_join_and_double_claims_are_reported() {
        let mut claims = Claims::new((0, 0), 100);
        for (start, size) in [(0, 10), (20, 10), (10, 10), (25, 10), (50, 1)] {
            claims.claim(3, start, size);
        }
        let seg = |start, end| Segment { vdev: 3, start, end };
        assert_eq!(claims.finish(), [seg(0, 35), seg(50, 51)]);
        assert_eq!(claims.doubles, [seg(25, 30)]);
    }

    #[test]
    fn passes_cover_every_segment_once() {
        let all: Vec<u64> = (0..100_000).map(|i| i * 1024).collect();
        let (mut start, mut found, mut passes) = ((0, 0), Vec::new(), 0);
        while start < (u64::MAX, u64::MAX) {
            let mut claims = Claims::new(start, PENDING_MIN);
            for offset in &all {
                claims.claim(0, *offset, 512);
            }
            found.extend(claims.finish().iter().map(|segment| segment.start));
            assert!(claims.doubles.is_empty());
            start = claims.end();
            passes += 1;
        }
        assert!(passes > 3);
        assert_eq!(found, all);
    }
}
