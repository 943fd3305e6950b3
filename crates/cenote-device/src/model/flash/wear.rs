//! Write amplification of flash: how many bytes are programmed for each byte written.
//!
//! Erase units are reclaimed by copying what is still valid in them. With uniformly random
//! overwrites, and units reclaimed in the order of their age or by the least valid one, the share
//! follows from `a`, physical space over valid data:
//!
//! ```text
//!   amplification = a / (a + W(-a e^-a))        W: Lambert's function, principal branch
//! ```
//!
//! With data everywhere, a = 1 + spare. Discarded and never written space counts as spare. A stream
//! that overwrites whole erase units in order leaves nothing to copy: its amplification is 1.
//!
//! Sources: spec 09 §2.2, spec 05 §13.

use cenote_rt::FixedMap;

/// Bytes of the smallest piece whose validity is tracked.
const GRAIN: u64 = 4096;
/// Words of a chunk of the map; a chunk covers 64 MiB.
const CHUNK_WORDS: usize = 256;
const CHUNK_GRAINS: u64 = CHUNK_WORDS as u64 * 64;
/// Steps of the table over the share of valid data.
const STEPS: usize = 256;
/// Limit of the amplification of a device without spare space, where the law has no limit.
const AMPLIFICATION_MAX: f64 = 100.0;
/// Sequential streams that a device tells apart.
const STREAMS: usize = 4;

/// Returns the write amplification of uniformly random overwrites, where `ratio` is physical space
/// over valid data.
#[must_use]
pub fn amplification(ratio: f64) -> f64 {
    if ratio <= 1.0 {
        return AMPLIFICATION_MAX;
    }
    let target = -ratio * exp(-ratio);
    // w e^w rises from -1/e to 0 between -1 and 0.
    let (mut lower, mut upper) = (-1.0, 0.0);
    for _ in 0..60 {
        let middle = f64::midpoint(lower, upper);
        if middle * exp(middle) < target {
            lower = middle;
        } else {
            upper = middle;
        }
    }
    (ratio / (ratio + upper)).min(AMPLIFICATION_MAX)
}

/// e^x for x <= 0. The system's function differs between machines in its last bit.
fn exp(x: f64) -> f64 {
    if x < -700.0 {
        return 0.0;
    }
    let small = x / 1024.0;
    let mut term = 1.0;
    let mut sum = 1.0;
    for n in 1..12 {
        term *= small / n as f64;
        sum += term;
    }
    for _ in 0..10 {
        sum *= sum;
    }
    sum
}

/// Space of a device that has valid data, and what overwriting it costs.
#[derive(Debug)]
pub(super) struct Wear {
    /// Whether chunks that the map does not have are valid.
    is_full: bool,
    chunks: FixedMap<u64, Box<[u64; CHUNK_WORDS]>>,
    valid_grains: u64,
    grains: u64,
    /// Amplification by the share of valid data.
    table: Vec<f64>,
    erase_bytes: u64,
    /// Ends and lengths of the last sequential runs; the latest one is first.
    streams: [(u64, u64); STREAMS],
}

impl Wear {
    /// A device of `size` bytes with `spare` more, in parts of its size: full of valid data, or as
    /// it leaves the factory.
    pub(super) fn new(size: u64, spare: f64, erase_bytes: u64, is_full: bool) -> Self {
        let ratio = |step: usize| (1.0 + spare) * STEPS as f64 / step.max(1) as f64;
        let grains = size.div_ceil(GRAIN).max(1);
        Self {
            is_full,
            chunks: FixedMap::default(),
            valid_grains: if is_full { grains } else { 0 },
            grains,
            table: (0..=STEPS).map(|step| amplification(ratio(step))).collect(),
            erase_bytes,
            streams: [(u64::MAX, 0); STREAMS],
        }
    }

    /// Notes a write, and returns its amplification.
    pub(super) fn write(&mut self, offset: u64, len: u64) -> f64 {
        self.mark(offset, len, true);
        if self.continues(offset, len) {
            return 1.0;
        }
        let at = self.valid_grains as f64 * STEPS as f64 / self.grains as f64;
        let step = (at as usize).min(STEPS - 1);
        let part = at - step as f64;
        self.table[step] * (1.0 - part) + self.table[step + 1] * part
    }

    pub(super) fn discard(&mut self, offset: u64, len: u64) {
        self.mark(offset, len, false);
    }

    /// Whether a write is part of a sequential run over at least one erase unit.
    fn continues(&mut self, offset: u64, len: u64) -> bool {
        let found = self.streams.iter().position(|(end, _)| *end == offset);
        let run = found.map_or(0, |index| self.streams[index].1) + len;
        self.streams[..=found.unwrap_or(STREAMS - 1)].rotate_right(1);
        self.streams[0] = (offset + len, run);
        run >= self.erase_bytes
    }

    /// Marks a range as valid or not. A grain of which a part is written becomes valid; one of
    /// which a part is discarded stays as it is.
    fn mark(&mut self, offset: u64, len: u64, is_valid: bool) {
        let end = offset.saturating_add(len);
        let (first, end) = if is_valid {
            (offset / GRAIN, end.div_ceil(GRAIN).min(self.grains))
        } else {
            (offset.div_ceil(GRAIN), end / GRAIN)
        };
        let mut at = first;
        while at < end {
            let chunk = at / CHUNK_GRAINS;
            let until = end.min((chunk + 1) * CHUNK_GRAINS);
            let before = if self.is_full { u64::MAX } else { 0 };
            let words = self.chunks.entry(chunk).or_insert_with(|| Box::new([before; CHUNK_WORDS]));
            while at < until {
                let bit = at % 64;
                let count = (until - at).min(64 - bit);
                let mask = (u64::MAX >> (64 - count)) << bit;
                let word = &mut words[(at % CHUNK_GRAINS / 64) as usize];
                if is_valid {
                    self.valid_grains += u64::from((mask & !*word).count_ones());
                    *word |= mask;
                } else {
                    self.valid_grains -= u64::from((mask & *word).count_ones());
                    *word &= !mask;
                }
                at += count;
            }
        }
    }
}
