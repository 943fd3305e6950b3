//! The threads that take the requests of all mounts.
//!
//! ```text
//!   idle threads ── epoll ──┬── connection a    armed: the next request calls one thread
//!                           ├── connection b    held by a thread: read, work, read, ...
//!                           └── connection c
//! ```
//!
//! There is a fixed number of threads, each with one buffer for a request, however many file
//! systems are mounted: a mount costs a descriptor and what its file system keeps in memory. All of
//! them exist before the first mount is made; a mount that was made can always be served.
//!
//! A connection is armed for one event (`EPOLLONESHOT`). The thread that the event calls holds the
//! connection: it reads without waiting, does the work, and reads again. It arms the connection for
//! others before work that takes long, or if another request has come already ([`hand_over`]).
//!
//! A thread that sleeps until a request comes has to be woken, which on a virtual machine takes
//! longer than most requests. So a thread that holds a connection looks out for the next request a
//! while before it sleeps, as long as they follow one another closely, and looking out is not in
//! vain time after time. One thread of all does that at a time, and only while others are idle.
//!
//! Invariants
//! * F3  While a connection lives it is armed, or a thread holds it that arms it before any work
//!   that can wait, or after work that does not.
//! * F4  Threads and buffers exist before the first connection does.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cenote_rt::{FixedMap, monotonic, tunables};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::adapter::{Adapter, REQUEST_MAX};
use super::wire::{self, Initialized, Outcome};

/// Threads that take requests.
const THREADS: usize = 8;
/// Without so many nothing is mounted: one may wait for what another answers.
const THREADS_MIN: usize = 3;
/// Bytes of a request beside the data of the longest write.
const ROOM: usize = 64 << 10;
/// How long the kernel may take to send the first request.
const HANDSHAKE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };
/// Bytes of the first request, and the least that the kernel writes to.
const FIRST_MAX: usize = 8 << 10;
/// Requests that a thread takes of one connection before it looks at others.
const IN_A_ROW: u32 = 256;
/// How much longer than it is looked out a request may take to come that is looked out for. If
/// nobody looks out, both sides have to be woken until it is here.
const BRISK: u64 = 4;
/// How often in a row it is looked out in vain.
const TRIES: u64 = 16;
/// After that, one request in so many is looked out for.
const SELDOM: u64 = 32;

/// Called when a connection has ended.
type AtEnd = Box<dyn FnOnce() + Send + Sync>;

/// Calls when it is dropped.
struct CallAtEnd(Option<AtEnd>);

impl Drop for CallAtEnd {
    fn drop(&mut self) {
        if let Some(call) = self.0.take() {
            call();
        }
    }
}

/// A connection that is served.
struct Session {
    id: u64,
    channel: Arc<OwnedFd>,
    adapter: Adapter,
    /// When the last thread was done with a request, nanoseconds.
    since: AtomicU64,
    /// The last request came soon after that.
    is_brisk: AtomicBool,
    /// How often looking out may still be in vain.
    tries: AtomicU64,
    /// Requests since it may not.
    passed: AtomicU64,
    /// The last field: it is dropped after what the adapter holds, when no thread works on a
    /// request of the connection any more.
    _at_end: CallAtEnd,
}

/// The threads, and what they serve.
pub(super) struct Service {
    epoll: OwnedFd,
    /// Held for a look.
    sessions: Mutex<FixedMap<u64, Arc<Session>>>,
    next: AtomicU64,
    /// Threads that were started.
    threads: AtomicUsize,
    /// Threads that wait for an event.
    idle: AtomicUsize,
    /// A thread looks out.
    is_looked_out: AtomicBool,
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
/// request has come. Returns true if another thread can take it.
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
    /// The service of this process, with its threads.
    ///
    /// # Errors
    /// What the system says if threads, memory or descriptors are short.
    pub(super) fn get() -> std::io::Result<Arc<Self>> {
        static SERVICE: Mutex<Option<Arc<Service>>> = Mutex::new(None);
        // LOCK: held while threads are started, once.
        let mut service = SERVICE.lock().unwrap_or_else(PoisonError::into_inner);
        let started = match service.take() {
            Some(started) => started,
            None => Self::new()?,
        };
        *service = Some(Arc::clone(&started));
        while started.threads.load(Ordering::Relaxed) < THREADS {
            match Self::add_thread(&started) {
                // More are tried with the next mount.
                Err(_) if started.threads.load(Ordering::Relaxed) >= THREADS_MIN => break,
                added => added?,
            }
        }
        Ok(started)
    }

