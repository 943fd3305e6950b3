//! A recording of the reads and writes of an open head: places and lengths, no data.
//!
//! ```text
//!   readers and writers --record--> ring of slots --drain--> one recorder
//! ```
//!
//! The ring has no lock, so that recording never makes a reader or writer wait: each slot has the
//! ticket that it is free or filled for (D. Vyukov's bounded queue). An access that finds the ring
//! full is counted and dropped. The ring is allocated by the first recording and kept as long as
//! the head is open; without a recording an access costs a load.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Accesses that wait for the recorder: 640 KiB.
const SLOTS: u64 = 1 << 14;

/// A read or a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    /// When it ended, by the monotonic clock.
    pub time: Duration,
    /// Whether it is a write.
    pub is_write: bool,
    /// Number of the file; of volumes that of their data.
    pub object: u64,
    /// Where it begins.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
}

/// A slot of the ring: the fields belong to the thread whose ticket it has.
#[derive(Debug, Default)]
struct Slot {
    /// Free for this ticket; one more if it is filled for it.
    ticket: AtomicU64,
    time_ns: AtomicU64,
    object: AtomicU64,
    offset: AtomicU64,
    /// Length, and in the lowest bit whether it is a write.
    kind: AtomicU64,
}

#[derive(Debug)]
struct Ring {
    slots: Box<[Slot]>,
    is_recording: AtomicBool,
    /// The next ticket to fill, and the next one to drain.
    filled: AtomicU64,
    drained: AtomicU64,
    dropped: AtomicU64,
}

/// The accesses of a head.
#[derive(Debug, Default)]
pub(crate) struct Accesses(OnceLock<Ring>);

impl Accesses {
    /// Records an access, if there is a recorder.
    pub(crate) fn record(&self, is_write: bool, object: u64, offset: u64, len: u64) {
        if let Some(ring) = self.0.get().filter(|ring| ring.is_recording.load(Ordering::Relaxed)) {
            let time = cenote_rt::monotonic();
            ring.push(Access { time, is_write, object, offset, len });
        }
    }

    /// Begins a recording; `None` if there is one already.
    pub(crate) fn start(&self) -> Option<Recording<'_>> {
        let ring = self.0.get_or_init(Ring::new);
        if ring.is_recording.swap(true, Ordering::AcqRel) {
            return None;
        }
        let mut recording = Recording(ring);
        // Accesses that ended after the last recording did. Others may add as fast as this takes.
        for _ in 0..SLOTS {
            if recording.take().is_none() {
                break;
            }
        }
        ring.dropped.store(0, Ordering::Relaxed);
        Some(recording)
    }
}

impl Ring {
    fn new() -> Self {
        let slot = |ticket| Slot { ticket: AtomicU64::new(ticket), ..Slot::default() };
        Self {
            slots: (0..SLOTS).map(slot).collect(),
            is_recording: AtomicBool::new(false),
            filled: AtomicU64::new(0),
            drained: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    fn slot(&self, ticket: u64) -> &Slot {
        &self.slots[(ticket % SLOTS) as usize]
    }

    fn push(&self, access: Access) {
        let mut ticket = self.filled.load(Ordering::Relaxed);
        loop {
            let slot = self.slot(ticket);
            let free_for = slot.ticket.load(Ordering::Acquire);
            if free_for < ticket {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
            if free_for > ticket {
                ticket = self.filled.load(Ordering::Relaxed);
                continue;
            }
            let taken = self.filled.compare_exchange_weak(
                ticket,
                ticket + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if let Err(newer) = taken {
                ticket = newer;
                continue;
            }
            slot.fill(access);
            slot.ticket.store(ticket + 1, Ordering::Release);
            return;
        }
    }
}

impl Slot {
    fn fill(&self, access: Access) {
        let time_ns = u64::try_from(access.time.as_nanos()).unwrap_or(u64::MAX);
        self.time_ns.store(time_ns, Ordering::Relaxed);
        self.object.store(access.object, Ordering::Relaxed);
        self.offset.store(access.offset, Ordering::Relaxed);
        self.kind.store(access.len << 1 | u64::from(access.is_write), Ordering::Relaxed);
    }

    fn access(&self) -> Access {
        let kind = self.kind.load(Ordering::Relaxed);
        Access {
            time: Duration::from_nanos(self.time_ns.load(Ordering::Relaxed)),
            is_write: kind & 1 != 0,
            object: self.object.load(Ordering::Relaxed),
            offset: self.offset.load(Ordering::Relaxed),
            len: kind >> 1,
        }
    }
}

/// The recording of a head, until it is dropped. There is one at a time.
#[derive(Debug)]
pub struct Recording<'h>(&'h Ring);

impl Recording<'_> {
    /// Returns the next access; `None` if there is none at the moment.
    pub fn take(&mut self) -> Option<Access> {
        let ticket = self.0.drained.load(Ordering::Relaxed);
        let slot = self.0.slot(ticket);
        if slot.ticket.load(Ordering::Acquire) != ticket + 1 {
            return None;
        }
        let access = slot.access();
        slot.ticket.store(ticket + SLOTS, Ordering::Release);
        self.0.drained.store(ticket + 1, Ordering::Relaxed);
        Some(access)
    }

    /// Returns the number of accesses that found the ring full.
    pub fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        self.0.is_recording.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_are_recorded_in_order_and_dropped_when_the_ring_is_full() {
        let accesses = Accesses::default();
        accesses.record(true, 1, 2, 3);
        let mut recording = accesses.start().expect("the first recording");
        assert!(accesses.start().is_none() && recording.take().is_none());
        for round in 0..3 {
            for number in 0..SLOTS + 5 {
                accesses.record(number % 2 == 1, round, number, number * 2);
            }
            let taken: Vec<_> = std::iter::from_fn(|| recording.take()).collect();
            assert_eq!((taken.len() as u64, recording.dropped()), (SLOTS, 5 * (round + 1)));
            let is_right = |(number, access): (u64, &Access)| {
                let wanted = (number % 2 == 1, round, number, number * 2);
                (access.is_write, access.object, access.offset, access.len) == wanted
            };
            assert!((0..).zip(&taken).all(is_right));
        }
        drop(recording);
        accesses.record(true, 1, 2, 3);
        let mut again = accesses.start().expect("another recording");
        assert_eq!((again.take(), again.dropped()), (None, 0));
    }

    #[test]
    fn accesses_of_many_threads_are_whole() {
        const EACH: u64 = 20_000;
        let accesses = Accesses::default();
        let mut recording = accesses.start().expect("the first recording");
        let taken = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..4)
                .map(|thread| {
                    let accesses = &accesses;
                    scope.spawn(move || {
                        (0..EACH)
                            .for_each(|n| accesses.record(n % 2 == 0, thread, n, n * 4 + thread));
                    })
                })
                .collect();
            let mut taken = 0;
            loop {
                let is_over = writers.iter().all(std::thread::ScopedJoinHandle::is_finished);
                while let Some(access) = recording.take() {
                    let wanted = access.offset * 4 + access.object;
                    assert_eq!((access.len, access.is_write), (wanted, access.offset % 2 == 0));
                    taken += 1;
                }
                if is_over {
                    break taken;
                }
            }
        });
        assert_eq!(taken + recording.dropped(), 4 * EACH);
        assert!(taken >= SLOTS, "{taken}");
    }
}
