//! Append-only list that can be read while it grows.
//!
//! Elements never move, so references stay valid as long as the arena. They lie in buckets, each
//! twice as long as the one before, so a lookup takes the same time however often the list has
//! grown.
//!
//! Concurrency: an element is complete before it is counted, so a reader sees all of it or none.
//! The caller serializes growth.

use std::ops::Index;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements of the first bucket, log2.
const FIRST: u32 = 4;
/// Buckets for as many elements as an index can count.
const BUCKETS: usize = (usize::BITS - FIRST) as usize;

/// A list of buckets.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    buckets: [OnceLock<Box<[OnceLock<T>]>>; BUCKETS],
    len: AtomicUsize,
}

/// Returns the bucket of an element, and its place there.
const fn place(index: usize) -> (usize, usize) {
    let moved = index + (1 << FIRST);
    let bucket = moved.ilog2();
    ((bucket - FIRST) as usize, moved - (1 << bucket))
}

impl<T> From<Vec<T>> for Arena<T> {
    fn from(items: Vec<T>) -> Self {
        let arena =
            Self { buckets: [const { OnceLock::new() }; BUCKETS], len: AtomicUsize::new(0) };
        arena.grow(items);
        arena
    }
}

impl<T> Arena<T> {
    /// All elements in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        (0..self.len()).map(|index| &self[index])
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }

    /// The element at `index`.
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        let (bucket, at) = place(index);
        self.buckets.get(bucket)?.get()?.get(at)?.get()
    }

    /// Adds elements at the end.
    pub(crate) fn grow(&self, items: Vec<T>) {
        for item in items {
            let index = self.len();
            let (bucket, at) = place(index);
            let empty = || (0..1_usize << (bucket as u32 + FIRST)).map(|_| OnceLock::new());
            let slots = self.buckets[bucket].get_or_init(|| empty().collect());
            assert!(slots[at].set(item).is_ok(), "a list grows in two tasks at once");
            self.len.store(index + 1, Ordering::Release);
        }
    }
}

impl<T> Index<usize> for Arena<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.get(index).unwrap_or_else(|| panic!("index {index} of {} elements", self.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_stay_in_place_when_the_arena_grows() {
        let arena = Arena::from(vec![1, 2, 3]);
        let third = &arena[2];
        arena.grow(vec![]);
        arena.grow(vec![4]);
        arena.grow(vec![5, 6]);
        assert_eq!(*third, 3);
        assert_eq!(arena.iter().rev().copied().collect::<Vec<_>>(), [6, 5, 4, 3, 2, 1]);
        assert_eq!((arena.len(), arena[3], arena[5], arena.get(6)), (6, 4, 6, None));
        arena.grow((7..5000).collect());
        assert!(arena.iter().copied().eq(1..5000));
        assert_eq!((*third, arena.get(4999), arena.get(usize::MAX >> 1)), (3, None, None));
    }
}
