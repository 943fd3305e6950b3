//! Bugs that can be switched on, to see that the tests find them.
//!
//! Each stands for a whole kind of mistake that crash safety or space accounting would not survive.
//! In a build without debug assertions, every release, [`is_on`] is `false` when it is compiled and
//! nothing is left of it. One bug at a time is on, in the whole process.

use std::sync::atomic::{AtomicU8, Ordering};

/// A mistake in the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// What the uberblock reaches may still be in the caches of devices.
    NoFlushBeforeLabels = 1,
    /// The uberblock may be on disk before the even labels.
    NoFlushBeforeUberblock,
    /// A txg counts as committed while its uberblock is on its way.
    NoFlushAfterUberblock,
    /// A txg counts as committed while its odd labels are on their way.
    NoFlushAfterLabels,
    /// All four labels are newer than every uberblock for a while.
    OddLabelsFirst,
    /// The uberblock is written before the MOS is durable.
    UberblockFirst,
    /// Freed space is used again in the very next txg.
    NoDeferral,
    /// One allocation in a space map's append is left out.
    LostAllocation,
    /// One free in a space map's append is left out.
    LostFree,
    /// A block that a snapshot still has is not on the deadlist.
    ForgottenDeadBlock,
    /// The first parity column of each RAID-Z row is zeros.
    LostParity,
    /// The first child of a mirror is not written.
    LostCopy,
    /// Blocks on RAID-Z are given no room for their pads.
    DroppedPad,
    /// Blocks of older txgs are written over.
    RewriteOfOldBlocks,
    /// The log of the oldest unflushed txg is dropped with those before it.
    LogDroppedEarly,
    /// Records of an intent log count as durable while they are on their way.
    NoFlushOfLog,
    /// A txg is synced before the intent logs that a crash left have their space.
    ClaimAfterAllocate,
    /// Of an intent log that a crash left only the first block is claimed.
    ClaimWithoutTail,
    /// Handles of a closed pool's devices go on working.
    NoRevocation,
    /// A block is repaired whether or not its pointer is still live.
    RepairWithoutEvidence,
    /// Space that a pin protects is reused while the pin counts as valid.
    PinNotOvertaken,
    /// Records of writes have the data of later changes. Files that are renamed and changed after
    /// that show it.
    NewerDataInLog,
    /// Requests of a mount go on while its content is replaced.
    OpenGate,
    /// The kernel is not told that the content of a mount was replaced.
    KernelNotTold,
    /// After a rollback a number stands for the node that it stood for, whichever node has it now.
    AnyGeneration,
    /// Dirty pages of the content before a rollback are written into the content after it.
    OldPagesWritten,
    /// A rename is not in the log of changed datasets.
    RenameNotNoted,
    /// A change counts as one of every dataset.
    EverythingNoted,
}

impl Bug {
    /// Those that cuts of a pool show.
    pub const OF_POOLS: [Self; 15] = [
        Self::NoFlushBeforeLabels,
        Self::NoFlushBeforeUberblock,
        Self::NoFlushAfterUberblock,
        Self::NoFlushAfterLabels,
        Self::OddLabelsFirst,
        Self::UberblockFirst,
        Self::NoDeferral,
        Self::LostAllocation,
        Self::LostFree,
        Self::ForgottenDeadBlock,
        Self::LostParity,
        Self::LostCopy,
        Self::DroppedPad,
        Self::RewriteOfOldBlocks,
        Self::LogDroppedEarly,
    ];
    /// Those that cuts of intent logs show.
    pub const OF_LOGS: [Self; 3] =
        [Self::NoFlushOfLog, Self::ClaimAfterAllocate, Self::ClaimWithoutTail];
    /// Those that closing a pool shows.
    pub const OF_CLOSING: [Self; 1] = [Self::NoRevocation];
    /// Those that readers beside writers show.
    pub const OF_READERS: [Self; 2] = [Self::RepairWithoutEvidence, Self::PinNotOvertaken];
    /// Those that rollbacks of mounted file systems show.
    pub const OF_ROLLBACKS: [Self; 4] =
        [Self::OpenGate, Self::KernelNotTold, Self::AnyGeneration, Self::OldPagesWritten];
    /// Those that mounts show when datasets change.
    pub const OF_CHANGES: [Self; 2] = [Self::RenameNotNoted, Self::EverythingNoted];
}

static ON: AtomicU8 = AtomicU8::new(0);

/// Whether this bug is in.
#[must_use]
pub fn is_on(bug: Bug) -> bool {
    cfg!(debug_assertions) && ON.load(Ordering::Relaxed) == bug as u8
}

/// Puts a bug in, or takes the one that is in out. Without debug assertions nothing happens.
pub fn set(bug: Option<Bug>) {
    ON.store(bug.map_or(0, |bug| bug as u8), Ordering::Relaxed);
}

/// Variable that names the bug of [`set_from_environment`].
const VARIABLE: &str = "CENOTE_SEEDED_BUG";

/// Puts in the bug that `CENOTE_SEEDED_BUG` names, for tests of a whole program. Without debug
/// assertions nothing happens.
pub fn set_from_environment() {
    if !cfg!(debug_assertions) {
        return;
    }
    if let Ok(name) = std::env::var(VARIABLE) {
        let of_engine = Bug::OF_POOLS.into_iter().chain(Bug::OF_LOGS);
        let mut bugs = of_engine.chain(Bug::OF_ROLLBACKS).chain(Bug::OF_CHANGES);
        set(bugs.find(|bug| format!("{bug:?}") == name));
    }
}
