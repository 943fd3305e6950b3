//! The write cache of a disk: writes that are answered and not yet on the medium.
//!
//! Writes enter while their bytes fit. The drive writes them in the order of least positioning time
//! over those near the head. A flush closes the present generation of entries: later writes belong
//! to the next one, which is written only when all earlier ones are on the medium. The flush then
//! completes.
//!
//! Sources: spec 09 §2.1.

use std::collections::{BTreeMap, VecDeque};

use super::geometry::Place;
use super::{Held, Positioning, RotatingParams};

/// Entries that are compared to find the one that is written next: entries beyond the nearest 32
/// are hardly ever better.
const COMPARED_MAX: usize = 32;

/// A write in the cache.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dirty {
    pub(super) place: Place,
    pub(super) len: u64,
}

/// A flush, which waits for a generation.
#[derive(Debug)]
struct Flush {
    id: u64,
    admitted_ns: u64,
    generation: u64,
}

/// Writes in the cache, and commands that wait for it.
#[derive(Debug, Default)]
pub(super) struct WriteCache {
    capacity: u64,
    /// Entries by their first byte, in each generation; the last generation is open.
    generations: VecDeque<BTreeMap<u64, Dirty>>,
    /// Number of the first generation.
    first: u64,
    bytes: u64,
    /// Whether an entry of the first generation is being written.
    is_writing: bool,
    /// Writes that found no room.
    pub(super) waiting: VecDeque<Held>,
    flushes: VecDeque<Flush>,
}

impl WriteCache {
    pub(super) fn new(params: &RotatingParams) -> Self {
        let generations = VecDeque::from([BTreeMap::new()]);
        Self { capacity: params.cache_bytes, generations, ..Self::default() }
    }

    /// Whether a write of `len` bytes fits; an empty cache takes any write.
    pub(super) fn has_room(&self, len: u64) -> bool {
        self.bytes == 0 || self.bytes + len <= self.capacity
    }

    /// Adds a write.
    pub(super) fn add(&mut self, place: Place, len: u64) {
        let Some(open) = self.generations.back_mut() else { return };
        let entry = open.entry(place.offset).or_insert(Dirty { place, len: 0 });
        self.bytes += len.saturating_sub(entry.len);
        entry.len = entry.len.max(len);
    }

    /// Whether one entry has all of a range.
    pub(super) fn has(&self, offset: u64, len: u64) -> bool {
        self.generations.iter().any(|entries| {
            let before = entries.range(..=offset).next_back();
            before.is_some_and(|(start, entry)| offset + len <= start + entry.len)
        })
    }

    /// Adds a flush, unless there is nothing to write.
    pub(super) fn flush(&mut self, id: u64, admitted_ns: u64) -> bool {
        let is_open_empty = self.generations.back().is_none_or(BTreeMap::is_empty);
        if self.generations.len() <= 1 && is_open_empty && !self.is_writing {
            return false;
        }
        if self.generations.len() <= 1 || !is_open_empty {
            self.generations.push_back(BTreeMap::new());
        }
        let generation = self.first + self.generations.len() as u64 - 2;
        self.flushes.push_back(Flush { id, admitted_ns, generation });
        true
    }

    /// When the oldest flush was admitted.
    pub(super) fn flush_ns(&self) -> Option<u64> {
        self.flushes.front().map(|flush| flush.admitted_ns)
    }

    /// Whether a command waits for the cache.
    pub(super) fn is_awaited(&self) -> bool {
        !self.waiting.is_empty() || !self.flushes.is_empty()
    }

    /// Removes the entry of the first generation with the least positioning time, and returns that
    /// time. Entries are compared from the head outwards, until the time before the wait alone is
    /// longer than the best one, or [`COMPARED_MAX`] were compared. `position` returns both times.
    pub(super) fn take_nearest(
        &mut self,
        head: u64,
        position: impl Fn(&Dirty) -> Positioning,
    ) -> Option<(Dirty, f64)> {
        let entries = self.generations.front_mut()?;
        let mut onward = entries.range(head..).map(|(_, entry)| entry).peekable();
        let mut back = entries.range(..head).rev().map(|(_, entry)| entry).peekable();
        let mut best: Option<(&Dirty, f64)> = None;
        for _ in 0..COMPARED_MAX {
            let is_onward = match (onward.peek(), back.peek()) {
                (Some(next), Some(last)) => next.place.offset - head <= head - last.place.offset,
                (next, _) => next.is_some(),
            };
            let Some(entry) = (if is_onward { onward.next() } else { back.next() }) else { break };
            let cost = position(entry);
            if best.is_some_and(|(_, least)| cost.lead_ns >= least) {
                break;
            }
            if best.is_none_or(|(_, least)| cost.total_ns < least) {
                best = Some((entry, cost.total_ns));
            }
        }
        let (entry, cost) = best.map(|(entry, cost)| (*entry, cost))?;
        entries.remove(&entry.place.offset);
        self.is_writing = true;
        Some((entry, cost))
    }

    /// Puts back the entry that was taken.
    pub(super) fn put_back(&mut self, entry: Dirty) {
        self.is_writing = false;
        if let Some(entries) = self.generations.front_mut() {
            entries.insert(entry.place.offset, entry);
        }
    }

    /// Notes that the entry that was taken is on the medium; `ended` is called for each flush that
    /// this completes.
    pub(super) fn written(&mut self, len: u64, mut ended: impl FnMut(u64)) {
        self.is_writing = false;
        self.bytes -= len;
        if self.generations.len() > 1 && self.generations.front().is_some_and(BTreeMap::is_empty) {
            self.generations.pop_front();
            self.first += 1;
            let is_over = |flush: &mut Flush| flush.generation < self.first;
            while let Some(flush) = self.flushes.pop_front_if(is_over) {
                ended(flush.id);
            }
        }
    }
}
