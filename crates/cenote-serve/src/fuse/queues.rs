//! The threads that process requests which come through io_uring.
//!
//! ```text
//!   program on processor 0 ──> kernel's queue 0 of a mount ──> ring 0, its thread on processor 0
//!   program on processor 1 ──> kernel's queue 1 of a mount ──> ring 1, its thread on processor 1
//! ```
//!
//! The program that made a request sleeps until it is answered, and the thread runs on the same
//! processor meanwhile: no other processor has to be woken, which takes longer, on a virtual
//! machine, than most requests. There is one thread for each processor, however many file systems
//! are mounted. A short request is started there, as by [`service`](super::service): answered at
//! once if it is served from memory, a task otherwise. A long one is a task at once, and one that
//! makes something durable is done by an idle thread of the service. A thread of a ring never waits
//! for the disk.
//!
//! A program that is answered is woken on an idle processor, if there is one: it would move at each
//! request, and wake the other processor each time. With few processors a thread prevents that:
//! when a program has moved away from its processor, it keeps that one busy by polling, as long as
//! requests follow each other closely (`cenote_mount_lookout_us`).
//!
//! The kernel delivers each request to a slot, of which every mount has some in each queue: that
//! many requests of a mount are in work at a time, and more wait in the kernel. The number of slots
//! is bounded (`cenote_mount_ring_slots`): later mounts get fewer, or none and work without a ring.
//! Slots that wait for requests give their memory back (`cenote_mount_ring_idle_bytes`).
//!
//! The bytes of a short request are copied, so that its answer can be written to the slot whoever
//! answers it. The payload of a long one (a write) stays in the slot while it is processed: the
//! thread keeps the slot, and gets the short answer later.
//!
//! Guarantees
//! * Q1  The kernel has all slots of a mount, or the mount fails: it holds back all requests until
//!   each of its queues has a slot.
//! * Q2  Each request is answered, with `EIO` if the answerer is dropped. The bytes of a request
//!   are not lent any more when an answer is written over them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};

use cenote_fuse_ring::{Event, Ring, Slot};
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{Alarm, FixedMap, tunables};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::service::{Service, Session, now};
use super::wire::Way;

/// Longest request or answer: shorter than without a ring, because each slot has room for it.
pub(super) const PAYLOAD_MAX: u32 = 256 << 10;
/// Payloads up to this length are copied before the request is processed.
const COPIED_MAX: usize = 4 << 10;
/// Slots of a mount for requests of one processor; and when half of all slots are taken.
const DEPTHS: [usize; 2] = [64, 4];
/// Requests that a thread starts before it gives other answers to the kernel.
const EVENTS_MAX: usize = 64;
/// Requests follow each other closely if each is made within this multiple of the polling time
/// after the one before: that includes the work on it.
const LOOKOUT_FACTOR: u64 = 4;
/// Pauses of a polling thread between two looks, and looks before it yields.
const SPINS: u32 = 64;
const YIELD_EVERY: u32 = 16;
/// With more processors, no thread polls: each of them would have to.
const POLLING_PROCESSORS: RangeInclusive<usize> = 2..=4;
/// Whether the kernel offers io_uring for FUSE.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
const ONLINE: &str = "/sys/devices/system/cpu/online";
const POSSIBLE: &str = "/sys/devices/system/cpu/possible";
const EIO: i32 = 5;

/// The rings of this process.
struct Queues {
    rings: Vec<Arc<Home>>,
    /// Number of queues that the kernel has for each mount.
    count: u16,
    /// Processors of the rings.
    processors: Vec<u16>,
    /// Slots that mounts have.
    reserved: AtomicUsize,
}

/// What other threads share with the thread of a ring.
#[derive(Debug)]
struct Home {
    /// LOCK: held to add or take letters.
    letters: Mutex<Vec<Letter>>,
    alarm: Alarm,
    /// Whether the thread shall keep its processor busy.
    must_look_out: AtomicBool,
    /// Thread of a program that made the last request; 0 if it is elsewhere by now.
    program: AtomicU32,
}

/// What the thread of a ring has to do.
#[derive(Debug)]
enum Letter {
    Register(Vec<Slot>, Arc<Session>, Sender<std::io::Result<()>>),
    /// The slot has the answer.
    Answered(Slot, Arc<Session>),
    /// The answer to the request in a slot that the thread has: error number and body.
    AnswerTo(u64, i32, Vec<u8>),
}

/// Time in nanoseconds of the last request.
static LAST: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Of the thread of a ring: its home, and the answers to requests that it has started.
    static HERE: RefCell<Option<(Arc<Home>, Vec<Letter>)>> = const { RefCell::new(None) };
}

