//! What a leaf was given since its last flush, kept until that has returned.
//!
//! A device that loses its cache (power, a reset, a cable) loses writes that had returned. Nobody
//! above can write them again: a txg that is being synced does not know any more what its early
//! blocks were. So the leaf keeps them, buffers and all, until a flush says that they are durable;
//! after a failure they are written again, in their order, before the next flush. Buffers are
//! shared, and what is kept is bounded by a flush in between ([`tunables::UNFLUSHED_MAX`]).
//!
//! A leaf that is given up needs nothing of it: its dirty time log has the txgs.

use cenote_rt::tunables;

use crate::dtl::TxgRanges;
use crate::leaf::Part;

/// Writes that returned and may still be in a cache of the device.
#[derive(Debug, Default)]
pub(crate) struct Unflushed {
    /// Whether there is anything to be flushed, labels and repairs included.
    pub(crate) is_any: bool,
    /// Something failed: what is here may be lost already, whatever the next flush says.
    pub(crate) is_suspect: bool,
    /// The txgs of the writes.
    pub(crate) txgs: TxgRanges,
    writes: Vec<Vec<Part>>,
    bytes: u64,
}

impl Unflushed {
    /// Notes a write of `txg` that returned; what belongs to no txg is not kept.
    pub(crate) fn note(&mut self, txg: Option<u64>, parts: Vec<Part>) {
        self.is_any = true;
        if let Some(txg) = txg {
            self.txgs.insert(txg);
            self.bytes += bytes_of(&parts);
            self.writes.push(parts);
        }
    }

    /// Notes a write of `txg` that failed: some of it may have been written.
    pub(crate) fn note_failed(&mut self, txg: Option<u64>) {
        self.is_any = true;
        self.is_suspect = true;
        if let Some(txg) = txg {
            self.txgs.insert(txg);
        }
    }

    /// Whether so much is kept that it should be flushed.
    pub(crate) fn is_much(&self) -> bool {
        !self.is_suspect && self.bytes > tunables::UNFLUSHED_MAX.get()
    }

    /// The writes, from the oldest.
    pub(crate) fn writes(&self) -> &[Vec<Part>] {
        &self.writes
    }

    /// Puts back what a flush had taken and could not make durable; `self` came after it.
    pub(crate) fn put_back(&mut self, mut earlier: Self) {
        earlier.writes.append(&mut self.writes);
        self.txgs = self.txgs.union(&earlier.txgs);
        self.writes = earlier.writes;
        self.bytes += earlier.bytes;
        (self.is_any, self.is_suspect) = (true, true);
    }
}

fn bytes_of(parts: &[Part]) -> u64 {
    parts.iter().filter(|part| !part.is_pad()).map(Part::len).sum()
}
