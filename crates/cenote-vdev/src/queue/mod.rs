//! The queue of a leaf: schedules and aggregates the I/O of its device.
//!
//!     read, write, discard --> Scheduler --> a task per issue --> Device
//!                              (pure)        owns its buffers     (flush goes past the queue)
//!
//! A device serves a few I/Os at once well, near offsets faster than far ones, and one long I/O
//! faster than many short ones. The queue provides all three: a minimum and a maximum of I/Os in
//! flight per class, the order of offsets within a class, and aggregation of neighbours, including
//! RAID-Z pads (spec 06 §11, §12). The decisions are made in [`schedule`], which has no clock and
//! no tasks; this module carries them out.
//!
//! A request is submitted when the function is called; the future that it returns only waits, and
//! may be dropped. A submitted write is carried out even if no caller waits for it. The requests of
//! one write enter the queue together, so that aggregation sees them together. The writes to
//! several queues that make up a block are waited for together ([`WriteGroup`]). Async writes are
//! issued a moment later, by a task, so that they can be aggregated with writes that other tasks
//! are about to submit. A caller with many writes holds all of them back until the last one is
//! submitted ([`Plug`]).
//!
//! A read that may start when it is submitted begins in the task of its caller, which saves a task
//! and its wake-ups if the device answers at once; otherwise it continues in a task of its own
//! ([`Queue::read_directly`]). So a caller that is dropped, or that waits for something else before
//! it polls the read again, never keeps a place that other requests need.
//!
//! Every read of data goes through the queue. Reads of labels, and the probe of a device that is to
//! serve a leaf, do not: the device may have no leaf yet.
//!
//! When an aggregate fails, its parts are issued one by one, so a bad sector fails only the block
//! that contains it, and each caller gets its own error.
//!
//! Invariants
//! * Q5  Every issue is counted as ended exactly once, also when its task is dropped ([`Active`]).
//! * Q6  The buffers of a write fill the range of its issue exactly.
//! * Q7  Every request of a batch is answered exactly once, a read with its bytes.
//! * Q8  Holds and I/Os in flight are counted until they end.
//!
//! Guarantees
//! * Q4  Buffers of an issue are owned by its task until the device has answered.
//!
//! Concurrency: one mutex per queue, held for bookkeeping only, never across I/O.
//! Durability: `flush` covers the writes that returned before it was called, as the device's flush
//! does. It does not wait for queued writes.

mod completion;
mod histogram;
mod limits;
mod plug;
mod schedule;
mod stats;
#[cfg(test)]
mod tests;
mod throttle;

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use cenote_device::Device;
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, BufMut, Error, FixedMap, Kind, Op, Result, ensure, oneshot, tunables};

use crate::fault::{IoKind, LeafWatch};
use crate::{DATA_START, IoClass};
use completion::{Answer, Batch, Failed};
pub use histogram::{BUCKETS, Histogram};
use limits::Limits;
pub use limits::Load;
pub use plug::Plug;
pub use schedule::Direction;
use schedule::{Issue, Next, Request, Scheduler};
use stats::Recorded;
pub use stats::{ClassStats, DirectionStats, QueueStats};
pub use throttle::{Lifted, ScanKind, ScanSlot, ScanThrottle, ScanWait, ThrottleModel};
use throttle::{ScanWork, Share};

/// Number of classes.
pub const CLASSES: usize = IoClass::ALL.len();

/// The bytes of a write.
#[derive(Debug, Clone)]
pub enum Content {
    /// These bytes.
    Data(Buf),
    /// This many zeros, written only if they join two writes into one.
    Pad(u64),
}

/// A write to one contiguous range of a device.
#[derive(Debug, Clone)]
pub struct WritePart {
    /// Byte on the device, labels included.
    pub offset: u64,
    /// The bytes to write.
    pub content: Content,
}

impl WritePart {
    /// A part with bytes.
    pub fn data(offset: u64, data: Buf) -> Self {
        Self { offset, content: Content::Data(data) }
    }

