//! FUSE requests through io_uring: the ring of one thread, and the memory that it shares with the
//! kernel.
//!
//! ```text
//!   register(slot) ──> kernel ──> Event::Request(slot) ──> the server answers in the slot
//!                        ^                                        │
//!                        └────────────── commit(slot) <───────────┘
//! ```
//!
//! A [`Slot`] has room for one request and its answer. While the kernel may write there, the ring
//! owns it, and returns it with the request. The system call that gives an answer to the kernel
//! also waits for the next request. The kernel has a queue of slots for each processor, and
//! delivers a request to the queue of the processor on which it was made: if the thread of the ring
//! runs there as well, no other processor has to be woken.
//!
//! Not everything comes this way: the first request, forgotten nodes and interrupts are read from
//! the connection as without a ring.
//!
//! Guarantees
//! * FR1  The kernel writes to a slot only from the push of its command until the completion is
//!   reaped, and the ring owns the slot meanwhile. A ring that is dropped leaks such slots.
//!
//! Sources: `linux/fuse.h` from version 7.42 on (Linux 6.14), and the kernel's documentation of
//! FUSE over io_uring.

mod slot;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::squeue::Entry128;
use io_uring::{IoUring, opcode, types};

pub use slot::Slot;

/// Length of the submission queue.
const ENTRIES: u32 = 256;
/// Length of the completion queue: more than one thread has slots.
const COMPLETIONS: u32 = 32 << 10;
/// Gives a slot to the kernel.
const REGISTER: u32 = 1;
/// Gives an answer to the kernel, and the slot for the next request.
const COMMIT_AND_FETCH: u32 = 2;
/// Number of pairs of address and length in a slot.
const PAIRS: u32 = 2;
/// `user_data` of the read on the eventfd.
const WAKE: u64 = u64::MAX;

/// What has happened. `T` is the server's value that accompanies each slot.
#[derive(Debug)]
pub enum Event<T> {
    /// The slot has a request.
    Request(Slot, T),
    /// The kernel has given the slot back, because its connection has ended, or refused it.
    Ended(Slot, T, std::io::Error),
}

/// A ring, which only its thread uses.
pub struct Ring<T> {
    uring: IoUring<Entry128>,
    /// Slots that the kernel has (FR1).
    slots: Vec<Option<(Slot, T)>>,
    free: Vec<usize>,
    /// Bytes of memory that they take at most.
    used: usize,
    events: VecDeque<Event<T>>,
    wake: Arc<OwnedFd>,
    /// Destination of the read on the eventfd; boxed so that it does not move.
    wake_counter: Box<[u8; 8]>,
    is_wake_armed: bool,
}

impl<T> std::fmt::Debug for Ring<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

impl<T> Ring<T> {
    /// Creates a ring for the calling thread. A write to the eventfd `wake` ends its waiting.
    ///
    /// # Errors
    /// The system's error: the kernel is too old, or forbids io_uring.
    pub fn new(wake: Arc<OwnedFd>) -> std::io::Result<Self> {
        // The thread processes completions inside its own wait, and is never interrupted.
        let uring = IoUring::<Entry128>::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(COMPLETIONS)
            .build(ENTRIES)?;
        let wake_counter = Box::new([0; 8]);
        let (slots, free, events) = (Vec::new(), Vec::new(), VecDeque::new());
        Ok(Self { uring, slots, free, used: 0, events, wake, wake_counter, is_wake_armed: false })
    }

    /// Gives a new slot to the kernel, with the next [`wait`](Self::wait).
    pub fn register(&mut self, slot: Slot, of: T) {
        self.give(REGISTER, slot, of);
    }

    /// Gives an answered slot to the kernel, with the next [`wait`](Self::wait).
    pub fn commit(&mut self, mut slot: Slot, of: T) {
        slot.note_used();
        self.give(COMMIT_AND_FETCH, slot, of);
    }

