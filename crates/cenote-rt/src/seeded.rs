//! Seeded bugs, which show that the tests find them.
//!
//! Each stands for a kind of mistake that would break crash safety or space accounting. Without
//! debug assertions, as in every release, [`is_on`] is constantly `false` and compiled out. One bug
//! at a time is on, in the whole process; in a simulation, in a simulated process.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::simulation;

/// A mistake in the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// Blocks that the uberblock reaches may still be in the write caches of devices.
    NoFlushBeforeLabels = 1,
    /// The uberblock may be on disk before the even labels.
    NoFlushBeforeUberblock,
    /// A txg counts as committed while its uberblock is being written.
    NoFlushAfterUberblock,
    /// A txg counts as committed while its odd labels are being written.
    NoFlushAfterLabels,
    /// All four labels are newer than every uberblock for a while.
    OddLabelsFirst,
    /// The uberblock is written before the MOS is durable.
    UberblockFirst,
    /// Freed space is reused in the next txg.
    NoDeferral,
    /// One allocation is missing in a space map's append.
    LostAllocation,
    /// One free is missing in a space map's append.
    LostFree,
    /// A block that a snapshot still references is not on the deadlist.
    ForgottenDeadBlock,
    /// The first parity column of each RAID-Z row is zeros.
    LostParity,
    /// The first child of a mirror is not written.
    LostCopy,
    /// RAID-Z blocks are allocated without padding.
    DroppedPad,
    /// Blocks of older txgs are overwritten.
    RewriteOfOldBlocks,
    /// The log of the oldest unflushed txg is dropped with those before it.
    LogDroppedEarly,
    /// Records of an intent log count as durable while they are being written.
    NoFlushOfLog,
    /// A txg is synced before the intent logs left by a crash are claimed.
    ClaimAfterAllocate,
    /// Only the first block of an intent log left by a crash is claimed.
    ClaimWithoutTail,
    /// Handles of a closed pool's devices still work.
    NoRevocation,
    /// A block is repaired whether or not its pointer is still live.
    RepairWithoutEvidence,
    /// Parts of a gang block are repaired before its checksum has proven that its header is the
    /// latest one.
    GangHealedEarly,
    /// A scrub accepts every gang header that has the right place and birth.
    StaleHeaderAccepted,
    /// Space that a pin protects is reused while the pin counts as valid.
    PinNotOvertaken,
    /// Records of writes have the data of later changes, which affects files that are renamed and
    /// changed afterwards.
    NewerDataInLog,
    /// Requests of a mount continue while its content is replaced.
    OpenGate,
    /// The kernel is not told that the content of a mount was replaced.
    KernelNotTold,
    /// After a rollback an inode number stands for its old node, even if another node has it now.
    AnyGeneration,
    /// Dirty pages of the content before a rollback are written into the content after it.
    OldPagesWritten,
    /// A rename is missing in the log of changed datasets.
    RenameNotNoted,
    /// A change counts as one of every dataset.
    EverythingNoted,
    /// The first request of a txg determines the creator of all datasets that the txg creates.
    OneCreatorPerTxg,
    /// One user may have every slot for other users.
    NoSharePerUser,
    /// A client's deadline begins again with each part that is received or sent.
    DeadlineExtended,
    /// Output of other users' commands is buffered without limit.
    UnlimitedOutput,
    /// A file system that is mounted again gets a second connection while the first one lives.
    SecondConnection,
    /// The log of a leaf lacks the txg of a write that failed.
    FailedWriteNotLogged,
    /// The log of a leaf that is out of service lacks the txgs that are written meanwhile.
    AbsentLeafNotLogged,
    /// A stale leaf counts as up to date until its log is loaded.
    FreshBeforeDtl,
    /// The log of a leaf is emptied when the leaf comes back, and not when it is complete.
    DtlEmptiedEarly,
    /// Failures after the last pass of a sync are missing in the log of the leaf on disk.
    LateDtlNotRecorded,
    /// The parts of a joined write that failed count as written.
    FailedAggregateForgotten,
    /// Freed space that a pin protects is reused after two txgs.
    PinReleasedEarly,
    /// Reuse of space between the look-up of a pointer and its read is not noticed.
    ReuseUnnoticed,
    /// Disks are blamed for reads beyond the end of an intent log.
    SpeculationBlamed,
    /// The parts of a freed gang block stay allocated.
    GangMembersKept,
    /// A map is used although it was written again while it was read.
    StaleMapInstalled,
    /// Space is allocated where free space is being trimmed or initialized.
    PausedSpaceUsed,
    /// Blocks of the checkpoint are freed like others.
    CheckpointIgnored,
    /// After a flush a metaslab still counts as unflushed on disk.
    FlushNotNoted,
    /// Snapshots are taken before the changes of their txg are written.
    TasksBeforeDatasets,
    /// A request for a sync is answered by the end of the running one.
    RunningSyncJoined,
    /// Object sets accept changes of a txg that is being synced.
    ClosedTxgChanged,
    /// The reserved space of a change that fails is returned twice.
    ChargeReturnedTwice,
    /// Blocks that records of an intent log point to are not claimed.
    TargetsNotClaimed,
    /// Blocks at the begin of an intent log are freed while the header names them.
    LogHeaderNotMoved,
    /// A commit does not wait for records that another commit has taken.
    RecordsOfOthersDurable,
    /// The end of a log write wakes no sync.
    SettledNotNotified,
    /// A txg is closed while log blocks are allocated in it.
    GateDroppedEarly,
    /// A txg is synced without data blocks that are being written in it.
    HoldReleasedEarly,
    /// A sync does not wait for log blocks that are being written.
    UnsettledBlocksIgnored,
    /// A block that was written early is used although it was changed later in its txg.
    EarlyBlockOutdated,
    /// Changes are dropped from memory when they are written, before they can be read from disk.
    DirtyDroppedEarly,
    /// The destruction of a snapshot frees blocks of the snapshot before it.
    SharedBlocksFreed,
    /// A snapshot is destroyed while it is read.
    OpenSnapshotDestroyed,
    /// A snapshot whose destruction was deferred outlives its last hold.
    DeferredDestroyForgotten,
    /// A snapshot does not count its clones.
    CloneNotCounted,
    /// The release of a range wakes no request if only one waits.
    LastWaiterForgotten,
    /// The intent log lacks changes of modes.
    ModeNotLogged,
    /// The removal of one of several names drops the log records of the file.
    LinkedFileForgotten,
    /// The intent log has an exchange of two names as a rename.
    ExchangeLoggedAsRename,
    /// A scan does not follow a head's blocks into a new snapshot.
    ScanMissesSnapshot,
    /// A scan does not follow a destroyed snapshot's blocks into the next one.
    ScanMissesDestroy,
    /// A scan continues with the block after the one at which it stopped.
    ScanSkipsBlock,
    /// A scan visits the next snapshot of a dataset, but no clones.
    ScanSkipsClones,
    /// A scan records how far it is before blocks are repaired.
    ScanAheadOfRepairs,
    /// The end of a scan empties the log of a leaf, whatever failed meanwhile.
    ScanForgetsFailures,
    /// A scan empties the logs of leaves although a checkpoint has blocks that it did not see.
    ScanIgnoresCheckpoint,
    /// Of a block with several copies only the first is repaired.
    OneCopyMended,
    /// Repaired parts of a block are written to another leaf than that on which they were bad.
    RepairToWrongLeaf,
    /// Of a gang block only the header is repaired.
    MembersNotMended,
    /// A resilver writes data, and no parity.
    ParityNotMended,
    /// A resilver leaves out the last txg that leaves lack.
    ScanMissesLastTxg,
    /// What a scrub could not repair is in no log.
    LostBlocksForgotten,
    /// A rebuild forgets that writes to the new device failed.
    RebuildForgetsFailures,
    /// A rebuild leaves out the end of each allocated range.
    RebuildCutsRanges,
    /// A rebuild begins, or is given up, although it has ended since it was looked up.
    RebuildBegunTwice,
    /// The object of a leaf is looked up before the task that uses it, and may be another's then.
    LeafObjectOfBefore,
    /// A rebuild reads from a leaf that lacks some txgs.
    RebuildReadsStale,
    /// A resilver does not write parts that are on a distributed spare.
    SparePartsNotMended,
    /// A rebuild takes a distributed spare for whole although a device below it failed.
    RebuildForgetsSpareHome,
    /// That a resilver was deferred is forgotten when the one before it ends.
    DeferralForgotten,
    /// An expansion copies sectors over old places that are still in use.
    ReflowOverwritesUnmoved,
    /// Writes to sectors that an expansion has copied, and not recorded, go to one place only.
    ReflowWritesOnePlace,
    /// An expansion copies sectors while they are written.
    ReflowCopiesBesideWrites,
    /// An expansion goes on although a child lacks data.
    ReflowIgnoresMissing,
    /// An expansion overwrites the first rows without recording that they are in the boot areas.
    ReflowSkipsScratch,
    /// Blocks of txgs that use the old width count as blocks of the new one.
    ReflowWidensEarly,
    /// An error scrub takes blocks that only snapshots have for freed ones.
    ErrorScrubSkipsSnapshots,
    /// A leaf is detached although it has the only copy of some data.
    DetachIgnoresLogs,
    /// A replaced leaf goes before its replacement has everything.
    ReplacedTooEarly,
    /// The log of a new leaf lacks the txgs that are being written when it comes.
    NewLeafLogTooShort,
    /// A leaf that was detached keeps its labels.
    DetachedKeepsLabels,
    /// A log vdev is removed while intent logs have blocks there.
    LogRemovedInUse,
    /// Labels stay where they were when a device becomes longer.
    LabelsNotMoved,
    /// A vdev that becomes larger has its old size in the config.
    NewSizeNotRecorded,
    /// A pool is split while intent logs have blocks.
    SplitWithLogs,
    /// A split in progress is not recorded.
    SplitNotRecorded,
    /// Errors count for the error rate of a leaf however long ago they were.
    ErrorsNeverAge,
    /// Wrong bytes that a scrub finds count for the error rate of a leaf.
    ScrubErrorsDiagnosed,
    /// A leaf with too many errors is faulted although it has the only copy of some data.
    LastReplicaFaulted,
    /// Ordinary I/O does not count as such, so that scans have no delays.
    OrdinaryIoUnnoticed,
    /// A scan's share of a leaf grows however much ordinary I/O is slowed down.
    SlowdownUnbounded,
    /// The rate that a scan is promised is not kept.
    PromisedRateForgotten,
    /// A block that is freed on a vdev that is being removed leaves its copy allocated.
    CopyNotFreed,
    /// Moved bytes that are freed are not recorded as obsolete.
    ObsoleteNotRecorded,
    /// The last segment of a batch is not copied when a vdev is removed.
    SegmentNotCopied,
    /// Free gaps that are copied with the bytes around them do not count as obsolete.
    GapsNotCounted,
    /// The copies of a cancelled removal stay allocated.
    CancelledCopiesKept,
    /// A resilver that ends before a removal takes leaves without its copies for whole.
    ResilverForgetsCopies,
    /// Logs keep their next blocks on a vdev that is being removed.
    LogsStayOnRemovedVdev,
    /// The devices of a removed vdev keep their labels.
    RemovedKeepsLabels,
    /// The last entry in use is left out of a condensed mapping.
    CondenseDropsEntry,
    /// Bytes that were obsolete before an earlier condensing are forgotten by the next one.
    CondenseForgetsCounts,
    /// The closed obsolete map of a condensed mapping is not freed.
    CondenseKeepsOldMap,
    /// An import leaves the uberblock that it found on the only leaf that has it.
    FoundCommitIncomplete,
    /// A hot spare that is sent back stays open, so that it cannot be called in again.
    SpareKeptOpen,
    /// A hot spare that became an ordinary leaf is still in the list of hot spares.
    PermanentSpareListed,
    /// A hot spare stays when the leaf for which it stood in is back.
    SpareNotReleased,
    /// The config does not have that a vdev gets no new blocks.
    AllocatingNotRecorded,
}

