//! What a leaf was given since its last flush, kept until that has returned.
//!
//! ```text
//!   a write returns ──> now ──a flush begins──> under way ──it succeeds──> nothing
//!                                                   `── it fails, or nobody waits for it any more:
//!                                                       the next one begins with it
//! ```
//!
//! A device that loses its cache (power, a reset, a cable) loses writes that had returned. Nobody
//! above can write them again: a txg that is being synced does not know any more what its early
//! blocks were. So the leaf keeps them, buffers and all, until a flush says that they are durable;
//! after a failure everything is suspect, and is written again, in its order, before the next
//! flush. Buffers are shared, and what is kept is bounded: by a flush in between
//! ([`tunables::UNFLUSHED_MAX`]), and where that fails the leaf takes nothing more.
//!
//! A leaf that is given up needs nothing of it: its dirty time log has the txgs.

use cenote_rt::tunables;

use crate::dtl::TxgRanges;
use crate::leaf::Part;

/// Writes that returned and may still be in a cache of the device.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    /// What has returned since the last flush began.
    now: Batch,
    /// What that flush covers, until it has succeeded.
    under_way: Batch,
    /// Whether the last flush failed.
    is_stuck: bool,
    /// How often it was given up, or its device was changed.
    turn: u64,
}

/// Writes, and what is known of them.
#[derive(Debug, Default)]
struct Batch {
    /// Whether there is anything to be flushed, labels and repairs included.
    is_any: bool,
    /// Something failed: all of it may be lost already, whatever the next flush says.
    is_suspect: bool,
    /// The txgs of the writes.
    txgs: TxgRanges,
    writes: Vec<Vec<Part>>,
    bytes: u64,
}

/// A flush that has begun.
#[derive(Debug)]
pub(crate) struct Flight {
    turn: u64,
    /// Whether what it covers was suspect.
    pub(crate) is_suspect: bool,
    /// What is to be written again before, from the oldest.
    pub(crate) writes: Vec<Vec<Part>>,
}

/// What a flush has come to.
#[derive(Debug)]
pub(crate) enum Landing {
    /// All that it covers is durable.
    Durable,
    /// It failed: these txgs may be lost.
    Failed(TxgRanges),
    /// Something failed meanwhile, or it was of another device: it says nothing.
    Void,
}

impl Unflushed {
    /// How often it was given up, or its device was changed.
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }

    /// Notes a write of `txg` that returned and began in that turn; what belongs to no txg is not
    /// kept.
    pub(crate) fn note(&mut self, turn: u64, txg: Option<u64>, parts: Vec<Part>) {
        self.now.is_any = true;
        // It may have gone to a device that is none of the leaf's any more.
        self.now.is_suspect |= turn != self.turn;
        if let Some(txg) = txg {
            self.now.txgs.insert(txg);
            self.now.bytes += bytes_of(&parts);
            self.now.writes.push(parts);
        }
    }

    /// Notes a write of `txg` that failed: some of it may have been written, and what the device
    /// had in its cache may be gone.
    pub(crate) fn note_failed(&mut self, txg: Option<u64>) {
        (self.now.is_any, self.now.is_suspect) = (true, true);
        if let Some(txg) = txg {
            self.now.txgs.insert(txg);
        }
    }

    /// Whether something must be written again before a flush means anything.
    pub(crate) fn is_suspect(&self) -> bool {
        self.now.is_suspect || self.under_way.is_suspect
    }

    /// Whether so much is kept that it should be flushed.
    pub(crate) fn is_much(&self) -> bool {
        !self.is_stuck && self.now.bytes > tunables::UNFLUSHED_MAX.get()
    }

    /// Whether so much is kept, and cannot be flushed, that nothing more may come.
    pub(crate) fn is_full(&self) -> bool {
        self.is_stuck && self.now.bytes + self.under_way.bytes > tunables::UNFLUSHED_MAX.get()
    }

    /// Begins a flush of everything, if there is anything. One at a time.
    pub(crate) fn begin(&mut self) -> Option<Flight> {
        let earlier = std::mem::take(&mut self.under_way);
        self.under_way = earlier.followed_by(std::mem::take(&mut self.now));
        let Batch { is_any, is_suspect, writes, .. } = &self.under_way;
        is_any.then(|| Flight {
            turn: self.turn,
            is_suspect: *is_suspect,
            writes: if *is_suspect { writes.clone() } else { Vec::new() },
        })
    }

    /// Notes how a flush ended.
    pub(crate) fn land(&mut self, flight: &Flight, is_ok: bool) -> Landing {
        if flight.turn != self.turn {
            return Landing::Void;
        }
        if is_ok && !self.now.is_suspect {
            self.under_way = Batch::default();
            self.is_stuck = false;
            return Landing::Durable;
        }
        // Nobody can tell what of it reached the device, unless it is written again.
        self.under_way.is_suspect = true;
        if is_ok {
            return Landing::Void;
        }
        self.is_stuck = true;
        Landing::Failed(self.under_way.txgs.clone())
    }

    /// Gives everything up: gives the txgs that are lacking then.
    pub(crate) fn forget(&mut self) -> TxgRanges {
        let (now, under_way) = (std::mem::take(&mut self.now), std::mem::take(&mut self.under_way));
        self.is_stuck = false;
        self.turn += 1;
        under_way.followed_by(now).txgs
    }

    /// The leaf is on another device: nobody can tell whether that has it.
    pub(crate) fn moved(&mut self) {
        self.turn += 1;
        self.now.is_suspect |= self.now.is_any || self.under_way.is_any;
    }
}

impl Batch {
    /// Both, `later` having come after this one.
    fn followed_by(mut self, mut later: Self) -> Self {
        self.is_any |= later.is_any;
        self.is_suspect |= later.is_suspect;
        self.txgs = self.txgs.union(&later.txgs);
        self.writes.append(&mut later.writes);
        self.bytes += later.bytes;
        self
    }
}

fn bytes_of(parts: &[Part]) -> u64 {
    parts.iter().filter(|part| !part.is_pad()).map(Part::len).sum()
}
