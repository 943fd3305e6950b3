//! A history as data: its layout, tunables, lives, tasks, operations and faults.
//!
//! ```text
//!   seed ──draw──> Plan ── Life ── TaskPlan ── Step: pause, operation
//!                              |── faults: before which command, on which disk
//!                              `── End: how the process ends
//! ```
//!
//! Everything random about a history is in its plan, except latencies and contents, which the
//! plan's seed determines. Operations select files, snapshots and places by numbers, modulo the
//! number of candidates, so that any part of a plan is a plan: shrinking leaves out lives, tasks,
//! steps and faults. A plan that showed a bug is kept as a file, because the plan that a seed gives
//! changes with [`draw`].

pub(crate) mod draw;
pub(crate) mod layout;
pub(crate) mod print;

use serde::{Deserialize, Serialize};

use crate::disks::Fault;
pub(crate) use layout::Layout;

/// A history.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Seed of latencies, contents, guids and secrets.
    pub(crate) seed: u64,
    /// Number of processors.
    pub(crate) processors: usize,
    /// Whether work takes time of processors.
    #[serde(default)]
    pub(crate) has_costs: bool,
    /// Seed of the order of tasks that can run at the same time; `None` for first come, first
    /// served.
    pub(crate) interleave: Option<u64>,
    /// Vdevs of the pool.
    pub(crate) layout: Layout,
    /// Tunables with other values than usual.
    pub(crate) tunables: Vec<(String, u64)>,
    /// File systems, by number.
    pub(crate) file_systems: Vec<FileSystemPlan>,
    /// Volumes, by number.
    pub(crate) volumes: Vec<VolumePlan>,
    /// Lives of the process.
    pub(crate) lives: Vec<Life>,
}

/// Properties of a file system.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct FileSystemPlan {
    /// Properties with their numbers.
    pub(crate) properties: Vec<(String, u64)>,
    /// Number of actors: each works in a directory of its own.
    pub(crate) actors: usize,
    /// Whether its only actor rolls it back.
    #[serde(default)]
    pub(crate) rolls_back: bool,
    /// Whether it is an encryption root.
    #[serde(default)]
    pub(crate) is_encrypted: bool,
}

/// A volume.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct VolumePlan {
    /// Properties with their numbers.
    pub(crate) properties: Vec<(String, u64)>,
    /// Block size.
    pub(crate) block_size: u64,
    /// Number of slots.
    pub(crate) slots: u64,
    /// Whether it is an encryption root.
    #[serde(default)]
    pub(crate) is_encrypted: bool,
}

/// A life of the process, from the import to its end.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Life {
    /// Tasks that run at the same time.
    pub(crate) tasks: Vec<TaskPlan>,
    /// Faults, each with the number of the command before which it happens.
    pub(crate) faults: Vec<FaultPlan>,
    /// Disks that are missing when the pool is imported.
    #[serde(default)]
    pub(crate) missing: Vec<usize>,
    /// Jumps of the time of day, each with the number of the command before which it happens, and
    /// seconds.
    #[serde(default)]
    pub(crate) clock: Vec<(u64, i64)>,
    /// How the life ends.
    pub(crate) end: End,
    /// The number of the command before which it ends; tasks may be done earlier.
    pub(crate) end_at: u64,
    /// The number of the write to labels before which it ends, if that is earlier.
    #[serde(default)]
    pub(crate) end_at_label: Option<u64>,
    /// Seconds until the next life.
    pub(crate) gap: u64,
    /// Seconds by which the time of day jumps before the next life.
    pub(crate) jump: i64,
}

/// A fault of a disk.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct FaultPlan {
    /// Number of the command before which it happens.
    pub(crate) at: u64,
    /// Number of the disk.
    pub(crate) disk: usize,
    /// The fault.
    pub(crate) fault: Fault,
}

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    /// The pool is exported, while tasks may still use it.
    Export,
    /// The pool is closed by force.
    ForcedClose,
    /// The process is killed.
    Kill,
    /// The power of all disks is cut.
    PowerCut,
}

impl End {
    /// Returns its name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Export => "exports",
            Self::ForcedClose => "forced closes",
            Self::Kill => "kills",
            Self::PowerCut => "power cuts",
        }
    }
}

/// A task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TaskPlan {
    /// What it works on.
    pub(crate) role: Role,
    /// What it does.
    pub(crate) steps: Vec<Step>,
}

