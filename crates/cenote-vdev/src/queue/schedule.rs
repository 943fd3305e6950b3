//! Decides which I/O a leaf issues next: a pure state machine, without clock, tasks or buffers.
//!
//!     push(request) --> by class, in order --pick--> a request of the chosen class
//!                  \--> by offset -------aggregate--> with its neighbours: an Issue
//!     admit(request) --> starts without being queued, if it would be the next
//!     finish(issue) <-- when the device has answered
//!
//! The class is chosen in two rounds (spec 06 §11.2): first every class gets its minimum, in
//! rotation; then classes in order get up to their maximum. In a class, reads and writes for which
//! a caller waits go by age. Others go by offset from the last issued one, in slices of half a
//! second of age, so that no request starves behind a stream of better placed ones.
//!
//! Scrub, removal, initializing and rebuild are not interactive: while interactive I/O uses the
//! leaf they live on a credit that each interactive completion renews, and on an idle leaf they get
//! their maximum only after some single I/Os (spec 06 §11.4). Another throttle may limit scrub
//! instead ([`super::throttle`]).
//!
//! Invariants
//! * Q1  A request is in the tree of its class, and in that of its direction unless it is a
//!   discard, from push until it is issued or dropped; then in none.
//! * Q2  Every request that has data is in exactly one issue; one without is in one issue or
//!   dropped once.
//! * Q3  When an issue starts, the I/Os in flight do not exceed the maximum of its class, and those
//!   of all classes do not exceed `max_active`.

use std::collections::BTreeSet;

use cenote_rt::FixedMap;

use super::limits::{Limits, SPAN_MAX};
use super::throttle::{LeafUse, is_ordinary};
use super::{CLASSES, IoClass, SCAN_EXTENT_MIN};

/// Log2 of the nanoseconds of age within which requests are served in the order of their offsets.
const SLICE_SHIFT: u32 = 29;

/// Kind of transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
    /// TRIM of a range.
    Discard,
}

/// One request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) direction: Direction,
    pub(super) class: IoClass,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// A pad: zeros that are written only if they join two writes.
    pub(super) is_pad: bool,
    /// Whether a caller may wait for it. Nobody waits for the reads of a transaction group.
    pub(super) has_caller: bool,
}

impl Request {
    /// Returns a request to read.
    pub(super) fn read(class: IoClass, offset: u64, len: usize) -> Self {
        let (direction, len, has_caller) = (Direction::Read, len as u64, cenote_rt::has_caller());
        Self { direction, class, offset, len, is_pad: false, has_caller }
    }

    /// Whether it is ordinary I/O, for which scans leave room.
    pub(super) fn is_ordinary(&self) -> bool {
        self.has_caller && is_ordinary(self.class)
    }

    fn end(&self) -> u64 {
        self.offset.saturating_add(self.len)
    }
}

#[derive(Debug, Clone, Copy)]
struct Queued {
    request: Request,
    /// Time at which it was queued: age of the queue in nanoseconds.
    since_ns: u64,
    /// A pad that may be left out, and cannot be the last part of an aggregate.
    is_optional: bool,
}

/// One I/O for the device: a request, or several adjacent ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Issue {
    pub(super) direction: Direction,
    pub(super) class: IoClass,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// The requests in it by ascending offset. Only reads have gaps between them.
    pub(super) parts: Vec<(u64, Request)>,
    /// How many of its requests are ordinary I/O.
    pub(super) ordinary: u64,
}

impl Issue {
    /// Returns the issue of a request that is not queued.
    pub(super) fn of(request: Request) -> Self {
        let Request { direction, class, offset, len, .. } = request;
        let ordinary = u64::from(request.is_ordinary());
        Self { direction, class, offset, len, parts: Vec::new(), ordinary }
    }
}

/// The next step of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing can start until a request arrives or an I/O ends.
    Wait,
    /// Issue this I/O to the device.
    Issue(Issue),
    /// This pad joins no writes, and is complete.
    Drop(u64),
}

/// The queue of a leaf.
#[derive(Debug, Clone, Default)]
pub(super) struct Scheduler {
    queued: FixedMap<u64, Queued>,
    /// By class: (age slice, offset, id), or (0, 0, id) where only age counts.
    by_class: [BTreeSet<(u64, u64, u64)>; CLASSES],
    reads: BTreeSet<(u64, u64)>,
    writes: BTreeSet<(u64, u64)>,
    active: [u64; CLASSES],
    next_id: u64,
    last_class: usize,
    last_offset: u64,
    interactive_active: u64,
    /// Requests of ordinary I/O, queued or in flight.
    ordinary: u64,
    credit: u64,
}