    fn give(&mut self, operation: u32, slot: Slot, of: T) {
        let key = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        let entry = command(operation, &slot).user_data(key as u64);
        self.used += slot.used();
        // FR1: moving a slot does not move its memory.
        if let Some(place) = self.slots.get_mut(key) {
            *place = Some((slot, of));
        }
        self.push(&entry);
    }

    #[expect(unsafe_code, reason = "the kernel writes to memory behind the compiler's back")]
    fn push(&mut self, entry: &Entry128) {
        // SAFETY: the memory of a command is a slot's, which stays in `slots` until the completion
        // is reaped; if the ring is dropped before that, the slot is leaked. That of the read is
        // boxed, and leaked in the same way.
        while unsafe { self.uring.submission().push(entry) }.is_err() {
            // The queue is full.
            self.submit();
        }
    }

    /// Submits everything, and waits for an event if `is_to_wait`. Errors of the system are
    /// transient: what is not submitted is submitted by the next call.
    pub fn wait(&mut self, is_to_wait: bool) {
        if !self.is_wake_armed {
            let (fd, to) = (types::Fd(self.wake.as_raw_fd()), self.wake_counter.as_mut_ptr());
            let read = opcode::Read::new(fd, to, 8).build().user_data(WAKE);
            self.is_wake_armed = true;
            self.push(&read.into());
        }
        let _ = self.uring.submit_and_wait(usize::from(is_to_wait && self.events.is_empty()));
        self.reap();
    }

    /// Submits everything, without waiting. Returns false if a part is left for a later call.
    pub fn submit(&mut self) -> bool {
        let _ = self.uring.submit();
        self.reap();
        self.uring.submission().is_empty()
    }

    fn reap(&mut self) {
        for entry in self.uring.completion() {
            if entry.user_data() == WAKE {
                self.is_wake_armed = false;
                continue;
            }
            let key = entry.user_data() as usize;
            let taken = self.slots.get_mut(key).and_then(Option::take);
            let Some((mut slot, of)) = taken else { continue };
            self.free.push(key);
            self.used = self.used.saturating_sub(slot.used());
            slot.note_used();
            self.events.push_back(match entry.result() {
                0.. => Event::Request(slot, of),
                errno => Event::Ended(slot, of, std::io::Error::from_raw_os_error(-errno)),
            });
        }
    }

    /// Gives memory of slots that wait for requests back to the system, if they take more than
    /// `limit` bytes.
    pub fn trim(&mut self, limit: usize) {
        if self.used <= limit {
            return;
        }
        // Answers that the kernel has not got yet are in their slots. It writes requests only while
        // this thread is in one of its calls: a slot whose completion is not there has none. If
        // completions did not fit into their queue, some are there and not seen.
        if !self.submit() || self.uring.submission().cq_overflow() {
            return;
        }
        for (slot, _) in self.slots.iter_mut().flatten() {
            if slot.used() > 0 {
                slot.discard();
            }
        }
        self.used = 0;
    }

    /// Whether there is an event, or one comes with the next [`wait`](Self::wait) at once. Makes no
    /// system call.
    #[must_use]
    pub fn is_anything_there(&mut self) -> bool {
        !self.events.is_empty()
            || !self.uring.completion().is_empty()
            || self.uring.submission().taskrun()
    }

    /// Returns the next event.
    pub fn next_event(&mut self) -> Option<Event<T>> {
        self.events.pop_front()
    }
}

impl<T> Drop for Ring<T> {
    fn drop(&mut self) {
        // FR1: the kernel may still write there.
        std::mem::forget(std::mem::take(&mut self.slots));
        std::mem::forget(std::mem::take(&mut self.wake_counter));
    }
}

