//! Reads from a removed vdev: the block lies on other vdevs, perhaps split into several segments.
//!
//! A block in one segment is read like any other, at another address. With several segments no
//! single vdev sees the whole block: one copy of each is read, and if the whole does not verify,
//! every copy of every segment is read, and the combinations of differing copies are tried (spec 06
//! §7, 05 §11).

use cenote_rt::{BufMut, Rng, tunables};
use futures_util::future::join_all;

use super::{BlockRead, Fail, Fetched, Piece, ReadRequest};
use crate::tree::{Layout, OFFSET_MAX};
use crate::verdict::Cause;

/// A segment of a block on a vdev that still has its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    /// Arena index of the top-level vdev.
    pub(super) vdev: usize,
    pub(super) offset: i64,
    pub(super) len: usize,
}

impl BlockRead<'_> {
    pub(super) async fn fetch_indirect(&self, vdev: usize, request: ReadRequest<'_>) -> Fetched {
        let segments = self.segments(vdev, request)?;
        if let [Segment { vdev, offset, .. }] = segments[..] {
            return self
                .fetch(vdev, ReadRequest { offset, depth: request.depth + 1, ..request })
                .await;
        }
        if !request.is_scrub {
            let parts = segments.iter().map(|s| self.fetch(s.vdev, request.part(s.offset, s.len)));
            let parts: Result<Vec<_>, _> = join_all(parts).await.into_iter().collect();
            if let Ok(parts) = parts {
                let data = join(parts.iter(), request.len);
                if request.accepts(&data, self.psize) {
                    return Ok(Piece { data: data.freeze(), from: None, is_fresh: true });
                }
            }
        }
        let mut copies = Vec::with_capacity(segments.len());
        for &Segment { vdev, offset, len } in &segments {
            let part = request.part(offset, len);
            copies.push(if request.is_scrub {
                self.best_copies(vdev, part).await
            } else {
                self.copies(vdev, part, true).await
            });
        }
        if copies.iter().any(Vec::is_empty) {
            return Err(Fail::Absent);
        }
        let result = self.search_copies(&copies, request);
        // Stale bytes in one segment are no evidence while a leaf that may have newer ones is
        // unavailable.
        let is_short = copies.iter().zip(&segments).any(|(pieces, segment)| {
            let is_stale = !pieces.iter().any(|piece| piece.is_fresh);
            is_stale && self.tree.may_be_on_unavailable_leaf(segment.vdev, self.birth)
        });
        result.map_err(|fail| if is_short { Fail::Absent } else { fail })
    }

    /// Resolves a request to segments on concrete vdevs, through chains of removed vdevs.
    pub(super) fn segments(
        &self,
        vdev: usize,
        request: ReadRequest<'_>,
    ) -> Result<Vec<Segment>, Fail> {
        let mut todo = vec![Segment { vdev, offset: request.offset, len: request.len }];
        let mut found: Vec<Segment> = Vec::new();
        // A chain longer than the number of vdevs is a cycle.
        let mut steps = 0;
        while let Some(segment) = todo.pop() {
            let node = &self.tree.vdevs[segment.vdev];
            let Layout::Indirect = node.layout else {
                match found.last_mut() {
                    Some(last)
                        if last.vdev == segment.vdev
                            && last.offset + last.len as i64 == segment.offset =>
                    {
                        last.len += segment.len;
                    }
                    _ => found.push(segment),
                }
                continue;
            };
            let offset = segment.offset as u64;
            let unmapped = Fail::Unmapped { vdev: node.id, offset };
            steps += 1;
            if steps > self.tree.tops.len() * (request.len / 512 + 1) {
                return Err(unmapped);
            }
            let indirect = self.tree.indirect.read();
            let map = indirect.get(&node.id).ok_or_else(|| unmapped.clone())?;
            let pieces = map.pieces(offset, segment.len as u64).ok_or(unmapped)?;
            for piece in pieces.iter().rev() {
                let (vdev, offset) = (u64::from(piece.vdev), piece.vdev_offset);
                let index = self.tree.top_index(vdev).filter(|_| offset <= OFFSET_MAX);
                let vdev = index.ok_or(Fail::Unmapped { vdev, offset })?;
                let (offset, len) = (offset as i64, piece.size as usize);
                todo.push(Segment { vdev, offset, len });
            }
        }
        Ok(found)
    }

    /// Tries combinations of copies, all of them if they are few enough, and reports the copies
    /// that differ from the combination that verifies.
    fn search_copies(&self, copies: &[Vec<Piece>], request: ReadRequest<'_>) -> Fetched {
        let distinct: Vec<Vec<&Piece>> = copies.iter().map(|pieces| distinct(pieces)).collect();
        let limit = tunables::RECONSTRUCT_ATTEMPTS_MAX.get();
        let combinations =
            distinct.iter().fold(1_u64, |product, d| product.saturating_mul(d.len() as u64));
        let mut rng = Rng::seeded(self.birth ^ request.offset as u64);
        for attempt in 0..combinations.min(limit) {
            let mut number = attempt;
            let chosen: Vec<&Piece> = distinct
                .iter()
                .map(|choices| {
                    let count = choices.len() as u64;
                    let index =
                        if combinations > limit { rng.below(count) } else { number % count };
                    number /= count;
                    choices[index as usize]
                })
                .collect();
            let data = join(chosen.iter().copied(), request.len);
            if !request.accepts(&data, self.psize) {
                continue;
            }
            for (pieces, good) in copies.iter().zip(&chosen) {
                for piece in pieces.iter().filter(|piece| piece.data[..] != good.data[..]) {
                    if let Some(from) = piece.from {
                        self.report(from, piece.data.len(), Cause::Checksum);
                    }
                }
            }
            return Ok(Piece { data: data.freeze(), from: None, is_fresh: true });
        }
        for piece in copies.iter().flatten() {
            if let Some(from) = piece.from {
                self.report(from, piece.data.len(), Cause::Suspect);
            }
        }
        Err(Fail::Checksum)
    }
}

/// The pieces whose bytes differ from one another.
fn distinct(pieces: &[Piece]) -> Vec<&Piece> {
    let mut distinct: Vec<&Piece> = Vec::new();
    for piece in pieces {
        if distinct.iter().all(|other| other.data[..] != piece.data[..]) {
            distinct.push(piece);
        }
    }
    distinct
}

/// Concatenates the pieces, `len` bytes in all.
fn join<'a>(pieces: impl Iterator<Item = &'a Piece>, len: usize) -> BufMut {
    let mut data = BufMut::for_filling(len);
    let mut at = 0;
    for piece in pieces {
        let end = at + piece.data.len();
        data[at..end].copy_from_slice(&piece.data);
        at = end;
    }
    data
}
