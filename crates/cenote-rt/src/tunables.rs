//! Tunables: every policy constant of the engine, under OpenZFS's name, in one table.
//!
//! A tunable is an atomic number with a name, a default, a range and a help text. It can be read
//! and set at run time, in decimal or 0x hexadecimal: by `cenote tunable`, and by files of the
//! daemon (`docs/watching.md`). All policy constants are here; constants of the on-disk format are
//! next to their decoders.
//!
//! In a simulation ([`crate::World`]) each simulated process has its own values, and the functions
//! here read and set the values of the current one.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::simulation;

/// One policy number.
#[derive(Debug)]
pub struct Tunable {
    /// OpenZFS's name; `cenote_…` where OpenZFS has none.
    pub name: &'static str,
    /// Initial value.
    pub default: u64,
    /// Minimum value.
    pub min: u64,
    /// Maximum value.
    pub max: u64,
    /// What it does, with its unit.
    pub help: &'static str,
    value: AtomicU64,
    index: Index,
}

/// Why a tunable was not set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TunableError {
    /// There is no tunable with this name.
    #[error("no tunable is named '{0}'")]
    Unknown(String),
    /// Not a number.
    #[error("'{0}' is not a decimal or 0x hexadecimal number")]
    NotANumber(String),
    /// The value is out of range.
    #[error("{name} takes {min} to {max}, not {value}")]
    Range {
        /// The tunable.
        name: &'static str,
        /// Minimum value.
        min: u64,
        /// Maximum value.
        max: u64,
        /// The refused value.
        value: u64,
    },
}

impl Tunable {
    const fn new(
        index: Index,
        name: &'static str,
        default: u64,
        (min, max): (u64, u64),
        help: &'static str,
    ) -> Self {
        Self { name, default, min, max, help, value: AtomicU64::new(default), index }
    }

    /// Returns its index in [`ALL`].
    pub(crate) fn index(&self) -> usize {
        self.index as usize
    }

    /// Returns the current value.
    #[must_use]
    #[inline]
    pub fn get(&self) -> u64 {
        if simulation::is_used()
            && let Some(value) = simulation::tunable(self.index())
        {
            return value;
        }
        self.value.load(Ordering::Relaxed)
    }

    /// Returns the current value, as a length or count in memory.
    #[must_use]
    pub fn get_usize(&self) -> usize {
        usize::try_from(self.get()).unwrap_or(usize::MAX)
    }

    /// Sets the value, if it is in range.
    pub fn set(&self, value: u64) -> Result<(), TunableError> {
        self.check(value)?;
        if !simulation::set_tunable(self.index(), value) {
            self.value.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Parses a value, decimal or 0x hexadecimal, if it is in range. Values of
    /// [`DEADMAN_FAILMODE`] also have OpenZFS's names.
    pub fn parse(&self, text: &str) -> Result<u64, TunableError> {
        if self.name == DEADMAN_FAILMODE.name
            && let Some(mode) = (0..).zip(FAILMODES).find(|(_, name)| *name == text)
        {
            return Ok(mode.0);
        }
        let value = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => text.parse(),
        };
        let value = value.map_err(|_| TunableError::NotANumber(text.to_owned()))?;
        self.check(value)?;
        Ok(value)
    }

    pub(crate) fn check(&self, value: u64) -> Result<(), TunableError> {
        let &Self { name, min, max, .. } = self;
        if (min..=max).contains(&value) {
            return Ok(());
        }
        Err(TunableError::Range { name, min, max, value })
    }
}

/// Returns the tunable with this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Tunable> {
    ALL.iter().copied().find(|tunable| tunable.name == name)
}

/// Sets the tunable `name` from text, for `-o name=value` on a command line.
pub fn set(name: &str, text: &str) -> Result<(), TunableError> {
    let tunable = find(name).ok_or_else(|| TunableError::Unknown(name.to_owned()))?;
    tunable.set(tunable.parse(text)?)
}

macro_rules! tunables {
    ($($ident:ident = $name:literal, $default:expr, $range:expr, $help:literal;)*) => {
        /// Places of the tunables in [`ALL`].
        #[derive(Debug, Clone, Copy)]
        #[expect(non_camel_case_types, clippy::upper_case_acronyms, reason = "names of statics")]
        enum Index {
            $($ident,)*
        }

        $(
            #[doc = $help]
            pub static $ident: Tunable =
                Tunable::new(Index::$ident, $name, $default, $range, $help);
        )*
        /// Every tunable, in the order of this file.
        pub static ALL: &[&Tunable] = &[$(&$ident),*];
    };
}

/// Names of the values of [`DEADMAN_FAILMODE`].
const FAILMODES: [&str; 3] = ["wait", "continue", "panic"];
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