impl Home {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            letters: Mutex::new(Rank::FuseRing, Vec::new()),
            alarm: Alarm::new()?,
            must_look_out: AtomicBool::new(false),
            program: AtomicU32::new(0),
        })
    }

    fn post(&self, letter: Letter) {
        self.letters.lock().push(letter);
        self.alarm.sound();
    }

    /// Posts an answer; on the thread of the ring itself, that is faster.
    fn post_answer(self: &Arc<Self>, letter: Letter) {
        let letter = HERE.with_borrow_mut(|here| match here {
            Some((home, letters)) if Arc::ptr_eq(home, self) => {
                letters.push(letter);
                None
            }
            _ => Some(letter),
        });
        if let Some(letter) = letter {
            self.post(letter);
        }
    }
}

/// Whether this is the thread of a ring.
pub(super) fn is_here() -> bool {
    HERE.with_borrow(Option::is_some)
}

/// Answers one request that came through a ring.
#[derive(Debug)]
pub(super) struct Answerer {
    home: Arc<Home>,
    /// `None` once it is answered.
    place: Option<Place>,
}

/// Where the slot of a request is.
#[derive(Debug)]
enum Place {
    Here(Slot, Arc<Session>),
    /// The thread of the ring has it, by this number.
    There(u64),
}

impl Answerer {
    /// Gives the answer to the kernel: 0 or a negative error number, and the parts of a body.
    pub(super) fn answer(mut self, error: i32, body: &[&[u8]]) {
        self.send(error, body);
    }

    fn send(&mut self, error: i32, body: &[&[u8]]) {
        let letter = match self.place.take() {
            None => return,
            Some(Place::Here(mut slot, session)) => {
                // If the body is too long, the slot has `EIO`.
                let _ = slot.answer(error, body);
                Letter::Answered(slot, session)
            }
            Some(Place::There(key)) => Letter::AnswerTo(key, error, body.concat()),
        };
        self.home.post_answer(letter);
    }
}

impl Drop for Answerer {
    fn drop(&mut self) {
        self.send(-EIO, &[]);
    }
}

/// The thread of a ring.
struct Worker {
    ring: Ring<Arc<Session>>,
    home: Arc<Home>,
    /// Slots whose requests are processed where they are, by number.
    lent: FixedMap<u64, (Slot, Arc<Session>)>,
    /// Number of the next one.
    next: u64,
    message: Vec<u8>,
    /// What came while slots were registered.
    waiting: VecDeque<Event<Arc<Session>>>,
    /// Whether it may poll for requests.
    may_poll: bool,
}

impl Worker {
    fn new(home: Arc<Home>, may_poll: bool) -> std::io::Result<Self> {
        let ring = Ring::new(Arc::clone(home.alarm.fd()))?;
        let (lent, waiting) = (FixedMap::default(), VecDeque::new());
        let message = Vec::with_capacity(2 * COPIED_MAX);
        Ok(Self { ring, home, lent, next: 0, message, waiting, may_poll })
    }

    fn run(mut self) {
        HERE.set(Some((Arc::clone(&self.home), Vec::new())));
        loop {
            // After a panic, the others who depend on this thread are served.
            let _ = catch_unwind(AssertUnwindSafe(|| self.work_once()));
        }
    }

    fn work_once(&mut self) {
        let letters = std::mem::take(&mut *self.home.letters.lock());
        for letter in letters {
            self.open(letter);
        }
        self.home.alarm.set();
        let is_to_wait = self.home.letters.lock().is_empty() && self.waiting.is_empty();
        if is_to_wait {
            self.ring.trim(tunables::MOUNT_RING_IDLE_BYTES.get() as usize);
        }
        self.ring.wait(is_to_wait);
        self.home.alarm.unset();
        if self.may_poll && self.home.must_look_out.swap(false, Ordering::SeqCst) {
            self.look_out();
        }
        self.process();
    }

    /// Keeps this processor busy as long as requests follow each other closely, and none is made
    /// here.
    fn look_out(&mut self) {
        let polling = LOOKOUT_FACTOR * 1000 * tunables::MOUNT_LOOKOUT_US.get();
        for round in 1_u32.. {
            let is_over = now().saturating_sub(LAST.load(Ordering::Relaxed)) >= polling;
            if is_over || self.ring.is_anything_there() || !self.home.letters.lock().is_empty() {
                return;
            }
            // Others may need this processor, or share what it consists of.
            if round.is_multiple_of(YIELD_EVERY) {
                std::thread::yield_now();
            }
            (0..SPINS).for_each(|_| std::hint::spin_loop());
        }
    }

