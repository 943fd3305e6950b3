//! Reading from a removed vdev: the block lies elsewhere, perhaps in several stretches.
//!
//! One stretch is an ordinary read at another address. With several no single vdev sees the whole
//! block: one copy of each is read, and if the whole does not verify, every copy of every stretch,
//! and the combinations of those that differ are tried (spec 06 §7, 05 §11).

use std::sync::PoisonError;

use cenote_rt::{BufMut, Rng, tunables};
use futures_util::future::join_all;

use super::{Ask, Fail, Fetched, Job, Piece};
use crate::tree::{Layout, OFFSET_MAX};
use crate::verdict::Cause;

/// A part of a block on a vdev that still has its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    /// Arena index of the top-level vdev.
    pub(super) vdev: usize,
    pub(super) offset: i64,
    pub(super) len: usize,
}

impl Job<'_> {
    pub(super) async fn fetch_indirect(&self, vdev: usize, ask: Ask<'_>) -> Fetched {
        let stretches = self.stretches(vdev, ask)?;
        if let [Stretch { vdev, offset, .. }] = stretches[..] {
            return self.fetch(vdev, Ask { offset, depth: ask.depth + 1, ..ask }).await;
        }
        if !ask.is_scrub {
            let parts = stretches.iter().map(|s| self.fetch(s.vdev, ask.part(s.offset, s.len)));
            let parts: Result<Vec<_>, _> = join_all(parts).await.into_iter().collect();
            if let Ok(parts) = parts {
                let data = join(parts.iter(), ask.len);
                if ask.accepts(&data, self.psize) {
                    return Ok(Piece { data: data.freeze(), from: None, is_fresh: true });
                }
            }
        }
        let mut copies = Vec::with_capacity(stretches.len());
        for &Stretch { vdev, offset, len } in &stretches {
            let part = ask.part(offset, len);
            copies.push(if ask.is_scrub {
                self.best_copies(vdev, part).await
            } else {
                self.copies(vdev, part, true).await
            });
        }
        if copies.iter().any(Vec::is_empty) {
            return Err(Fail::Absent);
        }
        let result = self.search_copies(&copies, ask);
        // Old bytes of one stretch are no evidence while a leaf is away that may have newer ones.
        let is_short = copies.iter().zip(&stretches).any(|(pieces, stretch)| {
            let is_stale = !pieces.iter().any(|piece| piece.is_fresh);
            is_stale && self.tree.is_away_with(stretch.vdev, self.birth)
        });
        result.map_err(|fail| if is_short { Fail::Absent } else { fail })
    }

    /// The concrete places of what `ask` says, through chains of removed vdevs.
    pub(super) fn stretches(&self, vdev: usize, ask: Ask<'_>) -> Result<Vec<Stretch>, Fail> {
        let mut todo = vec![Stretch { vdev, offset: ask.offset, len: ask.len }];
        let mut found: Vec<Stretch> = Vec::new();
        // A chain longer than there are vdevs goes round.
        let mut steps = 0;
        while let Some(stretch) = todo.pop() {
            let node = &self.tree.vdevs[stretch.vdev];
            let Layout::Indirect = node.layout else {
                match found.last_mut() {
                    Some(last)
                        if last.vdev == stretch.vdev
                            && last.offset + last.len as i64 == stretch.offset =>
                    {
                        last.len += stretch.len;
                    }
                    _ => found.push(stretch),
                }
                continue;
            };
            let offset = stretch.offset as u64;
            let unmapped = Fail::Unmapped { vdev: node.id, offset };
            steps += 1;
            if steps > self.tree.tops.len() * (ask.len / 512 + 1) {
                return Err(unmapped);
            }
            let indirect = self.tree.indirect.read().unwrap_or_else(PoisonError::into_inner);
            let map = indirect.get(&node.id).ok_or_else(|| unmapped.clone())?;
            let pieces = map.pieces(offset, stretch.len as u64).ok_or(unmapped)?;
            for piece in pieces.iter().rev() {
                let (vdev, offset) = (u64::from(piece.vdev), piece.vdev_offset);
                let index = self.tree.top_index(vdev).filter(|_| offset <= OFFSET_MAX);
                let vdev = index.ok_or(Fail::Unmapped { vdev, offset })?;
                let (offset, len) = (offset as i64, piece.size as usize);
                todo.push(Stretch { vdev, offset, len });
            }
        }
        Ok(found)
    }

    /// Tries the combinations of copies, all if they are few enough, and reports those that are
    /// not in the one that passes.
    fn search_copies(&self, copies: &[Vec<Piece>], ask: Ask<'_>) -> Fetched {
        let distinct: Vec<Vec<&Piece>> = copies.iter().map(|pieces| distinct(pieces)).collect();
        let limit = tunables::RECONSTRUCT_ATTEMPTS_MAX.get();
        let combinations =
            distinct.iter().fold(1_u64, |product, d| product.saturating_mul(d.len() as u64));
        let mut rng = Rng::seeded(self.birth ^ ask.offset as u64);
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
            let data = join(chosen.iter().copied(), ask.len);
            if !ask.accepts(&data, self.psize) {
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

/// The pieces with different bytes.
fn distinct(pieces: &[Piece]) -> Vec<&Piece> {
    let mut distinct: Vec<&Piece> = Vec::new();
    for piece in pieces {
        if distinct.iter().all(|other| other.data[..] != piece.data[..]) {
            distinct.push(piece);
        }
    }
    distinct
}

/// The pieces one after the other, `len` bytes in all.
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
