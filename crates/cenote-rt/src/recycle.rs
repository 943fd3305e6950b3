//! Reuse of the storage of buffers.
//!
//! Fresh memory is not free: the kernel clears each page of it, `vec![0; n]` clears it again if the
//! allocator had it before, and the allocator soon returns it. For reads of 1 MiB from the page
//! cache that cost as much as the copying. So storage of buffers goes to a pool after its last use,
//! and the next read of that length takes it from there, with the old bytes in it.
//!
//! Invariants
//! * P1 The pool holds at most [`POOL_BYTES_MAX`]. If it is full of other lengths than the next
//!   one, it is emptied, so that unused lengths do not stay.
//! * P3 The bytes of the pool are the sum over its storage.
//!
//! Guarantees
//! * P2 It is emptied after two checks of [`tend`] without a request for storage in between.

use std::time::Duration;

use crate::FixedMap;
use crate::lock::{Mutex, Rank};

/// Maximum bytes in the pool: about what a txg of small records frees at once when it is committed.
const POOL_BYTES_MAX: usize = 64 << 20;

/// Shorter storage is left to the allocator, which is fast for it.
const LEN_MIN: usize = 8 << 10;

/// Time without requests after which storage is returned.
const QUIET: Duration = Duration::from_secs(2);

#[derive(Default)]
struct Pool {
    by_len: FixedMap<usize, Vec<Vec<u8>>>,
    bytes: usize,
    /// Number of requests for storage.
    uses: u64,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(Rank::BufferPool, None);

/// Bytes that return to the pool on drop.
#[derive(Debug, Default)]
pub(crate) struct Storage(pub(crate) Vec<u8>);

impl Storage {
    /// Returns `len` bytes with unspecified contents.
    pub(crate) fn of_any_content(len: usize) -> Self {
        let mut pool = POOL.lock();
        let this = pool.get_or_insert_with(Pool::default);
        this.uses += 1;
        let found = this.by_len.get_mut(&len).and_then(Vec::pop);
        let len_found = found.as_ref().map_or(0, Vec::len);
        // Checks P3.
        this.bytes = this.bytes.checked_sub(len_found).expect("a part of the sum");
        drop(pool);
        Self(found.unwrap_or_else(|| vec![0; len]))
    }
}

impl Pool {
    /// Takes all of its storage.
    fn take(&mut self) -> FixedMap<usize, Vec<Vec<u8>>> {
        self.bytes = 0;
        std::mem::take(&mut self.by_len)
    }
}

/// Returns unused storage to the allocator periodically. Keeps P2.
pub(crate) async fn tend() {
    let mut seen = 0;
    loop {
        crate::sleep(QUIET).await;
        seen = empty_if_quiet(seen);
    }
}

/// Empties the pool if there was no request since `seen` was returned.
fn empty_if_quiet(seen: u64) -> u64 {
    let mut pool = POOL.lock();
    let Some(this) = pool.as_mut() else { return seen };
    let uses = this.uses;
    let emptied = (uses == seen).then(|| this.take());
    // Freed without the lock.
    drop(pool);
    drop(emptied);
    uses
}

impl Drop for Storage {
    fn drop(&mut self) {
        let bytes = std::mem::take(&mut self.0);
        let len = bytes.len();
        // A truncated vector would be found under the wrong length.
        if !(LEN_MIN..=POOL_BYTES_MAX).contains(&len) || bytes.capacity() != len {
            return;
        }
        let mut pool = POOL.lock();
        let pool = pool.get_or_insert_with(Pool::default);
        let mut emptied = None;
        if pool.bytes + len > POOL_BYTES_MAX {
            let alike = pool.by_len.get(&len).map_or(0, |list| list.len() * len);
            if alike > POOL_BYTES_MAX / 2 {
                return;
            }
            emptied = Some(pool.take());
        }
        pool.bytes += len;
        // Checks P1.
        assert!(pool.bytes <= POOL_BYTES_MAX, "the pool has {} bytes", pool.bytes);
        pool.by_len.entry(len).or_default().push(bytes);
        // Freed under the lock, which is rare.
        drop(emptied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // One test, because the pool is shared by concurrent tests.
    #[test]
    fn storage_is_reused_and_the_pool_is_bounded() {
        // A length that no other test uses.
        let len = (1 << 20) + 12345;
        let mut storage = Storage::of_any_content(len);
        storage.0[7] = 9;
        let address = storage.0.as_ptr();
        drop(storage);
        let again = Storage::of_any_content(len);
        assert_eq!((again.0.as_ptr(), again.0.len(), again.0[7]), (address, len, 9));
        assert_ne!(Storage::of_any_content(len).0.as_ptr(), address);
        drop(again);
        let many: Vec<_> = (0..100).map(|i| Storage::of_any_content((1 << 20) + i)).collect();
        drop(many);
        let pool = POOL.lock();
        let held = pool.as_ref().expect("used").by_len.iter();
        let held: usize = held.map(|(len, list)| len * list.len()).sum();
        assert!(held <= POOL_BYTES_MAX && pool.as_ref().expect("used").bytes == held);
        drop(pool);
        let seen = empty_if_quiet(0);
        assert!(seen > 0, "it was used");
        drop(Storage::of_any_content(len));
        assert!(empty_if_quiet(seen) > seen, "it was used since");
        let holds = || {
            let pool = POOL.lock();
            pool.as_ref().expect("used").by_len.get(&len).is_some_and(|list| !list.is_empty())
        };
        assert!(holds());
        // Other tests use the pool meanwhile, but not forever.
        let mut seen = 0;
        while holds() {
            seen = empty_if_quiet(seen);
        }
    }
}
