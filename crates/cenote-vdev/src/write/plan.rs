//! Plans the leaf writes of a block, and judges from their results whether it can be read back.
//!
//! Planning touches no device. It returns one write per leaf, whose parts ascend, and a tree that
//! decides from the failed writes whether the block was written: [`Plan::judge`].

use cenote_codec::parity;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, BufMut};

use super::device_offset;
use crate::LeafId;
use crate::leaf::{Content, Part};
use crate::map::{Column, Map, Row, charge_parity};
use crate::raidz::Reflow;
use crate::read::DEPTH_MAX;
use crate::sides::Sides;
use crate::tree::{Layout, Tree};

/// The parts of a block that go to one leaf.
#[derive(Debug)]
pub(super) struct LeafWrite {
    pub(super) leaf: LeafId,
    pub(super) parts: Vec<Part>,
}

/// How the leaf writes make up a block.
#[derive(Debug)]
pub(super) enum Plan {
    /// The write with this index.
    Leaf(usize),
    /// A leaf that is not written, or a vdev that does not exist.
    Absent,
    /// A distributed spare, written through a child of its dRAID.
    Spare(LeafId, Box<Self>),
    /// Any one of them is enough.
    Mirror(Vec<Self>),
    /// All but `nparity` in each row are enough; `columns` lists the columns of a child in a row.
    Stripes { nparity: usize, rows: usize, children: Vec<Self>, columns: Vec<(usize, usize)> },
    /// All of them are needed.
    Joined(Vec<Self>),
}

/// Outcome for a block once its writes have ended.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Whether it can be read back.
    pub(super) is_readable: bool,
    /// Whether every copy and all parity was written.
    pub(super) is_whole: bool,
    /// Distributed spares of which no leaf took a part.
    pub(super) lacking: Vec<LeafId>,
}

impl Plan {
    /// Judges the block; `failed` says for each write whether it failed.
    pub(super) fn judge(&self, failed: &[bool]) -> Verdict {
        match self {
            Self::Absent => Verdict::default(),
            Self::Leaf(number) => {
                let is_there = failed.get(*number) == Some(&false);
                Verdict { is_readable: is_there, is_whole: is_there, lacking: Vec::new() }
            }
            Self::Spare(leaf, target) => {
                let mut verdict = target.judge(failed);
                if !verdict.is_readable {
                    verdict.lacking.push(*leaf);
                }
                verdict
            }
            Self::Mirror(children) => {
                let verdicts = || children.iter().map(|child| child.judge(failed));
                Verdict {
                    is_readable: verdicts().any(|verdict| verdict.is_readable),
                    is_whole: verdicts().all(|verdict| verdict.is_whole),
                    lacking: verdicts().flat_map(|verdict| verdict.lacking).collect(),
                }
            }
            Self::Joined(parts) => {
                let verdicts = || parts.iter().map(|part| part.judge(failed));
                Verdict {
                    is_readable: verdicts().all(|verdict| verdict.is_readable),
                    is_whole: verdicts().all(|verdict| verdict.is_whole),
                    lacking: verdicts().flat_map(|verdict| verdict.lacking).collect(),
                }
            }
            Self::Stripes { nparity, rows, children, columns } => {
                let mut whole = Verdict { is_readable: true, is_whole: true, lacking: Vec::new() };
                let mut is_lost = vec![false; children.len()];
                for (child, is_lost) in children.iter().zip(&mut is_lost) {
                    let verdict = child.judge(failed);
                    whole.is_whole &= verdict.is_whole;
                    whole.lacking.extend(verdict.lacking);
                    *is_lost = !verdict.is_readable;
                }
                if is_lost.contains(&true) {
                    let mut lost = vec![0_usize; *rows];
                    for (_, row) in columns.iter().filter(|(child, _)| is_lost[*child]) {
                        lost[*row] += 1;
                    }
                    whole.is_readable = lost.iter().all(|lost| lost <= nparity);
                }
                whole
            }
        }
    }
}

/// Bytes for a child, at the child's own offset.
struct Piece {
    offset: i64,
    content: Content,
}

