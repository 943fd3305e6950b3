//! The order of writes and flushes in a commit, according to the log (spec 01 §14).
//!
//! ```text
//!   data ──> labels 0, 2 ──> uberblock ──> labels 1, 3 ──> told to whoever waits
//! ```
//!
//! Each arrow is a flush: nothing on its left may be unflushed when something on its right begins.
//! Some of these mistakes cause losses only in circumstances that no sample meets, so they are
//! checked here as well.

use cenote_device::{Event, Log, Replay};
use cenote_ondisk::label::LABEL_COUNT;

/// Size of a label, and the offset of its uberblock ring.
const LABEL: u64 = 256 << 10;
const RING: u64 = 128 << 10;

/// The part of a label or the data that a write belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Data,
    EvenLabel,
    Uberblock,
    OddLabel,
}

impl Part {
    fn at(offset: u64, size: u64) -> Self {
        let half = LABEL_COUNT as u64 / 2 * LABEL;
        let within = if offset < half {
            offset
        } else if offset >= size - half {
            offset - (size - half)
        } else {
            return Self::Data;
        };
        match (within % LABEL >= RING, within / LABEL) {
            (true, _) => Self::Uberblock,
            (false, 0) => Self::EvenLabel,
            (false, _) => Self::OddLabel,
        }
    }

    /// Returns the parts that must be durable before a write of this part.
    fn needs(self) -> &'static [Self] {
        match self {
            Self::Data => &[],
            Self::EvenLabel => &[Self::Data, Self::OddLabel],
            Self::Uberblock => &[Self::Data, Self::EvenLabel],
            Self::OddLabel => &[Self::Uberblock],
        }
    }
}

/// Checks every commit of a log after the first mark, at which the pool exists. A device belongs to
/// the pool after the flush of its blank labels.
///
/// # Errors
/// A write that was issued too early.
pub fn check(log: &Log) -> Result<(), String> {
    let mut replay = Replay::new(log);
    let (mut is_made, mut is_label_newer) = (false, false);
    let mut is_member = vec![false; log.bases.len()];
    for (number, event) in log.events.iter().enumerate() {
        // A lost discard has no consequences: nothing waits for it.
        let is_write = |event: usize| !matches!(log.events[event], Event::Discard { .. });
        let pending = || {
            let writes = replay.pending().iter().filter(|write| is_write(write.event));
            writes
                .map(|write| (Part::at(write.offset, log.bases[write.device].size()), write.event))
        };
        match event {
            Event::Write { device, offset, .. } if is_member[*device] => {
                let part = Part::at(*offset, log.bases[*device].size());
                let early = pending().find(|(other, _)| part.needs().contains(other));
                if let Some((other, since)) = early.filter(|_| is_made) {
                    return Err(format!("event {number}: {part:?} before {other:?} of {since}"));
                }
                if is_made && part == Part::OddLabel && is_label_newer {
                    return Err(format!("event {number}: all labels are newer than the uberblock"));
                }
                is_label_newer = match part {
                    Part::EvenLabel => true,
                    Part::Uberblock => false,
                    Part::Data | Part::OddLabel => is_label_newer,
                };
            }
            Event::Mark(_) => {
                is_made = true;
                if let Some((part, since)) = pending().next() {
                    return Err(format!("event {number}: told before {part:?} of {since}"));
                }
            }
            Event::Flush { device, .. } => is_member[*device] = true,
            Event::Write { .. }
            | Event::Discard { .. }
            | Event::Done { .. }
            | Event::Grown { .. } => {}
        }
        replay.advance(number + 1);
    }
    Ok(())
}
