//! The queue of a leaf: what goes to its device when, and joined with what.
//!
//!     read, write, discard --> Scheduler --> a task per issue --> Device
//!                              (pure)        owns its buffers     (flush goes past the queue)
//!
//! A device serves some I/Os at once and not too many, near places before far ones, and one long
//! I/O faster than many short ones. The queue sees to all three: classes with a minimum and a
//! maximum under way, the order of offsets within a class, and aggregation of neighbours, pads of
//! RAID-Z included (spec 06 §11, §12). What it decides is in [`schedule`], which knows neither time
//! nor tasks; this module carries it out.
//!
//! Everything is submitted when the function is called; the future that it returns only waits, and
//! may be dropped. A write that was submitted will be done, whoever waits for it. The requests of
//! one write enter the queue together, so that aggregation sees them together. Writes to several
//! queues that make up a block are waited for together ([`Sending`]). Async writes are
//! issued a moment later, by a task: what other tasks are about to submit goes with them. Whoever
//! has many to submit holds them all back until the last one is there ([`Plug`]).
//!
//! Reads that somebody waits for go past the queue ([`Queue::read_now`]), and are counted here.
//!
//! When an aggregate fails, its parts are done one by one: a bad sector costs only the block that
//! has it, and each caller gets an error of its own.
//!
//! Invariants
//! * Q4  Buffers of an issue are owned by its task until the device has answered.
//! * Q5  Every issue is counted as ended exactly once, also when its task is dropped ([`Active`]).
//!
//! Concurrency: one mutex per queue, held for bookkeeping only, never across I/O.
//! Durability: `flush` covers what has returned before it was called, as the device's does. It
//! does not wait for what is queued.

mod histogram;
mod limits;
mod plug;
mod schedule;
mod stats;
#[cfg(test)]
mod tests;
mod ticket;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use cenote_device::Device;
use cenote_rt::{Buf, BufMut, Error, FixedMap, Kind, Result, oneshot};

use crate::IoClass;
pub use histogram::Histogram;
use limits::Limits;
pub use limits::Load;
pub use plug::Plug;
pub use schedule::Direction;
use schedule::{Issue, Next, Request, Scheduler};
use stats::Recorded;
pub use stats::{ClassStats, DirectionStats, QueueStats};
use ticket::{Answer, Batch, Failed};

/// Number of classes.
pub const CLASSES: usize = IoClass::ALL.len();

/// What is written somewhere.
#[derive(Debug, Clone)]
pub enum Content {
    /// These bytes.
    Data(Buf),
    /// So many zeros, but only where they make one write of two.
    Pad(u64),
}

/// A stretch of a device to be written.
#[derive(Debug, Clone)]
pub struct WritePart {
    /// Byte on the device, labels included.
    pub offset: u64,
    /// What is written there.
    pub content: Content,
}

impl WritePart {
    /// Bytes to be written.
    pub fn data(offset: u64, data: Buf) -> Self {
        Self { offset, content: Content::Data(data) }
    }

    /// Zeros to be written only if that joins two writes.
    pub fn pad(offset: u64, len: u64) -> Self {
        Self { offset, content: Content::Pad(len) }
    }