/// What a task works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Directory of this actor of a file system.
    Files {
        /// Number of the file system.
        file_system: usize,
        /// Number of the actor.
        actor: usize,
    },
    /// A file system that this task alone writes and rolls back.
    Home {
        /// Number of the file system.
        file_system: usize,
    },
    /// Every n-th slot of a volume.
    Volume {
        /// Number of the volume.
        volume: usize,
        /// Number of the actor.
        actor: usize,
    },
    /// Datasets below `tank/d<number>`.
    Datasets {
        /// Number of the subtree.
        tree: usize,
    },
    /// Snapshots of a file system or volume that is being written.
    Snapshots {
        /// Number of the file system.
        file_system: usize,
    },
    /// Old and live states.
    Reader,
    /// The pool and its devices.
    Operator,
    /// Leaves that fail: hot spares are called in for them, as by the daemon. It has no steps.
    SpareAgent,
}

/// An operation, after a pause.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Step {
    /// Microseconds to wait.
    pub(crate) pause: u32,
    /// The operation.
    pub(crate) op: Op,
}

/// An operation. Numbers select among candidates, modulo their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    /// Creates a file, directory or symbolic link.
    Create { dir: u32, name: u8, kind: u8 },
    /// Adds a name to a file.
    Link { file: u32, dir: u32, name: u8 },
    /// Removes a file or an empty directory.
    Remove { entry: u32 },
    /// Renames a file or directory; a file may replace another.
    Rename { entry: u32, dir: u32, name: u8 },
    /// Exchanges two names.
    Exchange { entry: u32, other: u32 },
    /// Writes to a file.
    Write { file: u32, offset: u32, len: u32, is_append: bool, is_sync: bool },
    /// Changes the size of a file.
    Truncate { file: u32, size: u32 },
    /// Punches a hole, or writes zeros.
    Punch { file: u32, offset: u32, len: u32, extends: bool },
    /// Sets an extended attribute.
    SetXattr { file: u32, name: u8, len: u16 },
    /// Removes an extended attribute.
    RemoveXattr { file: u32, name: u8 },
    /// Changes permission bits.
    Chmod { file: u32, mode: u16 },
    /// Reads from a file.
    Read { file: u32, offset: u32, len: u32 },
    /// Lists a directory.
    List { dir: u32 },
    /// Makes a file, and all names, durable.
    Fsync { file: u32 },
    /// Makes a file system durable.
    SyncFs,
    /// Keeps a file open, so that it survives the removal of its names.
    Hold { file: u32 },
    /// Closes files that are kept open.
    Release,

    /// Rolls the mounted file system back to its latest snapshot.
    RollbackMount,

    /// Writes to a slot of a volume.
    VolumeWrite { slot: u32, offset: u32, len: u32, is_fua: bool },
    /// Zeroes a part of a slot.
    VolumeZero { slot: u32, offset: u32, len: u32, no_hole: bool },
    /// Discards a part of a slot.
    VolumeDiscard { slot: u32, offset: u32, len: u32 },
    /// Reads a slot.
    VolumeRead { slot: u32, offset: u32, len: u32 },
    /// Flushes the volume.
    VolumeFlush,

    /// Writes blocks of a dataset.
    Fill { head: u32, block: u32, count: u8 },
    /// Creates a dataset.
    CreateDataset { number: u16 },
    /// Creates a dataset as one of several users.
    CreateDatasetAs { number: u16, user: u8 },
    /// Sets the permissions that creators of datasets get, or removes them.
    AllowCreators { which: u8 },
    /// Destroys a dataset without snapshots.
    DestroyDataset { head: u32 },
    /// Takes a snapshot of one dataset, or of all.
    Snapshot { head: u32, number: u16, is_of_all: bool },
    /// Destroys a snapshot.
    DestroySnapshot { snapshot: u32, is_deferred: bool },
    /// Clones a snapshot.
    Clone { snapshot: u32, number: u16 },
    /// Promotes a clone.
    Promote { clone: u32 },
    /// Rolls back to the latest snapshot.
    Rollback { head: u32 },
    /// Renames a dataset.
    RenameDataset { head: u32, number: u16 },
    /// Renames a snapshot.
    RenameSnapshot { snapshot: u32, number: u16 },
    /// Holds a snapshot.
    HoldSnapshot { snapshot: u32 },
    /// Releases a snapshot.
    ReleaseSnapshot { snapshot: u32 },
    /// Creates a bookmark.
    Bookmark { snapshot: u32, number: u16 },
    /// Destroys a bookmark.
    DestroyBookmark { bookmark: u32 },
    /// Sets a property of a dataset, or inherits it.
    Property { head: u32, which: u8, value: u8 },
    /// Sends a snapshot, and receives it as a new dataset. It is given up after some records, if
    /// there are as many.
    Receive { snapshot: u32, number: u16, records: u16, is_compressed: bool },
    /// Sends what was changed since the snapshot from which a dataset was received, and receives it
    /// into that dataset.
    ReceiveIncrement { snapshot: u32, records: u16, is_compressed: bool },
    /// Reads a dataset or a snapshot and compares it.
    ReadDataset { which: u32 },

    /// Reads the files of a file system in a view that is kept for some time.
    View { file_system: u32, keep: u16 },
    /// Reads the files of a file system in a view, keeps the view for many txgs, and reads them
    /// again.
    KeepView { file_system: u32, seconds: u16 },
    /// Lists a directory of another actor, with a pause in the middle of the list.
    SlowList { file_system: u32, actor: u32, dir: u32, seconds: u16 },
    /// Reads a file of another actor.
    Peek { file_system: u32, actor: u32, file: u32, offset: u32, len: u32 },
    /// Lists all datasets and snapshots of a view.
    ListPool,
    /// Verifies a view.
    Verify,
    /// Checks a view for leaks.
    Leaks,
    /// Opens a snapshot and reads its files.
    OpenSnapshot { file_system: u32, snapshot: u32 },
    /// Compares two snapshots of a file system.
    Diff { file_system: u32, snapshot: u32, other: u32 },
    /// Compares two snapshots, with a pause in the middle of the differences.
    SlowDiff { file_system: u32, snapshot: u32, other: u32, seconds: u16 },

    /// Syncs the pool.
    Sync,
    /// Drops clean blocks from the cache.
    DropCache,
    /// Changes the size of the cache.
    LimitCache { mib: u8 },
    /// Takes a disk offline.
    Offline { disk: u32 },
    /// Brings a disk online.
    Online { disk: u32 },
    /// Clears errors.
    Clear,
    /// Takes a checkpoint.
    Checkpoint,
    /// Discards the checkpoint.
    DiscardCheckpoint,
    /// Trims all disks.
    Trim,
    /// Initializes a disk for a moment.
    Initialize { disk: u32 },
    /// Replaces a disk by one that is free.
    Replace { disk: u32, with: u32 },
    /// Adds a free disk beside a disk, as another side of its mirror.
    Attach { disk: u32, with: u32 },
    /// Removes a disk from its mirror, or cancels its replacement; one in four removes a log vdev
    /// instead, if there is one.
    Detach { disk: u32 },
    /// Adds a free disk without faults as a vdev.
    AddVdev { with: u32 },
    /// Begins the removal of a vdev with data.
    RemoveVdev { vdev: u32 },
    /// Sets whether a vdev for data gets new blocks.
    SetAllocating { vdev: u32, is_on: bool },
    /// Makes another pool of one disk of each mirror: disks that may leave the pool.
    Split { side: u32 },
    /// Expands a RAID-Z vdev by a free disk without faults.
    Expand { with: u32 },
    /// Makes a disk longer, or all of them, and lets their vdevs follow.
    Grow { disk: u32, is_of_all: bool },
    /// Lets a distributed spare stand in for a disk, or sends it back if it does.
    Spare { disk: u32 },
    /// Adds a free disk as a hot spare.
    AddSpare { with: u32 },
    /// Removes a hot spare that stands in for no disk.
    RemoveSpare { spare: u32 },
    /// Calls in a hot spare for a disk that failed.
    CallInSpare { disk: u32 },
    /// Replaces a disk by a hot spare, whether or not it failed.
    ReplaceBySpare { disk: u32, spare: u32 },
    /// Sends back a hot spare that stands in for a disk.
    SendBackSpare { spare: u32 },
    /// Detaches a disk for which a hot spare stands in, so that the spare takes its place for good.
    KeepSpare { spare: u32 },
    /// Replaces a disk for which a hot spare stands in by a free disk.
    ReplaceSpared { spare: u32, with: u32 },
    /// Declares a disk faulted.
    Fault { disk: u32, is_temporary: bool },
    /// Cancels the removal that runs.
    CancelRemoval,
    /// Starts a scrub, or resumes a paused one.
    Scrub,
    /// Starts a resilver if a disk in service lacks data.
    Resilver,
    /// Pauses a scrub.
    PauseScrub,
    /// Cancels a scrub or resilver.
    StopScan,
    /// Throttles scans in another way, from now on.
    Throttle { model: u8, delay: u8 },
    /// Injects a fault into a disk that may have faults, as `zinject` does.
    Inject { disk: u32, effect: u8, percent: u8 },
    /// Removes the injected faults.
    CancelInjections,
    /// Sets the number of failed and wrong I/Os with which a disk leaves service or is degraded.
    ErrorRates { disk: u32, count: u8 },
}

