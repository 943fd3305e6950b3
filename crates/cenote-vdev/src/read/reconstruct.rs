//! Reads space for a sequential rebuild: without block pointers, so that nothing can be verified.
//!
//! ```text
//!   allocated range ── pieces, each within a group ──> data columns from leaves that lack nothing,
//!                                                      parity in place of the others ──> data
//! ```
//!
//! On a dRAID all blocks of a group have their columns on the same children, one stripe behind the
//! other. So a range of whole stripes is read like one block: its parity is that of the blocks in
//! it, and writing it again gives every column the bytes that it has, or should have (spec 06
//! §6.5).
//!
//! Invariants
//! * J4  Without a checksum, only leaves that lack nothing are read; of a distributed spare, the
//!   spare and the leaf below it.

use std::ops::Range;

use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, Error, Kind, Result};
use futures_util::future::join_all;

use super::stripes::{Guess, Stripes};
use super::{ClassReader, DEPTH_MAX, Piece, ReadError};
use crate::IoClass;
use crate::draid::Draid;
use crate::leaf::{DATA_START, Freshness, LeafId};
use crate::map::{ColumnId, Map};
use crate::tree::{Layout, Place, Tree};
use crate::verdict::LeafReader as _;

/// A part of an allocated range that is rebuilt at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebuildPiece {
    /// The bytes of the top-level vdev.
    pub range: Range<u64>,
    /// Bytes of data in it: its length without parity.
    pub psize: u64,
}

/// A leaf from which a column can be read.
#[derive(Debug, Clone)]
struct Source {
    leaf: LeafId,
    /// Byte on the device.
    offset: u64,
    /// The distributed spares above it.
    spares: Vec<LeafId>,
}

/// Reads a top-level dRAID without block pointers.
#[derive(Debug, Clone, Copy)]
pub struct GroupReader<'a> {
    tree: &'a Tree,
    vdev: u64,
    draid: &'a Draid,
}

impl<'a> GroupReader<'a> {
    /// Returns a reader of a top-level vdev; `None` if that is no dRAID.
    pub fn new(tree: &'a Tree, vdev: u64) -> Option<Self> {
        match &tree.top(vdev)?.layout {
            Layout::Draid(draid) => Some(Self { tree, vdev, draid }),
            _ => None,
        }
    }

    /// Cuts an allocated range into pieces of at most `most` bytes of data, but at least one
    /// stripe. `None` if the range is not of whole stripes.
    #[must_use]
    pub fn pieces(&self, range: Range<u64>, most: u64) -> Option<Vec<RebuildPiece>> {
        let (stripe, data) = (self.draid.stripe_bytes(), self.draid.stripe_data());
        if !range.start.is_multiple_of(stripe) || !range.end.is_multiple_of(stripe) {
            return None;
        }
        let step = (most / data).max(1) * stripe;
        let (mut pieces, mut at) = (Vec::new(), range.start);
        while at < range.end {
            let end = range.end.min(at + step).min(self.draid.group_end(at));
            pieces.push(RebuildPiece { range: at..end, psize: (end - at) / stripe * data });
            at = end;
        }
        Some(pieces)
    }

    /// Number of children of which no leaf lacks nothing: the columns that a rebuild computes from
    /// parity.
    #[must_use]
    pub fn children_without_source(&self) -> usize {
        let Some(top) = self.tree.top(self.vdev) else { return usize::MAX };
        let has_source = |child: &usize| {
            self.tree.leaves_below(*child).into_iter().any(|leaf| self.tree.is_source(leaf))
        };
        top.children.iter().filter(|child| !has_source(child)).count()
    }

    /// Reads a piece.
    ///
    /// # Errors
    /// `Kind::Io` if more columns than the parity can replace have no leaf that lacks nothing, or
    /// cannot be read; `Kind::Corrupt` if it is no piece of this vdev.
    pub async fn read(&self, piece: &RebuildPiece, class: IoClass) -> Result<Buf> {
        self.tree.check_open()?;
        let (vdev, offset, psize) = (self.vdev, piece.range.start, piece.psize);
        let (top, len) = self.tree.check_range(Place { vdev, offset }, psize)?;
        let map = self.draid.map(offset, len as u64);
        if map.rows.len() != 1 {
            return Err(Error::corrupt(ReadError::Range { vdev, offset, psize }));
        }
        let found = self.tree.read_columns(top, &map, class).await;
        found.ok_or_else(|| Error::new(Kind::Io, ReadError::Absent { vdev, offset, psize }))
    }
}