/// Whether a caller may wait for I/O of this class.
fn is_interactive(class: usize) -> bool {
    const OTHERS: [IoClass; 4] =
        [IoClass::Scrub, IoClass::Removal, IoClass::Initializing, IoClass::Rebuild];
    OTHERS.iter().all(|other| *other as usize != class)
}

/// Whether requests of this class are served by age alone.
fn is_ordered_by_age(class: IoClass) -> bool {
    matches!(class, IoClass::SyncRead | IoClass::SyncWrite | IoClass::Trim)
}

/// Requests with the same group may share an aggregate: all interactive classes, others only with
/// their own class.
fn aggregation_group(class: IoClass) -> usize {
    if is_interactive(class as usize) { CLASSES } else { class as usize }
}

impl Scheduler {
    /// Queued requests, by class.
    pub(super) fn queued(&self) -> [u64; CLASSES] {
        std::array::from_fn(|class| self.by_class[class].len() as u64)
    }

    /// I/Os in flight, by class.
    pub(super) fn active(&self) -> [u64; CLASSES] {
        self.active
    }

    /// Whether requests of this class are queued.
    pub(super) fn has_queued(&self, class: IoClass) -> bool {
        !self.by_class[class as usize].is_empty()
    }

    /// Returns what the leaf does, for the share of its scan reads.
    pub(super) fn leaf_use(&self, limits: &Limits) -> LeafUse {
        let scan = IoClass::Scrub as usize;
        let interactive = (0..CLASSES).filter(|class| is_interactive(*class));
        let queued: u64 = interactive.map(|class| self.by_class[class].len() as u64).sum();
        LeafUse {
            ordinary: self.ordinary,
            background: (queued + self.interactive_active).saturating_sub(self.ordinary),
            scans: self.active[scan],
            scans_max: limits.max[scan].max(limits.min[scan]),
        }
    }

