//! Which requests for an object belong together, and what they will ask for next.
//!
//! ```text
//!   start ── width ── next
//!   sequential   |####|####|####|....>        the next one begins where the last has ended
//!   strided      |##      ##      ##      ..> or as far from the last as that from the one before
//! ```
//!
//! A request that fits no stream begins one. The second of a sequence, or the third of equal steps,
//! is its first hit; with every hit a stream reads further ahead: twice as far up to a least
//! distance, then an eighth more, but only if the reader still had to wait, up to a greatest. A
//! request out of the order of its stream, as parallel readers make them, is part of it once the
//! stream is long against the gap, and as long as it has few holes: who reads at random meets
//! streams too, and must not make them longer.
//!
//! Blocks are numbers here, and nothing is read: what is wished for is told as [`Wish`], and how
//! far it was followed is told back.

use std::ops::Range;
use std::time::Duration;

/// Hits after which a stream takes requests out of order.
const ESTABLISHED: u64 = 3;
/// A gap may be as long as the stream shifted by this (OpenZFS: `zfetch_hole_shift`).
const HOLE_SHIFT: u32 = 2;
/// In this many parts of a stream one may be holes.
const HOLE_PARTS: u64 = 4;
/// Streams are forgotten after so many times the time after which they make room.
const FORGET: u32 = 2;
/// Requests of equal steps that are wished for at a time, at most.
const STEPS_MAX: u64 = 64;
/// Objects of so few blocks are not worth it.
const BLOCKS_MIN: u64 = 3;

/// The bounds, from the tunables.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) streams: usize,
    pub(super) distance_min: u64,
    pub(super) distance_max: u64,
    pub(super) indirect_max: u64,
    pub(super) reorder: u64,
    pub(super) reap: Duration,
}

/// An object, as far as it matters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// Bytes of a block.
    pub(super) block_size: u64,
    /// Its blocks.
    pub(super) blocks: u64,
}

/// What a request is part of.
#[derive(Debug, Clone)]
struct Stream {
    /// The first block that was asked for.
    first: u64,
    /// The blocks of the last request.
    start: u64,
    next: u64,
    /// Blocks that were asked for since the first.
    asked: u64,
    /// From the start of a request to that of the next; `None` if the next follows.
    step: Option<i64>,
    /// Requests that came as expected.
    hits: u64,
    /// Bytes that are read ahead.
    distance: u64,
    /// Read ahead up to here: a block, or with steps the number of a hit.
    planned: u64,
    /// Indirect blocks are read ahead up to above this block.
    planned_above: u64,
    used: Duration,
}

/// What should be read ahead now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    stream: usize,
    /// Data blocks, in the order of need.
    pub(super) data: Vec<Range<u64>>,
    /// Blocks of which those above are wanted.
    pub(super) above: Range<u64>,
}

/// The streams of an object.
#[derive(Debug, Clone, Default)]
pub(super) struct Streams {
    streams: Vec<Stream>,
    /// Where the last request that fitted none began.
    last: Option<u64>,
    used: Duration,
}

impl Streams {
    /// When something was asked for last.
    pub(super) fn used(&self) -> Duration {
        self.used
    }

    /// Takes note of a request, for which the reader has to wait or not.
    pub(super) fn note(
        &mut self,
        blocks: Range<u64>,
        waits: bool,
        object: Extent,
        bounds: &Bounds,
        now: Duration,
    ) -> Option<Wish> {
        self.used = now;
        if object.blocks < BLOCKS_MIN || blocks.is_empty() {
            return None;
        }
        let reorder = bounds.reorder / object.block_size.max(1);
        let found = self.streams.iter().enumerate().find_map(|(index, stream)| {
            stream.place_of(&blocks, reorder).map(|place| (index, place))
        });
        let Some((index, place)) = found else {
            self.begin(blocks, object, bounds, now);
            return None;
        };
        let stream = self.streams.get_mut(index)?;
        stream.used = now;
        match place {
            Place::Same => return None,
            Place::Late => {
                let all = stream.asked.saturating_add(blocks.end - blocks.start);
                stream.asked = all.min(stream.next - stream.first);
                return None;
            }
            Place::Follows | Place::Step => {}
        }
        stream.advance(&blocks, place);
        stream.grow(waits, bounds);
        if stream.next >= object.blocks && stream.step.is_none() {
            // Nothing is left to wish for, and who begins again begins a new one.
            self.streams.remove(index);
            return None;
        }
        Some(stream.wish(index, object, bounds))
    }

    /// What of a wish was followed: data up to before the range `data` of it and, of that, block
    /// `at`; blocks above up to before the one above `above`.
    pub(super) fn followed(&mut self, wish: &Wish, at: Option<(usize, u64)>, above: u64) {
        let Some(stream) = self.streams.get_mut(wish.stream) else { return };
        stream.planned_above = stream.planned_above.max(above);
        match (stream.step, at) {
            (None, Some((_, block))) => stream.planned = stream.planned.max(block),
            (None, None) => {
                let end = wish.data.last().map_or(0, |range| range.end);
                stream.planned = stream.planned.max(end);
            }
            (Some(_), at) => {
                let count = at.map_or(wish.data.len(), |(index, _)| index);
                stream.planned = stream.planned.max(stream.hits) + count as u64;
            }
        }
    }