    /// A part of zeros that is written only if that joins two writes.
    pub fn pad(offset: u64, len: u64) -> Self {
        Self { offset, content: Content::Pad(len) }
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        match &self.content {
            Content::Data(data) => data.len() as u64,
            Content::Pad(len) => *len,
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the part may be left out.
    pub fn is_pad(&self) -> bool {
        matches!(self.content, Content::Pad(_))
    }
}

/// The contents and the completion of a queued request.
#[derive(Debug)]
struct Waiting {
    /// Bytes to write; `None` for reads and discards.
    content: Option<Content>,
    answer: Answer,
    since_ns: u64,
}

/// A request within an issue.
#[derive(Debug)]
struct Part {
    request: Request,
    waiting: Waiting,
}

#[derive(Debug, Default)]
struct State {
    scheduler: Scheduler,
    waiting: FixedMap<u64, Waiting>,
    /// I/Os in flight, by number: their start, direction, offset and length.
    in_flight: FixedMap<u64, (u64, Direction, u64, u64)>,
    /// Number of the last issue.
    last_issue: u64,
    recorded: Recorded,
    holds: usize,
    is_pump_due: bool,
    share: Share,
    /// What the scan reads do, and since when.
    scan: (ScanWork, u64),
    /// When the next task looks at scan reads that are held back.
    scan_timer_ns: Option<u64>,
}
/// Bytes of the labels at the end of a device.
const LABELS_AT_END: u64 = 512 << 10;

#[derive(Debug)]
struct Shared {
    device: Arc<dyn Device>,
    load: Arc<Load>,
    /// Records slow I/O of a leaf.
    watch: Option<Arc<LeafWatch>>,
    since_ns: u64,
    state: Mutex<State>,
}

impl State {
    /// Records an issue as in flight, and returns its number.
    fn begin(&mut self, issue: &Issue, now: u64) -> u64 {
        self.last_issue += 1;
        let entry = (now, issue.direction, issue.offset, issue.len);
        self.in_flight.insert(self.last_issue, entry);
        self.last_issue
    }
}

/// The queue of one leaf. A clone is the same queue.
#[derive(Debug, Clone)]
pub struct Queue {
    shared: Arc<Shared>,
}

/// Keeps a queue from issuing I/O: see [`Queue::hold`].
#[derive(Debug)]
pub struct Hold {
    shared: Arc<Shared>,
}

impl Queue {
    /// Returns a queue in front of `device`; `load` is that of the pool.
    pub fn new(device: Arc<dyn Device>, load: Arc<Load>) -> Self {
        Self::of(device, load, None)
    }

    /// Like [`new`](Self::new), and records slow I/O.
    pub(crate) fn watched(device: Arc<dyn Device>, watch: Arc<LeafWatch>) -> Self {
        Self::of(device, Arc::clone(watch.load()), Some(watch))
    }

    fn of(device: Arc<dyn Device>, load: Arc<Load>, watch: Option<Arc<LeafWatch>>) -> Self {
        let (since_ns, state) = (now_ns(), Mutex::with_default(Rank::Queue));
        Self { shared: Arc::new(Shared { device, load, watch, since_ns, state }) }
    }

    /// The start of the oldest I/O in flight, its type, offset and length.
    pub(crate) fn oldest_in_flight(&self) -> Option<(u64, IoKind, u64, u64)> {
        let state = self.shared.lock();
        let oldest = state.in_flight.values().min_by_key(|(since, ..)| *since).copied();
        oldest.map(|(since, direction, offset, len)| (since, kind_of(direction), offset, len))
    }

    /// The device.
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
        let request = Request::read(class, offset, len);
        self.submit([(request, None, Answer::Read(sender))]);
        completion::wait(receiver)
    }

    /// Like [`read`](Self::read), but begins in the task of the caller if the read may start now.
    pub(crate) async fn read_directly(
        &self,
        offset: u64,
        len: usize,
        class: IoClass,
    ) -> Result<Buf> {
        let Some(direct) = Direct::start(&self.shared, Request::read(class, offset, len)) else {
            return self.read(offset, len, class).await;
        };
        let mut read = Box::pin(direct.read());
        if let Poll::Ready(result) = poll_fn(|it| Poll::Ready(read.as_mut().poll(it))).await {
            return result;
        }
        cenote_rt::spawn(read).await.map_err(|error| Error::new(Kind::Io, error))?
    }

    /// Writes `parts`, which overlap neither one another nor any write in flight. Succeeds when all
    /// parts that are not pads are written.
    pub fn write(
        &self,
        class: IoClass,
        parts: &[WritePart],
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        self.submit_parts(class, parts, &Batch::new(parts.len(), sender), 0);
        completion::wait_for(receiver)
    }

    fn submit_parts(&self, class: IoClass, parts: &[WritePart], batch: &Arc<Batch>, member: u32) {
        self.submit(parts.iter().map(|part| {
            let (offset, len, is_pad) = (part.offset, part.len(), part.is_pad());
            let direction = Direction::Write;
            let request = Request { direction, class, offset, len, is_pad, has_caller: true };
            (request, Some(part.content.clone()), Answer::Done(Arc::clone(batch), member))
        }));
    }

    /// Tells the device that the contents of a range are no longer needed (TRIM).
    pub fn discard(
        &self,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        let (direction, class) = (Direction::Discard, IoClass::Trim);
        let request = Request { direction, class, offset, len, is_pad: false, has_caller: true };
        self.submit([(request, None, Answer::Done(Batch::new(1, sender), 0))]);
        completion::wait_for(receiver)
    }

    /// Makes durable every write that has returned.
    pub fn flush(&self) -> impl Future<Output = Result<()>> + Send + 'static {
        let device = Arc::clone(&self.shared.device);
        let task = cenote_rt::spawn(async move { device.flush().await });
        async move { task.await.map_err(|error| Error::new(Kind::Io, error))? }
    }

