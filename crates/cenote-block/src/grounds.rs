//! How a reader obtained a block pointer, and what a checksum mismatch therefore proves.
//!
//! Bytes that match a pointer's checksum are its block, however old the pointer is. Bytes that do
//! not match mean one of two things: a device returned wrong bytes, or the block was freed and its
//! space reused. Only the first is damage. Confusing the two would count errors against healthy
//! devices, and a repair would overwrite a live block with old bytes. So every reader states how it
//! obtained its pointer, and a mismatch is counted, reported and repaired only if there is proof
//! that the block is in place:
//!
//! | grounds       | proof that a mismatch is damage                       | repairs |
//! |---------------|-------------------------------------------------------|---------|
//! | `Offline`     | the pool is not being written                         | no      |
//! | `Pinned`      | the pin is valid after the read                       | a scan  |
//! | `Live`        | no space near the block was reused since the look-up  | yes     |
//! | `Held`        | as `Live`, since the read began, while the hold lasts | yes     |
//! | `Allocated`   | as `Live`, since the read began                       | yes     |
//! | `Speculative` | none                                                  | no      |
//!
//! A scan repairs what its walk reads, because it reads the block a second time afterwards, and
//! would count the same error again. Other readers of a pinned state write nothing.
//!
//! Invariants (checked in every build)
//! * E1  A repair is written under a [`Guard`], which is taken after the mismatch was found and
//!   refused if any range near the block became free since the pointer was looked up.
//! * E2  A checksum error is counted, and a block reported as lost, only with proof.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result};
use cenote_vdev::IoClass;

use crate::alloc::{Epoch, Guard, GuardOutcome, Pin};
use crate::assemble::Findings;
use crate::error::BlockError;
use crate::store::BlockStore;

/// Smallest space of a gang header.
const HEADER_LEN: u64 = 512;

/// How a reader obtained its pointer.
#[derive(Debug, Clone, Default)]
pub enum Grounds {
    /// The pool is not being written. In a pool that is being written this proves nothing.
    #[default]
    Offline,
    /// The pointer belongs to a committed state that a pin keeps in place.
    Pinned(Arc<Pin>),
    /// The pointer was looked up in an object set that is being changed.
    Live(Since),
    /// The pointer belongs to a snapshot that cannot be destroyed while the hold exists.
    Held(Arc<Hold>),
    /// The block is allocated when its read begins: the reader is the sync, or frees the block
    /// itself.
    Allocated,
    /// The pointer may lead to a block that was never written, such as the end of a log chain.
    Speculative,
}

/// When a pointer was looked up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Since {
    /// The allocator's epoch before the look-up; `None` if unknown.
    pub epoch: Option<Epoch>,
    /// Whether an earlier read was overtaken: this one guards the block while it reads, so that it
    /// succeeds.
    pub is_retry: bool,
}

/// Keeps a snapshot from being destroyed until it is released.
#[derive(Debug, Default)]
pub struct Hold(AtomicBool);

impl Hold {
    /// Releases the hold: the snapshot may be destroyed from now on.
    pub fn release(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the hold was released.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Grounds {
    /// Returns the class of reads that would be of `class`: those of scans have their own.
    pub(crate) fn class(&self, class: IoClass) -> IoClass {
        match self {
            Self::Pinned(pin) if pin.is_of_scan() => IoClass::Scrub,
            _ => class,
        }
    }

    /// Checks that the state being read still exists.
    ///
    /// # Errors
    /// `Kind::Overtaken` if the state was released.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Pinned(pin) => pin.check(),
            // Checks E2.
            Self::Held(hold) if hold.is_released() => Err(overtaken()),
            _ => Ok(()),
        }
    }
}

/// One attempt to read a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReadAttempt<'a> {
    pub(crate) grounds: &'a Grounds,
    /// Epoch from which on the pointer was valid.
    since: Option<Epoch>,
    /// Whether the block is guarded while it is read.
    is_guarded: bool,
    /// Class of the reads of leaves.
    pub(crate) class: IoClass,
    /// Receives what is found to be bad, which is counted and repaired at once without it.
    pub(crate) findings: Option<&'a Findings>,
}

impl<'a> ReadAttempt<'a> {
    /// Reads leaves as I/O of this class.
    pub(crate) fn of_class(self, class: IoClass) -> Self {
        Self { class, ..self }
    }

    /// Only notes what is bad.
    pub(crate) fn noting<'b>(self, findings: &'b Findings) -> ReadAttempt<'b>
    where
        'a: 'b,
    {
        ReadAttempt { findings: Some(findings), ..self }
    }
}

/// What a checksum mismatch proves.
#[derive(Debug)]
pub(crate) enum Evidence {
    /// Damage. With a guard it may be repaired.
    Proven(Option<Guard>),
    /// Nothing is proven.
    Unproven,
    /// The space may have been reused, and the reader should look the pointer up again.
    Overtaken,
}

impl From<GuardOutcome> for Evidence {
    fn from(outcome: GuardOutcome) -> Self {
        match outcome {
            GuardOutcome::Unchanged(guard) => Self::Proven(Some(guard)),
            GuardOutcome::Outside => Self::Proven(None),
            GuardOutcome::Reused => Self::Overtaken,
        }
    }
}