    /// Notes which program has made a request. If it has just been on another processor, the thread
    /// there keeps that one busy: see the module documentation.
    fn note(&self, program: u32) {
        LAST.store(now(), Ordering::Relaxed);
        let before = self.home.program.swap(program, Ordering::Relaxed);
        if !self.may_poll || before == program || program == 0 {
            return;
        }
        let Some(queues) = Queues::get() else { return };
        for home in queues.rings.iter().filter(|home| !Arc::ptr_eq(home, &self.home)) {
            let moved =
                home.program.compare_exchange(program, 0, Ordering::Relaxed, Ordering::Relaxed);
            if moved.is_ok() {
                home.must_look_out.store(true, Ordering::SeqCst);
                home.alarm.sound();
            }
        }
    }

    /// Processes what the kernel has delivered: a number of events, then letters are due.
    fn process(&mut self) {
        for _ in 0..EVENTS_MAX {
            match self.waiting.pop_front().or_else(|| self.ring.next_event()) {
                Some(Event::Request(slot, session)) => self.start(slot, session),
                Some(Event::Ended(slot, session, _)) => let_go(slot, session),
                None => return,
            }
            if !self.waiting.is_empty() || self.ring.is_anything_there() {
                // An answer does not wait for the request behind it.
                self.ring.submit();
            }
        }
    }

    fn open(&mut self, letter: Letter) {
        match letter {
            Letter::Answered(slot, session) => self.ring.commit(slot, session),
            Letter::AnswerTo(key, error, body) => {
                let Some((mut slot, session)) = self.lent.remove(&key) else { return };
                let _ = slot.answer(error, &[&body]);
                self.ring.commit(slot, session);
            }
            Letter::Register(slots, session, told) => {
                for slot in slots {
                    self.ring.register(slot, Arc::clone(&session));
                }
                let _ = told.send(self.registered(&session));
            }
        }
    }

    /// Gives the kernel the slots of a connection. What it refuses comes back at once.
    fn registered(&mut self, session: &Arc<Session>) -> std::io::Result<()> {
        let is_submitted = self.ring.submit();
        let mut refusal = (!is_submitted).then(|| std::io::ErrorKind::WouldBlock.into());
        while let Some(event) = self.ring.next_event() {
            match event {
                Event::Ended(slot, of, error) if Arc::ptr_eq(&of, session) => {
                    refusal = Some(error);
                    let_go(slot, of);
                }
                event => self.waiting.push_back(event),
            }
        }
        refusal.map_or(Ok(()), Err)
    }

    /// Starts a request, and takes the answers that are there by then. Keeps Q2.
    fn start(&mut self, mut slot: Slot, session: Arc<Session>) {
        self.note(slot.program());
        let home = Arc::clone(&self.home);
        if slot.payload_len() <= COPIED_MAX {
            self.message.clear();
            let copied = slot.copy_request(&mut self.message);
            let place = Some(Place::Here(slot, Arc::clone(&session)));
            let way = Way::Ring(Answerer { home, place });
            if copied.is_some() {
                session.dispatch(way, &self.message);
            }
        } else {
            let key = self.next;
            self.next += 1;
            let way = Way::Ring(Answerer { home, place: Some(Place::There(key)) });
            if let Some(message) = slot.request() {
                session.dispatch(way, message);
            }
            self.lent.insert(key, (slot, session));
        }
        let answers = HERE.with_borrow_mut(|here| {
            here.as_mut().map(|(_, letters)| std::mem::take(letters)).unwrap_or_default()
        });
        for answer in answers {
            self.open(answer);
        }
    }
}

/// Gives up a slot whose connection has ended, perhaps with the connection: an idle thread of the
/// service does that, because it may take long.
fn let_go(slot: Slot, session: Arc<Session>) {
    if let Ok(service) = Service::get() {
        service.lend_thread(move |_| drop((slot, session)));
    }
}

impl Queues {
    /// Returns the rings of this process; `None` if the system has none for it.
    fn get() -> Option<&'static Self> {
        static QUEUES: OnceLock<Option<Queues>> = OnceLock::new();
        QUEUES.get_or_init(|| Self::start().ok()).as_ref()
    }

    fn start() -> std::io::Result<Self> {
        let count = numbers(&std::fs::read_to_string(POSSIBLE)?).len();
        if count > CpuSet::MAX_CPU {
            return Err(std::io::ErrorKind::Unsupported.into());
        }
        let count = count as u16;
        let processors = numbers(&std::fs::read_to_string(ONLINE)?);
        let may_poll = POLLING_PROCESSORS.contains(&processors.len());
        let mut rings = Vec::new();
        for processor in &processors {
            rings.push(start_ring(*processor, may_poll)?);
        }
        Ok(Self { rings, count, processors, reserved: AtomicUsize::new(0) })
    }

    /// Returns the position of the ring for a queue. Processors that are not online make no
    /// requests; one that comes online later is served by the thread of another.
    fn ring_of(&self, queue: u16) -> usize {
        let own = self.processors.iter().position(|processor| *processor == queue);
        own.unwrap_or(usize::from(queue) % self.rings.len().max(1))
    }
}

