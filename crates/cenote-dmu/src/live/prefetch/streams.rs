//! Prefetch streams: which requests for an object belong together, and which blocks follow.
//!
//! ```text
//!   start ── width ── next
//!   sequential   |####|####|####|....>        the next one begins where the last has ended
//!   strided      |##      ##      ##      ..> or at the same distance as between the last two
//! ```
//!
//! A request that fits no stream starts one. The second request of a sequence is its first hit.
//! Requests that fit no sequence are checked for equal strides, of which the third is the first
//! hit: with fewer they may as well be the beginnings of sequences. With every hit the prefetch
//! distance grows: it doubles up to a minimum, then grows by an eighth, but only if the reader had
//! to wait, up to a maximum. A request out of order, as parallel readers make them, belongs to a
//! stream if the stream is long compared with the gap, and has few holes: random requests also hit
//! streams, and must not extend them.
//!
//! Blocks are numbers here, and nothing is read: the blocks to read are returned as a
//! [`PrefetchPlan`], and the caller reports how far it was carried out.

use std::ops::Range;
use std::time::Duration;

/// Number of hits after which a stream accepts requests out of order.
const ESTABLISHED: u64 = 3;
/// Largest gap: the length of the stream shifted right by this (OpenZFS: `zfetch_hole_shift`).
const HOLE_SHIFT: u32 = 2;
/// Of this many parts of a stream, one may be holes.
const HOLE_PARTS: u64 = 4;
/// Streams are dropped after this many times the period after which they can be replaced.
const FORGET: u32 = 2;
/// Most strided requests that are planned at a time.
const STRIDES_MAX: u64 = 64;
/// Objects with fewer blocks are not prefetched.
pub(super) const BLOCKS_MIN: u64 = 3;

/// Limits, from the tunables.
#[derive(Debug, Clone, Copy)]
pub(super) struct PrefetchLimits {
    pub(super) streams: usize,
    pub(super) distance_min: u64,
    pub(super) distance_max: u64,
    pub(super) indirect_max: u64,
    pub(super) reorder: u64,
    pub(super) reap: Duration,
}

/// Size of an object.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectShape {
    /// Bytes of a block.
    pub(super) block_size: u64,
    /// Number of blocks.
    pub(super) blocks: u64,
}

impl ObjectShape {
    /// Number of blocks in `bytes`, at least one.
    fn blocks_of(&self, bytes: u64) -> u64 {
        (bytes / self.block_size.max(1)).max(1)
    }
}

/// A stream of requests.
#[derive(Debug, Clone)]
struct Stream {
    /// First block requested.
    first: u64,
    /// Blocks of the last request.
    start: u64,
    next: u64,
    /// Number of blocks requested since the first.
    asked: u64,
    /// Number of requests that continued the stream.
    hits: u64,
    /// Prefetch distance in bytes.
    distance: u64,
    /// End of the planned blocks: a block number, or for strides the number of a hit.
    planned: u64,
    /// Indirect blocks are planned up to the one above this block.
    planned_above: u64,
    used: Duration,
}

/// Blocks to prefetch now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PrefetchPlan {
    whose: StreamRef,
    /// Data blocks, in the order of expected use.
    pub(super) data: Vec<Range<u64>>,
    /// Data blocks whose indirect blocks are to be read.
    pub(super) above: Range<u64>,
}

/// Identifies a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamRef {
    Sequence(usize),
    Steps,
}

/// The streams of one object.
#[derive(Debug, Clone, Default)]
pub(super) struct Streams {
    sequences: Vec<Stream>,
    /// The last requests at equal distances, and that distance.
    strides: Option<(Stream, i64)>,
    /// The last request that fitted no sequence.
    last: Option<Range<u64>>,
    /// Distance of that request from the one before.
    last_stride: i64,
    used: Duration,
}

impl Streams {
    /// Time of the last request.
    pub(super) fn used(&self) -> Duration {
        self.used
    }

