//! The io_uring reactor: one thread, one ring, shared by all devices.
//!
//!     task: submit(Request) --queue--> reactor thread --SQE--> kernel
//!     task: wakes           <--oneshot-- reactor thread <--CQE-- kernel
//!
//! The ring belongs to its thread alone, so its memory is never shared with the kernel and two of
//! our threads at once, and a task that ends never cancels I/O (the kernel cancels the requests
//! that an exiting thread has submitted). A sleeping reactor is woken through an eventfd, on which
//! a read is always pending in the ring.
//!
//! Guarantees
//! * R1  A buffer that the kernel may read or write is owned by the slab, from before its SQE is
//!   pushed until its CQE is reaped. Dropping a future loses only its completion.
//! * R2  The descriptor of an operation is held open by the slab in the same way.
//! * R3  There are never more operations in the ring than entries in its submission queue, so the
//!   completion queue (twice as long) cannot overflow.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock};

use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{Alarm, Buf, BufMut};
use io_uring::{IoUring, opcode, types};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Length of the submission queue, and so the limit of operations in the kernel.
const ENTRIES: u32 = 256;
/// Limit of the kernel's threads for operations that block: one for each. Reads of files on FUSE
/// and of network file systems block. If such a file is on a mount of this process, a read of it
/// needs others to be answered, which must not wait for a thread that it holds.
const WORKERS_MAX: u32 = ENTRIES;

/// `user_data` of the read on the eventfd.
const WAKE: u64 = u64::MAX;

/// A request to the kernel.
pub(crate) enum Work {
    /// Fill a buffer from the given byte of it on.
    Read(BufMut, usize),
    /// Write parts one after the other, at most [`PARTS_MAX`].
    Write(Vec<Buf>),
}

/// Most parts of one write (`IOV_MAX`).
pub(crate) const PARTS_MAX: usize = 1024;

/// Result: the request with its buffers, and the number of bytes read or written.
pub(crate) type Answer = (Work, io::Result<usize>);

/// One operation, not yet pushed or in the kernel.
struct Request {
    file: Arc<File>,
    offset: u64,
    work: Work,
    /// The `iovec`s of a write; empty before it is pushed.
    slices: Vec<IoSlice<'static>>,
    answer: oneshot::Sender<Answer>,
    /// Counts against the device's queue depth until the kernel is done.
    permit: Arc<OwnedSemaphorePermit>,
}

/// State shared by tasks and the reactor.
struct Shared {
    queue: Mutex<VecDeque<Request>>,
    alarm: Alarm,
}

/// A handle of the reactor.
#[derive(Clone)]
pub(crate) struct Ring {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

/// The ring of this process; `None` if the kernel refuses one (too old, or forbidden by a sandbox).
pub(crate) fn ring() -> Option<&'static Ring> {
    static RING: OnceLock<Option<Ring>> = OnceLock::new();
    RING.get_or_init(|| Ring::start().ok()).as_ref()
}

impl Ring {
    fn start() -> io::Result<Self> {
        let queue = Mutex::new(Rank::Ring, VecDeque::new());
        let shared = Arc::new(Shared { queue, alarm: Alarm::new()? });
        let reactor_shared = Arc::clone(&shared);
        let (started, outcome) = std::sync::mpsc::channel();
        std::thread::Builder::new().name("cenote-uring".to_owned()).spawn(move || {
            // Created on its own thread: a single-issuer ring belongs to the thread that created
            // it.
            match make_ring() {
                Ok(ring) => {
                    let _ = started.send(Ok(()));
                    Reactor::new(ring, reactor_shared).run();
                }
                Err(error) => {
                    let _ = started.send(Err(error));
                }
            }
        })?;
        outcome.recv().map_err(io::Error::other)??;
        Ok(Self { shared })
    }

