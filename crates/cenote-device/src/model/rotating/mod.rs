//! A rotating disk: one head, exact angles, tags, a track buffer, a write cache.
//!
//! ```text
//!   command -> waiting -> held (tags) -> the head takes one at a time -> done
//!   write, cache on -> over the link into the cache -> done; the head writes it later
//! ```
//!
//! Service of a command: overhead + seek (+ settle for writes) + wait for its sector + transfer.
//! Exceptions: a command that directly follows the last byte needs its transfer only, and a read up
//! to 64 KiB ahead of the head passes over the gap (track buffer). A write ahead on the track that
//! the drive had in time, because it was in the cache or held beside others, also passes over its
//! gap; one that arrives later has missed its sector, and waits for a revolution.
//!
//! Of n held commands the drive compares the oldest and `skill` x (n - 1) others, chosen at random,
//! and takes the one with the least positioning time. The oldest goes first once it is `starved_ns`
//! old. Commands go before the cache, except that a flush waits only for commands that are older,
//! and that a write without room goes first at that age.
//!
//! Sources: spec 09 §2.1. The angle of a byte follows from the revolutions before it, where the
//! spec divides the offset by the rate at its zone: both are equally distributed, but the quotient
//! is not continuous, so gaps inside a track would be wrong.

mod cache;
mod geometry;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use cenote_rt::Rng;

use cache::{Dirty, WriteCache};
use geometry::{Geometry, Place, fraction};

use super::{Command, Completion, DiskModel, ModelStats, Op, rate_of_mb, whole_ns};

/// How far ahead of the head a read is served from the track buffer.
const TRACK_BUFFER_BYTES: u64 = 64 << 10;

/// Figures of a rotating disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotatingParams {
    /// Capacity in bytes: offset 0 is outermost, the last byte innermost.
    pub capacity: u64,
    /// Revolutions per minute.
    pub rpm: u64,
    /// Seek times of reads: one track, average, full stroke.
    pub seek_ms: [f64; 3],
    /// What a seek takes longer before a write.
    pub settle_ms: f64,
    /// Sustained rates of the outermost and the innermost zone, 10^6 bytes/s.
    pub rate_mb: [f64; 2],
    /// From the command to the start of the seek.
    pub overhead_ms: f64,
    /// Commands that the drive holds.
    pub tags: usize,
    /// Part of the held commands that the drive compares: 0 in order of arrival, 1 ideal.
    pub skill: f64,
    /// Age at which the oldest command goes first.
    pub starved_ns: u64,
    /// Rate of the link to the host, 10^6 bytes/s.
    pub link_mb: f64,
    /// Bytes of the write cache.
    pub cache_bytes: u64,
    /// Whether the write cache is on.
    pub is_cache_on: bool,
    /// Factor by which offsets are spread over the disk: a device of a part of the capacity then
    /// seeks like the whole disk (spec 09 §1.7, rule S5).
    pub stretch: u64,
}

/// A command in the drive.
#[derive(Debug, Clone, Copy)]
struct Held {
    id: u64,
    place: Place,
    len: u64,
    is_write: bool,
    admitted_ns: u64,
}

/// What the head is doing.
#[derive(Debug, Clone, Copy)]
enum Work {
    /// A command, and its index among the held ones before it was taken.
    Command(Held, usize),
    Destage(Dirty),
}

/// Work of the head.
#[derive(Debug, Clone, Copy)]
struct Active {
    work: Work,
    begun_ns: u64,
    end_ns: u64,
    position_ns: u64,
    /// The head before it.
    head: Place,
    /// Whether it directly followed other work: commands that arrive at the same moment, because
    /// the other work ended, are compared with it.
    is_provisional: bool,
}

/// Time from now until the head is at a place.
#[derive(Debug, Clone, Copy)]
struct Positioning {
    total_ns: f64,
    /// Part of it before the wait for the sector; 0 where nothing is sought.
    lead_ns: f64,
}

impl Positioning {
    /// The head passes over bytes.
    fn pass(bytes: u64, rate: f64) -> Self {
        Self { total_ns: bytes as f64 / rate, lead_ns: 0.0 }
    }
}

/// A rotating disk.
#[derive(Debug)]
pub struct Rotating {
    params: RotatingParams,
    geometry: Geometry,
    rng: Rng,
    /// Commands that the drive compares, oldest first.
    held: Vec<Held>,
    /// Commands for which no tag is free.
    waiting: VecDeque<Held>,
    /// The byte behind the last one that was transferred.
    head: Place,
    active: Option<Active>,
    cache: WriteCache,
    /// Completions of commands that need no head, in order.
    replies: VecDeque<Completion>,
    link_free_ns: u64,
    /// Indices of the commands that are compared.
    sample: Vec<usize>,
    stats: ModelStats,
}