    fn begin(&mut self, blocks: Range<u64>, object: Extent, bounds: &Bounds, now: Duration) {
        let step = self.last.map(|last| blocks.start.wrapping_sub(last).cast_signed());
        self.last = Some(blocks.start);
        let is_old =
            |stream: &Stream, times| now.saturating_sub(stream.used) >= bounds.reap * times;
        self.streams.retain(|stream| !is_old(stream, FORGET));
        while self.streams.len() >= bounds.streams {
            // One that never came to anything, else one that nobody goes on with.
            let oldest = |wanted: &dyn Fn(&Stream) -> bool| {
                let all = self.streams.iter().enumerate().filter(|(_, stream)| wanted(stream));
                all.min_by_key(|(_, stream)| stream.used).map(|(index, _)| index)
            };
            let index = oldest(&|stream| stream.hits == 0);
            let Some(index) = index.or_else(|| oldest(&|stream| is_old(stream, 1))) else { return };
            self.streams.remove(index);
        }
        let distance = (blocks.end - blocks.start).saturating_mul(object.block_size);
        self.streams.push(Stream {
            first: blocks.start,
            asked: blocks.end - blocks.start,
            start: blocks.start,
            next: blocks.end,
            step: step.filter(|step| *step != 0),
            hits: 0,
            distance,
            planned: 0,
            planned_above: 0,
            used: now,
        });
    }
}

/// Where a request is in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It asks for what was just asked for.
    Same,
    /// It was passed over.
    Late,
    /// It follows.
    Follows,
    /// It is one step further.
    Step,
}

impl Stream {
    fn place_of(&self, blocks: &Range<u64>, reorder: u64) -> Option<Place> {
        if blocks.start >= self.start && blocks.end <= self.next {
            return Some(Place::Same);
        }
        let follows = blocks.start == self.next || blocks.start.saturating_add(1) == self.next;
        match self.step {
            // Steps that were not confirmed yet may still be a sequence.
            _ if follows && blocks.end > self.next && !self.is_strided() => Some(Place::Follows),
            Some(step) => {
                let is_step = self.start.checked_add_signed(step) == Some(blocks.start)
                    && blocks.end - blocks.start == self.next - self.start;
                is_step.then_some(Place::Step)
            }
            None if self.is_established() => {
                let gap = reorder.min((self.next - self.first) >> HOLE_SHIFT);
                let window = self.next..self.next.saturating_add(gap).saturating_add(1);
                if window.contains(&blocks.start) {
                    return Some(Place::Follows);
                }
                let behind = self.next.saturating_sub(reorder).max(self.first)..self.next;
                behind.contains(&blocks.start).then_some(Place::Late)
            }
            None => None,
        }
    }

    fn is_established(&self) -> bool {
        let holes = (self.next - self.first).saturating_sub(self.asked);
        self.hits >= ESTABLISHED && holes <= (self.next - self.first) / HOLE_PARTS
    }

    fn is_strided(&self) -> bool {
        self.hits > 0 && self.step.is_some()
    }

    fn advance(&mut self, blocks: &Range<u64>, place: Place) {
        self.hits += 1;
        self.asked =
            self.asked.saturating_add(blocks.end - blocks.start.max(self.next.min(blocks.end)));
        if place == Place::Follows {
            self.step = None;
        }
        (self.start, self.next) = (blocks.start, blocks.end);
    }

    fn grow(&mut self, waits: bool, bounds: &Bounds) {
        let more = if self.distance < bounds.distance_min {
            self.distance
        } else if waits {
            self.distance / 8
        } else {
            0
        };
        let least = bounds.distance_min.min(bounds.distance_max);
        let most = if self.distance < least { least } else { bounds.distance_max };
        self.distance = self.distance.saturating_add(more).min(most);
    }

    fn wish(&self, index: usize, object: Extent, bounds: &Bounds) -> Wish {
        let ahead = |bytes: u64| (bytes / object.block_size.max(1)).max(1);
        let Some(step) = self.step else {
            let end = self.next.saturating_add(ahead(self.distance)).min(object.blocks);
            let data = self.planned.max(self.next)..end;
            // As far ahead of the data as that is of the reader, and further.
            let far = self.distance.saturating_mul(2).min(bounds.indirect_max);
            let above = end.saturating_add(ahead(far)).min(object.blocks);
            let above = self.planned_above.max(end)..above;
            let data = if data.is_empty() { Vec::new() } else { vec![data] };
            return Wish { stream: index, data, above };
        };
        let width = self.next - self.start;
        let count = (ahead(self.distance) / width).clamp(1, STEPS_MAX);
        let from = self.planned.saturating_sub(self.hits) + 1;
        let data = (from..=count).map_while(|number| {
            let start = self.start.checked_add_signed(step.checked_mul(number.cast_signed())?)?;
            let end = start.checked_add(width)?.min(object.blocks);
            (start < end).then_some(start..end)
        });
        Wish { stream: index, data: data.collect(), above: 0..0 }
    }
}

#[cfg(test)]
mod tests;
