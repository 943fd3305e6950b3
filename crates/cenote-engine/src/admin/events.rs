//! Events of a pool: a ring of the last ones, for reading and waiting.
//!
//! A ring belongs to one import of a pool, and outlives it while it is referenced, so that it can
//! contain the export. Event numbers are unique in a process, and increase. An error of a device
//! that was seen a short time ago posts no second event ([`RecentErrors`]).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use cenote_ondisk::bookmark::Bookmark;
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{Counter, Notify, tunables};
use cenote_vdev::{IoClass, LeafIo, Symptom, VdevState};

use super::recent::{RecentErrors, SeenError};

/// An event of a pool, its devices or its data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// No copy of a block can be read.
    Lost {
        /// The bookmark of the block.
        place: Bookmark,
        /// The error of each copy.
        cause: String,
    },
    /// The state of a leaf changed.
    State {
        /// Guid of the leaf.
        leaf: u64,
        /// Its new state.
        state: VdevState,
        /// The state that the event before this one told; the log fills it in.
        last: VdevState,
        /// Why it changed.
        cause: StateCause,
    },
    /// An I/O took longer than `zio_slow_io_ms`.
    Slow {
        /// The I/O.
        io: LeafIo,
        /// The time that it took.
        took: Duration,
    },
    /// An I/O in flight hangs.
    Hung {
        /// The I/O.
        io: LeafIo,
        /// The time since it began.
        age: Duration,
    },
    /// An I/O of a device failed, or returned wrong bytes.
    Bad {
        /// The I/O.
        io: LeafIo,
        /// The error.
        cause: String,
        /// The checksum error; `None` if the device reported the error.
        checksum: Option<WrongBytes>,
        /// Whether all wrong parts of the block were rewritten.
        is_repaired: bool,
    },
    /// The state of the pool changed.
    Pool(PoolEvent),
    /// Devices do not accept writes: the pool is suspended.
    Suspended(String),
    /// An internal record was added to the pool's history.
    History(Box<HistoryNote>),
    /// A hot spare or cache device left the pool.
    AuxRemoved {
        /// Its guid.
        device: u64,
        /// Its state before.
        state: VdevState,
        /// Its path.
        path: Option<String>,
    },
    /// The state of a trim of a leaf changed.
    Trim {
        /// Guid of the leaf.
        leaf: u64,
        /// The change.
        event: TrimEvent,
    },
}

/// An internal record of the pool's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryNote {
    /// Name of the host.
    pub host: String,
    /// Name of the operation.
    pub name: String,
    /// Its details.
    pub text: String,
    /// Name and object of its dataset.
    pub dataset: Option<(String, u64)>,
    /// Its txg.
    pub txg: u64,
    /// Seconds since 1970.
    pub time: u64,
}

/// What a checksum error's event tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrongBytes {
    /// Class of the read.
    pub class: IoClass,
    /// The leaf's checksum errors, with this one; 0 if it was not counted.
    pub errors: u64,
}

/// Why the state of a leaf changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateCause {
    /// A request of the administrator.
    Request,
    /// The device does not answer, or became too small.
    Probe,
    /// It has too many errors: a hot spare may stand in for it.
    Diagnosis(Symptom),
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
    /// Vdevs were added.
    VdevsAdded,
    /// A scrub was started.
    ScrubStarted,
    /// A scrub ended: everything was read.
    ScrubFinished,
    /// A scrub was paused.
    ScrubPaused,
    /// A paused scrub was resumed.
    ScrubResumed,
    /// A scrub was cancelled.
    ScrubAborted,
    /// An error scrub was started.
    ErrorScrubStarted,
    /// An error scrub ended: every block was read that the log of errors named.
    ErrorScrubFinished,
    /// An error scrub was paused.
    ErrorScrubPaused,
    /// A paused error scrub was resumed.
    ErrorScrubResumed,
    /// An error scrub was cancelled.
    ErrorScrubAborted,
    /// A resilver was started, or started anew.
    ResilverStarted,
    /// A resilver ended: devices have what they lacked.
    ResilverFinished,
    /// A resilver was cancelled.
    ResilverAborted,
    /// A sequential rebuild was started.
    RebuildStarted,
    /// A sequential rebuild ended: new devices have everything.
    RebuildFinished,
    /// A sequential rebuild was cancelled: a device failed.
    RebuildAborted,
    /// The leaf with this guid was attached, or is to replace another one.
    Attached(u64),
    /// The leaf with this guid is to stand in for another one: it is a spare.
    SpareUsed(u64),
    /// The leaf with this guid was brought online.
    Onlined(u64),
    /// The leaf with this guid left its mirror.
    Detached(u64),
    /// The log vdev with this guid left the pool.
    LogRemoved(u64),
    /// The top-level vdev with this guid was removed: its data is elsewhere.
    Removed(u64),
}

