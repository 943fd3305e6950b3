//! How far a scan is: the dataset in progress and those to come (spec 04 §21, 06 §15.2).
//!
//! ```text
//!   MOS ──> what has no predecessor ──> what follows it (next snapshot, head, clones) ──> ...
//!
//!   queue: datasets whose predecessor was visited; the lowest number is the next
//! ```
//!
//! A block belongs to the oldest dataset that has it, so a dataset is visited for blocks born after
//! its predecessor. Datasets are born, merged and destroyed during a scan: what is known here
//! follows them, as OpenZFS's does, so that either can continue the other's scan.
//!
//! Guarantees
//! * SC1  A dataset is in the queue, or in progress, only if its predecessor was visited, and
//!   neither twice.

use std::collections::BTreeMap;

use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::scan::{ScanFlags, ScanPhys};

/// The bookmark between two datasets, and after the last one.
const BETWEEN: Bookmark = Bookmark { objset: u64::MAX, object: 0, level: 0, blkid: 0 };

/// The place after the walk of the dedup tables, for blocks of the classes up to 0 (none).
pub(super) const PAST_DDT: [u64; 4] = [1, 0, 0, 0];

/// The part of a scan that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Position {
    bookmark: Bookmark,
    /// The dataset in progress is visited again, because a snapshot was merged into it.
    is_again: bool,
    /// Bounds of the births in the dataset in progress: after, and before.
    pub(super) bounds: (u64, u64),
    queue: BTreeMap<u64, u64>,
}

impl Position {
    pub(super) fn of(phys: &ScanPhys, queue: BTreeMap<u64, u64>) -> Self {
        Self {
            bookmark: phys.bookmark,
            is_again: phys.flags.contains(ScanFlags::VISIT_DS_AGAIN),
            bounds: (phys.cur_min_txg, phys.cur_max_txg),
            queue,
        }
    }

    /// Stores all but the queue.
    pub(super) fn store(&self, phys: &mut ScanPhys) {
        phys.bookmark = self.bookmark;
        // No block is left to a walk of the dedup tables: OpenZFS takes such a walk for unfinished
        // otherwise, and asserts that no other has begun.
        (phys.ddt_class_max, phys.ddt_bookmark) = (0, PAST_DDT);
        phys.flags.set(ScanFlags::VISIT_DS_AGAIN, self.is_again);
        (phys.cur_min_txg, phys.cur_max_txg) = self.bounds;
    }

    pub(super) fn queue(&self) -> &BTreeMap<u64, u64> {
        &self.queue
    }

    /// Whether everything was visited.
    pub(super) fn is_at_end(&self) -> bool {
        self.current().is_none() && self.queue.is_empty()
    }

    /// Returns the dataset in progress; 0 is the MOS.
    pub(super) fn current(&self) -> Option<u64> {
        (self.bookmark.objset != BETWEEN.objset).then_some(self.bookmark.objset)
    }

    /// Returns the block with which the dataset in progress continues; `None` at its begin.
    pub(super) fn start(&self) -> Option<Bookmark> {
        let at = &self.bookmark;
        (self.current().is_some() && (at.object, at.level, at.blkid) != (0, 0, 0))
            .then_some(self.bookmark)
    }

    /// Whether the dataset is in progress or in the queue.
    pub(super) fn has(&self, object: u64) -> bool {
        self.current() == Some(object) || self.queue.contains_key(&object)
    }

    /// Returns the dataset in progress, or begins the next one; `None` if there is none. `created`
    /// returns the txg in which a snapshot was created.
    pub(super) fn next(
        &mut self,
        limits: (u64, u64),
        created: impl Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        if let Some(current) = self.current() {
            return Some(current);
        }
        let (&object, _) = self.queue.first_key_value()?;
        self.begin(object, limits, created(object));
        Some(object)
    }

    fn begin(&mut self, object: u64, (min, max): (u64, u64), created: Option<u64>) {
        let after = self.queue.remove(&object).unwrap_or(0);
        self.bookmark = Bookmark { objset: object, ..Bookmark::default() };
        self.bounds = (min.max(after), max.min(created.unwrap_or(max)));
    }

    /// A dataset was visited to its end. `successors` are the datasets that follow it, with the
    /// txgs after which their blocks were born.
    pub(super) fn finish(&mut self, object: u64, successors: impl IntoIterator<Item = (u64, u64)>) {
        if self.current() == Some(object) {
            self.bookmark = BETWEEN;
            if std::mem::take(&mut self.is_again) {
                self.queue.insert(object, self.bounds.1);
                return;
            }
        } else if self.queue.remove(&object).is_none() {
            return;
        }
        for (successor, after) in successors {
            // SC1: a successor that is there already was put there by a merge.
            if !self.has(successor) {
                self.queue.insert(successor, after);
            }
        }
    }