/// Builds a plan.
pub(super) struct Builder<'a> {
    tree: &'a Tree,
    /// Physical birth.
    birth: u64,
    reflow: Reflow,
    writes: Vec<LeafWrite>,
    absent: Vec<LeafId>,
    /// Leaves out of service below distributed spares, each with its spare.
    pub(super) absent_below_spares: Vec<(LeafId, LeafId)>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(tree: &'a Tree, birth: u64, reflow: Reflow) -> Self {
        let (writes, absent, absent_below_spares) = (Vec::new(), Vec::new(), Vec::new());
        Self { tree, birth, reflow, writes, absent, absent_below_spares }
    }

    /// Returns the writes, and the leaves that should have one but are not writable.
    pub(super) fn into_writes(self) -> (Vec<LeafWrite>, Vec<LeafId>) {
        (self.writes, self.absent)
    }

    /// Plans `data`, whole sectors, at byte `offset` of the subtree `vdev`.
    pub(super) fn add(&mut self, vdev: usize, offset: i64, data: Buf, depth: u8) -> Plan {
        self.add_pieces(vdev, vec![Piece { offset, content: Content::Data(data) }], depth)
    }

    /// Plans the sides of a range on the top-level vdev `vdev`: each child of a mirror gets its
    /// own.
    pub(super) fn add_sides(&mut self, vdev: usize, offset: i64, sides: &Sides) -> Plan {
        let node = &self.tree.vdevs[vdev];
        if sides.count() == 1 || !matches!(node.layout, Layout::Mirror) {
            return self.add(vdev, offset, sides.of_child(0).clone(), 0);
        }
        let children = node.children.iter().enumerate();
        let plans =
            children.map(|(at, child)| self.add(*child, offset, sides.of_child(at).clone(), 1));
        Plan::Mirror(plans.collect())
    }

    /// Plans pieces, ascending by offset, on the subtree `vdev`.
    fn add_pieces(&mut self, vdev: usize, mut pieces: Vec<Piece>, depth: u8) -> Plan {
        let tree = self.tree;
        let node = &tree.vdevs[vdev];
        if depth > DEPTH_MAX {
            return Plan::Absent;
        }
        match &node.layout {
            Layout::Leaf(leaf) => self.add_leaf(*leaf, pieces),
            Layout::DraidSpare(leaf, ..) => {
                // All pieces are of one row, so that one child has them.
                let first = pieces.first().map_or(0, |piece| piece.offset);
                let target = tree.spare_target(vdev, first);
                let Some(target) = target.filter(|_| tree.leaf(*leaf).is_writable()) else {
                    self.absent.push(*leaf);
                    return Plan::Absent;
                };
                let before = self.absent.len();
                let plan = self.add_pieces(target, pieces, depth + 1);
                let below = self.absent.iter().skip(before).map(|absent| (*leaf, *absent));
                self.absent_below_spares.extend(below);
                if matches!(plan, Plan::Absent) && self.absent.len() == before {
                    // No other leaf has the txg in its log.
                    self.absent.push(*leaf);
                }
                Plan::Spare(*leaf, Box::new(plan))
            }
            Layout::Mirror => {
                let lost = usize::from(is_on(Bug::LostCopy));
                let children = node.children.iter().skip(lost).map(|child| {
                    let copy = pieces.iter().map(|piece| Piece {
                        offset: piece.offset,
                        content: piece.content.clone(),
                    });
                    self.add_pieces(*child, copy.collect(), depth + 1)
                });
                Plan::Mirror(children.collect())
            }
            Layout::Raidz(_) | Layout::Draid(_) => {
                if let [Piece { offset, content: Content::Data(data) }] = &mut pieces[..] {
                    return self.add_stripes(vdev, *offset, data, depth);
                }
                let plans = pieces.into_iter().filter_map(|piece| match piece.content {
                    Content::Data(data) => Some(self.add_stripes(vdev, piece.offset, &data, depth)),
                    // Pads are not split.
                    Content::Pad(_) => None,
                });
                Plan::Joined(plans.collect())
            }
            Layout::Indirect => {
                let plans = pieces.into_iter().filter_map(|piece| match piece.content {
                    Content::Data(data) => Some(self.add_mapped(vdev, piece.offset, &data, depth)),
                    Content::Pad(_) => None,
                });
                Plan::Joined(plans.collect())
            }
            Layout::Root | Layout::Absent => Plan::Absent,
        }
    }

    fn add_leaf(&mut self, id: LeafId, pieces: Vec<Piece>) -> Plan {
        let parts = pieces.into_iter().map(|piece| {
            let offset = device_offset(piece.offset)?;
            Some(Part { offset, content: piece.content })
        });
        let leaf = self.tree.leaf(id);
        let is_there = leaf.is_writable() && leaf.has_device();
        let Some(parts) = parts.collect::<Option<Vec<Part>>>().filter(|_| is_there) else {
            self.absent.push(id);
            return Plan::Absent;
        };
        let ends = parts.iter().map(|part| part.offset + part.len());
        // Checks W5.
        assert!(
            ends.zip(parts.iter().skip(1)).all(|(end, next)| end <= next.offset),
            "parts of a block overlap on leaf {}",
            leaf.guid()
        );
        self.writes.push(LeafWrite { leaf: id, parts });
        Plan::Leaf(self.writes.len() - 1)
    }

    /// Plans data at a removed vdev, at the places of its mapping.
    fn add_mapped(&mut self, vdev: usize, offset: i64, data: &Buf, depth: u8) -> Plan {
        let Some(segments) = self.tree.mapped(vdev, offset, data.len()) else {
            return Plan::Absent;
        };
        let mut start = 0;
        let plans = segments.into_iter().map(|(target, offset, len)| {
            let part = data.slice(start..start + len);
            start += len;
            part.map_or(Plan::Absent, |part| self.add(target, offset, part, depth + 1))
        });
        let plan = Plan::Joined(plans.collect());
        // Checks W6.
        assert_eq!(start, data.len(), "a mapping covers a part of the block at {offset:#x}");
        plan
    }

    /// Plans data on a RAID-Z or dRAID: all columns of a child in one write.
    fn add_stripes(&mut self, vdev: usize, offset: i64, data: &Buf, depth: u8) -> Plan {
        let tree = self.tree;
        let node = &tree.vdevs[vdev];
        let (Ok(start), len) = (u64::try_from(offset), data.len() as u64) else {
            return Plan::Absent;
        };
        if let Layout::Draid(draid) = &node.layout {
            // Each row by itself: what is lost of one counts for that row only, and a distributed
            // spare has the parts of different rows on different children.
            let pieces = draid.pieces(start, len);
            if pieces.len() > 1 {
                return self.add_rows(vdev, &pieces, data, depth);
            }
        }
        let Some(map) = tree.map(vdev, offset, data.len(), self.birth, self.reflow) else {
            return Plan::Absent;
        };
        // Children that the tree does not have cannot be written.
        let mut by_child: Vec<Vec<Piece>> = Vec::new();
        by_child.resize_with(self.width_of(vdev, &map), Vec::new);
        let shadows = tree.shadows(vdev, (offset, data.len()), self.birth, self.reflow);
        if let Layout::Raidz(raidz) = &node.layout {
            for (child, offset) in raidz.pads(start, len, self.birth) {
                let content = Content::Pad(1 << node.ashift);
                by_child[child].push(Piece { offset, content });
            }
        }
        // Checks Z1 and W1.
        assert!(
            map.covers(data.len()),
            "the columns of {} bytes at {offset:#x} differ",
            data.len()
        );
        let mut places = Vec::new();
        for (number, row) in map.rows.iter().enumerate() {
            // Checks Z2: the loss of a child must not lose two columns of a row.
            assert!(
                row.has_distinct_children(),
                "a row of the block at {offset:#x} repeats a child"
            );
            // A map that does not fit its data must not be written in part.
            let Some(contents) = columns(&map, row, data) else { return Plan::Absent };
            for ((index, column), contents) in row.columns.iter().enumerate().zip(contents) {
                let shadow = shadows.iter().find(|(id, ..)| (id.row, id.column) == (number, index));
                if let Some((_, child, offset)) = shadow {
                    contents.put(*offset, &mut by_child[*child]);
                }
                contents.put(column.offset, &mut by_child[column.child]);
                if column.len > 0 {
                    places.push((column.child, number));
                }
            }
        }
        let mut has_column = vec![false; by_child.len()];
        for (child, _) in &places {
            has_column[*child] = true;
        }
        let mut children = Vec::with_capacity(by_child.len());
        for (child, mut pieces) in by_child.into_iter().enumerate() {
            pieces.sort_by_key(|piece| piece.offset);
            let target = node.children.get(child).copied();
            children.push(match target {
                // Nothing that could be missing: no pieces, or only pads on this child.
                _ if pieces.is_empty() => Plan::Joined(Vec::new()),
                Some(target) if !has_column[child] && pieces.iter().all(Piece::is_pad) => {
                    self.add_pads(target, pieces, depth)
                }
                Some(target) => self.add_pieces(target, pieces, depth + 1),
                None => Plan::Absent,
            });
        }
        let (nparity, rows) = (map.nparity, map.rows.len());
        Plan::Stripes { nparity, rows, children, columns: places }
    }

    /// Plans the rows of a block on a dRAID, given as byte and bytes of data.
    fn add_rows(&mut self, vdev: usize, rows: &[(u64, u64)], data: &Buf, depth: u8) -> Plan {
        let mut done = 0;
        let plans = rows.iter().map(|(offset, len)| {
            let start = done;
            done += *len as usize;
            let part = data.slice(start..done);
            part.map_or(Plan::Absent, |part| self.add_stripes(vdev, *offset as i64, &part, depth))
        });
        Plan::Joined(plans.collect())
    }

    /// Number of children of a vdev, or the highest number that the map names.
    fn width_of(&self, vdev: usize, map: &Map) -> usize {
        let columns = map.rows.iter().flat_map(|row| &row.columns);
        let named = columns.map(|column| column.child + 1).max().unwrap_or(0);
        self.tree.vdevs[vdev].children.len().max(named)
    }

    /// Plans pads on a child that has no column; their writes do not affect the verdict.
    fn add_pads(&mut self, vdev: usize, pieces: Vec<Piece>, depth: u8) -> Plan {
        let before = self.absent.len();
        let plan = self.add_pieces(vdev, pieces, depth + 1);
        self.absent.truncate(before);
        if matches!(plan, Plan::Absent) { Plan::Joined(Vec::new()) } else { plan }
    }
}