    /// Bytes.
    pub fn len(&self) -> u64 {
        match &self.content {
            Content::Data(data) => data.len() as u64,
            Content::Pad(len) => *len,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it may be left out.
    pub fn is_pad(&self) -> bool {
        matches!(self.content, Content::Pad(_))
    }
}

/// What belongs to a request that waits.
#[derive(Debug)]
struct Waiting {
    /// What is written; `None` for reads and discards.
    content: Option<Content>,
    answer: Answer,
    since_ns: u64,
}

/// A request in an issue.
#[derive(Debug)]
struct Part {
    request: Request,
    waiting: Waiting,
}

#[derive(Debug, Default)]
struct State {
    scheduler: Scheduler,
    waiting: FixedMap<u64, Waiting>,
    recorded: Recorded,
    holds: usize,
    is_pump_due: bool,
}

#[derive(Debug)]
struct Shared {
    device: Arc<dyn Device>,
    load: Arc<Load>,
    since_ns: u64,
    /// Reads under way past the queue.
    reading: AtomicU64,
    state: Mutex<State>,
}

/// The queue of one leaf. A clone is the same queue.
#[derive(Debug, Clone)]
pub struct Queue {
    shared: Arc<Shared>,
}

/// Holds a queue back: see [`Queue::hold`].
#[derive(Debug)]
pub struct Hold {
    shared: Arc<Shared>,
}

impl Queue {
    /// A queue in front of `device`, of a pool with that load.
    pub fn new(device: Arc<dyn Device>, load: Arc<Load>) -> Self {
        let (since_ns, reading, state) = (now_ns(), AtomicU64::new(0), Mutex::default());
        Self { shared: Arc::new(Shared { device, load, since_ns, reading, state }) }
    }

    /// The device behind it.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.shared.device
    }

    /// Reads `len` bytes at `offset`.
    pub fn read(
        &self,
        offset: u64,
        len: usize,
        class: IoClass,
    ) -> impl Future<Output = Result<Buf>> + Send + 'static {
        let (sender, receiver) = oneshot::channel();
        let direction = Direction::Read;
        let request = Request { direction, class, offset, len: len as u64, is_pad: false };
        self.submit([(request, None, Answer::Read(sender))]);
        ticket::wait(receiver)
    }

    /// Reads at once, past all that waits: what somebody waits for, as its device takes it. It is
    /// counted as a synchronous read that did not wait.
    pub(crate) async fn read_now(&self, offset: u64, len: usize) -> Result<Buf> {
        let _under_way = InFlight::start(&self.shared.reading);
        let since = now_ns();
        let read = self.shared.device.read(offset, BufMut::for_filling(len)).await?;
        let service = now_ns().saturating_sub(since);
        self.shared.lock().recorded.read_now(len as u64, service);
        Ok(read.freeze())
    }

    /// Writes `parts`, which neither overlap one another nor anything that is being written. It
    /// has succeeded when all that are not pads are written.
    pub fn write(
        &self,
        class: IoClass,
        parts: &[WritePart],
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        self.submit_parts(class, parts, &Batch::new(parts.len(), sender), 0);
        ticket::wait_for(receiver)
    }

    fn submit_parts(&self, class: IoClass, parts: &[WritePart], batch: &Arc<Batch>, member: u32) {
        self.submit(parts.iter().map(|part| {
            let (offset, len, is_pad) = (part.offset, part.len(), part.is_pad());
            let request = Request { direction: Direction::Write, class, offset, len, is_pad };
            (request, Some(part.content.clone()), Answer::Done(Arc::clone(batch), member))
        }));
    }

    /// Tells the device that a range holds nothing of value.
    pub fn discard(
        &self,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        let (direction, class) = (Direction::Discard, IoClass::Trim);
        let request = Request { direction, class, offset, len, is_pad: false };
        self.submit([(request, None, Answer::Done(Batch::new(1, sender), 0))]);
        ticket::wait_for(receiver)
    }

    /// Makes durable every write that has returned.
    pub fn flush(&self) -> impl Future<Output = Result<()>> + Send + 'static {
        let device = Arc::clone(&self.shared.device);
        let task = cenote_rt::spawn(async move { device.flush().await });
        async move { task.await.map_err(|error| Error::new(Kind::Io, error))? }
    }

    /// Keeps everything that is submitted in the queue until the hold is dropped, as a device does
    /// that is busy: what comes meanwhile is seen together. For experiments and tests; whoever
    /// holds a queue must not wait for what is in it.
    pub fn hold(&self) -> Hold {
        self.shared.lock().holds += 1;
        Hold { shared: Arc::clone(&self.shared) }
    }

    /// What it has done, and what it has to do.
    pub fn stats(&self) -> QueueStats {
        let mut stats = {
            let state = self.shared.lock();
            state.recorded.stats(state.scheduler.queued(), state.scheduler.active())
        };
        stats.age_ns = now_ns().saturating_sub(self.shared.since_ns);
        stats.classes[IoClass::SyncRead as usize].active +=
            self.shared.reading.load(Ordering::Relaxed);
        stats
    }

    fn submit(&self, requests: impl IntoIterator<Item = (Request, Option<Content>, Answer)>) {
        let now = now_ns();
        let mut is_urgent = false;
        let mut state = self.shared.lock();
        for (request, content, answer) in requests {
            is_urgent |= request.class != IoClass::AsyncWrite;
            state.recorded.individual(&request);
            let id = state.scheduler.push(request, now);
            state.waiting.insert(id, Waiting { content, answer, since_ns: now });
        }
        if is_urgent {
            drop(state);
            return Shared::pump(&self.shared);
        }
        if !std::mem::replace(&mut state.is_pump_due, true)
            && !self.shared.load.plugs.defer(&self.shared)
        {
            drop(state);
            // It keeps the queue alive: what was submitted is done.
            let shared = Arc::clone(&self.shared);
            drop(cenote_rt::spawn(async move { Shared::pump_due(&shared) }));
        }
    }
}

