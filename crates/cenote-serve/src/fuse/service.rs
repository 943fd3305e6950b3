//! The threads that process the requests of all mounts.
//!
//! ```text
//!   idle threads ── epoll ──┬── connection a    armed: the next request wakes one thread
//!                           ├── connection b    held by a thread: read, work, read, ...
//!                           └── connection c
//! ```
//!
//! There is a fixed number of threads, each with one request buffer, however many file systems are
//! mounted: a mount costs a descriptor and the memory of its file system. All threads exist before
//! the first mount: an existing mount can always be served.
//!
//! A connection is armed for one event (`EPOLLONESHOT`). The thread that receives the event holds
//! the connection: it reads without blocking, does the work, and reads again. It arms the
//! connection for other threads before work that takes long, or if another request has arrived
//! ([`hand_over`]).
//!
//! Waking a sleeping thread takes longer, on a virtual machine, than most requests. So a thread
//! that holds a connection polls for the next request for a while before it sleeps, as long as
//! requests follow closely and polling is successful often enough. Only one thread polls at a time,
//! and only while others are idle.
//!
//! These threads also do what a thread of a ring begins and must not wait for
//! ([`Service::lend_thread`], [`queues`]).
//!
//! Guarantees
//! * F3  While a connection lives it is armed, or a thread holds it that arms it before any work
//!   that can wait, or after work that does not.
//! * F4  Threads and buffers exist before the first connection does.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{FixedMap, monotonic, tunables};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use super::Transport;
use super::adapter::{Adapter, REQUEST_MAX};
use super::queues::{self, Prepared, Reserved};
use super::wire::{self, InitFlags, Initialized, Outcome, Way};

/// What an event of [`Service::errands_there`] has in place of a connection's number.
const ERRANDS: u64 = 0;
/// Number of threads.
const THREADS: usize = 8;
/// Minimum number of threads for mounting: one may wait for a request that another answers.
const THREADS_MIN: usize = 3;
/// Bytes of a request in addition to the data of the longest write.
const ROOM: usize = 64 << 10;
/// Time limit for the kernel's first request.
const HANDSHAKE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Buffer size for the first request, the minimum that the kernel accepts.
const FIRST_MAX: usize = 8 << 10;
/// Requests that a thread processes on one connection before it serves others.
const IN_A_ROW: u32 = 256;
/// A next request counts as prompt if it arrives within this multiple of the polling time. Without
/// polling, both sides have to be woken first.
const PROMPT_FACTOR: u64 = 4;
/// Number of consecutive unsuccessful polls after which polling becomes rare.
const TRIES: u64 = 16;
/// After that, the thread polls for one request in this many.
const SELDOM: u64 = 32;

/// Why a connection is not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum ServeError {
    /// The kernel agreed on io_uring, and refused slots.
    #[error("io_uring: {0}")]
    Ring(std::io::Error),
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Called when a connection has ended.
type AtEnd = Box<dyn FnOnce() + Send + Sync>;

/// Calls the function when it is dropped.
struct CallAtEnd(Option<AtEnd>);

impl Drop for CallAtEnd {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}

