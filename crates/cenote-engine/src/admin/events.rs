//! What happened to a pool, for whoever looks or waits: a ring of the last events.
//!
//! A ring belongs to one opening of a pool, and outlives it as long as somebody has it: that the
//! pool was exported stands in it, too. Numbers of events are unique in a process, and grow.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cenote_ondisk::bookmark::Bookmark;
use cenote_rt::Notify;
use cenote_vdev::VdevState;

/// Events that are kept.
const EVENTS_MAX: usize = 1000;

/// Something that happened to a pool, its devices or its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// No copy of a block can be read.
    Lost {
        /// Where the block belongs.
        place: Bookmark,
        /// What each copy says.
        cause: String,
    },
    /// A leaf left service, or came back.
    State {
        /// Guid of the leaf.
        leaf: u64,
        /// How it is now.
        state: VdevState,
    },
    /// Part of a block on a leaf was wrong.
    Bad {
        /// Guid of the leaf.
        leaf: u64,
        /// Byte on the device.
        offset: u64,
        /// What was wrong.
        cause: String,
        /// Whether the device said so itself, and gave no bytes.
        is_io: bool,
        /// Whether all that was bad of the block was written anew.
        is_repaired: bool,
    },
    /// The state of the pool as a whole changed.
    Pool(PoolEvent),
    /// Devices do not take what must be written: the pool waits.
    Suspended(String),
    /// A trim of a leaf changed its state.
    Trim {
        /// Guid of the leaf.
        leaf: u64,
        /// The change.
        event: TrimEvent,
    },
}

/// A change of the state of a trim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrimEvent {
    /// It began.
    Start,
    /// It was resumed.
    Resume,
    /// It was suspended.
    Suspend,
    /// It was cancelled.
    Cancel,
    /// It was completed.
    Finish,
}

/// A change of the state of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolEvent {
    /// It was created.
    Created,
    /// It was opened for writing.
    Imported,
    /// It was exported.
    Exported,
    /// It was destroyed.
    Destroyed,
    /// Its guid was changed.
    Reguided,
    /// Its config was written to the labels.
    Configured,
    /// Its error counters were cleared.
    Cleared,
    /// A scrub or resilver in progress was cancelled.
    ScanCancelled,
}

/// An event that was noted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedEvent {
    /// Its number.
    pub eid: u64,
    /// When it happened, since 1970.
    pub time: Duration,
    /// What happened.
    pub event: Event,
}

/// The events of one opening of a pool.
#[derive(Debug)]
pub struct EventLog {
    /// Its number, of those of events.
    pub id: u64,
    /// The pool's name then.
    pub pool: String,
    /// The pool's guid then.
    pub guid: u64,
    // Held for a few instructions, never across I/O.
    ring: Mutex<Ring>,
    /// Tells that there is something new.
    news: Notify,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<NotedEvent>,
    dropped: u64,
}

/// The next number.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl EventLog {
    pub(crate) fn new(pool: &str, guid: u64) -> Self {
        Self {
            id: number(),
            pool: pool.to_owned(),
            guid,
            ring: Mutex::default(),
            news: Notify::new(),
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, event: Event) {
        let time = cenote_rt::wall_clock();
        let mut ring = self.ring();
        if ring.events.len() >= EVENTS_MAX {
            ring.events.pop_front();
            ring.dropped += 1;
        }
        // Under the lock: numbers of a ring are in order.
        ring.events.push_back(NotedEvent { eid: number(), time, event });
        drop(ring);
        self.news.notify_waiters();
    }

    /// Ends with the next event that is noted after this was called.
    pub fn told(&self) -> impl Future<Output = ()> + Send + '_ {
        self.news.notified()
    }

    /// The events that are kept, from the oldest, whose numbers are greater than `after`.
    #[must_use]
    pub fn after(&self, after: u64) -> Vec<NotedEvent> {
        self.ring().events.iter().filter(|noted| noted.eid > after).cloned().collect()
    }

    /// Forgets all events, and tells how many they were.
    pub fn clear(&self) -> usize {
        std::mem::take(&mut self.ring().events).len()
    }

    /// How many events made room for others since this was asked last.
    pub fn take_dropped(&self) -> u64 {
        std::mem::take(&mut self.ring().dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_events_are_kept_in_order() {
        let log = EventLog::new("t", 7);
        for _ in 0..EVENTS_MAX + 3 {
            log.note(Event::Pool(PoolEvent::Cleared));
        }
        let all = log.after(0);
        assert!(all.len() == EVENTS_MAX && all.is_sorted_by_key(|noted| noted.eid));
        assert_eq!((log.take_dropped(), log.take_dropped()), (3, 0));
        assert_eq!(log.after(all[EVENTS_MAX - 3].eid), all[EVENTS_MAX - 2..]);
        assert!(all[0].eid > log.id);
        assert_eq!((log.clear(), log.after(0).len()), (EVENTS_MAX, 0));
    }
}