    /// Longest read of an extent by a scan: short enough that ordinary I/O does not wait long
    /// behind it.
    pub(crate) fn scan_extent_max(&self) -> u64 {
        let limit = tunables::AGGREGATION_LIMIT.get();
        if ThrottleModel::now() != ThrottleModel::Share {
            return limit;
        }
        let is_rotational = self.shared.device.info().is_rotational;
        limit.min(self.shared.lock().share.extent_max(now_ns(), is_rotational))
    }

    /// Keeps all submitted requests in the queue until the hold is dropped, like a busy device, so
    /// that they are aggregated together. For experiments and tests; the holder must not wait for
    /// queued requests.
    pub fn hold(&self) -> Hold {
        self.shared.lock().holds += 1;
        Hold { shared: Arc::clone(&self.shared) }
    }

    /// Statistics of completed and pending I/O.
    pub fn stats(&self) -> QueueStats {
        let mut stats = {
            let state = self.shared.lock();
            state.recorded.stats(state.scheduler.queued(), state.scheduler.active())
        };
        stats.age_ns = now_ns().saturating_sub(self.shared.since_ns);
        stats
    }

    fn submit(&self, requests: impl IntoIterator<Item = (Request, Option<Content>, Answer)>) {
        let now = now_ns();
        let mut is_urgent = false;
        let mut state = self.shared.lock();
        for (request, content, answer) in requests {
            is_urgent |= request.class != IoClass::AsyncWrite;
            self.shared.note_ordinary(&request, now);
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
            // The task keeps the queue alive, so submitted requests are carried out.
            let shared = Arc::clone(&self.shared);
            drop(cenote_rt::spawn(async move { Shared::pump_due(&shared) }));
        }
    }
}

/// Counts an I/O as in flight until it ends or its task is dropped.
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
        let before = self.0.fetch_sub(1, Ordering::Relaxed);
        // Checks Q8.
        assert!(before > 0, "an I/O in flight ended twice");
    }
}

/// Writes to several queues that were admitted together and are waited for together.
#[derive(Debug)]
pub(crate) struct WriteGroup {
    batch: Arc<Batch>,
    receiver: oneshot::Receiver<Failed>,
    members: u32,
}

impl WriteGroup {
    /// Returns a group of `parts` writes.
    pub(crate) fn of(parts: usize) -> Self {
        let (sender, receiver) = oneshot::channel();
        Self { batch: Batch::new(parts, sender), receiver, members: 0 }
    }

    /// Begins a write like [`Queue::write`]; its errors are reported under the number `member`.
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

    /// Waits for all writes and returns the errors by member; all of them if the runtime has shut
    /// down.
    pub(crate) async fn done(self) -> Failed {
        let Self { batch, receiver, members } = self;
        drop(batch);
        receiver.await.unwrap_or_else(|_| completion::abandoned(members))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        {
            let mut state = self.shared.lock();
            // Checks Q8: otherwise the queue would be held for ever.
            assert!(state.holds > 0, "the queue is not held");
            state.holds -= 1;
        }
        Shared::pump(&self.shared);
    }
}

