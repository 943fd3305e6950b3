//! The share of a leaf that a scan gets, adapted by feedback (spec 09 §4.2).
//!
//! ```text
//!   ordinary I/O ends ──> mean latency with the scan ─┐
//!                    └──> mean latency without it  ───┴─> share q, five times a second
//!   scan read ends after t ──> rest of t (1/q - 1) ──> the next one, once the leaf is quiet
//! ```
//!
//! * A leaf without ordinary I/O for [`IDLE_NS`], and for [`IDLE_GAPS`] times as long as the pauses
//!   between requests usually are, belongs to the scan: it reads as deep as its class may.
//! * Otherwise the leaf has one scan read at a time. It does not start while ordinary I/O is queued
//!   or in flight, nor within [`QUIET_NS`] after it: the next request of the same caller often
//!   follows at once. After a read that took t the scan rests.
//! * A scan read takes a rotating disk for [`CHUNK_MS`] at most, by the rate at which it reads
//!   ([`Rate`]): ordinary I/O that arrives meanwhile waits for its end.
//! * A share of more than the whole stands for a scan that waits less: above 1 for no quiet moment,
//!   above 2 for no ordinary I/O. So scans get more where [`GENEROUS_PCT`] is allowed.
//! * The share shrinks by as much as ordinary I/O is slower than `cenote_scrub_slowdown_pct`
//!   allows, to a half at once at most, and grows by small steps, [`SHARE_STEP`] in each
//!   [`ADJUST_NS`]. The bound is relative to the latency without the scan, and not absolute: where
//!   ordinary I/O alone is slower than an absolute bound, the scan would get nothing.
//! * The latency without the scan is that of requests that arrive while the scan rests, at least
//!   [`SETTLE_NS`] after its last read. If there are none for [`PROBE_EACH_NS`], the scan rests for
//!   [`PROBE_NS`].
//! * `cenote_scrub_min_rate` is promised: what the scan read less of, averaged over
//!   [`OWED_SECONDS`], is read without rest, and beside ordinary I/O if the leaf is never quiet.
//!
//! A pure state machine, without clock and tasks: times are parameters.

use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::tunables;

use super::LOOK_NS;

const MS: u64 = 1_000_000;
/// Time without ordinary I/O after which a leaf is idle.
const IDLE_NS: u64 = 250 * MS;
/// Usual pauses between requests after which a leaf is idle: with random arrivals, one pause in
/// three thousand is longer.
const IDLE_GAPS: f64 = 8.0;
/// Longest pause after which a leaf is idle in any case.
const IDLE_MAX_NS: u64 = 2_000 * MS;
/// Time after ordinary I/O in which more of it is expected.
const QUIET_NS: u64 = 2 * MS;
/// Time after a scan read in which ordinary I/O may still be slower because of it.
const SETTLE_NS: u64 = 50 * MS;
/// Longest time without a sample of the latency without the scan.
const PROBE_EACH_NS: u64 = 5_000 * MS;
const PROBE_NS: u64 = 250 * MS;
/// Time between two adjustments.
const ADJUST_NS: u64 = 200 * MS;
/// A scan whose reads ended longer ago does not slow ordinary I/O down.
const UNDER_WAY_NS: u64 = 1_000 * MS;
/// Longest rest after one read.
const REST_MAX_NS: u64 = 1_000 * MS;
/// Requests over which latencies are averaged.
const SAMPLES: f64 = 64.0;
/// Requests of each kind before their means are compared.
const SAMPLES_MIN: f64 = 8.0;
/// First, least, and step of the share.
const SHARE_FIRST: f64 = 0.25;
const SHARE_MIN: f64 = 0.05;
const SHARE_STEP: f64 = 0.02;
/// Most steps at once, where ordinary requests are rare.
const STEPS_MAX: f64 = 5.0;
/// Shares above which a scan read neither rests nor waits for a quiet moment, and from which on it
/// starts beside ordinary I/O; and the largest one.
const SHARE_WHOLE: f64 = 1.0;
const SHARE_BESIDE: f64 = 2.0;
const SHARE_MAX: f64 = 3.0;
/// Slowdown from which on the share may exceed the whole: means of latencies say nothing about the
/// slowest requests, and those become much slower then.
const GENEROUS_PCT: u64 = 100;
/// Milliseconds that a scan read takes the disk for, and the bounds of its length.
const CHUNK_MS: f64 = 8.0;
const CHUNK_MIN: u64 = 128 << 10;
const CHUNK_MAX: u64 = 1 << 20;
/// Longest scan read of a leaf without a moving head that has ordinary I/O as well.
const SHARED_EXTENT_MAX: u64 = 256 << 10;
/// Part of the rate that is forgotten with each scan read that shows it.
const RATE_DECAY: f64 = 1.0 / 64.0;
/// Seconds over which the promised rate is averaged.
const OWED_SECONDS: f64 = 10.0;
/// Seconds of the promised rate that are owed before scan reads start beside ordinary I/O.
const OWED_URGENT: f64 = 1.0;