tunables! {
    BLOCK_CACHE_BYTES = "zfs_arc_max", 64 * MIB, (MIB, 1 << 46),
        "bytes of decompressed blocks that the cache keeps";
    DEVICE_QUEUE_DEPTH = "cenote_device_queue_depth", 64, (1, 4096),
        "I/Os in the kernel for one file or block device";
    CLOSE_TIMEOUT_MS = "cenote_close_timeout_ms", 5_000, (1, 600_000),
        "milliseconds that devices have to answer what they were asked when a pool is closed";
    CLOSE_STALL_MS = "cenote_close_stall_ms", 10_000, (1, 600_000),
        "milliseconds without an answer after which closing by force does not wait for devices";
    ROLLBACK_TIMEOUT_MS = "cenote_rollback_timeout_ms", 30_000, (10, 600_000),
        "milliseconds that a rollback waits for requests in hand of a mounted file system";
    NBD_MEMORY_BYTES = "cenote_nbd_memory_bytes", 1024 * MIB, (64 * MIB, 1 << 46),
        "bytes that the requests under way of all NBD clients of a server may take";
    SUSPENDED_READ_MS = "cenote_suspended_read_ms", 1_000, (0, 600_000),
        "milliseconds that commands read the metadata of a suspended pool before they show it from memory";
    NBD_STALL_MS = "cenote_nbd_stall_ms", 60_000, (100, 3_600_000),
        "milliseconds after which an NBD client that stopped reading or sending is left if others wait";
    IO_URING = "cenote_io_uring", 1, (0, 1),
        "whether devices are read and written through io_uring where the kernel allows it";
    DIRECT_IO = "cenote_direct_io", 2, (0, 2),
        "aligned I/O that bypasses the page cache: 0 none, 1 all, 2 of disks open for writing";
    DIRTY_DATA_MAX = "zfs_dirty_data_max", 256 * MIB, (MIB, 1 << 46),
        "bytes of changes in memory at which writers wait";
    DIRTY_DATA_SYNC_PERCENT = "zfs_dirty_data_sync_percent", 20, (1, 100),
        "percent of that at which a transaction group is synced";
    DELAY_MIN_DIRTY_PERCENT = "zfs_delay_min_dirty_percent", 60, (0, 100),
        "percent of the dirty data limit above which writers are slowed down";
    DELAY_SCALE = "zfs_delay_scale", 500_000, (0, 1 << 32),
        "nanoseconds that a writer waits half way from there to the limit";
    UNFLUSHED_MAX = "cenote_unflushed_max", 256 * MIB, (MIB, 1 << 46),
        "bytes written to a leaf after which it is flushed, wherever the transaction group is";
    MOUNT_LOOKOUT_US = "cenote_mount_lookout_us", 50, (0, 10_000),
        "microseconds that a mount looks out for the next request before it sleeps, while they come that fast";
    MOUNT_RING_SLOTS = "cenote_mount_ring_slots", 8_192, (0, 16_384),
        "requests of each processor for which mounts have room, where the kernel offers io_uring for FUSE; 0: no new mount uses it";
    MOUNT_RING_IDLE_BYTES = "cenote_mount_ring_idle_bytes", 8 * MIB, (0, 1 << 40),
        "bytes of memory that each processor keeps for requests through io_uring that are to come";
    ADMIN_SNAPSHOT = "zfs_admin_snapshot", 0, (0, 1),
        "whether directories in .zfs/snapshot can be made, removed and renamed";
    TXG_TIMEOUT = "zfs_txg_timeout", 5, (1, 3600),
        "seconds after which changes are synced at the latest";
    ASYNC_BLOCK_MAX_BLOCKS = "zfs_async_block_max_blocks", 100_000, (1, u64::MAX),
        "blocks of what was destroyed that one txg frees";
    FREE_MIN_TIME_MS = "zfs_free_min_time_ms", 500, (1, 60_000),
        "milliseconds that one txg spends on freeing what was destroyed";
    AGGREGATION_LIMIT = "zfs_vdev_aggregation_limit", MIB, (0, 16 * MIB),
        "bytes up to which neighbouring I/Os are issued as one";
    READ_GAP_LIMIT = "zfs_vdev_read_gap_limit", 32 * KIB, (0, MIB),
        "bytes of gap that an aggregated read may bridge";
    VDEV_MAX_ACTIVE = "zfs_vdev_max_active", 1000, (1, 1 << 16),
        "I/Os under way on one leaf";
    SYNC_READ_MIN_ACTIVE = "zfs_vdev_sync_read_min_active", 10, (1, 1 << 16),
        "reads that somebody waits for that a leaf has under way before other classes get more";
    SYNC_READ_MAX_ACTIVE = "zfs_vdev_sync_read_max_active", 10, (1, 1 << 16),
        "reads that somebody waits for that a leaf has under way at most";
    SYNC_WRITE_MIN_ACTIVE = "zfs_vdev_sync_write_min_active", 10, (1, 1 << 16),
        "writes that somebody waits for that a leaf has under way before other classes get more";
    SYNC_WRITE_MAX_ACTIVE = "zfs_vdev_sync_write_max_active", 10, (1, 1 << 16),
        "writes that somebody waits for that a leaf has under way at most";
    ASYNC_READ_MIN_ACTIVE = "zfs_vdev_async_read_min_active", 1, (1, 1 << 16),
        "reads ahead that a leaf has under way before other classes get more";
    ASYNC_READ_MAX_ACTIVE = "zfs_vdev_async_read_max_active", 3, (1, 1 << 16),
        "reads ahead that a leaf has under way at most";
    ASYNC_WRITE_MIN_ACTIVE = "zfs_vdev_async_write_min_active", 2, (1, 1 << 16),
        "writes of transaction groups that a leaf has under way before other classes get more";
    ASYNC_WRITE_MAX_ACTIVE = "zfs_vdev_async_write_max_active", 10, (1, 1 << 16),
        "writes of transaction groups that a leaf has under way at most";
    SCRUB_MIN_ACTIVE = "zfs_vdev_scrub_min_active", 1, (1, 1 << 16),
        "reads of scrub and resilver that a leaf has under way before other classes get more";
    SCRUB_MAX_ACTIVE = "zfs_vdev_scrub_max_active", 3, (1, 1 << 16),
        "reads of scrub and resilver that a leaf has under way at most";
    REMOVAL_MIN_ACTIVE = "zfs_vdev_removal_min_active", 1, (1, 1 << 16),
        "I/Os of a removal that a leaf has under way before other classes get more";
    REMOVAL_MAX_ACTIVE = "zfs_vdev_removal_max_active", 2, (1, 1 << 16),
        "I/Os of a removal that a leaf has under way at most";
    INITIALIZING_MIN_ACTIVE = "zfs_vdev_initializing_min_active", 1, (1, 1 << 16),
        "writes that initialize that a leaf has under way before other classes get more";
    INITIALIZING_MAX_ACTIVE = "zfs_vdev_initializing_max_active", 1, (1, 1 << 16),
        "writes that initialize that a leaf has under way at most";
    TRIM_MIN_ACTIVE = "zfs_vdev_trim_min_active", 1, (1, 1 << 16),
        "discards that a leaf has under way before other classes get more";
    TRIM_MAX_ACTIVE = "zfs_vdev_trim_max_active", 2, (1, 1 << 16),
        "discards that a leaf has under way at most";
    REBUILD_MIN_ACTIVE = "zfs_vdev_rebuild_min_active", 1, (1, 1 << 16),
        "I/Os of a rebuild that a leaf has under way before other classes get more";
    REBUILD_MAX_ACTIVE = "zfs_vdev_rebuild_max_active", 3, (1, 1 << 16),
        "I/Os of a rebuild that a leaf has under way at most";
    SPA_DISCARD_MEMORY_LIMIT = "zfs_spa_discard_memory_limit", 16 << 20, (1, 1 << 40),
        "bytes of checkpoint maps that a transaction group discards";
    TRIM_EXTENT_BYTES_MAX = "zfs_trim_extent_bytes_max", 128 << 20, (4096, 1 << 40),
        "bytes of a discard at most";
    TRIM_EXTENT_BYTES_MIN = "zfs_trim_extent_bytes_min", 32 << 10, (0, 1 << 40),
        "bytes of a free range below which it is not discarded";
    TRIM_TXG_BATCH = "zfs_trim_txg_batch", 32, (1, 1 << 20),
        "transaction groups over which what is freed is collected before it is discarded";
    INITIALIZE_VALUE = "zfs_initialize_value", 0xdead_beef_dead_beee, (0, u64::MAX),
        "word that free space is filled with by initialize";
    INITIALIZE_CHUNK_SIZE = "zfs_initialize_chunk_size", 1 << 20, (1, 16 << 20),
        "bytes of a write by initialize, rounded up to 4096";
    DEFAULT_IBS = "zfs_default_ibs", 17, (12, 17),
        "log2 of the size of indirect blocks of new objects";
    ASYNC_WRITE_MIN_DIRTY = "zfs_vdev_async_write_active_min_dirty_percent", 30, (0, 100),
        "percent of the dirty data limit from which on more async writes are under way";
    ASYNC_WRITE_MAX_DIRTY = "zfs_vdev_async_write_active_max_dirty_percent", 60, (0, 100),
        "percent of the dirty data limit at which the most async writes are under way";
    NONINTERACTIVE_CREDIT = "zfs_vdev_nia_credit", 5, (0, 1 << 16),
        "I/Os of scrub and the like that each interactive I/O of a busy leaf lets pass";
    NONINTERACTIVE_DELAY = "zfs_vdev_nia_delay", 5, (0, 1 << 16),
        "I/Os of scrub and the like one by one before they have an idle leaf for themselves";
    AGGREGATION_LIMIT_NON_ROTATING = "zfs_vdev_aggregation_limit_non_rotating", 128 * KIB,
        (0, 16 * MIB),
        "bytes up to which neighbouring I/Os are issued as one, where no head moves";
    WRITE_GAP_LIMIT = "zfs_vdev_write_gap_limit", 4 * KIB, (0, MIB),
        "bytes of optional writes that may bridge the gap to the next write";
    OPTIONAL_IS_LIMITED = "cenote_optional_io_is_limited", 0, (0, 1),
        "whether optional writes count against the aggregation limit, as before illumos #8005";
    SCAN_MEMORY_BYTES = "zfs_scan_mem_lim_soft_max", 64 * MIB, (MIB, 1 << 40),
        "bytes of block pointers and data that verify holds while it sorts";
    REMOVAL_BATCH_BYTES = "cenote_removal_batch_bytes", 32 << 20, (512, 1 << 30),
        "bytes that the removal of a vdev copies in a transaction group; twice as many are in memory";
    REMOVE_MAX_SEGMENT = "zfs_remove_max_segment", 16 << 20, (512, 16 << 20),
        "bytes that the removal of a vdev copies in one piece at most";
    REMOVAL_MAX_SPAN = "vdev_removal_max_span", 32 * KIB, (0, 16 << 20),
        "bytes of a free gap that the removal of a vdev copies with the bytes around it at most";
    REMOVAL_IGNORE_ERRORS = "zfs_removal_ignore_errors", 0, (0, 1),
        "whether the removal of a vdev goes on when bytes cannot be read: their copies are zeros";
    REMOVAL_SUSPEND_PROGRESS = "zfs_removal_suspend_progress", 0, (0, 1),
        "whether the removal of a vdev stands still";
    CONDENSE_ENABLE = "zfs_condense_indirect_vdevs_enable", 1, (0, 1),
        "whether mappings of removed vdevs are condensed";
    CONDENSE_OBSOLETE_PCT = "zfs_condense_indirect_obsolete_pct", 25, (0, 100),
        "percent of the bytes of a removed vdev that must be obsolete before its mapping is condensed";
    CONDENSE_MIN_MAPPING_BYTES = "zfs_condense_min_mapping_bytes", 128 * KIB, (0, u64::MAX),
        "bytes of a mapping up to which it is not condensed";
    CONDENSE_MAX_OBSOLETE_BYTES = "zfs_condense_max_obsolete_bytes", 1 << 30, (0, u64::MAX),
        "bytes of the map of obsolete ranges from which a mapping is condensed in any case";
    CONDENSE_DELAY_MS = "zfs_condense_indirect_commit_entry_delay_ms", 0, (0, 1 << 20),
        "for tests: milliseconds before each entry of a mapping that is condensed";
    SCAN_SUSPEND_PROGRESS = "zfs_scan_suspend_progress", 0, (0, 1),
        "whether scrub, error scrub, resilver and rebuild stand still";
    SCAN_LEGACY = "zfs_scan_legacy", 0, (0, 1),
        "whether scrub and resilver read blocks as they find them, instead of in the order of the disk";
    SCAN_ISSUE_STRATEGY = "zfs_scan_issue_strategy", 0, (0, 2),
        "order in which scrub and resilver read what they have collected: 0 and 1 that of the disk, 2 long extents first";
    SCAN_MAX_EXT_GAP = "zfs_scan_max_ext_gap", 2 * MIB, (0, 1 << 40),
        "bytes between blocks up to which they are in one extent; for strategy 2";
    SCAN_FILL_WEIGHT = "zfs_scan_fill_weight", 3, (0, 1 << 10),
        "how much an extent without gaps goes before one with gaps; for strategy 2";
    SCAN_VDEV_LIMIT = "zfs_scan_vdev_limit", 16 * MIB, (512, 1 << 40),
        "bytes of a scrub or resilver in flight for each leaf of a top-level vdev, at most";
    SCAN_ROUND_BYTES = "cenote_scan_round_bytes", 0, (0, 1 << 40),
        "bytes that a scrub or resilver reads before it records how far it is; 0: of ten seconds";
    RAIDZ_EXPAND_MAX_REFLOW_BYTES = "raidz_expand_max_reflow_bytes", 0, (0, u64::MAX),
        "for tests: bytes after which an expansion of a RAID-Z pauses; 0: never";
    RAIDZ_EXPAND_MAX_COPY_BYTES = "raidz_expand_max_copy_bytes", 160 * MIB, (MIB, 1 << 40),
        "bytes that an expansion of a RAID-Z copies at a time";
    SCRUB_AFTER_EXPAND = "zfs_scrub_after_expand", 1, (0, 1),
        "whether a scrub follows an expansion of a RAID-Z, which verifies no checksums";
    REBUILD_SCRUB = "zfs_rebuild_scrub_enabled", 1, (0, 1),
        "whether a scrub follows a sequential rebuild, which verifies no checksums";
    RESILVER_DEFER_PERCENT = "zfs_resilver_defer_percent", 10, (0, 100),
        "percent of a resilver from which it is not restarted for another leaf, but that one waits for its end";
    RESILVER_DISABLE_DEFER = "zfs_resilver_disable_defer", 0, (0, 1),
        "whether every resilver is restarted for another leaf, however far it is";
    SCRUB_ERROR_BLOCKS = "zfs_scrub_error_blocks_per_txg", 4096, (1, 1 << 20),
        "blocks of the error log that an error scrub reads before it records how far it is";
    SCAN_THROTTLE = "cenote_scan_throttle", 0, (0, 2),
        "what holds scrub and resilver back: 0 queue limits as in OpenZFS 2.3, 1 delays as before 2018, 2 a share of each leaf";
    SCRUB_DELAY = "zfs_scrub_delay", 4, (0, 0x7fff_ffff),
        "clock ticks of 10 ms before each block of a scrub while the pool is used; for throttle 1";
    RESILVER_DELAY = "zfs_resilver_delay", 2, (0, 0x7fff_ffff),
        "clock ticks of 10 ms before each block of a resilver while the pool is used; for throttle 1";
    SCAN_IDLE = "zfs_scan_idle", 50, (0, 0x7fff_ffff),
        "clock ticks of 10 ms since the last ordinary I/O after which a pool is idle; for throttle 1";
    SCAN_MIN_TIME_MS = "zfs_scan_min_time_ms", 1000, (0, 0x7fff_ffff),
        "milliseconds of a scrub before it lets a transaction group go first; for throttle 1";
    RESILVER_MIN_TIME_MS = "zfs_resilver_min_time_ms", 3000, (0, 0x7fff_ffff),
        "milliseconds of a resilver before it lets a transaction group go first; for throttle 1";
    TOP_MAXINFLIGHT = "zfs_top_maxinflight", 32, (1, 0x7fff_ffff),
        "blocks of a scan under way for each top-level vdev, at most; for throttle 1";
    SCRUB_SLOWDOWN_PCT = "cenote_scrub_slowdown_pct", 25, (1, 10_000),
        "percent by which a scan may slow ordinary I/O of a leaf down on average; for throttle 2";
    SCRUB_MIN_RATE = "cenote_scrub_min_rate", 8 * MIB, (0, 1 << 40),
        "bytes per second that a scan reads from each leaf however busy it is; for throttle 2";
    VERIFY_CHECKSUMS = "cenote_verify_checksums", 1, (0, 1),
        "whether checksums are verified; 0 exists to show that the tests notice";
    PREFETCH_BYTES = "zfetch_max_distance", 16 * MIB, (0, 1 << 30),
        "bytes read ahead of a sequential reader";
    VERIFY_BATCH_BYTES = "cenote_verify_batch_bytes", 2 * MIB, (64 * KIB, 1 << 30),
        "bytes of neighbouring blocks that verify reads and judges in one go";
    PREFETCH_DISABLE = "zfs_prefetch_disable", 0, (0, 1),
        "whether nothing is read ahead of who reads files and volumes";
    PREFETCH_MIN_BYTES = "zfetch_min_distance", 4 * MIB, (0, 1 << 30),
        "bytes that reading ahead of a stream grows to with every request";
    PREFETCH_INDIRECT_BYTES = "zfetch_max_idistance", 64 * MIB, (0, 1 << 40),
        "bytes of a stream for which indirect blocks are read ahead";
    PREFETCH_REORDER = "zfetch_max_reorder", 16 * MIB, (0, 1 << 30),
        "bytes by which requests of a stream may come out of order";
    PREFETCH_STREAMS = "zfetch_max_streams", 8, (1, 256),
        "streams of requests that are told apart in one object";
    PREFETCH_REAP_SECONDS = "zfetch_min_sec_reap", 1, (0, 3600),
        "seconds after which a stream that nobody goes on with makes room for another";
    TRAVERSE_PREFETCH_BLOCKS = "cenote_traverse_prefetch_blocks", 16, (0, 4096),
        "indirect blocks and blocks of dnodes that a traversal reads ahead of their turn";
    SEND_QUEUE_BYTES = "zfs_send_queue_length", 16 * MIB, (64 * KIB, 96 * MIB),
        "bytes of blocks that a send reads ahead of its output";
    SEND_CORRUPT_DATA = "zfs_send_corrupt_data", 0, (0, 1),
        "whether a send replaces unreadable blocks by a pattern; without it the send ends there";
    RECONSTRUCT_ATTEMPTS_MAX = "zfs_reconstruct_indirect_combinations_max", 4096, (1, 1 << 20),
        "combinations of copies tried before a split block counts as lost";
    RAIDZ_COMBINATIONS_MAX = "cenote_raidz_combinations_max", 65536, (1, 1 << 32),
        "sets of children whose bytes RAID-Z leaves out in turn before a block counts as lost";
    SLOP_SHIFT = "spa_slop_shift", 5, (1, 31),
        "the pool keeps 1/2^shift of its space back";
    SLOP_MIN = "cenote_min_slop", 128 * MIB, (MIB, 1 << 40),
        "bytes that a pool keeps back at least, unless that is more than half of it";
    MULTIHOST_IMPORT_INTERVALS = "zfs_multihost_import_intervals", 20, (1, 1000),
        "heartbeat intervals to watch a pool that another host may hold";
    MULTIHOST_INTERVAL = "zfs_multihost_interval", 1000, (100, 1 << 32),
        "milliseconds between heartbeats";
    MULTIHOST_FAIL_INTERVALS = "zfs_multihost_fail_intervals", 10, (0, 1 << 16),
        "missed heartbeats after which a pool suspends itself";
    IMPORT_DEVICES = "cenote_import_devices", 16, (1, 1024),
        "devices whose labels are read at the same time while looking for pools";
    EMBEDDED_SLOG_MIN_MS = "zfs_embedded_slog_min_ms", 64, (2, 1 << 16),
        "metaslabs above which a normal vdev gives one to the intent log";
    ZIL_MAX_BLOCK = "zil_maxblocksize", 128 * KIB, (4 * KIB, 16 * 1024 * KIB),
        "bytes of the largest block of an intent log";
    ZIL_MAX_COPIED = "zil_maxcopied", 7680, (192, 16 * 1024 * KIB),
        "bytes of the largest write whose data is kept with its log record when it is to be durable at once";
    IMMEDIATE_WRITE_SZ = "zfs_immediate_write_sz", 32 * KIB, (512, 16 * 1024 * KIB),
        "bytes from which on a write goes to its place at once, and the log points there";
    DISABLE_IVSET_GUID_CHECK = "zfs_disable_ivset_guid_check", 0, (0, 1),
        "whether a raw increment is received though its source may not be the one of the sender";
    DDT_DATA_IS_SPECIAL = "zfs_ddt_data_is_special", 1, (0, 1),
        "whether dedup tables may go to the special class";
    ALLOCATOR = "cenote_allocator", 0, (0, 2),
        "which free ranges are taken: 0 as OpenZFS does today, 1 as it did in 2013, 2 apart from metadata, where free ranges are longest";
    DF_ALLOC_THRESHOLD = "metaslab_df_alloc_threshold", 128 * KIB, (0, 1 << 40),
        "bytes of the largest free segment below which a metaslab goes over to best fit";
    DF_FREE_PCT = "metaslab_df_free_pct", 4, (0, 100),
        "percent free below which a metaslab goes over to best fit";
    DF_MAX_SEARCH = "metaslab_df_max_search", 16 * MIB, (0, 1 << 62),
        "bytes beyond the first candidate after which first fit gives up";
    DF_USE_LARGEST_SEGMENT = "metaslab_df_use_largest_segment", 0, (0, 1),
        "whether the largest segment is taken where first fit has given up";
    MIN_SEARCH_COUNT = "metaslab_min_search_count", 100, (0, 1 << 32),
        "segments that first fit looks at in any case";
    BY_SIZE_MIN = "cenote_metaslab_by_size_min", 16 * KIB, (0, 1 << 40),
        "bytes of the smallest segment that a metaslab's order by size holds at first";
    ALIQUOT = "metaslab_aliquot", MIB, (512, 1 << 40),
        "bytes per data disk that go to a top-level vdev before it is the next one's turn";
    BIAS_ENABLED = "metaslab_bias_enabled", 1, (0, 1),
        "whether emptier vdevs get longer turns";
    LBA_WEIGHTING_ENABLED = "metaslab_lba_weighting_enabled", 1, (0, 1),
        "whether weights by space prefer the start of the disk";
    SEGMENT_WEIGHT_ENABLED = "zfs_metaslab_segment_weight_enabled", 1, (0, 1),
        "whether metaslabs are weighed by their largest segments";
    SWITCH_THRESHOLD = "zfs_metaslab_switch_threshold", 2, (1, 63),
        "powers of two by which the largest segments shrink before a metaslab is left";
    MG_NOALLOC_THRESHOLD = "zfs_mg_noalloc_threshold", 0, (0, 100),
        "percent free at or below which a vdev is passed over while others have more";
    MG_FRAGMENTATION_THRESHOLD = "zfs_mg_fragmentation_threshold", 95, (0, 100),
        "percent fragmentation above which a vdev is passed over while others have less";
    FIND_MAX_TRIES = "zfs_metaslab_find_max_tries", 100, (1, 1 << 32),
        "metaslabs of a vdev that are tried before another vdev is";
    CONDENSE_PCT = "zfs_metaslab_condense_pct", 200, (101, 1 << 20),
        "percent of its best size at which a space map is rewritten";
    METASLAB_UNLOAD_DELAY = "metaslab_unload_delay", 32, (0, 1 << 32),
        "txgs without use after which a metaslab leaves memory";
    METASLAB_UNLOAD_DELAY_MS = "metaslab_unload_delay_ms", 600_000, (0, 1 << 40),
        "milliseconds without use after which a metaslab leaves memory";
    PIN_DEADLINE_MS = "cenote_pin_deadline_ms", 60_000, (0, 1 << 40),
        "milliseconds after which a reader of a committed state is not waited for any more";
    METASLAB_PRELOAD_ENABLED = "metaslab_preload_enabled", 1, (0, 1),
        "whether good metaslabs are loaded ahead of need";
    METASLAB_PRELOAD_LIMIT = "metaslab_preload_limit", 10, (0, 1 << 16),
        "metaslabs per vdev that are loaded ahead of need";
    ALLOCATOR_MEMORY = "cenote_allocator_memory", 1 << 30, (1 << 20, 1 << 46),
        "bytes of memory that what the allocator may take is a percentage of";
    METASLAB_MEM_LIMIT = "zfs_metaslab_mem_limit", 25, (1, 100),
        "percent of memory that loaded metaslabs may take";
    FORCE_GANGING = "metaslab_force_ganging", 16 * MIB + 1, (512, 1 << 40),
        "bytes from which on some blocks are made to gang, for tests";
    FORCE_GANGING_PCT = "metaslab_force_ganging_pct", 3, (0, 100),
        "percent of those blocks that are made to gang";
    NUM_ALLOCATORS = "spa_num_allocators", 4, (1, 256),
        "streams of allocations per class";
    CPUS_PER_ALLOCATOR = "spa_cpus_per_allocator", 4, (1, 1024),
        "processors for each stream of allocations in OpenZFS; has no effect here";
    SPECIAL_METADATA_RESERVE_PCT = "zfs_special_class_metadata_reserve_pct", 25, (0, 100),
        "percent of the special class that small file blocks leave to metadata";
    UNFLUSHED_MAX_MEM_AMT = "zfs_unflushed_max_mem_amt", 1 << 30, (0, 1 << 40),
        "bytes of unflushed changes of metaslabs beyond which they are flushed at once";
    UNFLUSHED_MAX_MEM_PPM = "zfs_unflushed_max_mem_ppm", 1000, (0, 1_000_000),
        "the same in millionths of memory";
    UNFLUSHED_LOG_BLOCK_MAX = "zfs_unflushed_log_block_max", 131_072, (1, 1 << 40),
        "blocks that all log space maps may have, at most";
    UNFLUSHED_LOG_BLOCK_MIN = "zfs_unflushed_log_block_min", 1000, (1, 1 << 40),
        "blocks that all log space maps may have in any case";
    UNFLUSHED_LOG_BLOCK_PCT = "zfs_unflushed_log_block_pct", 400, (1, 1 << 20),
        "blocks of log space maps for each 100 metaslabs with unflushed changes";
    UNFLUSHED_LOG_TXG_MAX = "zfs_unflushed_log_txg_max", 1000, (1, 1 << 32),
        "log space maps that there may be";
    MIN_METASLABS_TO_FLUSH = "zfs_min_metaslabs_to_flush", 1, (1, 1 << 32),
        "metaslabs flushed in a txg, at least";
    MAX_LOG_WALKING = "zfs_max_log_walking", 5, (1, 1 << 16),
        "finished log space maps whose mean size foretells the next ones";
    SYNC_PASS_REWRITE = "zfs_sync_pass_rewrite", 2, (1, 1 << 16),
        "sync pass from which on blocks of the same txg are rewritten in place";
    SYNC_PASS_DONT_COMPRESS = "zfs_sync_pass_dont_compress", 8, (1, 1 << 16),
        "sync pass from which on rewritten blocks are not compressed";
    NOPWRITE_ENABLED = "zfs_nopwrite_enabled", 1, (0, 1),
        "whether data that is there already is not written again";
    WRITE_ATTEMPTS = "cenote_write_attempts", 3, (1, 64),
        "places at which a block is tried when devices fail";
    METASLAB_DEFAULT_SHIFT = "zfs_vdev_default_ms_shift", 29, (17, 40),
        "log2 of the size of a metaslab where the number of them does not matter";
    METASLAB_MIN_SHIFT = "cenote_vdev_min_ms_shift", 24, (17, 24),
        "log2 of the smallest metaslab; blocks that are longer than a metaslab are split";
    METASLAB_MAX_SHIFT = "zfs_vdev_max_ms_shift", 34, (24, 50),
        "log2 of the largest metaslab";
    METASLAB_DEFAULT_COUNT = "zfs_vdev_default_ms_count", 200, (1, 1 << 20),
        "metaslabs that a large new vdev is cut into, at most";
    METASLAB_MIN_COUNT = "zfs_vdev_min_ms_count", 16, (1, 1 << 20),
        "metaslabs that a small new vdev is cut into, about";
    METASLAB_COUNT_LIMIT = "zfs_vdev_ms_count_limit", 1 << 17, (16, 1 << 30),
        "metaslabs above which they grow beyond the largest size";
    FILE_LOGICAL_ASHIFT = "vdev_file_logical_ashift", 9, (9, 16),
        "log2 of the logical sector size of files";
    FILE_PHYSICAL_ASHIFT = "vdev_file_physical_ashift", 9, (9, 16),
        "log2 of the physical sector size of files";
    ZEVENT_LEN_MAX = "zfs_zevent_len_max", 1000, (1, 1 << 20),
        "events of each pool that are kept";
    ZEVENT_RETAIN_MAX = "zfs_zevent_retain_max", 2000, (0, 1 << 20),
        "errors of devices that each pool remembers, so that the same error posts one event";
    ZEVENT_RETAIN_EXPIRE_SECS = "zfs_zevent_retain_expire_secs", 900, (0, 1 << 32),
        "seconds without the same error after which it posts an event again";
    MIN_AUTO_ASHIFT = "zfs_vdev_min_auto_ashift", 9, (9, 16),
        "smallest ashift chosen for a new vdev";
    MAX_AUTO_ASHIFT = "zfs_vdev_max_auto_ashift", 14, (9, 16),
        "largest physical sector, log2, that raises the ashift of a new vdev";
    MAX_MISSING_TVDS = "zfs_max_missing_tvds", 0, (0, 1 << 16),
        "missing top-level vdevs with which a pool may still be opened";
    SPARES_AUTO = "cenote_spares_auto", 1, (0, 1),
        "whether the daemon calls in hot spares for devices that fail";
    DIAGNOSIS_AUTO = "cenote_diagnosis_auto", 1, (0, 1),
        "whether devices with too many errors are faulted or degraded";
    CLIENT_TIMEOUT = "cenote_client_timeout", 30, (1, 3600),
        "seconds that another user's client may take to read the output of a command";
    KSTAT_INTERVAL = "cenote_kstat_interval", 10, (1, 3600),
        "seconds after which the daemon writes its kstat files anew";
    SLOW_IO_MS = "zio_slow_io_ms", 30_000, (0, u64::MAX),
        "milliseconds after which an I/O of a device counts as slow";
    SLOW_IO_EVENTS_PER_SECOND = "zfs_slow_io_events_per_second", 20, (0, 1 << 20),
        "events of slow I/O per second and device, at most";
    CHECKSUM_EVENTS_PER_SECOND = "zfs_checksum_events_per_second", 20, (0, 1 << 20),
        "events of failed writes and flushes per second and device, at most";
    DEADMAN_ENABLED = "zfs_deadman_enabled", 1, (0, 1),
        "whether I/Os and transaction groups that hang are reported";
    DEADMAN_CHECKTIME_MS = "zfs_deadman_checktime_ms", 60_000, (1, 1 << 40),
        "milliseconds between two checks for I/Os that hang";
    DEADMAN_ZIOTIME_MS = "zfs_deadman_ziotime_ms", 300_000, (1, 1 << 40),
        "milliseconds after which an I/O counts as hanging";
    DEADMAN_SYNCTIME_MS = "zfs_deadman_synctime_ms", 600_000, (1, 1 << 40),
        "milliseconds after which the sync of a transaction group counts as hanging";
    DEADMAN_EVENTS_PER_SECOND = "zfs_deadman_events_per_second", 1, (0, 1 << 20),
        "events of hanging I/O per second and device, at most";
    DEADMAN_FAILMODE = "zfs_deadman_failmode", 0, (0, 2),
        "what follows when an I/O hangs: 0 wait, 1 continue (as 0), 2 panic: the pool is suspended";
    USER_INDIRECT_IS_SPECIAL = "zfs_user_indirect_is_special", 1, (0, 1),
        "whether indirect blocks of files count as metadata for the special class";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_defaults_in_range() {
        let mut names = std::collections::BTreeSet::new();
        for (index, tunable) in ALL.iter().enumerate() {
            assert_eq!(tunable.index(), index, "{}", tunable.name);
            assert!(names.insert(tunable.name), "{}", tunable.name);
            assert!((tunable.min..=tunable.max).contains(&tunable.default), "{}", tunable.name);
        }
    }

    #[test]
    fn text_is_decimal_or_hexadecimal_and_bounded() {
        for (text, want) in [
            ("7", Ok(())),
            ("0x6", Ok(())),
            ("x", Err(TunableError::NotANumber("x".into()))),
            ("99", Err(TunableError::Range { name: "spa_slop_shift", min: 1, max: 31, value: 99 })),
        ] {
            assert_eq!(set("spa_slop_shift", text), want, "{text}");
        }
        assert_eq!(SLOP_SHIFT.get(), 6);
        SLOP_SHIFT.set(5).expect("default");
        assert!(set("no_such", "1").is_err());
    }
}
