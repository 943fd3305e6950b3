//! Claimed space: segments of all vdevs, as many as fit, the others in a later pass.
//!
//! Neighbours are joined, so that memory goes with the number of gaps and not of blocks. When the
//! segments do not fit all the same, the upper half of the address space is put off: the window
//! ends where the middle segment begins, and the next pass starts there.

use std::ops::Range;

use crate::spacemaps::RangeSet;

/// A byte of the pool: vdev and offset.
pub(super) type Address = (u64, u64);

/// Space on one vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Segment {
    /// Top-level vdev.
    pub vdev: u64,
    /// First byte.
    pub start: u64,
    /// Byte behind the last.
    pub end: u64,
}

/// The window of one pass, and what was claimed in it.
#[derive(Debug)]
pub(super) struct Claims {
    window: Range<Address>,
    /// Sorted, disjoint, not touching.
    held: Vec<Segment>,
    pending: Vec<Segment>,
    limit: usize,
    /// What was claimed more than once.
    pub(super) doubles: Vec<Segment>,
}

/// Segments that wait to be sorted in.
const PENDING_MIN: usize = 1 << 14;

impl Claims {
    /// An empty window from `start` on, for at most `limit` segments.
    pub(super) fn new(start: Address, limit: usize) -> Self {
        let window = start..(u64::MAX, u64::MAX);
        let limit = limit.max(PENDING_MIN);
        Self { window, held: Vec::new(), pending: Vec::new(), limit, doubles: Vec::new() }
    }

    /// Where the window ends by now.
    pub(super) fn end(&self) -> Address {
        self.window.end
    }

    /// The part of a segment that lies in the window.
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

    /// The segments, once all are claimed.
    pub(super) fn finish(&mut self) -> &[Segment] {
        self.settle();
        &self.held
    }

    /// What was claimed of a range, once all is settled.
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
    fn neighbours_join_and_doubles_are_told() {
        let mut claims = Claims::new((0, 0), 100);
        for (start, size) in [(0, 10), (20, 10), (10, 10), (25, 10), (50, 1)] {
            claims.claim(3, start, size);
        }
        let seg = |start, end| Segment { vdev: 3, start, end };
        assert_eq!(claims.finish(), [seg(0, 35), seg(50, 51)]);
        assert_eq!(claims.doubles, [seg(25, 30)]);
    }

    #[test]
    fn passes_cover_everything_once() {
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
