//! Flash: an SSD as lanes behind a link, with a buffer in front.
//!
//! ```text
//!   read    overhead -> its lanes (address hash): read_ns + transfer each -> link
//!   write   overhead -> link -> buffer                                     -> answered
//!                               buffer -> free lanes in rotation: program_ns a program
//! ```
//!
//! The device programs `program_mb` at most, of which garbage collection takes its share
//! ([`amplification`]): each written byte adds as many bytes to program as its amplification says.
//! A write that finds the buffer full waits until enough was programmed. A read waits while its
//! lane programs, which makes the tail of read latencies. A flush completes when everything that
//! was in the buffer is programmed.
//!
//! The link also takes `command_ns` for each command, a part of the overhead that is not done for
//! several commands at once: it limits small reads at great depths.
//!
//! Sources: spec 09 §2.2.

mod wear;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use wear::Wear;

pub use wear::amplification;

use super::{Command, Completion, DiskModel, ModelStats, Op, rate_of_mb, whole_ns};

/// Figures of an SSD.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlashParams {
    /// Dies that work in parallel.
    pub lanes: usize,
    /// Bytes of a page: what a lane reads at once.
    pub page_bytes: u64,
    /// Pages that one program writes.
    pub planes: u64,
    /// Time to read a page.
    pub read_ns: u64,
    /// Time to program.
    pub program_ns: u64,
    /// Rate of the link to the host, 10^6 bytes/s.
    pub link_mb: f64,
    /// Spare space, in parts of the user's.
    pub spare: f64,
    /// Rate of all programs, 10^6 bytes/s.
    pub program_mb: f64,
    /// Time of a command besides medium and transfer.
    pub overhead_ns: u64,
    /// Part of it during which the link is busy.
    pub command_ns: u64,
    /// Bytes of the write buffer.
    pub buffer_bytes: u64,
    /// Bytes of an erase unit.
    pub erase_bytes: u64,
}

/// A command that reaches the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AtLink {
    at_ns: u64,
    id: u64,
    len: u64,
    /// Earliest completion.
    ready_ns: u64,
}

/// A flush: complete when `mark` bytes were programmed in all.
#[derive(Debug)]
struct Flush {
    id: u64,
    mark: f64,
}

/// An SSD.
#[derive(Debug)]
pub struct Flash {
    params: FlashParams,
    size: u64,
    wear: Wear,
    /// When each lane has done what was given to it.
    lanes: Vec<u64>,
    next_lane: usize,
    arrivals: BinaryHeap<Reverse<AtLink>>,
    link_free_ns: u64,
    replies: BinaryHeap<Reverse<(u64, u64)>>,
    buffer: Buffer,
    waiting: VecDeque<Command>,
    flushes: VecDeque<Flush>,
    stats: ModelStats,
}

/// The write buffer, and programs that empty it.
#[derive(Debug, Default)]
struct Buffer {
    /// Written bytes in it.
    bytes: f64,
    /// Bytes to program until it is empty.
    debt: f64,
    /// Bytes ever to be programmed, and programmed.
    total: f64,
    /// When the next program may begin.
    next_ns: f64,
    /// When the last program ends.
    end_ns: u64,
}

impl Flash {
    /// Returns an idle SSD of `size` bytes that has never been written.
    #[must_use]
    pub fn new(params: FlashParams, size: u64) -> Self {
        let wear = Wear::new(size, params.spare, params.erase_bytes, false);
        Self {
            params,
            size,
            wear,
            lanes: vec![0; params.lanes],
            next_lane: 0,
            arrivals: BinaryHeap::new(),
            link_free_ns: 0,
            replies: BinaryHeap::new(),
            buffer: Buffer::default(),
            waiting: VecDeque::new(),
            flushes: VecDeque::new(),
            stats: ModelStats::default(),
        }
    }

    /// Returns an idle SSD whose whole space has been written: random writes have their steady
    /// rate from the first one on.
    #[must_use]
    pub fn preconditioned(params: FlashParams, size: u64) -> Self {
        let wear = Wear::new(size, params.spare, params.erase_bytes, true);
        Self { wear, ..Self::new(params, size) }
    }

    /// Bytes of a program.
    fn unit(&self) -> f64 {
        (self.params.page_bytes * self.params.planes) as f64
    }

