//! A list that grows at its end while others read it.
//!
//! What is in it stays where it is, so that references last as long as the arena. Each growth is a
//! further chunk behind the last one: there are few of them, one for each time that a pool got more
//! devices, and finding an element walks over them.
//!
//! Concurrency: a chunk is whole before it is linked; a reader sees it or does not. Growing is the
//! caller's to serialize.

use std::ops::Index;
use std::sync::OnceLock;

/// The list.
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

    /// Elements.
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
            // Full: somebody has linked one in between.
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
    fn what_was_there_stays_in_place() {
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
