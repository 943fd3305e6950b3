//! Memory for the requests under way of all clients of a server.
//!
//! What one client asks for at once is bounded by its own room; what all of them ask for together
//! by the common room ([`tunables::NBD_MEMORY_BYTES`]). A client takes its first short requests
//! from a room that nobody shares, so it gets on however much the others ask for.
//!
//! A client that announces data and does not send it, or asks for data and does not take it, keeps
//! its part of the common room. It may, as long as nobody waits for room; who holds room for longer
//! than [`tunables::NBD_STALL_MS`] while others wait is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_rt::{AsyncMutex, Notify, monotonic, tunables};

/// How often it is looked whether others wait.
const LOOKS: u32 = 8;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct CommonRoom {
    /// Bytes of the requests that hold a part.
    taken: AtomicU64,
    /// Requests that wait for a part.
    waiting: AtomicU64,
    freed: Notify,
    /// Held by the request whose turn it is to wait for what is freed: they get it in order.
    turn: AsyncMutex<()>,
}

/// A part of the room, until it is dropped.
#[derive(Debug)]
pub(super) struct Part {
    room: Arc<CommonRoom>,
    bytes: u64,
}

impl Drop for Part {
    fn drop(&mut self) {
        self.room.taken.fetch_sub(self.bytes, Ordering::SeqCst);
        self.room.freed.notify_one();
    }
}

/// Counts a request that waits, until it is dropped.
struct Waiting<'a>(&'a AtomicU64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl CommonRoom {
    /// Waits for a part of `bytes`, at most the bytes of the longest request.
    pub(super) async fn take(self: &Arc<Self>, bytes: u64) -> Part {
        if let Some(part) = self.take_now(bytes) {
            return part;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting(&self.waiting);
        // LOCK: held while one request waits for room; parts are given back without it.
        let _turn = self.turn.lock().await;
        loop {
            if let Some(part) = self.try_take(bytes) {
                return part;
            }
            // A part that is given back before this is kept as a notice.
            self.freed.notified().await;
        }
    }

    /// A part of `bytes` that is free, if nobody waits for one.
    pub(super) fn take_now(self: &Arc<Self>, bytes: u64) -> Option<Part> {
        if self.waiting.load(Ordering::SeqCst) > 0 { None } else { self.try_take(bytes) }
    }

    fn try_take(self: &Arc<Self>, bytes: u64) -> Option<Part> {
        let limit = tunables::NBD_MEMORY_BYTES.get();
        let more = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= limit);
        self.taken.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
        Some(Part { room: Arc::clone(self), bytes })
    }

    /// Returns when its caller has held room for too long, and others wait.
    pub(super) async fn held_too_long(&self) {
        let begin = monotonic();
        loop {
            let patience = Duration::from_millis(tunables::NBD_STALL_MS.get());
            cenote_rt::sleep(patience / LOOKS).await;
            let is_long = monotonic().saturating_sub(begin) >= patience;
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
            // There would be room for it once the half is back, but the large one came first.
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
