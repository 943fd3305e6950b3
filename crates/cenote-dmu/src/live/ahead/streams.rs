//! Which requests for an object belong together, and what they will ask for next.
//!
//! ```text
//!   start ── width ── next
//!   sequential   |####|####|####|....>        the next one begins where the last has ended
//!   strided      |##      ##      ##      ..> or as far from the last as that from the one before
//! ```
//!
//! A request that fits no stream begins one. The second of a sequence is its first hit. Requests
//! that fit none are looked at for equal steps, of which the third is the first hit: until a few
//! more came they may as well be the beginnings of sequences. With every hit a stream reads further
//! ahead: twice as far up to a least distance, then an eighth more, but only if the reader still
//! had to wait, up to a greatest. A request out of the order of its stream, as parallel readers
//! make them, is part of it once the stream is long against the gap, and as long as it has few
//! holes: who reads at random meets streams too, and must not make them longer.
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
pub(super) const BLOCKS_MIN: u64 = 3;

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

impl Extent {
    /// Blocks that so many bytes are, at least one.
    fn blocks_of(&self, bytes: u64) -> u64 {
        (bytes / self.block_size.max(1)).max(1)
    }
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
    /// Requests that came as expected.
    hits: u64,
    /// Bytes that are read ahead.
    distance: u64,
    /// Read ahead up to here: a block, or with steps the number of a hit from the start.
    planned: u64,
    /// Indirect blocks are read ahead up to above this block.
    planned_above: u64,
    used: Duration,
}

/// What should be read ahead now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wish {
    whose: Whose,
    /// Data blocks, in the order of need.
    pub(super) data: Vec<Range<u64>>,
    /// Blocks of which those above are wanted.
    pub(super) above: Range<u64>,
}

/// A stream, by its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    Sequence(usize),
    Steps,
}

/// The streams of an object.
#[derive(Debug, Clone, Default)]
pub(super) struct Streams {
    sequences: Vec<Stream>,
    /// The last requests that came in equal steps, and how long those are.
    steps: Option<(Stream, i64)>,
    /// The last request that fitted no sequence.
    last: Option<Range<u64>>,
    /// How far that was from the one before.
    last_step: i64,
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
        if blocks.is_empty() {
            return None;
        }
        let reorder = bounds.reorder / object.block_size.max(1);
        let found = self.sequences.iter().enumerate().find_map(|(index, stream)| {
            stream.place_of(&blocks, reorder).map(|place| (index, place))
        });
        let Some((index, place)) = found else {
            return self.stray(blocks, object, bounds, now, waits);
        };
        let stream = self.sequences.get_mut(index)?;
        stream.used = now;
        match place {
            Place::Same => return None,
            Place::Late => {
                let all = stream.asked.saturating_add(blocks.end - blocks.start);
                stream.asked = all.min(stream.next - stream.first);
                return None;
            }
            Place::Follows => {}
        }
        stream.advance(&blocks);
        stream.grow(waits, bounds);
        if stream.next >= object.blocks {
            // Nothing is left to wish for, and who begins again begins a new one.
            self.sequences.remove(index);
            return None;
        }
        Some(stream.wish(index, object, bounds))
    }

    /// A request that fits no sequence.
    fn stray(
        &mut self,
        blocks: Range<u64>,
        object: Extent,
        bounds: &Bounds,
        now: Duration,
        waits: bool,
    ) -> Option<Wish> {
        let width = blocks.end - blocks.start;
        let last = self.last.replace(blocks.clone()).filter(|last| last.end - last.start == width);
        let step = last.map_or(0, |last| blocks.start.wrapping_sub(last.start).cast_signed());
        let is_equal = step != 0 && step == std::mem::replace(&mut self.last_step, step);
        let expects = |(stream, step): &(Stream, i64)| {
            stream.start.checked_add_signed(*step) == Some(blocks.start)
                && stream.next - stream.start == width
        };
        let is_hit = self.steps.as_ref().is_some_and(expects);
        if is_equal && !is_hit {
            let (start, distance) = (blocks.start, width.saturating_mul(object.block_size));
            self.steps = Some((Stream::new(start..start, distance, now), step));
        }
        if !is_equal && !is_hit {
            self.begin(blocks, object, bounds, now);
            return None;
        }
        let (stream, step) = self.steps.as_mut()?;
        (stream.used, stream.hits) = (now, stream.hits + 1);
        (stream.start, stream.next) = (blocks.start, blocks.end);
        stream.grow(waits, bounds);
        let wish = stream.wish_steps(*step, object);
        if stream.hits < ESTABLISHED {
            self.begin(blocks, object, bounds, now);
        }
        Some(wish)
    }

    /// What of a wish was followed: data up to before the range `data` of it and, of that, block
    /// `at`; blocks above up to before the one above `above`.
    pub(super) fn followed(&mut self, wish: &Wish, at: Option<(usize, u64)>, above: u64) {
        match wish.whose {
            Whose::Sequence(index) => {
                let Some(stream) = self.sequences.get_mut(index) else { return };
                let end = wish.data.last().map_or(0, |range| range.end);
                stream.planned = stream.planned.max(at.map_or(end, |(_, block)| block));
                stream.planned_above = stream.planned_above.max(above);
            }
            Whose::Steps => {
                let Some((stream, _)) = &mut self.steps else { return };
                let count = at.map_or(wish.data.len(), |(index, _)| index);
                stream.planned = stream.planned.max(stream.hits) + count as u64;
            }
        }
    }

    fn begin(&mut self, blocks: Range<u64>, object: Extent, bounds: &Bounds, now: Duration) {
        let is_old =
            |stream: &Stream, times| now.saturating_sub(stream.used) >= bounds.reap * times;
        self.sequences.retain(|stream| !is_old(stream, FORGET));
        while self.sequences.len() >= bounds.streams {
            // One that never came to anything, else one that nobody goes on with.
            let oldest = |wanted: &dyn Fn(&Stream) -> bool| {
                let all = self.sequences.iter().enumerate().filter(|(_, stream)| wanted(stream));
                all.min_by_key(|(_, stream)| stream.used).map(|(index, _)| index)
            };
            let index = oldest(&|stream| stream.hits == 0);
            let Some(index) = index.or_else(|| oldest(&|stream| is_old(stream, 1))) else { return };
            self.sequences.remove(index);
        }
        let distance = (blocks.end - blocks.start).saturating_mul(object.block_size);
        self.sequences.push(Stream::new(blocks, distance, now));
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
}