/// What a leaf is doing.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::queue) struct LeafUse {
    /// Ordinary requests, queued or in flight.
    pub(in crate::queue) ordinary: u64,
    /// Other interactive I/Os, queued or in flight: those of transaction groups, and discards.
    pub(in crate::queue) background: u64,
    /// Scan reads in flight.
    pub(in crate::queue) scans: u64,
    /// Most scan reads in flight.
    pub(in crate::queue) scans_max: u64,
}

/// How many scan reads may be in flight, and how long they may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::queue) struct Verdict {
    pub(in crate::queue) depth: u64,
    /// Most bytes of neighbouring reads that are joined, besides the limit of aggregation.
    pub(in crate::queue) len_max: Option<u64>,
    /// When to ask again, if no I/O ends before.
    pub(in crate::queue) again_ns: u64,
}

/// A mean of the last samples.
#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    value: f64,
    count: f64,
}

impl Mean {
    fn add(&mut self, sample: f64) {
        self.count = (self.count + 1.0).min(SAMPLES);
        self.value += (sample - self.value) / self.count;
    }
}

/// The pauses between ordinary requests.
#[derive(Debug, Clone, Copy, Default)]
struct Pauses {
    /// When the last request arrived.
    arrived_ns: Option<u64>,
    mean: Mean,
}

impl Pauses {
    fn arrived(&mut self, now_ns: u64) {
        if let Some(before) = self.arrived_ns.replace(now_ns) {
            self.mean.add((now_ns.abs_diff(before) as f64).min(IDLE_MAX_NS as f64));
        }
    }

    /// Time without ordinary I/O after which the leaf is idle.
    fn idle_ns(&self) -> u64 {
        ((self.mean.value * IDLE_GAPS) as u64).clamp(IDLE_NS, IDLE_MAX_NS)
    }
}

/// The rate at which a disk reads, without the time in which it moves its head.
#[derive(Debug, Clone, Copy, Default)]
struct Rate {
    /// Bytes per millisecond, the best of the last reads; 0 if no read showed it.
    bytes_per_ms: f64,
    /// Where the last scan read ends.
    next_offset: u64,
    /// Length of the scan read in flight, if its time shows the rate: it is alone, and begins
    /// where the one before it ended.
    shown_len: Option<u64>,
}

impl Rate {
    fn started(&mut self, offset: u64, len: u64, is_alone: bool) {
        let is_next = std::mem::replace(&mut self.next_offset, offset + len) == offset;
        self.shown_len = (is_alone && is_next && len >= CHUNK_MIN).then_some(len);
    }

    fn ended(&mut self, took_ns: u64) {
        let Some(len) = self.shown_len.take() else { return };
        let rate = len as f64 * MS as f64 / took_ns.max(1) as f64;
        self.bytes_per_ms = rate.max(self.bytes_per_ms * (1.0 - RATE_DECAY));
    }

    /// Longest scan read.
    fn chunk(&self) -> u64 {
        if self.bytes_per_ms == 0.0 {
            return CHUNK_MAX;
        }
        ((self.bytes_per_ms * CHUNK_MS) as u64).clamp(CHUNK_MIN, CHUNK_MAX)
    }
}