impl Piece {
    fn is_pad(&self) -> bool {
        matches!(self.content, Content::Pad(_))
    }
}

/// The contents of a column: bytes, followed by zeros.
struct ColumnContent {
    bytes: Buf,
    filler: usize,
}

impl ColumnContent {
    /// Appends the contents at byte `offset` of a child.
    fn put(&self, offset: i64, pieces: &mut Vec<Piece>) {
        if !self.bytes.is_empty() {
            pieces.push(Piece { offset, content: Content::Data(self.bytes.clone()) });
        }
        if self.filler > 0 {
            // Short dRAID columns end in zeros that scrub verifies (spec 06 §6.5).
            let offset = offset + self.bytes.len() as i64;
            let content = Content::Data(BufMut::zeroed(self.filler).freeze());
            pieces.push(Piece { offset, content });
        }
    }
}

/// The contents of each column of a row, parity first: slices of `data`, new parity, zeros.
fn columns(map: &Map, row: &Row, data: &Buf) -> Option<Vec<ColumnContent>> {
    let nparity = map.nparity.min(row.columns.len());
    let (parity, rest) = row.columns.split_at(nparity);
    let mut stored: Vec<BufMut> =
        parity.iter().map(|column| BufMut::for_filling(column.len)).collect();
    let mut rows: Vec<&mut [u8]> = stored.iter_mut().map(|buf| &mut **buf).collect();
    let of = |column: &Column| column.data_start..column.data_start + column.data_len;
    let parts = rest.iter().map(|column| data.get(of(column)));
    charge_parity(nparity, rest);
    parity::generate(&mut rows, &parts.collect::<Option<Vec<_>>>()?);
    if is_on(Bug::LostParity) {
        rows[0].fill(0);
    }
    let parity =
        stored.into_iter().map(|buf| Some(ColumnContent { bytes: buf.freeze(), filler: 0 }));
    let data = rest.iter().map(|column| {
        let filler = column.len.saturating_sub(column.data_len);
        Some(ColumnContent { bytes: data.slice(of(column))?, filler })
    });
    parity.chain(data).collect()
}