    fn new() -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            sessions: Mutex::default(),
            next: AtomicU64::new(1),
            threads: AtomicUsize::new(0),
            idle: AtomicUsize::new(0),
            is_looked_out: AtomicBool::new(false),
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
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers the first request of a connection and all others from then on.
    ///
    /// # Errors
    /// What the system says; the connection is closed then.
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
            is_brisk: AtomicBool::new(false),
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

    /// Has the next request of a connection call a thread. Keeps F3.
    fn arm(&self, session: &Session) {
        let flags = EventFlags::IN | EventFlags::ONESHOT;
        // A connection that another thread has ended meanwhile is not there any more.
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

    /// Takes requests of a connection, and arms it in the end.
    fn hold(self: &Arc<Self>, session: &Arc<Session>, buffer: &mut Vec<u8>) {
        for _ in 0..IN_A_ROW {
            buffer.clear();
            match rustix::io::read(&session.channel, spare_capacity(buffer)) {
                Ok(_) => {}
                // The request was interrupted before it was read.
                Err(Errno::INTR | Errno::NOENT) => continue,
                Err(Errno::AGAIN) if self.look_out(session) => continue,
                Err(Errno::AGAIN) => break,
                Err(_) => return self.end(session),
            }
            let came = now().saturating_sub(session.since.load(Ordering::Relaxed));
            session.is_brisk.store(came <= BRISK * lookout_ns(), Ordering::Relaxed);
            HELD.set(Some(Held {
                service: Arc::clone(self),
                session: Arc::clone(session),
                is_handed_over: false,
            }));
            let outcome = wire::dispatch(&session.adapter, &session.channel, buffer);
            let held = HELD.take();
            if outcome == Outcome::Ended {
                return self.end(session);
            }
            session.since.store(now(), Ordering::Relaxed);
            if held.is_none_or(|held| held.is_handed_over) {
                return;
            }
            if self.idle.load(Ordering::Relaxed) == 0 {
                // Others may have waited longer.
                break;
            }
        }
        self.arm(session);
    }

    /// The kernel has let go of a connection.
    fn end(&self, session: &Session) {
        let _ = epoll::delete(&self.epoll, &session.channel);
        let ended = self.sessions().remove(&session.id);
        // Dropped without the lock.
        drop(ended);
    }

    /// Waits a short while for the next request of a connection, if that is worth it. Returns true
    /// if there is one.
    fn look_out(&self, session: &Session) -> bool {
        if !session.is_brisk.load(Ordering::Relaxed) || lookout_ns() == 0 {
            return false;
        }
        let is_hopeful = session.tries.load(Ordering::Relaxed) > 0
            || session.passed.fetch_add(1, Ordering::Relaxed).is_multiple_of(SELDOM);
        let end = now() + lookout_ns();
        if !is_hopeful
            || self.idle.load(Ordering::Relaxed) == 0
            || self.is_looked_out.swap(true, Ordering::Relaxed)
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
            // The process that is to send it may need this processor.
            std::thread::yield_now();
        };
        let tries = session.tries.load(Ordering::Relaxed);
        let left = if is_found { TRIES } else { tries.saturating_sub(1) };
        session.tries.store(left, Ordering::Relaxed);
        self.is_looked_out.store(false, Ordering::Relaxed);
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
        match wire::initialize(channel, &message, adapter.wish()) {
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
    // What cannot be asked is read.
    !matches!(poll(&mut watched, Some(&Timespec::default())), Ok(0))
}

fn now() -> u64 {
    monotonic().as_nanos() as u64
}

/// How long a thread looks out, nanoseconds. There is nothing in it where it would look out on the
/// processor of the process that is to send the next request.
fn lookout_ns() -> u64 {
    static IS_ALONE: OnceLock<bool> = OnceLock::new();
    let is_alone = || std::thread::available_parallelism().is_ok_and(|count| count.get() == 1);
    let us = if *IS_ALONE.get_or_init(is_alone) { 0 } else { tunables::MOUNT_LOOKOUT_US.get() };
    Duration::from_micros(us).as_nanos() as u64
}