/// The share of one leaf.
#[derive(Debug, Clone)]
pub(in crate::queue) struct Share {
    /// Part of the time, q.
    part: f64,
    /// Latency of ordinary I/O while a scan is under way, and while none disturbs it.
    with: Mean,
    without: Mean,
    is_with_new: bool,
    adjusted_ns: u64,
    /// When `without` got its last sample, or a probe began.
    probed_ns: u64,
    probe_end_ns: u64,
    /// When ordinary I/O was there last.
    ordinary_ns: Option<u64>,
    pauses: Pauses,
    rate: Rate,
    scans: u64,
    scan_ended_ns: Option<u64>,
    rest_end_ns: u64,
    /// Bytes that the scan is owed; negative if it read more than it was promised.
    owed: f64,
    owed_ns: u64,
}

impl Default for Share {
    fn default() -> Self {
        Self {
            part: SHARE_FIRST,
            with: Mean::default(),
            without: Mean::default(),
            is_with_new: false,
            adjusted_ns: 0,
            probed_ns: 0,
            probe_end_ns: 0,
            ordinary_ns: None,
            pauses: Pauses::default(),
            rate: Rate::default(),
            scans: 0,
            scan_ended_ns: None,
            rest_end_ns: 0,
            owed: 0.0,
            owed_ns: 0,
        }
    }
}

impl Share {
    /// An ordinary request ended that had arrived at `since_ns`.
    pub(in crate::queue) fn ordinary_ended(&mut self, now_ns: u64, since_ns: u64) {
        self.ordinary_ns = Some(now_ns);
        self.pauses.arrived(since_ns);
        let latency = now_ns.saturating_sub(since_ns) as f64;
        let is_undisturbed = self.scans == 0 && self.is_undisturbed(since_ns);
        if is_undisturbed {
            self.without.add(latency);
            self.probed_ns = now_ns;
        }
        let is_under_way = self.scans > 0
            || self.scan_ended_ns.is_some_and(|ended| now_ns < ended.saturating_add(UNDER_WAY_NS));
        if is_under_way {
            self.with.add(latency);
            self.is_with_new = true;
        }
    }

    /// Whether no scan read slows down a request that arrived at `since_ns`, when the scan rested
    /// or was not under way. Other requests are no measure: where the scan waits for a quiet moment
    /// the leaf is busier than usual.
    fn is_undisturbed(&self, since_ns: u64) -> bool {
        let Some(ended_ns) = self.scan_ended_ns else { return true };
        let rest_end_ns = self.rest_end_ns.max(self.probe_end_ns);
        since_ns >= ended_ns.saturating_add(SETTLE_NS)
            && (since_ns < rest_end_ns || since_ns >= ended_ns.saturating_add(UNDER_WAY_NS))
    }

    /// Longest read of a scan that shares the leaf.
    pub(in crate::queue) fn chunk(&self) -> u64 {
        self.rate.chunk()
    }

    /// Longest extent that a scan reads at once, besides the limit of aggregation.
    pub(in crate::queue) fn extent_max(&self, now_ns: u64, is_rotational: bool) -> u64 {
        if self.quiet_ns(now_ns) >= self.pauses.idle_ns() {
            u64::MAX
        } else if is_rotational {
            self.chunk()
        } else {
            SHARED_EXTENT_MAX
        }
    }

    /// Time since ordinary I/O was there last.
    fn quiet_ns(&self, now_ns: u64) -> u64 {
        self.ordinary_ns.map_or(u64::MAX, |last| now_ns.saturating_sub(last))
    }

    /// A scan read of `len` bytes starts.
    pub(in crate::queue) fn scan_started(&mut self, offset: u64, len: u64) {
        self.rate.started(offset, len, self.scans == 0);
        self.scans += 1;
        self.owed -= len as f64;
    }

    /// A scan read ended that had started at `since_ns`.
    pub(in crate::queue) fn scan_ended(&mut self, now_ns: u64, since_ns: u64) {
        self.scans = self.scans.saturating_sub(1);
        self.scan_ended_ns = Some(now_ns);
        let took_ns = now_ns.saturating_sub(since_ns);
        self.rate.ended(took_ns);
        let rest =
            (took_ns as f64 * (1.0 / self.part.min(SHARE_WHOLE) - 1.0)).min(REST_MAX_NS as f64);
        self.rest_end_ns = now_ns.saturating_add(rest as u64);
    }