/// The error of a reader whose state was released.
pub(crate) fn overtaken() -> Error {
    Error::new(Kind::Overtaken, BlockError::Overtaken)
}

impl BlockStore {
    /// Returns the present moment, to be taken before a pointer of a changing object set is looked
    /// up. `is_retry`: an earlier read was overtaken.
    pub fn since(&self, is_retry: bool) -> Since {
        Since { epoch: self.allocator().map(|space| space.epoch()), is_retry }
    }

    /// Begins attempt number `tries` to read a block.
    pub(crate) fn reading<'a>(&self, grounds: &'a Grounds, tries: u32) -> ReadAttempt<'a> {
        let now = || self.allocator().map(|space| space.epoch());
        let (since, is_guarded) = match grounds {
            Grounds::Live(since) => (since.epoch, since.is_retry),
            Grounds::Held(_) | Grounds::Allocated => (now(), tries > 0),
            Grounds::Offline | Grounds::Pinned(_) | Grounds::Speculative => (None, false),
        };
        let class = IoClass::SyncRead;
        ReadAttempt { grounds, since, is_guarded, class, findings: None }
    }

    /// Guards the block before it is read, if the reader needs that.
    pub(crate) fn guard_first(
        &self,
        bp: &BlockPtr,
        reading: ReadAttempt<'_>,
    ) -> Result<Option<Guard>> {
        let Some(since) = reading.since.filter(|_| reading.is_guarded) else { return Ok(None) };
        // Checks E1.
        match self.guard_since(bp, reading.grounds, since) {
            GuardOutcome::Unchanged(guard) => Ok(Some(guard)),
            GuardOutcome::Outside => Ok(None),
            GuardOutcome::Reused => Err(overtaken()),
        }
    }

    /// Returns what a checksum mismatch proves. To be called after the read.
    pub(crate) fn judge(
        &self,
        bp: &BlockPtr,
        reading: ReadAttempt<'_>,
        guard: Option<Guard>,
    ) -> Evidence {
        if is_on(Bug::RepairWithoutEvidence) || guard.is_some() {
            return Evidence::Proven(guard);
        }
        let is_written = self.allocator().is_some();
        match (reading.grounds, reading.since) {
            (Grounds::Speculative, _) if is_on(Bug::SpeculationBlamed) => Evidence::Proven(None),
            (Grounds::Speculative, _) => Evidence::Unproven,
            (Grounds::Pinned(pin), _) if !pin.is_valid() => Evidence::Overtaken,
            (Grounds::Pinned(pin), _) if pin.may_repair() => self.guard_pinned(bp, pin).into(),
            (Grounds::Pinned(_), _) => Evidence::Proven(None),
            (Grounds::Held(hold), _) if hold.is_released() => Evidence::Overtaken,
            (grounds, Some(since)) => self.guard_since(bp, grounds, since).into(),
            // The object set is no longer updated: its dataset was destroyed or rolled back.
            (Grounds::Live(_), None) if is_written => Evidence::Overtaken,
            (_, None) if is_written => Evidence::Unproven,
            (_, None) => Evidence::Proven(None),
        }
    }

    /// Whether the space of a block was reused since an epoch.
    fn guard_since(&self, bp: &BlockPtr, grounds: &Grounds, since: Epoch) -> GuardOutcome {
        let Some(space) = self.allocator() else { return GuardOutcome::Outside };
        // A later pass may rewrite a block of the syncing txg in place: only the sync itself has
        // the present pointer.
        let is_syncing = bp.physical_birth() > space.committed();
        if is_syncing && !matches!(grounds, Grounds::Allocated) {
            return GuardOutcome::Reused;
        }
        match self.places(bp) {
            Some(places) => space.guard(&places, since),
            None => GuardOutcome::Outside,
        }
    }

    /// Guards a block of a state that a pin keeps in place.
    pub(crate) fn guard_pinned(&self, bp: &BlockPtr, pin: &Pin) -> GuardOutcome {
        match (self.allocator(), self.places(bp)) {
            (Some(space), Some(places)) => space.guard_pinned(&places, pin),
            _ => GuardOutcome::Outside,
        }
    }

    /// Like [`guard_pinned`](Self::guard_pinned), for a range of a vdev.
    pub fn guard_range(&self, vdev: u64, range: std::ops::Range<u64>, pin: &Pin) -> GuardOutcome {
        match self.allocator() {
            Some(space) => space.guard_pinned(&[(vdev, range)], pin),
            None => GuardOutcome::Outside,
        }
    }

    /// Returns the space of a block, or of the header of a gang block; `None` if it is on no vdev.
    fn places(&self, bp: &BlockPtr) -> Option<Vec<(u64, std::ops::Range<u64>)>> {
        let mut places = Vec::new();
        for dva in bp.dvas() {
            // The address of a gang block covers its header only (spec 05 §5.6).
            let len = if dva.gang { HEADER_LEN } else { dva.asize.max(1) };
            places.extend(self.tree().concrete_places(dva, len)?);
        }
        Some(places)
    }
}