    /// Time from the beginning of one program to that of the next.
    fn pace_ns(&self) -> f64 {
        self.unit() / rate_of_mb(self.params.program_mb)
    }

    /// Gives the pages of a read to their lanes, and sends it to the link.
    fn read(&mut self, now_ns: u64, command: &Command) {
        let FlashParams { page_bytes, read_ns, overhead_ns, command_ns, link_mb, .. } = self.params;
        let begin_ns = now_ns + overhead_ns.saturating_sub(command_ns);
        let end = command.offset + command.len;
        let (mut first_ns, mut ready_ns, mut at) = (u64::MAX, 0, command.offset);
        while at < end {
            let page = at / page_bytes;
            let part = end.min((page + 1) * page_bytes) - at;
            let transfer_ns = whole_ns(part as f64 / rate_of_mb(link_mb));
            let lane = (mix(page) % self.lanes.len() as u64) as usize;
            let start_ns = self.lanes[lane].max(begin_ns);
            self.lanes[lane] = start_ns + read_ns + transfer_ns;
            self.stats.busy_ns += read_ns + transfer_ns;
            first_ns = first_ns.min(start_ns + read_ns);
            ready_ns = ready_ns.max(self.lanes[lane]);
            at += part;
        }
        let at_ns = first_ns.min(ready_ns.max(begin_ns));
        self.arrivals.push(Reverse(AtLink { at_ns, id: command.id, len: command.len, ready_ns }));
    }

    /// Whether the buffer has room for `len` bytes; an empty one takes any write.
    fn has_room(&self, len: u64) -> bool {
        self.buffer.bytes <= 0.0
            || self.buffer.bytes + len as f64 <= self.params.buffer_bytes as f64
    }

    /// Takes a write into the buffer, and sends it to the link.
    fn accept(&mut self, now_ns: u64, command: &Command) {
        let bytes = command.len as f64 * self.wear.write(command.offset, command.len);
        if self.buffer.debt <= 0.0 {
            self.buffer.next_ns = self.buffer.next_ns.max(now_ns as f64);
        }
        self.buffer.bytes += command.len as f64;
        self.buffer.debt += bytes;
        self.buffer.total += bytes;
        self.send(now_ns, command, command.len);
    }

    /// Sends a command to the link without use of the medium.
    fn send(&mut self, now_ns: u64, command: &Command, len: u64) {
        let at_ns = now_ns + self.params.overhead_ns.saturating_sub(self.params.command_ns);
        self.arrivals.push(Reverse(AtLink { at_ns, id: command.id, len, ready_ns: 0 }));
    }

    /// Begins one program, at `buffer.next_ns` or when a lane is free.
    fn program(&mut self) {
        let at_ns = whole_ns(self.buffer.next_ns);
        let count = self.lanes.len();
        let in_rotation = (0..count).map(|step| (self.next_lane + step) % count);
        let free = in_rotation.clone().find(|lane| self.lanes[*lane] <= at_ns);
        let lane = free.or_else(|| in_rotation.min_by_key(|lane| self.lanes[*lane])).unwrap_or(0);
        self.next_lane = (lane + 1) % count;
        let start_ns = self.lanes[lane].max(at_ns);
        self.lanes[lane] = start_ns + self.params.program_ns;
        self.stats.busy_ns += self.params.program_ns;
        let bytes = self.unit().min(self.buffer.debt);
        let buffer = &mut self.buffer;
        buffer.end_ns = buffer.end_ns.max(self.lanes[lane]);
        buffer.bytes -= buffer.bytes * (bytes / buffer.debt);
        buffer.debt -= bytes;
        if buffer.debt < 1.0 {
            (buffer.debt, buffer.bytes) = (0.0, 0.0);
        }
        self.stats.medium_bytes += bytes as u64;
        self.buffer.next_ns = (self.buffer.next_ns + self.pace_ns()).max(start_ns as f64);
    }

    /// A time before which `bytes` more bytes are not programmed.
    fn programmed_ns(&self, bytes: f64) -> u64 {
        let programs = ((bytes / self.unit()).ceil() - 1.0).max(0.0);
        whole_ns(self.buffer.next_ns + programs * self.pace_ns())
    }