    /// Starts `work` at `offset` of `file`. The result's count is the number of bytes transferred.
    pub(crate) fn start_work(
        &self,
        file: &Arc<File>,
        offset: u64,
        work: Work,
        permit: &Arc<OwnedSemaphorePermit>,
    ) -> oneshot::Receiver<Answer> {
        let (answer, receiver) = oneshot::channel();
        let (file, permit) = (Arc::clone(file), Arc::clone(permit));
        let request = Request { file, offset, work, slices: Vec::new(), answer, permit };
        lock(&self.shared.queue).push_back(request);
        self.shared.alarm.sound();
        receiver
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

fn make_ring() -> io::Result<IoUring> {
    // The thread then processes completions inside its own wait, and is never interrupted. Not
    // supported by kernels before 6.1.
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun();
    let ring = builder.build(ENTRIES).or_else(|_| IoUring::new(ENTRIES))?;
    // Kernels before 5.15 have four for each processor, whatever is asked for.
    let _ = ring.submitter().register_iowq_max_workers(&mut [WORKERS_MAX, 0]);
    Ok(ring)
}

/// Returns the queue entry for the request. Its pointers are valid as long as the request is
/// neither dropped nor changed; moving the request does not move the data, which is on the heap.
fn prepare(request: &mut Request) -> io_uring::squeue::Entry {
    let fd = types::Fd(request.file.as_raw_fd());
    // The remainder of a longer request is transferred by the next one, as for any short I/O.
    let bounded = |len: usize| u32::try_from(len).unwrap_or(!0xfff);
    match &mut request.work {
        Work::Read(buf, filled) => {
            let rest = &mut buf[*filled..];
            opcode::Read::new(fd, rest.as_mut_ptr(), bounded(rest.len()))
                .offset(request.offset + *filled as u64)
                .build()
        }
        Work::Write(parts) => match &parts[..] {
            [part] => opcode::Write::new(fd, part.as_ptr(), bounded(part.len()))
                .offset(request.offset)
                .build(),
            parts => {
                request.slices = parts.iter().map(as_static).collect();
                // A slice has the layout of the kernel's `iovec` (documented by std).
                let vector = request.slices.as_ptr().cast();
                opcode::Writev::new(fd, vector, bounded(parts.len())).offset(request.offset).build()
            }
        },
    }
}

/// A part as an `iovec`. The request that holds the `iovec` also holds the part.
#[expect(unsafe_code, reason = "the request refers to itself")]
fn as_static(part: &Buf) -> IoSlice<'static> {
    // SAFETY: the bytes are on the heap and immutable while any `Buf` shares them; the request
    // that holds the slice holds this one, and drops its slices before or with its parts.
    IoSlice::new(unsafe { std::slice::from_raw_parts(part.as_ptr(), part.len()) })
}

/// State of the reactor thread.
struct Reactor {
    ring: IoUring,
    shared: Arc<Shared>,
    /// Operations in the kernel, by slot (R1, R2).
    slab: Vec<Option<Request>>,
    free_slots: Vec<usize>,
    /// Destination of the read on the eventfd; boxed so that it does not move.
    wake_counter: Box<[u8; 8]>,
    is_wake_armed: bool,
}

impl Reactor {
    fn new(ring: IoUring, shared: Arc<Shared>) -> Self {
        let slots = ENTRIES as usize - 1; // one entry is the eventfd's
        Self {
            ring,
            shared,
            slab: (0..slots).map(|_| None).collect(),
            free_slots: (0..slots).rev().collect(),
            wake_counter: Box::new([0; 8]),
            is_wake_armed: false,
        }
    }

    fn run(mut self) -> ! {
        loop {
            self.arm_wake();
            self.push_requests();
            self.shared.alarm.set();
            let has_room = !self.free_slots.is_empty();
            let want = usize::from(!has_room || lock(&self.shared.queue).is_empty());
            // An error is EINTR, or EAGAIN/EBUSY under load: pushed entries stay pushed and are
            // submitted in the next round, which completions or the eventfd start.
            let _ = self.ring.submit_and_wait(want);
            self.shared.alarm.unset();
            self.reap();
        }
    }

    /// Keeps a read on the eventfd pending in the ring.
    #[expect(unsafe_code, reason = "the kernel writes the counter behind the compiler's back")]
    fn arm_wake(&mut self) {
        if self.is_wake_armed {
            return;
        }
        let fd = types::Fd(self.shared.alarm.fd().as_raw_fd());
        let entry =
            opcode::Read::new(fd, self.wake_counter.as_mut_ptr(), 8).build().user_data(WAKE);
        // SAFETY: the counter is a heap allocation of 8 bytes that the reactor owns and never
        // drops (`run` does not return), and touches only when no read on it is under way.
        self.is_wake_armed = unsafe { self.ring.submission().push(&entry) }.is_ok();
    }

    /// Moves requests from the queue into free slots of the ring.
    #[expect(unsafe_code, reason = "the kernel writes the buffers behind the compiler's back")]
    fn push_requests(&mut self) {
        while let Some(slot) = self.free_slots.pop() {
            let Some(mut request) = lock(&self.shared.queue).pop_front() else {
                self.free_slots.push(slot);
                return;
            };
            let entry = prepare(&mut request).user_data(slot as u64);
            // R1: moving a buffer does not move its bytes, which are on the heap.
            self.slab[slot] = Some(request);
            // SAFETY: every pointer in the entry is into buffers of the request, or into the heap
            // allocation of its slices, and the request, with its descriptor, stays untouched in
            // the slab until its CQE is reaped.
            if unsafe { self.ring.submission().push(&entry) }.is_err() {
                // Cannot happen (R3); otherwise the request would go back to the queue.
                if let Some(request) = self.slab[slot].take() {
                    lock(&self.shared.queue).push_front(request);
                }
                self.free_slots.push(slot);
                return;
            }
        }
    }

    /// Delivers the completions.
    fn reap(&mut self) {
        for entry in self.ring.completion() {
            if entry.user_data() == WAKE {
                self.is_wake_armed = false;
                continue;
            }
            let slot = entry.user_data() as usize;
            let Some(request) = self.slab.get_mut(slot).and_then(Option::take) else { continue };
            self.free_slots.push(slot);
            let result = match entry.result() {
                count @ 0.. => Ok(count as usize),
                errno => Err(io::Error::from_raw_os_error(-errno)),
            };
            let Request { file, work, answer, permit, slices, .. } = request;
            // Before the completion: its receiver may close the device, whose lock must be released
            // by then.
            drop((file, permit, slices));
            // Sending fails if the task was dropped.
            let _ = answer.send((work, result));
        }
    }
}
