//! Append-only list that can be read while it grows.
//!
//! Elements never move, so references stay valid as long as the arena. Each growth appends a chunk:
//! there is one chunk for each time that the pool got more devices, so there are few, and a lookup
//! walks over them.
//!
//! Concurrency: a chunk is complete before it is linked, so a reader sees all of it or none. The
//! caller serializes growth.

use std::ops::Index;
use std::sync::OnceLock;

/// A list of chunks; each chunk links to the next.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    items: Vec<T>,
    next: OnceLock<Box<Arena<T>>>,
}

impl<T> From<Vec<T>> for Arena<T> {
    fn from(items: Vec<T>) -> Self {
        Self { items, next: OnceLock::new() }
    }
}

impl<T> Arena<T> {
    fn chunks(&self) -> Vec<&[T]> {
        let mut chunks = Vec::new();
        let mut at = Some(self);
        while let Some(chunk) = at {
            chunks.push(&chunk.items[..]);
            at = chunk.next.get().map(|next| &**next);
        }
        chunks
    }

    /// All elements in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = &T> {
        self.chunks().into_iter().flatten()
    }

    /// Number of elements.
    pub(crate) fn len(&self) -> usize {
        self.chunks().iter().map(|chunk| chunk.len()).sum()
    }

    /// The element at `index`.
    pub(crate) fn get(&self, mut index: usize) -> Option<&T> {
        let mut chunk = self;
        while index >= chunk.items.len() {
            index -= chunk.items.len();
            chunk = chunk.next.get()?;
        }
        chunk.items.get(index)
    }

    /// Adds elements at the end.
    pub(crate) fn grow(&self, items: Vec<T>) {
        let mut last = Box::new(Self::from(items));
        let mut chunk = self;
        loop {
            // The slot is taken: a concurrent call linked a chunk first.
            match chunk.next.set(last) {
                Ok(()) => return,
                Err(back) => last = back,
            }
            if let Some(next) = chunk.next.get() {
                chunk = next;
            }
        }
    }
}

impl<T> Index<usize> for Arena<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        match self.items.get(index) {
            Some(item) => item,
            None => self
                .get(index)
                .unwrap_or_else(|| panic!("index {index} of {} elements", self.len())),
        }
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
    }
}