impl Rotating {
    /// Returns an idle disk with its head outermost. The seed decides which held commands are
    /// compared.
    #[must_use]
    pub fn new(params: RotatingParams, seed: u64) -> Self {
        let geometry = Geometry::new(&params);
        Self {
            params,
            head: geometry.place(0),
            geometry,
            rng: Rng::seeded(seed),
            held: Vec::new(),
            waiting: VecDeque::new(),
            active: None,
            cache: WriteCache::new(&params),
            replies: VecDeque::new(),
            link_free_ns: 0,
            sample: Vec::new(),
            stats: ModelStats::default(),
        }
    }

    fn overhead_ns(&self) -> f64 {
        self.params.overhead_ms * 1e6
    }

    /// Time from `now_ns` until the head is at `place`. `is_early`: the drive had the command
    /// before the one that it has just done ended.
    fn positioning(
        &self,
        now_ns: u64,
        place: &Place,
        is_write: bool,
        is_early: bool,
    ) -> Positioning {
        let (head, track_bytes) = (&self.head, place.rate * self.geometry.revolution_ns);
        let gap = place.offset.checked_sub(head.offset);
        match gap {
            Some(0) => return Positioning::pass(0, place.rate),
            Some(gap) if !is_write && gap < TRACK_BUFFER_BYTES => {
                return Positioning::pass(gap, place.rate);
            }
            _ => {}
        }
        let seek = self.geometry.seek(head, place);
        let settle = if is_write && seek > 0.0 { self.params.settle_ms * 1e6 } else { 0.0 };
        let lead_ns = self.overhead_ns() + seek + settle;
        let revolution_ns = self.geometry.revolution_ns;
        let ahead = place.angle - self.geometry.phase(now_ns) - lead_ns / revolution_ns;
        let total_ns = lead_ns + fraction(ahead) * revolution_ns;
        match gap {
            Some(gap) if is_write && is_early && (gap as f64) < track_bytes => {
                let pass = Positioning::pass(gap, place.rate);
                if pass.total_ns < total_ns { pass } else { Positioning { total_ns, lead_ns } }
            }
            _ => Positioning { total_ns, lead_ns },
        }
    }

    /// Sends a completion over the link.
    fn reply(&mut self, now_ns: u64, id: u64, bytes: u64) {
        let transfer_ns = whole_ns(bytes as f64 / rate_of_mb(self.params.link_mb));
        let start_ns = self.link_free_ns.max(now_ns + whole_ns(self.overhead_ns()));
        self.link_free_ns = start_ns + transfer_ns;
        self.replies.push_back(Completion { id, at_ns: self.link_free_ns });
    }

    /// Takes back work that began at this moment, so that a command that arrives now is compared
    /// with it. Returns whether it did.
    fn reconsider(&mut self, now_ns: u64) -> bool {
        let is_provisional =
            |active: &mut Active| active.is_provisional && active.begun_ns == now_ns;
        let Some(active) = self.active.take_if(is_provisional) else { return false };
        self.stats.busy_ns -= active.end_ns - active.begun_ns;
        self.stats.positioning_ns -= active.position_ns;
        self.head = active.head;
        match active.work {
            Work::Command(held, index) => {
                self.stats.medium_bytes -= if held.is_write { held.len } else { 0 };
                self.held.insert(index, held);
            }
            Work::Destage(entry) => {
                self.stats.medium_bytes -= entry.len;
                self.cache.put_back(entry);
            }
        }
        true
    }

