//! The arithmetic of padding: which layouts had gaps, and which ones the report names.
//!
//! ```text
//!   block of s sectors on d disks with parity p:
//!     rows      ceil(s / (d - p))
//!     total     s + p x rows                          data and parity
//!     allocated total, rounded up to p + 1            the difference are pads
//!     sector k of the block is on disk (start + k) mod d, in the column k mod d of the block
//! ```
//!
//! A pad was left out if the column before it and the pad together exceeded the aggregation limit.
//! The first pad follows the last sector of the shortest columns.
//!
//! Sources: spec 06 §4.1, §12; spec 09 §3.3.

use std::collections::BTreeSet;

/// A RAID-Z vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Layout {
    /// Log2 of the sector size.
    pub ashift: u64,
    /// Parity sectors per row.
    pub nparity: u64,
    /// Disks.
    pub width: u64,
}

/// A block on a vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Case {
    /// Bytes of the block.
    pub record: u64,
    /// The vdev.
    pub layout: Layout,
}

impl Layout {
    pub(super) const fn new(ashift: u64, nparity: u64, width: u64) -> Self {
        Self { ashift, nparity, width }
    }

    pub(super) const fn with(self, record: u64) -> Case {
        Case { record, layout: self }
    }
}

impl Case {
    /// Returns the sectors of data and parity.
    pub(super) fn total(&self) -> u64 {
        let Layout { ashift, nparity, width } = self.layout;
        let sectors = self.record >> ashift;
        sectors + nparity * sectors.div_ceil(width - nparity)
    }

    /// Returns the allocated sectors.
    pub(super) fn allocated(&self) -> u64 {
        self.total().next_multiple_of(self.layout.nparity + 1)
    }

    /// Returns the number of pads.
    pub(super) fn pads(&self) -> u64 {
        self.allocated() - self.total()
    }

    /// Returns the bytes of the column that ends before a pad, and the pad. Pads are counted from
    /// zero.
    fn column_with_pad(&self, pad: u64) -> u64 {
        let columns = self.layout.width.min(self.total());
        let column = (self.total() + pad) % columns;
        let sectors = (self.total() - column).div_ceil(columns);
        (sectors + 1) << self.layout.ashift
    }

    /// Returns the bytes of the longest column that has a pad, and the pad.
    pub(super) fn longest(&self) -> Option<u64> {
        (0..self.pads()).map(|pad| self.column_with_pad(pad)).max()
    }

    /// Returns the number of pads that were left out with this aggregation limit.
    pub(super) fn left_out(&self, limit: u64) -> u64 {
        (0..self.pads()).filter(|pad| self.column_with_pad(*pad) > limit).count() as u64
    }

    /// Returns its name, for example `1M raidz2 of 10, 4K`.
    pub(super) fn name(&self) -> String {
        let Layout { ashift, nparity, width } = self.layout;
        format!("{} raidz{nparity} of {width}, {}", bytes_name(self.record), sector_name(ashift))
    }
}

/// Returns a size with its unit.
pub(super) fn bytes_name(bytes: u64) -> String {
    if bytes >= 1 << 20 { format!("{}M", bytes >> 20) } else { format!("{}K", bytes >> 10) }
}

/// Returns the name of a sector size.
pub(super) fn sector_name(ashift: u64) -> &'static str {
    if ashift == 9 { "512" } else { "4K" }
}

/// Widths by parity, of a record size and a sector size.
pub(super) type Widths = (u64, u64, [&'static [u64]; 3]);

/// The affected layouts that the report lists; widths are numbers of all disks, up to ten.
pub(super) const OF_REPORT: [Widths; 6] = [
    (256 << 10, 9, [&[], &[4], &[]]),
    (256 << 10, 12, [&[], &[4], &[]]),
    (512 << 10, 9, [&[], &[4, 5, 6], &[]]),
    (512 << 10, 12, [&[4], &[4, 5, 6], &[]]),
    (1 << 20, 9, [&[4, 8], &[4, 8, 10], &[6, 8, 9, 10]]),
    (1 << 20, 12, [&[7, 8], &[4, 5, 10], &[6, 9, 10]]),
];

/// Greatest width in the report's list.
pub(super) const REPORT_WIDTH_MAX: u64 = 10;

/// The affected layouts with records of 2M up to 18 disks, derived a second time by spec 09 §3.3.
const OF_2M: [Widths; 2] = [
    (2 << 20, 9, [&[7, 12, 15], &[4, 8, 10, 11, 12, 14, 16], &[6, 9, 10, 13, 14, 15, 17, 18]]),
    (
        2 << 20,
        12,
        [
            &[4, 6, 10, 12, 13, 15, 16],
            &[4, 5, 7, 10, 11, 12, 14, 15, 16],
            &[6, 8, 9, 10, 12, 14, 15, 17, 18],
        ],
    ),
];

/// Greatest width of all tables.
pub(super) const WIDTH_MAX: u64 = 18;

/// Returns the cases of such lists.
pub(super) fn cases_of(lists: &[Widths]) -> BTreeSet<Case> {
    let cases = lists.iter().flat_map(|(record, ashift, by_parity)| {
        (1..).zip(by_parity).flat_map(move |(nparity, widths)| {
            widths.iter().map(move |width| Layout::new(*ashift, nparity, *width).with(*record))
        })
    });
    cases.collect()
}

/// Returns the layouts of a sector size and a parity up to a width. RAID-Z with one data disk is
/// left out: it has a block's sectors and their copies, and no pads.
pub(super) fn layouts(ashift: u64, nparity: u64, width_max: u64) -> impl Iterator<Item = Layout> {
    (nparity + 2..=width_max).map(move |width| Layout::new(ashift, nparity, width))
}

/// Returns the widths that are affected with a limit, by the arithmetic.
pub(super) fn affected(
    record: u64,
    ashift: u64,
    nparity: u64,
    width_max: u64,
    limit: u64,
) -> Vec<u64> {
    let layouts = layouts(ashift, nparity, width_max);
    let affected = layouts.filter(|layout| layout.with(record).left_out(limit) > 0);
    affected.map(|layout| layout.width).collect()
}

/// Returns the number of differences between the arithmetic and the second derivation for 2M.
pub(super) fn differences_of_2m(limit: u64) -> u64 {
    let wanted = cases_of(&OF_2M);
    let all = [9, 12].into_iter().flat_map(|ashift| [1, 2, 3].map(|nparity| (ashift, nparity)));
    let cases = all.flat_map(|(ashift, nparity)| layouts(ashift, nparity, WIDTH_MAX));
    let differs = |layout: &Layout| {
        let case = layout.with(2 << 20);
        (case.left_out(limit) > 0) != wanted.contains(&case)
    };
    cases.filter(differs).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_is_that_of_the_examples() {
        let case = Layout::new(12, 2, 10).with(1 << 20);
        assert_eq!((case.total(), case.allocated(), case.pads()), (320, 321, 1));
        assert_eq!((case.longest(), case.left_out(128 << 10)), (Some(132 << 10), 1));
        assert_eq!(case.left_out(256 << 10), 0);
        assert_eq!(Layout::new(12, 2, 6).with(512 << 10).pads(), 0);
        assert_eq!(differences_of_2m(128 << 10), 0);
        assert_eq!(affected(1 << 20, 12, 2, 10, 256 << 10), [4, 5]);
    }
}