    /// Queues a request and returns its id.
    pub(super) fn push(&mut self, request: Request, now_ns: u64) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        let queued = Queued { request, since_ns: now_ns, is_optional: request.is_pad };
        self.by_class[request.class as usize].insert(class_key(id, &queued));
        if let Some(tree) = self.by_offset(request.direction) {
            tree.insert((request.offset, id));
        }
        self.queued.insert(id, queued);
        self.ordinary += u64::from(request.is_ordinary());
        id
    }

    fn by_offset(&mut self, direction: Direction) -> Option<&mut BTreeSet<(u64, u64)>> {
        match direction {
            Direction::Read => Some(&mut self.reads),
            Direction::Write => Some(&mut self.writes),
            Direction::Discard => None,
        }
    }

    /// Removes a request: Q1.
    fn take(&mut self, id: u64) -> Option<Request> {
        let queued = self.queued.remove(&id)?;
        let request = queued.request;
        let was_there = self.by_class[request.class as usize].remove(&class_key(id, &queued));
        // Checks Q1.
        assert!(was_there, "request {id} is not queued in its class");
        if let Some(tree) = self.by_offset(request.direction) {
            // Checks Q1.
            assert!(tree.remove(&(request.offset, id)), "request {id} is not queued by offset");
        }
        self.ordinary -= u64::from(request.is_ordinary());
        Some(request)
    }

    /// Starts a request that is not queued, if it would be issued next if it were. The caller calls
    /// [`finish`](Self::finish) as for an issue.
    pub(super) fn admit(&mut self, request: &Request, limits: &Limits) -> bool {
        let class = request.class as usize;
        if !self.by_class[class].is_empty() || self.choose_class(limits, Some(class)) != Some(class)
        {
            return false;
        }
        self.last_class = class;
        self.last_offset = request.end();
        self.begin(class, limits);
        self.ordinary += u64::from(request.is_ordinary());
        true
    }

    /// Returns the next step. The caller repeats the call until it returns [`Next::Wait`].
    pub(super) fn next(&mut self, limits: &Limits) -> Next {
        let Some(class) = self.choose_class(limits, None) else { return Next::Wait };
        let Some(picked) = self.pick(class) else { return Next::Wait };
        let ids = self.aggregate(picked, limits);
        let mut parts = Vec::with_capacity(ids.len());
        for id in &ids {
            parts.extend(self.take(*id).map(|request| (*id, request)));
        }
        // Checks Q2: a request is not in two issues, or twice in one.
        assert_eq!(parts.len(), ids.len(), "an issue contains a request that is not queued");
        let (Some((_, first)), Some((_, last))) = (parts.first(), parts.last()) else {
            return Next::Wait;
        };
        let (offset, len) = (first.offset, last.end() - first.offset);
        // A pad alone joins no writes.
        if parts.len() == 1 && first.is_pad {
            return Next::Drop(picked);
        }
        let direction = first.direction;
        let class = IoClass::ALL[class];
        self.last_class = class as usize;
        self.last_offset = offset + len;
        self.begin(class as usize, limits);
        let ordinary = parts.iter().filter(|(_, request)| request.is_ordinary()).count() as u64;
        self.ordinary += ordinary;
        Next::Issue(Issue { direction, class, offset, len, parts, ordinary })
    }

    /// Records that an issue has ended.
    pub(super) fn finish(&mut self, issue: &Issue, limits: &Limits) {
        let class = issue.class as usize;
        // Checks Q5.
        assert!(self.ordinary >= issue.ordinary, "an ordinary I/O ended twice");
        self.ordinary -= issue.ordinary;
        // Checks Q5.
        assert!(self.active[class] > 0, "an I/O of class {class} ended twice");
        self.active[class] -= 1;
        if is_interactive(class) {
            // Checks Q5.
            assert!(self.interactive_active > 0, "an interactive I/O ended twice");
            self.interactive_active -= 1;
            self.credit = if self.interactive_active == 0 { 0 } else { limits.nia_credit };
        } else if self.interactive_active == 0 {
            self.credit += 1;
        }
    }

    fn begin(&mut self, class: usize, limits: &Limits) {
        self.active[class] += 1;
        let (active, all) = (self.active[class], self.active.iter().sum::<u64>());
        let max = limits.max[class].max(limits.min[class]).max(1);
        // Checks Q3.
        assert!(active <= max && all <= limits.max_active, "{active} I/Os of {max}, {all} in all");
        if is_interactive(class) {
            self.interactive_active += 1;
            if self.interactive_active == 1 {
                self.credit = 1;
            }
        } else if self.interactive_active > 0 {
            self.credit = self.credit.saturating_sub(1);
        }
    }

    /// The limits of a class in the first and the second round.
    fn bounds(&self, class: usize, limits: &Limits) -> (u64, u64) {
        let (min, max) = (limits.min[class], limits.max[class].max(limits.min[class]));
        if let Some(scans) = limits.scans.filter(|_| class == IoClass::Scrub as usize) {
            (0, scans.min(max))
        } else if is_interactive(class) {
            (min, max)
        } else if self.interactive_active > 0 {
            let bound = self.credit.min(min);
            (bound, bound)
        } else if self.credit < limits.nia_delay {
            (0, min.max(1))
        } else {
            (0, max)
        }
    }

    /// Returns the class of the next issue. `newcomer` is that of a request that is not queued.
    fn choose_class(&self, limits: &Limits, newcomer: Option<usize>) -> Option<usize> {
        if self.active.iter().sum::<u64>() >= limits.max_active {
            return None;
        }
        let has_queued =
            |class: &usize| newcomer == Some(*class) || !self.by_class[*class].is_empty();
        let rotation = (1..=CLASSES).map(|step| (self.last_class + step) % CLASSES);
        let below_min = |class: &usize| self.active[*class] < self.bounds(*class, limits).0;
        let below_max = |class: &usize| self.active[*class] < self.bounds(*class, limits).1;
        rotation
            .filter(has_queued)
            .find(below_min)
            .or_else(|| (0..CLASSES).filter(has_queued).find(below_max))
    }

    /// The next request of a class.
    fn pick(&self, class: usize) -> Option<u64> {
        let tree = &self.by_class[class];
        let &(slice, offset, id) = tree.first()?;
        if is_ordered_by_age(IoClass::ALL[class]) || offset >= self.last_offset {
            return Some(id);
        }
        let onward = tree.range((slice, self.last_offset, 0)..).next();
        Some(onward.filter(|next| next.0 == slice).map_or(id, |next| next.2))
    }

    /// The requests to aggregate with `picked`, by ascending offset.
    fn aggregate(&mut self, picked: u64, limits: &Limits) -> Vec<u64> {
        let request = self.queued[&picked].request;
        if request.direction == Direction::Discard || limits.aggregation == 0 {
            return vec![picked];
        }
        let (tree, max_gap) = match request.direction {
            Direction::Read => (&self.reads, limits.read_gap),
            _ => (&self.writes, 0),
        };
        let key = (request.offset, picked);
        let search = Search { queued: &self.queued, request, max_gap, limits };
        let mut ids = search.backwards(tree.range(..key).rev().map(|key| key.1));
        ids.reverse();
        // An aggregate must not begin with an optional request.
        let is_optional = |id: &u64| search.queued[id].is_optional;
        let leading = ids.iter().take_while(|id| is_optional(id)).count();
        ids.drain(..leading);
        ids.push(picked);
        let after: Vec<u64> = search.forwards(&ids, tree.range(key..).skip(1).map(|key| key.1));
        ids.extend(after);
        let required = ids.iter().rposition(|id| !is_optional(id));
        let Some(last) = ids.last().map(|id| (search.queued[id].request.offset, *id)) else {
            return ids;
        };
        let mut stretch = None;
        if let (Direction::Write, Some(required)) = (request.direction, required) {
            let beyond = tree.range(last..).skip(1).map(|key| key.1);
            stretch = search.stretch(ids[required], last.1, beyond);
        }
        if let Some(next) = stretch {
            // The next request becomes the start of the next aggregate, so it is not optional any
            // more.
            if let Some(next) = self.queued.get_mut(&next) {
                next.is_optional = false;
            }
        } else {
            ids.truncate(required.map_or(1, |required| required + 1));
        }
        // All requests up to and including `picked` were trimmed, so it is a pad: it is dropped.
        if ids.contains(&picked) { ids } else { vec![picked] }
    }
}

