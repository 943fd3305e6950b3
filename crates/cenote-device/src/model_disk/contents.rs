//! Contents of a modelled disk with a volatile write cache.
//!
//! ```text
//!   extents    what reads see: every write since it was admitted
//!   pending    writes that are not durable, oldest first, each with what it replaced
//! ```
//!
//! A flush makes those writes durable that had completed when it began; nothing else does, except
//! that the oldest completed write becomes durable when more than [`VOLATILE_BYTES_MAX`] are
//! pending, as a device's cache is finite. When power is cut, all pending writes are undone, newest
//! first, and then each is written again, partly or not at all, in an order in which the device may
//! have written them: a write that completed before another one was admitted precedes it.
//!
//! If a write is durable and an older one that overlaps it is not, the older one keeps only its
//! other parts: the program left their order open, and the device wrote the older one first.

use std::collections::VecDeque;
use std::ops::Range;

use cenote_rt::{Buf, Rng};

use crate::extents::{Extent, Extents};
use crate::pattern::SECTOR;

/// Bytes of writes that may be pending.
const VOLATILE_BYTES_MAX: u64 = 256 << 20;

/// A part of a pending write: its sectors, and what was there before.
#[derive(Debug)]
struct Part {
    range: Range<u64>,
    replaced: Vec<(u64, Extent)>,
}

/// A write or discard that is not durable.
#[derive(Debug)]
struct PendingWrite {
    parts: Vec<Part>,
    sectors: u64,
    /// When it was admitted; identifies it.
    admitted: u64,
    /// When it completed.
    completed: Option<u64>,
}

impl PendingWrite {
    fn overlaps(&self, range: &Range<u64>) -> bool {
        let overlaps = |part: &Part| part.range.start < range.end && range.start < part.range.end;
        self.parts.iter().any(overlaps)
    }

    /// Removes a range from it.
    fn exclude(&mut self, range: &Range<u64>) {
        let parts = std::mem::take(&mut self.parts);
        for Part { range: old, replaced } in parts {
            let before = old.start..old.end.min(range.start);
            let after = old.start.max(range.end)..old.end;
            for rest in [before, after] {
                if rest.start < rest.end {
                    self.parts.push(Part { range: rest, replaced: replaced.clone() });
                }
            }
        }
    }
}

/// Outcome of a power cut: numbers of pending writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PowerCut {
    /// Writes that are on the medium.
    pub kept: u64,
    /// Writes of which nothing is.
    pub lost: u64,
    /// Writes of which some sectors are.
    pub torn: u64,
}

/// Contents, and what of them is volatile. Offsets and lengths are in sectors.
#[derive(Debug, Default)]
pub(super) struct Contents {
    extents: Extents,
    pending: VecDeque<PendingWrite>,
    pending_sectors: u64,
    /// Counts admissions, completions and flushes.
    stamp: u64,
}

impl Contents {
    pub(super) fn extents(&self) -> &Extents {
        &self.extents
    }

    /// Replaces everything; the new contents are durable.
    pub(super) fn restore(&mut self, extents: Extents) {
        self.extents = extents;
        self.pending.clear();
        self.pending_sectors = 0;
    }

    /// Returns the number that follows all earlier events.
    pub(super) fn next_stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// Changes the medium itself.
    pub(super) fn edit(&mut self) -> &mut Extents {
        &mut self.extents
    }

    /// Writes `parts`, and returns the number of the write.
    pub(super) fn write(&mut self, start: u64, sectors: u64, parts: &[Buf]) -> u64 {
        let admitted = self.note(start, sectors);
        self.extents.fill_parts(start, parts);
        admitted
    }

    /// Discards a range, and returns the number of the discard.
    pub(super) fn discard(&mut self, start: u64, sectors: u64) -> u64 {
        self.note(start, sectors)
    }

    /// Notes a write, and leaves zeros in its range.
    fn note(&mut self, start: u64, sectors: u64) -> u64 {
        let range = start..start + sectors;
        let replaced = self.extents.take(range.start, range.end);
        let admitted = self.next_stamp();
        let parts = vec![Part { range, replaced }];
        self.pending.push_back(PendingWrite { parts, sectors, admitted, completed: None });
        self.pending_sectors += sectors;
        let is_completed = |write: &mut PendingWrite| write.completed.is_some();
        while self.pending_sectors > VOLATILE_BYTES_MAX / SECTOR as u64
            && let Some(oldest) = self.pending.pop_front_if(is_completed)
        {
            self.pending_sectors -= oldest.sectors;
        }
        admitted
    }