fn kind_of(direction: Direction) -> IoKind {
    match direction {
        Direction::Read => IoKind::Read,
        Direction::Write => IoKind::Write,
        Direction::Discard => IoKind::Discard,
    }
}

fn now_ns() -> u64 {
    cenote_rt::monotonic().as_nanos() as u64
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn limits(&self) -> Limits {
        let mut limits = Limits::now(&self.load, self.device.info().is_rotational);
        if self.watch.as_ref().is_some_and(|watch| watch.is_filled()) {
            limits.hurry_writes();
        }
        limits
    }

    /// Whether a range is outside of the labels, where data is.
    fn is_data(&self, offset: u64) -> bool {
        offset >= DATA_START && offset < self.device.info().size.saturating_sub(LABELS_AT_END)
    }

    /// Tells scans of a request that a caller waits for.
    fn note_ordinary(&self, request: &Request, now: u64) {
        if request.is_ordinary() && self.is_data(request.offset) {
            self.load.scan.note_ordinary(now);
        }
    }

    /// Looks at scan reads that are held back, at the time `again_ns`.
    fn look_again(self: &Arc<Self>, again_ns: u64) {
        // The task keeps the queue alive, so submitted requests are carried out.
        let shared = Arc::clone(self);
        let time = Duration::from_nanos(again_ns.saturating_sub(now_ns()).max(1000));
        drop(cenote_rt::spawn(async move {
            cenote_rt::sleep(time).await;
            shared.lock().scan_timer_ns.take_if(|next_ns| *next_ns == again_ns);
            Self::pump(&shared);
        }));
    }

    /// Issues every request that may start now.
    fn pump(self: &Arc<Self>) {
        while let Some((active, parts)) = self.next() {
            cenote_rt::start(active.run(parts));
        }
    }

    /// Issues the requests that were deferred.
    fn pump_due(self: &Arc<Self>) {
        self.lock().is_pump_due = false;
        self.pump();
    }

    /// Returns the next issue, if one may start now.
    fn next(self: &Arc<Self>) -> Option<(Active, Vec<Part>)> {
        let mut limits = self.limits();
        let mut state = self.lock();
        if state.holds > 0 {
            return None;
        }
        if self.load.plugs.is_any() && (state.is_pump_due || self.load.plugs.defer(self)) {
            // The deferred pump will issue them.
            state.is_pump_due = true;
            limits.hold_back(IoClass::AsyncWrite);
        }
        let mut again = None;
        if state.scheduler.has_queued(IoClass::Scrub) {
            again = state.limit_scans(self.load.scan.model(), &mut limits);
        }
        loop {
            match state.scheduler.next(&limits) {
                Next::Wait => {
                    state.note_scan(&self.load.scan, now_ns());
                    again = again.filter(|_| state.scheduler.has_queued(IoClass::Scrub));
                    // A task that looks later may be waiting already: it does no harm.
                    let is_first = |at: &u64| state.scan_timer_ns.is_none_or(|next| *at < next);
                    let again = again.filter(is_first);
                    state.scan_timer_ns = again.or(state.scan_timer_ns);
                    drop(state);
                    if let Some(again_ns) = again {
                        self.look_again(again_ns);
                    }
                    return None;
                }
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
                        // Checks Q2: a write without one of its parts would move the next ones.
                        let waiting = state.waiting.remove(id).expect("a queued request");
                        state.recorded.waited(request.class, now.saturating_sub(waiting.since_ns));
                        parts.push(Part { request: *request, waiting });
                    }
                    state.recorded.issued(&issue);
                    let number = state.begin(&issue, now);
                    state.started(&issue);
                    state.note_scan(&self.load.scan, now);
                    cenote_rt::charge(Op::Command, issue.len);
                    let shared = Arc::clone(self);
                    let active = Active { shared, issue, number, since_ns: now, is_ended: false };
                    return Some((active, parts));
                }
            }
        }
    }
}

