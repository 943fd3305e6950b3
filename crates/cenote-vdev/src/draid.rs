//! dRAID geometry: permutation, allocated size, the map of a block, distributed spares.
//!
//! All children are cut into slices of 16 MiB (row height). A redundancy group takes one slice from
//! `group width` children; a fixed pseudo-random permutation of all children says which, so that
//! the work of a rebuild spreads evenly. Groups fill the columns `0..children - spares` of a
//! permutation row after row, and may wrap into the next slice row; the last columns are spare
//! space, one per distributed spare (spec 06 §6).
//!
//! The permutation is not stored: it is generated from the number of children and a seed table that
//! is part of the format ([`permutation`](crate::permutation)).

use std::sync::Arc;

use cenote_ondisk::config;

use crate::map::{Column, Map, Row, deal};
use crate::permutation::Permutation;

/// Height of a slice of a child, bytes.
pub(crate) const ROW_HEIGHT: u64 = 16 << 20;

/// Geometry of a dRAID vdev, as stored in the config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DraidConfig {
    /// Sector size, log2.
    pub ashift: u32,
    /// Number of children.
    pub children: u64,
    /// Parity columns of a group.
    pub nparity: u64,
    /// Data columns of a group (`draid_ndata`).
    pub ndata: u64,
    /// Distributed spares (`draid_nspares`).
    pub nspares: u64,
    /// Groups until the pattern repeats (`draid_ngroups`).
    pub ngroups: u64,
}

/// A dRAID vdev with its permutation, ready to map blocks.
#[derive(Debug, Clone)]
pub struct Draid {
    config: DraidConfig,
    permutation: Arc<Permutation>,
}

impl Draid {
    /// `None` if the numbers do not make a dRAID.
    pub fn new(config: DraidConfig) -> Option<Self> {
        let DraidConfig { ashift, children, nparity, ndata, nspares, ngroups } = config;
        let disks = children.checked_sub(nspares)?;
        let width = nparity.checked_add(ndata)?;
        let is_valid = (9..=16).contains(&ashift)
            && (1..=3).contains(&nparity)
            && ndata >= 1
            && disks >= width
            && (1..=0xffff).contains(&ngroups)
            && (ngroups * width).is_multiple_of(disks);
        let permutation = Permutation::of(usize::try_from(children).ok()?)?;
        is_valid.then_some(Self { config, permutation })
    }

    /// The dRAID that a pool's configuration describes.
    pub fn of(config: &config::Draid, ashift: u32, children: usize) -> Option<Self> {
        Self::new(DraidConfig {
            ashift,
            children: children as u64,
            nparity: config.nparity,
            ndata: config.ndata,
            nspares: config.nspares,
            ngroups: config.ngroups,
        })
    }

    fn group_width(&self) -> u64 {
        self.config.ndata + self.config.nparity
    }

    /// Number of children that hold data and parity at any offset: all children minus the spares.
    pub fn disks(&self) -> u64 {
        self.config.children - self.config.nspares
    }

    /// Bytes of a group, parity included.
    pub fn group_bytes(&self) -> u64 {
        self.group_width() * ROW_HEIGHT
    }

    /// Bytes of each child that one permutation covers.
    fn slice_bytes(&self) -> u64 {
        self.group_bytes() * self.config.ngroups / self.disks()
    }

    /// Bytes of a whole stripe: every offset is a multiple of it (spec 05 §3.3).
    pub fn stripe_bytes(&self) -> u64 {
        self.group_width() << self.config.ashift
    }

    /// Parity columns.
    pub fn nparity(&self) -> u64 {
        self.config.nparity
    }

    /// Allocated bytes of `psize` bytes (spec 06 §6.4).
    pub fn asize(&self, psize: u64) -> u64 {
        psize.div_ceil(self.stripe_data()) * self.stripe_bytes()
    }