/// Counts an I/O until it ends or its task is dropped.
#[derive(Debug)]
pub(crate) struct InFlight<'a>(&'a AtomicU64);

impl<'a> InFlight<'a> {
    pub(crate) fn start(counter: &'a AtomicU64) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Writes to several queues, begun together, that somebody waits for together.
#[derive(Debug)]
pub(crate) struct Sending {
    batch: Arc<Batch>,
    receiver: oneshot::Receiver<Failed>,
    members: u32,
}

impl Sending {
    /// Of so many parts in all.
    pub(crate) fn of(parts: usize) -> Self {
        let (sender, receiver) = oneshot::channel();
        Self { batch: Batch::new(parts, sender), receiver, members: 0 }
    }

    /// Begins a write of [`Queue::write`]'s kind, whose errors are told as those of `member`.
    pub(crate) fn write(
        &mut self,
        queue: &Queue,
        class: IoClass,
        parts: &[WritePart],
        member: u32,
    ) {
        self.members = self.members.max(member + 1);
        queue.submit_parts(class, parts, &self.batch, member);
    }

    /// What failed, by member, once all is done; all of it if nobody is left to tell.
    pub(crate) async fn done(self) -> Failed {
        let Self { batch, receiver, members } = self;
        drop(batch);
        receiver.await.unwrap_or_else(|_| ticket::abandoned(members))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.shared.lock().holds -= 1;
        Shared::pump(&self.shared);
    }
}

fn now_ns() -> u64 {
    cenote_rt::monotonic().as_nanos() as u64
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limits(&self) -> Limits {
        Limits::now(&self.load, self.device.info().is_rotational)
    }

    /// Starts everything that may start now.
    fn pump(self: &Arc<Self>) {
        while let Some((active, parts)) = self.next() {
            cenote_rt::start(active.run(parts));
        }
    }

    /// The same for who was to do so later.
    fn pump_due(self: &Arc<Self>) {
        self.lock().is_pump_due = false;
        self.pump();
    }

    /// The next issue, if one may start now.
    fn next(self: &Arc<Self>) -> Option<(Active, Vec<Part>)> {
        let mut limits = self.limits();
        let mut state = self.lock();
        if state.holds > 0 {
            return None;
        }
        if self.load.plugs.is_any() && (state.is_pump_due || self.load.plugs.defer(self)) {
            // Whoever is to go on later will find them.
            state.is_pump_due = true;
            limits.hold_back(IoClass::AsyncWrite);
        }
        loop {
            match state.scheduler.next(&limits) {
                Next::Wait => return None,
                Next::Drop(id) => {
                    let dropped = state.waiting.remove(&id);
                    state.recorded.dropped_pads += 1;
                    if let Some(waiting) = dropped {
                        waiting.answer.give(Ok(None));
                    }
                }
                Next::Issue(issue) => {
                    let now = now_ns();
                    let mut parts = Vec::with_capacity(issue.parts.len());
                    for (id, request) in &issue.parts {
                        let Some(waiting) = state.waiting.remove(id) else { continue };
                        state.recorded.waited(request.class, now.saturating_sub(waiting.since_ns));
                        parts.push(Part { request: *request, waiting });
                    }
                    state.recorded.issued(&issue);
                    let shared = Arc::clone(self);
                    return Some((Active { shared, issue, since_ns: now, is_ended: false }, parts));
                }
            }
        }
    }
}

/// An issue under way: Q5.
#[derive(Debug)]
struct Active {
    shared: Arc<Shared>,
    issue: Issue,
    since_ns: u64,
    is_ended: bool,
}

impl Active {
    /// Does it, answers whoever waits, and goes on with what comes next: the task is there already.
    async fn run(mut self, mut parts: Vec<Part>) {
        loop {
            let answers = self.transfer(parts).await;
            let shared = Arc::clone(&self.shared);
            drop(self);
            let next = shared.next();
            if next.is_some() {
                // More may start at once now: its end may have raised a limit.
                Shared::pump(&shared);
            }
            // Before the answers: whoever has the last one may close the device.
            drop(shared);
            for (answer, result) in answers {
                answer.give(result);
            }
            let Some(next) = next else { return };
            (self, parts) = next;
        }
    }

    async fn transfer(&mut self, parts: Vec<Part>) -> Vec<(Answer, Result<Option<Buf>>)> {
        let device = Arc::clone(&self.shared.device);
        let (offset, len) = (self.issue.offset, self.issue.len);
        let bytes = parts.iter().filter_map(|part| part.waiting.bytes()).collect();
        let result = transfer(&device, self.issue.direction, (offset, len), bytes).await;
        let since: Vec<u64> = parts.iter().map(|part| part.waiting.since_ns).collect();
        self.end(&since);
        let is_alone = parts.len() == 1;
        let mut answers = Vec::with_capacity(parts.len());
        match result {
            Err(_) if !is_alone => {
                for Part { request, waiting } in parts {
                    let range = (request.offset, request.len);
                    let bytes = waiting.bytes().into_iter().collect();
                    let result = if request.is_pad {
                        // Left out, it does no harm.
                        Ok(None)
                    } else {
                        transfer(&device, request.direction, range, bytes).await
                    };
                    answers.push((waiting.answer, result));
                }
            }
            Err(error) => {
                let answer = parts.into_iter().next().map(|part| part.waiting.answer);
                answers.extend(answer.map(|answer| (answer, Err(error))));
            }
            Ok(read) => {
                for Part { request, waiting } in parts {
                    let start = (request.offset - offset) as usize;
                    let part = read.as_ref().and_then(|read| {
                        let part = read.slice(start..start + request.len as usize)?;
                        Some(if is_alone { part } else { ticket::copy(&part) })
                    });
                    answers.push((waiting.answer, Ok(part)));
                }
            }
        }
        answers
    }

    /// The device has answered, to requests that came at the times `since`.
    fn end(&mut self, since: &[u64]) {
        if std::mem::replace(&mut self.is_ended, true) {
            return;
        }
        let now = now_ns();
        let limits = self.shared.limits();
        let mut state = self.shared.lock();
        state.scheduler.finish(self.issue.class, &limits);
        let service = now.saturating_sub(self.since_ns);
        let total = since.iter().map(|since| now.saturating_sub(*since));
        state.recorded.served(&self.issue, service, total);
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.end(&[]);
    }
}

/// Asks the device once; reads give bytes.
async fn transfer(
    device: &Arc<dyn Device>,
    direction: Direction,
    (offset, len): (u64, u64),
    bytes: Vec<Buf>,
) -> Result<Option<Buf>> {
    match direction {
        Direction::Discard => device.discard(offset, len).await.map(|()| None),
        Direction::Write => device.write(offset, bytes).await.map(|()| None),
        Direction::Read => {
            let buf = BufMut::for_filling(len as usize);
            device.read(offset, buf).await.map(|buf| Some(buf.freeze()))
        }
    }
}

/// Zeros; pads are a sector or two, and share theirs.
fn zeros(len: usize) -> Buf {
    static ZEROS: OnceLock<Buf> = OnceLock::new();
    let shared = ZEROS.get_or_init(|| BufMut::zeroed(64 << 10).freeze());
    shared.slice(0..len).unwrap_or_else(|| BufMut::zeroed(len).freeze())
}

impl Waiting {
    /// What is to be written.
    fn bytes(&self) -> Option<Buf> {
        match self.content.as_ref()? {
            Content::Data(data) => Some(data.clone()),
            Content::Pad(len) => Some(zeros(*len as usize)),
        }
    }
}