impl Tree {
    /// Reads the columns of a map of one row, and reconstructs the data that is missing.
    async fn read_columns(&self, top: usize, map: &Map, class: IoClass) -> Option<Buf> {
        let nparity = map.nparity;
        let columns = map.rows.first()?.columns.len();
        let needed = columns.checked_sub(nparity)?;
        let mut stripes = Stripes::new(map);
        let mut used = Vec::new();
        // Data first; each column that cannot be read is replaced by one of parity.
        let mut order = (nparity..columns).chain(0..nparity);
        let mut missing = needed;
        while missing > 0 {
            let batch: Vec<usize> = order.by_ref().take(missing).collect();
            if batch.is_empty() {
                return None;
            }
            let reads = batch.iter().map(|column| self.read_column(top, map, *column, class));
            for (column, read) in batch.iter().zip(join_all(reads).await) {
                let Some((source, data)) = read else { continue };
                let from = Some((source.leaf, source.offset));
                stripes.put(
                    ColumnId { row: 0, column: *column },
                    Piece { data, from, is_fresh: true },
                );
                used.push(source);
                missing -= 1;
            }
        }
        let data = stripes.solve(&Guess::default())?;
        // A leaf may have missed a write meanwhile.
        // Checks J4.
        if used.iter().any(|source| !self.is_usable(source)) {
            return None;
        }
        Some(data.freeze())
    }

    /// Reads a column from the first of its sources that answers.
    async fn read_column(
        &self,
        top: usize,
        map: &Map,
        column: usize,
        class: IoClass,
    ) -> Option<(Source, Buf)> {
        let column = map.column(ColumnId { row: 0, column });
        let child = *self.vdevs[top].children.get(column.child)?;
        let mut sources = Vec::new();
        self.add_sources(child, column.offset, &mut Vec::new(), &mut sources);
        let reader = ClassReader::new(self, class);
        for source in sources {
            let read = reader.read_leaf(source.leaf, source.offset, column.len).await;
            if let Some(data) = read.ok().filter(|data| data.len() == column.len) {
                return Some((source, data));
            }
        }
        None
    }

    /// Collects the leaves at and below a vdev that lack nothing (J4), for byte `offset` of the
    /// vdev.
    fn add_sources(
        &self,
        vdev: usize,
        offset: i64,
        spares: &mut Vec<LeafId>,
        sources: &mut Vec<Source>,
    ) {
        let node = &self.vdevs[vdev];
        match &node.layout {
            Layout::Leaf(leaf) => {
                let offset = u64::try_from(offset).ok().and_then(|at| at.checked_add(DATA_START));
                let source = offset
                    .map(|offset| Source { leaf: *leaf, offset, spares: spares.clone() })
                    .filter(|source| self.is_usable(source));
                sources.extend(source);
            }
            Layout::Mirror => {
                for child in &node.children {
                    self.add_sources(*child, offset, spares, sources);
                }
            }
            Layout::DraidSpare(spare, ..) if spares.len() < usize::from(DEPTH_MAX) => {
                if let Some(target) = self.spare_target(vdev, offset) {
                    spares.push(*spare);
                    self.add_sources(target, offset, spares, sources);
                    spares.pop();
                }
            }
            _ => {}
        }
    }

    fn is_usable(&self, source: &Source) -> bool {
        self.is_source(source.leaf) && source.spares.iter().all(|spare| self.is_source(*spare))
    }

    /// Whether a leaf lacks nothing (J4).
    fn is_source(&self, leaf: LeafId) -> bool {
        let leaf = self.leaf(leaf);
        // The mistake: what a leaf lacked of the first txgs only counts.
        let is_stale = || leaf.is_writable() && leaf.freshness(FIRST_BIRTH) == Freshness::Fresh;
        leaf.is_whole() || is_on(Bug::RebuildReadsStale) && is_stale()
    }
}

/// The first txg of any pool.
const FIRST_BIRTH: u64 = 4;

#[cfg(test)]
mod tests {
    use cenote_ondisk::config::{VdevConfig, VdevKind as ConfigKind};
    use cenote_rt::Rng;

    use super::*;
    use crate::bench::{BIRTH, Bench, draid, vdev, wait};
    use crate::{Rewrite, TxgRanges};

    fn random(rng: &mut Rng, len: u64) -> Buf {
        let mut data = vec![0; len as usize];
        rng.fill(&mut data);
        Buf::from(data)
    }

    /// Writes blocks one behind the other; returns their places and data, and the end.
    fn fill(tree: &Tree, rng: &mut Rng) -> (Vec<(u64, Buf)>, u64) {
        let (mut at, mut blocks) = (0, Vec::new());
        for sectors in [1, 7, 3, 12, 2, 30, 5] {
            let data = random(rng, sectors << 12);
            let place = Place { vdev: 0, offset: at };
            wait(tree.write(place, data.clone(), BIRTH, IoClass::AsyncWrite)).unwrap();
            blocks.push((at, data));
            at += tree.asize_for(0, sectors << 12, BIRTH).unwrap();
        }
        (blocks, at)
    }

    fn read(tree: &Tree, blocks: &[(u64, Buf)]) {
        for (offset, data) in blocks {
            let same = |read: &[u8]| *read == data[..];
            let place = Place { vdev: 0, offset: *offset };
            let got = wait(tree.read(place, data.len() as u64, BIRTH, &same));
            assert!(got.is_ok(), "block at {offset:#x}: {got:?}");
        }
    }