/// Returns the command of a slot.
#[expect(unsafe_code, reason = "the package has no name for one field of a command")]
fn command(operation: u32, slot: &Slot) -> Entry128 {
    /// Where a submission queue entry has the length of what its address points to.
    const LEN: usize = 24;
    // Flags, the number of the request, the queue.
    let mut arguments = [0; 80];
    arguments[8..16].copy_from_slice(&slot.commit_id().to_ne_bytes());
    arguments[16..18].copy_from_slice(&slot.queue().to_ne_bytes());
    let mut entry = opcode::UringCmd80::new(types::Fd(slot.channel().as_raw_fd()), operation)
        .cmd(arguments)
        .addr(Some(slot.places()))
        .build();
    let start = (&raw mut entry).cast::<u8>();
    // SAFETY: the entry is plain memory of 128 bytes in the layout of `struct io_uring_sqe`, of
    // which any bytes are valid. The write is within it, and does not need an alignment.
    unsafe { start.add(LEN).cast::<u32>().write_unaligned(PAIRS) };
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wake() -> Arc<OwnedFd> {
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        Arc::new(rustix::event::eventfd(0, flags).expect("an eventfd"))
    }

    #[test]
    fn refused_slots_come_back() {
        let Ok(mut ring) = Ring::new(wake()) else { return };
        // More than the queue has room for.
        let count = 2 * ENTRIES as usize + 3;
        // An eventfd knows no commands.
        let slots = Slot::for_queues(&wake(), &vec![0; count], 4096).expect("memory");
        for (number, slot) in slots.into_iter().enumerate() {
            ring.register(slot, number);
        }
        let mut ended = vec![0; count];
        while ended.contains(&0) {
            ring.wait(true);
            while let Some(event) = ring.next_event() {
                let Event::Ended(_, number, error) = event else { panic!("no request was made") };
                assert!(error.raw_os_error().is_some_and(|number| number > 0), "{error}");
                ended[number] += 1;
            }
        }
        assert!(ended.iter().all(|count| *count == 1));
        assert_eq!((ring.free.len(), ring.used), (ring.slots.len(), 0));
    }

    #[test]
    fn memory_of_slots_is_given_back_beyond_a_limit() {
        let Ok(mut ring) = Ring::new(wake()) else { return };
        // As if the kernel had them.
        for mut slot in Slot::for_queues(&wake(), &[0; 5], 64 << 10).expect("memory") {
            assert_eq!(slot.answer(0, &[b"some bytes"]), Some(()));
            slot.note_used();
            ring.used += slot.used();
            ring.slots.push(Some((slot, ())));
        }
        let used = ring.used;
        assert!(used > 0);
        ring.trim(used);
        assert_eq!(ring.used, used);
        ring.trim(used - 1);
        assert_eq!(ring.used, 0);
        assert!(ring.slots.iter().flatten().all(|(slot, ())| slot.used() == 0));
        ring.slots.clear();
    }

    #[test]
    fn answers_that_are_not_submitted_yet_are_kept() {
        let Ok(mut ring) = Ring::new(wake()) else { return };
        let slots = Slot::for_queues(&wake(), &[0; 5], 64 << 10).expect("memory");
        for mut slot in slots {
            assert_eq!(slot.answer(0, &[b"an answer"]), Some(()));
            ring.commit(slot, ());
        }
        ring.trim(0);
        assert_eq!(ring.used, 0);
        for _ in 0..5 {
            // The eventfd knows no commands: the kernel gives the slot back as it got it.
            let Some(Event::Ended(slot, (), _)) = ring.next_event() else {
                panic!("not submitted")
            };
            assert_eq!(slot.payload_len(), 9);
        }
    }

    #[test]
    fn waiting_ends_when_it_is_woken() {
        let wake = wake();
        let Ok(mut ring) = Ring::<()>::new(Arc::clone(&wake)) else { return };
        for _ in 0..3 {
            ring.wait(false);
            let waker = Arc::clone(&wake);
            let thread = std::thread::spawn(move || {
                rustix::io::write(&*waker, &1_u64.to_ne_bytes()).expect("written")
            });
            ring.wait(true);
            assert!(ring.next_event().is_none() && !ring.is_wake_armed);
            assert_eq!(thread.join().expect("joined"), 8);
        }
    }
}
