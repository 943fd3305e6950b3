//! Faults of a modelled disk: which ones are due, and what happened.

use std::collections::VecDeque;
use std::ops::Range;

use cenote_rt::Rng;

use crate::WriteFault;

/// Events that are kept for [`ModelDisk::take_injected`](super::ModelDisk::take_injected).
const EVENTS_MAX: usize = 1 << 16;

/// Ranges that are kept for [`ModelDisk::recent_writes`](super::ModelDisk::recent_writes).
const RECENT_MAX: usize = 256;

/// Frequencies of faults, in a million commands of their kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FaultRates {
    /// Reads that fail once.
    pub read_error: u32,
    /// Writes that fail; nothing is written.
    pub write_error: u32,
    /// Writes that report success; nothing is written.
    pub lost_write: u32,
    /// Writes that report success; only the first sectors are written.
    pub torn_write: u32,
    /// Writes that report success; the bytes go to another place.
    pub misdirected_write: u32,
    /// Flushes that fail; nothing becomes durable.
    pub flush_error: u32,
    /// Writes after which one of the sectors is unreadable until it is written again.
    pub latent_error: u32,
    /// Writes after which one of the bits is wrong.
    pub bit_flip: u32,
}

/// Kind of a fault that a modelled disk injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskFault {
    /// A read failed.
    ReadError,
    /// A write failed.
    WriteError,
    /// A flush failed.
    FlushError,
    /// A command failed because the disk is dead, has no power, or was told to fail.
    Refused,
    /// A write was lost.
    LostWrite,
    /// A write was torn.
    TornWrite,
    /// A write went to another place; the event has that place.
    MisdirectedWrite,
    /// A sector became unreadable.
    LatentError,
    /// A read found an unreadable sector.
    UnreadableSector,
    /// A bit changed.
    BitFlip,
    /// A flush reported success and did nothing.
    LyingFlush,
    /// The disk stopped answering for a while.
    Stall,
    /// Power was cut.
    PowerCut,
}

impl DiskFault {
    /// Number of kinds.
    pub const COUNT: usize = Self::PowerCut as usize + 1;
}

/// A fault that was injected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InjectedEvent {
    /// Kind of the fault.
    pub fault: DiskFault,
    /// First byte that is affected.
    pub offset: u64,
    /// Number of bytes that are affected.
    pub len: u64,
}

/// State of the faults of a disk.
#[derive(Debug)]
pub(super) struct Faults {
    rng: Rng,
    rates: FaultRates,
    /// Faults of the next writes.
    next_writes: VecDeque<WriteFault>,
    pub(super) flushes_lie: bool,
    /// Numbers of the next flushes that lie, and of the next flushes and commands that fail.
    pub(super) lying_flushes: u64,
    pub(super) failing_flushes: u64,
    pub(super) failing_commands: u64,
    /// Ranges of bytes that were written last.
    recent: VecDeque<Range<u64>>,
    counts: [u64; DiskFault::COUNT],
    events: Vec<InjectedEvent>,
}

impl Faults {
    pub(super) fn new() -> Self {
        Self {
            rng: Rng::seeded(0),
            rates: FaultRates::default(),
            next_writes: VecDeque::new(),
            flushes_lie: false,
            lying_flushes: 0,
            failing_flushes: 0,
            failing_commands: 0,
            recent: VecDeque::new(),
            counts: [0; DiskFault::COUNT],
            events: Vec::new(),
        }
    }

    pub(super) fn set_rates(&mut self, seed: u64, rates: FaultRates) {
        (self.rng, self.rates) = (Rng::seeded(seed), rates);
    }

    pub(super) fn add_write_fault(&mut self, fault: WriteFault) {
        self.next_writes.push_back(fault);
    }

    /// Ends all faults of commands to come.
    pub(super) fn end(&mut self) {
        self.rates = FaultRates::default();
        self.next_writes.clear();
        self.flushes_lie = false;
        (self.lying_flushes, self.failing_flushes, self.failing_commands) = (0, 0, 0);
    }

    /// Counts a fault.
    pub(super) fn note(&mut self, fault: DiskFault, offset: u64, len: u64) {
        self.counts[fault as usize] += 1;
        if self.events.len() < EVENTS_MAX {
            self.events.push(InjectedEvent { fault, offset, len });
        }
    }

    pub(super) fn counts(&self) -> [u64; DiskFault::COUNT] {
        self.counts
    }

    pub(super) fn take_events(&mut self) -> Vec<InjectedEvent> {
        std::mem::take(&mut self.events)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.rng.below(bound)
    }

    fn is_due(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.rng.below(1_000_000) < u64::from(per_million)
    }

    /// Notes the range of a write.
    pub(super) fn note_write(&mut self, range: Range<u64>) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_front();
        }
        self.recent.push_back(range);
    }

    pub(super) fn recent(&self) -> Vec<Range<u64>> {
        self.recent.iter().cloned().collect()
    }

    /// Whether this command fails, whatever it is.
    pub(super) fn command_fails(&mut self) -> bool {
        let fails = self.failing_commands > 0;
        self.failing_commands -= u64::from(fails);
        fails
    }

    /// Whether this flush fails.
    pub(super) fn flush_fails(&mut self) -> bool {
        let fails = self.failing_flushes > 0;
        self.failing_flushes -= u64::from(fails);
        fails || self.is_due(self.rates.flush_error)
    }

    /// Whether this flush reports success and does nothing.
    pub(super) fn flush_lies(&mut self) -> bool {
        let lies = self.lying_flushes > 0;
        self.lying_flushes -= u64::from(lies);
        lies || self.flushes_lie
    }

    /// Whether this read fails.
    pub(super) fn read_fails(&mut self) -> bool {
        self.is_due(self.rates.read_error)
    }

    /// The fault of this write.
    pub(super) fn of_write(&mut self) -> Option<WriteFault> {
        if let Some(fault) = self.next_writes.pop_front() {
            return Some(fault);
        }
        let rates = self.rates;
        let kinds = [
            (rates.write_error, WriteFault::Eio),
            (rates.lost_write, WriteFault::Lost),
            (rates.torn_write, WriteFault::Torn),
            (rates.misdirected_write, WriteFault::Misdirected(None)),
        ];
        kinds.into_iter().find_map(|(rate, fault)| self.is_due(rate).then_some(fault))
    }

    /// Whether one of the sectors of this write becomes unreadable.
    pub(super) fn leaves_latent_error(&mut self) -> bool {
        self.is_due(self.rates.latent_error)
    }

    /// Whether one of the bits of this write changes.
    pub(super) fn flips_bit(&mut self) -> bool {
        self.is_due(self.rates.bit_flip)
    }
}