impl Bug {
    /// Bugs found by power cuts of a pool.
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
    /// Bugs found by power cuts amid operations on leaves.
    pub const OF_CUT_LEAVES: [Self; 16] = [
        Self::DtlEmptiedEarly,
        Self::AbsentLeafNotLogged,
        Self::ScanSkipsBlock,
        Self::RebuildCutsRanges,
        Self::DetachedKeepsLabels,
        Self::RemovedKeepsLabels,
        Self::CopyNotFreed,
        Self::ObsoleteNotRecorded,
        Self::CancelledCopiesKept,
        Self::ReflowWidensEarly,
        Self::CondenseDropsEntry,
        Self::CondenseKeepsOldMap,
        Self::RepairToWrongLeaf,
        Self::NewSizeNotRecorded,
        Self::CondenseForgetsCounts,
        Self::LogRemovedInUse,
    ];
    /// Bugs found by power cuts of intent logs.
    pub const OF_LOGS: [Self; 3] =
        [Self::NoFlushOfLog, Self::ClaimAfterAllocate, Self::ClaimWithoutTail];
    /// Bugs found by closing a pool.
    pub const OF_CLOSING: [Self; 1] = [Self::NoRevocation];
    /// Bugs found by readers during writes.
    pub const OF_READERS: [Self; 2] = [Self::RepairWithoutEvidence, Self::PinNotOvertaken];
    /// Bugs found by gang blocks that were rewritten in place, one leaf of which lost the later
    /// writes.
    pub const OF_GANGS: [Self; 2] = [Self::GangHealedEarly, Self::StaleHeaderAccepted];
    /// Bugs found by rollbacks of mounted file systems.
    pub const OF_ROLLBACKS: [Self; 4] =
        [Self::OpenGate, Self::KernelNotTold, Self::AnyGeneration, Self::OldPagesWritten];
    /// Bugs found by mounts when datasets change.
    pub const OF_CHANGES: [Self; 2] = [Self::RenameNotNoted, Self::EverythingNoted];
    /// Bugs found by mounting file systems again while programs use them.
    pub const OF_CONNECTIONS: [Self; 1] = [Self::SecondConnection];
    /// Bugs found by several users who create datasets concurrently.
    pub const OF_CREATORS: [Self; 1] = [Self::OneCreatorPerTxg];
    /// Bugs found by clients that misbehave.
    pub const OF_LIMITS: [Self; 3] =
        [Self::NoSharePerUser, Self::DeadlineExtended, Self::UnlimitedOutput];
    /// Bugs found by scrubs and resilvers of pools with known damage.
    pub const OF_SCANS: [Self; 17] = [
        Self::ScanMissesSnapshot,
        Self::ScanMissesDestroy,
        Self::ScanSkipsBlock,
        Self::ScanSkipsClones,
        Self::ScanAheadOfRepairs,
        Self::ScanForgetsFailures,
        Self::ScanIgnoresCheckpoint,
        Self::OneCopyMended,
        Self::RepairToWrongLeaf,
        Self::MembersNotMended,
        Self::ParityNotMended,
        Self::ScanMissesLastTxg,
        Self::LostBlocksForgotten,
        Self::ErrorScrubSkipsSnapshots,
        Self::OrdinaryIoUnnoticed,
        Self::SlowdownUnbounded,
        Self::PromisedRateForgotten,
    ];
    /// Bugs found by sequential rebuilds.
    pub const OF_REBUILDS: [Self; 3] =
        [Self::RebuildForgetsFailures, Self::RebuildCutsRanges, Self::RebuildBegunTwice];
    /// Bugs found by rebuilds of dRAID vdevs, and by their distributed spares.
    pub const OF_DRAIDS: [Self; 4] = [
        Self::RebuildReadsStale,
        Self::RebuildCutsRanges,
        Self::SparePartsNotMended,
        Self::RebuildForgetsSpareHome,
    ];
    /// Bugs found by resilvers that are deferred.
    pub const OF_DEFERRALS: [Self; 1] = [Self::DeferralForgotten];
    /// Bugs found by copies of a RAID-Z expansion beside other I/O.
    pub const OF_COPIES: [Self; 3] =
        [Self::ReflowOverwritesUnmoved, Self::ReflowWritesOnePlace, Self::ReflowCopiesBesideWrites];
    /// Bugs found by RAID-Z expansions of whole pools.
    pub const OF_REFLOWS: [Self; 3] =
        [Self::ReflowIgnoresMissing, Self::ReflowSkipsScratch, Self::ReflowWidensEarly];
    /// Bugs found by imports after a commit that was interrupted.
    pub const OF_IMPORTS: [Self; 1] = [Self::FoundCommitIncomplete];
    /// Bugs found by commands beside each other.
    pub const OF_RACES: [Self; 1] = [Self::LeafObjectOfBefore];
    /// Bugs found by attaching, replacing and detaching leaves.
    pub const OF_SHAPES: [Self; 9] = [
        Self::DetachIgnoresLogs,
        Self::ReplacedTooEarly,
        Self::NewLeafLogTooShort,
        Self::DetachedKeepsLabels,
        Self::LogRemovedInUse,
        Self::LabelsNotMoved,
        Self::NewSizeNotRecorded,
        Self::SplitWithLogs,
        Self::SplitNotRecorded,
    ];
    /// Bugs found by hot spares that come and go.
    pub const OF_SPARES: [Self; 3] =
        [Self::SpareKeptOpen, Self::PermanentSpareListed, Self::SpareNotReleased];
    /// Bugs found by removing vdevs.
    pub const OF_REMOVALS: [Self; 11] = [
        Self::CopyNotFreed,
        Self::ObsoleteNotRecorded,
        Self::SegmentNotCopied,
        Self::GapsNotCounted,
        Self::CancelledCopiesKept,
        Self::ResilverForgetsCopies,
        Self::LogsStayOnRemovedVdev,
        Self::RemovedKeepsLabels,
        Self::CondenseDropsEntry,
        Self::CondenseForgetsCounts,
        Self::CondenseKeepsOldMap,
    ];
    /// Bugs found by leaves with known error rates.
    pub const OF_DIAGNOSIS: [Self; 3] =
        [Self::ErrorsNeverAge, Self::ScrubErrorsDiagnosed, Self::LastReplicaFaulted];
    /// Bugs found by histories of whole pools, besides those of the suites above.
    pub const OF_HISTORIES: [Self; 36] = [
        Self::FailedWriteNotLogged,
        Self::AbsentLeafNotLogged,
        Self::FreshBeforeDtl,
        Self::DtlEmptiedEarly,
        Self::LateDtlNotRecorded,
        Self::FailedAggregateForgotten,
        Self::PinReleasedEarly,
        Self::ReuseUnnoticed,
        Self::SpeculationBlamed,
        Self::GangMembersKept,
        Self::StaleMapInstalled,
        Self::PausedSpaceUsed,
        Self::CheckpointIgnored,
        Self::FlushNotNoted,
        Self::TasksBeforeDatasets,
        Self::RunningSyncJoined,
        Self::ClosedTxgChanged,
        Self::ChargeReturnedTwice,
        Self::TargetsNotClaimed,
        Self::LogHeaderNotMoved,
        Self::RecordsOfOthersDurable,
        Self::SettledNotNotified,
        Self::GateDroppedEarly,
        Self::HoldReleasedEarly,
        Self::UnsettledBlocksIgnored,
        Self::EarlyBlockOutdated,
        Self::DirtyDroppedEarly,
        Self::SharedBlocksFreed,
        Self::OpenSnapshotDestroyed,
        Self::DeferredDestroyForgotten,
        Self::CloneNotCounted,
        Self::LastWaiterForgotten,
        Self::ModeNotLogged,
        Self::LinkedFileForgotten,
        Self::ExchangeLoggedAsRename,
        Self::AllocatingNotRecorded,
    ];
}

