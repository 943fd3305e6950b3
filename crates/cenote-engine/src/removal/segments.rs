//! Divides allocated ranges into segments that are copied in one piece.
//!
//! ```text
//!   allocated   [======]  [===]          [==============================]
//!   segments    |_____________|          |______________|_______________|
//!                     gap of at most the span           longest segment
//! ```
//!
//! Fewer segments need fewer entries of the mapping. A gap is copied too, and its copy is free.

use std::ops::Range;

use cenote_ranges::RangeSet;

/// Limits of segments, in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SegmentLimits {
    /// The longest gap.
    pub(super) span: u64,
    /// The longest segment, a multiple of the sector.
    pub(super) len: u64,
}

/// Returns the segments of `live`, ascending: each begins and ends with an allocated byte.
pub(super) fn segments(live: &RangeSet, limits: SegmentLimits) -> Vec<Range<u64>> {
    let mut segments: Vec<Range<u64>> = Vec::new();
    for range in live.iter() {
        let mut left = range;
        if let Some(last) = segments.last_mut()
            && left.start - last.end <= limits.span
            && left.start - last.start < limits.len
        {
            last.end = left.end.min(last.start + limits.len);
            left.start = last.end;
        }
        while left.start < left.end {
            let end = left.end.min(left.start + limits.len);
            segments.push(left.start..end);
            left.start = end;
        }
    }
    segments
}

/// Returns where a segment is cut for which no place is free: in half, or at the end of an
/// allocated range in its second quarter. `None` if it is one sector.
pub(super) fn cut(segment: &Range<u64>, live: &RangeSet, sector: u64) -> Option<u64> {
    let len = segment.end - segment.start;
    if len <= sector {
        return None;
    }
    let half = segment.start + (len / 2 / sector * sector).max(sector);
    let ends = live.within(&(segment.start..half)).map(|range| range.end);
    let best = ends.filter(|end| *end < half && *end - segment.start >= len / 4).last();
    Some(best.unwrap_or(half))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(u64, u64)]) -> RangeSet {
        ranges.iter().map(|(start, end)| *start..*end).collect()
    }

    #[test]
    fn segments_join_over_gaps_and_are_bounded() {
        let limits = SegmentLimits { span: 10, len: 100 };
        for (live, expected) in [
            (set(&[]), vec![]),
            (set(&[(0, 10), (20, 30)]), std::iter::once(0..30).collect()),
            (set(&[(0, 10), (21, 30)]), vec![0..10, 21..30]),
            (set(&[(5, 250)]), vec![5..105, 105..205, 205..250]),
            (set(&[(0, 95), (98, 130)]), vec![0..100, 100..130]),
            (set(&[(0, 95), (101, 130)]), vec![0..95, 101..130]),
            (set(&[(0, 100), (101, 130)]), vec![0..100, 101..130]),
        ] {
            assert_eq!(segments(&live, limits), expected, "{live:?}");
        }
    }

    #[test]
    fn segments_are_cut_at_ends_of_ranges() {
        let live = set(&[(0, 40), (45, 100)]);
        assert_eq!(cut(&(0..100), &live, 1), Some(40));
        assert_eq!(cut(&(0..100), &set(&[(0, 100)]), 1), Some(50));
        assert_eq!(cut(&(0..100), &set(&[(0, 10), (12, 100)]), 1), Some(50));
        assert_eq!((cut(&(0..512), &live, 512), cut(&(0..1024), &live, 512)), (None, Some(512)));
        assert_eq!(cut(&(0..1536), &live, 512), Some(512));
    }
}