    /// The map of `psize` bytes at byte `offset`: one row, or two if it crosses a group's end.
    pub fn map(&self, offset: u64, psize: u64) -> Map {
        let size = psize.next_multiple_of(1 << self.config.ashift);
        let mut done = 0;
        let rows = self.pieces(offset, size).into_iter().map(|(offset, piece)| {
            done += piece;
            self.row(offset, piece, done - piece)
        });
        let rows = rows.collect();
        let nparity = self.config.nparity as usize;
        Map { nparity, size: size as usize, are_rows_apart: true, rows }
    }

    /// Splits `size` bytes of data at byte `offset`, whole sectors, at the ends of groups: the
    /// first byte and the bytes of data of each piece.
    pub fn pieces(&self, mut offset: u64, size: u64) -> Vec<(u64, u64)> {
        let (mut pieces, mut done) = (Vec::new(), 0);
        while done < size {
            let group_end = self.group_end(offset);
            // A misaligned offset would loop here: each iteration must cover at least one stripe.
            let stripes = ((group_end - offset) / self.stripe_bytes()).max(1);
            let piece = (size - done).min(stripes * self.stripe_data());
            pieces.push((offset, piece));
            done += piece;
            offset = group_end;
        }
        pieces
    }

    /// End of the group that contains byte `offset`.
    pub fn group_end(&self, offset: u64) -> u64 {
        (offset / self.group_bytes() + 1) * self.group_bytes()
    }

    /// Bytes of data in a whole stripe.
    pub fn stripe_data(&self) -> u64 {
        self.config.ndata << self.config.ashift
    }

    /// Returns the row of the `piece` bytes at byte `offset`, which are bytes `start..` of the
    /// block.
    fn row(&self, offset: u64, piece: u64, start: u64) -> Row {
        let DraidConfig { ashift, nparity, ndata, ngroups, .. } = self.config;
        let (width, disks) = (self.group_width(), self.disks());
        let group = offset / self.group_bytes();
        let (number, index) = (group / ngroups, group % ngroups);
        let first = index * width % disks;
        let slice_row = number * (width * ngroups / disks) + index * width / disks;
        let stripe = ((offset % self.group_bytes()) >> ashift) / width;
        let base = slice_row * ROW_HEIGHT + (stripe << ashift);
        let sectors = piece >> ashift;
        let (full_rows, rest) = (sectors / ndata, sectors % ndata);
        let len = ((full_rows + u64::from(rest != 0)) << ashift) as usize;
        let mut dealt = deal(ndata as usize, full_rows, rest, 1 << ashift);
        let columns = (0..width).map(|column| {
            let child = self.permutation.child(number, ((first + column) % disks) as usize);
            let wrap = if first + column >= disks { ROW_HEIGHT } else { 0 };
            let (data_start, data_len) =
                if column < nparity { (0, 0) } else { dealt.next().unwrap_or_default() };
            let data_start = data_start + start as usize;
            Column { child, offset: (base + wrap) as i64, len, data_start, data_len }
        });
        Row { columns: columns.collect() }
    }

    /// First byte and length of metaslab `index` of `1 << shift` bytes, cut to whole stripes (spec
    /// 05 §3.3).
    pub fn metaslab(&self, index: u64, shift: u32) -> (u64, u64) {
        let stripe = self.stripe_bytes();
        let start = (index << shift).next_multiple_of(stripe);
        (start, (((index + 1) << shift) - start) / stripe * stripe)
    }

    /// All sectors of the whole stripes in a range, as child, byte on it and length (spec 06 §6.7).
    pub fn child_ranges(&self, offset: u64, len: u64) -> Vec<(usize, i64, u64)> {
        let stripe = self.stripe_bytes();
        let mut at = offset.next_multiple_of(stripe);
        let end = (offset + len) / stripe * stripe;
        let mut found = Vec::new();
        while at < end {
            let piece = self.group_end(at).min(end) - at;
            let rows = (piece / stripe).max(1);
            let data = rows * self.stripe_data();
            let columns = self.row(at, data, 0).columns;
            found.extend(columns.iter().map(|c| (c.child, c.offset, c.len as u64)));
            at += piece;
        }
        found
    }

