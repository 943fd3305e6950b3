//! On what grounds a reader believes that a pointer still leads to its block.
//!
//! Bytes that match a pointer's checksum are its block, however old the pointer is. Bytes that do
//! not match mean one of two things: a device gave wrong bytes, or the block was freed and its
//! space holds another one by now. Only the first is damage. Taking the second for it counts errors
//! against healthy devices, and a repair would write old bytes over a living block. So every reader
//! says how he came to his pointer, and a mismatch counts, is reported and is repaired only if that
//! proves that the block is in place:
//!
//! | grounds       | proof that a mismatch is damage                       | repairs |
//! |---------------|-------------------------------------------------------|---------|
//! | `Offline`     | nobody writes the pool                                | no      |
//! | `Pinned`      | the pin is valid after the read                       | no      |
//! | `Live`        | nothing near the block was reused since the look-up   | yes     |
//! | `Held`        | the same since the read began, with the hold in place | yes     |
//! | `Allocated`   | the same since the read began                         | yes     |
//! | `Speculative` | none                                                  | no      |
//!
//! Invariants (checked in every build)
//! * E1  A repair is written under a [`Guard`], which is taken after the mismatch was found and
//!   refused if any range near the block became free since the pointer was looked up.
//! * E2  A checksum error is counted and a block reported as lost only with proof.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_ondisk::blkptr::BlockPtr;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result};

use crate::alloc::{Epoch, Guard, Pin, Standing};
use crate::error::BlockError;
use crate::store::BlockStore;

/// Smallest space of a gang header.
const HEADER_LEN: u64 = 512;

/// How a reader came to his pointer.
#[derive(Debug, Clone, Default)]
pub enum Grounds {
    /// Nobody writes the pool. In a pool that is being written this proves nothing.
    #[default]
    Offline,
    /// The pointer belongs to a committed state that a pin keeps in place.
    Pinned(Arc<Pin>),
    /// The pointer was looked up in a set that is being changed.
    Live(Since),
    /// The pointer belongs to a snapshot that cannot be destroyed as long as the hold is there.
    Held(Arc<Hold>),
    /// The block is allocated when its read begins: it is freed by the reader himself, or by the
    /// sync that he is part of.
    Allocated,
    /// The pointer may lead to a block that was never written, such as the end of a log.
    Speculative,
}

/// When a pointer was looked up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Since {
    /// The allocator's epoch before the look-up; `None` if nothing is known.
    pub epoch: Option<Epoch>,
    /// Whether a read was overtaken before: this one keeps the block in place while it reads, so
    /// that it comes to a result.
    pub is_again: bool,
}

/// Keeps a snapshot from being destroyed, until it is released.
#[derive(Debug, Default)]
pub struct Hold(AtomicBool);

impl Hold {
    /// The snapshot may be destroyed from now on.
    pub fn release(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether the snapshot may have been destroyed.
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl Grounds {
    /// # Errors
    /// `Kind::Overtaken` if the state that is read was given up.
    pub fn check(&self) -> Result<()> {
        match self {
            Self::Pinned(pin) => pin.check(),
            Self::Held(hold) if hold.is_released() => Err(overtaken()),
            _ => Ok(()),
        }
    }
}

/// One try to read a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reading<'a> {
    pub(crate) grounds: &'a Grounds,
    /// From when on the pointer was live.
    since: Option<Epoch>,
    /// Whether the block is kept in place while it is read.
    is_guarded: bool,
}

/// What a mismatch means.
#[derive(Debug)]
pub(crate) enum Evidence {
    /// Damage. With a guard it may be repaired.
    Proven(Option<Guard>),
    /// Nothing.
    Unproven,
    /// Nothing: the space may be another block's by now, and the reader should look again.
    Overtaken,
}

/// The error of a reader whose state was given up.
pub(crate) fn overtaken() -> Error {
    Error::new(Kind::Overtaken, BlockError::Overtaken)
}

impl BlockStore {
    /// The moment in which pointers of a set that is being changed are looked up: to be asked
    /// before that. `is_again`: a read was overtaken before.
    pub fn since(&self, is_again: bool) -> Since {
        Since { epoch: self.allocator().map(|space| space.epoch()), is_again }
    }

    /// Begins try number `tries` at reading a block.
    pub(crate) fn reading<'a>(&self, grounds: &'a Grounds, tries: u32) -> Reading<'a> {
        let now = || self.allocator().map(|space| space.epoch());
        let (since, is_guarded) = match grounds {
            Grounds::Live(since) => (since.epoch, since.is_again),
            Grounds::Held(_) | Grounds::Allocated => (now(), tries > 0),
            Grounds::Offline | Grounds::Pinned(_) | Grounds::Speculative => (None, false),
        };
        Reading { grounds, since, is_guarded }
    }

    /// Keeps the block in place before it is read, if the reader wants that.
    pub(crate) fn guard_first(&self, bp: &BlockPtr, reading: Reading<'_>) -> Result<Option<Guard>> {
        let Some(since) = reading.since.filter(|_| reading.is_guarded) else { return Ok(None) };
        match self.standing(bp, reading.grounds, since) {
            Standing::Unchanged(guard) => Ok(Some(guard)),
            Standing::Outside => Ok(None),
            Standing::Reused => Err(overtaken()),
        }
    }

    /// What it means that something read does not match. To be asked after the read.
    pub(crate) fn judge(
        &self,
        bp: &BlockPtr,
        reading: Reading<'_>,
        guard: Option<Guard>,
    ) -> Evidence {
        if is_on(Bug::RepairWithoutEvidence) || guard.is_some() {
            return Evidence::Proven(guard);
        }
        let is_written = self.allocator().is_some();
        match (reading.grounds, reading.since) {
            (Grounds::Speculative, _) => Evidence::Unproven,
            (Grounds::Pinned(pin), _) if pin.is_valid() => Evidence::Proven(None),
            (Grounds::Pinned(_), _) => Evidence::Overtaken,
            (Grounds::Held(hold), _) if hold.is_released() => Evidence::Overtaken,
            (grounds, Some(since)) => match self.standing(bp, grounds, since) {
                Standing::Unchanged(guard) => Evidence::Proven(Some(guard)),
                Standing::Outside => Evidence::Proven(None),
                Standing::Reused => Evidence::Overtaken,
            },
            // A set that is kept up to date no more: its dataset was destroyed or rolled back.
            (Grounds::Live(_), None) if is_written => Evidence::Overtaken,
            (_, None) if is_written => Evidence::Unproven,
            (_, None) => Evidence::Proven(None),
        }
    }

    /// What became of the places of a block since an epoch.
    fn standing(&self, bp: &BlockPtr, grounds: &Grounds, since: Epoch) -> Standing {
        let Some(space) = self.allocator() else { return Standing::Outside };
        // A block of the syncing txg may be written in place by another pass: only the sync itself
        // has the pointer to what is there.
        let is_syncing = bp.physical_birth() > space.committed();
        if is_syncing && !matches!(grounds, Grounds::Allocated) {
            return Standing::Reused;
        }
        let mut places = Vec::new();
        for dva in bp.dvas() {
            // The address of a gang block covers its header only (spec 05 §5.6).
            let len = if dva.gang { HEADER_LEN } else { dva.asize.max(1) };
            let Some(found) = self.tree().concrete_places(dva, len) else {
                return Standing::Outside;
            };
            places.extend(found);
        }
        space.guard(&places, since)
    }
}