/// A served connection.
pub(super) struct Session {
    id: u64,
    channel: Arc<OwnedFd>,
    adapter: Adapter,
    /// Memory for requests through io_uring.
    _reserved: Option<Reserved>,
    /// Time in nanoseconds at which the last thread finished a request.
    since: AtomicU64,
    /// Whether the last request arrived promptly after that.
    is_prompt: AtomicBool,
    /// Remaining unsuccessful polls.
    tries: AtomicU64,
    /// Requests since polling became rare.
    passed: AtomicU64,
    /// The last field: it is dropped after the adapter, when no thread works on a request of the
    /// connection any more.
    _at_end: CallAtEnd,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Session {
    /// Starts, or answers, a request. If that panics the request is answered with `EIO`, as by a
    /// task, and the thread serves the next one.
    pub(super) fn dispatch(&self, way: Way, message: &[u8]) -> Outcome {
        let dispatch = || {
            let span = wire::span(message, || self.adapter.pool());
            span.within(|| wire::dispatch(&self.adapter, way, message))
        };
        catch_unwind(AssertUnwindSafe(dispatch)).unwrap_or(Outcome::Begun)
    }
}

/// Work for an idle thread.
type Errand = Box<dyn FnOnce(bool) + Send>;

/// The threads, and their connections.
pub(super) struct Service {
    epoll: OwnedFd,
    /// LOCK: held for a lookup.
    sessions: Mutex<FixedMap<u64, Arc<Session>>>,
    next: AtomicU64,
    /// Work that was begun on a thread that must not wait.
    ///
    /// LOCK: held to add or take one.
    errands: Mutex<VecDeque<Errand>>,
    /// Counts them; armed like a connection.
    errands_there: OwnedFd,
    /// Number of started threads.
    threads: AtomicUsize,
    /// Number of threads that wait for an event.
    idle: AtomicUsize,
    /// Whether a thread is polling.
    is_polling: AtomicBool,
}

/// The connection that a thread holds while it works.
struct Held {
    service: Arc<Service>,
    session: Arc<Session>,
    is_handed_over: bool,
}

thread_local! {
    static HELD: RefCell<Option<Held>> = const { RefCell::new(None) };
}

/// Arms the connection whose request this thread works on, if the work takes long or another
/// request has arrived. Returns true if another thread can take it.
pub(super) fn hand_over(is_long: bool) -> bool {
    HELD.with_borrow_mut(|held| {
        let Some(held) = held else { return false };
        if !held.is_handed_over && (is_long || is_any_there(&held.session.channel)) {
            held.is_handed_over = true;
            held.service.arm(&held.session);
        }
        held.is_handed_over && held.service.has_idle_thread()
    })
}

impl Service {
    /// Returns the service of this process, with its threads.
    ///
    /// # Errors
    /// The system's error if threads, memory or descriptors run out.
    pub(super) fn get() -> std::io::Result<Arc<Self>> {
        static SERVICE: Mutex<Option<Arc<Service>>> = Mutex::new(Rank::FuseService, None);
        // LOCK: held while threads are started, once.
        let mut service = SERVICE.lock();
        let started = match service.take() {
            Some(started) => started,
            None => Self::new()?,
        };
        *service = Some(Arc::clone(&started));
        while started.threads.load(Ordering::Relaxed) < THREADS {
            match Self::add_thread(&started) {
                // Starting more is tried again with the next mount.
                Err(_) if started.threads.load(Ordering::Relaxed) >= THREADS_MIN => break,
                added => added?,
            }
        }
        Ok(started)
    }

    fn new() -> std::io::Result<Arc<Self>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let (epoll, errands_there) = (epoll::create(CreateFlags::CLOEXEC)?, eventfd(0, flags)?);
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        epoll::add(&epoll, &errands_there, EventData::new_u64(ERRANDS), flags)?;
        Ok(Arc::new(Self {
            epoll,
            errands: Mutex::with_default(Rank::FuseErrands),
            errands_there,
            sessions: Mutex::with_default(Rank::FuseSessions),
            next: AtomicU64::new(1),
            threads: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            is_polling: AtomicBool::new(false),
        }))
    }