static ON: AtomicU8 = AtomicU8::new(0);

/// Whether this bug is on.
#[must_use]
pub fn is_on(bug: Bug) -> bool {
    if !cfg!(debug_assertions) {
        return false;
    }
    let simulated = simulation::has_bug(bug);
    simulated.unwrap_or_else(|| ON.load(Ordering::Relaxed) == bug as u8)
}

/// Switches a bug on, or all off. Does nothing without debug assertions.
pub fn set(bug: Option<Bug>) {
    if simulation::set_bug(bug) {
        return;
    }
    ON.store(bug.map_or(0, |bug| bug as u8), Ordering::Relaxed);
}

/// Variable that names the bug of a process.
pub const VARIABLE: &str = "CENOTE_SEEDED_BUG";

/// Switches on the one of `bugs` that `CENOTE_SEEDED_BUG` names, and returns it.
///
/// # Panics
///
/// If the variable names another bug: a test without its bug would pass, and seem to miss it.
pub fn switch_on(bugs: &[Bug]) -> Option<Bug> {
    let wanted = std::env::var(VARIABLE).ok()?;
    let bug = bugs.iter().copied().find(|bug| format!("{bug:?}") == wanted);
    assert!(bug.is_some(), "{wanted} is not one of {bugs:?}");
    set(bug);
    bug
}

/// Switches on the bug that `CENOTE_SEEDED_BUG` names, for tests of a whole program. Does nothing
/// without debug assertions.
pub fn set_from_environment() {
    if cfg!(debug_assertions) {
        let bugs = [
            &Bug::OF_POOLS[..],
            &Bug::OF_LOGS,
            &Bug::OF_ROLLBACKS,
            &Bug::OF_CHANGES,
            &Bug::OF_LIMITS,
            &Bug::OF_CONNECTIONS,
        ];
        switch_on(&bugs.concat());
    }
}