/// A recorded event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotedEvent {
    /// Its number.
    pub eid: u64,
    /// Time since 1970.
    pub time: Duration,
    /// The event.
    pub event: Event,
}

/// The events of one import of a pool.
#[derive(Debug)]
pub struct EventLog {
    /// Number of this log, from the same sequence as events.
    pub id: u64,
    /// The pool's name at that time.
    pub pool: String,
    /// The pool's guid at that time.
    pub guid: u64,
    // Held for a few instructions, never across I/O.
    ring: Mutex<Ring>,
    /// Notified of new events.
    news: Notify,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<NotedEvent>,
    dropped: u64,
    errors: RecentErrors,
    /// Number of records of the history among the events.
    records: usize,
    /// States that were told, by leaf.
    states: BTreeMap<u64, VdevState>,
}

impl Ring {
    /// Makes room for one more event. The oldest one goes; but records of the history, of which
    /// many may be added at once while followers of failures are busy, have half of the ring at
    /// most, and then take the place of each other.
    fn make_room(&mut self, is_record: bool) {
        let most = tunables::ZEVENT_LEN_MAX.get_usize().max(1);
        while self.events.len() >= most {
            let is_old = |noted: &NotedEvent| matches!(noted.event, Event::History(_));
            let oldest = if is_record && self.records >= most.div_ceil(2) {
                self.events.iter().position(is_old).unwrap_or(0)
            } else {
                0
            };
            let gone = self.events.remove(oldest);
            self.records -= usize::from(gone.as_ref().is_some_and(is_old));
            self.dropped += 1;
        }
        self.records += usize::from(is_record);
    }
}

/// Numbers logs and events.
static NUMBERS: Counter = Counter::new("pool events");

impl EventLog {
    pub(crate) fn new(pool: &str, guid: u64) -> Self {
        Self {
            id: NUMBERS.next(),
            pool: pool.to_owned(),
            guid,
            ring: Mutex::with_default(Rank::Events),
            news: Notify::new(),
        }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock()
    }

    pub(crate) fn note(&self, mut event: Event) {
        let time = cenote_rt::wall_clock();
        let mut ring = self.ring();
        if let Event::State { leaf, state, last, .. } = &mut event {
            *last = ring.states.insert(*leaf, *state).unwrap_or(VdevState::Healthy);
        }
        // Of an error that the device reported, the caller has asked before it counted the error.
        if let Event::Bad { io, checksum: Some(wrong), .. } = &event {
            let seen = SeenError { io: *io, class: Some(wrong.class) };
            if ring.errors.is_repeated(seen) {
                return;
            }
        }
        if event == Event::Pool(PoolEvent::Cleared) {
            ring.errors.clear();
        }
        ring.make_room(matches!(event, Event::History(_)));
        // Under the lock, so that the numbers of a ring are in order.
        ring.events.push_back(NotedEvent { eid: NUMBERS.next(), time, event });
        drop(ring);
        self.news.notify_waiters();
    }

    /// Takes note of the state of a leaf, of which nothing is told.
    pub(crate) fn know_state(&self, leaf: u64, state: VdevState) {
        self.ring().states.insert(leaf, state);
    }

    /// Records that the device reported an error of an I/O. Returns whether the same one was
    /// recorded a short time ago.
    pub(crate) fn is_repeated(&self, io: LeafIo) -> bool {
        self.ring().errors.is_repeated(SeenError { io, class: None })
    }