    /// A dataset is in progress, and continues with this block.
    pub(super) fn stand_at(&mut self, at: Bookmark, limits: (u64, u64), created: Option<u64>) {
        if self.current() == Some(at.objset) {
            self.bookmark = at;
        } else if self.queue.contains_key(&at.objset) && self.current().is_none() {
            self.begin(at.objset, limits, created);
            self.bookmark = at;
        }
    }

    /// A snapshot was taken of a head: it has the blocks that were to be visited in the head.
    pub(super) fn note_snapshot(&mut self, head: u64, snapshot: u64) {
        if self.current() == Some(head) {
            self.bookmark.objset = snapshot;
        }
        if let Some(after) = self.queue.remove(&head) {
            self.queue.insert(snapshot, after);
        }
    }

    /// A dataset was destroyed. A snapshot's blocks now belong to the dataset after it.
    pub(super) fn note_destroyed(&mut self, object: u64, next: Option<u64>) {
        if self.current() == Some(object) {
            self.is_again = next.is_some();
            self.bookmark = next.map_or(BETWEEN, |objset| Bookmark { objset, ..self.bookmark });
        }
        if let (Some(after), Some(next)) = (self.queue.remove(&object), next) {
            self.queue.insert(next, after);
        }
    }

    /// Two heads exchanged their contents.
    pub(super) fn note_swapped(&mut self, one: u64, other: u64) {
        let exchanged = |object| match object {
            object if object == one => other,
            object if object == other => one,
            object => object,
        };
        self.bookmark.objset = exchanged(self.bookmark.objset);
        let of = [one, other].map(|object| self.queue.remove_entry(&object));
        self.queue.extend(of.into_iter().flatten().map(|(object, at)| (exchanged(object), at)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: (u64, u64) = (0, 100);

    fn at(objset: u64, object: u64) -> Bookmark {
        Bookmark { objset, object, level: 0, blkid: 0 }
    }

    fn new() -> Position {
        Position {
            bookmark: Bookmark::default(),
            is_again: false,
            bounds: LIMITS,
            queue: BTreeMap::new(),
        }
    }

    fn next(position: &mut Position) -> Option<u64> {
        position.next(LIMITS, |object| (object == 7).then_some(40))
    }

    #[test]
    fn datasets_come_after_their_predecessors_lowest_first() {
        let mut position = new();
        assert_eq!((next(&mut position), position.start()), (Some(0), None));
        position.stand_at(at(0, 5), LIMITS, None);
        assert_eq!(position.start(), Some(at(0, 5)));
        position.finish(0, [(9, 0), (7, 0)]);
        assert_eq!((next(&mut position), position.bounds), (Some(7), (0, 40)));
        position.finish(7, [(8, 40)]);
        assert_eq!((next(&mut position), position.bounds), (Some(8), (40, 100)));
        // Finished in the same round, without having been begun here.
        position.finish(8, []);
        position.finish(9, [(11, 60)]);
        position.stand_at(at(11, 2), LIMITS, None);
        assert_eq!((position.current(), position.bounds), (Some(11), (60, 100)));
        position.finish(11, []);
        assert_eq!(next(&mut position), None);
        position.finish(11, [(12, 3)]);
        assert_eq!(next(&mut position), None, "it was not to be visited");
    }

    #[test]
    fn changes_of_datasets_are_followed() {
        let mut position = new();
        position.finish(0, [(7, 0), (20, 30)]);
        next(&mut position);
        position.stand_at(at(7, 3), LIMITS, None);
        // A snapshot of a head that is to come, and one of the head in progress.
        position.note_snapshot(20, 21);
        assert_eq!(position.queue(), &BTreeMap::from([(21, 30)]));
        position.note_snapshot(7, 8);
        assert_eq!(position.start(), Some(at(8, 3)));
        // The snapshot is destroyed: its blocks are in the head, which is visited again for its own ones.
        position.note_destroyed(8, Some(7));
        assert_eq!(position.start(), Some(at(7, 3)));
        position.finish(7, []);
        assert_eq!(position.queue(), &BTreeMap::from([(7, 40), (21, 30)]));
        position.note_swapped(7, 30);
        assert_eq!(position.queue(), &BTreeMap::from([(21, 30), (30, 40)]));
        position.note_destroyed(21, Some(20));
        position.note_destroyed(30, None);
        assert_eq!(position.queue(), &BTreeMap::from([(20, 30)]));
        assert_eq!(next(&mut position), Some(20));
        position.note_destroyed(20, None);
        assert_eq!((position.current(), next(&mut position)), (None, None));
    }
}