    /// Index of the held command that goes next, and its positioning time.
    fn choose(&mut self, now_ns: u64) -> (usize, f64) {
        let cost = |held: &Held| {
            let is_early = held.admitted_ns < now_ns;
            self.positioning(now_ns, &held.place, held.is_write, is_early).total_ns
        };
        let mut best = (0, cost(&self.held[0]));
        let others = self.held.len() - 1;
        if others == 0 || now_ns - self.held[0].admitted_ns >= self.params.starved_ns {
            return best;
        }
        let compared = others as f64 * self.params.skill;
        let part = (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let count = compared as usize + usize::from(part < fraction(compared));
        self.sample.clear();
        self.sample.extend(1..=others);
        for drawn in 0..count.min(others) {
            let other = drawn + self.rng.below((others - drawn) as u64) as usize;
            self.sample.swap(drawn, other);
            let index = self.sample[drawn];
            let found = self.held[index];
            let is_early = found.admitted_ns < now_ns;
            let cost = self.positioning(now_ns, &found.place, found.is_write, is_early).total_ns;
            if cost < best.1 {
                best = (index, cost);
            }
        }
        best
    }

    /// Gives the head its next work, if it is idle.
    fn start(&mut self, now_ns: u64, is_provisional: bool) {
        if self.active.is_some() {
            return;
        }
        let free = self.params.tags.saturating_sub(self.held.len()).min(self.waiting.len());
        self.held.extend(self.waiting.drain(..free));
        let is_starved = |held: &Held| now_ns - held.admitted_ns >= self.params.starved_ns;
        let oldest_ns = self.held.first().map_or(u64::MAX, |held| held.admitted_ns);
        let is_due = self.cache.flush_ns().is_some_and(|flush_ns| flush_ns < oldest_ns)
            || self.cache.waiting.front().is_some_and(is_starved);
        if self.held.is_empty() || is_due {
            // The cache is not borrowed while positions are computed.
            let mut cache = std::mem::take(&mut self.cache);
            let position = |entry: &Dirty| self.positioning(now_ns, &entry.place, true, true);
            let taken = cache.take_nearest(self.head.offset, position);
            self.cache = cache;
            if let Some((entry, position_ns)) = taken {
                self.stats.medium_bytes += entry.len;
                return self.begin(now_ns, Work::Destage(entry), position_ns, is_provisional);
            }
        }
        if self.held.is_empty() {
            return;
        }
        let (index, position_ns) = self.choose(now_ns);
        let held = self.held.remove(index);
        self.stats.medium_bytes += if held.is_write { held.len } else { 0 };
        self.begin(now_ns, Work::Command(held, index), position_ns, is_provisional);
    }

    fn begin(&mut self, begun_ns: u64, work: Work, position_ns: f64, is_provisional: bool) {
        let (place, len) = match &work {
            Work::Command(held, _) => (&held.place, held.len),
            Work::Destage(entry) => (&entry.place, entry.len),
        };
        let service_ns = whole_ns(position_ns + len as f64 / place.rate);
        let (head, next) = (self.head, self.geometry.place(place.offset + len));
        let end_ns = begun_ns + service_ns;
        let position_ns = whole_ns(position_ns);
        self.head = next;
        self.stats.busy_ns += service_ns;
        self.stats.positioning_ns += position_ns;
        self.active = Some(Active { work, begun_ns, end_ns, position_ns, head, is_provisional });
    }

    /// Ends what the head was doing.
    fn end(&mut self, work: Work, now_ns: u64, done: &mut Vec<Completion>) {
        match work {
            Work::Command(held, _) => done.push(Completion { id: held.id, at_ns: now_ns }),
            Work::Destage(entry) => {
                self.cache.written(entry.len, |id| done.push(Completion { id, at_ns: now_ns }));
                while self.cache.waiting.front().is_some_and(|held| self.cache.has_room(held.len)) {
                    let Some(held) = self.cache.waiting.pop_front() else { break };
                    self.cache.add(held.place, held.len);
                    self.reply(now_ns, held.id, held.len);
                }
            }
        }
    }
}

impl DiskModel for Rotating {
    fn admit(&mut self, now_ns: u64, command: Command) {
        let Command { id, op, offset, len } = command;
        let is_cached = self.params.is_cache_on;
        let is_write = op == Op::Write;
        let held =
            Held { id, place: self.geometry.place(offset), len, is_write, admitted_ns: now_ns };
        let competes = op == Op::Read || op == Op::Write && !is_cached;
        let is_reconsidered = competes && self.reconsider(now_ns);
        match op {
            Op::Read if is_cached && self.cache.has(offset, len) => self.reply(now_ns, id, len),
            Op::Write if is_cached && self.cache.waiting.is_empty() && self.cache.has_room(len) => {
                self.cache.add(held.place, len);
                self.reply(now_ns, id, len);
            }
            Op::Write if is_cached => self.cache.waiting.push_back(held),
            Op::Read | Op::Write => self.waiting.push_back(held),
            Op::Flush if self.cache.flush(id, now_ns) => {}
            // A disk has nothing to discard, and an empty cache nothing to write.
            Op::Flush | Op::Discard => self.reply(now_ns, id, 0),
        }
        self.start(now_ns, is_reconsidered);
    }

    fn next_event(&self) -> Option<u64> {
        let is_awaited = |active: &&Active| {
            let has_commands = !self.held.is_empty() || !self.waiting.is_empty();
            matches!(active.work, Work::Command(..)) || has_commands || self.cache.is_awaited()
        };
        let active = self.active.as_ref().filter(is_awaited).map(|active| active.end_ns);
        self.replies.front().map(|reply| reply.at_ns).into_iter().chain(active).min()
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<Completion>) {
        let before = done.len();
        loop {
            let reply_ns = self.replies.front().map_or(u64::MAX, |reply| reply.at_ns);
            let work_ns = self.active.map_or(u64::MAX, |active| active.end_ns);
            let next_ns = reply_ns.min(work_ns);
            if next_ns > now_ns || next_ns == u64::MAX {
                break;
            }
            if reply_ns <= work_ns {
                done.extend(self.replies.pop_front());
            } else if let Some(active) = self.active.take() {
                self.end(active.work, active.end_ns, done);
                self.start(active.end_ns, true);
            }
        }
        self.stats.completed += (done.len() - before) as u64;
    }

    fn stats(&self) -> ModelStats {
        self.stats
    }

    fn reset(&mut self) {
        let rng = self.rng.clone();
        *self = Self { rng, stats: self.stats, ..Self::new(self.params, 0) };
    }

    fn is_rotational(&self) -> bool {
        true
    }

    fn takes_discard(&self) -> bool {
        false
    }
}
