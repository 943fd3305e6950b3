//! Memory budget for the in-flight requests of all clients of a server.
//!
//! The concurrent requests of one client are limited by its own budget, those of all clients by the
//! common budget ([`tunables::NBD_MEMORY_BYTES`]). The first short requests of a client use a
//! budget that it does not share, so it makes progress however much the others request.
//!
//! A client that announces data without sending it, or requests data without receiving it, keeps
//! its part of the common budget while no other client needs it. A client that holds memory for
//! longer than [`tunables::NBD_STALL_MS`] while others wait is disconnected.
//!
//! Invariants
//! * B1  The memory taken is that of the parts that exist.
//! * B2  Requests that wait for memory are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_rt::lock::{AsyncMutex, Rank};
use cenote_rt::{Notify, monotonic, tunables};

/// Checks per stall period for waiting clients.
const LOOKS: u32 = 8;

/// See the module documentation.
#[derive(Debug)]
pub(super) struct CommonRoom {
    /// Bytes held by requests.
    taken: AtomicU64,
    /// Requests that wait for memory.
    waiting: AtomicU64,
    freed: Notify,
    /// Held by the first waiting request: requests get memory in order of arrival.
    first: AsyncMutex<()>,
}

impl Default for CommonRoom {
    fn default() -> Self {
        Self {
            taken: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            freed: Notify::new(),
            first: AsyncMutex::new(Rank::NbdRoom, ()),
        }
    }
}

/// A part of the budget; returned when dropped.
#[derive(Debug)]
pub(super) struct Part {
    room: Arc<CommonRoom>,
    bytes: u64,
}

impl Drop for Part {
    fn drop(&mut self) {
        let before = self.room.taken.fetch_sub(self.bytes, Ordering::SeqCst);
        // Checks B1.
        assert!(before >= self.bytes, "{} of {before} bytes are returned", self.bytes);
        self.room.freed.notify_one();
    }
}

/// Counts a waiting request, until it is dropped.
struct Waiting<'a>(&'a AtomicU64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::SeqCst);
        // Checks B2.
        assert!(before > 0, "no request waits for memory");
    }
}

impl CommonRoom {
    /// Waits for a part of `bytes`, at most the size of the longest request.
    pub(super) async fn take(self: &Arc<Self>, bytes: u64) -> Part {
        if let Some(part) = self.take_now(bytes) {
            return part;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.waiting);
        // LOCK: held while one request waits for memory; parts are returned without it.
        let _first = self.first.lock().await;
        loop {
            if let Some(part) = self.try_take(bytes) {
                return part;
            }
            // A part that is returned before this is kept as a notification.
            self.freed.notified().await;
        }
    }

    /// Returns a part of `bytes` if it is free and no request waits.
    pub(super) fn take_now(self: &Arc<Self>, bytes: u64) -> Option<Part> {
        if self.waiting.load(Ordering::SeqCst) > 0 { None } else { self.try_take(bytes) }
    }

    fn try_take(self: &Arc<Self>, bytes: u64) -> Option<Part> {
        let limit = tunables::NBD_MEMORY_BYTES.get();
        let more = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= limit);
        self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(Part { room: Arc::clone(self), bytes })
    }

    /// Returns when the caller has held memory for too long, and others wait.
    pub(super) async fn held_too_long(&self) {
        let begin = monotonic();
        loop {
            let limit = Duration::from_millis(tunables::NBD_STALL_MS.get());
            cenote_rt::sleep(limit / LOOKS).await;
            let is_long = monotonic().saturating_sub(begin) >= limit;
            if is_long && self.waiting.load(Ordering::SeqCst) > 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_never_pass_the_limit_and_come_in_order() {
        cenote_rt::block_on(2, async {
            let limit = tunables::NBD_MEMORY_BYTES.get();
            let room = Arc::new(CommonRoom::default());
            let (half, rest) = (room.take(limit / 2).await, room.take(limit - limit / 2).await);
            let wait = |bytes: u64| {
                let room = Arc::clone(&room);
                async move { room.take(bytes).await }
            };
            let large = cenote_rt::spawn(wait(limit));
            while room.waiting.load(Ordering::SeqCst) < 1 {
                cenote_rt::yield_now().await;
            }
            // There is memory for it once half is returned, but the large request came first.
            let small = cenote_rt::spawn(wait(1));
            while room.waiting.load(Ordering::SeqCst) < 2 {
                cenote_rt::yield_now().await;
            }
            drop(half);
            cenote_rt::sleep(Duration::from_millis(20)).await;
            assert!(!large.is_finished() && !small.is_finished());
            drop(rest);
            let large = large.await.expect("runs");
            assert_eq!(room.taken.load(Ordering::SeqCst), limit);
            drop(large);
            drop(small.await.expect("runs"));
            assert_eq!(room.taken.load(Ordering::SeqCst), 0);
            assert_eq!(room.waiting.load(Ordering::SeqCst), 0);
        })
        .expect("a runtime");
    }
}