    /// Records a request; `waits` tells whether the reader has to wait.
    pub(super) fn note(
        &mut self,
        blocks: Range<u64>,
        waits: bool,
        object: ObjectShape,
        limits: &PrefetchLimits,
        now: Duration,
    ) -> Option<PrefetchPlan> {
        self.used = now;
        if blocks.is_empty() {
            return None;
        }
        let reorder = limits.reorder / object.block_size.max(1);
        let found = self.sequences.iter().enumerate().find_map(|(index, stream)| {
            stream.place_of(&blocks, reorder).map(|place| (index, place))
        });
        let Some((index, place)) = found else {
            return self.note_unmatched(blocks, object, limits, now, waits);
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
        stream.grow(waits, limits);
        if stream.next >= object.blocks {
            // No block is left to plan, and a reader that starts again starts a new stream.
            self.sequences.remove(index);
            return None;
        }
        Some(stream.plan(index, object, limits))
    }

    /// Records a request that fits no sequence.
    fn note_unmatched(
        &mut self,
        blocks: Range<u64>,
        object: ObjectShape,
        limits: &PrefetchLimits,
        now: Duration,
        waits: bool,
    ) -> Option<PrefetchPlan> {
        let width = blocks.end - blocks.start;
        let last = self.last.replace(blocks.clone()).filter(|last| last.end - last.start == width);
        let step = last.map_or(0, |last| blocks.start.wrapping_sub(last.start).cast_signed());
        let is_equal = step != 0 && step == std::mem::replace(&mut self.last_stride, step);
        let expects = |(stream, step): &(Stream, i64)| {
            stream.start.checked_add_signed(*step) == Some(blocks.start)
                && stream.next - stream.start == width
        };
        let is_hit = self.strides.as_ref().is_some_and(expects);
        if is_equal && !is_hit {
            let (start, distance) = (blocks.start, width.saturating_mul(object.block_size));
            self.strides = Some((Stream::new(start..start, distance, now), step));
        }
        if !is_equal && !is_hit {
            self.begin(blocks, object, limits, now);
            return None;
        }
        let (stream, step) = self.strides.as_mut()?;
        (stream.used, stream.hits) = (now, stream.hits + 1);
        (stream.start, stream.next) = (blocks.start, blocks.end);
        stream.grow(waits, limits);
        let plan = stream.plan_strides(*step, object);
        if stream.hits < ESTABLISHED {
            self.begin(blocks, object, limits, now);
        }
        Some(plan)
    }

    /// Records how far a plan was carried out: data before block `at` of its range `data`; indirect
    /// blocks up to the one above `above`, exclusive.
    pub(super) fn followed(&mut self, plan: &PrefetchPlan, at: Option<(usize, u64)>, above: u64) {
        match plan.whose {
            StreamRef::Sequence(index) => {
                let Some(stream) = self.sequences.get_mut(index) else { return };
                let end = plan.data.last().map_or(0, |range| range.end);
                stream.planned = stream.planned.max(at.map_or(end, |(_, block)| block));
                stream.planned_above = stream.planned_above.max(above);
            }
            StreamRef::Steps => {
                let Some((stream, _)) = &mut self.strides else { return };
                let count = at.map_or(plan.data.len(), |(index, _)| index);
                stream.planned = stream.planned.max(stream.hits) + count as u64;
            }
        }
    }

    fn begin(
        &mut self,
        blocks: Range<u64>,
        object: ObjectShape,
        limits: &PrefetchLimits,
        now: Duration,
    ) {
        let is_old =
            |stream: &Stream, times| now.saturating_sub(stream.used) >= limits.reap * times;
        self.sequences.retain(|stream| !is_old(stream, FORGET));
        while self.sequences.len() >= limits.streams {
            // Replaces a stream that never got a hit, else one that is not continued.
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

/// Position of a request in a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It repeats the last request.
    Same,
    /// It requests blocks that were skipped.
    Late,
    /// It continues the stream.
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

    fn grow(&mut self, waits: bool, limits: &PrefetchLimits) {
        let more = if self.distance < limits.distance_min {
            self.distance
        } else if waits {
            self.distance / 8
        } else {
            0
        };
        let least = limits.distance_min.min(limits.distance_max);
        let most = if self.distance < least { least } else { limits.distance_max };
        self.distance = self.distance.saturating_add(more).min(most);
    }

    fn plan(&self, index: usize, object: ObjectShape, limits: &PrefetchLimits) -> PrefetchPlan {
        let end = self.next.saturating_add(object.blocks_of(self.distance)).min(object.blocks);
        let data = self.planned.max(self.next)..end;
        // As far ahead of the data as the data are ahead of the reader, and further.
        let far = self.distance.saturating_mul(2).min(limits.indirect_max);
        let above = end.saturating_add(object.blocks_of(far)).min(object.blocks);
        let above = self.planned_above.max(end)..above;
        let data = if data.is_empty() { Vec::new() } else { vec![data] };
        PrefetchPlan { whose: StreamRef::Sequence(index), data, above }
    }

    fn plan_strides(&self, step: i64, object: ObjectShape) -> PrefetchPlan {
        let width = (self.next - self.start).max(1);
        let count = (object.blocks_of(self.distance) / width).clamp(1, STRIDES_MAX);
        let from = self.planned.saturating_sub(self.hits) + 1;
        let data = (from..=count).map_while(|number| {
            let start = self.start.checked_add_signed(step.checked_mul(number.cast_signed())?)?;
            let end = start.checked_add(width)?.min(object.blocks);
            (start < end).then_some(start..end)
        });
        PrefetchPlan { whose: StreamRef::Steps, data: data.collect(), above: 0..0 }
    }
}

#[cfg(test)]
mod tests;
