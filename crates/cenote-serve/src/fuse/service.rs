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
//! Guarantees
//! * F3  While a connection lives it is armed, or a thread holds it that arms it before any work
//!   that can wait, or after work that does not.
//! * F4  Threads and buffers exist before the first connection does.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{FixedMap, monotonic, tunables};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::adapter::{Adapter, REQUEST_MAX};
use super::wire::{self, Initialized, Outcome};

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
struct Session {
    id: u64,
    channel: Arc<OwnedFd>,
    adapter: Adapter,
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

/// The threads, and their connections.
pub(super) struct Service {
    epoll: OwnedFd,
    /// LOCK: held for a lookup.
    sessions: Mutex<FixedMap<u64, Arc<Session>>>,
    next: AtomicU64,
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
        held.is_handed_over && held.service.idle.load(Ordering::Relaxed) > 0
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
        Ok(Arc::new(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
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

    /// Answers the first request of a connection, and all others from then on.
    ///
    /// # Errors
    /// The system's error; the connection is then closed.
    pub(super) fn serve(
        &self,
        channel: Arc<OwnedFd>,
        mut adapter: Adapter,
        at_end: AtEnd,
    ) -> std::io::Result<()> {
        shake_hands(&channel, &mut adapter)?;
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let session = Arc::new(Session {
            id,
            channel,
            adapter,
            since: AtomicU64::new(0),
            is_prompt: AtomicBool::new(false),
            tries: AtomicU64::new(TRIES),
            passed: AtomicU64::new(0),
            _at_end: CallAtEnd(Some(at_end)),
        });
        self.sessions().insert(id, Arc::clone(&session));
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        let added = epoll::add(&self.epoll, &session.channel, EventData::new_u64(id), flags);
        added.map_err(|errno| {
            self.sessions().remove(&id);
            errno.into()
        })
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
            let session = self.sessions().get(&id).cloned();
            if let Some(session) = session {
                self.hold(&session, buffer);
            }
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
            let span = wire::span(buffer, || session.adapter.pool());
            let outcome =
                span.within(|| wire::dispatch(&session.adapter, &session.channel, buffer));
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

/// Answers the first request.
fn shake_hands(channel: &Arc<OwnedFd>, adapter: &mut Adapter) -> std::io::Result<()> {
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
        match wire::initialize(channel, &message, adapter.negotiation()) {
            Some(Initialized::Agreed(_, flags)) => {
                adapter.agreed(flags);
                return Ok(());
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

fn now() -> u64 {
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