    /// Returns how many scan reads may be in flight now. To be asked while scan reads are queued.
    pub(in crate::queue) fn verdict(&mut self, now_ns: u64, leaf: LeafUse) -> Verdict {
        if leaf.ordinary > 0 {
            self.ordinary_ns = Some(now_ns);
        }
        if now_ns.saturating_sub(self.owed_ns) >= UNDER_WAY_NS {
            // Another scan, or it had another throttle: what it did then is no measure.
            (self.with, self.owed) = (Mean::default(), 0.0);
        }
        self.adjust(now_ns);
        let (owed_seconds, look_ns) = (self.owe(now_ns), now_ns + LOOK_NS);
        let quiet_ns = self.quiet_ns(now_ns);
        if quiet_ns >= self.pauses.idle_ns() && leaf.background == 0 {
            self.probed_ns = now_ns;
            self.rest_end_ns = now_ns;
            return Verdict { depth: leaf.scans_max, len_max: None, again_ns: look_ns };
        }
        let len_max = Some(self.chunk());
        if leaf.scans > 0 || owed_seconds >= OWED_URGENT {
            return Verdict { depth: 1, len_max, again_ns: look_ns };
        }
        let mut start_ns = now_ns;
        if leaf.ordinary > 0 && self.part < SHARE_BESIDE {
            start_ns = look_ns;
        } else if quiet_ns < QUIET_NS && self.part <= SHARE_WHOLE {
            start_ns = now_ns + (QUIET_NS - quiet_ns);
        }
        if owed_seconds <= 0.0 {
            start_ns = start_ns.max(self.rest_end_ns).max(self.probe(now_ns));
        }
        Verdict { depth: u64::from(start_ns <= now_ns), len_max, again_ns: start_ns.min(look_ns) }
    }

    /// Returns when the probe in progress ends; begins one if it is time.
    fn probe(&mut self, now_ns: u64) -> u64 {
        if now_ns.saturating_sub(self.probed_ns) >= PROBE_EACH_NS {
            self.probed_ns = now_ns;
            self.probe_end_ns = now_ns + PROBE_NS;
        }
        self.probe_end_ns
    }

    /// Returns the seconds of the promised rate that the scan is owed.
    fn owe(&mut self, now_ns: u64) -> f64 {
        let rate = tunables::SCRUB_MIN_RATE.get() as f64;
        // Time in which no scan read was queued counts little.
        let passed = now_ns.saturating_sub(std::mem::replace(&mut self.owed_ns, now_ns));
        let passed = passed.min(2 * LOOK_NS) as f64 / 1e9;
        let most = rate * OWED_SECONDS;
        self.owed = (self.owed + rate * passed).clamp(-most, most);
        if rate == 0.0 || is_on(Bug::PromisedRateForgotten) { 0.0 } else { self.owed / rate }
    }

    /// Adapts the share.
    fn adjust(&mut self, now_ns: u64) {
        let is_known = self.with.count >= SAMPLES_MIN && self.without.count >= SAMPLES_MIN;
        if !is_known || !self.is_with_new || now_ns < self.adjusted_ns.saturating_add(ADJUST_NS) {
            return;
        }
        let passed_ns = now_ns - std::mem::replace(&mut self.adjusted_ns, now_ns);
        self.is_with_new = false;
        let allowed = 1.0 + tunables::SCRUB_SLOWDOWN_PCT.get() as f64 / 100.0;
        let excess = self.with.value / self.without.value.max(1.0) - allowed;
        let part = if excess > 0.0 && !is_on(Bug::SlowdownUnbounded) {
            self.part * (1.0 - excess).max(0.5)
        } else {
            self.part + SHARE_STEP * (passed_ns as f64 / ADJUST_NS as f64).min(STEPS_MAX)
        };
        let is_generous = tunables::SCRUB_SLOWDOWN_PCT.get() >= GENEROUS_PCT;
        let most = if is_generous { SHARE_MAX } else { SHARE_WHOLE };
        self.part = part.clamp(SHARE_MIN, most);
    }
}