impl Plan {
    /// Whether no disk has a fault that leaves damage, and none is missing at an import.
    pub(crate) fn is_undamaged(&self) -> bool {
        let mut faults = self.lives.iter().flat_map(|life| &life.faults);
        faults.all(|plan| plan.fault.is_harmless())
            && self.lives.iter().all(|life| life.missing.is_empty())
    }

    /// Returns the plan in the form in which files keep it.
    ///
    /// # Panics
    /// Never: a plan has no maps and no numbers that the format lacks.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data")
    }

    /// Reads a plan.
    ///
    /// # Errors
    /// Where the text is not a plan.
    pub(crate) fn from_json(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }
}

impl Op {
    /// Returns its name in tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::Link { .. } => "link",
            Self::Remove { .. } => "remove",
            Self::Rename { .. } => "rename",
            Self::Exchange { .. } => "exchange",
            Self::Write { .. } => "write",
            Self::Truncate { .. } => "truncate",
            Self::Punch { .. } => "punch",
            Self::SetXattr { .. } => "set xattr",
            Self::RemoveXattr { .. } => "remove xattr",
            Self::Chmod { .. } => "chmod",
            Self::Read { .. } => "read",
            Self::List { .. } => "list directory",
            Self::Fsync { .. } => "fsync",
            Self::SyncFs => "syncfs",
            Self::Hold { .. } => "hold file",
            Self::Release => "release files",
            Self::RollbackMount => "rollback of a mount",
            Self::VolumeWrite { .. } => "volume write",
            Self::VolumeZero { .. } => "volume zero",
            Self::VolumeDiscard { .. } => "volume discard",
            Self::VolumeRead { .. } => "volume read",
            Self::VolumeFlush => "volume flush",
            Self::Fill { .. } => "fill dataset",
            Self::CreateDataset { .. } => "create dataset",
            Self::CreateDatasetAs { .. } => "create dataset as a user",
            Self::AllowCreators { .. } => "allow creators",
            Self::DestroyDataset { .. } => "destroy dataset",
            Self::Snapshot { .. } => "snapshot",
            Self::DestroySnapshot { .. } => "destroy snapshot",
            Self::Clone { .. } => "clone",
            Self::Promote { .. } => "promote",
            Self::Rollback { .. } => "rollback",
            Self::RenameDataset { .. } => "rename dataset",
            Self::RenameSnapshot { .. } => "rename snapshot",
            Self::HoldSnapshot { .. } => "hold",
            Self::ReleaseSnapshot { .. } => "release",
            Self::Bookmark { .. } => "bookmark",
            Self::DestroyBookmark { .. } => "destroy bookmark",
            Self::Property { .. } => "set property",
            Self::Receive { .. } => "receive",
            Self::ReceiveIncrement { .. } => "receive an increment",
            Self::ReadDataset { .. } => "read dataset",
            Self::View { .. } => "view",
            Self::KeepView { .. } => "keep view",
            Self::SlowList { .. } => "slow list",
            Self::Peek { .. } => "peek",
            Self::ListPool => "list pool",
            Self::Verify => "verify",
            Self::Leaks => "leak check",
            Self::OpenSnapshot { .. } => "open snapshot",
            Self::Diff { .. } => "diff",
            Self::SlowDiff { .. } => "slow diff",
            Self::Sync => "sync",
            Self::DropCache => "drop cache",
            Self::LimitCache { .. } => "limit cache",
            Self::Offline { .. } => "offline",
            Self::Replace { .. } => "replace",
            Self::Attach { .. } => "attach",
            Self::Detach { .. } => "detach",
            Self::Online { .. } => "online",
            Self::Clear => "clear",
            Self::Checkpoint => "checkpoint",
            Self::DiscardCheckpoint => "discard checkpoint",
            Self::Trim => "trim",
            Self::Initialize { .. } => "initialize",
            Self::AddVdev { .. } => "add vdev",
            Self::RemoveVdev { .. } => "remove vdev",
            Self::SetAllocating { .. } => "set allocating",
            Self::Split { .. } => "split",
            Self::Expand { .. } => "expand vdev",
            Self::Spare { .. } => "distributed spare",
            Self::AddSpare { .. } => "add hot spare",
            Self::RemoveSpare { .. } => "remove hot spare",
            Self::CallInSpare { .. } => "call in hot spare",
            Self::ReplaceBySpare { .. } => "replace by hot spare",
            Self::SendBackSpare { .. } => "send back hot spare",
            Self::KeepSpare { .. } => "keep hot spare",
            Self::ReplaceSpared { .. } => "replace spared disk",
            Self::Fault { .. } => "fault",
            Self::Grow { .. } => "grow disks",
            Self::CancelRemoval => "cancel removal",
            Self::Scrub => "scrub",
            Self::Resilver => "resilver",
            Self::PauseScrub => "pause scrub",
            Self::StopScan => "stop scan",
            Self::Throttle { .. } => "throttle scans",
            Self::Inject { .. } => "inject fault",
            Self::CancelInjections => "cancel injected faults",
            Self::ErrorRates { .. } => "set error rates",
        }
    }
}