impl State {
    /// Applies the throttle to the limits while scan reads are queued. Returns when to look again.
    fn limit_scans(&mut self, model: Option<ThrottleModel>, limits: &mut Limits) -> Option<u64> {
        let leaf = self.scheduler.leaf_use(limits);
        match model {
            Some(ThrottleModel::OpenZfs) => None,
            Some(ThrottleModel::Share) => {
                let verdict = self.share.verdict(now_ns(), leaf);
                limits.scans = Some(verdict.depth);
                limits.scan_len_max = verdict.len_max;
                Some(verdict.again_ns)
            }
            // Delays hold scan reads back before they are submitted.
            Some(ThrottleModel::Delays) | None => {
                limits.scans = Some(leaf.scans_max);
                None
            }
        }
    }

    /// An issue starts.
    fn started(&mut self, issue: &Issue) {
        if issue.class == IoClass::Scrub {
            self.share.scan_started(issue.offset, issue.len);
        }
    }

    /// Adds the time since the last change of what scan reads do.
    fn note_scan(&mut self, throttle: &ScanThrottle, now: u64) {
        let work = if self.scheduler.active()[IoClass::Scrub as usize] > 0 {
            ScanWork::Reading
        } else if self.scheduler.has_queued(IoClass::Scrub) {
            ScanWork::Held
        } else {
            ScanWork::Absent
        };
        let (before, since) = std::mem::replace(&mut self.scan, (work, now));
        // The gate of the delays notes the time of each block.
        if ThrottleModel::now() != ThrottleModel::Delays {
            throttle.add_work(before, since, now);
        }
    }
}

/// An issue in flight: Q5.
#[derive(Debug)]
struct Active {
    shared: Arc<Shared>,
    issue: Issue,
    /// Its number among those in flight.
    number: u64,
    since_ns: u64,
    is_ended: bool,
}

impl Active {
    /// Runs the issue, completes its requests, and continues with the next issue in the same task.
    async fn run(mut self, mut parts: Vec<Part>) {
        loop {
            let answers = self.transfer(parts).await;
            let shared = Arc::clone(&self.shared);
            drop(self);
            let next = shared.next();
            if next.is_some() {
                // Its end may have raised a limit, so more requests may start now.
                Shared::pump(&shared);
            }
            // Before the completions: the caller that gets the last one may close the device.
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
        let kind = (self.issue.direction, self.issue.class);
        let result = transfer(&device, kind, (offset, len), bytes).await;
        let since: Vec<u64> = parts.iter().map(|part| part.waiting.since_ns).collect();
        self.end(&since);
        let is_alone = parts.len() == 1;
        let mut answers = Vec::with_capacity(parts.len());
        match result {
            Err(_) if !is_alone => {
                for Part { request, waiting } in parts {
                    let range = (request.offset, request.len);
                    let bytes = waiting.bytes().into_iter().collect();
                    let is_write = request.direction == Direction::Write;
                    let is_forgotten = is_write && is_on(Bug::FailedAggregateForgotten);
                    let result = if request.is_pad || is_forgotten {
                        // A pad that was not written does no harm.
                        Ok(None)
                    } else {
                        transfer(&device, (request.direction, request.class), range, bytes).await
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
                        Some(if is_alone { part } else { completion::copy(&part) })
                    });
                    answers.push((waiting.answer, Ok(part)));
                }
            }
        }
        answers
    }

    /// The device has answered requests that were queued at the times `since`. Returns whether
    /// other requests are queued, which may start now.
    fn end(&mut self, since: &[u64]) -> bool {
        if std::mem::replace(&mut self.is_ended, true) {
            return false;
        }
        let now = now_ns();
        let limits = self.shared.limits();
        let mut state = self.shared.lock();
        state.scheduler.finish(&self.issue, &limits);
        state.in_flight.remove(&self.number);
        let service = now.saturating_sub(self.since_ns);
        let total = since.iter().map(|since| now.saturating_sub(*since));
        state.recorded.served(&self.issue, service, total);
        if self.issue.class == IoClass::Scrub {
            state.share.scan_ended(now, self.since_ns);
        } else if self.issue.ordinary > 0 && self.shared.is_data(self.issue.offset) {
            for since in since {
                state.share.ordinary_ended(now, *since);
            }
        }
        state.note_scan(&self.shared.load.scan, now);
        let is_any_queued = !state.waiting.is_empty();
        drop(state);
        if let Some(watch) = &self.shared.watch {
            let Issue { direction, offset, len, .. } = self.issue;
            watch.served(kind_of(direction), offset, len, service);
        }
        is_any_queued
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        self.end(&[]);
    }
}