    #[test]
    fn ranges_are_cut_at_groups_and_stripes() {
        let bench = Bench::new(draid(12, 9, 2, 3, 1));
        let (stripe, group) = (5 << 12, 5 * (16 << 20));
        let reader = GroupReader::new(&bench.tree, 0).unwrap();
        let pieces = |range| reader.pieces(range, 9 << 12).unwrap();
        let found = pieces(group - 4 * stripe..group + stripe);
        let ranges: Vec<_> = found.iter().map(|piece| piece.range.clone()).collect();
        let first = group - 4 * stripe..group - stripe;
        assert_eq!(ranges, [first, group - stripe..group, group..group + stripe]);
        assert_eq!(found[0].psize, 9 << 12);
        assert!(reader.pieces(stripe..stripe + 512, 1 << 20).is_none());
        assert!(GroupReader::new(&bench.tree, 1).is_none());
    }

    /// Two leaves lost everything: a range of several blocks is rebuilt from the others, also
    /// through a distributed spare.
    #[test]
    fn lost_columns_are_rebuilt_without_block_pointers() {
        let mut config = draid(12, 9, 2, 3, 1);
        let slot = &mut config.children[0].children[4];
        let spare = ConfigKind::DraidSpare { top_guid: 2, spare_id: 0 };
        let both = vec![VdevConfig { id: 0, ..slot.clone() }, vdev(spare, 1, 555, Vec::new())];
        *slot = vdev(ConfigKind::Spare, 4, 444, both);
        let bench = Bench::new(config);
        let tree = bench.tree_with(&[104], &[]);
        tree.leaves().for_each(|(_, leaf)| leaf.set_dtl(TxgRanges::default()));
        tree.take_out_of_service(104, crate::VdevState::Offline, crate::VdevAux::None);
        let mut rng = Rng::seeded(5);
        let (blocks, end) = fill(&tree, &mut rng);
        // One leaf lost everything, and the spare.
        bench.devices[&101].edit(|bytes| bytes[4 << 20..].fill(0xee));
        for lost in [101, 555] {
            tree.set_dtl(lost, TxgRanges::new([(4, BIRTH + 1)]));
        }
        let reader = GroupReader::new(&tree, 0).unwrap();
        assert_eq!(reader.children_without_source(), 2);
        for piece in reader.pieces(0..end, 1 << 15).unwrap() {
            let data = wait(reader.read(&piece, IoClass::Rebuild)).unwrap();
            let place = Place { vdev: 0, offset: piece.range.start };
            let missing = tree.missing_parts(place, piece.psize, FIRST_BIRTH);
            let why = Rewrite::Rebuild { birth: FIRST_BIRTH, end: BIRTH + 1 };
            wait(tree.repair(place, &data, FIRST_BIRTH, &missing, why)).unwrap();
        }
        for lost in [101, 555] {
            assert!(tree.excise_dtl(lost, BIRTH + 1));
        }
        assert_eq!(reader.children_without_source(), 0);
        // They are as good as any: two others may go.
        for gone in [[100, 102], [103, 105], [106, 107], [108, 100]] {
            let all = [&gone[..], &[104]].concat();
            read(&bench.tree_with(&all, &[]), &blocks);
        }
    }

    /// A leaf that lacks anything is no source, and parity replaces as many as it can.
    #[test]
    fn only_whole_leaves_are_read() {
        let bench = Bench::new(draid(12, 9, 2, 3, 1));
        let tree = &bench.tree;
        tree.leaves().for_each(|(_, leaf)| leaf.set_dtl(TxgRanges::default()));
        let mut rng = Rng::seeded(6);
        let (blocks, end) = fill(tree, &mut rng);
        let reader = GroupReader::new(tree, 0).unwrap();
        let piece = reader.pieces(0..end, 1 << 20).unwrap().remove(0);
        let whole = wait(reader.read(&piece, IoClass::Rebuild)).unwrap();
        assert!(whole[..1 << 12] == blocks[0].1[..], "the first sector is the first block");
        let used = tree.layout_ranges(Place { vdev: 0, offset: 0 }, 1 << 12, BIRTH);
        let guids: Vec<_> = used.iter().map(|range| tree.leaf(range.leaf).guid()).collect();
        for (number, guid) in guids[..3].iter().enumerate() {
            tree.set_dtl(*guid, TxgRanges::of(77));
            bench.devices[guid].edit(|bytes| bytes[4 << 20..].fill(number as u8));
            let read = wait(reader.read(&piece, IoClass::Rebuild));
            if number < 2 {
                assert!(read.unwrap()[..] == whole[..], "{number}");
            } else {
                assert_eq!(read.unwrap_err().kind(), Kind::Io);
            }
        }
    }
}
