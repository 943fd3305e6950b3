//! The order of all locks: one table, lowest rank first.
//!
//! A thread or task that holds a lock takes only locks that stand further down. A row has the
//! lock's rank, its name in messages, its crate, and what it protects; `docs/design/locks.md` is
//! made from the rows (`cargo run -p xtask -- locks`).
//!
//! A new lock gets a row below every lock that is held when it is taken, and above every lock that
//! is taken while it is held. Locks of tasks stand first: a task that holds a lock of a thread
//! takes none of them.

macro_rules! ranks {
    (
        tasks { $($task:ident = ($task_name:literal, $task_crate:literal, $task_what:literal),)+ }
        threads { $($thread:ident = ($name:literal, $crate_name:literal, $what:literal),)+ }
    ) => {
        /// Name of a lock, and its place in the order of all locks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Rank {
            $(#[doc = $task_what] $task,)+
            /// Divides the locks of tasks from those of threads; no lock has it.
            Threads,
            $(#[doc = $what] $thread,)+
        }

        impl Rank {
            /// Returns the name that messages use.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$task => $task_name,)+
                    Self::Threads => "",
                    $(Self::$thread => $name,)+
                }
            }
        }
    };
}

impl Rank {
    /// Returns true for a lock that is held across awaits, an [`AsyncMutex`](super::AsyncMutex).
    #[must_use]
    pub const fn is_of_tasks(self) -> bool {
        (self as u8) < (Self::Threads as u8)
    }
}