/// A read that was not queued, which counts as an issue of one request. At its end queued requests
/// get its place.
#[derive(Debug)]
struct Direct(Active);

impl Direct {
    /// Starts a read, if nothing is before it.
    fn start(shared: &Arc<Shared>, request: Request) -> Option<Self> {
        let mut limits = shared.limits();
        let now = now_ns();
        if request.class == IoClass::Scrub {
            match shared.load.scan.model() {
                Some(ThrottleModel::OpenZfs) => {}
                Some(ThrottleModel::Share) => return None,
                Some(ThrottleModel::Delays) | None => {
                    limits.scans = Some(limits.max[IoClass::Scrub as usize]);
                }
            }
        }
        let (issue, number) = {
            let mut state = shared.lock();
            if state.is_pump_due {
                // The deferred pump will issue them.
                limits.hold_back(IoClass::AsyncWrite);
            }
            if state.holds > 0 || !state.scheduler.admit(&request, &limits) {
                return None;
            }
            state.recorded.individual(&request);
            state.recorded.waited(request.class, 0);
            let issue = Issue::of(request);
            let number = state.begin(&issue, now);
            state.started(&issue);
            state.note_scan(&shared.load.scan, now);
            (issue, number)
        };
        shared.note_ordinary(&request, now);
        cenote_rt::charge(Op::Command, request.len);
        let shared = Arc::clone(shared);
        Some(Self(Active { shared, issue, number, since_ns: now, is_ended: false }))
    }

    async fn read(self) -> Result<Buf> {
        let Issue { class, offset, len, .. } = self.0.issue;
        Ok(self.0.shared.device.read(offset, buffer(class, len)).await?.freeze())
    }
}

impl Drop for Direct {
    fn drop(&mut self) {
        if self.0.end(&[self.0.since_ns]) {
            Shared::pump(&self.0.shared);
        }
    }
}

/// Bytes from which on a read of a scan is one of an extent: shorter ones are metadata, which may
/// stay in a cache.
const SCAN_EXTENT_MIN: usize = 256 << 10;

/// Returns a buffer for a read.
fn buffer(class: IoClass, len: u64) -> BufMut {
    let len = len as usize;
    if class != IoClass::Scrub || len < SCAN_EXTENT_MIN {
        return BufMut::for_filling(len);
    }
    // The lengths of a scrub's reads vary, and their buffers are soon free: with one length for all
    // of them, buffers are reused.
    let mut buf = BufMut::for_filling(len.max(tunables::AGGREGATION_LIMIT.get_usize()));
    buf.truncate(len);
    buf
}

/// Performs one I/O on the device; reads return bytes.
async fn transfer(
    device: &Arc<dyn Device>,
    (direction, class): (Direction, IoClass),
    (offset, len): (u64, u64),
    bytes: Vec<Buf>,
) -> Result<Option<Buf>> {
    match direction {
        Direction::Discard => device.discard(offset, len).await.map(|()| None),
        Direction::Write => {
            let found: u64 = bytes.iter().map(|part| part.len() as u64).sum();
            ensure!("Q6", found == len, "{found} bytes for {len} bytes at {offset:#x}");
            device.write(offset, bytes).await.map(|()| None)
        }
        Direction::Read => {
            device.read(offset, buffer(class, len)).await.map(|buf| Some(buf.freeze()))
        }
    }
}

/// Returns zeros; pads are a sector or two, and share one buffer.
fn zeros(len: usize) -> Buf {
    static ZEROS: OnceLock<Buf> = OnceLock::new();
    let shared = ZEROS.get_or_init(|| BufMut::zeroed(64 << 10).freeze());
    shared.slice(0..len).unwrap_or_else(|| BufMut::zeroed(len).freeze())
}

impl Waiting {
    /// The bytes to write.
    fn bytes(&self) -> Option<Buf> {
        match self.content.as_ref()? {
            Content::Data(data) => Some(data.clone()),
            Content::Pad(len) => Some(zeros(*len as usize)),
        }
    }
}