fn start_ring(processor: u16, may_poll: bool) -> std::io::Result<Arc<Home>> {
    let home = Arc::new(Home::new()?);
    let (started, outcome) = channel();
    let own = Arc::clone(&home);
    std::thread::Builder::new().name(format!("fuse-ring-{processor}")).spawn(move || {
        // A ring belongs to the thread that created it.
        match Worker::new(own, may_poll) {
            Ok(mut worker) => {
                let mut set = CpuSet::new();
                set.set(processor.into());
                // Where that is not permitted, the thread runs anywhere.
                worker.may_poll &= sched_setaffinity(None, &set).is_ok();
                let _ = started.send(Ok(()));
                worker.run();
            }
            Err(error) => drop(started.send(Err(error))),
        }
    })?;
    outcome.recv().map_err(std::io::Error::other)??;
    Ok(home)
}

/// Parses a list of processors: `0-3,8`.
fn numbers(text: &str) -> Vec<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<u16>().ok()?..=last.parse().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().take(CpuSet::MAX_CPU + 1).collect()
}

/// A share of the number of slots; returned when this is dropped.
#[derive(Debug)]
pub(super) struct Reserved(usize);

impl Drop for Reserved {
    fn drop(&mut self) {
        if let Some(queues) = Queues::get() {
            queues.reserved.fetch_sub(self.0, Ordering::Relaxed);
        }
    }
}

/// The slots of a mount to be.
#[derive(Debug)]
pub(super) struct Prepared {
    /// By position of the ring.
    pub(super) slots: Vec<Vec<Slot>>,
    pub(super) reserved: Reserved,
}

/// Returns slots for a connection; `None` if its requests shall not, or cannot, come through
/// io_uring.
pub(super) fn prepare(channel: &Arc<OwnedFd>) -> Option<Prepared> {
    let is_offered = || std::fs::read(PARAMETER).is_ok_and(|value| value.starts_with(b"Y"));
    let slots_max = tunables::MOUNT_RING_SLOTS.get() as usize;
    if slots_max == 0 || !is_offered() {
        return None;
    }
    let queues = Queues::get()?;
    let slots_max = slots_max.saturating_mul(queues.rings.len());
    let mut tries = DEPTHS.into_iter().zip([slots_max / 2, slots_max]);
    tries.find_map(|(depth, slots_max)| queues.slots(channel, depth, slots_max))
}

impl Queues {
    /// Returns slots, with this many in a queue, if there are at most `slots_max` then.
    fn slots(&self, channel: &Arc<OwnedFd>, depth: usize, slots_max: usize) -> Option<Prepared> {
        // Processors that are not online make no requests, and yet the kernel wants slots for them.
        let is_online = |queue: u16| self.processors.contains(&queue);
        let depth_of = |queue| if is_online(queue) { depth } else { 1 };
        let numbers = (0..self.count).flat_map(|queue| std::iter::repeat_n(queue, depth_of(queue)));
        let numbers: Vec<u16> = numbers.collect();
        let taken = self.reserved.fetch_add(numbers.len(), Ordering::Relaxed);
        let reserved = Reserved(numbers.len());
        if taken + numbers.len() > slots_max {
            return None;
        }
        let all = Slot::for_queues(channel, &numbers, PAYLOAD_MAX as usize).ok()?;
        let mut slots: Vec<Vec<Slot>> = self.rings.iter().map(|_| Vec::new()).collect();
        for (queue, slot) in numbers.into_iter().zip(all) {
            slots.get_mut(self.ring_of(queue))?.push(slot);
        }
        Some(Prepared { slots, reserved })
    }
}

/// Gives slots to the kernel, by position of their rings. Keeps Q1.
///
/// # Errors
/// The system's error: the kernel refuses one of them.
pub(super) fn register(slots: Vec<Vec<Slot>>, session: &Arc<Session>) -> std::io::Result<()> {
    let gone = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
    let queues = Queues::get().ok_or_else(gone)?;
    let (told, outcomes) = channel();
    for (home, slots) in queues.rings.iter().zip(slots) {
        home.post(Letter::Register(slots, Arc::clone(session), told.clone()));
    }
    drop(told);
    queues.rings.iter().try_for_each(|_| outcomes.recv().map_err(|_| gone())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_parsed() {
        assert_eq!(numbers("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(numbers("0\n"), [0]);
        assert_eq!(numbers("\n"), []);
        assert_eq!(numbers("0-65535").len(), CpuSet::MAX_CPU + 1);
        assert_eq!(numbers("5-2,x,-"), []);
    }
}