/// Key of a request in the tree of its class.
fn class_key(id: u64, queued: &Queued) -> (u64, u64, u64) {
    let Request { class, offset, len, .. } = queued.request;
    if is_ordered_by_age(class) {
        return (0, 0, id);
    }
    // Metadata that a scan walks through is read before its extents: the walk waits for it, and
    // others may.
    if class == IoClass::Scrub && len < SCAN_EXTENT_MIN as u64 {
        return (0, offset, id);
    }
    (queued.since_ns >> SLICE_SHIFT, queued.request.offset, id)
}

/// Search for the neighbours of one request (spec 06 §11.5).
struct Search<'a> {
    queued: &'a FixedMap<u64, Queued>,
    request: Request,
    max_gap: u64,
    limits: &'a Limits,
}

impl Search<'_> {
    /// Whether `lower` may be placed directly before `upper`. Overlapping requests are never
    /// joined: only their callers know which one must win.
    fn joins(&self, lower: &Request, upper: &Request) -> bool {
        aggregation_group(lower.class) == aggregation_group(self.request.class)
            && aggregation_group(upper.class) == aggregation_group(self.request.class)
            && upper.offset.checked_sub(lower.end()).is_some_and(|gap| gap <= self.max_gap)
    }

    fn limit(&self) -> u64 {
        self.limits.aggregation_of(self.request.class)
    }

    /// Requests before the picked one, nearest first.
    fn backwards(&self, before: impl Iterator<Item = u64>) -> Vec<u64> {
        let mut first = self.request;
        let fits = |id: &u64| {
            let request = self.queued[id].request;
            let span = self.request.end() - request.offset.min(self.request.end());
            let fits = self.joins(&request, &first) && span <= self.limit();
            first = request;
            fits
        };
        before.take_while(fits).collect()
    }

    /// Requests after the picked one, which is the last of `ids`.
    fn forwards(&self, ids: &[u64], after: impl Iterator<Item = u64>) -> Vec<u64> {
        let start = ids.first().map_or(0, |id| self.queued[id].request.offset);
        let mut last = self.request;
        let fits = |id: &u64| {
            let Queued { request, is_optional, .. } = self.queued[id];
            let span = request.end().saturating_sub(start);
            // illumos #8005: a pad is a sector that joins two writes. Leaving it out because the
            // limit is reached would leave a gap on the medium for every such block.
            let is_limited = !is_optional || self.limits.is_optional_limited;
            let limit = if is_limited { self.limit() } else { SPAN_MAX };
            let fits = self.joins(&last, &request) && span <= limit;
            last = request;
            fits
        };
        after.take_while(fits).collect()
    }

    /// Returns the request after `last` if pads lead without a gap from the last required request
    /// of an aggregate to the next required one, and that is near enough: then the pads are worth
    /// writing.
    fn stretch(&self, required: u64, last: u64, beyond: impl Iterator<Item = u64>) -> Option<u64> {
        let required = self.queued[&required].request;
        let mut previous = self.queued[&last].request;
        let mut next = None;
        for id in beyond {
            let Queued { request, is_optional, .. } = self.queued[&id];
            let gap = request.offset.saturating_sub(required.end());
            if request.offset != previous.end() || gap > self.limits.write_gap {
                return None;
            }
            next = next.or(Some(id));
            if !is_optional {
                return next;
            }
            previous = request;
        }
        None
    }
}