ranks! {
    tasks {
        DaemonOpening = ("opening of recorded pools", "cenote-bin", "One attempt at a time to open the recorded pools that are not open."),
        DaemonMounts = ("changes of mounts", "cenote-bin", "One command at a time mounts and unmounts file systems of a pool."),
        NbdExports = ("opening of exports", "cenote-serve", "Volumes that NBD clients have open; held while one is opened."),
        NbdRoom = ("memory of NBD requests", "cenote-serve", "The request that waits for memory which other requests release."),
        NbdSender = ("NBD answers", "cenote-serve", "The connection to an NBD client, for one answer at a time."),
        AutoTrim = ("batch of automatic trim", "cenote-engine", "One batch of freed ranges that is discarded at a time."),
        ScanControl = ("begin and end of scans", "cenote-engine", "One request at a time begins, pauses or ends a scrub or resilver."),
        RemovalControl = ("begin and end of removals", "cenote-engine", "One request at a time begins or cancels the removal of a vdev."),
        ReflowControl = ("begin of expansions", "cenote-engine", "One request at a time begins the expansion of a RAID-Z vdev."),
        AdmissionGate = ("sync for space", "cenote-engine", "One writer at a time asks for a sync that may free space."),
        Syncing = ("syncing", "cenote-engine", "One sync of a pool at a time, held across all I/O of the sync."),
        LogWriter = ("writer of an intent log", "cenote-engine", "One writer of a dataset's intent log at a time."),
        LogGate = ("gate of log blocks", "cenote-engine", "Log blocks are allocated in the open txg, and the open txg does not change meanwhile."),
        LeafService = ("service of leaves", "cenote-engine", "Leaves leave and enter service one after the other."),
        Relabel = ("labels of devices that leave", "cenote-engine", "One device that has left the pool gets other labels at a time; closing the pool waits for it."),
        BlockBatch = ("batch of block writes", "cenote-block", "Begins the writes of one batch without writes of another batch between them."),
        LeafFlush = ("leaf flush", "cenote-vdev", "One flush of a leaf's device at a time."),
        ScanGate = ("gate of a scan", "cenote-vdev", "One block of a scan at a time waits for its delay."),
    }

    threads {
        DaemonRecord = ("record of a pool", "cenote-bin", "The list of pools and the pool's entry in a cache file, which change together."),
        CacheFile = ("cache file", "cenote-cli", "From the reading of a cache file of pools to its replacement."),
        VerifyFindings = ("findings of verify", "cenote-cli", "Damage that `verify` has not printed yet."),
        ZdbLines = ("findings of zdb", "cenote-cli", "Damage that `zdb` has not printed yet."),
        DaemonPools = ("pools of the daemon", "cenote-bin", "Pools that the daemon has open."),
        DaemonAbsent = ("absent pools", "cenote-bin", "Recorded pools that could not be opened."),
        DaemonGone = ("events of closed pools", "cenote-bin", "Event logs of pools that were closed."),
        DaemonMountTable = ("mounts of a pool", "cenote-bin", "File systems of a pool that the daemon has mounted."),
        DaemonChanged = ("changed datasets of a look", "cenote-bin", "Datasets that changed since mounts were last compared with their properties."),
        DaemonJobs = ("jobs of spare threads", "cenote-bin", "Held by the thread that waits for the next job."),
        DaemonClient = ("client of a job", "cenote-bin", "The connection that a new thread takes over."),
        DaemonSlots = ("slots of clients", "cenote-bin", "Clients that are connected, by user."),
        DaemonStreams = ("output of a command", "cenote-bin", "Output that was not yet sent to a client."),
        DaemonSpool = ("budget of output", "cenote-bin", "Bytes of output that are kept for each user."),
        TerminalLine = ("line of a terminal", "cenote-bin", "What a person is told while a command runs; held while that is printed."),
        DaemonKstats = ("kstat files", "cenote-bin", "Files of kstats while they are written."),
        DaemonParameters = ("parameter files", "cenote-bin", "Values of tunables as their files show them."),
        FuseService = ("FUSE service", "cenote-serve", "The threads of this process that answer FUSE requests; held while they are started."),
        FuseSessions = ("FUSE connections", "cenote-serve", "Connections to the kernel, by number."),
        FuseErrands = ("errands", "cenote-serve", "Work that is waiting for a thread of the FUSE service."),
        FuseServed = ("served datasets", "cenote-serve", "Datasets with a live connection to the kernel."),
        FuseSnapshots = ("open snapshots", "cenote-serve", "Snapshots of a file system that are open below `.zfs`."),
        FuseMount = ("mounted file system", "cenote-serve", "The file system behind a mount; a rollback replaces it."),
        FuseNodes = ("nodes of the kernel", "cenote-serve", "Nodes that the kernel knows, with its lookup counts."),
        MountWorkers = ("mount helpers", "cenote-serve", "Helper processes for mounting."),
        MountGuard = ("mount guard", "cenote-serve", "The process that aborts FUSE connections when this process dies."),
        FsOwnership = ("ownership of a dataset", "cenote-fs", "Keeps a mounted dataset from being destroyed."),
        EngineConfig = ("pool config", "cenote-engine", "The pool's config of vdevs and its facts."),
        TaskQueue = ("task queue", "cenote-engine", "Tasks of the next sync."),
        HeadsOpen = ("open heads", "cenote-engine", "Datasets that are open for writing."),
        HeadsRemoved = ("removed heads", "cenote-engine", "Datasets that were removed while they were open."),
        LeafWorks = ("leaf work", "cenote-engine", "Trim and initialize that run, by leaf."),
        ScanRunner = ("running scan", "cenote-engine", "The scrub or resilver that runs."),
        RemovalRunner = ("running removal", "cenote-engine", "The tasks that remove a vdev, and condense mappings."),
        ReflowRunner = ("running expansion", "cenote-engine", "The expansion of a RAID-Z vdev that runs."),
        ObjectSet = ("object set", "cenote-dmu", "Layers of an object set's changes; closures that change objects run under it."),
        FsLimits = ("quotas of users", "cenote-fs", "Quotas of users, groups and projects as last read."),
        FsOpeners = ("open objects", "cenote-fs", "Objects of a file system that have open handles."),
        FsInodes = ("cached inodes", "cenote-fs", "Attributes of files that are read."),
        FsSettings = ("settings of a file system", "cenote-fs", "Properties of a mounted file system."),
        FsSchema = ("attribute layouts", "cenote-fs", "System attributes and their layouts."),
        FsSettingsCount = ("settings count", "cenote-fs", "Count of property changes that a mount has seen."),
        FsSnapshotsSeen = ("snapshot directory", "cenote-fs", "Snapshots of a file system as last listed."),
        FsAccessTimes = ("access times", "cenote-fs", "How a mount updates access times."),
        FsNodeLocks = ("range locks of files", "cenote-fs", "Range locks of files that are in use, by object."),
        RangeLocks = ("range locks", "cenote-fs", "Ranges of one file or volume that are locked."),
        FsReap = ("unlinked nodes", "cenote-fs", "Unlinked nodes that wait to be freed."),
        FsUnreaped = ("unlinked nodes that failed", "cenote-fs", "Unlinked nodes that could not be freed."),
        OpenSnapshots = ("snapshots in use", "cenote-engine", "Snapshots that are read, with their counts."),
        ChangedDatasets = ("changed datasets", "cenote-engine", "Datasets that changed and that the host has not read yet."),
        HeadSettings = ("settings of a dataset", "cenote-engine", "Properties of an open dataset that change how it is written."),
        HeadShared = ("shared state of a dataset", "cenote-engine", "State that all mounts of an open dataset share."),
        Healing = ("corrective receive", "cenote-stream", "State of the pool in which a corrective receive looks."),
        ReceivePoints = ("points of a receive", "cenote-engine", "Points up to which a dataset was received, by txg."),
        LogQueue = ("queue of an intent log", "cenote-engine", "Records of an intent log that are not written yet."),
        LogChain = ("chain of an intent log", "cenote-engine", "Blocks of an intent log."),
        Admission = ("admission of changes", "cenote-engine", "Costs of changes that are not synced yet, by dataset."),
        Checkpoint = ("pool checkpoint", "cenote-engine", "The pool's checkpoint and the space that it keeps."),
        AutoTrimRanges = ("ranges for automatic trim", "cenote-engine", "Freed ranges that wait to be discarded."),
        LeafWorkSaved = ("progress of leaf work", "cenote-engine", "When the progress of trim and initialize was stored last."),
        BackgroundEnd = ("end of a background task", "cenote-engine", "How a scan, a removal, an expansion, a trim or an initialize ended."),
        RebuildFailed = ("failure of a rebuild", "cenote-engine", "The first failure of a rebuild."),
        Ledger = ("births and deaths of a txg", "cenote-engine", "Blocks that a sync wrote and freed."),
        MetaslabMaps = ("metaslab maps", "cenote-engine", "Metaslab arrays of top-level vdevs as last committed."),
        Uberblock = ("uberblock", "cenote-engine", "The last committed uberblock."),
        NextReflow = ("next reflow word", "cenote-engine", "The reflow word of the uberblock of the syncing txg."),
        BlockPolicy = ("block policy", "cenote-engine", "What the pool's features mean for new blocks."),
        Replayers = ("replayers", "cenote-engine", "Functions that replay intent logs, by kind of dataset."),
        EngineRng = ("random numbers", "cenote-engine", "The pool's source of random numbers."),
        OwnerProbe = ("owner probe", "cenote-engine", "Function that finds the owner of an object."),
        Notices = ("notices", "cenote-engine", "Messages for the next command on the pool."),
        UnreadLogs = ("unread intent logs", "cenote-engine", "Intent logs that could not be read at import."),
        StalledTrees = ("stalled destroys", "cenote-engine", "Destroyed trees whose blocks cannot be read."),
        TaskAnswer = ("answer of a task", "cenote-engine", "Result of an administrative task."),
        Views = ("view of the pool", "cenote-engine", "The newest view that readers share."),
        WriteDelay = ("write delay", "cenote-engine", "When the last delayed write may proceed."),
        Heartbeat = ("multihost heartbeat", "cenote-engine", "State of the multihost heartbeat."),
        Damage = ("damaged blocks", "cenote-engine", "Damaged blocks that are not in the error log yet."),
        Presence = ("mounts and options", "cenote-pool", "Temporary properties and mount points of datasets."),
        Suspension = ("suspension", "cenote-engine", "Whether the pool is suspended, and why."),
        Events = ("pool events", "cenote-engine", "Ring of the pool's events."),
        Keys = ("loaded keys", "cenote-pool", "Keys of encrypted datasets that are loaded."),
        DirNames = ("dataset names", "cenote-pool", "Names of datasets that were looked up."),
        PoolSpace = ("pool space", "cenote-pool", "Space of a pool that is open for reading, once computed."),
        VerifyMissing = ("incomplete leaves", "cenote-pool", "Leaves that a verification found incomplete."),
        PassFacts = ("facts of a pass", "cenote-dmu", "Counts that one pass of a sync collects."),
        Prefetch = ("prefetch streams", "cenote-dmu", "Streams of sequential reads, by object."),
        TreeDnodes = ("dnodes of a tree", "cenote-dmu", "Decoded dnodes of a committed tree."),
        TreePointers = ("pointers of a tree", "cenote-dmu", "Lowest indirect blocks of a committed tree."),
        Salt = ("pool salt", "cenote-block", "The pool's checksum salt."),
        MovedBytes = ("moved bytes", "cenote-block", "The mapping of the vdev that is being removed, and obsolete ranges."),
        Allocator = ("allocator", "cenote-block", "Allocation classes and metaslabs of a pool."),
        GangFindings = ("findings of a gang block", "cenote-block", "Bad parts of a gang block that are neither counted nor repaired yet."),
        AllocatorLanes = ("allocation throttle", "cenote-block", "Limits of bytes in flight, by allocation class."),
        VdevStates = ("vdev states", "cenote-vdev", "One derivation of interior vdevs' states at a time."),
        IndirectMaps = ("indirect maps", "cenote-vdev", "Mappings of removed vdevs."),
        Reflow = ("RAID-Z expansion", "cenote-vdev", "Progress of a RAID-Z expansion."),
        BadChildren = ("bad children of a read", "cenote-vdev", "Children that gave wrong bytes to one read."),
        Permutations = ("dRAID permutations", "cenote-vdev", "Permutation maps that were computed."),
        Unflushed = ("unflushed writes", "cenote-vdev", "Writes that a leaf's device may not have made durable."),
        LeafDevices = ("leaf devices", "cenote-vdev", "The device of a leaf, and devices on trial."),
        Dtl = ("dirty time log", "cenote-vdev", "Txgs that a leaf lacks."),
        Diagnosis = ("error rates", "cenote-vdev", "Recent errors of a leaf, and the rates that its state depends on."),
        Injections = ("injected faults", "cenote-vdev", "Faults that are injected into a leaf."),
        LeafLimits = ("limits of events", "cenote-vdev", "Number of events of a leaf in the current second."),
        Queue = ("leaf queue", "cenote-vdev", "Requests that wait for a leaf's device."),
        ScanWaits = ("waits of a scan", "cenote-vdev", "For how long reads of a scan were held back lately."),
        Plugs = ("plugs", "cenote-vdev", "Queues that continue when the last plug is dropped."),
        WriteBatch = ("write outcome", "cenote-vdev", "Errors of the writes that are awaited together."),
        DeviceHandle = ("device handle", "cenote-device", "The device behind a revocable handle."),
        CommandHash = ("hash of commands", "cenote-device", "Hash of the commands that devices got."),
        Recorder = ("recorder", "cenote-device", "Events that a recording device saw."),
        CachedWrites = ("writes to the page cache", "cenote-device", "Writes of one file that wait for their turn."),
        FuseRing = ("answers for a ring", "cenote-serve", "Answers and connections that a thread gives to the kernel."),
        Ring = ("io_uring queue", "cenote-device", "Requests that wait for the thread of the ring."),
        ModelDisk = ("modelled disk", "cenote-device", "Contents, faults and commands in flight of a modelled disk."),
        ImageBytes = ("image of a device", "cenote-device", "Bytes of a sparse device in memory."),
        MemoryBytes = ("bytes of a device", "cenote-device", "Bytes of a device in memory."),
        SimulatedExtents = ("extents of a device", "cenote-device", "Content of a simulated device."),
        Stages = ("stages", "cenote-bin", "The stage at which a test stops the process."),
        BufferPool = ("buffer pool", "cenote-rt", "Storage of buffers, for another use."),
        SimulatedReady = ("ready tasks of a simulation", "cenote-rt", "Tasks of a simulation that were woken."),
        SimulatedPulse = ("poll of a simulation", "cenote-rt", "The task that a simulation polls, for its watchdog."),
    }
}