    /// The child on which distributed spare `spare` stores byte `offset` (spec 06 §6.6).
    pub fn spare_child(&self, spare: u64, offset: u64) -> Option<usize> {
        let column = self.config.children.checked_sub(spare.checked_add(1)?)?;
        (column >= self.disks())
            .then(|| self.permutation.child(offset / self.slice_bytes(), column as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draid(nparity: u64, ndata: u64, children: u64, nspares: u64, ngroups: u64) -> Draid {
        let config = DraidConfig { ashift: 12, children, nparity, ndata, nspares, ngroups };
        Draid::new(config).expect("valid")
    }

    #[test]
    fn worked_vector() {
        // Spec 06 §21.2: draid2:3d:9c:1s.
        let draid = draid(2, 3, 9, 1, 8);
        assert_eq!((draid.group_bytes(), draid.asize(0x1000)), (0x5000000, 0x5000));
        let map = draid.map(0x55915000, 0x1000);
        let row = map.rows.iter().flat_map(|row| &row.columns);
        let got: Vec<_> = row.map(|c| (c.child, c.offset, c.len, c.data_len)).collect();
        let (near, far) = (0xa1d1000, 0xb1d1000);
        let want = [
            (4, near, 0x1000, 0),
            (1, near, 0x1000, 0),
            (6, near, 0x1000, 0x1000),
            (0, far, 0x1000, 0),
            (5, far, 0x1000, 0),
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn a_block_across_a_group_end_has_two_rows() {
        let draid = draid(1, 4, 10, 0, 2);
        let offset = draid.group_bytes() - 2 * draid.stripe_bytes();
        let map = draid.map(offset, 20 << 12);
        let data: Vec<_> = map
            .rows
            .iter()
            .map(|row| row.columns.iter().map(|c| c.data_len).sum::<usize>())
            .collect();
        assert_eq!(data, [8 << 12, 12 << 12_usize]);
        assert_eq!(map.rows[1].columns[1].data_start, 8 << 12);
        assert_eq!(map.size, 20 << 12);
    }

    #[test]
    fn no_two_sectors_share_a_place() {
        let draid = draid(2, 3, 9, 1, 8);
        let mut taken = std::collections::BTreeSet::new();
        // The last and first stripes of 40 groups: five permutations.
        for group in 0..40 {
            for stripe in [0, (ROW_HEIGHT >> 12) - 1] {
                let offset = group * draid.group_bytes() + stripe * draid.stripe_bytes();
                for (_, column) in draid.map(offset, 0x3000).columns() {
                    assert!(taken.insert((column.child, column.offset)), "group {group}");
                }
            }
        }
        for offset in (0..draid.slice_bytes() * 5).step_by(ROW_HEIGHT as usize) {
            let child = draid.spare_child(0, offset).expect("the one spare");
            assert!(taken.insert((child, offset as i64)), "spare at {offset:#x}");
        }
        assert_eq!(draid.spare_child(1, 0), None);
    }

    #[test]
    fn nonsense_is_refused() {
        let good =
            DraidConfig { ashift: 12, children: 9, nparity: 2, ndata: 3, nspares: 1, ngroups: 8 };
        assert!(Draid::new(good).is_some());
        for bad in [
            DraidConfig { nspares: 10, ..good },
            DraidConfig { nspares: 5, ..good },
            DraidConfig { ngroups: 7, ..good },
            DraidConfig { ngroups: 0, ..good },
            DraidConfig { ndata: 0, ..good },
            DraidConfig { ndata: u64::MAX, ..good },
            DraidConfig { children: 256, ..good },
            DraidConfig { children: 0, nspares: 0, ..good },
            DraidConfig { nparity: 4, ndata: 1, ..good },
            DraidConfig { ashift: 60, ..good },
        ] {
            assert!(Draid::new(bad).is_none(), "{bad:?}");
        }
    }
}