    /// Bytes to program until the first waiting write has room.
    fn bytes_until_room(&self) -> Option<f64> {
        let excess =
            self.buffer.bytes + self.waiting.front()?.len as f64 - self.params.buffer_bytes as f64;
        Some(excess.clamp(0.0, self.buffer.bytes) * self.buffer.debt / self.buffer.bytes.max(1.0))
    }

    /// Bytes to program until the first flush is complete.
    fn bytes_until_flushed(&self) -> Option<f64> {
        let programmed = self.buffer.total - self.buffer.debt;
        Some(self.flushes.front()?.mark - programmed)
    }

    /// Programs until `now_ns`, and takes writes and ends flushes that waited for it.
    fn drain(&mut self, now_ns: u64) {
        while self.buffer.debt > 0.0 && whole_ns(self.buffer.next_ns) <= now_ns {
            let at_ns = whole_ns(self.buffer.next_ns);
            self.program();
            while self.waiting.front().is_some_and(|write| self.has_room(write.len)) {
                let Some(write) = self.waiting.pop_front() else { break };
                self.accept(at_ns, &write);
            }
            while self.bytes_until_flushed().is_some_and(|bytes| bytes <= 1.0) {
                let Some(flush) = self.flushes.pop_front() else { break };
                self.replies.push(Reverse((self.buffer.end_ns, flush.id)));
            }
        }
    }

    /// Moves commands over the link that reach it until `now_ns`.
    fn transfer(&mut self, now_ns: u64) {
        while let Some(Reverse(next)) = self.arrivals.peek().copied()
            && next.at_ns <= now_ns
        {
            self.arrivals.pop();
            let transfer_ns = next.len as f64 / rate_of_mb(self.params.link_mb);
            let cost_ns = self.params.command_ns + whole_ns(transfer_ns);
            self.link_free_ns = self.link_free_ns.max(next.at_ns) + cost_ns;
            self.replies.push(Reverse((self.link_free_ns.max(next.ready_ns), next.id)));
        }
    }
}

/// Mixes the bits of a page number.
fn mix(word: u64) -> u64 {
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl DiskModel for Flash {
    fn admit(&mut self, now_ns: u64, command: Command) {
        match command.op {
            Op::Read => self.read(now_ns, &command),
            Op::Write if self.waiting.is_empty() && self.has_room(command.len) => {
                self.accept(now_ns, &command);
            }
            Op::Write => self.waiting.push_back(command),
            Op::Discard => {
                self.wear.discard(command.offset, command.len);
                self.send(now_ns, &command, 0);
            }
            Op::Flush if self.buffer.debt > 0.0 => {
                self.flushes.push_back(Flush { id: command.id, mark: self.buffer.total });
            }
            Op::Flush => {
                let at_ns = (now_ns + self.params.overhead_ns).max(self.buffer.end_ns);
                self.replies.push(Reverse((at_ns, command.id)));
            }
        }
    }

    fn next_event(&self) -> Option<u64> {
        let waits = [self.bytes_until_room(), self.bytes_until_flushed()];
        let drain = waits.into_iter().flatten().map(|bytes| self.programmed_ns(bytes));
        let arrival = self.arrivals.peek().map(|Reverse(next)| next.at_ns);
        let reply = self.replies.peek().map(|Reverse((at_ns, _))| *at_ns);
        drain.chain(arrival).chain(reply).min()
    }

    fn advance(&mut self, now_ns: u64, done: &mut Vec<Completion>) {
        self.drain(now_ns);
        self.transfer(now_ns);
        while let Some(Reverse((at_ns, id))) = self.replies.peek().copied()
            && at_ns <= now_ns
        {
            self.replies.pop();
            self.stats.completed += 1;
            done.push(Completion { id, at_ns });
        }
    }

    fn stats(&self) -> ModelStats {
        ModelStats { busy_ns: self.stats.busy_ns / self.lanes.len() as u64, ..self.stats }
    }

    fn reset(&mut self) {
        let empty = Wear::new(0, self.params.spare, self.params.erase_bytes, false);
        let wear = std::mem::replace(&mut self.wear, empty);
        *self = Self { wear, stats: self.stats, ..Self::new(self.params, self.size) };
    }
}