    /// Starts one more thread, with its buffer. Keeps F4.
    fn add_thread(this: &Arc<Self>) -> std::io::Result<()> {
        let (mut buffer, thread) = (Vec::new(), Arc::clone(this));
        buffer
            .try_reserve_exact(REQUEST_MAX as usize + ROOM)
            .map_err(|_| std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        let name = format!("fuse-{}", this.threads.load(Ordering::Relaxed));
        std::thread::Builder::new().name(name).spawn(move || thread.run(&mut buffer))?;
        this.threads.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn sessions(&self) -> MutexGuard<'_, FixedMap<u64, Arc<Session>>> {
        self.sessions.lock()
    }

    /// Answers the first request of a connection, and all others from then on: through io_uring if
    /// there are slots for it and the kernel agrees. Returns how they come.
    ///
    /// # Errors
    /// The system's error; the connection has to be closed then.
    pub(super) fn serve(
        &self,
        channel: Arc<OwnedFd>,
        mut adapter: Adapter,
        prepared: Option<Prepared>,
        at_end: AtEnd,
    ) -> Result<Transport, ServeError> {
        let at_end = CallAtEnd(Some(at_end));
        let ring_max = prepared.as_ref().map(|_| queues::PAYLOAD_MAX);
        let transport = shake_hands(&channel, &mut adapter, ring_max)?;
        let prepared = prepared.filter(|_| transport == Transport::Ring);
        let (slots, reserved) =
            prepared.map(|prepared| (prepared.slots, prepared.reserved)).unzip();
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(Session {
            id,
            channel,
            adapter,
            _reserved: reserved,
            since: AtomicU64::new(0),
            is_prompt: AtomicBool::new(false),
            tries: AtomicU64::new(TRIES),
            passed: AtomicU64::new(0),
            _at_end: at_end,
        });
        self.sessions().insert(id, Arc::clone(&session));
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        let added = epoll::add(&self.epoll, &session.channel, EventData::new_u64(id), flags);
        added.map_err(|errno| {
            self.sessions().remove(&id);
            std::io::Error::from(errno)
        })?;
        if let Some(slots) = slots {
            // The kernel holds back all other requests until then.
            queues::register(slots, &session).map_err(|error| {
                self.end(&session);
                ServeError::Ring(error)
            })?;
        }
        Ok(transport)
    }

    /// Arms a connection: its next request wakes a thread. Keeps F3.
    fn arm(&self, session: &Session) {
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        // Another thread may have ended the connection meanwhile.
        let _ = epoll::modify(&self.epoll, &session.channel, EventData::new_u64(session.id), flags);
    }

    fn run(self: Arc<Self>, buffer: &mut Vec<u8>) {
        let mut events = Vec::with_capacity(1);
        loop {
            self.idle.fetch_add(1, Ordering::Relaxed);
            events.clear();
            let waited = epoll::wait(&self.epoll, spare_capacity(&mut events), None);
            self.idle.fetch_sub(1, Ordering::Relaxed);
            let Ok(1..) = waited else { continue };
            let Some(id) = events.first().map(|event: &epoll::Event| event.data.u64()) else {
                continue;
            };
            if id == ERRANDS {
                self.do_errand();
                continue;
            }
            let session = self.sessions().get(&id).cloned();
            if let Some(session) = session {
                self.hold(&session, buffer);
            }
        }
    }

    /// Whether a thread is idle.
    pub(super) fn has_idle_thread(&self) -> bool {
        self.idle.load(Ordering::Relaxed) > 0
    }

    /// Gives work to an idle thread, which tells it whether it may wait: another one is idle.
    pub(super) fn lend_thread(&self, work: impl FnOnce(bool) + Send + 'static) {
        self.errands.lock().push_back(Box::new(work));
        // The write fails only if the counter is full, and then threads are woken anyway.
        let _ = rustix::io::write(&self.errands_there, &1_u64.to_ne_bytes());
    }

    /// Does one errand. Another thread can take the next one meanwhile.
    fn do_errand(&self) {
        let _ = rustix::io::read(&self.errands_there, &mut [0; 8][..]);
        let errand = self.errands.lock().pop_front();
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        let _ = epoll::modify(&self.epoll, &self.errands_there, EventData::new_u64(ERRANDS), flags);
        if let Some(errand) = errand {
            // The request that it belongs to is answered with `EIO` then.
            let _ = catch_unwind(AssertUnwindSafe(|| errand(self.has_idle_thread())));
        }
    }

    /// Processes requests of a connection, and arms it in the end.
    fn hold(self: &Arc<Self>, session: &Arc<Session>, buffer: &mut Vec<u8>) {
        for _ in 0..IN_A_ROW {
            buffer.clear();
            match rustix::io::read(&session.channel, spare_capacity(buffer)) {
                Ok(_) => {}
                // The request was interrupted before it was read.
                Err(Errno::INTR | Errno::NOENT) => continue,
                Err(Errno::AGAIN) if self.poll_next(session) => continue,
                Err(Errno::AGAIN) => break,
                Err(_) => return self.end(session),
            }
            let came = now().saturating_sub(session.since.load(Ordering::Relaxed));
            session.is_prompt.store(came <= PROMPT_FACTOR * polling_ns(), Ordering::Relaxed);
            HELD.set(Some(Held {
                service: Arc::clone(self),
                session: Arc::clone(session),
                is_handed_over: false,
            }));
            let outcome = session.dispatch(Way::Channel(Arc::clone(&session.channel)), buffer);
            let held = HELD.take();
            if outcome == Outcome::Ended {
                return self.end(session);
            }
            session.since.store(now(), Ordering::Relaxed);
            if held.is_none_or(|held| held.is_handed_over) {
                return;
            }
            if self.idle.load(Ordering::Relaxed) == 0 {
                // Other connections may have waited longer.
                break;
            }
        }
        self.arm(session);
    }

    /// Removes a connection that the kernel has closed.
    fn end(&self, session: &Session) {
        let _ = epoll::delete(&self.epoll, &session.channel);
        let ended = self.sessions().remove(&session.id);
        // Dropped without the lock.
        drop(ended);
    }

    /// Polls for the next request of a connection for a short while, if that is likely to succeed.
    /// Returns true if there is one.
    fn poll_next(&self, session: &Session) -> bool {
        if !session.is_prompt.load(Ordering::Relaxed) || polling_ns() == 0 {
            return false;
        }
        let is_hopeful = session.tries.load(Ordering::Relaxed) > 0
            || session.passed.fetch_add(1, Ordering::Relaxed).is_multiple_of(SELDOM);
        let end = now() + polling_ns();
        if !is_hopeful
            || self.idle.load(Ordering::Relaxed) == 0
            || self.is_polling.swap(true, Ordering::Relaxed)
        {
            return false;
        }
        let is_found = loop {
            if is_any_there(&session.channel) {
                break true;
            }
            if now() >= end {
                break false;
            }
            // The process that sends the request may need this processor.
            std::thread::yield_now();
        };
        let tries = session.tries.load(Ordering::Relaxed);
        let left = if is_found { TRIES } else { tries.saturating_sub(1) };
        session.tries.store(left, Ordering::Relaxed);
        self.is_polling.store(false, Ordering::Relaxed);
        is_found
    }
}

/// Answers the first request, given the longest request through io_uring. Returns how the others
/// come.
fn shake_hands(
    channel: &Arc<OwnedFd>,
    adapter: &mut Adapter,
    ring_max: Option<u32>,
) -> std::io::Result<Transport> {
    let mut message = Vec::with_capacity(FIRST_MAX);
    loop {
        let mut watched = [PollFd::new(channel, PollFlags::IN)];
        if poll(&mut watched, Some(&HANDSHAKE))? == 0 {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        message.clear();
        match rustix::io::read(channel, spare_capacity(&mut message)) {
            Ok(_) => {}
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(errno) => return Err(errno.into()),
        }
        match wire::initialize(channel, &message, adapter.negotiation(ring_max)) {
            Some(Initialized::Agreed(_, flags)) => {
                adapter.agreed(flags);
                let is_ring = flags.contains(InitFlags::FUSE_OVER_IO_URING);
                return Ok(if is_ring { Transport::Ring } else { Transport::Device });
            }
            Some(Initialized::Again(_)) => {}
            Some(Initialized::Failed(_)) | None => {
                return Err(std::io::Error::other("the kernel's version of FUSE is not known"));
            }
        }
    }
}

/// Whether there is a request, or the end of a connection.
fn is_any_there(channel: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(channel, PollFlags::IN)];
    // If polling fails, reading reports the error.
    !matches!(poll(&mut watched, Some(&Timespec::default())), Ok(0))
}

pub(super) fn now() -> u64 {
    monotonic().as_nanos() as u64
}

/// Returns how long a thread polls, in nanoseconds. 0 on a single processor, where polling would
/// keep the sender of the next request from running.
fn polling_ns() -> u64 {
    static IS_ALONE: OnceLock<bool> = OnceLock::new();
    let is_alone = || cenote_rt::processors() == 1;
    let us = if *IS_ALONE.get_or_init(is_alone) { 0 } else { tunables::MOUNT_LOOKOUT_US.get() };
    Duration::from_micros(us).as_nanos() as u64
}