    /// Returns a future that ends with the next event after this call.
    pub fn told(&self) -> impl Future<Output = ()> + Send + '_ {
        self.news.notified()
    }

    /// Returns the events with numbers above `after`, the oldest first.
    #[must_use]
    pub fn after(&self, after: u64) -> Vec<NotedEvent> {
        self.ring().events.iter().filter(|noted| noted.eid > after).cloned().collect()
    }

    /// Clears all events, and returns their number.
    pub fn clear(&self) -> usize {
        let mut ring = self.ring();
        ring.records = 0;
        std::mem::take(&mut ring.events).len()
    }

    /// Returns the number of events that were dropped for new ones since the last call.
    pub fn take_dropped(&self) -> u64 {
        std::mem::take(&mut self.ring().dropped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reading a bad block again posts no event; clearing the errors, another class of I/O and time
    /// do.
    #[test]
    fn an_error_that_is_repeated_posts_one_event() {
        let io = LeafIo { leaf: 1, kind: cenote_vdev::IoKind::Read, offset: 4096, len: 512 };
        let bad = |io, class| Event::Bad {
            io,
            cause: "wrong".into(),
            checksum: Some(WrongBytes { class, errors: 1 }),
            is_repaired: false,
        };
        let done = cenote_rt::simulate(1, async move {
            let log = EventLog::new("t", 7);
            let count = |event: Event, most| {
                log.note(event);
                assert_eq!(log.after(0).len(), most);
            };
            count(bad(io, IoClass::SyncRead), 1);
            count(bad(io, IoClass::SyncRead), 1);
            count(bad(io, IoClass::Scrub), 2);
            count(bad(LeafIo { offset: 8192, ..io }, IoClass::Scrub), 3);
            count(bad(LeafIo { leaf: 2, ..io }, IoClass::Scrub), 4);
            count(Event::Pool(PoolEvent::Cleared), 5);
            count(bad(io, IoClass::SyncRead), 6);
            cenote_rt::sleep(Duration::from_secs(899)).await;
            count(bad(io, IoClass::SyncRead), 6);
            cenote_rt::sleep(Duration::from_secs(902)).await;
            count(bad(io, IoClass::SyncRead), 7);
            assert_eq!([(); 2].map(|()| log.is_repeated(io)), [false, true]);
        });
        done.expect("simulated");
    }

    /// However many records of the history come at once, other events of the newer half stay.
    #[test]
    fn records_of_the_history_push_out_each_other() {
        let log = EventLog::new("t", 7);
        let most = tunables::ZEVENT_LEN_MAX.get_usize();
        let record = || {
            let (host, name, text) = ("h".to_owned(), "n".to_owned(), "t".to_owned());
            Event::History(Box::new(HistoryNote {
                host,
                name,
                text,
                dataset: None,
                txg: 1,
                time: 1,
            }))
        };
        let others = || {
            let all = log.after(0);
            assert!(all.len() <= most && all.is_sorted_by_key(|noted| noted.eid));
            all.iter().filter(|noted| !matches!(noted.event, Event::History(_))).count()
        };
        for _ in 0..most {
            log.note(Event::Pool(PoolEvent::Cleared));
        }
        for _ in 0..2 * most {
            log.note(record());
        }
        assert_eq!(others(), most / 2);
        for _ in 0..most / 2 {
            log.note(Event::Pool(PoolEvent::Cleared));
        }
        assert_eq!(others(), most / 2);
        for _ in 0..most {
            log.note(Event::Pool(PoolEvent::Cleared));
        }
        assert_eq!(others(), most);
        log.clear();
        log.note(record());
        assert_eq!((others(), log.after(0).len()), (0, 1));
    }

    #[test]
    fn events_ring_keeps_the_last_ones_in_order() {
        let log = EventLog::new("t", 7);
        let most = tunables::ZEVENT_LEN_MAX.get_usize();
        for _ in 0..most + 3 {
            log.note(Event::Pool(PoolEvent::Cleared));
        }
        let all = log.after(0);
        assert!(all.len() == most && all.is_sorted_by_key(|noted| noted.eid));
        assert_eq!((log.take_dropped(), log.take_dropped()), (3, 0));
        assert_eq!(log.after(all[most - 3].eid), all[most - 2..]);
        assert!(all[0].eid > log.id);
        assert_eq!((log.clear(), log.after(0).len()), (most, 0));
    }
}