impl Stream {
    fn new(blocks: Range<u64>, distance: u64, used: Duration) -> Self {
        Self {
            first: blocks.start,
            asked: blocks.end - blocks.start,
            start: blocks.start,
            next: blocks.end,
            hits: 0,
            distance,
            planned: 0,
            planned_above: 0,
            used,
        }
    }

    fn place_of(&self, blocks: &Range<u64>, reorder: u64) -> Option<Place> {
        if blocks.start >= self.start && blocks.end <= self.next {
            return Some(Place::Same);
        }
        let follows = blocks.start == self.next || blocks.start.saturating_add(1) == self.next;
        if follows && blocks.end > self.next {
            return Some(Place::Follows);
        }
        if !self.is_established() {
            return None;
        }
        let gap = reorder.min((self.next - self.first) >> HOLE_SHIFT);
        let window = self.next..self.next.saturating_add(gap).saturating_add(1);
        if window.contains(&blocks.start) {
            return Some(Place::Follows);
        }
        let behind = self.next.saturating_sub(reorder).max(self.first)..self.next;
        behind.contains(&blocks.start).then_some(Place::Late)
    }

    fn is_established(&self) -> bool {
        let holes = (self.next - self.first).saturating_sub(self.asked);
        self.hits >= ESTABLISHED && holes <= (self.next - self.first) / HOLE_PARTS
    }

    fn advance(&mut self, blocks: &Range<u64>) {
        self.hits += 1;
        let new = blocks.end.saturating_sub(blocks.start.max(self.next));
        self.asked = self.asked.saturating_add(new);
        (self.start, self.next) = (blocks.start, blocks.end.max(self.next));
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
        let end = self.next.saturating_add(object.blocks_of(self.distance)).min(object.blocks);
        let data = self.planned.max(self.next)..end;
        // As far ahead of the data as that is of the reader, and further.
        let far = self.distance.saturating_mul(2).min(bounds.indirect_max);
        let above = end.saturating_add(object.blocks_of(far)).min(object.blocks);
        let above = self.planned_above.max(end)..above;
        let data = if data.is_empty() { Vec::new() } else { vec![data] };
        Wish { whose: Whose::Sequence(index), data, above }
    }

    fn wish_steps(&self, step: i64, object: Extent) -> Wish {
        let width = (self.next - self.start).max(1);
        let count = (object.blocks_of(self.distance) / width).clamp(1, STEPS_MAX);
        let from = self.planned.saturating_sub(self.hits) + 1;
        let data = (from..=count).map_while(|number| {
            let start = self.start.checked_add_signed(step.checked_mul(number.cast_signed())?)?;
            let end = start.checked_add(width)?.min(object.blocks);
            (start < end).then_some(start..end)
        });
        Wish { whose: Whose::Steps, data: data.collect(), above: 0..0 }
    }
}

#[cfg(test)]
mod tests;