    /// Notes that a write has completed.
    pub(super) fn complete(&mut self, admitted: u64) {
        let stamp = self.next_stamp();
        let found = self.pending.binary_search_by_key(&admitted, |write| write.admitted);
        if let Some(write) = found.ok().and_then(|index| self.pending.get_mut(index)) {
            write.completed = Some(stamp);
        }
    }

    /// Makes the writes durable that had completed at `began`.
    pub(super) fn harden(&mut self, began: u64) {
        let is_covered = |write: &PendingWrite| write.completed.is_some_and(|at| at < began);
        if self.pending.iter().all(is_covered) {
            self.pending.clear();
            self.pending_sectors = 0;
            return;
        }
        let mut rest: VecDeque<PendingWrite> = VecDeque::new();
        for write in self.pending.drain(..) {
            if !is_covered(&write) {
                rest.push_back(write);
                continue;
            }
            self.pending_sectors -= write.sectors;
            for part in &write.parts {
                for older in rest.iter_mut().filter(|older| older.overlaps(&part.range)) {
                    older.exclude(&part.range);
                }
            }
        }
        self.pending = rest;
    }

    /// Decides for each pending write what of it is on the medium; `grain` is the number of sectors
    /// that are written entirely or not at all.
    pub(super) fn cut(&mut self, rng: &mut Rng, grain: u64) -> PowerCut {
        let end = self.next_stamp();
        let mut writes = Vec::with_capacity(self.pending.len());
        while let Some(mut write) = self.pending.pop_back() {
            for part in write.parts.iter_mut().rev() {
                let Range { start, end } = part.range;
                let written = self.extents.take(start, end);
                self.extents.put(start, end, &part.replaced);
                part.replaced = written;
            }
            // Written at any moment between admission and completion.
            let span = write.completed.unwrap_or(end) - write.admitted;
            writes.push((write.admitted + rng.below(span + 1), write));
        }
        self.pending_sectors = 0;
        writes.sort_by_key(|(at, write)| (*at, write.admitted));
        // Sometimes nothing or everything is kept, and more often something of all.
        let kept_percent = [0, 10, 50, 90, 100][rng.below(5) as usize];
        let torn_percent = [0, 10, 30][rng.below(3) as usize];
        let mut outcome = PowerCut::default();
        for (_, write) in writes {
            let tear = if rng.below(100) < torn_percent {
                Tear::draw(rng)
            } else if rng.below(100) < kept_percent {
                Tear::Kept
            } else {
                Tear::Lost
            };
            self.write_again(&write, &tear, grain, &mut outcome, rng);
        }
        outcome
    }

    fn write_again(
        &mut self,
        write: &PendingWrite,
        tear: &Tear,
        grain: u64,
        outcome: &mut PowerCut,
        rng: &mut Rng,
    ) {
        let (Some(first), Some(last)) = (write.parts.first(), write.parts.last()) else { return };
        let (first, last) = (first.range.start / grain, last.range.end.div_ceil(grain));
        let middle = first + rng.below(last - first + 1);
        let (mut kept, mut lost) = (0_u64, 0_u64);
        for index in first..last {
            let is_kept = match tear {
                Tear::Kept => true,
                Tear::Lost => false,
                Tear::Before => index < middle,
                Tear::After => index >= middle,
                Tear::Scattered => rng.below(2) == 0,
            };
            *if is_kept { &mut kept } else { &mut lost } += 1;
            if !is_kept {
                continue;
            }
            for part in &write.parts {
                let start = part.range.start.max(index * grain);
                let end = part.range.end.min((index + 1) * grain);
                if start < end {
                    self.extents.put(start, end, &part.replaced);
                }
            }
        }
        match (kept, lost) {
            (_, 0) => outcome.kept += 1,
            (0, _) => outcome.lost += 1,
            _ => outcome.torn += 1,
        }
    }
}

/// Which sectors of a pending write are on the medium.
#[derive(Debug)]
enum Tear {
    Kept,
    Lost,
    Before,
    After,
    Scattered,
}

impl Tear {
    fn draw(rng: &mut Rng) -> Self {
        match rng.below(3) {
            0 => Self::Before,
            1 => Self::After,
            _ => Self::Scattered,
        }
    }
}
